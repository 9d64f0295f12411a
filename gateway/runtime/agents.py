"""All agents of a gateway: the owner of each conversation, routing of arrivals, and the administration of their DMNs.

- `Agents` holds the running agents.
- `answer_order`, `snapshot_dmn` and the `format_` functions answer requests about the agents' Default Mode Networks.
  Pure. The running gateway and the command line beside a stopped one share them.
- `load_dmn_states` and `load_chosen_models` read what the last run left.
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

logger = logging.getLogger("reverie.minds")
_dmn_logger = logging.getLogger("reverie.dmn")
_models_logger = logging.getLogger("reverie.choosing")

DEFAULT_QUIET: Final = timedelta(hours=1)
"""Length of a quiet time if none is given."""
QUERY_ORDERS: Final = frozenset[DmnAction]({"status", "debug"})
"""Requests that change nothing."""
_DIRECTIVE_ORDERS: Final[dict[DmnAction, signals.DmnOrder]] = {
    "pause": "pause",
    "wake": "wake",
    "sleep": "store",
    "quiet": "quiet",
    "rest": "rest",
    "off": "off",
}
_CENT: Final = 0.01

SCANNED_ENTRIES: Final = 50
"""Unread entries of a place that are searched for a reminder at the start, and turns that are searched for the last
ones."""


class DmnSource(Protocol):
    """Network of one agent: a running `gateway.runtime.loop.AgentLoop`, or a `SavedDmn`."""

    @property
    def agent(self) -> str:
        """Id of the agent."""

    @property
    def state(self) -> DmnState:
        """The present state."""

    @property
    def policy(self) -> DmnPolicy:
        """The operator's policy."""

    @property
    def next_tick_s(self) -> float | None:
        """Seconds until its timer fires. None: none is armed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDmn:
    """Network of a stopped agent."""

    agent: str
    state: DmnState
    policy: DmnPolicy
    next_tick_s: float | None = None


class DmnCommand(NamedTuple):
    """Directive for one agent, and its record. The caller writes the record first."""

    agent: str
    directive: Directive
    directed: DmnDirective


class Agents:
    """All agents of a gateway."""

    def __init__(
        self,
        services: GatewayServices,
        model_services: ModelServices,
        states: Mapping[str, DmnState],
        chosen: Mapping[str, str] | None = None,
    ) -> None:
        """`chosen`: by agent, the key of its chosen model, see `gateway.runtime.agents.load_chosen_models`."""
        self._services = services
        chosen = chosen or {}
        self.by_id = {
            agent.id: Agent(
                agent,
                services,
                model_services,
                states.get(agent.id, DmnState()),
                owns=partial(self._owns, agent.id),
                model=chosen.get(agent.id, ""),
            )
            for agent in services.live.settings.agents
        }
        self._default_agent = next(iter(self.by_id.values()))
        self.rewinder = Rewinder(
            store=services.store,
            clock=services.clock,
            room_locks=services.room_locks,
            agents=self,
            tasks=services.tasks,
        )
        self.turn_stopper = TurnStopper(self.agent_for, services.room_locks)
        self.model_selector = ModelSelector(
            live=services.live,
            store=services.store,
            clock=services.clock,
            model_services=model_services,
            agents=self,
            chosen=chosen,
            tasks=services.tasks,
        )

        self._turn_settings = turn_settings_key(services.live.settings)
        services.live.add_listener(self)

    def prepare(self, new: Settings) -> Callable[[], None]:
        """Apply new settings, see `gateway.config.reload.SettingsListener`: from the next turn and DMN step on."""
        settings_key = turn_settings_key(new)
        dmn_policies = {agent: policies.build_dmn_policy(new, agent) for agent in self.by_id}

        def apply() -> None:
            turns_change, self._turn_settings = settings_key != self._turn_settings, settings_key
            for agent_id, agent in self.by_id.items():
                self.model_selector.apply_settings(agent, rebuild=turns_change)
                agent.loop.set_policy(dmn_policies[agent_id])

        return apply

    @property
    def agents(self) -> Sequence[Agent]:
        """The agents, in the order of the configuration."""
        return [*self.by_id.values()]

    def agent_for(self, conversation: ConversationId) -> Agent:
        """Return the agent of a conversation."""
        place = Address.parse(conversation)
        # A place that no binding matches any more may still hold older messages.
        name = place.room if is_inner(conversation) else self._services.bindings.find(place).agent
        return self.by_id.get(name, self._default_agent)

    def _owns(self, agent: str, conversation: ConversationId) -> bool:
        return self.agent_for(conversation).id == agent

    @property
    def mode_label(self) -> str:
        """Modes of the agents, for people."""
        modes = {agent.id: agent.loop.state.mode.value for agent in self.by_id.values()}
        if len(modes) == 1:
            return next(iter(modes.values()))
        return ", ".join(f"{agent}: {mode}" for agent, mode in modes.items())

    def tool_list(self, at: Address) -> ToolList:
        """Return the tools of the agent that answers there, for people."""
        agent = self.agent_for(at.conversation)
        return self._services.tool_registry.list_tools(agent.id, agent.tools, at)

    @property
    def model_labels(self) -> str:
        """Models of the agents, for people."""
        return ", ".join(dict.fromkeys(agent.model.label for agent in self.by_id.values()))

    def start(self) -> None:
        """Arm every loop's timer. A start fires nothing by itself."""
        for agent in self.by_id.values():
            agent.loop.start()

    async def stop(self, grace_s: float) -> None:
        """Stop all loops at once, see `AgentLoop.stop`."""
        await asyncio.gather(*(agent.loop.stop(grace_s) for agent in self.by_id.values()))
        await self.rewinder.close()
        await self.model_selector.close()

    async def find_pending_arrivals(self) -> list[ReadyConversation]:
        """Return what an earlier process left undone, as new arrivals."""
        found, due = [], dict(await self._services.store.due_conversations(LOW))
        due |= dict.fromkeys(await self._find_interrupted(), URGENT)
        for place, urgency in due.items():
            has_reminder = False
            if urgency < URGENT and not is_inner(place):
                unread = await self._services.store.unread_entries(place, most=SCANNED_ENTRIES)
                has_reminder = any(isinstance(one.fact, Alarm) for one in unread.messages)
            direct = None if is_inner(place) else await self._services.background_services.places.is_direct(place)
            found.append(
                ReadyConversation(conversation=place, urgency=urgency, direct=direct, handle_in_place=has_reminder)
            )
        return found

    async def _find_interrupted(self) -> list[ConversationId]:
        """Return the places whose last turn was interrupted.

        Its input is owed an answer, even if nothing newer is there.
        """
        ended: dict[ConversationId, bool] = {}
        for one in await self._services.store.newest_entries(SCANNED_ENTRIES, kinds=["turn_ended"]):
            if not isinstance(one.fact, TurnRecord) or one.fact.cause == "compact":
                continue
            if one.conversation is not None and not is_inner(one.conversation):
                ended[one.conversation] = one.fact.outcome == "interrupted"
        return [place for place, interrupted in ended.items() if interrupted]

    def notice(self, arrival: ReadyConversation) -> None:
        """Announce entries that are ready for attention.

        Urgent ones start a turn in their place, others a turn of the inner conversation, if everybody may read the
        place.
        """
        place = arrival.conversation
        if arrival.direct is not None:
            self._services.background_services.places.record_direct(place, direct=arrival.direct)
        can_act = self.agent_for(place).model.takes_tools  # without tools nothing can be done about it from elsewhere
        if arrival.urgency >= URGENT or arrival.handle_in_place or arrival.direct or is_inner(place) or not can_act:
            self._notice(arrival, place)
        else:
            self._services.tasks.create_task(self._route(arrival))

    async def _route(self, arrival: ReadyConversation) -> None:
        place = arrival.conversation
        public = await self._services.background_services.places.is_public(place)
        self._notice(arrival, inner_conversation(self.agent_for(place).id) if public else place)

    def _notice(self, arrival: ReadyConversation, target: ConversationId) -> None:
        arrivals = self._services.bindings.find(Address.parse(arrival.conversation)).arrivals
        loop = self.agent_for(target).loop
        loop.notice(target, arrival.urgency, event_type=arrival.type, arrivals=arrivals, trusted=arrival.trusted)

    def notice_alarm(self, alarm: Alarm) -> None:
        """Check for due turns now, because a reminder has fired."""
        place = alarm.at.conversation if alarm.at is not None else inner_conversation(alarm.agent)
        self.agent_for(place).loop.tick()

    def end_blocked_turns(self) -> None:
        """End the turns whose requesters are all blocked by now. Returns at once."""
        for loop in self.loops:
            for place, handle in loop.turn_handles:
                if are_blocked(self._services.access_policy, Address.parse(place), handle.requesters):
                    logger.info("%s: its turn is ended: %s", place, BLOCKED_REASON)
                    handle.drop(BLOCKED_REASON)

    def forget_view(self, conversation: ConversationId) -> None:
        """Drop the cached view of a place, because other code changed it."""
        self.agent_for(conversation).forget_view(conversation)

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view of a place. Return the result in words."""
        return await self.agent_for(conversation).compact(conversation)

    def set_presence(self, level: PresenceLevel) -> None:
        """Send the presence of people to every DMN."""
        for agent in self.by_id.values():
            agent.loop.send(Presence(at=self._services.clock.now(), level=level))

    async def send_directive(self, agent: str, directive: Directive, directed: DmnDirective) -> None:
        """Send a directive to an agent's DMN, once it is recorded."""
        loop = self.by_id[agent].loop
        record, saved = build_directive_facts(loop, directive, directed)
        entries = [
            NewEntry(fact=record, at=directive.at, conversation=inner_conversation(agent)),
            NewEntry(fact=saved, at=directive.at),
        ]
        await self._services.store.append(entries)
        loop.send(directive)

    @property
    def dmn_status(self) -> list[DmnStatus]:
        """State of each agent's DMN."""
        now = self._services.clock.now()
        return [snapshot_dmn(agent.loop, now) for agent in self.by_id.values()]

    async def handle_order(self, order: DmnRequest | ContextRequest) -> ControlResponse:
        """Carry out a request from outside."""
        if isinstance(order, ContextRequest):
            return await self.rewinder.handle_order(order)
        if order.what == "presence":
            return await self._handle_presence_order(order)
        answer, commands = answer_order(order, self.loops, self._services.clock.now())
        for one in commands:
            await self.send_directive(*one)
        return answer

    async def _handle_presence_order(self, order: DmnRequest) -> ControlResponse:
        """Set the presence of people by hand, until `auto`, or the end of the process."""
        now = self._services.clock.now()
        records = [DmnDirective(agent=agent, what=f"presence {order.level}", by=order.by) for agent in self.by_id]
        await self._services.store.append(
            [NewEntry(fact=one, at=now, conversation=inner_conversation(one.agent)) for one in records]
        )
        self._services.background_services.presence.set_level(None if order.level == "auto" else order.level)
        answer, _ = answer_order(order, self.loops, now)
        return answer

    @property
    def loops(self) -> list[AgentLoop]:
        """The loop of each agent."""
        return [agent.loop for agent in self.by_id.values()]

    async def warm_up(self) -> None:
        """Start the models of the agents, and warm them up."""
        for model in {id(one): one for one in (agent.model for agent in self.by_id.values())}.values():
            try:
                await model.start()
            except ModelError as error:  # each turn will report it too; the channels connect meanwhile
                logger.error("the model %s is not usable: %s", model.label, error.reason)  # noqa: TRY400 - no bug
        for agent in self.by_id.values():
            await agent.warm_up()


async def load_dmn_states(store: StoreReader, agents: Sequence[str], now: datetime) -> dict[str, DmnState]:
    """Return each agent's DMN state as it was last saved, with today's counts from the log."""
    states, today = {}, now.astimezone(UTC).date().isoformat()
    for index, agent in enumerate(agents):
        saved = await store.dmn_state(agent) or (await store.dmn_state("") if index == 0 else None)
        try:
            state = load_state(saved) if saved else DmnState()
        except ValueError:  # written by another version
            _dmn_logger.warning("the saved state of %s's DMN cannot be read; it begins at rest", agent)
            state = DmnState()
        turns, cost_usd = await store.autonomous_usage(agent, today)
        known = state.turns_today if state.day == today else 0
        spent_up = state.spent_up and state.day == today
        states[agent] = replace(
            state, day=today, turns_today=max(turns, known), spent_today_usd=cost_usd, spent_up=spent_up
        )
    return states


async def load_chosen_models(reader: StoreReader, settings: Settings) -> dict[str, str]:
    """Return the chosen models that are still configured: by agent, a key of `llm.models`. Raises StoreError."""
    configured, found = {agent.id: agent.model for agent in settings.agents}, dict[str, str]()
    for one in await reader.current_facts("model_chosen"):
        fact = one.fact
        if not isinstance(fact, ModelSelected) or fact.agent not in configured:
            continue
        if fact.model in settings.llm.models:
            found[fact.agent] = fact.model
        else:
            args = fact.agent, fact.by, fact.model, configured[fact.agent]
            _models_logger.warning(
                "%s was to think with what %s chose, %s, which is not in llm.models: %s is used", *args
            )
    return found


def answer_order(
    order: DmnRequest, sources: Sequence[DmnSource], now: datetime
) -> tuple[ControlResponse, list[DmnCommand]]:
    """Return the answer to a request, and the directives that make it true."""
    matching = [source for source in sources if order.agent in (None, source.agent)]
    if not matching:
        known_ids = ", ".join(source.agent for source in sources)
        return ControlResponse(ok=False, lines=(f"there is no agent {order.agent}; there is {known_ids}",)), []
    if (
        order.what in QUERY_ORDERS or order.what == "presence"
    ):  # presence belongs to no network: the answer is their state by then
        statuses = [snapshot_dmn(source, now) for source in matching]
        lines = [
            line
            for one in statuses
            for line in (format_next_turns(one) if order.what == "debug" else format_dmn_status(one, now))
        ]
        return ControlResponse(ok=True, lines=tuple(lines), data=tuple(statuses)), []
    return _direct_agents(order, matching, now)


def build_directive_facts(
    source: DmnSource, directive: Directive, directed: DmnDirective
) -> tuple[DmnDirective, DmnStateSaved]:
    """Return the entries to write before a directive is sent: the order, and the state by which it survives a crash."""
    after, _ = dmn.step(source.state, directive, source.policy)
    return directed, DmnStateSaved(state=signals.dump_state(after), agent=source.agent)


def parse_until(text_given: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the end of a period, UTC: a time as `gateway.context.schedule` reads it, or a number of seconds.

    None for an empty text. Raises ScheduleError, in words.
    """
    text = text_given.strip().removeprefix("until").strip()
    if not text:
        return None
    whole = now.replace(microsecond=0)  # so that 2 h from now is not shown as more than that
    return parse_moment(f"{text}s" if text.isascii() and text.isdigit() else text, whole, zone).astimezone(UTC)


def _direct_agents(
    order: DmnRequest, sources: Iterable[DmnSource], now: datetime
) -> tuple[ControlResponse, list[DmnCommand]]:
    until = order.until if order.what in ("sleep", "quiet") else None
    if order.what == "quiet" and until is None:
        until = now + DEFAULT_QUIET
    lines, statuses, commands, ok = [], [], list[DmnCommand](), True
    for source in sources:
        wake_on = order.on if order.what == "sleep" else ()
        directive = Directive(at=now, order=_DIRECTIVE_ORDERS[order.what], until=until, on=wake_on)
        after, _ = dmn.step(source.state, directive, source.policy)
        one = snapshot_dmn(
            SavedDmn(agent=source.agent, state=after, policy=source.policy, next_tick_s=source.next_tick_s), now
        )
        if order.what in ("sleep", "rest") and source.state.mode in (DmnMode.PAUSED, DmnMode.OFF):
            ok = False
            lines.append(f"{source.agent} is {source.state.mode}, which is more: wake it first")
        else:
            commands.append(
                DmnCommand(
                    source.agent, directive, DmnDirective(agent=source.agent, what=order.what, by=order.by, until=until)
                )
            )
            lines.append(f"{source.agent} is {one.mode}{_format_rest(one, now)}")
        statuses.append(one)
    return ControlResponse(ok=ok, lines=tuple(lines), data=tuple(statuses)), commands


def snapshot_dmn(source: DmnSource, now: datetime) -> DmnStatus:
    """Return the state of one agent's network, for programs."""
    state, policy = source.state, source.policy
    today = state.day == now.astimezone(UTC).date().isoformat()
    quiet = state.quiet_until is not None and state.quiet_until > now
    return DmnStatus(
        agent=source.agent,
        mode=state.mode.value,
        next_tick_s=source.next_tick_s,
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


def format_dmn_status(status: DmnStatus, now: datetime) -> list[str]:
    """Return the state of a network, for people; the first line names the agent."""
    tick = "" if status.next_tick_s is None else f"; it looks again in {format_duration(max(0.0, status.next_tick_s))}"
    turns, cost = f"{status.turns_today} of {status.daily_turns} turns", _format_dollars(status.spent_today_usd)
    errors = f", {status.errors} failed in a row" if status.errors else ""
    lists = (
        ("running", status.running),
        ("waiting", status.waiting),
        ("pending", tuple(f"{wish.conversation} ({wish.why})" for wish in status.wanted)),
        ("low", status.low),
    )
    row = f"{status.in_a_row} of {status.max_in_a_row} turns in a row{errors}"
    return [
        f"{status.agent} is {status.mode}{_format_rest(status, now)}{tick}",
        f"  unasked: {turns}, {cost} of {_format_dollars(status.daily_cost_usd)} today; {row}",
        *(f"  {name}: {', '.join(places)}" for name, places in lists if places),
        f"  people: {status.presence}",
    ]


def format_next_turns(status: DmnStatus) -> list[str]:
    """Return the turns that its next tick would start, and what blocks them."""
    lines = [f"{place}: a turn is owed, and waits for a lane" for place in status.waiting]
    blocked = f" - blocked by: {'; '.join(status.held)}" if status.held else ""
    lines += [f"would fire: {wish.conversation} ({wish.why}){blocked}" for wish in status.wanted]
    if not status.wanted:
        lines.append(f"nothing is pending{blocked.replace(' - blocked by', '; anything would be blocked by')}")
    return [f"{status.agent} is {status.mode}", *(f"  {line}" for line in lines)]


def _pending_reason(state: DmnState, place: str) -> str:
    if place in state.pending:
        return "pending"
    return "continuing" if place in state.continuing else "low"


def _format_rest(status: DmnStatus, now: datetime) -> str:
    stored = f" until {_format_until(status.stored_until, now)}" if status.mode == DmnMode.STORED else ""
    kinds = f" or {', '.join(status.wake_on)} comes" if status.wake_on else ""
    quiet = f", and quiet until {_format_until(status.quiet_until, now)}" if status.quiet else ""
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
