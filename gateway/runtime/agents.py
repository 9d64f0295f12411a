"""All agents as one: which of them a conversation belongs to, and where what is noticed goes.

Seeing and steering the agents' Default Mode Networks: what an order says of them, and what it tells them. Pure.

The running gateway, the command line beside a stopped one, and whatever else takes orders share it.

What holds of the agents from the last run: their Default Mode Networks' states, and what they think with.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from agent import dmn, signals
from agent.models.base import ModelError
from agent.signals import Directive, DmnMode, DmnPolicy, DmnState, Presence, load_state
from gateway.config.models import Settings
from gateway.context.schedule import parse_moment
from gateway.core.control_messages import ContextRequest, ControlResponse, DmnAction, DmnRequest, DmnStatus, WantedTurn
from gateway.core.events import Address, Alarm, ConversationId, PresenceLevel
from gateway.core.facts import (
    LOW,
    URGENT,
    DmnDirective,
    DmnStateSaved,
    ModelSelected,
    TurnRecord,
    inner_conversation,
    is_inner,
)
from gateway.core.format import format_duration
from gateway.runtime.agent import Agent, GatewayServices, turn_settings_key
from gateway.runtime.loop import AgentLoop
from gateway.runtime.model_choice import ModelSelector
from gateway.runtime.models import ModelServices
from gateway.runtime.rewind import Rewinder
from gateway.runtime.turn import TurnStopper
from gateway.runtime.turn_input import BLOCKED_REASON, are_blocked
from gateway.store import NewEntry, StoreReader
from gateway.stream import policies
from gateway.stream.inbox import ReadyConversation
from gateway.tools.dispatch import ToolList

DEFAULT_QUIET: Final = timedelta(hours=1)
"""So long, if nobody says how long."""
QUERY_ORDERS: Final = frozenset[DmnAction]({"status", "debug"})
"""What only asks, and changes nothing."""
_DIRECTIVE_ORDERS: Final[dict[DmnAction, signals.DmnOrder]] = {
    "pause": "pause",
    "wake": "wake",
    "sleep": "store",
    "quiet": "quiet",
    "rest": "rest",
    "off": "off",
}
_CENT: Final = 0.01


class DmnSource(Protocol):
    """One agent's network: a running `gateway.runtime.loop.AgentLoop`, or a `SavedDmn` one."""

    @property
    def agent(self) -> str:
        """Its id."""

    @property
    def state(self) -> DmnState:
        """As it is now."""

    @property
    def policy(self) -> DmnPolicy:
        """How the operator wants it."""

    @property
    def next_tick_s(self) -> float | None:
        """Until its timer comes. None: none is armed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDmn:
    """One that does not run."""

    agent: str
    state: DmnState
    policy: DmnPolicy
    next_tick_s: float | None = None


class DmnCommand(NamedTuple):
    """What one agent is to be told, and the record of it. Whoever carries it out writes that down first."""

    agent: str
    directive: Directive
    directed: DmnDirective


def answer_order(
    order: DmnRequest, minds: Sequence[DmnSource], now: datetime
) -> tuple[ControlResponse, list[DmnCommand]]:
    """What to answer, and what is to be done for that to be true."""
    meant = [mind for mind in minds if order.agent in (None, mind.agent)]
    if not meant:
        there = ", ".join(mind.agent for mind in minds)
        return ControlResponse(ok=False, lines=(f"there is no agent {order.agent}; there is {there}",)), []
    if (
        order.what in QUERY_ORDERS or order.what == "presence"
    ):  # which is no network's: what they are by then is the answer
        seen = [snapshot_dmn(mind, now) for mind in meant]
        lines = [
            line
            for one in seen
            for line in (format_next_turns(one) if order.what == "debug" else format_dmn_status(one, now))
        ]
        return ControlResponse(ok=True, lines=tuple(lines), data=tuple(seen)), []
    return _direct_agents(order, meant, now)


def build_directive_facts(
    mind: DmnSource, directive: Directive, directed: DmnDirective
) -> tuple[DmnDirective, DmnStateSaved]:
    """What is to be written down before an agent is told: who said so, and the state by which it holds over a crash."""
    after, _ = dmn.step(mind.state, directive, mind.policy)
    return directed, DmnStateSaved(state=signals.dump_state(after), agent=mind.agent)


def parse_until(said: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """Until when, UTC: a time as `gateway.context.schedule` reads it, or so many seconds. None for nothing.

    Raises BadSchedule, in words.
    """
    text = said.strip().removeprefix("until").strip()
    if not text:
        return None
    whole = now.replace(microsecond=0)  # or 2 h from now would be told as more than that
    return parse_moment(f"{text}s" if text.isascii() and text.isdigit() else text, whole, zone).astimezone(UTC)


def _direct_agents(
    order: DmnRequest, minds: Iterable[DmnSource], now: datetime
) -> tuple[ControlResponse, list[DmnCommand]]:
    until = order.until if order.what in ("sleep", "quiet") else None
    if order.what == "quiet" and until is None:
        until = now + DEFAULT_QUIET
    lines, seen, todo, ok = [], [], list[DmnCommand](), True
    for mind in minds:
        on = order.on if order.what == "sleep" else ()
        directive = Directive(at=now, order=_DIRECTIVE_ORDERS[order.what], until=until, on=on)
        after, _ = dmn.step(mind.state, directive, mind.policy)
        one = snapshot_dmn(
            SavedDmn(agent=mind.agent, state=after, policy=mind.policy, next_tick_s=mind.next_tick_s), now
        )
        if order.what in ("sleep", "rest") and mind.state.mode in (DmnMode.PAUSED, DmnMode.OFF):
            ok = False
            lines.append(f"{mind.agent} is {mind.state.mode}, which is more: wake it first")
        else:
            todo.append(
                DmnCommand(
                    mind.agent, directive, DmnDirective(agent=mind.agent, what=order.what, by=order.by, until=until)
                )
            )
            lines.append(f"{mind.agent} is {one.mode}{_format_rest(one, now)}")
        seen.append(one)
    return ControlResponse(ok=ok, lines=tuple(lines), data=tuple(seen)), todo


def snapshot_dmn(mind: DmnSource, now: datetime) -> DmnStatus:
    """One agent's network, for programs."""
    state, policy = mind.state, mind.policy
    today = state.day == now.astimezone(UTC).date().isoformat()
    quiet = state.quiet_until is not None and state.quiet_until > now
    return DmnStatus(
        agent=mind.agent,
        mode=state.mode.value,
        next_tick_s=mind.next_tick_s,
        running=state.running,
        waiting=tuple(owed.conversation for owed in state.waiting),
        wanted=tuple(
            WantedTurn(conversation=place, why=_pending_reason(state, place))
            for place in dmn.due_conversations(state, policy)
        ),
        held=dmn.blocking_reasons(state, policy, now),
        low=state.low,
        in_a_row=state.autonomous,
        max_in_a_row=policy.max_autonomous_turns,
        turns_today=state.turns_today if today else 0,
        daily_turns=policy.daily_turns,
        spent_today_usd=state.spent_today_usd if today else 0.0,
        daily_cost_usd=policy.daily_cost_usd,
        errors=state.errors,
        quiet=quiet,
        quiet_until=_finite_until(state.quiet_until) if quiet else None,
        stored_until=_finite_until(state.stored_until),
        wake_on=state.wake_on,
        presence=state.presence,
    )


def format_dmn_status(one: DmnStatus, now: datetime) -> list[str]:
    """Its standing, for people; the first line names the agent."""
    tick = "" if one.next_tick_s is None else f"; it looks again in {format_duration(max(0.0, one.next_tick_s))}"
    turns, cost = f"{one.turns_today} of {one.daily_turns} turns", _format_dollars(one.spent_today_usd)
    errors = f", {one.errors} failed in a row" if one.errors else ""
    lists = (
        ("running", one.running),
        ("waiting", one.waiting),
        ("pending", tuple(f"{wish.conversation} ({wish.why})" for wish in one.wanted)),
        ("low", one.low),
    )
    row = f"{one.in_a_row} of {one.max_in_a_row} turns in a row{errors}"
    return [
        f"{one.agent} is {one.mode}{_format_rest(one, now)}{tick}",
        f"  unasked: {turns}, {cost} of {_format_dollars(one.daily_cost_usd)} today; {row}",
        *(f"  {name}: {', '.join(places)}" for name, places in lists if places),
        f"  people: {one.presence}",
    ]


def format_next_turns(one: DmnStatus) -> list[str]:
    """What its next tick would start, and what keeps it from that."""
    lines = [f"{place}: a turn is owed, and waits for a lane" for place in one.waiting]
    blocked = f" - blocked by: {'; '.join(one.held)}" if one.held else ""
    lines += [f"would fire: {wish.conversation} ({wish.why}){blocked}" for wish in one.wanted]
    if not one.wanted:
        lines.append(f"nothing is pending{blocked.replace(' - blocked by', '; anything would be blocked by')}")
    return [f"{one.agent} is {one.mode}", *(f"  {line}" for line in lines)]


def _pending_reason(state: DmnState, place: str) -> str:
    if place in state.pending:
        return "pending"
    return "continuing" if place in state.continuing else "low"


def _format_rest(one: DmnStatus, now: datetime) -> str:
    stored = f" until {_format_until(one.stored_until, now)}" if one.mode == DmnMode.STORED else ""
    kinds = f" or {', '.join(one.wake_on)} comes" if one.wake_on else ""
    quiet = f", and quiet until {_format_until(one.quiet_until, now)}" if one.quiet else ""
    return f"{stored}{kinds}{quiet}"


def _format_until(until: datetime | None, now: datetime) -> str:
    if until is None:
        return "it is woken"
    return f"{until:%Y-%m-%d %H:%M} UTC (for {_format_duration(until - now)})"


def _format_duration(time: timedelta) -> str:
    hours, minutes = divmod(math.ceil(time.total_seconds() / 60), 60)
    return " ".join(f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min")) if count) or "0 min"


def _finite_until(until: datetime | None) -> datetime | None:
    return None if until is None or until >= dmn.FOREVER else until


def _format_dollars(amount: float) -> str:
    return f"${amount:.2f}" if amount >= _CENT or amount == 0 else f"${amount:.4f}"


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
        """`chosen`.

        By agent, the model that it thinks with, as `gateway.runtime.agents.load_chosen_models` finds it.
        """
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
        """As `gateway.config.reload.SettingsListener`: the next turn, and the next step of each DMN, go by that."""
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
        record, saved = build_directive_facts(loop, directive, told)
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
        return [snapshot_dmn(mind.loop, now) for mind in self.by_id.values()]

    async def handle_order(self, order: DmnRequest | ContextRequest) -> ControlResponse:
        """Somebody steers them from outside."""
        if isinstance(order, ContextRequest):
            return await self.rewinder.handle_order(order)
        if order.what == "presence":
            return await self._handle_presence_order(order)
        answer, todo = answer_order(order, self.loops, self._services.clock.now())
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
        answer, _ = answer_order(order, self.loops, now)
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


_models_logger = logging.getLogger("reverie.choosing")


async def load_dmn_states(store: StoreReader, agents: Sequence[str], now: datetime) -> dict[str, DmnState]:
    """The state of each agent's DMN as it was saved last, with what the log says that it did today."""
    states, today = {}, now.astimezone(UTC).date().isoformat()
    for place, agent in enumerate(agents):
        saved = await store.dmn_state(agent) or (await store.dmn_state("") if place == 0 else None)
        try:
            state = load_state(saved) if saved else DmnState()
        except ValueError:  # another version's
            logger.warning("the saved state of %s's DMN cannot be read; it begins at rest", agent)
            state = DmnState()
        turns, cost_usd = await store.autonomous_usage(agent, today)
        known = state.turns_today if state.day == today else 0
        spent_up = state.spent_up and state.day == today
        states[agent] = replace(
            state, day=today, turns_today=max(turns, known), spent_today_usd=cost_usd, spent_up=spent_up
        )
    return states


async def load_chosen_models(reader: StoreReader, settings: Settings) -> dict[str, str]:
    """What was chosen for which agent and can still be had: a key of `llm.models` each. Raises StoreError."""
    configured, found = {agent.id: agent.model for agent in settings.agents}, dict[str, str]()
    for one in await reader.current_facts("model_chosen"):
        fact = one.fact
        if not isinstance(fact, ModelSelected) or fact.agent not in configured:
            continue
        if fact.model in settings.llm.models:
            found[fact.agent] = fact.model
        else:
            told = fact.agent, fact.by, fact.model, configured[fact.agent]
            _models_logger.warning(
                "%s was to think with what %s chose, %s, which is not in llm.models: %s is used", *told
            )
    return found
