"""A day of the whole gateway against a strict Messages API with real cache semantics, on a clock of
its own.

`python -m tests.bench.bench_cache [--talk bursts|random] [--keep-warm 0.5] [--hours 17] [--seed 1]
[--json]`. 20 rooms and 30 direct chats on three platforms, two agents; bursts and silences, topic
changes, workspace edits, restarts. `bursts`: silences of hours between them, a fifth of the places
talk slowly all day long. `random`: silences of any length, which nobody can know beforehand, so
that the optimum, which knows them, is out of reach for marks alone. Prints the API's violations,
what share of the input was read from the cache, the cost (refreshes included) against the
clairvoyant optimum (`optimum.py`) of the same requests (refreshes not included).
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent.cache.prices import PriceTable
from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.core.clock import ManualClock
from gateway.core.facts import TurnRecord
from gateway.store import Store
from reverie.testing.gateway import PLATFORMS, UNHURRIED, Gateway
from reverie.testing.servers.messages_cache import MessagesCache, Ticket
from reverie.testing.servers.model_api import Answer, ModelApi
from tests.bench.gateway_kit import Figure, show
from tests.bench.optimum import Asked, Cost, optimum

Json = dict[str, Any]
WARM_S = 3_600.0
PRICES = Path(__file__).parents[2] / "config" / "prices.yaml"


class Judged(NamedTuple):
    """What a row of requests cost."""

    ratio: float
    """To the clairvoyant optimum of the requests as we sent them."""
    read_share: float
    """Of all input tokens."""
    warm_share: float
    """Of those in requests whose conversation had asked within the last hour."""


class Sent(NamedTuple):
    """One request that was answered."""

    at_s: float
    body: Json
    ticket: Ticket


def sent(api: ModelApi) -> list[Sent]:
    """All that was answered, in the order of arrival."""
    return [
        Sent(one.ticket.at_s, one.body, one.ticket) for one in api.seen if one.ticket is not None
    ]


def cost_of(model: str) -> Cost:
    price = PriceTable.parse(PRICES.read_text(encoding="utf-8")).find(model)
    return Cost(price.read, price.write_5m, price.write_1h)


def best(requests: list[Sent], cost: Cost) -> float:
    return optimum((Asked(one.at_s, list(_nodes(one.ticket))) for one in requests), cost)


def _nodes(ticket: Ticket) -> Iterator[tuple[int, int]]:
    before = 0
    for prefix in ticket.path:
        yield id(prefix), prefix.tokens - before
        before = prefix.tokens


def asked(requests: list[Sent]) -> list[Sent]:
    """Those that somebody wanted answered."""
    return [one for one in requests if one.body["max_tokens"]]


def judge(tickets: list[Ticket], requests: list[Sent], cost: Cost) -> Judged:
    """`tickets` are what became of `requests` in some layout."""
    paid = read = total = warm_read = warm_total = 0.0
    last: dict[str, float] = {}
    for ticket, request in zip(tickets, requests, strict=True):
        usage = ticket.usage
        paid += (
            usage.input_tokens
            + usage.cache_read_input_tokens * cost.read
            + usage.ephemeral_5m_input_tokens * cost.write_5m
            + usage.ephemeral_1h_input_tokens * cost.write_1h
        )
        if not request.body["max_tokens"]:
            continue  # a refresh: its price counts, and nothing else
        read, total = read + usage.cache_read_input_tokens, total + usage.total
        conversation = str([block["text"] for block in request.body["system"]])
        if request.at_s - last.get(conversation, -WARM_S) < WARM_S:
            warm_read, warm_total = (
                warm_read + usage.cache_read_input_tokens,
                warm_total + usage.total,
            )
        last[conversation] = request.at_s
    return Judged(
        paid / best(asked(requests), cost), read / total, warm_read / max(1.0, warm_total)
    )


def planned(api: ModelApi, model: str) -> Judged:
    """What we sent, as it was billed."""
    requests = sent(api)
    return judge([one.ticket for one in requests], requests, cost_of(model))


MODEL = "claude-sonnet-5-5"
STEP_S = 20.0
BEGIN = datetime(2026, 3, 2, 6, 30, tzinfo=UTC)
WORDS = (  # noqa: SIM905 - a list would take fifty lines
    "the a of to and in that it is was for on with as at by from this have not but they which you "
    "one we all has there been if more when will would who so no out up into them then some could "
    "time only its other now people about than first water long little very after word called just "
    "where most know server kernel branch patch deploy thread build"
).split()


@dataclass(frozen=True, slots=True, order=True)
class Happening:
    """Something in the simulated day."""

    at_s: float
    what: Literal["say", "overheard", "topic", "edit", "restart"]
    channel: str = ""
    room: str | None = None
    who: str = ""
    text: str = ""


@dataclass(slots=True)
class Place:
    channel: str
    room: str | None
    people: tuple[str, ...]
    busy: float
    """Bursts an hour."""
    slow: bool
    """Gaps of ten minutes rather than of one."""


def places(rng: random.Random) -> Iterator[Place]:
    for number in range(50):
        channel = list(PLATFORMS)[number % 3]
        slow = rng.random() < 0.2
        if number < 20:
            people = tuple(f"p{number}x{person}" for person in range(rng.randint(3, 12)))
            yield Place(channel, f"#room{number}", people, rng.uniform(0.6, 2.0), slow)
        else:
            yield Place(channel, None, (f"dm{number}",), rng.uniform(0.2, 0.8), slow)


def words(rng: random.Random, low: int, high: int) -> str:
    return " ".join(rng.choices(WORDS, k=int(rng.triangular(low, high, low))))


def day(hours: float, seed: int, talk: str) -> list[Happening]:
    rng = random.Random(seed)
    happenings: list[Happening] = []
    for place in places(rng):
        silence_s, burst, gap_s = (_random if talk == "random" else _bursts)(rng, place)
        at_s, end_s = silence_s() % 7_200, hours * 3_600
        while at_s < end_s:
            for _ in range(burst()):
                who, text = rng.choice(place.people), words(rng, 5, 60)
                if place.room and rng.random() < 0.3:
                    happenings.append(
                        Happening(at_s, "overheard", place.channel, place.room, who, text)
                    )
                else:
                    happenings.append(
                        Happening(at_s, "say", place.channel, place.room, who, f"reverie, {text}")
                    )
                if place.room and rng.random() < 0.01:
                    happenings.append(
                        Happening(
                            at_s + 1, "topic", place.channel, place.room, who, words(rng, 3, 12)
                        )
                    )
                at_s += gap_s()
            at_s += silence_s()
    happenings += [
        Happening(hour * 3_600 + 1_234.5, "restart") for hour in (2, 5, 9, 14) if hour < hours
    ]
    happenings += [Happening(hour * 3_600 + 2_345.5, "edit") for hour in (4, 11) if hour < hours]
    return sorted(happening for happening in happenings if happening.at_s < hours * 3_600)


def configuration(folder: Path, url: str, keep_warm_usd: float) -> Settings:
    for agent, length in (("ana", 700), ("max", 1_000)):
        (folder / agent).mkdir()
        for name, share in (("IDENTITY", 0.5), ("SOUL", 0.3), ("AGENTS", 0.2)):
            text = words(random.Random(agent + name), int(length * share), int(length * share) + 1)
            (folder / agent / f"{name}.md").write_text(f"# {name}\n{text}\n", encoding="utf-8")
    rooms = [f"#room{number}" for number in range(20)]
    return parse_config(
        {
            "channels": {name: {"platform": "console", "rooms": rooms} for name in PLATFORMS},
            "agents": [
                {
                    "id": "ana",
                    "workspace": "ana",
                    "bindings": [
                        {
                            "match": {"channel": "irc.*"},
                            "listen": "ambient",
                            "prompt": "Keep it short here.",
                        },
                        {"match": {"channel": "telegram.*"}, "listen": "ambient"},
                    ],
                },
                {
                    "id": "max",
                    "workspace": "max",
                    "bindings": [{"match": {"channel": "*"}, "listen": "ambient"}],
                },
            ],
            "llm": {
                "providers": {
                    "anthropic": {"kind": "anthropic", "base_url": url, "api_key": "test"}
                },
                "models": {"main": {"provider": "anthropic", "name": MODEL}},
                "context_optimization": {"prompt_cache": {"keep_warm_usd": keep_warm_usd}},
            },
            "attention": {"coalesce": 0},
            "access": {
                "dm": "open",
                "rates": UNHURRIED,
                "budgets": {"sender_usd": None, "room_usd": None, "agent_usd": None},
            },
            "ops": {"port": 0},
        },
        folder,
    )


Draw = tuple[Callable[[], float], Callable[[], int], Callable[[], float]]
"""Seconds of a silence, messages of a burst, seconds between them."""


def _bursts(rng: random.Random, place: Place) -> Draw:
    return (
        lambda: rng.uniform(1.5, 4 if place.room else 7) * 3_600,
        lambda: rng.randint(5, 30),
        lambda: rng.uniform(400, 1_800) if place.slow else 5 + rng.expovariate(1 / 40),
    )


def _random(rng: random.Random, place: Place) -> Draw:
    return (
        lambda: rng.expovariate(place.busy) * 3_600,
        lambda: max(1, int(rng.expovariate(1 / 9))),
        lambda: rng.lognormvariate(6.3, 0.5) if place.slow else rng.lognormvariate(4.1, 0.8),
    )


def tokens(text: str) -> int:
    """Of the simulated model: one for each four characters."""
    return -(-len(text) // 4)


async def until(clock: ManualClock, at_s: float, *, step_s: float) -> None:
    """Let time pass, in steps where something may have to happen in between."""
    while (left_s := at_s - clock.monotonic()) > 0:
        clock.advance(min(left_s, step_s))
        await asyncio.sleep(0.005 if step_s < left_s else 0)


async def simulate(
    hours: float, seed: int, talk: str, keep_warm_usd: float, folder: Path
) -> tuple[ModelApi, list[TurnRecord]]:
    clock = ManualClock(BEGIN)
    rng = random.Random(seed)
    async with ModelApi(cache=MessagesCache(tokens), clock=clock.monotonic) as api:
        api.default = lambda _: Answer(text=words(rng, 10, 120))
        running = Gateway(configuration(folder, api.url, keep_warm_usd), clock=clock)
        running.start()
        for happening in day(hours, seed, talk):
            await until(clock, happening.at_s, step_s=STEP_S if keep_warm_usd else 1e9)
            match happening.what:
                case "restart":
                    await running.end()
                    running.start()
                case "edit":
                    soul = folder / "ana" / "SOUL.md"
                    soul.write_text(
                        soul.read_text(encoding="utf-8") + f"\nAnd {words(rng, 5, 6)}.\n",
                        encoding="utf-8",
                    )
                    await asyncio.sleep(0.8)  # the watcher's debounce, in real time
                case "topic":
                    assert happening.room is not None
                    await running.consoles[happening.channel].receive_topic(
                        happening.text, room=happening.room, sender=happening.who
                    )
                case "overheard":
                    await running.say(
                        happening.text,
                        sender=happening.who,
                        room=happening.room,
                        on=happening.channel,
                    )
                case "say":
                    await running.ask(
                        happening.text,
                        sender=happening.who,
                        room=happening.room,
                        on=happening.channel,
                    )
        await running.end()
    async with await Store.open_readonly(folder / "data" / "reverie.db") as reader:
        turns = [one.fact for one in await reader.entries(kinds=["turn_ended"], limit=1_000_000)]
    return api, [turn for turn in turns if isinstance(turn, TurnRecord)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=17.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep-warm", type=float, default=0.0, help="US dollars a day and agent")
    parser.add_argument("--talk", choices=("bursts", "random"), default="bursts")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        said = arguments.hours, arguments.seed, arguments.talk, arguments.keep_warm
        api, turns = asyncio.run(simulate(*said, Path(folder)))
    ours = planned(api, MODEL)
    if arguments.json:
        print(json.dumps({"planned": ours._asdict()}))
        return
    unexplained = sum(bool(account.missed) for turn in turns for account in turn.accounts)
    show(
        [
            Figure("simulated requests", len(api.seen), ""),
            Figure(
                "real time per request", (time.perf_counter() - began) / len(api.seen) * 1000, "ms"
            ),
            Figure(
                "refreshes among them", sum(one.body["max_tokens"] == 0 for one in sent(api)), ""
            ),
            Figure("refused by the API", len(api.violations), "", "0"),
            Figure("input read from the cache", ours.read_share * 100, "%"),
            Figure(
                "the same, warm (asked within the last hour)", ours.warm_share * 100, "%", ">= 95"
            ),
            Figure("misses and changed bytes in the ledger", unexplained, ""),
            Figure("cost / clairvoyant optimum, planned", ours.ratio, "", "<= 1.05"),
        ]
    )


if __name__ == "__main__":
    main()
