"""Rooms and nick of one connection: joining, rejoining, room modes, and recovery of the configured
nick.

Synchronous, fed by `session`. `RoomModes` is pure.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from channels.base import Rejected, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.wire import JOIN_REFUSALS, IrcLine, Isupport, format_line, refusal_reason

if TYPE_CHECKING:
    from channels.irc.session import IrcSession

logger = logging.getLogger("reverie.irc")
_ROOMS_PER_JOIN = 10
_BYTES_PER_JOIN = 400
"""A server cuts lines longer than 512 bytes, and half a room's name is another room's."""
_MAX_ROOMS = 1_000
"""Limit of the rooms that a server can say we are in."""
_REMEDIES: Final = {
    "471": "it is full: ask its operators for a higher limit (+l)",
    "473": "have an operator there invite the bot, or put it on the list of who may come (+I)",
    "474": "ask its operators to lift the ban",
}
_RETRY_S: Final = 300.0
"""Delay between two attempts to enter the rooms that we are not in."""
_CLOSED_MODES: Final = frozenset("ikpsO")
"""Modes of rooms that not everybody may enter or find: invite-only, key, private, secret, operators
only."""


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
            case "JOIN" if mine and len(self._to_query) < _MAX_ROOMS:
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
        if room in self._open or len(self._open) < _MAX_ROOMS:
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
_MAX_FORCED_NICK_S: Final = 6 * 3600.0
"""Longest time for which we keep a nick that was forced on us. The first time it is
`_NICK_POLL_S`, and each time twice as long."""
_MAX_LEFT = 100
"""Unwanted rooms that we leave at most; more are tolerated, to end the fight with the server."""


class IrcMembership:
    """Rooms and nick of one connection. Sets of rooms are folded."""

    def __init__(self, session: "IrcSession", config: IrcConfig) -> None:
        self._session, self._config, self._state = session, config, session.state
        self._isupport, self._fold = session.isupport, session.isupport.fold
        self._requested: set[str] = set()
        """Rooms whose JOIN is not answered yet."""
        self._refusals: dict[str, str] = {}
        """Room -> reason of the last refusal."""
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._left_unconfigured: set[str] = set()
        self._leaving: set[str] = set()
        """Rooms that we were told to leave."""
        self._is_opened = False
        self.initial_joins_done = asyncio.Event()
        """Every room of the start is entered or refused."""
        self._joined_s = self._asked_nick_s = session.last_heard_s
        """Times of the last attempt to enter the rooms that we are not in, and to get our nick."""
        self._is_nick_forced = False
        """We have a nick that was forced on us."""
        self._forced_nick_s = _NICK_POLL_S
        """Time for which we keep the next one."""

    @property
    def configured_rooms(self) -> tuple[str, ...]:
        """Configured rooms, in the operator's spelling."""
        return self._config.rooms

    def is_in_room(self, room: str) -> bool:
        """Return whether we are in the room."""
        return self._session.users.nicks_in(room) is not None

    def is_ignored(self, room: str) -> bool:
        """Return whether a bouncer is in the room for its other clients."""
        return self._session.registration.is_bouncer and self._fold(room) in self._left_unconfigured

    def join_refusal(self, room: str) -> str:
        """Return why we are not in a room; empty: we are, or nothing is known."""
        folded = self._fold(room)
        if self.is_in_room(room):
            return ""
        if folded in self._state.barred_rooms:
            return "it was thrown out or left, and goes back when an admin has it join"
        return self._refusals.get(folded, "")

    def join_configured(self) -> None:
        """Request the configured rooms at the start."""
        self.join_missing()
        self._is_opened = True
        if not self._requested:
            self.initial_joins_done.set()

    def join_missing(self) -> None:
        """Request the configured rooms that we are not in, except barred ones."""
        barred = self._state.barred_rooms
        self._send_joins([room for room in self._config.rooms if self._fold(room) not in barred])
        self._joined_s = self._session.clock.monotonic()

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
            if folded in self._requested or self.is_in_room(folded):
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
        self._send_joins([rooms[folded] for folded in [*new, *again]])

    def _send_joins(self, rooms: Iterable[str]) -> None:
        """Request rooms.

        Rooms that we are in (a bouncer kept us there) are left out: servers do not answer such a
        JOIN.
        """
        wanted = {
            self._fold(room): room
            for room in rooms
            if self._fold(room) in self._leaving or not self.is_in_room(room)
        }
        keys = {self._fold(room): key.get_secret_value() for room, key in self._config.keys.items()}
        lines = _join_lines({room: keys.get(folded, "") for folded, room in wanted.items()})
        self._requested |= wanted.keys()
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
        if self.is_in_room(room):
            entering.set_result(None)
            return entering
        self._send_joins([room])
        self._waiters.setdefault(folded, []).append(entering)
        return entering

    def begin_leave(self, room: str) -> None:
        """Mark a room that we are about to leave on command, so that it is not rejoined.

        Call `end_leave` afterwards.
        """
        folded = self._fold(room)
        self._state.barred_rooms.add(folded)
        self._leaving.add(folded)

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
            self._refusals.pop(room, None)
            self._settle_joins({room})
        elif (line.command == "PART" and mine) or (
            line.command == "KICK" and fold(line.param(1)) == me
        ):
            if room not in self._left_unconfigured | self._leaving:
                # We never leave a room by ourselves: it was a kick, or a forced part.
                who, where = line.source.nick[:100], line.param(0)[:100]
                logger.warning("%s: thrown out of %s by %s", self._session.name, where, who)
                self._state.barred_rooms.add(room)
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
        for room in self._settle_joins({self._fold(param) for param in line.params[1:]}, refusal):
            remedy = (
                self._bad_key_remedy(room)
                if line.command == "475"
                else _REMEDIES.get(line.command, "")
            )
            self._refusals[room] = f"{refusal}; {remedy}" if remedy else refusal
            logger.error("%s: cannot join %s: %s", self._session.name, room, self._refusals[room])

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

    def tick(self) -> None:
        """Do the periodic work: rejoin rooms, and recover the nick."""
        now_s = self._session.clock.monotonic()
        if now_s - self._joined_s >= _RETRY_S:
            self.join_missing()
        if now_s - self._asked_nick_s >= _NICK_POLL_S:
            self._request_nick()

    def _request_nick(self) -> None:
        self._asked_nick_s = self._session.clock.monotonic()
        if self._fold(self._session.nick) != self._fold(self._config.nick):
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

    def _follow_nick(self, line: IrcLine, *, is_ours: bool) -> None:
        """Process a line that may be about our nick; `is_ours`: after the line we have it.

        A nick that an operator (SANICK) or services have given us is kept for a while: undone at
        once, they would do it again at once. https://docs.inspircd.org/3/modules/sanick/
        """
        fold = self._fold
        if is_ours:
            self._is_nick_forced = False
        elif line.command == "NICK" and fold(line.param(0)) == fold(self._session.nick):
            self._is_nick_forced = True  # we ask for no other nick than ours
            self._asked_nick_s = self._session.last_heard_s + self._forced_nick_s - _NICK_POLL_S
            self._forced_nick_s = min(2 * self._forced_nick_s, _MAX_FORCED_NICK_S)
            logger.warning("%s: %s", self._session.name, self.nick_problem())
        elif (
            line.command in {"NICK", "QUIT"}
            and fold(line.source.nick) == fold(self._config.nick)
            and not self._is_nick_forced
        ):
            self._request_nick()

    def close(self) -> None:
        """Fail all pending joins: the connection is lost."""
        for waiter in [
            waiter for waiters in self._waiters.values() for waiter in waiters if not waiter.done()
        ]:
            waiter.set_exception(Unreachable("the connection is lost"))
        self._waiters.clear()
