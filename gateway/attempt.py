"""What is written down of one post's parts as they are handed over."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from channels.base import Going, Part, SendError, Uncertain
from gateway import retry
from gateway.clock import Clock
from gateway.events import Post
from gateway.records import Fact, PartEnded, Sending
from gateway.store import OutboxPart


class Attempt:
    """What is written down of a post's parts as they go."""

    def __init__(
        self,
        post: Post,
        cut: tuple[str, ...] | None,
        clock: Clock,
        resend_s: float,
        record: Callable[[Post, Sequence[Fact]], Awaitable[None]],
    ) -> None:
        """`cut`: the rendered parts, if they are not in the store yet."""
        self._post = post
        self._cut = cut
        self._clock = clock
        self.resend_s = resend_s
        self._record = record
        self._gone: dict[int, datetime] = {}
        self._handed_over_s: dict[int, float] = {}
        """Monotonic, by part: for the same as `OutboxPart.first_at`, where it happened in this process."""

    def part(self, part: OutboxPart) -> Part:
        """As the channel takes it."""
        return Part(
            key=f"{self._post.key}#{part.index}",
            to=self._post.to,
            body=part.body,
            reply_to=self._post.reply_to if part.index == 0 else None,
            style=self._post.style,
            private=self._post.private,
        )

    def going(self, part: OutboxPart) -> Going:
        """To be awaited as the part is handed over: from then on a crash leaves it uncertain.

        Raises `Uncertain` instead if a repeat could be shown by now. Ask for a new one for each try.
        """
        self._gone.pop(part.index, None)

        async def going() -> None:
            since_s = self._since_s(part.index, part.first_at)
            if since_s is not None and not retry.resendable(since_s, self.resend_s):
                raise Uncertain(part.reason)  # waiting for its turn took too long
            cut, self._cut = self._cut, None
            self._gone[part.index] = self._clock.now()
            if since_s is None:
                self._handed_over_s[part.index] = self._clock.monotonic()
            await self._record(self._post, [Sending(post=self._post.key, part=part.index, bodies=cut)])

        return going

    def first(self, part: OutboxPart) -> datetime | None:
        """When the part was handed over first; None: it surely was not."""
        return part.first_at or self._gone.get(part.index)

    def since_s(self, part: OutboxPart, error: SendError) -> float | None:
        """How long the part may have been seen by now; None: it surely was not."""
        return self._since_s(part.index, self.first(part) if isinstance(error, Uncertain) else part.first_at)

    def _since_s(self, index: int, first: datetime | None) -> float | None:
        """Negative if the clock went back before the time of the hand-over."""
        if first is None:
            return None
        since_s = (self._clock.now() - first).total_seconds()
        if since_s < 0 or index not in self._handed_over_s:
            return since_s
        return max(since_s, self._clock.monotonic() - self._handed_over_s[index])

    def tells(self, end: PartEnded) -> bool:
        """Whether an end is news: a part that was not handed over and waits again is none."""
        return end.state != "waiting" or end.part in self._gone
