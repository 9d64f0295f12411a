"""Who is in our rooms, which services account they are logged in to, and what rank they have. Pure bookkeeping.

An account is believed only while the server keeps us told about its nick: once somebody shares no room
with us, the next person with that nick is a stranger.
"""

from dataclasses import replace

from channels.irc.isupport import Isupport
from channels.irc.ranks import IrcRanks
from channels.irc.wire import IrcLine, format_line

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
