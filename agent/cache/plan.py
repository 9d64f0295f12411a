"""The marks of one request, and what they are expected to read and write. Pure.

Which places of a request to mark. Pure: `plan` tells what comes of it.

The rules (platform.claude.com/docs/en/build-with-claude/prompt-caching): at most four marks; 1 h in front of
5 m; only a marked place is written, and only if the prompt up to it has the model's minimum; a mark reads the
longest cached prefix that ends at most twenty positions back, its own counted.

Whether to read a prefix only so that it stays cached. Pure: the caller sends the request, if any.

A refresh costs one read of all that is in front of it, and a few of them save, if the conversation comes back while
they last, what writing again costs more than reading, of what would be gone by then. They never cost more together
than losing it does: whatever comes, it is paid for twice at most. The budget is money that may be spent for this; its
default is none, because an idle gateway must cost nothing.

A request as a row of places where a cache mark can stand, named by all bytes up to there. Pure.

One request whose cache is looked after: what was planned for it, and why the bill says something else. Pure.

What the cache of a conversation's history is like just now, for whoever thinks of rewriting it. Pure.

What must be known of a model's provider to look after its cache. Pure.

Whether a prefix should be cached for 5 minutes or for an hour, by what its gaps so far would have cost. Pure.

Writing for an hour costs more each time; it pays if gaps follow that 5 minutes do not survive and an hour does. What
one choice would have cost until now is compared with what the other would have: who always chooses so can lose, to
the one that turns out to be right, no more than what it took to find out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import accumulate, zip_longest
from math import ceil, inf
from typing import Final, Literal, NamedTuple

from agent.cache.prices import ASSUMED_PRICE, Price
from agent.cache.state import (
    LIFETIME_S,
    ROOT_DIGEST,
    CachedPrefix,
    CachedUntil,
    Cadence,
    Digest,
    GapOdds,
    extend_digest,
)
from agent.models.base import CacheBreakpoint, MessagePart, ModelMessage, ModelRequest, TextPart, ToolResult
from agent.prompt import SHARED_BLOCKS
from agent.tokens.calibration import TokenEstimate, TokenMeter, count_prompt_tokens
from agent.tokens.counter import PromptSize, common_prefix_length
from gateway.core.events import BlockUsage, CacheTtl, RequestUsage, Usage
from gateway.core.tool_spec import Image, ToolCall


class CacheMultipliers(NamedTuple):
    """What a token costs, as shares of its plain price. Infinite: it cannot be had."""

    read: float
    write_5m: float
    write_1h: float


def is_hour_cheaper(kept: float, written: float, cost: CacheMultipliers) -> bool:
    """Whether an hour costs less than 5 minutes.

    `kept`: what only an hour keeps, and would have to be written again; `written`: what is written for it.
    """
    return kept * (cost.write_5m - cost.read) > written * (cost.write_1h - cost.write_5m)


MAX_BREAKPOINTS = 4
LOOK_BACK_POSITIONS = 20
"""Positions that a mark looks at, its own first."""
_SAFE_LOOK_BACK = 17
"""As many are counted on: thinking is a position of its own, and so is each of what is told for one request and stays
in front of it."""

Breakpoints = list[tuple[int, CacheTtl]]
"""Units to mark behind, ascending, and for how long."""

_PRESUMED_HOUR_GAPS = 0.4
"""Gaps between 5 minutes and an hour that are presumed of what begins with the hour."""
_MIN_LONG_GAPS = 2.0
"""Gaps of more than an hour before which the end of a conversation is marked in any case."""


class PromptSegment(NamedTuple):
    """A piece of a request that ends at a place where a mark can stand: the tools, a block, a `Said`.

    A `Said` may be several, one for each piece; then only the last of them is `markable`.
    """

    name: str
    """tools, identity, skills, binding, channel or history."""
    behind: Literal["tools", "block", "said"]
    number: int
    """`Mark.index`."""
    tokens: int
    digest: Digest
    """Of all bytes of the request up to the end of this unit."""
    positions: int = 1
    """Tools, blocks or content blocks that it consists of."""
    is_shared: bool = False
    """It and all in front of it is the same in all conversations."""
    takes_breakpoint: bool = True
    """False: nothing in it can carry a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """A request, measured."""

    segments: Sequence[PromptSegment]
    cumulative_tokens: Sequence[int]
    """Tokens up to the end of each unit."""
    end_positions: Sequence[int]
    """Of the end of each unit, from 1."""
    min_tokens: int
    """Tokens of the shortest prefix that is cached."""
    longest_hit: CachedPrefix | None
    """The longest prefix that is believed to be cached."""

    def last_breakpoint(self, unit: int) -> int:
        """Return the last unit that is worth a mark, from this one backwards; -1: there is none."""
        while unit >= 0 and not self.segments[unit].takes_breakpoint:
            unit -= 1
        return unit if unit >= 0 and self.cumulative_tokens[unit] >= self.min_tokens else -1

    def next_breakpoint(self, unit: int) -> int:
        """Return the first unit that is worth a mark, from this one on; -1: there is none, or no such unit."""
        if unit < 0:
            return -1
        takes = (
            i
            for i in range(unit, len(self.segments))
            if self.segments[i].takes_breakpoint and self.cumulative_tokens[i] >= self.min_tokens
        )
        return next(takes, -1)

    @property
    def shared_end(self) -> int:
        """The last such unit of what all conversations share."""
        return self.last_breakpoint(
            next((i for i, unit in enumerate(self.segments) if not unit.is_shared), len(self.segments)) - 1
        )

    @property
    def end(self) -> int:
        """The last such unit of all."""
        return self.last_breakpoint(len(self.segments) - 1)

    @property
    def is_behind_short(self) -> bool:
        """Whether what is cached of this conversation lives for 5 minutes.

        Behind it an hour would be paid for nothing: what it stands behind is gone before.
        """
        ours = max(self.shared_end, _binding_segment(self, self.shared_end))
        return self.longest_hit is not None and self.longest_hit.segment > ours and self.longest_hit.lifetime == "5m"

    @property
    def is_cold(self) -> bool:
        """Whether nothing of this conversation alone is cached."""
        return self.longest_hit is None or self.longest_hit.segment <= max(
            self.shared_end, _binding_segment(self, self.shared_end)
        )


def choose_breakpoints(places: MeasuredPrompt, shared: GapOdds, own: GapOdds, cost: CacheMultipliers) -> Breakpoints:
    """Mark the places of the plain layout, each for as long as the gaps seen so far show to be cheapest.

    A conversation begins with the plain layout: an hour for what all share and for the binding, 5 minutes behind
    them. The card and what is behind it are kept for an hour once the gaps of this conversation show that it pays,
    and the rest for 5 minutes once they show that the hour does not.
    """
    if cost.write_1h == inf:
        return fixed_breakpoints(places, long=False, short="5m")
    if not own.is_known:
        return fixed_breakpoints(places, long=True, short="5m")
    behind: CacheTtl = "1h" if not places.is_behind_short and is_hour_cheaper(own.kept, own.written, cost) else "5m"
    front, binding = _lifetime_after_hour(shared, cost), _lifetime_after_hour(own, cost)
    short, medium, long = own.gap_counts
    # Somebody must have been there in time, or what was written at the end was hardly ever read.
    seldom = long >= _MIN_LONG_GAPS and short * (1.0 - cost.read) < (medium + long) * (cost.write_5m - 1.0)
    return _place_breakpoints(places, front, binding, behind, ends=behind == "1h" or not seldom)


def _lifetime_after_hour(odds: GapOdds, cost: CacheMultipliers) -> CacheTtl:
    """Choose for a prefix that keeps its size and began with an hour."""
    _, medium, long = odds.gap_counts
    return "1h" if is_hour_cheaper(medium + _PRESUMED_HOUR_GAPS, long, cost) else "5m"


def fixed_breakpoints(places: MeasuredPrompt, *, long: bool, short: CacheTtl) -> Breakpoints:
    """Follow the table: an hour for what all share and for the binding, `short` for what is behind them."""
    front: CacheTtl = "1h" if long else "5m"
    return _place_breakpoints(places, front, front, short if long else "5m")


def _place_breakpoints(
    places: MeasuredPrompt, front: CacheTtl, binding: CacheTtl, behind: CacheTtl, *, ends: bool = True
) -> Breakpoints:
    """Mark what all share, the binding, the card, where the request before ended if that is far back, and the end.

    Where that is too many the binding's mark goes: it is then written with the card. `ends`: False leaves the end
    out as long as nothing of the conversation is cached.
    """
    head, end = places.shared_end, places.end
    stone, bound = _intermediate_segment(places, end), _binding_segment(places, head)
    card = places.last_breakpoint(
        max((i for i, unit in enumerate(places.segments) if unit.behind == "block"), default=-1)
    )
    chosen = {unit: behind for unit in ((card, stone, end) if ends or not places.is_cold else (card,)) if unit >= 0}
    if head >= 0:
        chosen[head] = front
    if bound >= 0 and (bound == card or len(chosen) < MAX_BREAKPOINTS):
        chosen[bound] = binding
    return _order_breakpoints(chosen)


def _binding_segment(places: MeasuredPrompt, head: int) -> int:
    """Return the place in front of the channel's card: other rooms may have the same binding. -1: there is none."""
    last = head
    for number, unit in enumerate(places.segments):
        if unit.behind == "block" and unit.name != "channel":
            last = number
    last = places.last_breakpoint(last)
    return last if last > head else -1


def _intermediate_segment(places: MeasuredPrompt, end: int) -> int:
    """Return a place to mark besides the last, to find what the last cannot see; -1: it sees far enough.

    Where nothing of the conversation is known to be cached (a restart forgets), that is where the request before
    this one must have ended: behind it stand one answer and what was said to it.
    """
    at = places.longest_hit.segment if places.longest_hit is not None else -1
    if end >= 0 and (at < 0 or places.segments[at].behind != "said"):
        newest = places.segments[end].number
        before = (i for i in range(end, -1, -1) if places.segments[i].behind == "said")
        at = next((i for i in before if places.segments[i].number == newest - 2), at)
    at = places.next_breakpoint(at)
    return at if 0 <= at < end and places.end_positions[end] - places.end_positions[at] >= _SAFE_LOOK_BACK else -1


def _order_breakpoints(chosen: dict[int, CacheTtl]) -> Breakpoints:
    """Put the marks in order, none longer-lived than one in front of it."""
    marks: Breakpoints = []
    long = False
    for unit in sorted(chosen, reverse=True):
        long = long or chosen[unit] == "1h"
        marks.append((unit, "1h" if long else "5m"))
    return marks[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """How to decide."""

    kind: Literal["auto", "fixed", "off"] = "auto"
    """`choose_breakpoints`: by expected cost. `fixed_breakpoints`: 1 h for what all share and the binding, 5 m behind
    it. `off`: no marks."""
    allows_hour: bool = True
    """False: the provider has no 1 h lifetime, or may not be asked for it."""
    short_lifetime: CacheTtl = "5m"
    """What `fixed_breakpoints` puts behind what is there for longer. `1h` counts only if that is to be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What to send, and what is expected of it."""

    breakpoints: tuple[CacheBreakpoint, ...]
    read_segments: int
    """Units that are expected to come from the cache, from the first."""
    writes: tuple[tuple[int, CacheTtl], ...]
    """Units up to the end of which it is expected to write, each behind the one before or behind what is read."""
    blocks: tuple[BlockUsage, ...]
    """The same in tokens, per block, in the order of the request, without empty ones."""


def plan_cache(
    units: Sequence[PromptSegment],
    *,
    price: Price,
    policy: CachePolicy,
    shared: GapOdds,
    own: GapOdds,
    cached: Sequence[CachedPrefix] = (),
) -> CachePlan:
    """Choose the marks of one request.

    `shared` are the odds of what all conversations share, `own` those of this conversation; `cached` is what
    `Warmth.find` says of it now.
    """
    places = MeasuredPrompt(
        segments=units,
        cumulative_tokens=tuple(accumulate(unit.tokens for unit in units)),
        end_positions=tuple(accumulate(unit.positions for unit in units)),
        min_tokens=price.minimum_tokens,
        longest_hit=cached[-1] if cached else None,
    )
    marks: Breakpoints = []
    if policy.kind == "fixed":
        marks = fixed_breakpoints(places, long=policy.allows_hour, short=policy.short_lifetime)
    elif policy.kind == "auto":
        cost = CacheMultipliers(price.read, price.write_5m, price.write_1h if policy.allows_hour else inf)
        marks = choose_breakpoints(places, shared, own, cost)
    read = _count_hit_segments(places, marks, cached)
    writes = tuple((unit, lifetime) for unit, lifetime in marks if unit >= read)
    return CachePlan(
        breakpoints=tuple(
            CacheBreakpoint(behind=units[i].behind, index=units[i].number, lifetime=lifetime) for i, lifetime in marks
        ),
        read_segments=read,
        writes=writes,
        blocks=_account_blocks(units, read, writes),
    )


def segments_before_messages(
    units: Sequence[PromptSegment], cached: Sequence[CachedPrefix]
) -> tuple[tuple[PromptSegment, ...], tuple[CachedPrefix, ...]]:
    """Return the units with no place for a mark in the messages, and what is cached in front of these.

    For a request with another `tool_choice` than usual: nothing of its messages is read from the cache, and what it
    would write of them nobody reads (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates).
    """
    usable = tuple([unit._replace(takes_breakpoint=False) if unit.behind == "said" else unit for unit in units])
    return usable, tuple([place for place in cached if units[place.segment].behind != "said"])


def plan_automatic(units: Sequence[PromptSegment], cached: Sequence[CachedPrefix]) -> CachePlan:
    """What is expected of a provider that caches every prefix by itself, and keeps it for a while."""
    read = cached[-1].segment + 1 if cached else 0
    writes: tuple[tuple[int, CacheTtl], ...] = tuple((unit, "5m") for unit in range(read, len(units)))
    return CachePlan(breakpoints=(), read_segments=read, writes=writes, blocks=_account_blocks(units, read, ()))


def plan_reread(units: Sequence[PromptSegment], marks: tuple[CacheBreakpoint, ...]) -> CachePlan:
    """What is expected of a request for what is cached, to the end: that all of it is read."""
    return CachePlan(
        breakpoints=marks, read_segments=len(units), writes=(), blocks=_account_blocks(units, len(units), ())
    )


def _count_hit_segments(places: MeasuredPrompt, marks: Breakpoints, cached: Sequence[CachedPrefix]) -> int:
    """Return how many units the marks will find in the cache."""
    for mark, _ in reversed(marks):
        for place in reversed(cached):
            if (
                place.segment <= mark
                and places.end_positions[mark] - places.end_positions[place.segment] < LOOK_BACK_POSITIONS
            ):
                return place.segment + 1
    return 0


def _account_blocks(
    units: Sequence[PromptSegment], read: int, writes: Sequence[tuple[int, CacheTtl]]
) -> tuple[BlockUsage, ...]:
    accounts: dict[str, list[int]] = {}
    lifetimes: dict[str, CacheTtl] = {}
    pending = list(writes)
    for index, unit in enumerate(units):
        while pending and pending[0][0] < index:
            pending.pop(0)
        sums = accounts.setdefault(unit.name, [0, 0, 0])
        sums[0] += unit.tokens
        if index < read:
            sums[1] += unit.tokens
        elif pending:
            sums[2] += unit.tokens
            lifetimes.setdefault(unit.name, pending[0][1])
    return tuple(
        BlockUsage(name=name, tokens=sums[0], read=sums[1], written=sums[2], lifetime=lifetimes.get(name))
        for name, sums in accounts.items()
        if sums[0]
    )


def segment_prompt(
    request: ModelRequest, size: PromptSize, before: tuple[ModelRequest, Sequence[PromptSegment]] | None = None
) -> tuple[PromptSegment, ...]:
    """Lay a request out. Tokens are those of `size`.

    `before`: an earlier request, laid out: what both have in common from the first (the same objects) is taken over.
    """
    seen = has_images(request)
    if before is not None and has_images(before[0]) == seen:
        known, parts, made = _reuse_segments(request, size, *before)
    else:
        known, parts, made = 0, 0, list(_fixed_segments(request, size))
    digest = made[-1].digest if made else ROOT_DIGEST
    if seen and not known and not parts:
        digest = extend_digest(digest, b"images")
    for number in range(known, len(request.conversation)):
        tokens = size.conversation[number] - sum([unit.tokens for unit in made[len(made) - parts :]])
        made.extend(_message_segments(number, request.conversation[number], digest, tokens, skip=parts))
        digest, parts = made[-1].digest, 0
    return tuple(made)


def _reuse_segments(
    request: ModelRequest, size: PromptSize, old: ModelRequest, laid: Sequence[PromptSegment]
) -> tuple[int, int, list[PromptSegment]]:
    """How many `ModelMessage` are known, how many pieces of the next one, and the units of all that."""
    if old.blocks != request.blocks or old.tools != request.tools:
        return 0, 0, list(_fixed_segments(request, size))
    known = common_prefix_length(old.conversation, request.conversation)
    upto = bool(request.tools) + len(request.blocks) + sum([len(said.parts) for said in request.conversation[:known]])
    measured = size.tools + sum(size.blocks) + sum(size.conversation[:known])
    if sum([unit.tokens for unit in laid[:upto]]) != measured:  # it was counted in another way
        return 0, 0, list(_fixed_segments(request, size))
    parts = 0
    if known < min(len(old.conversation), len(request.conversation)):  # where nobody answers, one side goes on
        said, now = old.conversation[known], request.conversation[known]
        parts = common_prefix_length(said.parts, now.parts) if said.role == now.role else 0
        if sum([unit.tokens for unit in laid[upto : upto + parts]]) > size.conversation[known]:
            parts = 0
    made = list(laid[: upto + parts])
    if parts:
        made[-1] = made[-1]._replace(takes_breakpoint=parts == len(request.conversation[known].parts))
    return known, parts, made


def _fixed_segments(request: ModelRequest, size: PromptSize) -> Iterator[PromptSegment]:
    """All in front of the conversation."""
    digest, shared = ROOT_DIGEST, True
    if request.tools:
        digest = extend_digest(digest, b"tools\0" + _encode_text(_tools_json(request)))
        yield PromptSegment("tools", "tools", 0, size.tools, digest, positions=len(request.tools), is_shared=True)
    for number, block in enumerate(request.blocks):
        shared = shared and block.name in SHARED_BLOCKS
        digest = extend_digest(digest, b"block\0" + _encode_text(block.text))
        yield PromptSegment(block.name, "block", number, size.blocks[number], digest, is_shared=shared)


def _message_segments(
    number: int, said: ModelMessage, digest: Digest, tokens: int, *, skip: int = 0
) -> Iterator[PromptSegment]:
    """One unit for each piece behind the first `skip`: a later request may go on where this one's last piece ends."""
    last, pieces = len(said.parts) - 1, len(said.parts) - skip
    for place, part in enumerate(said.parts[skip:], start=skip):
        digest = extend_digest(digest, said.role.encode() + b"\0" + _part_bytes(part))
        share = tokens // pieces + (tokens % pieces if place == last else 0)
        yield PromptSegment("history", "said", number, share, digest, takes_breakpoint=place == last)


def _part_bytes(part: MessagePart) -> bytes:
    match part:
        case TextPart():
            return b"text\0" + _encode_text(part.text)
        case Image():
            return b"image\0" + part.media_type.encode() + b"\0" + part.data
        case ToolCall():
            return _encode_text(f"call\0{part.id}\0{part.name}\0{part.arguments}")
        case ToolResult():
            return _encode_text(f"result\0{part.id}\0{part.is_error}\0{part.text}")


def _tools_json(request: ModelRequest) -> str:
    return "\0".join(f"{tool.name}\0{tool.description}\0{tool.schema}" for tool in request.tools)


def has_images(request: ModelRequest) -> bool:
    """Whether there are images. What is cached of a conversation with any is no other one's, and the other way round.

    So it is with Claude (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates the cache).
    """
    return any(isinstance(part, Image) for said in request.conversation for part in said.parts)


def describe_difference(before: ModelRequest, now: ModelRequest) -> str:
    """Where the first byte differs that both have: block, field and byte offset. Empty: one goes on where one ends."""
    for old, new in zip_longest(_cached_fields(before), _cached_fields(now)):
        if old is None:
            return "" if has_images(before) == has_images(now) else "history: there were no images before"
        if new is None:
            return f"{old[0]}: {old[1]} is gone"
        if old != new:
            name, field, bytes_before = old
            other, instead, bytes_now = new
            if (name, field) != (other, instead):
                return (
                    f"{name}: {other} stands in the place of {field}" if name != other else f"{name}: {field} is gone"
                )
            return f"{name}: {field} differs at byte {_difference_offset(bytes_before, bytes_now)}"
    return ""


def _cached_fields(request: ModelRequest) -> Iterator[tuple[str, str, bytes]]:
    """Block, field and bytes of everything that is cached, in order."""
    for tool in request.tools:
        yield "tools", f"tools[{tool.name}]", _encode_text(f"{tool.description}\0{tool.schema}")
    for number, block in enumerate(request.blocks):
        yield block.name, f"blocks[{number}].text", _encode_text(block.text)
    for number, said in enumerate(request.conversation):
        for place, part in enumerate(said.parts):
            where = f"conversation[{number}].parts[{place}]"
            yield "history", f"{where}.{said.role}", type(part).__name__.encode()
            yield "history", where, _encode_text(part.text) if isinstance(part, TextPart) else _part_bytes(part)


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _difference_offset(old: bytes, new: bytes) -> int:
    """Of the first byte that differs."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if old[:middle] == new[:middle] else (low, middle - 1)
    return low


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


ESTIMATE_MARGIN: Final = 1.25
"""An estimate of tokens is hardly ever this much too low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheProfile:
    """One model of one provider."""

    provider: str
    """Its kind: anthropic, openai, llamacpp, ..."""
    model: str
    """As the provider names it."""
    price: Price
    caching: Literal["marks", "automatic", "none"]
    """It is told what to cache; or it caches every prefix by itself; or nothing."""

    def calibrated_price(self, estimate: TokenEstimate) -> Price:
        """The price, its smallest prefix in tokens as they are estimated: what counts is how they are billed."""
        billed = max(1, estimate.correct(10_000))
        minimum = -(-self.price.minimum_tokens * 10_000 // billed)
        return self.price.model_copy(update={"minimum_tokens": minimum})

    def max_cost_usd(self, prompt_tokens: int, output_tokens: int, *, long: bool) -> float:
        """What a request may cost at most; where the price is not known, by one that is assumed.

        Nothing is read from the cache, all is written for as long as it can be (`long`: an hour), and the answer is
        as long as it may be.
        """
        tokens = ceil(prompt_tokens * ESTIMATE_MARGIN)
        written = tokens if self.caching == "marks" else 0
        usage = Usage(
            input_tokens=tokens - written,
            cache_write_tokens=written,
            cache_write_1h_tokens=written if long else 0,
            output_tokens=output_tokens,
        )
        price = self.price if self.price.is_priced else ASSUMED_PRICE
        return price.cost_usd(usage) or 0.0


REFRESH_MARGIN_S = 10.0
"""Before the end: as long as a request may take to arrive."""


_MIN_SAVING_RATIO = 2.0
"""What is expected to be saved, against what it surely costs: the odds are estimates, and money spent is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleConversation:
    """What of a conversation is cached while nobody asks."""

    conversation: str
    refresh_tokens: int
    """That a refresh would read."""
    expiring_tokens: int
    """Of these, what is gone at `until_s`; what is in front of it lives longer."""
    max_billed_tokens: int
    """Tokens that a refresh could be billed for."""
    lifetime: CacheTtl
    """Of what is mortal."""
    last_request_s: float
    """When it was last really asked for."""
    expires_s: float
    """When the first of it will be gone (`Warmth.lasting`)."""


class CacheRefresh(NamedTuple):
    """A refresh that is worth its money."""

    at_s: float
    max_cost_usd: float
    """What it costs if the provider has lost everything, and writes it for an hour."""


def plan_refresh(
    resting: IdleConversation, cadence: Cadence, price: Price, *, budget_usd: float = 0.0, lengthens: bool = True
) -> CacheRefresh | None:
    """Return when to read it again, a little before it is gone; None: let it go.

    `lengthens`: what is not cached may be written for an hour. Ask anew after each refresh and after each request:
    the longer nobody came, the less likely it pays.
    """
    lasts_s = LIFETIME_S[resting.lifetime]
    most_usd = price.input_cost_usd(
        Usage(cache_write_tokens=resting.max_billed_tokens, cache_write_1h_tokens=resting.max_billed_tokens)
    )
    if most_usd is None or not 0.0 < most_usd <= budget_usd or resting.refresh_tokens < price.minimum_tokens:
        return None
    costs = CacheMultipliers(price.read, price.write_5m, price.write_1h)
    odds = cadence.odds(resting.conversation)
    if lengthens and resting.lifetime == "5m" and is_hour_cheaper(odds.kept, odds.written, costs):
        return None  # once it is gone it will be written for an hour, which it could not be as long as it lives
    idle_s = max(0.0, resting.expires_s - resting.last_request_s)
    saved, costs_now = (
        resting.expiring_tokens * (price.write_multiplier(resting.lifetime) - price.read),
        resting.refresh_tokens * price.read,
    )
    most = int(saved / costs_now - idle_s / lasts_s) if costs_now else 0
    chance = refreshes = 0.0
    for number in range(1, most + 1):
        refreshes += 1.0 - chance  # this one is sent only if nobody has come until then
        chance = cadence.return_probability(resting.conversation, idle_s, number * (lasts_s - REFRESH_MARGIN_S))
        if chance * saved > _MIN_SAVING_RATIO * refreshes * costs_now:
            return CacheRefresh(resting.expires_s - REFRESH_MARGIN_S, most_usd)
    return None


def find_idle_conversation(ask: PlannedRequest, lasting: Sequence[CachedUntil]) -> IdleConversation | None:
    """Say what is cached of the last request of a conversation. None: nothing that could be read by itself."""
    place = _last_cached_segment(ask, lasting)
    if place is None or ask.cleared_tokens:  # of a shorter request the provider would leave out something else
        return None
    unit, until_s = lasting[place].prefix.segment, lasting[place].expires_s
    longer = [one.prefix.segment for one in lasting[:place] if one.expires_s > until_s]
    tokens, kept = _billed_tokens(ask, unit + 1), _billed_tokens(ask, longer[-1] + 1 if longer else 0)
    return IdleConversation(
        conversation=ask.request.conversation_id,
        refresh_tokens=tokens,
        expiring_tokens=tokens - kept,
        max_billed_tokens=max(tokens, ask.billed_tokens),
        lifetime=lasting[place].prefix.lifetime,
        last_request_s=ask.sent_at_s,
        expires_s=until_s,
    )


def build_refresh_request(ask: PlannedRequest, lasting: Sequence[CachedUntil], at_s: float) -> PlannedRequest | None:
    """Make of a conversation's last request one that reads what is cached of it, and answers nothing.

    The same bytes and the same marks, up to the last cached place. None: there is none.
    """
    place = _last_cached_segment(ask, lasting)
    if place is None:
        return None
    cached, request = lasting[place].prefix, ask.request
    laid = ask.segments[: cached.segment + 1]
    last, places = laid[-1], {(unit.behind, unit.number) for unit in laid}
    marks = [mark for mark in request.breakpoints if (mark.behind, mark.index) in places]
    if not marks or (marks[-1].behind, marks[-1].index) != (last.behind, last.number):
        lifetime = "5m" if marks and marks[-1].lifetime == "5m" else cached.lifetime  # 1 h in front of 5 m
        marks = [
            *marks[: MAX_BREAKPOINTS - 1],
            CacheBreakpoint(behind=last.behind, index=last.number, lifetime=lifetime),
        ]
    blocks = len(request.blocks) if last.behind == "said" else last.number + 1 if last.behind == "block" else 0
    planned, estimate = plan_reread(laid, tuple(marks)), _billed_estimate(ask)
    return replace(
        ask,
        request=replace(
            request,
            blocks=request.blocks[:blocks],
            conversation=request.conversation[: last.number + 1] if last.behind == "said" else (),
            aside="",
            now="",
            answer_only=False,  # else nothing of the messages would be read
            breakpoints=planned.breakpoints,
            max_output_tokens=0,
        ),
        segments=laid,
        digests=ask.digests[: cached.segment + 1],
        plan=replace(planned, blocks=tuple([calibrate_block(block, estimate) for block in planned.blocks])),
        estimate=estimate,
        sent_at_s=at_s,
    )


def _last_cached_segment(ask: PlannedRequest, lasting: Sequence[CachedUntil]) -> int | None:
    """Return which of the cached places is the last that a request can end at."""
    for place in range(len(lasting) - 1, -1, -1):
        unit = ask.segments[lasting[place].prefix.segment]
        said = ask.request.conversation[unit.number].parts if unit.behind == "said" else ()
        # Calls without their results are refused.
        if unit.takes_breakpoint and not any(isinstance(part, ToolCall) for part in said):
            return place
    return None


def _billed_tokens(ask: PlannedRequest, units: int) -> int:
    """Return how many these first units have, as they will be billed."""
    return _billed_estimate(ask).correct(sum(unit.tokens for unit in ask.segments[:units]))


def _billed_estimate(ask: PlannedRequest) -> TokenEstimate:
    """The estimate as it should have been."""
    return replace(ask.estimate, tokens=ask.billed_tokens) if ask.billed_tokens else ask.estimate


@dataclass(slots=True)
class KeepWarmBudget:
    """What each agent has spent on this today."""

    _today: date = date.min
    _spent: dict[str, float] = field(default_factory=dict)

    def remaining_usd(self, agent: str, today: date, budget_usd: float) -> float:
        """Return what is left of its budget. Days are UTC's."""
        if today != self._today:
            self._today, self._spent = today, {}
        return max(0.0, budget_usd - self._spent.get(agent, 0.0))

    def spend(self, agent: str, usd: float) -> None:
        """Take it out; less than nothing puts back what was taken out today."""
        self._spent[agent] = max(0.0, self._spent.get(agent, 0.0) + usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheForecast:
    """Of one conversation."""

    is_cold: bool | None
    """Nothing of the history is cached. None: nobody knows, because it was not asked for in this process."""
    read_share: float
    """Share of the input price for what is read from the cache."""
    write_share: float
    """The same for what is written to it."""
    expected_requests: float
    """Requests expected before a gap that the cache does not survive."""


UNKNOWN_FORECAST = CacheForecast(is_cold=None, read_share=1.0, write_share=1.0, expected_requests=20.0)
"""Of a model whose cache nobody looks after: each request costs all of its tokens."""


def forecast_cache(
    ask: PlannedRequest | None, lasting: Callable[[], Sequence[CachedUntil]], odds: GapOdds, price: Price, at_s: float
) -> CacheForecast:
    """`ask`: the conversation's last request; `lasting`: what of it is cached; `odds`: how soon it goes on."""
    lifetime: CacheTtl = "5m"
    cold: bool | None = None
    if ask is not None:
        lifetime = ask.plan.breakpoints[-1].lifetime if ask.plan.breakpoints else lifetime
        cold = _is_history_cold(ask, lasting, lifetime, at_s)
    return CacheForecast(
        is_cold=cold,
        read_share=price.read,
        write_share=price.write_multiplier(lifetime),
        expected_requests=expected_requests(odds, lifetime),
    )


def _is_history_cold(
    ask: PlannedRequest, lasting: Callable[[], Sequence[CachedUntil]], lifetime: CacheTtl, at_s: float
) -> bool:
    places = [ask.plan.read_segments - 1, *(unit for unit, _ in ask.plan.writes[-1:])]
    cached = any(place >= 0 and ask.segments[place].behind == "said" for place in places)
    if cached and 0 <= at_s - ask.sent_at_s < LIFETIME_S[lifetime]:  # it was sent just now: nothing can be gone
        return False
    found = lasting()  # it may have been kept warm
    return not found or ask.segments[found[-1].prefix.segment].behind != "said"


def expected_requests(odds: GapOdds, lifetime: CacheTtl) -> float:
    """How many more requests come before a gap that is longer than that: a Markov chain that ends there."""
    kinds = (0, 1) if lifetime == "1h" else (0,)
    first = sum(odds.next_gap[kind] for kind in kinds)
    # Which kind of short gap came before matters little: they are weighed by how often they follow each other.
    weights = [odds.rows[kind][kind] for kind in kinds]
    goes_on = [sum(odds.rows[kind][other] for other in kinds) for kind in kinds]
    stays = sum(weight * share for weight, share in zip(weights, goes_on, strict=True)) / max(sum(weights), 1e-9)
    return min(odds.remaining_requests, first / max(1.0 - stays, 1e-3))
