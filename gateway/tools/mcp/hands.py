"""Tools of a server as hands."""

import json
from collections.abc import Awaitable, Callable
from typing import Final

from agent.models.base import Image, ToolSpec
from agent.tools.schema import ToolCallRefused
from gateway.events import ToolImage
from gateway.hands import Tool, ToolContext, ToolOutput
from gateway.tools.mcp.answers import find_images, render_result
from gateway.tools.mcp.server import DOWN_WAIT_S, McpServerClient
from gateway.tools.permits import ToolPermit

KeepImage = Callable[[bytes, str], Awaitable[tuple[ToolImage, Image] | None]]
"""Keeps an image, with a line about it, so that a model may be shown it. None: it cannot be shown."""

CALL_GRACE_S: Final = 4 * DOWN_WAIT_S
"""Beside the time of the call itself: to wait for a server, to have it told that nobody waits any more."""


def build_mcp_tool(server: McpServerClient, tool: str, spec: ToolSpec, keep: KeepImage | None) -> Tool:
    """One tool. `tool` is the server's own name of it."""

    async def does(asked: str, where: ToolContext) -> ToolOutput:  # noqa: ARG001 - where does not matter
        answer = await server.call(tool, _parse_arguments(asked))
        origin = f"mcp {server.name} {tool}"
        shown, kept = [], []
        for one in find_images(answer) if keep is not None else ():
            assert keep is not None
            if (image := await keep(one.data, f"{one.kind} from {origin}")) is not None:
                shown.append(one)
                kept.append(image)
        told = server.secret_filter.redact(render_result(answer, shown))
        return ToolOutput(text=told, kind="mcp", origin=origin, is_untrusted=True, is_foreign=True, images=tuple(kept))

    permit = ToolPermit(role=server.config.role, approval=server.config.approval)
    return Tool(spec, None, does, permit, server.config.timeout + CALL_GRACE_S, "cheap")


def _parse_arguments(written: str) -> dict[str, object]:
    try:
        asked = json.loads(written.strip() or "{}", parse_constant=_reject_constant)
        json.dumps(asked, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ToolCallRefused("The arguments are no JSON that can be sent: write one JSON object.") from None
    if not isinstance(asked, dict):
        raise ToolCallRefused("The arguments have to be one JSON object.")
    return asked


def _reject_constant(name: str) -> None:
    raise ValueError(name)
