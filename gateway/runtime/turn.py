"""Turns of one agent: run, recorded, stopped, and their replies posted.

- `TurnRunner` takes unread facts out of the store, runs the model (`TurnRun`), and puts the result back.
- `TurnRecorder` writes the turn's record and its post in one transaction. Until then the messages are unread, and a
  crash only means that the model is asked again; afterwards they are consumed and never asked again.
- `TurnStopper` carries out `/stop`. Everything unread in the place becomes durable as consumed in the transaction that
  holds the command, so it is not answered later, even if the process dies before the turn has ended. Until that is
  written, the turn writes nothing: it has either answered before the command, or posts nothing more.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from agent.brief import NOTHING_NEW, TurnOutcome
from agent.models.base import FailureCause
from channels.aio import run_to_completion
from gateway.access.limits import LimitHit
from gateway.context.conversation import CurrentMessage, RenderedInput, find_reply_to, is_addressed, render_lines
from gateway.context.digest import Digest
from gateway.context.observer import RunningTurn, TurnTracker
from gateway.context.turn_facts import NO_UNREAD, ConsumedInput, TurnStart, count_omitted
from gateway.core.clock import Clock, new_id
from gateway.core.events import Address, ConversationId, Message, Post, PostKey, RequestUsage
from gateway.core.facts import AMBIENT, PostQueued, Seq, TurnId, TurnRecord
from gateway.core.logging import log_context
from gateway.core.redaction import Redactor
from gateway.runtime.lane import TurnHandle, TurnInterrupted
from gateway.runtime.turn_input import BLOCKED_REASON, MAX_UNREAD_LINES, AgentContext, TurnRun
from gateway.store import AppendResult, NewEntry, Store, StoreError
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.preview import TurnPreviews
from gateway.tools.platform import ConversationLocks

logger = logging.getLogger("reverie.turns")
_stop_logger = logging.getLogger("reverie.stopping")

FAILURE_TEXTS: Mapping[FailureCause, str] = {
    "overloaded": "The model I think with is overloaded right now. Please ask again in a few minutes.",
    "unreachable": "I cannot reach the model I think with right now. Please ask again in a few minutes.",
    "misconfigured": "The model I think with refuses my requests, because something is not set up correctly. Asking "
    "again will not help before my operator has corrected it.",
    "budget": "My account with the provider of my model is out of credit. Asking again will not help before my "
    "operator has added some.",
    "too_long": "That is too long for me to take in at once. Please ask again with less text.",
    "tools": "I kept using tools for this and did not come to an answer. Please ask again, best for one part of it.",
    "refused": "The model I think with declined to answer this. Asking the same again will hardly help; please put it "
    "in other words.",
    "nothing": "The model I think with gave no answer to this. Please ask again.",
    "broken": "Something went wrong in me, and I could not answer. Please ask again; if it happens twice, tell my "
    "operator.",
}
"""Texts posted instead of an answer: the cause, and whether to ask again."""

LOCK_TIMEOUT_S = 2.0
"""Time to acquire the lock: a free one is acquired at once; a turn that just ended holds it until its record is
written."""
RENDER_TIMEOUT_S = 2.0
"""Time for rendering, less than `gateway.commands.dispatcher.ANSWER_TIMEOUT_S`: the person waits for an answer."""
STOPPING = "I leave it off, and say nothing more of it."
LEFT_UNANSWERED = "I leave it: what was said here until now is not answered."
ALREADY_STOPPING = "I am leaving it off already."
NOTHING_RUNNING = "Nothing is under way here."

NOTHING_TO_ANSWER = "nothing asks for an answer: what did was deleted, or it only tells what happened"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """Result of a turn, for the agent's loop."""

    has_failed: bool = False
    used_tools: bool = False
    has_yielded: bool = False
    was_interrupted: bool = False
    autonomous: bool = False
    is_over_budget: bool = False
    """The budget does not cover its requests."""
    cost_usd: float = 0.0
    """Cost of its requests, as far as their prices are known."""


class DigestSource(Protocol):
    """Source of the inner conversation's input."""

    async def build(self) -> Digest | None:
        """Return what is pending everywhere. None: nothing is."""


class StoppableAgent(Protocol):
    """Agent whose turns can be stopped: `gateway.runtime.agent.Agent`."""

    def turn_handle(self, conversation: ConversationId) -> TurnHandle | None:
        """Return the handle of the turn that runs there. None: none does."""

    async def owes_answer(self, conversation: ConversationId) -> bool:
        """Return whether a turn would start there because of unread entries, or continues."""

    async def prepare_stop(self, conversation: ConversationId, why: str) -> TurnRecord:
        """Return the record to write if the work there is stopped now."""

    def stop_turn(self, conversation: ConversationId, why: str) -> None:
        """End the turn that runs there, and owe no other."""


class TurnRunner:
    """Runs the turns of one agent."""

    def __init__(
        self,
        context: AgentContext,
        *,
        previews: TurnPreviews,
        digests: DigestSource,
        on_answered: Callable[[str, RequestUsage], None],
        tracker: TurnTracker | None = None,
    ) -> None:
        """`on_answered` is called with the agent and each model request."""
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._agent_id = context.agent_id
        self._reader = context.reader
        self._history = context.history
        self._previews = previews
        self._digest_source = digests
        self._digest: Digest | None = None
        """The newest digest, for the record if its turn fails."""
        self._on_answered = on_answered
        self._tracker = tracker or TurnTracker(context.clock)
        self._recorder = TurnRecorder(context.store, context.clock, context.agent_id, context.redactor)

    def forget_view(self, conversation: ConversationId) -> None:
        """Drop the cached view of a place, because other code wrote to its log."""
        self._history.forget(conversation)

    async def run(
        self, conversation: ConversationId, *, autonomous: bool, continuing: bool = False, handle: TurnHandle
    ) -> TurnResult:
        """Consume all that is unread there. `continuing`: go on even if nothing is.

        Cancelled before the turn's record is durable, it leaves everything unread; after that it is complete. A turn
        that has used tools is recorded as interrupted, so that the next one knows what they did. Interrupted by its
        handle, it is recorded as far as it came.
        """
        start = await self._start(conversation, autonomous=autonomous, continuing=continuing)
        with log_context(agent=self._agent_id, conversation=conversation, turn=start.turn):
            return await self._run(start, handle)

    async def _run(self, start: TurnStart, handle: TurnHandle) -> TurnResult:
        run, autonomous = TurnRun(self._context, start, handle), start.autonomous
        if start.is_inner and not (start.digest or start.continuing):
            return TurnResult(autonomous=autonomous)
        if not await self._is_answer_owed(run):
            await handle.begin_ending()
            deleted = start.unread.messages and not handle.stop_reason
            return await self._record_deleted(start) if deleted else TurnResult(autonomous=autonomous)
        with self._tracker.track(start, self._agent_id) as running:
            outcome = await self._answer(run, handle, running)
            return _to_result(outcome, autonomous=run.start.autonomous)

    async def _answer(self, run: TurnRun, handle: TurnHandle, running: RunningTurn) -> TurnOutcome:
        # The preview is gone before the answer is recorded: from then on the outbox sends it.
        async with self._previews.start(run.start.place) as preview:
            run.on_text = self._tracker.answer_callback(running, preview.update)
            run.on_thinking = self._tracker.thinking_callback(running)
            outcome = await self._ask_model(run, handle)
        await handle.begin_ending()
        if run.limit_hit is not None and outcome.is_over_budget:
            outcome = replace(outcome, is_over_budget=False, reason=run.limit_hit.rule)
            await self._record_over_budget(run, run.limit_hit)
        if run.is_blocked():
            handle.drop_reason = handle.drop_reason or BLOCKED_REASON
        outcome = handle.override_outcome(run.with_preparation_cost(outcome))
        await self._record(run, outcome, handle)
        return outcome

    async def _start(self, conversation: ConversationId, *, autonomous: bool, continuing: bool) -> TurnStart:
        start = TurnStart(
            turn=TurnId(new_id(self._clock.now())),
            place=Address.parse(conversation),
            autonomous=autonomous,
            continuing=continuing,
            unread=NO_UNREAD,
        )
        if start.is_inner:
            self._digest = await self._digest_source.build()
            return replace(start, digest=self._digest)
        await self._store.activate(conversation)
        unread = await self._store.unread_entries(conversation, most=MAX_UNREAD_LINES)
        start = replace(start, unread=unread, messages=await self._reader.read_current(unread))
        if autonomous and start.is_addressed and await self._store.unread_urgency(conversation) > AMBIENT:
            return replace(start, autonomous=False)  # whatever began the turn, a person waits for an answer
        return start

    async def _is_answer_owed(self, run: TurnRun) -> bool:
        """Return whether a person still waits for an answer, also because an earlier turn was interrupted."""
        start = run.start
        if (
            start.digest is not None
            or start.continuing
            or await self._reader.is_answer_owed(start.unread, start.messages)
        ):
            return True
        run.view = await self._history.take(start.place.conversation)
        return run.view.interrupted

    async def _ask_model(self, run: TurnRun, handle: TurnHandle) -> TurnOutcome:
        try:
            return await handle.run(run.run())
        except TurnInterrupted:
            return run.progress.current
        except asyncio.CancelledError:
            if run.progress.current.steps:
                with contextlib.suppress(StoreError):  # the error may be the reason for the cancellation
                    await self._record(
                        run, handle.override_outcome(run.with_preparation_cost(run.progress.current)), handle
                    )
            raise

    async def _record_over_budget(self, run: TurnRun, limit_hit: LimitHit) -> None:
        """Post that the budget is used up, unless that was posted today."""
        start = run.start
        addressed = [one.message for one in start.messages if is_addressed(one.message)]
        limits = self._context.limits
        entries = (
            limits.build_unpaid_entries(start.place, addressed[-1] if addressed else None, limit_hit)
            if limits is not None
            else []
        )
        await self._store.append(entries)

    async def _record(self, run: TurnRun, outcome: TurnOutcome, handle: TurnHandle) -> None:
        """Record the outcome, if there is any."""
        for account in outcome.accounts:
            self._on_answered(self._agent_id, account)
        conversation, consumed = run.start.place.conversation, run.consumed_input(outcome)
        consumed = consumed.as_stopped if handle.stop_reason else consumed
        interrupted = outcome.outcome == "interrupted" or bool(handle.stop_reason)
        never_asked = outcome.is_over_budget or (interrupted and consumed.rendered.text in ("", NOTHING_NEW))
        if never_asked and not outcome.requests and not outcome.steps:
            self._history.forget(conversation)
            return
        seq, ended = await self._recorder.write(run.start, outcome, consumed)
        if interrupted or run.view is None:  # a fold may have been in progress
            self._history.forget(conversation)
        else:
            self._history.add_turn(conversation, run.view, seq, ended)

    async def _record_deleted(self, start: TurnStart) -> TurnResult:
        """Consume the rest where all that asked for an answer was deleted. It becomes context, without a request."""
        self._history.forget(start.place.conversation)
        rendered = render_lines(
            await self._reader.render(start.messages, sees=False), omitted=0, plain=self._context.is_small_model
        )
        consumed = ConsumedInput(
            rendered=rendered,
            omitted=count_omitted(start.unread, rendered),
            upto=start.unread.upto,
            messages=start.messages,
        )
        await self._recorder.write(start, TurnOutcome(outcome="silent", reason=NOTHING_TO_ANSWER), consumed)
        return TurnResult(autonomous=start.autonomous)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> TurnResult:
        """Consume all that is unread there, with one message about the failure for whoever waits for an answer."""
        self._history.forget(conversation)
        turn, unread = (
            TurnId(new_id(self._clock.now())),
            await self._store.unread_entries(conversation, most=MAX_UNREAD_LINES),
        )
        start = TurnStart(turn=turn, place=Address.parse(conversation), autonomous=autonomous, unread=unread)
        digest, self._digest = (self._digest, None) if start.is_inner else (None, self._digest)
        # Nobody waits for an answer, so there is no message about the failure.
        if not unread.messages and digest is None:
            logger.error("%s: %s", conversation, reason)
            return TurnResult(has_failed=True, autonomous=autonomous)
        # Rendering the lines may be what failed; but a later prompt needs something between two replies.
        omitted = unread.omitted + len(unread.messages) if digest is None else digest.omitted + len(digest.covers)
        messages = [
            CurrentMessage(one.seq, one.fact, is_edited=False)
            for one in unread.messages
            if isinstance(one.fact, Message)
        ]
        consumed = ConsumedInput(
            rendered=render_lines([], omitted=omitted, plain=self._context.is_small_model),
            omitted=omitted,
            upto=unread.upto,
            messages=messages,
            looked=digest.looked if digest is not None else (),
        )
        await self._recorder.write(start, TurnOutcome(outcome="failed", reason=reason), consumed)
        return TurnResult(has_failed=True, autonomous=autonomous)

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view of a place. Return the result in words. The costs are recorded as a turn of its own."""
        turn = TurnId(new_id(self._clock.now()))
        start = TurnStart(
            turn=turn, place=Address.parse(conversation), autonomous=False, is_compaction=True, unread=NO_UNREAD
        )
        run = TurnRun(self._context, start, TurnHandle())
        try:
            return await run.compact()
        finally:  # the requests so far are paid for, also if this was cut off
            self._history.forget(conversation)
            outcome = run.with_preparation_cost(TurnOutcome(outcome="silent", reason="somebody wanted the view folded"))
            for account in outcome.accounts:
                self._on_answered(self._agent_id, account)
            if outcome.requests:
                consumed = ConsumedInput(rendered=RenderedInput(), omitted=0, upto=Seq(0))
                await run_to_completion(self._recorder.write(start, outcome, consumed))


class TurnRecorder:
    """Writes an agent's turns to the log."""

    def __init__(self, store: Store, clock: Clock, agent_id: str, redactor: Redactor) -> None:
        """`redactor` is applied to replies and reasons."""
        self._store = store
        self._clock = clock
        self._agent_id = agent_id
        self._redactor = redactor

    def build_record(self, start: TurnStart, outcome: TurnOutcome, consumed: ConsumedInput) -> TurnRecord:
        """Return the record of a turn, with the text for whoever waits for an answer."""
        text, basis = self._redactor(outcome.text), consumed.basis
        if outcome.outcome == "failed":
            logger.error("turn %s failed: %s", start.turn, outcome.reason)
            text = FAILURE_TEXTS[outcome.cause] if _is_answer_awaited(start, consumed) else ""
        return TurnRecord(
            turn=start.turn,
            covers=consumed.rendered.covers,
            omitted=consumed.omitted,
            heard=consumed.rendered.text,
            upto=consumed.upto,
            outcome=outcome.outcome,
            text=text,
            reason=self._redactor(outcome.reason),
            failure=outcome.cause if outcome.outcome == "failed" else "",
            model=outcome.model,
            usage=outcome.usage,
            requests=outcome.requests,
            autonomous=start.autonomous,
            media=consumed.rendered.media,
            accounts=outcome.accounts,
            agent=self._agent_id,
            senders=consumed.rendered.senders,
            steps=outcome.steps,
            cause=start.cause,
            continued=start.continuing,
            looked=consumed.looked,
            prompt_tokens=outcome.prompt_tokens,
            prompt_estimate=outcome.prompt_estimate,
            recalled=basis.recalled,
            nudged=basis.nudged,
            view=basis.view,
            weighed=basis.weighed,
            foreign=basis.label.foreign if basis.label is not None else "",
            least_role=basis.label.role if basis.label is not None else "",
        )

    async def write(self, start: TurnStart, outcome: TurnOutcome, consumed: ConsumedInput) -> tuple[Seq, TurnRecord]:
        """Append the turn and its post. Return the record's log position, and the record."""
        now, place, ended = self._clock.now(), start.place, self.build_record(start, outcome, consumed)
        record = NewEntry(
            fact=ended,
            at=now,
            conversation=place.conversation,
            key=f"turn:{ended.turn}",
            cause=consumed.upto or None,
        )
        if not ended.text or start.is_inner:  # a reply in the inner conversation has no reader
            (written,) = await self._store.append([record])
            return written.seq, ended
        post = Post(key=PostKey(ended.turn), to=place, text=ended.text, reply_to=find_reply_to(consumed.messages))
        queued = NewEntry(
            fact=PostQueued(post=post), at=now, conversation=place.conversation, key=f"post:{post.key}", cause=record
        )
        written, _ = await self._store.append([record, queued])
        return written.seq, ended


class TurnStopper:
    """Stops turns, for all agents."""

    def __init__(self, agent_for: Callable[[ConversationId], StoppableAgent], room_locks: ConversationLocks) -> None:
        """`agent_for`: return the agent of a conversation."""
        self._agent_for = agent_for
        self._room_locks = room_locks

    async def plan_stop(self, at: Address, by: str) -> CommandEffect:
        """Plan a stop. `by`: who requests it, for people.

        Until the effect is settled no turn begins there, and none ends.
        """
        place = at.conversation
        agent, why = self._agent_for(place), f"{by} had it left off"
        handle = agent.turn_handle(place)
        if handle is not None and handle.stop_reason:
            return CommandEffect(answer=ALREADY_STOPPING)
        held_handle = handle if handle is not None and handle.hold() else None
        lock = None if held_handle is not None else await self._acquire_lock(place)
        try:
            owes = held_handle is not None or await agent.owes_answer(place)
            record = await agent.prepare_stop(place, why) if owes else None
        except BaseException:
            _release(held_handle, lock)
            raise
        if record is None:
            _release(held_handle, lock)
            return CommandEffect(answer=NOTHING_RUNNING)

        def settle(written: AppendResult | None) -> None:
            if written is not None and written.is_new:
                _stop_logger.info("%s: left off, by %s", place, by)
                agent.stop_turn(place, why)
            _release(held_handle, lock)

        effect_fact = EffectFact(record, key=f"turn:{record.turn}")
        return CommandEffect(
            answer=LEFT_UNANSWERED if held_handle is None else STOPPING, facts=(effect_fact,), settle=settle
        )

    async def _acquire_lock(self, place: ConversationId) -> asyncio.Lock | None:
        """Acquire the lock of a place. None: another caller keeps it, who takes no turn there."""
        lock = self._room_locks.lock_for(place)
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                await lock.acquire()
        except TimeoutError:
            return None
        return lock


async def build_stop_record(context: AgentContext, conversation: ConversationId, why: str) -> TurnRecord:
    """Return the record for a stop: everything unread there counts as consumed.

    This includes the input of a turn that runs there. Entries that cannot be rendered in time are only counted.
    """
    now, unread = context.clock.now(), await context.store.unread_entries(conversation, most=MAX_UNREAD_LINES)
    start = TurnStart(
        turn=TurnId(new_id(now)),
        place=Address.parse(conversation),
        autonomous=False,
        unread=unread,
        messages=await context.reader.read_current(unread),
    )
    rendered = RenderedInput()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RENDER_TIMEOUT_S):  # attachments may have to be fetched first
            lines = await context.reader.render(start.messages, sees=False)
            rendered = render_lines(lines, omitted=0, plain=context.is_small_model) if lines else rendered
    newest = await context.store.newest_entries(1)
    upto = max([unread.upto, *[one.seq for one in newest]])  # there may be more unread entries than one turn takes
    consumed = ConsumedInput(rendered=rendered, omitted=count_omitted(unread, rendered), upto=Seq(upto))
    return TurnRecorder(context.store, context.clock, context.agent_id, context.redactor).build_record(
        start, TurnOutcome(outcome="yielded", reason=why), consumed
    )


def _is_answer_awaited(start: TurnStart, consumed: ConsumedInput) -> bool:
    """Return whether a person waits for an answer: only they get a message about a failure."""
    return not start.is_inner and (start.cause in ("addressed", "alarm") or consumed.is_addressed)


def _release(handle: TurnHandle | None, lock: asyncio.Lock | None) -> None:
    if handle is not None:
        handle.release()
    if lock is not None:
        lock.release()


def _to_result(outcome: TurnOutcome, *, autonomous: bool) -> TurnResult:
    return TurnResult(
        has_failed=outcome.outcome == "failed",
        used_tools=outcome.used_tools,
        has_yielded=outcome.yielded,
        was_interrupted=outcome.outcome == "interrupted",
        autonomous=autonomous,
        is_over_budget=outcome.is_over_budget,
        cost_usd=sum(account.cost_usd or 0.0 for account in outcome.accounts),
    )
