"""Being somewhere, as somebody: entering rooms, coming back to them, and our nick. Sync; `session` feeds it."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from channels.base import Rejected, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.isupport import Isupport
from channels.irc.memory import Memory
from channels.irc.nick import Nick
from channels.irc.rooms import Rooms
from channels.irc.wire import Line, line
from gateway.events import ChannelName

_LOG = logging.getLogger("reverie.irc")
_POLL_S = 60.0
_MOST_LEFT = 100
"""Rooms that we were forced into and have left: a server that goes on gets its way."""


class Presence:
    """Of one connection."""

    def __init__(
        self, name: ChannelName, config: IrcConfig, memory: Memory, say: Callable[[str], None], now_s: float
    ) -> None:
        self._name, self._config, self._memory, self._say = name, config, memory, say
        self._rooms, self._nick = Rooms(), Nick(config.nick)
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._polled_s, self._opened = now_s, False
        self._left: set[str] = set()
        self._leaving: set[str] = set()
        """Folded; we have been told to go."""
        self.joined = asyncio.Event()
        """Every room of the start is entered or refused."""

    @property
    def configured(self) -> tuple[str, ...]:
        """In the operator's spelling."""
        return self._config.rooms

    @property
    def entered(self) -> list[str]:
        """Folded rooms that we are in."""
        return sorted(self._rooms.entered)

    def refusal(self, room: str, isupport: Isupport, now_s: float) -> str:
        """Why we are not in a room; empty: we are, or nothing is known."""
        folded = isupport.fold(room)
        if folded in self._rooms.entered:
            return ""
        if folded in self._memory.barred:
            return "it was thrown out or left, and goes back when an admin has it join"
        refusal, at_s = self._rooms.refusals.get(folded, ""), self._rooms.retry_at_s(folded)
        again = f"; next attempt in {max(0.0, at_s - now_s) / 60:.0f} min" if refusal and at_s is not None else ""
        return f"{refusal}{again}"

    def open(self, isupport: Isupport, now_s: float) -> list[str]:
        """Ask to be let into the configured rooms, except those that we were thrown out of or left; which these are."""
        rooms = [room for room in self._config.rooms if isupport.fold(room) not in self._memory.barred]
        self._ask(rooms, isupport, now_s, again=True)
        self._opened = True
        if not self._rooms.asked:
            self.joined.set()
        return rooms

    def adapt(self, config: IrcConfig, isupport: Isupport, now_s: float) -> None:
        """Leave the rooms that are no longer configured, and ask to be let into those that are now."""
        before, rooms = ({isupport.fold(room): room for room in one.rooms} for one in (self._config, config))
        self._config = config
        for folded, room in before.items():
            if folded not in rooms and self._rooms.leave(folded):
                self._leaving.add(folded)
                self._say(line("PART", room))
        new = [folded for folded in rooms if folded not in before]
        self._memory.barred.difference_update(new)
        self._left.difference_update(new)
        self._ask([rooms[folded] for folded in new], isupport, now_s, again=True)

    def _ask(self, rooms: Iterable[str], isupport: Isupport, now_s: float, *, again: bool) -> None:
        for raw in self._rooms.ask(rooms, isupport, now_s, again=again):
            self._say(raw)

    def enter(self, room: str, isupport: Isupport, now_s: float) -> asyncio.Future[None]:
        """Ask to be let in, because somebody who may says so; done once we are in. Raises SendError by it."""
        folded = isupport.fold(room)
        entering: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._memory.barred.discard(folded)
        if folded in self._rooms.entered:
            entering.set_result(None)
            return entering
        self._waiters.setdefault(folded, []).append(entering)
        self._ask([room], isupport, now_s, again=False)
        return entering

    def leaving(self, room: str, isupport: Isupport) -> None:
        """We are about to go, because somebody who may says so, and do not come back by ourselves. Call `left` then."""
        folded = isupport.fold(room)
        self._memory.barred.add(folded)
        self._leaving.add(folded)
        self._rooms.give_up(folded)

    def left(self, room: str, isupport: Isupport) -> None:
        """The server has answered, or will not: who makes us go from now on throws us out."""
        self._leaving.discard(isupport.fold(room))

    def feed(self, said: Line, me: str, isupport: Isupport, now_s: float) -> None:
        """Take in a line; `me` is our nick after it."""
        mine, room = isupport.fold(said.source.nick) == isupport.fold(me), isupport.fold(said.param(0))
        if said.command == "JOIN" and mine and room not in self._leaving:
            self._leave_unless_wanted(room, isupport)
        for outcome in self._rooms.feed(said, me, isupport, now_s):
            for waiter in self._waiters.pop(outcome.room, []):
                if not waiter.done() and outcome.refusal:
                    waiter.set_exception(Rejected(outcome.refusal))
                elif not waiter.done():
                    waiter.set_result(None)
            if outcome.refusal:
                _LOG.error("%s: cannot join %s: %s", self._name, outcome.room, outcome.refusal)
        if self._opened and not self._rooms.asked:
            self.joined.set()
        kicked = said.command == "KICK" and isupport.fold(said.param(1)) == isupport.fold(me)
        if kicked or (said.command == "PART" and mine):
            self._out(said, room, isupport, now_s)
        for raw in self._nick.feed(said, me, isupport):
            self._say(raw)

    def _out(self, said: Line, room: str, isupport: Isupport, now_s: float) -> None:
        if room not in self._left | self._leaving:
            self._thrown_out(said, isupport, now_s)
        self._leaving.discard(room)

    def _leave_unless_wanted(self, room: str, isupport: Isupport) -> None:
        """Servers can forward us (470) or put us anywhere; we are only where the operator wants us."""
        wanted = room in self._rooms.asked or room in map(isupport.fold, self._config.rooms)
        if not wanted and room not in self._left and len(self._left) < _MOST_LEFT:
            self._left.add(room)
            _LOG.warning("%s: put into %s, which is not configured; leaving it", self._name, room[:100])
            self._say(line("PART", room))

    def _thrown_out(self, said: Line, isupport: Isupport, now_s: float) -> None:
        """Kicked, or made to part: we never leave a room of ours by ourselves."""
        room = said.param(0)
        _LOG.warning("%s: thrown out of %s by %s", self._name, room[:100], said.source.nick[:100])
        spelt = {isupport.fold(known): known for known in self._config.rooms}.get(isupport.fold(room))
        if self._config.rejoin_after_kick and spelt is not None:
            self._rooms.kicked(spelt, isupport, now_s)
        elif spelt is not None:
            self._memory.barred.add(isupport.fold(room))

    def keep_up(self, me: str, isupport: Isupport, now_s: float) -> None:
        """Now and then: try rooms again that we were kept out of, and ask for our nick."""
        self._ask(self._rooms.due(now_s), isupport, now_s, again=True)
        if now_s - self._polled_s >= _POLL_S:
            self._polled_s = now_s
            for raw in self._nick.regain(me, isupport):
                self._say(raw)

    def regain(self, me: str, isupport: Isupport) -> None:
        """Have the server watch for our nick, if it does that."""
        if isupport.monitors:
            for raw in self._nick.regain(me, isupport):
                self._say(raw)

    def close(self) -> None:
        """Nobody will be let in any more."""
        for waiter in [waiter for waiters in self._waiters.values() for waiter in waiters if not waiter.done()]:
            waiter.set_exception(Unreachable("the connection is lost"))
        self._waiters.clear()
