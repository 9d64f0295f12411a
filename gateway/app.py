"""Composition root: builds the services of the gateway, starts them in order, and stops them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agent.models.base import Model
from agent.signals import DmnState
from channels.aio import cancel_and_wait
from channels.base import Channel, CommandSpec, TakesOver
from gateway.access.channels import Channels
from gateway.access.limits import UsageLimiter
from gateway.access.place_names import PlaceTitles
from gateway.access.roster import ROSTER_FACTS, Roster
from gateway.cluster.cluster import (
    AGENT_PREFIX,
    CHANNEL_PREFIX,
    EVERYTHING,
    UPKEEP,
    Cluster,
    LeaseName,
    agent_lease,
    channel_lease,
)
from gateway.cluster.monitor import ProcessMonitor
from gateway.commands.context import CommandContext
from gateway.commands.dispatcher import CommandDispatcher
from gateway.commands.services import Services, TakesServices
from gateway.commands.table import CommandTable, build_table
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings, ReloadResult, watch_config
from gateway.config.secrets import collect_secrets
from gateway.config.source import format_key
from gateway.config.validation import find_unrunnable
from gateway.context.compaction import CompactionStats
from gateway.context.conversation import ConversationLocks, ConversationReader
from gateway.context.digest import DigestBuilder
from gateway.context.observer import TurnTracker
from gateway.context.workspace_fs import AgentFiles
from gateway.core.clock import Clock, SystemClock
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.control_socket import ControlServer
from gateway.core.events import ChannelName, Command, ConnectionChanged, Message, PlaceRenamed
from gateway.core.facts import (
    NOTIFICATION_CLASSES,
    OPERATOR_CHANNEL,
    AudienceReported,
    Judgement,
    LimitReached,
    PostQueued,
    ToolRefused,
    TurnRecord,
)
from gateway.core.i18n import _
from gateway.core.logging import set_title_lookup
from gateway.core.metrics import GatewayStats
from gateway.core.process_files import (
    ProcessNameInUse,
    default_process_name,
    hold_process_files,
    process_name,
    socket_path,
)
from gateway.core.redaction import Redactor
from gateway.hooks import PROBLEM_PREFIX, PluginProblem, Plugins
from gateway.ingest.intake import Intake
from gateway.plugin import PluginContext
from gateway.plugins import find_platforms, find_plugins
from gateway.plugins.health import Health, list_routes
from gateway.plugins.http import OpsServer
from gateway.plugins.memory import Memory
from gateway.runtime.agent import Agent
from gateway.runtime.agents import Agents, take_over
from gateway.runtime.dmn_admin import load_dmn_states
from gateway.runtime.model_choice import ModelSelector, load_chosen_models
from gateway.runtime.models import ModelServices, open_model_services
from gateway.runtime.turn import TurnRunner
from gateway.runtime.turn_input import TurnServices
from gateway.store import (
    REMOVED_TEXT,
    Store,
    StoreClosed,
    StoreError,
    StoreInUse,
    StoreTasks,
    StoreUnavailable,
    StoreUnreadable,
    store_location,
)
from gateway.store.shared import SharedStore
from gateway.stream.attention import InternalIntake, LiveAttention
from gateway.stream.handle import GatewayHandle
from gateway.stream.inbox import ConversationInbox
from gateway.stream.loops import LoopGuard
from gateway.stream.media import MediaStore
from gateway.stream.mute import MutePlaces
from gateway.stream.notices import Notices
from gateway.stream.operator import OperatorChannel
from gateway.stream.outbox import Outbox, OutgoingFiles
from gateway.stream.presence import PresenceTracker
from gateway.stream.rooms import RoomMembership
from gateway.stream.routing import LiveAccessPolicy, LiveBindings, PrivacyCache
from gateway.stream.store_outages import StoreOutages
from gateway.stream.supervisor import (
    AdapterFactory,
    ChannelSupervisor,
    count_events,
    find_ranked_rooms,
)
from gateway.tools.dispatch import PermissionGate, RunningCalls, ToolRegistry
from gateway.tools.metrics import ToolStats

if TYPE_CHECKING:
    from gateway.cluster.database import DatabaseCluster

logger = logging.getLogger("reverie.app")

TURN_GRACE_S = 5.0
OUTAGE_GRACE_S = 3.0
"""Longest wait for a log that cannot be written while the gateway stops: less than for turns."""
RETRY_OPEN_S = 1.0
"""Wait between two tries to open a store that is locked or has no room; a try itself may take some
seconds."""
PREPARE_AFTER_S = 0.5
"""Real seconds until the first turn is prepared: the channels begin to connect meanwhile."""
SEND_GRACE_S = 2.0
"""Longest wait for the outbox. With one second of goodbye for the channels the stop stays below
SIGTERM's ten seconds."""


class ChannelUnavailable(Exception):
    """No gateway can run with the channels of the configuration. The text says what to change."""


class ProcessRemoved(Exception):
    """The other processes of the gateway took this one for dead: another one has taken over what it
    did.
    """


class StoreGivenUp(Exception):
    """The log could not be written for `store.exit_after`, or the database went away at the
    start.
    """


async def run(
    settings: Settings,
    stop: asyncio.Event,
    *,
    clock: Clock | None = None,
    channels: Mapping[ChannelName, Channel] | None = None,
    model: Model | None = None,
    live: LiveSettings | None = None,
    redactor: Redactor | None = None,
    name: str = "",
) -> None:
    """Run the gateway until `stop` is set; then finish or park the work in progress, within ten
    seconds, and return.

    `channels` and `model`: used in place of the configured ones; the model is closed. `live`:
    settings that may change at run time. `redactor`: redactor with the configuration's secrets;
    None: one is built from the settings. `name`: of this one among processes that share a store;
    empty: host and process id. Raises `StoreError` if the store cannot be opened or written,
    `ChannelUnavailable`, `PriceTableError`, `StoreGivenUp`, `ProcessRemoved`. Any other exception
    is a bug. On cancellation nothing is finished or parked: what was durable is taken up at the
    next start.
    """
    clock, live = clock or SystemClock(), live or LiveSettings(settings)
    if channels is None:
        for keys, why in find_unrunnable(live.settings):
            raise ChannelUnavailable(f"{format_key(keys)}: {why}")
    redactor = redactor or Redactor(collect_secrets(live.settings))
    opened = None
    is_shared = live.settings.store.url is not None and channels is None
    async with contextlib.AsyncExitStack() as held:
        try:
            process = held.enter_context(_hold_process_files(live.settings, name, clock))
            opened = await _open_store(
                live.settings, clock, redactor, stop, process, is_shared=is_shared
            )
        finally:
            if opened is None and model is not None:
                await model.aclose()
        if opened is None:
            return
        cluster = (
            await _join(
                held, opened, live.settings, name=process_name(process, live.settings.store.path)
            )
            if is_shared
            else None
        )
        services = open_services(
            live,
            clock,
            channels,
            opened,
            model=model,
            redactor=redactor,
            process=process,
            cluster=cluster,
        )
        async with services as (gateway, tasks):
            with tasks.watch_failure() as failure:
                await gateway.serve(stop, failure)


async def _join(
    held: contextlib.AsyncExitStack, store: Store, settings: Settings, *, name: str
) -> Cluster:
    """Join the processes that share the store, until `held` ends.

    Raises StoreGivenUp if the database has just gone away; the store is closed then.
    """
    from gateway.cluster.database import DatabaseCluster  # noqa: PLC0415 - an extra, and SQLite needs none of it

    assert settings.store.url is not None
    try:
        url = settings.store.url.get_secret_value()
        cluster = await DatabaseCluster.join(url, name=name)
        held.push_async_callback(cluster.leave)
        assert isinstance(store, SharedStore)
        await store.join(cluster.number)
    except BaseException as error:
        await store.close()
        if isinstance(error, StoreError):
            raise StoreGivenUp(
                f"the database went away while this process joined the others: {error}"
            ) from error
        raise
    cluster.log_listeners.append(store.follow_soon)
    return cluster


@contextlib.contextmanager
def _hold_process_files(settings: Settings, name: str, clock: Clock) -> Iterator[Path]:
    """See `hold_process_files`: a store in SQLite has one process, without a name. Raises
    StoreError.
    """
    name = (name or default_process_name()) if settings.store.url is not None else ""
    with contextlib.ExitStack() as held:
        try:
            process = held.enter_context(hold_process_files(settings.store.path, name, clock.now()))
        except ProcessNameInUse as error:
            raise StoreInUse(str(error), None) from error
        except OSError as error:
            raise StoreUnreadable(
                f"no files can be made beside {settings.store.path}: {error.strerror}"
            ) from error
        yield process


async def _open_store(
    settings: Settings,
    clock: Clock,
    redactor: Redactor,
    stop: asyncio.Event,
    process: Path,
    *,
    is_shared: bool,
) -> Store | None:
    """Open and migrate the store. None: the gateway was stopped before. `process`: see
    `process_path`.

    `is_shared`: other processes may open it so, too.

    A full disk and another program's lock are waited out as in a running gateway: `/ready` and
    `reverie health` say so, and after `store.exit_after` it raises StoreGivenUp.
    """
    since, waiting = clock.now(), asyncio.create_task(stop.wait())
    ops_task: asyncio.Task[None] | None = None
    try:
        while not stop.is_set():
            try:
                return await Store.open(
                    store_location(settings.store), clock, patient=True, is_shared=is_shared
                )
            except StoreUnavailable as error:
                if ops_task is None:
                    logger.error("%s; it is tried again and again", error)  # noqa: TRY400 - the operator can fix it
                    platforms = {
                        ChannelName(name): one.platform for name, one in settings.channels.items()
                    }
                    stats = GatewayStats(platforms, since)
                    stats.report_problem("store", str(error), since)
                    ops_task = asyncio.create_task(
                        _tell_starting(settings, process, clock, stats, redactor)
                    )
            age_s, limit_s = (clock.now() - since).total_seconds(), settings.store.exit_after
            if limit_s is not None and age_s >= limit_s:
                raise StoreGivenUp("the log could not be opened for too long (store.exit_after)")
            retry = asyncio.create_task(clock.sleep(RETRY_OPEN_S))
            await asyncio.wait([waiting, retry], return_when=asyncio.FIRST_COMPLETED)
            retry.cancel()
        return None
    finally:
        waiting.cancel()
        if ops_task is not None:
            ops_task.cancel()
            await asyncio.wait([ops_task])


async def _refuse_starting(_: CommandRequest) -> ControlResponse:
    return ControlResponse(ok=False, lines=("the gateway starts, and waits for its store",))


async def _tell_starting(
    settings: Settings, process: Path, clock: Clock, stats: GatewayStats, redactor: Redactor
) -> None:
    """Tell whoever asks that the gateway waits for its store, until cancelled."""
    server = OpsServer(settings.ops, clock, [partial(list_routes, stats, redactor)])
    try:
        if Health in find_plugins(settings.plugins.off).used:
            await server.start()
        await ControlServer(socket_path(process), _refuse_starting, stats.snapshot).run()
    finally:
        await server.close()


def make_channel(
    name: ChannelName,
    settings: Settings,
    clock: Clock,
    cursor: str | None,
    before: Channel | None = None,
    *,
    commands: Sequence[CommandSpec] = (),
) -> Channel:
    """Return the adapter of one account, which goes on from `cursor`.

    `before`: the stopped channel of that name, if there was one; a new adapter of the same class
    takes over its state. `commands`: what its native commands and menus show.
    """
    config = settings.channels[name]
    channel = find_platforms(settings.plugins.off)[config.platform].make(
        name=name,
        settings=config,
        clock=clock,
        cursor=cursor,
        commands=commands,
        ranked_rooms=find_ranked_rooms(name, settings),
    )
    if type(before) is type(channel) and isinstance(channel, TakesOver):
        channel.take_over(before)  # type: ignore[arg-type]  # of the same class
    return channel


async def carry_out_stopped(settings: Settings, order: CommandRequest) -> ControlResponse:
    """Carry out a command of the operator on the store of a stopped gateway: its services are
    built, and none starts.

    Raises `StoreError` if the store cannot be opened or written, `GatewayNotRunning` for a command
    that needs a running gateway, `ChannelUnavailable`, `PriceTableError`.
    """
    clock = SystemClock()
    names = [ChannelName(name) for name in settings.channels]
    channels = {name: make_channel(name, settings, clock, None) for name in names}
    store = await Store.open(store_location(settings.store), clock)
    async with open_services(LiveSettings(settings), clock, channels, store, is_stopped=True) as (
        gateway,
        tasks,
    ):
        await gateway.load()
        answer = await gateway.dispatcher.carry_out(order, stopped=True)
        tasks.cancel()  # e.g. deliveries of what was appended: the next gateway begins them
    return answer


@contextlib.asynccontextmanager
async def open_services(
    live: LiveSettings,
    clock: Clock,
    channels: Mapping[ChannelName, Channel] | None,
    store: Store,
    *,
    model: Model | None = None,
    redactor: Redactor | None = None,
    is_stopped: bool = False,
    process: Path | None = None,
    cluster: Cluster | None = None,
) -> AsyncIterator[tuple["GatewayServices", StoreTasks]]:
    """Open the models, and build the services. The store is closed with them.

    `channels` None: make the configured ones, and follow changes. `is_stopped`: no gateway runs.
    `process`: see `process_path`; None: the store's own. `cluster` None: this is the only process.
    """
    settings, cluster = live.settings, cluster or Cluster()
    commands = build_table(find_plugins(settings.plugins.off).used)
    make = partial(make_channel, commands=commands.specs())
    try:
        async with (
            store,
            open_model_services(live, clock, model=model) as model_services,
            StoreTasks(store) as tasks,
        ):
            names = [ChannelName(name) for name in settings.channels]
            is_made = channels is None
            if channels is None:
                # in place of those whose leases others hold stand adapters that never run
                channels = {
                    name: make(name, settings, clock, await store.saved_cursor(name))
                    for name in names
                }
            if settings.ops.token is not None and not is_stopped:
                channels = {**channels, OPERATOR_CHANNEL: OperatorChannel(clock)}
            gateway = GatewayServices(
                store=store,
                clock=clock,
                channels=channels,
                make=make if is_made else None,
                commands=commands,
                model_services=model_services,
                states=await load_dmn_states(
                    store, [agent.id for agent in settings.agents], clock.now()
                ),
                chosen=await load_chosen_models(store, settings),
                redactor=redactor or Redactor(collect_secrets(settings)),
                tasks=tasks,
                cluster=cluster,
                process=process,
            )
            yield gateway, tasks
    except BaseExceptionGroup as group:
        raise _first_error(group) from group


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a task group; the others follow from it and stay attached."""
    error = group.exceptions[0]
    return _first_error(error) if isinstance(error, BaseExceptionGroup) else error


def _build_handle(
    live: LiveSettings,
    clock: Clock,
    store: Store,
    *,
    tasks: asyncio.TaskGroup,
    channels: Channels,
    redactor: Redactor,
) -> GatewayHandle:
    live.secret_listeners.append(redactor.add_secrets)
    titles, bindings = PlaceTitles(store, redactor, channels), LiveBindings(live)
    store.subscribe(titles.on_appended, PlaceRenamed)
    roster = Roster(store, clock)
    store.subscribe(roster.on_appended, *ROSTER_FACTS)
    places = PrivacyCache(store, bindings, channels, titles)
    store.subscribe(places.on_appended, AudienceReported)
    # with several processes, each channel runs where its lease is held
    held = {} if channels.cluster.is_shared else _find_platforms(channels)
    names = {name: channel.capabilities.platform for name, channel in held.items()}
    stats = GatewayStats(names, clock.now())
    count_events(stats, store)
    return GatewayHandle(
        store=store,
        clock=clock,
        live=live,
        tasks=tasks,
        channels=channels,
        people=LiveAccessPolicy(live, roster, channels, bindings),
        roster=roster,
        notices=Notices(tasks, clock),
        places=places,
        redactor=redactor,
        stats=stats,
    )


def _build_processes(gateway: GatewayHandle) -> ProcessMonitor | None:
    """Return what sees the processes that share the store. None: this is the only process."""
    channels = gateway.channels
    if not channels.cluster.is_shared:
        return None
    processes = ProcessMonitor(
        cast("DatabaseCluster", channels.cluster),
        gateway.store,
        gateway.clock,
        lambda: {
            name: one.capabilities.platform for name, one in _find_platforms(channels).items()
        },
    )
    gateway.stats.look_elsewhere = processes.look
    gateway.store.subscribe(processes.on_appended, ConnectionChanged)
    return processes


def _find_platforms(channels: Channels) -> dict[ChannelName, Channel]:
    """Return the channels that connect somewhere."""
    return {name: one for name, one in channels.items() if not isinstance(one, OperatorChannel)}


def _plugin_notice(problem: PluginProblem) -> str:
    text = _("The plugin {name} does not work: {text}. To do without it, turn it off: {setting}")
    setting = f"`plugins: {{off: [{problem.plugin}]}}`"
    return text.format(name=problem.plugin, text=problem.text, setting=setting)


class GatewayServices:
    """Services of one run."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        channels: Mapping[ChannelName, Channel],
        make: AdapterFactory | None,
        commands: CommandTable,
        model_services: ModelServices,
        states: Mapping[str, DmnState],
        chosen: Mapping[str, str],
        redactor: Redactor,
        tasks: asyncio.TaskGroup,
        cluster: Cluster | None = None,
        process: Path | None = None,
    ) -> None:
        """`states`: DMN state of each agent from the last run. `chosen`: see `load_chosen_models`.

        `make`: see `make_channel`, for channels that are added or changed at run time. None: the
        channels stay the same. `process`: see `process_path`; None: the store's own.
        """
        self._follows_channels = make is not None
        live = model_services.live
        self.channels = Channels(live, channels, cluster)
        gateway = _build_handle(
            live, clock, store, tasks=tasks, channels=self.channels, redactor=redactor
        )
        self.handle, self.live, self.store, self.tasks = gateway, live, store, tasks
        self.model_services, self.cluster = model_services, self.channels.cluster
        self._upkeep_tasks: list[asyncio.Task[None]] = []
        self.limits = limits = UsageLimiter(live, clock, gateway.people)
        limited = TurnRecord, LimitReached, PostQueued, Message, Command
        store.subscribe(limits.on_appended, *limited)

        # What deserves attention, and whose it is.
        presence = self.presence = PresenceTracker(live, clock, gateway.people)
        store.subscribe(presence.on_judged, Judgement, Message)
        self.attention = LiveAttention(store, clock, live, presence, gateway.people)
        internal = InternalIntake(store, clock, self.attention, gateway.places.bindings)
        self.inbox = inbox = ConversationInbox(clock, live, limits, self.cluster)
        store.subscribe(inbox.on_judged, Judgement, *NOTIFICATION_CLASSES)
        store.subscribe(inbox.on_turns, TurnRecord)

        # What the agents know, what is sent, what they can do.
        self._build_knowledge()
        self._build_delivery(internal)
        running = RunningCalls(TurnTracker(), ToolStats())
        context = PluginContext(
            gateway=gateway,
            internal=internal,
            inbox=inbox,
            attention=self.attention,
            reader=self.reader,
            locks=self.locks,
            digests=self.digests,
            outgoing=self.outgoing,
            media=self.media,
            files=AgentFiles(live, store.path, gateway.places),
        )
        used = find_plugins(live.settings.plugins.off).used
        plugins = self.plugins = Plugins.build(used, context)
        gateway.notices.listeners.append(plugins.notify)
        store.subscribe(running.stats.on_appended, ToolRefused, own=True)
        registry = ToolRegistry(gateway, PermissionGate(gateway, plugins), running, plugins)

        # The agents.
        compactions = CompactionStats([one.id for one in live.settings.agents])
        self.agents = self._build_agents(registry, compactions, states)
        selector = ModelSelector(gateway, self.agents, model_services, chosen)

        # The platforms, commands, and what comes in.
        self.processes = _build_processes(gateway)
        self.supervisor = ChannelSupervisor(
            self.channels,
            live.settings,
            clock=clock,
            stats=gateway.stats,
            outbox=self.outbox,
            notices=gateway.notices,
            membership=self.membership,
            tasks=tasks,
            make=make,
            is_shared=self.cluster.is_shared,
        )
        if make is not None:
            live.on_change(self.supervisor.prepare)
        self.command_context = CommandContext(
            gateway=gateway,
            attention=self.attention,
            agents=self.agents,
            models=selector,
            membership=self.membership,
            supervisor=self.supervisor,
            plugins=plugins,
            commands=commands,
        )
        self.dispatcher = CommandDispatcher(self.command_context, limits)
        self.intake = Intake(
            gateway,
            dispatcher=self.dispatcher,
            attention=self.attention,
            loops=LoopGuard(store, clock, live, gateway.notices),
            limits=limits,
            plugins=plugins.judgings(),
        )
        plugins.on_problem = self._tell_plugin_failed
        for problem in (
            *find_plugins(live.settings.plugins.off).problems,
            *plugins.problems.values(),
        ):
            if problem.plugin not in live.settings.plugins.off:
                logger.error("%s", problem)
                self._tell_plugin_failed(problem)
        self.outages = StoreOutages(gateway)
        live.reload_listeners.append(self._on_reloaded)
        counted = [self.processes] if self.processes is not None else []
        sources = compactions, running.stats, limits, plugins
        services = Services(
            agents=self.agents,
            models=model_services,
            dispatcher=self.dispatcher,
            plugins=plugins,
            tracker=running.tracker,
            outbox=self.outbox,
            mute=self.mute,
            processes=self.processes,
            collectors=(
                *counted,
                *(one.metrics for one in sources),
                *(one.metrics for one in plugins.all if one.metrics is not None),
            ),
        )
        for one in plugins.all:
            if isinstance(one, TakesServices):
                with plugins.guard(one.name, "on_built"):
                    one.on_built(services)
        self._control = ControlServer(
            socket_path(process or store.path), self.dispatcher.carry_out, gateway.stats.snapshot
        )

    def _build_knowledge(self) -> None:
        gateway = self.handle
        self.media = MediaStore(
            self.live, self.store.path.parent / "media", self.channels, gateway.clock
        )
        self.reader, self.locks = ConversationReader(gateway, self.media), ConversationLocks()
        self.digests = {
            one.id: DigestBuilder(
                one.id, gateway, reader=self.reader, locks=self.locks, inbox=self.inbox
            )
            for one in self.live.settings.agents
        }

    def _build_delivery(self, internal: InternalIntake) -> None:
        gateway, store, channels, tasks = self.handle, self.store, self.channels, self.tasks
        self.outgoing = OutgoingFiles(store, is_shared=self.cluster.is_shared)
        self.mute = MutePlaces(
            store,
            gateway.clock,
            channels,
            tasks,
            notices=gateway.notices,
            titles=gateway.places.titles,
            inbox=self.inbox,
        )
        self.outbox = Outbox(
            store,
            channels,
            gateway.clock,
            tasks,
            files=self.outgoing,
            internal=internal,
            redactor=gateway.redactor,
            cluster=self.cluster,
            mute=self.mute,
        )
        self.membership = RoomMembership(store, channels, tasks, self.outbox, gateway.people)

    def _build_agents(
        self,
        registry: ToolRegistry,
        compactions: CompactionStats,
        states: Mapping[str, DmnState],
    ) -> Agents:
        services = TurnServices(
            reader=self.reader,
            media=self.media,
            presence=self.presence,
            registry=registry,
            stats=compactions,
            limits=self.limits,
            plugins=self.plugins,
        )
        memory = self.plugins.get(Memory)
        agents = [
            Agent(
                one,
                self.handle,
                TurnRunner(services, self.digests[one.id]),
                models=self.model_services,
                inbox=self.inbox,
                dreams=memory.dreamer if memory is not None else None,
                mute=self.mute,
                state=states.get(one.id, DmnState()),
            )
            for one in self.live.settings.agents
        ]
        return Agents(
            self.handle,
            agents,
            inbox=self.inbox,
            presence=self.presence,
            locks=self.locks,
            registry=registry,
        )

    async def serve(self, stop: asyncio.Event, failure: asyncio.Future[StoreError]) -> None:
        """Start the services in the order of their dependencies, and stop them along the way of a
        message.

        So work in progress can end. `failure`: see `StoreTasks.watch_failure`.
        """
        set_title_lookup(self.handle.places.titles.title)
        names = ", ".join(self.channels)
        logger.info(
            "serving %s with %s; the log is %s",
            names,
            self.agents.model_labels,
            self.store.location,
        )
        background = [
            self.tasks.create_task(self._give_up_store(stop, OUTAGE_GRACE_S)),
            self.tasks.create_task(self._give_up_store(self.outages.given_up, 0.0)),
        ]
        try:
            await self._start(background)
            await self._wait_until_stopped(stop, failure)
            if not failure.cancel():  # what fails from now on ends all at once
                await self.outages.tell_failed(failure.result())
                raise failure.result()
        except StoreClosed:
            if not self.store.given_up:
                raise
        logger.info("stopping")
        if self.cluster.fenced.is_set():
            self.store.give_up()  # another process has taken over what this one did
        await self._stop(background)
        if self.cluster.fenced.is_set():
            raise ProcessRemoved(REMOVED_TEXT)
        if self.outages.given_up.is_set():
            raise StoreGivenUp("the log could not be written for too long (store.exit_after)")

    def _on_reloaded(self, result: ReloadResult) -> None:
        is_broken = bool(result.problems or result.read_error)
        now = self.handle.clock.now()
        self.handle.stats.record_reload(result.after_restart, now, broken=is_broken)

    def _tell_plugin_failed(self, problem: PluginProblem) -> None:
        what, now = f"{PROBLEM_PREFIX}{problem.plugin}", self.handle.clock.now()
        self.handle.stats.report_problem(what, str(problem), now, partial=True)
        if problem.hook != "notify":  # it would fail with that, too
            self.handle.notices.tell(what, lambda _: _plugin_notice(problem), "begins")

    async def load(self) -> None:
        """Load from the log what commands and decisions need. Raises StoreError."""
        await self.handle.places.titles.load_recent()
        await self.handle.roster.load()
        if isinstance(bindings := self.handle.places.bindings, LiveBindings):
            await bindings.load(self.store)
        await self.limits.load(self.store)
        await self.attention.load()

    async def recover_knowledge(self) -> None:
        """Load what turns need to know. Call once, before the first turn."""
        await self.handle.places.load()
        await self.presence.load(self.store)
        await self.mute.load()

    async def _start(self, background: list[asyncio.Task[None]]) -> None:
        self.store.outage_listeners.append(self.outages.on_outage)
        await self.load()
        start = self.tasks.create_task
        background += map(
            start,
            (
                self._control.run(),
                self.outages.run(),
                watch_config(self.live, self.handle.clock),
            ),
        )
        if self.processes is not None:
            background.append(start(self.processes.run()))
        background += map(
            start,
            (
                self.model_services.restore_cadences(self.store),
                self.model_services.keep_warm.run(),
            ),
        )
        if (end := self.store.lost_end) is not None:
            logger.error(
                "the end of the log is lost: it had come to %d at %s, and comes to %d now; "
                "somebody restored an older "
                "copy, or the disk lost data. What waited to be sent is uncertain, and not sent "
                "again",
                end.marked,
                f"{end.at:%Y-%m-%d %H:%M:%S}",
                end.last,
            )
        await self.recover_knowledge()
        await self.plugins.start()
        if isinstance(operator := self.channels.get(OPERATOR_CHANNEL), OperatorChannel):
            emit = partial(self.intake.accept, OPERATOR_CHANNEL)
            background.append(start(operator.run(emit)))
        await self.store.follow()  # subscribers need what was loaded
        # it takes leases, with what was left under them, now or later than all of this has begun
        await self.cluster.start(self, self._find_leases(self.live.settings))
        self.agents.start()
        background += map(start, self.plugins.works("run"))
        self.supervisor.start(self.intake)
        background.append(start(self._prepare_turns()))
        self.live.on_change(lambda new: partial(self.cluster.want, self._find_leases(new)))

    async def _prepare_turns(self) -> None:
        """Start the models, and make the tools of the agents, while nobody waits: 150 ms that no
        channel has to wait for, and no first answer.
        """
        await asyncio.sleep(PREPARE_AFTER_S)
        for agent in self.agents.agents:
            _ = agent.context.tools
        await self.agents.warm_up()

    def _start_upkeep(self) -> None:
        work = (
            self.media.sweep(),
            *self.plugins.works("upkeep"),
        )
        self._upkeep_tasks = [self.tasks.create_task(one) for one in work]

    def _find_leases(self, settings: Settings) -> list[LeaseName]:
        channels = [channel_lease(ChannelName(name)) for name in settings.channels]
        if OPERATOR_CHANNEL in self.channels:
            channels.append(channel_lease(OPERATOR_CHANNEL))
        return [UPKEEP, *(agent_lease(agent.id) for agent in settings.agents), *channels]

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        """As `gateway.cluster.cluster.LeaseListener`: the same recovery as after a crash."""
        if lease in {UPKEEP, EVERYTHING}:
            self._start_upkeep()
            await self.outgoing.sweep()
        if lease == UPKEEP:
            return
        if lease == EVERYTHING:
            await self.outbox.open()
        await self.store.follow()  # with what the holder before has recorded
        await self.plugins.on_lease(lease)
        if lease.startswith(CHANNEL_PREFIX) and self._follows_channels:
            await self.supervisor.on_lease_acquired(lease)
        await take_over(self.handle, self.agents, self.inbox, lease)

    async def on_lease_ending(self, lease: LeaseName) -> None:
        """As `gateway.cluster.cluster.LeaseListener`."""
        if lease == UPKEEP:
            await cancel_and_wait(*self._upkeep_tasks)
            return
        await self.agents.on_lease_ending(lease, TURN_GRACE_S)
        if self._follows_channels and not lease.startswith(AGENT_PREFIX):
            await self.supervisor.on_lease_ending(lease)

    async def _wait_until_stopped(
        self, stop: asyncio.Event, failure: asyncio.Future[StoreError]
    ) -> None:
        """Return once it is set, or the log is given up or cannot be used."""
        ends: list[Coroutine[None, None, object]] = [
            stop.wait(),
            self.outages.given_up.wait(),
            self.cluster.fenced.wait(),
        ]
        waits: list[asyncio.Future[Any]] = [asyncio.create_task(one) for one in ends]
        try:
            await asyncio.wait([*waits, failure], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await (
                self.inbox.close()
            )  # its windows are no tasks of the group, and would find nobody to notify
            raise
        finally:
            for one in waits:
                one.cancel()

    async def _stop(self, background: Sequence[asyncio.Task[None]]) -> None:
        """Stop the services along the way of a message, so that work ends.

        What cannot be written any more is abandoned.
        """

        async def settle() -> None:
            running = [*background, *self._upkeep_tasks]
            for task in running:
                task.cancel()
            await self.membership.close()
            await asyncio.wait(running)

        for step in (
            self.inbox.close,
            lambda: asyncio.gather(self.cluster.drain(), self.agents.stop(TURN_GRACE_S)),
            self.command_context.models.close,
            self.plugins.stop,
            lambda: self.outbox.drain(SEND_GRACE_S),
            self.supervisor.close,
            settle,
            self.outbox.close,
        ):
            try:
                await step()
            except StoreClosed as error:
                if not self.store.given_up:
                    raise
                logger.warning("stopping: %s", error)

    async def _give_up_store(self, stopping: asyncio.Event, grace_s: float) -> None:
        """Abandon a log that cannot be written, because waiting for it must not block the stop."""
        await stopping.wait()
        await asyncio.sleep(grace_s)
        self.store.give_up()
