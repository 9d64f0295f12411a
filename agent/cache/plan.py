"""Plan of the prompt cache for one request: segments, and their expected reads and writes. Pure.

In the order of this file: the types of a plan, `plan_automatic` (the plan of a request without
breakpoints) and `account_blocks` (what it reads and writes of each block), `segment_prompt` (the
segments of a request), `describe_difference` (where two requests part), `is_hour_cheaper`,
`MeasuredPrompt`, `choose_breakpoints` and `fixed_breakpoints` (where breakpoints stand, and for how
long), `plan_cache` (the plan of a request with them), `segments_before_messages` (the request
whose messages are not read), `PlannedRequest`, `is_read_enough`, `find_cache_miss` and
`explain_cache_miss` (the plan against the bill) and `CacheProfile` (properties of a provider).
`agent.cache.idle` plans what is done for idle conversations.

Breakpoints (platform.claude.com/docs/en/build-with-claude/prompt-caching): a request has at most
four. A lifetime of an hour stands in front of one of 5 minutes. Only a prefix that ends at a
breakpoint is written, and only if it has the model's minimum length. A breakpoint reads the longest
cached prefix that ends at most twenty positions back, its own counted.

Lifetimes: writing for an hour costs more each time; it pays if gaps follow that 5 minutes do not
survive and an hour does. The cost that each choice would have had until now is compared, so a wrong
choice costs at most what it takes to find that out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from math import ceil, inf
from typing import Final, Literal, NamedTuple

from agent.cache.prices import ASSUMED_PRICE, Price
from agent.cache.state import (
    ROOT_DIGEST,
    CachedPrefix,
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
)
from agent.prompt import SHARED_BLOCKS
from agent.tokens.counter import (
    PromptSize,
    TokenEstimate,
    TokenMeter,
)
from gateway.core.events import BlockUsage, CacheTtl, RequestUsage, Usage
from gateway.core.frozen import frozen
from gateway.core.tool_spec import Image, ToolCall

_IMAGE_LENGTH = 4_000
"""Bytes of text with as many tokens as an image, roughly."""


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
    end_tokens: int
    """Tokens of the request up to its end."""
    digest: Digest
    """Digest of all bytes of the request up to its end."""
    positions: int = 1
    """Number of tools, blocks or content blocks in it."""
    is_shared: bool = False
    """True: this segment and everything in front of it is the same in all conversations."""
    takes_breakpoint: bool = True
    """False: nothing in it can carry a breakpoint."""


@frozen
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


@frozen
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


def plan_automatic(
    segments: Sequence[PromptSegment], cached: Sequence[CachedPrefix], ratio: float = 1.0
) -> CachePlan:
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
        blocks=account_blocks(segments, read, (), ratio),
    )


def account_blocks(
    segments: Sequence[PromptSegment],
    read: int,
    writes: Sequence[tuple[int, CacheTtl]],
    ratio: float,
) -> tuple[BlockUsage, ...]:
    """Return the expected tokens of each block. `read`, `writes`: as in `CachePlan`. `ratio`:
    billed tokens per estimated token.
    """
    fixed = next((at for at, one in enumerate(segments) if one.behind == "said"), len(segments))
    ranges = [(one.name, at, at + 1) for at, one in enumerate(segments[:fixed])]
    ranges += [("history", fixed, len(segments))]
    written_end = writes[-1][0] + 1 if writes else read
    blocks = []
    for name, start, end in ranges:
        read_end = min(max(start, read), end)
        writing_end = min(max(read_end, written_end), end)
        ends = [segments[at - 1].end_tokens if at else 0 for at in (start, read_end, writing_end)]
        if total := (segments[end - 1].end_tokens if end else 0) - ends[0]:
            lifetimes = [lifetime for place, lifetime in writes if place >= read_end]
            block = BlockUsage(
                name=name,
                tokens=round(total * ratio),
                read=round((ends[1] - ends[0]) * ratio),
                written=round((ends[2] - ends[1]) * ratio),
                lifetime=lifetimes[0] if writing_end > read_end else None,
            )
            blocks.append(block)
    return tuple(blocks)


def segment_prompt(
    request: ModelRequest, size: PromptSize, before: "PlannedRequest | None" = None
) -> tuple[PromptSegment, ...]:
    """Divide a request into segments. `size`: its tokens.

    `before`: an earlier request of the conversation. Its segments are used again for the messages,
    from the first on, that are the same objects of the same size behind the same bytes.
    """
    segments = _fixed_segments(request, size, before)
    fixed, known = len(segments), 0
    digest = segments[-1].digest if segments else ROOT_DIGEST
    if size.images:
        digest = extend_digest(digest, b"images")
    if before is not None and list(before.segments[:fixed]) == segments:
        old, old_size = before.request, before.estimate.size
        if bool(old_size.images) == bool(size.images):
            known = _common_length(old.conversation, request.conversation)
            if old_size.conversation[:known] != size.conversation[:known]:
                known = 0
            end = len(before.segments)
            while end > fixed and before.segments[end - 1].number >= known:
                end -= 1
            segments.extend(before.segments[fixed:end])
    if known:
        digest = segments[-1].digest
    end_tokens = segments[-1].end_tokens if segments else 0
    for number, message in enumerate(request.conversation[known:], known):
        tokens = size.conversation[number]
        segments.extend(_message_segments(number, message, digest, tokens, end_tokens))
        digest, end_tokens = segments[-1].digest, segments[-1].end_tokens
    return tuple(segments)


def _common_length(old: Sequence[object], new: Sequence[object]) -> int:
    """Return the number of objects, from the first, that are the same in both."""
    length = 0
    for one, other in zip(old, new, strict=False):
        if one is not other:
            break
        length += 1
    return length


def _fixed_segments(
    request: ModelRequest, size: PromptSize, before: "PlannedRequest | None"
) -> list[PromptSegment]:
    """Return the segments in front of the conversation: those of `before` if they have the same
    bytes and sizes.
    """
    if before is not None:
        old, old_size = before.request, before.estimate.size
        if (old.tools, old.blocks, old_size.tools, old_size.blocks) == (
            request.tools,
            request.blocks,
            size.tools,
            size.blocks,
        ):
            return list(before.segments[: bool(request.tools) + len(request.blocks)])
    digest, shared, segments = ROOT_DIGEST, True, list[PromptSegment]()
    end_tokens = size.tools if request.tools else 0
    if request.tools:
        tools = [f"{tool.name}\0{tool.description}\0{tool.schema}" for tool in request.tools]
        digest = extend_digest(digest, b"tools\0" + _encode_text("\0".join(tools)))
        segment = PromptSegment(
            "tools", "tools", 0, size.tools, end_tokens, digest, len(tools), is_shared=True
        )
        segments.append(segment)
    for number, block in enumerate(request.blocks):
        shared = shared and block.name in SHARED_BLOCKS
        digest = extend_digest(digest, b"block\0" + _encode_text(block.text))
        tokens = size.blocks[number]
        end_tokens += tokens
        segment = PromptSegment(
            block.name, "block", number, tokens, end_tokens, digest, is_shared=shared
        )
        segments.append(segment)
    return segments


def _message_segments(
    number: int, message: ModelMessage, digest: Digest, tokens: int, before: int
) -> Iterator[PromptSegment]:
    """Yield one segment for each part, with a share of the tokens by its length. `before`: tokens
    in front of the message.

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
        end = before + ends[place]
        yield PromptSegment("history", "said", number, share, end, digest, takes_breakpoint=is_last)


def _part_bytes(part: MessagePart) -> bytes:
    if isinstance(part, Image):
        return b"image\0" + part.media_type.encode() + b"\0" + part.data
    if isinstance(part, TextPart):
        text = f"text\0{part.text}"
    elif isinstance(part, ToolCall):
        text = f"call\0{part.id}\0{part.name}\0{part.arguments}"
    else:
        text = f"result\0{part.id}\0{part.is_error}\0{part.text}"
    return _encode_text(text)


def describe_difference(before: ModelRequest, now: ModelRequest) -> str:
    """Return the first difference in the common length: block, field and byte offset.

    Empty: one request continues the other. Prefixes with and without images are cached separately
    (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates the cache).
    """
    for old, new in zip_longest(_cached_fields(before), _cached_fields(now)):
        if old is None:
            return (
                ""
                if before.has_images == now.has_images
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
            pairs = enumerate(zip(bytes_before, bytes_now, strict=False))
            shorter = min(len(bytes_before), len(bytes_now))
            place = next((at for at, (one, other) in pairs if one != other), shorter)
            return f"{name}: {field} differs at byte {place}"
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


def is_hour_cheaper(kept: float, written: float, cost: Price) -> bool:
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

Breakpoints = list[tuple[int, CacheTtl]]
"""Segments to mark, ascending, and the lifetime of each."""

_PRESUMED_HOUR_GAPS = 0.4
"""Gaps between 5 minutes and an hour that are assumed for a prefix that begins with an hour."""

_MIN_LONG_GAPS = 2.0
"""Least number of gaps of more than an hour before the end of a conversation may go without a
breakpoint."""


@frozen
class MeasuredPrompt:
    """Segments of a request, and the sizes that the choice of breakpoints depends on."""

    segments: Sequence[PromptSegment]
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
            segment if segment >= 0 and self.segments[segment].end_tokens >= self.min_tokens else -1
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
            if self.segments[i].takes_breakpoint and self.segments[i].end_tokens >= self.min_tokens
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
    prompt: MeasuredPrompt, shared: GapOdds, own: GapOdds, cost: Price
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


def _lifetime_after_hour(odds: GapOdds, cost: Price) -> CacheTtl:
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


def plan_cache(
    segments: Sequence[PromptSegment],
    *,
    price: Price,
    policy: CachePolicy,
    shared: GapOdds,
    own: GapOdds,
    cached: Sequence[CachedPrefix] = (),
    ratio: float = 1.0,
) -> CachePlan:
    """Choose the breakpoints of one request.

    `shared`: odds of the part that all conversations share. `own`: odds of this conversation.
    `cached`: as `CacheState.find` returns it. `ratio`: billed tokens per estimated token.
    """
    prompt = MeasuredPrompt(
        segments=segments,
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
        if not policy.allows_hour:
            price = price.model_copy(update={"write_1h": inf})
        breakpoints = choose_breakpoints(prompt, shared, own, price)
    read = _count_hit_segments(prompt, breakpoints, cached)
    writes = tuple((segment, lifetime) for segment, lifetime in breakpoints if segment >= read)
    return CachePlan(
        breakpoints=tuple(
            CacheBreakpoint(behind=segments[i].behind, index=segments[i].number, lifetime=lifetime)
            for i, lifetime in breakpoints
        ),
        read_segments=read,
        writes=writes,
        blocks=account_blocks(segments, read, writes, ratio),
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


def _count_hit_segments(
    prompt: MeasuredPrompt, breakpoints: Breakpoints, cached: Sequence[CachedPrefix]
) -> int:
    for segment, _ in reversed(breakpoints):
        for place in reversed(cached):
            if (
                place.segment <= segment
                and prompt.end_positions[segment] - prompt.end_positions[place.segment]
                < LOOK_BACK_POSITIONS
            ):
                return place.segment + 1
    return 0


_MISS_SHARE = 0.9
"""Share of the expected tokens below which a read is a miss. Estimates are off by as much."""
_ROUNDING_TOKENS = 256
"""Tokens by which a provider may round down."""


@dataclass(slots=True, kw_only=True)
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


def is_read_enough(read: int, expected: float) -> bool:
    """Return whether so many tokens read agree with the expectation, as far as estimates allow."""
    return read >= expected * _MISS_SHARE - _ROUNDING_TOKENS


def find_cache_miss(planned: PlannedRequest, usage: Usage) -> int | None:
    """Return how many tokens should have been read, if fewer were. None: no miss."""
    # The estimate may be off as a whole, so only the share that was read counts.
    planned_read = sum([block.read for block in planned.plan.blocks])
    if not planned_read or not usage.prompt_tokens:
        return None
    expected = planned.scale * planned_read
    return None if is_read_enough(usage.cache_read_tokens, expected) else round(expected)


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


@frozen
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
