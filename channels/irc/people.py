"""People on IRC, and the state kept between connections. Pure.

Users and their accounts, ranks, sender ids and netsplits.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from channels.aio import RoomSignals
from channels.irc.wire import IrcLine, Isupport, format_line
from gateway.core.events import RoomId, Sender, SenderId
from gateway.core.ratelimit import LruDict

_MAX_EMITTED: Final = 8_192
_MAX_OWN: Final = 2_048
_OVERLAP: Final = timedelta(seconds=5)
"""Clocks of one network differ by seconds; repeated messages are recognised by their id."""


class IrcState:
    """State of an account that outlives connections; its cursor outlives the process."""

    def __init__(self, cursor: str | None) -> None:
        self.own_message_ids = LruDict[str, None](_MAX_OWN)
        """The server's ids of our own messages."""
        self.emitted_ids = LruDict[str, None](_MAX_EMITTED)
        """Emitted events, by place and id."""
        self.barred_rooms: set[str] = set()
        """Folded rooms that we were kicked from, or told to leave, and must not join by
        ourselves."""
        self.pace = 1.0
        """Share of the configured pace that is used: each kill for flooding halves it."""
        self.rights = RoomSignals()
        """Notified with a room, in lower case, when what we may do there may have changed."""
        self._newest = self.complete_until = _parse_cursor_time(cursor)
        """Time up to which all messages are emitted; None: unknown."""
        self.has_gap = False
        """Some messages sent while we were away are not emitted yet."""

    @property
    def cursor(self) -> str | None:
        """Time up to which all messages are emitted; None: unknown."""
        until = self.complete_until
        return until.isoformat(timespec="milliseconds") if until is not None else None

    def record_time(self, sent: datetime, now: datetime) -> None:
        """Record that an event with this server time was emitted. A server clock that is ahead is
        not trusted.
        """
        sent = min(sent, now)
        self._newest = sent if self._newest is None else max(self._newest, sent)
        if not self.has_gap:
            self.complete_until = self._newest

    def close_gap(self) -> None:
        """Record that nothing is missing any more."""
        self.has_gap, self.complete_until = False, self._newest

    def missing_since(self, now: datetime, age_s: float) -> datetime | None:
        """Return the time from which messages may be missing; None: unknown."""
        if self.complete_until is None:
            return None
        return max(self.complete_until - _OVERLAP, now - timedelta(seconds=age_s))


def _parse_cursor_time(cursor: str | None) -> datetime | None:
    """Return the time; an invalid cursor counts as none."""
    try:
        parsed = datetime.fromisoformat(cursor or "")
    except ValueError:
        return None
    return parsed.astimezone(UTC) if parsed.tzinfo else None


RANK_NAMES: Final[Mapping[str, str]] = {
    "q": "founder",
    "a": "protected",
    "o": "op",
    "h": "halfop",
    "v": "voice",
}
"""https://modern.ircdocs.horse/#channel-membership-prefixes, the highest first. Other modes are no
rank."""


_WHOX_QUERY_TYPE = "152"
"""Marks the answers to our queries."""
_WHOX_ACCOUNT = 7
_EXTENDED_JOIN_PARAMS = 2
"""A JOIN with more parameters has the account: https://ircv3.net/specs/extensions/extended-join."""
_MAX_ROOMS = 1_000
_MAX_PEOPLE = 50_000
"""Per room. More people are not tracked: a server must not fill our memory."""


def who_query(room: str) -> str:
    """Return the query for the people in a room, with accounts:
    https://ircv3.net/specs/extensions/whox.
    """
    return format_line("WHO", room, f"%tcuhnfar,{_WHOX_QUERY_TYPE}")


class IrcUsers:
    """People in our rooms, their ranks and accounts; fed with every line before it becomes
    notifications.

    Rooms and nicks are folded. An account is trusted only while the server reports its changes:
    once somebody shares no room with us, the next person with that nick is unknown.

    The server declares the modes that are ranks, and the modes that take a parameter (PREFIX and
    CHANMODES, https://modern.ircdocs.horse/#prefix-parameter). For an undeclared mode it is unknown
    how many parameters it takes, so the parameters of the other modes in that line are unknown,
    too: then nobody in that room has a rank until we enter it again.
    """

    def __init__(self, isupport: Isupport) -> None:
        self._isupport = isupport
        self._rooms: dict[str, dict[str, frozenset[str]]] = {}
        """Room -> nick -> letters of the modes that are ranks."""
        self._accounts: dict[str, str] = {}
        self._masks: dict[str, str] = {}
        """Nick -> `nick!user@host`, or the nick where no more is known."""

    def account(self, nick: str) -> str | None:
        """Return the services account of a visible person, as far as known."""
        return self._accounts.get(self._isupport.fold(nick))

    def ranks_of(self, room: str, nick: str) -> tuple[str, ...]:
        """Return the names of somebody's ranks there, the highest first."""
        modes = self._rooms.get(self._isupport.fold(room), {}).get(self._isupport.fold(nick), ())
        return tuple(name for letter, name in RANK_NAMES.items() if letter in modes)

    def shared_rooms(self, nick: str) -> tuple[str, ...]:
        """Return the rooms that we share with `nick`, sorted."""
        folded = self._isupport.fold(nick)
        return tuple(sorted(room for room, nicks in self._rooms.items() if folded in nicks))

    def nicks_in(self, room: str) -> frozenset[str] | None:
        """Return the nicks of the people in the room, including ours; None: we are not there."""
        nicks = self._rooms.get(self._isupport.fold(room))
        return None if nicks is None else frozenset(nicks)

    def nicks_of(self, services_account: str) -> list[str]:
        """Return the nicks, in their spelling, of visible people who are logged in to this
        account.
        """
        nicks = [nick for nick, account in self._accounts.items() if account == services_account]
        return [self.mask(nick).partition("!")[0] for nick in nicks]

    def mask(self, nick: str) -> str:
        """Return the mask of a folded nick, in its own spelling."""
        return str(self._masks.get(nick, nick))

    def feed(self, line: IrcLine, me: str) -> None:  # noqa: C901, PLR0912 - one case per command
        """Process one line; `me` is our nick before it."""
        fold = self._isupport.fold
        nick, room, me = fold(line.source.nick), fold(line.param(0)), fold(me)
        if line.source.host and "@" not in self._masks.get(nick, "@"):
            self._masks[nick] = line.source
        match line.command:
            case "JOIN":
                if nick == me and (room in self._rooms or len(self._rooms) < _MAX_ROOMS):
                    self._rooms[room] = {}
                self._add_user(room, nick, line.source)
                if len(line.params) > _EXTENDED_JOIN_PARAMS:
                    self._set_account(nick, line.param(1))
            case "353":  # RPL_NAMREPLY
                self._add_names(fold(line.param(-2)), line.param(-1).split())
            case "354" if line.param(1) == _WHOX_QUERY_TYPE and len(line.params) > _WHOX_ACCOUNT:
                # Fields as `who_query` asks: token, room, user, host, nick, flags, account, real
                # name.
                self._set_account(fold(line.param(5)), line.param(_WHOX_ACCOUNT))
            case "PART" | "KICK":
                gone = nick if line.command == "PART" else fold(line.param(1))
                self._rooms.get(room, {}).pop(gone, None)
                self._forget_unseen(self._rooms.pop(room, {}) if gone == me else [gone])
            case "QUIT":
                for nicks in self._rooms.values():
                    nicks.pop(nick, None)
                self._forget_unseen([nick])
            case "NICK" if room:
                self._rename_user(nick, room, line.param(0) + line.source[len(line.source.nick) :])
            case "CHGHOST" if self._is_visible(nick):
                self._masks[nick] = f"{line.source.nick}!{line.param(0)}@{line.param(1)}"
            case "MODE" if room in self._rooms:
                self._apply_modes(room, line.params[1:])
            case "ACCOUNT":
                self._set_account(nick, line.param(0))

    def _add_user(
        self, room: str, nick: str, mask: str, modes: frozenset[str] = frozenset()
    ) -> None:
        nicks = self._rooms.get(room)
        if nicks is not None and (nick in nicks or len(nicks) < _MAX_PEOPLE):
            nicks[nick] = modes
            if "@" in mask or nick not in self._masks:
                self._masks[nick] = mask

    def _add_names(self, room: str, names: Iterable[str]) -> None:
        """Add people as the server lists them: signs of their ranks (all or the highest), then the
        nick or mask.
        """
        modes = self._isupport.rank_modes
        for name in names:
            mask = name.lstrip("~&@%+!" + "".join(modes))
            signs = name[: len(name) - len(mask)]
            nick = self._isupport.fold(mask.partition("!")[0])
            self._add_user(
                room, nick, mask, frozenset(modes[sign] for sign in signs if sign in modes)
            )

    def _apply_modes(self, room: str, params: Sequence[str]) -> None:
        """Apply a change of modes (https://modern.ircdocs.horse/#mode-message) to the ranks of
        people who are there.
        """
        nicks, ranks = self._rooms[room], frozenset(self._isupport.rank_modes.values())
        lists, always, when_set, never = self._isupport.mode_groups
        on, arguments = True, iter(params[1:])
        changes: list[tuple[str, bool, str]] = []
        for letter in params[0] if params else "":
            if letter in "+-":
                on = letter == "+"
            elif letter in ranks:
                changes.append((letter, on, self._isupport.fold(next(arguments, ""))))
            elif letter in always or letter in lists or (on and letter in when_set):
                next(arguments, "")
            elif letter not in never and letter not in when_set:
                changes.append((letter, on, ""))
        if any(not nick for _, _, nick in changes):  # this line cannot be interpreted
            self._rooms[room] = dict.fromkeys(nicks, frozenset())
            return
        for letter, on, nick in changes:
            if nick in nicks:
                nicks[nick] = nicks[nick] | {letter} if on else nicks[nick] - {letter}

    def _set_account(self, nick: str, account: str) -> None:
        self._accounts.pop(nick, None)
        if account not in {"", "*", "0"} and self._is_visible(nick):
            self._accounts[nick] = account

    def _is_visible(self, nick: str) -> bool:
        return any(nick in nicks for nicks in self._rooms.values())

    def _forget_unseen(self, nicks: Iterable[str]) -> None:
        for nick in nicks:
            if not self._is_visible(nick):
                self._accounts.pop(nick, None)
                self._masks.pop(nick, None)

    def _rename_user(self, old: str, new: str, mask: str) -> None:
        account = self._accounts.pop(old, "")
        if self._masks.pop(old, None) is not None:
            self._masks[new] = mask
        for nicks in self._rooms.values():
            if old in nicks:
                nicks[new] = nicks.pop(old)
        self._set_account(new, account)


_BOT_TAGS: Final = frozenset({"bot", "draft/bot", "inspircd.org/bot"})
"""https://ircv3.net/specs/extensions/bot-mode, and its older names: InspIRCd below 3.13 has only
the last."""
_RELAY_TAGS: Final = frozenset({"draft/relaymsg", "relaymsg"})
"""Tags of messages that a bridge sends for somebody elsewhere:
https://ircv3.net/specs/extensions/relaymsg."""


def parse_sender(
    line: IrcLine, room: str | None, people: IrcUsers | None, *, account_tag: bool
) -> Sender:
    """Return the sender of a line.

    `room`: the room of the event, if any. `people`: the users at that time; None: unknown.
    `account_tag`: the server agreed to tag messages with their account, so no tag means no account.
    """
    nick, is_bot = (
        str(line.source.nick),
        not _BOT_TAGS.isdisjoint(line.tags),
    )  # that of a server is a `NickMask`
    if tag := next((tag for tag in _RELAY_TAGS if tag in line.tags), None):
        # The server identifies the bridge at most; the nick is unverified.
        return Sender(id=SenderId(f"relay:{line.tags[tag]}:{nick}"), name=nick, is_bot=is_bot)
    tagged = line.tags.get("account")
    known_account = people.account(nick) if people else None
    account = (None if tagged in {"*", "0"} else tagged) if account_tag else known_account
    return Sender(
        id=build_sender_id(line.source, account),
        name=nick,
        account=account or None,
        is_bot=is_bot,
        verified=bool(account),
        ranks=people.ranks_of(room, nick) if room and people else (),
    )


def build_sender_id(mask: str, account: str | None) -> SenderId:
    """Return the id of a person: their services account, else the whole mask.

    Anybody can take a nick, so it alone identifies nobody.
    """
    return SenderId(f"account:{account}" if account else f"mask:{mask}")


def direct_chat(sender: Sender, mask: str | None = None) -> RoomId:
    """Return the direct chat with a sender whose name is their nick; `mask` is needed only if their
    id is not the mask.

    The owner of the nick is part of the name, so a stranger who takes the nick later gets another
    conversation.
    """
    mask = sender.id.removeprefix("mask:") if mask is None else mask
    return RoomId(f"{sender.name}!account:{sender.account}" if sender.account else str(mask))


def message_target(room: str, thread: str | None = None) -> str:
    """Return the target of messages to a room or direct chat: `nick` for `nick!user@host` or
    `nick!account:name`.

    `thread`: rank signs in front of a room's name, which restrict the message to people of that
    rank.
    """
    return f"{thread}{room}" if thread else room.partition("!")[0] or room


_SPLIT_REASON = re.compile(r"(?:\*|[\w*-]+)(?:\.[\w*-]+)+ (?:\*|[\w*-]+)(?:\.[\w*-]+)+", re.ASCII)
_MAX_SPLIT_USERS: Final = 20_000
_REJOIN_WINDOW_S: Final = 3600.0
"""People who return later than that have joined anew."""


class NetsplitTracker:
    """People lost in netsplits, so that their return is no event either; for servers without
    netsplit batches.

    A split makes everybody behind the lost server quit with the names of two servers as the reason
    (RFC 1459 section 4.1.6). People cannot fake that: servers prefix their reasons, or reject such
    ones.
    """

    def __init__(self, isupport: Isupport) -> None:
        self._isupport = isupport
        self._gone = LruDict[str, tuple[str, float]](_MAX_SPLIT_USERS)

    def is_netsplit(self, line: IrcLine, now_s: float, *, batched: bool) -> bool:
        """Return whether the line is part of a netsplit; `batched`: the server said so itself."""
        nick = self._isupport.fold(line.source.nick)
        if line.command == "QUIT" and (batched or _SPLIT_REASON.fullmatch(line.param(0))):
            self._gone.put(nick, (line.source, now_s))
            return True
        if batched:
            return True
        if line.command in {"JOIN", "MODE"}:
            mask, gone_s = self._gone.get(nick, ("", 0.0))
            return bool(mask) and mask == line.source and now_s - gone_s < _REJOIN_WINDOW_S
        if line.command in {"PRIVMSG", "PART", "QUIT", "NICK"}:
            self._gone.pop(nick, None)
        return False
