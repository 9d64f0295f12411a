"""Plan of the prompt cache for one request: segments, and their expected reads and writes. Pure.

In the order of this file: the types of a plan, `plan_automatic` (the plan of a request without
breakpoints) and `account_blocks` (what it reads and writes of each block), `segment_prompt` (the
segments of a request), `describe_difference` (where two requests part), `plan_cache` (where
breakpoints stand, and for how long), `segments_before_messages` (the request whose messages are not
read), `PlannedRequest`, `is_read_enough`, `find_cache_miss` and `explain_cache_miss` (the plan
against the bill) and `CacheProfile` (properties of a provider). `agent.cache.idle` plans what is
done for idle conversations, `agent.cache.state` chooses the lifetimes.

Breakpoints (platform.claude.com/docs/en/build-with-claude/prompt-caching): a request has at most
four. A lifetime of an hour stands in front of one of 5 minutes. Only a prefix that ends at a
breakpoint is written, and only if it has the model's minimum length. A breakpoint reads the longest
cached prefix that ends at most twenty positions back, its own counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from math import ceil
from typing import Final, Literal

from agent.cache.prices import ASSUMED_PRICE, Price
from agent.cache.state import (
    ROOT_DIGEST,
    CachedPrefix,
    Cadence,
    Digest,
    Lifetimes,
    PromptSegment,
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


@frozen
class CachePolicy:
    """Way to decide."""

    kind: Literal["auto", "fixed", "off"] = "auto"
    """auto: what the gaps between requests show to be cheapest. fixed: 1 h for the shared part and
    the binding, `short_lifetime` behind them. off: no breakpoints."""
    allows_hour: bool = True
    """False: the provider has no lifetime of 1 h, or may not be asked for it."""
    short_lifetime: CacheTtl = "5m"
    """Counts only with `fixed`, and `1h` only if it is allowed."""
    keeps_warm: bool = False
    """True: there is a budget for refreshes. An hour of the shared part then costs a read each."""

    def lifetimes(self, cadence: Cadence, conversation: str, price: Price) -> Lifetimes | None:
        """Return the lifetimes for a request of this conversation. None: no breakpoints."""
        if self.kind == "off":
            return None
        if not self.allows_hour:
            return Lifetimes("5m", "5m", "5m")
        if self.kind == "fixed":
            return Lifetimes("1h", "1h", self.short_lifetime)
        chosen = cadence.lifetimes(conversation, price)
        return chosen._replace(shared="1h") if self.keeps_warm else chosen


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


def plan_automatic(segments: Sequence[PromptSegment], read: int, ratio: float = 1.0) -> CachePlan:
    """Return the plan for a provider that caches every prefix by itself, and keeps it for a
    while. `read`: segments that it can read.
    """
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
    for number, message in enumerate(request.conversation[known:], known):
        last = segments[-1] if segments else None
        segments += _message_segments(number, message, digest, size.conversation[number], last)
        digest = segments[-1].digest
    return tuple(segments)


def _common_length(old: Sequence[object], new: Sequence[object]) -> int:
    """Return the number of objects, from the first, that are the same in both."""
    if new[: len(old)] == old:
        return len(old)
    pairs = enumerate(zip(old, new, strict=False))
    return next((at for at, (one, other) in pairs if one is not other), min(len(old), len(new)))


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
        segments.append(
            PromptSegment(
                "tools", "tools", 0, size.tools, end_tokens, digest, len(tools), is_shared=True
            )
        )
    position = len(request.tools)
    for number, block in enumerate(request.blocks):
        shared = shared and block.name in SHARED_BLOCKS
        digest = extend_digest(digest, b"block\0" + _encode_text(block.text))
        tokens = size.blocks[number]
        end_tokens += tokens
        position += 1
        segments.append(
            PromptSegment(
                block.name, "block", number, tokens, end_tokens, digest, position, is_shared=shared
            )
        )
    return segments


def _message_segments(
    number: int, message: ModelMessage, digest: Digest, tokens: int, before: PromptSegment | None
) -> Iterator[PromptSegment]:
    """Yield one segment for each part, with a share of the tokens by its length. `before`: the
    segment in front of the message.

    A later request may continue the message behind its last part.
    """
    begin, position = (before.end_tokens, before.end_position) if before is not None else (0, 0)
    pieces = [_part_bytes(part) for part in message.parts]
    lengths = [
        _IMAGE_LENGTH if isinstance(part, Image) else len(piece)
        for part, piece in zip(message.parts, pieces, strict=True)
    ]
    ends = [round(tokens * end / sum(lengths)) for end in accumulate(lengths)]
    for place, piece in enumerate(pieces):
        digest = extend_digest(digest, message.role.encode() + b"\0" + piece)
        yield PromptSegment(
            name="history",
            behind="said",
            number=number,
            tokens=ends[place] - (ends[place - 1] if place else 0),
            end_tokens=begin + ends[place],
            digest=digest,
            end_position=position + place + 1,
            takes_breakpoint=place == len(pieces) - 1,
        )


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


MAX_BREAKPOINTS = 4

LOOK_BACK_POSITIONS = 20
"""Positions that a breakpoint searches, its own first."""

_SAFE_LOOK_BACK = 17
"""Positions that are relied on: thinking takes a position of its own, and so does each text for one
request that stays in front of it."""


def plan_cache(
    segments: Sequence[PromptSegment],
    lifetimes: Lifetimes | None,
    *,
    minimum_tokens: int,
    cached: Sequence[CachedPrefix] = (),
    ratio: float = 1.0,
    loop_start: int | None = None,
) -> CachePlan:
    """Choose the breakpoints of one request. `lifetimes` None: there are none.

    `minimum_tokens`: of the shortest prefix that is cached. `cached`: as `CacheState.find` returns
    it. `ratio`: billed tokens per estimated token. `loop_start`: index of the first
    `ModelMessage` that only its tool loop repeats, so that more than 5 minutes are wasted on it.
    None: there is none.
    """
    breakpoints = dict[int, CacheTtl]()
    if lifetimes is not None:
        hit = cached[-1] if cached else None
        breakpoints = _place_breakpoints(segments, minimum_tokens, lifetimes, hit)
        breakpoints |= {
            at: "5m"
            for at in breakpoints
            if loop_start is not None
            and segments[at].behind == "said"
            and segments[at].number >= loop_start
        }
    read = _count_hit_segments(segments, breakpoints, cached)
    writes = tuple([mark for mark in breakpoints.items() if mark[0] >= read])
    return CachePlan(
        breakpoints=tuple(
            CacheBreakpoint(behind=segments[i].behind, index=segments[i].number, lifetime=lifetime)
            for i, lifetime in breakpoints.items()
        ),
        read_segments=read,
        writes=writes,
        blocks=account_blocks(segments, read, writes, ratio),
    )


def _place_breakpoints(
    segments: Sequence[PromptSegment],
    minimum_tokens: int,
    lifetimes: Lifetimes,
    hit: CachedPrefix | None,
) -> dict[int, CacheTtl]:
    """Mark the shared part, the binding, the card, the end of the previous request if that is far
    back, and the end. Return the lifetimes by segment, in order.

    If these are too many, the binding goes without: it is then written with the card.
    `minimum_tokens`: of what can be marked. `hit`: the longest prefix that is assumed to be cached.
    """
    fixed = next((at for at, one in enumerate(segments) if one.behind == "said"), len(segments))
    shared = next((at for at in range(fixed) if not segments[at].is_shared), fixed)
    # Other rooms may share what stands in front of the channel card.
    bound = next((at for at in range(fixed, shared, -1) if segments[at - 1].name != "channel"), 0)
    head, binding, card, end = (
        _last_usable(segments, count, minimum_tokens)
        for count in (shared, bound, fixed, len(segments))
    )
    is_cold = hit is None or hit.segment <= max(head, binding)
    own = lifetimes.own
    if hit is not None and not is_cold and hit.lifetime == "5m":
        own = "5m"  # an hour is wasted behind a prefix that expires earlier
    chosen = dict[int, CacheTtl]()
    if own is not None or not is_cold:
        places = card, _intermediate_segment(segments, end, minimum_tokens, hit), end
        chosen = {place: own or "5m" for place in places if place >= 0}
    if head >= 0:
        chosen[head] = lifetimes.shared
    if binding > head and (binding == card or len(chosen) < MAX_BREAKPOINTS):
        chosen[binding] = lifetimes.binding
    last_long = max([at for at, lifetime in chosen.items() if lifetime == "1h"], default=-1)
    return {at: "1h" if at <= last_long else "5m" for at in sorted(chosen)}  # 1 h in front of 5 m


def _last_usable(segments: Sequence[PromptSegment], count: int, minimum_tokens: int) -> int:
    """Return the last of the first `count` segments that can be marked. -1: none."""
    while count and not segments[count - 1].takes_breakpoint:
        count -= 1
    return count - 1 if count and segments[count - 1].end_tokens >= minimum_tokens else -1


def _intermediate_segment(
    segments: Sequence[PromptSegment], end: int, minimum_tokens: int, hit: CachedPrefix | None
) -> int:
    """Return a place for a breakpoint in front of the last one (`end`), to find what that cannot.
    -1: none is needed.

    If nothing of the conversation is known to be cached (a restart forgets), that is the end of the
    previous request: behind it stand one answer and one message.
    """
    at = hit.segment if hit is not None else -1
    if end >= 0 and (at < 0 or segments[at].behind != "said"):
        newest = segments[end].number
        before = (i for i in range(end, -1, -1) if segments[i].behind == "said")
        at = next((i for i in before if segments[i].number == newest - 2), at)
    if at < 0 or end < 0:
        return -1
    last_far = segments[end].end_position - _SAFE_LOOK_BACK
    for place in range(at, end):
        segment = segments[place]
        if segment.end_position > last_far:
            break
        if segment.takes_breakpoint and segment.end_tokens >= minimum_tokens:
            return place
    return -1


def _count_hit_segments(
    segments: Sequence[PromptSegment], breakpoints: Iterable[int], cached: Sequence[CachedPrefix]
) -> int:
    for mark in sorted(breakpoints, reverse=True):
        first = segments[mark].end_position - LOOK_BACK_POSITIONS
        for place in reversed(cached):
            if place.segment <= mark and segments[place.segment].end_position > first:
                return place.segment + 1
    return 0


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


_MISS_SHARE = 0.9
"""Share of the expected tokens below which a read is a miss. Estimates are off by as much."""
_ROUNDING_TOKENS = 256
"""Tokens by which a provider may round down."""


@dataclass(slots=True, kw_only=True)
class PlannedRequest:
    """A request with its plan, and later its bill."""

    request: ModelRequest
    segments: tuple[PromptSegment, ...]
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
        return self.segments[written[-1]].digest if written else None


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
    changed = since = ""
    if before is not None:
        since = f", last sent {planned.sent_at_s - before.sent_at_s:.0f} s before"
        count = len(before.segments)  # the digest of the last names all bytes in front of it
        if [one.digest for one in planned.segments[:count][-1:]] != [
            one.digest for one in before.segments[-1:]
        ]:
            changed = describe_difference(before.request, planned.request)
    if expected is None:
        return changed
    changed = changed or f"no byte differs{since}; the provider had it no more, or not yet"
    return f"{usage.cache_read_tokens} of about {expected} tokens were read: {changed}"


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

    def minimum_tokens(self, estimate: TokenEstimate) -> int:
        """Return the length of the shortest cached prefix in estimated tokens, because the provider
        counts billed ones.
        """
        return -(-self.price.minimum_tokens * 10_000 // max(1, estimate.correct(10_000)))

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
