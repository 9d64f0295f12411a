"""Service messages: who came and went, and what a place is called now. Pure."""

from collections import OrderedDict
from dataclasses import replace
from datetime import datetime
from typing import Literal

from channels.payload import Json, get_datetime, get_object, get_objects, get_raw_str, get_str
from channels.telegram.media import full_name
from channels.telegram.people import TelegramUpdateContext, parse_message_id, parse_place, parse_sender, parse_user
from channels.text import clean_name, single_line
from gateway.events import Address, EventId, MembershipChanged, PlaceNames, Sender

_PRESENT_STATUSES = frozenset({"member", "administrator", "creator", "restricted"})
_MAX_TITLE_CHARS = 128
_MAX_NAMES = 4_096
"""Chats and forum topics: what was told of earlier ones is in the log."""
_UPDATE_KINDS = (
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "message_reaction",
    "my_chat_member",
)
"""Of updates that tell their chat; a press of a button tells of its `message`."""


def parse_membership(message: Json, view: TelegramUpdateContext, now: datetime) -> tuple[MembershipChanged, ...]:
    """What a service message says; nothing if it is none, or concerns ourselves (`parse_own_membership` does)."""
    at, by, number = parse_place(message, view), parse_sender(message), parse_message_id(message, view)
    if at is None or by is None or number is None:
        return ()
    sent = get_datetime(message, "date") or now

    def event(
        change: Literal["join", "part", "kick", "title"],
        who: Sender,
        index: int = 0,
        subject: str | None = None,
        text: str | None = None,
    ) -> MembershipChanged:
        event_id = EventId(f"{number}.{index}")
        return MembershipChanged(id=event_id, at=at, sender=who, change=change, sent=sent, subject=subject, text=text)

    joined = [
        who
        for one in get_objects(message, "new_chat_members")
        if (who := parse_user(one)) and who.id != str(view.own_id)
    ]
    if joined:
        return tuple(event("join", who, index) for index, who in enumerate(joined))
    left = parse_user(get_object(message, "left_chat_member"))
    if left and left.id != str(view.own_id):
        return (event("part", left) if left.id == by.id else event("kick", by, subject=left.name),)
    topic = get_object(message, "forum_topic_created") or get_object(message, "forum_topic_edited")
    title = single_line(get_raw_str(message, "new_chat_title") or get_raw_str(topic, "name"), _MAX_TITLE_CHARS)
    if title and by.id != str(view.own_id):
        return (event("title", by, text=title),)
    return ()


class ChatTitles:
    """What chats and forum topics are called, from the updates that tell it."""

    def __init__(self) -> None:
        self._names: OrderedDict[Address, PlaceNames] = OrderedDict()

    def apply_update(self, update: Json, view: TelegramUpdateContext) -> None:
        """Take in what an update tells of its place."""
        for kind in _UPDATE_KINDS:
            message = get_object(update, kind) or get_object(get_object(update, "callback_query"), kind)
            at = parse_place(message, view)
            if at is not None:
                self._store(replace(at, thread=None), _chat_names(get_object(message, "chat")))
                if at.thread is not None:
                    self._store(at, _topic_names(message))

    def place_names(self, at: Address, view: TelegramUpdateContext) -> PlaceNames:
        """Of a thread with the names of its room."""
        known = self._names.get(replace(at, thread=None), PlaceNames())
        if at.thread is not None and (topic := self._names.get(at)) is not None:
            known = replace(known, thread=topic.thread, thread_created_as=topic.thread_created_as)
        return replace(known, me=f"@{view.username}" if view.username else None)

    def _store(self, at: Address, told: PlaceNames) -> None:
        before = self._names.get(at)
        if at.thread is not None and before is not None and told.thread is None:
            first = told.thread_created_as or before.thread_created_as
            told = replace(before, thread_created_as=first)
        self._names[at] = told
        self._names.move_to_end(at)
        if len(self._names) > _MAX_NAMES:
            self._names.popitem(last=False)


def _chat_names(chat: Json) -> PlaceNames:
    if get_raw_str(chat, "type") == "private":
        handle = clean_name(get_raw_str(chat, "username"))
        return PlaceNames(person=full_name(chat) or None, handle=f"@{handle}" if handle else "")
    # Descriptions of groups are not told in updates, and nothing else there is a topic.
    return PlaceNames(room=get_str(chat, "title") or None, topic="")


def _topic_names(message: Json) -> PlaceNames:
    """What a message in a forum topic tells of it: its name by now, or what it was called when it was created."""
    now = get_object(message, "forum_topic_edited") or get_object(message, "forum_topic_created")
    first = get_object(get_object(message, "reply_to_message"), "forum_topic_created")
    return PlaceNames(thread=get_str(now, "name") or None, thread_created_as=get_str(first, "name") or None)


def parse_own_membership(
    event: Json, view: TelegramUpdateContext, now: datetime, update_id: int
) -> tuple[MembershipChanged, ...]:
    """We were taken into a place or out of it; in private: somebody blocked us, or wants us back."""
    at, by = parse_place(event, view), parse_sender(event)
    before, after = (_is_present(get_object(event, key)) for key in ("old_chat_member", "new_chat_member"))
    if at is None or by is None or before is None or after is None or before is after:
        return ()
    change: Literal["join", "part", "kick", "invite"]
    if get_raw_str(get_object(event, "chat"), "type") == "private":
        change = "join" if after else "part"
    else:
        change = "invite" if after else "kick"
    return (
        MembershipChanged(
            id=EventId(f"{update_id}.me"),
            at=at,
            sender=by,
            change=change,
            sent=get_datetime(event, "date") or now,
            subject=full_name(get_object(get_object(event, "new_chat_member"), "user")) or None
            if change == "kick"
            else None,
            text=clean_name(get_raw_str(get_object(event, "chat"), "title")) or None if change == "invite" else None,
        ),
    )


def _is_present(member: Json) -> bool | None:
    """Whether a member is there; None: not told."""
    status = get_raw_str(member, "status")
    if status == "restricted":
        return member.get("is_member") is not False
    return status in _PRESENT_STATUSES if status else None
