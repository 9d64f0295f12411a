"""Who is in our rooms, which services account they are logged in to, and what rank they have. Pure bookkeeping.

An account is believed only while the server keeps us told about its nick: once somebody shares no room
with us, the next person with that nick is a stranger.

What servers say of people in rooms: founder, op, voice and the like. Pure bookkeeping.

Which modes these are, and which other modes take a parameter, the server tells (PREFIX and CHANMODES,
https://modern.ircdocs.horse/#prefix-parameter). Of a mode that it did not tell of nobody knows how many parameters
belong to it, so whose the others are is not known either: then nobody in that room has any rank until the server has
told them all again.

What an account remembers from one connection to the next. Pure.

The cursor outlives the process: the newest server time that was told in order, and the server's TLS policy (`sts`).

What people and the direct chats with them are called. Pure.

The services' account is somebody's id where there is one, else the whole mask: a nick is anybody's.

The network breaking apart and coming together, as servers without batches tell it. Pure.

A server that is cut off makes everybody behind it quit with the names of two servers as the reason (RFC 1459
section 4.1.6). Real people cannot: their reasons are prefixed, or held not to look so, by the servers.
"""

import re
from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from channels.irc.tls import StsPolicy
from channels.irc.wire import IrcLine, Isupport, format_line
from gateway.core.events import RoomId, Sender, SenderId

_MAX_EMITTED: Final = 8_192
_MAX_OWN: Final = 2_048
_STS_SEPARATOR: Final = " sts="
NO_CURSOR: Final = "-"
"""Of a channel that has had one, and has nothing to remember any more."""
_OVERLAP: Final = timedelta(seconds=5)
"""Servers of one network do not agree on the second; what comes twice is known by its id."""


class _RecentIds:
    """A set that forgets its oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> bool:
        """False: it is there already."""
        if name in self._known:
            return False
        self._known[name] = None
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return True

    def __contains__(self, name: object) -> bool:
        return name in self._known


class IrcState:
    """Outlives connections."""

    def __init__(self, cursor: str | None) -> None:
        self.own_message_ids = _RecentIds(_MAX_OWN)
        """The server's names of our own messages."""
        self.emitted_ids = _RecentIds(_MAX_EMITTED)
        """Events that were handed over, by place and id."""
        self.barred_rooms: set[str] = set()
        """Folded rooms that we were thrown out of, or told to leave, and must not enter by ourselves."""
        told, _, policy = (cursor or "").partition(_STS_SEPARATOR)
        self._newest = self.complete_until = _parse_cursor_time(told)
        """`safe`: everything up to then is told."""
        self.has_gap = False
        """What was said while we were away is not all told yet."""
        self.sts_policy = StsPolicy(policy)

    @property
    def cursor(self) -> str | None:
        """How far everything is told, and the policy; None: neither is known."""
        told = "" if self.complete_until is None else self.complete_until.isoformat(timespec="milliseconds")
        return told + (_STS_SEPARATOR + self.sts_policy.serialized if self.sts_policy.serialized else "") or None

    def record_time(self, sent: datetime, now: datetime) -> None:
        """Something that the server sent then was handed over. A server whose clock is ahead is not believed."""
        sent = min(sent, now)
        self._newest = sent if self._newest is None else max(self._newest, sent)
        if not self.has_gap:
            self.complete_until = self._newest

    def close_gap(self) -> None:
        """Nothing is missing any more."""
        self.has_gap, self.complete_until = False, self._newest

    def missing_since(self, now: datetime, age_s: float) -> datetime | None:
        """From when on something may be missing; None: there is no telling, or it is not wanted."""
        if self.complete_until is None or age_s <= 0:
            return None
        return max(self.complete_until - _OVERLAP, now - timedelta(seconds=age_s))


def _parse_cursor_time(cursor: str | None) -> datetime | None:
    """A cursor that somebody else wrote is as good as none."""
    try:
        told = datetime.fromisoformat(cursor or "")
    except ValueError:
        return None
    return told.astimezone(UTC) if told.tzinfo else None


RANK_NAMES: Final[Mapping[str, str]] = {"q": "founder", "a": "protected", "o": "op", "h": "halfop", "v": "voice"}
"""https://modern.ircdocs.horse/#channel-membership-prefixes, the highest first. Others give no rank."""


class IrcRanks:
    """Of the rooms that we are in. Rooms and nicks are folded."""

    def __init__(self) -> None:
        self._rooms: dict[str, dict[str, frozenset[str]]] = {}
        """Room -> nick -> letters of modes. Whoever has none is not there."""
        self._doubted: dict[str, None] = {}

    def ranks_of(self, room: str, nick: str) -> tuple[str, ...]:
        """The names of somebody's ranks there, the highest first."""
        modes = self._rooms.get(room, {}).get(nick, frozenset())
        return tuple(name for letter, name in RANK_NAMES.items() if letter in modes)

    def take_doubted(self) -> tuple[str, ...]:
        """Rooms whose people are to be asked for; each is told once."""
        rooms, self._doubted = tuple(self._doubted), {}
        return rooms

    def set_prefixes(self, room: str, nick: str, signs: str, isupport: Isupport) -> None:
        """The server lists somebody with these signs: all of them, or the highest one."""
        self._set_modes(room, nick, frozenset(isupport.prefix[sign] for sign in signs if sign in isupport.prefix))

    def apply_mode(self, said: IrcLine, isupport: Isupport, inside: Container[str]) -> None:
        """A MODE line of a room (https://modern.ircdocs.horse/#mode-message), where these nicks are."""
        room = isupport.fold(said.param(0))
        changes = list(_parse_mode_changes(said.params[1:], isupport))
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
        """Somebody has another nick."""
        for nicks in self._rooms.values():
            modes = nicks.pop(old, None)
            nicks.pop(new, None)
            if modes:
                nicks[new] = modes

    def remove(self, nick: str, room: str | None = None) -> None:
        """Somebody is gone from there, or from everywhere."""
        for nicks in self._rooms.values() if room is None else [self._rooms.get(room, {})]:
            nicks.pop(nick, None)

    def clear_room(self, room: str) -> None:
        """We are not there, or just came."""
        self._rooms.pop(room, None)

    def _set_modes(self, room: str, nick: str, modes: frozenset[str]) -> None:
        if modes:
            self._rooms.setdefault(room, {})[nick] = modes
        else:
            self._rooms.get(room, {}).pop(nick, None)


def _parse_mode_changes(params: Sequence[str], isupport: Isupport) -> Iterator[tuple[str, bool, str] | None]:
    """Letter, whether it was given, and to whom. None: it cannot be told."""
    ranks, (lists, always, when_set, never) = frozenset(isupport.prefix.values()), isupport.chanmodes
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
"""Marks the answers to our questions."""
_WHOX_ACCOUNT = 7
_EXTENDED_JOIN_PARAMS = 2
"""A JOIN with more than these parameters tells the account: https://ircv3.net/specs/extensions/extended-join."""
_MAX_ROOMS = 1_000
_MAX_PEOPLE = 50_000
"""Per room. Past this a room's people are not followed: a server must not fill our memory."""


def who_query(room: str) -> str:
    """Ask who is in a room, with their accounts: https://ircv3.net/specs/extensions/whox."""
    return format_line("WHO", room, f"%tcuhnfar,{_WHOX_QUERY_TYPE}")


class IrcUsers:
    """Fed with every line from the server, before it is turned into notifications."""

    def __init__(self) -> None:
        self._rooms: dict[str, set[str]] = {}
        self._accounts: dict[str, str] = {}
        self._masks: dict[str, str] = {}
        """As others write them: `nick!user@host`, or the nick where we were told no more."""
        self.ranks = IrcRanks()

    def account(self, nick: str, isupport: Isupport) -> str | None:
        """The services account of somebody we see, as far as we were told."""
        return self._accounts.get(isupport.fold(nick))

    def ranks_of(self, room: str, nick: str, isupport: Isupport) -> tuple[str, ...]:
        """What the server says of somebody there, the highest first."""
        return self.ranks.ranks_of(isupport.fold(room), isupport.fold(nick))

    def shared_rooms(self, nick: str, isupport: Isupport) -> tuple[str, ...]:
        """The folded names of the rooms that we share with `nick`, in order."""
        folded = isupport.fold(nick)
        return tuple(sorted(room for room, nicks in self._rooms.items() if folded in nicks))

    def nicks_in(self, room: str, isupport: Isupport) -> frozenset[str] | None:
        """The folded nicks of who is there, with us; None: we are not."""
        nicks = self._rooms.get(isupport.fold(room))
        return None if nicks is None else frozenset(nicks)

    def nicks_of(self, who: str) -> list[str]:
        """Those of the people we see who are logged in to this account."""
        found = [nick for nick, account in self._accounts.items() if account == who]
        return [self.mask(nick).partition("!")[0] for nick in found]

    def mask(self, folded: str) -> str:
        """Of a folded nick, in its own spelling."""
        return self._masks.get(folded, folded)

    def feed(self, said: IrcLine, me: str, isupport: Isupport) -> None:  # noqa: C901, PLR0912 - one case per command
        """Take in one line; `me` is our nick before it."""
        nick, room = isupport.fold(said.source.nick), isupport.fold(said.param(0))
        mine = nick == isupport.fold(me)
        if said.source.host and "@" not in self._masks.get(nick, "@"):
            self._masks[nick] = said.source.mask
        match said.command:
            case "JOIN":
                if mine and (room in self._rooms or len(self._rooms) < _MAX_ROOMS):
                    self._rooms[room] = set()
                    self.ranks.clear_room(room)
                self.ranks.remove(nick, room)
                self._add_user(room, nick, said.source.mask)
                if len(said.params) > _EXTENDED_JOIN_PARAMS:
                    self._set_account(nick, said.param(1))
            case "353":  # RPL_NAMREPLY: prefixes, and with userhost-in-names whole masks
                for name in said.param(-1).split():
                    mask = name.lstrip("~&@%+!" + "".join(isupport.prefix))
                    here, nick = isupport.fold(said.param(-2)), isupport.fold(mask.partition("!")[0])
                    self._add_user(here, nick, mask)
                    if nick in self._rooms.get(here, ()):
                        self.ranks.set_prefixes(here, nick, name[: len(name) - len(mask)], isupport)
            case "354" if said.param(1) == _WHOX_QUERY_TYPE and len(said.params) > _WHOX_ACCOUNT:
                # Fields as `who_query` asks: token, room, user, host, nick, flags, account, real name.
                if self._is_visible(person := isupport.fold(said.param(5))):
                    self._set_account(person, said.param(_WHOX_ACCOUNT))
            case "PART" if mine:
                self._forget_room(room)
            case "PART":
                self._remove_from_room(room, nick)
            case "KICK":
                victim = isupport.fold(said.param(1))
                if victim == isupport.fold(me):
                    self._forget_room(room)
                else:
                    self._remove_from_room(room, victim)
            case "QUIT":
                self._remove_user(nick)
            case "NICK" if room:
                self._rename_user(nick, replace(said.source, nick=said.param(0)).mask, room)
            case "CHGHOST" if self._is_visible(nick):
                self._masks[nick] = f"{said.source.nick}!{said.param(0)}@{said.param(1)}"
            case "MODE" if room in self._rooms:
                self.ranks.apply_mode(said, isupport, self._rooms[room])
            case "ACCOUNT" if self._is_visible(nick):
                self._set_account(nick, said.param(0))
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
        seen = set().union(*self._rooms.values())
        self._accounts = {nick: account for nick, account in self._accounts.items() if nick in seen}
        self._masks = {nick: mask for nick, mask in self._masks.items() if nick in seen}

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
"""https://ircv3.net/specs/extensions/bot-mode, and as it was called before: InspIRCd below 3.13 has only the last."""
_RELAY_TAGS: Final = frozenset({"draft/relaymsg", "relaymsg"})
"""Tags of what a bridge says in the name of somebody elsewhere: https://ircv3.net/specs/extensions/relaymsg."""


def parse_sender(
    line: IrcLine, room: str | None, people: IrcUsers | None, isupport: Isupport, *, account_tag: bool
) -> Sender:
    """Who did what a line tells.

    `room`: where, if that is a room. `people`: who is who at that time; None: that is not known.
    `account_tag`: the server agreed to tag messages with their account, so no tag means no account.
    """
    if tag := next((tag for tag in _RELAY_TAGS if tag in line.tags), None):
        # The server vouches for the bridge at most, and nobody for the nick.
        said = SenderId(f"relay:{line.tags[tag]}:{line.source.nick}")
        return Sender(id=said, name=line.source.nick, is_bot=not _BOT_TAGS.isdisjoint(line.tags))
    known = people.account(line.source.nick, isupport) if people else None
    tagged = line.tags.get("account")
    account = (None if tagged in {"*", "0"} else tagged) if account_tag else known
    return Sender(
        id=build_sender_id(line.source.mask, account),
        name=line.source.nick,
        account=account or None,
        is_bot=not _BOT_TAGS.isdisjoint(line.tags),
        verified=bool(account),
        ranks=people.ranks_of(room, line.source.nick, isupport) if room and people else (),
    )


def build_sender_id(mask: str, account: str | None) -> SenderId:
    """Who is behind a nick."""
    return SenderId(f"account:{account}" if account else f"mask:{mask}")


def direct_chat(sender: Sender, mask: str | None = None) -> RoomId:
    """The direct chat with somebody who has this nick as their name; `mask` is needed only where their id is another.

    With who is behind the nick in it, a stranger who takes the nick later is another conversation.
    """
    mask = sender.id.removeprefix("mask:") if mask is None else mask
    return RoomId(f"{sender.name}!account:{sender.account}" if sender.account else mask)


def message_target(room: str, thread: str | None = None) -> str:
    """A direct chat is named `nick!user@host` (or `nick!account:name`); IRC wants the nick. A room's name is itself.

    `thread`: the signs of rank in front of a room's name, where only people of such a rank are meant.
    """
    return f"{thread}{room}" if thread else room.partition("!")[0] or room


_SPLIT_REASON = re.compile(r"(?:\*|[\w*-]+)(?:\.[\w*-]+)+ (?:\*|[\w*-]+)(?:\.[\w*-]+)+", re.ASCII)
_MAX_SPLIT_USERS: Final = 20_000
_REJOIN_WINDOW_S: Final = 3600.0
"""Who comes back later than that has come anew."""


class NetsplitTracker:
    """Remembers whom a split took, so that their way back is quiet, too."""

    def __init__(self) -> None:
        self._gone: dict[str, tuple[str, float]] = {}

    def is_netsplit(self, line: IrcLine, isupport: Isupport, now_s: float, *, batched: bool) -> bool:
        """Whether nobody did anything; `batched`: the server said so itself."""
        nick = isupport.fold(line.source.nick)
        if line.command == "QUIT" and (batched or _SPLIT_REASON.fullmatch(line.param(0))):
            if len(self._gone) >= _MAX_SPLIT_USERS:
                del self._gone[next(iter(self._gone))]
            self._gone[nick] = (line.source.mask, now_s)
            return True
        if batched:
            return True
        if line.command in {"JOIN", "MODE"}:
            mask, gone_s = self._gone.get(nick, ("", 0.0))
            return bool(mask) and mask == line.source.mask and now_s - gone_s < _REJOIN_WINDOW_S
        if line.command in {"PRIVMSG", "PART", "QUIT", "NICK"}:
            self._gone.pop(nick, None)
        return False
