"""Composition root: builds the services of the gateway, starts them in order, and stops them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agent.models.base import Model
from agent.signals import DmnState
from channels.aio import cancel_and_wait
from channels.base import Channel
from gateway.access.channels import Channels
from gateway.access.greeting import Greeter
from gateway.access.limits import UsageLimiter
from gateway.access.linking import AccountLinker
from gateway.access.owners import CommandMenuPublisher, OwnerNotifier
from gateway.access.place_names import PlaceTitles
from gateway.access.roster import ROSTER_FACTS, Roster
from gateway.cluster.cluster import (
    AGENT_PREFIX,
    UPKEEP,
    Cluster,
    LeaseName,
    agent_lease,
    channel_lease,
)
from gateway.commands.context import CommandContext
from gateway.commands.dispatcher import CommandDispatcher
from gateway.config.models import Settings
from gateway.config.reload import ConfigWatcher, LiveSettings
from gateway.config.secrets import collect_secrets
from gateway.context.conversation import ConversationReader
from gateway.context.dream import Dreamer
from gateway.context.evidence import EvidenceStore
from gateway.context.intentions import IntentionWatch
from gateway.context.journal import JournalStore, NoteForgetter
from gateway.context.memory import MemoryStore
from gateway.context.observer import TurnTracker
from gateway.context.prompt_context import ChannelCards
from gateway.context.recall import AmbientRecall, RecallSearch
from gateway.context.recap import RecapBuilder
from gateway.context.reminders import ReminderService
from gateway.core.clock import Clock, SystemClock
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.events import ChannelName, Command, ConnectionChanged, Message
from gateway.core.facts import (
    NOTIFICATION_CLASSES,
    OPERATOR_CHANNEL,
    ApprovalEnded,
    ApprovalRequested,
    AudienceReported,
    Judgement,
    LimitReached,
    PostQueued,
    RoleAssigned,
    ToolRefused,
    TurnRecord,
)
from gateway.core.logging import set_title_lookup
from gateway.core.metrics import GatewayStats
from gateway.core.process_files import (
    ProcessNameInUse,
    default_process_name,
    hold_process_files,
    process_name,
)
from gateway.core.redaction import Redactor
from gateway.ingest.factory import check_adapters, make_channel
from gateway.ingest.intake import EventJudge, Intake
from gateway.ops.api_views import ApiBackend
from gateway.ops.health import OutageMonitor
from gateway.ops.live_events import EventBroadcaster
from gateway.ops.metrics import AgentStats
from gateway.ops.processes import ProcessMonitor
from gateway.ops.server import OpsService
from gateway.runtime.agents import Agents, load_chosen_models
from gateway.runtime.dmn_admin import load_dmn_states
from gateway.runtime.dream_turn import DreamRunner
from gateway.runtime.model_choice import ModelSelector
from gateway.runtime.models import ModelServices, open_model_services
from gateway.runtime.rewind import Rewinder
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
from gateway.store.retention import run_retention
from gateway.store.shared import SharedStore
from gateway.stream.attention import LiveAttention
from gateway.stream.inbox import ConversationInbox
from gateway.stream.internal import InternalIntake
from gateway.stream.media import MediaStore
from gateway.stream.mute import MutePlaces
from gateway.stream.operator import OperatorChannel
from gateway.stream.outbox import Outbox, OutgoingFiles
from gateway.stream.presence import PresenceTracker
from gateway.stream.preview import TurnPreviews
from gateway.stream.rooms import RoomMembership
from gateway.stream.routing import LiveAccessPolicy, LiveBindings, PrivacyCache
from gateway.stream.supervisor import AdapterFactory, ChannelReconciler, ChannelSupervisor
from gateway.tools.agent import SkillTools
from gateway.tools.approvals import Approvals
from gateway.tools.dispatch import PermissionGate, RunningCalls
from gateway.tools.files import FileTools
from gateway.tools.mcp.client import McpServers
from gateway.tools.mcp.review import ToolDefinitionReview
from gateway.tools.memory import MemoryTools, ReminderTools
from gateway.tools.metrics import ToolStats
from gateway.tools.platform import MessagingTools, PlatformTools
from gateway.tools.read_room import RoomReader
from gateway.tools.registry import ToolRegistry
from gateway.tools.shell import ShellTools
from gateway.tools.telling import OwnerTelling
from gateway.tools.web import WebTools
from gateway.tools.workspace_fs import AgentFiles

logger = logging.getLogger("reverie.app")

TURN_GRACE_S = 5.0
OUTAGE_GRACE_S = 3.0
"""Longest wait for a log that cannot be written while the gateway stops: less than for turns."""
RETRY_OPEN_S = 1.0
"""Wait between two tries to open a store that is locked or has no room; a try itself may take some
seconds."""
SEND_GRACE_S = 2.0
"""Longest wait for the outbox. With one second of goodbye for the channels the stop stays below
SIGTERM's ten seconds."""


class NoChannelsLeft(Exception):
    """Every channel was refused by its platform: there is nobody to talk to."""


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
    stays: bool = False,
    name: str = "",
) -> None:
    """Run the gateway until `stop` is set; then finish or park the work in progress, within ten
    seconds, and return.

    `channels` and `model`: used in place of the configured ones; the model is closed. `live`:
    settings that may change at run time. `redactor`: redactor with the configuration's secrets;
    None: one is built from the settings. `stays`: go on trying although every channel was refused,
    in place of `NoChannelsLeft`. `name`: of this one among processes that share a store; empty:
    host and process id. Raises `StoreError` if the store cannot be opened or written,
    `ChannelUnavailable`, `PriceTableError`, `NoChannelsLeft`, `StoreGivenUp`, `ProcessRemoved`. Any
    other exception is a bug. On cancellation nothing is finished or parked: what was durable is
    taken up at the next start.
    """
    clock, live = clock or SystemClock(), live or LiveSettings(settings)
    if channels is None:
        check_adapters(live.settings)
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
                await gateway.serve(stop, failure, stays=stays)


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
    cluster.add_log_listener(store.follow_soon)
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
                        OpsService(settings.ops, process, clock, stats, redactor).run()
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


async def carry_out_stopped(settings: Settings, order: CommandRequest) -> ControlResponse:
    """Carry out a command of the operator on the store of a stopped gateway: its services are
    built, and none starts.

    Raises `StoreError` if the store cannot be opened or written, `GatewayNotRunning` for a command
    that needs a running gateway, `ChannelUnavailable`, `PriceTableError`.
    """
    clock = SystemClock()
    names = [
        ChannelName(name) for name, one in settings.channels.items() if one.platform != "console"
    ]
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
    settings, make, cluster = (
        live.settings,
        make_channel if channels is None else None,
        cluster or Cluster(),
    )
    try:
        async with (
            store,
            open_model_services(live, clock, model=model) as model_services,
            StoreTasks(store) as tasks,
        ):
            names = [ChannelName(name) for name in settings.channels]
            if (
                channels is None
            ):  # in place of those whose leases others hold stand adapters that never run
                channels = {
                    name: make_channel(name, settings, clock, await store.saved_cursor(name))
                    for name in names
                }
            if settings.ops.token is not None and not is_stopped:
                channels = {**channels, OPERATOR_CHANNEL: OperatorChannel(clock)}
            gateway = GatewayServices(
                store=store,
                clock=clock,
                channels=channels,
                make=make,
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


class GatewayServices:
    """Services of one run."""

    def __init__(  # noqa: PLR0915 - the picture of the program
        self,
        *,
        store: Store,
        clock: Clock,
        channels: Mapping[ChannelName, Channel],
        make: AdapterFactory | None,
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
        self.store, self.clock, self.model_services, self.tasks = (
            store,
            clock,
            model_services,
            tasks,
        )
        process = self.process = process or store.path
        cluster = self.cluster = cluster or Cluster()
        self._upkeep_tasks: list[asyncio.Task[None]] = []
        live = self.live = model_services.live
        settings = live.settings
        self.channels = Channels(live, channels, cluster)
        live.add_secret_listener(redactor.add_secrets)

        # Who may do what.
        titles = self.titles = PlaceTitles(store, redactor, self.channels)
        roster = self.roster = Roster(store, clock)
        store.subscribe(roster.on_appended, *ROSTER_FACTS)
        bindings = LiveBindings(live)
        access_policy = self.access_policy = LiveAccessPolicy(live, roster, self.channels, bindings)
        linker = AccountLinker(roster, access_policy, clock, self.channels)
        greeter = Greeter(
            roster, access_policy, clock, linking=linker, channels=self.channels, titles=titles
        )
        owners = self.owners = OwnerNotifier(
            store,
            clock,
            access_policy,
            live=live,
            tasks=tasks,
            channels=self.channels,
            titles=titles,
            room_language=lambda at: bindings.find(at).language,
        )
        limits = self.limits = UsageLimiter(live, clock, access_policy)
        limited = TurnRecord, LimitReached, PostQueued, Message, Command
        store.subscribe(limits.on_appended, *limited)
        self.command_menus = CommandMenuPublisher(store, live, access_policy, self.channels)

        # What deserves attention, and whose it is.
        attention = self.attention = LiveAttention(store, live)
        self.inbox = ConversationInbox(clock, live, limits, cluster)
        store.subscribe(self.inbox.on_judged, Judgement, *NOTIFICATION_CLASSES)
        store.subscribe(self.inbox.on_turns, TurnRecord)

        # What the agents know.
        self.media = MediaStore(live, store.path.parent / "media", self.channels, clock)
        places = self.places = PrivacyCache(store, bindings, self.channels, titles)
        store.subscribe(places.on_appended, AudienceReported)
        presence = self.presence = PresenceTracker(live, clock, access_policy)
        store.subscribe(presence.on_judged, Judgement, Message)
        internal = InternalIntake(store, clock, attention, bindings, presence)
        journal = self.journal = JournalStore(store, clock, live.agent_directory, cluster)
        memory = self.memory = MemoryStore(store, clock, live.agent_directory)
        dreamer = Dreamer(store, journal, memory)
        forgetter = self.forgetter = NoteForgetter(
            store, clock, places, journal, memory, redactor=redactor
        )
        reminders = self.reminders = ReminderService(
            store, clock, live=live, access_policy=access_policy, internal=internal, cluster=cluster
        )
        self.intentions = IntentionWatch(
            store,
            clock,
            bindings=bindings,
            places=places,
            access_policy=access_policy,
            internal=internal,
        )
        evidence = EvidenceStore(store, clock, places, self.media)
        recall_search = RecallSearch(store, places, memory, journal, redactor)
        recaps = RecapBuilder(store, places, redactor, clock, live)
        ambient_recall = AmbientRecall(store, places, memory, journal, clock, redactor, live)

        # What is sent.
        self.outgoing_files = OutgoingFiles(store, is_shared=cluster.is_shared)
        self.outbox = Outbox(
            store,
            self.channels,
            clock,
            tasks,
            files=self.outgoing_files,
            internal=internal,
            redactor=redactor,
            cluster=cluster,
        )
        self.previews = TurnPreviews(
            store, clock, self.channels, tasks, redactor, teach=self.outbox.teach
        )
        self.mute = MutePlaces(
            store, clock, self.channels, tasks, owners=owners, titles=titles, inbox=self.inbox
        )
        self.room_membership = RoomMembership(
            store, self.channels, tasks, self.outbox, access_policy
        )

        # What the agents can do.
        files = AgentFiles(live, store.path, places)
        self.tool_definitions = ToolDefinitionReview(store, clock, tasks, owners)
        self.approvals = Approvals(
            store=store,
            clock=clock,
            live=live,
            places=places,
            access_policy=access_policy,
            channels=self.channels,
            definitions=self.tool_definitions,
            cluster=cluster,
        )
        tool_stats = ToolStats()
        store.subscribe(
            tool_stats.on_appended, ToolRefused, ApprovalRequested, ApprovalEnded, own=True
        )
        store.subscribe(tool_stats.on_ended_elsewhere, ApprovalEnded, own=False)
        skills = SkillTools(live, bindings)
        self.shell = ShellTools(
            live, clock, files, skills, internal, access_policy=access_policy, places=places
        )
        store.subscribe(self.shell.on_roles_assigned, RoleAssigned)
        self.web = WebTools(live, clock, store, access_policy, self.media)
        self.mcp = McpServers(
            live.settings.tools.mcp, clock, tasks, self.media, self.tool_definitions
        )
        rooms = RoomReader(
            reader=store,
            places=places,
            bindings=bindings,
            access_policy=access_policy,
            channels=self.channels,
            redactor=redactor,
        )
        messaging = MessagingTools(
            store=store,
            clock=clock,
            bindings=bindings,
            places=places,
            access_policy=access_policy,
            channels=self.channels.keys(),
            internal=internal,
        )
        self.telling = OwnerTelling(
            store=store,
            clock=clock,
            live=live,
            bindings=bindings,
            places=places,
            access_policy=access_policy,
            presence=presence,
            digests=messaging.digests,
            locks=messaging.locks,
            cluster=cluster,
        )
        platform = PlatformTools(
            store=store,
            clock=clock,
            channels=self.channels,
            places=places,
            rooms=rooms,
            files=files,
            outfiles=self.outgoing_files,
            messaging=messaging,
        )
        self.turn_tracker = TurnTracker()
        self.tool_registry = ToolRegistry(
            live=live,
            gate=PermissionGate(live, store, clock, self.approvals, access_policy, places),
            running=RunningCalls(self.turn_tracker, tool_stats),
            redactor=redactor,
            mcp=self.mcp,
            shell=self.shell,
            families={
                "itself": [
                    messaging,
                    self.telling,
                    MemoryTools(journal, recall_search, recaps, forgetter, evidence),
                    ReminderTools(reminders, clock, self.intentions),
                    skills,
                ],
                "rooms": [platform, rooms],
                "files": [FileTools(files, self.media)],
                "shell": [self.shell],
                "web": [self.web],
            },
        )

        # The agents.
        self.agent_stats = AgentStats(
            model_services.workspaces.counts.by_path, lambda: self.agents.dmn_status
        )
        store.subscribe(
            self.agent_stats.on_appended, Judgement, TurnRecord, *NOTIFICATION_CLASSES, own=True
        )
        self.agents = Agents(
            store=store,
            clock=clock,
            tasks=tasks,
            models=model_services,
            places=places,
            presence=presence,
            evidence=evidence,
            ambient_recall=ambient_recall,
            recaps=recaps,
            dreams=DreamRunner(dreamer, journal, internal),
            registry=self.tool_registry,
            skills=skills,
            reader=ConversationReader(store, access_policy, self.media, redactor),
            media=self.media,
            bindings=bindings,
            cards=ChannelCards(store, clock, self.channels, access_policy, redactor, titles=titles),
            messaging=messaging,
            inbox=self.inbox,
            mute=self.mute,
            previews=self.previews,
            tracker=self.turn_tracker,
            limits=limits,
            states=states,
            chosen=chosen,
            cluster=cluster,
        )
        self.rewinder = Rewinder(
            store=store,
            clock=clock,
            room_locks=self.agents.room_locks,
            agents=self.agents,
            tasks=tasks,
        )
        self.model_selector = ModelSelector(self.agents, chosen)

        # The platforms.
        platforms = {
            name: one for name, one in self.channels.items() if not isinstance(one, OperatorChannel)
        }
        if cluster.is_shared:  # each runs where its lease is held
            platforms = {}
        self.stats = GatewayStats(
            {name: channel.capabilities.platform for name, channel in platforms.items()},
            clock.now(),
        )
        self.processes: ProcessMonitor | None = None
        if cluster.is_shared:
            self.processes = self.stats.processes = ProcessMonitor(
                cluster,
                store,
                clock,
                lambda: {
                    name: one.capabilities.platform
                    for name, one in self.channels.items()
                    if not isinstance(one, OperatorChannel)
                },
            )
            store.subscribe(self.processes.on_appended, ConnectionChanged)
        self.channel_supervisor = ChannelSupervisor(
            platforms, clock=clock, stats=self.stats, outbox=self.outbox, owners=owners, tasks=tasks
        )

        # Commands, and what comes in.
        self.command_context = CommandContext(
            store=store,
            clock=clock,
            live=live,
            channels=self.channels,
            stats=self.stats,
            redactor=redactor,
            access_policy=access_policy,
            roster=roster,
            account_linker=linker,
            limits=limits,
            attention=attention,
            places=places,
            journal=journal,
            memory=memory,
            forgetter=forgetter,
            reminders=reminders,
            agents=self.agents,
            rewinder=self.rewinder,
            model_selector=self.model_selector,
            approvals=self.approvals,
            files=files,
            membership=self.room_membership,
            supervisor=self.channel_supervisor,
            tasks=tasks,
            cluster=cluster,
        )
        self.dispatcher = CommandDispatcher(self.command_context)
        judge = EventJudge(
            store,
            clock,
            live=live,
            access_policy=access_policy,
            attention=attention,
            bindings=bindings,
            presence=presence,
            owner_names=self.owners.names,
        )
        self.intake = Intake(
            store,
            clock,
            stats=self.stats,
            places=places,
            judge=judge,
            intentions=self.intentions,
            dispatcher=self.dispatcher,
            greeter=greeter,
            limits=limits,
            owners=owners,
        )

        # What operators see.
        self.outages = OutageMonitor(
            live,
            self.channels,
            self.stats,
            clock,
            outbox=self.outbox,
            owners=owners,
            titles=titles,
            mute=self.mute,
            store=store,
            room_language=lambda at: bindings.find(at).language,
            models=lambda: model_services.pool.caching_models,
            cluster=cluster,
        )
        store.subscribe(self.outages.on_appended, TurnRecord)
        backend = ApiBackend(
            store,
            clock,
            self.stats,
            self.turn_tracker,
            agents=self.agents,
            channels=self.channels,
            titles=titles,
            redactor=redactor,
            dispatcher=self.dispatcher,
            cluster=cluster,
            processes=self.processes,
        )
        self.event_stream = EventBroadcaster(backend)
        has_api = settings.ops.token is not None
        self.ops_service = OpsService(
            settings.ops,
            process,
            clock,
            self.stats,
            redactor,
            sources=(
                self.agent_stats.metrics,
                self.agents.compaction_stats.metrics,
                tool_stats.metrics,
                limits.metrics,
                *([self.processes] if self.processes is not None else []),
            ),
            outages=self.outages,
            stream=self.event_stream if has_api else None,
            handler=self.dispatcher.carry_out,
            cluster=cluster,
        )
        live.add_reload_listener(self.outages.on_reloaded)
        live.add_reload_listener(self.event_stream.on_reloaded)
        self.reconciler: ChannelReconciler | None = None
        if make is not None:
            self.reconciler = ChannelReconciler(
                settings,
                self.channels,
                self.channel_supervisor,
                store=store,
                clock=clock,
                membership=self.room_membership,
                previews=self.previews,
                make=make,
                is_shared=cluster.is_shared,
            )
            live.on_change(self.reconciler.prepare)

    async def serve(
        self, stop: asyncio.Event, failure: asyncio.Future[StoreError], *, stays: bool = False
    ) -> None:
        """Start the services in the order of their dependencies, and stop them along the way of a
        message.

        So work in progress can end. `failure`: see `StoreTasks.watch_failure`. `stays`: as `run`.
        """
        set_title_lookup(self.titles.title)
        names = ", ".join(self.channels)
        logger.info(
            "serving %s with %s; the log is %s",
            names,
            self.agents.model_labels,
            self.store.location,
        )
        background = [
            self.tasks.create_task(self._give_up_store(stop, OUTAGE_GRACE_S)),
            self.tasks.create_task(self._give_up_store(self.outages.store_given_up, 0.0)),
        ]
        try:
            await self._start(background, stays=stays)
            await self._wait_until_stopped(stop, failure)
            if not failure.cancel():  # what fails from now on ends all at once
                await self.outages.tell_store_failed(failure.result())
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
        if self.outages.store_given_up.is_set():
            raise StoreGivenUp("the log could not be written for too long (store.exit_after)")
        if not stop.is_set():
            raise NoChannelsLeft(
                "every channel was refused by its platform; the reasons are logged above"
            )

    async def load(self) -> None:
        """Load from the log what commands and decisions need. Raises StoreError."""
        await self.titles.load_recent()
        await self.roster.load()
        await self.owners.load()
        await self.limits.load(self.store)
        await self.attention.load()

    async def recover_knowledge(self) -> None:
        """Recover what an earlier process left of the agents' files. Call once, before the first
        turn.
        """
        agents = [agent.id for agent in self.live.settings.agents]
        await self.places.load()
        await self.intentions.load()
        await self.presence.load(self.store)
        await self.mute.load()
        if not self.cluster.is_shared:
            await self._recover_files(agents)

    async def _recover_files(self, agents: Sequence[str]) -> None:
        await self.journal.recover(agents)
        for agent in agents:
            await self.memory.recover(agent)
        await self.forgetter.recover(agents)

    async def _start(self, background: list[asyncio.Task[None]], *, stays: bool) -> None:
        self.store.add_outage_listener(self.outages.on_store_outage)
        await self.load()
        start, is_shared = self.tasks.create_task, self.cluster.is_shared
        background += map(
            start,
            (
                self.ops_service.run(),
                ConfigWatcher(self.live, self.clock).run(),
            ),
        )
        if self.processes is not None:
            background.append(start(self.processes.run()))
        background += map(
            start,
            (
                self.agents.warm_up(),
                self.model_services.restore_cadences(self.store),
                self.model_services.keep_warm.run(self.agent_stats.count_request),
            ),
        )
        if isinstance(operator := self.channels.get(OPERATOR_CHANNEL), OperatorChannel):
            emit = partial(self.intake.accept, OPERATOR_CHANNEL)
            background.append(start(operator.run(emit)))
        if not is_shared:
            self._start_upkeep()
            await self._recover_posts(is_shared=False)
        await self.recover_knowledge()
        if not is_shared:
            await self.approvals.recover()
        await self.tool_definitions.load()
        await self.telling.load()
        await self.store.follow()  # subscribers need what was loaded
        self.mcp.start()
        if not is_shared:
            await self.outgoing_files.sweep()
            for arrival in await self.agents.find_pending_arrivals():
                self.inbox.add(arrival)
        self.agents.start()
        background += map(
            start,
            (
                self.command_menus.run(),
                self.reminders.run(),
                self.telling.run(),
                self.presence.run(),
            ),
        )
        self.channel_supervisor.start(self.intake, stays=stays or is_shared)
        if is_shared:
            await self._recover_posts(is_shared=True)
            await self.cluster.start(self, self._find_leases(self.live.settings))
            self.live.on_change(lambda new: partial(self.cluster.want, self._find_leases(new)))

    def _start_upkeep(self) -> None:
        work = (
            self.media.sweep(),
            run_retention(self.store, self.live.settings.store.keep, self.clock),
        )
        self._upkeep_tasks = [self.tasks.create_task(one) for one in work]

    def _find_leases(self, settings: Settings) -> list[LeaseName]:
        channels = [channel_lease(ChannelName(name)) for name in settings.channels]
        if OPERATOR_CHANNEL in self.channels:
            channels.append(channel_lease(OPERATOR_CHANNEL))
        return [UPKEEP, *(agent_lease(agent.id) for agent in settings.agents), *channels]

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        """As `gateway.cluster.cluster.LeaseListener`: the same recovery as after a crash."""
        if lease == UPKEEP:
            self._start_upkeep()
            await self.outgoing_files.sweep()
            return
        is_agent = lease.startswith(AGENT_PREFIX)
        if is_agent:
            await self._recover_files([lease.removeprefix(AGENT_PREFIX)])
        await self.approvals.recover(lease)
        if self.reconciler is not None and not is_agent:
            await self.reconciler.on_lease_acquired(lease)
        await self.agents.on_lease_acquired(lease)
        self.reminders.notify_changed()
        self.telling.notify_changed()

    async def on_lease_ending(self, lease: LeaseName) -> None:
        """As `gateway.cluster.cluster.LeaseListener`."""
        if lease == UPKEEP:
            await cancel_and_wait(*self._upkeep_tasks)
            return
        await self.agents.on_lease_ending(lease, TURN_GRACE_S)
        if self.reconciler is not None and not lease.startswith(AGENT_PREFIX):
            await self.reconciler.on_lease_ending(lease)

    async def _recover_posts(self, *, is_shared: bool) -> None:
        """Take over the previews and posts of an earlier process, on all channels or (shared) when
        they are opened.

        What a log that has lost its end does not know may have been sent: that is uncertain.
        """
        unsure = ""
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
            unsure = "the log has lost its end: it may have been sent"
        if not is_shared:
            await self.previews.recover(unsure=unsure)
            await self.outbox.recover(unsure=unsure)
        elif unsure:
            await self.previews.recover(unsure=unsure)
            await self.outbox.give_up_posts(unsure)

    async def _wait_until_stopped(
        self, stop: asyncio.Event, failure: asyncio.Future[StoreError]
    ) -> None:
        """Return once it is set, no channel is left, or the log is given up or cannot be used."""
        ends: list[Coroutine[None, None, object]] = [
            stop.wait(),
            self.outages.store_given_up.wait(),
            self.cluster.fenced.wait(),
            self.channel_supervisor.wait_until_all_refused(),
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
            await self.room_membership.close()
            await asyncio.wait(running)

        for step in (
            self.inbox.close,
            lambda: asyncio.gather(self.cluster.drain(), self.agents.stop(TURN_GRACE_S)),
            self.rewinder.close,
            self.model_selector.close,
            self.shell.aclose,
            self.mcp.aclose,
            self.web.aclose,
            self.approvals.close,
            self.journal.close,
            self.previews.close,
            lambda: self.outbox.drain(SEND_GRACE_S),
            self.channel_supervisor.close,
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
