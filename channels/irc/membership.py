"""Rooms and nick of one connection: joining, rejoining, and recovery of the configured nick."""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from channels.aio import RoomSignals
from channels.base import Rejected, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.history import LastingState
from channels.irc.outgoing import IrcOutgoing
from channels.irc.state import Changes, IrcState
from channels.irc.wire import IrcLine, format_line, refusal_reason
from gateway.core.clock import Clock
from gateway.core.events import ChannelName

logger = logging.getLogger("reverie.irc")
_ROOMS_PER_JOIN = 10
_BYTES_PER_JOIN = 400
"""A server cuts lines longer than 512 bytes, and half a room's name is another room's."""
_REMEDIES: Final = {
    "470": "its operators send the bot elsewhere: ask them, or configure that room",
    "471": "it is full: ask its operators for a higher limit (+l)",
    "473": "have an operator there invite the bot, or put it on the list of who may come (+I)",
    "474": "ask its operators to lift the ban",
}
_RETRY_S: Final = 300.0
"""Delay between two attempts to enter the rooms that we are not in."""


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
    """Rooms and nick of one connection; follows the changes of its state. Sets of rooms are
    folded.
    """

    def __init__(
        self,
        name: ChannelName,
        config: IrcConfig,
        *,
        state: IrcState,
        lasting: LastingState,
        outgoing: IrcOutgoing,
        clock: Clock,
    ) -> None:
        self._name, self.config, self._state, self._lasting = name, config, state, lasting
        self._outgoing, self._clock, self._fold = outgoing, clock, state.isupport.fold
        self._requested: set[str] = set()
        """Rooms whose JOIN is not answered yet."""
        self._refusals: dict[str, str] = {}
        self._answers = RoomSignals()
        """Notified with a room of `_requested` when it leaves that."""
        self.unconfigured_rooms: set[str] = set()
        """Rooms that we were put into against the configuration, and have left. A bouncer is there
        for its other clients, too, so behind one they are only ignored."""
        self._leaving: set[str] = set()
        self._is_lost = False
        self._joined_s = self._asked_nick_s = clock.monotonic()
        """Times of the last attempt to enter the rooms that we are not in, and to get our nick."""
        self._is_nick_forced = False
        self._forced_nick_s = _NICK_POLL_S

    def is_in_room(self, room: str) -> bool:
        return self._fold(room) in self._state.rooms

    def join_refusal(self, room: str) -> str:
        """Return why we are not in a room; empty: we are, or left it on command, or nothing is
        known.
        """
        folded = self._fold(room)
        known = self._lasting.barred_rooms.get(folded, self._refusals.get(folded, ""))
        return "" if self.is_in_room(room) else known

    async def join_configured(self) -> None:
        """Request the configured rooms; return once each is entered or refused."""
        self.join_missing()
        while self._requested:
            await self._answers.wait(next(iter(self._requested)))

    def join_missing(self) -> None:
        """Request the configured rooms that we are not in, except barred ones."""
        barred = self._lasting.barred_rooms
        self._send_joins([room for room in self.config.rooms if self._fold(room) not in barred])
        self._joined_s = self._clock.monotonic()

    def accept_invitation(self, room: str) -> None:
        """Request this room if it is configured (it may have refused us) and not barred. One
        request at a time: people may invite us as often as they like.
        """
        folded = self._fold(room)
        if folded not in self._requested | self._lasting.barred_rooms.keys():
            self._send_joins([one for one in self.config.rooms if self._fold(one) == folded])

    def apply_config(self, config: IrcConfig) -> None:
        """Leave rooms that are no longer configured; join those that are new, or that have a new
        key.
        """
        before = {self._fold(room): room for room in self.config.rooms}
        rooms = {self._fold(room): room for room in config.rooms}
        known, barred = self.config.keys, self._lasting.barred_rooms
        rekeyed = {self._fold(room) for room, key in config.keys.items() if key != known.get(room)}
        self.config = config
        for folded in before.keys() - rooms.keys():
            if self._settle_joins({folded}) or self.is_in_room(folded):
                self._leaving.add(folded)
                self._outgoing.queue_lines([format_line("PART", before[folded])])
        new = rooms.keys() - before.keys()
        for room in new:
            barred.pop(room, None)
        self.unconfigured_rooms -= new
        wanted = new | (rekeyed - barred.keys())
        self._send_joins(room for folded, room in rooms.items() if folded in wanted)

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
        keys = {self._fold(room): key.get_secret_value() for room, key in self.config.keys.items()}
        self._outgoing.queue_lines(
            _join_lines({room: keys.get(folded, "") for folded, room in wanted.items()})
        )
        self._requested |= wanted.keys()

    async def join(self, room: str) -> None:
        """Request a room on command; return once we are in. Raises SendError."""
        folded = self._fold(room)
        self._lasting.barred_rooms.pop(folded, None)
        self.unconfigured_rooms.discard(folded)
        if self.is_in_room(room):
            return
        self._send_joins([room])
        await self._answers.wait(folded)
        if self._is_lost:
            raise Unreachable("the connection is lost")
        if not self.is_in_room(room):
            raise Rejected(self.join_refusal(room))

    def begin_leave(self, room: str) -> None:
        """Mark a room that we are about to leave on command, so that it is not rejoined.

        Call `end_leave` afterwards.
        """
        folded = self._fold(room)
        self._lasting.barred_rooms[folded] = ""
        self._leaving.add(folded)

    def end_leave(self, room: str) -> None:
        """Record that the PART is answered, or will not be: from now on a removal counts as a
        kick.
        """
        self._leaving.discard(self._fold(room))

    def follow(self, told: Changes) -> None:
        line, left = told.line, told.left
        if line.command == "MODE" or told.entered:
            self._lasting.rights.notify(line.param(0).lower())
        if told.entered:
            if told.entered not in self._leaving:
                self._leave_unconfigured(told.entered)
            self._refusals.pop(told.entered, None)
            self._settle_joins({told.entered})
        elif left:
            if left not in self.unconfigured_rooms | self._leaving:
                # We never leave a room by ourselves: it was a kick, or a forced part.
                who, where = line.source.nick[:100], line.param(0)[:100]
                logger.warning("%s: thrown out of %s by %s", self._name, where, who)
                why = "the bot was thrown out, and goes back when an admin has it join"
                self._lasting.barred_rooms[left] = why
            self._leaving.discard(left)
        elif line.command in {"NICK", "QUIT"}:
            self._follow_nick(told)

    def _settle_joins(self, rooms: set[str]) -> set[str]:
        """End the requests for these rooms; return those that were requested."""
        settled = self._requested & rooms
        self._requested -= settled
        for room in settled:
            self._answers.notify(room)
        return settled

    def handle_refusal(self, line: IrcLine) -> None:
        refusal = refusal_reason(line)
        for room in self._settle_joins(set(map(self._fold, line.params[1:]))):
            remedy = (
                self._bad_key_remedy(room)
                if line.command == "475"
                else _REMEDIES.get(line.command, "")
            )
            self._refusals[room] = f"{refusal}; {remedy}" if remedy else refusal
            logger.error("%s: cannot join %s: %s", self._name, room, self._refusals[room])

    def _bad_key_remedy(self, room: str) -> str:
        name = next((name for name in self.config.rooms if self._fold(name) == room), room)
        has_key = room in map(self._fold, self.config.keys)
        return (
            f"{'another key is needed' if has_key else 'it needs a key'}: rooms: [{{name: "
            f'"{name}", key: "..."}}]'
        )

    def _leave_unconfigured(self, room: str) -> None:
        """Leave a room that the server put us into (470, or any JOIN of its own) against the
        configuration.
        """
        wanted = room in self._requested or room in map(self._fold, self.config.rooms)
        unwanted = self.unconfigured_rooms
        if wanted or room in unwanted or len(unwanted) >= _MAX_LEFT:
            return
        unwanted.add(room)
        ignored = self._state.is_bouncer
        what = "which is not configured; " + ("ignoring it" if ignored else "leaving it")
        logger.info("%s: put into %s, %s", self._name, room[:100], what)
        if not ignored:
            self._outgoing.queue_lines([format_line("PART", room)])

    def tick(self) -> None:
        """Do the periodic work: rejoin rooms, and recover the nick."""
        now_s = self._clock.monotonic()
        if now_s - self._joined_s >= _RETRY_S:
            self.join_missing()
        if now_s - self._asked_nick_s >= _NICK_POLL_S:
            self._request_nick()

    def _request_nick(self) -> None:
        self._asked_nick_s = self._clock.monotonic()
        if self._state.me != self._fold(self.config.nick):
            self._outgoing.queue_lines([format_line("NICK", self.config.nick)])

    def nick_problem(self) -> str:
        """Return why we have another nick than the configured one, if it was forced on us; else an
        empty text.
        """
        forced = (
            f"the network or its services changed our nick from {self.config.nick} to "
            f"{self._state.nick}"
        )
        return forced if self._is_nick_forced else ""

    def _follow_nick(self, told: Changes) -> None:
        """Process a line that may be about our nick.

        A nick that an operator (SANICK) or services have given us is kept for a while: undone at
        once, they would do it again at once. https://docs.inspircd.org/3/modules/sanick/
        """
        wanted = self._fold(self.config.nick)
        if told.is_mine and told.line.command == "NICK":
            logger.info("%s: we are %s now", self._name, self._state.nick[:100])
            self._is_nick_forced = self._state.me != wanted  # we ask for no other nick than ours
            if self._is_nick_forced:
                now_s = self._clock.monotonic()
                self._asked_nick_s = now_s + self._forced_nick_s - _NICK_POLL_S
                self._forced_nick_s = min(2 * self._forced_nick_s, _MAX_FORCED_NICK_S)
                logger.warning("%s: %s", self._name, self.nick_problem())
        elif told.nick == wanted and not self._is_nick_forced:
            self._request_nick()

    def close(self) -> None:
        """Fail all pending joins: the connection is lost."""
        self._is_lost = True
        self._settle_joins(self._requested)
