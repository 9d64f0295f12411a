"""The table of what an answer costs: `make bench`, or `python -m tests.bench.bench_gateway`.

Each figure of time stands beside that of a naive bot on the same libraries (`naive_bot`), of cost beside
what would have been the least, measured in turn in the same run: a fresh process each time, loopback
sockets, a real SQLite file; medians of the runs. `--check` compares these ratios with `baseline.json`,
and fails where one is worse by more than a fifth. `--against DIR` measures the code of another checkout
in place of the naive bot.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from hatchling.build import build_wheel

from agent.cache.prices import PriceTable
from gateway.config.loader import parse_config
from reverie.testing.gateway import IRC, UNBOUNDED, UNHURRIED
from reverie.testing.gateway import Gateway as InProcess
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.model_api import Answer, ModelApi
from tests.bench import bench_cache, bench_cache_plan, bench_hour
from tests.bench.bench_growth import fill
from tests.bench.gateway_kit import (
    NICK,
    ROOM,
    ROOT,
    Answered,
    FastModel,
    Gateway,
    Wire,
    ask,
    gateway_command,
    running,
    write_config,
)
from tests.kits.installed import count_installed_bytes
from tests.tools.trace import count_trips

IDLE_S: Final = 3.0
WARM_UP: Final = 20
"""Messages before the first that counts."""
ASKERS: Final = 100
BASELINE: Final = Path(__file__).with_name("baseline.json")
WORSE: Final = 1.2
"""A ratio that is so many times the stored one fails the check."""


class Row(NamedTuple):
    """One line of the table."""

    unit: str
    promise: str
    beside: str = ""
    """What the figure is compared with. Empty: the figure is a count, the same on each machine."""
    is_more_better: bool = False
    is_checked: bool = True
    """False: it differs by more from run to run."""


ROWS: Final = {
    "launch -> connected, IRC": Row("s", "<= 0.45", "naive bot"),
    "launch -> connected, all three": Row("s", "<= 0.8", "naive bot"),
    "the same with 1,000,000 entries in the log, IRC": Row("s", "+ 0.1", "naive bot"),
    "memory, idle, IRC": Row("MB", "<= 55", "naive bot"),
    "memory, idle, all three": Row("MB", "<= 85", "naive bot"),
    "memory of 1,000 more rooms with history": Row("MB", "<= 25"),
    "memory of 10,000 more rooms with history": Row("MB", "<= 120"),
    "message on the wire -> request, p50": Row("ms", "<= 4, 1.5 times", "naive bot"),
    "message on the wire -> request, p99": Row("ms", "<= 12", "naive bot", is_checked=False),
    "model's last byte -> post, p50": Row("ms", "<= 3", "naive bot"),
    "model's last byte -> post, p99": Row("ms", "<= 12", "naive bot", is_checked=False),
    "CPU per answered message": Row("ms", "<= 6.5", "naive bot"),
    "durable ingest over IRC": Row(
        "lines/CPU s", ">= 10,000", "naive bot, not durable", is_more_better=True
    ),
    "100 rooms ask at once, half wait": Row("s", "<= 1.5", "the model's time"),
    "commits of a hello": Row("", "3"),
    "reads of a hello": Row("", "0"),
    "addressed messages answered, recorded hour": Row("share", "1", is_more_better=True),
    "input read from the cache, recorded hour": Row("share", ">= 0.96", is_more_better=True),
    "cost, recorded hour": Row("units", "<= 1.05 times", "bound"),
    "input tokens for each addressed message": Row("tokens", "<= 3,400"),
    "units for each answer": Row("units", "<= 380"),
    "prefix that all conversations share": Row("tokens", "<= 1,800"),
    "install without extras": Row("MB", "<= 65"),
    "cost, the times of the recorded hour": Row("units", "<= 1.05 times", "bound"),
    "cost, a busy hour": Row("units", "<= 1.05 times", "bound"),
    "cost, a day with silences": Row("units", "<= 1.06 times", "bound"),
    "cost, random gaps": Row("units", "<= 1.05 times", "bound"),
    "cost, a sparse week": Row("units", "<= 1.10 times", "bound"),
}


class Samples:
    """What was measured: for each row, ours and what it is compared with."""

    def __init__(self) -> None:
        self.ours: dict[str, list[float]] = defaultdict(list)
        self.beside: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, ours: float, beside: float | None = None) -> None:
        self.ours[name].append(ours)
        if beside is not None:
            self.beside[name].append(beside)

    def medians(self) -> dict[str, tuple[float, float | None]]:
        return {
            name: (
                statistics.median(self.ours[name]),
                statistics.median(self.beside[name]) if name in self.beside else None,
            )
            for name in ROWS
            if name in self.ours
        }


class Bench:
    """One fake IRC server, one fake model, and a folder with a fresh corner for each run."""

    def __init__(self, base: Path, wire: Wire, model: FastModel, samples: Samples) -> None:
        self._base, self._wire, self._model, self._samples = base, wire, model, samples
        self._numbers = itertools.count()

    def command(self, **config: object) -> tuple[object, ...]:
        """Start the gateway with a configuration of its own, and a store that does not exist yet
        unless it is given."""
        folder = self._base / f"run{next(self._numbers)}"
        given = {"store": folder / "reverie.db", "model_url": self._model.url} | config
        write_config(folder, irc_port=self._wire.port, **given)  # type: ignore[arg-type] # as it is called
        return gateway_command(folder)

    def naive(self) -> tuple[object, ...]:
        program = Path(__file__).with_name("naive_bot.py")
        return sys.executable, program, self._wire.port, NICK, ROOM, self._model.url

    async def live(self, options: argparse.Namespace) -> None:
        """One life of each: it starts, is idle, answers, and takes lines in."""
        ours = await self._measure_life(self.command(), options)
        if options.against is not None:
            other = await self._measure_life(self.command(), options, tree=options.against)
        else:
            other = await self._measure_life(self.naive(), options)
        for name, value in ours.items():
            self._samples.add(name, value, other[name])

    async def _measure_life(
        self, command: tuple[object, ...], options: argparse.Namespace, tree: Path | None = None
    ) -> dict[str, float]:
        requested, posted = list[float](), list[float]()
        async with running(self._wire, *command, tree=tree) as bot:
            await asyncio.sleep(IDLE_S)
            idle_mb, warm_s = bot.resident_mb(), 0.0
            for number in range(options.messages + WARM_UP):
                if number == WARM_UP:
                    warm_s = bot.cpu_s()
                answered = await self._ask(bot, number)
                requested.append((answered.requested_s - answered.said_s) * 1000)
                posted.append((answered.replied_s - answered.written_s) * 1000)
            cpu_ms = (bot.cpu_s() - warm_s) * 1000 / options.messages
            lines_per_cpu_s = await self._take_in(bot, options.lines)
        del requested[:WARM_UP], posted[:WARM_UP]
        return {
            "launch -> connected, IRC": bot.up_s - bot.launched_s,
            "memory, idle, IRC": idle_mb,
            "message on the wire -> request, p50": statistics.median(requested),
            "message on the wire -> request, p99": statistics.quantiles(requested, n=100)[98],
            "model's last byte -> post, p50": statistics.median(posted),
            "model's last byte -> post, p99": statistics.quantiles(posted, n=100)[98],
            "CPU per answered message": cpu_ms,
            "durable ingest over IRC": lines_per_cpu_s,
        }

    async def _ask(self, bot: Gateway, number: int) -> Answered:
        text = f"how is the build, number {number}?"
        return await ask(self._wire, self._model, bot.bot, text, f"alice{number % 50}")

    async def _take_in(self, bot: Gateway, lines: int) -> float:
        """Say lines that nobody has to answer, then one that is answered behind them."""
        began_s = bot.cpu_s()
        for number in range(lines):
            text = f"the build is green again, this is line {number} of a long talk"
            bot.bot.raw(f":alice{number % 50}!a@host PRIVMSG {ROOM} :{text}\r\n".encode())
        await self._ask(bot, 0)
        return lines / (bot.cpu_s() - began_s)

    async def start_all_three(self) -> None:
        """Launch on all platforms, beside the naive bot on IRC."""
        async with BotApi() as telegram, DiscordApi() as discord:
            beside = {
                "telegram.bench": {
                    "platform": "telegram",
                    "token": telegram.token,
                    "base_url": telegram.url,
                    "rooms": ["*"],
                },
                "discord.bench": {
                    "platform": "discord",
                    "token": discord.token,
                    "api_url": discord.api_url,
                    "gateway_url": discord.gateway_url,
                    "rooms": ["*"],
                },
            }
            found = []
            for command, links in ((self.command(beside=beside), 3), (self.naive(), 1)):
                async with running(self._wire, *command, links=links) as bot:
                    await asyncio.sleep(IDLE_S)
                    found.append((bot.up_s - bot.launched_s, bot.resident_mb()))
        for name, ours, other in zip(("launch -> connected", "memory, idle"), *found, strict=True):
            self._samples.add(f"{name}, all three", ours, other)

    async def start_with_log(self, store: Path) -> None:
        """Launch with this store, beside the naive bot."""
        taken = []
        for command in (self.command(store=store), self.naive()):
            async with running(self._wire, *command) as bot:
                taken.append(bot.up_s - bot.launched_s)
        self._samples.add("the same with 1,000,000 entries in the log, IRC", *taken)

    async def grow_rooms(self, most: int) -> None:
        """Have each of many rooms answered once, 50 of them at a time."""
        rooms = [f"#bench{number}" for number in range(most)]
        async with running(self._wire, *self.command(rooms=[ROOM, *rooms])) as bot:
            await self._ask(bot, 0)
            await asyncio.sleep(IDLE_S)
            before_mb = bot.resident_mb()
            for first in range(0, most, 50):
                already = len(self._wire.lines)
                for room in rooms[first : first + 50]:
                    bot.bot.raw(f":ann!a@host PRIVMSG {room} :{NICK}: hello\r\n".encode())
                wanted = {f"PRIVMSG {room} " for room in rooms[first : first + 50]}
                await self._wire.until(partial(self._have_answered, already, wanted))
                if first + 50 in (1_000, 10_000):
                    name = f"memory of {first + 50:,} more rooms with history"
                    self._samples.add(name, bot.resident_mb() - before_mb)

    def _have_answered(self, already: int, wanted: set[str]) -> bool:
        said = {line[: line.index(":")] for line in self._wire.lines[already:] if ":" in line}
        return wanted <= said


async def ask_at_once(folder: Path) -> float:
    """Return the seconds that half of a hundred rooms wait, of a model that takes 1 s."""
    names = [f"#room{number}" for number in range(ASKERS)]
    async with ModelApi() as api:
        api.default = lambda _: Answer(text="Yes.", delay_s=1.0)
        given = {
            "channels": {IRC: {"platform": "console", "rooms": names}},
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"p": {"kind": "anthropic", "base_url": api.url, "api_key": "k"}},
                "models": {"main": {"provider": "p", "name": "claude-sonnet-5-5"}},
                "context_optimization": {"token_counter": {"enabled": False}},
            },
            "access": {"dm": "open", "rates": UNHURRIED, "budgets": UNBOUNDED},
            "attention": {"coalesce": 0},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        }
        async with InProcess(parse_config(given, folder)) as gateway:
            await gateway.ask("reverie, hello", sender="ann", room=names[0])  # fills the cache
            first, began_s, took_s = (
                len(gateway.screen.parts),
                dict[str, float](),
                dict[str, float](),
            )
            for room in names:
                began_s[room] = time.monotonic()
                await gateway.say("reverie, hello", sender=f"of {room}", room=room)
            while len(took_s) < ASKERS:
                await asyncio.sleep(0.005)
                for part in gateway.screen.parts[first:]:
                    took_s.setdefault(part.to.room, time.monotonic() - began_s[part.to.room])
    return statistics.median(took_s.values())


@contextlib.asynccontextmanager
async def _bench(samples: Samples) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        async with Wire() as wire, FastModel() as model:
            bench = Bench(Path(folder), wire, model, samples)
            async with running(wire, *bench.command()):
                pass  # compiles what has changed since the last start
            yield bench


async def measure_lives(samples: Samples, options: argparse.Namespace) -> None:
    async with _bench(samples) as bench:
        for _ in range(options.runs):
            await bench.live(options)


async def measure_platforms(samples: Samples, options: argparse.Namespace) -> None:
    async with _bench(samples) as bench:
        for _ in range(options.runs):
            await bench.start_all_three()


async def measure_long_log(samples: Samples, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await fill(store := Path(folder) / "big.db", 1_000_000)
        async with _bench(samples) as bench:
            for _ in range(options.runs):
                await bench.start_with_log(store)


async def measure_rooms(samples: Samples, options: argparse.Namespace) -> None:
    async with _bench(samples) as bench:
        await bench.grow_rooms(options.rooms)


async def measure_askers(samples: Samples, options: argparse.Namespace) -> None:
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            samples.add("100 rooms ask at once, half wait", await ask_at_once(Path(folder)), 1.0)


async def measure_hello(samples: Samples, _: argparse.Namespace) -> None:
    commits, reads = await count_trips(ROOT)
    samples.add("commits of a hello", commits)
    samples.add("reads of a hello", reads)


async def measure_install(samples: Samples, _: argparse.Namespace) -> None:
    with contextlib.chdir(ROOT), tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / build_wheel(folder)
        samples.add("install without extras", count_installed_bytes(wheel) / 1_000_000)


async def measure_hour(samples: Samples, _: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hour = await bench_hour.play(Path(folder))
    samples.add("addressed messages answered, recorded hour", hour.answered / hour.addressed)
    samples.add("input read from the cache, recorded hour", hour.read_tokens / hour.input_tokens)
    samples.add("cost, recorded hour", hour.units, hour.bound)
    samples.add("input tokens for each addressed message", hour.input_tokens / hour.addressed)
    samples.add("units for each answer", hour.units / hour.answered)
    samples.add("prefix that all conversations share", hour.prefix_tokens)


async def measure_policy(samples: Samples, options: argparse.Namespace) -> None:
    price = PriceTable.parse(bench_cache.PRICES.read_text(encoding="utf-8")).find(bench_cache.MODEL)
    first = bench_cache_plan.FIRST_SEED
    for (name, make), seed in itertools.product(
        bench_cache_plan.RECORDED.items(), range(first, first + options.runs)
    ):
        chosen = {
            "": bench_cache_plan.learning(bench_cache_plan.POLICIES["auto"], price),
            ", best online": bench_cache_plan.best_online(make, bench_cache_plan.cost_of(price)),
        }
        found = bench_cache_plan.costs(make(seed), price, chosen)
        for policy in chosen:
            samples.add(f"cost, {name}{policy}", found[policy], found["bound"])


GROUPS: Final[dict[str, Callable[[Samples, argparse.Namespace], Coroutine[None, None, None]]]] = {
    "life": measure_lives,
    "platforms": measure_platforms,
    "log": measure_long_log,
    "rooms": measure_rooms,
    "askers": measure_askers,
    "hello": measure_hello,
    "install": measure_install,
    "hour": measure_hour,
    "policy": measure_policy,
}


def compare(found: tuple[float, float | None]) -> float:
    """Return what is compared with the baseline: a ratio, or a count."""
    ours, beside = found
    return ours if beside is None else ours / beside


def show(medians: dict[str, tuple[float, float | None]], other: str) -> None:
    print(
        f"{'':48} {'measured':>10} {'beside':>10} {'ratio':>6}  {'unit':12} {'promise':18} beside is"
    )
    for name, found in medians.items():
        row, (ours, beside) = ROWS[name], found
        told = f"{'':17}" if beside is None else f"{beside:10.2f} {compare(found):6.2f}"
        what = other if row.beside.startswith("naive") and other else row.beside
        print(f"{name:48} {ours:10.2f} {told}  {row.unit:12} {row.promise:18} {what}")


def find_worse(
    medians: dict[str, tuple[float, float | None]], baseline: dict[str, float]
) -> list[str]:
    """Return a line for each ratio that is worse than the stored one by more than a fifth."""
    lines = []
    for name, before in baseline.items():
        if name in medians and ROWS[name].is_checked:
            now = compare(medians[name])
            worse, better = (before, now) if ROWS[name].is_more_better else (now, before)
            if worse > WORSE * better:
                lines.append(f"{name}: {now:.2f}, and the stored ratio is {before:.2f}")
    return lines


def main() -> int:
    """Measure, print, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups", nargs="*", choices=[*GROUPS, []], help="all, unless some are named"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200, help="of each run, one at a time")
    parser.add_argument("--lines", type=int, default=8_000, help="of each run, all at once")
    parser.add_argument("--rooms", type=int, default=10_000)
    parser.add_argument("--against", type=Path, metavar="DIR", help="a checkout, for `life`")
    parser.add_argument("--check", action="store_true", help="fail where a ratio is much worse")
    parser.add_argument("--store", action="store_true", help="write the ratios to baseline.json")
    options = parser.parse_args()
    samples, load = Samples(), os.getloadavg()[0]
    for group in options.groups or GROUPS:
        print(f"measuring: {group}", file=sys.stderr)
        asyncio.run(GROUPS[group](samples, options))
    medians = samples.medians()
    show(medians, f"{options.against}" if options.against else "")
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} processors")
    baseline = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    if options.store:
        baseline |= {name: round(compare(found), 4) for name, found in medians.items()}
        BASELINE.write_text(json.dumps(baseline, indent=2) + "\n", encoding="utf-8")
    worse = find_worse(medians, baseline) if options.check else []
    print("".join(f"worse: {line}\n" for line in worse), end="")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
