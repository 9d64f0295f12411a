"""What a tool of a server brought, as the model is told of it. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pictures import picture

MAX_BLOCKS: Final = 1_000
MAX_PICTURES: Final = 4
"""Of one result; more are told in words."""
FAILED: Final = "It did not work. The server says:"
NOTHING: Final = "It was done; the server says nothing about it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Anything else."""

    kind: str
    """`image`, `sound` or `file`."""
    media_type: str
    """As the server says: untrusted."""
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Of one call."""

    blocks: Sequence[Words | Bytes]
    structured: object = None
    """JSON of any shape. None: there is none."""
    error: bool = False
    """The server says that it did not work."""


def pictures(answer: Answer) -> list[Bytes]:
    """Those that a model can be shown, by what they are and not by what is said of them."""
    found = [one for one in answer.blocks if isinstance(one, Bytes) and picture(one.data) is not None]
    return found[:MAX_PICTURES]


def text(answer: Answer, shown: Sequence[Bytes]) -> str:
    """The whole as a text; what is in `shown` is said to be shown."""
    told = [_block(one, shown) for one in answer.blocks[:MAX_BLOCKS]]
    if answer.structured is not None and not _told(answer.structured, answer.blocks):
        told.append(json.dumps(answer.structured, ensure_ascii=False, sort_keys=True))
    if (more := len(answer.blocks) - MAX_BLOCKS) > 0:
        told.append(f"[{more} more parts are left out]")
    whole = "\n".join(one for one in told if one)
    if answer.error:
        return f"{FAILED}\n{whole or '(nothing)'}"
    return whole or NOTHING


def _block(block: Words | Bytes, shown: Sequence[Bytes]) -> str:
    if isinstance(block, Words):
        return block.text
    kind = " ".join(block.media_type.split())[:64]
    size = f"{len(block.data):,} bytes"
    if any(block is one for one in shown):
        return f"[{block.kind}, {kind}, {size}: shown]"
    return f"[{block.kind}, {kind}, {size}: it cannot be shown here]"


def _told(structured: object, blocks: Sequence[Words | Bytes]) -> bool:
    """Servers say what is structured as text, too (specification 2025-11-25, server/tools, structured content).

    Those made with the Python library wrap what is no object as `{"result": ...}`, and say a list item by item.
    """
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(structured["result"])
    said = [one.text for one in blocks if isinstance(one, Words)]
    for value in values:
        if any(_same(text, value) for text in said):
            return True
        if isinstance(value, list) and len(said) == len(value) and all(map(_same, said, value)):
            return True
    return False


def _same(text: str, value: object) -> bool:
    try:
        return text == value or bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
