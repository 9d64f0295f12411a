"""From the library's types to ours."""

import base64
import binascii
from typing import Final

import mcp_types as types

from gateway.tools.mcp.answers import McpBinary, McpResult, McpText
from gateway.tools.mcp.offers import McpToolOffer

INPUT_REQUIRED: Final = "(It wants to know more before it goes on, and nobody here can tell it.)"


def convert_tool(tool: types.Tool) -> McpToolOffer:
    """A tool, as its server describes it."""
    annotated = tool.annotations.title if tool.annotations is not None else None
    return McpToolOffer(
        name=tool.name,
        title=tool.title or annotated or "",
        description=tool.description or "",
        schema=tool.input_schema,
    )


def convert_result(result: types.CallToolResult | types.InputRequiredResult) -> McpResult:
    """What came of a call. Links are not followed."""
    if isinstance(result, types.InputRequiredResult):
        return McpResult(blocks=[McpText(text=INPUT_REQUIRED)], error=True)
    return McpResult(
        blocks=[_convert_block(one) for one in result.content],
        structured=result.structured_content,
        error=result.is_error,
    )


def _convert_block(block: types.ContentBlock) -> McpText | McpBinary:
    if isinstance(block, types.TextContent):
        return McpText(text=block.text)
    if isinstance(block, types.ImageContent):
        return _convert_bytes("image", block.mime_type, block.data)
    if isinstance(block, types.AudioContent):
        return _convert_bytes("sound", block.mime_type, block.data)
    if isinstance(block, types.ResourceLink):
        about = ": ".join(one for one in (block.title or block.name, block.description) if one)
        return McpText(text=f"[link to {block.uri}] {about}".rstrip())
    if isinstance(block.resource, types.TextResourceContents):
        return McpText(text=f"[{block.resource.uri}]\n{block.resource.text}")
    return _convert_bytes("file", block.resource.mime_type or "of no known kind", block.resource.blob)


def _convert_bytes(what: str, media_type: str, data: str) -> McpText | McpBinary:
    try:
        return McpBinary(kind=what, media_type=media_type, data=base64.b64decode("".join(data.split()), validate=True))
    except (binascii.Error, ValueError):
        return McpText(text=f"[{what} that cannot be read]")
