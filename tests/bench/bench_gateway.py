"""What the whole gateway promises, measured on `reverie run`: `python tests/bench/bench_gateway.py
[--json]`.

A fresh process each time, loopback sockets, a real SQLite file; the figures are medians. Nothing is
asserted: a busy machine gives other figures (the load is printed with them).
"""

import argparse
import asyncio
import itertools
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench.bench_store import fill
from tests.bench.gateway_kit import (
    ENVIRONMENT,
    ROOM,
    FastModel,
    Figure,
    Wire,
    ask,
    running,
    show,
    write_config,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

IDLE_S = 5.0
WARM_UP = 20
"""Messages before the first that counts."""


class Answers(NamedTuple):
    """Times of answered messages with a remote model."""

    requested_ms: Sequence[float]
    """From a line on the wire to the first byte of the model request, sorted."""
    posted_ms: Sequence[float]
    """From the last byte of the model's answer to the reply on the wire, sorted."""
    cpu_ms: float
    """Processor time for each."""


class Bench:
    """One fake IRC server, one fake model, and a folder with a fresh corner for each run."""

    def __init__(self, base: Path, wire: Wire, model: FastModel) -> None:
        self._base = base
        self._wire = wire
        self._model = model
        self._numbers = itertools.count()

    def config(self, *, remote: bool, store: Path | None = None) -> Path:
        """A configuration of its own, with a store that does not exist yet unless it is given."""
        folder = self._base / f"run{next(self._numbers)}"
        url = self._model.url if remote else None
        write_config(
            folder, irc_port=self._wire.port, model_url=url, store=store or folder / "reverie.db"
        )
        return folder

    async def launches(
        self, runs: int, *, remote: bool, store: Path | None = None
    ) -> tuple[float, float]:
        """Seconds from the launch to the JOIN on the wire, and to the link being up in the log;
        medians."""
        joined, up = [], []
        for _ in range(runs):
            async with running(self._wire, self.config(remote=remote, store=store)) as gateway:
                joined.append(gateway.joined_s - gateway.launched_s)
                up.append(gateway.up_s - gateway.launched_s)
        return statistics.median(joined), statistics.median(up)

    async def resident(self, runs: int, *, remote: bool) -> float:
        """Megabytes, some seconds after it joined; with a remote model after one request.
        Median."""
        found = []
        for _ in range(runs):
            async with running(self._wire, self.config(remote=remote)) as gateway:
                if remote:
                    await ask(self._wire, self._model, gateway.bot, "how is the build?")
                await asyncio.sleep(IDLE_S)
                found.append(gateway.resident_mb())
        return statistics.median(found)

    async def answers(self, samples: int) -> "Answers":
        """Say a line, wait for the answer, say the next."""
        requested, posted, warm_s = list[float](), list[float](), 0.0
        async with running(self._wire, self.config(remote=True)) as gateway:
            for number in range(samples + WARM_UP):
                if number == WARM_UP:
                    warm_s = gateway.cpu_s()
                answered = await ask(
                    self._wire,
                    self._model,
                    gateway.bot,
                    f"how is the build, number {number}?",
                    f"alice{number % 50}",
                )
                requested.append((answered.requested_s - answered.said_s) * 1000)
                posted.append((answered.replied_s - answered.written_s) * 1000)
            cpu_ms = (gateway.cpu_s() - warm_s) * 1000 / samples
        return Answers(sorted(requested[WARM_UP:]), sorted(posted[WARM_UP:]), cpu_ms)

    async def ingest(self, lines: int) -> tuple[float, float]:
        """Room lines per second and per second of processor time, from the first on the wire until
        all are durable."""
        folder = self.config(remote=False)
        async with running(self._wire, folder) as gateway:
            log = sqlite3.connect(f"file:{folder}/reverie.db?mode=ro", uri=True)
            began_with = _last(log)
            began_s, began_cpu_s = time.perf_counter(), gateway.cpu_s()
            for number in range(lines):
                gateway.bot.raw(
                    _line(number, f"the build is green again, this is line {number} of a long talk")
                )
            while _last(log) < began_with + 2 * lines:  # a message and its judgement each
                await asyncio.sleep(0.01)
            log.close()
            return lines / (time.perf_counter() - began_s), lines / (gateway.cpu_s() - began_cpu_s)


def _line(number: int, text: str) -> bytes:
    return f":alice{number % 50}!a@host PRIVMSG {ROOM} :{text}\r\n".encode()


def _last(log: sqlite3.Connection) -> int:
    ((last,),) = log.execute("SELECT coalesce(max(seq), 0) FROM log")
    return int(last)


def _p99(taken: Sequence[float]) -> float:
    return taken[int(len(taken) * 0.99)]


def install_idle_plugins(folder: Path, count: int) -> None:
    """Have gateways that start from now on find so many plugins that use no hook."""
    folder.mkdir()
    names = [f"idle_{number}" for number in range(count)]
    classes = "".join(f"class {name}(Plugin):\n    name = {name!r}\n" for name in names)
    (folder / "idle_plugins.py").write_text(f"from reverie import Plugin\n{classes}")
    information = folder / "idle_plugins-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: idle-plugins\nVersion: 1\n")
    entries = "".join(f"{name} = idle_plugins:{name}\n" for name in names)
    (information / "entry_points.txt").write_text(f"[reverie.plugins]\n{entries}")
    ENVIRONMENT["PYTHONPATH"] = str(folder)


async def measure_idle_plugins(options: argparse.Namespace) -> list[Figure]:
    """Answers with 0, 10 and 100 idle plugins, in turn, so that the machine is the same to all."""
    counts = (0, 10, 100)
    requested: dict[int, list[float]] = {count: [] for count in counts}
    cpu: dict[int, list[float]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        async with Wire() as wire, FastModel() as model:
            bench = Bench(Path(folder), wire, model)
            await bench.launches(1, remote=True)
            for turn, count in itertools.product(range(options.runs), counts):
                install_idle_plugins(Path(folder) / f"plugins-{turn}-{count}", count)
                answers = await bench.answers(options.samples)
                requested[count].append(statistics.median(answers.requested_ms))
                cpu[count].append(answers.cpu_ms)
    rows = (("message -> model request, p50", requested), ("CPU per answered message", cpu))
    return [
        Figure(f"{name}, {count} idle plugins", statistics.median(found[count]), "ms", "")
        for name, found in rows
        for count in counts
    ]


async def measure_against(options: argparse.Namespace) -> list[Figure]:
    """The start and idle memory of the code in another directory, and of this one, in turn, so that
    the machine is the same to both."""
    trees = {"there": options.against, "here": Path(__file__).resolve().parents[2]}
    found: dict[tuple[str, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        async with Wire() as wire:
            bench = Bench(Path(folder), wire, FastModel())
            for turn, (name, tree) in itertools.product(range(options.runs + 1), trees.items()):
                ENVIRONMENT["PYTHONPATH"] = str(tree)
                async with running(wire, bench.config(remote=False)) as gateway:
                    taken = {("launch -> JOIN", "s"): gateway.joined_s - gateway.launched_s}
                    taken["processor time until the link is up", "s"] = gateway.cpu_s()
                    await asyncio.sleep(IDLE_S)
                    taken["resident, idle", "MB"] = gateway.resident_mb()
                    taken["of it held by no other process", "MB"] = gateway.own_mb()
                for (what, unit), value in taken.items() if turn else ():  # the first compiles
                    found.setdefault((what, unit, name), []).append(value)
    return [
        Figure(f"{what}, {name}", statistics.median(values), unit)
        for (what, unit, name), values in sorted(found.items())
    ]


async def measure(options: argparse.Namespace) -> list[Figure]:
    """All figures, in the order of the table."""
    figures: list[Figure] = []
    whole = not options.latency

    def add(name: str, value: float, unit: str, promise: str = "") -> None:
        figures.append(Figure(name, value, unit, promise))

    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        base = Path(folder)
        async with Wire() as wire, FastModel() as model:
            bench = Bench(base, wire, model)
            await bench.launches(1, remote=True)  # compiles what has changed since the last start
            for remote, kind in ((False, "scripted"), (True, "openai")) if whole else ():
                joined, up = await bench.launches(options.runs, remote=remote)
                add(f"launch -> JOIN on the wire, {kind}", joined, "s", "<= 0.45")
                add(f"launch -> link up in the log, {kind}", up, "s")
            if whole:
                add(
                    "resident, idle, scripted", await bench.resident(3, remote=False), "MB", "<= 60"
                )
                add(
                    "resident, after a request, openai",
                    await bench.resident(3, remote=True),
                    "MB",
                    "<= 60",
                )
            answers = await bench.answers(options.samples)
            add(
                "message -> model request, p50",
                statistics.median(answers.requested_ms),
                "ms",
                "<= 4",
            )
            add("message -> model request, p99", _p99(answers.requested_ms), "ms", "<= 15")
            add(
                "model's last byte -> reply, p50",
                statistics.median(answers.posted_ms),
                "ms",
                "<= 3",
            )
            add("model's last byte -> reply, p99", _p99(answers.posted_ms), "ms", "<= 12")
            add("CPU per answered message", answers.cpu_ms, "ms", "<= 10")
            if not whole:
                return figures
            rates = [await bench.ingest(options.lines) for _ in range(3)]
            add(
                f"ingest of {options.lines} room lines",
                statistics.median(rate for rate, _ in rates),
                "lines/s",
            )
            by_cpu = statistics.median(rate for _, rate in rates)
            add("the same, by processor time", by_cpu, "lines/s", ">= 10000")
            store = base / "big.db"
            await fill(store, options.entries)
            joined, up = await bench.launches(options.runs, remote=False, store=store)
            add(f"launch -> JOIN with {options.entries} entries", joined, "s", "<= 0.55")
            add(f"launch -> link up with {options.entries} entries", up, "s")
    return figures


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=7, help="launches of each kind")
    parser.add_argument(
        "--samples", type=int, default=500, help="messages of each kind, one at a time"
    )
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument(
        "--latency",
        action="store_true",
        help="from a message to the request, and to the reply, only",
    )
    parser.add_argument(
        "--idle-plugins",
        action="store_true",
        help="what 0, 10 and 100 plugins cost that do nothing",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="DIR",
        help="start and idle memory of the code in this directory and of this one, in turn",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    measured = measure_idle_plugins if options.idle_plugins else measure
    measured = measure_against if options.against else measured
    figures = asyncio.run(measured(options))
    if options.json:
        print(
            json.dumps(
                {f"{figure.name} ({figure.unit})": round(figure.value, 3) for figure in figures}
            )
        )
        return 0
    show(figures)
    print(
        f"load average {load:.2f} before, {os.getloadavg()[0]:.2f} after, on {os.cpu_count()} "
        "processors"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
