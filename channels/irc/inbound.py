"""Lines into notifications. Pure: the time and a fresh id are handed in.

Client-to-client requests: https://modern.ircdocs.horse/ctcp. Pure.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from channels.irc.outgoing import IrcTokenBucket
from channels.irc.people import IrcUsers, direct_chat, parse_sender
from channels.irc.render import strip_formatting, to_markdown
from channels.irc.wire import IrcLine, Isupport, format_line, mentions_nick
from gateway.core.events import (
    Address,
    ChannelName,
    EventId,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageId,
    Notification,
    ReactionChanged,
    RoomId,
    Sender,
    ThreadId,
)

_BURST, _PER_S = 3, 0.05
_MAX_PING_CHARS = 100
CLIENT_NAME = "Reverie"


@dataclass(frozen=True, slots=True)
class CtcpRequest:
    """One request or ACTION."""

    command: str
    argument: str


def parse_ctcp(text: str) -> CtcpRequest | None:
    """Read `text` as CTCP, ACTION included; None if it is not."""
    if not text.startswith("\x01"):
        return None
    command, _, argument = text[1:].partition("\x01")[0].partition(" ")
    return CtcpRequest(command.upper(), strip_formatting(argument))


class CtcpResponder:
    """Answers a few requests; a flood of them gets a few answers."""

    def __init__(self, contact: str | None, source: str, now_s: float) -> None:
        self._answers = {
            "VERSION": CLIENT_NAME + (f" ({contact})" if contact else ""),
            "SOURCE": source,
            "CLIENTINFO": "ACTION CLIENTINFO PING SOURCE VERSION",
        }
        self._bucket = IrcTokenBucket(_BURST, _PER_S, now_s)

    def answer(self, said: IrcLine, now_s: float) -> str | None:
        """What to say to a PRIVMSG; None: nothing."""
        request = parse_ctcp(said.param(1))
        if request is None or not said.source.user:
            return None
        answers = self._answers | {"PING": request.argument[:_MAX_PING_CHARS]}
        answer = answers.get(request.command)
        if answer is None or self._bucket.wait_s(now_s) > 0:
            return None
        self._bucket.take()
        return format_line("NOTICE", said.source.nick, trailing=f"\x01{request.command} {answer}\x01")


_STALE_AGE: Final = timedelta(minutes=5)
"""What the server sent longer ago was played back by a bouncer. More than servers' clocks are off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcLineContext:
    """What must be known to read a line."""

    channel: ChannelName
    own_nick: str
    """Our nick at the moment."""
    rooms: Mapping[str, str]
    """Folded name -> the operator's spelling, of the configured rooms."""
    isupport: Isupport
    people: IrcUsers
    has_account_tag: bool
    """The server agreed to tag messages with their account, so no tag means no account."""
    own_message_ids: Container[str] = ()
    """The server's names of messages of ours."""
    history_place: str | None = None
    """The line is history of this room (folded) or person: what we know of people now does not hold for it."""
    own_account: str = ""
    """Our own account. In the past we may have had another nick, but not another account."""


def to_notifications(
    line: IrcLine, view: IrcLineContext, now: datetime, fresh_id: Callable[[], str]
) -> tuple[Notification, ...]:
    """What `line` tells; empty for what is not ours to tell: own doings, notices, CTCP, unknown commands.

    A nick change and a quit are told once for each room that we share with the person, the rest at most once.
    """
    if not line.source.nick or view.isupport.fold(line.source.nick) == view.isupport.fold(view.own_nick):
        return ()
    if view.history_place is not None and view.own_account and line.tags.get("account") == view.own_account:
        return ()
    match line.command:
        case "PRIVMSG":
            message = _parse_message(line, view, now, fresh_id)
            return (message,) if message else ()
        case "TAGMSG":
            reacted = _parse_reaction(line, view, now, fresh_id)
            return (reacted,) if reacted else ()
        case "REDACT":
            deleted = _parse_redaction(line, view, now, fresh_id)
            return (deleted,) if deleted else ()
        case _:
            return _parse_memberships(line, view, now, fresh_id)


def reply_target(line: IrcLine) -> MessageId | None:
    """https://ircv3.net/specs/client-tags/reply, also under the name that it had as a draft."""
    told = line.tags.get("+reply") or line.tags.get("+draft/reply")
    return MessageId(told) if told else None


def _parse_place(line: IrcLine, sender: Sender, view: IrcLineContext) -> tuple[Address, bool] | None:
    """Where it was said, and whether that is a room; None: not to us."""
    target = line.param(0)
    room = view.isupport.room_of(target)
    if room is not None:
        # https://modern.ircdocs.horse/#statusmsg-parameter: for some of those who are there, so apart from the room.
        status = view.isupport.status_prefix(target)
        at = _room_address(room, view)
        return (replace(at, thread=ThreadId(status)) if status else at), True
    if view.isupport.fold(target) != view.isupport.fold(view.own_nick):
        return None
    return Address(channel=view.channel, room=direct_chat(sender, line.source.mask)), False


def _parse_message(line: IrcLine, view: IrcLineContext, now: datetime, fresh_id: Callable[[], str]) -> Message | None:
    text = line.param(1)
    request = parse_ctcp(text)
    if request and request.command != "ACTION":
        return None
    # Only a multiline message has more than one line.
    said = "\n".join(map(strip_formatting, text.split("\n"))) if request is None else f"/me {request.argument}"
    sender = _line_sender(line, view, now, view.isupport.room_of(line.param(0)))
    place = _parse_place(line, sender, view)
    if place is None or not (said if request is None else request.argument).strip():
        return None
    at, in_room = place
    reply_to = reply_target(line)
    kind: Literal["direct", "mention", "reply", "room"] = "room" if in_room else "direct"
    if in_room and mentions_nick(said, view.own_nick, view.isupport):
        kind = "mention"
    elif in_room and reply_to is not None and reply_to in view.own_message_ids:
        kind = "reply"
    return Message(
        id=MessageId(line.tags.get("msgid") or fresh_id()),
        at=at,
        sender=sender,
        text="\n".join(map(to_markdown, text.split("\n"))) if request is None else said,
        sent=sent_at(line, now),
        kind=kind,
        reply_to=reply_to,
    )


def _parse_reaction(
    line: IrcLine, view: IrcLineContext, now: datetime, fresh_id: Callable[[], str]
) -> ReactionChanged | None:
    """https://ircv3.net/specs/client-tags/react: a reply without text."""
    message = reply_target(line)
    added = strip_formatting(line.tags.get("+draft/react", "") or line.tags.get("+react", ""))
    removed = strip_formatting(line.tags.get("+draft/unreact", "") or line.tags.get("+unreact", ""))
    sender = _line_sender(line, view, now, view.isupport.room_of(line.param(0)))
    place = _parse_place(line, sender, view)
    if place is None or message is None or not (added or removed).strip():
        return None
    return ReactionChanged(
        id=EventId(line.tags.get("msgid") or fresh_id()),
        at=place[0],
        sender=sender,
        message=message,
        reaction=added or removed,
        added=bool(added),
        sent=sent_at(line, now),
        direct=not place[1],
    )


def _parse_redaction(
    line: IrcLine, view: IrcLineContext, now: datetime, fresh_id: Callable[[], str]
) -> MessageDeleted | None:
    """A message that was taken back: https://ircv3.net/specs/extensions/message-redaction."""
    sender = _line_sender(line, view, now, view.isupport.room_of(line.param(0)))
    place, message = _parse_place(line, sender, view), line.param(1)
    if place is None or not message:
        return None
    told = EventId(line.tags.get("msgid") or fresh_id())
    return MessageDeleted(
        id=told,
        at=place[0],
        message=MessageId(message),
        sent=sent_at(line, now),
        sender=sender,
        direct=not place[1],
    )


def _parse_memberships(
    line: IrcLine, view: IrcLineContext, now: datetime, fresh_id: Callable[[], str]
) -> tuple[MembershipChanged, ...]:
    room, subject, text = line.param(0), None, None
    match line.command:
        case "JOIN":
            change = "join"
        case "PART":
            change, text = "part", line.param(1)
        case "KICK" if line.param(1):
            change, subject, text = "kick", line.param(1), line.param(2)
        case "TOPIC":
            change, text = "topic", line.param(1)
        case "332":  # RPL_TOPIC, when we enter: https://modern.ircdocs.horse/#rpltopic-332
            room, change, text = line.param(1), "topic", line.param(2)
        case "INVITE" if view.isupport.fold(room) == view.isupport.fold(view.own_nick) and view.history_place is None:
            room, change = line.param(1), "invite"
        case "QUIT":
            shared = _shared_rooms(line.source.nick, view)
            return tuple(_build_membership(line, view, now, fresh_id, (where, "part", None, room)) for where in shared)
        case "NICK" if room:
            shared = _shared_rooms(line.source.nick, view) or _shared_rooms(room, view)
            return tuple(_build_membership(line, view, now, fresh_id, (where, "nick", room, None)) for where in shared)
        case _:
            return ()
    if not view.isupport.is_room(room):
        return ()
    return (_build_membership(line, view, now, fresh_id, (room, change, subject, text)),)


def _shared_rooms(nick: str, view: IrcLineContext) -> tuple[str, ...]:
    """Folded rooms that the person is, or was, in with us."""
    if view.history_place is None:
        return view.people.shared_rooms(nick, view.isupport)
    return (view.history_place,) if view.isupport.is_room(view.history_place) else ()


def _build_membership(
    line: IrcLine,
    view: IrcLineContext,
    now: datetime,
    fresh_id: Callable[[], str],
    told: tuple[str, str, str | None, str | None],
) -> MembershipChanged:
    room, change, subject, text = told
    msgid = line.tags.get("msgid")
    return MembershipChanged(
        id=EventId(f"{msgid}/{room}" if msgid else fresh_id()),
        at=_room_address(room, view),
        sender=_line_sender(line, view, now, room),
        # A server only says how things stand, after a split too.
        news=change != "topic" or bool(line.source.user or line.source.host),
        change=change,  # type: ignore[arg-type]  # one of the literals above; mypy widens them in a tuple
        subject=subject,
        text=strip_formatting(text) if text else None,
        sent=sent_at(line, now),
    )


def _room_address(room: str, view: IrcLineContext) -> Address:
    folded = view.isupport.fold(room)
    return Address(channel=view.channel, room=RoomId(view.rooms.get(folded, folded)))


def _line_sender(line: IrcLine, view: IrcLineContext, now: datetime, room: str | None) -> Sender:
    """Who did it; `room`: where, if that is a room."""
    # Of who had the nick earlier nothing is known but what the line itself says.
    present = view.history_place is None and now - sent_at(line, now) < _STALE_AGE
    return parse_sender(line, room, view.people if present else None, view.isupport, account_tag=view.has_account_tag)


def sent_at(line: IrcLine, now: datetime) -> datetime:
    """When the server says the line was sent (https://ircv3.net/specs/extensions/server-time), else `now`."""
    try:
        told = datetime.fromisoformat(line.tags["time"])
        return told.astimezone(UTC) if told.tzinfo else now
    except (KeyError, ValueError, OverflowError):
        return now
