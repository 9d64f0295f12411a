"""The turns of one agent: facts out of the store, to the agent, and what it did back into the store.

The turn's record and its post are written in one transaction. Until then the messages are unread, and a
crash only means that they are asked about again; afterwards they are dealt with and never asked again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from agent.brief import NOTHING_NEW
from agent.outcome import TurnOutcome
from channels.tasks import run_to_completion
from gateway.asking import BLOCKED_REASON, TurnRun
from gateway.correlation import log_context
from gateway.digest import Digest
from gateway.ending import TurnRecorder
from gateway.events import Address, ConversationId, Message, RequestUsage
from gateway.fitting import RenderedInput, render_lines
from gateway.fresh import MAX_UNREAD_LINES
from gateway.hearing import CurrentMessage, is_addressed
from gateway.ids import new_id
from gateway.lane import TurnHandle, TurnInterrupted
from gateway.limits.words import LimitHit
from gateway.means import AgentContext
from gateway.ops.onlookers import RunningTurn, TurnTracker
from gateway.preview import TurnPreviews
from gateway.records import AMBIENT, PostQueued, Seq, TurnId
from gateway.store import OutboxPost, StoreError
from gateway.turn import NO_UNREAD, ConsumedInput, TurnStart, count_omitted

logger = logging.getLogger("reverie.turns")

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
