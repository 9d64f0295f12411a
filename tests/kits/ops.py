"""A gateway whose operator looks on: over a real socket, with a token."""

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import generate_latest
from prometheus_client.registry import Collector

from agent.models.base import Model
from agent.models.scripted import Script
from channels.base import Channel
from gateway.config.loader import ConfigFiles, read_config
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.events import ChannelName
from gateway.core.redaction import Redactor
from gateway.plugins.metrics import RedactedMetrics
from reverie.testing.gateway import UNHURRIED, Gateway

TOKEN = "an-operators-token-0123456789"
DEMO = ChannelName("demo")


def rendered_metrics(*sources: Collector) -> str:
    """These metrics as Prometheus scrapes them."""
    return generate_latest(RedactedMetrics(sources, Redactor())).decode()


@dataclass
class Event:
    name: str
    data: dict[str, Any]


@dataclass
class Told:
    events: list[Event] = field(default_factory=list)
    raw: str = ""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [one.data for one in self.events if one.name == name]

    async def until(self, wanted: Callable[["Told"], object]) -> None:
        async with asyncio.timeout(120):
            while not wanted(self):
                self.news.clear()
                await self.news.wait()

    def feed(self, line: str, held: dict[str, str]) -> None:
        self.raw += line + "\n"
        key, _, value = line.partition(": ")
        if line:
            held[key] = value
        elif "data" in held:
            self.events.append(Event(held["event"], json.loads(held["data"])))
            held.clear()
            self.news.set()
        else:
            held.clear()


class Operated(Gateway):
    """A gateway under way."""

    port: int
    client: httpx.AsyncClient

    async def get(self, path: str, **query: object) -> Any:
        """What is answered, which must be an answer."""
        answer = await self.client.get(
            path, params={key: str(value) for key, value in query.items()}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: object) -> Any:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Told]:
        """Hear what is told meanwhile."""
        told, begun = Told(), asyncio.Event()

        async def listen() -> None:
            async with self.client.stream("GET", "/api/events") as answer:
                assert answer.status_code == 200
                held: dict[str, str] = {}
                async for line in answer.aiter_lines():
                    begun.set()
                    told.feed(line, held)

        task = asyncio.create_task(listen())
        try:
            async with asyncio.timeout(120):
                await begun.wait()
            yield told
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
                await task


class _Port(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        port = re.search(r"http://\S+:(\d+)/metrics", record.getMessage())
        if port and not self.found.done():
            self.found.set_result(int(port[1]))


def configured_in(
    tmp: Path, channels: Iterable[ChannelName], ops: dict[str, object], more: dict[str, object]
) -> Settings:
    """Write the configuration there, and read it."""
    written = json.dumps(
        {
            "channels": {name: {"platform": "console", "rooms": ["lobby"]} for name in channels},
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"s": {"kind": "scripted"}},
                "models": {"main": {"provider": "s"}},
            },
            "attention": {"coalesce": 0},
            "access": {"dm": "open", "rates": UNHURRIED},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0, "token": TOKEN, **ops},
            **more,
        }
    )
    tmp.mkdir(exist_ok=True)
    (tmp / "reverie.yaml").write_text(written, encoding="utf-8")
    return read_config(tmp, {}).settings


@contextlib.asynccontextmanager
async def operated(
    tmp: Path,
    model: Model | Script | None = None,
    *,
    channels: Sequence[Channel] = (),
    ops: dict[str, object] | None = None,
    configured: bool = False,
    **more: object,
) -> AsyncIterator[Operated]:
    """Start one with a channel `demo`, and stop it as SIGTERM would. `ops`: beside a free port and
    the token.

    `configured`: with the model of the configuration, whose cache is looked after.
    """
    there = {one.name: one for one in channels}
    settings = configured_in(tmp, (DEMO, *there), ops or {}, more)
    given = None if configured else model or Script()
    made = Operated(
        settings, given, live=LiveSettings(settings, ConfigFiles(tmp, {})), channels=there
    )
    log = logging.getLogger("reverie.ops")
    hears, level = _Port(), log.level
    log.addHandler(hears)
    log.setLevel(logging.INFO)
    try:
        async with made:
            first: tuple[asyncio.Future[Any], ...] = (made.task, hears.found)
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED, timeout=20)
            if made.task.done():
                made.task.result()
            made.port = hears.found.result()
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{made.port}",
                trust_env=False,
                headers=bearer,
                timeout=20,
            ) as made.client:
                yield made
    finally:
        log.removeHandler(hears)
        log.setLevel(level)
