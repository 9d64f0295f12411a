"""A gateway in a process of its own, steered over its standard input.

`python -m tests.gateway.system.reload.gateway_child DIR TIMES`.

A line in, a line of JSON out: `reload` has the configuration read again, `figures` tells what the process holds, `stop`
ends it. What it waits for comes TIMES as fast: Discord lets no two sessions begin within five seconds.
"""

import asyncio
import ctypes
import gc
import json
import logging
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from gateway import app
from gateway.config.loader import read_config
from gateway.config.reload import LiveSettings
from gateway.context.history import HistoryTurn
from tests.channels.discord.faults_kit import Hurried


class Quick(Hurried):
    """Servers tell what time it is, so that is true."""

    def now(self) -> datetime:
        return datetime.now(UTC)


def figures() -> dict[str, int]:
    """What is held just now."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what the allocator only keeps in hand is not held
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "rss_kb": int(status["VmRSS"].split()[0]),
        "objects": len(held := gc.get_objects()),
        "turns": sum(type(one) is HistoryTurn for one in held),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


async def lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def steer(live: LiveSettings, stop: asyncio.Event) -> None:
    """Do what is asked for until that is to stop."""
    asked = await lines()
    while not stop.is_set():
        match (await asked.readline()).decode().strip():
            case "reload":
                came = await live.reload()
                problems = [str(one) for one in came.problems]
                told: object = {
                    "taken": came.applied,
                    "later": came.after_restart,
                    "problems": problems,
                    "unread": came.read_error,
                }
            case "figures":
                told = figures()
            case _:
                stop.set()
                told = {}
        print(json.dumps(told), flush=True)


async def main(directory: Path, times: float) -> None:
    settings = read_config(directory, {}).settings
    live, stop = LiveSettings(settings, directory, {}), asyncio.Event()
    steering = asyncio.create_task(steer(live, stop))
    try:
        await app.run(settings, stop, live=live, clock=Quick(times))
    finally:
        steering.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
