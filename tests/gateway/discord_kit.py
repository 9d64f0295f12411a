"""A town around the gateway on Discord: the loopback Discord, a model, people who talk, and a judge.

As `telegram_kit`: each line of a person carries a token (`t17z`), the model names each token of the new lines once,
and the judge is that of the kill test. Inside this process time goes by twenty times as fast.
"""

import asyncio
import contextlib
import itertools
import json
import random
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway import app
from gateway.records import LOW, Fact
from gateway.settings_load import parse
from gateway.store import Missing, Store, Stored
from tests.channels.discord_faults_kit import Hurried
from tests.gateway.kill_judge import TOKEN, Asked, Evidence, Shown, Verdict, judge
from tests.servers.discord_api import DiscordApi, Options
from tests.servers.model_api import Answer, ModelApi
from tests.servers.model_api_events import Json

NAME = "discord.test"
CHECKOUT = Path(__file__).parents[2]
PROGRAM = "import sys; from gateway.cli import main; sys.exit(main())"
HURRIED = 20


class Town:
    """All of it. Use as `async with town(directory) as it`."""

    def __init__(self, directory: Path, api: DiscordApi, model: ModelApi, seed: int, discord: Json) -> None:
        self.directory, self.api, self.model = directory, api, model
        self.random = random.Random(seed)
        self.store = directory / "reverie.db"
        self.asked: list[Asked] = []
        self.tokens: list[str] = []
        """All that were said and have to be answered."""
        self.slow_s = 0.0
        self.process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count(1)
        self.direct = api.world.dm(api.ben)
        model.default = self._answer
        here = {"platform": "discord", "token": api.token, "api_url": api.api_url, "gateway_url": api.gateway_url}
        self.config: Json = {
            "channels": {NAME: here | {"rooms": [api.guild], "request_timeout": 1, "typing": False} | discord},
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"fake": {"kind": "openai", "base_url": model.url, "api_key": "none"}},
                "models": {"main": {"provider": "fake", "name": "fake", "context_tokens": 8000}},
            },
            "attention": {"coalesce": "50ms"},
            "access": {"dm": "open"},
            "store": {"path": str(self.store)},
            "ops": {"port": 0},
        }
        self.write()

    def write(self) -> None:
        """Make the configuration what the program reads."""
        (self.directory / "reverie.yaml").write_text(json.dumps(self.config))  # JSON is YAML

    def say(self, room: str = "", *, ago_s: float = 0.0) -> str:
        """A line with a new token to the bot, mentioning it where it has to be; the token."""
        token, room = f"t{next(self._numbers)}z", room or self.api.room
        direct = room == self.direct
        head = "" if direct else f"<@{self.api.bot}> "
        if not ago_s:
            self.tokens.append(token)
        self.api.says(room, self.api.ben if direct else self.api.ann, f"{head}what about {token}?", ago_s=ago_s)
        return token

    def _answer(self, body: Json) -> Answer:
        content = body["messages"][-1]["content"]
        tokens = list(dict.fromkeys(TOKEN.findall(content if isinstance(content, str) else json.dumps(content))))
        self.asked.append(Asked(datetime.now(UTC), frozenset(tokens)))
        text = f"r{len(self.asked)}.1 {' '.join(tokens)} so much for that"
        return Answer(text=text, delay_s=self.random.uniform(0, self.slow_s))

    @property
    def rooms(self) -> list[str]:
        return [self.api.room, self.api.other, self.direct]

    def heard(self, token: str) -> int:
        """In how many visible messages of the bot it stands."""
        return sum(token in TOKEN.findall(text) for room in self.api.world.channels for text in self.api.texts(room))

    async def answered(self, *tokens: str, limit_s: float = 15.0) -> None:
        """Return once people can read each."""
        await self.api.until(lambda: all(self.heard(token) for token in tokens), limit_s)

    @contextlib.asynccontextmanager
    async def inside(self) -> AsyncIterator[None]:
        """The gateway in this process, hurried."""
        stop = asyncio.Event()
        settings = parse(self.config, self.directory)
        running = asyncio.create_task(app.run(settings, stop, clock=Hurried(HURRIED)))
        try:
            yield
        finally:
            stop.set()
            await running

    async def start(self) -> None:
        """The gateway as a process of its own."""
        arguments = [sys.executable, "-c", PROGRAM, "run", "--config", str(self.directory), "--verbose"]
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

    async def calm(self, limit_s: float = 60.0) -> None:
        """Return once all that was said is taken in and dealt with."""
        async with asyncio.timeout(limit_s):
            quiet = 0
            while quiet < 3:
                await asyncio.sleep(0.1)
                quiet = quiet + 1 if await self._dealt_with() else 0

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
        """All that was said against all that happened."""
        wire = [Shown(room, text) for room in self.api.world.channels for text in self.api.texts(room)]
        return judge(Evidence(entries=await self.entries(), wire=wire, asked=self.asked))

    async def fair(self) -> Verdict:
        """Each line is answered once or recorded as uncertain; nothing is lost or doubled. Else AssertionError."""
        found = await self.verdict()
        assert found.faults == []
        assert found.accepted == len(self.tokens), "a line was lost or taken twice"
        assert (found.lost, found.duplicated, found.asked_twice) == (0, 0, 0)
        assert found.answered + found.uncertain == found.accepted > 0
        assert self.api.offences == []
        for kept in (self.store, Path(f"{self.store}-wal")):
            assert not kept.exists() or self.api.token.encode() not in kept.read_bytes()
        return found


@contextlib.asynccontextmanager
async def town(directory: Path, seed: int = 1, options: Options | None = None, **discord: Any) -> AsyncIterator[Town]:
    """Servers up; nothing that was started outlives this. `discord`: changes to the channel's settings."""
    async with DiscordApi(options) as api, ModelApi() as model:
        it = Town(directory, api, model, seed, discord)
        try:
            yield it
        finally:
            if it.process is not None and it.process.returncode is None:
                it.process.kill()
                await it.process.wait()
