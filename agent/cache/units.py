"""A request as a row of places where a cache mark can stand, named by all bytes up to there. Pure."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from agent.cache.marks import Unit
from agent.cache.warmth import ROOT, Digest, chain
from agent.models.base import Image, Piece, Request, Said, Text, ToolCall, ToolResult
from agent.prompt import SHARED
from agent.tokens.size import PromptSize, common


def units(request: Request, size: PromptSize, before: tuple[Request, Sequence[Unit]] | None = None) -> tuple[Unit, ...]:
    """Lay a request out. Tokens are those of `size`.

    `before`: an earlier request, laid out: what both have in common from the first (the same objects) is taken over.
    """
    seen = shows(request)
    if before is not None and shows(before[0]) == seen:
        known, parts, made = _known(request, size, *before)
    else:
        known, parts, made = 0, 0, list(_fixed(request, size))
    digest = made[-1].digest if made else ROOT
    if seen and not known and not parts:
        digest = chain(digest, b"images")
    for number in range(known, len(request.conversation)):
        tokens = size.conversation[number] - sum([unit.tokens for unit in made[len(made) - parts :]])
        made.extend(_said(number, request.conversation[number], digest, tokens, skip=parts))
        digest, parts = made[-1].digest, 0
    return tuple(made)


def _known(request: Request, size: PromptSize, old: Request, laid: Sequence[Unit]) -> tuple[int, int, list[Unit]]:
    """How many `Said` are known, how many pieces of the next one, and the units of all that."""
    if old.blocks != request.blocks or old.tools != request.tools:
        return 0, 0, list(_fixed(request, size))
    known = common(old.conversation, request.conversation)
    upto = bool(request.tools) + len(request.blocks) + sum([len(said.parts) for said in request.conversation[:known]])
    measured = size.tools + sum(size.blocks) + sum(size.conversation[:known])
    if sum([unit.tokens for unit in laid[:upto]]) != measured:  # it was counted in another way
        return 0, 0, list(_fixed(request, size))
    parts = 0
    if known < min(len(old.conversation), len(request.conversation)):  # where nobody answers, one side goes on
        said, now = old.conversation[known], request.conversation[known]
        parts = common(said.parts, now.parts) if said.role == now.role else 0
        if sum([unit.tokens for unit in laid[upto : upto + parts]]) > size.conversation[known]:
            parts = 0
    made = list(laid[: upto + parts])
    if parts:
        made[-1] = made[-1]._replace(takes_breakpoint=parts == len(request.conversation[known].parts))
    return known, parts, made


def _fixed(request: Request, size: PromptSize) -> Iterator[Unit]:
    """All in front of the conversation."""
    digest, shared = ROOT, True
    if request.tools:
        digest = chain(digest, b"tools\0" + _text(_tools(request)))
        yield Unit("tools", "tools", 0, size.tools, digest, positions=len(request.tools), is_shared=True)
    for number, block in enumerate(request.blocks):
        shared = shared and block.name in SHARED
        digest = chain(digest, b"block\0" + _text(block.text))
        yield Unit(block.name, "block", number, size.blocks[number], digest, is_shared=shared)


def _said(number: int, said: Said, digest: Digest, tokens: int, *, skip: int = 0) -> Iterator[Unit]:
    """One unit for each piece behind the first `skip`: a later request may go on where this one's last piece ends."""
    last, pieces = len(said.parts) - 1, len(said.parts) - skip
    for place, part in enumerate(said.parts[skip:], start=skip):
        digest = chain(digest, said.role.encode() + b"\0" + _bytes(part))
        share = tokens // pieces + (tokens % pieces if place == last else 0)
        yield Unit("history", "said", number, share, digest, takes_breakpoint=place == last)


def _bytes(part: Piece) -> bytes:
    match part:
        case Text():
            return b"text\0" + _text(part.text)
        case Image():
            return b"image\0" + part.media_type.encode() + b"\0" + part.data
        case ToolCall():
            return _text(f"call\0{part.id}\0{part.name}\0{part.arguments}")
        case ToolResult():
            return _text(f"result\0{part.id}\0{part.is_error}\0{part.text}")


def _tools(request: Request) -> str:
    return "\0".join(f"{tool.name}\0{tool.description}\0{tool.schema}" for tool in request.tools)


def shows(request: Request) -> bool:
    """Whether there are images. What is cached of a conversation with any is no other one's, and the other way round.

    So it is with Claude (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates the cache).
    """
    return any(isinstance(part, Image) for said in request.conversation for part in said.parts)


def difference(before: Request, now: Request) -> str:
    """Where the first byte differs that both have: block, field and byte offset. Empty: one goes on where one ends."""
    for old, new in zip_longest(_fields(before), _fields(now)):
        if old is None:
            return "" if shows(before) == shows(now) else "history: there were no images before"
        if new is None:
            return f"{old[0]}: {old[1]} is gone"
        if old != new:
            name, field, bytes_before = old
            other, instead, bytes_now = new
            if (name, field) != (other, instead):
                return (
                    f"{name}: {other} stands in the place of {field}" if name != other else f"{name}: {field} is gone"
                )
            return f"{name}: {field} differs at byte {_offset(bytes_before, bytes_now)}"
    return ""


def _fields(request: Request) -> Iterator[tuple[str, str, bytes]]:
    """Block, field and bytes of everything that is cached, in order."""
    for tool in request.tools:
        yield "tools", f"tools[{tool.name}]", _text(f"{tool.description}\0{tool.schema}")
    for number, block in enumerate(request.blocks):
        yield block.name, f"blocks[{number}].text", _text(block.text)
    for number, said in enumerate(request.conversation):
        for place, part in enumerate(said.parts):
            where = f"conversation[{number}].parts[{place}]"
            yield "history", f"{where}.{said.role}", type(part).__name__.encode()
            yield "history", where, _text(part.text) if isinstance(part, Text) else _bytes(part)


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _offset(old: bytes, new: bytes) -> int:
    """Of the first byte that differs."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if old[:middle] == new[:middle] else (low, middle - 1)
    return low
