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
                channels = {name: make_channel(name, settings, clock, await store.cursor(name)) for name in names}
                make = make_channel
            if settings.ops.token is not None:
                channels = {**channels, OPERATOR: OperatorChannel(clock)}
            gateway = _Gateway(
                settings=settings,
                store=store,
                clock=clock,
                channels=channels,
                make=make,
                equipment=equipment,
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
        equipment: Equipment,
        states: Mapping[str, State],
        chosen: Mapping[str, str] | None = None,
        redact: Redactor,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`states`: of each agent's DMN, from the last run. `chosen`: what they were told to think with.

        `make`: as `make_channel`, for those that come or change meanwhile. None: the channels stay as they are.
        """
        self.store, self.clock, self.equipment = store, clock, equipment
        self.channels = dict(channels)
        self.spawn, self.redact = spawn, redact
        self.lapse: tuple[Outage, dict[ChannelName, int]] | None = None
        """While the log cannot be written: why, and what each channel had dropped before."""
        live = equipment.live
        live.teach(redact.learn)
        self.onlookers = Onlookers(clock)
        self.titles = Titles(
            store,
            names=names_of(self.channels),
            platform=self._platform,
            is_channel=self.channels.__contains__,
            redact=redact,
        )
        self.people = self._people(live)
        who = self.people.policy
        self.overrides = Overrides(store)
        store.hear(self.overrides.wrote)
        self.attend = replace(policies.attention_policy(settings), made=self.overrides.now)
        live.hear(Takes(policies.attention_policy, self.attend.become))
        bindings = policies.bindings(settings)
        live.hear(Takes(policies.bindings, bindings.become))
        self.signs = Signs(store, clock, self.channels, spawn, redact)
        self.llm = LlmStats([agent.id for agent in settings.agents], equipment.workspaces.counts.by_path)
        self.media = Media(settings.media, store.path.parent / "media", self.channels, clock)
        live.hear(Takes(lambda new: new.media, self.media.become))
        self.inbox = Inbox(clock, settings.attention.coalesce, self._notice)
        live.hear(Takes(lambda new: new.attention.coalesce, self.inbox.become))
        self.life = self._life(who, bindings)
        files = OutFiles(store)
        self.outbox = self._outbox(files)
        self.travels = Travels(self.channels, spawn, self.outbox.said)
        self.doors = Rooms()
        self.tooling = self._tooling(who, bindings, files)
        self.minds = Minds(self._shared(who, bindings), equipment, states, chosen)
        store.hear(self._roles_given)
        self.pairs = Pairs(store, clock, redact)
        self.operating = Operating(
            store, clock, self.minds.stopping, kill=self.tooling.doing.kill, reload=live.reload, redact=redact
        )
        platforms = {name: one for name, one in self.channels.items() if not isinstance(one, OperatorChannel)}
        self.stats = Stats({name: channel.capabilities.platform for name, channel in platforms.items()}, clock.now())
        self.outages = Outages(
            live,
            self.channels,
            self.stats,
            clock,
            tell=self.people.owners.tell,
            title=lambda at: self.titles.label(at.conversation),
        )
        store.hear(self.outages.wrote)
        self.watch = self._watch(settings)
        live.tell(self._reloaded)
        self.runner = Runner(
            platforms,
            Each(self.channels, lambda one: self._emit(one.name)),
            clock=clock,
            stats=self.stats,
            pause=self.outbox.pause,
            spawn=spawn,
            tell=self._trouble,
        )
        self.intakes = self._intakes(who, bindings)
        if make is not None:
            live.hear(self._fleet(settings, make))

    def _roles_given(self, entries: Sequence[Entry], written: Sequence[Appended]) -> None:
        facts = [entry.fact for entry, one in zip(entries, written, strict=True) if one.fresh]
        if any(isinstance(fact, RoleGiven) and fact.role == "blocked" for fact in facts):
            self._end_blocked()

    def _end_blocked(self) -> None:
        """What somebody caused who is blocked now ends: turns at once, jobs and reminders soon."""
        who = self.people.policy

        def is_theirs(job: Job) -> bool:
            return are_blocked(who, job.at, job.askers)

        def set_by_them(reminder: Reminder) -> bool:
            if not reminder.sender or reminder.conversation is None:
                return False
            sender = Sender(id=reminder.sender, name=reminder.asked_by, verified=True)
            return access.role_of(who, Address.parse(reminder.conversation), sender) == "blocked"

        async def end() -> None:
            await self.tooling.end_jobs(is_theirs)
            await self.life.reminders.end_of(set_by_them, BLOCKED)

        self.minds.end_blocked()
        self.spawn(end())

    def _platform(self, name: ChannelName) -> str:
        channel = self.channels.get(name)
        return channel.capabilities.platform if channel is not None else name.partition(".")[0].capitalize()

    def _people(self, live: Live) -> People:
        return People(
            live,
            self.store,
            self.clock,
            self.channels,
            post=lambda item: self.outbox.put(item),  # noqa: PLW0108 - it is made later
            join=lambda at: self.travels.accept(at),  # noqa: PLW0108 - the same
            leave=lambda at: self.travels.begin("leave", at, _unsaid(at)),
            spawn=self.spawn,
            title=self.titles.room,
            named=self.titles.named,
        )

    def _life(self, who: access.Policy, bindings: Bindings) -> Life:
        return Life(
            live=self.equipment.live,
            store=self.store,
            clock=self.clock,
            who=who,
            attend=self.attend,
            bindings=bindings,
            ears=Ears(arrived=self.inbox.arrived, rang=self._rang, presence=self._near),
            channels=self.channels,
            propose=self._propose,
            redact=self.redact,
            titles=self.titles,
        )

    async def _propose(self, agent: str, notes: Sequence[Note]) -> None:
        """Ask owners whether these notes may come into an agent's memory. Only who is alone with it is shown them."""
        told = self.equipment.live.settings.access.tell
        alone = not told or await self.life.places.direct(Address.parse(told).conversation) is True

        def text(to: Address | None) -> str:
            prefix = "/" if to is None else self.people.manners.of(to.channel)
            if to is None or not alone:
                return (
                    f"{len(notes)} that others had me remember wait for an owner's word: "
                    f"`{prefix}memory pending` shows them to an owner who is alone with me."
                )
            return render_waiting(notes, prefix, lambda place: code(self.titles.title(place), PLACE_CHARS))

        await self.people.owners.told(f"memory:{agent}:{notes[-1].seq}", text)

    def _outbox(self, files: OutFiles) -> Outbox:
        return Outbox(
            self.store,
            self.channels,
            self.clock,
            self.spawn,
            files=files,
            judge=self.life.inward.judge,
            arrived=self.inbox.arrived,
            redact=self.redact,
            doubt=lambda post, marks_replies: notice(self.store, post, marks_replies=marks_replies),
        )

    def _reloaded(self, came: Reloaded) -> None:
        problems = [*map(str, came.problems), came.unread]
        self.stats.reloaded(came.later, self.clock.now(), broken=any(problems))
        self.watch.stream.reread(came.taken, came.later, problems)
        if came.taken:
            self._end_blocked()

    def _fleet(self, settings: Settings, make: Callable[..., Channel]) -> Fleet:
        def came(channel: Channel, new: bool) -> None:
            self.stats.put(channel.name, channel.capabilities.platform, self.clock.now())
            if isinstance(channel, CanComplete):
                channel.completing(self.suggest)
            self.people.offers.again()
            if new:
                self.spawn(self.signs.recover(channel.name))

        def went(name: ChannelName) -> None:
            self.stats.drop(name)
            self.intakes.drop(name)

        def failed(name: ChannelName, why: str) -> None:
            self.stats.put(name, self.equipment.live.settings.channels[name].platform, self.clock.now())
            self.stats.refused(name, why, self.clock.now())

        return Fleet(
            settings,
            self.channels,
            self.runner,
            make=lambda name, said, cursor, before: make(name, said, self.clock, cursor, before),
            cursor=self.store.cursor,
            came=came,
            went=went,
            failed=failed,
            adapted=lambda name: self.travels.come_back(self.people.roster.approved(name)),
        )

    def _tooling(self, who: access.Policy, bindings: Bindings, files: OutFiles) -> Tooling:
        return Tooling(
            Ground(
                live=self.equipment.live,
                store=self.store,
                clock=self.clock,
                channels=self.channels,
                life=self.life,
                who=who,
                bindings=bindings,
                media=self.media,
                outfiles=files,
                post=self.outbox.put,
                prefix=Prefixes(self.equipment.live, self.channels),
                spawn=self.spawn,
                directory=self.equipment.live.directory,
                redact=self.redact,
                tell=self.people.owners.tell,
                used=self.onlookers.used,
            )
        )

    def _watch(self, settings: Settings) -> Watch:
        said, release = settings.ops, version("reverie-gateway")
        minds = MindStats(lambda: self.minds.seen)
        return Watch(
            self.store,
            self.clock,
            self.stats,
            host=said.host,
            port=said.port,
            version=release,
            llm=self.llm,
            minds=minds,
            tools=self.tooling.stats,
            limits=self.people.stats,
            redact=self.redact,
            names=said.hosts,
            token=said.token.get_secret_value() if said.token is not None else None,
            house=lambda: self._shown(release),
            onlookers=self.onlookers,
            look=self.outages.look,
        )

    def _shown(self, release: str) -> shown.House:
        operator = self.channels[OPERATOR]
        assert isinstance(operator, OperatorChannel)
        return shown.House(
            store=self.store,
            clock=self.clock,
            stats=self.stats,
            version=release,
            onlookers=self.onlookers,
            redact=self.redact,
            minds=lambda: self.minds.seen,
            platforms=lambda: {name: one.capabilities.platform for name, one in self.channels.items()},
            model=lambda: self.minds.thinking,
            agent_of=lambda place: self.minds.of(place.conversation).id,
            prompt=lambda place: self.minds.of(place).asked(place),
            titles=self.titles,
            order=self._order,
            say=lambda text: operator.hear(text, self.store),
        )

    def _intakes(self, who: access.Policy, bindings: Bindings) -> Intakes:
        desks = Desks(self._house(bindings))
        self.suggest = Suggestions(who, desks.sources)
        for channel in self.channels.values():
            if isinstance(channel, CanComplete):
                channel.completing(self.suggest)
        parts = Parts(
            live=self.equipment.live,
            store=self.store,
            clock=self.clock,
            channels=self.channels,
            who=who,
            bindings=bindings,
            stats=self.stats,
            model=lambda: self.minds.thinking,
            mode=lambda: self.minds.mode,
            rewinds=self.minds.rewinds,
            titles=self.titles,
            greet=self.people.greeter.greet,
            limit=self.people.limits.check,
            tell=self.people.owners.tell,
            level=lambda: self.life.following.level,
            attend=self.attend,
            answers=desks.answers,
            redact=self.redact,
            deciding=self.tooling.deciding,
            tools=self.minds.toolbox,
        )
        doors = Doors(
            arrived=self.inbox.arrived,
            link=self._link,
            post=self.outbox.put,
            join=self.travels.accept,
            heard=self.life.following.heard,
            audience=self.life.places.news,
        )
        return Intakes(parts, doors)

    def _house(self, bindings: Bindings) -> House:
        return House(
            live=self.equipment.live,
            store=self.store,
            clock=self.clock,
            channels=self.channels,
            people=self.people,
            bindings=bindings,
            attend=self.attend,
            overrides=self.overrides,
            life=self.life,
            minds=self.minds,
            doors=self.doors,
            travels=self.travels,
            runner=self.runner,
            stats=self.stats,
            redact=self.redact,
            deciding=self.tooling.deciding,
            post=self.outbox.put,
            spawn=self.spawn,
        )

    def _emit(self, name: ChannelName) -> Emit:
        async def emit(batch: Sequence[Notification], *, cursor: str | None = None) -> None:
            await self.intakes[name](batch, cursor=cursor)

        return emit

    def _link(self, name: ChannelName, up: bool) -> None:
        self.outbox.link(name, up=up)
        if up:
            self.travels.come_back(self.people.roster.approved(name))

    def _notice(self, arrival: Arrival) -> None:
        self.minds.notice(arrival)

    def _rang(self, alarm: Alarm) -> None:
        self.minds.rang(alarm)

    def _near(self, level: Level) -> None:
        self.minds.presence(level)

    def _shared(self, who: access.Policy, bindings: Bindings) -> Shared:
        able = Each(self.channels, lambda channel: channel.capabilities)
        return Shared(
            live=self.equipment.live,
            store=self.store,
            clock=self.clock,
            bindings=bindings,
            who=who,
            cards=Cards(self.store, self.clock, able, who, self.redact, titles=self.titles),
            media=self.media,
            signs=self.signs,
            doors=self.doors,
            channels=self.channels.keys(),
            life=self.life,
            tooling=self.tooling,
            limits=self.people.limits,
            post=self.outbox.put,
            answered=self.llm.answered,
            onlookers=self.onlookers,
            compacted=self.llm.compacted,
            waits=self.inbox.waits,
            spawn=self.spawn,
            redact=self.redact,
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Start in the order of dependence; stop along the way of a message, so that what is begun can end."""
        entitle(self.titles.title)
        names = ", ".join(self.channels)
        logger.info("serving %s with %s; the log is %s", names, self.minds.thinking, self.store.path)
        background = [self.spawn(self._give_up(stop))]
        try:
            await self._begin(background)
            await self._until(stop)
        except Closed:
            if not self.store.given_up:
                raise
        logger.info("stopping")
        await self._end(background)
        if not stop.is_set():
            raise NothingLeft("every channel was refused by its platform; the reasons are logged above")

    async def _begin(self, background: list[asyncio.Task[None]]) -> None:
        self.store.hear_outages(self._outage)
        await self.titles.begin()
        await self.people.begin()
        await self.overrides.begin()
        background += [self.spawn(self.minds.warm_up()), self.spawn(self.watch.run())]
        background.append(self.spawn(listen(self.store.path, self._order)))
        if isinstance(operator := self.channels.get(OPERATOR), OperatorChannel):
            background.append(self.spawn(operator.run(self._emit(OPERATOR))))
        background.append(self.spawn(self.equipment.recall(self.store)))
        background.append(self.spawn(self.media.sweep()))
        background.append(self.spawn(Watching(self.equipment.live, self.clock).run()))
        background.append(self.spawn(self.equipment.keep_warm.run(self.llm.answered)))
        await self.signs.recover()
        await self.outbox.recover()
        await self.life.begin()
        await self.tooling.begin()
        for arrival in await self.minds.due():
            self.inbox.arrived(arrival)
        self.minds.start()
        background.append(self.spawn(self.people.offers.run()))
        background += [self.spawn(self.life.reminders.run()), self.spawn(self.life.following.run())]
        self.runner.start()

    async def _until(self, stop: asyncio.Event) -> None:
        """Return once it is set, or no channel is left."""
        asked = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(self.runner.over())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.inbox.close()  # its windows are no tasks of the group, and would find nobody to tell
            raise
        finally:
            asked.cancel()
            ended.cancel()

    async def _end(self, background: Sequence[asyncio.Task[None]]) -> None:
        """Along the way of a message, so that what is begun can end. What cannot be written any more is left off."""

        async def settle() -> None:
            for task in background:
                task.cancel()
            await self.travels.close()
            await asyncio.wait(background)

        for step in (
            self.inbox.close,
            lambda: self.minds.stop(TURN_GRACE_S),
            self.tooling.close,
            self.life.notes.close,
            self.signs.close,
            lambda: self.outbox.drain(SEND_GRACE_S),
            self.runner.close,
            settle,
            self.outbox.close,
        ):
            try:
                await step()
            except Closed as error:
                if not self.store.given_up:
                    raise
                logger.warning("stopping: %s", error)

    async def _give_up(self, stop: asyncio.Event) -> None:
        """Whoever waits for a log that cannot be written must not keep us from stopping."""
        await stop.wait()
        await asyncio.sleep(OUTAGE_GRACE_S)
        self.store.give_up()

    def _trouble(self, name: ChannelName, text: str) -> None:
        self.people.owners.tell(f"channel:{name}:{self.clock.now().isoformat()}", text, beside=name)

    def _outage(self, outage: Outage | None) -> None:
        """The log cannot be written, or it can again. Nothing is taken in meanwhile, and nothing is said."""
        dropped = {name: one.dropped for name, one in self.channels.items() if isinstance(one, HasDropped)}
        if outage is not None:
            logger.error("the log cannot be written: %s; it is tried again and again", outage.reason)
            self.stats.problem("store", f"the log cannot be written: {outage.reason}", outage.since)
            self.lapse = self.lapse or (outage, dropped)
            return
        self.stats.solved("store")
        if self.lapse is None:
            return
        (began, before), self.lapse = self.lapse, None
        text = f"The log could not be written from {clock_time(began.since)} to {clock_time(self.clock.now())}"
        text += f" ({began.reason}). Nothing was taken in and nothing was answered meanwhile; now it goes on."
        for name, count in dropped.items():
            if (lost := count - before.get(name, 0)) > 0:
                text += f" {lost} lines that were said on {name} in that time could not be kept."
        self.people.owners.tell(f"store:{began.since.isoformat()}", text)

    async def _order(self, order: Order) -> Answer:
        """Somebody steers the gateway from outside."""
        if isinstance(order, StopOrder | KillOrder | ReloadOrder):
            return await self.operating.order(order)
        return await (self.pairs.order(order) if isinstance(order, PairOrder) else self.minds.order(order))


def _unsaid(at: Address) -> Callable[[str], Awaitable[None]]:
    """For what nobody waits to hear."""

    async def told(reason: str) -> None:
        logger.warning("cannot leave %s: %s", at.conversation, reason)

    return told
