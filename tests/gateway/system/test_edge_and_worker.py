"""An edge and a worker on one database: what turns of the worker do on the platforms is done by the edge."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from gateway import app
from gateway.cluster.cluster import ProcessRole
from gateway.config.loader import read_config
from gateway.config.reload import LiveSettings
from gateway.store import Store, store_location
from tests.kits.platform_users import DISCORD, IRC, PLATFORMS, TELEGRAM
from tests.kits.three_platforms import Town, town
from tests.servers.model_api import Answer, Json
from tests.servers.real_postgresql import PostgresServer

pytestmark = pytest.mark.integration


async def begin(it: Town, server: PostgresServer, schema: str) -> None:
    """Start an edge and a worker; return once the edge is on all three platforms."""
    it.config["store"] = {"path": str(it.directory / "reverie.db"), "url": server.url(schema)}
    it.config["channels"][TELEGRAM] |= {"typing": True, "preview": "all"}
    file = it.directory / "reverie.yaml"
    file.write_text(json.dumps(it.config))  # JSON is YAML
    file.chmod(0o600)
    settings = read_config(it.directory, {}).settings
    roles: tuple[ProcessRole, ...] = "edge", "worker"
    has_edge = asyncio.Event()

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            for role in roles:
                live = LiveSettings(settings, it.directory, {})
                tasks.create_task(app.run(settings, it._stop, live=live, role=role, name=role))
                await has_edge.wait()  # it makes the tables

    it._running = asyncio.create_task(run())
    await it.so(lambda: bool(it.discord.live), "Discord")
    await it.so(lambda: bool(it.telegram.asked("getUpdates")), "Telegram")
    await it.so(lambda: it.joins() > 0, "IRC")
    has_edge.set()
    it.reader = await it._open.enter_async_context(await Store.open_readonly(store_location(settings.store)))


async def test_what_a_turn_does_on_a_platform_is_done_by_the_edge(tmp_path: Path, postgresql: PostgresServer) -> None:
    schema, people = f"edge{os.getpid()}", {TELEGRAM: "0 of 2 people", DISCORD: "olga (owner", IRC: "gus (guest)"}
    try:
        async with town(tmp_path) as it:
            await begin(it, postgresql, schema)
            for platform in PLATFORMS:
                seat = it.seat(platform, "olga", "room")
                calls = ("c1", "who", "{}"), ("c2", "react", '{"message": "last", "reaction": "👍"}')
                it.model.then(Answer(calls=calls), Answer(text=f"{'one two three ' * 20}finally", pace_s=0.1))
                seat.say("who is here?", to_bot=True)
                await it.heard(seat, 0, "finally")
                results = {one["tool_call_id"]: one["content"] for one in tool_results(it.model.seen[-1].body)}
                assert people[platform] in results["c1"]
                assert results["c2"] == "The reaction is set."
            assert it.telegram.asked("setMessageReaction")
            assert it.telegram.asked("sendChatAction"), "they see that it writes"
            assert it.telegram.asked("editMessageText"), "they see the answer grow"
            assert await it.facts("previewed")
            assert it.reader is not None
            assert await it.reader.open_previews() == []
    finally:
        postgresql.drop(schema)


def tool_results(body: Json) -> list[Json]:
    """Return the results that the model was shown last."""
    return [one for one in body["messages"] if one["role"] == "tool"][-2:]
