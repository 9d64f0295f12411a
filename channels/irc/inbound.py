"""Lines into notifications. Pure: the time and a fresh id are handed in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from channels.irc.people import People
from channels.irc.render import plain
from channels.irc.wire import Isupport, Line, mentions
from gateway.events import (
    Address,
    ChannelName,
    EventId,
    Membership,
    Message,
    MessageId,
    Notification,
    RoomId,
    Sender,
    SenderId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What must be known to read a line."""

    channel: ChannelName
    me: str
    """Our nick at the moment."""
    rooms: Mapping[str, str]
    """Folded name -> the operator's spelling, of the configured rooms."""
    isupport: Isupport
    people: People
    account_tag: bool
    """The server agreed to tag messages with their account, so no tag means no account."""


@dataclass(frozen=True, slots=True)
class Ctcp:
    """A client-to-client request other than ACTION: https://modern.ircdocs.horse/ctcp."""

    command: str
    argument: str


def ctcp(text: str) -> Ctcp | None:
    """Read `text` as CTCP, ACTION included; None if it is not."""
    if not text.startswith("\x01"):
        return None
    command, _, argument = text[1:].partition("\x01")[0].partition(" ")
    return Ctcp(command.upper(), plain(argument))


def to_notifications(line: Line, view: View, now: datetime, fresh_id: Callable[[], str]) -> tuple[Notification, ...]:
    """What `line` tells; empty for what is not ours to tell: own doings, notices, CTCP, unknown commands.

    A nick change is told once for each room that we share with the person, the rest at most once.
    """
    if not line.source.nick or view.isupport.fold(line.source.nick) == view.isupport.fold(view.me):
        return ()
    if line.command == "PRIVMSG":
        message = _message(line, view, now, fresh_id)
        return (message,) if message else ()
    return _memberships(line, view, now, fresh_id)


def _message(line: Line, view: View, now: datetime, fresh_id: Callable[[], str]) -> Message | None:
    target, text = line.param(0), line.param(1)
    request = ctcp(text)
    if request and request.command != "ACTION":
        return None
    said = plain(text) if request is None else f"/me {request.argument}"
    if not (said if request is None else request.argument).strip():
        return None
    sender = _sender(line, view)
    room = view.isupport.room_of(target)
    if room is not None:
        at = _room(room, view)
        mentioned = mentions(said, view.me, view.isupport)
    elif view.isupport.fold(target) == view.isupport.fold(view.me):
        # With who is behind the nick in it, a stranger who takes the nick later is another conversation.
        who = f"{line.source.nick}!account:{sender.account}" if sender.account else line.source.mask
        at = Address(channel=view.channel, room=RoomId(who))
        mentioned = False
    else:
        return None
    return Message(
        id=MessageId(line.tags.get("msgid") or fresh_id()),
        at=at,
        sender=sender,
        text=said,
        sent=sent_at(line, now),
        kind=("mention" if mentioned else "room") if room is not None else "direct",
    )


def _memberships(line: Line, view: View, now: datetime, fresh_id: Callable[[], str]) -> tuple[Membership, ...]:
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
        case "NICK" if room:
            shared = view.people.rooms(line.source.nick, view.isupport) or view.people.rooms(room, view.isupport)
            tell = [(where, "nick", room, None) for where in shared]
            return tuple(_membership(line, view, now, fresh_id, told) for told in tell)
        case _:
            return ()
    if not view.isupport.is_room(room):
        return ()
    return (_membership(line, view, now, fresh_id, (room, change, subject, text)),)


def _membership(
    line: Line, view: View, now: datetime, fresh_id: Callable[[], str], told: tuple[str, str, str | None, str | None]
) -> Membership:
    room, change, subject, text = told
    msgid = line.tags.get("msgid")
    return Membership(
        id=EventId(f"{msgid}/{room}" if msgid else fresh_id()),
        at=_room(room, view),
        sender=_sender(line, view),
        change=change,  # type: ignore[arg-type]  # one of the literals above; mypy widens them in a tuple
        subject=subject,
        text=plain(text) if text else None,
        sent=sent_at(line, now),
    )


def _room(room: str, view: View) -> Address:
    folded = view.isupport.fold(room)
    return Address(channel=view.channel, room=RoomId(view.rooms.get(folded, folded)))


def _sender(line: Line, view: View) -> Sender:
    known = view.people.account(line.source.nick, view.isupport)
    account = line.tags.get("account") if view.account_tag else known
    return Sender(
        id=SenderId(f"account:{account}" if account else f"mask:{line.source.mask}"),
        name=line.source.nick,
        account=account or None,
        is_bot="bot" in line.tags,
        verified=bool(account),
    )


def sent_at(line: Line, now: datetime) -> datetime:
    """When the server says the line was sent (https://ircv3.net/specs/extensions/server-time), else `now`."""
    try:
        told = datetime.fromisoformat(line.tags["time"])
        return told.astimezone(UTC) if told.tzinfo else now
    except (KeyError, ValueError, OverflowError):
        return now
