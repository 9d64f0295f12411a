"""What the doctor says of processes that share a store, on a real PostgreSQL server."""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from gateway import app
from gateway.cli.doctor.base import Finding
from gateway.cluster.database import DatabaseCluster
from gateway.config.loader import read_config
from gateway.config.reload import LiveSettings
from gateway.ops.health import read_heartbeat
from tests.gateway.cli.doctor.doctor_kit import World, trouble, world
from tests.gateway.cluster.test_database import Services
from tests.kits.waiting import until
from tests.servers.real_postgresql import PostgresServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def here(tmp_path: Path, postgresql: PostgresServer) -> AsyncIterator[World]:
    schema = f"doctor{os.getpid()}"
    async with world(tmp_path) as made:
        made.config["store"]["url"] = postgresql.url(schema)
        made.write()
        yield made
    await asyncio.to_thread(postgresql.drop, schema)


@contextlib.asynccontextmanager
async def process(here: World, name: str, *, port: int | None = None) -> AsyncIterator[None]:
    """Run a process until the channels are up that it holds. `port`: of its HTTP server; None: as configured."""
    settings = read_config(here.directory, here.env).settings
    if port is not None:
        settings = settings.model_copy(update={"ops": settings.ops.model_copy(update={"port": port})})
    stop = asyncio.Event()
    live = LiveSettings(settings, here.directory, dict(here.env))
    running = asyncio.create_task(app.run(settings, stop, live=live, name=name))
    try:

        def is_up() -> bool:
            assert not running.done(), running
            beat = read_heartbeat(here.store, datetime.now(UTC), name)
            problems = {"process"} if beat is None else {one.what for one in beat.snapshot.problems}
            channels = () if beat is None else beat.snapshot.channels
            return "process" not in problems and {one.state for one in channels} == {"up"}

        await until(is_up)
        yield
    finally:
        stop.set()
        await running


async def examined(here: World) -> dict[str, Finding]:
    """Return what is not as it should be, by its code."""
    return {one.code: one for one in trouble(await here.examine(offline=True, written=False))}


async def test_processes_that_do_all_together_are_right(here: World) -> None:
    assert await examined(here) == {}, "none runs"
    async with process(here, "one", port=0), process(here, "two"):
        assert await examined(here) == {}, "also the one that has the port, which did not start first"
    async with process(here, "alone", port=0):
        assert await examined(here) == {}, "and where none has the configured port"


async def test_a_process_with_another_directory_is_told(here: World) -> None:
    async with process(here, "here"):
        url = here.config["store"]["url"]
        there = await DatabaseCluster.join(url, name="there")
        try:
            await there.start(Services(), [])
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as database:
                assert await examined(here) == {}, "its files may not be seen yet"
                await database.execute("UPDATE process SET started = started - interval '1 hour'")
            (found,) = (await examined(here)).values()
            assert (found.code, found.level, found.where) == ("process.directory", "bad", str(here.store.parent))
            assert " has no fresh heartbeat of there on " in found.what
        finally:
            await there.leave()


async def test_a_database_without_room_for_one_more_process_is_told(here: World) -> None:
    async with process(here, "here"), contextlib.AsyncExitStack() as stack:
        url = here.config["store"]["url"]
        found = dict[str, Finding]()
        for number in range(100):
            others = await psycopg.AsyncConnection.connect(url, autocommit=True)
            stack.push_async_callback(others.close)
            if number > 60 and (found := await examined(here)):
                break
        told = found["process.connections"]
        assert re.match("only [0-4] connections of the database are free, and one more process needs 5", told.what)
        assert "max_connections" in told.fix
