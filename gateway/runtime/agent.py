"""One agent: its Default Mode Network, its model, and its turns.

`Agent.send` passes a signal to `agent.dmn.step` and carries out the effects: it starts, steers and
interrupts turns, and keeps the timers. The state is saved when it has changed, with the signals
since the last save. A turn takes the model, and what depends on it, that is in use when it begins.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import Final, Protocol

from agent import dmn
from agent.cache.plan import PlannedRequest
from agent.models.base import Model, ModelError
from agent.prompt import PromptInput
from agent.signals import (
    ArrivalPolicy,
    DmnPolicy,
    DmnState,
    Dream,
    Effect,
    Interrupt,
    LeftOff,
    ModelChanged,
    Noticed,
    Persist,
    Presence,
    RetryDue,
    SetRetryTimer,
    SetTimer,
    Signal,
    StartTurn,
    Steer,
    Stopping,
    Tick,
    TurnEnded,
)
from agent.turn import build_prefix_request
from channels.aio import is_cancellation
from gateway.cluster.cluster import agent_lease
from gateway.config.loader import ConfigError
from gateway.config.models import AgentConfig, Settings
from gateway.context.compaction import Compactor
from gateway.context.conversation import wants_answer
from gateway.context.history import HistoryStore
from gateway.context.prompt_context import PromptContextBuilder
from gateway.core.events import Address, ConversationId, Message, MessageId, SenderId
from gateway.core.facts import (
    AMBIENT,
    URGENT,
    DmnStateSaved,
    TurnRecord,
    inner_conversation,
    is_inner,
)
from gateway.core.i18n import _, language_for, use_language
from gateway.runtime.models import AgentModel, ModelServices
from gateway.runtime.turn import TurnRunner
from gateway.runtime.turn_handle import TurnHandle
from gateway.runtime.turn_input import AgentContext
from gateway.runtime.turn_record import QUEUED_TEXT, post_notice
from gateway.store import NewEntry, StoreError
from gateway.stream.handle import GatewayHandle
from gateway.stream.inbox import ConversationInbox
from gateway.stream.mute import MutePlaces
from gateway.tools.dispatch import ToolDispatcher

logger = logging.getLogger("reverie.agents")

SAVE_AFTER_S: Final = 1.0
"""Longest delay of a save that is not urgent: nobody waits for it."""
LANES: Final = 100
"""Turns at the same time, where a provider refuses what is too many."""
LANES_OF_OWN_MODEL: Final = 8
"""The same for a model on this machine or a server of one's own, which refuses nothing: it makes
all wait, until none gets its first token in time."""
QUEUE_S: Final = 15.0
"""Time for which a turn waits for others without a word."""
MAX_BEGUN_ANEW: Final = 2
"""Times that an answer is begun anew because whoever asked goes on writing. Then it is written to
its end."""


class Dreams(Protocol):
    """What an agent's Default Mode Network begins when it rests: see
    `gateway.plugins.memory.dreams`.
    """

    def material_tokens(self, agent: str) -> int:
        """Return the approximate size of what the agent could dream of, from memory alone."""
        ...

    async def take_turn(self, context: AgentContext, handle: TurnHandle) -> TurnEnded:
        """Dream, as a turn of the agent's inner conversation. Raises StoreError."""
        ...


class Agent:
    """One agent."""

    def __init__(
        self,
        config: AgentConfig,
        gateway: GatewayHandle,
        turns: TurnRunner,
        *,
        models: ModelServices,
        inbox: ConversationInbox,
        dreams: Dreams | None,
        mute: MutePlaces,
        state: DmnState,
    ) -> None:
        """`dreams` None: it does not dream. `state`: of its DMN, from the last run."""
        self.id = config.id
        self.policy = build_dmn_policy(gateway.live.settings, config.id)
        self.state = state
        self._gateway, self._turns, self._services = gateway, turns, turns.services
        self._store, self._clock, self._tasks = gateway.store, gateway.clock, gateway.tasks
        self._models, self._inbox = models, inbox
        self._dreams, self._mute = dreams, mute
        self._timer: asyncio.Task[None] | None = None
        self._tick_at_s = self._armed_s = 0.0
        """Monotonic; when the timer fires, and since when it is armed."""
        self._save_task: asyncio.Task[None] | None = None
        """The save that can wait, until it has taken the state to write."""
        self._is_unsaved = False
        """A change of the state waits for the end of a turn to be saved."""
        self.running: dict[ConversationId, TurnHandle] = {}
        self._turn_tasks: dict[ConversationId, asyncio.Task[None]] = {}
        self._late_urgency: dict[ConversationId, int] = {}
        """Highest urgency announced where a turn runs."""
        self._reminded: dict[ConversationId, bool] = {}
        """Places where a reminder has fired, and no turn has begun since: whether somebody asked
        for this time."""
        self._begun_anew: dict[ConversationId, int] = {}
        self._queued: dict[ConversationId, asyncio.Task[None]] = {}
        """Places whose turns wait for others to end, with the task that tells people so."""
        self._retries: dict[ConversationId, asyncio.Task[None]] = {}
        """Timers of questions that wait for a model. One of a question that is settled does
        nothing."""

        self._history = HistoryStore(gateway.store, gateway.clock, turns.services.media)
        agent_model = models.pool.get(config.id, config.model)
        models.pool.hold(agent_model)
        self.context = self._build_context(agent_model)
        """For the next turn. Turns that have begun keep theirs."""
        self._room_contexts = dict[str, AgentContext]()
        """The same of other models, which were chosen for single rooms, by model."""

    @property
    def leads(self) -> bool:
        """Whether this process has the agent's inner conversation, and so saves the state of its
        DMN.
        """
        return self._gateway.channels.cluster.holds(agent_lease(self.id))

    @property
    def next_tick_s(self) -> float | None:
        """Seconds until the timer fires. None: the loop does not run."""
        return None if self._timer is None else max(0.0, self._tick_at_s - self._clock.monotonic())

    @property
    def spent_today_usd(self) -> float:
        """Cost of its autonomous turns today."""
        return self._services.limits.spent_today_usd(self.id)

    def is_put_off(self, conversation: ConversationId) -> bool:
        """Return whether the question there waits for a model."""
        return dmn.find_put_off(self.state, conversation) is not None

    def is_faulty(self, conversation: ConversationId) -> bool:
        """Return whether the question there is at fault, see `agent.dmn.is_faulty`."""
        return dmn.is_faulty(self.state, conversation)

    def start(self) -> None:
        """Arm the timer. The caller announces what is due from before: a start fires nothing by
        itself.
        """
        self._set_timer(dmn.interval_s(self.state, self.policy, self._clock.now()))

    def set_policy(self, policy: DmnPolicy) -> None:
        """Use this policy from now on; the time that the timer has waited counts. Returns at
        once.
        """
        if self._timer is not None and policy != self.policy:
            due_s = (armed_s := self._armed_s) + dmn.interval_s(
                self.state, policy, self._clock.now()
            )
            self._set_timer(max(0.0, due_s - self._clock.monotonic()))
            self._armed_s = armed_s
        self.policy = policy

    def notice(
        self,
        conversation: ConversationId,
        urgency: int,
        *,
        event_type: str = "",
        arrivals: ArrivalPolicy = "steer",
        trusted: bool = False,
        authors: Mapping[MessageId, SenderId] = MappingProxyType({}),
        elsewhere: bool = False,
    ) -> None:
        """Announce entries of a conversation that are ready for the agent's attention.

        `elsewhere`: another process takes the turn. `authors`: of the messages to the agent.
        Whoever a running turn writes an answer to may correct what they asked: then it is begun
        anew, at once or when it begins to write.
        """
        if (handle := self.running.get(conversation)) is not None:
            late = self._late_urgency
            late[conversation] = max(urgency, late.get(conversation, AMBIENT))
            begun_anew = self._begun_anew.get(conversation, 0)
            is_steered = arrivals == "steer" and urgency >= URGENT and begun_anew < MAX_BEGUN_ANEW
            if is_steered and handle.is_corrected_by(authors):
                self._begun_anew[conversation], handle.is_corrected = begun_anew + 1, True
                arrivals = "interrupt" if handle.is_drafting else arrivals
        noticed = Noticed(
            at=self._clock.now(),
            conversation=conversation,
            urgency=urgency,
            type=event_type,
            direct=self._gateway.places.direct.get(conversation, False),
            arrivals=arrivals,
            trusted=trusted,
            elsewhere=elsewhere,
        )
        self.send(noticed)

    def tick(self) -> None:
        """Check for due turns now, before the timer fires: something was scheduled for this
        time.
        """
        self.look_at_presence()
        at = self._clock.now()
        wanted = dmn.due_conversations(self.state, self.policy, at)
        arriving = tuple(
            [one for one in wanted if self._is_arriving(one, talk=one not in self._reminded)]
        )
        dreams = self._dreams if self.leads else None
        tokens = dreams.material_tokens(self.id) if dreams is not None else 0
        promised = tuple([place for place, is_promised in self._reminded.items() if is_promised])
        self.send(Tick(at=at, material_tokens=tokens, arriving=arriving, promised=promised))

    def look_at_presence(self) -> None:
        """Let the DMN know how near the people are now."""
        level = self._services.presence.level
        if level != self.state.presence:
            self.send(Presence(at=self._clock.now(), level=level))

    def remind(self, conversation: ConversationId, *, promised: bool = False) -> None:
        """Take up a reminder that has fired there: now, or once a running turn has ended.

        `promised`: somebody asked for it at this time, so it does not wait until they have slept.
        """
        self._reminded[conversation] = promised or self._reminded.get(conversation, False)
        self.tick()

    def send(self, signal: Signal) -> None:
        """Let the DMN decide, and carry the effects out. Returns at once."""
        before = self.state
        self.state, effects = dmn.step(before, signal, self.policy)
        if self._queued or self.state.waiting:
            self._watch_queue()
        if self.state.mode is not before.mode:
            logger.debug(
                "%s, %s: %s -> %s", self.id, type(signal).__name__, before.mode, self.state.mode
            )
        for effect in effects:
            self._carry_out(effect)
        if self._is_unsaved and self.leads:
            self._save_after(signal, effects)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case StartTurn(conversation=conversation):
                self._reminded.pop(conversation, None)
                self.running[conversation] = handle = TurnHandle()
                task = self._tasks.create_task(self._run_turn(effect, handle))
                self._turn_tasks[conversation] = task
            case Dream():
                self.running[self.policy.inner] = handle = TurnHandle()
                task = self._tasks.create_task(self._run_dream(handle))
                self._turn_tasks[self.policy.inner] = task
            case Steer(conversation=conversation) if conversation in self.running:
                self.running[conversation].steer()
            case Interrupt(conversation=conversation) if conversation in self.running:
                logger.info("%s: the turn in %s is interrupted", self.id, conversation)
                self.running[conversation].interrupt()
            case SetTimer(delay_s=delay_s, sooner=sooner):
                self._set_timer(delay_s, sooner=sooner)
            case SetRetryTimer(conversation=conversation, delay_s=delay_s):
                if (earlier := self._retries.pop(conversation, None)) is not None:
                    earlier.cancel()
                work = self._ask_later(conversation, delay_s)
                self._retries[conversation] = self._tasks.create_task(work)
            case Persist():
                self._is_unsaved = True
            case _:  # the turn has just ended
                pass

    async def stop(self, grace_s: float) -> None:
        """Start nothing more; let turns end for up to `grace_s` seconds of real time, then park
        them.

        A parked turn has left no trace, unless it has used tools: the next start takes up its input
        again.
        """
        self.send(Stopping(at=self._clock.now()))
        for timer in (self._timer, *self._retries.values()):
            if timer is not None:
                timer.cancel()
        parked = await self._park([*self.running], grace_s)
        await self._save_now()
        if parked:
            logger.info(
                "%s: parked %d turns; they are taken up at the next start", self.id, len(parked)
            )

    async def _park(
        self, places: Sequence[ConversationId], grace_s: float
    ) -> Sequence[ConversationId]:
        """Let the turns there end for up to `grace_s` seconds of real time, then cancel them.
        Return where that was.
        """
        tasks = {self._turn_tasks[place]: place for place in places if place in self.running}
        if not tasks:
            return []
        _, left = await asyncio.wait(tasks, timeout=grace_s)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return [tasks[task] for task in left]

    def take_over(self, saved: DmnState) -> None:
        """Go on with the state that the process before has saved. What is due in places of this one
        stays so.
        """
        own = self.state
        self.state = replace(
            saved,
            running=own.running,
            chats=own.chats,
            waiting=own.waiting,
            pending=own.pending,
            continuing=own.continuing,
            low=own.low,
            put_off=own.put_off,
            answers=own.answers,
            outages=own.outages,
            presence=own.presence,
            stopping=own.stopping,
        )
        self.start()

    async def leave(self, places: Callable[[ConversationId], bool], grace_s: float) -> None:
        """End all work in these places, as `stop` does: another process goes on there."""
        for place in await self._park([one for one in self.running if places(one)], grace_s):
            self.running.pop(place, None)
            self._turn_tasks.pop(place, None)
            self.send(TurnEnded(at=self._clock.now(), conversation=place, interrupted=True))
        state = self.state
        asked = [one.conversation for one in state.put_off]
        owed = [one.conversation for one in state.waiting]
        for place in {*state.pending, *state.continuing, *state.low, *asked, *owed}:
            if places(place):
                self.leave_off(place)
        if places(self.policy.inner):  # whoever goes on reads the state
            await self._save_now()

    def leave_off(self, place: ConversationId) -> None:
        """Owe no turn there any more."""
        self.send(LeftOff(at=self._clock.now(), conversation=place))

    async def _run_turn(self, start: StartTurn, handle: TurnHandle) -> None:
        place, autonomous = start.conversation, start.autonomous
        try:
            ended = await self.take_turn(
                place, autonomous=autonomous, continuing=start.continuing, handle=handle
            )
        except StoreError:
            raise  # without its log the gateway cannot go on
        except (Exception, asyncio.CancelledError) as error:
            if is_cancellation(error):
                raise
            # A bug: ended here, or the same messages would end the process at every start.
            logger.exception("a turn in %s broke", place)
            reason = f"internal error: {type(error).__name__}"
            ended = await self.give_up(place, reason, autonomous=autonomous)
        await self._finish_turn(ended)

    async def _run_dream(self, handle: TurnHandle) -> None:
        inner, context = self.policy.inner, self.context
        ended = TurnEnded(at=self._clock.now(), conversation=inner, autonomous=True, yielded=True)
        try:
            if self._dreams is not None:
                async with self._turns.digests.locks.lock_for(inner):
                    with self._models.pool.holding(context.model):
                        ended = await self._dreams.take_turn(context, handle)
        except StoreError:
            raise
        except (Exception, asyncio.CancelledError) as error:  # a bug, and no reason to stop
            if is_cancellation(error):
                raise
            logger.exception("%s: a dream broke", self.id)
            ended = replace(ended, yielded=False, failed=True)
        await self._finish_turn(ended)

    async def _finish_turn(self, ended: TurnEnded) -> None:
        place = ended.conversation
        left = await self._unread_urgency(place)
        if not ended.interrupted:
            self._begun_anew.pop(place, None)
        if ended.awaited:
            left = AMBIENT
        if ended.interrupted and not is_inner(place):
            left = URGENT  # its input is owed an answer, even if nothing newer is there
        del self.running[place], self._turn_tasks[place]
        now, direct = self._clock.now(), self._gateway.places.direct.get(place, False)
        self.send(replace(ended, at=now, left=left, direct=direct))
        if self._reminded:
            due = dmn.due_conversations(self.state, self.policy, now)
            self._reminded = {
                one: promised
                for one, promised in self._reminded.items()
                if one in due or one in self.running
            }
            is_free = not dmn.blocking_reasons(self.state, self.policy, now)
            taken_up = [is_free or self._reminded[one] for one in due if one in self._reminded]
            if any(taken_up) and not self.state.errors:
                self.tick()

    def _watch_queue(self) -> None:
        """Tell people whose turns wait for others to end, after a while."""
        waiting = {turn.conversation for turn in self.state.waiting}
        for place in self._queued.keys() - waiting:
            self._queued.pop(place).cancel()
        for place in waiting - self._queued.keys():
            self._queued[place] = self._tasks.create_task(self._tell_late(place))

    async def _tell_late(self, place: ConversationId) -> None:
        await self._clock.sleep(QUEUE_S)
        unread = await self._store.unread_entries(place, most=1)
        if not unread.messages or is_inner(place):
            return
        at, cause = Address.parse(place), unread.messages[0]
        room, first = self._gateway.places.bindings.find(at).language, cause.fact
        person, direct = (
            (first.language, first.kind == "direct")
            if isinstance(first, Message)
            else (None, False)
        )
        with use_language(language_for(room, person, direct=direct)):
            await post_notice(self._gateway, at, _(QUEUED_TEXT), cause.seq)

    async def _ask_later(self, place: ConversationId, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        self._retries.pop(place, None)
        self.ask_again(place)

    def ask_again(self, place: ConversationId) -> None:
        """Ask now what waits for a model there."""
        self.send(RetryDue(at=self._clock.now(), conversation=place))

    async def _unread_urgency(self, conversation: ConversationId) -> int:
        """Return the urgency of what is unread there now: the DMN ignores a conversation while its
        turn runs.

        What became durable after the store was queried is not in its answer, but it was announced
        meanwhile. What was not announced yet, because it waits for more, does not count: it will be
        announced.
        """
        before = self._late_urgency.pop(conversation, AMBIENT)
        left = await self.unread_urgency(conversation)
        after = self._late_urgency.pop(conversation, AMBIENT)
        if max(before, after) < left and self._is_arriving(conversation):
            left = max(before, after)
        return max(left, after)

    def _set_timer(self, delay_s: float, *, sooner: bool = False) -> None:
        now_s = self._clock.monotonic()
        before_s, at_s = self._tick_at_s, now_s + delay_s
        if self._timer is not None and sooner and before_s <= at_s:
            return
        self._tick_at_s, self._armed_s = at_s, now_s
        if self._timer is not None and at_s < before_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._tasks.create_task(self._tick_in_time())

    async def _tick_in_time(self) -> None:
        """Fire the timer, which may be set to a later time meanwhile."""
        while (left_s := self._tick_at_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        self._timer = None  # else the next SetTimer would cancel the task that it is called from
        self.tick()

    def _save_after(self, signal: Signal, effects: Sequence[Effect]) -> None:
        # Counts must survive a crash; the mode may be a second old, or as old as a running turn.
        if any(getattr(effect, "autonomous", isinstance(effect, Dream)) for effect in effects):
            self._save(self._write_state(0.0))
            self._save_task = None
        elif self._save_task is None and (isinstance(signal, TurnEnded) or not self.running):
            self._save(self._write_state(SAVE_AFTER_S))

    def _save(self, work: Coroutine[None, None, None]) -> None:
        self._is_unsaved = False
        if self._save_task is not None:
            self._save_task.cancel()
        self._save_task = self._tasks.create_task(work)

    async def _save_now(self) -> None:
        if self._save_task is not None or (self._is_unsaved and self.leads):
            if self._save_task is not None:
                self._save_task.cancel()
                await asyncio.gather(self._save_task, return_exceptions=True)
            self._save_task, self._is_unsaved = None, False
            await self._write_state(0.0)

    async def _write_state(self, delay_s: float) -> None:
        if delay_s:
            await self._clock.sleep(delay_s)
            self._save_task = None
        fact = DmnStateSaved(state=dmn.dump_state(self.state), agent=self.id)
        await self._store.append([NewEntry(fact=fact, at=self._clock.now())])

    @property
    def agent_model(self) -> AgentModel:
        """Model, with its costs and caches, of the next turn."""
        return self.context.model

    @property
    def model(self) -> Model:
        """Model of the next turn."""
        return self.context.model.model

    def context_for(self, conversation: ConversationId) -> AgentContext:
        """Return what the next turn there works with: of the model that was chosen for the room,
        else of the agent's.
        """
        name = self._gateway.places.bindings.find(Address.parse(conversation)).model
        if not name or name == self.agent_model.name:
            return self.context
        pool, known = self._models.pool, self._room_contexts.get(name)
        try:
            agent_model = pool.get(self.id, name)
        except ConfigError as error:
            logger.error("%s: the model %s cannot be made: %s", conversation, name, error)  # noqa: TRY400 - no bug
            return self.context
        if known is None or known.model is not agent_model:
            pool.hold(agent_model)
            self._room_contexts[name] = self._build_context(agent_model)
            if known is not None:
                pool.release(known.model)
        return self._room_contexts[name]

    def use_model(self, agent_model: AgentModel) -> None:
        """Use this model from the next turn on. Running turns keep theirs. Returns at once."""
        for context in self._room_contexts.values():
            self._models.pool.release(context.model)
        self._room_contexts.clear()
        before, models = self.agent_model, self._models
        models.pool.hold(agent_model)
        self.context = self._build_context(agent_model)
        for unused in set(before.caches).difference(agent_model.caches):
            models.keep_warm.forget(unused, self.id)
        models.pool.release(before)
        self.send(ModelChanged(at=self._clock.now()))

    def _build_context(self, agent_model: AgentModel) -> AgentContext:
        """Build what depends on the model, and on settings that hold for a whole turn."""
        gateway, services, model = self._gateway, self._services, agent_model.model
        return AgentContext(
            gateway=gateway,
            agent=self,
            model=agent_model,
            make_tools=cache(partial(services.registry.build_dispatcher, self.id, model)),
            prompts=PromptContextBuilder(
                self.id,
                gateway,
                workspaces=self._models.workspaces,
                family=model.family,
                keep_warm=self._models.keep_warm,
            ),
            history=self._history,
            limits=services.limits,
            compaction=Compactor(
                self.id,
                gateway,
                history=self._history,
                model=model,
                cache=agent_model.cache,
                summarizer=agent_model.summarizer or model,
                stats=services.stats,
            ),
        )

    def last_request(self, conversation: ConversationId) -> PlannedRequest | None:
        """Return the last answered request there. None: there was none since the start, or it is
        not kept.
        """
        found = (
            cache.last_requests.get(self.id, conversation)
            for cache in self.context_for(conversation).model.caches
        )
        return max(
            (one for one in found if one is not None), key=lambda one: one.sent_at_s, default=None
        )

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view of a place, while no turn runs there. Return the result in words."""
        async with self._turns.digests.locks.lock_for(conversation):
            context = self.context_for(conversation)
            with self._models.pool.holding(context.model):
                return await self._turns.compact(context, conversation)

    async def refresh_tools(self, tools: ToolDispatcher) -> None:
        """Update the description of the tools before a request, where that costs no cached
        prefix.
        """
        now_s = self._clock.monotonic()
        before_s, tools.last_turn_s = tools.last_turn_s, now_s
        if tools.may_change:
            await self._services.plugins.wait_for_tools()
        lasts_s = self._gateway.live.optimization.prompt_cache.long_ttl
        if before_s is None or now_s - before_s > lasts_s:
            tools.pin_specs()

    async def warm_up(self) -> None:
        """Have a local model read the common beginning of all conversations.

        Otherwise the first message would wait for that. Raises nothing.
        """
        context = self.context
        with self._models.pool.holding(context.model):
            model = context.model.model
            if model.family not in {"local", "llamacpp"}:
                return  # elsewhere an unneeded prompt costs money
            try:
                await self.refresh_tools(context.tools)  # tool servers start at the same time
                persona = await context.prompts.load_persona("public")
                skills = await context.render_skills(self._services.plugins)
                brief = PromptInput(
                    persona=persona.identity, skills=skills, card="", history=(), input_text=""
                )
                request = build_prefix_request(brief, model, context.tools.specs, key=self.id)
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
    ) -> TurnEnded:
        """Consume all that is unread there. Any exception but `StoreError` is a bug in that turn.

        `continuing`: go on with the work in progress, also if nothing is unread.
        """
        if conversation in self._mute.places:  # what is unread stays so until the place is well
            now = self._clock.now()
            return TurnEnded(at=now, conversation=conversation, awaited=True, autonomous=autonomous)
        await self.refresh_tools(self.context_for(conversation).tools)
        async with self._turns.digests.locks.lock_for(conversation):
            context = self.context_for(conversation)
            with self._models.pool.holding(context.model):  # whatever is in use by its end
                ended = await self._turns.run(
                    context,
                    conversation,
                    autonomous=autonomous,
                    continuing=continuing,
                    handle=handle,
                )
        used = self.context_for(conversation).model.caches
        for unused in set(self._models.pool.caches).difference(used):
            self._models.keep_warm.forget(unused, self.id, conversation)
        return ended

    async def give_up(
        self, conversation: ConversationId, reason: str, *, autonomous: bool
    ) -> TurnEnded:
        """Consume all that is unread there, with one message that there is no answer."""
        context = self.context_for(conversation)
        return await self._turns.give_up(context, conversation, reason, autonomous=autonomous)

    async def build_stop_record(self, conversation: ConversationId, why: str) -> TurnRecord:
        """See `TurnRunner.build_stop_record`."""
        return await self._turns.build_stop_record(
            self.context_for(conversation), conversation, why
        )

    async def unread_urgency(self, conversation: ConversationId) -> int:
        """Return the highest urgency still unread there."""
        if is_inner(conversation):
            return await self._turns.digests.pending_urgency()
        return await self._store.unread_urgency(conversation)

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
        unread = await self._store.unread_entries(conversation, most=1)
        return any(wants_answer(one.fact) for one in unread.messages)

    def _is_arriving(self, conversation: ConversationId, *, talk: bool = True) -> bool:
        """Return whether more entries there are announced soon. `talk`: also what people say to
        each other, once they are quiet.
        """
        is_talking = talk and self._inbox.is_talking(conversation)
        return is_talking or self._inbox.is_waiting(conversation)

    def may_take_arriving(self, conversation: ConversationId) -> bool:
        """Return whether a turn there may take in now what is announced soon."""
        if not self._inbox.is_waiting(conversation):
            return False
        bindings = self._gateway.places.bindings
        return bindings.find(Address.parse(conversation)).arrivals == "steer"


def build_dmn_policy(settings: Settings, agent: str) -> DmnPolicy:
    """Build the policy of an agent's DMN loop."""
    config, llm = settings.dmn, settings.llm
    own = llm.models.get(next(one.model for one in settings.agents if one.id == agent))
    runs_here = own is not None and llm.providers[own.provider].runs_here
    return DmnPolicy(
        inner=inner_conversation(agent),
        engaged_s=config.engaged,
        working_s=config.working,
        foraging_s=config.foraging,
        resting_s=config.resting,
        max_autonomous_turns=config.max_autonomous_turns,
        daily_turns=config.daily_turns,
        daily_cost_usd=config.daily_cost_usd,
        forage_per_day=config.forage_per_day if config.forage else 0,
        lanes=config.parallel_turns or (LANES_OF_OWN_MODEL if runs_here else LANES),
        dream_every_s=config.dream_every,
        dream_tokens=config.dream_tokens,
    )
