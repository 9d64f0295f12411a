"""The whole gateway against a Bot API server that others wrote: npm's `telegram-test-api` 4.2.1.

`requirements/npm/install` puts it under `.venv/npm`. Its manners: the base address is its root; it
knows a handful of methods and answers the others with HTTP 500 and `{"message": ...}`; `getUpdates`
never waits and ignores `offset`, it hands out each update once; the `date` of what the bot said is
in milliseconds; its bot has the id 666.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import app
from gateway.config.loader import parse_config
from gateway.core.events import DeliveryReport
from gateway.core.facts import TurnRecord
from gateway.store import Store
from reverie.testing.channels import story
from reverie.testing.servers.ports import free_port

MODULE = Path(__file__).parents[4] / ".venv/npm/node_modules/telegram-test-api"
SERVE = (
    "const Server = require(process.argv[1]);"
    "new Server({port: Number(process.argv[2]), host: '127.0.0.1'}).start().then(() => "
    "console.log('up'));"
)
TOKEN = "123456:third-party_token"
ANN = {"id": 42, "first_name": "Ann", "username": "ann", "is_bot": False}


@contextlib.contextmanager
def emulator() -> Iterator[str]:
    """The server on a free port; its root."""
    node = shutil.which("node")
    if node is None or not MODULE.exists():
        missing = (
            "telegram-test-api is not installed: requirements/npm/install (needs node and npm)"
        )
        if os.environ.get("CI"):
            raise FileNotFoundError(missing)
        pytest.skip(missing)
    port = free_port()
    process = subprocess.Popen([node, "-e", SERVE, str(MODULE), str(port)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(5)
        assert process.stdout is not None
        process.stdout.close()


@contextlib.asynccontextmanager
async def gateway(url: str, directory: Path) -> AsyncIterator[None]:
    settings = parse_config(
        {
            "channels": {
                "telegram.test": {"platform": "telegram", "token": TOKEN, "base_url": url}
            },
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"s": {"kind": "scripted"}},
                "models": {"main": {"provider": "s"}},
            },
            "attention": {"coalesce": 0},
            "access": {"dm": "open"},
            "store": {"path": "reverie.db"},
        },
        directory,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(app.run(settings, stop))
    try:
        yield
    finally:
        stop.set()
        await running


async def says(client: httpx.AsyncClient, text: str) -> None:
    chat = {"id": ANN["id"], "type": "private", "first_name": "Ann", "username": "ann"}
    message = {"botToken": TOKEN, "from": ANN, "chat": chat, "date": int(time.time()), "text": text}
    (await client.post("/sendMessage", json=message)).raise_for_status()


async def heard(client: httpx.AsyncClient) -> list[str]:
    history: list[Any] = (await client.post("/getUpdatesHistory", json={"token": TOKEN})).json()[
        "result"
    ]
    return [item["message"]["text"] for item in history if "chat_id" in item["message"]]


@story
async def test_a_user_of_somebody_elses_server_is_answered_once(tmp_path: Path) -> None:
    with emulator() as url:
        async with httpx.AsyncClient(base_url=url) as client:
            await says(client, "before the start")
            async with gateway(url, tmp_path):
                for number in (1, 2):
                    while len(await heard(client)) < number:
                        await asyncio.sleep(0.05)
                    if number == 1:
                        await says(client, "and **after** it")
            answers = await heard(client)
        assert len(answers) == 2
        assert "before the start" in answers[0]
        assert "and after it" in answers[1]  # formatting goes as entities
    async with await Store.open_readonly(tmp_path / "reverie.db") as log:
        facts = [stored.fact for stored in await log.entries(kinds=["turn_ended", "delivery"])]
    assert [len(fact.covers) for fact in facts if isinstance(fact, TurnRecord)] == [1, 1]
    assert [fact.state for fact in facts if isinstance(fact, DeliveryReport)] == ["sent", "sent"]
