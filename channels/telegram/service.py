"""Service messages: who came and went, and what a place is called now. Pure."""

from collections import OrderedDict
from dataclasses import replace
from datetime import datetime
from typing import Literal

from channels.payload import Json, moment, obj, objs, raw, string
from channels.telegram.media import full_name
from channels.telegram.people import View, message_id, place, sender, somebody
from channels.text import line, name
from gateway.events import Address, EventId, Membership, PlaceNames, Sender

_IN = frozenset({"member", "administrator", "creator", "restricted"})
_TITLE_CHARS = 128
_REMEMBERED = 4_096
"""Chats and forum topics: what was told of earlier ones is in the log."""
_KINDS = (
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "message_reaction",
    "my_chat_member",
)
"""Of updates that tell their chat; a press of a button tells of its `message`."""


def membership(message: Json, view: View, now: datetime) -> tuple[Membership, ...]:
    """What a service message says; nothing if it is none, or concerns ourselves (`my_membership` does)."""
    at, by, number = place(message, view), sender(message), message_id(message, view)
    if at is None or by is None or number is None:
        return ()
    sent = moment(message, "date") or now

    def event(
        change: Literal["join", "part", "kick", "title"],
        who: Sender,
        index: int = 0,
        subject: str | None = None,
        text: str | None = None,
    ) -> Membership:
        event_id = EventId(f"{number}.{index}")
        return Membership(id=event_id, at=at, sender=who, change=change, sent=sent, subject=subject, text=text)

    joined = [who for one in objs(message, "new_chat_members") if (who := somebody(one)) and who.id != str(view.own_id)]
    if joined:
        return tuple(event("join", who, index) for index, who in enumerate(joined))
    left = somebody(obj(message, "left_chat_member"))
    if left and left.id != str(view.own_id):
        return (event("part", left) if left.id == by.id else event("kick", by, subject=left.name),)
    topic = obj(message, "forum_topic_created") or obj(message, "forum_topic_edited")
    title = line(raw(message, "new_chat_title") or raw(topic, "name"), _TITLE_CHARS)
    if title and by.id != str(view.own_id):
        return (event("title", by, text=title),)
    return ()


class ChatTitles:
    """What chats and forum topics are called, from the updates that tell it."""

    def __init__(self) -> None:
        self._names: OrderedDict[Address, PlaceNames] = OrderedDict()

    def apply_update(self, update: Json, view: View) -> None:
        """Take in what an update tells of its place."""
        for kind in _KINDS:
            message = obj(update, kind) or obj(obj(update, "callback_query"), kind)
            at = place(message, view)
            if at is not None:
                self._store(replace(at, thread=None), _chat(obj(message, "chat")))
                if at.thread is not None:
                    self._store(at, _topic(message))

    def place_names(self, at: Address, view: View) -> PlaceNames:
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
        if len(self._names) > _REMEMBERED:
            self._names.popitem(last=False)


def _chat(chat: Json) -> PlaceNames:
    if raw(chat, "type") == "private":
        handle = name(raw(chat, "username"))
        return PlaceNames(person=full_name(chat) or None, handle=f"@{handle}" if handle else "")
    # Descriptions of groups are not told in updates, and nothing else there is a topic.
    return PlaceNames(room=string(chat, "title") or None, topic="")


def _topic(message: Json) -> PlaceNames:
    """What a message in a forum topic tells of it: its name by now, or what it was called when it was created."""
    now = obj(message, "forum_topic_edited") or obj(message, "forum_topic_created")
    first = obj(obj(message, "reply_to_message"), "forum_topic_created")
    return PlaceNames(thread=string(now, "name") or None, thread_created_as=string(first, "name") or None)


def my_membership(event: Json, view: View, now: datetime, update_id: int) -> tuple[Membership, ...]:
    """We were taken into a place or out of it; in private: somebody blocked us, or wants us back."""
    at, by = place(event, view), sender(event)
    before, after = (_inside(obj(event, key)) for key in ("old_chat_member", "new_chat_member"))
    if at is None or by is None or before is None or after is None or before is after:
        return ()
    change: Literal["join", "part", "kick", "invite"]
    if raw(obj(event, "chat"), "type") == "private":
        change = "join" if after else "part"
    else:
        change = "invite" if after else "kick"
    return (
        Membership(
            id=EventId(f"{update_id}.me"),
            at=at,
            sender=by,
            change=change,
            sent=moment(event, "date") or now,
            subject=full_name(obj(obj(event, "new_chat_member"), "user")) or None if change == "kick" else None,
            text=name(raw(obj(event, "chat"), "title")) or None if change == "invite" else None,
        ),
    )


def _inside(member: Json) -> bool | None:
    """Whether a member is there; None: not told."""
    status = raw(member, "status")
    if status == "restricted":
        return member.get("is_member") is not False
    return status in _IN if status else None
