"""A town around the gateway: a Bot API, a model, people who talk, and a judge.

The gateway runs in this process (`Town.inside`) or as the real program that can be killed (`Town.start`, `.kill`);
what the people see and what the model was asked is kept here either way. Each line of a person carries a token
(`t17z`), and the model names each token of the new lines once; the judge is that of the kill test.
"""

import asyncio
import contextlib
import itertools
import json
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from channels.telegram.render import Text
from gateway import app
from gateway.events import ChannelName
from gateway.records import LOW, Fact
from gateway.settings_load import parse
from gateway.store import Missing, Store, Stored
from tests.gateway.kill_judge import TOKEN, Asked, Evidence, Shown, Verdict, judge
from tests.servers.bot_api import BotApi, Chat, Person
from tests.servers.model_api import Answer, ModelApi
from tests.servers.model_api_events import Json

NAME = ChannelName("telegram.test")
CHECKOUT = Path(__file__).parents[2]
PROGRAM = "import sys; from gateway.cli import main; sys.exit(main())"
LONG_CHARS = 3000
"""Of a line of a long reply: two of them need two messages."""


class Town:
    """All of it. Use as `async with town(directory) as it`."""

    def __init__(self, directory: Path, api: BotApi, model: ModelApi, seed: int, telegram: Json) -> None:
        self.directory, self.api, self.model = directory, api, model
        self.random = random.Random(seed)
        self.store = directory / "reverie.db"
        self.asked: list[Asked] = []
        self.tokens: list[str] = []
        """All that were said, whether anybody was there or not."""
        self.slow_s, self.long = 0.0, False
        self.process: asyncio.subprocess.Process | None = None
        self.program = PROGRAM
        self._numbers = itertools.count(1)
        model.default = self._answer
        fast = {"per_chat_s": 0, "group_per_min": 1000, "overall_per_s": 1000}
        here = {"platform": "telegram", "token": api.token, "base_url": api.url, "rooms": ["*"], "flood": fast}
        self.config: Json = {
            "channels": {NAME: here | {"poll_timeout": 2, "request_timeout": 1} | telegram},
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"fake": {"kind": "openai", "base_url": model.url, "api_key": "none"}},
                "models": {"main": {"provider": "fake", "name": "fake", "context_tokens": 100_000}},
            },
            "attention": {"coalesce": "50ms"},
            "access": {"dm": "open"},
            "store": {"path": str(self.store)},
        }
        (directory / "reverie.yaml").write_text(json.dumps(self.config))  # JSON is YAML

    def say(self, who: Person, where: Chat | None = None) -> str:
        """They say a line with a new token to the bot; the token."""
        token = f"t{next(self._numbers)}z"
        self.tokens.append(token)
        if where is None:
            self.api.private_says(who, f"what about {token}?")
        else:
            self.api.mentions(where, who, f"what about {token}?")
        return token

    def _answer(self, body: Json) -> Answer:
        content = body["messages"][-1]["content"]
        tokens = list(dict.fromkeys(TOKEN.findall(content if isinstance(content, str) else json.dumps(content))))
        self.asked.append(Asked(datetime.now(UTC), frozenset(tokens)))
        count = 2 if self.long and len(tokens) > 1 else 1
        filling = "so much for that " * (LONG_CHARS // 17 if count > 1 else 1)
        lines = [f"r{len(self.asked)}.{part + 1} {' '.join(tokens[part::count])} {filling}" for part in range(count)]
        return Answer(text="\n\n".join(lines), delay_s=self.random.uniform(0, self.slow_s))

    def heard(self, token: str) -> int:
        """In how many visible messages of the bot it stands."""
        return sum(token in TOKEN.findall(text) for chat in self.api.world.chats for text in self.api.said(chat))

    async def answered(self, *tokens: str) -> None:
        """Return once people can read each."""
        await self.api.until(lambda: all(self.heard(token) for token in tokens))

    @contextlib.asynccontextmanager
    async def inside(self) -> AsyncIterator[None]:
        """The gateway in this process."""
        stop = asyncio.Event()
        running = asyncio.create_task(app.run(parse(self.config, self.directory), stop))
        try:
            yield
        finally:
            stop.set()
            await running

    async def start(self) -> None:
        """The gateway as a process of its own."""
        arguments = [sys.executable, "-c", self.program, "run", "--config", str(self.directory), "--verbose"]
        with (self.directory / "stderr.txt").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*arguments, stdout=log, stderr=log, cwd=CHECKOUT)

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
        async with asyncio.timeout(10):
            assert await self.process.wait() == 0

    @property
    def log(self) -> str:
        """What the processes have written."""
        return (self.directory / "stderr.txt").read_text()

    async def calm(self) -> None:
        """Return once every update is taken in, and all that was asked is dealt with."""
        async with asyncio.timeout(60):
            quiet = 0
            while quiet < 3:
                await asyncio.sleep(0.1)
                quiet = quiet + 1 if not self.api.updates.pending and await self._dealt_with() else 0

    async def _dealt_with(self) -> bool:
        with contextlib.suppress(Missing):
            async with await Store.open_readonly(self.store) as reader:
                return not await reader.outbox() and not await reader.due(LOW)
        return False

    async def entries(self) -> list[Stored]:
        """The log."""
        entries: list[Stored] = []
        async with await Store.open_readonly(self.store) as reader:
            while page := await reader.entries(after=entries[-1].seq if entries else 0):
                entries += page
        return entries

    async def facts(self, kind: type[Fact]) -> list[Any]:
        """Those of one kind."""
        return [entry.fact for entry in await self.entries() if isinstance(entry.fact, kind)]

    async def verdict(self) -> Verdict:
        """All that was said against all that happened. Raises AssertionError for a line that never came in."""
        wire = [
            Shown(str(chat), Text(text=text).dump()) for chat in self.api.world.chats for text in self.api.said(chat)
        ]
        entries = await self.entries()
        found = judge(Evidence(entries=entries, wire=wire, asked=self.asked))
        assert found.accepted == len(self.tokens), "an update was lost or taken twice"
        return found


@contextlib.asynccontextmanager
async def town(directory: Path, seed: int = 1, sabotage: str = "", **telegram: Any) -> AsyncIterator[Town]:
    """Servers up; nothing that was started outlives this. `sabotage`: Python that a process runs before its own first
    step. `telegram`: changes to the channel's settings.
    """
    async with BotApi() as api, ModelApi() as model:
        it = Town(directory, api, model, seed, telegram)
        it.program = f"{sabotage}\n{PROGRAM}"
        try:
            yield it
        finally:
            if it.process is not None and it.process.returncode is None:
                it.process.kill()
                await it.process.wait()


def fair(found: Verdict) -> None:
    """Each line is answered once, or recorded as uncertain; nothing is lost or doubled."""
    assert found.faults == [], found.faults
    assert (found.lost, found.duplicated, found.asked_twice) == (0, 0, 0)
    assert found.answered + found.uncertain == found.accepted > 0


async def so(true: Callable[[], bool], limit_s: float = 4.0) -> bool:
    """Wait for it, but not for long: whether it came."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not true():
                await asyncio.sleep(0.001)
            return True
    return False
