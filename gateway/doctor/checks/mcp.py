"""Starts each MCP server once and ends it, unless the gateway runs: two of one might get in each other's way."""

import asyncio
import importlib.util
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Final

from channels.tasks import cancel_and_wait
from gateway.clock import SystemClock
from gateway.doctor.base import DoctorCheck, DoctorContext
from gateway.doctor.rules.mcp import judge_mcp_server, judge_slow_mcp_server
from gateway.probes.base import Finding
from gateway.settings_tools import McpServerConfig

MCP_START_TIMEOUT_S: Final = 8.0


def mcp_checks(subject: DoctorContext) -> list[tuple[str, DoctorCheck]]:
    """One for each server."""
    return [
        (f"MCP server {name}", partial(_check_mcp_server, name, one))
        for name, one in subject.settings.tools.mcp.items()
    ]


async def _check_mcp_server(name: str, config: McpServerConfig, subject: DoctorContext) -> Sequence[Finding]:
    if importlib.util.find_spec("mcp") is None:
        return [judge_mcp_server(name, why="", tools=0, missing_library=True)]
    if config.command and shutil.which(config.command[0], path=subject.environment.env.get("PATH")) is None:
        return [judge_mcp_server(name, why="", tools=0, program=config.command[0])]
    if subject.gateway_state.is_alive:
        return [judge_mcp_server(name, why="", tools=0, untried="the gateway runs, and has it")]
    if subject.offline and config.url:
        return [judge_mcp_server(name, why="", tools=0, untried="it is somewhere else")]
    from gateway.tools.mcp.server import START_TIMEOUT_S, McpServerClient  # noqa: PLC0415 - takes half a second

    server = McpServerClient(name, config, (name,), SystemClock(), chance=lambda: 1.0, told=lambda *_: None)
    running = asyncio.create_task(server.run())
    try:
        async with asyncio.timeout(MCP_START_TIMEOUT_S):
            await server.settled.wait()
    except TimeoutError:
        return [judge_slow_mcp_server(name, MCP_START_TIMEOUT_S, START_TIMEOUT_S)]
    finally:
        await cancel_and_wait(running)
    state = server.describe()
    return [judge_mcp_server(name, why="" if state.state == "up" else state.why or "it ended", tools=state.tools)]
