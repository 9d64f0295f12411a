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
from channels.tasks import cancel_and_wait, with_timeout
from gateway.clock import Clock
from gateway.events import ChannelName, ConnectionChanged, EventId, Notification
from gateway.ids import new_id
from gateway.ops.stats import GatewayStats
from gateway.store import StoreError

logger = logging.getLogger("reverie.runner")

FLUSH_S = 2.0
"""Real seconds in which a channel may still say what waits for it, among that the answer to whoever restarts it."""
NOT_RUNNING_TEXT = "it is not there just now; look at how it is configured"
GOODBYE_S = 3.0
"""Real seconds after which a goodbye that should take one is broken off, so that nothing waits for it for ever."""
REFUSED_RETRY_S = (60.0, 600.0)
"""Until a refused channel is tried again: the first time, and from then on."""
RESTART_TIMEOUT_S = 30.0
"""How long it may take to be connected again before that is said to take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartResult:
    """What came of it."""

    state: Literal["up", "down", "refused", "busy"]
    """`down`: it is still trying. `busy`: somebody else restarts it just now, and nothing was done."""
    reason: str = ""
    """Why it is not up, as far as that is known. Untrusted: perhaps the platform's words."""


@dataclass(slots=True, eq=False)
class _ChannelRun:
    channel: Channel
    emit: Emit
    task: asyncio.Task[None] | None = None
    refusal: str | None = None
    """Why its platform does not want it; None: it does, or that is not known."""
    down_reason: str = ""
    """Why it is down."""
    is_in_trouble: bool = False
    """Owners were told that it is refused, or broke, and not yet that it is up again."""
    on_recovered: Callable[[], None] = lambda: None
    """Called when it is up again after such a trouble."""
    was_up: bool = False
    """It was up since the gateway started."""
    waiting_to_retry: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it waits to be tried again, because it was refused or broke."""
    up: asyncio.Event = field(default_factory=asyncio.Event)
    restart_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is restarted."""
    stop_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held until it has said goodbye."""
    emit_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something of it is taken in."""
    is_shut: bool = False
    """Nothing of it is heard any more, and nobody restarts it."""

    async def receive(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """As `Emit`."""
        if self.is_shut:
            await asyncio.Event().wait()  # until it is cut: so its platform is not told that anybody heard it
        await self.accept(batch, cursor=cursor)

    async def accept(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """The same, also of one that is shut."""
        async with self.emit_lock:
            await self.forward(batch, cursor=cursor)

    async def forward(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """The same, once nothing else of it is."""
        await self.emit(batch, cursor=cursor)
        for event in batch:
            if isinstance(event, ConnectionChanged):
                self.down_reason = event.reason
                if event.up:
                    self.was_up, self.refusal = True, None
                    if self.is_in_trouble:
                        self.is_in_trouble = False
                        self.on_recovered()
                (self.up.set if event.up else self.up.clear)()

    async def wait_until_settled(self) -> None:
        """Return once it is up, or has ended."""
        assert self.task is not None
        waits = [asyncio.create_task(one.wait()) for one in (self.up, self.waiting_to_retry)]
        try:
            await asyncio.wait({self.task, *waits}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(*waits)


class ChannelSupervisor:
    """All channels of one gateway."""

    def __init__(
        self,
        channels: Mapping[ChannelName, Channel],
        emits: Mapping[ChannelName, Emit],
        *,
        clock: Clock,
        stats: GatewayStats,
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
        self._state_changed = asyncio.Event()
        self._emits = emits
        self._runs = {name: self._build_run(channel) for name, channel in channels.items()}
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self) -> None:
        """Run them all. Call once, where a loop runs."""
        for line in self._runs.values():
            if line.task is None and not line.is_shut:
                line.task = self._spawn(self._run(line))

    async def wait_until_all_refused(self) -> None:
        """Return once each was refused by its platform before it was ever up, and none is to come."""
        while self._may_come_up():
            self._state_changed.clear()
            await self._state_changed.wait()

    async def close(self) -> None:
        """End them all. Each says goodbye to its platform within a second."""
        self._closed = True
        while going := self._active_tasks():
            for task in going:
                task.cancel()
            await asyncio.wait(going, timeout=GOODBYE_S)

    def spawn_beside(self, work: Coroutine[None, None, None]) -> None:
        """Do it beside the channels: it may lead to another one, so none is the last meanwhile. Ends with `close`."""
        task = self._spawn(work)
        self._side_tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._side_tasks.discard(task)
            self._state_changed.set()

        task.add_done_callback(done)

    def run_channel(self, channel: Channel) -> None:
        """Run it from now on: a new one, or another in the place of one that was `cut`. Returns at once."""
        if self._closed:
            return
        line = self._runs.setdefault(channel.name, self._build_run(channel))
        line.channel, line.is_shut = channel, False
        line.task = self._spawn(self._run(line))

    def stop_hearing(self, name: ChannelName) -> None:
        """Hear nothing more of it. Its platform is not told that what it says from now on was heard."""
        if line := self._runs.get(name):
            line.is_shut = True

    async def stop_channel(self, name: ChannelName, why: str) -> None:
        """Say what waits for it, and goodbye; until it is `put` again it is down. One that is not there is as good."""
        if line := self._runs.get(name):
            await self._stop(line, why)
            line.task, line.is_shut = None, True

    def forget(self, name: ChannelName) -> None:
        """Forget one that was `cut`."""
        self._runs.pop(name, None)

    def is_restarting(self, name: ChannelName) -> bool:
        """Whether somebody restarts it just now."""
        line = self._runs.get(name)
        return line is not None and line.restart_lock.locked()

    def start_restart(self, name: ChannelName, why: str, told: Callable[[RestartResult], Awaitable[None]]) -> None:
        """Restart it, and hand over what came of that. Returns at once."""

        async def restarted() -> None:
            await told(await self.restart(name, why))

        self.spawn_beside(restarted())

    async def restart(self, name: ChannelName, why: str) -> RestartResult:
        """Cut one channel and run it again.

        Return once it is up or refused, or after `RESTART_TIMEOUT_S`. One at a time.

        Also one that was refused: perhaps the operator has seen to that.
        """
        line = self._runs.get(name)
        if line is None:
            return RestartResult(state="refused", reason=NOT_RUNNING_TEXT)
        if line.restart_lock.locked() or line.stop_lock.locked() or line.is_shut or self._closed:
            return RestartResult(state="busy")
        async with line.restart_lock:
            logger.info("%s is restarted: %s", name, why)
            await self._stop(line, why)
            running = line.task = self._spawn(self._run(line))
            try:
                await with_timeout(self._clock, RESTART_TIMEOUT_S, line.wait_until_settled())
            except TimeoutError:
                return RestartResult(
                    state="down", reason=line.down_reason if line.down_reason != why else "it has not answered yet"
                )
            if line.task is not running:
                return RestartResult(state="busy")
            if line.refusal is not None:
                return RestartResult(state="refused", reason=line.refusal)
            return RestartResult(state="up")

    async def _stop(self, line: _ChannelRun, why: str) -> None:
        name = line.channel.name
        async with line.stop_lock:
            await self._pause(name, FLUSH_S)
            async with line.emit_lock:  # it may just have been telling that it is up: it does not any more
                await self._pause(name, FLUSH_S)
                while line.task is not None and not line.task.done():
                    line.task.cancel()  # more than once: what it has to say in its goodbye is not heard any more
                    await asyncio.wait({line.task}, timeout=GOODBYE_S)
            now = self._clock.now()
            await line.accept(
                [ConnectionChanged(id=EventId(new_id(now)), channel=name, up=False, reason=why, sent=now)]
            )

    async def _run(self, line: _ChannelRun) -> None:
        name, backoff = line.channel.name, Backoff()
        line.refusal = None
        while True:
            line.waiting_to_retry.clear()
            begun_s = self._clock.monotonic()
            try:
                await line.channel.run(line.receive)
            except Denied as error:  # the others go on
                delay_s = REFUSED_RETRY_S[0 if line.refusal is None else 1]
                logger.error("%s is refused: %s; next attempt in %.0f s", name, error.reason, delay_s)  # noqa: TRY400
                line.refusal = error.reason
                self._stats.mark_refused(name, error.reason, self._clock.now())
                self._report_trouble(line, f"{name} is refused by its platform: {error.reason}. I keep trying.")
            except StoreError:
                raise  # without its log the gateway cannot go on
            except Exception as error:  # a bug in the adapter: the others go on
                delay_s = backoff.next_delay_s(self._clock.monotonic() - begun_s, self._random())
                reason = f"internal error: {type(error).__name__}"
                logger.exception("%s broke; next attempt in %.0f s", name, delay_s)
                now = self._clock.now()
                await line.accept(
                    [ConnectionChanged(id=EventId(new_id(now)), channel=name, up=False, reason=reason, sent=now)]
                )
                self._report_trouble(
                    line, f"{name} broke ({reason}) and is begun anew. The log of the process says more."
                )
            else:
                return
            line.waiting_to_retry.set()
            self._state_changed.set()
            await self._clock.sleep(delay_s)

    def _build_run(self, channel: Channel) -> _ChannelRun:
        name = channel.name
        return _ChannelRun(channel, self._emits[name], on_recovered=lambda: self._tell(name, f"{name} is up again."))

    def _report_trouble(self, line: _ChannelRun, text: str) -> None:
        if not line.is_in_trouble and (line.was_up or any(one.was_up for one in self._runs.values())):
            line.is_in_trouble = True
            self._tell(line.channel.name, text)

    def _may_come_up(self) -> bool:
        """Whether any channel was up, or may yet come up."""
        if self._side_tasks:
            return True
        going = [line for line in self._runs.values() if line.task is not None and not line.task.done()]
        return any(line.refusal is None or line.was_up for line in going)

    def _active_tasks(self) -> list[asyncio.Task[None]]:
        running = (line.task for line in self._runs.values() if line.task is not None)
        return [task for task in (*running, *self._side_tasks) if not task.done()]
