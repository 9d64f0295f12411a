"""Several processes on one PostgreSQL: nothing lost, nothing doubled, nobody left without a word.

`CLUSTER_MINUTES` and `CLUSTER_SEEDS` (numbers with blanks between) choose what `make cluster` runs.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.system.cluster.cluster_kit import KINDS, ClusterStorm, cluster_storm, find_out_of_order, inject
from tests.gateway.system.crash.storm_kit import Question
from tests.kits.platform_users import IrcClient, OnIrc
from tests.servers.real_postgresql import PostgresServer

SHAPE = {"edge": 2, "worker": 3}
ALONE = {"all": 1}


@pytest.fixture
def server(postgresql: PostgresServer) -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    yield postgresql
    postgresql.start(if_stopped=True)


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
def test_one_process_on_a_database_meets_every_fault(tmp_path: Path, server: PostgresServer) -> None:
    async def story() -> None:
        async with cluster_storm(tmp_path, server, 1, ALONE) as it:
            await _every_kind(it)

    asyncio.run(story())


async def _every_kind(it: ClusterStorm) -> None:
    kinds = list(KINDS)
    it.random.shuffle(kinds)
    await asyncio.sleep(5)
    for kind in kinds:
        await inject(it, kind)
        await it.lasts(0, 1)
    await calm(it)


async def calm(it: ClusterStorm) -> None:
    """Wait until nobody waits, and print and judge what became of all of them."""
    await it.settle()
    await asyncio.sleep(3)  # for what would come twice
    table = await it.judged()
    print(f"\n{table}\n\n{it.report()}")
    for question in it.questions:
        if question.outcome in ("lost", "doubled", "silent"):
            print(it.explain(question))
    await it.end()
    assert not it.broken
    assert "Traceback" not in it.log
    assert not it.model.violations
    assert not it.discord.offences
    assert table.failed == 0
    assert it.out_of_order() == []
