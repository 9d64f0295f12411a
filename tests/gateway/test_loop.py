import asyncio
from pathlib import Path
from typing import cast

from agent import dmn
from gateway.clock import ManualClock
from gateway.events import ConversationId
from gateway.loop import Loop
from gateway.records import AMBIENT, NORMAL, URGENT, DmnSaved
from gateway.store import Store
from gateway.turns import Report

ROOM = ConversationId("irc.test/#room")


class Ending:
    """Turns that are over at once. What is left is looked up, and told only when the test says so."""

    def __init__(self) -> None:
        self.taken = 0
        self.looked, self.tell = asyncio.Event(), asyncio.Event()

    async def take(self, conversation: ConversationId, *, autonomous: bool) -> Report:  # noqa: ARG002 - as `Turns`
        self.taken += 1
        return Report(failed=False, used_tools=False, yielded=False)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        raise AssertionError((conversation, reason, autonomous))

    async def left(self, conversation: ConversationId) -> int:  # noqa: ARG002 - as `Turns`
        self.looked.set()
        await self.tell.wait()
        return AMBIENT


def test_the_state_is_written_down_once_an_exchange_and_before_the_end(tmp_path: Path) -> None:
    async def exchange() -> list[str]:
        turns, clock = Ending(), ManualClock()
        turns.tell.set()
        async with await Store.open(tmp_path / "reverie.db", clock) as store, asyncio.TaskGroup() as tasks:
            loop = Loop(
                store=store,
                clock=clock,
                turns=turns,
                policy=dmn.Policy(),
                state=dmn.State(),
                spawn=tasks.create_task,
            )
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
        loop = Loop(
            store=store,
            clock=clock,
            turns=turns,
            policy=dmn.Policy(),
            state=dmn.State(),
            spawn=tasks.create_task,
        )
        loop.notice(ROOM, URGENT)
        await turns.looked.wait()
        loop.notice(ROOM, URGENT)  # durable just after the store was looked at
        turns.tell.set()
        await asyncio.sleep(0.05)
        await loop.stop(1.0)
    return turns.taken


def test_a_message_that_arrives_while_a_turn_is_ending_gets_its_own_turn(tmp_path: Path) -> None:
    assert asyncio.run(story(tmp_path)) == 2
