"""The composition root: the one place that knows everything. Wires, starts, stops; decides nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from agent.models.base import Model
from agent.signals import Level, State
from channels.base import CanComplete, Channel, Emit, HasDropped
from gateway import access, policies
from gateway.acting import Rooms
from gateway.adapters import Unavailable, check_adapters, make_channel
from gateway.asking import BLOCKED, are_blocked
from gateway.bindings import Bindings
from gateway.cards import Cards
from gateway.channels_now import Each
from gateway.clock import Clock, SystemClock
from gateway.commands.suggest import Suggestions
from gateway.control import listen
from gateway.correlation import entitle
from gateway.desks import Desks, House
from gateway.doubts import notice
from gateway.equipment import Equipment, equip
from gateway.events import Address, Alarm, ChannelName, Notification, Sender
from gateway.fleet import Fleet
from gateway.ground import Ground
from gateway.inbox import Arrival, Inbox
from gateway.intake import Doors
from gateway.known_secrets import known_secrets
from gateway.life import Ears, Life
from gateway.live import Live, Reloaded, Takes
from gateway.material import Note, render_waiting
from gateway.media import Media
from gateway.minds import Minds
from gateway.operating import Operating
from gateway.ops.api import house as shown
from gateway.ops.llm_stats import LlmStats
from gateway.ops.mind_stats import MindStats
from gateway.ops.onlookers import Onlookers
from gateway.ops.operator import OperatorChannel
from gateway.ops.outages import Outages
from gateway.ops.report import clock_time
from gateway.ops.stats import Stats
from gateway.ops.watch import Watch
from gateway.orders import Answer, KillOrder, Order, PairOrder, ReloadOrder, StopOrder
from gateway.outbox import Outbox
from gateway.outfiles import OutFiles
from gateway.overrides import Overrides
from gateway.pairs import Pairs
from gateway.people import People
from gateway.preview import Signs
from gateway.reception import Intakes, Parts, Prefixes, names_of
from gateway.records import OPERATOR, RoleGiven
from gateway.redaction import Redactor
from gateway.restored import chosen, restored
from gateway.runner import Runner
from gateway.settings import Settings
from gateway.shared import Shared
from gateway.store import Appended, Closed, Entry, Outage, Reminder, Store
from gateway.titles import Titles
from gateway.tooling import Tooling
from gateway.tools.consent import PLACE_CHARS, code
from gateway.tools.jobs import Job
from gateway.travels import Travels
from gateway.watching import Watching

logger = logging.getLogger("reverie.app")

TURN_GRACE_S = 5.0
OUTAGE_GRACE_S = 3.0
"""A log that cannot be written while we stop is waited for so long: less than turns are."""
SEND_GRACE_S = 2.0
"""With the channels' second of goodbye and the outbox's last words this stays below SIGTERM's ten seconds."""


class NothingLeft(Exception):
    """Every channel was refused by its platform: there is nobody to talk to."""


async def run(
    settings: Settings,
    stop: asyncio.Event,
    *,
    clock: Clock | None = None,
    channels: Mapping[ChannelName, Channel] | None = None,
    model: Model | None = None,
    live: Live | None = None,
    redact: Redactor | None = None,
) -> None:
    """Serve until `stop` is set; then finish or park what is in flight, within ten seconds, and return.

    `channels` and `model`: instead of those in the settings. `live`: what of these may change meanwhile. `redact`: what
    knows the configuration's secrets; None: made of the settings.
    Raises `StoreError` if the store cannot be opened or written, `Unavailable`, `BadPrices`, `NothingLeft`.
    Anything else that comes out is a bug. On cancellation nothing is finished or parked: what was durable is
    taken up at the next start.
    """
    clock, live = clock or SystemClock(), live or Live(settings)
    settings = live.settings
    if channels is None and not settings.channels:
        raise Unavailable("no channels are configured: add one under `channels`")
    if channels is None:
        check_adapters(settings)
    try:
        async with (
            equip(live, clock, model=model) as equipment,
            await Store.open(settings.store.path, clock, patient=True) as store,
            asyncio.TaskGroup() as tasks,
        ):
            make: Callable[..., Channel] | None = None
            if channels is None:
                names = [ChannelName(name) for name in settings.channels]
                channels = {name: make_channel(name, settings, clock, await store.saved_cursor(name)) for name in names}
                make = make_channel
            if settings.ops.token is not None:
                channels = {**channels, OPERATOR: OperatorChannel(clock)}
            gateway = _Gateway(
                settings=settings,
                store=store,
                clock=clock,
                channels=channels,
                make=make,
                model_services=equipment,
                states=await restored(store, [agent.id for agent in settings.agents], clock.now()),
                chosen=await chosen(store, settings),
                redact=redact or Redactor(known_secrets(settings)),
                spawn=lambda work: _spawn(tasks, store, work),
            )
            await gateway.serve(stop)
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _spawn(tasks: asyncio.TaskGroup, store: Store, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """A task of the group. While the log cannot be written and we stop, it ends where it would have written."""

    async def carried_out() -> None:
        try:
            await work
        except Closed:
            if not store.given_up:
                raise

    task = tasks.create_task(carried_out())
    task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it would never have begun
    return task


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first; the rest of a task group's exceptions follow from it and stay attached."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class _Gateway:
    """Everything of one run, wired."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        clock: Clock,
        channels: Mapping[ChannelName, Channel],
        make: Callable[..., Channel] | None,
        model_services: Equipment,
        states: Mapping[str, State],
        chosen: Mapping[str, str] | None = None,
        redact: Redactor,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`states`: of each agent's DMN, from the last run. `chosen`: what they were told to think with.

        `make`: as `make_channel`, for those that come or change meanwhile. None: the channels stay as they are.
        """
        self.store, self.clock, self.model_services = store, clock, model_services
        self.channels = dict(channels)
        self.spawn, self.redact = spawn, redact
        self.outage: tuple[Outage, dict[ChannelName, int]] | None = None
        """While the log cannot be written: why, and what each channel had dropped before."""
        live = model_services.live
        live.add_secret_listener(redact.add_secrets)
        self.turn_tracker = Onlookers(clock)
        self.titles = Titles(
            store,
            names=names_of(self.channels),
            platform=self._platform,
            is_channel=self.channels.__contains__,
            redact=redact,
        )
        self.people = self._build_people(live)
        who = self.people.policy
        self.overrides = Overrides(store)
        store.add_listener(self.overrides.on_appended)
        self.attention_policy = replace(policies.attention_policy(settings), overrides=self.overrides.current)
        live.add_listener(Takes(policies.attention_policy, self.attention_policy.update))
        bindings = policies.bindings(settings)
        live.add_listener(Takes(policies.bindings, bindings.update))
        self.previews = Signs(store, clock, self.channels, spawn, redact)
        self.llm_stats = LlmStats([agent.id for agent in settings.agents], model_services.workspaces.counts.by_path)
        self.media = Media(settings.media, store.path.parent / "media", self.channels, clock)
        live.add_listener(Takes(lambda new: new.media, self.media.update))
        self.inbox = Inbox(clock, settings.attention.coalesce, self._on_arrival)
        live.add_listener(Takes(lambda new: new.attention.coalesce, self.inbox.set_window))
        self.background_services = self._build_background(who, bindings)
        files = OutFiles(store)
        self.outbox = self._build_outbox(files)
        self.room_membership = Travels(self.channels, spawn, self.outbox.wait_until_sent)
        self.room_locks = Rooms()
        self.tool_registry = self._build_tool_registry(who, bindings, files)
        self.agents = Minds(self._build_services(who, bindings), model_services, states, chosen)
        store.add_listener(self._on_roles_given)
        self.pairing_admin = Pairs(store, clock, redact)
        self.operator_actions = Operating(
            store,
            clock,
            self.agents.turn_stopper,
            kill=self.tool_registry.running.kill,
            reload=live.reload,
            redact=redact,
        )
        platforms = {name: one for name, one in self.channels.items() if not isinstance(one, OperatorChannel)}
        self.stats = Stats({name: channel.capabilities.platform for name, channel in platforms.items()}, clock.now())
        self.outages = Outages(
            live,
            self.channels,
            self.stats,
            clock,
            tell=self.people.owner_notifier.notify,
            title=lambda at: self.titles.label(at.conversation),
        )
        store.add_listener(self.outages.on_appended)
        self.ops_service = self._build_ops_service(settings)
        live.add_reload_listener(self._on_reloaded)
        self.channel_supervisor = Runner(
            platforms,
            Each(self.channels, lambda one: self._build_emit(one.name)),
            clock=clock,
            stats=self.stats,
            pause=self.outbox.pause,
            spawn=spawn,
            tell=self._report_trouble,
        )
        self.intakes = self._build_intakes(who, bindings)
        if make is not None:
            live.add_listener(self._build_channel_reconciler(settings, make))

    def _on_roles_given(self, entries: Sequence[Entry], written: Sequence[Appended]) -> None:
        facts = [entry.fact for entry, one in zip(entries, written, strict=True) if one.is_new]
        if any(isinstance(fact, RoleGiven) and fact.role == "blocked" for fact in facts):
            self._end_blocked_work()

    def _end_blocked_work(self) -> None:
        """What somebody caused who is blocked now ends: turns at once, jobs and reminders soon."""
        who = self.people.policy

        def is_theirs(job: Job) -> bool:
            return are_blocked(who, job.at, job.requesters)

        def set_by_them(reminder: Reminder) -> bool:
            if not reminder.sender or reminder.conversation is None:
                return False
            sender = Sender(id=reminder.sender, name=reminder.asked_by, verified=True)
            return access.role_of(who, Address.parse(reminder.conversation), sender) == "blocked"

        async def end() -> None:
            await self.tool_registry.kill_jobs(is_theirs)
            await self.background_services.reminders.end_matching(set_by_them, BLOCKED)

        self.agents.end_blocked_turns()
        self.spawn(end())

    def _platform(self, name: ChannelName) -> str:
        channel = self.channels.get(name)
        return channel.capabilities.platform if channel is not None else name.partition(".")[0].capitalize()

    def _build_people(self, live: Live) -> People:
        return People(
            live,
            self.store,
            self.clock,
            self.channels,
            post=lambda item: self.outbox.put(item),  # noqa: PLW0108 - it is made later
            join=lambda at: self.room_membership.accept_invite(at),  # noqa: PLW0108 - the same
            leave=lambda at: self.room_membership.start("leave", at, _unsaid(at)),
            spawn=self.spawn,
            title=self.titles.room_title,
            named=self.titles.add_titles,
        )

    def _build_background(self, who: access.Policy, bindings: Bindings) -> Life:
        return Life(
            live=self.model_services.live,
            store=self.store,
            clock=self.clock,
            who=who,
            attend=self.attention_policy,
            bindings=bindings,
            ears=Ears(on_arrival=self.inbox.add, on_alarm=self._on_alarm, on_presence=self._on_presence),
            channels=self.channels,
            propose=self._propose_notes,
            redact=self.redact,
            titles=self.titles,
        )

    async def _propose_notes(self, agent: str, notes: Sequence[Note]) -> None:
        """Ask owners whether these notes may come into an agent's memory. Only who is alone with it is shown them."""
        told = self.model_services.live.settings.access.tell
        alone = not told or await self.background_services.places.is_direct(Address.parse(told).conversation) is True

        def text(to: Address | None) -> str:
            prefix = "/" if to is None else self.people.channel_style.command_prefix(to.channel)
            if to is None or not alone:
                return (
                    f"{len(notes)} that others had me remember wait for an owner's word: "
                    f"`{prefix}memory pending` shows them to an owner who is alone with me."
                )
            return render_waiting(notes, prefix, lambda place: code(self.titles.title(place), PLACE_CHARS))

        await self.people.owner_notifier.notify_and_wait(f"memory:{agent}:{notes[-1].seq}", text)

    def _build_outbox(self, files: OutFiles) -> Outbox:
        return Outbox(
            self.store,
            self.channels,
            self.clock,
            self.spawn,
            files=files,
            judge=self.background_services.internal_intake.judge,
            arrived=self.inbox.add,
            redact=self.redact,
            doubt=lambda post, marks_replies: notice(self.store, post, marks_replies=marks_replies),
        )

    def _on_reloaded(self, came: Reloaded) -> None:
        problems = [*map(str, came.problems), came.read_error]
        self.stats.record_reload(came.after_restart, self.clock.now(), broken=any(problems))
        self.ops_service.stream.on_reloaded(came.applied, came.after_restart, problems)
        if came.applied:
            self._end_blocked_work()

    def _build_channel_reconciler(self, settings: Settings, make: Callable[..., Channel]) -> Fleet:
        def came(channel: Channel, new: bool) -> None:
            self.stats.add_channel(channel.name, channel.capabilities.platform, self.clock.now())
            if isinstance(channel, CanComplete):
                channel.set_completer(self.suggestions)
            self.people.command_menus.refresh()
            if new:
                self.spawn(self.previews.recover(channel.name))

        def went(name: ChannelName) -> None:
            self.stats.remove_channel(name)
            self.intakes.drop(name)

        def failed(name: ChannelName, why: str) -> None:
            self.stats.add_channel(name, self.model_services.live.settings.channels[name].platform, self.clock.now())
            self.stats.mark_refused(name, why, self.clock.now())

        return Fleet(
            settings,
            self.channels,
            self.channel_supervisor,
            make=lambda name, said, cursor, before: make(name, said, self.clock, cursor, before),
            cursor=self.store.saved_cursor,
            came=came,
            went=went,
            failed=failed,
            adapted=lambda name: self.room_membership.rejoin(self.people.roster.approved_rooms(name)),
        )

    def _build_tool_registry(self, who: access.Policy, bindings: Bindings, files: OutFiles) -> Tooling:
        return Tooling(
            Ground(
                live=self.model_services.live,
                store=self.store,
                clock=self.clock,
                channels=self.channels,
                life=self.background_services,
                access_policy=who,
                bindings=bindings,
                media=self.media,
                outfiles=files,
                post=self.outbox.put,
                command_prefixes=Prefixes(self.model_services.live, self.channels),
                spawn=self.spawn,
                directory=self.model_services.live.directory,
                redact=self.redact,
                notify_owners=self.people.owner_notifier.notify,
                on_tool_use=self.turn_tracker.tool_changed,
            )
        )

    def _build_ops_service(self, settings: Settings) -> Watch:
        said, release = settings.ops, version("reverie-gateway")
        minds = MindStats(lambda: self.agents.dmn_status)
        return Watch(
            self.store,
            self.clock,
            self.stats,
            host=said.host,
            port=said.port,
            version=release,
            llm=self.llm_stats,
            minds=minds,
            tools=self.tool_registry.stats,
            limits=self.people.stats,
            redact=self.redact,
            names=said.hosts,
            token=said.token.get_secret_value() if said.token is not None else None,
            house=lambda: self._build_api_services(release),
            onlookers=self.turn_tracker,
            look=self.outages.check_rooms,
        )

    def _build_api_services(self, release: str) -> shown.House:
        operator = self.channels[OPERATOR]
        assert isinstance(operator, OperatorChannel)
        return shown.House(
            store=self.store,
            clock=self.clock,
            stats=self.stats,
            version=release,
            turn_tracker=self.turn_tracker,
            redact=self.redact,
            list_minds=lambda: self.agents.dmn_status,
            list_platforms=lambda: {name: one.capabilities.platform for name, one in self.channels.items()},
            describe_model=lambda: self.agents.model_labels,
            find_agent=lambda place: self.agents.agent_for(place.conversation).id,
            find_last_request=lambda place: self.agents.agent_for(place).last_request(place),
            titles=self.titles,
            carry_out_order=self._handle_order,
            say_as_operator=lambda text: operator.receive(text, self.store),
        )

    def _build_intakes(self, who: access.Policy, bindings: Bindings) -> Intakes:
        desks = Desks(self._build_command_services(bindings))
        self.suggestions = Suggestions(who, desks.suggestion_sources)
        for channel in self.channels.values():
            if isinstance(channel, CanComplete):
                channel.set_completer(self.suggestions)
        parts = Parts(
            live=self.model_services.live,
            store=self.store,
            clock=self.clock,
            channels=self.channels,
            access_policy=who,
            bindings=bindings,
            stats=self.stats,
            model=lambda: self.agents.model_labels,
            mode=lambda: self.agents.mode_label,
            rewinds=self.agents.rewinder,
            titles=self.titles,
            greet=self.people.greeter.greet,
            limit=self.people.limits.check,
            notify_owners=self.people.owner_notifier.notify,
            level=lambda: self.background_services.presence.level,
            attention_policy=self.attention_policy,
            handlers=desks.handlers,
            redact=self.redact,
            approvals=self.tool_registry.decisions,
            tools=self.agents.tool_list,
        )
        doors = Doors(
            on_ready=self.inbox.add,
            on_link=self._on_link,
            post=self.outbox.put,
            join=self.room_membership.accept_invite,
            on_message=self.background_services.presence.record_message,
            find_new_audience=self.background_services.places.find_new_audience,
        )
        return Intakes(parts, doors)

    def _build_command_services(self, bindings: Bindings) -> House:
        return House(
            live=self.model_services.live,
            store=self.store,
            clock=self.clock,
            channels=self.channels,
            people=self.people,
            bindings=bindings,
            attention_policy=self.attention_policy,
            overrides=self.overrides,
            services=self.background_services,
            agents=self.agents,
            room_access=self.room_locks,
            travels=self.room_membership,
            runner=self.channel_supervisor,
            stats=self.stats,
            redact=self.redact,
            approvals=self.tool_registry.decisions,
            post=self.outbox.put,
            spawn=self.spawn,
        )

    def _build_emit(self, name: ChannelName) -> Emit:
        async def emit(batch: Sequence[Notification], *, cursor: str | None = None) -> None:
            await self.intakes[name](batch, cursor=cursor)

        return emit

    def _on_link(self, name: ChannelName, up: bool) -> None:
        self.outbox.set_link_up(name, up=up)
        if up:
            self.room_membership.rejoin(self.people.roster.approved_rooms(name))

    def _on_arrival(self, arrival: Arrival) -> None:
        self.agents.notice(arrival)

    def _on_alarm(self, alarm: Alarm) -> None:
        self.agents.notice_alarm(alarm)

    def _on_presence(self, level: Level) -> None:
        self.agents.set_presence(level)

    def _build_services(self, who: access.Policy, bindings: Bindings) -> Shared:
        able = Each(self.channels, lambda channel: channel.capabilities)
        return Shared(
            live=self.model_services.live,
            store=self.store,
            clock=self.clock,
            bindings=bindings,
            access_policy=who,
            channel_cards=Cards(self.store, self.clock, able, who, self.redact, titles=self.titles),
            media=self.media,
            previews=self.previews,
            room_locks=self.room_locks,
            channels=self.channels.keys(),
            background_services=self.background_services,
            tool_registry=self.tool_registry,
            limits=self.people.limits,
            post=self.outbox.put,
            on_answered=self.llm_stats.count_request,
            turn_tracker=self.turn_tracker,
            on_compacted=self.llm_stats.count_compaction,
            has_waiting=self.inbox.is_waiting,
            spawn=self.spawn,
            redact=self.redact,
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Start in the order of dependence; stop along the way of a message, so that what is begun can end."""
        entitle(self.titles.title)
        names = ", ".join(self.channels)
        logger.info("serving %s with %s; the log is %s", names, self.agents.model_labels, self.store.path)
        background = [self.spawn(self._give_up_store(stop))]
        try:
            await self._start(background)
            await self._wait_until_stopped(stop)
        except Closed:
            if not self.store.given_up:
                raise
        logger.info("stopping")
        await self._stop(background)
        if not stop.is_set():
            raise NothingLeft("every channel was refused by its platform; the reasons are logged above")

    async def _start(self, background: list[asyncio.Task[None]]) -> None:
        self.store.add_outage_listener(self._on_outage)
        await self.titles.load_recent()
        await self.people.load()
        await self.overrides.load()
        background += [self.spawn(self.agents.warm_up()), self.spawn(self.ops_service.run())]
        background.append(self.spawn(listen(self.store.path, self._handle_order)))
        if isinstance(operator := self.channels.get(OPERATOR), OperatorChannel):
            background.append(self.spawn(operator.run(self._build_emit(OPERATOR))))
        background.append(self.spawn(self.model_services.restore_cadences(self.store)))
        background.append(self.spawn(self.media.sweep()))
        background.append(self.spawn(Watching(self.model_services.live, self.clock).run()))
        background.append(self.spawn(self.model_services.keep_warm.run(self.llm_stats.count_request)))
        await self.previews.recover()
        await self.outbox.recover()
        await self.background_services.start()
        await self.tool_registry.start()
        for arrival in await self.agents.find_pending_arrivals():
            self.inbox.add(arrival)
        self.agents.start()
        background.append(self.spawn(self.people.command_menus.run()))
        background += [
            self.spawn(self.background_services.reminders.run()),
            self.spawn(self.background_services.presence.run()),
        ]
        self.channel_supervisor.start()

    async def _wait_until_stopped(self, stop: asyncio.Event) -> None:
        """Return once it is set, or no channel is left."""
        asked = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(self.channel_supervisor.wait_until_all_refused())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.inbox.close()  # its windows are no tasks of the group, and would find nobody to tell
            raise
        finally:
            asked.cancel()
            ended.cancel()

    async def _stop(self, background: Sequence[asyncio.Task[None]]) -> None:
        """Along the way of a message, so that what is begun can end. What cannot be written any more is left off."""

        async def settle() -> None:
            for task in background:
                task.cancel()
            await self.room_membership.close()
            await asyncio.wait(background)

        for step in (
            self.inbox.close,
            lambda: self.agents.stop(TURN_GRACE_S),
            self.tool_registry.close,
            self.background_services.journal_store.close,
            self.previews.close,
            lambda: self.outbox.drain(SEND_GRACE_S),
            self.channel_supervisor.close,
            settle,
            self.outbox.close,
        ):
            try:
                await step()
            except Closed as error:
                if not self.store.given_up:
                    raise
                logger.warning("stopping: %s", error)

    async def _give_up_store(self, stop: asyncio.Event) -> None:
        """Whoever waits for a log that cannot be written must not keep us from stopping."""
        await stop.wait()
        await asyncio.sleep(OUTAGE_GRACE_S)
        self.store.give_up()

    def _report_trouble(self, name: ChannelName, text: str) -> None:
        self.people.owner_notifier.notify(f"channel:{name}:{self.clock.now().isoformat()}", text, beside=name)

    def _on_outage(self, outage: Outage | None) -> None:
        """The log cannot be written, or it can again. Nothing is taken in meanwhile, and nothing is said."""
        dropped = {name: one.dropped_count for name, one in self.channels.items() if isinstance(one, HasDropped)}
        if outage is not None:
            logger.error("the log cannot be written: %s; it is tried again and again", outage.reason)
            self.stats.report_problem("store", f"the log cannot be written: {outage.reason}", outage.since)
            self.outage = self.outage or (outage, dropped)
            return
        self.stats.clear_problem("store")
        if self.outage is None:
            return
        (began, before), self.outage = self.outage, None
        text = f"The log could not be written from {clock_time(began.since)} to {clock_time(self.clock.now())}"
        text += f" ({began.reason}). Nothing was taken in and nothing was answered meanwhile; now it goes on."
        for name, count in dropped.items():
            if (lost := count - before.get(name, 0)) > 0:
                text += f" {lost} lines that were said on {name} in that time could not be kept."
        self.people.owner_notifier.notify(f"store:{began.since.isoformat()}", text)

    async def _handle_order(self, order: Order) -> Answer:
        """Somebody steers the gateway from outside."""
        if isinstance(order, StopOrder | KillOrder | ReloadOrder):
            return await self.operator_actions.carry_out(order)
        return await (
            self.pairing_admin.execute(order) if isinstance(order, PairOrder) else self.agents.handle_order(order)
        )


def _unsaid(at: Address) -> Callable[[str], Awaitable[None]]:
    """For what nobody waits to hear."""

    async def told(reason: str) -> None:
        logger.warning("cannot leave %s: %s", at.conversation, reason)

    return told
