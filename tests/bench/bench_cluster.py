"""One process on SQLite against several on PostgreSQL: `python tests/bench/bench_cluster.py [--rounds 3]`.

Real programs, an IRC server, a model that answers at once or after 200 ms, and a PostgreSQL that waits for its disk.
First as many questions as the gateway answers, from people in many rooms who ask again as soon as they are answered;
then one question at a time; then lines to which nobody answers. The shapes take turns in each round; figures are
medians over the rounds.

The server of the people, the model and PostgreSQL share the processors with the gateway. So the processor time for an
answer is told by process, which more machines do not change.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, LiteralString, NamedTuple

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.gateway_kit import ENVIRONMENT, NICK, REVERIE, FastModel, write_config
from tests.servers.ircd import Client, Ircd, read_tags
from tests.servers.real_postgresql import PostgresServer

ROOMS = tuple(f"#room{number}" for number in range(64))
"""In each, one person asks."""
ANSWER = "all is well"
SHAPES: Mapping[str, int] = {"one, SQLite": 0, "one, PostgreSQL": 1, "three, PostgreSQL": 3}
"""Number of processes on PostgreSQL. One holds the channel, and the others only follow the log here."""
START_LIMIT_S = 90.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Wire(Ircd):
    """An IRC server whose people ask, and who ask again when they are answered."""

    def __init__(self) -> None:
        super().__init__()
        self.bot: Client | None = None
        self.answers = 0
        self.is_asking = False
        """Whether who is answered asks again."""
        self.answered = asyncio.Event()
        self.answered_s = 0.0
        self._numbers = 0

    def ask(self, room: str) -> None:
        """Ask in this room."""
        assert self.bot is not None
        self._numbers += 1
        self.bot.raw(f":alice{room[1:]}!a@host PRIVMSG {room} :{NICK}: how is build {self._numbers}?\r\n".encode())

    def handle(self, client: Client, line: str) -> None:
        self.lines.clear()  # nobody looks at them here, nor at those of each client
        client.lines.clear()
        client.wire.clear()
        super().handle(client, line)
        words = read_tags(line)[1].split(" ", 2)
        if words[0] == "PRIVMSG" and ANSWER in words[2]:
            self.answers, self.answered_s = self.answers + 1, time.perf_counter()
            self.answered.set()
            if self.is_asking:
                self.ask(words[1])


class Part(NamedTuple):
    """One kind of process in one round."""

    cpu_ms: float
    """Processor time for an answer."""
    memory_mb: float
    """PostgreSQL: without what its processes share counted twice (PSS). The others: VmRSS, of one on average."""


class Round(NamedTuple):
    """What was measured of one shape."""

    per_second: float
    parts: Mapping[str, Part]
    counts: Mapping[str, float]
    """For each answer: entries and bytes of the log, commits of the store, ..."""
    requested_ms: Sequence[float]
    replied_ms: Sequence[float]
    heard_per_second: float
    """Lines that need no answer, until all are durable."""
    heard_cpu_ms: Mapping[str, float]
    """Processor time for 1,000 of them, by part."""
    heard_counts: Mapping[str, float]
    """As `counts`, for 1,000 of them."""


class Processes:
    """The processes of one shape, and what the kernel and the database tell of them."""

    def __init__(
        self, started: Mapping[str, asyncio.subprocess.Process], server: PostgresServer | None, store: Path
    ) -> None:
        self._started, self._server, self._store = started, server, store
        self._reading: psycopg.Connection[tuple[Any, ...]] | None = None
        self.postmaster = 0
        if server is not None:
            self._reading = psycopg.connect(server.url(), autocommit=True)
            (backend,) = self._ask("SELECT pg_backend_pid()")
            self.postmaster = _stat(backend)[1]

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()

    def _ask(self, query: LiteralString, *parameters: str) -> tuple[Any, ...]:
        assert self._reading is not None
        found = self._reading.execute(query, parameters).fetchone()
        assert found is not None
        return found

    def kinds(self) -> dict[str, list[int]]:
        """What there is, with the ids of its processes."""
        if self._server is None:
            return {"gateway": [one.pid for one in self._started.values()]}
        query: LiteralString = "SELECT process.name FROM lease JOIN process USING (number) WHERE lease.name = %s"
        (holder,) = self._ask(query, "channel:irc.bench")
        kinds = defaultdict[str, list[int]](list)
        for name, one in self._started.items():
            kinds["holder" if name == holder else "others"].append(one.pid)
        return {**kinds, "PostgreSQL": self.database()}

    def database(self) -> list[int]:
        """Return PostgreSQL's processes."""
        pids = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
        found = [self.postmaster]
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if _stat(pid)[1] == self.postmaster:
                    found.append(pid)
        return found

    def analyze(self) -> None:
        """Do what the server does by itself within a minute: until then it plans for empty tables."""
        if self._reading is not None:
            self._reading.execute("ANALYZE")

    def are_there(self) -> bool:
        """Return whether all have started."""
        return self._server is None or self._ask("SELECT count(*) FROM process WHERE ready")[0] == len(self._started)

    def last(self) -> int:
        """Return the last position of the log."""
        if self._server is not None:
            return int(self._ask("SELECT max(seq) FROM log")[0])
        with contextlib.closing(sqlite3.connect(f"file:{self._store}?mode=ro", uri=True)) as log:
            return int(log.execute("SELECT max(seq) FROM log").fetchone()[0])

    def cpu_s(self) -> dict[str, float]:
        """Processor time of each kind until now. Of what has ended meanwhile: none."""
        return {kind: sum(map(_cpu_s, pids)) for kind, pids in self.kinds().items()}

    def memory_mb(self) -> dict[str, float]:
        """See `Part.memory_mb`."""
        found = {}
        for kind, pids in self.kinds().items():
            if kind == "PostgreSQL":
                found[kind] = sum(_memory_mb(pid, "smaps_rollup", "Pss:") for pid in pids)
            else:
                found[kind] = statistics.mean(_memory_mb(pid, "status", "VmRSS:") for pid in pids)
        return found

    def counts(self) -> Counter[str]:
        """What the database has counted until now."""
        if self._server is None:
            return Counter()
        names = "entries, commits of the log, bytes of the write-ahead log, bytes of the store"
        found = self._ask(
            "SELECT (SELECT max(seq) FROM log), (SELECT sum(commits) FROM process), "
            "pg_current_wal_lsn() - '0/0'::pg_lsn, (SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace)"
        )
        return Counter({name: int(value) for name, value in zip(names.split(", "), found, strict=True)})


def _stat(pid: int) -> tuple[float, int]:
    """Return the processor time of a process, with that of its children that have ended, and its parent."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS, int(fields[1])


def _cpu_s(pid: int) -> float:
    try:
        return _stat(pid)[0]
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0.0


def _memory_mb(pid: int, file: str, field: str) -> float:
    try:
        return int(Path(f"/proc/{pid}/{file}").read_text(encoding="ascii").partition(field)[2].split()[0]) / 1024
    except (FileNotFoundError, ProcessLookupError, IndexError):  # it has ended
        return 0.0


@contextlib.asynccontextmanager
async def running(folder: Path, count: int, wire: Wire, server: PostgresServer | None) -> AsyncIterator[Processes]:
    """Start the processes, wait until the bot is in all rooms, and stop them in the end."""
    names = [f"process-{number}" for number in range(count)] or ["gateway"]
    started = dict[str, asyncio.subprocess.Process]()
    already = len(wire.clients)
    try:
        for name in names:
            with (folder / f"{name}.txt").open("wb") as log:
                options = ("--name", name, "--ops-port", "0") if count else ()
                started[name] = await asyncio.create_subprocess_exec(
                    *(REVERIE, "run", "--config", folder, *options), stdout=log, stderr=log, env=ENVIRONMENT
                )

        def is_there() -> bool:
            here = [one for one in wire.clients[already:] if not one.closed]
            return bool(here) and all(here[-1] in wire.rooms.get(room, []) for room in ROOMS)

        try:
            await wire.until(is_there, START_LIMIT_S)
        except TimeoutError:
            logs = "\n".join(f"{name}:\n{(folder / f'{name}.txt').read_text()[-2000:]}" for name in names)
            raise RuntimeError(f"the gateway did not come up:\n{logs}") from None
        wire.bot = wire.clients[-1]
        processes = Processes(started, server, folder / "reverie.db")
        try:
            await wire.until(processes.are_there, START_LIMIT_S)
            yield processes
        finally:
            processes.close()
    finally:
        for one in started.values():
            with contextlib.suppress(ProcessLookupError):
                one.terminate()
        for one in started.values():
            await one.wait()


async def saturate(
    processes: Processes, wire: Wire, answers: int, most_s: float
) -> tuple[float, dict[str, Part], dict[str, float]]:
    """Let everybody ask until there are so many answers, or for so long.

    Returns answers per second, what each part took, and what was counted, for an answer.
    """
    wire.is_asking = True
    for room in ROOMS:
        wire.ask(room)
    await _until_answered(wire, 2 * len(ROOMS), most_s)  # the first turn in a place reads more
    processes.analyze()
    began = time.perf_counter(), wire.answers, processes.cpu_s(), processes.counts()
    await _until_answered(wire, began[1] + answers, most_s)
    answers = wire.answers - began[1]
    took_s = time.perf_counter() - began[0]
    cpu, counts, memory = processes.cpu_s(), processes.counts() - began[3], processes.memory_mb()
    wire.is_asking = False
    parts = {kind: Part((cpu[kind] - began[2].get(kind, 0.0)) * 1000 / answers, memory[kind]) for kind in cpu}
    await _settled(wire)
    return answers / took_s, parts, {name: value / answers for name, value in counts.items()}


async def _until_answered(wire: Wire, answers: int, most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            while wire.answers < answers:
                await asyncio.sleep(0.1)


async def _settled(wire: Wire) -> None:
    """Return when nobody has been answered for a second."""
    before = -1
    while before != wire.answers:
        before = wire.answers
        await asyncio.sleep(1.0)


async def ask_one_by_one(wire: Wire, model: FastModel, samples: int) -> tuple[list[float], list[float]]:
    """Milliseconds from a question on the wire to the request to the model, and to the answer on the wire."""
    requested, replied = list[float](), list[float]()
    for number in range(samples):
        before = len(model.stamps)
        wire.answered.clear()
        said_s = time.perf_counter()
        wire.ask(ROOMS[number % len(ROOMS)])
        async with asyncio.timeout(60):
            await wire.answered.wait()
        requested.append((model.stamps[before] - said_s) * 1000)
        replied.append((wire.answered_s - said_s) * 1000)
        await asyncio.sleep(0.05)  # what is written after a reply is not the next one's delay
    return requested, replied


async def overhear(processes: Processes, wire: Wire, lines: int) -> tuple[float, dict[str, float], dict[str, float]]:
    """Say lines that need no answer: see `Round`."""
    assert wire.bot is not None
    began_s, cpu, last = time.perf_counter(), processes.cpu_s(), processes.last()
    counts = processes.counts()
    for number in range(lines):
        text = f"the build is green again, this is line {number} of a long talk"
        wire.bot.raw(f":bob{number % 50}!b@host PRIVMSG {ROOMS[number % len(ROOMS)]} :{text}\r\n".encode())
    while processes.last() < last + 2 * lines:  # a message and its judgement each
        await asyncio.sleep(0.05)
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(2.0)  # the others read them
    taken = {kind: (value - cpu.get(kind, 0.0)) * 1e6 / lines for kind, value in processes.cpu_s().items()}
    counted = {name: value * 1000 / lines for name, value in (processes.counts() - counts).items()}
    return lines / took_s, taken, counted


# All of it


class Bench:
    """A folder, the servers, and what was measured."""

    def __init__(self, base: Path, server: PostgresServer, options: argparse.Namespace) -> None:
        self._base, self._server, self._options = base, server, options
        self._runs = 0

    async def measure(self, shape: str, delay_s: float) -> Round:
        """One round of one shape, with everything new."""
        self._runs += 1
        folder, count, options = self._base / f"run{self._runs}", SHAPES[shape], self._options
        server = self._server if count else None
        self._server.drop("reverie")
        url = self._server.url() if count else None
        async with Wire() as wire, FastModel(delay_s) as model:
            store = folder / "reverie.db"
            write_config(folder, irc_port=wire.port, model_url=model.url, store=store, rooms=ROOMS, store_url=url)
            async with running(folder, count, wire, server) as processes:
                per_second, parts, counts = await saturate(processes, wire, options.answers, options.seconds)
                requested, replied = await ask_one_by_one(wire, model, options.samples)
                heard = await overhear(processes, wire, options.lines)
        return Round(per_second, parts, counts, requested, replied, *heard)


def _p95(taken: Sequence[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.95)]


def show(title: str, rounds: Mapping[str, Sequence[Round]]) -> None:
    """Print the medians of one series."""
    print(f"\n{title}")
    print("| processes | answers/s (each round) | message to request, median / p95 ms | message to reply |")
    print("|---|---|---|---|")
    for shape, taken in rounds.items():
        rates = [one.per_second for one in taken]
        requested = [value for one in taken for value in one.requested_ms]
        replied = [value for one in taken for value in one.replied_ms]
        each = ", ".join(f"{rate:.1f}" for rate in rates)
        print(
            f"| {shape} | {statistics.median(rates):.1f} ({each}) "
            f"| {statistics.median(requested):.1f} / {_p95(requested):.1f} "
            f"| {statistics.median(replied):.1f} / {_p95(replied):.1f} |"
        )
    print("| processes | processor time for an answer, ms | memory, MB |\n|---|---|---|")
    for shape, taken in rounds.items():
        cpu, memory = list[str](), list[str]()
        for kind in taken[0].parts:
            cpu.append(f"{kind} {statistics.median(one.parts[kind].cpu_ms for one in taken):.1f}")
            memory.append(f"{kind} {statistics.median(one.parts[kind].memory_mb for one in taken):.0f}")
        total = statistics.median(sum(part.cpu_ms for part in one.parts.values()) for one in taken)
        print(f"| {shape} | {', '.join(cpu)}; all {total:.1f} | {', '.join(memory)} |")
    print("| processes | for each answer |\n|---|---|")
    for shape, taken in rounds.items():
        names: Iterable[str] = taken[0].counts
        told = [f"{name} {statistics.median(one.counts[name] for one in taken):,.1f}" for name in names]
        if told:
            print(f"| {shape} | {', '.join(told)} |")

    print("| processes | lines/s without an answer | processor time for 1,000, ms | for 1,000 |\n|---|---|---|---|")
    for shape, taken in rounds.items():
        rate = statistics.median(one.heard_per_second for one in taken)
        cpu = [
            f"{kind} {statistics.median(one.heard_cpu_ms[kind] for one in taken):.0f}" for kind in taken[0].heard_cpu_ms
        ]
        counted = [
            f"{name} {statistics.median(one.heard_counts[name] for one in taken):,.0f}"
            for name in taken[0].heard_counts
        ]
        print(f"| {shape} | {rate:,.0f} | {', '.join(cpu)} | {', '.join(counted)} |")


async def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    shapes = [shape for shape in SHAPES if not options.shapes or any(word in shape for word in options.shapes)]
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder, PostgresServer(is_durable=True) as server:
        bench = Bench(Path(folder), server, options)
        for delay_s in options.delays:
            rounds = defaultdict[str, list[Round]](list)
            for number in range(options.rounds):
                for shape in shapes:
                    load = os.getloadavg()[0]
                    one = await bench.measure(shape, delay_s)
                    rounds[shape].append(one)
                    told = {"round": number + 1, "shape": shape, "load": load, **one._asdict()}
                    print(json.dumps(told), file=sys.stderr, flush=True)
            show(f"{len(ROOMS)} people ask at once; the model takes {delay_s * 1000:.0f} ms", rounds)
    print(f"load average {os.getloadavg()[0]:.1f}, on {os.cpu_count()} processors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--answers", type=int, default=600, help="while all ask, in each round")
    parser.add_argument("--seconds", type=float, default=60.0, help="that these may take at most")
    parser.add_argument("--samples", type=int, default=60, help="questions one at a time in each round")
    parser.add_argument("--lines", type=int, default=4_000, help="that need no answer in each round")
    parser.add_argument("--delays", type=float, nargs="*", default=[0.0, 0.2], help="seconds that the model takes")
    parser.add_argument("--shapes", nargs="*", help="words of the shapes that are measured; default: all")
    given = parser.parse_args()
    asyncio.run(main(given))
