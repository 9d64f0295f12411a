"""Channel supervisor: runs each channel in a task of its own, restarts it, and follows the
configuration.

A channel that its platform refuses, or that fails, is tried again by itself; the others go on, and
owners are notified.

A channel that is restarted is reported down before it is cut, so that nothing is handed to it
meanwhile. It runs again only after it has closed its connection: with the same object, which knows
what it has reported already, or with a new one in its place.

`ChannelReconciler` adds, removes and replaces channels when the configuration changes. The new
target is set at once for all channels; each then follows by itself, and the others are not touched.
A removed channel closes its connection first; a changed one does so before it starts again from its
cursor in the log: nothing is lost, and nothing received twice.

Where several processes share the store, each runs the channels whose lease it holds; adapters that
never run are in the place of the others. A lease that is acquired or ends changes the target as the
configuration does. A channel that is taken over goes on from its cursor in the log, and its posts
are recovered as after a crash.
"""

import asyncio
import logging
import random as _random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Final, Literal, Protocol

from channels.aio import Backoff, cancel_and_wait, with_timeout
from channels.base import CanApplyConfig, Channel, Denied
from gateway.access.owners import OwnerNotifier
from gateway.cluster.cluster import CHANNEL_PREFIX, LeaseName
from gateway.config.loader import ConfigError
from gateway.config.models import ChannelConfig, Settings
from gateway.config.source import ConfigProblem, format_key
from gateway.config.validation import account_key, explain_unconnectable, find_unrunnable
from gateway.core.clock import Clock, new_id
from gateway.core.events import ChannelName, ConnectionChanged, EventId, Notification
from gateway.core.facts import OPERATOR_CHANNEL
from gateway.core.i18n import N_, _
from gateway.core.metrics import GatewayStats
from gateway.store import Store, StoreError
from gateway.stream.outbox import Outbox
from gateway.stream.preview import TurnPreviews
from gateway.stream.rooms import RoomMembership

logger = logging.getLogger("reverie.runner")

_ADAPTER_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "irc": ("channels.irc.channel", "channels.irc.connection"),
    "telegram": ("channels.telegram.channel",),
    "discord": ("channels.discord.channel", "channels.discord.session"),
}
"""Modules of each adapter, with the libraries that it imports only once it connects."""


def find_ranked_rooms(name: ChannelName, settings: Settings) -> frozenset[str]:
    """Return the rooms of an account for which the roles of the platform matter; `*`: all."""
    return frozenset(
        rule.room for rule in settings.access.platform_roles if fnmatchcase(name, rule.channel)
    )


def import_adapter(config: ChannelConfig) -> None:
    """Import an adapter's modules. Takes up to a second the first time: use a thread where people
    wait.
    """
    for module in _ADAPTER_MODULES.get(config.platform, ()):
        import_module(module)


FLUSH_S = 2.0
"""Real seconds in which a channel may still deliver queued posts, among them the answer to the
restart command."""
NOT_RUNNING_TEXT = "it is not there just now; look at how it is configured"
GOODBYE_S = 3.0
"""Real seconds after which a goodbye, which takes one, is broken off, so that nothing waits for it
for ever."""
REFUSED_RETRY_S = (60.0, 600.0)
"""Seconds until a refused channel is tried again: the first time, and from then on."""
REFUSALS_COUNT_S = 3600.0
"""Seconds for which a refusal of a channel that was up makes the next delay longer."""
RESTART_TIMEOUT_S = 30.0
"""Seconds after which a restart is reported as not connected yet."""
RESTART_CALL_S: Final = 45.0
"""Seconds in which another process surely reports that: with what it delivers and its goodbye
before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartResult:
    """Result of a restart."""

    state: Literal["up", "down", "refused", "busy"]
    """`down`: it is still trying. `busy`: another restart is under way, and nothing was done."""
    reason: str = ""
    """Reason why it is not up, as far as known. Untrusted: it may be the platform's text."""


class EventIntake(Protocol):
    """Whoever takes in the events of all channels: `gateway.ingest.intake.Intake`."""

    async def accept(
        self, channel: ChannelName, batch: Sequence[Notification], *, cursor: str | None = None
    ) -> None:
        """Process a batch of a channel, as `channels.base.Emit`."""


@dataclass(slots=True, eq=False)
class _ChannelRun:
    channel: Channel
    supervisor: "ChannelSupervisor"
    task: asyncio.Task[None] | None = None
    refusal: str | None = None
    """Reason why its platform refuses it; None: not refused, or unknown."""
    may_pass: bool = False
    """The refusal may end by itself (`Denied.may_pass`)."""
    refused_s: list[float] = field(default_factory=list)
    """Times of its latest refusals, monotonic seconds."""
    down_reason: str = ""
    """Reason why it is down."""
    was_up: bool = False
    """True if it was up since the gateway started."""
    waiting_to_retry: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it waits for its next try, because it was refused or failed."""
    up: asyncio.Event = field(default_factory=asyncio.Event)
    restart_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is restarted."""
    stop_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held until it has closed its connection."""
    emit_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while its events are processed."""
    is_shut: bool = False
    """True: its events are not processed any more, and nobody restarts it."""

    async def receive(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Process events, as `Emit`; once it is shut, wait for ever."""
        if self.is_shut:
            await (
                asyncio.Event().wait()
            )  # until it is cancelled: so its platform gets no acknowledgement
        await self.accept(batch, cursor=cursor)

    async def accept(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Process events, also of a channel that is shut."""
        assert self.supervisor.intake is not None
        async with self.emit_lock:
            await self.supervisor.intake.accept(self.channel.name, batch, cursor=cursor)
            for event in batch:
                if isinstance(event, ConnectionChanged):
                    self.down_reason = event.reason
                    if event.up:
                        self.was_up, self.refusal = True, None
                        self.supervisor.report_up(self.channel.name)
                    (self.up.set if event.up else self.up.clear)()

    async def report_down(self, why: str) -> None:
        """Process that it is down."""
        now = self.supervisor.clock.now()
        event_id, name = EventId(new_id(now)), self.channel.name
        await self.accept(
            [ConnectionChanged(id=event_id, channel=name, up=False, reason=why, sent=now)]
        )

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
        *,
        clock: Clock,
        stats: GatewayStats,
        outbox: Outbox,
        owners: OwnerNotifier,
        tasks: asyncio.TaskGroup,
        random: Callable[[], float] = _random.random,
    ) -> None:
        """`channels`: those that run from the start."""
        self.clock, self._stats, self._owners, self._tasks = clock, stats, owners, tasks
        self.outbox = outbox
        self._random = random
        self._state_changed = asyncio.Event()
        self.intake: EventIntake | None = None
        """Whoever takes in their events. None before `start`."""
        self._runs = {name: _ChannelRun(channel, self) for name, channel in channels.items()}
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._stays = self._closed = False

    def start(self, intake: EventIntake, *, stays: bool = False) -> None:
        """Start them all. Call it once, in a running loop. `stays`: go on although all are
        refused.
        """
        self.intake, self._stays = intake, stays
        for run in self._runs.values():
            if run.task is None and not run.is_shut:
                run.task = self._tasks.create_task(self._run(run))

    async def wait_until_all_refused(self) -> None:
        """Return once every channel was refused for good before it was ever up, and no other is
        being added.

        Never if the gateway `stays`.
        """
        while self._may_come_up():
            self._state_changed.clear()
            await self._state_changed.wait()

    async def close(self) -> None:
        """End them all. Each closes its connection within a second."""
        self._closed = True
        while running := [
            *self._side_tasks,
            *[run.task for run in self._running() if run.task is not None],
        ]:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=GOODBYE_S)

    def spawn_beside(self, work: Coroutine[None, None, None]) -> None:
        """Run a task beside the channels that may add one: until it ends, no channel counts as the
        last.

        `close` ends it.
        """
        task = self._tasks.create_task(work)
        self._side_tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._side_tasks.discard(task)
            self._state_changed.set()

        task.add_done_callback(done)

    def run_channel(self, channel: Channel) -> None:
        """Run a new channel, or another in the place of one that was stopped. Returns at once."""
        if self._closed:
            return
        self._stats.add_channel(channel.name, channel.capabilities.platform, self.clock.now())
        run = self._runs.setdefault(channel.name, _ChannelRun(channel, self))
        run.channel, run.is_shut = channel, False
        run.task = self._tasks.create_task(self._run(run))

    def ignore_events(self, name: ChannelName) -> None:
        """Process no more events of this channel. Its platform gets no acknowledgement for them."""
        if run := self._runs.get(name):
            run.is_shut = True

    async def stop_channel(self, name: ChannelName, why: str) -> None:
        """Deliver its queued posts, close its connection, and report it down until `run_channel`.

        Unknown names are ignored.
        """
        if run := self._runs.get(name):
            await self._stop(run, why)
            run.task, run.is_shut = None, True

    def forget(self, name: ChannelName) -> None:
        """Forget a channel that was stopped."""
        self._runs.pop(name, None)
        self._stats.remove_channel(name)

    def mark_failed(self, name: ChannelName, platform: str, why: str) -> None:
        """Show a channel that cannot be made."""
        now = self.clock.now()
        self._stats.add_channel(name, platform, now)
        self._stats.mark_refused(name, why, now)

    def is_restarting(self, name: ChannelName) -> bool:
        """Return whether it is being restarted."""
        run = self._runs.get(name)
        return run is not None and run.restart_lock.locked()

    def start_restart(
        self, name: ChannelName, why: str, on_result: Callable[[RestartResult], Awaitable[None]]
    ) -> None:
        """Restart a channel, and call `on_result` with the result. Returns at once."""

        async def run() -> None:
            await on_result(await self.restart(name, why))

        self.spawn_beside(run())

    async def restart(self, name: ChannelName, why: str) -> RestartResult:
        """Cut one channel and run it again, also a refused one: the operator may have removed the
        cause.

        Return once it is up or refused, or after `RESTART_TIMEOUT_S`. One restart at a time.
        """
        run = self._runs.get(name)
        if run is None:
            return RestartResult(state="refused", reason=NOT_RUNNING_TEXT)
        if run.restart_lock.locked() or run.stop_lock.locked() or run.is_shut or self._closed:
            return RestartResult(state="busy")
        async with run.restart_lock:
            logger.info("%s is restarted: %s", name, why)
            await self._stop(run, why)
            running = run.task = self._tasks.create_task(self._run(run))
            try:
                await with_timeout(self.clock, RESTART_TIMEOUT_S, run.wait_until_settled())
            except TimeoutError:
                return RestartResult(
                    state="down",
                    reason=run.down_reason if run.down_reason != why else "it has not answered yet",
                )
            if run.task is not running:
                return RestartResult(state="busy")
            if run.refusal is not None:
                return RestartResult(state="refused", reason=run.refusal)
            return RestartResult(state="up")

    async def report_down(self, channel: Channel, why: str) -> None:
        """Report a channel down that does not run. Call it after `start`."""
        await _ChannelRun(channel, self).report_down(why)

    async def _stop(self, run: _ChannelRun, why: str) -> None:
        name = run.channel.name
        async with run.stop_lock:
            await self.outbox.pause(name, FLUSH_S)
            async with run.emit_lock:  # it may be reporting that it is up, which is over now
                await self.outbox.pause(name, FLUSH_S)
                while run.task is not None and not run.task.done():
                    # more than once: what it still reports is not processed any more
                    run.task.cancel()
                    await asyncio.wait({run.task}, timeout=GOODBYE_S)
            await run.report_down(why)

    async def _run(self, run: _ChannelRun) -> None:
        name, backoff = run.channel.name, Backoff()
        run.refusal = None
        while True:
            run.waiting_to_retry.clear()
            begun_s = self.clock.monotonic()
            try:
                await run.channel.run(run.receive)
            except Denied as error:  # the others go on
                now_s = self.clock.monotonic()
                run.refused_s = [one for one in run.refused_s if now_s - one < REFUSALS_COUNT_S]
                # It may pass, or it was up before, e.g. killed by an operator: each time of an hour
                # doubles the delay.
                growing_s = REFUSED_RETRY_S[0] * 2.0 ** len(run.refused_s)
                is_final = run.refusal is not None and not error.may_pass
                delay_s = REFUSED_RETRY_S[1] if is_final else min(growing_s, REFUSED_RETRY_S[1])
                delay_s = max(delay_s, error.retry_after_s)
                run.refused_s.append(now_s)
                run.refusal, run.may_pass = error.reason, error.may_pass
                retry = f"; next attempt in {delay_s:.0f} s" if self._may_come_up() else ""
                if retry and not self._goes_on():
                    retry += " if another channel is up by then"
                logger.error("%s is refused: %s%s", name, error.reason, retry)  # noqa: TRY400
                self._stats.mark_refused(name, error.reason, self.clock.now())
                refusal = N_(
                    "The platform refuses the connection of {channel}: {reason}. I keep trying."
                )
                self._report_trouble(run, "refused", refusal, error.reason)
            except StoreError:
                raise  # without its log the gateway cannot go on
            except Exception as error:  # a bug in the adapter: the others go on
                delay_s = backoff.next_delay_s(self.clock.monotonic() - begun_s, self._random())
                reason = f"internal error: {type(error).__name__}"
                logger.exception("%s broke; next attempt in %.0f s", name, delay_s)
                await run.report_down(reason)
                told = N_(
                    "{channel} stopped because of an error ({reason}). I start it again; my log "
                    "says more."
                )
                self._report_trouble(run, "broke", told, reason)
            else:
                return
            run.waiting_to_retry.set()
            self._state_changed.set()
            await self.clock.sleep(delay_s)

    def report_up(self, name: ChannelName) -> None:
        """Tell owners that a channel is up, if they were told that it is not."""
        self._owners.end_trouble(
            f"channel:{name}:",
            lambda _to: _("{channel} works again.").format(channel=name),
            beside=name,
        )

    def _report_trouble(self, run: _ChannelRun, what: str, text: str, reason: str) -> None:
        if self._goes_on():
            name = run.channel.name
            self._owners.begin_trouble(
                f"channel:{name}:{what}",
                lambda _to: _(text).format(channel=name, reason=reason),
                beside=name,
            )

    def _may_come_up(self) -> bool:
        """Return whether any channel was up, or may yet come up."""
        is_open = any(run.refusal is None for run in self._running())
        return bool(self._side_tasks) or is_open or self._goes_on()

    def _goes_on(self) -> bool:
        """Return whether this process goes on whatever becomes of the channels that were never
        up.
        """
        is_needed = any(run.was_up or run.may_pass for run in self._running())
        return is_needed or self._stays

    def _running(self) -> list[_ChannelRun]:
        return [run for run in self._runs.values() if run.task is not None and not run.task.done()]


REMOVED_TEXT: Final = "it is no longer configured"
CHANGED_TEXT: Final = "its configuration has changed"
MOVED_TEXT: Final = "another process of the gateway takes it over"


class AdapterFactory(Protocol):
    """Factory of the adapter of one channel."""

    def __call__(
        self,
        name: ChannelName,
        settings: Settings,
        clock: Clock,
        cursor: str | None,
        before: Channel | None,
        /,
    ) -> Channel:
        """Make an adapter that goes on from `cursor`. `before`: the stopped channel of that name,
        if there was one.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """Settings of an adapter. If equal, the adapter may stay."""

    config: ChannelConfig
    ranked_rooms: frozenset[str]
    """As from `find_ranked_rooms`."""


@dataclass(slots=True)
class _RunningAdapter:
    spec: AdapterSpec
    """Spec from which it was made."""
    is_shut: bool = False
    """True: its events are not processed any more, so it must be replaced even if it is wanted
    again unchanged."""


class ChannelReconciler:
    """Follows the configuration of channels, and their leases.

    A `LeaseListener` for the leases of channels.
    """

    def __init__(
        self,
        settings: Settings,
        channels: MutableMapping[ChannelName, Channel],
        runner: ChannelSupervisor,
        *,
        store: Store,
        clock: Clock,
        membership: RoomMembership,
        previews: TurnPreviews,
        make: AdapterFactory,
        is_shared: bool = False,
    ) -> None:
        """`channels`: those made from `settings` and run by `runner`; from now on changed only
        here.

        `is_shared`: this process holds the channels whose leases it is given, and none yet. False:
        it holds all.
        """
        self._settings, self._channels, self._runner = settings, channels, runner
        self._store, self._clock, self._membership, self._previews = (
            store,
            clock,
            membership,
            previews,
        )
        self._make = make
        self._configured = build_adapter_specs(settings)
        self._held: set[ChannelName] | None = set() if is_shared else None
        """Channels whose lease this process holds. None: it holds all."""
        self._opened = set[ChannelName]()
        """Channels that were taken over from another process."""
        self._specs = self._configured if self._held is None else {}
        """Those that are to run in this process."""
        self._running = {name: _RunningAdapter(one) for name, one in self._specs.items()}
        self._reconciling: set[ChannelName] = set()
        self._adapters_changed = asyncio.Event()

    def prepare(self, new: Settings) -> Callable[[], None]:
        """Check new settings, as a `gateway.config.reload.ChangeListener`."""
        if problems := tuple(self._find_problems(new)):
            raise ConfigError(problems)
        wanted = build_adapter_specs(new)
        return lambda: self._apply(new, wanted)

    def _find_problems(self, new: Settings) -> list[ConfigProblem]:
        found = [ConfigProblem("", 0, format_key(keys), why) for keys, why in find_unrunnable(new)]
        for name, one in build_adapter_specs(new).items():
            if one != self._configured.get(name) and (why := explain_unconnectable(one.config)):
                found.append(ConfigProblem("", 0, f"channels.{name}", why))
        return found

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        """Take the channel over from the process that held it before, and run it. As
        `LeaseListener`.

        Call it after `ChannelSupervisor.start`.
        """
        name = ChannelName(lease.removeprefix(CHANNEL_PREFIX))
        assert self._held is not None
        self._held.add(name)
        if name == OPERATOR_CHANNEL:  # it has no connection, and every process runs its own
            await self._runner.outbox.open_channel(name)
            self._runner.outbox.set_link_up(name, up=True)
            self._opened.add(name)
        self._apply(self._settings, self._configured)
        await self._wait_until_reconciled(name)

    async def on_lease_ending(self, lease: LeaseName) -> None:
        """Stop the channel, and leave its posts to the process that takes it over. As
        `LeaseListener`.
        """
        name = ChannelName(lease.removeprefix(CHANNEL_PREFIX))
        assert self._held is not None
        self._held.discard(name)
        self._apply(self._settings, self._configured)
        await self._wait_until_reconciled(name)
        if name in self._opened:
            self._opened.discard(name)
            await self._runner.outbox.close_channel(name)

    async def _wait_until_reconciled(self, name: ChannelName) -> None:
        while name in self._reconciling:
            await self._adapters_changed.wait()

    def _apply(self, new: Settings, configured: dict[ChannelName, AdapterSpec]) -> None:
        before, self._configured, self._settings = self._configured, configured, new
        wanted = self._specs = {
            name: one
            for name, one in configured.items()
            if self._held is None or name in self._held
        }
        for name in {**before, **configured}.keys() - wanted.keys() - self._running.keys():
            if configured.get(name) != before.get(name):
                self._put_idle(name)
        for name in {**self._running, **wanted}:
            if self._is_current(name):
                continue
            if self._try_adapt(name):
                continue
            if name in self._running and name not in configured:
                self._running[name].is_shut = True
                self._runner.ignore_events(name)
            if name not in self._reconciling:
                self._reconciling.add(name)
                self._runner.spawn_beside(self._reconcile(name))
        self._notify_changed()

    def _is_current(self, name: ChannelName) -> bool:
        running, wanted = self._running.get(name), self._specs.get(name)
        if running is None or wanted is None:
            return running is None and wanted is None
        return running.spec == wanted and not running.is_shut

    def _try_adapt(self, name: ChannelName) -> bool:
        """Try to change the running channel without replacing it. Return whether it is as wanted
        then.
        """
        running, wanted, channel = (
            self._running.get(name),
            self._specs.get(name),
            self._channels.get(name),
        )
        if (
            running is None
            or wanted is None
            or channel is None
            or running.is_shut
            or name in self._reconciling
        ):
            return False
        if (
            running.spec.ranked_rooms != wanted.ranked_rooms
            or not isinstance(channel, CanApplyConfig)
            or not channel.apply_config(wanted.config)
        ):
            return False
        running.spec = wanted
        logger.info("%s goes on with its new configuration", name)
        self._membership.rejoin(name)
        return True

    async def _reconcile(self, name: ChannelName) -> None:
        """Bring the channel to the target, which may change meanwhile."""
        try:
            while not self._is_current(name):
                if name in self._running:
                    moved = MOVED_TEXT if name in self._configured else REMOVED_TEXT
                    why = CHANGED_TEXT if name in self._specs else moved
                    logger.info("%s says goodbye: %s", name, why)
                    await self._runner.stop_channel(name, why)
                    del self._running[name]
                    self._notify_changed()
                elif wanted := self._specs.get(name):
                    await self._start_adapter(name, wanted)
            if name not in self._running:
                self._forget(name)
        finally:
            self._reconciling.discard(name)
            self._notify_changed()

    async def _start_adapter(self, name: ChannelName, wanted: AdapterSpec) -> None:
        """Make and run the channel, unless the target changes meanwhile."""
        while self._specs.get(name) == wanted and self._is_account_in_use(name, wanted):
            await self._adapters_changed.wait()
        cursor = await self._store.saved_cursor(name)
        try:
            await asyncio.to_thread(import_adapter, wanted.config)
            if self._specs.get(name) != wanted:
                return
            self._running[name] = _RunningAdapter(wanted)
            is_taken_over = self._held is not None and name not in self._opened
            before = (
                None if is_taken_over else self._channels.get(name)
            )  # an adapter that never ran knows nothing
            channel = self._make(name, self._settings, self._clock, cursor, before)
        except Exception:  # a bug in the adapter, and no reason to end the others
            logger.exception("%s cannot be made", name)
            self._running[name] = _RunningAdapter(wanted)
            self._forget(name)
            self._runner.mark_failed(name, wanted.config.platform, "internal error")
            return
        logger.info("%s begins", name)
        self._channels[name] = channel
        is_new = before is None
        if is_taken_over:
            await self._take_over(name)
        self._runner.run_channel(channel)
        if is_new:
            self._runner.spawn_beside(self._previews.recover(name))

    async def _take_over(self, name: ChannelName) -> None:
        """Recover what the process has left that held the channel before.

        What it reported last may be that it is up: so it is reported down, or all would take it for
        up.
        """
        if any(one.channel == name and one.up for one in await self._store.connection_states()):
            await self._runner.report_down(self._channels[name], MOVED_TEXT)
        await self._runner.outbox.open_channel(name)
        self._opened.add(name)

    def _is_account_in_use(self, name: ChannelName, wanted: AdapterSpec) -> bool:
        """Return whether a channel that has to go is still connected with the same account."""
        mine = account_key(wanted.config)
        others = (
            (one, running)
            for one, running in self._running.items()
            if one != name and not self._is_current(one)
        )
        return any(account_key(running.spec.config) == mine for _, running in others)

    def _notify_changed(self) -> None:
        self._adapters_changed.set()
        self._adapters_changed = asyncio.Event()

    def _forget(self, name: ChannelName) -> None:
        self._put_idle(name)
        self._runner.forget(name)

    def _put_idle(self, name: ChannelName) -> None:
        """Put an adapter that never connects in the place of a channel, if another process may hold
        it.
        """
        self._channels.pop(name, None)
        if self._held is not None and name in self._configured:
            self._channels[name] = self._make(name, self._settings, self._clock, None, None)


def build_adapter_specs(settings: Settings) -> dict[ChannelName, AdapterSpec]:
    """Return the spec of each channel."""
    names = [ChannelName(name) for name in settings.channels]
    return {
        name: AdapterSpec(
            config=settings.channels[name], ranked_rooms=find_ranked_rooms(name, settings)
        )
        for name in names
    }
