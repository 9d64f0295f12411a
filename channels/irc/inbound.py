"""IRC lines as notifications, and answers to CTCP (https://modern.ircdocs.horse/ctcp).

Pure: time and fresh ids are passed in.
"""

import unicodedata
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from channels.irc.bouncer import is_from_bouncer
from channels.irc.people import IrcUsers, direct_chat, parse_sender
from channels.irc.render import strip_formatting
from channels.irc.wire import IrcLine, Isupport, format_line, mentions_nick, split_relayed
from channels.text import clean_name
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
    SenderId,
    ThreadId,
)
from gateway.core.identity import BRIDGE_MARK, BRIDGE_PREFIX
from gateway.core.ratelimit import Rate, TokenBuckets
from gateway.core.text_safety import strip_invisible

_CTCP_RATE: Final = Rate(3, 3.0)
_MAX_PING_CHARS = 100
CLIENT_NAME = "Reverie"


def parse_ctcp(text: str) -> tuple[str, str] | None:
    """Parse `text` as CTCP, ACTION included: its command and argument; None if it is not."""
    if not text.startswith("\x01"):
        return None
    command, _, argument = text[1:].partition("\x01")[0].partition(" ")
    return command.upper(), strip_formatting(argument)


class CtcpResponder:
    """Answers to a few CTCP requests, rate-limited."""

    def __init__(self, contact: str | None) -> None:
        self._answers = {
            "VERSION": CLIENT_NAME + (f" ({contact})" if contact else ""),
            "SOURCE": CLIENT_NAME,
            "CLIENTINFO": "ACTION CLIENTINFO PING SOURCE VERSION",
        }
        self._answered = TokenBuckets(_CTCP_RATE)

    def answer(self, line: IrcLine, now_s: float) -> str | None:
        """Return the line that answers a PRIVMSG; None: no answer."""
        command, argument = parse_ctcp(line.param(1)) or ("", "")
        answer = argument[:_MAX_PING_CHARS] if command == "PING" else self._answers.get(command)
        if answer is None or not line.source.user or not self._answered.take("", now_s):
            return None
        return format_line("NOTICE", line.source.nick, trailing=f"\x01{command} {answer}\x01")


_STALE_AGE: Final = timedelta(minutes=5)
"""Older lines are played back by a bouncer. Larger than common clock errors of servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcLineContext:
    """State that is needed to interpret a line."""

    channel: ChannelName
    own_nick: str
    """Our current nick."""
    rooms: Mapping[str, str]
    """Folded name -> the operator's spelling, for the configured rooms."""
    isupport: Isupport
    people: IrcUsers
    has_account_tag: bool
    """The server agreed to tag messages with their account, so no tag means no account."""
    has_account_notify: bool = False
    """The server reports each login and logout of people in our rooms."""
    bridges: Container[str] = ()
    """Folded accounts, or nicks where the server tells no accounts, of bots that pass on what
    others say."""
    own_message_ids: Container[str] = ()
    """The server's ids of our own messages."""
    history_place: str | None = None
    """Folded room or person whose history the line is from: current data about people does not
    apply. None: a live line."""
    own_account: str = ""
    """Our own account. Past messages of ours may have another nick, but not another account."""


def to_notifications(
    line: IrcLine, context: IrcLineContext, now: datetime, fresh_id: Callable[[], str]
) -> tuple[Notification, ...]:
    """Return the events of `line`; empty for our own actions, notices, CTCP, unknown commands, and
    a bouncer.

    A nick change and a quit give one event for each room that we share with the person, other lines
    at most one.
    """
    if is_from_bouncer(line):
        return ()
    if not line.source.nick or context.isupport.fold(line.source.nick) == context.isupport.fold(
        context.own_nick
    ):
        return ()
    if (
        context.history_place is not None
        and context.own_account
        and line.tags.get("account") == context.own_account
    ):
        return ()
    if line.command not in {"PRIVMSG", "TAGMSG", "REDACT"}:
        return _parse_memberships(line, context, now, fresh_id)
    room = context.isupport.room_of(line.param(0))
    sender = _line_sender(line, context, now, room)
    if room is not None:
        # https://modern.ircdocs.horse/#statusmsg-parameter: for some members only, so a separate
        # place.
        status = line.param(0).removesuffix(room)
        at = _room_address(room, context)
        at = replace(at, thread=ThreadId(status)) if status else at
    elif context.isupport.fold(line.param(0)) == context.isupport.fold(context.own_nick):
        at = Address(channel=context.channel, room=direct_chat(sender, line.source))
    else:
        return ()  # not for us
    event_id, sent, direct = line.tags.get("msgid") or fresh_id(), sent_at(line, now), room is None
    event: Notification | None = None
    if line.command == "PRIVMSG":
        event = _parse_message(
            line, context, at, sender, event_id=event_id, sent=sent, direct=direct
        )
    elif line.command == "TAGMSG":
        event = _parse_reaction(line, at, sender, event_id=event_id, sent=sent, direct=direct)
    elif line.param(1):  # https://ircv3.net/specs/extensions/message-redaction
        message = MessageId(line.param(1))
        event = MessageDeleted(
            id=EventId(event_id), at=at, message=message, sent=sent, sender=sender, direct=direct
        )
    return (event,) if event else ()


def _parse_message(
    line: IrcLine,
    context: IrcLineContext,
    at: Address,
    sender: Sender,
    *,
    event_id: str,
    sent: datetime,
    direct: bool,
) -> Message | None:
    if not direct and sender.id.startswith(BRIDGE_PREFIX):
        line, sender = _read_relayed(line, sender)
    text = line.param(1)
    if request := parse_ctcp(text):
        command, argument = request
        text = f"/me {argument}" if command == "ACTION" and argument.strip() else ""
    else:
        text = strip_formatting(text)
    if not text.strip():
        return None
    reply_to = reply_target(line)
    kind: Literal["direct", "mention", "reply", "room"] = "room"
    if direct:
        kind = "direct"
    elif mentions_nick(text, context.own_nick, context.isupport):
        kind = "mention"
    elif reply_to is not None and reply_to in context.own_message_ids:
        kind = "reply"
    return Message(
        id=MessageId(event_id),
        at=at,
        sender=sender,
        text=text,
        sent=sent,
        kind=kind,
        reply_to=reply_to,
    )


def reply_target(line: IrcLine) -> MessageId | None:
    """Return the message replied to: https://ircv3.net/specs/client-tags/reply, also under the
    draft's name.
    """
    msgid = line.tags.get("+reply") or line.tags.get("+draft/reply")
    return MessageId(msgid) if msgid else None


def _parse_reaction(
    line: IrcLine, at: Address, sender: Sender, *, event_id: str, sent: datetime, direct: bool
) -> ReactionChanged | None:
    """Return a reaction, which is a reply without text:
    https://ircv3.net/specs/client-tags/react.
    """
    message = reply_target(line)
    added = strip_formatting(line.tags.get("+draft/react", "") or line.tags.get("+react", ""))
    removed = strip_formatting(line.tags.get("+draft/unreact", "") or line.tags.get("+unreact", ""))
    if message is None or not (added or removed).strip():
        return None
    return ReactionChanged(
        id=EventId(event_id),
        at=at,
        sender=sender,
        message=message,
        reaction=added or removed,
        added=bool(added),
        sent=sent,
        direct=direct,
    )


def _parse_memberships(
    line: IrcLine, context: IrcLineContext, now: datetime, fresh_id: Callable[[], str]
) -> tuple[MembershipChanged, ...]:
    rooms: Sequence[str] = (line.param(0),)
    change: Literal["join", "part", "kick", "nick", "topic", "invite"]
    subject = text = ""
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
            rooms, change, text = (line.param(1),), "topic", line.param(2)
        case "INVITE" if (
            context.isupport.fold(line.param(0)) == context.isupport.fold(context.own_nick)
            and context.history_place is None
        ):
            rooms, change = (line.param(1),), "invite"
        case "QUIT":
            rooms, change, text = _shared_rooms(line.source.nick, context), "part", line.param(0)
        case "NICK" if line.param(0):
            rooms = _shared_rooms(line.source.nick, context) or _shared_rooms(
                line.param(0), context
            )
            change, subject = "nick", line.param(0)
        case _:
            return ()
    msgid = line.tags.get("msgid")
    return tuple(
        MembershipChanged(
            id=EventId(f"{msgid}/{room}" if msgid else fresh_id()),
            at=_room_address(room, context),
            sender=_line_sender(line, context, now, room),
            # A topic set by a server is the current state (e.g. after a netsplit), no news.
            news=change != "topic" or bool(line.source.user or line.source.host),
            change=change,
            subject=subject or None,
            text=strip_formatting(text) if text else None,
            sent=sent_at(line, now),
        )
        for room in rooms
        if context.isupport.is_room(room)
    )


def _shared_rooms(nick: str, context: IrcLineContext) -> tuple[str, ...]:
    """Return the folded rooms that the person shares, or shared, with us."""
    if context.history_place is None:
        return context.people.shared_rooms(nick)
    return (context.history_place,) if context.isupport.is_room(context.history_place) else ()


def _room_address(room: str, context: IrcLineContext) -> Address:
    folded = context.isupport.fold(room)
    return Address(channel=context.channel, room=RoomId(context.rooms.get(folded, folded)))


def _line_sender(line: IrcLine, context: IrcLineContext, now: datetime, room: str | None) -> Sender:
    """Return the sender of a line; `room`: the room of the event, if any."""
    # An earlier owner of the nick is known only from the line itself.
    present = context.history_place is None and now - sent_at(line, now) < _STALE_AGE
    sender = parse_sender(
        line, room, context.people if present else None, account_tag=context.has_account_tag
    )
    tells_accounts = context.has_account_tag or context.has_account_notify
    bridge = context.isupport.fold((sender.account if tells_accounts else sender.name) or "")
    if bridge not in context.bridges:
        return sender
    # Whatever its people manage to have it say, it has no role: a line that `split_relayed` cannot
    # read is theirs, too.
    return Sender(id=SenderId(f"{BRIDGE_PREFIX}{bridge}:"), name=sender.name, is_bot=sender.is_bot)


def _read_relayed(line: IrcLine, bridge: Sender) -> tuple[IrcLine, Sender]:
    """Return the line and its sender as if the person behind the bridge had written it here."""
    written, words = split_relayed(line.param(1)) or ("", "")
    name = clean_name(strip_formatting(written))
    folded = unicodedata.normalize("NFKC", strip_invisible(name)).casefold().strip()
    if not folded:
        return line, bridge
    person = Sender(id=SenderId(f"{bridge.id}{folded}"), name=f"{name}{BRIDGE_MARK}{bridge.name})")
    return replace(line, params=(line.param(0), words)), person


def sent_at(line: IrcLine, now: datetime) -> datetime:
    """Return the server's time of the line (https://ircv3.net/specs/extensions/server-time), else
    `now`.
    """
    try:
        parsed = datetime.fromisoformat(line.tags["time"])
        return parsed.astimezone(UTC) if parsed.tzinfo else now
    except (KeyError, ValueError, OverflowError):
        return now
