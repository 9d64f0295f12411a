"""A turn can be told of news and be ended from outside, whenever that comes."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from gateway.runtime.turn_handle import TurnHandle, TurnInterrupted
from reverie.testing.channels import story

T = TypeVar("T")


async def run(lane: TurnHandle, work: Coroutine[Any, Any, T]) -> T:
    """What a turn does, so that it can be interrupted."""
    try:
        with lane.interruptible():
            return await work
    finally:
        work.close()


async def _answer() -> str:
    await asyncio.sleep(0)
    return "answer"


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

    running = asyncio.create_task(run(lane, long()))
    await begun.wait()
    lane.interrupt()
    with pytest.raises(TurnInterrupted):
        await running
    assert ended.is_set()


@story
async def test_interrupted_and_cancelled_from_above_it_is_cancelled() -> None:
    lane, begun = TurnHandle(), asyncio.Event()

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run(lane, long()))
    await begun.wait()
    lane.interrupt()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_news_are_told_once() -> None:
    lane = TurnHandle()
    assert not lane.take_news()
    lane.steer()
    lane.steer()
    assert lane.take_news()
    assert not lane.take_news()
