"""What is written down of one post's parts as they are handed over."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Literal

from channels.base import BeforeSend, OutgoingFile, Part, SendError, Uncertain
from gateway import retry
from gateway.clock import Clock
from gateway.events import Post, Receipt
from gateway.records import Fact, PartSendEnded, PartSendStarted
from gateway.store import OutboxPart, StoreError

logger = logging.getLogger("reverie.outbox")


class DeliveryAttempt:
    """What is written down of a post's parts as they go."""

    def __init__(
        self,
        post: Post,
        clock: Clock,
        record: Callable[[Post, Sequence[Fact]], Awaitable[None]],
    ) -> None:
        self._post = post
        self._clock = clock
        self._record = record
        self.unsaved_bodies: tuple[str, ...] | None = None
        """The rendered parts, if they are not in the store yet."""
        self.resend_s = 0.0
        """As the channel's capabilities say."""
        self._handed_over_at: dict[int, datetime] = {}
        self._handed_over_s: dict[int, float] = {}
        """Monotonic, by part: for the same as `OutboxPart.first_at`, where it happened in this process."""

    def build_part(self, part: OutboxPart, file: OutgoingFile | None = None) -> Part:
        """As the channel takes it."""
        return Part(
            key=f"{self._post.key}#{part.index}",
            to=self._post.to,
            body=part.body,
            reply_to=self._post.reply_to if part.index == 0 else None,
            style=self._post.style,
            private=self._post.private,
            file=file,
        )

    def make_going(self, part: OutboxPart) -> BeforeSend:
        """To be awaited as the part is handed over: from then on a crash leaves it uncertain.

        Raises `Uncertain` instead if a repeat could be shown by now. Ask for a new one for each try.
        """
        self._handed_over_at.pop(part.index, None)

        async def going() -> None:
            since_s = self._since_s(part.index, part.first_at)
            if since_s is not None and not retry.can_resend(since_s, self.resend_s):
                raise Uncertain(part.reason)  # waiting for its turn took too long
            cut, self.unsaved_bodies = self.unsaved_bodies, None
            self._handed_over_at[part.index] = self._clock.now()
            if since_s is None:
                self._handed_over_s[part.index] = self._clock.monotonic()
            await self._record(self._post, [PartSendStarted(post=self._post.key, part=part.index, bodies=cut)])

        return going

    def first_handed_over(self, part: OutboxPart) -> datetime | None:
        """When the part was handed over first; None: it surely was not."""
        return part.first_at or self._handed_over_at.get(part.index)

    def possibly_seen_for_s(self, part: OutboxPart, error: SendError) -> float | None:
        """How long the part may have been seen by now; None: it surely was not."""
        return self._since_s(
            part.index, self.first_handed_over(part) if isinstance(error, Uncertain) else part.first_at
        )

    def _since_s(self, index: int, first: datetime | None) -> float | None:
        """Negative if the clock went back before the time of the hand-over."""
        if first is None:
            return None
        since_s = (self._clock.now() - first).total_seconds()
        if since_s < 0 or index not in self._handed_over_s:
            return since_s
        return max(since_s, self._clock.monotonic() - self._handed_over_s[index])

    def evaluate(
        self, window: Sequence[OutboxPart], results: Sequence[Receipt | BaseException], age_s: float
    ) -> tuple[list[PartSendEnded], float]:
        """What became of each part that was tried, and how many seconds nothing more is to be tried.

        `age_s`: of the post. Raises what ends the process.
        """
        key, ended, wait_s = self._post.key, list[PartSendEnded](), 0.0
        for part, result in zip(window, results, strict=False):  # of fewer, the others were not tried
            if isinstance(result, Receipt):
                ended.append(PartSendEnded(post=key, part=part.index, state="sent", reason="", ids=result.ids))
            elif isinstance(result, SendError):
                found = retry.decide_retry(
                    result,
                    attempts=part.attempts + 1,
                    age_s=age_s,
                    since_s=self.possibly_seen_for_s(part, result),
                    resend_s=self.resend_s,
                )
                known = found.state == "waiting" and part.reason == found.reason
                level = logging.DEBUG if known else logging.WARNING
                logger.log(level, "post %s part %d is %s: %s", key, part.index, found.state, found.reason)
                ended.append(
                    PartSendEnded(
                        post=key,
                        part=part.index,
                        state=found.state,
                        reason=found.reason,
                        maybe_seen=found.maybe_seen,
                    )
                )
                wait_s = max(wait_s, found.wait_s)
            elif isinstance(result, StoreError) or not isinstance(result, Exception):
                raise result
            else:  # a bug in the adapter: ended here, or the same part would end the process at every start
                logger.error("post %s part %d broke", key, part.index, exc_info=result)
                state: Literal["uncertain", "failed"] = (
                    "failed" if self.first_handed_over(part) is None else "uncertain"
                )
                ended.append(PartSendEnded(post=key, part=part.index, state=state, reason=describe_bug(result)))
        return ended, wait_s

    def is_news(self, end: PartSendEnded) -> bool:
        """Whether an end is news: a part that was not handed over and waits again is none."""
        return end.state != "waiting" or end.part in self._handed_over_at


def describe_bug(error: Exception) -> str:
    """What is told of a mistake of ours: not its words, which may hold anything."""
    return f"internal error: {type(error).__name__}"
