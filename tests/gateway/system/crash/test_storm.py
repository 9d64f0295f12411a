"""A storm on three platforms: nothing lost, nothing doubled, nobody left without a word.

Every kind of fault in `storm_kit.KINDS` befalls the real program, mixed with `kill -9` and SIGTERM,
while people ask on Telegram, Discord and IRC. The judge is proven by
`test_what_is_planted_is_found`.

`STORM_SEEDS` (numbers with blanks between) and `STORM_MINUTES` (of each) choose what `make soak`
runs.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from gateway.runtime.turn_record import FAILURE_TEXTS, PUT_OFF_TEXTS
from tests.gateway.system.crash.storm_kit import (
    CHANGES,
    KINDS,
    Question,
    Storm,
    judge,
    storm,
    token_places,
)
from tests.kits.delivery_judge import DOUBT
from tests.kits.platform_users import SAID, IrcClient, OnIrc

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


@pytest.mark.soak
async def test_a_storm_of_all_faults_leaves_nobody_without_one_answer(tmp_path: Path) -> None:
    async with storm(tmp_path, seed=1) as it:
        changes, others = list(CHANGES), [kind for kind in KINDS if kind not in CHANGES]
        it.random.shuffle(changes)
        it.random.shuffle(others)
        for number, change in enumerate(changes):
            await it.round(change, *others[number :: len(changes)])
        await _calm(it)


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
        await _calm(it)


async def _calm(it: Storm) -> None:
    """Wait until nobody waits, and print and judge what became of all of them."""
    await it.settle()
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
    assert table.failed == 0
