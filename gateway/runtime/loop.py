"""Outer loop of one agent: carries out the decisions of its DMN, keeps the timer, and saves the
state.

`AgentLoop.send` passes a signal to `agent.dmn.step` and carries out the effects: it starts, steers
and interrupts turns. The state is saved when it has changed, with the signals since the last save.
"""

import asyncio
import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from agent import dmn
from agent.signals import (
    ArrivalPolicy,
    BudgetSpent,
    DmnPolicy,
    DmnState,
    Dream,
    Effect,
    Interrupt,
    LeftOff,
    Noticed,
    Persist,
    SetTimer,
    Signal,
    StartTurn,
    Steer,
    Stopping,
    Tick,
    TurnEnded,
    TurnFailed,
    dump_state,
)
from agent.turn_context import TurnOutcome
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, MessageId, SenderId
from gateway.core.facts import AMBIENT, URGENT, DmnStateSaved, is_inner
from gateway.core.tool import Requester
from gateway.store import NewEntry, Store, StoreError

logger = logging.getLogger("reverie.loop")

SAVE_AFTER_S: Final = 1.0
"""Longest delay of a save that is not urgent: nobody waits for it. After a turn it rides on the
next commit."""
QUEUE_S: Final = 15.0
"""Time for which a turn waits for others without a word."""
FIRST_AWAY_S: Final = 5.0
MAX_AWAY_S: Final = 60.0
"""Time after which a question that no model answered is asked again: doubling, at most this."""
MAX_AWAY_HINT_S: Final = 300.0
"""Longest time for which no model is asked because its provider says so."""
DELETED_REASON: Final = "what it was to answer was deleted meanwhile"
MAX_BEGUN_ANEW: Final = 2
"""Times that an answer is begun anew because whoever asked goes on writing. Then it is written to
its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """Result of a turn, for the agent's loop."""

    has_failed: bool = False
    used_tools: bool = False
    has_open_work: bool = False
    """It goes on with its work by itself."""
    has_yielded: bool = False
    was_interrupted: bool = False
    autonomous: bool = False
    is_over_budget: bool = False
    """The budget does not cover its requests."""
    cost_usd: float = 0.0
    """Cost of its requests, as far as their prices are known."""
    put_off: TurnOutcome | None = None
    """How it failed for lack of a model: its input is left for a turn that begins once one may
    answer. None: it did not."""
    is_awaited: bool = False
    """Somebody waits for an answer of the turn that was put off."""
    model: Literal["answered", "failed", "unasked"] = "answered"
    """What the model did, whatever the turn came to. `failed`: it was asked, and overloaded or out
    of reach."""


class _PutOff(NamedTuple):
    failed_s: float
    """Time at which a model was asked it in vain last (monotonic). inf: none was."""
    wait_s: float
    """Time for which it waits now."""
    timer: asyncio.Task[None]


class TurnInterrupted(Exception):
    """The turn was ended from outside; what it has done so far is to be recorded."""


class TurnHandle:
    """Handle of one turn."""

    def __init__(self) -> None:
        self.stop_reason = ""
        """Reason why it was stopped, in words. Empty: it was not."""
        self.drop_reason = ""
        """Reason why its reply is dropped although its input counts as consumed, in words. Empty:
        it is not."""
        self.requesters: tuple[Requester, ...] = ()
        """People on whose behalf it acts, as far as it has begun."""
        self.heard: dict[MessageId, tuple[SenderId, str]] = {}
        """Author and text of each message to the agent that it has read."""
        self.is_drafting = False
        """Its answer is being written, without any tool so far."""
        self.is_corrected = False
        """Somebody whom it may be about to answer has written again, and it has not read that."""
        self.running_calls = 0
        """Calls of tools under way."""
        self._task: asyncio.Task[Any] | None = None
        """The task of the turn, while it can be interrupted."""
        self._has_news = False
        self._is_interrupted = False
        self._is_ending = False
        """Its record is being written."""
        self._released = asyncio.Event()
        self._released.set()

    def steer(self) -> None:
        """Announce news, for the turn's next tool boundary."""
        self._has_news = True

    def take_news(self) -> bool:
        """Return whether news were announced since the last call."""
        had_news, self._has_news, self.is_corrected = self._has_news, False, False
        return had_news

    def revise(self, message: MessageId, author: SenderId, text: str) -> None:
        """Take up the new text of a message.

        A turn that has read another one ends, and the next one begins anew, knowing what its tools
        did; one that waits for a tool is told.
        """
        known_author, known_text = self.heard.get(message, (None, ""))
        if known_author == author and known_text != text:
            if self.running_calls:
                self.steer()
            else:
                self.interrupt()

    def is_corrected_by(self, authors: Mapping[MessageId, SenderId]) -> bool:
        """Return whether one of these messages is new to it and may change what it writes for its
        author.
        """
        known = {author for author, _ in self.heard.values()}
        return any(author in known for one, author in authors.items() if one not in self.heard)

    def forget(self, message: MessageId) -> None:
        """Take in that a message was deleted. A turn that has read no other message to the agent
        answers nobody.
        """
        if self.heard.pop(message, None) is not None and not self.heard:
            self.drop(DELETED_REASON)

    def interrupt(self) -> None:
        """End the turn, unless its record is already being written."""
        if self._task is not None and not self._is_interrupted:
            self._task.cancel()
        self._is_interrupted = True

    def hold(self) -> bool:
        """Block the turn's record until `release`. False: it is too late, the turn has ended by
        itself.
        """
        if self._is_ending:
            return False
        self._released.clear()
        return True

    def release(self) -> None:
        """Let the turn's record be written."""
        self._released.set()

    def stop(self, why: str) -> None:
        """End the turn for good: nothing of it is resumed or posted, even if its reply is complete.

        Only for a turn that is held, or of which nothing was written yet. `why`: in words, not
        empty.
        """
        self.stop_reason = why
        self.interrupt()

    def drop(self, why: str) -> None:
        """End the turn without a reply. Its input counts as consumed. `why`: in words, not
        empty.
        """
        self.drop_reason = self.drop_reason or why
        self.interrupt()

    def override_outcome(self, outcome: TurnOutcome) -> TurnOutcome:
        """Return the outcome; of a stopped or dropped turn, that of one that yielded."""
        why = self.stop_reason or self.drop_reason
        return (
            replace(outcome, outcome="yielded", text="", reason=why, yielded=True)
            if why
            else outcome
        )

    async def begin_ending(self) -> None:
        """Wait until nobody holds the turn, then mark its record as being written."""
        await self._released.wait()
        self._is_ending = True

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the turn be interrupted inside the `with` block: then what runs there is cancelled.

        Raises TurnInterrupted once that has ended, or at once if the turn was interrupted before. A
        cancellation of the whole task passes through, as with `asyncio.timeout`.
        """
        if self._is_interrupted:
            raise TurnInterrupted
        self._task = task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            yield
        except asyncio.CancelledError:
            if self._uncancel(task) and task.cancelling() <= before:
                raise TurnInterrupted from None
            raise
        except BaseException:
            self._uncancel(task)
            raise
        else:
            self._uncancel(task)
        finally:
            self._task = None

    def _uncancel(self, task: asyncio.Task[Any]) -> bool:
        """Take the cancellation of an interruption back. False: there was none."""
        if self._is_interrupted:
            task.uncancel()
        return self._is_interrupted


class AgentLoop(ABC):
    """Outer loop of one agent: signals in, turns out. Subclasses take the turns."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        clock: Clock,
        *,
        policy: DmnPolicy,
        state: DmnState,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.id = agent_id
        self.policy = policy
        self.state = state
        """The present state of the DMN."""
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._timer: asyncio.Task[None] | None = None
        self._tick_at_s = self._armed_s = 0.0
        """Monotonic; when the timer fires, and since when it is armed."""
        self._save_task: asyncio.Task[None] | None = None
        """The save that can wait, until it has taken the state to write."""
        self._is_unsaved = False
        """A change of the state waits for the end of a turn to be saved with it."""
        self._running: dict[ConversationId, tuple[TurnHandle, asyncio.Task[None]]] = {}
        self._late_urgency: dict[ConversationId, int] = {}
        """Highest urgency announced where a turn runs."""
        self._reserved_usd: dict[ConversationId, float] = {}
        """Highest possible costs of the running turns, as far as the day's budget pays them."""
        self._reminded: set[ConversationId] = set()
        """Places where a reminder has fired, and no turn has begun since."""
        self._begun_anew: dict[ConversationId, int] = {}
        """Number of answers in a row that were begun anew, by place."""
        self._queued: dict[ConversationId, asyncio.Task[None]] = {}
        """Places whose turns wait for others to end, with the task that tells people so."""
        self._put_off: dict[ConversationId, _PutOff] = {}
        """Questions that wait for a model, by place, until it has answered or they have waited too
        long."""
        self._answered_s = -math.inf
        """Time at which the newest turn began that a model has answered (monotonic)."""
        self._away: TurnOutcome | None = None
        """How a turn failed whose provider asked to be left alone until `_away_until_s`
        (monotonic). None: none did."""
        self._away_until_s = 0.0

    @abstractmethod
    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnResult:
        """Consume all that is unread there. Any exception but `StoreError` is a bug in that turn.

        `continuing`: go on with the work in progress, also if nothing is unread.
        """

    @abstractmethod
    async def dream(self, handle: TurnHandle) -> TurnResult:
        """Consolidate the notes. Any exception but `StoreError` is a bug in that dream."""

    @abstractmethod
    async def give_up(
        self, conversation: ConversationId, reason: str, *, autonomous: bool
    ) -> TurnResult:
        """Consume all that is unread there, with one message that there is no answer."""

    @abstractmethod
    def show_queued(self, conversation: ConversationId, *, waits: bool) -> None:
        """Let the people there see that they were heard, from now on until the turn no longer
        `waits` for others.
        """

    @abstractmethod
    async def tell_queued(self, conversation: ConversationId) -> None:
        """Tell the people there that others are answered first."""

    @abstractmethod
    async def unread_urgency(self, conversation: ConversationId) -> int:
        """Return the highest urgency still unread there."""

    @abstractmethod
    def is_arriving(self, conversation: ConversationId) -> bool:
        """Return whether more entries there are announced soon."""

    def may_take_arriving(self, conversation: ConversationId) -> bool:
        """Return whether a turn there may take in now what is announced soon."""
        return self.is_arriving(conversation)

    @abstractmethod
    def is_direct(self, conversation: ConversationId) -> bool:
        """Return whether it is known as a direct chat."""

    @abstractmethod
    def material_tokens(self) -> int:
        """Return the approximate size of the notes since the last dream."""

    @property
    def leads(self) -> bool:
        """Whether this process has the agent's inner conversation, and so saves the state of its
        DMN.
        """
        return True

    def settle_turn(self, conversation: ConversationId) -> None:
        """Release the budget of the turn there: it has ended, and the DMN knows its costs."""
        self._reserved_usd.pop(conversation, None)

    def reserve(self, conversation: ConversationId, cost_usd: float) -> bool:
        """Reserve the highest possible cost of one more request, until the turn there is settled.

        False: the day's budget of autonomous turns does not cover it. Costs are known only
        afterwards, so each request counts so until then.
        """
        today = self._clock.now().astimezone(UTC).date().isoformat()
        left_usd = self.policy.daily_cost_usd - (
            self.state.spent_today_usd if self.state.day == today else 0.0
        )
        if cost_usd > 0 and sum(self._reserved_usd.values()) + cost_usd > left_usd:
            return False
        self._reserved_usd[conversation] = self._reserved_usd.get(conversation, 0.0) + cost_usd
        return True

    @property
    def next_tick_s(self) -> float | None:
        """Seconds until the timer fires. None: the loop does not run."""
        return None if self._timer is None else max(0.0, self._tick_at_s - self._clock.monotonic())

    @property
    def turn_handles(self) -> list[tuple[ConversationId, TurnHandle]]:
        """Handles of all running turns, by place."""
        return [(place, handle) for place, (handle, _) in self._running.items()]

    def turn_handle(self, conversation: ConversationId) -> TurnHandle | None:
        """Return the handle of the turn that runs there. None: none does."""
        return self._running[conversation][0] if conversation in self._running else None

    @property
    def outage(self) -> TurnOutcome | None:
        """How turns fail for lack of a model, while its provider asks to be left alone. None: a
        model may be asked.
        """
        return self._away if self._clock.monotonic() < self._away_until_s else None

    def is_put_off(self, conversation: ConversationId) -> bool:
        """Return whether the question there waits for a model."""
        return conversation in self._put_off

    def is_faulty(self, conversation: ConversationId) -> bool:
        """Return whether a model has answered others since it failed at the question there: then
        the question is at fault, and does not wait any longer.
        """
        one = self._put_off.get(conversation)
        return one is not None and one.failed_s <= self._answered_s

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
        handle, begun_anew = self.turn_handle(conversation), self._begun_anew.get(conversation, 0)
        is_steered = arrivals == "steer" and urgency >= URGENT and begun_anew < MAX_BEGUN_ANEW
        if is_steered and handle is not None and handle.is_corrected_by(authors):
            self._begun_anew[conversation], handle.is_corrected = begun_anew + 1, True
            arrivals = "interrupt" if handle.is_drafting else arrivals
        if conversation in self._running:
            self._late_urgency[conversation] = max(
                urgency, self._late_urgency.get(conversation, AMBIENT)
            )
        direct, at = self.is_direct(conversation), self._clock.now()
        noticed = Noticed(
            at=at, conversation=conversation, urgency=urgency, type=event_type, direct=direct
        )
        self.send(replace(noticed, arrivals=arrivals, trusted=trusted, elsewhere=elsewhere))

    def tick(self) -> None:
        """Check for due turns now, before the timer fires: something was scheduled for this
        time.
        """
        at = self._clock.now()
        wanted = dmn.due_conversations(self.state, self.policy, at)
        arriving = tuple([place for place in wanted if self.is_arriving(place)])
        tokens = self.material_tokens()
        self.send(Tick(at=at, material_tokens=tokens, arriving=arriving))

    def remind(self, conversation: ConversationId) -> None:
        """Take up a reminder that has fired there: now, or once a running turn has ended."""
        self._reminded.add(conversation)
        self.tick()

    def send(self, signal: Signal) -> None:
        """Let the DMN decide, and carry the effects out. Returns at once."""
        before = self.state
        self.state, effects = dmn.step(before, signal, self.policy)
        self._watch_queue()
        if self.state.mode is not before.mode:
            logger.debug(
                "%s, %s: %s -> %s", self.id, type(signal).__name__, before.mode, self.state.mode
            )
        for effect in effects:
            match effect:
                case StartTurn(conversation=conversation):
                    self._reminded.discard(conversation)
                    handle = TurnHandle()
                    self._running[conversation] = (
                        handle,
                        self._tasks.create_task(self._run_turn(effect, handle)),
                    )
                case Dream():
                    handle = TurnHandle()
                    self._running[self.policy.inner] = (
                        handle,
                        self._tasks.create_task(self._run_dream(handle)),
                    )
                case Steer(conversation=conversation) if conversation in self._running:
                    self._running[conversation][0].steer()
                case Interrupt(conversation=conversation) if conversation in self._running:
                    logger.info("%s: the turn in %s is interrupted", self.id, conversation)
                    self._running[conversation][0].interrupt()
                case SetTimer(delay_s=delay_s, sooner=sooner):
                    self._set_timer(delay_s, sooner=sooner)
                case Persist():
                    self._is_unsaved = True
                case _:  # the turn has just ended
                    pass
        if self._is_unsaved and self.leads:
            self._save_after(signal, effects)

    async def stop(self, grace_s: float) -> None:
        """Start nothing more; let turns end for up to `grace_s` seconds of real time, then park
        them.

        A parked turn has left no trace, unless it has used tools: the next start takes up its input
        again.
        """
        self.send(Stopping(at=self._clock.now()))
        for timer in (self._timer, *[one.timer for one in self._put_off.values()]):
            if timer is not None:
                timer.cancel()
        parked = await self._park([*self._running], grace_s)
        if self._save_task is not None or (self._is_unsaved and self.leads):
            if self._save_task is not None:  # write now what was pending
                self._save_task.cancel()
                await asyncio.gather(self._save_task, return_exceptions=True)
            await self._write_state(0.0)
        self._store.flush()
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
        tasks = {self._running[place][1]: place for place in places if place in self._running}
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
            presence=own.presence,
            stopping=own.stopping,
        )
        self.start()

    async def leave(self, places: Callable[[ConversationId], bool], grace_s: float) -> None:
        """End all work in these places, as `stop` does: another process goes on there."""
        for place in await self._park([one for one in self._running if places(one)], grace_s):
            self._running.pop(place, None)
            self.send(TurnEnded(at=self._clock.now(), conversation=place, interrupted=True))
            self.settle_turn(place)
        owed = (*self.state.pending, *self.state.continuing, *self.state.low, *self._put_off)
        for place in [
            one
            for one in (*owed, *(turn.conversation for turn in self.state.waiting))
            if places(one)
        ]:
            self.leave_off(place)

    def leave_off(self, place: ConversationId) -> None:
        """Owe no turn there any more."""
        self._take_put_off(place)
        self.send(LeftOff(at=self._clock.now(), conversation=place))

    def count_elsewhere(self, cost_usd: float) -> None:
        """Count an autonomous turn that another process has taken today."""
        spent_usd = self.state.spent_today_usd + cost_usd
        self.state = replace(
            self.state, turns_today=self.state.turns_today + 1, spent_today_usd=spent_usd
        )

    async def _run_turn(self, start: StartTurn, handle: TurnHandle) -> None:
        place, autonomous, began_s = start.conversation, start.autonomous, self._clock.monotonic()
        try:
            result = await self.take_turn(
                place, autonomous=autonomous, continuing=start.continuing, handle=handle
            )
        except StoreError:
            raise  # without its log the gateway cannot go on
        except (
            Exception
        ) as error:  # a bug: ended here, or the same messages would end the process at every start
            logger.exception("a turn in %s broke", place)
            result = await self.give_up(
                place, f"internal error: {type(error).__name__}", autonomous=autonomous
            )
        addressed = autonomous and not result.autonomous
        await self._finish_turn(
            place, result, began_s, addressed=addressed, continuing=start.continuing
        )

    async def _run_dream(self, handle: TurnHandle) -> None:
        began_s = self._clock.monotonic()
        try:
            result = await self.dream(handle)
        except StoreError:
            raise
        except Exception:  # a bug, and no reason to stop
            logger.exception("%s: a dream broke", self.id)
            result = TurnResult(has_failed=True)
        await self._finish_turn(self.policy.inner, replace(result, autonomous=True), began_s)

    async def _finish_turn(
        self,
        place: ConversationId,
        result: TurnResult,
        began_s: float,
        *,
        addressed: bool = False,
        continuing: bool = False,
    ) -> None:
        left = await self._unread_urgency(place)
        self._settle_put_off(place, result, began_s)
        if not result.was_interrupted:
            self._begun_anew.pop(place, None)
        if result.is_awaited:
            left = AMBIENT
        if result.was_interrupted and not is_inner(
            place
        ):  # its input is owed an answer, even if nothing newer is there
            left = URGENT
        del self._running[place]
        now, direct = self._clock.now(), self.is_direct(place)
        if result.is_over_budget:
            logger.warning("%s: no more turns of its own today: dmn.daily_cost_usd", self.id)
            self.send(BudgetSpent(at=now))
        signal: Signal
        if result.has_failed:
            signal = TurnFailed(
                at=now,
                conversation=place,
                autonomous=result.autonomous,
                cost_usd=result.cost_usd,
                left=left,
                direct=direct,
                addressed=addressed,
                continues=result.put_off is not None
                and not result.is_awaited
                and (continuing or bool(result.put_off.steps)),
                no_model=result.put_off is not None,
            )
        else:
            signal = TurnEnded(
                at=now,
                conversation=place,
                used_tools=result.used_tools,
                open_work=result.has_open_work,
                yielded=result.has_yielded,
                interrupted=result.was_interrupted,
                autonomous=result.autonomous,
                cost_usd=result.cost_usd,
                left=left,
                direct=direct,
                addressed=addressed,
            )
        self.send(signal)
        self.settle_turn(place)
        if self._reminded:
            due = dmn.due_conversations(self.state, self.policy, now)
            self._reminded.intersection_update((*due, *self._running))
            is_blocked = bool(
                self.state.errors or dmn.blocking_reasons(self.state, self.policy, now)
            )
            if self._reminded.intersection(due) and not is_blocked:
                self.tick()

    def _watch_queue(self) -> None:
        """Show people whose turns wait for others to end that they were heard, and tell them so
        after a while.
        """
        waiting = {turn.conversation for turn in self.state.waiting}
        for place in self._queued.keys() - waiting:
            self._queued.pop(place).cancel()
            self.show_queued(place, waits=False)
        for place in waiting - self._queued.keys():
            self._queued[place] = self._tasks.create_task(self._tell_late(place))
            self.show_queued(place, waits=True)

    async def _tell_late(self, place: ConversationId) -> None:
        await self._clock.sleep(QUEUE_S)
        await self.tell_queued(place)

    def _settle_put_off(self, place: ConversationId, result: TurnResult, began_s: float) -> None:
        """Keep the question of a turn that was put off; else let those that wait be asked, if it
        did: a model answers again.
        """
        now_s, before = self._clock.monotonic(), self._take_put_off(place)
        if result.put_off is None:
            if result.model == "answered" and not result.has_failed:
                self._answered_s = max(self._answered_s, began_s)
                if before is not None:
                    self._ask_waiting()
            return
        failed_s = before.failed_s if before is not None else math.inf
        if result.model == "failed":
            failed_s, self._away = now_s, result.put_off
            hint_s = min(result.put_off.retry_after_s or 0.0, MAX_AWAY_HINT_S)
            self._away_until_s = max(self._away_until_s, now_s + hint_s)
        if result.is_awaited and not self.state.stopping:
            wait_s = FIRST_AWAY_S if before is None else min(MAX_AWAY_S, 2 * before.wait_s)
            timer = self._tasks.create_task(
                self._ask_again(place, max(wait_s, self._away_until_s - now_s))
            )
            self._put_off[place] = _PutOff(failed_s, wait_s, timer)

    def _take_put_off(self, place: ConversationId) -> _PutOff | None:
        """Let the question there wait no longer. Return what was known of it."""
        if (one := self._put_off.pop(place, None)) is not None:
            one.timer.cancel()
        return one

    async def _ask_again(self, place: ConversationId, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        if place not in self._running:  # else its end decides
            self.notice(place, URGENT)

    def _ask_waiting(self) -> None:
        for place in self._put_off.keys() - self._running.keys():
            self.notice(place, URGENT)

    def ask_now(self) -> None:
        """Let the questions that wait be asked now: the model is another one."""
        self._away_until_s = 0.0
        self._put_off = {
            place: one._replace(failed_s=math.inf) for place, one in self._put_off.items()
        }
        self._ask_waiting()

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
        if max(before, after) < left and self.is_arriving(conversation):
            left = max(before, after)
        return max(left, after)

    def _set_timer(self, delay_s: float, *, sooner: bool = False) -> None:
        at_s = self._clock.monotonic() + delay_s
        if self._timer is not None:
            if sooner and self._tick_at_s <= at_s:
                return
            self._timer.cancel()
        self._tick_at_s, self._armed_s = at_s, self._clock.monotonic()
        self._timer = self._tasks.create_task(self._tick(delay_s))

    async def _tick(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        self._timer = (
            None  # otherwise the next SetTimer would cancel the task that it is called from
        )
        self.tick()

    def _save_after(self, signal: Signal, effects: Sequence[Effect]) -> None:
        # Counts must survive a crash; the mode may be a second old, or as old as a running turn.
        if any(getattr(effect, "autonomous", isinstance(effect, Dream)) for effect in effects):
            self._save(self._write_state(0.0))
            self._save_task = None
        elif isinstance(signal, TurnEnded | TurnFailed):
            self._save(self._write_state_with_next_commit())
        elif self._save_task is None and not self._running:
            self._save(self._write_state(SAVE_AFTER_S))

    def _save(self, work: Coroutine[None, None, None]) -> None:
        self._is_unsaved = False
        if self._save_task is not None:
            self._save_task.cancel()
        self._save_task = self._tasks.create_task(work)

    async def _write_state(self, delay_s: float) -> None:
        if delay_s:
            await self._clock.sleep(delay_s)
            self._save_task = None
        await self._store.append([self._build_state_entry()])

    async def _write_state_with_next_commit(self) -> None:
        """Save the state with the delivery of the turn's reply, so that this costs no commit of its
        own.
        """
        self._save_task = None
        timer = self._tasks.create_task(self._flush_after(SAVE_AFTER_S))
        await self._store.append([self._build_state_entry()], lazily=True)
        timer.cancel()

    async def _flush_after(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        self._store.flush()

    def _build_state_entry(self) -> NewEntry:
        fact = DmnStateSaved(state=dump_state(self.state), agent=self.id)
        return NewEntry(fact=fact, at=self._clock.now())
