"""Being somewhere, as somebody: entering rooms, coming back to them, and our nick. Sync; `session` feeds it."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from channels.base import Rejected, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.isupport import Isupport
from channels.irc.memory import IrcState
from channels.irc.nick import NickRecovery
from channels.irc.rooms import JoinTracker
from channels.irc.wire import IrcLine, format_line
from gateway.events import ChannelName

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
