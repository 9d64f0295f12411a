"""How turns are written down: the record and the post, in one transaction."""

import logging
from collections.abc import Mapping

from agent.models.base import FailureCause
from agent.outcome import TurnOutcome
from gateway.clock import Clock
from gateway.events import Post, PostKey
from gateway.hearing import find_reply_to
from gateway.records import PostQueued, Seq, TurnRecord
from gateway.redaction import Redact, Redactor
from gateway.store import NewEntry, OutboxPost, Store
from gateway.turn import ConsumedInput, TurnStart

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
