import asyncio
from pathlib import Path
from typing import cast

from agent import dmn
from gateway.clock import ManualClock
from gateway.events import ConversationId
from gateway.loop import Loop, Taker
from gateway.records import AMBIENT, NORMAL, URGENT, DmnSaved
from gateway.store import Store
from gateway.turns import Report

ROOM, QUIET = ConversationId("irc.test/#room"), ConversationId("irc.test/#quiet")


class Ending:
    """Turns that are over at once. What is left is looked up, and told only when the test says so."""

    def __init__(self) -> None:
        self.places: list[ConversationId] = []
        self.looked, self.tell = asyncio.Event(), asyncio.Event()

    async def take(self, conversation: ConversationId, *, autonomous: bool) -> Report:  # noqa: ARG002 - as `Turns`
        self.places.append(conversation)
        return Report(failed=False, used_tools=False, yielded=False)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        raise AssertionError((conversation, reason, autonomous))

    async def left(self, conversation: ConversationId) -> int:  # noqa: ARG002 - as `Turns`
        self.looked.set()
        await self.tell.wait()
        return AMBIENT


def made(store: Store, clock: ManualClock, turns: Taker, tasks: asyncio.TaskGroup) -> Loop:
    return Loop(store=store, clock=clock, turns=turns, policy=dmn.Policy(), state=dmn.State(), spawn=tasks.create_task)


def test_the_state_is_written_down_once_an_exchange_and_before_the_end(tmp_path: Path) -> None:
    async def exchange() -> list[str]:
        turns, clock = Ending(), ManualClock()
        turns.tell.set()
        async with await Store.open(tmp_path / "reverie.db", clock) as store, asyncio.TaskGroup() as tasks:
            loop = made(store, clock, turns, tasks)
            for _ in range(2):
                loop.notice(ROOM, URGENT)
                await turns.looked.wait()
                await asyncio.sleep(0.05)
                clock.advance(1.0)
                await asyncio.sleep(0.05)
            loop.notice(ROOM, URGENT)
            await asyncio.sleep(0.05)  # a save is pending
            loop.notice(ROOM, NORMAL)
            loop.send(dmn.Tick(at=clock.now()))  # an autonomous turn: counted at once
            await asyncio.sleep(0.05)
            saved = [dmn.restore(cast("DmnSaved", one.fact).state) for one in await store.entries(kinds=["dmn"])]
            assert [state.turns_today for state in saved] == [0, 0, 1]
            loop.notice(ROOM, URGENT)
            await loop.stop(1.0)
            return [one.kind for one in await store.entries(kinds=["dmn"])]

    assert len(asyncio.run(exchange())) == 4


async def story(tmp_path: Path) -> int:
    turns, clock = Ending(), ManualClock()
    async with await Store.open(tmp_path / "reverie.db", clock) as store, asyncio.TaskGroup() as tasks:
        loop = made(store, clock, turns, tasks)
        loop.notice(ROOM, URGENT)
        await turns.looked.wait()
        loop.notice(ROOM, URGENT)  # durable just after the store was looked at
        turns.tell.set()
        await asyncio.sleep(0.05)
        await loop.stop(1.0)
    return len(turns.places)


def test_a_message_that_arrives_while_a_turn_is_ending_gets_its_own_turn(tmp_path: Path) -> None:
    assert asyncio.run(story(tmp_path)) == 2


def test_people_who_keep_talking_do_not_put_off_what_waits_for_a_tick(tmp_path: Path) -> None:
    async def busy() -> list[ConversationId]:
        turns, clock = Ending(), ManualClock()
        turns.tell.set()
        async with await Store.open(tmp_path / "reverie.db", clock) as store, asyncio.TaskGroup() as tasks:
            loop = made(store, clock, turns, tasks)
            loop.start()
            loop.notice(QUIET, NORMAL)
            for _ in range(10):
                loop.notice(ROOM, URGENT)
                await asyncio.sleep(0.02)
                clock.advance(3.0)  # below the shortest interval of a mode that a turn leads to
                await asyncio.sleep(0)
            await loop.stop(1.0)
        return turns.places

    assert asyncio.run(busy()).count(QUIET) == 1
