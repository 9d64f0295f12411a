"""Being somewhere, as somebody: entering rooms, coming back to them, and our nick. Sync; `session` feeds it.

Getting into rooms, and trying again where we were kept out. Pure: time is handed in.

Getting back the nick that we are configured with. Pure.

Where the server watches nicks for us (https://ircv3.net/specs/extensions/monitor) it tells when ours is free;
elsewhere, and when a watched nick turned out not to be free for us, we ask again and again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from channels.base import Rejected, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.people import IrcState
from channels.irc.wire import JOIN_REFUSALS, IrcLine, Isupport, format_line, refusal_reason
from gateway.core.events import ChannelName

_NICK_REFUSALS = frozenset({"432", "433", "435", "436", "437", "438", "447", "484", "734"})
"""435, 437, 438: banned in a room, held by services, too soon; 734: the list of watched nicks is full."""


class NickRecovery:
    """Fed with every line after the welcome."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._watching = False
        self._polling = False

    def recovery_lines(self, me: str, isupport: Isupport) -> list[str]:
        """What to send now and then, and when we were just given another nick."""
        if isupport.fold(me) == isupport.fold(self._wanted):
            return []
        if not isupport.monitors or self._polling:
            return [format_line("NICK", self._wanted)]
        if self._watching:
            return []
        self._watching = True
        return [format_line("MONITOR", "+", self._wanted)]

    def feed(self, said: IrcLine, me: str, isupport: Isupport) -> list[str]:
        """What to send in answer; `me` is our nick after the line."""
        wanted = isupport.fold(self._wanted)
        if isupport.fold(me) == wanted:
            watching, self._watching, self._polling = self._watching, False, False
            return [format_line("MONITOR", "-", self._wanted)] if watching else []
        if said.command == "731":  # RPL_MONOFFLINE
            names = {isupport.fold(name.partition("!")[0]) for name in said.param(-1).split(",")}
            return [format_line("NICK", self._wanted)] if wanted in names else []
        if said.command in {"NICK", "QUIT"} and isupport.fold(said.source.nick) == wanted:
            return [format_line("NICK", self._wanted)]
        if said.command in _NICK_REFUSALS and wanted in {isupport.fold(param) for param in said.params}:
            self._polling = True
        return []


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
        elif said.command not in JOIN_REFUSALS:
            return []
        names = {room} if said.command == "JOIN" else {isupport.fold(param) for param in said.params[1:]}
        refusal = "" if said.command == "JOIN" else refusal_reason(said)
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


logger = logging.getLogger("reverie.irc")
_NICK_POLL_S = 60.0
_MAX_LEFT = 100
"""Rooms that we were forced into and have left: a server that goes on gets its way."""


class IrcMembership:
    """Of one connection."""

    def __init__(
        self, name: ChannelName, config: IrcConfig, memory: IrcState, say: Callable[[str], None], now_s: float
    ) -> None:
        self._name, self._config, self._state, self._send = name, config, memory, say
        self._joins, self._nick = JoinTracker(), NickRecovery(config.nick)
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._polled_s, self._opened = now_s, False
        self._left_unconfigured: set[str] = set()
        self._leaving: set[str] = set()
        """Folded; we have been told to go."""
        self.initial_joins_done = asyncio.Event()
        """Every room of the start is entered or refused."""

    @property
    def configured_rooms(self) -> tuple[str, ...]:
        """In the operator's spelling."""
        return self._config.rooms

    @property
    def entered_rooms(self) -> list[str]:
        """Folded rooms that we are in."""
        return sorted(self._joins.entered)

    def join_refusal(self, room: str, isupport: Isupport, now_s: float) -> str:
        """Why we are not in a room; empty: we are, or nothing is known."""
        folded = isupport.fold(room)
        if folded in self._joins.entered:
            return ""
        if folded in self._state.barred_rooms:
            return "it was thrown out or left, and goes back when an admin has it join"
        refusal, at_s = self._joins.refusals.get(folded, ""), self._joins.retry_at_s(folded)
        again = f"; next attempt in {max(0.0, at_s - now_s) / 60:.0f} min" if refusal and at_s is not None else ""
        return f"{refusal}{again}"

    def join_configured(self, isupport: Isupport, now_s: float) -> list[str]:
        """Ask to be let into the configured rooms, except those that we were thrown out of or left; which these are."""
        rooms = [room for room in self._config.rooms if isupport.fold(room) not in self._state.barred_rooms]
        self._send_joins(rooms, isupport, now_s, again=True)
        self._opened = True
        if not self._joins.requested:
            self.initial_joins_done.set()
        return rooms

    def apply_config(self, config: IrcConfig, isupport: Isupport, now_s: float) -> None:
        """Leave the rooms that are no longer configured, and ask to be let into those that are now."""
        before, rooms = ({isupport.fold(room): room for room in one.rooms} for one in (self._config, config))
        self._config = config
        for folded, room in before.items():
            if folded not in rooms and self._joins.drop(folded):
                self._leaving.add(folded)
                self._send(format_line("PART", room))
        new = [folded for folded in rooms if folded not in before]
        self._state.barred_rooms.difference_update(new)
        self._left_unconfigured.difference_update(new)
        self._send_joins([rooms[folded] for folded in new], isupport, now_s, again=True)

    def _send_joins(self, rooms: Iterable[str], isupport: Isupport, now_s: float, *, again: bool) -> None:
        for raw in self._joins.join_lines(rooms, isupport, now_s, again=again):
            self._send(raw)

    def join(self, room: str, isupport: Isupport, now_s: float) -> asyncio.Future[None]:
        """Ask to be let in, because somebody who may says so; done once we are in. Raises SendError by it."""
        folded = isupport.fold(room)
        entering: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._state.barred_rooms.discard(folded)
        if folded in self._joins.entered:
            entering.set_result(None)
            return entering
        self._waiters.setdefault(folded, []).append(entering)
        self._send_joins([room], isupport, now_s, again=False)
        return entering

    def begin_leave(self, room: str, isupport: Isupport) -> None:
        """We are about to go, because somebody who may says so, and do not come back by ourselves. Call `left` then."""
        folded = isupport.fold(room)
        self._state.barred_rooms.add(folded)
        self._leaving.add(folded)
        self._joins.cancel_retry(folded)

    def end_leave(self, room: str, isupport: Isupport) -> None:
        """The server has answered, or will not: who makes us go from now on throws us out."""
        self._leaving.discard(isupport.fold(room))

    def feed(self, said: IrcLine, me: str, isupport: Isupport, now_s: float) -> None:
        """Take in a line; `me` is our nick after it."""
        mine, room = isupport.fold(said.source.nick) == isupport.fold(me), isupport.fold(said.param(0))
        if said.command == "JOIN" and mine and room not in self._leaving:
            self._leave_unconfigured(room, isupport)
        for outcome in self._joins.feed(said, me, isupport, now_s):
            for waiter in self._waiters.pop(outcome.room, []):
                if not waiter.done() and outcome.refusal:
                    waiter.set_exception(Rejected(outcome.refusal))
                elif not waiter.done():
                    waiter.set_result(None)
            if outcome.refusal:
                logger.error("%s: cannot join %s: %s", self._name, outcome.room, outcome.refusal)
        if self._opened and not self._joins.requested:
            self.initial_joins_done.set()
        kicked = said.command == "KICK" and isupport.fold(said.param(1)) == isupport.fold(me)
        if kicked or (said.command == "PART" and mine):
            self._handle_removed(said, room, isupport, now_s)
        for raw in self._nick.feed(said, me, isupport):
            self._send(raw)

    def _handle_removed(self, said: IrcLine, room: str, isupport: Isupport, now_s: float) -> None:
        if room not in self._left_unconfigured | self._leaving:
            self._handle_forced_part(said, isupport, now_s)
        self._leaving.discard(room)

    def _leave_unconfigured(self, room: str, isupport: Isupport) -> None:
        """Servers can forward us (470) or put us anywhere; we are only where the operator wants us."""
        wanted = room in self._joins.requested or room in map(isupport.fold, self._config.rooms)
        if not wanted and room not in self._left_unconfigured and len(self._left_unconfigured) < _MAX_LEFT:
            self._left_unconfigured.add(room)
            logger.warning("%s: put into %s, which is not configured; leaving it", self._name, room[:100])
            self._send(format_line("PART", room))

    def _handle_forced_part(self, said: IrcLine, isupport: Isupport, now_s: float) -> None:
        """Kicked, or made to part: we never leave a room of ours by ourselves."""
        room = said.param(0)
        logger.warning("%s: thrown out of %s by %s", self._name, room[:100], said.source.nick[:100])
        spelt = {isupport.fold(known): known for known in self._config.rooms}.get(isupport.fold(room))
        if self._config.rejoin_after_kick and spelt is not None:
            self._joins.schedule_rejoin(spelt, isupport, now_s)
        elif spelt is not None:
            self._state.barred_rooms.add(isupport.fold(room))

    def tick(self, me: str, isupport: Isupport, now_s: float) -> None:
        """Now and then: try rooms again that we were kept out of, and ask for our nick."""
        self._send_joins(self._joins.take_due(now_s), isupport, now_s, again=True)
        if now_s - self._polled_s >= _NICK_POLL_S:
            self._polled_s = now_s
            for raw in self._nick.recovery_lines(me, isupport):
                self._send(raw)

    def recover_nick(self, me: str, isupport: Isupport) -> None:
        """Have the server watch for our nick, if it does that."""
        if isupport.monitors:
            for raw in self._nick.recovery_lines(me, isupport):
                self._send(raw)

    def close(self) -> None:
        """Nobody will be let in any more."""
        for waiter in [waiter for waiters in self._waiters.values() for waiter in waiters if not waiter.done()]:
            waiter.set_exception(Unreachable("the connection is lost"))
        self._waiters.clear()
