"""A request as a row of places where a cache mark can stand, named by all bytes up to there. Pure."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from agent.cache.marks import PromptSegment
from agent.cache.warmth import ROOT_DIGEST, Digest, extend_digest
from agent.models.base import Image, MessagePart, ModelMessage, ModelRequest, TextPart, ToolCall, ToolResult
from agent.prompt import SHARED_BLOCKS
from agent.tokens.size import PromptSize, common_prefix_length


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
