"""Rates and budgets of several processes together, on one log."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock, ManualClock, SystemClock
from gateway.core.events import Address, Command, RoomId
from gateway.core.facts import LOW, URGENT, Judgement, TurnId, TurnRecord, dedup_key
from gateway.core.ratelimit import Rate
from gateway.store import NewEntry
from tests.gateway.access.limits_kit import AGENT, CHANNEL, NOON, House, most, ordered, said
from tests.kits.cluster import ManualCluster, shared_stores
from tests.kits.store import ENGINE, account, spent
from tests.kits.waiting import until


@pytest.fixture(autouse=True, params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with one file that stands for the log of both processes, and with two stores in one database."""
    ENGINE.server = request.getfixturevalue("postgresql") if request.param == "postgresql" else None
    yield
    ENGINE.server = None


class Room(House):
    """One of several processes."""

    cluster: ManualCluster

    async def sees(self, other: "Room") -> None:
        """Return once this process has seen all that the other has."""
        self.store.follow()
        await until(lambda: self.store.last == other.store.last)

    async def obeys(self, command: Command) -> bool:
        """Take tokens for a command, and append it, as dispatcher and intake do. False: a limit is reached."""
        why = self.limits.take_or_explain(command, "guest", AGENT)
        place, at = command.at.conversation, self.clock.now()
        entry = NewEntry(fact=command, at=at, conversation=place, key=dedup_key(command))
        fact = Judgement(type="command", urgency=LOW if why else URGENT, fate="noted", rule="retry", role="guest")
        written = await self.store.append([entry, NewEntry(fact=fact, at=at, conversation=place, cause=entry)])
        if not written[0].is_new:
            self.limits.give_back(command)
        return not why

    async def asks(self, turn: str, usd: float, room: str = "#a") -> bool:
        """Wait for the budget, and reserve this for a turn, as it does before it asks its model. False: no budget."""
        at, who = Address(channel=CHANNEL, room=RoomId(room)), [said("ann").sender]
        kept = self.store, TurnId(turn)
        while True:
            await self.limits.wait_for_budget(at, AGENT, who, usd, kept=kept)
            if self.limits.reserve(at, AGENT, who, usd) is not None:
                return False
            if await self.limits.keep_reservation(self.store, at, AGENT, who, TurnId(turn), 0.0):
                return True

    async def ends(self, turn: str, usd: float, room: str = "#a") -> None:
        """Record a turn at this cost."""
        at = Address(channel=CHANNEL, room=RoomId(room))
        made = spent(at.conversation, account(cost=usd), senders=["ann"], at=self.clock.now())
        assert isinstance(made.fact, TurnRecord)
        await self.store.append([replace(made, fact=replace(made.fact, turn=TurnId(turn)))])
        self.limits.release(at.conversation)


@asynccontextmanager
async def two_rooms(tmp: Path, allowed: LiveSettings, clock: Clock | None = None) -> AsyncIterator[tuple[Room, Room]]:
    clock, peers = clock or ManualClock(NOON), list[ManualCluster]()
    async with shared_stores(tmp / "s.db", clock) as stores:
        found = list[Room]()
        for store in stores:
            cluster = ManualCluster(peers)
            found.append(Room(store, cast("ManualClock", clock), allowed, cluster=cluster))
            found[-1].cluster = cluster
            await found[-1].load()
        yield found[0], found[1]


async def test_what_one_process_answers_counts_in_the_rates_of_the_other(tmp_path: Path) -> None:
    async with two_rooms(tmp_path, most(agent=Rate(5, 0.001))) as (a, b):
        answered = 0
        for number in range(12):
            one, other = (a, b) if number % 2 else (b, a)
            answered += await one.answered(said(f"person{number}", room=f"#{number % 3}"))
            await other.sees(one)
        assert answered == 5
        assert len(await a.notices()) == 3, "one for each room"
        owner = await b.take(said("root"), role="owner")
        assert owner.judged.fate == "due"


async def test_what_a_command_takes_in_one_process_counts_in_the_rates_of_the_other(tmp_path: Path) -> None:
    async with two_rooms(tmp_path, most(agent=Rate(4, 0.001))) as (a, b):
        assert [await a.obeys(ordered()) for _ in range(2)] == [True, True]
        await b.sees(a)
        repeated = ordered()
        assert [await b.obeys(repeated) for _ in range(2)] == [True, True], "a repeat costs nothing"
        await a.sees(b)
        assert await a.obeys(ordered("bob"))
        await b.sees(a)
        assert not await b.obeys(ordered("cid"))
        assert await a.answered(said()) == 0


async def test_a_limit_that_one_process_has_announced_is_not_announced_again_by_the_other(tmp_path: Path) -> None:
    async with two_rooms(tmp_path, most(room=Rate(1, 0.001))) as (a, b):
        assert await a.answered(said("ann"), said("bob")) == 1
        await b.sees(a)
        assert await b.answered(said("cid"), said("dan")) == 0
        assert len(await a.notices()) == 1
        assert len(await a.limited()) == 1


async def test_two_processes_never_reserve_the_same_money(tmp_path: Path) -> None:
    """Both look before either appends; then the log says who was first."""
    async with two_rooms(tmp_path, most(agent_usd=1.0)) as (a, b):
        at, who = Address(channel=CHANNEL, room=RoomId("#a")), [said("ann").sender]
        other = replace(at, room=RoomId("#b"))
        assert a.limits.reserve(at, AGENT, who, 0.6) is None
        assert b.limits.reserve(other, AGENT, who, 0.6) is None
        assert await a.limits.keep_reservation(a.store, at, AGENT, who, TurnId("1"), 0.0)
        assert not await b.limits.keep_reservation(b.store, other, AGENT, who, TurnId("2"), 0.0)
        await a.sees(b)
        assert await a.asks("1", 0.7), "what was given back is free"
        waiting = asyncio.create_task(b.asks("2", 0.6, "#b"))
        await b.sees(a)
        assert not waiting.done()
        await a.ends("1", 0.2)
        b.store.follow()
        assert await waiting


async def test_what_a_process_had_reserved_that_is_gone_counts_as_spent(tmp_path: Path) -> None:
    clock = ManualClock(NOON)
    async with two_rooms(tmp_path, most(agent_usd=1.0), clock) as (a, b):
        assert await a.asks("1", 0.6)
        await b.sees(a)
        waiting = asyncio.create_task(b.asks("2", 0.6, "#b"))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        a.cluster.kill()
        while not waiting.done():
            clock.advance(1)
            await asyncio.sleep(0.01)
        assert await waiting is False, "nobody will free it, and it is not waited for"
        assert await b.asks("3", 0.4, "#b")
        clock.advance(timedelta(days=1).total_seconds())
        await b.ends("3", 0.1, "#b")
        assert await b.asks("4", 0.9, "#b"), "the next day has a budget of its own"


async def test_a_process_that_starts_counts_what_the_running_turns_of_others_have_reserved_once(tmp_path: Path) -> None:
    async with two_rooms(tmp_path, most(agent_usd=1.0)) as (a, b):
        assert await a.asks("1", 0.6)
        await b.sees(a)
        await b.load()
        at, who = Address(channel=CHANNEL, room=RoomId("#b")), [said("ann").sender]
        assert b.limits.reserve(at, AGENT, who, 0.6) is not None
        await a.ends("1", 0.1)
        await b.sees(a)
        assert await b.asks("2", 0.9, "#b")
        assert not await b.asks("3", 0.95, "#c")


async def test_many_turns_at_once_stay_within_a_budget_and_all_get_their_turn(tmp_path: Path) -> None:
    clock = SystemClock() if ENGINE.server is not None else ManualClock(NOON)
    async with two_rooms(tmp_path, most(agent_usd=1.0), clock) as rooms:
        running, most_at_once, done = dict[str, float](), 0.0, 0

        async def turn(number: int) -> None:
            nonlocal most_at_once, done
            name, one = f"t{number}", rooms[number % 2]
            assert await one.asks(name, 0.3, f"#{number}")
            running[name] = 0.3
            most_at_once = max(most_at_once, sum(running.values()) + 0.01 * done)
            for _ in range(number % 5):
                await asyncio.sleep(0)
            done += 1
            del running[name]
            await one.ends(name, 0.01, f"#{number}")

        async with asyncio.timeout(120):
            await asyncio.gather(*map(turn, range(20)))
        assert 0.3 < most_at_once <= 1.0 + 1e-9


async def test_an_entry_that_is_no_message_to_the_agent_takes_no_token(tmp_path: Path) -> None:
    async with two_rooms(tmp_path, most(agent=Rate(1, 0.001))) as (a, b):
        message = said("ann", kind="room")
        await a.store.append([NewEntry(fact=message, at=a.clock.now(), conversation=message.at.conversation, key="m")])
        await b.sees(a)
        assert await b.answered(said("bob")) == 1
