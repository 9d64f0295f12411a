"""Runs the channels, each in a task of its own, begins one anew where somebody wants that, and lets them come and go.

One that its platform refuses, or that breaks, is tried again by itself; the others go on, and owners are told.

What is begun anew is told down before it is cut, so that nothing is handed to it meanwhile, and only once it has said
goodbye does it run again: with the same object, which knows what it has told already, or with another one in its place.
"""

import asyncio
import logging
import random as _random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from channels.backoff import Backoff
from channels.base import Channel, Denied, Emit
from channels.tasks import end, within
from gateway.clock import Clock
from gateway.events import ChannelName, EventId, Link, Notification
from gateway.ids import new_id
from gateway.ops.stats import Stats
from gateway.store import StoreError

logger = logging.getLogger("reverie.runner")

PAUSE_S = 2.0
"""Real seconds in which a channel may still say what waits for it, among that the answer to whoever restarts it."""
NOT_THERE = "it is not there just now; look at how it is configured"
GOODBYE_S = 3.0
"""Real seconds after which a goodbye that should take one is broken off, so that nothing waits for it for ever."""
REFUSED_S = (60.0, 600.0)
"""Until a refused channel is tried again: the first time, and from then on."""
PATIENCE_S = 30.0
"""How long it may take to be connected again before that is said to take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """What came of it."""

    state: Literal["up", "down", "refused", "busy"]
    """`down`: it is still trying. `busy`: somebody else restarts it just now, and nothing was done."""
    reason: str = ""
    """Why it is not up, as far as that is known. Untrusted: perhaps the platform's words."""


@dataclass(slots=True, eq=False)
class _Line:
    channel: Channel
    emit: Emit
    running: asyncio.Task[None] | None = None
    refused: str | None = None
    """Why its platform does not want it; None: it does, or that is not known."""
    reason: str = ""
    """Why it is down."""
    trouble: bool = False
    """Owners were told that it is refused, or broke, and not yet that it is up again."""
    recovered: Callable[[], None] = lambda: None
    """Called when it is up again after such a trouble."""
    been_up: bool = False
    """It was up since the gateway started."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it waits to be tried again, because it was refused or broke."""
    up: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is restarted."""
    cutting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held until it has said goodbye."""
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something of it is taken in."""
    shut: bool = False
    """Nothing of it is heard any more, and nobody restarts it."""

    async def heard(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """As `Emit`."""
        if self.shut:
            await asyncio.Event().wait()  # until it is cut: so its platform is not told that anybody heard it
        await self.take(batch, cursor=cursor)

    async def take(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """The same, also of one that is shut."""
        async with self.telling:
            await self.tell(batch, cursor=cursor)

    async def tell(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """The same, once nothing else of it is."""
        await self.emit(batch, cursor=cursor)
        for event in batch:
            if isinstance(event, Link):
                self.reason = event.reason
                if event.up:
                    self.been_up, self.refused = True, None
                    if self.trouble:
                        self.trouble = False
                        self.recovered()
                (self.up.set if event.up else self.up.clear)()

    async def settled(self) -> None:
        """Return once it is up, or has ended."""
        assert self.running is not None
        waits = [asyncio.create_task(one.wait()) for one in (self.up, self.ended)]
        try:
            await asyncio.wait({self.running, *waits}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*waits)


class Runner:
    """All channels of one gateway."""

    def __init__(
        self,
        channels: Mapping[ChannelName, Channel],
        emits: Mapping[ChannelName, Emit],
        *,
        clock: Clock,
        stats: Stats,
        pause: Callable[[ChannelName, float], Awaitable[None]],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        tell: Callable[[ChannelName, str], None] = lambda _name, _text: None,
        random: Callable[[], float] = _random.random,
    ) -> None:
        """`emits`: what each is handed, also those that are `put` later.

        `pause(channel, seconds)`: let what waits for it go, then hand it nothing more until its link comes up. `spawn`
        starts a task whose failure stops the gateway. `tell`: tells owners what has become of a channel.
        """
        self._clock, self._stats, self._pause, self._spawn = clock, stats, pause, spawn
        self._tell, self._random = tell, random
        self._moved = asyncio.Event()
        self._emits = emits
        self._lines = {name: self._line(channel) for name, channel in channels.items()}
        self._works: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self) -> None:
        """Run them all. Call once, where a loop runs."""
        for line in self._lines.values():
            if line.running is None and not line.shut:
                line.running = self._spawn(self._run(line))

    async def over(self) -> None:
        """Return once each was refused by its platform before it was ever up, and none is to come."""
        while self._hopeful():
            self._moved.clear()
            await self._moved.wait()

    async def close(self) -> None:
        """End them all. Each says goodbye to its platform within a second."""
        self._closed = True
        while going := self._going():
            for task in going:
                task.cancel()
            await asyncio.wait(going, timeout=GOODBYE_S)

    def work(self, work: Coroutine[None, None, None]) -> None:
        """Do it beside the channels: it may lead to another one, so none is the last meanwhile. Ends with `close`."""
        task = self._spawn(work)
        self._works.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._works.discard(task)
            self._moved.set()

        task.add_done_callback(done)

    def put(self, channel: Channel) -> None:
        """Run it from now on: a new one, or another in the place of one that was `cut`. Returns at once."""
        if self._closed:
            return
        line = self._lines.setdefault(channel.name, self._line(channel))
        line.channel, line.shut = channel, False
        line.running = self._spawn(self._run(line))

    def shut(self, name: ChannelName) -> None:
        """Hear nothing more of it. Its platform is not told that what it says from now on was heard."""
        if line := self._lines.get(name):
            line.shut = True

    async def cut(self, name: ChannelName, why: str) -> None:
        """Say what waits for it, and goodbye; until it is `put` again it is down. One that is not there is as good."""
        if line := self._lines.get(name):
            await self._cut(line, why)
            line.running, line.shut = None, True

    def drop(self, name: ChannelName) -> None:
        """Forget one that was `cut`."""
        self._lines.pop(name, None)

    def restarting(self, name: ChannelName) -> bool:
        """Whether somebody restarts it just now."""
        line = self._lines.get(name)
        return line is not None and line.turn.locked()

    def begin(self, name: ChannelName, why: str, told: Callable[[Restarted], Awaitable[None]]) -> None:
        """Restart it, and hand over what came of that. Returns at once."""

        async def restarted() -> None:
            await told(await self.restart(name, why))

        self.work(restarted())

    async def restart(self, name: ChannelName, why: str) -> Restarted:
        """Cut one channel and run it again; return once it is up or refused, or after `PATIENCE_S`. One at a time.

        Also one that was refused: perhaps the operator has seen to that.
        """
        line = self._lines.get(name)
        if line is None:
            return Restarted(state="refused", reason=NOT_THERE)
        if line.turn.locked() or line.cutting.locked() or line.shut or self._closed:
            return Restarted(state="busy")
        async with line.turn:
            logger.info("%s is restarted: %s", name, why)
            await self._cut(line, why)
            running = line.running = self._spawn(self._run(line))
            try:
                await within(self._clock, PATIENCE_S, line.settled())
            except TimeoutError:
                return Restarted(state="down", reason=line.reason if line.reason != why else "it has not answered yet")
            if line.running is not running:
                return Restarted(state="busy")
            if line.refused is not None:
                return Restarted(state="refused", reason=line.refused)
            return Restarted(state="up")

    async def _cut(self, line: _Line, why: str) -> None:
        name = line.channel.name
        async with line.cutting:
            await self._pause(name, PAUSE_S)
            async with line.telling:  # it may just have been telling that it is up: it does not any more
                await self._pause(name, PAUSE_S)
                while line.running is not None and not line.running.done():
                    line.running.cancel()  # more than once: what it has to say in its goodbye is not heard any more
                    await asyncio.wait({line.running}, timeout=GOODBYE_S)
            now = self._clock.now()
            await line.take([Link(id=EventId(new_id(now)), channel=name, up=False, reason=why, sent=now)])

    async def _run(self, line: _Line) -> None:
        name, backoff = line.channel.name, Backoff()
        line.refused = None
        while True:
            line.ended.clear()
            begun_s = self._clock.monotonic()
            try:
                await line.channel.run(line.heard)
            except Denied as error:  # the others go on
                delay_s = REFUSED_S[0 if line.refused is None else 1]
                logger.error("%s is refused: %s; next attempt in %.0f s", name, error.reason, delay_s)  # noqa: TRY400
                line.refused = error.reason
                self._stats.refused(name, error.reason, self._clock.now())
                self._troubled(line, f"{name} is refused by its platform: {error.reason}. I keep trying.")
            except StoreError:
                raise  # without its log the gateway cannot go on
            except Exception as error:  # a bug in the adapter: the others go on
                delay_s = backoff.next_s(self._clock.monotonic() - begun_s, self._random())
                reason = f"internal error: {type(error).__name__}"
                logger.exception("%s broke; next attempt in %.0f s", name, delay_s)
                now = self._clock.now()
                await line.take([Link(id=EventId(new_id(now)), channel=name, up=False, reason=reason, sent=now)])
                self._troubled(line, f"{name} broke ({reason}) and is begun anew. The log of the process says more.")
            else:
                return
            line.ended.set()
            self._moved.set()
            await self._clock.sleep(delay_s)

    def _line(self, channel: Channel) -> _Line:
        name = channel.name
        return _Line(channel, self._emits[name], recovered=lambda: self._tell(name, f"{name} is up again."))

    def _troubled(self, line: _Line, text: str) -> None:
        if not line.trouble and (line.been_up or any(one.been_up for one in self._lines.values())):
            line.trouble = True
            self._tell(line.channel.name, text)

    def _hopeful(self) -> bool:
        """Whether any channel was up, or may yet come up."""
        if self._works:
            return True
        going = [line for line in self._lines.values() if line.running is not None and not line.running.done()]
        return any(line.refused is None or line.been_up for line in going)

    def _going(self) -> list[asyncio.Task[None]]:
        running = (line.running for line in self._lines.values() if line.running is not None)
        return [task for task in (*running, *self._works) if not task.done()]
