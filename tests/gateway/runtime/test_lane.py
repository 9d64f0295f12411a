"""A turn can be told of news and be ended from outside, whenever that comes."""

import asyncio

import pytest

from gateway.runtime.lane import TurnHandle, TurnInterrupted
from tests.kits.channels import story


async def _answer() -> str:
    await asyncio.sleep(0)
    return "answer"


@story
async def test_a_turn_that_is_let_alone_gives_its_result() -> None:
    assert await TurnHandle().run(_answer()) == "answer"


@story
async def test_what_a_turn_raises_comes_through() -> None:
    async def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await TurnHandle().run(broken())


@story
async def test_an_interrupted_turn_has_ended_when_that_is_told() -> None:
    lane, ended, begun = TurnHandle(), asyncio.Event(), asyncio.Event()

    async def long() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # closing takes a moment
            ended.set()

    running = asyncio.create_task(lane.run(long()))
    await begun.wait()
    lane.interrupt()
    with pytest.raises(TurnInterrupted):
        await running
    assert ended.is_set()


@story
async def test_an_interruption_before_the_asking_begins_counts() -> None:
    lane = TurnHandle()
    lane.interrupt()
    with pytest.raises(TurnInterrupted):
        await lane.run(_answer())


@story
async def test_an_interruption_after_the_answer_changes_nothing() -> None:
    lane = TurnHandle()
    assert await lane.run(_answer()) == "answer"
    lane.interrupt()


@story
async def test_cancelled_from_above_it_ends_what_runs_and_goes_on_upwards() -> None:
    lane, ended, begun = TurnHandle(), asyncio.Event(), asyncio.Event()

    async def long() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(lane.run(long()))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


def test_news_are_told_once() -> None:
    lane = TurnHandle()
    assert not lane.take_news()
    lane.steer()
    lane.steer()
    assert lane.take_news()
    assert not lane.take_news()
