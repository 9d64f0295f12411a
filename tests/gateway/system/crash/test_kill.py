"""kill -9 at random points under load loses nothing and duplicates nothing.

Proven over the real program, started and killed again and again on one store: every accepted line
is answered exactly once, or the part of the reply that names it is uncertain, with a reason; posts
keep their order; nobody is seen twice; the model is not asked about what is dealt with; and the
tables are what the log says. The judge is proven by `test_delivery_judge`. Run it alone with `-s`
to see the figures.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.gateway.system.crash.kill_kit import World, world
from tests.kits.delivery_judge import Verdict, fair, judge
from tests.servers.real_postgresql import PostgresServer


def test_kills_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    asyncio.run(_prove(tmp_path, rounds=4, seed=1))


def test_kills_lose_and_duplicate_nothing_in_a_database(
    tmp_path: Path, postgresql: PostgresServer
) -> None:
    asyncio.run(_prove(tmp_path, rounds=4, seed=4, url=postgresql.url("kills")))


GUESSES = """
from dataclasses import replace
from gateway.store import Store

undelivered_posts = Store.undelivered_posts

async def guess(store):
    found = []
    for post in await undelivered_posts(store):
        cut = [part.state == "sending" for part in post.parts]
        forgot = [replace(part, state="{guess}", first_at=None) for part in post.parts]
        parts = [new if was else old for was, new, old in zip(cut, forgot, post.parts)]
        found.append(replace(post, parts=tuple(parts)))
    return found

Store.undelivered_posts = guess
"""
"""A program that guesses what became of a part that was cut off by a crash."""


@pytest.mark.parametrize("guess", ["pending", "sent"])
def test_an_outbox_that_guesses_what_was_sent_is_found_out(tmp_path: Path, guess: str) -> None:
    """A busy machine may hear too little in one play for a part to be cut off: then another one."""
    for seed in (3, 4, 5):
        place = tmp_path / str(seed)
        place.mkdir()
        verdict = asyncio.run(
            _play(place, rounds=15, seed=seed, sabotage=GUESSES.format(guess=guess))
        )
        if verdict.duplicated if guess == "pending" else verdict.faults:
            return
    pytest.fail("three plays found nothing")


async def _prove(directory: Path, *, rounds: int, seed: int, url: str = "") -> None:
    fair(await _play(directory, rounds=rounds, seed=seed, url=url))


async def _play(
    directory: Path, *, rounds: int, seed: int, url: str = "", sabotage: str = ""
) -> Verdict:
    begun_s = time.monotonic()
    async with world(directory, seed, sabotage) as it:
        if url:
            it.keep_in(url)
        for _ in range(rounds):
            await it.round()
        await it.drain()
        verdict = judge(await it.evidence())
        _print(it, verdict, rounds, time.monotonic() - begun_s)
        assert await it.rebuild() == 0
        assert "Traceback" not in it.log
        return verdict


def _print(it: World, verdict: Verdict, rounds: int, took_s: float) -> None:
    row = {
        "rounds": rounds,
        "lines sent": it.said,
        "accepted": verdict.accepted,
        "answered": verdict.answered,
        "uncertain": verdict.uncertain,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "model requests": len(it.asked),
        "asked twice": verdict.asked_twice,
        "seconds": round(took_s, 1),
    }
    print("\n" + " | ".join(f"{name}: {value}" for name, value in row.items()))
    print(f"uncertain parts: {_list(verdict.reasons)}; kills: {_list(it.kills)}")


def _list(counted: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in counted.most_common())
