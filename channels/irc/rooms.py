"""Getting into rooms, and trying again where we were kept out. Pure: time is handed in."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from channels.irc import refusals
from channels.irc.isupport import Isupport
from channels.irc.wire import IrcLine, format_line

_ROOMS_PER_JOIN = 10
_BYTES_PER_JOIN = 400
"""A server cuts what is longer than 512 bytes, and half a room's name is another room's."""
_MAX_ENTERED = 1_000
"""A server must not fill our memory with rooms that it says we are in."""
_CLOSED_NUMERICS: Final = frozenset({"471", "473", "474", "475"})
"""Full, only for the invited, banned, needs a key: somebody has decided so, and is not to be pestered."""
_RETRY_FIRST_S, _RETRY_MAX_S = 60.0, 3600.0
_UNANSWERED_S = 300.0
_CLOSED_RETRY_FIRST_S, _CLOSED_RETRY_MAX_S = 900.0, 6 * 3600.0
REJOIN_S: Final = 30.0
"""After a kick."""
_CLOSED_MODES: Final = frozenset("ikpsO")
"""Modes of rooms that not everybody may enter or find: invited, key, private, secret, operators only."""


@dataclass(frozen=True, slots=True)
class JoinOutcome:
    """What became of one JOIN."""

    room: str
    """Folded."""
    refusal: str = ""
    """Empty: we are in."""


@dataclass(slots=True)
class _JoinRetry:
    room: str
    at_s: float
    wait_s: float


class JoinTracker:
    """Which rooms are asked for, entered, and to be tried again."""

    def __init__(self) -> None:
        self.requested: set[str] = set()
        """Folded; no answer yet."""
        self.entered: set[str] = set()
        """Folded."""
        self._retried: set[str] = set()
        """Folded; entered from the configuration, so a refusal is tried again."""
        self._retries: dict[str, _JoinRetry] = {}
        self.refusals: dict[str, str] = {}
        """Why the server did not let us in when we asked last, by folded room."""

    def join_lines(self, rooms: Iterable[str], isupport: Isupport, now_s: float, *, again: bool) -> list[str]:
        """The lines to send. `again`: if one is refused or not answered, it is tried again later.

        Not for rooms that we are in (a bouncer kept us there): servers do not answer that.
        """
        wanted = [room for room in dict.fromkeys(rooms) if isupport.fold(room) not in self.entered]
        folded = {isupport.fold(room): room for room in wanted}
        self.requested |= folded.keys()
        if again:
            self._retried |= folded.keys()
            for key, room in folded.items():
                self._retries.setdefault(key, _JoinRetry(room, 0.0, 0.0)).at_s = now_s + _UNANSWERED_S
        return [format_line("JOIN", ",".join(together)) for together in _batch_rooms(wanted)]

    def feed(self, said: IrcLine, me: str, isupport: Isupport, now_s: float) -> list[JoinOutcome]:
        """Take in a line; what it settles."""
        source, room = isupport.fold(said.source.nick), isupport.fold(said.param(0))
        mine = source == isupport.fold(me)
        if said.command == "JOIN" and mine:
            if len(self.entered) < _MAX_ENTERED:
                self.entered.add(room)
                self.refusals.pop(room, None)
            if later := self._retries.get(room):
                later.at_s, later.wait_s = float("inf"), 0.0
        elif (said.command == "PART" and mine) or (
            said.command == "KICK" and isupport.fold(said.param(1)) == isupport.fold(me)
        ):
            self.entered.discard(room)
            return []
        elif said.command not in refusals.JOIN_REFUSALS:
            return []
        names = {room} if said.command == "JOIN" else {isupport.fold(param) for param in said.params[1:]}
        refusal = "" if said.command == "JOIN" else refusals.refusal_reason(said)
        settled = [JoinOutcome(name, refusal) for name in sorted(self.requested & names)] if mine or refusal else []
        self.requested -= {outcome.room for outcome in settled}
        if refusal:
            for outcome in settled:
                self.refusals[outcome.room] = refusal
                self._postpone(outcome.room, now_s, closed=said.command in _CLOSED_NUMERICS)
        return settled

    def _postpone(self, room: str, now_s: float, *, closed: bool) -> None:
        later = self._retries.get(room)
        if later is not None and room in self._retried:
            first_s, most_s = (_CLOSED_RETRY_FIRST_S, _CLOSED_RETRY_MAX_S) if closed else (_RETRY_FIRST_S, _RETRY_MAX_S)
            later.wait_s = min(most_s, max(first_s, later.wait_s * 2))
            later.at_s = now_s + later.wait_s

    def schedule_rejoin(self, room: str, isupport: Isupport, now_s: float) -> None:
        """Try to get back, after a while."""
        folded = isupport.fold(room)
        self._retried.add(folded)
        later = self._retries.setdefault(folded, _JoinRetry(room, 0.0, 0.0))
        later.at_s = now_s + REJOIN_S

    def retry_at_s(self, room: str) -> float | None:
        """When it (folded) is asked for again; None: it is not, or the answer is still to come."""
        later = self._retries.get(room)
        return later.at_s if later is not None and later.at_s < float("inf") else None

    def cancel_retry(self, room: str) -> None:
        """It (folded) is not to be tried again."""
        self._retried.discard(room)
        self._retries.pop(room, None)

    def drop(self, room: str) -> bool:
        """We are about to go, and it (folded) is not to be tried again. Whether we are there, or soon may be."""
        self.cancel_retry(room)
        there = room in self.entered or room in self.requested
        self.entered.discard(room)
        self.requested.discard(room)
        return there

    def take_due(self, now_s: float) -> list[str]:
        """Rooms to ask for again now, in the operator's spelling."""
        due = [later for later in self._retries.values() if later.at_s <= now_s]
        for later in due:
            later.at_s = float("inf")
        return [later.room for later in due]


class RoomModes:
    """Which of our rooms anybody may enter, and find: by their modes (https://modern.ircdocs.horse/#channel-modes)."""

    def __init__(self) -> None:
        self._open: dict[str, bool] = {}
        """Folded. Rooms of which nothing is known do not stand here."""
        self._to_query: dict[str, None] = {}
        """Folded; whose modes are to be asked for."""

    def is_open(self, room: str) -> bool | None:
        """Of a folded room. None: it is not known."""
        return self._open.get(room)

    def next_query(self) -> str:
        """A folded room whose modes are to be asked for. Empty: none."""
        return next(iter(self._to_query), "")

    def mark_queried(self, room: str) -> None:
        """They were asked for."""
        self._to_query.pop(room, None)

    def feed(self, said: IrcLine, me: str, isupport: Isupport) -> None:
        """Take in a line; `me` is our nick before it."""
        room, mine = isupport.fold(said.param(0)), isupport.fold(said.source.nick) == isupport.fold(me)
        match said.command:
            case "JOIN" if mine and len(self._to_query) < _MAX_ENTERED:
                self._open.pop(room, None)
                self._to_query[room] = None
            case "PART" if mine:
                self._to_query.pop(room, None)
            case "KICK" if isupport.fold(said.param(1)) == isupport.fold(me):
                self._to_query.pop(room, None)
            case "324":  # RPL_CHANNELMODEIS
                self._set_open(isupport.fold(said.param(1)), is_open=not set(said.param(2)) & _CLOSED_MODES)
            case "MODE" if room in self._open and set(said.param(1)) & _CLOSED_MODES:
                # Whatever was put on or taken off: closed until the server has told how it stands now.
                self._set_open(room, is_open=False)
                self._to_query[room] = None
            case "473" | "475":  # only for the invited, or with a key
                self._set_open(isupport.fold(said.param(1)), is_open=False)
            case _:
                pass

    def _set_open(self, room: str, *, is_open: bool) -> None:
        if room in self._open or len(self._open) < _MAX_ENTERED:
            self._open[room] = is_open


def _batch_rooms(rooms: Iterable[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    for room in rooms:
        last = batches[-1] if batches else []
        if last and len(last) < _ROOMS_PER_JOIN and len(",".join([*last, room]).encode()) <= _BYTES_PER_JOIN:
            last.append(room)
        else:
            batches.append([room])
    return batches
