"""A storm on three platforms: nothing lost, nothing doubled, nobody left without a word.

Every kind of fault in `storm_kit.KINDS` befalls the real program, mixed with `kill -9` and SIGTERM,
while people ask on Telegram, Discord and IRC. The judge is proven by
`test_what_is_planted_is_found`, and by an outbox that guesses.

`STORM_SEEDS` (numbers with blanks between) and `STORM_MINUTES` (of each) choose what `make soak`
runs.
"""

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.runtime.turn_record import FAILURE_TEXTS, PUT_OFF_TEXTS
from tests.gateway.system.crash.storm_kit import (
    CHANGES,
    KINDS,
    Question,
    Storm,
    Table,
    judge,
    storm,
    token_places,
    town,
)
from tests.kits.delivery_judge import DOUBT, Evidence
from tests.kits.delivery_judge import judge as judge_log
from tests.kits.platform_users import SAID, IrcClient, OnIrc
from tests.kits.small_disk import SmallDisk
from tests.servers.real_postgresql import PostgresServer

OVERLOADED, WAITS = FAILURE_TEXTS["overloaded"], PUT_OFF_TEXTS["overloaded"]
PLANTED = {
    "answered": ["t1z so much", "t2z"],
    "doubled": ["t1z so much", "t2z", "t1z once more"],
    "told": [WAITS, OVERLOADED, "t2z"],
    "uncertain told": ["t2z", f"(My last answer {DOUBT})"],
    "silent": [WAITS, "t2z", OVERLOADED],
}
"""What became of the first of two questions, and what its person was shown."""


@pytest.mark.parametrize("outcome", PLANTED)
def test_what_is_planted_is_found(outcome: str) -> None:
    seat = OnIrc(IrcClient("ann", 0))
    first, second = (Question(seat, [token], said_s=0, seen=0) for token in ("t1z", "t2z"))
    shown = PLANTED[outcome]
    assert judge(first, shown, token_places(shown), [second]) == outcome


@pytest.mark.parametrize("nick", ["reverie", "reverie_", "reverie__"])
def test_the_bot_is_heard_also_while_a_lost_connection_has_its_nick(nick: str) -> None:
    said = SAID.match(f":{nick}!reverie@test.host PRIVMSG #room :t1z")
    assert said is not None
    assert said.groups() == ("#room", "t1z")


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


async def kills(
    directory: Path, seed: int, *, rounds: int, url: str = "", sabotage: str = ""
) -> Table:
    """Processes are killed at any moment from their launch on, while people ask, and some sends
    are under way. What became of the questions."""
    roll = random.Random(seed)

    def one_of_three(_: object) -> bool:
        return roll.random() < 1 / 3

    def make(*around: Any) -> Storm:
        it = Storm(*around)
        it.sabotage = sabotage
        if url:
            it.keep_in(url)
        return it

    directory.mkdir(exist_ok=True)
    async with town(make, SmallDisk(directory), directory, seed) as it:
        faults = it.telegram.faults
        for _ in range(rounds):
            stalls = [
                faults.stall("sendMessage", after=after, times=None, where=one_of_three)
                for after in (False, True)
            ]
            it.ircd.faults.hold_pongs = True
            await it.lasts(*it.random.choice(((0.0, 1.0), (2.0, 4.0))))
            await it.kill()
            for stall in stalls:
                faults.rules.remove(stall)
            faults.release()
            it.ircd.release_pongs()
            await it.start()
        await it.is_up()
        table = await _calm(it, 20.0 if sabotage else 120.0)
        rebuilt = await it.launch("log", "rebuild", "--config", str(directory))
        assert await rebuilt.wait() == 0, "every table matches the log"
        if not sabotage:
            assert it.out_of_order() == []
            found = judge_log(Evidence(entries=await it.entries(), wire=[], asked=it.asked))
            assert not found.asked_twice, found.faults
        return table


async def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    assert not (await kills(tmp_path, 1, rounds=8)).failed


async def test_kills_lose_and_double_nothing_in_a_database(
    tmp_path: Path, postgresql: PostgresServer
) -> None:
    assert not (await kills(tmp_path, 4, rounds=8, url=postgresql.url("kills"))).failed


@pytest.mark.parametrize(("guess", "fault"), [("pending", "doubled"), ("sent", "silent")])
async def test_an_outbox_that_guesses_what_was_sent_is_found_out(
    tmp_path: Path, guess: str, fault: str
) -> None:
    """A busy machine may hear too little in one play for a part to be cut off: then another one."""
    for seed in (3, 4):
        sabotage = GUESSES.format(guess=guess)
        table = await kills(tmp_path / str(seed), seed, rounds=6, sabotage=sabotage)
        if sum(row[fault] for row in table.rows.values()):
            return
    pytest.fail("two plays found nothing")


@pytest.mark.soak
async def test_a_storm_of_all_faults_leaves_nobody_without_one_answer(tmp_path: Path) -> None:
    async with storm(tmp_path, seed=1) as it:
        changes, others = list(CHANGES), [kind for kind in KINDS if kind not in CHANGES]
        it.random.shuffle(changes)
        it.random.shuffle(others)
        for number, change in enumerate(changes):
            await it.round(change, *others[number :: len(changes)])
        assert not (await _calm(it)).failed


@pytest.mark.soak
@pytest.mark.parametrize(
    "seed", [int(one) for one in os.environ.get("STORM_SEEDS", "11 12 13").split()]
)
async def test_storms_over_days_leave_nobody_without_one_answer(tmp_path: Path, seed: int) -> None:
    async with storm(tmp_path, seed) as it:
        it.pause_s = 4.0
        until_s = time.monotonic() + 60 * float(os.environ.get("STORM_MINUTES", "60"))
        others = [kind for kind in KINDS if kind not in CHANGES]
        while time.monotonic() < until_s:
            change = it.random.choice(("kill -9", *CHANGES, ""))
            await it.round(
                *filter(None, (change, *it.random.sample(others, it.random.randint(0, 4))))
            )
            await asyncio.sleep(it.random.uniform(0, 3))
            if it.random.random() < 0.05:
                await it.night()
        assert not (await _calm(it)).failed


async def _calm(it: Storm, limit_s: float = 120.0) -> Table:
    """Wait until nobody waits, and print and judge what became of all of them."""
    await it.settle(limit_s)
    await asyncio.sleep(3)  # for what would come twice
    table = it.verdict()
    print(f"\n{it.simulated_days:.1f} days of its time\n{table}")
    for question in it.questions:
        if question.outcome in ("lost", "doubled", "silent"):
            print(it.explain(question))
    await it.end()
    assert "Traceback" not in it.log
    assert not it.model.violations
    assert not it.discord.offences
    return table
