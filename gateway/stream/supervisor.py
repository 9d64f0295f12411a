"""Runs the channels, each in a task of its own, begins one anew where somebody wants that, and lets them come and go.

One that its platform refuses, or that breaks, is tried again by itself; the others go on, and owners are told.

What is begun anew is told down before it is cut, so that nothing is handed to it meanwhile, and only once it has said
goodbye does it run again: with the same object, which knows what it has told already, or with another one in its place.

The channels as the configuration has them: they come, go and are made anew while the gateway runs.

What is to be is said at once, for all; what takes time follows by itself, for each channel alone, and the others are
not touched. What has gone says goodbye first, and what has changed does so before it comes again, from where the log
says it was: so nothing is lost, and nothing heard twice.
"""

import asyncio
import logging
import random as _random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Final, Literal, Protocol

from channels.aio import Backoff, cancel_and_wait, with_timeout
from channels.base import CanApplyConfig, Channel, Denied, Emit
from gateway.config.loader import ConfigError
from gateway.config.models import ChannelConfig, Settings
from gateway.config.source import ConfigProblem
from gateway.core.clock import Clock, new_id
from gateway.core.events import ChannelName, ConnectionChanged, EventId, Notification
from gateway.core.metrics import GatewayStats
from gateway.store import StoreError

_ADAPTER_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "irc": ("channels.irc.channel", "channels.irc.connection"),
    "telegram": ("channels.telegram.channel",),
    "discord": ("channels.discord.channel", "channels.discord.session"),
}
"""What an adapter needs, with the libraries that it imports only once it connects."""


def account_key(config: ChannelConfig) -> tuple[object, ...]:
    """What its platform knows this channel as: two of the same disturb each other."""
    match config.platform:
        case "irc":
            return config.platform, config.host, config.port, config.nick
        case "console":
            return (config.platform,)
        case _:
            return config.platform, config.token.get_secret_value()


def explain_unconnectable(config: ChannelConfig) -> str:
    """Why nothing can be connected by these settings, as far as this machine can tell. Empty: nothing is known."""
    if config.platform == "irc":
        from channels.irc import tls  # noqa: PLC0415 - only where IRC is used

        try:
            tls.create_ssl_context(config.tls)
        except Denied as error:
            return error.reason
    return ""


def find_ranked_rooms(name: ChannelName, settings: Settings) -> frozenset[str]:
    """The rooms of one account where something follows from what the platform says of people; `*`: all."""
    return frozenset(rule.room for rule in settings.access.platform_roles if fnmatchcase(name, rule.channel))


def find_unavailable(settings: Settings) -> Iterator[tuple[str, str]]:
    """Each channel that `make_channel` cannot make, and why."""
    for name, config in settings.channels.items():
        if config.platform == "console":
            yield name, "the console is part of `reverie demo --console`; remove the channel"


def import_adapter(config: ChannelConfig) -> None:
    """Import what its platform needs. Takes up to a second the first time: where people wait, do it in a thread."""
    for module in _ADAPTER_MODULES.get(config.platform, ()):
        import_module(module)


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


REMOVED_TEXT: Final = "it is no longer configured"
CHANGED_TEXT: Final = "its configuration has changed"
NO_CHANNEL_LEFT_TEXT: Final = "no channel would be left: keep one, or stop the gateway"


class AdapterFactory(Protocol):
    """Makes the adapter of one channel."""

    def __call__(self, name: ChannelName, settings: Settings, cursor: str | None, before: Channel | None, /) -> Channel:
        """To go on from `cursor`. `before`: what had that name until now, and has said goodbye."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """What an adapter is made of. Equal: it may stay."""

    config: ChannelConfig
    ranked_rooms: frozenset[str]
    """As `adapters.ranked_rooms`."""


@dataclass(slots=True)
class _RunningAdapter:
    spec: AdapterSpec
    """What it was made of."""
    is_shut: bool = False
    """It is not heard any more, so it must be made anew even if it is wanted again as it was."""


class ChannelReconciler:
    """All channels of the configuration. A `gateway.config.reload.SettingsListener`."""

    def __init__(
        self,
        settings: Settings,
        channels: MutableMapping[ChannelName, Channel],
        runner: ChannelSupervisor,
        *,
        make: AdapterFactory,
        cursor: Callable[[ChannelName], Awaitable[str | None]],
        came: Callable[[Channel, bool], None],
        went: Callable[[ChannelName], None],
        failed: Callable[[ChannelName, str], None],
        adapted: Callable[[ChannelName], None],
    ) -> None:
        """`channels`: those that there are, made of `settings` and run by `runner`; kept up from now on, here alone.

        `came` is called with each that is put into them, before it runs, and whether there was none of that name;
        `went` with each that is taken out, after it has said goodbye; `failed` with each that cannot be made, and why:
        it is out then; `adapted` with each that goes on as it was. None of them fails, and `went` also bears a name
        that never came.
        """
        self._settings, self._channels, self._runner = settings, channels, runner
        self._make, self._cursor = make, cursor
        self._came, self._went, self._failed, self._adapted = came, went, failed, adapted
        self._specs = build_adapter_specs(settings)
        self._running = {name: _RunningAdapter(one) for name, one in self._specs.items()}
        self._reconciling: set[ChannelName] = set()
        self._adapters_changed = asyncio.Event()

    def prepare(self, new: Settings) -> Callable[[], None]:
        """As `Taker.prepare`."""
        if problems := tuple(self._find_problems(new)):
            raise ConfigError(problems)
        to_be = build_adapter_specs(new)
        return lambda: self._apply(new, to_be)

    def _find_problems(self, new: Settings) -> list[ConfigProblem]:
        found = [ConfigProblem("", 0, f"channels.{name}", why) for name, why in find_unavailable(new)]
        for name, one in build_adapter_specs(new).items():
            if one != self._specs.get(name) and (why := explain_unconnectable(one.config)):
                found.append(ConfigProblem("", 0, f"channels.{name}", why))
        return found if new.channels else [ConfigProblem("", 0, "channels", NO_CHANNEL_LEFT_TEXT)]

    def _apply(self, new: Settings, to_be: dict[ChannelName, AdapterSpec]) -> None:
        self._settings, self._specs = new, to_be
        for name in {**self._running, **to_be}:
            if self._is_current(name):
                continue
            if self._try_adapt(name):
                continue
            if name in self._running and name not in to_be:
                self._running[name].is_shut = True
                self._runner.stop_hearing(name)
            if name not in self._reconciling:
                self._reconciling.add(name)
                self._runner.spawn_beside(self._reconcile(name))
        self._notify_changed()

    def _is_current(self, name: ChannelName) -> bool:
        """Whether it is as it is wanted."""
        there, to_be = self._running.get(name), self._specs.get(name)
        if there is None or to_be is None:
            return there is None and to_be is None
        return there.spec == to_be and not there.is_shut

    def _try_adapt(self, name: ChannelName) -> bool:
        """Whether it is as it is wanted once it is told so, for what has changed is nothing to be made anew for."""
        there, to_be, channel = self._running.get(name), self._specs.get(name), self._channels.get(name)
        if there is None or to_be is None or channel is None or there.is_shut or name in self._reconciling:
            return False
        if (
            there.spec.ranked_rooms != to_be.ranked_rooms
            or not isinstance(channel, CanApplyConfig)
            or not channel.apply_config(to_be.config)
        ):
            return False
        there.spec = to_be
        logger.info("%s goes on with its new configuration", name)
        self._adapted(name)
        return True

    async def _reconcile(self, name: ChannelName) -> None:
        """See to it that it is as it is wanted, whatever that is by then."""
        try:
            while not self._is_current(name):
                if name in self._running:
                    why = CHANGED_TEXT if name in self._specs else REMOVED_TEXT
                    logger.info("%s says goodbye: %s", name, why)
                    await self._runner.stop_channel(name, why)
                    del self._running[name]
                    self._notify_changed()
                elif to_be := self._specs.get(name):
                    await self._start_adapter(name, to_be)
            if name not in self._running:
                self._forget(name)
        finally:
            self._reconciling.discard(name)

    async def _start_adapter(self, name: ChannelName, to_be: AdapterSpec) -> None:
        """Make it and run it, unless something else is wanted by then."""
        while self._specs.get(name) == to_be and self._is_account_in_use(name, to_be):
            await self._adapters_changed.wait()
        cursor = await self._cursor(name)
        try:
            await asyncio.to_thread(import_adapter, to_be.config)
            if self._specs.get(name) != to_be:
                return
            self._running[name] = _RunningAdapter(to_be)
            before = self._channels.get(name)
            channel = self._make(name, self._settings, cursor, before)
        except Exception:  # a bug in the adapter, and no reason to end the others
            logger.exception("%s cannot be made", name)
            self._running[name] = _RunningAdapter(to_be)
            self._forget(name)
            self._failed(name, "internal error")
            return
        logger.info("%s begins", name)
        self._channels[name] = channel
        self._came(channel, before is None)
        self._runner.run_channel(channel)

    def _is_account_in_use(self, name: ChannelName, to_be: AdapterSpec) -> bool:
        """Whether another that has to go is still connected as the same account."""
        mine = account_key(to_be.config)
        others = ((one, berth) for one, berth in self._running.items() if one != name and not self._is_current(one))
        return any(account_key(berth.spec.config) == mine for _, berth in others)

    def _notify_changed(self) -> None:
        """Let those look again who wait for others to go."""
        self._adapters_changed.set()
        self._adapters_changed = asyncio.Event()

    def _forget(self, name: ChannelName) -> None:
        self._runner.forget(name)
        self._channels.pop(name, None)
        self._went(name)


def build_adapter_specs(settings: Settings) -> dict[ChannelName, AdapterSpec]:
    """Of each channel."""
    names = [ChannelName(name) for name in settings.channels]
    return {
        name: AdapterSpec(config=settings.channels[name], ranked_rooms=find_ranked_rooms(name, settings))
        for name in names
    }
