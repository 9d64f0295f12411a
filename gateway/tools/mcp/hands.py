"""Tools of a server as hands."""

import json
from collections.abc import Awaitable, Callable
from typing import Final

from agent.models.base import Image, ToolSpec
from agent.tools.schema import Refused
from gateway.events import Shown
from gateway.hands import Given, Hand, Whereabouts
from gateway.tools.mcp.answers import pictures, text
from gateway.tools.mcp.server import WAIT_S, Server
from gateway.tools.permits import Permit

Keep = Callable[[bytes, str], Awaitable[tuple[Shown, Image] | None]]
"""Keeps an image, with a line about it, so that a model may be shown it. None: it cannot be shown."""

MORE_S: Final = 4 * WAIT_S
"""Beside the time of the call itself: to wait for a server, to have it told that nobody waits any more."""


def hand(server: Server, tool: str, spec: ToolSpec, keep: Keep | None) -> Hand:
    """One tool. `tool` is the server's own name of it."""

    async def does(asked: str, where: Whereabouts) -> Given:  # noqa: ARG001 - where does not matter
        answer = await server.call(tool, _arguments(asked))
        origin = f"mcp {server.name} {tool}"
        shown, kept = [], []
        for one in pictures(answer) if keep is not None else ():
            assert keep is not None
            if (image := await keep(one.data, f"{one.kind} from {origin}")) is not None:
                shown.append(one)
                kept.append(image)
        told = server.secret_filter.redact(text(answer, shown))
        return Given(text=told, kind="mcp", origin=origin, is_untrusted=True, is_foreign=True, images=tuple(kept))

    permit = Permit(role=server.config.role, approval=server.config.approval)
    return Hand(spec, None, does, permit, server.config.timeout + MORE_S, "cheap")


def _arguments(written: str) -> dict[str, object]:
    try:
        asked = json.loads(written.strip() or "{}", parse_constant=_no_number)
        json.dumps(asked, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Refused("The arguments are no JSON that can be sent: write one JSON object.") from None
    if not isinstance(asked, dict):
        raise Refused("The arguments have to be one JSON object.")
    return asked


def _no_number(name: str) -> None:
    raise ValueError(name)
