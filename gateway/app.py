"""The composition root: the one place that knows everything. Wires, starts, stops; decides nothing."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from importlib.metadata import version

from agent.models.base import Model, ModelError
from agent.signals import Level, State
from channels.base import Channel, Denied, Emit
from gateway import access, policies
from gateway.acting import Rooms
from gateway.adapters import Unavailable, check_adapters, make_channel
from gateway.bindings import Bindings
from gateway.cards import Cards
from gateway.clock import Clock, SystemClock
from gateway.control import listen
from gateway.equipment import Equipment, equip
from gateway.events import Alarm, ChannelName
from gateway.inbox import Arrival, Inbox
from gateway.intake import Doors
from gateway.life import Ears, Life
from gateway.live import Live
from gateway.media import Media
from gateway.minds import Minds
from gateway.ops.llm_stats import LlmStats
from gateway.ops.mind_stats import MindStats
from gateway.ops.stats import Stats
from gateway.ops.watch import Watch
from gateway.outbox import Outbox
from gateway.preview import Signs
from gateway.reception import Invitations, Parts, intakes, space_of
from gateway.restored import restored
from gateway.settings import Settings
from gateway.shared import Shared
from gateway.store import Store

logger = logging.getLogger("reverie.app")

TURN_GRACE_S = 5.0
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
) -> None:
    """Serve until `stop` is set; then finish or park what is in flight, within ten seconds, and return.

    `channels` and `model`: instead of those in the settings. `live`: what of these may change meanwhile.
    Raises `StoreError` if the store cannot be opened or written, `Unavailable`, `BadPrices`, `NothingLeft`.
    Anything else that comes out is a bug. On cancellation nothing is finished or parked: what was durable is
    taken up at the next start.
    """
    clock, live = clock or SystemClock(), live or Live(settings)
    if channels is None and not settings.channels:
        raise Unavailable("no channels are configured: add one under `channels`")
    if channels is None:
        check_adapters(settings)
    try:
        async with (
            equip(settings, clock, live, model=model) as equipment,
            await Store.open(settings.store.path, clock) as store,
            asyncio.TaskGroup() as tasks,
        ):
            if channels is None:
                names = [ChannelName(name) for name in settings.channels]
                channels = {name: make_channel(name, settings, clock, await store.cursor(name)) for name in names}
            gateway = _Gateway(
                settings=settings,
                store=store,
                clock=clock,
                channels=channels,
                equipment=equipment,
                states=await restored(store, [agent.id for agent in settings.agents], clock.now()),
                spawn=tasks.create_task,
            )
            await gateway.serve(stop)
    except BaseExceptionGroup as group:
        raise _first(group) from group


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
        equipment: Equipment,
        states: Mapping[str, State],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`states`: of each agent's DMN, from the last run."""
        self.store = store
        self.clock = clock
        self.channels = channels
        self.equipment = equipment
        self.models = equipment.models
        self.spawn = spawn
        who = replace(policies.access_policy(settings), space_of=space_of(channels))
        bindings = policies.bindings(settings)
        self.signs = Signs(store, clock, channels, spawn)
        self.llm = LlmStats([agent.id for agent in settings.agents], equipment.workspaces.counts.by_path)
        self.media = Media(settings.media, store.path.parent / "media", channels, clock)
        self.inbox = Inbox(clock, settings.attention.coalesce, self._notice)
        ears = Ears(arrived=self.inbox.arrived, rang=self._rang, presence=self._near)
        self.life = Life(settings=settings, store=store, clock=clock, who=who, bindings=bindings, ears=ears)
        self.outbox = Outbox(store, channels, clock, spawn, judge=self.life.inward.judge, arrived=self.inbox.arrived)
        self.minds = Minds(self._shared(settings, who, bindings), equipment, states)
        self.invitations = Invitations(channels, spawn)
        self.stats = Stats({name: channel.capabilities.platform for name, channel in channels.items()}, clock.now())
        self.watch = self._watch(settings)
        self.intakes = self._intakes(settings, who, bindings)

    def _watch(self, settings: Settings) -> Watch:
        host, port, release = settings.ops.host, settings.ops.port, version("reverie-gateway")
        minds = MindStats(lambda: self.minds.seen)
        return Watch(
            self.store, self.clock, self.stats, host=host, port=port, version=release, llm=self.llm, minds=minds
        )

    def _intakes(self, settings: Settings, who: access.Policy, bindings: Bindings) -> Mapping[ChannelName, Emit]:
        parts = Parts(
            settings=settings,
            store=self.store,
            clock=self.clock,
            channels=self.channels,
            who=who,
            bindings=bindings,
            stats=self.stats,
            model=lambda: self.minds.thinking,
            mode=lambda: self.minds.mode,
            rewinds=self.minds.rewinds,
        )
        doors = Doors(
            arrived=self.inbox.arrived,
            link=self.outbox.link,
            post=self.outbox.put,
            join=self.invitations.accept,
            heard=self.life.following.heard,
            level=lambda: self.life.following.level,
        )
        return intakes(parts, doors)

    def _notice(self, arrival: Arrival) -> None:
        self.minds.notice(arrival)

    def _rang(self, alarm: Alarm) -> None:
        self.minds.rang(alarm)

    def _near(self, level: Level) -> None:
        self.minds.presence(level)

    def _shared(self, settings: Settings, who: access.Policy, bindings: Bindings) -> Shared:
        able = {name: channel.capabilities for name, channel in self.channels.items()}
        return Shared(
            settings=settings,
            store=self.store,
            clock=self.clock,
            bindings=bindings,
            who=who,
            cards=Cards(self.store, self.clock, able, who),
            media=self.media,
            signs=self.signs,
            doors=Rooms(),
            channels=frozenset(self.channels),
            life=self.life,
            post=self.outbox.put,
            answered=self.llm.answered,
            compacted=self.llm.compacted,
            waits=self.inbox.waits,
            spawn=self.spawn,
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Start in the order of dependence; stop along the way of a message, so that what is begun can end."""
        names = ", ".join(self.channels)
        logger.info("serving %s with %s; the log is %s", names, self.minds.thinking, self.store.path)
        background = [self.spawn(self._warm_up()), self.spawn(self.watch.run())]
        background.append(self.spawn(listen(self.store.path, self.minds.order)))
        background.append(self.spawn(self.equipment.recall(self.store)))
        background.append(self.spawn(self.media.sweep()))
        background.append(self.spawn(self.equipment.keep_warm.run(self.llm.answered)))
        await self.signs.recover()
        await self.outbox.recover()
        await self.life.begin()
        for arrival in await self.minds.due():
            self.inbox.arrived(arrival)
        self.minds.start()
        background += [self.spawn(self.life.reminders.run()), self.spawn(self.life.following.run())]
        running = [self.spawn(self._run_channel(channel)) for channel in self.channels.values()]
        asked = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(asyncio.wait(running))
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.inbox.close()  # its windows are no tasks of the group, and would find nobody to tell
            raise
        finally:
            asked.cancel()
            ended.cancel()
        logger.info("stopping")
        await self.inbox.close()
        await self.minds.stop(TURN_GRACE_S)
        await self.life.notes.close()
        await self.signs.close()
        await self.outbox.drain(SEND_GRACE_S)
        for task in (*running, *background):
            task.cancel()
        await self.invitations.close()
        await asyncio.wait((*running, *background))
        await self.outbox.close()
        if not stop.is_set():
            raise NothingLeft("every channel was refused by its platform; the reasons are logged above")

    async def _warm_up(self) -> None:
        for model in {id(one): one for one in self.models.values()}.values():
            try:
                await model.start()
            except ModelError as error:  # each turn will say so too; people come online meanwhile
                logger.error("the model %s is not usable: %s", model.label, error.reason)  # noqa: TRY400 - no bug
        await self.minds.warm_up()

    async def _run_channel(self, channel: Channel) -> None:
        try:
            await channel.run(self.intakes[channel.name])
        except Denied as error:  # the others go on
            logger.error("%s is refused and stays off: %s", channel.name, error.reason)  # noqa: TRY400 - no bug
            self.stats.refused(channel.name, error.reason, self.clock.now())
