"""What looking on costs the gateway: `python tests/bench/bench_ops.py [--json] [--seconds N] [--rounds N]`.

A fresh `reverie run`, a loopback IRC room in which 50 lines are said each second: a hundred events a second, for each
line is a notification with its fate. The shares are of one core, of the gateway's process alone (`/proc/PID/stat`),
medians over rounds in which the same is done without and with listeners. Nothing is asserted.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from tests.bench.gateway_kit import ROOM, Figure, Gateway, Wire, running, show, write_config

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

TOKEN = "a-token-for-the-bench-0123456789"
LINES_PER_S = 50
PATHS = (
    "/api/status",
    "/api/conversations",
    "/api/conversation?id=irc.bench/%23bench",
    "/api/notifications?limit=200",
    "/api/turns",
    "/api/cache",
)


def cpu_s(pid: int) -> float:
    """What a process has used so far, in user and system time."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.asynccontextmanager
async def listeners(port: int, count: int) -> AsyncIterator[list[int]]:
    """So many read events; how many bytes each has read."""
    read = [0] * count
    tasks = [asyncio.create_task(_listen(port, read, number)) for number in range(count)]
    try:
        await asyncio.sleep(0.5)
        yield read
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.5)


async def _listen(port: int, read: list[int], number: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(head.encode())
    try:
        while data := await reader.read(65_536):
            read[number] += len(data)
    finally:
        writer.close()


async def share(gateway: Gateway, seconds: float, said: list[int], *, lines: bool) -> float:
    """How much of a core the gateway takes meanwhile, in percent."""
    began_s, before_s = time.perf_counter(), cpu_s(gateway.process.pid)
    while (now_s := time.perf_counter() - began_s) < seconds:
        if lines:
            for _ in range(LINES_PER_S // 10):
                said[0] += 1
                text = f"the build is green again, this is line {said[0]} of a long talk"
                gateway.bot.raw(f":alice{said[0] % 50}!a@host PRIVMSG {ROOM} :{text}\r\n".encode())
        await asyncio.sleep(max(0.0, (int(now_s * 10) + 1) / 10 - (time.perf_counter() - began_s)))
    return 100 * (cpu_s(gateway.process.pid) - before_s) / (time.perf_counter() - began_s)


async def measure(seconds: float, rounds: int) -> list[Figure]:
    """All figures, in the order of the table."""
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        async with Wire() as wire:
            config, port = Path(folder) / "run", free_port()
            write_config(config, irc_port=wire.port, model_url=None, store=config / "reverie.db")
            written = json.loads((config / "reverie.yaml").read_text(encoding="utf-8"))
            written["ops"] = {"port": port, "token": TOKEN}
            (config / "reverie.yaml").write_text(json.dumps(written), encoding="utf-8")
            async with running(wire, config) as gateway:
                return await _figures(gateway, port, seconds, rounds)


async def _figures(gateway: Gateway, port: int, seconds: float, rounds: int) -> list[Figure]:
    said, shares, bytes_each = [0], dict[str, list[float]](), list[float]()
    before_mb = gateway.resident_mb()
    await share(gateway, 2.0, said, lines=True)
    for _ in range(rounds):
        shares.setdefault("nothing happens, nobody listens", []).append(await share(gateway, 3.0, said, lines=False))
        shares.setdefault("100 events/s, nobody listens", []).append(await share(gateway, seconds, said, lines=True))
        for count in (1, 16):
            async with listeners(port, count) as read:
                at = sum(read)
                found = await share(gateway, seconds, said, lines=True)
                shares.setdefault(f"100 events/s, {count} listen", []).append(found)
                bytes_each.append((sum(read) - at) / count / seconds)
        async with listeners(port, 1):
            shares.setdefault("nothing happens, 1 listens", []).append(await share(gateway, 3.0, said, lines=False))
    median = {name: statistics.median(found) for name, found in shares.items()}
    figures = [Figure(name, value, "% core") for name, value in median.items()]
    alone = median["100 events/s, nobody listens"]
    figures.append(
        Figure("one listener at 100 events/s costs", median["100 events/s, 1 listen"] - alone, "% core", "< 2")
    )
    figures.append(Figure("sixteen cost", median["100 events/s, 16 listen"] - alone, "% core"))
    figures.append(Figure("told to each listener", statistics.median(bytes_each) / 1_000, "kB/s"))
    figures.append(Figure("resident, before anybody asked", before_mb, "MB"))
    figures.append(Figure("resident, afterwards", gateway.resident_mb(), "MB"))
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, headers={"Authorization": f"Bearer {TOKEN}"}
    ) as client:
        for path in PATHS:
            taken = []
            for _ in range(20):
                began_s = time.perf_counter()
                (await client.get(path)).raise_for_status()
                taken.append((time.perf_counter() - began_s) * 1_000)
            figures.append(Figure(f"GET {path}", statistics.median(taken), "ms"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures = asyncio.run(measure(options.seconds, options.rounds))
    if options.json:
        print(json.dumps([one._asdict() for one in figures]))
    else:
        show(figures)
        print(f"load: {os.getloadavg()}")


if __name__ == "__main__":
    main()
