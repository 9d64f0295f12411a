"""Starts each MCP server once and ends it, unless the gateway runs: two of one might get in each other's way."""

import asyncio
import importlib.util
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Final

from channels.tasks import end
from gateway.clock import SystemClock
from gateway.doctor.base import Check, Subject
from gateway.doctor.rules.mcp import of_server, of_slow
from gateway.probes.base import Finding
from gateway.settings_tools import McpServer

UP_S: Final = 8.0


def mcp_checks(subject: Subject) -> list[tuple[str, Check]]:
    """One for each server."""
    return [(f"MCP server {name}", partial(_server, name, one)) for name, one in subject.settings.tools.mcp.items()]


async def _server(name: str, config: McpServer, subject: Subject) -> Sequence[Finding]:
    if importlib.util.find_spec("mcp") is None:
        return [of_server(name, why="", tools=0, missing_library=True)]
    if config.command and shutil.which(config.command[0], path=subject.environment.env.get("PATH")) is None:
        return [of_server(name, why="", tools=0, program=config.command[0])]
    if subject.gateway_state.is_alive:
        return [of_server(name, why="", tools=0, untried="the gateway runs, and has it")]
    if subject.offline and config.url:
        return [of_server(name, why="", tools=0, untried="it is somewhere else")]
    from gateway.tools.mcp.server import START_S, Server  # noqa: PLC0415 - takes half a second

    server = Server(name, config, (name,), SystemClock(), chance=lambda: 1.0, told=lambda *_: None)
    running = asyncio.create_task(server.run())
    try:
        async with asyncio.timeout(UP_S):
            await server.settled.wait()
    except TimeoutError:
        return [of_slow(name, UP_S, START_S)]
    finally:
        await end(running)
    state = server.describe()
    return [of_server(name, why="" if state.state == "up" else state.why or "it ended", tools=state.tools)]
