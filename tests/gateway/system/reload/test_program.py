"""The real program reads its configuration again: when it was written, on SIGHUP, and by `reverie
reload`."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gateway.config.loader import ConfigFiles, read_config
from gateway.config.reload import LiveSettings
from reverie.testing.gateway import Gateway
from reverie.testing.servers.ircd import Ircd
from reverie.testing.servers.model_api import Answer, Json, ModelApi

CHECKOUT = Path(__file__).parents[4]
MAIN = "import sys; from gateway.cli.main import main; sys.exit(main())"
CONFIG = """\
channels:
  irc.test: {platform: irc, host: 127.0.0.1, port: %d, tls: false, nick: reverie, rooms: ["#lobby"]}
agents: [{id: reverie}]
llm:
  providers: {dry: {kind: scripted}}
  models: {main: {provider: dry}}
access: {dm: open}
commands: {prefix: "%s"}
store: {path: data/reverie.db}
ops: {port: %d}
"""


class Program:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self._port = folder, port
        self.process: asyncio.subprocess.Process | None = None

    def write(self, prefix: str = "!", ops: int = 0) -> None:
        new = self.folder / ".new"
        new.write_text(CONFIG % (self._port, prefix, ops))
        new.replace(self.folder / "reverie.yaml")

    async def reverie(self, *arguments: str) -> tuple[int, str]:
        """Run another one to its end: its exit code, and what it wrote."""
        made = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MAIN, *arguments, "--config", str(self.folder)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=CHECKOUT,
        )
        out, _ = await made.communicate()
        assert made.returncode is not None
        return made.returncode, out.decode()

    async def says(self, text: str, times: int = 1) -> None:
        """Return once that stands so often in its log."""
        while self.log.count(text) < times:
            assert self.process is not None
            assert self.process.returncode is None, self.log
            await asyncio.sleep(0.02)

    @property
    def log(self) -> str:
        return (self.folder / "stderr.txt").read_text()


@contextlib.asynccontextmanager
async def program(folder: Path) -> AsyncIterator[Program]:
    async with asyncio.timeout(60), Ircd() as ircd:
        it = Program(folder, ircd.port)
        it.write()
        with (folder / "stderr.txt").open("wb") as log:
            it.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", MAIN, "run", "--config", str(folder)),
                stdout=log,
                stderr=log,
                cwd=CHECKOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        try:
            await it.says("is up")
            yield it
            it.process.terminate()
            assert await it.process.wait() == 0
        finally:
            if it.process.returncode is None:
                it.process.kill()
                await it.process.wait()


async def test_a_hangup_has_it_read_again_and_ends_nothing(tmp_path: Path) -> None:
    async with program(tmp_path) as it:
        assert it.process is not None
        for times in (1, 2):
            it.process.send_signal(signal.SIGHUP)
            await it.says("nothing has changed", times)


async def test_what_is_written_counts_and_what_is_broken_does_not(tmp_path: Path) -> None:
    async with program(tmp_path) as it:
        it.write(prefix="+")
        await it.says("in force now: commands.prefix")
        it.write(prefix="wrong")
        await it.says("the configuration has errors; the present settings stay")
        assert "reverie.yaml:8: commands.prefix" in it.log
        it.write(prefix="+", ops=9)
        await it.says("all changes wait for a restart, for: ops.port")


# What the configuration says counts from the next message on, and never in the middle of a turn:
# on a real gateway.


def config(url: str) -> dict[str, Any]:
    return {
        "channels": {"console": {"platform": "console"}},
        "agents": [{"id": "ana", "bindings": [{"prompt": "Edition one."}]}],
        "llm": {
            "providers": {
                "p": {"kind": "anthropic", "base_url": url, "api_key": "first-api-key-of-ours"}
            },
            "models": {
                "main": {"provider": "p", "name": "claude-sonnet-5-5", "max_output_tokens": 1_001},
                "other": {"provider": "p", "name": "claude-haiku-4-5", "max_output_tokens": 1_002},
            },
            "context_optimization": {"token_counter": {"enabled": False}},
        },
        "attention": {"coalesce": 0},
        "access": {
            "dm": "allowlist",
            "roles": {"owner": ["console:ann"], "member": ["console:bob"]},
        },
        "ops": {"port": 0},
        "store": {"path": "reverie.db"},
    }


class Town:
    """A gateway whose configuration is written again."""

    def __init__(self, folder: Path, api: ModelApi) -> None:
        self.file, self.said = folder / "reverie.yaml", config(api.url)
        self.write()
        settings = read_config(folder, {}).settings
        self.live = LiveSettings(settings, ConfigFiles(folder, {}))
        self.gateway = Gateway(settings, live=self.live)

    def write(self) -> None:
        self.file.write_text(json.dumps(self.said))
        self.file.chmod(0o600)

    async def reload(self) -> None:
        self.write()
        await self.live.reload()


async def test_a_role_that_is_taken_away_is_gone_at_the_next_message(
    tmp_path: Path, api: ModelApi
) -> None:
    it = Town(tmp_path, api)
    async with it.gateway as gateway:
        await gateway.ask("hello", sender="bob")
        it.said["access"]["roles"]["member"] = []
        await it.reload()
        await gateway.say("hello?", sender="bob")
        await gateway.ask("are you there?")
    assert len(api.seen) == len(gateway.screen.parts) == 2


async def test_a_turn_that_runs_ends_with_what_it_began_with(tmp_path: Path, api: ModelApi) -> None:
    it, reloading = Town(tmp_path, api), list[asyncio.Task[None]]()

    def first(_: Json) -> Answer:
        api.default = lambda _: Answer(text="done")
        it.said["llm"]["providers"]["p"]["api_key"] = "second-api-key-of-ours"
        it.said["agents"][0] |= {"model": "other", "bindings": [{"prompt": "Edition two."}]}
        it.said["tools"] = {"max_rounds": 0}
        reloading.append(asyncio.create_task(it.reload()))
        return Answer(calls=(("c1", "intentions", "{}"),), delay_s=0.5)

    api.default = first
    async with it.gateway as gateway:
        await gateway.ask("what is to come?")
        await asyncio.gather(*reloading)
        await gateway.ask("and now?")
    seen = [
        (
            one.headers["x-api-key"],
            one.body["model"],
            one.body["max_tokens"],
            "Edition two." in str(one.body),
        )
        for one in api.seen
    ]
    before = ("first-api-key-of-ours", "claude-sonnet-5-5", 1_001, False)
    assert seen == [before, before, ("second-api-key-of-ours", "claude-haiku-4-5", 1_002, True)]
    assert api.violations == []


async def test_a_model_that_was_chosen_is_used_as_long_as_it_is_configured(
    tmp_path: Path, api: ModelApi
) -> None:
    it = Town(tmp_path, api)
    async with it.gateway as gateway:
        await gateway.ask("!model switch other", sender="ann")
        it.said["llm"]["providers"]["p"]["api_key"] = "second-api-key-of-ours"
        await it.reload()
        await gateway.ask("who are you?", sender="ann")
        del it.said["llm"]["models"]["other"]
        await it.reload()
        await gateway.ask("and now?", sender="ann")
    assert [one.body["model"] for one in api.seen] == ["claude-haiku-4-5", "claude-sonnet-5-5"]
