"""What planned cache marks cost against the least possible: `python tests/bench/bench_cache_plan.py
[--json]`.

The recorded hour, busy hours, days with silences, gaps at random, sparse weeks, days of people, each of a few seeds
together, and single rooms at fixed gaps, judged by the prompt cache of `reverie/testing/servers/messages_cache.py`. 1.00 is the clairvoyant
optimum (`optimum.py`) for the same requests: it knows when silences end, which nobody can, so talk
at random cannot come near it. Printed are the four policies (`auto`, `fixed`, all for an hour, all
for 5 minutes) and `best online`: the best policy found that knows how traffic of this kind goes on,
but not the next request. A policy that has to learn that can hardly do better.
"""

import argparse
import csv
import functools
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agent.cache.plan import CachePolicy, plan_cache
from agent.cache.prices import Price, PriceTable
from agent.cache.state import (
    ROOT_DIGEST,
    CacheState,
    Cadence,
    Lifetimes,
    PromptSegment,
    extend_digest,
)
from gateway.core.events import CacheTtl
from reverie.testing.servers.messages_cache import MessagesCache, Usage
from tests.bench.optimum import Asked, Cost, Seen, State, optimum, teach

PRICES = PriceTable.parse(Path("config/prices.yaml").read_text(encoding="utf-8"))
HOUR = Path(__file__).with_name("hour.tsv")
DAY_S = 86_400.0
FOLD_TOKENS = 16_000
SHARED_TOKENS = 2_400
"""What all conversations begin with: 1,800 tokens of cl100k, as newer Claude models count them."""


class Piece(NamedTuple):
    name: str
    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: everything that it is made of, in order."""

    at_s: float
    agent: str
    conversation: str
    shared: tuple[Piece, ...]
    private: tuple[Piece, ...]
    said: tuple[Piece, ...]
    """The user's first and last."""
    now: Piece

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (*self.shared, *self.private, *self.said)


@dataclass(slots=True)
class Talk:
    """A conversation that grows."""

    name: str
    agent: str
    shared: tuple[Piece, ...]
    private: tuple[Piece, ...]
    rng: random.Random
    said: list[Piece] = field(default_factory=list)
    count: int = 0
    free_s: float = 0.0
    """When the last turn has ended."""

    def turn(self, at_s: float) -> Turn:
        self._say(30, 150)
        if sum(piece.tokens for piece in self.said) > FOLD_TOKENS:
            self._fold()
        now = Piece("now", f"{self.name} {at_s}", self.rng.randint(0, 40))
        turn = Turn(at_s, self.agent, self.name, self.shared, self.private, tuple(self.said), now)
        self._say(30, 100)
        return turn

    def _say(self, low: int, high: int) -> None:
        self.said.append(Piece("history", f"{self.name} {self.count}", self.rng.randint(low, high)))
        self.count += 1

    def _fold(self) -> None:
        kept = 0
        while (
            sum(piece.tokens for piece in self.said[kept:]) > FOLD_TOKENS // 2
            or (len(self.said) - kept) % 2 == 0
        ):
            kept += 1
        self.said = self.said[kept:]


def head(agent: str, tokens: int) -> tuple[Piece, ...]:
    sizes = (("tools", 0.35), ("identity", 0.5), ("skills", 0.15))
    return tuple(Piece(name, f"{agent} {name}", int(tokens * share)) for name, share in sizes)


def room_at(gap_s: float, *, shared: int, messages: int = 50, seed: int = 1) -> list[Turn]:
    """One room, its messages evenly spaced."""
    private = (Piece("binding", "b", 40), Piece("channel", "c", 200))
    talk = Talk("irc/#room", "a", head("a", shared), private, random.Random(seed))
    return [talk.turn(gap_s * number) for number in range(messages)]


def steady_times(rng: random.Random, room: bool, midnight_s: float) -> Iterator[float]:
    """The same, in bursts of 5 to 30 messages with hours between; a fifth talks slowly and all day
    long."""
    slow = rng.random() < 0.2
    at = midnight_s + 7 * 3_600 + rng.uniform(0, 7_200)
    while at < midnight_s + 23 * 3_600:
        for _ in range(rng.randint(5, 30)):
            yield at
            at += rng.uniform(400, 1_800) if slow else 5 + rng.expovariate(1 / 40)
        at += rng.uniform(1.5, 4 if room else 7) * 3_600


def conversation(
    rng: random.Random, name: str, agent: str, *, room: bool, shared: int, card: int, own: int
) -> Talk:
    """A room, which shares its binding with the others, or a direct chat, which has up to `own`
    tokens of its own."""
    binding = (
        Piece("binding", f"{agent} rooms", 60)
        if room
        else Piece("binding", name, rng.randint(20, own))
    )
    return Talk(
        name, agent, head(agent, shared), (binding, Piece("channel", f"card {name}", card)), rng
    )


def told_at(
    talks: list[tuple[Talk, list[float]]], rng: random.Random, *, tools: float
) -> list[Turn]:
    """Turns at these times; so large a share of the requests is followed by one with what a tool
    has found."""
    turns = []
    for asked_s, number in sorted(
        (asked_s, number) for number, (_, times) in enumerate(talks) for asked_s in times
    ):
        talk = talks[number][0]
        at_s = max(asked_s, talk.free_s)
        turns.append(talk.turn(at_s))
        while rng.random() < tools:
            at_s += rng.uniform(2, 8)
            turns.append(talk.turn(at_s))
        talk.free_s = at_s + 3.0
    return sorted(turns, key=lambda turn: turn.at_s)


def busy_hour(seed: int) -> list[Turn]:
    """130 questions in 30 places: short talks, some of them taken up again, two silences of 6
    minutes everywhere."""
    rng = random.Random(seed)
    silences = [rng.uniform(600, 3_200) for _ in range(2)]
    times: list[list[float]] = [[] for _ in range(30)]
    while sum(map(len, times)) < 130:
        place = rng.choice(times)
        at_s = rng.uniform(0, 3_500)
        if place and rng.random() > 0.3:
            continue
        for _ in range(1 + int(rng.expovariate(1 / 4))):
            if at_s > 3_600 or any(0 <= at_s - silence < 360 for silence in silences):
                break
            place.append(at_s)
            at_s += 10 + rng.expovariate(1 / 60)
    talks = [
        (
            conversation(
                rng, f"p/{number}", "a", room=number % 3 > 0, shared=SHARED_TOKENS, card=75, own=150
            ),
            place,
        )
        for number, place in enumerate(times)
    ]
    return told_at(talks, rng, tools=0.06)


def day_with_silences(seed: int) -> list[Turn]:
    """Two agents in 30 places: bursts with hours between them, a fifth of the places slow all day
    long."""
    rng = random.Random(seed)
    talks = []
    for number in range(30):
        room, times = number < 12, steady_times(rng, number < 12, -7 * 3_600.0)
        agent = f"agent{number % 2}"
        talk = conversation(
            rng,
            f"p/{number}",
            agent,
            room=room,
            shared=SHARED_TOKENS,
            card=rng.randint(60, 250),
            own=2_500,
        )
        talks.append((talk, [at_s for at_s in times if rng.random() < 0.5]))
    return told_at(talks, rng, tools=0.25)


def random_gaps(seed: int) -> list[Turn]:
    """A day of 10 places, each with gaps of its own mean and kind: exponential, log-normal, or with
    a heavy tail."""
    rng = random.Random(seed)
    talks = []
    for number in range(10):
        mean_s, at_s, times = (
            rng.choice((60, 200, 400, 900, 2_000, 5_000, 12_000)),
            0.0,
            list[float](),
        )
        while at_s < DAY_S and len(times) < 120:
            times.append(at_s)
            exponential, tailed = rng.expovariate(1 / mean_s), 0.3 * mean_s * rng.paretovariate(1.2)
            at_s += (exponential, mean_s * rng.lognormvariate(-0.7, 1.2), tailed)[number % 3]
        talks.append(
            (
                conversation(
                    rng,
                    f"p/{number}",
                    "a",
                    room=number % 2 == 0,
                    shared=SHARED_TOKENS,
                    card=150,
                    own=2_500,
                ),
                times,
            )
        )
    return told_at(talks, rng, tools=0.25)


def sparse_week(seed: int) -> list[Turn]:
    """8 places that are asked something one or two times a day; every second question is followed
    by another."""
    rng = random.Random(seed)
    talks = []
    for number in range(8):
        at_s, times = rng.expovariate(1.5 / DAY_S), list[float]()
        while at_s < 7 * DAY_S:
            times.append(at_s)
            at_s += (
                rng.lognormvariate(5.0, 1.0) if rng.random() < 0.5 else rng.expovariate(1.5 / DAY_S)
            )
        talks.append(
            (
                conversation(
                    rng,
                    f"p/{number}",
                    "a",
                    room=number % 2 == 0,
                    shared=SHARED_TOKENS,
                    card=150,
                    own=2_500,
                ),
                times,
            )
        )
    return told_at(talks, rng, tools=0.25)


def days_of_people(seed: int, days: int = 3) -> list[Turn]:
    """14 rooms and 16 direct chats, busy or quiet as the seed has it, for days with nights: visits
    of a few messages, some with a break between them, reminders, looks of the inner conversation,
    tools."""
    rng = random.Random(seed)
    pace, look_s = rng.lognormvariate(0.0, 0.8), rng.choice((1_800, 3_600, 7_200))
    midnights = [day * DAY_S for day in range(days)]
    looks = [at + second for at in midnights for second in range(25_200, 82_800, look_s)]
    looks = [at_s for at_s in looks if rng.random() < 0.5]
    talks = []
    for number in range(30):
        visits = pace * rng.lognormvariate(0.0, 1.0) * (2.0 if number < 14 else 0.8)
        gap_s, wakes, sleeps = rng.lognormvariate(4.5, 0.8), rng.uniform(6, 11), rng.uniform(18, 25)
        times = []
        for midnight_s in midnights:
            hour = wakes + rng.expovariate(visits / (sleeps - wakes))
            while hour < sleeps:
                at_s = midnight_s + hour * 3_600
                for _ in range(1 + int(rng.expovariate(1 / 4))):
                    times.append(at_s)
                    is_near = rng.random() < 0.9
                    at_s += 5 + (rng.expovariate(1 / gap_s) if is_near else rng.uniform(300, 3_000))
                hour += rng.expovariate(visits / (sleeps - wakes))
            times += [midnight_s + 3_600 * rng.randint(7, 22)] * (rng.random() < 0.1)
        size = {"card": rng.randint(60, 250), "own": 150 if number % 2 else 1_500}
        room = number < 14
        talk = conversation(rng, f"p/{number}", "a", room=room, shared=SHARED_TOKENS, **size)
        talks.append((talk, times))
    inner = conversation(rng, "inner", "a", room=False, shared=SHARED_TOKENS, card=100, own=300)
    return told_at([*talks, (inner, looks)], rng, tools=0.35)


def recorded_hour(seed: int) -> list[Turn]:
    """Questions of `hour.tsv`, at their times in their places. The seed changes sizes alone, so the
    best online policy was taught by these very times: it knows more than an online policy can."""
    rng, times = random.Random(seed), defaultdict[str, list[float]](list)
    with HOUR.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream, delimiter="\t"):
            if not row["room"] or row["text"].startswith("reverie"):
                times[row["room"] or row["who"]].append(float(row["second"]))
    talks = [
        (conversation(rng, name, "a", room="#" in name, shared=SHARED_TOKENS, card=75, own=150), at)
        for name, at in times.items()
    ]
    return told_at(talks, rng, tools=0.0)


RECORDED: dict[str, Callable[[int], list[Turn]]] = {
    "the times of the recorded hour": recorded_hour,
    "a busy hour": busy_hour,
    "a day with silences": day_with_silences,
    "random gaps": random_gaps,
    "a sparse week": sparse_week,
    "a day of people": functools.partial(days_of_people, days=1),
    "three days of people": days_of_people,
}
POLICIES = {
    "auto": CachePolicy(),
    "fixed": CachePolicy(kind="fixed"),
    "all long": CachePolicy(kind="fixed", short_lifetime="1h"),
    "all short": CachePolicy(kind="fixed", allows_hour=False),
}


Choose = Callable[[Turn], Lifetimes | None]
"""How long the parts of a request are cached, decided by the requests until then."""


def learning(policy: CachePolicy, price: Price) -> Choose:
    """The product: what it learns of each agent's gaps, and its policy."""
    cadences = defaultdict[str, Cadence](Cadence)

    def choose(turn: Turn) -> Lifetimes | None:
        tokens = sum(piece.tokens for piece in (*turn.private, *turn.said))
        cadences[turn.agent].observe_request(turn.conversation, turn.at_s, tokens)
        return policy.lifetimes(cadences[turn.agent], turn.conversation, price)

    return choose


FIRST_SEED = 401
"""First of the seeds that are reported. The constants of `agent.cache.state` were chosen by others."""
TAUGHT_REQUESTS = 25_000
"""By so many requests of other seeds the best online policy is taught."""


@functools.cache
def taught(
    make: Callable[[int], list[Turn]], cost: Cost
) -> tuple[dict[State, CacheTtl | None], ...]:
    """What is best, by the gaps seen, in this kind of traffic: for what all share, and for a
    conversation."""
    times = defaultdict[tuple[int, bool, str], list[float]](list)
    requests = 0
    for seed in itertools.count(1_000):
        for turn in make(seed):
            times[seed, True, turn.agent].append(turn.at_s)
            times[seed, False, turn.conversation].append(turn.at_s)
            requests += 1
        if requests > TAUGHT_REQUESTS:
            break
    return tuple(
        teach((found for key, found in times.items() if key[1] is shared), cost)
        for shared in (True, False)
    )


def best_online(make: Callable[[int], list[Turn]], cost: Cost) -> Choose:
    """The best online policy that was found: it knows from other seeds what follows such gaps."""
    seen = defaultdict[str, Seen](Seen)
    best_shared, best_own = taught(make, cost)

    def choose(turn: Turn) -> Lifetimes | None:
        states = [seen[name].state(turn.at_s) for name in (turn.agent, turn.conversation)]
        own = best_own.get(states[1], "5m")
        return Lifetimes(best_shared.get(states[0]) or "1h", "1h" if own == "1h" else "5m", own)

    return choose


def costs(turns: list[Turn], price: Price, chosen: Mapping[str, Choose]) -> dict[str, float]:
    """What each of these costs for these requests, and the bound, in plain input tokens."""
    found = {}
    for name, choose in chosen.items():
        judge, keeper = Judge(price), Keeper(price, choose)
        for turn in turns:
            keeper(turn, judge)
        assert not keeper.missed, (
            f"{name}: {keeper.missed} requests were billed otherwise than predicted"
        )
        found[name] = judge.paid
    return found | {"bound": best(turns, cost_of(price))}


def policies(price: Price) -> dict[str, Choose]:
    return {name: learning(policy, price) for name, policy in POLICIES.items()}


def cost_of(price: Price) -> Cost:
    return Cost(price.read, price.write_5m, price.write_1h)


# Layouts: from a turn to a body of the Messages API. The judge reads of a text only how long it is.

Json = dict[str, Any]


class Judge:
    """The provider: its cache and its bill."""

    def __init__(self, price: Price) -> None:
        self.price = price
        self.cache = MessagesCache(tokens, minimum=price.minimum_tokens)
        self.paid = 0.0

    def __call__(self, request: Json, at_s: float, agent: str) -> Usage:
        ticket = self.cache.begin(request, at_s=at_s, workspace=agent)
        self.cache.began(ticket)
        usage = ticket.usage
        self.paid += usage.input_tokens + usage.cache_read_input_tokens * self.price.read
        self.paid += usage.ephemeral_5m_input_tokens * self.price.write_5m
        self.paid += usage.ephemeral_1h_input_tokens * self.price.write_1h
        return usage


LONG: Json = {"type": "ephemeral", "ttl": "1h"}
SHORT: Json = {"type": "ephemeral", "ttl": "5m"}


def text(piece: Piece, mark: Json | None = None) -> Json:
    block: Json = {"type": "text", "text": f"{piece.id}|{piece.tokens}"}
    return block | {"cache_control": mark} if mark else block


def tokens(words: str) -> int:
    return int(words.rsplit("|", 1)[1])


def body(system: Iterable[Json], said: Iterable[Json], now: Piece) -> Json:
    messages = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": [block]}
        for number, block in enumerate(said)
    ]
    messages[-1]["content"] = [*messages[-1]["content"], text(now)]
    return {"model": "claude-sonnet-5-5", "system": list(system), "messages": messages}


class Keeper:
    """How the plan is used around a model."""

    def __init__(self, price: Price, choose: Choose) -> None:
        self.price, self.choose = price, choose
        self.warmth = CacheState()
        self.missed = 0

    def __call__(self, turn: Turn, judge: Judge) -> None:
        units = units_of(turn)
        planned = plan_cache(
            units,
            self.choose(turn),
            minimum_tokens=self.price.minimum_tokens,
            cached=self.warmth.find(units, turn.at_s),
        )
        self.warmth.record_request(
            units, read=planned.read_segments, writes=planned.writes, at_s=turn.at_s
        )
        marks = {
            (mark.behind, mark.index): LONG if mark.lifetime == "1h" else SHORT
            for mark in planned.breakpoints
        }
        request = body(
            [
                text(piece, marks.get(("block", i)))
                for i, piece in enumerate((*turn.shared, *turn.private))
            ],
            [text(piece, marks.get(("said", i))) for i, piece in enumerate(turn.said)],
            turn.now,
        )
        usage = judge(request, turn.at_s, turn.agent)
        predicted = (
            sum(block.read for block in planned.blocks),
            sum(block.written for block in planned.blocks),
        )
        self.missed += predicted != (
            usage.cache_read_input_tokens,
            usage.cache_creation_input_tokens,
        )


def units_of(turn: Turn) -> list[PromptSegment]:
    units: list[PromptSegment] = []
    digest = ROOT_DIGEST
    systems = len(turn.shared) + len(turn.private)
    for number, piece in enumerate(turn.pieces):
        digest = extend_digest(digest, f"{turn.agent} {piece.id}".encode())
        said = number >= systems
        units.append(
            PromptSegment(
                name=piece.name,
                behind="said" if said else "block",
                number=number - systems if said else number,
                tokens=piece.tokens,
                end_tokens=sum(one.tokens for one in turn.pieces[: number + 1]),
                digest=digest,
                end_position=number + 1,
                is_shared=number < len(turn.shared),
            )
        )
    return units


def best(turns: list[Turn], cost: Cost) -> float:
    asked = [
        Asked(
            turn.at_s,
            [((turn.agent, piece.id), piece.tokens) for piece in (*turn.pieces, turn.now)],
        )
        for turn in turns
    ]
    return optimum(asked, cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--model", default="claude-sonnet-5-5")
    arguments = parser.parse_args()
    price = PRICES.find(arguments.model)
    result: dict[str, Any] = {"model": arguments.model, "read": price.read, "policies": {}}
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    for name, make in RECORDED.items():
        total = Counter[str]()
        for seed in seeds:
            turns, known = make(seed), best_online(make, cost_of(price))
            found = costs(turns, price, policies(price) | {"best online": known})
            total.update({"requests": len(turns)} | found)
        result["policies"][name] = dict(total)
    for gap in (60, 310, 900, 3_000, 5_400):
        turns = room_at(gap, shared=2_000)
        result["policies"][f"one room, a message every {gap} s"] = {"requests": len(turns)} | costs(
            turns, price, policies(price)
        )
    print(json.dumps(result) if arguments.json else told(result))


def told(result: dict[str, Any]) -> str:
    shown = (*POLICIES, "best online")
    lines = [
        (
            f"{result['model']}: reads cost {result['read']} of the input price. 1.00 is the "
            "clairvoyant optimum."
        ),
        "",
        f"{'':36} requests  {'  '.join(f'{name:>11}' for name in shown)}      bound",
    ]
    for scene, found in result["policies"].items():
        ratios = "  ".join(
            f"{found[name] / found['bound']:11.3f}" if name in found else f"{'':11}"
            for name in shown
        )
        lines.append(f"{scene:36} {found['requests']:8}  {ratios}  {found['bound']:9.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
