"""All agents as one: which of them a conversation belongs to, and where what is noticed goes."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from agent.models.base import ModelError
from agent.signals import Directive, Level, Presence, State
from gateway import mindctl, policies
from gateway.asking import BLOCKED, are_blocked
from gateway.choosing import Choosing
from gateway.equipment import Equipment
from gateway.events import Address, Alarm, ConversationId
from gateway.inbox import Arrival
from gateway.loop import Loop
from gateway.mind import Mind
from gateway.orders import Answer, ContextOrder, DmnOrder, MindSeen
from gateway.records import LOW, URGENT, Directed, TurnEnded, inner, is_inner
from gateway.rewinds import Rewinds
from gateway.settings import Settings
from gateway.shared import Shared
from gateway.stopping import Stopping
from gateway.store import Entry
from gateway.thinking import made_with
from gateway.tools.toolbox import Toolbox

logger = logging.getLogger("reverie.minds")

LOOKED_AT: Final = 50
"""Unread entries of a place among which a reminder is looked for at the start, and turns among which are the last."""


class Minds:
    """Every agent of a gateway."""

    def __init__(
        self,
        shared: Shared,
        equipment: Equipment,
        states: Mapping[str, State],
        chosen: Mapping[str, str] | None = None,
    ) -> None:
        """`chosen`: by agent, the model that it thinks with, as `gateway.restored.chosen` finds it."""
        self._shared = shared
        chosen = chosen or {}
        self.minds = {
            agent.id: Mind(
                agent,
                shared,
                equipment,
                states.get(agent.id, State()),
                owns=partial(self._owns, agent.id),
                model=chosen.get(agent.id, ""),
            )
            for agent in shared.live.settings.agents
        }
        self._first = next(iter(self.minds.values()))
        self.rewinds = Rewinds(
            store=shared.store,
            clock=shared.clock,
            doors=shared.doors,
            minds=self,
            post=shared.post,
            spawn=shared.spawn,
        )
        self.stopping = Stopping(self.of, shared.doors)
        self.choosing = Choosing(
            live=shared.live,
            store=shared.store,
            clock=shared.clock,
            equipment=equipment,
            minds=self,
            chosen=chosen,
            post=shared.post,
            spawn=shared.spawn,
        )

        self._thought = made_with(shared.live.settings)
        shared.live.hear(self)

    def prepare(self, new: Settings) -> Callable[[], None]:
        """As `gateway.live.Taker`: the next turn, and the next step of each DMN, go by that."""
        thought, paces = made_with(new), {agent: policies.dmn_policy(new, agent) for agent in self.minds}

        def put() -> None:
            others, self._thought = thought != self._thought, thought
            for agent, mind in self.minds.items():
                self.choosing.renew(mind, all_of_it=others)
                mind.loop.become(paces[agent])

        return put

    @property
    def all(self) -> Sequence[Mind]:
        """Each agent."""
        return [*self.minds.values()]

    def of(self, conversation: ConversationId) -> Mind:
        """Whose it is."""
        place = Address.parse(conversation)
        # What no binding matches any more may still hold what was said while one did.
        name = place.room if is_inner(conversation) else self._shared.bindings.of(place).agent
        return self.minds.get(name, self._first)

    def _owns(self, agent: str, conversation: ConversationId) -> bool:
        return self.of(conversation).id == agent

    @property
    def mode(self) -> str:
        """What they are doing, for people."""
        modes = {mind.id: mind.loop.state.mode.value for mind in self.minds.values()}
        if len(modes) == 1:
            return next(iter(modes.values()))
        return ", ".join(f"{agent}: {mode}" for agent, mode in modes.items())

    def toolbox(self, at: Address) -> Toolbox:
        """What tools whoever answers there has, for people."""
        mind = self.of(at.conversation)
        return self._shared.tooling.toolbox(mind.id, mind.hands, at)

    @property
    def thinking(self) -> str:
        """For people: what they think with."""
        return ", ".join(dict.fromkeys(mind.model.label for mind in self.minds.values()))

    def start(self) -> None:
        """Arm every loop's timer. A start fires nothing by itself."""
        for mind in self.minds.values():
            mind.loop.start()

    async def stop(self, grace_s: float) -> None:
        """As `Loop.stop`, all at once."""
        await asyncio.gather(*(mind.loop.stop(grace_s) for mind in self.minds.values()))
        await self.rewinds.close()
        await self.choosing.close()

    async def due(self) -> list[Arrival]:
        """What an earlier process left undone, as it would arrive now."""
        found, due = [], dict(await self._shared.store.due(LOW))
        due |= dict.fromkeys(await self._interrupted(), URGENT)
        for place, urgency in due.items():
            own = False
            if urgency < URGENT and not is_inner(place):
                unread = await self._shared.store.unread(place, most=LOOKED_AT)
                own = any(isinstance(one.fact, Alarm) for one in unread.messages)
            direct = None if is_inner(place) else await self._shared.life.places.direct(place)
            found.append(Arrival(conversation=place, urgency=urgency, direct=direct, own=own))
        return found

    async def _interrupted(self) -> list[ConversationId]:
        """Where the last turn was interrupted: what it had heard is owed an answer, if nothing newer is there, too."""
        ended: dict[ConversationId, bool] = {}
        for one in await self._shared.store.newest(LOOKED_AT, kinds=["turn_ended"]):
            if not isinstance(one.fact, TurnEnded) or one.fact.cause == "compact":
                continue
            if one.conversation is not None and not is_inner(one.conversation):
                ended[one.conversation] = one.fact.outcome == "interrupted"
        return [place for place, interrupted in ended.items() if interrupted]

    def notice(self, arrival: Arrival) -> None:
        """Something is ripe. Urgent: a turn there; else one of the inner conversation, if everybody may read it."""
        place = arrival.conversation
        if arrival.direct is not None:
            self._shared.life.places.heard(place, direct=arrival.direct)
        acts = self.of(place).model.takes_tools  # without tools nothing can be done about it from elsewhere
        if arrival.urgency >= URGENT or arrival.own or arrival.direct or is_inner(place) or not acts:
            self._notice(arrival, place)
        else:
            self._shared.spawn(self._route(arrival))

    async def _route(self, arrival: Arrival) -> None:
        place = arrival.conversation
        public = await self._shared.life.places.public(place)
        self._notice(arrival, inner(self.of(place).id) if public else place)

    def _notice(self, arrival: Arrival, target: ConversationId) -> None:
        arrivals = self._shared.bindings.of(Address.parse(arrival.conversation)).arrivals
        loop = self.of(target).loop
        loop.notice(target, arrival.urgency, dotted=arrival.type, arrivals=arrivals, trusted=arrival.trusted)

    def rang(self, alarm: Alarm) -> None:
        """A reminder has come, and is noticed: whoever asked for it does not wait for the next tick."""
        place = alarm.at.conversation if alarm.at is not None else inner(alarm.agent)
        self.of(place).loop.tick()

    def end_blocked(self) -> None:
        """Somebody may have been blocked: end the turns that nobody else asked for. Returns at once."""
        for loop in self.loops:
            for place, lane in loop.lanes:
                if are_blocked(self._shared.who, Address.parse(place), lane.askers):
                    logger.info("%s: its turn is ended: %s", place, BLOCKED)
                    lane.drop(BLOCKED)

    def forget(self, conversation: ConversationId) -> None:
        """The view there was changed by somebody else."""
        self.of(conversation).forget(conversation)

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view there now; in words, what came of it."""
        return await self.of(conversation).compact(conversation)

    def presence(self, level: Level) -> None:
        """The people came nearer, or went."""
        for mind in self.minds.values():
            mind.loop.send(Presence(at=self._shared.clock.now(), level=level))

    async def direct(self, agent: str, directive: Directive, told: Directed) -> None:
        """Somebody tells an agent's DMN what to do: written down first, then done."""
        loop = self.minds[agent].loop
        record, saved = mindctl.facts(loop, directive, told)
        entries = [Entry(fact=record, at=directive.at, conversation=inner(agent)), Entry(fact=saved, at=directive.at)]
        await self._shared.store.append(entries)
        loop.send(directive)

    @property
    def seen(self) -> list[MindSeen]:
        """What each agent's DMN is doing."""
        now = self._shared.clock.now()
        return [mindctl.look(mind.loop, now) for mind in self.minds.values()]

    async def order(self, order: DmnOrder | ContextOrder) -> Answer:
        """Somebody steers them from outside."""
        if isinstance(order, ContextOrder):
            return await self.rewinds.order(order)
        if order.what == "presence":
            return await self._near(order)
        answer, todo = mindctl.answer(order, self.loops, self._shared.clock.now())
        for one in todo:
            await self.direct(*one)
        return answer

    async def _near(self, order: DmnOrder) -> Answer:
        """Somebody says how near the people are; it holds until `auto`, or the end of the process."""
        now = self._shared.clock.now()
        told = [Directed(agent=agent, what=f"presence {order.level}", by=order.by) for agent in self.minds]
        await self._shared.store.append([Entry(fact=one, at=now, conversation=inner(one.agent)) for one in told])
        self._shared.life.following.ordered(None if order.level == "auto" else order.level)
        answer, _ = mindctl.answer(order, self.loops, now)
        return answer

    @property
    def loops(self) -> list[Loop]:
        """Of each agent its DMN."""
        return [mind.loop for mind in self.minds.values()]

    async def warm_up(self) -> None:
        """Make ready what each agent thinks with, and warm that up."""
        for model in {id(one): one for one in (mind.model for mind in self.minds.values())}.values():
            try:
                await model.start()
            except ModelError as error:  # each turn will say so too; people come online meanwhile
                logger.error("the model %s is not usable: %s", model.label, error.reason)  # noqa: TRY400 - no bug
        for mind in self.minds.values():
            await mind.warm_up()
