"""The real program with its store in PostgreSQL: the server goes away, another gateway comes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.system.crash.test_store_program import ran, says
from tests.gateway.system.platforms.telegram_kit import town
from tests.kits.channels import story
from tests.kits.delivery_judge import fair
from tests.kits.gateway_process import CHECKOUT
from tests.servers.real_postgresql import PostgresServer

GONE = "the database cannot be"


@pytest.fixture
def server(postgresql: PostgresServer) -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    yield postgresql
    postgresql.start(if_stopped=True)


@story
async def test_a_server_that_goes_away_is_waited_for_and_nothing_is_lost_or_doubled(
    tmp_path: Path, server: PostgresServer
) -> None:
    async with town(tmp_path) as it:
        it.keep_in(server.url("away"))
        ann, ben = it.api.person("Ann"), it.api.person("Ben")
        await it.start()
        await it.answered(it.say(ann), it.say(ben))
        assert "it can be read, schema" in (await ran(it, "doctor", "--offline"))[1]
        assert (await ran(it, "health"))[0] == 0
        for mode in ("immediate", "fast"):
            asked = len(it.asked)
            await asyncio.to_thread(server.stop, mode)
            tokens = [it.say(who) for who in (ann, ben, ann, ben)]
            await says(it, f"the log cannot be written: {GONE}", 1 if mode == "immediate" else 2)
            code, told = await ran(it, "health")
            assert (code, GONE in told) == (1, True)
            assert len(it.asked) == asked, "nothing is spent on answers that could not be recorded"
            await asyncio.to_thread(server.start)
            await it.answered(*tokens)
        await it.calm()
        await it.end()
        assert "Traceback" not in it.log
        found = await it.verdict()
        fair(found)
        assert (found.answered, found.uncertain) == (10, 0)


@story
async def test_a_server_that_is_down_at_the_start_is_waited_for(tmp_path: Path, server: PostgresServer) -> None:
    async with town(tmp_path) as it:
        it.keep_in(server.url("late"))
        token = it.say(it.api.person("Ann"))
        await asyncio.to_thread(server.stop)
        await it.start()
        await says(it, "it is tried again and again")
        await asyncio.to_thread(server.start)
        await it.answered(token)
        await it.end()


@story
async def test_a_second_gateway_is_refused(tmp_path: Path, postgresql: PostgresServer) -> None:
    """On another machine: it has other files."""
    async with town(tmp_path) as it:
        it.keep_in(postgresql.url("twice"))
        await it.start()
        await it.answered(it.say(it.api.person("Ann")))
        other = tmp_path / "other"
        other.mkdir()
        store = {"path": str(other / "reverie.db"), "url": postgresql.url("twice")}
        (other / "reverie.yaml").write_text(json.dumps(it.config | {"store": store}))
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", it.code, "run", "--config", str(other)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=CHECKOUT,
        )
        out, _ = await second.communicate()
        assert second.returncode not in (0, None)
        assert "another process writes to this store: stop that one" in out.decode()
        await it.answered(it.say(it.api.person("Ben")))
        await it.end()
