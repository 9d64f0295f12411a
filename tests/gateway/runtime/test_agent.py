import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from agent.dmn import load_state
from agent.signals import DmnMode, DmnPolicy, TurnEnded
from gateway.core.clock import ManualClock
from gateway.core.events import ConversationId
from gateway.core.facts import (
    AMBIENT,
    NORMAL,
    URGENT,
    DmnStateSaved,
    inner_conversation,
)
from gateway.runtime.agent import Agent
from gateway.runtime.turn_handle import TurnHandle, TurnInterrupted
from gateway.store import Store
from tests.kits.agent import DrivenAgent, TakesTurns
from tests.kits.scripted_turn import Say
from tests.kits.turns import ROOM as DESK_ROOM
from tests.kits.turns import Desk, at_desk

ROOM, QUIET = ConversationId("irc.test/#room"), ConversationId("irc.test/#quiet")
INNER = inner_conversation("ana")
DESK = DESK_ROOM.conversation
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Ending:
    """Turns that are over at once. What is left is looked up, and told only when the test says
    so."""

    def __init__(self, waits: bool = False) -> None:
        """`waits`: the first goes on until it is interrupted."""
        self.places: list[ConversationId] = []
        self.looked, self.tell = asyncio.Event(), asyncio.Event()
        self.waits = waits

    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnEnded:
        assert not continuing
        self.places.append(conversation)
        ended = TurnEnded(at=NOW, conversation=conversation, autonomous=autonomous, answered=NOW)
        if self.waits:
            self.waits = False
            try:
                with handle.interruptible():
                    await asyncio.Event().wait()
            except TurnInterrupted:
                return replace(ended, interrupted=True)
        return ended

    async def unread_urgency(self, conversation: ConversationId) -> int:  # noqa: ARG002 - as `TakesTurns`
        self.looked.set()
        await self.tell.wait()
        return AMBIENT


def made(store: Store, clock: ManualClock, turns: TakesTurns, tasks: asyncio.TaskGroup) -> Agent:
    return DrivenAgent(turns, store, clock, tasks)


async def over(loop: Agent) -> None:
    """Return once no turn runs in the room, and what follows from that waits for the clock."""
    async with asyncio.timeout(120):
        while loop.running.get(ROOM) is not None:
            await asyncio.sleep(0.001)
    await settled()


async def settled() -> None:
    """Return once all that waits for nothing has been done."""
    for _ in range(10):
        await asyncio.sleep(0)


async def written(store: Store, count: int) -> list[DmnStateSaved]:
    """The states in the log, once there are so many."""
    async with asyncio.timeout(120):
        while len(entries := await store.entries(kinds=["dmn"])) < count:
            await asyncio.sleep(0.001)
    return [cast("DmnStateSaved", one.fact) for one in entries]


async def test_talk_writes_no_state_and_what_is_counted_is_written_at_once(
    tmp_path: Path,
) -> None:
    turns, clock = Ending(), ManualClock()
    turns.tell.set()
    async with (
        await Store.open(tmp_path / "reverie.db", clock) as store,
        asyncio.TaskGroup() as tasks,
    ):
        loop = made(store, clock, turns, tasks)
        loop.notice(ROOM, URGENT)
        await over(loop)
        clock.advance(1.0)
        await written(store, 1)  # the day
        loop.notice(ROOM, URGENT)
        await over(loop)
        for _ in range(400):  # it winds down to rest
            clock.advance(1.0)
            await settled()
        assert loop.state.mode is DmnMode.RESTING
        assert len(await store.entries(kinds=["dmn"])) == 1
        loop.notice(ROOM, NORMAL)
        loop.tick()  # an autonomous turn: counted at once
        saved = [load_state(one.state) for one in await written(store, 2)]
        assert [state.turns_today for state in saved] == [0, 1]
        await over(loop)
        loop.notice(ROOM, URGENT)
        await loop.stop(1.0)
        saved = [load_state(one.state) for one in await written(store, 3)]
        assert saved[-1].autonomous == 0


async def test_after_a_turn_the_state_is_written_down_a_second_later(tmp_path: Path) -> None:
    turns, clock = Ending(), ManualClock()
    turns.tell.set()
    async with (
        await Store.open(tmp_path / "reverie.db", clock) as store,
        asyncio.TaskGroup() as tasks,
    ):
        loop = made(store, clock, turns, tasks)
        loop.notice(ROOM, URGENT)
        await over(loop)
        assert (store.commits, await store.entries(kinds=["dmn"])) == (0, [])
        clock.advance(1)
        assert len(await written(store, 1)) == 1
        await loop.stop(1.0)


async def test_the_state_is_written_down_before_another_process_goes_on(tmp_path: Path) -> None:
    turns, clock = Ending(), ManualClock()
    turns.tell.set()
    async with (
        await Store.open(tmp_path / "reverie.db", clock) as store,
        asyncio.TaskGroup() as tasks,
    ):
        loop = made(store, clock, turns, tasks)
        loop.notice(ROOM, URGENT)
        await over(loop)
        await loop.leave(lambda _: True, 1.0)
        assert len(await store.entries(kinds=["dmn"])) == 1
        clock.advance(2)
        await settled()
        await loop.stop(1.0)
        assert len(await store.entries(kinds=["dmn"])) == 1


async def story(tmp_path: Path) -> int:
    turns, clock = Ending(), ManualClock()
    async with (
        await Store.open(tmp_path / "reverie.db", clock) as store,
        asyncio.TaskGroup() as tasks,
    ):
        loop = made(store, clock, turns, tasks)
        loop.notice(ROOM, URGENT)
        await turns.looked.wait()
        loop.notice(ROOM, URGENT)  # durable just after the store was looked at
        turns.tell.set()
        await over(loop)
        await loop.stop(1.0)
    return len(turns.places)


def test_a_message_that_arrives_while_a_turn_is_ending_gets_its_own_turn(tmp_path: Path) -> None:
    assert asyncio.run(story(tmp_path)) == 2


def test_people_who_keep_talking_do_not_put_off_what_waits_for_a_tick(tmp_path: Path) -> None:
    async def busy() -> list[ConversationId]:
        turns, clock = Ending(), ManualClock()
        turns.tell.set()
        async with (
            await Store.open(tmp_path / "reverie.db", clock) as store,
            asyncio.TaskGroup() as tasks,
        ):
            loop = made(store, clock, turns, tasks)
            loop.start()
            loop.notice(QUIET, NORMAL)
            for _ in range(10):
                loop.notice(ROOM, URGENT)
                await over(loop)
                clock.advance(3.0)  # below the shortest interval of a mode that a turn leads to
                await asyncio.sleep(0)
            await loop.stop(1.0)
        return turns.places

    assert asyncio.run(busy()).count(QUIET) == 1


class Reminded(Ending):
    """The first turn goes on until the test ends it. What is left in the room can be set."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.tell.set()
        self.left = left
        self.ends = asyncio.Event()

    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnEnded:
        assert not continuing
        self.places.append(conversation)
        await self.ends.wait()
        return TurnEnded(
            at=NOW,
            conversation=conversation,
            autonomous=autonomous,
            failed=handle.stop_reason == "fails",
        )

    async def unread_urgency(self, conversation: ConversationId) -> int:
        return self.left if conversation == ROOM and self.places.count(ROOM) == 1 else AMBIENT


@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize(
    ("place", "left", "fails", "turns"),
    [
        (ROOM, NORMAL, False, [ROOM, ROOM]),
        (ROOM, AMBIENT, False, [ROOM]),  # the running turn was told of it
        (QUIET, AMBIENT, False, [ROOM, QUIET]),
        (QUIET, AMBIENT, True, [ROOM]),  # after an error the next tick is waited for
    ],
)
def test_a_reminder_that_finds_a_turn_in_its_place_or_no_free_lane_is_taken_up_when_a_turn_ends(
    tmp_path: Path,
    place: ConversationId,
    left: int,
    *,
    fails: bool,
    turns: list[ConversationId],
    promised: bool,
) -> None:
    async def reminded() -> list[ConversationId]:
        taker, clock = Reminded(left), ManualClock()
        async with (
            await Store.open(tmp_path / "reverie.db", clock) as store,
            asyncio.TaskGroup() as tasks,
        ):
            policy = DmnPolicy(inner=INNER, lanes=2, daily_turns=0 if promised else 200)
            loop = DrivenAgent(taker, store, clock, tasks, policy=policy)
            loop.notice(ROOM, URGENT)
            await settled()
            loop.notice(place, NORMAL)
            loop.remind(place, promised=promised)
            await settled()
            assert taker.places == [ROOM]
            if fails and (handle := loop.running.get(ROOM)) is not None:
                handle.stop_reason = "fails"
            taker.ends.set()
            await over(loop)
            if promised and not fails:
                loop.notice(place, NORMAL)
                loop.tick()  # which nobody has asked for
                await settled()
            await loop.stop(1.0)
        return taker.places

    assert asyncio.run(asyncio.wait_for(reminded(), 120)) == turns


@pytest.mark.parametrize(("place", "turns"), [(ROOM, 2), (INNER, 1)])
def test_what_an_interrupted_turn_had_heard_is_owed_an_answer_though_nothing_newer_is_left(
    tmp_path: Path, place: ConversationId, turns: int
) -> None:
    """The line that interrupts it may have come in time for it to hear. What the inner conversation
    looked at waits."""

    async def cut() -> list[ConversationId]:
        taker, clock = Ending(waits=True), ManualClock()
        taker.tell.set()
        async with (
            await Store.open(tmp_path / "reverie.db", clock) as store,
            asyncio.TaskGroup() as tasks,
        ):
            loop = made(store, clock, taker, tasks)
            loop.notice(place, URGENT)
            await asyncio.sleep(0)
            loop.notice(place, URGENT, arrivals="interrupt")
            while len(taker.places) < turns or loop.state.running:
                await asyncio.sleep(0.001)
            await loop.stop(1.0)
        return taker.places

    assert asyncio.run(asyncio.wait_for(cut(), 120)) == [place] * turns


LOOK = Say(calls=(("c", "look_up"),))


class Sitting(Ending):
    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.tell.set()
        self.desk = desk

    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnEnded:
        return await self.desk.turns.run(
            self.desk.means,
            conversation,
            autonomous=autonomous,
            continuing=continuing,
            handle=handle,
        )


@pytest.mark.parametrize(
    ("answers", "written"), [([LOOK], 1), ([LOOK, Say(waits=True)], 1), ([Say(waits=True)], 0)]
)
async def test_a_stop_writes_down_what_tools_did_and_leaves_no_trace_of_what_did_nothing(
    tmp_path: Path, answers: list[Say], written: int
) -> None:
    async with at_desk(tmp_path, *answers) as desk:
        began = asyncio.Event()

        async def meanwhile() -> None:
            if len(answers) == 1:  # the tool itself takes long
                began.set()
                await asyncio.Event().wait()

        desk.drawer.meanwhile = meanwhile
        await desk.say("ann", "hello")
        async with asyncio.TaskGroup() as tasks:
            loop = made(desk.store, desk.clock, Sitting(desk), tasks)
            loop.notice(DESK, URGENT)
            while not began.is_set() and (
                answers == [LOOK] or len(desk.model.requests) < len(answers)
            ):
                await asyncio.sleep(0.001)
            await loop.stop(0.01)
        ended = await desk.ended()
        assert [(one.outcome, len(one.steps)) for one in ended] == [("interrupted", 1)] * written
        assert len(await desk.unread()) == 1 - written
        if written:
            desk.drawer.meanwhile = None
            await desk.take()
            assert "hello" in str(desk.model.requests[-1].conversation[0])
            assert [one.outcome for one in await desk.ended()] == ["interrupted", "replied"]
