"""What planned cache marks cost against the least possible: `python tests/bench/bench_cache_plan.py [--json]`.

One room of 50 messages at fixed gaps, and a day of 20 rooms and 30 direct chats with two agents, judged by the
prompt cache of `tests/servers/messages_cache.py`. 1.00 is the clairvoyant optimum (`optimum.py`) for the same
requests. Beside it, the same requests in four other layouts.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agent.cache.cadence import Cadence
from agent.cache.marks import Unit
from agent.cache.plan import Policy, plan
from agent.cache.prices import Price, Prices
from agent.cache.warmth import ROOT, Warmth, chain
from tests.bench.optimum import Asked, Cost, optimum
from tests.servers.messages_cache import MessagesCache, Ticket, Usage

PRICES = Prices.parse(Path("config/prices.yaml").read_text(encoding="utf-8"))
DAY_S = 86_400.0
FOLD_TOKENS = 16_000


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
        while sum(piece.tokens for piece in self.said[kept:]) > FOLD_TOKENS // 2 or (len(self.said) - kept) % 2 == 0:
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


def day(*, seed: int = 1, days: int = 1) -> list[Turn]:
    """20 rooms and 30 direct chats, two agents: bursts and silences, slow talk, hardly anything at night."""
    rng = random.Random(seed)
    talks: list[tuple[float, Talk]] = []
    for number in range(50):
        agent = f"agent{number % 2}"
        room = number < 20
        binding = Piece("binding", f"{agent} rooms", 120) if room else Piece("binding", f"{agent} {number}", 300)
        private = (binding, Piece("channel", f"card {number}", rng.randint(150, 250)))
        talk = Talk(f"p/{number}", agent, head(agent, 2_400 if number % 2 else 1_700), private, rng)
        talks += [(at, talk) for at in _times(rng, room=room, days=days)]
    return [talk.turn(at) for at, talk in sorted(talks, key=lambda item: item[0])]


def _times(rng: random.Random, *, room: bool, days: int) -> Iterator[float]:
    """When somebody speaks to the agent in one conversation."""
    slow = rng.random() < 0.25
    bursts = rng.uniform(3, 9) if room else rng.uniform(1, 4)
    length = rng.uniform(4, 14)
    for number in range(days):
        at = 7 * 3_600 + rng.expovariate(bursts / 57_600)
        while at < 23.5 * 3_600:
            for _ in range(max(1, int(rng.expovariate(1 / length)))):
                yield number * DAY_S + at
                at += rng.lognormvariate(6.5, 0.5) if slow else rng.lognormvariate(4.2, 0.8)
            at += rng.expovariate(bursts / 57_600)


# Layouts: from a turn to a body of the Messages API. The judge reads of a text only how long it is.

Json = dict[str, Any]
LONG: Json = {"type": "ephemeral", "ttl": "1h"}
SHORT: Json = {"type": "ephemeral", "ttl": "5m"}


def text(piece: Piece, mark: Json | None = None) -> Json:
    block: Json = {"type": "text", "text": f"{piece.id}|{piece.tokens}"}
    return block | {"cache_control": mark} if mark else block


def tokens(words: str) -> int:
    return int(words.rsplit("|", 1)[1])


def body(system: Iterable[Json], said: Iterable[Json], now: Piece) -> Json:
    messages = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": [block]} for number, block in enumerate(said)
    ]
    messages[-1]["content"] = [*messages[-1]["content"], text(now)]
    return {"model": "claude-sonnet-5-5", "system": list(system), "messages": messages}


class Keeper:
    """How the plan is used around a model."""

    def __init__(self, price: Price, policy: Policy) -> None:
        self.price, self.policy = price, policy
        self.cadence: dict[str, Cadence] = {}
        self.warmth = Warmth()
        self.spent_s = 0.0
        self.slowest_s = 0.0
        self.missed = 0

    def __call__(self, turn: Turn, judge: Callable[[Json], Ticket]) -> Usage:
        units: list[Unit] = []
        digest = ROOT
        systems = len(turn.shared) + len(turn.private)
        for number, piece in enumerate(turn.pieces):
            digest = chain(digest, f"{turn.agent} {piece.id}".encode())
            said = number >= systems
            units.append(
                Unit(
                    name=piece.name,
                    behind="said" if said else "block",
                    number=number - systems if said else number,
                    tokens=piece.tokens,
                    digest=digest,
                    shared=number < len(turn.shared),
                )
            )
        path = [unit.digest for unit in units]
        cadence = self.cadence.setdefault(turn.agent, Cadence())
        began = time.perf_counter()
        cadence.asked(turn.conversation, turn.at_s)
        planned = plan(
            units,
            price=self.price,
            policy=self.policy,
            shared=cadence.shared_odds(),
            own=cadence.odds(turn.conversation),
            cached=self.warmth.find(path, turn.at_s),
        )
        self.warmth.sent(path, read=planned.read, writes=planned.writes, at_s=turn.at_s)
        spent = time.perf_counter() - began
        self.spent_s += spent
        self.slowest_s = max(self.slowest_s, spent)
        marks = {(mark.behind, mark.index): LONG if mark.lifetime == "1h" else SHORT for mark in planned.marks}
        ticket = judge(
            body(
                [text(piece, marks.get(("block", i))) for i, piece in enumerate((*turn.shared, *turn.private))],
                [text(piece, marks.get(("said", i))) for i, piece in enumerate(turn.said)],
                turn.now,
            )
        )
        predicted = sum(block.read for block in planned.blocks), sum(block.written for block in planned.blocks)
        billed = ticket.usage.cache_read_input_tokens, ticket.usage.cache_creation_input_tokens
        self.missed += predicted != billed
        return ticket.usage


def one_block(turn: Turn, judge: Callable[[Json], Ticket]) -> Usage:
    """All in one marked system block, with the channel and the date in it."""
    named = (*turn.shared, *turn.private)
    size = sum(piece.tokens for piece in named) + 15
    whole = Piece("system", f"{turn.agent} {turn.conversation} {turn.at_s // 60}", size)
    said = [text(piece) for piece in turn.said]
    said[-1] |= {"cache_control": SHORT}
    return judge(body([text(whole, SHORT)], said, turn.now)).usage


def no_history(turn: Turn, judge: Callable[[Json], Ticket]) -> Usage:
    """One marked system block, the same everywhere; the rest is told behind it, unmarked."""
    whole = Piece("system", turn.agent, sum(piece.tokens for piece in turn.shared))
    system = [text(whole, SHORT), *(text(piece) for piece in turn.private)]
    return judge(body(system, [text(piece) for piece in turn.said], turn.now)).usage


def four_blocks(turn: Turn, judge: Callable[[Json], Ticket]) -> Usage:
    """Workspace, skills, binding for an hour and the channel for five minutes, with per-turn text in the last."""
    *blocks, card = (*turn.shared, *turn.private)
    volatile = Piece("channel", f"{card.id} {turn.at_s}", card.tokens + 15)
    first = Piece("workspace", f"{turn.agent} tools identity", blocks[0].tokens + blocks[1].tokens)
    system = [text(first, LONG), *(text(piece, LONG) for piece in blocks[2:]), text(volatile, SHORT)]
    return judge(body(system, [text(piece) for piece in turn.said], turn.now)).usage


def uncached(turn: Turn, judge: Callable[[Json], Ticket]) -> Usage:
    system = [text(piece) for piece in (*turn.shared, *turn.private)]
    return judge(body(system, [text(piece) for piece in turn.said], turn.now)).usage


Layout = Callable[[Turn, Callable[[Json], Ticket]], Usage]


class Outcome(NamedTuple):
    ratio: float
    read_share: float


def run(turns: list[Turn], layout: Layout, price: Price) -> Outcome:
    cache = MessagesCache(tokens, minimum=price.minimum_tokens)
    cost = Cost(price.read, price.write_5m, price.write_1h)
    paid = read = total = 0.0
    for turn in turns:

        def judge(request: Json, turn: Turn = turn) -> Ticket:
            ticket = cache.begin(request, at_s=turn.at_s, workspace=turn.agent)
            cache.began(ticket)
            return ticket

        usage = layout(turn, judge)
        paid += (
            usage.input_tokens
            + usage.cache_read_input_tokens * cost.read
            + usage.ephemeral_5m_input_tokens * cost.write_5m
            + usage.ephemeral_1h_input_tokens * cost.write_1h
        )
        read += usage.cache_read_input_tokens
        total += usage.total
    return Outcome(paid / best(turns, cost), read / total)


def best(turns: list[Turn], cost: Cost) -> float:
    asked = [
        Asked(turn.at_s, [((turn.agent, piece.id), piece.tokens) for piece in (*turn.pieces, turn.now)])
        for turn in turns
    ]
    return optimum(asked, cost)


def layouts(price: Price) -> dict[str, Layout]:
    return {
        "planned (auto)": Keeper(price, Policy()),
        "planned (fixed)": Keeper(price, Policy(kind="fixed")),
        "one block, channel and date in it": one_block,
        "one marked block, history not": no_history,
        "four blocks, per-turn text in last": four_blocks,
        "no caching": uncached,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    result: dict[str, dict[str, dict[str, float]]] = {}
    for model in ("claude-sonnet-5-5", "claude-sonnet-5"):
        price = PRICES.of(model)
        scenes = {f"room at {gap} s": room_at(gap, shared=2_000) for gap in (60, 310, 900, 3_000)}
        scenes["day"] = day(seed=arguments.seed)
        for scene, turns in scenes.items():
            for name, layout in layouts(price).items():
                outcome = run(turns, layout, price)
                result.setdefault(f"{model}, {scene} ({len(turns)} requests)", {})[name] = outcome._asdict()
                if isinstance(layout, Keeper):
                    print(layout.spent_s / len(turns) * 1e6, layout.slowest_s * 1e6, layout.missed)
    if arguments.json:
        print(json.dumps(result))
        return
    for scene, outcomes in result.items():
        print(f"\n{scene}")
        for name, each in outcomes.items():
            print(f"  {name:36} {each['ratio']:5.3f} of the optimum, {each['read_share']:6.1%} read")


if __name__ == "__main__":
    main()
