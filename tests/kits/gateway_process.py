"""What stands around the gateway in every town of these tests: its program, its store, and what the
model was asked.

Each line of a person carries a token (`t17z`), and the model names each token of the new lines
once; see `delivery_judge`. The gateway runs as the real program that can be killed
(`Program.start`, `.kill`), or in this process.
"""

import asyncio
import contextlib
import itertools
import json
import random
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway import app
from gateway.config.loader import parse_config
from gateway.core.clock import Clock
from gateway.core.facts import NORMAL, Fact
from gateway.store import LogEntry, ServerStore, Store, StoreLocation, StoreMissing
from reverie.testing.gateway import UNBOUNDED, UNHURRIED
from reverie.testing.servers.model_api import Json, ModelApi
from reverie.testing.waiting import until
from tests.kits.delivery_judge import DOUBT, TOKEN, Asked

MAIN = "import sys; from gateway.cli.main import main; sys.exit(main())"
OURS = re.compile(r'\(your message \\?"[^"]*"')
"""What the agent said and nobody may have got, told to it again."""
CHECKOUT = Path(__file__).parents[2]


class Program:
    """The gateway with its configuration and its store in `directory`. What the model was asked
    outlives each kill."""

    def __init__(
        self,
        directory: Path,
        model: ModelApi,
        seed: int,
        channels: Json,
        *,
        context_tokens: int = 8000,
        sabotage: str = "",
    ) -> None:
        """`sabotage`: Python that the program runs before its own first step."""
        self.directory, self.model = directory, model
        self.code = f"{sabotage}\n{MAIN}"
        self.prefix: tuple[str, ...] = ()
        """Words in front of the program's command."""
        self.random = random.Random(seed)
        self.store = directory / "reverie.db"
        self.asked: list[Asked] = []
        self.process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count(1)
        self.config: Json = {
            "channels": channels,
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"fake": {"kind": "openai", "base_url": model.url, "api_key": "none"}},
                "models": {
                    "main": {"provider": "fake", "name": "fake", "context_tokens": context_tokens}
                },
            },
            "attention": {"coalesce": "50ms"},
            "access": {"dm": "open", "rates": UNHURRIED, "budgets": UNBOUNDED},
            "store": {"path": str(self.store)},
            "ops": {"port": 0},
        }
        self.write()

    def keep_in(self, url: str) -> None:
        self.config["store"]["url"] = url
        self.write()

    @property
    def location(self) -> StoreLocation:
        """Where the store is."""
        url = self.config["store"].get("url")
        return ServerStore(url, self.store) if url else self.store

    def write(self) -> None:
        """Make the configuration what the program reads."""
        (self.directory / "reverie.yaml").write_text(json.dumps(self.config))  # JSON is YAML

    def token(self) -> str:
        """A new one, for what somebody says."""
        return f"t{next(self._numbers)}z"

    def tokens_of(self, body: Json) -> list[str]:
        """The tokens that people said in a request's newest message, each once. That they were
        asked about is kept."""
        content = body["messages"][-1]["content"]
        said = OURS.sub("", content if isinstance(content, str) else json.dumps(content))
        tokens = list(dict.fromkeys(TOKEN.findall(said)))
        self.asked.append(Asked(datetime.now(UTC), frozenset(tokens)))
        return tokens

    def clock(self) -> Clock | None:
        """For the gateway in this process; None: the system's."""
        return None

    @contextlib.asynccontextmanager
    async def inside(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        running = asyncio.create_task(
            app.run(parse_config(self.config, self.directory), stop, clock=self.clock())
        )
        try:
            yield
        finally:
            stop.set()
            await running

    async def launch(self, *arguments: str) -> asyncio.subprocess.Process:
        """Run `reverie` with these arguments."""
        with (self.directory / "stderr.txt").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self.prefix,
                sys.executable,
                "-c",
                self.code,
                *arguments,
                stdout=log,
                stderr=log,
                cwd=CHECKOUT,
            )

    async def start(self) -> None:
        """The gateway as a process of its own."""
        self.process = await self.launch("run", "--config", str(self.directory), "--verbose")

    async def kill(self) -> None:
        """SIGKILL. It must have been alive."""
        assert self.process is not None
        assert self.process.returncode is None, f"it ended by itself:\n{self.log[-4000:]}"
        self.process.kill()
        assert await self.process.wait() == -signal.SIGKILL

    async def end(self) -> None:
        """SIGTERM; it has to end well."""
        assert self.process is not None
        self.process.terminate()
        async with asyncio.timeout(120):
            assert await self.process.wait() == 0

    async def close(self) -> None:
        """However things went: no process outlives this."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    @property
    def log(self) -> str:
        return (self.directory / "stderr.txt").read_text()

    async def calm(self, limit_s: float = 300.0) -> None:
        """Return once all that was said is taken in and dealt with, and stays so for a moment."""
        async with asyncio.timeout(limit_s):
            quiet = 0
            while quiet < 3:
                await asyncio.sleep(0.1)
                quiet = quiet + 1 if self.taken_in() and await self._dealt_with() else 0

    def taken_in(self) -> bool:
        """Whether the platform has nothing left to hand over, as far as it knows."""
        return True

    async def _dealt_with(self) -> bool:
        with contextlib.suppress(StoreMissing):
            async with await Store.open_readonly(self.location) as reader:
                waits = [
                    one for one in await reader.undelivered_posts() if DOUBT not in one.post.text
                ]  # that waits for company
                return not waits and not await reader.due_conversations(
                    NORMAL
                )  # what is low waits for the next turn
        return False

    async def entries(self) -> list[LogEntry]:
        entries: list[LogEntry] = []
        async with await Store.open_readonly(self.location) as reader:
            while page := await reader.entries(after=entries[-1].seq if entries else 0):
                entries += page
        return entries

    async def facts(self, kind: type[Fact]) -> list[Any]:
        return [entry.fact for entry in await self.entries() if isinstance(entry.fact, kind)]


async def so(true: Callable[[], bool], limit_s: float = 4.0) -> bool:
    """Wait for it, but not for long: whether it came."""
    with contextlib.suppress(TimeoutError):
        await until(true, limit_s=limit_s, every_s=0.001)
        return True
    return False
