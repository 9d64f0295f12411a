"""What folding costs and saves on a simulated day: `python -m tests.bench.bench_folds [--seeds 3] [--places 20]`.

The day of `bench_cache_plan`, with turns that use tools, lived by the whole gateway (without platforms and sockets)
against a strict Messages API that bills its prompt cache, once for each policy: `auto` (by cost), `always` (old
results are cleared before each turn) and `full` (nothing is folded before the window is full). The same people say
the same, and tools bring the same; a model that needs what was cleared looks it up again, which is paid for. Input
tokens only, by `config/prices.yaml`. Ends with an error where `auto` is not the cheapest.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from agent.cache.prices import Price, PriceTable
from gateway.core.clock import ManualClock
from gateway.core.events import Address, RoomId
from gateway.core.facts import TurnRecord, ViewFolded
from tests.bench.bench_cache_plan import Times, random_times, steady_times
from tests.gateway.system.long_run.conversation_script import Mix, Script, content, said
from tests.kits.model_gateway import BEGIN, CHANNEL, Home, Provider, at_home, settings
from tests.servers.messages_cache import Ticket
from tests.servers.model_api import Json

PRICES = PriceTable.parse(Path("config/prices.yaml").read_text(encoding="utf-8"))
MODELS = ("claude-sonnet-5-5", "claude-sonnet-5")
"""Reads cost 0.05 and 0.1 of the input price."""
POLICIES = ("auto", "always", "full")
MIX = Mix(name="mixed", tools=0.35, chars=(500, 40_000), looks=0.0, notes=0.03, recalls=0.02, needs=0.05)
AGENTS = {"ana": "*[02468]", "max": "*"}


def busy_times(rng: random.Random, room: bool, midnight_s: float) -> Iterator[float]:
    """One place where something is said all day long."""
    at = midnight_s + 7 * 3_600
    while room and at < midnight_s + 15 * 3_600:
        yield at
        at += 20 + rng.expovariate(1 / 70)


class Scene(NamedTuple):
    """One kind of day."""

    times: Times
    mix: Mix
    rooms: int
    """Of twenty places."""
    window: int = 200_000


SCENES = {
    "mixed": Scene(random_times, MIX, 8),
    "many small results": Scene(random_times, replace(MIX, tools=0.6, chars=(300, 3_000), rounds=3, calls=3), 8),
    "few large results": Scene(random_times, replace(MIX, tools=0.15, chars=(20_000, 60_000), calls=1), 8),
    "long silences": Scene(steady_times, MIX, 8),
    "a busy room": Scene(busy_times, replace(MIX, tools=0.3, chars=(500, 30_000)), 1),
    "a small window": Scene(random_times, MIX, 8, 32_000),
}


@dataclass
class Bill:
    """What one day costs."""

    price: Price
    read: int = 0
    written: int = 0
    plain: int = 0
    paid: float = 0.0
    """In plain input tokens."""
    folds: Counter[str] = field(default_factory=Counter)
    misses: int = 0
    turns: int = 0
    requests: int = 0
    needed: int = 0
    overflows: int = 0

    def take(self, _: Json, ticket: Ticket) -> None:
        """One request is billed."""
        usage, price = ticket.usage, self.price
        self.requests += 1
        self.read += usage.cache_read_input_tokens
        self.written += usage.cache_creation_input_tokens
        self.plain += usage.input_tokens
        self.paid += usage.input_tokens + usage.cache_read_input_tokens * price.read
        self.paid += usage.ephemeral_5m_input_tokens * price.write_5m
        self.paid += usage.ephemeral_1h_input_tokens * price.write_1h

    @property
    def usd(self) -> float:
        return self.paid * (self.price.input_usd or 1.0) / 1e6


def traffic(scene: Scene, seed: int, places: int) -> list[tuple[float, Address, bool]]:
    """When somebody says something where; and whether that is a direct chat."""
    rng = random.Random(seed)
    found = []
    for number in range(places):
        room = number < scene.rooms * places / 20
        address = Address(channel=CHANNEL, room=RoomId(f"#room{number}" if room else f"dm{number}"))
        found += [(at_s, address, not room) for at_s in scene.times(rng, room, 0.0)]
    return sorted(found, key=lambda one: one[0])


async def day(folder: Path, scene: Scene, how: tuple[str, str], seed: int, places: int) -> Bill:
    """Live through it. `how`: policy and model."""
    policy, model = how
    clock, script, bill = ManualClock(BEGIN), Script(seed, scene.mix), Bill(PRICES.find(model))
    script.grows = False
    provider = Provider(script, clock, window=scene.window, kept=10**9, billed=bill.take)
    made = settings(folder, window=scene.window, model=model, agents=AGENTS, folds={"policy": policy})
    async with at_home(Home(made, clock, provider, content)) as home:
        for number, (at_s, place, direct) in enumerate(traffic(scene, seed, places)):
            clock.advance(max(0.0, at_s - clock.monotonic()))
            who = str(place.room) if direct else f"p{number % 5}"
            await home.say(said(seed, number, scene.mix), place=place, who=who, kind="direct" if direct else "mention")
            report = await home.take(place)
            assert not report.has_failed
            bill.turns += 1
        for entry in await home.log("folded", "turn_ended"):
            if isinstance(entry.fact, ViewFolded):
                bill.folds.update(entry.fact.kinds)
            elif isinstance(entry.fact, TurnRecord):
                bill.misses += sum(bool(account.missed) for account in entry.fact.accounts)
    assert not provider.complaints, provider.complaints[0]
    bill.needed, bill.overflows = script.needed, provider.overflows
    return bill


def lived(scene: Scene, how: tuple[str, str], seed: int, places: int) -> Bill:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(day(Path(folder), scene, how, seed, places))


def told(name: str, bill: Bill, least: float) -> str:
    kinds = " ".join(f"{kind} {count}" for kind, count in sorted(bill.folds.items()))
    millions = "".join(f"{tokens / 1e6:9.2f}" for tokens in (bill.read, bill.written, bill.plain))
    return (
        f"  {name:8}{bill.usd:9.4f}{bill.usd / least:8.3f}{millions}{bill.misses:8}{bill.needed:8}"
        f"{bill.overflows:6}   {kinds}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--places", type=int, default=20)
    parser.add_argument("--scene", choices=SCENES, action="append")
    parser.add_argument("--model", choices=MODELS, action="append")
    arguments = parser.parse_args()
    wrong = []
    head = f"  {'policy':8}{'$ input':>9}{'/ least':>8}{'read M':>9}{'written':>9}{'plain':>9}{'missed':>8}"
    for model in arguments.model or MODELS:
        for name in arguments.scene or SCENES:
            for seed in range(1, arguments.seeds + 1):
                bills = {policy: lived(SCENES[name], (policy, model), seed, arguments.places) for policy in POLICIES}
                least = min(bill.usd for bill in bills.values())
                turns = statistics.mean(bill.turns for bill in bills.values())
                print(f"\n{model}, {name}, seed {seed} ({turns:.0f} turns)\n{head}{'again':>8}{'full':>6}   folds")
                print("\n".join(told(policy, bill, least) for policy, bill in bills.items()), flush=True)
                if bills["auto"].usd > least:
                    wrong.append(f"{model}, {name}, seed {seed}: {bills['auto'].usd / least:.3f} of the least")
    sys.exit("auto is not the cheapest:\n" + "\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
