"""A gateway of a checkout as a process of its own, which records what it does: what `trace.py` and
`profiler.py` share.

`reverie run` on a loopback IRC server and a model that streams one sentence. The process is the
module that watches, started once more with `--child`.
"""

import asyncio
import contextlib
import json
import runpy
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.bench.gateway_kit import Answered

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass
class Watched:
    """The process, seen from outside."""

    ask: Callable[..., Awaitable["Answered"]]
    """Say that to the bot, as this person, and wait until it has answered."""
    _process: asyncio.subprocess.Process
    _result: Path

    async def begin(self) -> None:
        """Let it record from now on. Returns once it does."""
        self._process.send_signal(signal.SIGURG)
        while not self._result.with_suffix(".begun").exists():
            await asyncio.sleep(0.01)

    async def end(self) -> Any:
        """Return what it has recorded, as its `end` returned it."""
        self._process.send_signal(signal.SIGWINCH)
        while not self._result.exists():
            await asyncio.sleep(0.1)
        return json.loads(self._result.read_text(encoding="utf-8"))


@contextlib.asynccontextmanager
async def watched(module: str, checkout: Path) -> AsyncIterator[Watched]:
    """Run the gateway of a checkout in a child, which runs this module, and stop it in the end."""
    from tests.bench.gateway_kit import NICK, ROOM, FastModel, Wire, ask, write_config  # noqa: PLC0415 - not in the child, which has its checkout's

    with tempfile.TemporaryDirectory() as folder:
        config, result = Path(folder) / "config", Path(folder) / "recorded.json"
        async with Wire() as wire, FastModel() as model:
            write_config(
                config, irc_port=wire.port, model_url=model.url, store=config / "reverie.db"
            )
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, "--child", checkout, config, result),
                cwd=ROOT,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                bot = await wire.joined(NICK, ROOM)
                yield Watched(partial(ask, wire, model, bot), process, result)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()


def run_child(begin: Callable[[], None], end: Callable[[], object]) -> None:
    """Run the gateway in this process, which `watched` has started with the checkout to import.

    `begin` is called in the event loop's thread as the recording begins, and `end` as it ends: what
    it returns is handed to the parent as JSON.
    """
    config, result = sys.argv[3], Path(sys.argv[4])

    def start(_: int, __: object) -> None:
        result.with_suffix(".begun").touch()
        begin()

    def finish(_: int, __: object) -> None:
        part = result.with_suffix(".part")  # complete as soon as the file exists
        part.write_text(json.dumps(end()), encoding="utf-8")
        part.rename(result)

    signal.signal(signal.SIGURG, start)
    signal.signal(signal.SIGWINCH, finish)
    sys.argv = ["reverie", "run", "--config", config]
    runpy.run_module("gateway.cli.main", run_name="__main__")
