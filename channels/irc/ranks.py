"""What servers say of people in rooms: founder, op, voice and the like. Pure bookkeeping.

Which modes these are, and which other modes take a parameter, the server tells (PREFIX and CHANMODES,
https://modern.ircdocs.horse/#prefix-parameter). Of a mode that it did not tell of nobody knows how many parameters
belong to it, so whose the others are is not known either: then nobody in that room has any rank until the server has
told them all again.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final

from channels.irc.isupport import Isupport
from channels.irc.wire import IrcLine

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
