"""The agents of a gateway: each with its loop, its model and its turns; and which one a
conversation belongs to.

- `Agent` takes the turns that its `AgentLoop` starts, with an `AgentContext` that is replaced when
  its model changes.
- `Agents` holds the running agents and the services that they share; it routes arrivals to them.
- `load_chosen_models` reads which models were chosen in the last run.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from agent.cache.plan import PlannedRequest
from agent.models.base import Model, ModelError
from agent.prompt import PromptInput
from agent.signals import DmnState, Presence, load_state
from agent.turn import build_prefix_request
from gateway.access.limits import UsageLimiter
from gateway.cluster.cluster import (
    AGENT_PREFIX,
    HELD_ELSEWHERE,
    Cluster,
    LeaseName,
    agent_lease,
    lease_of,
)
from gateway.config.models import AgentConfig, Settings
from gateway.context.compaction import CompactionStats, Compactor, Summarizer
from gateway.context.conversation import ConversationReader, wants_answer
from gateway.context.digest import DigestBuilder
from gateway.context.evidence import EvidenceStore
from gateway.context.history import HistoryStore, find_open_step
from gateway.context.observer import TurnTracker
from gateway.context.prompt_context import ChannelCards, PromptContextBuilder
from gateway.context.recall import AmbientRecall
from gateway.context.recap import RecapBuilder
from gateway.context.requesters import BLOCKED_REASON
from gateway.core.clock import Clock
from gateway.core.control_messages import DmnStatus
from gateway.core.events import (
    Address,
    Alarm,
    ConversationId,
    Message,
    MessageDeleted,
    MessageEdited,
    PresenceLevel,
    TaskFinished,
)
from gateway.core.facts import (
    AMBIENT,
    LOW,
    NORMAL,
    URGENT,
    DmnDirective,
    DmnStateSaved,
    ModelSelected,
    RoleAssigned,
    TurnRecord,
    inner_conversation,
    is_inner,
)
from gateway.core.i18n import N_, _, language_for, use_language
from gateway.runtime.dmn_admin import (
    PRESENCE_ORDER,
    build_dmn_policy,
    load_dmn_states,
    read_directive,
    read_presence_order,
    snapshot_dmn,
)
from gateway.runtime.dream_turn import DreamRunner
from gateway.runtime.loop import AgentLoop, TurnHandle, TurnResult
from gateway.runtime.models import AgentModel, ModelServices
from gateway.runtime.turn import TurnRunner, build_stop_record
from gateway.runtime.turn_input import AgentContext, TurnGuidance
from gateway.store import AppendResult, LogEntry, Store, StoreReader
from gateway.store.effects import CommandEffect, EffectFact, done, refuse
from gateway.store.spending import total_cost_usd
from gateway.stream.attention import is_talk_alone
from gateway.stream.inbox import ConversationInbox, ReadyConversation
from gateway.stream.media import MediaStore
from gateway.stream.mute import MutePlaces
from gateway.stream.presence import PresenceTracker
from gateway.stream.preview import QUEUED_TEXT, TurnPreviews
from gateway.stream.routing import Bindings, PrivacyCache
from gateway.tools.agent import RestTools, SkillTools
from gateway.tools.dispatch import ToolDispatcher, are_blocked
from gateway.tools.platform import MessagingTools
from gateway.tools.registry import ToolRegistry

logger = logging.getLogger("reverie.minds")
_models_logger = logging.getLogger("reverie.choosing")
_stop_logger = logging.getLogger("reverie.stopping")

SCANNED_ENTRIES: Final = 50
"""Unread entries of a place that are searched for a reminder at the start, and turns that are
searched for the last ones."""
LOCK_TIMEOUT_S: Final = 2.0
"""Time to acquire the lock: a free one is acquired at once; a turn that just ended holds it until
its record is written."""
STOPPING: Final = N_("Stopped. I do not answer what was written here until now.")
LEFT_UNANSWERED: Final = N_("Stopped. I do not answer what was written here until now.")
ALREADY_STOPPING: Final = N_("I am already stopping.")
NOTHING_RUNNING: Final = N_("I am not doing anything here.")


class Agent(AgentLoop):
    """Agent with its loop."""

    def __init__(
        self, config: AgentConfig, agents: "Agents", state: DmnState, model: str = ""
    ) -> None:
        """`agents` holds the services. `state`: state of its DMN from the last run.

        `model`: a key of `llm.models`. Empty: the configured one.
        """
        super().__init__(
            config.id,
            agents.store,
            agents.clock,
            policy=build_dmn_policy(agents.live.settings, config.id),
            state=state,
            tasks=agents.tasks,
        )
        self._agents = agents
        self._history = HistoryStore(agents.store, agents.clock, agents.media)
        self._digests = DigestBuilder(
            agent=config.id,
            store=agents.store,
            clock=agents.clock,
            places=agents.places,
            reader=agents.reader,
            locks=agents.room_locks,
            is_own=lambda conversation: agents.agent_for(conversation) is self,
            is_talking=agents.inbox.is_talking,
        )
        agents.messaging.digests[config.id] = self._digests
        self._rest_tools = RestTools(config.id, agents.store, agents.clock, agents.live)
        self._guidance = TurnGuidance(
            self,
            presence=agents.presence,
            places=agents.places,
            bindings=agents.bindings,
            recaps=agents.recaps,
            registry=agents.registry,
            skills=agents.skills,
        )
        self._turns = TurnRunner(
            previews=agents.previews,
            digests=self._digests,
            tracker=agents.tracker,
        )
        agent_model = agents.models.pool.get(config.id, model or config.model)
        agents.models.pool.hold(agent_model)
        self.context = self._build_context(agent_model)
        """For the next turn. Turns that have begun keep theirs."""

    @property
    def agent_model(self) -> AgentModel:
        """Model, with its costs and caches, of the next turn."""
        return self.context.model

    @property
    def model(self) -> Model:
        """Model of the next turn."""
        return self.context.model.model

    @property
    def tools(self) -> ToolDispatcher:
        """Tools of the agent, as far as its model has room for them."""
        return self.context.tools

    def use_model(self, agent_model: AgentModel) -> None:
        """Use this model from the next turn on. Running turns keep theirs. Returns at once."""
        before, models = self.agent_model, self._agents.models
        models.pool.hold(agent_model)
        self.context = self._build_context(agent_model)
        models.keep_warm.replace_models(self.id, before.caching_models, agent_model.caching_models)
        models.pool.release(before)
        self.ask_now()

    def _build_context(self, agent_model: AgentModel) -> AgentContext:
        """Build what depends on the model, and on settings that hold for a whole turn."""
        agents, model = self._agents, agent_model.model
        tools = agents.registry.build_dispatcher(self.id, model, self._rest_tools)
        return AgentContext(
            agent=self,
            store=agents.store,
            clock=agents.clock,
            live=agents.live,
            model=agent_model,
            reader=agents.reader,
            evidence=agents.evidence,
            ambient_recall=agents.ambient_recall,
            prompt_context=PromptContextBuilder(
                self.id,
                agents.live,
                workspaces=agents.models.workspaces,
                own=agents.live.agent_directory(self.id),
                family=model.family,
                keep_warm=agents.models.keep_warm,
                bindings=agents.bindings.snapshot(),
                access_policy=agents.reader.access_policy,
                cards=agents.cards,
                places=agents.places,
            ),
            history=self._history,
            compaction=Compactor(
                agents.store,
                agents.clock,
                agents.live,
                history=self._history,
                model=model,
                primary=agent_model.primary,
                summarizer=Summarizer(
                    self.id,
                    agents.store,
                    agents.clock,
                    agents.live,
                    model=agent_model.summarizer or model,
                    stats=agents.compaction_stats,
                ),
            ),
            tools=tools,
            guidance=self._guidance,
            limits=agents.limits,
        )

    @contextlib.contextmanager
    def _hold_context(self) -> Iterator[AgentContext]:
        """Keep the present context, and its model open, for work that begins now."""
        context = self.context
        with self._agents.models.pool.holding(context.model):
            yield context

    async def build_prompt_input(self, persona: str) -> PromptInput:
        """Return the beginning of every conversation of this agent."""
        return PromptInput(
            persona=persona,
            skills=await self._guidance.skill_catalogue(self.tools)
            if self.model.takes_tools
            else "",
            card="",
            history=(),
            input_text="",
            tool_surface=self._agents.live.agent_config(self.id).surface,
            has_late_tools=self._guidance.has_late_tools,
        )

    def last_request(self, conversation: ConversationId) -> PlannedRequest | None:
        """Return the last answered request there. None: there was none since the start, or it is
        not kept.
        """
        found = (
            model.last_requests.get(self.id, conversation)
            for model in self.agent_model.caching_models
        )
        return max(
            (one for one in found if one is not None), key=lambda one: one.sent_at_s, default=None
        )

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view of a place, while no turn runs there. Return the result in words."""
        async with self._agents.room_locks.lock_for(conversation):
            with self._hold_context() as context:
                return await self._turns.compact(context, conversation)

    async def refresh_tools(self) -> None:
        """Update the description of the tools before a request, where that costs no cached
        prefix.
        """
        now_s, lasts_s = (
            self._clock.monotonic(),
            self._agents.live.optimization.prompt_cache.long_ttl,
        )
        await self._agents.registry.prepare_turn(self.tools, now_s, lasts_s)

    async def warm_up(self) -> None:
        """Have a local model read the common beginning of all conversations.

        Otherwise the first message would wait for that. Raises nothing.
        """
        with self._hold_context() as context:
            model = context.model.model
            if model.family not in {"local", "llamacpp"}:
                return  # elsewhere an unneeded prompt costs money
            try:
                await self.refresh_tools()  # tool servers start at the same time
                persona = await context.prompt_context.load_persona("public")
                brief = await self.build_prompt_input(persona.identity)
                request = build_prefix_request(brief, model, self.tools.specs, key=self.id)
                async with aclosing(model.stream(request)) as chunks:
                    async for _ in chunks:
                        pass
            except (
                ModelError,
                OSError,
            ) as error:  # the first turn will wait for it, or report the error
                logger.debug("what %s begins with is not read in ahead of time: %s", self.id, error)

    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnResult:
        if self._agents.mute.is_mute(
            conversation
        ):  # what is unread stays so until the place is well
            return TurnResult(is_awaited=True, model="unasked", autonomous=autonomous)
        await self.refresh_tools()
        async with self._agents.room_locks.lock_for(conversation):
            self._digests.forget(conversation)  # the digest's part on this place is consumed here
            with self._hold_context() as context:
                return await self._turns.run(
                    context,
                    conversation,
                    autonomous=autonomous,
                    continuing=continuing,
                    handle=handle,
                )

    async def dream(self, handle: TurnHandle) -> TurnResult:
        async with self._agents.room_locks.lock_for(self.policy.inner):
            with self._hold_context() as context:
                return await self._agents.dreams.run(
                    context, Address.parse(self.policy.inner), handle
                )

    async def give_up(
        self, conversation: ConversationId, reason: str, *, autonomous: bool
    ) -> TurnResult:
        return await self._turns.give_up(self.context, conversation, reason, autonomous=autonomous)

    def show_queued(self, conversation: ConversationId, *, waits: bool) -> None:
        previews, at = self._agents.previews, Address.parse(conversation)
        if not is_inner(conversation):
            (previews.show_heard if waits else previews.hide_heard)(at)

    async def tell_queued(self, conversation: ConversationId) -> None:
        unread = await self._agents.store.unread_entries(conversation, most=1)
        if unread.messages and not is_inner(conversation):
            place, cause = Address.parse(conversation), unread.messages[0]
            room, first = self._agents.bindings.find(place).language, cause.fact
            person, direct = (
                (first.language, first.kind == "direct")
                if isinstance(first, Message)
                else (None, False)
            )
            with use_language(language_for(room, person, direct=direct)):
                await self._agents.previews.post_notice(place, _(QUEUED_TEXT), cause.seq)

    async def unread_urgency(self, conversation: ConversationId) -> int:
        if is_inner(conversation):
            return await self._digests.pending_urgency()
        return await self._agents.store.unread_urgency(conversation)

    async def owes_answer(self, conversation: ConversationId) -> bool:
        """Return whether a turn would start there because of unread entries, or continues."""
        waiting = [one.conversation for one in self.state.waiting]
        if conversation in (
            *self.state.pending,
            *self.state.continuing,
            *waiting,
        ) or self.is_put_off(conversation):
            return True
        # Entries that ask for an answer come first.
        unread = await self._agents.store.unread_entries(conversation, most=1)
        return any(wants_answer(one.fact) for one in unread.messages)

    def stop_turn(self, conversation: ConversationId, why: str) -> None:
        """End the turn that runs there, and owe no other."""
        handle = self.turn_handle(conversation)
        if handle is not None:
            handle.stop(why)
        self.leave_off(conversation)

    def is_direct(self, conversation: ConversationId) -> bool:
        return self._agents.places.is_known_direct(conversation)

    def is_arriving(self, conversation: ConversationId) -> bool:
        inbox = self._agents.inbox
        return inbox.is_waiting(conversation) or inbox.is_talking(conversation)

    def may_take_arriving(self, conversation: ConversationId) -> bool:
        arrivals = self._agents.bindings.find(Address.parse(conversation)).arrivals
        return arrivals == "steer" and self._agents.inbox.is_waiting(conversation)

    def settle_turn(self, conversation: ConversationId) -> None:
        super().settle_turn(conversation)
        if self._agents.limits is not None:
            self._agents.limits.release(conversation)

    @property
    def leads(self) -> bool:
        return self._agents.cluster.holds(agent_lease(self.id))

    def material_tokens(self) -> int:
        return self._agents.dreams.material_tokens(self.id) if self.leads else 0


class Agents:
    """All agents of a gateway."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        models: ModelServices,
        places: PrivacyCache,
        presence: PresenceTracker,
        evidence: EvidenceStore,
        ambient_recall: AmbientRecall,
        recaps: RecapBuilder,
        dreams: DreamRunner,
        registry: ToolRegistry,
        skills: SkillTools,
        reader: ConversationReader,
        media: MediaStore,
        bindings: Bindings,
        cards: ChannelCards,
        messaging: MessagingTools,
        inbox: ConversationInbox,
        mute: MutePlaces,
        previews: TurnPreviews,
        tracker: TurnTracker,
        limits: UsageLimiter | None,
        states: Mapping[str, DmnState],
        chosen: Mapping[str, str],
        cluster: Cluster | None = None,
    ) -> None:
        """`states`: by agent, the state of its DMN from the last run; `chosen`: see
        `load_chosen_models`.

        `limits`: budgets of people; None: there are none. `cluster` None: this is the only process.
        """
        self.cluster = cluster or Cluster()
        self.store = store
        self.clock = clock
        self.tasks = tasks
        self.models = models
        self.live = models.live
        self.places = places
        self.presence = presence
        self.evidence = evidence
        self.ambient_recall = ambient_recall
        self.recaps = recaps
        self.dreams = dreams
        self.registry = registry
        self.skills = skills
        self.reader = reader
        self.media = media
        self.bindings = bindings
        self.cards = cards
        self.messaging = messaging
        self.inbox = inbox
        self.mute = mute
        self.previews = previews
        self.tracker = tracker
        self.limits = limits
        self.compaction_stats = CompactionStats([agent.id for agent in self.live.settings.agents])
        self.room_locks = messaging.locks
        self.by_id = {
            one.id: Agent(one, self, states.get(one.id, DmnState()), chosen.get(one.id, ""))
            for one in self.live.settings.agents
        }
        self._default_agent = next(iter(self.by_id.values()))
        store.subscribe(self._on_saved_elsewhere, DmnStateSaved, own=False)
        store.subscribe(self._on_directed, DmnDirective)
        store.subscribe(self._on_taken_elsewhere, TurnRecord, own=False)
        self.live.on_change(self.prepare)
        inbox.listener = self
        presence.add_listener(self.set_presence)
        store.subscribe(self._on_alarms, Alarm, TaskFinished)
        store.subscribe(self._on_changed, MessageEdited, MessageDeleted)
        store.subscribe(lambda _: self._end_blocked_turns(), RoleAssigned)
        self.live.on_change(lambda _: self._end_blocked_turns)

    def prepare(self, new: Settings) -> Callable[[], None]:
        """Apply new settings, a `gateway.config.reload.ChangeListener`: from the next DMN step."""
        dmn_policies = {agent: build_dmn_policy(new, agent) for agent in self.by_id}

        def apply() -> None:
            for agent_id, agent in self.by_id.items():
                agent.set_policy(dmn_policies[agent_id])

        return apply

    @property
    def agents(self) -> Sequence[Agent]:
        """The agents, in the order of the configuration."""
        return [*self.by_id.values()]

    def agent_for(self, conversation: ConversationId) -> Agent:
        """Return the agent of a conversation."""
        place = Address.parse(conversation)
        # A place that no binding matches any more may still hold older messages.
        name = place.room if is_inner(conversation) else self.bindings.find(place).agent
        return self.by_id.get(name, self._default_agent)

    def holds(self, conversation: ConversationId) -> bool:
        """Return whether this process takes the turns of a conversation."""
        return self.cluster.holds(lease_of(conversation))

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        """Take up what the process has left that held the lease before."""
        await self.store.follow()
        if (
            agent := self.by_id.get(lease.removeprefix(AGENT_PREFIX))
        ) is not None and lease == agent_lease(agent.id):
            agent.take_over(
                (await load_dmn_states(self.store, [*self.by_id], self.clock.now()))[agent.id]
            )
        for arrival in await self.find_pending_arrivals(lease):
            self.inbox.add(arrival)

    async def on_lease_ending(self, lease: LeaseName, grace_s: float) -> None:
        """End all work under the lease. Turns end within `grace_s` or are parked."""
        await self.inbox.close_windows(lambda place: lease_of(place) == lease)
        await asyncio.gather(
            *(one.leave(lambda place: lease_of(place) == lease, grace_s) for one in self.agents)
        )

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view of a place, while no turn runs there. Return the result in words."""
        if not self.holds(conversation):
            return _(HELD_ELSEWHERE)
        return await self.agent_for(conversation).compact(conversation)

    @property
    def mode_label(self) -> str:
        """Modes of the agents, for people."""
        modes = {agent.id: agent.state.mode.value for agent in self.agents}
        if len(modes) == 1:
            return next(iter(modes.values()))
        return ", ".join(f"{agent}: {mode}" for agent, mode in modes.items())

    def describe_tools(self, at: Address) -> str:
        """Return the tools of the agent that answers there, for people."""
        return self.registry.render_tools(
            self.agent_for(at.conversation).tools, self.registry.describe_states()
        )

    @property
    def model_labels(self) -> str:
        """Models of the agents, for people."""
        return ", ".join(dict.fromkeys(agent.model.label for agent in self.agents))

    def start(self) -> None:
        """Arm the timer of every loop. A start fires nothing by itself."""
        for agent in self.agents:
            agent.start()

    async def stop(self, grace_s: float) -> None:
        """Stop all loops and turns at once, see `AgentLoop.stop`."""
        await asyncio.gather(*(agent.stop(grace_s) for agent in self.agents))

    async def find_pending_arrivals(self, lease: LeaseName = "") -> list[ReadyConversation]:
        """Return what an earlier process left undone, as new arrivals. `lease`: of whoever does it;
        empty: all.
        """
        found, due = [], dict(await self.store.due_conversations(LOW))
        unfinished = await self._find_unfinished()
        due |= {place: max(urgency, due.get(place, 0)) for place, urgency in unfinished.items()}
        for place, urgency in due.items():
            holders = {
                lease_of(place),
                *([agent_lease(self.agent_for(place).id)] if urgency < URGENT else []),
            }
            if lease and lease not in holders:
                continue
            in_place, is_talk = place in unfinished, False
            if not in_place and urgency < URGENT and not is_inner(place):
                unread = await self.store.unread_entries(place, most=SCANNED_ENTRIES)
                in_place = any(
                    isinstance(one.fact, Alarm | TaskFinished) for one in unread.messages
                )
                is_talk = is_talk_alone(await self.store.due_reasons(place))
            direct = None if is_inner(place) else await self.places.is_direct(place)
            found.append(
                ReadyConversation(
                    conversation=place,
                    urgency=urgency,
                    direct=direct,
                    handle_in_place=in_place,
                    awaits_quiet=is_talk,
                )
            )
        return found

    async def _find_unfinished(self) -> dict[ConversationId, int]:
        """Return the places whose last turn was interrupted, or left work open, and how urgent that
        is.

        The input of an interrupted one is owed an answer, even if nothing newer is there.
        """
        ended: dict[ConversationId, int] = {}
        for one in await self.store.newest_entries(SCANNED_ENTRIES, kinds=["turn_ended"]):
            if not isinstance(one.fact, TurnRecord) or one.fact.cause == "compact":
                continue
            is_interrupted = one.fact.outcome == "interrupted"
            is_put_off = is_interrupted and not one.fact.upto  # it has left what it was to read
            if one.conversation is not None and not is_put_off:
                is_owed = is_interrupted and not is_inner(one.conversation)
                is_open = bool(find_open_step(one.fact))
                ended[one.conversation] = URGENT if is_owed else NORMAL if is_open else AMBIENT
        return {place: urgency for place, urgency in ended.items() if urgency > AMBIENT}

    def notice(self, arrival: ReadyConversation) -> None:
        """Announce entries that are ready for attention.

        Urgent ones start a turn in their place, others a turn of the inner conversation, unless the
        place is private. The process that holds the channel, or the agent, takes it.
        """
        place = arrival.conversation
        if arrival.direct is not None:
            self.places.record_direct(place, direct=arrival.direct)
        can_act = self.agent_for(
            place
        ).model.takes_tools  # without tools nothing can be done about it from elsewhere
        if (
            arrival.urgency >= URGENT
            or arrival.handle_in_place
            or arrival.direct
            or is_inner(place)
            or (not can_act and not arrival.awaits_quiet)
        ):
            self._notice(arrival, place)
        else:
            self.tasks.create_task(self._route(arrival, in_place=not can_act))

    async def _route(self, arrival: ReadyConversation, *, in_place: bool) -> None:
        place, agent = arrival.conversation, self.agent_for(arrival.conversation)
        if arrival.awaits_quiet:
            if in_place and arrival.urgency < NORMAL:
                return  # without tools it cannot stay silent
            if not await self.store.unread_urgency(place):
                return  # it was read meanwhile by a turn that somebody asked for
        in_place = in_place or await self.places.is_private(place)
        target = place if in_place else inner_conversation(agent.id)
        self._notice(arrival, target)
        if arrival.awaits_quiet and arrival.urgency >= NORMAL and self.holds(target):
            agent.remind(target)

    def _notice(self, arrival: ReadyConversation, target: ConversationId) -> None:
        arrivals = self.bindings.find(Address.parse(arrival.conversation)).arrivals
        self.agent_for(target).notice(
            target,
            arrival.urgency,
            event_type=arrival.type,
            arrivals=arrivals,
            trusted=arrival.trusted,
            authors=arrival.authors,
            elsewhere=not self.holds(target),
        )

    def _on_alarms(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if entry.conversation is not None and self.holds(entry.conversation):
                self.agent_for(entry.conversation).remind(entry.conversation)

    def _on_saved_elsewhere(self, entries: Sequence[LogEntry]) -> None:
        """Know when the agents last dreamt, for the case that they are led here."""
        for entry in entries:
            agent = (
                self.by_id.get(entry.fact.agent) if isinstance(entry.fact, DmnStateSaved) else None
            )
            if agent is not None and isinstance(entry.fact, DmnStateSaved):
                with contextlib.suppress(ValueError):  # of another version
                    agent.state = replace(agent.state, dreamt=load_state(entry.fact.state).dreamt)

    def _on_directed(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(order := entry.fact, DmnDirective):
                if order.what.startswith(PRESENCE_ORDER):
                    self.presence.set_level(read_presence_order(order))
                elif (agent := self.by_id.get(order.agent)) is not None:
                    agent.send(read_directive(order, entry.at))

    def _on_taken_elsewhere(self, entries: Sequence[LogEntry]) -> None:
        """Count what other processes do of their own, and how often they make requests, for what
        moves here.
        """
        for entry in entries:
            record, place = entry.fact, entry.conversation
            if not isinstance(record, TurnRecord) or not record.requests or place is None:
                continue
            if (agent := self.by_id.get(record.agent)) is not None:
                for model in agent.agent_model.caching_models:
                    model.observe_elsewhere(agent.id, place, entry.at.timestamp())
                if record.autonomous and entry.at.date() == self.clock.now().date():
                    agent.count_elsewhere(total_cost_usd(record.accounts))

    def _on_changed(self, entries: Sequence[LogEntry]) -> None:
        """Let turns take up the new texts of messages that they have read, and that some of these
        were deleted.
        """
        for entry in entries:
            change, place = entry.fact, entry.conversation
            handle = self.agent_for(place).turn_handle(place) if place is not None else None
            if handle is None:
                continue
            if isinstance(change, MessageDeleted):
                handle.forget(change.message)
            elif (
                isinstance(change, MessageEdited)
                and self.bindings.find(change.at).arrivals != "queue"
            ):
                handle.revise(change.message, change.sender.id, change.text)

    def _end_blocked_turns(self) -> None:
        for agent in self.agents:
            for place, handle in agent.turn_handles:
                if are_blocked(self.reader.access_policy, Address.parse(place), handle.requesters):
                    logger.info("%s: its turn is ended: %s", place, BLOCKED_REASON)
                    handle.drop(BLOCKED_REASON)

    async def plan_stop(self, at: Address, by: str) -> CommandEffect:
        """Plan a stop. `by`: who requests it, for people.

        Everything unread in the place becomes durable as consumed in the transaction that holds the
        command, so it is not answered later, even if the process dies before the turn has ended.
        Until the effect is settled no turn begins there, and none ends: it has either answered
        before the command, or posts nothing more.
        """
        place, why = at.conversation, f"{by} had it left off"
        agent = self.agent_for(place)
        if not self.holds(place):
            return refuse(_(HELD_ELSEWHERE))
        handle = agent.turn_handle(place)
        if handle is not None and handle.stop_reason:
            return done(_(ALREADY_STOPPING))
        held_handle = handle if handle is not None and handle.hold() else None
        lock = None if held_handle is not None else await self._acquire_lock(place)
        try:
            owes = held_handle is not None or await agent.owes_answer(place)
            record = await build_stop_record(agent.context, place, why) if owes else None
        except BaseException:
            _release(held_handle, lock)
            raise
        if record is None:
            _release(held_handle, lock)
            return refuse(_(NOTHING_RUNNING))

        def settle(written: AppendResult | None) -> None:
            is_stopped = written is not None and written.is_new
            if is_stopped:
                _stop_logger.info("%s: left off, by %s", place, by)
                agent.stop_turn(place, why)
            _release(held_handle, lock)

        effect_fact = EffectFact(record, key=f"turn:{record.turn}")
        return CommandEffect(
            answer=_(STOPPING if held_handle is not None else LEFT_UNANSWERED),
            facts=(effect_fact,),
            settle=settle,
        )

    async def _acquire_lock(self, place: ConversationId) -> asyncio.Lock | None:
        """Acquire the lock of a place. None: another caller keeps it, who takes no turn there."""
        lock = self.room_locks.lock_for(place)
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                await lock.acquire()
        except TimeoutError:
            return None
        return lock

    def set_presence(self, level: PresenceLevel) -> None:
        """Send the presence of people to every DMN."""
        for agent in self.agents:
            agent.send(Presence(at=self.clock.now(), level=level))

    @property
    def dmn_status(self) -> list[DmnStatus]:
        """State of each agent's DMN in this process."""
        now = self.clock.now()
        return [snapshot_dmn(agent, now) for agent in self.agents]

    async def warm_up(self) -> None:
        """Start the models of the agents, and warm them up."""
        for model in {id(one): one for one in (agent.model for agent in self.agents)}.values():
            try:
                await model.start()
            except (
                ModelError
            ) as error:  # each turn will report it too; the channels connect meanwhile
                logger.error("the model %s is not usable: %s", model.label, error.reason)  # noqa: TRY400 - no bug
        for agent in self.agents:
            await agent.warm_up()


def _release(handle: TurnHandle | None, lock: asyncio.Lock | None) -> None:
    if handle is not None:
        handle.release()
    if lock is not None:
        lock.release()


async def load_chosen_models(reader: StoreReader, settings: Settings) -> dict[str, str]:
    """Return the chosen models that are still configured: by agent, a key of `llm.models`. Raises
    StoreError.
    """
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
                "%s was to think with what %s chose, %s, which is not in llm.models: %s is used",
                *args,
            )
    return found
