"""People on IRC, and the state kept between connections. Pure.

Users and their accounts, ranks, sender ids and netsplits.
"""

import re
from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from channels.irc.tls import StsPolicy
from channels.irc.wire import IrcLine, Isupport, format_line
from gateway.core.events import RoomId, Sender, SenderId

_MAX_EMITTED: Final = 8_192
_MAX_OWN: Final = 2_048
_STS_SEPARATOR: Final = " sts="
NO_CURSOR: Final = "-"
"""Cursor of a channel that had one, and has nothing to remember any more."""
_OVERLAP: Final = timedelta(seconds=5)
"""Clocks of one network differ by seconds; repeated messages are recognised by their id."""


class _RecentIds:
    """Set that forgets its oldest members."""

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._known: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> bool:
        """Add a name; False: it is there already."""
        if name in self._known:
            return False
        self._known[name] = None
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return True

    def __contains__(self, name: object) -> bool:
        return name in self._known


class IrcState:
    """State of an account that outlives connections; its cursor outlives the process."""

    def __init__(self, cursor: str | None) -> None:
        self.own_message_ids = _RecentIds(_MAX_OWN)
        """The server's ids of our own messages."""
        self.emitted_ids = _RecentIds(_MAX_EMITTED)
        """Emitted events, by place and id."""
        self.barred_rooms: set[str] = set()
        """Folded rooms that we were kicked from, or told to leave, and must not join by ourselves."""
        time_text, _, policy = (cursor or "").partition(_STS_SEPARATOR)
        self._newest = self.complete_until = _parse_cursor_time(time_text)
        """Time up to which all messages are emitted; None: unknown."""
        self.has_gap = False
        """Some messages sent while we were away are not emitted yet."""
        self.sts_policy = StsPolicy(policy)

    @property
    def cursor(self) -> str | None:
        """Time up to which all messages are emitted, and the STS policy; None: neither is known."""
        time_text = "" if self.complete_until is None else self.complete_until.isoformat(timespec="milliseconds")
        return time_text + (_STS_SEPARATOR + self.sts_policy.serialized if self.sts_policy.serialized else "") or None

    def record_time(self, sent: datetime, now: datetime) -> None:
        """Record that an event with this server time was emitted. A server clock that is ahead is not trusted."""
        sent = min(sent, now)
        self._newest = sent if self._newest is None else max(self._newest, sent)
        if not self.has_gap:
            self.complete_until = self._newest

    def close_gap(self) -> None:
        """Record that nothing is missing any more."""
        self.has_gap, self.complete_until = False, self._newest

    def missing_since(self, now: datetime, age_s: float) -> datetime | None:
        """Return the time from which messages may be missing; None: unknown, or history is not wanted."""
        if self.complete_until is None or age_s <= 0:
            return None
        return max(self.complete_until - _OVERLAP, now - timedelta(seconds=age_s))


def _parse_cursor_time(cursor: str | None) -> datetime | None:
    """Return the time; an invalid cursor counts as none."""
    try:
        parsed = datetime.fromisoformat(cursor or "")
    except ValueError:
        return None
    return parsed.astimezone(UTC) if parsed.tzinfo else None


RANK_NAMES: Final[Mapping[str, str]] = {"q": "founder", "a": "protected", "o": "op", "h": "halfop", "v": "voice"}
"""https://modern.ircdocs.horse/#channel-membership-prefixes, the highest first. Other modes are no rank."""


class IrcRanks:
    """Ranks (founder, op, voice, ...) in the rooms that we are in. Rooms and nicks are folded.

    The server declares the modes that are ranks, and the modes that take a parameter (PREFIX and CHANMODES,
    https://modern.ircdocs.horse/#prefix-parameter). For an undeclared mode it is unknown how many parameters it takes,
    so the parameters of the other modes in that line are unknown, too: then nobody in that room has a rank until the
    server has listed them all again.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, dict[str, frozenset[str]]] = {}
        """Room -> nick -> letters of modes. People without a rank are left out."""
        self._doubted: dict[str, None] = {}

    def ranks_of(self, room: str, nick: str) -> tuple[str, ...]:
        """Return the names of somebody's ranks there, the highest first."""
        modes = self._rooms.get(room, {}).get(nick, frozenset())
        return tuple(name for letter, name in RANK_NAMES.items() if letter in modes)

    def take_doubted(self) -> tuple[str, ...]:
        """Return the rooms whose ranks must be requested again; each is returned once."""
        rooms, self._doubted = tuple(self._doubted), {}
        return rooms

    def set_prefixes(self, room: str, nick: str, signs: str, isupport: Isupport) -> None:
        """Set the ranks that the server lists as signs: all of them, or the highest one."""
        self._set_modes(
            room, nick, frozenset(isupport.rank_modes[sign] for sign in signs if sign in isupport.rank_modes)
        )

    def apply_mode(self, line: IrcLine, isupport: Isupport, inside: Container[str]) -> None:
        """Apply a MODE line of a room (https://modern.ircdocs.horse/#mode-message).

        Changes for nicks that are not `inside` are ignored.
        """
        room = isupport.fold(line.param(0))
        changes = list(_parse_mode_changes(line.params[1:], isupport))
        if None in changes:
            self._rooms.pop(room, None)
            self._doubted[room] = None
            return
        for letter, on, nick in (change for change in changes if change is not None):
            folded = isupport.fold(nick)
            if folded not in inside:
                continue
            modes = self._rooms.get(room, {}).get(folded, frozenset())
            self._set_modes(room, folded, modes | {letter} if on else modes - {letter})

    def rename(self, old: str, new: str) -> None:
        """Move the ranks to a new nick."""
        for nicks in self._rooms.values():
            modes = nicks.pop(old, None)
            nicks.pop(new, None)
            if modes:
                nicks[new] = modes

    def remove(self, nick: str, room: str | None = None) -> None:
        """Remove the ranks of a nick in a room; None: in all rooms."""
        for nicks in self._rooms.values() if room is None else [self._rooms.get(room, {})]:
            nicks.pop(nick, None)

    def clear_room(self, room: str) -> None:
        """Remove all ranks of a room."""
        self._rooms.pop(room, None)

    def _set_modes(self, room: str, nick: str, modes: frozenset[str]) -> None:
        if modes:
            self._rooms.setdefault(room, {})[nick] = modes
        else:
            self._rooms.get(room, {}).pop(nick, None)


def _parse_mode_changes(params: Sequence[str], isupport: Isupport) -> Iterator[tuple[str, bool, str] | None]:
    """Yield mode letter, whether it was set, and the nick. None: the line cannot be interpreted."""
    ranks, (lists, always, when_set, never) = frozenset(isupport.rank_modes.values()), isupport.mode_groups
    on, arguments = True, iter(params[1:])
    for letter in params[0] if params else "":
        if letter in "+-":
            on = letter == "+"
        elif letter in ranks:
            nick = next(arguments, "")
            yield (letter, on, nick) if nick else None
        elif letter in always or letter in lists or (on and letter in when_set):
            next(arguments, "")
        elif letter not in never and letter not in when_set:
            yield None


_WHOX_QUERY_TYPE = "152"
"""Marks the answers to our queries."""
_WHOX_ACCOUNT = 7
_EXTENDED_JOIN_PARAMS = 2
"""A JOIN with more parameters has the account: https://ircv3.net/specs/extensions/extended-join."""
_MAX_ROOMS = 1_000
_MAX_PEOPLE = 50_000
"""Per room. More people are not tracked: a server must not fill our memory."""


def who_query(room: str) -> str:
    """Return the query for the people in a room, with accounts: https://ircv3.net/specs/extensions/whox."""
    return format_line("WHO", room, f"%tcuhnfar,{_WHOX_QUERY_TYPE}")


class IrcUsers:
    """People in our rooms and their accounts; fed with every line before it becomes notifications.

    An account is trusted only while the server reports its changes: once somebody shares no room with us, the next
    person with that nick is unknown.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, set[str]] = {}
        self._accounts: dict[str, str] = {}
        self._masks: dict[str, str] = {}
        """Folded nick -> `nick!user@host`, or the nick where no more is known."""
        self.ranks = IrcRanks()

    def account(self, nick: str, isupport: Isupport) -> str | None:
        """Return the services account of a visible person, as far as known."""
        return self._accounts.get(isupport.fold(nick))

    def ranks_of(self, room: str, nick: str, isupport: Isupport) -> tuple[str, ...]:
        """Return somebody's ranks there, the highest first."""
        return self.ranks.ranks_of(isupport.fold(room), isupport.fold(nick))

    def shared_rooms(self, nick: str, isupport: Isupport) -> tuple[str, ...]:
        """Return the folded names of the rooms that we share with `nick`, sorted."""
        folded = isupport.fold(nick)
        return tuple(sorted(room for room, nicks in self._rooms.items() if folded in nicks))

    def nicks_in(self, room: str, isupport: Isupport) -> frozenset[str] | None:
        """Return the folded nicks of the people in the room, including ours; None: we are not there."""
        nicks = self._rooms.get(isupport.fold(room))
        return None if nicks is None else frozenset(nicks)

    def nicks_of(self, services_account: str) -> list[str]:
        """Return the nicks of visible people who are logged in to this account."""
        nicks = [nick for nick, account in self._accounts.items() if account == services_account]
        return [self.mask(nick).partition("!")[0] for nick in nicks]

    def mask(self, folded: str) -> str:
        """Return the mask of a folded nick, in its own spelling."""
        return self._masks.get(folded, folded)

    def feed(self, line: IrcLine, me: str, isupport: Isupport) -> None:  # noqa: C901, PLR0912 - one case per command
        """Process one line; `me` is our nick before it."""
        nick, room = isupport.fold(line.source.nick), isupport.fold(line.param(0))
        mine = nick == isupport.fold(me)
        if line.source.host and "@" not in self._masks.get(nick, "@"):
            self._masks[nick] = line.source
        match line.command:
            case "JOIN":
                if mine and (room in self._rooms or len(self._rooms) < _MAX_ROOMS):
                    self._rooms[room] = set()
                    self.ranks.clear_room(room)
                self.ranks.remove(nick, room)
                self._add_user(room, nick, line.source)
                if len(line.params) > _EXTENDED_JOIN_PARAMS:
                    self._set_account(nick, line.param(1))
            case "353":  # RPL_NAMREPLY: prefixes, and with userhost-in-names whole masks
                for name in line.param(-1).split():
                    mask = name.lstrip("~&@%+!" + "".join(isupport.rank_modes))
                    names_room, nick = isupport.fold(line.param(-2)), isupport.fold(mask.partition("!")[0])
                    self._add_user(names_room, nick, mask)
                    if nick in self._rooms.get(names_room, ()):
                        self.ranks.set_prefixes(names_room, nick, name[: len(name) - len(mask)], isupport)
            case "354" if line.param(1) == _WHOX_QUERY_TYPE and len(line.params) > _WHOX_ACCOUNT:
                # Fields as `who_query` asks: token, room, user, host, nick, flags, account, real name.
                if self._is_visible(person := isupport.fold(line.param(5))):
                    self._set_account(person, line.param(_WHOX_ACCOUNT))
            case "PART" if mine:
                self._forget_room(room)
            case "PART":
                self._remove_from_room(room, nick)
            case "KICK":
                victim = isupport.fold(line.param(1))
                if victim == isupport.fold(me):
                    self._forget_room(room)
                else:
                    self._remove_from_room(room, victim)
            case "QUIT":
                self._remove_user(nick)
            case "NICK" if room:
                self._rename_user(nick, line.param(0) + line.source[len(line.source.nick) :], room)
            case "CHGHOST" if self._is_visible(nick):
                self._masks[nick] = f"{line.source.nick}!{line.param(0)}@{line.param(1)}"
            case "MODE" if room in self._rooms:
                self.ranks.apply_mode(line, isupport, self._rooms[room])
            case "ACCOUNT" if self._is_visible(nick):
                self._set_account(nick, line.param(0))
            case _:
                pass

    def _add_user(self, room: str, nick: str, mask: str) -> None:
        nicks = self._rooms.get(room)
        if nicks is not None and len(nicks) < _MAX_PEOPLE:
            nicks.add(nick)
            if "@" in mask or nick not in self._masks:
                self._masks[nick] = mask

    def _set_account(self, nick: str, account: str) -> None:
        self._accounts.pop(nick, None)
        if account not in {"", "*", "0"} and self._is_visible(nick):
            self._accounts[nick] = account

    def _is_visible(self, nick: str) -> bool:
        return any(nick in nicks for nicks in self._rooms.values())

    def _remove_from_room(self, room: str, nick: str) -> None:
        self._rooms.get(room, set()).discard(nick)
        self.ranks.remove(nick, room)
        if not self._is_visible(nick):
            self._accounts.pop(nick, None)
            self._masks.pop(nick, None)

    def _forget_room(self, room: str) -> None:
        self._rooms.pop(room, None)
        self.ranks.clear_room(room)
        visible = set().union(*self._rooms.values())
        self._accounts = {nick: account for nick, account in self._accounts.items() if nick in visible}
        self._masks = {nick: mask for nick, mask in self._masks.items() if nick in visible}

    def _remove_user(self, nick: str) -> None:
        self._accounts.pop(nick, None)
        self._masks.pop(nick, None)
        self.ranks.remove(nick)
        for nicks in self._rooms.values():
            nicks.discard(nick)

    def _rename_user(self, old: str, new_mask: str, new: str) -> None:
        account = self._accounts.pop(old, None)
        self.ranks.rename(old, new)
        if self._masks.pop(old, None) is not None:
            self._masks[new] = new_mask
        for nicks in self._rooms.values():
            if old in nicks:
                nicks.discard(old)
                nicks.add(new)
        self._set_account(new, account or "")


_BOT_TAGS: Final = frozenset({"bot", "draft/bot", "inspircd.org/bot"})
"""https://ircv3.net/specs/extensions/bot-mode, and its older names: InspIRCd below 3.13 has only the last."""
_RELAY_TAGS: Final = frozenset({"draft/relaymsg", "relaymsg"})
"""Tags of messages that a bridge sends for somebody elsewhere: https://ircv3.net/specs/extensions/relaymsg."""


def parse_sender(
    line: IrcLine, room: str | None, people: IrcUsers | None, isupport: Isupport, *, account_tag: bool
) -> Sender:
    """Return the sender of a line.

    `room`: the room of the event, if any. `people`: the users at that time; None: unknown. `account_tag`: the server
    agreed to tag messages with their account, so no tag means no account.
    """
    if tag := next((tag for tag in _RELAY_TAGS if tag in line.tags), None):
        # The server identifies the bridge at most; the nick is unverified.
        sender_id = SenderId(f"relay:{line.tags[tag]}:{line.source.nick}")
        return Sender(id=sender_id, name=str(line.source.nick), is_bot=not _BOT_TAGS.isdisjoint(line.tags))
    known_account = people.account(line.source.nick, isupport) if people else None
    tagged = line.tags.get("account")
    account = (None if tagged in {"*", "0"} else tagged) if account_tag else known_account
    return Sender(
        id=build_sender_id(line.source, account),
        name=str(line.source.nick),  # of a server it is the library's own type
        account=account or None,
        is_bot=not _BOT_TAGS.isdisjoint(line.tags),
        verified=bool(account),
        ranks=people.ranks_of(room, line.source.nick, isupport) if room and people else (),
    )


def build_sender_id(mask: str, account: str | None) -> SenderId:
    """Return the id of a person: their services account, else the whole mask.

    Anybody can take a nick, so it alone identifies nobody.
    """
    return SenderId(f"account:{account}" if account else f"mask:{mask}")


def direct_chat(sender: Sender, mask: str | None = None) -> RoomId:
    """Return the direct chat with a sender whose name is their nick; `mask` is needed only if their id is not the mask.

    The owner of the nick is part of the name, so a stranger who takes the nick later gets another conversation.
    """
    mask = sender.id.removeprefix("mask:") if mask is None else mask
    return RoomId(f"{sender.name}!account:{sender.account}" if sender.account else str(mask))


def message_target(room: str, thread: str | None = None) -> str:
    """Return the target of messages to a room or direct chat: `nick` for `nick!user@host` or `nick!account:name`.

    `thread`: rank signs in front of a room's name, which restrict the message to people of that rank.
    """
    return f"{thread}{room}" if thread else room.partition("!")[0] or room


_SPLIT_REASON = re.compile(r"(?:\*|[\w*-]+)(?:\.[\w*-]+)+ (?:\*|[\w*-]+)(?:\.[\w*-]+)+", re.ASCII)
_MAX_SPLIT_USERS: Final = 20_000
_REJOIN_WINDOW_S: Final = 3600.0
"""People who return later than that have joined anew."""


class NetsplitTracker:
    """People lost in netsplits, so that their return is no event either; for servers without netsplit batches.

    A split makes everybody behind the lost server quit with the names of two servers as the reason (RFC 1459 section
    4.1.6). People cannot fake that: servers prefix their reasons, or reject such ones.
    """

    def __init__(self) -> None:
        self._gone: dict[str, tuple[str, float]] = {}

    def is_netsplit(self, line: IrcLine, isupport: Isupport, now_s: float, *, batched: bool) -> bool:
        """Return whether the line is part of a netsplit; `batched`: the server said so itself."""
        nick = isupport.fold(line.source.nick)
        if line.command == "QUIT" and (batched or _SPLIT_REASON.fullmatch(line.param(0))):
            if len(self._gone) >= _MAX_SPLIT_USERS:
                del self._gone[next(iter(self._gone))]
            self._gone[nick] = (line.source, now_s)
            return True
        if batched:
            return True
        if line.command in {"JOIN", "MODE"}:
            mask, gone_s = self._gone.get(nick, ("", 0.0))
            return bool(mask) and mask == line.source and now_s - gone_s < _REJOIN_WINDOW_S
        if line.command in {"PRIVMSG", "PART", "QUIT", "NICK"}:
            self._gone.pop(nick, None)
        return False
