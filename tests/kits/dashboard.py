"""The dashboard in a real browser, in front of a real gateway.

The gateway runs in a thread with a loop of its own, because Playwright's synchronous way holds the
test's. It has three platforms that are consoles, and a strict Messages API with a cache as its
model. Chromium is the system's; where it is missing tests are skipped, and fail in CI.
"""

import asyncio
import contextlib
import os
import random
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from pydantic import SecretStr

from channels.base import PostPart
from gateway import app
from gateway.config.loader import ConfigFiles, read_config
from gateway.config.models import OpsToken, Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import SystemClock, new_id
from gateway.core.events import ChannelName, ConnectionChanged, EventId
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import PLATFORMS
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import ModelApi
from reverie.testing.servers.ports import free_port
from tests.bench import bench_week

T = TypeVar("T")
CHROMIUM = "/usr/bin/chromium"
TOKEN = "a-token-that-tests-know/#&?+"
READER = "a-token-that-may-only-read"
ADMIN = "a-token-that-may-operate"
WAIT_S = 30.0
IRC, TELEGRAM, DISCORD = PLATFORMS
expect.set_options(timeout=WAIT_S * 1_000)


class Town(ConsoleChannel):
    def __init__(self, name: str, show: Callable[[PostPart], None]) -> None:
        super().__init__(ChannelName(name), show)
        self.capabilities = PLATFORMS[name]

    async def link(self, *, up: bool, reason: str = "") -> None:
        """The connection breaks, or is back."""
        assert self._emit is not None
        now = datetime.now(UTC)
        await self._emit(
            [
                ConnectionChanged(
                    id=EventId(new_id(now)), channel=self.name, up=up, reason=reason, sent=now
                )
            ]
        )


@dataclass
class House:
    """The gateway in its thread. `begin`, `end` and `run` are called from the test's."""

    folder: Path
    token: str | None = TOKEN
    port: int = field(default_factory=free_port)
    towns: dict[str, Town] = field(default_factory=dict)
    shown: list[PostPart] = field(default_factory=list)
    show: Callable[[PostPart], None] = lambda _: None
    """Is told each part; what it raises is what its platform says."""
    change: Callable[[Settings], Settings] = lambda made: made
    """Changes the configuration."""
    written: str = ""
    """The configuration as a file. Empty: it does not come from files."""

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.api = ModelApi(cache=MessagesCache(lambda text: -(-len(text) // 4)))
        self.api.default = bench_week.model(random.Random(2))
        self._thread = threading.Thread(target=self.loop.run_forever, name="gateway", daemon=True)
        self._stop: asyncio.Event | None = None
        self._task: Future[None] | None = None
        self._thread.start()
        self.run(self.api.__aenter__())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def address(self) -> str:
        """What `reverie dashboard` prints on a terminal."""
        return f"{self.url}#token={quote(TOKEN, safe='')}"

    @property
    def settings(self) -> Settings:
        made = bench_week.configuration(self.folder, self.api.url)
        token = SecretStr(self.token) if self.token is not None else None
        tokens = (
            OpsToken(name="reader", role="read", token=SecretStr(READER)),
            OpsToken(name="ben", role="operate", token=SecretStr(ADMIN)),
        )
        ops = made.ops.model_copy(
            update={"port": self.port, "token": token, "tokens": tokens if token else ()}
        )
        return self.change(made.model_copy(update={"ops": ops}))

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Carried out in the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(story, self.loop).result(WAIT_S)

    def begin(self) -> None:
        """Start; returns once it listens."""

        async def serve() -> None:
            self._stop = asyncio.Event()
            self.towns = {name: Town(name, self._shows) for name in PLATFORMS}
            channels = {town.name: town for town in self.towns.values()}
            live = LiveSettings(self.settings)
            if self.written:
                (self.folder / "reverie.yaml").write_text(self.written, encoding="utf-8")
                live = LiveSettings(
                    read_config(self.folder, {}).settings, ConfigFiles(self.folder, {})
                )
            await app.run(
                live.settings, self._stop, clock=SystemClock(), channels=channels, live=live
            )

        self._task = asyncio.run_coroutine_threadsafe(serve(), self.loop)
        with httpx.Client(trust_env=False) as client:
            for _ in range(1_000):
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(f"{self.url}health").is_success:
                        return
                if self._task.done():
                    break
                threading.Event().wait(0.02)
        self._task.result(0)
        raise AssertionError("the gateway does not listen")

    def end(self) -> None:
        """As SIGTERM does."""
        if self._task is None:
            return
        assert self._stop is not None
        self.loop.call_soon_threadsafe(self._stop.set)
        self._task.result(WAIT_S)
        self._task = None

    def close(self) -> None:
        """And of its model."""
        self.end()
        self.run(self.api.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()

    def say(
        self, text: str, *, channel: str = TELEGRAM, sender: str = "olga", room: str | None = None
    ) -> None:
        """Somebody says something; returns once it is durable."""
        self.run(self.towns[channel].receive_message(text, sender=sender, room=room))

    def ask(self, path: str, **query: object) -> Any:
        """What the API says."""
        with httpx.Client(
            trust_env=False, headers={"Authorization": f"Bearer {self.token}"}
        ) as client:
            answer = client.get(
                f"{self.url.rstrip('/')}{path}",
                params={key: str(one) for key, one in query.items()},
            )
            answer.raise_for_status()
            return answer.json()

    def _shows(self, part: PostPart) -> None:
        self.show(part)
        self.shown.append(part)


@contextlib.contextmanager
def house(
    folder: Path, change: Callable[[Settings], Settings] = lambda made: made
) -> Iterator[House]:
    made = House(folder, change=change)
    try:
        made.begin()
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's, without a window."""
    found = shutil.which("chromium") or CHROMIUM
    if not Path(found).exists():
        missing = "chromium is not installed: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Tab:
    """One page, and all that it asked for and complained of."""

    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    expected: tuple[str, ...] = ()
    """What complaints of may be: a browser writes each failed request to its console."""

    def fair(self) -> None:
        """Raises AssertionError for an error on the console, or a request to anybody else."""
        wrong = [one for one in self.complaints if not any(said in one for said in self.expected)]
        assert not wrong, wrong
        assert len(self.hosts) <= 1, self.hosts

    def open(self, address: str, view: str = "waiting") -> Page:
        """Returns once the view was read."""
        self.page.goto(address)
        self.page.wait_for_selector("#main[aria-busy=false]")
        if view != "waiting":
            self.show(view)
        return self.page

    def show(self, view: str) -> None:
        """Choose a view in the navigation."""
        link = self.page.locator(f"#nav a[href='#{view}']")
        if not link.is_visible():
            self.page.locator("#menu").click()
        link.click()
        self.page.locator(f"#{view}").wait_for()


@contextlib.contextmanager
def tab(browser: Browser, **options: Any) -> Iterator[Tab]:
    """A page without a past. Judged at its end."""
    context = browser.new_context(
        **{"viewport": {"width": 1440, "height": 900}, "timezone_id": "Europe/Zurich", **options}
    )
    context.set_default_timeout(WAIT_S * 1_000)
    page = context.new_page()
    made = Tab(context, page)
    page.on("pageerror", lambda error: made.complaints.append(str(error)))
    page.on(
        "console",
        lambda said: (
            made.complaints.append(said.text) if said.type in ("error", "warning") else None
        ),
    )
    page.on(
        "request",
        lambda asked: (
            made.hosts.add(urlsplit(asked.url).netloc) if asked.url[:4] == "http" else None
        ),
    )
    try:
        yield made
        made.fair()
    finally:
        context.close()


@contextlib.contextmanager
def opened(browser: Browser, house: House, view: str = "waiting", **options: Any) -> Iterator[Page]:
    """The dashboard in a tab of its own."""
    with tab(browser, **options) as made:
        yield made.open(house.address, view)
