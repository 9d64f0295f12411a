"""A gateway on a clock of its own, with three platforms that are consoles under other names."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from channels.base import Capabilities, Part
from channels.console import ConsoleChannel
from gateway import app
from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from gateway.core.events import ChannelName
from tests.kits.gateway import UNHURRIED
from tests.servers.model_api import ModelApi

IRC = "irc.libera"
PLATFORMS = {
    "irc.libera": Capabilities(
        platform="IRC", formatting="Lines of plain text; *bold* and `code` survive."
    ),
    "telegram.main": Capabilities(
        platform="Telegram", formatting="Markdown is shown; 4,096 characters a message."
    ),
    "discord.main": Capabilities(
        platform="Discord", formatting="Markdown is shown; 2,000 characters a message."
    ),
}


class Town(ConsoleChannel):
    """One platform of the day."""

    def __init__(self, name: str, show: Callable[[Part], None], clock: ManualClock) -> None:
        super().__init__(ChannelName(name), show, now=clock.now)
        self.capabilities = PLATFORMS[name]


@dataclass(slots=True)
class Running:
    """The gateway, from start to stop, again and again."""

    settings: Settings
    clock: ManualClock
    live: LiveSettings | None = None
    shown: int = 0
    said: list[str] = field(default_factory=list)
    """What was shown, in that order."""
    towns: dict[str, Town] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def _show(self, part: Part) -> None:
        self.shown += 1
        self.said.append(part.body)
        self._news.set()

    async def start(self) -> None:
        self._stop = asyncio.Event()
        self.towns = {name: Town(name, self._show, self.clock) for name in PLATFORMS}
        channels = {town.name: town for town in self.towns.values()}
        self._task = asyncio.create_task(
            app.run(self.settings, self._stop, clock=self.clock, channels=channels, live=self.live)
        )

    async def end(self) -> None:
        """As SIGTERM does."""
        assert self._task is not None
        self._stop.set()
        while not self._task.done():
            self.clock.advance(0.05)
            await asyncio.wait([self._task], timeout=0.001)
        await self._task

    async def ask(self, channel: str, text: str, *, sender: str, room: str | None) -> None:
        """Somebody says something to the agent; returns once that is answered."""
        count = self.shown
        await self.towns[channel].receive_message(text, sender=sender, room=room)
        assert self._task is not None
        async with asyncio.timeout(120):
            while self.shown == count:
                self._news.clear()
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait([news, self._task], return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if self._task.done():
                    await self._task
                    raise AssertionError("the gateway has ended")


@contextlib.asynccontextmanager
async def running(
    settings: Settings, clock: ManualClock, live: LiveSettings | None = None
) -> AsyncIterator[Running]:
    """Start, and stop at the end."""
    gateway = Running(settings, clock, live)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.end()


@contextlib.asynccontextmanager
async def gateway(tmp: Path, api: ModelApi, kind: str, **model: object) -> AsyncIterator[Running]:
    """Ana, whose model is at `api`, and who knows olga as her owner. The next one in `tmp` is the
    next process."""
    settings = parse_config(
        {
            "channels": {IRC: {"platform": "console", "rooms": ["#garden"]}},
            "agents": [{"id": "ana", "workspace": "ana"}],
            "llm": {
                "providers": {"p": {"kind": kind, "base_url": api.url, "api_key": "k"}},
                "models": {"main": {"provider": "p", "name": "claude-sonnet-5-5", **model}},
            },
            "attention": {"coalesce": 0},
            "access": {"dm": "open", "rates": UNHURRIED, "roles": {"owner": [f"{IRC}:olga"]}},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        },
        tmp,
    )
    (tmp / "ana").mkdir(exist_ok=True)
    (tmp / "ana" / "IDENTITY.md").write_text("You are Ana.")
    async with asyncio.timeout(60), running(settings, ManualClock()) as made:
        yield made
