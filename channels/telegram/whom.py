"""Whom a message is said to: us, by a command, a mention or a reply, or the room. Pure."""

from typing import Literal

from channels.payload import Json, get_int, get_object, get_objects, get_raw_str
from channels.telegram.entities import Utf16Text
from channels.telegram.people import TelegramUpdateContext, forward_origin_name

MessageKind = Literal["direct", "mention", "reply", "room"]

TEXT_FIELDS = (("text", "entities"), ("caption", "caption_entities"))
"""Where text stands, and what marks it."""


def parse_command(message: Json, view: TelegramUpdateContext) -> tuple[str, str] | None:
    """Name and arguments of a command that is said to us.

    One that was forwarded, or sent by a bot for somebody, was not written by whom it comes from.
    """
    first = next((one for one in get_objects(message, "entities") if get_int(one, "offset") == 0), {})
    units = Utf16Text(get_raw_str(message, "text"))
    where = units.find_span(get_int(first, "offset"), get_int(first, "length"))
    others = (
        bool(forward_origin_name(message))
        or bool(get_object(message, "via_bot"))
        or message.get("is_automatic_forward") is True
    )
    if get_raw_str(first, "type") != "bot_command" or not where or others:
        return None
    word, _, whom = units.cut(*where).removeprefix("/").partition("@")
    private = get_raw_str(get_object(message, "chat"), "type") == "private"
    ours = whom.casefold() == view.username.casefold() if whom else private or _is_known_command(word, view)
    return (word.lower(), units.cut(where[1], units.size).strip()) if word and ours else None


def _is_known_command(word: str, view: TelegramUpdateContext) -> bool:
    return not view.commands or word.lower() in view.commands


def replied_message(message: Json) -> Json:
    """The message that this one replies to. What stands in a topic "replies" to the topic's beginning."""
    about = get_object(message, "reply_to_message")
    begins = message.get("is_topic_message") is True and (
        "forum_topic_created" in about or get_int(about, "message_id") == get_int(message, "message_thread_id")
    )
    return {} if begins else about


def message_kind(message: Json, view: TelegramUpdateContext, about: Json) -> MessageKind:
    """`about`: what `replied_message` says."""
    if get_raw_str(get_object(message, "chat"), "type") == "private":
        return "direct"
    if any(_mentions_us(message, text, entities, view) for text, entities in TEXT_FIELDS):
        return "mention"
    return "reply" if get_int(get_object(about, "from"), "id") == view.own_id else "room"


def _mentions_us(message: Json, text: str, entities: str, view: TelegramUpdateContext) -> bool:
    units = Utf16Text(get_raw_str(message, text))
    for entity in get_objects(message, entities):
        where, kind = units.find_span(get_int(entity, "offset"), get_int(entity, "length")), get_raw_str(entity, "type")
        if kind == "text_mention" and get_int(get_object(entity, "user"), "id") == view.own_id:
            return True
        if where and kind in ("mention", "bot_command") and view.username:
            named = units.cut(*where).partition("@")[2]
            if named.casefold() == view.username.casefold():
                return True
    return False
