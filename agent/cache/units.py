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
    if before is not None and before[0].blocks == request.blocks and before[0].tools == request.tools:
        known = common(before[0].conversation, request.conversation)
        fixed = bool(request.tools) + len(request.blocks)
        made = list(before[1][: fixed + sum([len(said.parts) for said in request.conversation[:known]])])
    else:
        known, made = 0, list(_fixed(request, size))
    digest = made[-1].digest if made else ROOT
    for number in range(known, len(request.conversation)):
        made.extend(_said(number, request.conversation[number], digest, size.conversation[number]))
        digest = made[-1].digest
    return tuple(made)


def _fixed(request: Request, size: PromptSize) -> Iterator[Unit]:
    """All in front of the conversation."""
    digest, shared = ROOT, True
    if request.tools:
        digest = chain(digest, b"tools\0" + _text(_tools(request)))
        yield Unit("tools", "tools", 0, size.tools, digest, positions=len(request.tools), shared=True)
    for number, block in enumerate(request.blocks):
        shared = shared and block.name in SHARED
        digest = chain(digest, b"block\0" + _text(block.text))
        yield Unit(block.name, "block", number, size.blocks[number], digest, shared=shared)


def _said(number: int, said: Said, digest: Digest, tokens: int) -> Iterator[Unit]:
    """One unit for each piece: a later request may go on where this one's last piece ends."""
    last = len(said.parts) - 1
    for place, part in enumerate(said.parts):
        digest = chain(digest, said.role.encode() + b"\0" + _bytes(part))
        share = tokens // len(said.parts) + (tokens % len(said.parts) if place == last else 0)
        yield Unit("history", "said", number, share, digest, markable=place == last)


def _bytes(part: Piece) -> bytes:
    match part:
        case Text():
            return b"text\0" + _text(part.text)
        case Image():
            return b"image\0" + part.media_type.encode() + b"\0" + part.data
        case ToolCall():
            return _text(f"call\0{part.id}\0{part.name}\0{part.arguments}")
        case ToolResult():
            return _text(f"result\0{part.id}\0{part.error}\0{part.text}")


def _tools(request: Request) -> str:
    return "\0".join(f"{tool.name}\0{tool.description}\0{tool.schema}" for tool in request.tools)


def difference(before: Request, now: Request) -> str:
    """Where the first byte differs that both have: block, field and byte offset. Empty: one goes on where one ends."""
    for old, new in zip_longest(_fields(before), _fields(now)):
        if old is None:
            return ""
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
