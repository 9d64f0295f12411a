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
from agent.outcome import Outcome
from channels.tasks import whole
from gateway.asking import BLOCKED, Asking
from gateway.correlation import concerning
from gateway.digest import Digest
from gateway.ending import Writing
from gateway.events import Account, Address, ConversationId, Message
from gateway.fitting import Told, tell
from gateway.fresh import MOST_LINES
from gateway.hearing import Standing, addressed
from gateway.ids import new_id
from gateway.lane import Interrupted, Lane
from gateway.limits.words import Bite
from gateway.means import Means
from gateway.ops.onlookers import Onlookers, Running
from gateway.preview import Signs
from gateway.records import AMBIENT, Queued, Seq, TurnId
from gateway.store import OutboxPost, StoreError
from gateway.turn import NOTHING, Begun, Dealt, omitted

logger = logging.getLogger("reverie.turns")

DELETED = "nothing asks for an answer: what did was deleted, or it only tells what happened"


class Digests(Protocol):
    """What an agent's inner conversation is told."""

    async def build(self) -> Digest | None:
        """What is pending everywhere. None: nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
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


class Turns:
    """Takes turns for one agent."""

    def __init__(
        self,
        means: Means,
        *,
        signs: Signs,
        digests: Digests,
        post: Callable[[OutboxPost], None],
        answered: Callable[[str, Account], None],
        onlookers: Onlookers | None = None,
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
        self._tracker = onlookers or Onlookers(means.clock)
        self._recorder = Writing(means.store, means.clock, means.agent_id, means.redact)

    def forget_view(self, conversation: ConversationId) -> None:
        """A turn of that place was written by somebody else."""
        self._history.forget(conversation)

    async def run(
        self, conversation: ConversationId, *, autonomous: bool, continuing: bool = False, lane: Lane
    ) -> Report:
        """Deal with all that is unread there now; `continuing`: go on, also if nothing is.

        Cancelled before the turn's record is durable, it leaves everything unread; after that it is done. One that
        has used tools is written down as if it had been interrupted, so that the next one knows what they did.
        Interrupted by its lane, it is written down as far as it came.
        """
        begun = await self._start(conversation, autonomous=autonomous, continuing=continuing)
        with concerning(agent=self._agent_id, conversation=conversation, turn=begun.turn):
            return await self._run(begun, lane)

    async def _run(self, begun: Begun, lane: Lane) -> Report:
        asking, autonomous = Asking(self._context, begun, lane), begun.autonomous
        if begun.is_inner and not (begun.digest or begun.continuing):
            return Report(autonomous=autonomous)
        if not await self._is_answer_owed(asking):
            await lane.begin_ending()
            deleted = begun.unread.messages and not lane.stop_reason
            return await self._record_deleted(begun) if deleted else Report(autonomous=autonomous)
        with self._tracker.track(begun, self._agent_id) as running:
            outcome = await self._answer(asking, lane, running)
            return _report(outcome, autonomous=asking.start.autonomous)

    async def _answer(self, asking: Asking, lane: Lane, running: Running) -> Outcome:
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
                lane.drop_reason = lane.drop_reason or BLOCKED
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

    async def _start(self, conversation: ConversationId, *, autonomous: bool, continuing: bool) -> Begun:
        begun = Begun(
            turn=TurnId(new_id(self._clock.now())),
            place=Address.parse(conversation),
            autonomous=autonomous,
            continuing=continuing,
            unread=NOTHING,
        )
        if begun.is_inner:
            self._digest = await self._digest_source.build()
            return replace(begun, digest=self._digest)
        unread = await self._store.unread_entries(conversation, most=MOST_LINES)
        begun = replace(begun, unread=unread, messages=await self._reader.read_current(unread))
        if autonomous and begun.is_addressed and await self.unread_urgency(conversation) > AMBIENT:
            return replace(begun, autonomous=False)  # whatever began it, somebody waits for an answer
        return begun

    async def _is_answer_owed(self, asking: Asking) -> bool:
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

    async def _ask_model(self, asking: Asking, lane: Lane) -> Outcome:
        try:
            return await lane.run(asking.run())
        except Interrupted:
            return asking.progress.current
        except asyncio.CancelledError:
            if asking.progress.current.steps:
                with contextlib.suppress(StoreError):  # it may be why everything ends
                    await self._record(
                        asking, lane.override_outcome(asking.with_preparation_cost(asking.progress.current)), lane
                    )
            raise

    async def _post_over_budget(self, asking: Asking, bite: Bite) -> None:
        """Say that there is no money for an answer, where that was not said today."""
        begun = asking.start
        said = [one.message for one in begun.messages if addressed(one.message)]
        limits = self._context.limits
        entries = (
            limits.build_unpaid_entries(begun.place, said[-1] if said else None, bite) if limits is not None else []
        )
        written = await self._store.append(entries)
        for entry, one in zip(entries, written, strict=True):
            if isinstance(entry.fact, Queued) and one.is_new:
                self._post(OutboxPost(seq=one.seq, at=entry.at, post=entry.fact.post, parts=()))

    async def _record(self, asking: Asking, outcome: Outcome, lane: Lane) -> OutboxPost | None:
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

    async def _record_deleted(self, begun: Begun) -> Report:
        """Deal with what is left where all that wanted an answer was deleted: it is context, and costs nothing."""
        self._history.forget(begun.place.conversation)
        told = tell(
            await self._reader.render(begun.messages, sees=False), omitted=0, plain=self._context.is_small_model
        )
        dealt = Dealt(
            rendered=told, omitted=omitted(begun.unread, told), upto=begun.unread.upto, messages=begun.messages
        )
        await self._recorder.write(begun, Outcome(outcome="silent", reason=DELETED), dealt)
        return Report(autonomous=begun.autonomous)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        """Deal with all that is unread there by saying once that there is no answer, to whoever waits for one."""
        self._history.forget(conversation)
        turn, unread = (
            TurnId(new_id(self._clock.now())),
            await self._store.unread_entries(conversation, most=MOST_LINES),
        )
        begun = Begun(turn=turn, place=Address.parse(conversation), autonomous=autonomous, unread=unread)
        digest, self._digest = (self._digest, None) if begun.is_inner else (None, self._digest)
        if not unread.messages and digest is None:  # nobody waits for an answer, so nobody is told that there is none
            logger.error("%s: %s", conversation, reason)
            return Report(has_failed=True, autonomous=autonomous)
        # Writing the lines out may be what broke; but a later prompt needs something between two replies.
        untold = unread.omitted + len(unread.messages) if digest is None else digest.omitted + len(digest.covers)
        said = [
            Standing(one.seq, one.fact, is_edited=False) for one in unread.messages if isinstance(one.fact, Message)
        ]
        dealt = Dealt(
            rendered=tell([], omitted=untold, plain=self._context.is_small_model),
            omitted=untold,
            upto=unread.upto,
            messages=said,
            looked=digest.looked if digest is not None else (),
        )
        _, _, queued = await self._recorder.write(begun, Outcome(outcome="failed", reason=reason), dealt)
        if queued is not None:
            self._post(queued)
        return Report(has_failed=True, autonomous=autonomous)

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view there now; in words, what came of it. What that cost is written down as a turn of its own."""
        turn = TurnId(new_id(self._clock.now()))
        begun = Begun(
            turn=turn, place=Address.parse(conversation), autonomous=False, is_compaction=True, unread=NOTHING
        )
        asking = Asking(self._context, begun, Lane())
        try:
            return await asking.compact()
        finally:  # what was asked until then is paid for, also if it was cut off
            self._history.forget(conversation)
            outcome = asking.with_preparation_cost(Outcome(outcome="silent", reason="somebody wanted the view folded"))
            for account in outcome.accounts:
                self._on_answered(self._agent_id, account)
            if outcome.requests:
                dealt = Dealt(rendered=Told(), omitted=0, upto=Seq(0))
                await whole(self._recorder.write(begun, outcome, dealt))

    async def unread_urgency(self, conversation: ConversationId) -> int:
        """Highest urgency still unread there, as of some moment during the call."""
        return dict(await self._store.due_conversations(AMBIENT + 1)).get(conversation, AMBIENT)


def _report(outcome: Outcome, *, autonomous: bool) -> Report:
    return Report(
        has_failed=outcome.outcome == "failed",
        used_tools=outcome.used_tools,
        has_yielded=outcome.yielded,
        was_interrupted=outcome.outcome == "interrupted",
        autonomous=autonomous,
        is_over_budget=outcome.is_over_budget,
        cost_usd=sum(account.cost_usd or 0.0 for account in outcome.accounts),
    )
