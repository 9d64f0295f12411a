"""The real program with its store in PostgreSQL: the server goes away."""

import asyncio
from pathlib import Path

from reverie.testing.channels import story
from tests.gateway.system.crash.test_store_program import ran, says
from tests.gateway.system.platforms.telegram_kit import town
from tests.kits.delivery_judge import fair
from tests.servers.real_postgresql import PostgresServer

GONE = "the database cannot be"


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
async def test_a_server_that_is_down_at_the_start_is_waited_for(
    tmp_path: Path, server: PostgresServer
) -> None:
    async with town(tmp_path) as it:
        it.keep_in(server.url("late"))
        token = it.say(it.api.person("Ann"))
        await asyncio.to_thread(server.stop)
        await it.start()
        await says(it, "it is tried again and again")
        await asyncio.to_thread(server.start)
        await it.answered(token)
        await it.end()
