"""Rooms and nick of one connection: joining, rejoining, room modes, and recovery of the configured
nick.

Synchronous, fed by `session`. `RoomModes` is pure.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from channels.base import Rejected, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.wire import JOIN_REFUSALS, IrcLine, Isupport, format_line, refusal_reason

if TYPE_CHECKING:
    from channels.irc.session import IrcSession

logger = logging.getLogger("reverie.irc")
_NICK_REFUSALS = frozenset({"432", "433", "435", "436", "437", "438", "447", "484", "734"})
"""435, 437, 438: banned in a room, reserved by services, too soon; 734: the list of watched nicks
is full."""


_ROOMS_PER_JOIN = 10
_BYTES_PER_JOIN = 400
"""A server cuts lines longer than 512 bytes, and half a room's name is another room's."""
_MAX_ENTERED = 1_000
"""Limit of the rooms that a server can say we are in."""
_CLOSED_NUMERICS: Final = frozenset({"471", "473", "474", "475"})
"""Full, invite-only, banned, needs a key: decided by the room's people, so retried rarely."""
_REMEDIES: Final = {
    "471": "it is full: ask its operators for a higher limit (+l)",
    "473": "have an operator there invite the bot, or put it on the list of who may come (+I)",
    "474": "ask its operators to lift the ban",
}
_RETRY_S, _CLOSED_RETRY_S = (60.0, 3600.0), (900.0, 6 * 3600.0)
"""Delay of the first attempt after a refusal, which doubles, and the longest one."""
_UNANSWERED_S = 300.0
REJOIN_S: Final = 30.0
"""Delay of the rejoin after a kick."""
_CLOSED_MODES: Final = frozenset("ikpsO")
"""Modes of rooms that not everybody may enter or find: invite-only, key, private, secret, operators
only."""


@dataclass(slots=True)
class _JoinRetry:
    room: str
    """In the operator's spelling."""
    at_s: float = 0.0
    """Infinite: an answer is pending, or we are in."""
    wait_s: float = 0.0


class RoomModes:
    """Rooms that anybody may enter and find, by their modes
    (https://modern.ircdocs.horse/#channel-modes). Folded.
    """

    def __init__(self, isupport: Isupport) -> None:
        self._isupport = isupport
        self._open: dict[str, bool] = {}
        """Rooms with unknown modes are left out."""
        self._to_query: dict[str, None] = {}
        """Rooms whose modes must be requested."""

    def is_open(self, room: str) -> bool | None:
        """Return whether anybody may enter a room. None: unknown."""
        return self._open.get(self._isupport.fold(room))

    def next_query(self) -> str:
        """Return a room whose modes must be requested. Empty: none."""
        return next(iter(self._to_query), "")

    def mark_queried(self, room: str) -> None:
        """Record that the modes were requested."""
        self._to_query.pop(room, None)

    def feed(self, line: IrcLine, me: str) -> None:
        """Process a line; `me` is our nick before it."""
        fold = self._isupport.fold
        room, mine = fold(line.param(0)), fold(line.source.nick) == fold(me)
        match line.command:
            case "JOIN" if mine and len(self._to_query) < _MAX_ENTERED:
                self._open.pop(room, None)
                self._to_query[room] = None
            case "PART" if mine:
                self._to_query.pop(room, None)
            case "KICK" if fold(line.param(1)) == fold(me):
                self._to_query.pop(room, None)
            case "324":  # RPL_CHANNELMODEIS
                self._set_open(fold(line.param(1)), is_open=not set(line.param(2)) & _CLOSED_MODES)
            case "MODE" if room in self._open and set(line.param(1)) & _CLOSED_MODES:
                # Set or unset: closed until the server has sent the current modes.
                self._set_open(room, is_open=False)
                self._to_query[room] = None
            case "473" | "475":  # invite-only, or needs a key
                self._set_open(fold(line.param(1)), is_open=False)

    def _set_open(self, room: str, *, is_open: bool) -> None:
        if room in self._open or len(self._open) < _MAX_ENTERED:
            self._open[room] = is_open


def _join_lines(rooms: Mapping[str, str]) -> list[str]:
    """Return the lines that join these rooms. `rooms`: room -> key; empty: it has none.

    Rooms with a key stand first, because keys belong to rooms by position (RFC 2812 section 3.2.1).
    """
    batches: list[list[str]] = []
    for room in sorted(rooms, key=lambda room: not rooms[room]):
        last = batches[-1] if batches else []
        size = len(",".join([*last, room, *(rooms[one] for one in [*last, room])]).encode())
        if last and len(last) < _ROOMS_PER_JOIN and size <= _BYTES_PER_JOIN:
            last.append(room)
        else:
            batches.append([room])
    keys = [",".join(filter(None, map(rooms.__getitem__, batch))) for batch in batches]
    return [
        format_line("JOIN", ",".join(batch), *filter(None, [key]))
        for batch, key in zip(batches, keys, strict=True)
    ]


_NICK_POLL_S = 60.0
_FORCED_NICK_S: Final = (60.0, 6 * 3600.0)
"""Time for which we keep a nick that was forced on us: the first time, which doubles, and the
longest."""
_FORCED_FORGOTTEN_S: Final = 3600.0
"""Time with our own nick after which the next one that is forced on us counts as the first."""
_MAX_LEFT = 100
"""Unwanted rooms that we leave at most; more are tolerated, to end the fight with the server."""


class IrcMembership:
    """Rooms and nick of one connection. Sets of rooms are folded."""

    def __init__(self, session: "IrcSession", config: IrcConfig) -> None:
        self._session, self._config, self._state = session, config, session.state
        self._isupport, self._fold = session.isupport, session.isupport.fold
        self._requested: set[str] = set()
        """Rooms whose JOIN is not answered yet."""
        self._entered: set[str] = set()
        self._retries: dict[str, _JoinRetry] = {}
        """Rooms that are tried again after a refusal, or without an answer."""
        self._refusals: dict[str, str] = {}
        """Room -> reason of the last refusal."""
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._left_unconfigured: set[str] = set()
        self._leaving: set[str] = set()
        """Rooms that we were told to leave."""
        self._is_opened = False
        self.initial_joins_done = asyncio.Event()
        """Every room of the start is entered or refused."""
        self._polled_s = session.last_heard_s
        self._is_nick_watched = False
        """The server reports when our nick is free."""
        self._is_nick_forced = False
        """We have a nick that was forced on us."""
        self._is_nick_polled = False
        """A nick that was reported as free was refused, or another was forced on us: it is
        requested periodically."""

    @property
    def configured_rooms(self) -> tuple[str, ...]:
        """Configured rooms, in the operator's spelling."""
        return self._config.rooms

    @property
    def entered_rooms(self) -> list[str]:
        """Folded rooms that we are in."""
        return sorted(self._entered)

    def is_in_room(self, room: str) -> bool:
        """Return whether we are in the room."""
        return self._fold(room) in self._entered

    def is_wanted(self, room: str) -> bool:
        """Return whether we are in the room, and mean to stay there."""
        return self._fold(room) in self._entered - self._left_unconfigured - self._leaving

    def is_ignored(self, room: str) -> bool:
        """Return whether a bouncer is in the room for its other clients."""
        return self._session.registration.is_bouncer and self._fold(room) in self._left_unconfigured

    def join_refusal(self, room: str) -> str:
        """Return why we are not in a room; empty: we are, or nothing is known."""
        folded = self._fold(room)
        if folded in self._entered:
            return ""
        if folded in self._state.barred_rooms:
            return "it was thrown out or left, and goes back when an admin has it join"
        refusal, retry = self._refusals.get(folded, ""), self._retries.get(folded)
        if not refusal or retry is None or math.isinf(retry.at_s):
            return refusal
        wait_s = max(0.0, retry.at_s - self._session.clock.monotonic())
        return f"{refusal}; next attempt in {wait_s / 60:.0f} min"

    def join_configured(self) -> list[str]:
        """Request the configured rooms, except barred ones; return the requested rooms."""
        rooms = [
            room for room in self._config.rooms if self._fold(room) not in self._state.barred_rooms
        ]
        self._send_joins(rooms, again=True)
        self._is_opened = True
        if not self._requested:
            self.initial_joins_done.set()
        return rooms

    def apply_config(self, config: IrcConfig) -> None:
        """Leave rooms that are no longer configured; join those that are new, or that have a new
        key.
        """
        before, rooms = (
            {self._fold(room): room for room in source.rooms} for source in (self._config, config)
        )
        known = self._config.keys
        rekeyed = {self._fold(room) for room, key in config.keys.items() if key != known.get(room)}
        self._config = config
        for folded in [folded for folded in before if folded not in rooms]:
            self._retries.pop(folded, None)
            if folded in self._entered | self._requested:
                self._entered.discard(folded)
                self._requested.discard(folded)
                self._leaving.add(folded)
                self._session.outgoing.queue_line(format_line("PART", before[folded]))
        new = [folded for folded in rooms if folded not in before]
        self._state.barred_rooms.difference_update(new)
        self._left_unconfigured.difference_update(new)
        again = [
            folded
            for folded in rooms
            if folded in rekeyed - self._state.barred_rooms and folded not in new
        ]
        self._send_joins([rooms[folded] for folded in [*new, *again]], again=True)

    def _send_joins(self, rooms: Iterable[str], *, again: bool) -> None:
        """Request rooms. `again`: a refusal or a missing answer is tried again later.

        Rooms that we are in (a bouncer kept us there) are left out: servers do not answer such a
        JOIN.
        """
        wanted = {self._fold(room): room for room in rooms if self._fold(room) not in self._entered}
        keys = {self._fold(room): key.get_secret_value() for room, key in self._config.keys.items()}
        lines = _join_lines({room: keys.get(folded, "") for folded, room in wanted.items()})
        self._requested |= wanted.keys()
        if again:
            for folded, room in wanted.items():
                retry = self._retries.setdefault(folded, _JoinRetry(room))
                retry.at_s = self._session.clock.monotonic() + _UNANSWERED_S
        for line in lines:
            self._session.outgoing.queue_line(line)

    def join(self, room: str) -> asyncio.Future[None]:
        """Request a room on command; the future is done once we are in. It raises SendError.

        Raises ValueError, and requests nothing, if `room` cannot be written as a parameter.
        """
        folded = self._fold(room)
        entering: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._state.barred_rooms.discard(folded)
        self._left_unconfigured.discard(folded)
        if folded in self._entered:
            entering.set_result(None)
            return entering
        self._send_joins([room], again=False)
        self._waiters.setdefault(folded, []).append(entering)
        return entering

    def begin_leave(self, room: str) -> None:
        """Mark a room that we are about to leave on command, so that it is not rejoined.

        Call `end_leave` afterwards.
        """
        folded = self._fold(room)
        self._state.barred_rooms.add(folded)
        self._leaving.add(folded)
        self._retries.pop(folded, None)

    def end_leave(self, room: str) -> None:
        """Record that the PART is answered, or will not be: from now on a removal counts as a
        kick.
        """
        self._leaving.discard(self._fold(room))

    def feed(self, line: IrcLine) -> None:
        """Process a line, after which our nick is the session's."""
        fold, room = self._fold, self._fold(line.param(0))
        me = fold(self._session.nick)
        mine = fold(line.source.nick) == me
        if line.command == "MODE" or (line.command == "JOIN" and mine):
            self._state.rights.notify(line.param(0).lower())
        if line.command == "JOIN" and mine:
            if room not in self._leaving:
                self._leave_unconfigured(room)
            if len(self._entered) < _MAX_ENTERED:
                self._entered.add(room)
                self._refusals.pop(room, None)
            if retry := self._retries.get(room):
                retry.at_s, retry.wait_s = math.inf, 0.0
            self._settle_joins({room})
        elif (line.command == "PART" and mine) or (
            line.command == "KICK" and fold(line.param(1)) == me
        ):
            self._entered.discard(room)
            if room not in self._left_unconfigured | self._leaving:
                self._handle_forced_part(line)
            self._leaving.discard(room)
        elif line.command in JOIN_REFUSALS:
            self._handle_refusal(line)
        if self._is_opened and not self._requested:
            self.initial_joins_done.set()
        self._follow_nick(line, is_ours=me == fold(self._config.nick))

    def _settle_joins(self, rooms: set[str], refusal: str = "") -> list[str]:
        """End the requests for these rooms; return those that were requested."""
        settled = sorted(self._requested & rooms)
        self._requested.difference_update(settled)
        for waiter in [
            waiter
            for room in settled
            for waiter in self._waiters.pop(room, [])
            if not waiter.done()
        ]:
            if refusal:
                waiter.set_exception(Rejected(refusal))
            else:
                waiter.set_result(None)
        return settled

    def _handle_refusal(self, line: IrcLine) -> None:
        refusal = refusal_reason(line)
        first_s, most_s = _CLOSED_RETRY_S if line.command in _CLOSED_NUMERICS else _RETRY_S
        for room in self._settle_joins({self._fold(param) for param in line.params[1:]}, refusal):
            remedy = (
                self._bad_key_remedy(room)
                if line.command == "475"
                else _REMEDIES.get(line.command, "")
            )
            self._refusals[room] = f"{refusal}; {remedy}" if remedy else refusal
            logger.error("%s: cannot join %s: %s", self._session.name, room, self._refusals[room])
            if retry := self._retries.get(room):
                retry.wait_s = min(most_s, max(first_s, retry.wait_s * 2))
                retry.at_s = self._session.last_heard_s + retry.wait_s

    def _bad_key_remedy(self, room: str) -> str:
        """Return what an operator does about a room that wants a key, or another one."""
        name = next((name for name in self._config.rooms if self._fold(name) == room), room)
        has_key = room in map(self._fold, self._config.keys)
        return (
            f"{'another key is needed' if has_key else 'it needs a key'}: rooms: [{{name: "
            f'"{name}", key: "..."}}]'
        )

    def _leave_unconfigured(self, room: str) -> None:
        """Leave a room that the server put us into (470, or any JOIN of its own) against the
        configuration.

        A bouncer is there for its other clients, too, so behind one such a room is only ignored.
        """
        wanted = room in self._requested or room in map(self._fold, self._config.rooms)
        if (
            not wanted
            and room not in self._left_unconfigured
            and len(self._left_unconfigured) < _MAX_LEFT
        ):
            self._left_unconfigured.add(room)
            if self._session.registration.is_bouncer:
                logger.info(
                    "%s: the bouncer is in %s, which is not configured; ignoring it",
                    self._session.name,
                    room,
                )
                return
            logger.warning(
                "%s: put into %s, which is not configured; leaving it",
                self._session.name,
                room[:100],
            )
            self._session.outgoing.queue_line(format_line("PART", room))

    def _handle_forced_part(self, line: IrcLine) -> None:
        """Handle a kick or a forced part: we never leave a configured room by ourselves."""
        room = self._fold(line.param(0))
        logger.warning(
            "%s: thrown out of %s by %s",
            self._session.name,
            line.param(0)[:100],
            line.source.nick[:100],
        )
        configured = next((name for name in self._config.rooms if self._fold(name) == room), None)
        if configured is not None and self._config.rejoin_after_kick:
            self._retries.setdefault(room, _JoinRetry(configured)).at_s = (
                self._session.last_heard_s + REJOIN_S
            )
        elif configured is not None:
            self._state.barred_rooms.add(room)

    def tick(self) -> None:
        """Do the periodic work: rejoin rooms, and recover the nick."""
        now_s = self._session.clock.monotonic()
        due = [retry for retry in self._retries.values() if retry.at_s <= now_s]
        for retry in due:
            retry.at_s = math.inf
        self._send_joins([retry.room for retry in due], again=True)
        if now_s - self._polled_s >= _NICK_POLL_S:
            self._polled_s = now_s
            self.recover_nick()

    def recover_nick(self) -> None:
        """Request the configured nick, if we have another one, or let the server watch it.

        Where the server watches nicks (https://ircv3.net/specs/extensions/monitor) it reports when
        ours is free.
        """
        if self._fold(self._session.nick) == self._fold(self._config.nick):
            return
        if not self._isupport.monitors or self._is_nick_polled:
            self._request_nick()
        elif not self._is_nick_watched:
            self._is_nick_watched = True
            self._session.outgoing.queue_line(format_line("MONITOR", "+", self._config.nick))

    def _request_nick(self) -> None:
        if self._session.clock.monotonic() >= self._state.nick_kept_until_s:
            self._session.outgoing.queue_line(format_line("NICK", self._config.nick))

    def nick_problem(self) -> str:
        """Return why we have another nick than the configured one, if it was forced on us; else an
        empty text.
        """
        is_ours = self._fold(self._session.nick) == self._fold(self._config.nick)
        if is_ours or not self._is_nick_forced:
            return ""
        return (
            f"the network or its services changed our nick from {self._config.nick} to "
            f"{self._session.nick}"
        )

    def _keep_forced_nick(self) -> None:
        """Keep a nick that an operator (SANICK) or services have given us for a while, longer each
        time.

        Undone at once, they would do it again at once. https://docs.inspircd.org/3/modules/sanick/
        """
        now_s, state = self._session.last_heard_s, self._state
        is_again = state.forced_nick_s and now_s - state.nick_kept_until_s < _FORCED_FORGOTTEN_S
        state.forced_nick_s = (
            min(2 * state.forced_nick_s, _FORCED_NICK_S[1]) if is_again else _FORCED_NICK_S[0]
        )
        state.nick_kept_until_s = now_s + state.forced_nick_s
        self._polled_s = state.nick_kept_until_s - _NICK_POLL_S
        self._is_nick_forced = self._is_nick_polled = True
        problem, wait_s = self.nick_problem(), state.forced_nick_s
        logger.warning("%s: %s; it is taken back in %.0f s", self._session.name, problem, wait_s)

    def _follow_nick(self, line: IrcLine, *, is_ours: bool) -> None:
        """Process a line that may be about our nick; `is_ours`: after the line we have it."""
        fold, nick = self._fold, self._fold(self._config.nick)
        if is_ours:
            if self._is_nick_watched:
                self._session.outgoing.queue_line(format_line("MONITOR", "-", self._config.nick))
            self._is_nick_watched = self._is_nick_polled = self._is_nick_forced = False
        elif line.command == "NICK" and fold(line.param(0)) == fold(self._session.nick):
            self._keep_forced_nick()  # we ask for no other nick than ours
        elif line.command == "731":  # RPL_MONOFFLINE
            if nick in {fold(name.partition("!")[0]) for name in line.param(-1).split(",")}:
                self._request_nick()
        elif line.command in {"NICK", "QUIT"} and fold(line.source.nick) == nick:
            self._request_nick()
        elif line.command in _NICK_REFUSALS and nick in map(fold, line.params):
            self._is_nick_polled = True

    def close(self) -> None:
        """Fail all pending joins: the connection is lost."""
        for waiter in [
            waiter for waiters in self._waiters.values() for waiter in waiters if not waiter.done()
        ]:
            waiter.set_exception(Unreachable("the connection is lost"))
        self._waiters.clear()
