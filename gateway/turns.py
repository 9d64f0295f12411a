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

    async def gather(self) -> Digest | None:
        """What is pending everywhere. None: nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the loop is told of a turn."""

    failed: bool = False
    used_tools: bool = False
    yielded: bool = False
    interrupted: bool = False
    autonomous: bool = False
    broke: bool = False
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
        self._means = means
        self._store = means.store
        self._clock = means.clock
        self._agent_id = means.agent_id
        self._hearing = means.hearing
        self._views = means.views
        self._signs = signs
        self._digests = digests
        self._digest: Digest | None = None
        """The newest, for when its turn breaks."""
        self._post = post
        self._answered = answered
        self._onlookers = onlookers or Onlookers(means.clock)
        self._writing = Writing(means.store, means.clock, means.agent_id, means.redact)

    def forget(self, conversation: ConversationId) -> None:
        """A turn of that place was written by somebody else."""
        self._views.forget(conversation)

    async def take(
        self, conversation: ConversationId, *, autonomous: bool, continuing: bool = False, lane: Lane
    ) -> Report:
        """Deal with all that is unread there now; `continuing`: go on, also if nothing is.

        Cancelled before the turn's record is durable, it leaves everything unread; after that it is done. One that
        has used tools is written down as if it had been interrupted, so that the next one knows what they did.
        Interrupted by its lane, it is written down as far as it came.
        """
        begun = await self._begin(conversation, autonomous=autonomous, continuing=continuing)
        with concerning(agent=self._agent_id, conversation=conversation, turn=begun.turn):
            return await self._deal(begun, lane)

    async def _deal(self, begun: Begun, lane: Lane) -> Report:
        asking, autonomous = Asking(self._means, begun, lane), begun.autonomous
        if begun.inner and not (begun.digest or begun.continuing):
            return Report(autonomous=autonomous)
        if not await self._owed(asking):
            await lane.over()
            deleted = begun.unread.messages and not lane.left_off
            return await self._let_go(begun) if deleted else Report(autonomous=autonomous)
        with self._onlookers.turn(begun, self._agent_id) as running:
            outcome = await self._carry(asking, lane, running)
            return _report(outcome, autonomous=asking.begun.autonomous)

    async def _carry(self, asking: Asking, lane: Lane, running: Running) -> Outcome:
        sign = None if asking.begun.inner else self._signs.begin(asking.begun.place)
        try:
            asking.glimpse = self._onlookers.glimpse(running, sign.glimpse if sign is not None else None)
            asking.thought = self._onlookers.thinks(running)
            outcome = await self._ask(asking, lane)
            await lane.over()
            if asking.bite is not None and outcome.broke:
                outcome = replace(outcome, broke=False, reason=asking.bite.rule)
                await self._unpaid(asking, asking.bite)
            if asking.blocked():
                lane.dropped = lane.dropped or BLOCKED
            outcome = lane.ended(asking.settled(outcome))
            queued = await self._end(asking, outcome, lane)
        except BaseException as error:
            if sign is not None:
                await sign.end(parked=isinstance(error, asyncio.CancelledError))
            raise
        if sign is not None:
            await sign.end()  # before the whole answer comes what was shown of it goes
        if queued is not None:
            self._post(queued)
        return outcome

    async def _begin(self, conversation: ConversationId, *, autonomous: bool, continuing: bool) -> Begun:
        begun = Begun(
            turn=TurnId(new_id(self._clock.now())),
            place=Address.parse(conversation),
            autonomous=autonomous,
            continuing=continuing,
            unread=NOTHING,
        )
        if begun.inner:
            self._digest = await self._digests.gather()
            return replace(begun, digest=self._digest)
        unread = await self._store.unread(conversation, most=MOST_LINES)
        begun = replace(begun, unread=unread, standing=await self._hearing.standing(unread))
        if autonomous and begun.spoken_to and await self.left(conversation) > AMBIENT:
            return replace(begun, autonomous=False)  # whatever began it, somebody waits for an answer
        return begun

    async def _owed(self, asking: Asking) -> bool:
        """Whether anybody still waits for an answer: also whoever was interrupted before it."""
        begun = asking.begun
        if begun.digest is not None or begun.continuing or await self._hearing.owed(begun.unread, begun.standing):
            return True
        asking.seen = await self._views.take(begun.place.conversation)
        return asking.seen.interrupted

    async def _ask(self, asking: Asking, lane: Lane) -> Outcome:
        try:
            return await lane.run(asking.run())
        except Interrupted:
            return asking.progress.done
        except asyncio.CancelledError:
            if asking.progress.done.steps:
                with contextlib.suppress(StoreError):  # it may be why everything ends
                    await self._end(asking, lane.ended(asking.settled(asking.progress.done)), lane)
            raise

    async def _unpaid(self, asking: Asking, bite: Bite) -> None:
        """Say that there is no money for an answer, where that was not said today."""
        begun = asking.begun
        said = [one.message for one in begun.standing if addressed(one.message)]
        limits = self._means.limits
        entries = limits.unpaid(begun.place, said[-1] if said else None, bite) if limits is not None else []
        written = await self._store.append(entries)
        for entry, one in zip(entries, written, strict=True):
            if isinstance(entry.fact, Queued) and one.fresh:
                self._post(OutboxPost(seq=one.seq, at=entry.at, post=entry.fact.post, parts=()))

    async def _end(self, asking: Asking, outcome: Outcome, lane: Lane) -> OutboxPost | None:
        """Write down what came of it, if anything did."""
        for account in outcome.accounts:
            self._answered(self._agent_id, account)
        conversation, dealt = asking.begun.place.conversation, asking.dealt(outcome)
        dealt = dealt.left_off if lane.left_off else dealt
        interrupted = outcome.outcome == "interrupted" or bool(lane.left_off)
        unasked = outcome.broke or (interrupted and dealt.told.heard in ("", NOTHING_NEW))
        if unasked and not outcome.requests and not outcome.steps:
            self._views.forget(conversation)
            return None
        seq, ended, queued = await self._writing.write(asking.begun, outcome, dealt)
        if interrupted or asking.seen is None:  # a fold may have been under way
            self._views.forget(conversation)
        else:
            self._views.keep(conversation, asking.seen, seq, ended)
        return queued

    async def _let_go(self, begun: Begun) -> Report:
        """Deal with what is left where all that wanted an answer was deleted: it is context, and costs nothing."""
        self._views.forget(begun.place.conversation)
        told = tell(await self._hearing.tell(begun.standing, sees=False), omitted=0, plain=self._means.plain)
        dealt = Dealt(told=told, omitted=omitted(begun.unread, told), upto=begun.unread.upto, standing=begun.standing)
        await self._writing.write(begun, Outcome(outcome="silent", reason=DELETED), dealt)
        return Report(autonomous=begun.autonomous)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        """Deal with all that is unread there by saying once that there is no answer, to whoever waits for one."""
        self._views.forget(conversation)
        turn, unread = TurnId(new_id(self._clock.now())), await self._store.unread(conversation, most=MOST_LINES)
        begun = Begun(turn=turn, place=Address.parse(conversation), autonomous=autonomous, unread=unread)
        digest, self._digest = (self._digest, None) if begun.inner else (None, self._digest)
        if not unread.messages and digest is None:  # nobody waits for an answer, so nobody is told that there is none
            logger.error("%s: %s", conversation, reason)
            return Report(failed=True, autonomous=autonomous)
        # Writing the lines out may be what broke; but a later prompt needs something between two replies.
        untold = unread.omitted + len(unread.messages) if digest is None else digest.omitted + len(digest.covers)
        said = [Standing(one.seq, one.fact, edited=False) for one in unread.messages if isinstance(one.fact, Message)]
        dealt = Dealt(
            told=tell([], omitted=untold, plain=self._means.plain),
            omitted=untold,
            upto=unread.upto,
            standing=said,
            looked=digest.looked if digest is not None else (),
        )
        _, _, queued = await self._writing.write(begun, Outcome(outcome="failed", reason=reason), dealt)
        if queued is not None:
            self._post(queued)
        return Report(failed=True, autonomous=autonomous)

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view there now; in words, what came of it. What that cost is written down as a turn of its own."""
        turn = TurnId(new_id(self._clock.now()))
        begun = Begun(turn=turn, place=Address.parse(conversation), autonomous=False, tidies=True, unread=NOTHING)
        asking = Asking(self._means, begun, Lane())
        try:
            return await asking.tidy()
        finally:  # what was asked until then is paid for, also if it was cut off
            self._views.forget(conversation)
            outcome = asking.settled(Outcome(outcome="silent", reason="somebody wanted the view folded"))
            for account in outcome.accounts:
                self._answered(self._agent_id, account)
            if outcome.requests:
                dealt = Dealt(told=Told(), omitted=0, upto=Seq(0))
                await whole(self._writing.write(begun, outcome, dealt))

    async def left(self, conversation: ConversationId) -> int:
        """Highest urgency still unread there, as of some moment during the call."""
        return dict(await self._store.due(AMBIENT + 1)).get(conversation, AMBIENT)


def _report(outcome: Outcome, *, autonomous: bool) -> Report:
    return Report(
        failed=outcome.outcome == "failed",
        used_tools=outcome.used_tools,
        yielded=outcome.yielded,
        interrupted=outcome.outcome == "interrupted",
        autonomous=autonomous,
        broke=outcome.broke,
        cost_usd=sum(account.cost_usd or 0.0 for account in outcome.accounts),
    )
