"""All agents as one: which of them a conversation belongs to, and where what is noticed goes."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from agent.models.base import ModelError
from agent.signals import Directive, DmnState, Presence, PresenceLevel
from gateway import mindctl, policies
from gateway.asking import BLOCKED_REASON, are_blocked
from gateway.choosing import ModelSelector
from gateway.equipment import ModelServices
from gateway.events import Address, Alarm, ConversationId
from gateway.inbox import ReadyConversation
from gateway.loop import AgentLoop
from gateway.mind import Agent
from gateway.orders import ContextRequest, ControlResponse, DmnRequest, DmnStatus
from gateway.records import LOW, URGENT, DmnDirective, TurnRecord, inner_conversation, is_inner
from gateway.rewinds import Rewinder
from gateway.settings import Settings
from gateway.shared import GatewayServices
from gateway.stopping import TurnStopper
from gateway.store import NewEntry
from gateway.thinking import turn_settings_key
from gateway.tools.toolbox import ToolList

logger = logging.getLogger("reverie.minds")

SCANNED_ENTRIES: Final = 50
"""Unread entries of a place among which a reminder is looked for at the start, and turns among which are the last."""


class Agents:
    """Every agent of a gateway."""

    def __init__(
        self,
        shared: GatewayServices,
        equipment: ModelServices,
        states: Mapping[str, DmnState],
        chosen: Mapping[str, str] | None = None,
    ) -> None:
        """`chosen`: by agent, the model that it thinks with, as `gateway.restored.load_chosen_models` finds it."""
        self._services = shared
        chosen = chosen or {}
        self.by_id = {
            agent.id: Agent(
                agent,
                shared,
                equipment,
                states.get(agent.id, DmnState()),
                owns=partial(self._owns, agent.id),
                model=chosen.get(agent.id, ""),
            )
            for agent in shared.live.settings.agents
        }
        self._default_agent = next(iter(self.by_id.values()))
        self.rewinder = Rewinder(
            store=shared.store,
            clock=shared.clock,
            doors=shared.room_locks,
            minds=self,
            post=shared.post,
            spawn=shared.spawn,
        )
        self.turn_stopper = TurnStopper(self.agent_for, shared.room_locks)
        self.model_selector = ModelSelector(
            live=shared.live,
            store=shared.store,
            clock=shared.clock,
            equipment=equipment,
            minds=self,
            chosen=chosen,
            post=shared.post,
            spawn=shared.spawn,
        )

        self._turn_settings = turn_settings_key(shared.live.settings)
        shared.live.add_listener(self)

    def prepare(self, new: Settings) -> Callable[[], None]:
        """As `gateway.live.SettingsListener`: the next turn, and the next step of each DMN, go by that."""
        thought, paces = turn_settings_key(new), {agent: policies.build_dmn_policy(new, agent) for agent in self.by_id}

        def put() -> None:
            others, self._turn_settings = thought != self._turn_settings, thought
            for agent, mind in self.by_id.items():
                self.model_selector.apply_settings(mind, all_of_it=others)
                mind.loop.set_policy(paces[agent])

        return put

    @property
    def agents(self) -> Sequence[Agent]:
        """Each agent."""
        return [*self.by_id.values()]

    def agent_for(self, conversation: ConversationId) -> Agent:
        """Whose it is."""
        place = Address.parse(conversation)
        # What no binding matches any more may still hold what was said while one did.
        name = place.room if is_inner(conversation) else self._services.bindings.find(place).agent
        return self.by_id.get(name, self._default_agent)

    def _owns(self, agent: str, conversation: ConversationId) -> bool:
        return self.agent_for(conversation).id == agent

    @property
    def mode_label(self) -> str:
        """What they are doing, for people."""
        modes = {mind.id: mind.loop.state.mode.value for mind in self.by_id.values()}
        if len(modes) == 1:
            return next(iter(modes.values()))
        return ", ".join(f"{agent}: {mode}" for agent, mode in modes.items())

    def tool_list(self, at: Address) -> ToolList:
        """What tools whoever answers there has, for people."""
        mind = self.agent_for(at.conversation)
        return self._services.tool_registry.list_tools(mind.id, mind.tools, at)

    @property
    def model_labels(self) -> str:
        """For people: what they think with."""
        return ", ".join(dict.fromkeys(mind.model.label for mind in self.by_id.values()))

    def start(self) -> None:
        """Arm every loop's timer. A start fires nothing by itself."""
        for mind in self.by_id.values():
            mind.loop.start()

    async def stop(self, grace_s: float) -> None:
        """As `AgentLoop.stop`, all at once."""
        await asyncio.gather(*(mind.loop.stop(grace_s) for mind in self.by_id.values()))
        await self.rewinder.close()
        await self.model_selector.close()

    async def find_pending_arrivals(self) -> list[ReadyConversation]:
        """What an earlier process left undone, as it would arrive now."""
        found, due = [], dict(await self._services.store.due_conversations(LOW))
        due |= dict.fromkeys(await self._find_interrupted(), URGENT)
        for place, urgency in due.items():
            own = False
            if urgency < URGENT and not is_inner(place):
                unread = await self._services.store.unread_entries(place, most=SCANNED_ENTRIES)
                own = any(isinstance(one.fact, Alarm) for one in unread.messages)
            direct = None if is_inner(place) else await self._services.background_services.places.is_direct(place)
            found.append(ReadyConversation(conversation=place, urgency=urgency, direct=direct, handle_in_place=own))
        return found

    async def _find_interrupted(self) -> list[ConversationId]:
        """Where the last turn was interrupted: what it had heard is owed an answer, if nothing newer is there, too."""
        ended: dict[ConversationId, bool] = {}
        for one in await self._services.store.newest_entries(SCANNED_ENTRIES, kinds=["turn_ended"]):
            if not isinstance(one.fact, TurnRecord) or one.fact.cause == "compact":
                continue
            if one.conversation is not None and not is_inner(one.conversation):
                ended[one.conversation] = one.fact.outcome == "interrupted"
        return [place for place, interrupted in ended.items() if interrupted]

    def notice(self, arrival: ReadyConversation) -> None:
        """Something is ripe. Urgent: a turn there; else one of the inner conversation, if everybody may read it."""
        place = arrival.conversation
        if arrival.direct is not None:
            self._services.background_services.places.record_direct(place, direct=arrival.direct)
        acts = self.agent_for(place).model.takes_tools  # without tools nothing can be done about it from elsewhere
        if arrival.urgency >= URGENT or arrival.handle_in_place or arrival.direct or is_inner(place) or not acts:
            self._notice(arrival, place)
        else:
            self._services.spawn(self._route(arrival))

    async def _route(self, arrival: ReadyConversation) -> None:
        place = arrival.conversation
        public = await self._services.background_services.places.is_public(place)
        self._notice(arrival, inner_conversation(self.agent_for(place).id) if public else place)

    def _notice(self, arrival: ReadyConversation, target: ConversationId) -> None:
        arrivals = self._services.bindings.find(Address.parse(arrival.conversation)).arrivals
        loop = self.agent_for(target).loop
        loop.notice(target, arrival.urgency, dotted=arrival.type, arrivals=arrivals, trusted=arrival.trusted)

    def notice_alarm(self, alarm: Alarm) -> None:
        """A reminder has come, and is noticed: whoever asked for it does not wait for the next tick."""
        place = alarm.at.conversation if alarm.at is not None else inner_conversation(alarm.agent)
        self.agent_for(place).loop.tick()

    def end_blocked_turns(self) -> None:
        """Somebody may have been blocked: end the turns that nobody else asked for. Returns at once."""
        for loop in self.loops:
            for place, lane in loop.turn_handles:
                if are_blocked(self._services.access_policy, Address.parse(place), lane.requesters):
                    logger.info("%s: its turn is ended: %s", place, BLOCKED_REASON)
                    lane.drop(BLOCKED_REASON)

    def forget_view(self, conversation: ConversationId) -> None:
        """The view there was changed by somebody else."""
        self.agent_for(conversation).forget_view(conversation)

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view there now; in words, what came of it."""
        return await self.agent_for(conversation).compact(conversation)

    def set_presence(self, level: PresenceLevel) -> None:
        """The people came nearer, or went."""
        for mind in self.by_id.values():
            mind.loop.send(Presence(at=self._services.clock.now(), level=level))

    async def send_directive(self, agent: str, directive: Directive, told: DmnDirective) -> None:
        """Somebody tells an agent's DMN what to do: written down first, then done."""
        loop = self.by_id[agent].loop
        record, saved = mindctl.build_directive_facts(loop, directive, told)
        entries = [
            NewEntry(fact=record, at=directive.at, conversation=inner_conversation(agent)),
            NewEntry(fact=saved, at=directive.at),
        ]
        await self._services.store.append(entries)
        loop.send(directive)

    @property
    def dmn_status(self) -> list[DmnStatus]:
        """What each agent's DMN is doing."""
        now = self._services.clock.now()
        return [mindctl.snapshot_dmn(mind.loop, now) for mind in self.by_id.values()]

    async def handle_order(self, order: DmnRequest | ContextRequest) -> ControlResponse:
        """Somebody steers them from outside."""
        if isinstance(order, ContextRequest):
            return await self.rewinder.handle_order(order)
        if order.what == "presence":
            return await self._handle_presence_order(order)
        answer, todo = mindctl.answer_order(order, self.loops, self._services.clock.now())
        for one in todo:
            await self.send_directive(*one)
        return answer

    async def _handle_presence_order(self, order: DmnRequest) -> ControlResponse:
        """Somebody says how near the people are; it holds until `auto`, or the end of the process."""
        now = self._services.clock.now()
        told = [DmnDirective(agent=agent, what=f"presence {order.level}", by=order.by) for agent in self.by_id]
        await self._services.store.append(
            [NewEntry(fact=one, at=now, conversation=inner_conversation(one.agent)) for one in told]
        )
        self._services.background_services.presence.set_level(None if order.level == "auto" else order.level)
        answer, _ = mindctl.answer_order(order, self.loops, now)
        return answer

    @property
    def loops(self) -> list[AgentLoop]:
        """Of each agent its DMN."""
        return [mind.loop for mind in self.by_id.values()]

    async def warm_up(self) -> None:
        """Make ready what each agent thinks with, and warm that up."""
        for model in {id(one): one for one in (mind.model for mind in self.by_id.values())}.values():
            try:
                await model.start()
            except ModelError as error:  # each turn will say so too; people come online meanwhile
                logger.error("the model %s is not usable: %s", model.label, error.reason)  # noqa: TRY400 - no bug
        for mind in self.by_id.values():
            await mind.warm_up()
