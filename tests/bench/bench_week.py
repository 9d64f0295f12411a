"""A simulated week of the whole gateway: mixed traffic on three platforms, and what became of all of it.

`python -m tests.bench.bench_week [--days 7] [--seed 1] [--hourly 12]`. Rooms with salience, direct chats, edits,
reactions, deletions, reminders of each kind, link flaps, a restart each night, one kill, an owner who goes away, tools
that work, and limits small enough to bite. Against a strict Messages API with prices. Ends with an error if an event
has no fate or two, if `reverie why` tells another, or if a day passes its limits. Prints what became of what.
"""

import argparse
import asyncio
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from agent.signals import Signal, Tick
from gateway.config.models import Settings
from gateway.core.events import Message
from gateway.core.facts import Judgement, Seq, TurnRecord
from gateway.runtime.loop import AgentLoop
from gateway.store import LogEntry, Store, rebuild
from gateway.stream.trace import EventOutcome, OutcomeTracker, explain_event
from tests.bench.week_traffic import OWNER, days, event, model, up
from tests.kits.simulated_gateway import TELEGRAM, World, settings
from tests.kits.simulated_time import JumpingClock, simulate
from tests.servers.messages_cache import MessagesCache
from tests.servers.model_api import ModelApi

DAILY_TURNS, DAILY_USD = 20, 0.30
FEW = [
    *["bash", "job*", "*_file", "glob", "grep", "view_image", "web_*", "load_skill", "react", "*_own", "read_room"],
    *["who", "set_topic", "forget"],
]
"""Nobody uses these in that week."""
SAMPLED = 5
"""Events of each fate that `explain_event` is asked about."""


@dataclass
class Week:
    """What came of it."""

    log: list[LogEntry]
    ticks: int
    requests: int
    emitted: set[str]
    stories: dict[Seq, list[str]] = field(default_factory=dict)
    fates: dict[Seq, EventOutcome] = field(default_factory=dict)


def configuration(folder: Path, url: str) -> Settings:
    made = settings(
        folder,
        provider={"kind": "anthropic", "base_url": url, "api_key": "test"},
        attention={
            "coalesce": 1.5,
            "salience": {"keywords": ["outage"], "questions": True, "people": [f"{TELEGRAM}:{OWNER}"]},
            "presence": {"sleep": "23:30-06:30", "timezone": "Europe/Zurich"},
        },
        dmn={"daily_turns": DAILY_TURNS, "daily_cost_usd": DAILY_USD, "dream_tokens": 200, "forage": True},
        tools={"off": FEW},
    )
    small = made.llm.models["main"].model_copy(update={"max_output_tokens": 500})
    return made.model_copy(update={"llm": made.llm.model_copy(update={"models": {"main": small}})})


async def live(clock: JumpingClock, folder: Path, count: float, seed: int, hourly: float) -> Week:
    rng, said, emitted, ticks = random.Random(seed), list[Message](), set[str](), 0
    send = AgentLoop.send

    def seeing(self: AgentLoop, signal: Signal) -> None:
        nonlocal ticks
        ticks += isinstance(signal, Tick)
        send(self, signal)

    async with ModelApi(cache=MessagesCache(lambda text: -(-len(text) // 4)), clock=clock.monotonic) as api:
        api.default = model(rng)
        gateway = World(configuration(folder, api.url), clock, None)
        with mock.patch.object(AgentLoop, "send", seeing):
            gateway.begin()
            for one in days(count, rng, hourly=hourly):
                await clock.sleep(one.at_s - clock.monotonic())
                if one.what in ("restart", "kill"):
                    await (gateway.end() if one.what == "restart" else gateway.kill())
                    gateway.begin()
                    continue
                told = event(one, clock.now(), said, rng)
                said += [told] if isinstance(told, Message) else []
                emitted.add(told.id)
                await gateway.tell(one.channel, told)
                if one.what == "flap":
                    await clock.sleep(rng.expovariate(1 / 60))
                    await gateway.tell(one.channel, up(one, clock.now()))
            await clock.sleep(2 * 3_600)
            await gateway.end()
        assert not api.violations, api.violations[0]
        return Week(log=await gateway.log(), ticks=ticks, requests=len(api.seen), emitted=emitted)


def one_fate_each(week: Week) -> None:
    """Raises AssertionError for an event without a fate, or with two."""
    told, events = OutcomeTracker(), {one.cause for one in week.log if isinstance(one.fact, Judgement)}
    for entry in week.log:
        for seq, fate in told.add(entry):
            assert seq not in week.fates, f"entry {seq} has two fates"
            week.fates[seq] = fate
    for seq, fate in told.open_outcomes():
        assert seq not in week.fates, f"entry {seq} has two fates"
        week.fates[seq] = fate
    assert set(week.fates) == events, "every event has a fate, and nothing else"
    kept = {str(getattr(one.fact, "id", "")) for one in week.log if one.seq in events}
    assert week.emitted <= kept, "every event that was told is in the log"


async def told_why(week: Week, path: Path) -> None:
    """Raises AssertionError where `reverie why` tells another fate, or no rule."""
    rules = {one.cause: one.fact.rule for one in week.log if isinstance(one.fact, Judgement)}
    by_fate: dict[EventOutcome, list[Seq]] = defaultdict(list)
    for seq, fate in week.fates.items():
        by_fate[fate].append(seq)
    async with await Store.open_readonly(path) as reader:
        for fate, seqs in by_fate.items():
            for seq in random.Random(1).sample(seqs, min(SAMPLED, len(seqs))):
                story = await explain_event(reader, seq)
                assert story is not None
                assert story[-1] == f"fate: {fate}", story
                assert any(rules[seq] in line for line in story), story
                week.stories[seq] = story


def by_day(week: Week) -> dict[str, tuple[Counter[str], int, float]]:
    """By UTC day: turns by cause, and how many of them nobody asked for, and what these cost."""
    found: dict[str, tuple[Counter[str], int, float]] = {}
    for one in week.log:
        if isinstance(one.fact, TurnRecord) and one.fact.within is None:
            causes, turns, usd = found.get(f"{one.at:%Y-%m-%d}", (Counter[str](), 0, 0.0))
            spent = sum(account.cost_usd or 0.0 for account in one.fact.accounts) if one.fact.autonomous else 0.0
            causes[one.fact.cause] += 1
            found[f"{one.at:%Y-%m-%d}"] = causes, turns + one.fact.autonomous, usd + spent
    return found


def within_limits(week: Week) -> None:
    """Raises AssertionError for a day that passes them."""
    for day, (_, turns, usd) in by_day(week).items():
        assert turns <= DAILY_TURNS, f"{turns} turns on {day}"
        assert usd <= DAILY_USD, f"${usd:.4f} on {day}"


def tables(week: Week) -> Iterator[str]:
    """For people."""
    kinds = {one.seq: one.kind for one in week.log}
    counted = Counter((fate, kinds[seq]) for seq, fate in week.fates.items())
    columns = sorted({kind for _, kind in counted})
    yield from _table("what became of", columns, [(f, [counted[f, k] for k in columns]) for f in EventOutcome])
    yield ""
    days_ = by_day(week)
    causes = sorted({cause for turns, _, _ in days_.values() for cause in turns})
    rows = [(day, [*(turns[cause] for cause in causes), own, f"{usd:.3f}"]) for day, (turns, own, usd) in days_.items()]
    rows.append(("limit", [*("" for _ in causes), DAILY_TURNS, f"{DAILY_USD:.3f}"]))
    yield from _table("turns by cause", [*causes, "unasked", "$"], rows)
    started = sum(turns for _, turns, _ in days_.values())
    yield f"\n{week.ticks} wake-ups, {week.requests} model requests, {started} turns that nobody asked for"


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[object]]]) -> Iterator[str]:
    yield f"{title:19}" + "".join(f"{column:>11}" for column in columns)
    for name, cells in rows:
        yield f"{name:19}" + "".join(f"{cell!s:>11}" for cell in cells)


def run(folder: Path, *, count: float, seed: int, hourly: float, limit_s: float = 3_600.0) -> Week:
    """Live it, and hold it to its promises."""
    week = simulate(lambda clock: live(clock, folder, count, seed, hourly), limit_s=limit_s, grace_s=0.002)
    one_fate_each(week)
    asyncio.run(told_why(week, folder / "reverie.db"))
    within_limits(week)
    assert asyncio.run(rebuild(folder / "reverie.db")) == [], "every table is what the log says"
    return week


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hourly", type=float, default=12.0)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(tables(run(Path(folder), count=said.days, seed=said.seed, hourly=said.hourly))))


if __name__ == "__main__":
    main()
