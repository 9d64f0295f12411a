"""From the library's types to ours."""

import base64
import binascii
from typing import Final

import mcp_types as types

from gateway.tools.mcp.answers import Answer, Bytes, Words
from gateway.tools.mcp.offers import Offered

UNMET: Final = "(It wants to know more before it goes on, and nobody here can tell it.)"


def offered(tool: types.Tool) -> Offered:
    """A tool, as its server describes it."""
    annotated = tool.annotations.title if tool.annotations is not None else None
    return Offered(
        name=tool.name,
        title=tool.title or annotated or "",
        description=tool.description or "",
        schema=tool.input_schema,
    )


def answer(result: types.CallToolResult | types.InputRequiredResult) -> Answer:
    """What came of a call. Links are not followed."""
    if isinstance(result, types.InputRequiredResult):
        return Answer(blocks=[Words(text=UNMET)], error=True)
    return Answer(
        blocks=[_block(one) for one in result.content],
        structured=result.structured_content,
        error=result.is_error,
    )


def _block(block: types.ContentBlock) -> Words | Bytes:
    if isinstance(block, types.TextContent):
        return Words(text=block.text)
    if isinstance(block, types.ImageContent):
        return _bytes("image", block.mime_type, block.data)
    if isinstance(block, types.AudioContent):
        return _bytes("sound", block.mime_type, block.data)
    if isinstance(block, types.ResourceLink):
        about = ": ".join(one for one in (block.title or block.name, block.description) if one)
        return Words(text=f"[link to {block.uri}] {about}".rstrip())
    if isinstance(block.resource, types.TextResourceContents):
        return Words(text=f"[{block.resource.uri}]\n{block.resource.text}")
    return _bytes("file", block.resource.mime_type or "of no known kind", block.resource.blob)


def _bytes(what: str, media_type: str, data: str) -> Words | Bytes:
    try:
        return Bytes(kind=what, media_type=media_type, data=base64.b64decode("".join(data.split()), validate=True))
    except (binascii.Error, ValueError):
        return Words(text=f"[{what} that cannot be read]")
