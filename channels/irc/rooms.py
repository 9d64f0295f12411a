"""Getting into rooms, and trying again where we were kept out. Pure: time is handed in."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from channels.irc import refusals
from channels.irc.isupport import Isupport
from channels.irc.wire import Line, line

_ROOMS_PER_JOIN = 10
_BYTES_PER_JOIN = 400
"""A server cuts what is longer than 512 bytes, and half a room's name is another room's."""
_MOST_ENTERED = 1_000
"""A server must not fill our memory with rooms that it says we are in."""
_CLOSED: Final = frozenset({"471", "473", "474", "475"})
"""Full, only for the invited, banned, needs a key: somebody has decided so, and is not to be pestered."""
_FIRST_S, _MOST_S = 60.0, 3600.0
_UNANSWERED_S = 300.0
_CLOSED_FIRST_S, _CLOSED_MOST_S = 900.0, 6 * 3600.0
REJOIN_S: Final = 30.0
"""After a kick."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one JOIN."""

    room: str
    """Folded."""
    refusal: str = ""
    """Empty: we are in."""


@dataclass(slots=True)
class _Later:
    room: str
    at_s: float
    wait_s: float


class Rooms:
    """Which rooms are asked for, entered, and to be tried again."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        """Folded; no answer yet."""
        self.entered: set[str] = set()
        """Folded."""
        self._again: set[str] = set()
        """Folded; entered from the configuration, so a refusal is tried again."""
        self._later: dict[str, _Later] = {}

    def ask(self, rooms: Iterable[str], isupport: Isupport, now_s: float, *, again: bool) -> list[str]:
        """The lines to send. `again`: if one is refused or not answered, it is tried again later.

        Not for rooms that we are in (a bouncer kept us there): servers do not answer that.
        """
        wanted = [room for room in dict.fromkeys(rooms) if isupport.fold(room) not in self.entered]
        folded = {isupport.fold(room): room for room in wanted}
        self.asked |= folded.keys()
        if again:
            self._again |= folded.keys()
            for key, room in folded.items():
                self._later.setdefault(key, _Later(room, 0.0, 0.0)).at_s = now_s + _UNANSWERED_S
        return [line("JOIN", ",".join(together)) for together in _batched(wanted)]

    def feed(self, said: Line, me: str, isupport: Isupport, now_s: float) -> list[Outcome]:
        """Take in a line; what it settles."""
        source, room = isupport.fold(said.source.nick), isupport.fold(said.param(0))
        mine = source == isupport.fold(me)
        if said.command == "JOIN" and mine:
            if len(self.entered) < _MOST_ENTERED:
                self.entered.add(room)
            if later := self._later.get(room):
                later.at_s, later.wait_s = float("inf"), 0.0
        elif (said.command == "PART" and mine) or (
            said.command == "KICK" and isupport.fold(said.param(1)) == isupport.fold(me)
        ):
            self.entered.discard(room)
            return []
        elif said.command not in refusals.JOIN:
            return []
        names = {room} if said.command == "JOIN" else {isupport.fold(param) for param in said.params[1:]}
        refusal = "" if said.command == "JOIN" else refusals.reason(said)
        settled = [Outcome(name, refusal) for name in sorted(self.asked & names)] if mine or refusal else []
        self.asked -= {outcome.room for outcome in settled}
        if refusal:
            for outcome in settled:
                self._put_off(outcome.room, now_s, closed=said.command in _CLOSED)
        return settled

    def _put_off(self, room: str, now_s: float, *, closed: bool) -> None:
        later = self._later.get(room)
        if later is not None and room in self._again:
            first_s, most_s = (_CLOSED_FIRST_S, _CLOSED_MOST_S) if closed else (_FIRST_S, _MOST_S)
            later.wait_s = min(most_s, max(first_s, later.wait_s * 2))
            later.at_s = now_s + later.wait_s

    def kicked(self, room: str, isupport: Isupport, now_s: float) -> None:
        """Try to get back, after a while."""
        folded = isupport.fold(room)
        self._again.add(folded)
        later = self._later.setdefault(folded, _Later(room, 0.0, 0.0))
        later.at_s = now_s + REJOIN_S

    def give_up(self, room: str) -> None:
        """It (folded) is not to be tried again."""
        self._again.discard(room)
        self._later.pop(room, None)

    def leave(self, room: str) -> bool:
        """We are about to go, and it (folded) is not to be tried again. Whether we are there, or soon may be."""
        self.give_up(room)
        there = room in self.entered or room in self.asked
        self.entered.discard(room)
        self.asked.discard(room)
        return there

    def due(self, now_s: float) -> list[str]:
        """Rooms to ask for again now, in the operator's spelling."""
        due = [later for later in self._later.values() if later.at_s <= now_s]
        for later in due:
            later.at_s = float("inf")
        return [later.room for later in due]


def _batched(rooms: Iterable[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    for room in rooms:
        last = batches[-1] if batches else []
        if last and len(last) < _ROOMS_PER_JOIN and len(",".join([*last, room]).encode()) <= _BYTES_PER_JOIN:
            last.append(room)
        else:
            batches.append([room])
    return batches
