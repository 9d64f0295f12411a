"""Several processes of one gateway on one PostgreSQL, in the storm's world: people, three
platforms, a model.

Each process is the real program and reaches the database through a proxy of its own. From a seed
come the faults of `KINDS`. What became of a question is judged as in the storm (`storm_kit.judge`),
and besides whether the answers to one person came in the order of the questions. Time goes as fast
as it does outside, for what is measured is how long people wait; the people are fast.
"""

import asyncio
import contextlib
import json
import re
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx

from gateway.core.events import Message
from gateway.store import LogEntry
from gateway.store.types import read_entries
from reverie.testing.servers.model_api import Answer, Json
from tests.gateway.system.crash.storm_kit import (
    MAIN,
    PATIENCE_S,
    ROOM,
    Fault,
    Question,
    Storm,
    Table,
    TokenFile,
    town,
)
from tests.kits.delivery_judge import TOKEN
from tests.kits.gateway_process import CHECKOUT, so
from tests.kits.platform_users import DISCORD, IRC, NICK, PLATFORMS, TELEGRAM
from tests.kits.small_disk import SmallDisk
from tests.kits.tcp_proxy import TcpProxy
from tests.servers.real_postgresql import PostgresServer

SCHEMA = "cluster_storm"
KEY = "key-of-"
"""So that the model knows which process asks."""
QUICK_PEOPLE = """
import gateway.stream.loops
for name in ("REACTION_S",):
    setattr(gateway.stream.loops, name, getattr(gateway.stream.loops, name) / 20)
"""
"""People who are twenty times as fast as people are taken for people."""
LEASES = 6
"""Three channels, two agents, upkeep."""
REMOVED = 75
"""Exit code of a process that the others took for dead."""
STOPPED_S = 15.0
"""How long a process is stopped, longer than the others wait for it."""
DOWN_S = 30.0
"""How long the database is away."""
AGAIN_S = (1.0, 4.0)
"""After so long a process that ended is started again, as by a supervisor."""


@dataclass(eq=False)
class Process:
    """A process of the gateway, with its configuration and log in a directory of its own."""

    name: str
    directory: Path
    proxy: TcpProxy
    program: asyncio.subprocess.Process | None = None
    is_hit: bool = False
    """True: a fault befalls it."""
    is_ending: bool = False
    """True: somebody has asked for its end, and starts it again."""
    log_at: int = 0
    supervisor: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.read, self.kept = (
            TokenFile(self.directory / "read.txt"),
            TokenFile(self.directory / "kept.txt"),
        )

    @property
    def log(self) -> str:
        file = self.directory / "stderr.txt"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def log_now(self) -> str:
        """What the newest has written."""
        with (self.directory / "stderr.txt").open("rb") as log:
            log.seek(self.log_at)
            return log.read().decode(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.program is not None and self.program.returncode is None


@dataclass(frozen=True)
class TakeOver:
    """How long something had nobody."""

    kind: str
    """Of the fault."""
    what: str
    """`connection` or `conversation`."""
    where: str
    """Platform."""
    seconds: float


@dataclass
class _Tokens:
    files: list[TokenFile] = field(default_factory=list)

    def tokens(self) -> set[str]:
        return set().union(*(one.tokens() for one in self.files))


class ClusterStorm(Storm):
    """All of it. Use as `async with cluster_storm(...) as it`."""

    speed = 1.0

    def __init__(self, server: PostgresServer, count: int, *around: Any) -> None:
        """`count`: how many processes. `around`: as of `Storm`."""
        self.server, self.count = server, count
        self.processes: list[Process] = []
        super().__init__(*around)
        self.broken: list[str] = []
        """Processes that ended by themselves in another way than REMOVED."""
        self.removals = Counter[str]()
        self.starts = 0
        self.take_overs: list[TakeOver] = []
        self.asked_by: dict[str, list[tuple[float, str]]] = defaultdict(list)
        """Token -> when and by which process the model was asked about it."""
        self.unheard_by_gone: set[str] = set()
        """What processes that have ended had read from IRC."""
        self._watches: set[asyncio.Task[None]] = set()
        self.slow_s = 1.5
        self._opened = contextlib.AsyncExitStack()
        self._written: list[tuple[int, str, str, str]] = []

    # Processes

    def program(self, directory: Path) -> str:
        return QUICK_PEOPLE + super().program(directory)

    async def begin(self) -> None:
        """Have everybody there, and the processes."""
        read, kept = _Tokens(), _Tokens()
        self.read, self.kept = read, kept  # type: ignore[assignment] # the same method
        for _ in range(self.count):
            await self.add()
        await super().begin()

    async def add(self) -> Process:
        """Have one more process, which does not run yet."""
        proxy = await self._opened.enter_async_context(TcpProxy(self.server.port))
        name = f"process-{len(self.processes) + 1}"
        one = Process(name, self.directory / name, proxy)
        self.processes.append(one)
        for tokens, file in ((self.read, one.read), (self.kept, one.kept)):
            cast("_Tokens", tokens).files.append(file)
        self.write_process(one)
        return one

    def write(self) -> None:
        self.config["store"]["url"] = self.server.url(SCHEMA)
        for one in self.processes:
            self.write_process(one)

    def write_process(self, one: Process) -> None:
        """Make the configuration what that process reads."""
        config = json.loads(json.dumps(self.config))
        url = self.server.url(SCHEMA).replace(f":{self.server.port}/", f":{one.proxy.port}/")
        config["store"] |= {"path": str(self.store), "url": url}
        config["llm"]["providers"]["fake"] |= {"api_key": f"{KEY}{one.name}", "timeout": 120}
        file = one.directory / "reverie.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        file.chmod(0o600)

    async def start(self) -> None:
        self.write()
        await asyncio.gather(*map(self.launch_process, self.processes))

    async def launch_process(self, one: Process) -> None:
        """Start it, and return once it serves."""
        one.is_ending = False
        program = await self.spawn_process(one)
        one.supervisor = asyncio.create_task(self._supervise(one, program))
        assert await so(lambda: "serving" in one.log_now or bool(self.broken), PATIENCE_S), (
            one.log_now[-3000:]
        )
        assert not self.broken, self.broken

    async def spawn_process(self, one: Process) -> asyncio.subprocess.Process:
        """Start it, whatever becomes of it."""
        log_file = one.directory / "stderr.txt"
        one.log_at = log_file.stat().st_size if log_file.exists() else 0
        self.code = self.program(one.directory)
        with log_file.open("ab") as log:
            one.program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", self.code, "run", "--config", str(one.directory)),
                *("--name", one.name, "--ops-port", "0"),
                stdout=log,
                stderr=log,
                cwd=CHECKOUT,
            )
        self.starts += 1
        return one.program

    async def _supervise(self, one: Process, program: asyncio.subprocess.Process) -> None:
        """Start it again if it was removed."""
        code = await program.wait()
        self.unheard_by_gone |= one.read.tokens()
        self.unkept |= one.read.tokens() - self.kept.tokens()
        if one.is_ending:
            return
        if code != REMOVED:
            self.broken.append(f"{one.name} ended with code {code}:\n{one.log_now[-3000:]}")
            return
        self.removals[one.name] += 1
        await asyncio.sleep(self.random.uniform(*AGAIN_S))
        await self.launch_process(one)

    async def end_process(self, one: Process, number: int) -> int:
        """Send a signal after which it ends; return its code."""
        assert one.program is not None
        one.is_ending = True
        one.program.send_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            code = await one.program.wait()
        if one.supervisor is not None:
            await one.supervisor
        return code

    async def end(self) -> None:
        """SIGTERM for all; each has to end well, or to know that it was taken for dead."""
        await asyncio.gather(*(_settles(one) for one in self.processes if not one.is_ending))
        codes = await asyncio.gather(
            *(self.end_process(one, signal.SIGTERM) for one in self.running)
        )
        assert set(codes) <= {0, REMOVED}, f"{codes}\n{self.log[-3000:]}"

    async def close(self) -> None:
        for task in (
            *self._watches,
            *(one.supervisor for one in self.processes if one.supervisor is not None),
        ):
            task.cancel()
        for one in self.processes:
            if one.program is not None and one.is_running:
                one.program.kill()
                await one.program.wait()
        await self._opened.aclose()

    @property
    def running(self) -> list[Process]:
        return [one for one in self.processes if one.is_running]

    @property
    def log(self) -> str:
        return "\n".join(f"== {one.name}\n{one.log}" for one in self.processes)

    @contextlib.contextmanager
    def chosen(self) -> Iterator[Process]:
        """A process that runs, and that nothing else befalls meanwhile."""
        free = [one for one in self.processes if one.is_running and not one.is_hit]
        one = self.random.choice(free)
        one.is_hit = True
        try:
            yield one
        finally:
            one.is_hit = False

    # What is measured

    async def holders(self) -> dict[str, str]:
        """Lease -> name of the process that has it, as the database says. Empty: it does not."""
        return await asyncio.to_thread(_read_holders, self.server.url(SCHEMA))

    async def held_platforms(self, one: Process) -> list[str]:
        """Platforms whose connection a process holds."""
        holders = await self.holders()
        return [name for name in PLATFORMS if holders.get(f"channel:{name}") == one.name]

    def watch_connections(self, kind: str, platforms: Sequence[str]) -> None:
        """Measure from now on how long it takes until the bot has connected to these again."""
        begun_s, bots = time.monotonic(), {*self.ircd.clients}
        sessions, polls = (
            {one.connection for one in self.discord.live},
            len(self.telegram.asked("getUpdates")),
        )
        is_there: Mapping[str, Callable[[], bool]] = {
            TELEGRAM: lambda: len(self.telegram.asked("getUpdates")) > polls,
            DISCORD: lambda: any(one.connection not in sessions for one in self.discord.live),
            IRC: lambda: any(
                one.user == NICK and not one.closed and one not in bots
                for one in self.ircd.rooms.get(ROOM, [])
            ),
        }

        async def watch(platform: str) -> None:
            assert await so(is_there[platform], PATIENCE_S), (
                f"{kind}: nobody took over {platform}\n{self.log[-3000:]}"
            )
            self.take_overs.append(
                TakeOver(kind, "connection", platform, time.monotonic() - begun_s)
            )

        for platform in platforms:
            task = asyncio.create_task(watch(platform))
            self._watches.add(task)

    def watch_conversations(self, kind: str, one: Process) -> None:
        """Measure how long whoever waited for an answer of this process waits from now on."""
        now_s = time.monotonic()
        for question in self.waiting:
            asked = [
                self.asked_by[token][-1] for token in question.tokens if self.asked_by.get(token)
            ]
            if asked and max(asked)[1] == one.name:
                self._watches.add(
                    asyncio.create_task(self._conversation_taken_over(kind, question, now_s))
                )

    async def _conversation_taken_over(self, kind: str, question: Question, since_s: float) -> None:
        while question.ended_s == float("inf") and question in self.waiting:
            await asyncio.sleep(0.02)
        if question.ended_s < float("inf"):
            self.take_overs.append(
                TakeOver(kind, "conversation", question.seat.platform, question.ended_s - since_s)
            )

    def _answer(self, body: Json) -> Answer:
        seen = next((one for one in reversed(self.model.seen) if one.body is body), None)
        name = (
            seen.headers.get("authorization", "").removeprefix(f"Bearer {KEY}")
            if seen is not None
            else ""
        )
        for token in set(TOKEN.findall(json.dumps(body["messages"][-4:]))):
            self.asked_by[token].append((time.monotonic(), name))
        return super()._answer(body)

    # What operators see

    async def readiness(self) -> dict[str, int]:
        """Process -> status of its `/ready`; 0 while it does not listen."""
        found = dict[str, int]()
        async with httpx.AsyncClient(trust_env=False) as client:
            for one in self.running:
                found[one.name] = 0  # e.g. one that the others removed, and that starts again
                for port in re.findall(r"http://127\.0\.0\.1:(\d+)/metrics", one.log_now)[-1:]:
                    with contextlib.suppress(httpx.ConnectError):
                        ready = await client.get(f"http://127.0.0.1:{port}/ready")
                        found[one.name] = ready.status_code
        return found

    async def status(self, *arguments: str) -> tuple[int | None, Json]:
        """Exit code and JSON of `reverie status`."""
        newest = self.processes[-1]
        command = ("-c", MAIN, "status", "--json", "--config", str(newest.directory), *arguments)
        made = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, cwd=CHECKOUT
        )
        out, _ = await made.communicate()
        return made.returncode, json.loads(out)

    # Verdict

    async def entries(self) -> list[LogEntry]:
        """The log, also of a newer schema."""
        rows = (
            f"SELECT seq, at, kind, conversation, key, cause, body FROM {SCHEMA}.log ORDER BY seq"
        )
        return read_entries(await asyncio.to_thread(self.server.execute, rows))

    async def judged(self) -> Table:
        """What became of all questions, with the log as witness of what was kept."""
        kept = {
            token
            for entry in await self.entries()
            if isinstance(entry.fact, Message)
            for token in TOKEN.findall(entry.fact.text)
        }
        await asyncio.gather(*self._watches)
        self._written = [
            (entry.seq, entry.at.isoformat(), entry.kind, str(entry.fact))
            for entry in await self.entries()
        ]
        self.unkept = (self.unkept | self.unheard_by_gone) - kept
        return self.verdict()

    def explain(self, question: Question) -> str:
        found = [
            f"{seq} {at} {kind}: {text[:300]}"
            for seq, at, kind, text in self._written
            if any(token in TOKEN.findall(text) for token in question.tokens)
        ]
        return "\n  ".join((super().explain(question), *found))

    def report(self) -> str:
        """What was measured, as tables."""
        lines = [
            "| taken over | after | where | times | median s | maximum s |",
            "|---|---|---|---|---|---|",
        ]
        groups = defaultdict[tuple[str, str, str], list[float]](list)
        for one in self.take_overs:
            groups[one.what, one.kind, one.where.partition(".")[0]].append(one.seconds)
            groups[one.what, "all", "all"].append(one.seconds)
        for (what, kind, where), times in sorted(groups.items()):
            lines.append(
                f"| {what} | {kind} | {where} | {len(times)} | {statistics.median(times):.2f} | "
                f"{max(times):.2f} |"
            )
        calm = [
            one.ended_s - one.said_s
            for one in self.questions
            if one.outcome == "answered" and not any(fault.meets(one) for fault in self.faults)
        ]
        minutes = (time.monotonic() - self._begun_mono_s) / 60
        answered = sum(one.outcome == "answered" for one in self.questions)
        workers = {name for asked in self.asked_by.values() for _, name in asked}
        rate = f"{answered / minutes:.0f} a minute"
        lines += [
            "",
            (
                f"{len(self.questions)} questions and {answered} answers in {minutes:.1f} minutes: "
                f"{rate}"
            ),
        ]
        lines.append(f"{len(self.model.seen)} requests to the model by {len(workers)} processes")
        lines.append(
            f"{self.starts} starts; {sum(self.removals.values())} processes removed by the others"
        )
        if calm:
            lines.append(
                f"waited for an answer without faults: median {statistics.median(calm):.2f} s, "
                f"maximum {max(calm):.2f} s of {len(calm)}"
            )
        return "\n".join(lines)


def _read_holders(url: str) -> dict[str, str]:
    import psycopg  # noqa: PLC0415 - an extra, which may be missing

    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=2) as connection:
            found = connection.execute(
                "SELECT lease.name, process.name FROM lease JOIN process USING (number)"
            )
            return dict(found.fetchall())
    except psycopg.Error:
        return {}


# What goes wrong

Make = Callable[[ClusterStorm, str], Awaitable[None]]


def _ended(number: int, *, well: bool) -> Make:
    async def happens(it: ClusterStorm, kind: str) -> None:
        with it.chosen() as one:
            held = await it.held_platforms(one)
            it.watch_connections(kind, held)
            it.watch_conversations(kind, one)
            code = await it.end_process(one, number)
            well_ended = code == (0 if well else -number) or (
                code == -number and not one.log_now
            )  # it had not begun
            assert well_ended, f"{one.name} ended with {code}:\n{one.log_now[-3000:]}"
            await asyncio.sleep(it.random.uniform(*AGAIN_S))
            await it.launch_process(one)

    return happens


async def _kill_all(it: ClusterStorm, kind: str) -> None:
    """None is left for a while. First waits for one that was removed, and begins again."""

    def all_are_free() -> bool:
        return all(one.is_running and not one.is_hit for one in it.processes)

    assert await so(all_are_free, PATIENCE_S), it.log[-3000:]
    with contextlib.ExitStack() as hit:
        gone = [hit.enter_context(it.chosen()) for _ in it.processes]
        for one in gone:
            it.watch_conversations(kind, one)
        await asyncio.gather(*(it.end_process(one, signal.SIGKILL) for one in gone))
        await it.lasts(4, 8)
        it.watch_connections(kind, PLATFORMS)
        await asyncio.gather(*map(it.launch_process, gone))


async def _stop(it: ClusterStorm, kind: str) -> None:
    with it.chosen() as one:
        program = one.program
        assert program is not None
        if len(it.processes) > 1:  # else nobody takes over
            it.watch_connections(kind, await it.held_platforms(one))
        it.watch_conversations(kind, one)
        program.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(STOPPED_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                program.send_signal(signal.SIGCONT)
        await _settles(one)


async def _settles(one: Process) -> None:
    """Return once it serves, or was removed and serves again."""
    await asyncio.sleep(2.0)
    assert await so(lambda: one.is_running and "serving" in one.log_now, PATIENCE_S), one.log_now[
        -3000:
    ]


async def _restart_database(it: ClusterStorm, _kind: str) -> None:
    await asyncio.to_thread(it.server.stop, it.random.choice(("immediate", "fast")))
    await asyncio.to_thread(it.server.start)
    await it.lasts(3, 5)


async def _stop_database(it: ClusterStorm, _kind: str) -> None:
    await asyncio.to_thread(it.server.stop, it.random.choice(("immediate", "fast")))
    await asyncio.sleep(DOWN_S)
    await asyncio.to_thread(it.server.start)
    await it.lasts(3, 5)


def _cut_off(*, silent: bool, least_s: float, most_s: float) -> Make:
    """A process does not reach the database: it is told so, or it is silent there."""

    async def happens(it: ClusterStorm, kind: str) -> None:
        with it.chosen() as one:
            it.watch_conversations(kind, one)
            if silent:
                one.proxy.fall_silent()
            else:
                one.proxy.is_refusing = True
                one.proxy.reset()
            try:
                await it.lasts(least_s, most_s)
            finally:
                one.proxy.is_refusing = False
                one.proxy.speak()
            await _settles(one)

    return happens


async def _slow_database(it: ClusterStorm, _kind: str) -> None:
    delays = {one: it.random.uniform(0.02, 0.15) for one in it.processes}
    for one, delay_s in delays.items():
        one.proxy.delay_s = delay_s
    await it.lasts(4, 8)
    for one in delays:
        one.proxy.delay_s = 0.0


KINDS: Mapping[str, Make] = {
    "kill -9": _ended(signal.SIGKILL, well=False),
    "SIGTERM": _ended(signal.SIGTERM, well=True),
    "SIGSTOP": _stop,
    "all are killed": _kill_all,
    "database restarts": _restart_database,
    "database down": _stop_database,
    "refused": _cut_off(silent=False, least_s=2, most_s=12),
    "cut off": _cut_off(silent=True, least_s=6, most_s=12),
    "database slow": _slow_database,
}
"""Fault -> how it is made."""


async def inject(it: ClusterStorm, kind: str) -> None:
    """One fault, from its beginning to its end."""
    fault = Fault(kind, PLATFORMS, time.monotonic())
    it.faults.append(fault)
    await KINDS[kind](it, kind)
    fault.ended_s = time.monotonic()


@contextlib.asynccontextmanager
async def cluster_storm(
    directory: Path, server: PostgresServer, seed: int, count: int = 3
) -> AsyncIterator[ClusterStorm]:
    """Servers, people and the processes; nothing that was started outlives this."""
    shared = directory / "shared"
    shared.mkdir()
    server.drop(SCHEMA)

    def make(*around: Any) -> ClusterStorm:
        return ClusterStorm(server, count, *around)

    async with town(make, SmallDisk(shared), directory, seed) as it:
        yield it


async def _operators_see_all(it: ClusterStorm) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while set((await it.readiness()).values()) != {200}:
            await asyncio.sleep(0.2)
    for name in ("", it.running[-1].name):
        code, told = await it.status(*(["--name", name] if name else []))
        assert code == 0
        processes, leases = told["data"]["processes"], told["data"]["leases"]
        assert {one["name"]: one["state"] for one in processes} == {
            one.name: "running" for one in it.running
        }
        assert all(one["holder"] for one in leases)
        assert {one["name"] for one in leases} == {
            lease for one in processes for lease in one["leases"]
        }
        assert len(leases) == LEASES


async def calm(it: ClusterStorm) -> None:
    """Wait until nobody waits, and print and judge what became of all of them."""
    await it.settle()
    await asyncio.sleep(3)  # for what would come twice
    table = await it.judged()
    print(f"\n{table}\n\n{it.report()}")
    for question in it.questions:
        if question.outcome in ("lost", "doubled", "silent"):
            print(it.explain(question))
    await _operators_see_all(it)
    await it.end()
    _, told = await it.status()
    assert told["lines"][0].startswith("No process of this gateway is running")
    left = told["data"]["processes"]  # one that was killed while it started is known for a minute
    assert {one["state"] for one in left} <= {"cut off"}
    assert not it.broken
    assert "Traceback" not in it.log
    assert not it.model.violations
    assert not it.discord.offences
    assert table.failed == 0
    assert it.out_of_order() == []
