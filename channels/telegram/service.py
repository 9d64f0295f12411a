"""Service messages: who came and went, and what a place is called now. Pure."""

from datetime import datetime
from typing import Literal

from channels.payload import Json, moment, obj, objs, raw
from channels.telegram.media import full_name
from channels.telegram.people import View, message_id, place, sender, somebody
from channels.text import line, name
from gateway.events import EventId, Membership, Sender

_IN = frozenset({"member", "administrator", "creator", "restricted"})
_TITLE_CHARS = 128


def membership(message: Json, view: View, now: datetime) -> tuple[Membership, ...]:
    """What a service message says; nothing if it is none, or concerns ourselves (`my_membership` does)."""
    at, by, number = place(message, view), sender(message), message_id(message, view)
    if at is None or by is None or number is None:
        return ()
    sent = moment(message, "date") or now

    def event(
        change: Literal["join", "part", "kick", "topic"],
        who: Sender,
        index: int = 0,
        subject: str | None = None,
        text: str | None = None,
    ) -> Membership:
        event_id = EventId(f"{number}.{index}")
        return Membership(id=event_id, at=at, sender=who, change=change, sent=sent, subject=subject, text=text)

    joined = [who for one in objs(message, "new_chat_members") if (who := somebody(one)) and who.id != str(view.me)]
    if joined:
        return tuple(event("join", who, index) for index, who in enumerate(joined))
    left = somebody(obj(message, "left_chat_member"))
    if left and left.id != str(view.me):
        return (event("part", left) if left.id == by.id else event("kick", by, subject=left.name),)
    topic = obj(message, "forum_topic_created") or obj(message, "forum_topic_edited")
    title = line(raw(message, "new_chat_title") or raw(topic, "name"), _TITLE_CHARS)
    if title and by.id != str(view.me):
        return (event("topic", by, text=title),)
    return ()


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
