"""Waiting for the writer of a cold prefix; the requests that are kept meanwhile, and those that count as gaps."""

import asyncio
from dataclasses import replace

import pytest

from agent.cache.client import MAX_BYTES, MAX_CONVERSATIONS, CachingModel, LastRequests, SingleFlight
from agent.cache.plan import PlannedRequest, plan_automatic
from agent.models.base import ModelBusy, ModelMessage, TextPart
from agent.tokens.counter import TokenMeter
from gateway.core.clock import ManualClock
from gateway.core.tool_spec import Image
from tests.agent.cache.test_client import ANSWER, Bench, request, story
from tests.servers.model_api import Answer, failure

PREFIX = b"prefix"


def run(flight: object) -> None:
    asyncio.run(asyncio.wait_for(flight, 20))  # type: ignore[arg-type]  # a coroutine


def test_nobody_is_waited_for_where_nobody_writes() -> None:
    async def test() -> None:
        flights = SingleFlight(ManualClock())
        assert not await flights.wait_for_writer(None, 10)
        assert not await flights.wait_for_writer(PREFIX, 10)
        flights.finish(PREFIX, flights.start(PREFIX))
        assert not await flights.wait_for_writer(PREFIX, 10)

    run(test())


def test_who_waits_is_woken_by_the_end_and_by_the_clock() -> None:
    async def test() -> None:
        clock = ManualClock()
        flights = SingleFlight(clock)
        begun = flights.start(PREFIX)
        early, late = (asyncio.create_task(flights.wait_for_writer(PREFIX, until)) for until in (10.0, 20.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.advance(15)
        assert not await early
        other = flights.start(PREFIX)  # as who waited too long does
        flights.finish(PREFIX, begun)
        assert await late
        assert not other.is_set()
        flights.finish(PREFIX, other)
        assert not await flights.wait_for_writer(PREFIX, 99)

    run(test())


def test_a_first_call_that_hangs_holds_nobody_up_for_ever() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(Answer(delay_s=60), ANSWER, ANSWER)
        first = asyncio.create_task(bench.ask(request("irc/#a", "hello")))
        while not bench.api.seen:
            await asyncio.sleep(0.005)
        others = [asyncio.create_task(bench.ask(request(place, "hello"))) for place in ("irc/#b", "irc/#c")]
        await asyncio.sleep(0.05)
        assert len(bench.api.seen) == 1
        bench.clock.advance(11)
        accounts = await asyncio.gather(*others)
        assert all(account.usage.output_tokens for account in accounts)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

    story(test)


def gaps(keeper: CachingModel) -> bool:
    return keeper._cadence["ana"].shared_odds().is_known  # no odds are told without sending


def test_a_retry_is_nobodys_habit() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(failure(529, "overloaded_error"), ANSWER, ANSWER)
        with pytest.raises(ModelBusy):
            await bench.ask(request("irc/#a", "hello"))
        bench.clock.advance(2)
        await bench.ask(request("irc/#a", "hello"))
        assert not gaps(bench.keeper)
        bench.clock.advance(2)
        await bench.ask(request("irc/#a", "hello", "Yes.", "and?"))
        assert gaps(bench.keeper)

    story(test)


def ask(place: str, *images: bytes) -> PlannedRequest:
    seen = [Image(media_type="image/png", data=data, description="[image]") for data in images]
    made = request(place, "hello")
    made = replace(made, conversation=(ModelMessage(role="user", parts=(TextPart(text="look"), *seen)),))
    meter = TokenMeter()
    estimate = meter.estimate("m", made)
    return PlannedRequest(
        request=made,
        segments=(),
        digests=(),
        plan=plan_automatic((), ()),
        meter=meter,
        estimate=estimate,
        sent_at_s=0.0,
    )


def test_what_was_kept_longest_ago_leaves_first() -> None:
    newest = LastRequests()
    for number in range(MAX_CONVERSATIONS + 10):
        newest.put(ask(f"irc/{number}"))
    again = ask("irc/10")
    assert newest.put(again) is not None
    newest.put(ask("irc/new"))
    assert len(newest) == MAX_CONVERSATIONS
    assert newest.get("ana", "irc/10") is again
    assert newest.get("ana", "irc/11") is None
    assert newest.get("max", "irc/10") is None


def test_images_are_not_piled_up() -> None:
    newest, photo = LastRequests(), bytes(MAX_BYTES // 3)
    for number in range(10):
        newest.put(ask(f"irc/{number}", photo))
    assert len(newest) == 2
    for _ in range(3):
        newest.put(ask("irc/9", photo))
    assert len(newest) == 2
    newest.put(ask("irc/huge", bytes(MAX_BYTES)))
    assert len(newest) == 1
    for number in range(20):
        newest.put(ask(f"irc/{number}"))
    assert len(newest) == 20
