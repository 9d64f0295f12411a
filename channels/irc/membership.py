"""Rooms and nick of one connection: joining, rejoining, room modes, and recovery of the configured nick.

Synchronous, fed by `session`. `NickRecovery`, `JoinTracker` and `RoomModes` are pure: time is passed in.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from channels.base import Rejected, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.wire import JOIN_REFUSALS, IrcLine, Isupport, format_line, refusal_reason

if TYPE_CHECKING:
    from channels.irc.session import IrcSession

logger = logging.getLogger("reverie.irc")
_NICK_REFUSALS = frozenset({"432", "433", "435", "436", "437", "438", "447", "484", "734"})
"""435, 437, 438: banned in a room, reserved by services, too soon; 734: the list of watched nicks is full."""


class NickRecovery:
    """Recovery of the configured nick; fed with every line after the welcome.

    Where the server watches nicks (https://ircv3.net/specs/extensions/monitor) it reports when ours is free. Elsewhere,
    and when a nick reported as free was refused, NICK is sent periodically.
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._watching = False
        self._polling = False

    def recovery_lines(self, me: str, isupport: Isupport) -> list[str]:
        """Return the lines to send periodically, and after the server changed our nick."""
        if isupport.fold(me) == isupport.fold(self._wanted):
            return []
        if not isupport.monitors or self._polling:
            return [format_line("NICK", self._wanted)]
        if self._watching:
            return []
        self._watching = True
        return [format_line("MONITOR", "+", self._wanted)]

    def feed(self, line: IrcLine, me: str, isupport: Isupport) -> list[str]:
        """Return the lines to send in answer; `me` is our nick after the line."""
        wanted = isupport.fold(self._wanted)
        if isupport.fold(me) == wanted:
            watching, self._watching, self._polling = self._watching, False, False
            return [format_line("MONITOR", "-", self._wanted)] if watching else []
        if line.command == "731":  # RPL_MONOFFLINE
            names = {isupport.fold(name.partition("!")[0]) for name in line.param(-1).split(",")}
            return [format_line("NICK", self._wanted)] if wanted in names else []
        if line.command in {"NICK", "QUIT"} and isupport.fold(line.source.nick) == wanted:
            return [format_line("NICK", self._wanted)]
        if line.command in _NICK_REFUSALS and wanted in {isupport.fold(param) for param in line.params}:
            self._polling = True
        return []


_ROOMS_PER_JOIN = 10
_BYTES_PER_JOIN = 400
"""A server cuts lines longer than 512 bytes, and half a room's name is another room's."""
_MAX_ENTERED = 1_000
"""Limit of the rooms that a server can say we are in."""
_CLOSED_NUMERICS: Final = frozenset({"471", "473", "474", "475"})
"""Full, invite-only, banned, needs a key: decided by the room's people, so retried rarely."""
_RETRY_FIRST_S, _RETRY_MAX_S = 60.0, 3600.0
_UNANSWERED_S = 300.0
_CLOSED_RETRY_FIRST_S, _CLOSED_RETRY_MAX_S = 900.0, 6 * 3600.0
REJOIN_S: Final = 30.0
"""Delay of the rejoin after a kick."""
_CLOSED_MODES: Final = frozenset("ikpsO")
"""Modes of rooms that not everybody may enter or find: invite-only, key, private, secret, operators only."""


@dataclass(frozen=True, slots=True)
class JoinOutcome:
    """Result of one JOIN."""

    room: str
    """Folded."""
    refusal: str = ""
    """The server's reason; empty: we are in."""


@dataclass(slots=True)
class _JoinRetry:
    room: str
    at_s: float
    wait_s: float


class JoinTracker:
    """Rooms that are requested, entered, and to be tried again."""

    def __init__(self) -> None:
        self.requested: set[str] = set()
        """Folded; not answered yet."""
        self.entered: set[str] = set()
        """Folded."""
        self._retried: set[str] = set()
        """Folded; rooms whose refusal is tried again."""
        self._retries: dict[str, _JoinRetry] = {}
        self.refusals: dict[str, str] = {}
        """Folded room -> reason of the last refusal."""

    def join_lines(self, rooms: Iterable[str], isupport: Isupport, now_s: float, *, again: bool) -> list[str]:
        """Return the lines to send. `again`: a refusal or a missing answer is tried again later.

        Rooms that we are in (a bouncer kept us there) are left out: servers do not answer such a JOIN.
        """
        wanted = [room for room in dict.fromkeys(rooms) if isupport.fold(room) not in self.entered]
        folded = {isupport.fold(room): room for room in wanted}
        self.requested |= folded.keys()
        if again:
            self._retried |= folded.keys()
            for key, room in folded.items():
                self._retries.setdefault(key, _JoinRetry(room, 0.0, 0.0)).at_s = now_s + _UNANSWERED_S
        return [format_line("JOIN", ",".join(batch)) for batch in _batch_rooms(wanted)]

    def feed(self, line: IrcLine, me: str, isupport: Isupport, now_s: float) -> list[JoinOutcome]:
        """Process a line; return the requests that it answers."""
        source, room = isupport.fold(line.source.nick), isupport.fold(line.param(0))
        mine = source == isupport.fold(me)
        if line.command == "JOIN" and mine:
            if len(self.entered) < _MAX_ENTERED:
                self.entered.add(room)
                self.refusals.pop(room, None)
            if retry := self._retries.get(room):
                retry.at_s, retry.wait_s = float("inf"), 0.0
        elif (line.command == "PART" and mine) or (
            line.command == "KICK" and isupport.fold(line.param(1)) == isupport.fold(me)
        ):
            self.entered.discard(room)
            return []
        elif line.command not in JOIN_REFUSALS:
            return []
        names = {room} if line.command == "JOIN" else {isupport.fold(param) for param in line.params[1:]}
        refusal = "" if line.command == "JOIN" else refusal_reason(line)
        settled = [JoinOutcome(name, refusal) for name in sorted(self.requested & names)] if mine or refusal else []
        self.requested -= {outcome.room for outcome in settled}
        if refusal:
            for outcome in settled:
                self.refusals[outcome.room] = refusal
                self._postpone(outcome.room, now_s, closed=line.command in _CLOSED_NUMERICS)
        return settled

    def _postpone(self, room: str, now_s: float, *, closed: bool) -> None:
        retry = self._retries.get(room)
        if retry is not None and room in self._retried:
            first_s, most_s = (_CLOSED_RETRY_FIRST_S, _CLOSED_RETRY_MAX_S) if closed else (_RETRY_FIRST_S, _RETRY_MAX_S)
            retry.wait_s = min(most_s, max(first_s, retry.wait_s * 2))
            retry.at_s = now_s + retry.wait_s

    def schedule_rejoin(self, room: str, isupport: Isupport, now_s: float) -> None:
        """Rejoin the room after `REJOIN_S`."""
        folded = isupport.fold(room)
        self._retried.add(folded)
        retry = self._retries.setdefault(folded, _JoinRetry(room, 0.0, 0.0))
        retry.at_s = now_s + REJOIN_S

    def retry_at_s(self, room: str) -> float | None:
        """Return the time of the next attempt for a folded room; None: none is planned, or an answer is pending."""
        retry = self._retries.get(room)
        return retry.at_s if retry is not None and retry.at_s < float("inf") else None

    def cancel_retry(self, room: str) -> None:
        """Stop trying to join a folded room."""
        self._retried.discard(room)
        self._retries.pop(room, None)

    def drop(self, room: str) -> bool:
        """Forget a folded room that we are about to leave; return whether we are there, or may soon be."""
        self.cancel_retry(room)
        there = room in self.entered or room in self.requested
        self.entered.discard(room)
        self.requested.discard(room)
        return there

    def take_due(self, now_s: float) -> list[str]:
        """Return the rooms to request again now, in the operator's spelling."""
        due = [retry for retry in self._retries.values() if retry.at_s <= now_s]
        for retry in due:
            retry.at_s = float("inf")
        return [retry.room for retry in due]


class RoomModes:
    """Rooms that anybody may enter and find, by their modes (https://modern.ircdocs.horse/#channel-modes)."""

    def __init__(self) -> None:
        self._open: dict[str, bool] = {}
        """Folded; rooms with unknown modes are left out."""
        self._to_query: dict[str, None] = {}
        """Folded; rooms whose modes must be requested."""

    def is_open(self, room: str) -> bool | None:
        """Return whether anybody may enter a folded room. None: unknown."""
        return self._open.get(room)

    def next_query(self) -> str:
        """Return a folded room whose modes must be requested. Empty: none."""
        return next(iter(self._to_query), "")

    def mark_queried(self, room: str) -> None:
        """Record that the modes were requested."""
        self._to_query.pop(room, None)

    def feed(self, line: IrcLine, me: str, isupport: Isupport) -> None:
        """Process a line; `me` is our nick before it."""
        room, mine = isupport.fold(line.param(0)), isupport.fold(line.source.nick) == isupport.fold(me)
        match line.command:
            case "JOIN" if mine and len(self._to_query) < _MAX_ENTERED:
                self._open.pop(room, None)
                self._to_query[room] = None
            case "PART" if mine:
                self._to_query.pop(room, None)
            case "KICK" if isupport.fold(line.param(1)) == isupport.fold(me):
                self._to_query.pop(room, None)
            case "324":  # RPL_CHANNELMODEIS
                self._set_open(isupport.fold(line.param(1)), is_open=not set(line.param(2)) & _CLOSED_MODES)
            case "MODE" if room in self._open and set(line.param(1)) & _CLOSED_MODES:
                # Set or unset: closed until the server has sent the current modes.
                self._set_open(room, is_open=False)
                self._to_query[room] = None
            case "473" | "475":  # invite-only, or needs a key
                self._set_open(isupport.fold(line.param(1)), is_open=False)
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


_NICK_POLL_S = 60.0
_MAX_LEFT = 100
"""Unwanted rooms that we leave at most; more are tolerated, to end the fight with the server."""


class IrcMembership:
    """Rooms and nick of one connection."""

    def __init__(self, session: "IrcSession", config: IrcConfig) -> None:
        self._session, self._config, self._state = session, config, session.state
        self._joins, self._nick = JoinTracker(), NickRecovery(config.nick)
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._polled_s, self._opened = session.last_heard_s, False
        self._left_unconfigured: set[str] = set()
        self._leaving: set[str] = set()
        """Folded; rooms that we were told to leave."""
        self.initial_joins_done = asyncio.Event()
        """Every room of the start is entered or refused."""

    @property
    def configured_rooms(self) -> tuple[str, ...]:
        """Configured rooms, in the operator's spelling."""
        return self._config.rooms

    @property
    def entered_rooms(self) -> list[str]:
        """Folded rooms that we are in."""
        return sorted(self._joins.entered)

    def join_refusal(self, room: str) -> str:
        """Return why we are not in a room; empty: we are, or nothing is known."""
        folded = self._session.isupport.fold(room)
        if folded in self._joins.entered:
            return ""
        if folded in self._state.barred_rooms:
            return "it was thrown out or left, and goes back when an admin has it join"
        refusal, at_s = self._joins.refusals.get(folded, ""), self._joins.retry_at_s(folded)
        again = (
            f"; next attempt in {max(0.0, at_s - self._session.clock.monotonic()) / 60:.0f} min"
            if refusal and at_s is not None
            else ""
        )
        return f"{refusal}{again}"

    def join_configured(self) -> list[str]:
        """Request the configured rooms, except barred ones; return the requested rooms."""
        rooms = [
            room for room in self._config.rooms if self._session.isupport.fold(room) not in self._state.barred_rooms
        ]
        self._send_joins(rooms, again=True)
        self._opened = True
        if not self._joins.requested:
            self.initial_joins_done.set()
        return rooms

    def apply_config(self, config: IrcConfig) -> None:
        """Leave rooms that are no longer configured, and join those that are new."""
        before, rooms = (
            {self._session.isupport.fold(room): room for room in source.rooms} for source in (self._config, config)
        )
        self._config = config
        for folded, room in before.items():
            if folded not in rooms and self._joins.drop(folded):
                self._leaving.add(folded)
                self._session.outgoing.queue_line(format_line("PART", room))
        new = [folded for folded in rooms if folded not in before]
        self._state.barred_rooms.difference_update(new)
        self._left_unconfigured.difference_update(new)
        self._send_joins([rooms[folded] for folded in new], again=True)

    def _send_joins(self, rooms: Iterable[str], *, again: bool) -> None:
        now_s = self._session.clock.monotonic()
        for raw in self._joins.join_lines(rooms, self._session.isupport, now_s, again=again):
            self._session.outgoing.queue_line(raw)

    def join(self, room: str) -> asyncio.Future[None]:
        """Request a room on command; the future is done once we are in. It raises SendError."""
        folded = self._session.isupport.fold(room)
        entering: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._state.barred_rooms.discard(folded)
        if folded in self._joins.entered:
            entering.set_result(None)
            return entering
        self._waiters.setdefault(folded, []).append(entering)
        self._send_joins([room], again=False)
        return entering

    def begin_leave(self, room: str) -> None:
        """Mark a room that we are about to leave on command, so that it is not rejoined.

        Call `end_leave` afterwards.
        """
        folded = self._session.isupport.fold(room)
        self._state.barred_rooms.add(folded)
        self._leaving.add(folded)
        self._joins.cancel_retry(folded)

    def end_leave(self, room: str) -> None:
        """Record that the PART is answered, or will not be: from now on a removal counts as a kick."""
        self._leaving.discard(self._session.isupport.fold(room))

    def feed(self, line: IrcLine) -> None:
        """Process a line, after which our nick is the session's."""
        me, isupport, now_s = self._session.nick, self._session.isupport, self._session.last_heard_s
        mine, room = (
            self._session.isupport.fold(line.source.nick) == self._session.isupport.fold(me),
            self._session.isupport.fold(line.param(0)),
        )
        if line.command == "JOIN" and mine and room not in self._leaving:
            self._leave_unconfigured(room)
        for outcome in self._joins.feed(line, me, isupport, now_s):
            for waiter in self._waiters.pop(outcome.room, []):
                if not waiter.done() and outcome.refusal:
                    waiter.set_exception(Rejected(outcome.refusal))
                elif not waiter.done():
                    waiter.set_result(None)
            if outcome.refusal:
                logger.error("%s: cannot join %s: %s", self._session.name, outcome.room, outcome.refusal)
        if self._opened and not self._joins.requested:
            self.initial_joins_done.set()
        kicked = line.command == "KICK" and self._session.isupport.fold(line.param(1)) == self._session.isupport.fold(
            me
        )
        if kicked or (line.command == "PART" and mine):
            self._handle_removed(line, room)
        for raw in self._nick.feed(line, me, isupport):
            self._session.outgoing.queue_line(raw)

    def _handle_removed(self, line: IrcLine, room: str) -> None:
        if room not in self._left_unconfigured | self._leaving:
            self._handle_forced_part(line)
        self._leaving.discard(room)

    def _leave_unconfigured(self, room: str) -> None:
        """Leave a room that the server put us into (470, or any JOIN of its own) against the configuration."""
        wanted = room in self._joins.requested or room in map(self._session.isupport.fold, self._config.rooms)
        if not wanted and room not in self._left_unconfigured and len(self._left_unconfigured) < _MAX_LEFT:
            self._left_unconfigured.add(room)
            logger.warning("%s: put into %s, which is not configured; leaving it", self._session.name, room[:100])
            self._session.outgoing.queue_line(format_line("PART", room))

    def _handle_forced_part(self, line: IrcLine) -> None:
        """Handle a kick or a forced part: we never leave a configured room by ourselves."""
        room = line.param(0)
        logger.warning("%s: thrown out of %s by %s", self._session.name, room[:100], line.source.nick[:100])
        configured = {self._session.isupport.fold(name): name for name in self._config.rooms}.get(
            self._session.isupport.fold(room)
        )
        if self._config.rejoin_after_kick and configured is not None:
            self._joins.schedule_rejoin(configured, self._session.isupport, self._session.last_heard_s)
        elif configured is not None:
            self._state.barred_rooms.add(self._session.isupport.fold(room))

    def tick(self) -> None:
        """Do the periodic work: rejoin rooms, and recover the nick."""
        now_s = self._session.clock.monotonic()
        self._send_joins(self._joins.take_due(now_s), again=True)
        if now_s - self._polled_s >= _NICK_POLL_S:
            self._polled_s = now_s
            for raw in self._nick.recovery_lines(self._session.nick, self._session.isupport):
                self._session.outgoing.queue_line(raw)

    def recover_nick(self) -> None:
        """Let the server watch our nick, if it supports that."""
        if self._session.isupport.monitors:
            for raw in self._nick.recovery_lines(self._session.nick, self._session.isupport):
                self._session.outgoing.queue_line(raw)

    def close(self) -> None:
        """Fail all pending joins: the connection is lost."""
        for waiter in [waiter for waiters in self._waiters.values() for waiter in waiters if not waiter.done()]:
            waiter.set_exception(Unreachable("the connection is lost"))
        self._waiters.clear()
