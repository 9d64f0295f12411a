"""MCP servers. Each is started once and ended, unless the gateway runs: two instances could disturb
each other.
"""

import asyncio
import importlib.util
import shutil
from typing import Final

from channels.aio import cancel_and_wait
from gateway.config.check_registry import CheckContext, check
from gateway.core.clock import SystemClock
from gateway.core.findings import Finding, bad, ok, unknown, warning
from gateway.core.installing import install_command
from gateway.plugins.mcp.client import START_TIMEOUT_S, McpServerClient

MCP_START_TIMEOUT_S: Final = 8.0


@check("MCP server", each=lambda settings: settings.tools.mcp)
async def check_mcp_server(context: CheckContext, name: str) -> list[Finding]:
    """Check whether an MCP server comes up and offers tools."""
    return [await _check_server(name, context, f"tools.mcp.{name}")]


async def _check_server(name: str, context: CheckContext, where: str) -> Finding:
    config = context.settings.tools.mcp[name]
    if importlib.util.find_spec("mcp") is None:
        what = "the package mcp is not installed, so this server has no tools"
        return bad("mcp.library", what, install_command("mcp"), where)
    if (
        config.command
        and shutil.which(config.command[0], path=context.environment.env.get("PATH")) is None
    ):
        fix = "install it, or write its full path (the gateway's PATH may be shorter than yours)"
        return bad("mcp.program", f"there is no program {config.command[0]}", fix, where)
    if context.gateway_state.is_alive:
        fix = "ask the gateway, which uses it: /tools lists its tools"
        return unknown("mcp.server", "whether it works", fix, where)
    if context.offline and config.url:
        return unknown("mcp.server", "whether it works", "run doctor without --offline", where)
    server = McpServerClient(name, config, (name,), SystemClock(), chance=lambda: 1.0)
    running = asyncio.create_task(server.run())
    try:
        async with asyncio.timeout(MCP_START_TIMEOUT_S):
            await server.settled.wait()
    except TimeoutError:
        what = (
            f"it did not start within {MCP_START_TIMEOUT_S:.0f} s; the gateway waits for "
            f"{START_TIMEOUT_S:.0f} s, "
            "and tries again"
        )
        fix = (
            "run its command by hand and see how long it takes; npx and uvx download it first, "
            "so install it"
        )
        return warning("mcp.slow", what, fix, where)
    finally:
        await cancel_and_wait(running)
    if server.state != "up":
        fix = "run its command by hand and see what it says, and check its env, url and headers"
        return bad("mcp.server", f"it does not start: {server.reason or 'it ended'}", fix, where)
    if not len(server.tools):
        fix = f"check {where}.tools, which lists the tools that are used"
        return warning("mcp.tools", "it starts, but offers no tool that is used", fix, where)
    return ok("mcp.server", f"it starts, with {len(server.tools)} tools", where)
