"""Plan of the prompt cache for one request: segments, breakpoints, and their expected reads and
writes. Pure.

In the order of this file: `choose_breakpoints` (where, and for how long), `plan_cache` (the plan of
a request), `segment_prompt` (the segments of a request), `PlannedRequest` and `explain_cache_miss`
(the plan against the bill), `CacheProfile` (properties of a provider), `plan_refresh` (reading a
prefix again only to keep it cached) and `forecast_cache` (the state of a history's cache, for
compaction).

Breakpoints (platform.claude.com/docs/en/build-with-claude/prompt-caching): a request has at most
four. A lifetime of an hour stands in front of one of 5 minutes. Only a prefix that ends at a
breakpoint is written, and only if it has the model's minimum length. A breakpoint reads the longest
cached prefix that ends at most twenty positions back, its own counted.

Lifetimes: writing for an hour costs more each time; it pays if gaps follow that 5 minutes do not
survive and an hour does. The cost that each choice would have had until now is compared, so a wrong
choice costs at most what it takes to find that out.

Refreshes: a refresh costs one read of everything in front of it. A few of them save, if the
conversation goes on while they last, the difference between writing and reading for what would have
expired. Together they never cost more than the loss of the prefix does, so at worst it is paid for
twice. The budget is money that may be spent for this; its default is none, because an idle gateway
must cost nothing.
"""

from collections.abc import Iterator, Sequence
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
    Cadence,
    Digest,
    GapOdds,
    extend_digest,
)
from agent.models.base import (
    CacheBreakpoint,
    MessagePart,
    ModelMessage,
    ModelRequest,
    TextPart,
    ToolResult,
)
from agent.prompt import SHARED_BLOCKS
from agent.tokens.counter import (
    PromptSize,
    TokenEstimate,
    TokenMeter,
    common_prefix_length,
    count_prompt_tokens,
)
from gateway.core.events import BlockUsage, CacheTtl, RequestUsage, Usage
from gateway.core.tool_spec import Image, ToolCall


class CacheMultipliers(NamedTuple):
    """Prices of tokens as multiples of the plain input price. Infinite: not available."""

    read: float
    write_5m: float
    write_1h: float


def is_hour_cheaper(kept: float, written: float, cost: CacheMultipliers) -> bool:
    """Return whether a lifetime of an hour costs less than 5 minutes.

    `kept`: amount that only an hour keeps, and that would have to be written again. `written`:
    amount written for it.
    """
    return kept * (cost.write_5m - cost.read) > written * (cost.write_1h - cost.write_5m)


MAX_BREAKPOINTS = 4
LOOK_BACK_POSITIONS = 20
"""Positions that a breakpoint searches, its own first."""
_SAFE_LOOK_BACK = 17
"""Positions that are relied on: thinking takes a position of its own, and so does each text for one
request that stays in front of it."""

_IMAGE_LENGTH = 4_000
"""Bytes of text with as many tokens as an image, roughly."""

Breakpoints = list[tuple[int, CacheTtl]]
"""Segments to mark, ascending, and the lifetime of each."""

_PRESUMED_HOUR_GAPS = 0.4
"""Gaps between 5 minutes and an hour that are assumed for a prefix that begins with an hour."""
_MIN_LONG_GAPS = 2.0
"""Least number of gaps of more than an hour before the end of a conversation may go without a
breakpoint."""


class PromptSegment(NamedTuple):
    """A piece of a request that ends where a breakpoint can stand: the tools, a block, or a
    `ModelMessage`.

    A message has one segment for each part; only the last of them takes a breakpoint.
    """

    name: str
    """tools, identity, skills, binding, channel or history."""
    behind: Literal["tools", "block", "said"]
    number: int
    """`CacheBreakpoint.index`."""
    tokens: int
    digest: Digest
    """Digest of all bytes of the request up to the end of this segment."""
    positions: int = 1
    """Number of tools, blocks or content blocks in it."""
    is_shared: bool = False
    """True: this segment and everything in front of it is the same in all conversations."""
    takes_breakpoint: bool = True
    """False: nothing in it can carry a breakpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """Segments of a request, and the sizes that the choice of breakpoints depends on."""

    segments: Sequence[PromptSegment]
    cumulative_tokens: Sequence[int]
    """Tokens up to the end of each segment."""
    end_positions: Sequence[int]
    """Position of the end of each segment, from 1."""
    min_tokens: int
    """Tokens of the shortest prefix that is cached."""
    longest_hit: CachedPrefix | None
    """Longest prefix that is assumed to be cached."""

    def last_breakpoint(self, segment: int) -> int:
        """Return the last useful breakpoint, from this segment backwards. -1: none."""
        while segment >= 0 and not self.segments[segment].takes_breakpoint:
            segment -= 1
        return (
            segment if segment >= 0 and self.cumulative_tokens[segment] >= self.min_tokens else -1
        )

    def next_breakpoint(self, segment: int) -> int:
        """Return the first useful breakpoint, from this segment on. -1: none, or no such
        segment.
        """
        if segment < 0:
            return -1
        takes = (
            i
            for i in range(segment, len(self.segments))
            if self.segments[i].takes_breakpoint and self.cumulative_tokens[i] >= self.min_tokens
        )
        return next(takes, -1)

    @property
    def shared_end(self) -> int:
        """Return the last useful breakpoint of the part that all conversations share."""
        return self.last_breakpoint(
            next(
                (i for i, segment in enumerate(self.segments) if not segment.is_shared),
                len(self.segments),
            )
            - 1
        )

    @property
    def end(self) -> int:
        """Return the last useful breakpoint of all."""
        return self.last_breakpoint(len(self.segments) - 1)

    @property
    def is_behind_short(self) -> bool:
        """Return whether the cached part of this conversation lives for 5 minutes.

        An hour behind it would be wasted: the prefix in front expires earlier.
        """
        own_start = max(self.shared_end, _binding_segment(self, self.shared_end))
        return (
            self.longest_hit is not None
            and self.longest_hit.segment > own_start
            and self.longest_hit.lifetime == "5m"
        )

    @property
    def is_cold(self) -> bool:
        """Return whether no part of this conversation alone is cached."""
        return self.longest_hit is None or self.longest_hit.segment <= max(
            self.shared_end, _binding_segment(self, self.shared_end)
        )


def choose_breakpoints(
    prompt: MeasuredPrompt, shared: GapOdds, own: GapOdds, cost: CacheMultipliers
) -> Breakpoints:
    """Choose breakpoints, each with the lifetime that the gaps so far show to be cheapest.

    A conversation begins with the fixed layout: an hour for the shared part and for the binding, 5
    minutes behind them. The card and what follows get an hour once the gaps of this conversation
    show that it pays, and the rest gets 5 minutes once they show that the hour does not.
    """
    if cost.write_1h == inf:
        return fixed_breakpoints(prompt, long=False, short="5m")
    if not own.is_known:
        return fixed_breakpoints(prompt, long=True, short="5m")
    behind: CacheTtl = (
        "1h"
        if not prompt.is_behind_short and is_hour_cheaper(own.kept, own.written, cost)
        else "5m"
    )
    front, binding = _lifetime_after_hour(shared, cost), _lifetime_after_hour(own, cost)
    short, medium, long = own.gap_counts
    # If requests hardly ever came in time, what was written at the end was hardly ever read.
    seldom = long >= _MIN_LONG_GAPS and short * (1.0 - cost.read) < (medium + long) * (
        cost.write_5m - 1.0
    )
    return _place_breakpoints(prompt, front, binding, behind, ends=behind == "1h" or not seldom)


def _lifetime_after_hour(odds: GapOdds, cost: CacheMultipliers) -> CacheTtl:
    """Return the lifetime for a prefix that keeps its size and began with an hour."""
    _, medium, long = odds.gap_counts
    return "1h" if is_hour_cheaper(medium + _PRESUMED_HOUR_GAPS, long, cost) else "5m"


def fixed_breakpoints(prompt: MeasuredPrompt, *, long: bool, short: CacheTtl) -> Breakpoints:
    """Return the fixed layout: an hour for the shared part and the binding, `short` for what
    follows.
    """
    front: CacheTtl = "1h" if long else "5m"
    return _place_breakpoints(prompt, front, front, short if long else "5m")


def _place_breakpoints(
    prompt: MeasuredPrompt,
    front: CacheTtl,
    binding: CacheTtl,
    behind: CacheTtl,
    *,
    ends: bool = True,
) -> Breakpoints:
    """Mark the shared part, the binding, the card, the end of the previous request if that is far
    back, and the end.

    If these are too many, the binding goes without: it is then written with the card. `ends`: False
    leaves out the end as long as nothing of the conversation is cached.
    """
    head, end = prompt.shared_end, prompt.end
    intermediate, binding_segment = (
        _intermediate_segment(prompt, end),
        _binding_segment(prompt, head),
    )
    card = prompt.last_breakpoint(
        max(
            (i for i, segment in enumerate(prompt.segments) if segment.behind == "block"),
            default=-1,
        )
    )
    chosen = {
        segment: behind
        for segment in ((card, intermediate, end) if ends or not prompt.is_cold else (card,))
        if segment >= 0
    }
    if head >= 0:
        chosen[head] = front
    if binding_segment >= 0 and (binding_segment == card or len(chosen) < MAX_BREAKPOINTS):
        chosen[binding_segment] = binding
    return _order_breakpoints(chosen)


def _binding_segment(prompt: MeasuredPrompt, head: int) -> int:
    """Return the segment in front of the channel card, because other rooms may share the binding.
    -1: none.
    """
    last = head
    for number, segment in enumerate(prompt.segments):
        if segment.behind == "block" and segment.name != "channel":
            last = number
    last = prompt.last_breakpoint(last)
    return last if last > head else -1


def _intermediate_segment(prompt: MeasuredPrompt, end: int) -> int:
    """Return a place for a breakpoint in front of the last one, to find what the last cannot. -1:
    none is needed.

    If nothing of the conversation is known to be cached (a restart forgets), that is the end of the
    previous request: behind it stand one answer and one message.
    """
    at = prompt.longest_hit.segment if prompt.longest_hit is not None else -1
    if end >= 0 and (at < 0 or prompt.segments[at].behind != "said"):
        newest = prompt.segments[end].number
        before = (i for i in range(end, -1, -1) if prompt.segments[i].behind == "said")
        at = next((i for i in before if prompt.segments[i].number == newest - 2), at)
    at = prompt.next_breakpoint(at)
    return (
        at
        if 0 <= at < end and prompt.end_positions[end] - prompt.end_positions[at] >= _SAFE_LOOK_BACK
        else -1
    )


def _order_breakpoints(chosen: dict[int, CacheTtl]) -> Breakpoints:
    """Return the breakpoints in order, none with a longer lifetime than one in front of it."""
    ordered: Breakpoints = []
    long = False
    for segment in sorted(chosen, reverse=True):
        long = long or chosen[segment] == "1h"
        ordered.append((segment, "1h" if long else "5m"))
    return ordered[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """Way to decide."""

    kind: Literal["auto", "fixed", "off"] = "auto"
    """auto: `choose_breakpoints`, by expected cost. fixed: `fixed_breakpoints`, 1 h for the shared
    part and the binding, 5 m behind them. off: no breakpoints."""
    allows_hour: bool = True
    """False: the provider has no lifetime of 1 h, or may not be asked for it."""
    short_lifetime: CacheTtl = "5m"
    """Lifetime that `fixed_breakpoints` gives to what follows the parts with 1 h. `1h` counts only
    if it is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """Breakpoints of a request, and the expected reads and writes."""

    breakpoints: tuple[CacheBreakpoint, ...]
    read_segments: int
    """Number of segments, from the first, that are expected to be read from the cache."""
    writes: tuple[tuple[int, CacheTtl], ...]
    """Segments at whose ends a prefix is expected to be written, each behind the one before, or
    behind the part that is read."""
    blocks: tuple[BlockUsage, ...]
    """Expected tokens per block, in the order of the request, without empty blocks."""


def plan_cache(
    segments: Sequence[PromptSegment],
    *,
    price: Price,
    policy: CachePolicy,
    shared: GapOdds,
    own: GapOdds,
    cached: Sequence[CachedPrefix] = (),
) -> CachePlan:
    """Choose the breakpoints of one request.

    `shared`: odds of the part that all conversations share. `own`: odds of this conversation.
    `cached`: as `CacheState.find` returns it.
    """
    prompt = MeasuredPrompt(
        segments=segments,
        cumulative_tokens=tuple(accumulate(segment.tokens for segment in segments)),
        end_positions=tuple(accumulate(segment.positions for segment in segments)),
        min_tokens=price.minimum_tokens,
        longest_hit=cached[-1] if cached else None,
    )
    breakpoints: Breakpoints = []
    if policy.kind == "fixed":
        breakpoints = fixed_breakpoints(
            prompt, long=policy.allows_hour, short=policy.short_lifetime
        )
    elif policy.kind == "auto":
        cost = CacheMultipliers(
            price.read, price.write_5m, price.write_1h if policy.allows_hour else inf
        )
        breakpoints = choose_breakpoints(prompt, shared, own, cost)
    read = _count_hit_segments(prompt, breakpoints, cached)
    writes = tuple((segment, lifetime) for segment, lifetime in breakpoints if segment >= read)
    return CachePlan(
        breakpoints=tuple(
            CacheBreakpoint(behind=segments[i].behind, index=segments[i].number, lifetime=lifetime)
            for i, lifetime in breakpoints
        ),
        read_segments=read,
        writes=writes,
        blocks=_account_blocks(segments, read, writes),
    )


def segments_before_messages(
    segments: Sequence[PromptSegment], cached: Sequence[CachedPrefix]
) -> tuple[tuple[PromptSegment, ...], tuple[CachedPrefix, ...]]:
    """Return the segments without breakpoints in the messages, and what is cached in front of the
    messages.

    For a request with another `tool_choice` than usual: nothing of its messages is read from the
    cache, and what it would write of them is never read
    (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates).
    """
    usable = tuple(
        [
            segment._replace(takes_breakpoint=False) if segment.behind == "said" else segment
            for segment in segments
        ]
    )
    return usable, tuple([place for place in cached if segments[place.segment].behind != "said"])


def plan_automatic(segments: Sequence[PromptSegment], cached: Sequence[CachedPrefix]) -> CachePlan:
    """Return the plan for a provider that caches every prefix by itself, and keeps it for a
    while.
    """
    read = cached[-1].segment + 1 if cached else 0
    writes: tuple[tuple[int, CacheTtl], ...] = tuple(
        (segment, "5m") for segment in range(read, len(segments))
    )
    return CachePlan(
        breakpoints=(),
        read_segments=read,
        writes=writes,
        blocks=_account_blocks(segments, read, ()),
    )


def plan_reread(
    segments: Sequence[PromptSegment], breakpoints: tuple[CacheBreakpoint, ...]
) -> CachePlan:
    """Return the plan for a request that reads a cached prefix to its end."""
    return CachePlan(
        breakpoints=breakpoints,
        read_segments=len(segments),
        writes=(),
        blocks=_account_blocks(segments, len(segments), ()),
    )


def _count_hit_segments(
    prompt: MeasuredPrompt, breakpoints: Breakpoints, cached: Sequence[CachedPrefix]
) -> int:
    """Return the number of segments that the breakpoints will find in the cache."""
    for segment, _ in reversed(breakpoints):
        for place in reversed(cached):
            if (
                place.segment <= segment
                and prompt.end_positions[segment] - prompt.end_positions[place.segment]
                < LOOK_BACK_POSITIONS
            ):
                return place.segment + 1
    return 0


def _account_blocks(
    segments: Sequence[PromptSegment], read: int, writes: Sequence[tuple[int, CacheTtl]]
) -> tuple[BlockUsage, ...]:
    accounts: dict[str, list[int]] = {}
    lifetimes: dict[str, CacheTtl] = {}
    pending = list(writes)
    for index, segment in enumerate(segments):
        while pending and pending[0][0] < index:
            pending.pop(0)
        sums = accounts.setdefault(segment.name, [0, 0, 0])
        sums[0] += segment.tokens
        if index < read:
            sums[1] += segment.tokens
        elif pending:
            sums[2] += segment.tokens
            lifetimes.setdefault(segment.name, pending[0][1])
    return tuple(
        BlockUsage(
            name=name, tokens=sums[0], read=sums[1], written=sums[2], lifetime=lifetimes.get(name)
        )
        for name, sums in accounts.items()
        if sums[0]
    )


def segment_prompt(
    request: ModelRequest, size: PromptSize, before: "PlannedRequest | None" = None
) -> tuple[PromptSegment, ...]:
    """Divide a request into segments. `size`: its tokens.

    `before`: an earlier request of the conversation. Its segments are used again for the messages,
    from the first on, that are the same objects of the same size behind the same bytes.
    """
    segments = list(_fixed_segments(request, size))
    digest = segments[-1].digest if segments else ROOT_DIGEST
    if has_images(request):
        digest = extend_digest(digest, b"images")
    known, fixed = 0, len(segments)
    if before is not None and before.segments[:fixed] == tuple(segments):
        old, old_size = before.request, before.estimate.size
        if has_images(old) == has_images(request):
            known = common_prefix_length(old.conversation, request.conversation)
            if old_size.conversation[:known] != size.conversation[:known]:
                known = 0
            parts = sum([len(message.parts) for message in request.conversation[:known]])
            segments.extend(before.segments[fixed : fixed + parts])
    if known:
        digest = segments[-1].digest
    for number, message in enumerate(request.conversation[known:], known):
        segments.extend(_message_segments(number, message, digest, size.conversation[number]))
        digest = segments[-1].digest
    return tuple(segments)


def _fixed_segments(request: ModelRequest, size: PromptSize) -> Iterator[PromptSegment]:
    """Yield the segments in front of the conversation."""
    digest, shared = ROOT_DIGEST, True
    if request.tools:
        digest = extend_digest(digest, b"tools\0" + _encode_text(_tools_json(request)))
        yield PromptSegment(
            "tools", "tools", 0, size.tools, digest, positions=len(request.tools), is_shared=True
        )
    for number, block in enumerate(request.blocks):
        shared = shared and block.name in SHARED_BLOCKS
        digest = extend_digest(digest, b"block\0" + _encode_text(block.text))
        yield PromptSegment(
            block.name, "block", number, size.blocks[number], digest, is_shared=shared
        )


def _message_segments(
    number: int, message: ModelMessage, digest: Digest, tokens: int
) -> Iterator[PromptSegment]:
    """Yield one segment for each part, with a share of the tokens by its length.

    A later request may continue the message behind its last part.
    """
    pieces = [_part_bytes(part) for part in message.parts]
    lengths = [
        _IMAGE_LENGTH if isinstance(part, Image) else len(piece)
        for part, piece in zip(message.parts, pieces, strict=True)
    ]
    ends = [round(tokens * end / sum(lengths)) for end in accumulate(lengths)]
    for place, piece in enumerate(pieces):
        digest = extend_digest(digest, message.role.encode() + b"\0" + piece)
        share = ends[place] - (ends[place - 1] if place else 0)
        is_last = place == len(pieces) - 1
        yield PromptSegment("history", "said", number, share, digest, takes_breakpoint=is_last)


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
    """Return whether the request has images.

    Prefixes with and without images are cached separately
    (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates the cache).
    """
    return any(
        isinstance(part, Image) for message in request.conversation for part in message.parts
    )


def describe_difference(before: ModelRequest, now: ModelRequest) -> str:
    """Return the first difference in the common length: block, field and byte offset.

    Empty: one request continues the other.
    """
    for old, new in zip_longest(_cached_fields(before), _cached_fields(now)):
        if old is None:
            return (
                ""
                if has_images(before) == has_images(now)
                else "history: there were no images before"
            )
        if new is None:
            return f"{old[0]}: {old[1]} is gone"
        if old != new:
            name, field, bytes_before = old
            new_name, new_field, bytes_now = new
            if (name, field) != (new_name, new_field):
                return (
                    f"{name}: {new_name} stands in the place of {field}"
                    if name != new_name
                    else f"{name}: {field} is gone"
                )
            return f"{name}: {field} differs at byte {_difference_offset(bytes_before, bytes_now)}"
    return ""


def _cached_fields(request: ModelRequest) -> Iterator[tuple[str, str, bytes]]:
    """Yield block, field and bytes of everything that is cached, in order."""
    for tool in request.tools:
        yield "tools", f"tools[{tool.name}]", _encode_text(f"{tool.description}\0{tool.schema}")
    for number, block in enumerate(request.blocks):
        yield block.name, f"blocks[{number}].text", _encode_text(block.text)
    for number, message in enumerate(request.conversation):
        for place, part in enumerate(message.parts):
            where = f"conversation[{number}].parts[{place}]"
            yield "history", f"{where}.{message.role}", type(part).__name__.encode()
            yield (
                "history",
                where,
                _encode_text(part.text) if isinstance(part, TextPart) else _part_bytes(part),
            )


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _difference_offset(old: bytes, new: bytes) -> int:
    """Return the offset of the first byte that differs."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if old[:middle] == new[:middle] else (low, middle - 1)
    return low


_MISS_SHARE = 0.9
"""Share of the expected tokens below which a read is a miss. Estimates are off by as much."""
_ROUNDING_TOKENS = 256
"""Tokens by which a provider may round down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """A request with its plan, and later its bill."""

    request: ModelRequest
    segments: tuple[PromptSegment, ...]
    digests: tuple[Digest, ...]
    plan: CachePlan
    meter: TokenMeter
    estimate: TokenEstimate
    sent_at_s: float
    billed_tokens: int = 0
    """Billed tokens of the whole prompt. 0: not known yet."""
    account: RequestUsage | None = None
    """Account after the answer. None: not answered yet."""

    @property
    def scale(self) -> float:
        """Return the bill as a share of the estimate, which may be off as a whole."""
        return self.billed_tokens / max(1, self.estimate.tokens) if self.billed_tokens else 1.0

    @property
    def expected_read_tokens(self) -> int:
        """Return the estimated tokens that should be read from the cache."""
        return sum(block.read for block in self.plan.blocks)

    def digests_from(self, message: int | None) -> tuple[Digest, ...]:
        """Return the digests from this message on. None: none."""
        if message is None:
            return ()
        pairs = zip(self.digests, self.segments, strict=True)
        return tuple(
            [
                place
                for place, segment in pairs
                if segment.behind == "said" and segment.number >= message
            ]
        )

    def count_segments_read(self, billed: int) -> int:
        """Return how many of the expected segments were read, if so many tokens are billed as
        read.
        """
        read, tokens = 0, 0
        for place, segment in enumerate(self.segments[: self.plan.read_segments], start=1):
            tokens += self.estimate.correct(segment.tokens)
            if is_read_enough(billed, tokens * self.scale):
                read = place if billed else 0
        return read

    @property
    def written_prefix(self) -> Digest | None:
        """Return the shared prefix that it is going to write. None: none."""
        written = [segment for segment, _ in self.plan.writes if self.segments[segment].is_shared]
        return self.digests[written[-1]] if written else None

    @property
    def block_accounts(self) -> tuple[BlockUsage, ...]:
        """Return the expectation for each block, and for the text for this request only."""
        tokens = self.estimate.correct(self.estimate.size.now)
        if not tokens:
            return self.plan.blocks
        return (
            *self.plan.blocks,
            BlockUsage(name="now", tokens=tokens, read=0, written=0, lifetime=None),
        )


def is_read_enough(read: int, expected: float) -> bool:
    """Return whether so many tokens read agree with the expectation, as far as estimates allow."""
    return read >= expected * _MISS_SHARE - _ROUNDING_TOKENS


def find_cache_miss(planned: PlannedRequest, usage: Usage) -> int | None:
    """Return how many tokens should have been read, if fewer were. None: no miss."""
    # The estimate may be off as a whole, so only the share that was read counts.
    expected = max(0.0, planned.expected_read_tokens * planned.scale)
    return (
        None
        if not count_prompt_tokens(usage) or is_read_enough(usage.cache_read_tokens, expected)
        else round(expected)
    )


def calibrate_block(block: BlockUsage, estimate: TokenEstimate) -> BlockUsage:
    """Return the block with tokens as they will be billed, as far as that is known."""
    return replace(
        block,
        tokens=estimate.correct(block.tokens),
        read=estimate.correct(block.read),
        written=estimate.correct(block.written),
    )


def explain_cache_miss(
    planned: PlannedRequest, before: PlannedRequest | None, expected: int | None, usage: Usage
) -> str:
    """Return what was not read although it might have been. Empty: nothing.

    `before`: the last request of the same conversation. `expected`: tokens that should have been
    read; None: no miss.
    """
    changed = ""
    if before is not None and planned.digests[: len(before.digests)] != before.digests:
        changed = describe_difference(before.request, planned.request)
    if expected is None:
        return changed
    miss = f"{usage.cache_read_tokens} of about {expected} tokens were read"
    if changed:
        return f"{miss}: {changed}"
    since = (
        f", last sent {planned.sent_at_s - before.sent_at_s:.0f} s before"
        if before is not None
        else ""
    )
    return f"{miss}: no byte differs{since}; the provider had it no more, or not yet"


ESTIMATE_MARGIN: Final = 1.25
"""Factor by which an estimate of tokens is hardly ever too low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheProfile:
    """Caching properties of one model of one provider."""

    provider: str
    """Kind of the provider: anthropic, openai, llamacpp, ..."""
    model: str
    """Name of the model at its provider."""
    price: Price
    caching: Literal["marks", "automatic", "none"]
    """marks: the request says what to cache. automatic: the provider caches every prefix by itself.
    none: nothing is cached."""

    def calibrated_price(self, estimate: TokenEstimate) -> Price:
        """Return the price with its shortest prefix in estimated tokens, because the provider
        counts billed ones.
        """
        billed = max(1, estimate.correct(10_000))
        minimum = -(-self.price.minimum_tokens * 10_000 // billed)
        return self.price.model_copy(update={"minimum_tokens": minimum})

    def max_cost_usd(self, prompt_tokens: int, output_tokens: int, *, long: bool) -> float:
        """Return the most that a request may cost. An unknown price is replaced by `ASSUMED_PRICE`.

        Nothing is read from the cache, all is written with the longest lifetime (`long`: an hour),
        and the answer is as long as it may be.
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
"""Time between a refresh and the expiry of the cache: as long as a request may take to arrive."""


_MIN_SAVING_RATIO = 2.0
"""Least expected saving as a multiple of the sure cost: the odds are estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleConversation:
    """Cached part of a conversation without requests."""

    conversation: str
    refresh_tokens: int
    """Tokens that a refresh would read."""
    expiring_tokens: int
    """Part of these that expires at `expires_s`. What is in front of it lives longer."""
    max_billed_tokens: int
    """Most tokens that a refresh could be billed for."""
    lifetime: CacheTtl
    """Lifetime of the expiring part."""
    last_request_s: float
    """Time of the last request that was not a refresh."""
    expires_s: float
    """Time at which the first part expires (`CacheState.find`)."""


class CacheRefresh(NamedTuple):
    """A refresh that is worth its cost."""

    at_s: float
    max_cost_usd: float
    """Cost if the provider has lost everything, and writes it for an hour."""


def plan_refresh(
    idle: IdleConversation,
    cadence: Cadence,
    price: Price,
    *,
    budget_usd: float = 0.0,
    lengthens: bool = True,
) -> CacheRefresh | None:
    """Return when to read a conversation again, shortly before it expires. None: let it expire.

    `lengthens`: a prefix that is not cached may be written for an hour. Plan anew after each
    refresh and each request: the longer a conversation is idle, the less likely a refresh pays.
    """
    lasts_s = LIFETIME_S[idle.lifetime]
    most_usd = price.input_cost_usd(
        Usage(
            cache_write_tokens=idle.max_billed_tokens, cache_write_1h_tokens=idle.max_billed_tokens
        )
    )
    if (
        most_usd is None
        or not 0.0 < most_usd <= budget_usd
        or idle.refresh_tokens < price.minimum_tokens
    ):
        return None
    costs = CacheMultipliers(price.read, price.write_5m, price.write_1h)
    odds = cadence.odds(idle.conversation)
    if lengthens and idle.lifetime == "5m" and is_hour_cheaper(odds.kept, odds.written, costs):
        return None  # after its expiry it will be written for an hour, which is not possible before
    idle_s = max(0.0, idle.expires_s - idle.last_request_s)
    saved, costs_now = (
        idle.expiring_tokens * (price.write_multiplier(idle.lifetime) - price.read),
        idle.refresh_tokens * price.read,
    )
    most = int(saved / costs_now - idle_s / lasts_s) if costs_now else 0
    chance = refreshes = 0.0
    for number in range(1, most + 1):
        refreshes += 1.0 - chance  # this one is sent only if there was no request until then
        chance = cadence.return_probability(
            idle.conversation, idle_s, number * (lasts_s - REFRESH_MARGIN_S)
        )
        if chance * saved > _MIN_SAVING_RATIO * refreshes * costs_now:
            return CacheRefresh(idle.expires_s - REFRESH_MARGIN_S, most_usd)
    return None


def find_idle_conversation(
    planned: PlannedRequest, lasting: Sequence[CachedPrefix]
) -> IdleConversation | None:
    """Return the cached part of a conversation's last request. None: nothing that can be read by
    itself.
    """
    place = _last_cached_segment(planned, lasting)
    if place is None:
        return None
    segment, until_s = lasting[place].segment, lasting[place].expires_s
    longer = [cached.segment for cached in lasting[:place] if cached.expires_s > until_s]
    tokens, kept = (
        _billed_tokens(planned, segment + 1),
        _billed_tokens(planned, longer[-1] + 1 if longer else 0),
    )
    return IdleConversation(
        conversation=planned.request.conversation_id,
        refresh_tokens=tokens,
        expiring_tokens=tokens - kept,
        max_billed_tokens=max(tokens, planned.billed_tokens),
        lifetime=lasting[place].lifetime,
        last_request_s=planned.sent_at_s,
        expires_s=until_s,
    )


def build_refresh_request(
    planned: PlannedRequest, lasting: Sequence[CachedPrefix], at_s: float
) -> PlannedRequest | None:
    """Build a request that reads the cached part of a conversation's last request, without an
    answer.

    The same bytes and breakpoints, up to the last cached prefix. None: nothing is cached.
    """
    place = _last_cached_segment(planned, lasting)
    if place is None:
        return None
    cached, request = lasting[place], planned.request
    segments = planned.segments[: cached.segment + 1]
    last, places = segments[-1], {(segment.behind, segment.number) for segment in segments}
    breakpoints = [mark for mark in request.breakpoints if (mark.behind, mark.index) in places]
    if not breakpoints or (breakpoints[-1].behind, breakpoints[-1].index) != (
        last.behind,
        last.number,
    ):
        lifetime = (
            "5m" if breakpoints and breakpoints[-1].lifetime == "5m" else cached.lifetime
        )  # 1 h in front of 5 m
        breakpoints = [
            *breakpoints[: MAX_BREAKPOINTS - 1],
            CacheBreakpoint(behind=last.behind, index=last.number, lifetime=lifetime),
        ]
    blocks = (
        len(request.blocks)
        if last.behind == "said"
        else last.number + 1
        if last.behind == "block"
        else 0
    )
    plan, estimate = plan_reread(segments, tuple(breakpoints)), _billed_estimate(planned)
    return replace(
        planned,
        request=replace(
            request,
            blocks=request.blocks[:blocks],
            conversation=request.conversation[: last.number + 1] if last.behind == "said" else (),
            aside="",
            now="",
            answer_only=False,  # else nothing of the messages would be read
            breakpoints=plan.breakpoints,
            max_output_tokens=0,
        ),
        segments=segments,
        digests=planned.digests[: cached.segment + 1],
        plan=replace(
            plan, blocks=tuple([calibrate_block(block, estimate) for block in plan.blocks])
        ),
        estimate=estimate,
        sent_at_s=at_s,
    )


def _last_cached_segment(planned: PlannedRequest, lasting: Sequence[CachedPrefix]) -> int | None:
    """Return the index of the last cached prefix at which a request can end."""
    for place in range(len(lasting) - 1, -1, -1):
        segment = planned.segments[lasting[place].segment]
        parts = (
            planned.request.conversation[segment.number].parts if segment.behind == "said" else ()
        )
        # Calls without their results are refused.
        if segment.takes_breakpoint and not any(isinstance(part, ToolCall) for part in parts):
            return place
    return None


def _billed_tokens(planned: PlannedRequest, count: int) -> int:
    """Return the tokens of the first `count` segments as they will be billed."""
    return _billed_estimate(planned).correct(
        sum(segment.tokens for segment in planned.segments[:count])
    )


def _billed_estimate(planned: PlannedRequest) -> TokenEstimate:
    """Return the estimate corrected by the bill."""
    return (
        replace(planned.estimate, tokens=planned.billed_tokens)
        if planned.billed_tokens
        else planned.estimate
    )


@dataclass(slots=True)
class KeepWarmBudget:
    """Money that each agent has spent on refreshes today."""

    _today: date = date.min
    _spent: dict[str, float] = field(default_factory=dict)

    def remaining_usd(self, agent: str, today: date, budget_usd: float) -> float:
        """Return the rest of an agent's budget. Days are UTC."""
        if today != self._today:
            self._today, self._spent = today, {}
        return max(0.0, budget_usd - self._spent.get(agent, 0.0))

    def spend(self, agent: str, usd: float) -> None:
        """Add to what was spent. A negative amount returns what was taken too much today."""
        self._spent[agent] = max(0.0, self._spent.get(agent, 0.0) + usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheForecast:
    """State of the cache of one conversation's history."""

    is_cold: bool | None
    """True: nothing of the history is cached. None: not known, without a request in this
    process."""
    read_share: float
    """Price of reading from the cache, as a share of the input price."""
    write_share: float
    """Price of writing to the cache, as a share of the input price."""
    expected_requests: float
    """Expected number of requests before a gap that the cache does not survive."""


UNKNOWN_FORECAST = CacheForecast(
    is_cold=None, read_share=1.0, write_share=1.0, expected_requests=20.0
)
"""Forecast for a model without cache management: each request costs all of its tokens."""


def forecast_cache(
    planned: PlannedRequest | None,
    cached: Sequence[CachedPrefix],
    odds: GapOdds,
    price: Price,
    at_s: float,
) -> CacheForecast:
    """Return the state of a conversation's cache.

    `planned`: its last request. `cached`: the cached prefixes of that. `odds`: odds of its next
    gaps.
    """
    lifetime: CacheTtl = "5m"
    cold: bool | None = None
    if planned is not None:
        lifetime = planned.plan.breakpoints[-1].lifetime if planned.plan.breakpoints else lifetime
        cold = _is_history_cold(planned, cached, lifetime, at_s)
    return CacheForecast(
        is_cold=cold,
        read_share=price.read,
        write_share=price.write_multiplier(lifetime),
        expected_requests=expected_requests(odds, lifetime),
    )


def _is_history_cold(
    planned: PlannedRequest, cached: Sequence[CachedPrefix], lifetime: CacheTtl, at_s: float
) -> bool:
    places = [planned.plan.read_segments - 1, *(segment for segment, _ in planned.plan.writes[-1:])]
    was_cached = any(place >= 0 and planned.segments[place].behind == "said" for place in places)
    if (
        was_cached and 0 <= at_s - planned.sent_at_s < LIFETIME_S[lifetime]
    ):  # sent just now: nothing has expired
        return False
    # A refresh may have kept it warm.
    return not cached or planned.segments[cached[-1].segment].behind != "said"


def expected_requests(odds: GapOdds, lifetime: CacheTtl) -> float:
    """Return the expected number of requests before a longer gap than `lifetime`: a Markov chain
    that ends there.
    """
    kinds = (0, 1) if lifetime == "1h" else (0,)
    first = sum(odds.next_gap[kind] for kind in kinds)
    # The kind of the previous short gap matters little: each is weighed by how often it follows
    # itself.
    weights = [odds.rows[kind][kind] for kind in kinds]
    goes_on = [sum(odds.rows[kind][other] for other in kinds) for kind in kinds]
    stays = sum(weight * share for weight, share in zip(weights, goes_on, strict=True)) / max(
        sum(weights), 1e-9
    )
    return min(odds.remaining_requests, first / max(1.0 - stays, 1e-3))
