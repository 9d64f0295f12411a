"""Models that keep failing are left alone for a while: M. Nygard, Release It!, "Circuit Breaker"."""

import asyncio
import logging
from dataclasses import replace

import pytest

from agent.models.base import Model, ModelBusy, ModelError, PromptTooLong, RequestRefused, StreamEnd
from agent.models.failover import FailoverModel
from agent.models.scripted import Script, ScriptedModel
from gateway.core.clock import ManualClock
from gateway.core.events import RequestUsage, Usage
from tests.kits.models import ask, end, request, text

DOWN = ModelBusy("down", retry_after_s=99)
"""Longer than is waited for: one request is one failure, without a wait."""


def scripted(clock: ManualClock, *errors: ModelError) -> ScriptedModel:
    return ScriptedModel(Script(errors=errors), clock=clock)


def test_a_model_that_keeps_failing_is_passed_over_then_tried_then_back(caplog: pytest.LogCaptureFixture) -> None:
    async def story(clock: ManualClock) -> None:
        first, second = scripted(clock, *[DOWN] * 4), scripted(clock)
        model = FailoverModel([first, second], clock=clock, random=lambda: 0.0)
        for _ in range(5):
            assert text(await ask(model)) == "You said: hi"
        assert len(first.requests) == 3
        clock.advance(98.9)  # as long as it asked for itself
        await ask(model)
        assert len(first.requests) == 3
        clock.advance(0.2)
        await ask(model)  # the trial, which fails: twice as long, and still no less than it asks for
        await ask(model)
        assert len(first.requests) == 4
        clock.advance(99)
        served = len(second.requests)
        for _ in range(2):
            await ask(model)
        assert (len(first.requests), len(second.requests)) == (6, served)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story(ManualClock()))
    label = "a scripted model (for tests and demos)"
    assert [r.message for r in caplog.records] == [f"{label} is passed over for 30 s: down", f"{label} answers again"]


def test_a_trial_is_one_attempt() -> None:
    async def story(clock: ManualClock) -> None:
        first = scripted(clock, *[DOWN] * 3, *[ModelBusy("still")] * 9)
        model = FailoverModel([first, scripted(clock)], clock=clock, random=lambda: 0.0)
        for _ in range(3):
            await ask(model)
        clock.advance(100)
        await ask(model)
        assert len(first.requests) == 4

    asyncio.run(story(ManualClock()))


def test_the_last_hope_is_asked_although_it_is_passed_over() -> None:
    async def story(clock: ManualClock) -> None:
        first, second = scripted(clock, *[DOWN] * 4), scripted(clock, *[DOWN] * 3)
        model = FailoverModel([first, second], clock=clock, random=lambda: 0.0)
        for _ in range(3):
            with pytest.raises(ModelBusy):
                await ask(model)
        assert text(await ask(model)) == "You said: hi"
        assert (len(first.requests), len(second.requests)) == (4, 4)

    asyncio.run(story(ManualClock()))


def test_a_single_model_is_always_asked(caplog: pytest.LogCaptureFixture) -> None:
    async def story(clock: ManualClock) -> None:
        only = scripted(clock, *[DOWN] * 5)
        model = FailoverModel([only], clock=clock, random=lambda: 0.0)
        for _ in range(5):
            with pytest.raises(ModelBusy):
                await ask(model)
        assert text(await ask(model)) == "You said: hi"

    with caplog.at_level(logging.INFO):
        asyncio.run(story(ManualClock()))
    assert not [r.message for r in caplog.records if "passed over" in r.message]


@pytest.mark.parametrize("error", [PromptTooLong("x"), RequestRefused("x", caused_by_prompt=True)])
def test_who_refuses_a_request_has_answered(error: ModelError) -> None:
    async def story(clock: ManualClock) -> None:
        first = scripted(clock, DOWN, DOWN, error, DOWN, DOWN)
        model = FailoverModel([first, scripted(clock)], clock=clock, random=lambda: 0.0)
        for raises in (False, False, True, False, False, False):
            if raises:
                with pytest.raises(type(error)):
                    await ask(model)
            else:
                await ask(model)
        assert len(first.requests) == 6

    asyncio.run(story(ManualClock()))


def test_reading_in_concerns_the_first_model_only() -> None:
    async def story(clock: ManualClock) -> None:
        first, second = scripted(clock, DOWN), scripted(clock)
        model = FailoverModel([first, second], clock=clock, random=lambda: 0.0)
        warm = replace(request(), max_output_tokens=0)
        with pytest.raises(ModelBusy):
            await ask(model, warm)
        chunks = await ask(model, warm)
        assert (text(chunks), end(chunks).stop_reason, len(first.requests), len(second.requests)) == ("", "end", 2, 0)

    asyncio.run(story(ManualClock()))


class Accounted(ScriptedModel):
    """Ends as a model whose cache is kept account of."""

    async def stream(self, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as its base
        account = RequestUsage(provider="p", model="m", blocks=(), usage=Usage(), cost_usd=None, exact=False, missed="")
        async for chunk in super().stream(request):
            yield replace(chunk, account=account) if isinstance(chunk, StreamEnd) else chunk


def test_the_account_comes_through() -> None:
    async def story(clock: ManualClock) -> None:
        model: Model = FailoverModel([Accounted(clock=clock)], clock=clock, random=lambda: 0.0)
        assert end(await ask(model)).account is not None

    asyncio.run(story(ManualClock()))
