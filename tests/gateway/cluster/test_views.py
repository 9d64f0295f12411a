"""What operators and people see is the same whichever process is asked, on a real PostgreSQL server."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cluster.cluster import LeaseName, ProcessRole
from gateway.cluster.database import DatabaseCluster
from gateway.core import api_models as models
from gateway.core.clock import SystemClock
from gateway.core.control_messages import CommandRequest
from gateway.core.events import ConversationId
from gateway.ops.api_views import ApiBackend, get_conversation, get_status, list_conversations, list_minds
from gateway.ops.live_events import SseEncoder
from gateway.runtime.delegation import choose_worker
from tests.kits.gateway import CONSOLE, Held, settings
from tests.kits.workers import Team, Worker, team
from tests.servers.model_api import ModelApi
from tests.servers.real_postgresql import PostgresServer

pytestmark = pytest.mark.integration
ROLES: tuple[ProcessRole, ...] = ("edge", "worker", "worker")


@contextlib.asynccontextmanager
async def processes(tmp: Path, server: PostgresServer, **more: Any) -> AsyncIterator[tuple[Team, str]]:
    """Run an edge, which has the console, and two workers. Return them, and the address of their database."""
    schema = f"views{os.getpid()}"
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, server.drop, schema)
        url = server.url(schema)
        found = await stack.enter_async_context(
            team(settings(tmp, **more), *(None if "llm" in more else Held() for _ in ROLES), roles=ROLES, url=url)
        )
        for one in found.workers:
            stack.push_async_callback(backend(one).close)
        yield found, url


def backend(worker: Worker) -> ApiBackend:
    return worker.gateway.event_stream.backend


def place_of(worker: Worker, found: Team) -> ConversationId:
    """Return a direct chat that belongs to that worker."""
    numbers = [one.cluster.number for one in found.workers if one.cluster.role == "worker"]
    places = (ConversationId(f"{CONSOLE}/ann{number}") for number in range(1_000))
    return next(one for one in places if choose_worker(one, numbers) == worker.cluster.number)


async def status(worker: Worker) -> models.GatewayStatus:
    return await get_status(backend(worker), models.ApiQuery())


async def test_every_process_tells_of_the_turns_of_all(tmp_path: Path, postgresql: PostgresServer) -> None:
    async with processes(tmp_path, postgresql) as (found, _):
        edge, *workers = found.workers
        places = {place_of(one, found): f"process {1 + index}" for index, one in enumerate(workers)}
        for place in places:
            await found.say("how are you", sender=place.partition("/")[2])
        await found.until(lambda: all(one.model.requests for one in workers))
        for one in found.workers:
            told = await status(one)
            assert {turn.conversation: turn.process for turn in told.activity} == places
            assert [{*agent.running} for agent in told.agents] == [{*places}]
            assert told.processes is not None
            assert [process.turns for process in told.processes.processes] == [0, 1, 1]
            listed = await list_conversations(backend(one), models.LimitQuery())
            assert {place.conversation for place in listed.conversations if place.running} == {*places}
            (mind,) = (await list_minds(backend(one), models.ApiQuery())).agents
            assert {*mind.running} == {*places}
        for one in workers:
            one.model.go.set()
        await found.screen.until(2)
        await found.until(lambda: found.leader is not None and not found.leader.agent.state.running)
        assert [(await status(one)).activity for one in found.workers] == [()] * 3
        assert not edge.model.requests


async def test_every_process_shows_the_last_prompt(tmp_path: Path, postgresql: PostgresServer) -> None:
    async with ModelApi() as api:
        provider = {"kind": "anthropic", "base_url": api.url, "api_key": "sk-secret-a"}
        models_used = {"main": {"provider": "a", "name": "claude-sonnet-5-5"}}
        llm = {"providers": {"a": provider}, "models": models_used}
        async with processes(tmp_path, postgresql, llm=llm) as (found, _):
            await found.say("how are you")
            await found.screen.until(1)
            query = models.ConversationQuery(id=f"{CONSOLE}/ann")
            shown = [(await get_conversation(backend(one), query)).prompt for one in found.workers]
            assert shown[0] is not None
            assert shown[0].model.startswith("claude-sonnet-5-5")
            assert shown[0] == shown[1] == shown[2]


async def test_a_process_that_does_not_answer_hides_nothing_of_the_others(
    tmp_path: Path, postgresql: PostgresServer
) -> None:
    async with processes(tmp_path, postgresql) as (found, url):
        edge, worker, _ = found.workers
        silent = await DatabaseCluster.join(url, role="worker", name="silent", clock=SystemClock())
        try:
            await found.say("how are you", sender=place_of(worker, found).partition("/")[2])
            await found.asked(1)
            await silent.start(Nothing(), [])
            await found.until(lambda: [one.may_run_turns for one in edge.cluster.members] == [False, True, True, True])
            told = await status(edge)
            assert [turn.process for turn in told.activity] == ["process 1"]
            assert told.processes is not None
            assert [process.turns for process in told.processes.processes] == [0, 1, 0, None]
            assert "silent: it does not answer just now" in await tools_of(edge)
        finally:
            await silent.leave()
        for one in found.workers:
            one.model.go.set()
        await found.screen.until(1)


class Nothing:
    """Serves no call, and holds nothing."""

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        raise AssertionError(lease)

    async def on_lease_ending(self, lease: LeaseName) -> None:
        raise AssertionError(lease)


async def tools_of(worker: Worker) -> str:
    order = CommandRequest(words=("tools",), by="olga")
    return "\n".join((await worker.gateway.dispatcher.carry_out(order)).lines)


async def test_the_tools_are_those_of_the_processes_that_use_them(tmp_path: Path, postgresql: PostgresServer) -> None:
    server = {"command": [str(tmp_path / "missing")]}
    async with processes(tmp_path, postgresql, tools={"mcp": {"files": server}}) as (found, _):
        edge, first, second = found.workers
        assert "- `MCP server files: starting, 0 tools`" in await tools_of(edge), "the same everywhere"
        first.gateway.mcp.start()
        await first.gateway.mcp.wait_settled(60)
        told = {await tools_of(one) for one in (edge, second)}
        assert len(told) == 1
        (lines,) = [one.splitlines() for one in told]
        assert "- `process 2: MCP server files: starting, 0 tools`" in lines
        assert any(one.startswith("- `process 1: MCP server files: down, 0 tools: ") for one in lines)
        await first.gateway.mcp.aclose()


async def test_a_change_of_a_mind_is_told_as_its_leader_has_it(tmp_path: Path, postgresql: PostgresServer) -> None:
    async with processes(tmp_path, postgresql) as (found, _):
        edge, worker, _ = found.workers
        place = place_of(worker, found)
        await found.say("how are you", sender=place.partition("/")[2])
        await found.asked(1)
        encoder = SseEncoder(backend(edge))
        order = CommandRequest(words=("dmn", "pause"), by="olga")
        await edge.gateway.dispatcher.carry_out(order)
        await found.until(lambda: edge.agent.state.mode.value == "paused")
        (frame,) = await encoder.encode([])
        assert b"event: dmn" in frame.data
        assert f'"running":["{place}"]'.encode() in frame.data
        for one in found.workers:
            one.model.go.set()
        await found.screen.until(1)
