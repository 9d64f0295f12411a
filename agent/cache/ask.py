"""One request whose cache is looked after: what was planned for it, and why the bill says something else. Pure."""

from dataclasses import dataclass, replace

from agent.cache.marks import PromptSegment
from agent.cache.plan import CachePlan
from agent.cache.units import describe_difference
from agent.cache.warmth import Digest
from agent.models.base import ModelRequest
from agent.tokens.meter import TokenEstimate, TokenMeter, count_prompt_tokens
from gateway.events import BlockUsage, RequestUsage, Usage

_MISS_SHARE = 0.9
"""Of what was expected to be read: less was a miss. Estimates are this far off."""
_ROUNDING_TOKENS = 256
"""Tokens that a provider may round down by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request, planned."""

    request: ModelRequest
    segments: tuple[PromptSegment, ...]
    digests: tuple[Digest, ...]
    plan: CachePlan
    meter: TokenMeter
    estimate: TokenEstimate
    sent_at_s: float
    billed_tokens: int = 0
    """Tokens that the whole prompt turned out to have; 0: not known yet."""
    cleared_tokens: int = 0
    """Of these, what the provider left out by itself."""
    account: RequestUsage | None = None
    """What became of it. None: it has not been answered."""

    @property
    def scale(self) -> float:
        """What the bill was, as a share of what was estimated: the estimate may be off as a whole."""
        return self.billed_tokens / max(1, self.estimate.tokens) if self.billed_tokens else 1.0

    @property
    def expected_read_tokens(self) -> int:
        """Tokens that should be read from the cache, as estimated."""
        return sum(block.read for block in self.plan.blocks)

    def digests_from(self, said: int | None) -> tuple[Digest, ...]:
        """The places from this `Said` on; None: none."""
        if said is None:
            return ()
        units = zip(self.digests, self.segments, strict=True)
        return tuple([place for place, unit in units if unit.behind == "said" and unit.number >= said])

    def count_segments_read(self, billed: int) -> int:
        """How many of the units that should have been read were, if so many tokens are billed as read."""
        read, tokens = 0, 0
        for place, unit in enumerate(self.segments[: self.plan.read_segments], start=1):
            tokens += self.estimate.correct(unit.tokens)
            if is_read_enough(billed, tokens * self.scale):
                read = place if billed else 0
        return read

    @property
    def written_prefix(self) -> Digest | None:
        """The shared prefix that it is going to write; None: it writes none."""
        written = [unit for unit, _ in self.plan.writes if self.segments[unit].is_shared]
        return self.digests[written[-1]] if written else None

    @property
    def block_accounts(self) -> tuple[BlockUsage, ...]:
        """What is expected of each block, and of what holds for this request only."""
        tokens = self.estimate.correct(self.estimate.size.now)
        if not tokens:
            return self.plan.blocks
        return (*self.plan.blocks, BlockUsage(name="now", tokens=tokens, read=0, written=0, lifetime=None))


def is_read_enough(read: int, expected: float) -> bool:
    """Whether so many tokens read are what was expected, as far as estimates go."""
    return read >= expected * _MISS_SHARE - _ROUNDING_TOKENS


def find_cache_miss(ask: PlannedRequest, usage: Usage) -> int | None:
    """Return how many tokens should have been read, if fewer were; None: enough were."""
    # The estimate may be off as a whole, so what counts is the share that was read.
    expected = max(0.0, ask.expected_read_tokens * ask.scale - ask.cleared_tokens)
    return (
        None if not count_prompt_tokens(usage) or is_read_enough(usage.cache_read_tokens, expected) else round(expected)
    )


def calibrate_block(block: BlockUsage, estimate: TokenEstimate) -> BlockUsage:
    """In tokens as they will be billed, as far as that is known."""
    return replace(
        block,
        tokens=estimate.correct(block.tokens),
        read=estimate.correct(block.read),
        written=estimate.correct(block.written),
    )


def explain_cache_miss(ask: PlannedRequest, before: PlannedRequest | None, expected: int | None, usage: Usage) -> str:
    """Say what was not read although it might have been; empty: nothing.

    `before`: the last request of the same conversation. `expected`: tokens that should have been read; None: all
    of them were.
    """
    changed = ""
    if before is not None and ask.digests[: len(before.digests)] != before.digests:
        changed = describe_difference(before.request, ask.request)
    if expected is None or ask.cleared_tokens != (
        before.cleared_tokens if before is not None else 0
    ):  # the provider's own doing
        return changed
    told = f"{usage.cache_read_tokens} of about {expected} tokens were read"
    if changed:
        return f"{told}: {changed}"
    since = f", last sent {ask.sent_at_s - before.sent_at_s:.0f} s before" if before is not None else ""
    return f"{told}: no byte differs{since}; the provider had it no more, or not yet"
