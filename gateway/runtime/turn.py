"""The turns of one agent: facts out of the store, to the agent, and what it did back into the store.

The turn's record and its post are written in one transaction. Until then the messages are unread, and a
crash only means that they are asked about again; afterwards they are dealt with and never asked again.

Leaves off what goes on in a conversation because somebody wants that: `/stop`.

What was said there until then becomes durable as heard in the transaction that holds the command. So it is not answered
again by itself, also if the process dies before the turn has ended. Until that is written nothing is written down of
the turn: it has either answered before the word came, or says nothing more.

How turns are written down: the record and the post, in one transaction.
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
from gateway.core.redaction import Redact, Redactor
from gateway.runtime.lane import TurnHandle, TurnInterrupted
from gateway.runtime.turn_input import BLOCKED_REASON, MAX_UNREAD_LINES, AgentContext, TurnRun
from gateway.store import AppendResult, NewEntry, OutboxPost, Store, StoreError
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.preview import TurnPreviews
from gateway.tools.platform import ConversationLocks

logger = logging.getLogger("reverie.turns")

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
"""What people are told instead of an answer: the cause, and whether to ask again."""


class TurnRecorder:
    """Writes an agent's turns down."""

    def __init__(self, store: Store, clock: Clock, agent_id: str, redact: Redact | None = None) -> None:
        """`redact` is given what is said, and why it is not."""
        self._store = store
        self._clock = clock
        self._agent_id = agent_id
        self._redact = redact or Redactor()

    def build_record(self, begun: TurnStart, outcome: TurnOutcome, dealt: ConsumedInput) -> TurnRecord:
        """How the turn ended, with what it says to whoever waits for an answer."""
        text, basis = self._redact(outcome.text), dealt.basis
        if outcome.outcome == "failed":
            logger.error("turn %s failed: %s", begun.turn, outcome.reason)
            text = FAILURE_TEXTS[outcome.cause] if _is_answer_awaited(begun, dealt) else ""
        return TurnRecord(
            turn=begun.turn,
            covers=dealt.rendered.covers,
            omitted=dealt.omitted,
            heard=dealt.rendered.text,
            upto=dealt.upto,
            outcome=outcome.outcome,
            text=text,
            reason=self._redact(outcome.reason),
            failure=outcome.cause if outcome.outcome == "failed" else "",
            model=outcome.model,
            usage=outcome.usage,
            requests=outcome.requests,
            autonomous=begun.autonomous,
            media=dealt.rendered.media,
            accounts=outcome.accounts,
            agent=self._agent_id,
            senders=dealt.rendered.senders,
            steps=outcome.steps,
            cause=begun.cause,
            continued=begun.continuing,
            looked=dealt.looked,
            prompt_tokens=outcome.prompt_tokens,
            prompt_estimate=outcome.prompt_estimate,
            recalled=basis.recalled,
            nudged=basis.nudged,
            view=basis.view,
            weighed=basis.weighed,
            foreign=basis.label.foreign if basis.label is not None else "",
            least_role=basis.label.role if basis.label is not None else "",
        )

    async def write(
        self, begun: TurnStart, outcome: TurnOutcome, dealt: ConsumedInput
    ) -> tuple[Seq, TurnRecord, OutboxPost | None]:
        """The turn and its post: where the turn stands, its record, and what the outbox is to deliver."""
        now, place, ended = self._clock.now(), begun.place, self.build_record(begun, outcome, dealt)
        record = NewEntry(
            fact=ended,
            at=now,
            conversation=place.conversation,
            key=f"turn:{ended.turn}",
            cause=dealt.upto or None,
        )
        if not ended.text or begun.is_inner:  # what is said there is said to nobody
            (written,) = await self._store.append([record])
            return written.seq, ended, None
        post = Post(key=PostKey(ended.turn), to=place, text=ended.text, reply_to=find_reply_to(dealt.messages))
        queued = NewEntry(
            fact=PostQueued(post=post), at=now, conversation=place.conversation, key=f"post:{post.key}", cause=record
        )
        written, waiting = await self._store.append([record, queued])
        return written.seq, ended, OutboxPost(seq=waiting.seq, at=now, post=post, parts=())


def _is_answer_awaited(begun: TurnStart, dealt: ConsumedInput) -> bool:
    """Whether somebody waits for an answer: nobody else is told that there is none."""
    return not begun.is_inner and (begun.cause in ("addressed", "alarm") or dealt.is_addressed)


LOCK_TIMEOUT_S = 2.0
"""A door that is free is had at once; a turn that has just ended leaves when that is written, also to a busy disk."""
RENDER_TIMEOUT_S = 2.0
"""Whoever wants something left off does not wait longer; less than `gateway.commands.dispatcher.ANSWER_TIMEOUT_S`."""
STOPPING = "I leave it off, and say nothing more of it."
LEFT_UNANSWERED = "I leave it: what was said here until now is not answered."
ALREADY_STOPPING = "I am leaving it off already."
NOTHING_RUNNING = "Nothing is under way here."


class StoppableAgent(Protocol):
    """What is needed of the agent there: `gateway.runtime.agent.Agent`."""

    def turn_handle(self, conversation: ConversationId) -> TurnHandle | None:
        """Of the turn that runs there. None: none does."""

    async def owes_answer(self, conversation: ConversationId) -> bool:
        """Whether a turn would come there by what is unread, or goes on."""

    async def prepare_stop(self, conversation: ConversationId, why: str) -> TurnRecord:
        """What is to be written down if it is left off there now."""

    def stop_turn(self, conversation: ConversationId, why: str) -> None:
        """It is: end the turn that runs there, and owe none."""


class TurnStopper:
    """For all agents."""

    def __init__(self, of: Callable[[ConversationId], StoppableAgent], doors: ConversationLocks) -> None:
        """`of`: whose a conversation is."""
        self._agent_for = of
        self._room_locks = doors

    async def plan_stop(self, at: Address, by: str) -> CommandEffect:
        """Decide. Until the change is settled no turn begins there, and none ends. `by`: who wants it, for people."""
        place = at.conversation
        mind, why = self._agent_for(place), f"{by} had it left off"
        lane = mind.turn_handle(place)
        if lane is not None and lane.stop_reason:
            return CommandEffect(answer=ALREADY_STOPPING)
        held = lane if lane is not None and lane.hold() else None
        door = None if held is not None else await self._acquire_lock(place)
        try:
            owes = held is not None or await mind.owes_answer(place)
            record = await mind.prepare_stop(place, why) if owes else None
        except BaseException:
            _release(held, door)
            raise
        if record is None:
            _release(held, door)
            return CommandEffect(answer=NOTHING_RUNNING)

        def settle(asked: AppendResult | None) -> None:
            if asked is not None and asked.is_new:
                logger.info("%s: left off, by %s", place, by)
                mind.stop_turn(place, why)
            _release(held, door)

        made = EffectFact(record, key=f"turn:{record.turn}")
        return CommandEffect(answer=LEFT_UNANSWERED if held is None else STOPPING, facts=(made,), settle=settle)

    async def _acquire_lock(self, place: ConversationId) -> asyncio.Lock | None:
        """The door there, held. None: somebody else is in there, who takes no turn of it."""
        door = self._room_locks.lock_for(place)
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                await door.acquire()
        except TimeoutError:
            return None
        return door


async def build_stop_record(means: AgentContext, conversation: ConversationId, why: str) -> TurnRecord:
    """What is to be written down where something is left off: all that is unread there now is heard, and over.

    What a turn that runs there has heard is among it. What takes long to be looked at is counted only.
    """
    now, unread = means.clock.now(), await means.store.unread_entries(conversation, most=MAX_UNREAD_LINES)
    begun = TurnStart(
        turn=TurnId(new_id(now)),
        place=Address.parse(conversation),
        autonomous=False,
        unread=unread,
        messages=await means.reader.read_current(unread),
    )
    told = RenderedInput()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RENDER_TIMEOUT_S):  # what came beside words may have to be fetched first
            lines = await means.reader.render(begun.messages, sees=False)
            told = render_lines(lines, omitted=0, plain=means.is_small_model) if lines else told
    newest = await means.store.newest_entries(1)
    upto = max([unread.upto, *[one.seq for one in newest]])  # more may be unread than one turn is told of
    dealt = ConsumedInput(rendered=told, omitted=count_omitted(unread, told), upto=Seq(upto))
    return TurnRecorder(means.store, means.clock, means.agent_id, means.redact).build_record(
        begun, TurnOutcome(outcome="yielded", reason=why), dealt
    )


def _release(lane: TurnHandle | None, door: asyncio.Lock | None) -> None:
    if lane is not None:
        lane.release()
    if door is not None:
        door.release()


NOTHING_TO_ANSWER = "nothing asks for an answer: what did was deleted, or it only tells what happened"


class DigestSource(Protocol):
    """What an agent's inner conversation is told."""

    async def build(self) -> Digest | None:
        """What is pending everywhere. None: nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What the loop is told of a turn."""

    has_failed: bool = False
    used_tools: bool = False
    has_yielded: bool = False
    was_interrupted: bool = False
    autonomous: bool = False
    is_over_budget: bool = False
    """What it would have asked for could not be afforded."""
    cost_usd: float = 0.0
    """Of its requests, as far as their prices are known."""


class TurnRunner:
    """Takes turns for one agent."""

    def __init__(
        self,
        means: AgentContext,
        *,
        signs: TurnPreviews,
        digests: DigestSource,
        post: Callable[[OutboxPost], None],
        answered: Callable[[str, RequestUsage], None],
        onlookers: TurnTracker | None = None,
    ) -> None:
        """`post` is called with every reply, after it is durable; `answered` with the agent and each model request."""
        self._context = means
        self._store = means.store
        self._clock = means.clock
        self._agent_id = means.agent_id
        self._reader = means.reader
        self._history = means.history
        self._previews = signs
        self._digest_source = digests
        self._digest: Digest | None = None
        """The newest, for when its turn breaks."""
        self._post = post
        self._on_answered = answered
        self._tracker = onlookers or TurnTracker(means.clock)
        self._recorder = TurnRecorder(means.store, means.clock, means.agent_id, means.redact)

    def forget_view(self, conversation: ConversationId) -> None:
        """A turn of that place was written by somebody else."""
        self._history.forget(conversation)

    async def run(
        self, conversation: ConversationId, *, autonomous: bool, continuing: bool = False, lane: TurnHandle
    ) -> TurnResult:
        """Deal with all that is unread there now; `continuing`: go on, also if nothing is.

        Cancelled before the turn's record is durable, it leaves everything unread; after that it is done. One that
        has used tools is written down as if it had been interrupted, so that the next one knows what they did.
        Interrupted by its lane, it is written down as far as it came.
        """
        begun = await self._start(conversation, autonomous=autonomous, continuing=continuing)
        with log_context(agent=self._agent_id, conversation=conversation, turn=begun.turn):
            return await self._run(begun, lane)

    async def _run(self, begun: TurnStart, lane: TurnHandle) -> TurnResult:
        asking, autonomous = TurnRun(self._context, begun, lane), begun.autonomous
        if begun.is_inner and not (begun.digest or begun.continuing):
            return TurnResult(autonomous=autonomous)
        if not await self._is_answer_owed(asking):
            await lane.begin_ending()
            deleted = begun.unread.messages and not lane.stop_reason
            return await self._record_deleted(begun) if deleted else TurnResult(autonomous=autonomous)
        with self._tracker.track(begun, self._agent_id) as running:
            outcome = await self._answer(asking, lane, running)
            return _to_result(outcome, autonomous=asking.start.autonomous)

    async def _answer(self, asking: TurnRun, lane: TurnHandle, running: RunningTurn) -> TurnOutcome:
        sign = None if asking.start.is_inner else self._previews.start(asking.start.place)
        try:
            asking.on_text = self._tracker.answer_callback(running, sign.update if sign is not None else None)
            asking.on_thinking = self._tracker.thinking_callback(running)
            outcome = await self._ask_model(asking, lane)
            await lane.begin_ending()
            if asking.limit_hit is not None and outcome.is_over_budget:
                outcome = replace(outcome, is_over_budget=False, reason=asking.limit_hit.rule)
                await self._post_over_budget(asking, asking.limit_hit)
            if asking.is_blocked():
                lane.drop_reason = lane.drop_reason or BLOCKED_REASON
            outcome = lane.override_outcome(asking.with_preparation_cost(outcome))
            queued = await self._record(asking, outcome, lane)
        except BaseException as error:
            if sign is not None:
                await sign.end(parked=isinstance(error, asyncio.CancelledError))
            raise
        if sign is not None:
            await sign.end()  # before the whole answer comes what was shown of it goes
        if queued is not None:
            self._post(queued)
        return outcome

    async def _start(self, conversation: ConversationId, *, autonomous: bool, continuing: bool) -> TurnStart:
        begun = TurnStart(
            turn=TurnId(new_id(self._clock.now())),
            place=Address.parse(conversation),
            autonomous=autonomous,
            continuing=continuing,
            unread=NO_UNREAD,
        )
        if begun.is_inner:
            self._digest = await self._digest_source.build()
            return replace(begun, digest=self._digest)
        unread = await self._store.unread_entries(conversation, most=MAX_UNREAD_LINES)
        begun = replace(begun, unread=unread, messages=await self._reader.read_current(unread))
        if autonomous and begun.is_addressed and await self.unread_urgency(conversation) > AMBIENT:
            return replace(begun, autonomous=False)  # whatever began it, somebody waits for an answer
        return begun

    async def _is_answer_owed(self, asking: TurnRun) -> bool:
        """Whether anybody still waits for an answer: also whoever was interrupted before it."""
        begun = asking.start
        if (
            begun.digest is not None
            or begun.continuing
            or await self._reader.is_answer_owed(begun.unread, begun.messages)
        ):
            return True
        asking.view = await self._history.take(begun.place.conversation)
        return asking.view.interrupted

    async def _ask_model(self, asking: TurnRun, lane: TurnHandle) -> TurnOutcome:
        try:
            return await lane.run(asking.run())
        except TurnInterrupted:
            return asking.progress.current
        except asyncio.CancelledError:
            if asking.progress.current.steps:
                with contextlib.suppress(StoreError):  # it may be why everything ends
                    await self._record(
                        asking, lane.override_outcome(asking.with_preparation_cost(asking.progress.current)), lane
                    )
            raise

    async def _post_over_budget(self, asking: TurnRun, bite: LimitHit) -> None:
        """Say that there is no money for an answer, where that was not said today."""
        begun = asking.start
        said = [one.message for one in begun.messages if is_addressed(one.message)]
        limits = self._context.limits
        entries = (
            limits.build_unpaid_entries(begun.place, said[-1] if said else None, bite) if limits is not None else []
        )
        written = await self._store.append(entries)
        for entry, one in zip(entries, written, strict=True):
            if isinstance(entry.fact, PostQueued) and one.is_new:
                self._post(OutboxPost(seq=one.seq, at=entry.at, post=entry.fact.post, parts=()))

    async def _record(self, asking: TurnRun, outcome: TurnOutcome, lane: TurnHandle) -> OutboxPost | None:
        """Write down what came of it, if anything did."""
        for account in outcome.accounts:
            self._on_answered(self._agent_id, account)
        conversation, dealt = asking.start.place.conversation, asking.consumed_input(outcome)
        dealt = dealt.as_stopped if lane.stop_reason else dealt
        interrupted = outcome.outcome == "interrupted" or bool(lane.stop_reason)
        unasked = outcome.is_over_budget or (interrupted and dealt.rendered.text in ("", NOTHING_NEW))
        if unasked and not outcome.requests and not outcome.steps:
            self._history.forget(conversation)
            return None
        seq, ended, queued = await self._recorder.write(asking.start, outcome, dealt)
        if interrupted or asking.view is None:  # a fold may have been under way
            self._history.forget(conversation)
        else:
            self._history.add_turn(conversation, asking.view, seq, ended)
        return queued

    async def _record_deleted(self, begun: TurnStart) -> TurnResult:
        """Deal with what is left where all that wanted an answer was deleted: it is context, and costs nothing."""
        self._history.forget(begun.place.conversation)
        told = render_lines(
            await self._reader.render(begun.messages, sees=False), omitted=0, plain=self._context.is_small_model
        )
        dealt = ConsumedInput(
            rendered=told, omitted=count_omitted(begun.unread, told), upto=begun.unread.upto, messages=begun.messages
        )
        await self._recorder.write(begun, TurnOutcome(outcome="silent", reason=NOTHING_TO_ANSWER), dealt)
        return TurnResult(autonomous=begun.autonomous)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> TurnResult:
        """Deal with all that is unread there by saying once that there is no answer, to whoever waits for one."""
        self._history.forget(conversation)
        turn, unread = (
            TurnId(new_id(self._clock.now())),
            await self._store.unread_entries(conversation, most=MAX_UNREAD_LINES),
        )
        begun = TurnStart(turn=turn, place=Address.parse(conversation), autonomous=autonomous, unread=unread)
        digest, self._digest = (self._digest, None) if begun.is_inner else (None, self._digest)
        if not unread.messages and digest is None:  # nobody waits for an answer, so nobody is told that there is none
            logger.error("%s: %s", conversation, reason)
            return TurnResult(has_failed=True, autonomous=autonomous)
        # Writing the lines out may be what broke; but a later prompt needs something between two replies.
        untold = unread.omitted + len(unread.messages) if digest is None else digest.omitted + len(digest.covers)
        said = [
            CurrentMessage(one.seq, one.fact, is_edited=False)
            for one in unread.messages
            if isinstance(one.fact, Message)
        ]
        dealt = ConsumedInput(
            rendered=render_lines([], omitted=untold, plain=self._context.is_small_model),
            omitted=untold,
            upto=unread.upto,
            messages=said,
            looked=digest.looked if digest is not None else (),
        )
        _, _, queued = await self._recorder.write(begun, TurnOutcome(outcome="failed", reason=reason), dealt)
        if queued is not None:
            self._post(queued)
        return TurnResult(has_failed=True, autonomous=autonomous)

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view there now; in words, what came of it. What that cost is written down as a turn of its own."""
        turn = TurnId(new_id(self._clock.now()))
        begun = TurnStart(
            turn=turn, place=Address.parse(conversation), autonomous=False, is_compaction=True, unread=NO_UNREAD
        )
        asking = TurnRun(self._context, begun, TurnHandle())
        try:
            return await asking.compact()
        finally:  # what was asked until then is paid for, also if it was cut off
            self._history.forget(conversation)
            outcome = asking.with_preparation_cost(
                TurnOutcome(outcome="silent", reason="somebody wanted the view folded")
            )
            for account in outcome.accounts:
                self._on_answered(self._agent_id, account)
            if outcome.requests:
                dealt = ConsumedInput(rendered=RenderedInput(), omitted=0, upto=Seq(0))
                await run_to_completion(self._recorder.write(begun, outcome, dealt))

    async def unread_urgency(self, conversation: ConversationId) -> int:
        """Highest urgency still unread there, as of some moment during the call."""
        return dict(await self._store.due_conversations(AMBIENT + 1)).get(conversation, AMBIENT)


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
