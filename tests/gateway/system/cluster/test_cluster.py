"""Several processes on one PostgreSQL: nothing lost, nothing doubled, nobody left without a word.

`CLUSTER_MINUTES` and `CLUSTER_SEEDS` (numbers with blanks between) choose what `make cluster` runs.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.gateway.system.cluster.cluster_kit import (
    KINDS,
    ClusterStorm,
    calm,
    cluster_storm,
    inject,
)
from tests.gateway.system.crash.storm_kit import Question, find_out_of_order
from tests.kits.platform_users import IrcClient, OnIrc
from tests.servers.real_postgresql import PostgresServer

BESIDE = (
    *(
        "Telegram cuts sends",
        "Telegram 5xx on polls",
        "Discord cut",
        "Discord asks to reconnect",
        "Discord cuts sends",
    ),
    *("IRC reset", "IRC netsplit", "model cut", "model 500", "tool turns"),
)
"""Faults of the storm that may happen besides."""
PAIRS = (
    ("kill -9", "kill -9"),
    ("SIGTERM", "kill -9"),
    ("SIGTERM", "SIGTERM"),
    ("SIGSTOP", "kill -9"),
    ("refused", "SIGTERM"),
    ("cut off", "SIGSTOP"),
    ("all are killed",),
    ("database restarts",),
    ("database down",),
    ("database slow", "kill -9"),
)
"""Faults that may happen beside each other."""


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (["t1z", "t2z", "t3z"], []),
        (["t1z t2z", "t3z"], []),
        (["t2z", "t1z", "t3z"], ["t2z"]),
        (["t1z", "t3z"], []),
        (["t3z", "t1z"], ["t3z"]),
    ],
)
def test_an_answer_before_an_earlier_one_is_found(shown: list[str], found: list[str]) -> None:
    seat = OnIrc(IrcClient("ann", 0))
    questions = [Question(seat, [token], said_s=0, seen=0) for token in ("t1z", "t2z", "t3z")]
    assert bool(find_out_of_order(questions, shown)) == bool(found)


@pytest.mark.system
def test_each_fault_leaves_nobody_without_one_answer(
    tmp_path: Path, server: PostgresServer
) -> None:
    async def story() -> None:
        async with cluster_storm(tmp_path, server, 1) as it:
            await asyncio.sleep(3)
            pairs = list(PAIRS)
            it.random.shuffle(pairs)
            for kinds in pairs:
                await together(it, *kinds)
            await calm(it)

    assert {kind for kinds in PAIRS for kind in kinds} == set(KINDS)
    asyncio.run(story())


@pytest.mark.soak
@pytest.mark.parametrize(
    "seed", [int(one) for one in os.environ.get("CLUSTER_SEEDS", "11").split()]
)
async def test_faults_for_long_leave_nobody_without_one_answer(
    tmp_path: Path, server: PostgresServer, seed: int
) -> None:
    async with cluster_storm(tmp_path, server, seed) as it:
        until_s = time.monotonic() + 60 * float(os.environ.get("CLUSTER_MINUTES", "20"))
        while time.monotonic() < until_s:
            others = it.random.sample(BESIDE, it.random.choice((0, 0, 1, 2)))
            await together(it, *it.random.choice((*PAIRS, *((kind,) for kind in KINDS))), *others)
            await it.lasts(0, 6)
        await calm(it)


async def together(it: ClusterStorm, *kinds: str) -> None:
    """These faults beside each other, each from a moment on."""

    async def begin(kind: str) -> None:
        await asyncio.sleep(it.random.uniform(0, 2))
        await (inject(it, kind) if kind in KINDS else it.inject(kind))

    async with asyncio.TaskGroup() as group:
        for kind in kinds:
            group.create_task(begin(kind))
