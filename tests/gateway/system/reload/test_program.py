"""The real program reads its configuration again: when it was written, on SIGHUP, and by `reverie
reload`."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from reverie.testing.servers.ircd import Ircd

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
