"""Content of Telegram's messages that is neither text nor a file, and what its service messages
tell. Pure.

Each kind of https://core.telegram.org/bots/api#message stands in one table: `_CONTENT` is said by
its sender, or passed on with words of others (`passes_on`), `_SERVICE` happened in the chat,
`UNTOLD_SERVICE` is no line. Names that others chose stand in no line of the sender's own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import telegram

from channels.telegram.people import format_mention, full_name, mention_of, seconds
from channels.text import (
    clean_name,
    clean_text,
    get_int,
    get_object,
    get_objects,
    get_raw_str,
    single_line,
)

_MAX_ITEMS, _TEXT_CHARS = 12, 300
_EMOJI_CHARS: Final = 16
_MAX_RICH_DEPTH: Final = 20


def describe_content(message: telegram.Message | telegram.ExternalReplyInfo) -> str:
    """Return a line for content that is neither text nor a file; empty if there is none."""
    return _describe(message, _CONTENT)


def passes_on(message: telegram.Message) -> bool:
    """Return whether the line of `describe_content` or `describe_service` has words that the sender
    did not write.
    """
    options = message.poll.options if message.poll else ()
    return (
        any(getattr(message, name) for name in _PASSED_ON)
        or bool(message.checklist and message.checklist.others_can_add_tasks)
        or any(one.added_by_user or one.added_by_chat for one in options)
    )


def describe_service(message: telegram.Message) -> str:
    """Return a line for what happened in a chat; empty if it is nothing that is told."""
    return _describe(message, _SERVICE)


def _describe(
    message: telegram.Message | telegram.ExternalReplyInfo,
    kinds: Mapping[str, Callable[[Any], str]],
) -> str:
    return next(
        (
            f"[{write(value)}]"
            for name, write in kinds.items()
            if (value := getattr(message, name, None))
        ),
        "",
    )


def _write_position(location: telegram.Location) -> str:
    degrees = (
        f"{value:.6f}".rstrip("0").rstrip(".") for value in (location.latitude, location.longitude)
    )
    return ", ".join(degrees)


def _line(text: str) -> str:
    return single_line(text, _TEXT_CHARS)


def _list(texts: Iterable[str], separator: str = " | ") -> str:
    found = list(map(clean_name, texts))
    more = len(found) - _MAX_ITEMS
    return separator.join(found[:_MAX_ITEMS]) + (f" and {more} more" if more > 0 else "")


def _names(people: Iterable[telegram.User | telegram.SharedUser]) -> str:
    return _list(map(mention_of, people), ", ")


def _write_emoji(emoji: str | None) -> str:
    """Return what may be an emoji: no word."""
    return "" if any(map(str.isalnum, emoji or "")) else single_line(emoji or "", _EMOJI_CHARS)


def _write_tasks_done(done: telegram.ChecklistTasksDone) -> str:
    checklist = done.checklist_message.checklist if done.checklist_message else None
    names = {task.id: task.text for task in checklist.tasks} if checklist else {}
    changes = (
        ("done", done.marked_as_done_task_ids),
        ("not done", done.marked_as_not_done_task_ids),
    )
    told = (
        f"{what}: {_list(names.get(one) or f'task {one}' for one in ids)}"
        for what, ids in changes
        if ids
    )
    return f"in a checklist: {'; '.join(told)}"


def _write_timer(timer: telegram.MessageAutoDeleteTimerChanged) -> str:
    kept_h = seconds(timer.message_auto_delete_time) / 3600
    return f"messages here are deleted after {kept_h:g} h" if kept_h else "messages here are kept"


_CONTENT: Final[Mapping[str, Callable[[Any], str]]] = {
    "venue": lambda one: (  # before its location
        f"venue: {clean_name(one.title)}, {clean_name(one.address)} "
        f"({_write_position(one.location)})"
    ),
    "location": lambda one: f"location: {_write_position(one)}",
    "contact": lambda one: f"contact: {full_name(one)}, {clean_name(one.phone_number)}",
    "poll": lambda one: (
        f"poll: {_line(one.question)}: {_list(option.text for option in one.options)}"
    ),
    "dice": lambda one: f"dice: {_write_emoji(one.emoji)} {one.value}",
    "sticker": lambda one: f"sticker: {_write_emoji(one.emoji)}".rstrip(": "),
    "game": lambda _: "game",
    "checklist": lambda one: (
        f"checklist: {_line(one.title)}: {_list(task.text for task in one.tasks)}"
    ),
    "story": lambda _: "story",
    "paid_media": lambda one: (
        f"paid media, which bots cannot open: {len(one.paid_media)} for {one.star_count} stars"
    ),
    "invoice": lambda one: f"invoice: {_line(one.title)}",
    "giveaway": lambda one: f"giveaway: {one.winner_count} winners",
    "giveaway_winners": lambda one: f"winners of a giveaway: {_names(one.winners)}",
    "users_shared": lambda one: f"shared people: {_names(one.users)}",
    "chat_shared": lambda one: (
        f"shared a chat: {clean_name(one.title or one.username or str(one.chat_id))}"
    ),
    "web_app_data": lambda one: (
        f"from the web app {clean_name(one.button_text)}: {_line(one.data)}"
    ),
    "passport_data": lambda _: "Telegram Passport data, which is not read",
}
_PASSED_ON: Final = (
    "venue",
    "contact",
    "chat_shared",
    "web_app_data",
    "checklist_tasks_done",
    "poll_option_deleted",
)
"""Kinds with words that others chose: names of places, people and groups, and what was in a list
before."""
_SERVICE: Final[Mapping[str, Callable[[Any], str]]] = {
    "pinned_message": lambda _: "pinned this message",
    "video_chat_scheduled": lambda one: (
        f"planned a video chat for {one.start_date:%Y-%m-%d %H:%M} UTC"
    ),
    "video_chat_started": lambda _: "started a video chat",
    "video_chat_ended": lambda one: (
        f"the video chat ended after {timedelta(seconds=round(seconds(one.duration)))}"
    ),
    "video_chat_participants_invited": lambda one: (
        f"invited to the video chat: {_names(one.users)}"
    ),
    "checklist_tasks_done": _write_tasks_done,
    "checklist_tasks_added": lambda one: (
        f"added to a checklist: {_list(task.text for task in one.tasks)}"
    ),
    "poll_option_added": lambda one: f"added to a poll: {_line(one.option_text)}",
    "poll_option_deleted": lambda one: f"took out of a poll: {_line(one.option_text)}",
    "proximity_alert_triggered": lambda one: (
        f"{mention_of(one.traveler)} is within {one.distance} m of {mention_of(one.watcher)}"
    ),
    "message_auto_delete_timer_changed": _write_timer,
    "chat_owner_changed": lambda one: f"the group belongs to {mention_of(one.new_owner)} now",
    "chat_owner_left": lambda _: "the owner of the group has left",
    "gift": lambda _: "gave a gift",
    "unique_gift": lambda _: "gave a gift",
    "giveaway_created": lambda _: "began a giveaway",
    "giveaway_completed": lambda _: "the giveaway is over",
    "forum_topic_closed": lambda _: "closed this topic",
    "forum_topic_reopened": lambda _: "opened this topic again",
    "new_chat_photo": lambda _: "changed the picture of this chat",
    "delete_chat_photo": lambda _: "took the picture of this chat away",
}
_UNTOLD = (
    "group_chat_created supergroup_chat_created channel_chat_created migrate_to_chat_id "
    "migrate_from_chat_id forum_topic_created forum_topic_edited general_forum_topic_hidden "
    "general_forum_topic_unhidden boost_added chat_background_set connected_website "
    "write_access_allowed gift_upgrade_sent successful_payment refunded_payment "
    "managed_bot_created direct_message_price_changed paid_message_price_changed "
    "suggested_post_approved suggested_post_approval_failed suggested_post_declined "
    "suggested_post_paid suggested_post_refunded new_chat_members left_chat_member new_chat_title"
)
UNTOLD_SERVICE: Final = tuple(_UNTOLD.split())
"""Service messages that are no line: those that are read as changes of members, titles and ids,
those that change nothing in what is said, and payments, which the bot never asks for."""


def read_rich_text(rich: object) -> str:
    """Return the text of a rich message (core.telegram.org/bots/api#richmessage), with each block
    on a line.
    """
    return clean_text(
        "\n".join(line for line in _rich_lines(get_objects(rich, "blocks"), 0) if line.strip())
    )


def _rich_lines(blocks: Iterable[object], depth: int) -> Iterator[str]:
    for block in blocks if depth < _MAX_RICH_DEPTH else ():
        if isinstance(block, dict):
            yield from (
                _rich_inline(block.get(key), depth) for key in ("summary", "text", "expression")
            )
            for row in block.get("cells") or ():
                yield " | ".join(_rich_inline(cell, depth) for cell in row)
            for item in get_objects(block, "items"):
                inside = "\n".join(
                    filter(str.strip, _rich_lines(get_objects(item, "blocks"), depth + 1))
                )
                yield f"{get_raw_str(item, 'label')} {inside}"
            yield from _rich_lines(get_objects(block, "blocks"), depth + 1)
            yield _rich_inline(block.get("caption"), depth)


def _rich_inline(text: object, depth: int) -> str:
    if depth > _MAX_RICH_DEPTH or text is None:
        return ""
    if isinstance(text, list):
        return "".join(_rich_inline(one, depth + 1) for one in text)
    if isinstance(text, dict):
        if user := get_object(text, "user"):
            return format_mention(get_raw_str(user, "username"), get_int(user, "id"))
        if "custom_emoji_id" in text:
            return _write_emoji(get_raw_str(text, "alternative_text"))
        plain = get_raw_str(text, "alternative_text") or get_raw_str(text, "expression")
        return plain or _rich_inline(text.get("text"), depth + 1)
    return text if isinstance(text, str) else ""
