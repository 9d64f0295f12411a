"""What a tool of a server brought, as the model is told of it. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pictures import identify_image

MAX_RESULT_BLOCKS: Final = 1_000
MAX_IMAGES: Final = 4
"""Of one result; more are told in words."""
FAILED: Final = "It did not work. The server says:"
NO_OUTPUT: Final = "It was done; the server says nothing about it."


@dataclass(frozen=True, slots=True, kw_only=True)
class McpText:
    """Text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class McpBinary:
    """Anything else."""

    kind: str
    """`image`, `sound` or `file`."""
    media_type: str
    """As the server says: untrusted."""
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class McpResult:
    """Of one call."""

    blocks: Sequence[McpText | McpBinary]
    structured: object = None
    """JSON of any shape. None: there is none."""
    error: bool = False
    """The server says that it did not work."""


def find_images(answer: McpResult) -> list[McpBinary]:
    """Those that a model can be shown, by what they are and not by what is said of them."""
    found = [one for one in answer.blocks if isinstance(one, McpBinary) and identify_image(one.data) is not None]
    return found[:MAX_IMAGES]


def render_result(answer: McpResult, shown: Sequence[McpBinary]) -> str:
    """The whole as a text; what is in `shown` is said to be shown."""
    told = [_render_block(one, shown) for one in answer.blocks[:MAX_RESULT_BLOCKS]]
    if answer.structured is not None and not _is_repeated_in_text(answer.structured, answer.blocks):
        told.append(json.dumps(answer.structured, ensure_ascii=False, sort_keys=True))
    if (more := len(answer.blocks) - MAX_RESULT_BLOCKS) > 0:
        told.append(f"[{more} more parts are left out]")
    whole = "\n".join(one for one in told if one)
    if answer.error:
        return f"{FAILED}\n{whole or '(nothing)'}"
    return whole or NO_OUTPUT


def _render_block(block: McpText | McpBinary, shown: Sequence[McpBinary]) -> str:
    if isinstance(block, McpText):
        return block.text
    kind = " ".join(block.media_type.split())[:64]
    size = f"{len(block.data):,} bytes"
    if any(block is one for one in shown):
        return f"[{block.kind}, {kind}, {size}: shown]"
    return f"[{block.kind}, {kind}, {size}: it cannot be shown here]"


def _is_repeated_in_text(structured: object, blocks: Sequence[McpText | McpBinary]) -> bool:
    """Servers say what is structured as text, too (specification 2025-11-25, server/tools, structured content).

    Those made with the Python library wrap what is no object as `{"result": ...}`, and say a list item by item.
    """
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(structured["result"])
    said = [one.text for one in blocks if isinstance(one, McpText)]
    for value in values:
        if any(_is_same_value(text, value) for text in said):
            return True
        if isinstance(value, list) and len(said) == len(value) and all(map(_is_same_value, said, value)):
            return True
    return False


def _is_same_value(text: str, value: object) -> bool:
    try:
        return text == value or bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
