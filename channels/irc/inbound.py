"""IRC lines as notifications, and answers to CTCP (https://modern.ircdocs.horse/ctcp).

Pure: time and fresh ids are passed in.
"""

import unicodedata
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from channels.irc.config import IrcConfig
from channels.irc.render import strip_formatting
from channels.irc.state import Changes, IrcState, build_sender_id, direct_chat
from channels.irc.wire import IrcLine, format_line, mentions_nick, split_relayed
from channels.text import clean_name, get_datetime
from gateway.core.events import (
    Address,
    ChannelName,
    EventId,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageId,
    ReactionChanged,
    RoomId,
    Sender,
    SenderId,
    ThreadId,
)
from gateway.core.identity import BRIDGE_MARK, BRIDGE_PREFIX
from gateway.core.ratelimit import Rate
from gateway.core.text_safety import strip_invisible

CTCP_RATE: Final = Rate(3, 3.0)
_CLIENT_NAME = "Reverie"


def parse_ctcp(text: str) -> tuple[str, str]:
    """Return command and argument of a text that is CTCP, ACTION included."""
    command, _, argument = text[1:].partition("\x01")[0].partition(" ")
    return command.upper(), strip_formatting(argument)


def answer_ctcp(line: IrcLine, contact: str | None) -> str | None:
    """Return the line that answers a PRIVMSG of CTCP; None: no answer."""
    command, argument = parse_ctcp(line.param(1))
    answers = {
        "PING": argument[:100],
        "VERSION": _CLIENT_NAME + (f" ({contact})" if contact else ""),
        "SOURCE": _CLIENT_NAME,
        "CLIENTINFO": "ACTION CLIENTINFO PING SOURCE VERSION",
    }
    if command not in answers or not line.source.user:
        return None
    answer = f"\x01{command} {answers[command]}\x01"
    return format_line("NOTICE", line.source.nick, trailing=answer)


_STALE_AGE: Final = timedelta(minutes=5)
"""Older lines are played back by a bouncer. Larger than common clock errors of servers."""


IrcEvent = Message | MessageDeleted | MembershipChanged | ReactionChanged
# fmt: off
EVENT_COMMANDS: Final = frozenset({
    "PRIVMSG", "TAGMSG", "REDACT", "JOIN", "PART", "KICK", "TOPIC", "332", "INVITE", "QUIT", "NICK",
})
# fmt: on
"""Commands of the lines that are notifications; 332 is the topic when we enter:
https://modern.ircdocs.horse/#rpltopic-332."""
RANK_NAMES: Final[Mapping[str, str]] = {
    "q": "founder",
    "a": "protected",
    "o": "op",
    "h": "halfop",
    "v": "voice",
}
"""https://modern.ircdocs.horse/#channel-membership-prefixes, the highest first. Other modes are no
rank."""
_BOT_TAGS: Final = frozenset({"bot", "draft/bot", "inspircd.org/bot"})
"""https://ircv3.net/specs/extensions/bot-mode, and its older names: InspIRCd below 3.13 has only
the last."""
_RELAY_TAGS: Final = frozenset({"draft/relaymsg", "relaymsg"})
"""Tags of messages that a bridge sends for somebody elsewhere:
https://ircv3.net/specs/extensions/relaymsg."""


@dataclass(slots=True)
class IrcLineContext:
    """What is needed to interpret a line."""

    channel: ChannelName
    state: IrcState
    own_message_ids: Container[str] = ()
    """The server's ids of our own messages."""
    rooms: Mapping[str, Address] = field(default_factory=dict)
    """Folded name -> the room in the operator's spelling, for the configured rooms."""
    bridges: Collection[str] = ()
    """Folded accounts, or nicks where the server tells no accounts, of bots that pass on what
    others say."""

    _configured_nick: str = ""

    def follow(self, config: IrcConfig) -> None:
        """Take over names of the configuration, also when the server's case mapping is known."""
        self._configured_nick = config.nick
        fold = self.state.isupport.fold
        self.rooms = {
            fold(room): Address(channel=self.channel, room=RoomId(room)) for room in config.rooms
        }
        self.bridges = frozenset(map(fold, config.bridges))

    def called(self, room: str) -> tuple[str, ...]:
        """Return the nicks by which people in a room call us: ours, and the configured one unless
        somebody else has it there. A dead connection of ours may still have it.
        """
        state, nick = self.state, self.state.isupport.fold(self._configured_nick)
        is_known = nick == state.me or (
            nick in state.rooms.get(state.isupport.fold(room), {})
            and set(state.hosts(nick)).isdisjoint(state.hosts(state.me))
        )
        return (state.nick,) if is_known else (state.nick, self._configured_nick)


def to_notifications(
    told: Changes,
    context: IrcLineContext,
    now: datetime,
    fresh_id: Callable[[], str],
    *,
    is_past: bool = False,
) -> Sequence[IrcEvent]:
    """Return the events of a line; empty for our own actions, CTCP, and commands that are not in
    `EVENT_COMMANDS`.

    A nick change and a quit give one event for each room that we share with the person, other lines
    at most one. `is_past`: the line is of a history, so current data about people does not apply.
    """
    line = told.line
    if told.is_mine or not line.source.nick:
        return ()
    sent = sent_at(line, now)
    # An earlier owner of the nick is known only from the line itself.
    is_present = not is_past and now - sent < _STALE_AGE
    if line.command not in {"PRIVMSG", "TAGMSG", "REDACT"}:
        return _parse_memberships(
            told, context, sent, fresh_id, is_past=is_past, is_present=is_present
        )
    name = context.state.isupport.room_of(line.param(0))
    room = None if name is None else told.target[-len(name) :]
    sender = _read_sender(told, context, room, is_present=is_present)
    if name is not None and room is not None:
        # https://modern.ircdocs.horse/#statusmsg-parameter: for some members only, so a separate
        # place.
        status = line.param(0).removesuffix(name)
        at = _room_address(room, context)
        at = replace(at, thread=ThreadId(status)) if status else at
    elif told.target == context.state.me:
        at = Address(channel=context.channel, room=direct_chat(sender, line.source))
    else:
        return ()  # not for us
    event_id, direct = line.tags.get("msgid") or fresh_id(), room is None
    event: IrcEvent | None = None
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
    text = line.param(1)
    if not direct and sender.id.startswith(BRIDGE_PREFIX):
        text, sender = _read_relayed(text, sender)
    if text.startswith("\x01"):
        command, argument = parse_ctcp(text)
        text = f"/me {argument}" if command == "ACTION" and argument.strip() else ""
        if command == "DCC" and direct:
            what = " ".join(argument.split()[:2])  # an address follows
            text = f"[offers {what} by DCC, which cannot be taken here]"
    else:
        text = strip_formatting(text)
    if not text.strip():
        return None
    reply_to = reply_target(line)
    kind: Literal["direct", "mention", "reply", "room"] = "room"
    if direct:
        kind = "direct"
    elif any(mentions_nick(text, nick, context.state.isupport) for nick in context.called(at.room)):
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
    told: Changes,
    context: IrcLineContext,
    sent: datetime,
    fresh_id: Callable[[], str],
    *,
    is_past: bool,
    is_present: bool,
) -> tuple[MembershipChanged, ...]:
    line, rooms = told.line, [told.target]
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
        case "332":
            rooms, change, text = (
                [context.state.isupport.fold(line.param(1))],
                "topic",
                line.param(2),
            )
        case "INVITE" if told.target == context.state.me and not is_past:
            rooms, change = [context.state.isupport.fold(line.param(1))], "invite"
        case "QUIT":
            rooms, change, text = sorted(told.rooms), "part", line.param(0)
        case "NICK" if told.target:
            rooms, change, subject = sorted(told.rooms), "nick", line.param(0)
        case _:
            return ()
    msgid = line.tags.get("msgid")
    return tuple(
        MembershipChanged(
            id=EventId(f"{msgid}/{room}" if msgid else fresh_id()),
            at=_room_address(room, context),
            sender=_read_sender(told, context, room, is_present=is_present),
            # A topic set by a server is the current state (e.g. after a netsplit), no news.
            news=change != "topic" or bool(line.source.user or line.source.host),
            change=change,
            subject=subject or None,
            text=strip_formatting(text) if text else None,
            sent=sent,
        )
        for room in rooms
        if context.state.isupport.is_room(room)
    )


def _room_address(room: str, context: IrcLineContext) -> Address:
    return context.rooms.get(room) or Address(channel=context.channel, room=RoomId(room))


def _read_sender(
    told: Changes, context: IrcLineContext, room: str | None, *, is_present: bool
) -> Sender:
    """Return the sender of a line; `room`: the folded room of the event, if any; `is_present`: they
    still are who the server says they are.
    """
    line, caps = told.line, context.state.caps
    nick, is_bot = str(line.source.nick), not _BOT_TAGS.isdisjoint(line.tags)
    if tag := next(iter(_RELAY_TAGS.intersection(line.tags)), None):
        # The server identifies the bridge at most; the nick is unverified.
        return Sender(id=SenderId(f"relay:{line.tags[tag]}:{nick}"), name=nick, is_bot=is_bot)
    account: str | None = told.account if is_present else None
    if "account-tag" in caps:  # so no tag means no account
        tagged = line.tags.get("account")
        account = None if tagged in {"*", "0"} else tagged
    if context.bridges:
        tells_accounts = not caps.isdisjoint({"account-tag", "account-notify"})
        bridge = context.state.isupport.fold((account if tells_accounts else nick) or "")
        if bridge in context.bridges:
            # Whatever its people manage to have it say, it has no role: a line that `split_relayed`
            # cannot read is theirs, too.
            return Sender(id=SenderId(f"{BRIDGE_PREFIX}{bridge}:"), name=nick, is_bot=is_bot)
    modes = told.rooms.get(room) if room and is_present else None
    return Sender(
        id=build_sender_id(line.source, account),
        name=nick,
        account=account or None,
        is_bot=is_bot,
        verified=bool(account),
        ranks=tuple(name for letter, name in RANK_NAMES.items() if letter in modes)
        if modes
        else (),
    )


def _read_relayed(text: str, bridge: Sender) -> tuple[str, Sender]:
    """Return the words and their sender as if the person behind the bridge had written here."""
    written, words = split_relayed(text) or ("", "")
    name = clean_name(strip_formatting(written))
    folded = unicodedata.normalize("NFKC", strip_invisible(name)).casefold().strip()
    if not folded:
        return text, bridge
    person = Sender(id=SenderId(f"{bridge.id}{folded}"), name=f"{name}{BRIDGE_MARK}{bridge.name})")
    return words, person


_CENTURY: Final = timedelta(days=36_525)


def sent_at(line: IrcLine, now: datetime) -> datetime:
    """Return the server's time of the line (https://ircv3.net/specs/extensions/server-time), else
    `now`; also for a time that is a century away.
    """
    if "time" not in line.tags:
        return now
    sent = get_datetime(line.tags, "time", needs_zone=True) or now
    return sent if abs(sent - now) < _CENTURY else now
