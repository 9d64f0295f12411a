"""Channel supervisor: one loop that brings the channels of this process to what is desired.

Desired are the channels of the settings whose lease this process holds; a process alone holds all.
`decide` compares that with what runs, and names the next step of each channel. The loop begins
these steps, each in a task of its own, so that no channel waits for another. It is woken by a
reload, by a lease that is acquired or ends, by an operator's restart, by the end of a step or of a
connection, and by the end of a wait.

A channel that its platform refuses, or that fails, is tried again by itself; the others go on, and
owners are notified.

A channel that is cut is reported down before, so that nothing is handed to it meanwhile. It runs
again only after it has closed its connection: with the same object, which knows what it has
reported already, or with a new one in its place, which starts from its cursor in the log: nothing
is lost, and nothing received twice.

In the place of a channel that another process holds is an adapter that never runs. A channel that
is taken over goes on from its cursor in the log, and its posts are recovered as after a crash.
"""

import asyncio
import contextlib
import logging
import math
import random as _random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import Final, Literal, Protocol

from channels.aio import Backoff, is_cancellation, with_timeout
from channels.base import CanApplyConfig, Channel, ChannelConfig, Denied
from gateway.cluster.cluster import CHANNEL_PREFIX, LeaseName
from gateway.config.loader import ConfigError
from gateway.config.models import Settings
from gateway.config.source import ConfigProblem, format_key
from gateway.config.validation import find_unrunnable
from gateway.core.clock import Clock, new_id
from gateway.core.events import Address, ChannelName, ConnectionChanged, EventId, Notification
from gateway.core.facts import INNER_CHANNEL, NOTIFICATION_CLASSES, OPERATOR_CHANNEL, Judgement
from gateway.core.frozen import frozen
from gateway.core.i18n import N_, _
from gateway.core.metrics import OWN_KINDS, GatewayStats
from gateway.store import LogEntry, Store, StoreError
from gateway.stream.notices import Notices
from gateway.stream.operator import OperatorChannel
from gateway.stream.outbox import Outbox
from gateway.stream.rooms import RoomMembership

logger = logging.getLogger("reverie.runner")


def find_ranked_rooms(name: ChannelName, settings: Settings) -> frozenset[str]:
    """Return the rooms of an account for which the roles of the platform matter; `*`: all."""
    return frozenset(
        rule.room for rule in settings.access.platform_roles if fnmatchcase(name, rule.channel)
    )


def import_adapter(config: ChannelConfig) -> None:
    """Import an adapter's modules. Takes up to a second the first time: use a thread where people
    wait.
    """
    for module in config.adapter_modules:
        import_module(module)


FLUSH_S = 2.0
"""Real seconds in which a channel may still deliver queued posts, among them the answer to the
restart command."""
NOT_RUNNING_TEXT = "it is not there just now; look at how it is configured"
GOODBYE_S = 3.0
"""Real seconds after which a goodbye, which takes one, is broken off, so that nothing waits for it
for ever."""
REFUSED_RETRY_S = (60.0, 600.0)
"""Seconds until a refused channel is tried again: the first time, and at most. Each refusal of the
last hour doubles them."""
REFUSALS_COUNT_S = 3600.0
"""Seconds for which a refusal makes the next delays longer."""
RESTART_TIMEOUT_S = 30.0
"""Seconds after which a restart is reported as not connected yet."""
REMOVED_TEXT: Final = "it is no longer configured"
CHANGED_TEXT: Final = "its configuration has changed"
MOVED_TEXT: Final = "another process of the gateway takes it over"


RestartState = Literal["up", "down", "refused", "busy"]
"""Result of a restart. `down`: it is still trying. `busy`: another restart is under way, and
nothing was done."""


class EventIntake(Protocol):
    """Whoever takes in the events of all channels: `gateway.ingest.intake.Intake`."""

    async def accept(
        self, channel: ChannelName, batch: Sequence[Notification], *, cursor: str | None = None
    ) -> None:
        """Process a batch of a channel, as `channels.base.Emit`."""


AdapterFactory = Callable[[ChannelName, Settings, Clock, str | None, Channel | None], Channel]
"""Makes the adapter of one channel, which goes on from the cursor. The last argument: the stopped
channel of that name, if there was one."""


@frozen
class AdapterSpec:
    """Settings of an adapter. If equal, the adapter may stay."""

    config: ChannelConfig
    ranked_rooms: frozenset[str]
    """As from `find_ranked_rooms`."""


Step = Literal["make", "run", "restart", "change", "remove", "forget"]
"""`run`: begin a connection. `restart`: cut it, so that another begins. `change`: take the new
settings, or make way for a new adapter. `remove`: cut the connection for good. `forget`: it is
gone."""


@dataclass(slots=True, kw_only=True, eq=False)
class ChannelRun:
    """One channel in this process. `decide` reads the fields before `name`."""

    spec: AdapterSpec | None = None
    """Spec from which its adapter was made. None: it never changes."""
    is_made: bool = False
    """False: there is no adapter yet, or it has closed its connection for good."""
    is_busy: bool = False
    restart_why: str = ""
    """Why it is to be restarted. Empty: it is not."""
    due_s: float = -math.inf
    """When its next connection begins (monotonic). inf: it has one, or needs none any more."""
    name: ChannelName
    channel: Channel | None = None
    """None: it is not made yet, or cannot be made."""
    task: asyncio.Task[None] | None = None
    """Its newest connection since it was cut."""
    is_restarting: bool = False
    """An operator waits for its restart."""
    backoff: Backoff = field(default_factory=Backoff)
    refusal: str | None = None
    """Reason why its platform refuses it; None: not refused, or unknown."""
    refused_s: list[float] = field(default_factory=list)
    """Times of its latest refusals, monotonic seconds."""
    down_reason: str = ""
    is_up: bool = False
    emit_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while its events are processed."""


def decide(
    desired: Mapping[ChannelName, AdapterSpec | None],
    actual: Mapping[ChannelName, ChannelRun],
    now_s: float,
) -> dict[ChannelName, Step]:
    """Return the next step of each channel that has one now. Pure.

    An account that a channel is to leave is free only once that has closed its connection.
    """
    leaving = [
        one.spec.config.account()
        for name, one in actual.items()
        if one.is_made and one.spec is not None and one.spec != desired.get(name)
    ]
    steps = dict[ChannelName, Step]()
    for name in {**actual, **desired}:
        run, spec = actual.get(name), desired.get(name)
        if run is not None and run.is_busy:
            continue
        if run is None or not run.is_made:
            if name not in desired:
                steps[name] = "forget"
            elif spec is not None and (spec.config.account() or None) not in leaving:
                steps[name] = "make"
        elif name not in desired:
            steps[name] = "remove"
        elif run.spec != spec:
            steps[name] = "change"
        elif run.restart_why:
            steps[name] = "restart"
        elif run.due_s <= now_s:
            steps[name] = "run"
    return steps


class ChannelSupervisor:
    """All channels of one gateway. A `LeaseListener` for the leases of channels."""

    _intake: EventIntake

    def __init__(
        self,
        channels: MutableMapping[ChannelName, Channel],
        settings: Settings,
        *,
        clock: Clock,
        stats: GatewayStats,
        outbox: Outbox,
        notices: Notices,
        membership: RoomMembership,
        tasks: asyncio.TaskGroup,
        make: AdapterFactory | None,
        is_shared: bool = False,
        random: Callable[[], float] = _random.random,
    ) -> None:
        """`channels`: all that there are; from now on changed only here. `make` None: they stay the
        same, whatever the settings say.

        `is_shared`: this process runs the channels whose leases it is given, and none yet. False:
        it runs all.
        """
        self._channels, self._make_adapter = channels, make
        self._settings = settings if make is not None else None
        self._clock, self.stats, self._notices, self._tasks = clock, stats, notices, tasks
        self._outbox, self._membership = outbox, membership
        self._random = random
        specs = build_adapter_specs(settings) if make is not None else {}
        self._configured: dict[ChannelName, AdapterSpec | None] = {
            name: specs.get(name)
            for name, one in channels.items()
            if not isinstance(one, OperatorChannel)  # it has no connection
        }
        self._is_shared, self._held = is_shared, set[ChannelName]()
        """Channels whose lease this process holds; alone it holds all, and has no leases."""
        self._runs = {
            name: ChannelRun(name=name, channel=channels[name], spec=spec, is_made=True)
            for name, spec in self._desired.items()
        }
        self._running: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._closed = False

    def start(self, intake: EventIntake) -> None:
        """Start them all. Call it once, in a running loop."""
        self._intake = intake
        self._spawn(self._follow())

    async def close(self) -> None:
        """End them all. Each closes its connection within a second."""
        self._closed = True
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running, timeout=GOODBYE_S)

    def is_restarting(self, name: ChannelName) -> bool:
        """Return whether it is being restarted."""
        return name in self._runs and self._runs[name].is_restarting

    def start_restart(
        self,
        name: ChannelName,
        why: str,
        on_result: Callable[[RestartState, str], Awaitable[None]],
    ) -> None:
        """Restart a channel, and call `on_result` with the result and its reason. Returns at
        once.
        """

        async def run() -> None:
            await on_result(*await self.restart(name, why))

        self._spawn(run())

    async def restart(self, name: ChannelName, why: str) -> tuple[RestartState, str]:
        """Cut one channel and run it again, also a refused one: the operator may have removed the
        cause.

        Return once it is up or refused, or after `RESTART_TIMEOUT_S`. One restart at a time. The
        second value is the reason why it is not up, as far as known. Untrusted: it may be the
        platform's text.
        """
        run = self._runs.get(name)
        if run is None or run.channel is None:
            return "refused", NOT_RUNNING_TEXT
        if run.is_restarting or run.is_busy or self._closed:
            return "busy", ""
        logger.info("%s is restarted: %s", name, why)
        run.restart_why, run.is_restarting = why, True
        self._notify_changed()
        try:
            await self._wait_until(lambda: not run.restart_why and not run.is_busy)
            settled = self._wait_until(
                lambda: run.is_up or not run.is_made or (run.task is not None and run.task.done())
            )
            with contextlib.suppress(TimeoutError):
                await with_timeout(self._clock, RESTART_TIMEOUT_S, settled)
        finally:
            run.is_restarting = False
        if run.refusal is not None:
            return "refused", run.refusal
        if run.is_up:
            return "up", ""
        return "down", run.down_reason if run.down_reason != why else "it has not answered yet"

    def prepare(self, new: Settings) -> Callable[[], None]:
        """Check new settings, as a `gateway.config.reload.ChangeListener`."""
        found = [ConfigProblem("", 0, format_key(keys), why) for keys, why in find_unrunnable(new)]
        configured = build_adapter_specs(new)
        for name, one in configured.items():
            if one != self._configured.get(name) and (why := one.config.explain_unconnectable()):
                found.append(ConfigProblem("", 0, f"channels.{name}", why))
        if found:
            raise ConfigError(tuple(found))
        return lambda: self._apply(new, configured)

    def _apply(self, new: Settings, configured: Mapping[ChannelName, AdapterSpec]) -> None:
        before, self._configured, self._settings = self._configured, {**configured}, new
        for name in {**before, **configured}.keys() - self._desired.keys() - self._runs.keys():
            if configured.get(name) != before.get(name):
                self._put_idle(name)
        self._notify_changed()

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        """Take the channel over from the process that held it before, and run it. As
        `LeaseListener`.

        Call it after `start`.
        """
        name = ChannelName(lease.removeprefix(CHANNEL_PREFIX))
        if name == OPERATOR_CHANNEL:  # every process runs its own
            await self._outbox.open(name)
            self._outbox.set_link_up(name, up=True)
        self._held.add(name)
        await self._reach(name)

    async def on_lease_ending(self, lease: LeaseName) -> None:
        """Stop the channel, and leave its posts to the process that takes it over. As
        `LeaseListener`.
        """
        name = ChannelName(lease.removeprefix(CHANNEL_PREFIX))
        self._held.discard(name)
        await self._reach(name)
        await self._outbox.close_channel(name)

    async def _reach(self, name: ChannelName) -> None:
        def is_reached() -> bool:
            run, spec = self._runs.get(name), self._desired.get(name)
            if run is None or spec is None:
                return run is None and spec is None
            return run.is_made and not run.is_busy and run.spec == spec

        self._notify_changed()
        await self._wait_until(lambda: self._closed or is_reached())

    @property
    def _desired(self) -> Mapping[ChannelName, AdapterSpec | None]:
        held = self._held if self._is_shared else self._configured.keys()
        return {name: one for name, one in self._configured.items() if name in held}

    async def _follow(self) -> None:
        while True:
            changed, now_s = self._changed, self._clock.monotonic()
            for name, step in decide(self._desired, self._runs, now_s).items():
                self._begin(name, step)
            due_s = min(
                [run.due_s for run in self._runs.values() if run.due_s > now_s], default=math.inf
            )
            if due_s == math.inf:
                await changed.wait()
                continue
            with contextlib.suppress(TimeoutError):
                await with_timeout(self._clock, due_s - now_s, changed.wait())

    def _begin(self, name: ChannelName, step: Step) -> None:
        run = self._runs.setdefault(name, ChannelRun(name=name))
        if step == "forget":
            del self._runs[name]
            self._put_idle(name)
            self.stats.remove_channel(name)
        elif step == "run":
            run.due_s, run.task = math.inf, self._spawn(self._run(run))
        else:
            run.is_busy = True
            self._spawn(self._carry_out(run, step))
        self._notify_changed()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a task that `close` ends. Its end wakes whoever waits for a change."""
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: self._notify_changed())
        return task

    def _notify_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._changed.wait()

    async def _carry_out(self, run: ChannelRun, step: Step) -> None:
        if step == "make":
            await self._make(run, self._desired[run.name])
        elif step == "restart":
            why, run.restart_why = run.restart_why, ""
            await self._cut(run, why)
        elif step == "remove" or not self._adapt(run):
            moved = MOVED_TEXT if run.name in self._configured else REMOVED_TEXT
            why = CHANGED_TEXT if run.name in self._desired else moved
            logger.info("%s says goodbye: %s", run.name, why)
            await self._cut(run, why)
            run.is_made, run.restart_why = False, ""
        run.is_busy = False

    async def _make(self, run: ChannelRun, wanted: AdapterSpec | None) -> None:
        """Make the adapter, unless another is wanted by then. The loop runs it."""
        name, store = run.name, self._outbox.store
        assert wanted is not None
        cursor = await store.saved_cursor(name)
        is_taken_over = self._is_shared and not self._outbox.delivers(name)
        try:
            await asyncio.to_thread(import_adapter, wanted.config)
            if self._desired.get(name) != wanted:
                return
            # an adapter that never ran knows nothing
            before = None if is_taken_over else self._channels.get(name)
            channel = self._new_adapter(name, cursor, before)
        except Exception:  # a bug in the adapter, and no reason to end the others
            logger.exception("%s cannot be made", name)
            run.spec, run.channel, run.is_made, run.due_s = wanted, None, True, math.inf
            self._put_idle(name)
            self.stats.add_channel(name, wanted.config.platform, self._clock.now())
            self.stats.mark_refused(name, "internal error", self._clock.now())
            return
        logger.info("%s begins", name)
        self._channels[name] = run.channel = channel
        run.spec, run.is_made, run.due_s = wanted, True, -math.inf
        if is_taken_over:
            # What its process reported last may be that it is up: all would take it for up.
            if any(one.channel == name and one.up for one in await store.connection_states()):
                await self._report_down(run, MOVED_TEXT)
            await self._outbox.open(name)
        self.stats.add_channel(name, channel.capabilities.platform, self._clock.now())
        if before is None:
            await self._outbox.teach(channel)

    def _adapt(self, run: ChannelRun) -> bool:
        """Try to change the channel without replacing it. Return whether it is as wanted then."""
        wanted = self._desired.get(run.name)
        channel: object = run.channel
        if (
            wanted is None
            or run.spec is None
            or run.spec.ranked_rooms != wanted.ranked_rooms
            or not isinstance(channel, CanApplyConfig)
            or not channel.apply_config(wanted.config)
        ):
            return False
        run.spec = wanted
        logger.info("%s goes on with its new configuration", run.name)
        self._membership.rejoin(run.name)
        return True

    def _put_idle(self, name: ChannelName) -> None:
        """Put an adapter that never connects in the place of a channel, if another process may hold
        it.
        """
        self._channels.pop(name, None)
        if self._is_shared and self._make_adapter is not None and name in self._configured:
            self._channels[name] = self._new_adapter(name, None, None)

    def _new_adapter(
        self, name: ChannelName, cursor: str | None, before: Channel | None
    ) -> Channel:
        assert self._make_adapter is not None
        assert self._settings is not None
        return self._make_adapter(name, self._settings, self._clock, cursor, before)

    async def _receive(
        self, run: ChannelRun, batch: Sequence[Notification], *, cursor: str | None = None
    ) -> None:
        """Process events, as `Emit`. Those of a channel that is not configured any more wait until
        it is cut, so that its platform gets no acknowledgement.
        """
        while run.name not in self._configured:
            await self._changed.wait()
        async with run.emit_lock:
            await self._intake.accept(run.name, batch, cursor=cursor)
            for event in batch:
                if isinstance(event, ConnectionChanged):
                    self._record_link(run, event)

    def _record_link(self, run: ChannelRun, link: ConnectionChanged) -> None:
        run.down_reason, run.is_up = link.reason, link.up
        if link.up:
            run.refusal = None
            self._notices.tell(
                f"channel:{run.name}:",
                lambda _to: _("{channel} works again.").format(channel=run.name),
                "ends",
                beside=run.name,
            )
        self._notify_changed()

    async def _report_down(self, run: ChannelRun, why: str) -> None:
        now = self._clock.now()
        down = ConnectionChanged(
            id=EventId(new_id(now)), channel=run.name, up=False, reason=why, sent=now
        )
        async with run.emit_lock:
            await self._intake.accept(run.name, [down])
            self._record_link(run, down)

    async def _cut(self, run: ChannelRun, why: str) -> None:
        if run.channel is None:
            return
        await self._outbox.pause(run.name, FLUSH_S)
        async with run.emit_lock:  # it may be reporting that it is up, which is over now
            await self._outbox.pause(run.name, FLUSH_S)
            while run.task is not None and not run.task.done():
                # more than once: what it still reports is not processed any more
                run.task.cancel()
                await asyncio.wait({run.task}, timeout=GOODBYE_S)
        await self._report_down(run, why)
        run.task, run.backoff, run.refusal, run.due_s = None, Backoff(), None, -math.inf

    async def _run(self, run: ChannelRun) -> None:
        """Run one connection. If it fails, say when the next one begins."""
        name, begun_s = run.name, self._clock.monotonic()
        assert run.channel is not None
        try:
            await run.channel.run(partial(self._receive, run))
            raise RuntimeError("run has returned")  # noqa: TRY301 - as any error of the adapter
        except Denied as error:  # the others go on
            now_s = self._clock.monotonic()
            run.refused_s = [one for one in run.refused_s if now_s - one < REFUSALS_COUNT_S]
            delay_s = min(REFUSED_RETRY_S[0] * 2.0 ** len(run.refused_s), REFUSED_RETRY_S[1])
            run.refused_s.append(now_s)
            run.refusal = error.reason
            logger.error(  # noqa: TRY400 - the operator can fix it
                "%s is refused: %s; next attempt in %.0f s", name, error.reason, delay_s
            )
            self.stats.mark_refused(name, error.reason, self._clock.now())
            refusal = N_(
                "The platform refuses the connection of {channel}: {reason}. I keep trying."
            )
            self._report_trouble(run, "refused", refusal, error.reason)
        except StoreError:
            raise  # without its log the gateway cannot go on
        except (
            Exception,
            asyncio.CancelledError,
        ) as error:  # a bug in the adapter: the others go on
            if is_cancellation(error):
                raise
            delay_s = run.backoff.next_delay_s(self._clock.monotonic() - begun_s, self._random())
            reason = f"internal error: {type(error).__name__}"
            logger.exception("%s broke; next attempt in %.0f s", name, delay_s)
            await self._report_down(run, reason)
            told = N_(
                "{channel} stopped because of an error ({reason}). I start it again; my log "
                "says more."
            )
            self._report_trouble(run, "broke", told, reason)
        run.due_s = self._clock.monotonic() + delay_s

    def _report_trouble(self, run: ChannelRun, what: str, text: str, reason: str) -> None:
        name = run.name
        self._notices.tell(
            f"channel:{name}:{what}",
            lambda _to: _(text).format(channel=name, reason=reason),
            "begins",
            beside=name,
        )


def build_adapter_specs(settings: Settings) -> dict[ChannelName, AdapterSpec]:
    """Return the spec of each channel."""
    return {
        ChannelName(name): AdapterSpec(
            config=config, ranked_rooms=find_ranked_rooms(ChannelName(name), settings)
        )
        for name, config in settings.channels.items()
    }


def count_events(stats: GatewayStats, store: Store) -> None:
    """Have the connections and the notifications counted that this process appends from now on."""

    def on_appended(entries: Sequence[LogEntry]) -> None:
        facts = {entry.seq: entry.fact for entry in entries}
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged):
                stats.record_link(entry.fact, entry.at)
            elif isinstance(entry.fact, Judgement) and entry.cause in facts:
                event = facts[entry.cause]
                at: Address | None = getattr(event, "at", None)
                channel = at.channel if at is not None else INNER_CHANNEL
                if isinstance(event, ConnectionChanged):
                    channel = event.channel
                elif event.kind not in OWN_KINDS:
                    stats.last_events[channel] = entry.at
                stats.events[channel, event.kind, entry.fact.fate] += 1

    store.subscribe(on_appended, Judgement, ConnectionChanged, *NOTIFICATION_CLASSES, own=True)
