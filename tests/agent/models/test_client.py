"""Retries on a manual clock, circuit breakers, fallbacks, and the costs of requests that were
lost."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cache.plan import CachePolicy, CacheProfile
from agent.cache.prompt_cache import PromptCache
from agent.models.adapt import adapt_request
from agent.models.anthropic import AnthropicModel
from agent.models.base import (
    AnswerSpoiled,
    ModelBusy,
    ModelError,
    ModelMessage,
    ModelRequest,
    ModelUnusable,
    PromptTooLong,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    StreamStart,
    TextPart,
    ThinkingDelta,
    ToolResult,
)
from agent.models.breaker import CircuitBreaker
from agent.models.client import Candidate, ModelClient, retry_delay_s
from agent.models.openai import OpenAIModel
from agent.models.scripted import Script, ScriptedModel, ScriptRule, busy_errors
from agent.prompt import PromptInput
from agent.turn_context import TurnOutcome, TurnProgress
from gateway.core.clock import ManualClock
from gateway.core.events import Usage
from gateway.core.tool_spec import ToolCall
from reverie.testing.servers.model_api import Answer, ModelApi, failure
from tests.agent.cache.request_kit import ANSWER, IDENTITY, PRICES, Bench, Bytes
from tests.kits.models import KEY, TOOL, ask, client_of, end, request, text, user
from tests.kits.scripted_turn import Host, NoTools, take_turn


def scripted(clock: ManualClock, *errors: ModelError, name: str = "main") -> ScriptedModel:
    return ScriptedModel(Script(errors=errors), clock=clock, name=name)


async def patiently(
    clock: ManualClock, model: ModelClient, step_s: float = 0.25
) -> tuple[list[StreamChunk], float]:
    """Ask, moving the clock on; the answer and the seconds it took."""
    task = asyncio.create_task(ask(model))
    while not task.done():
        for _ in range(20):
            await asyncio.sleep(0)
        if not task.done():
            clock.advance(step_s)
    return await task, clock.monotonic()


@given(st.integers(0, 99), st.floats(0, 1, exclude_max=True))
def test_back_off_without_a_hint(attempt: int, random: float) -> None:
    assert 0.5 <= retry_delay_s(attempt, None, random) <= 8.0
    assert retry_delay_s(attempt + 1, None, random) >= retry_delay_s(attempt, None, random)
    assert retry_delay_s(attempt, 3.0, random) == 3.0


async def test_busy_is_asked_again_after_the_hint() -> None:
    clock = ManualClock()
    one = scripted(clock, ModelBusy("x", retry_after_s=7), *busy_errors(2))
    chunks, took_s = await patiently(clock, client_of([one], clock=clock))
    assert text(chunks) == "You said: hi"
    assert took_s == 7 + 1 + 2
    assert len(one.requests) == 4


async def test_a_spoiled_answer_is_asked_for_again_at_once_and_no_outage() -> None:
    clock = ManualClock()
    spoiled = [AnswerSpoiled("x") for _ in range(9)]
    one, two = scripted(clock, *spoiled), scripted(clock, name="two")
    model = client_of([one, two], clock=clock)
    for _ in range(2):
        assert text(await ask(model)) == "You said: hi"
    assert (len(one.requests), len(two.requests), clock.monotonic()) == (8, 2, 0)
    with pytest.raises(AnswerSpoiled) as caught:
        await ask(client_of([scripted(clock, *spoiled)], clock=clock))
    assert caught.value.cause == "nothing"  # people are told, and the question does not wait


async def test_attempts_end_and_the_next_model_answers() -> None:
    clock = ManualClock()
    one, two = scripted(clock, *busy_errors(9)), scripted(clock, name="two")
    chunks, took_s = await patiently(clock, client_of([one, two], clock=clock))
    assert text(chunks) == "You said: hi"
    assert (len(one.requests), len(two.requests), took_s) == (4, 1, 0.5 + 1 + 2)


async def test_a_model_that_hangs_gives_way_to_the_next_after_one_deadline_for_all_tries() -> None:
    clock = ManualClock()
    async with ModelApi() as api:
        hung = OpenAIModel(
            name="main", model="m", base_url=api.url, context_tokens=9_000, max_output_tokens=100
        )
        model = client_of([hung, scripted(clock)], clock=clock, first_token_s=60)
        api.then(failure(503, "overloaded_error"), Answer(text="too late", delay_s=3_600.0))
        asked = asyncio.create_task(ask(model))
        while len(api.seen) < 2:  # the first try fails at once, the second never ends
            clock.advance(0.1)
            await asyncio.sleep(0.005)
        clock.advance(59.9 - clock.monotonic())
        assert not (await asyncio.wait([asked], timeout=0.05))[0]
        clock.advance(0.2)
        assert text(await asked) == "You said: hi"
        await asyncio.wait_for(api.seen[-1].finished.wait(), 30)
        assert (len(api.seen), api.seen[-1].hung_up) == (2, True)
        await model.aclose()


async def test_a_model_that_begins_and_hangs_is_billed_and_asked_no_more() -> None:
    class Begins(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
            self.requests.append(request)
            yield StreamStart(usage=Usage(input_tokens=7))
            await asyncio.Event().wait()

    clock = ManualClock()
    begins = Begins(clock=clock)
    price = PRICES.find("m")
    profile = CacheProfile(provider="p", model="m", price=price, caching="automatic")
    cache = PromptCache(begins, profile, clock=clock, gauge=Bytes(), policy=lambda _: CachePolicy())
    candidates = [Candidate(begins, cache, 60), Candidate(scripted(clock), None, 60)]
    model = ModelClient(candidates, clock=clock, random=lambda: 0.0)
    chunks, took_s = await patiently(clock, model)
    assert (took_s, len(begins.requests)) == (60, 1)
    (account,) = end(chunks).lost_accounts
    assert (account.model, account.usage) == ("m", Usage(input_tokens=7))


SILENT_CALL = ("c", "look_up", '{"word": "' + "x" * 90)


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (AnthropicModel, Answer(content=({"type": "thinking", "thinking": ""},), silent_after=4)),
        (AnthropicModel, Answer(calls=(SILENT_CALL,), silent_after=4)),
        (OpenAIModel, Answer(calls=(SILENT_CALL,), silent_after=3)),
    ],
)
async def test_thinking_that_is_not_shown_and_a_long_call_begin_an_answer(
    make: type[AnthropicModel | OpenAIModel], answer: Answer
) -> None:
    async with (
        ModelApi() as api,
        aclosing(make(name="main", model="m", base_url=api.url, api_key=KEY, timeout_s=1)) as one,
    ):
        api.then(answer)
        async with aclosing(one.stream(request(user("hi"), tools=(TOOL,)))) as chunks:
            begun = await anext(
                chunk async for chunk in chunks if not isinstance(chunk, StreamStart)
            )
    assert isinstance(begun, ThinkingDelta)


async def test_who_waits_too_long_for_others_is_told_of_an_overload() -> None:
    class Full(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
            self.requests.append(request)
            if len(self.requests) == 1:
                raise refused
            yield StreamStart()
            await asyncio.Event().wait()

    refused, clock = ModelBusy("too many"), ManualClock()
    refused.status = 429
    full = Full(clock=clock)
    model = client_of([full], clock=clock, attempts=1, first_token_s=60)
    with pytest.raises(ModelBusy):
        await ask(model)
    under_way = asyncio.create_task(ask(model))
    await asyncio.sleep(0)
    with pytest.raises(ModelBusy) as waited:
        await patiently(clock, model)
    assert (waited.value.cause, len(full.requests)) == ("overloaded", 2)
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)


async def test_a_model_that_answers_others_meanwhile_is_not_passed_over_later() -> None:
    class Full(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
            self.requests.append(request)
            if len(self.requests) == 1:
                raise refused
            yield TextPart(text="A long answer begins.")
            await leave.wait()
            yield StreamEnd(stop_reason="end", usage=Usage(), model="full")

    refused, leave, clock = ModelBusy("too many"), asyncio.Event(), ManualClock()
    refused.status = 429
    full, second = Full(clock=clock), scripted(clock, name="second")
    model = client_of([full, second], clock=clock, attempts=1, first_token_s=60)
    await ask(model)
    under_way = asyncio.create_task(ask(model))
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(ask(model)) for _ in range(5)]
    await patiently(clock, model)
    assert (len(full.requests), len(second.requests)) == (2, 1 + len(waiting) + 1)
    await asyncio.gather(*waiting)
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    leave.set()
    assert text(await ask(model)) == "A long answer begins."


async def test_unusable_goes_to_the_next_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        clock = ManualClock()
        one, two = (
            scripted(clock, ModelUnusable("no key"), ModelUnusable("no key")),
            scripted(clock, name="two"),
        )
        model = client_of([one, two], clock=clock)
        for _ in range(3):
            assert text(await ask(model)) == "You said: hi"
        assert (len(one.requests), len(two.requests)) == (3, 2)

    with caplog.at_level(logging.WARNING):
        await story()
    assert [r.message for r in caplog.records] == [
        "a scripted model (for tests and demos) cannot be used: no key"
    ]


@pytest.mark.parametrize("error", [PromptTooLong("x"), RequestRefused("x", caused_by_prompt=True)])
async def test_what_no_other_model_cures_is_raised_at_once(error: ModelError) -> None:
    clock = ManualClock()
    two = scripted(clock, name="two")
    with pytest.raises(type(error)):
        await ask(client_of([scripted(clock, error), two], clock=clock))
    assert not two.requests


async def test_a_fallback_with_a_small_window_is_passed_over() -> None:
    clock = ManualClock()
    busy, small = (
        scripted(clock, ModelBusy("x", retry_after_s=99)),
        scripted(clock, PromptTooLong("y")),
    )
    with pytest.raises(ModelBusy):  # the conversation is not folded for a model that only stands in
        await ask(client_of([busy, small], clock=clock))


async def test_an_answer_cut_in_the_middle_is_said_once() -> None:
    clock = ManualClock()
    async with ModelApi() as api:
        api.then(
            Answer(text="a longer answer in several pieces", cut_after=4),
            Answer(text="a whole answer"),
        )
        one = OpenAIModel(name="m", model="m", base_url=api.url)
        model = client_of([one], clock=clock)
        task = asyncio.create_task(ask(model))
        while len(api.seen) < 2:
            await asyncio.sleep(0.001)
            clock.advance(0.1)
        assert text(await task) == "a whole answer"
        await model.aclose()


def test_a_request_is_adapted_to_who_stands_in() -> None:
    small = ScriptedModel(clock=ManualClock(), max_output_tokens=5, takes_tools=False)
    asked = request(
        user("hi"),
        ModelMessage(role="assistant", parts=(ToolCall(id="a", name="look_up", arguments="{}"),)),
        ModelMessage(role="user", parts=(ToolResult(id="a", text="found"),)),
        tools=(TOOL,),
    )
    plain = adapt_request(asked, small)
    assert (plain.tools, plain.max_output_tokens) == ((), 5)
    assert plain.conversation[1].parts == (TextPart(text="(used the tool look_up)"),)
    assert plain.conversation[2].parts == (TextPart(text="found"),)
    assert adapt_request(asked, ScriptedModel(clock=ManualClock())) == asked


async def test_the_scripted_model_follows_its_script() -> None:
    rules = (
        ScriptRule(match="weather", calls=(("look_up", '{"word":"rain"}'),)),
        ScriptRule(match="rain|weather", reply="It rains."),
        ScriptRule(match="^long", reply="x" * 999),
    )
    model = ScriptedModel(Script(rules=rules), clock=ManualClock())
    chunks = await ask(model, request(user("the weather?"), tools=(TOOL,)))
    call = ToolCall(id="call_0", name="look_up", arguments='{"word":"rain"}')
    assert chunks[:-1] == [call]
    assert end(chunks).stop_reason == "tools"
    loop = (
        user("the weather?"),
        ModelMessage(role="assistant", parts=(call,)),
        ModelMessage(role="user", parts=(ToolResult(id="call_0", text="weather: rain"),)),
    )
    assert text(await ask(model, request(*loop, tools=(TOOL,)))) == "It rains."
    assert text(await ask(model, request(user("one", "two\nthree")))) == "You said: one\ntwo\nthree"
    long = await ask(model, request(user("long")))
    assert (len(text(long)), end(long).stop_reason) == (400, "length")
    assert len(model.requests) == 4
    assert end(await ask(model)) == end(await ask(model))
    with pytest.raises(ValueError, match="regular expression"):
        ScriptedModel(Script(rules=(ScriptRule(match="("),)), clock=ManualClock())


COMPLAINTS = {
    "max_tokens: 99999 > 64000, which is the maximum allowed number of output tokens for m": False,
    "tools.3.custom.input_schema: JSON schema is invalid": False,
    "Invalid schema for function 'bash': 'x' is not valid under any of the given schemas": False,
    "`temperature` is deprecated for this model.": False,
    "thinking.adaptive.display: Extra inputs are not permitted": False,
    "messages.0.content.1.text.cache_control: Extra inputs are not permitted": False,
    "The model `m` does not support tools": False,
    "Unknown parameter: 'seed'": False,
    "messages.2.content.0.image.source.base64: image exceeds 5 MB maximum": True,
    "Could not process image": True,
    (
        "messages.4: `tool_use` ids were found without `tool_result` blocks immediately after: "
        "toolu_1"
    ): True,
    "messages: roles must alternate between user and assistant": True,
    "Invalid 'messages[3].content': string too long": True,
    (
        "The response was filtered due to the prompt triggering Azure OpenAI's content management "
        "policy."
    ): True,
}
"""What providers say with 400, and whether it is because of what the prompt says."""


@pytest.mark.parametrize("complaint", COMPLAINTS)
async def test_a_fallback_is_asked_after_a_400_that_is_not_about_the_prompt(complaint: str) -> None:
    error = {"message": complaint, "type": "invalid_request_error"}
    async with one_of_two(Answer(status=400, body=json.dumps({"error": error}).encode())) as (
        model,
        first,
        other,
    ):
        if COMPLAINTS[complaint]:
            with pytest.raises(RequestRefused) as raised:
                await ask(model)
            assert raised.value.cause == "refused"
            assert not other.seen
        else:
            assert text(await ask(model)) == "You said: hi"
            with pytest.raises(RequestRefused) as raised:
                await ask(first)
            assert raised.value.cause == "misconfigured"


@pytest.mark.parametrize("status", [401, 402, 403, 404])
async def test_a_fallback_is_asked_after_a_wrong_key(status: int) -> None:
    body = b'{"error": {"message": "no"}}'
    async with one_of_two(Answer(status=status, body=body)) as (model, _, other):
        assert text(await ask(model)) == "You said: hi"
        assert len(other.seen) == 1


@contextlib.asynccontextmanager
async def one_of_two(answer: Answer) -> AsyncIterator[tuple[ModelClient, OpenAIModel, ModelApi]]:
    """Two models, the first of which is always answered so; that one, and where the other one
    is."""
    async with ModelApi(strict=False) as api, ModelApi() as other:
        api.default = lambda _: answer
        models = [
            OpenAIModel(name="main", model="m", base_url=one.url, api_key="k")
            for one in (api, other)
        ]
        model = client_of(models, clock=ManualClock())
        try:
            yield model, models[0], other
        finally:
            await model.aclose()


DOWN = ModelBusy("down")


async def test_a_model_that_keeps_failing_is_passed_over_then_tried_then_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(clock: ManualClock) -> None:
        first, second = scripted(clock, *[DOWN] * 4), scripted(clock)
        model = client_of([first, second], clock=clock, attempts=1)
        for _ in range(5):
            assert text(await ask(model)) == "You said: hi"
        assert len(first.requests) == 3
        clock.advance(29.9)
        await ask(model)
        assert len(first.requests) == 3
        clock.advance(0.2)
        await ask(model)  # the trial, which fails: twice as long
        await ask(model)
        assert len(first.requests) == 4
        clock.advance(60)
        served = len(second.requests)
        for _ in range(2):
            await ask(model)
        assert (len(first.requests), len(second.requests)) == (6, served)

    with caplog.at_level(logging.WARNING):
        await story(ManualClock())
    label = "a scripted model (for tests and demos)"
    assert [r.message for r in caplog.records] == [
        f"{label} is passed over for 30 s: down",
        f"{label} answers again",
    ]


BROKEN = replace(ANSWER, text="Half of an answer that", error_after=(4, "overloaded_error"))
BRIEF = PromptInput(
    persona=IDENTITY.text, card="# Where", history=(), input_text="hello", conversation="irc/#a"
)


class Patient(ManualClock):
    """For which all waiting is over at once."""

    async def sleep(self, delay_s: float) -> None:
        self.advance(delay_s)


async def turn(bench: Bench, attempts: int) -> TurnOutcome:
    model = bench.client(Patient(), attempts)
    return await take_turn(BRIEF, model, NoTools(), key="ana")


async def test_an_attempt_that_breaks_off_is_accounted_for(bench: Bench) -> None:
    bench.api.then(failure(529, "overloaded_error"), BROKEN, ANSWER)
    outcome = await turn(bench, 4)
    billed = [one.ticket.usage for one in bench.api.seen if one.ticket is not None][-2:]
    assert (outcome.outcome, outcome.requests, len(outcome.accounts)) == ("replied", 2, 2)
    first, second = (account.usage for account in outcome.accounts)
    assert (first.cache_write_tokens, second.cache_read_tokens) == (
        billed[0].cache_creation_input_tokens,
        billed[1].cache_read_input_tokens,
    )
    assert first.cache_write_tokens > 1_000
    assert outcome.usage == first + second
    assert all(account.cost_usd for account in outcome.accounts)


@pytest.mark.parametrize("broken", [(), (BROKEN,), (BROKEN, BROKEN)])
async def test_a_turn_that_is_cut_off_knows_what_it_cost(
    broken: tuple[Answer, ...], bench: Bench
) -> None:
    bench.api.then(*broken, replace(ANSWER, text="Once upon a time there was", silent_after=5))
    model = bench.client(Patient())
    progress, heard = TurnProgress(), asyncio.Event()
    grown = (
        (lambda text: heard.set() if text.startswith("Once") else None)
        if broken
        else lambda _: heard.set()
    )
    turn = asyncio.ensure_future(
        take_turn(BRIEF, model, NoTools(), Host(glimpse=grown), key="ana", progress=progress)
    )
    async with asyncio.timeout(120):
        await heard.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    done = progress.current
    assert (done.outcome, done.requests, len(done.accounts)) == (
        "interrupted",
        len(broken) + 1,
        len(broken) + 1,
    )
    assert done.accounts[0].usage.cache_write_tokens > 1_000
    assert [account.usage.cache_read_tokens > 1_000 for account in done.accounts[1:]] == [
        True
    ] * len(broken)
    assert done.usage == sum((account.usage for account in done.accounts), start=Usage())


CLOSED = CircuitBreaker()
TWICE = CircuitBreaker(failures=2)
OPEN = CircuitBreaker(wait_s=30.0, retry_at_s=130.0, has_opened=True)
TRYING = CircuitBreaker(wait_s=30.0, retry_at_s=160.0, is_trying=True, has_opened=True)
AGAIN = CircuitBreaker(wait_s=60.0, retry_at_s=200.0, has_opened=True)
HEALED = CircuitBreaker(has_opened=True)


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        (CLOSED, ("record_attempt", 100), CLOSED),
        (CLOSED, ("record_success",), CLOSED),
        (CLOSED, ("record_failure", 100), CircuitBreaker(failures=1)),
        (TWICE, ("record_success",), CLOSED),
        (TWICE, ("record_failure", 100), OPEN),
        (OPEN, ("record_attempt", 130), TRYING),
        (OPEN, ("record_failure", 131), OPEN),  # asked before it opened: nothing new
        (OPEN, ("record_success",), HEALED),  # the same: it works
        (TRYING, ("record_success",), HEALED),
        (TRYING, ("record_failure", 140), AGAIN),
        (HEALED, ("record_failure", 0), CircuitBreaker(failures=1, has_opened=True)),
        (
            CircuitBreaker(wait_s=240, is_trying=True, has_opened=True),
            ("record_failure", 0),
            CircuitBreaker(wait_s=300, retry_at_s=300, has_opened=True),
        ),
    ],
)
def test_transitions(
    before: CircuitBreaker, event: tuple[str, float], after: CircuitBreaker
) -> None:
    name, *arguments = event
    assert getattr(before, name)(*arguments) == after


@pytest.mark.parametrize(
    ("state", "now_s", "may"),
    [
        (CLOSED, 0, True),
        (TWICE, 0, True),
        (OPEN, 129.9, False),
        (OPEN, 130, True),
        (TRYING, 159.9, False),  # one tries already
        (TRYING, 160, True),  # and was never heard of again
    ],
)
def test_who_may_ask(state: CircuitBreaker, now_s: float, may: bool) -> None:
    assert state.admits(now_s) == may


@pytest.mark.parametrize(("hint_s", "until_s"), [(5, 5), (90, 90), (1e9, 300)])
def test_a_hint_opens_it_at_once_for_as_long(hint_s: float, until_s: float) -> None:
    breaker = CLOSED.record_failure(0, hint_s=hint_s)
    assert (breaker.is_open, breaker.retry_at_s) == (True, until_s)


@pytest.mark.parametrize(("hint_s", "until_s"), [(None, 30), (5, 30), (90, 90), (1e9, 300)])
def test_a_hint_may_make_it_wait_longer_but_not_for_ever(
    hint_s: float | None, until_s: float
) -> None:
    assert TWICE.record_failure(0, hint_s=hint_s).retry_at_s == until_s
    assert TWICE.record_failure(0, hint_s=hint_s).wait_s == 30  # the next doubles ours


events = st.lists(
    st.tuples(st.sampled_from(["ask", "fail", "succeed", "lose"]), st.floats(0, 400)), max_size=80
)


@given(events)
def test_whatever_happens(history: list[tuple[str, float]]) -> None:
    breaker, now_s, streak = CircuitBreaker(), 0.0, 0
    for what, passed_s in history:
        now_s += passed_s
        before = breaker
        if what == "succeed":
            breaker, streak = breaker.record_success(), 0
            assert breaker.admits(now_s)
        elif breaker.admits(now_s):
            breaker = breaker.record_attempt(now_s)
            if breaker.is_open:
                assert not breaker.admits(now_s)  # one at a time
            if what == "fail":
                breaker, streak = breaker.record_failure(now_s), streak + 1
        assert breaker.has_opened or not before.has_opened
        assert breaker.is_open == (streak >= 3)
        assert breaker.admits(now_s + 300)  # never shut out for longer than the longest wait
        assert not breaker.is_open or 30 <= breaker.wait_s <= 300


async def test_a_hint_is_not_waited_for_while_another_model_can_answer() -> None:
    clock = ManualClock()
    one, two = scripted(clock, ModelBusy("x", retry_after_s=3)), scripted(clock, name="two")
    model = client_of([one, two], clock=clock)
    _, took_s = await patiently(clock, model)
    assert (len(one.requests), len(two.requests), took_s) == (1, 1, 0)
    await ask(model)
    assert len(one.requests) == 1  # it asked not to be called yet
    clock.advance(3)
    await ask(model)
    assert (len(one.requests), len(two.requests)) == (2, 2)  # and is back when that is over


async def test_a_long_hint_is_for_the_caller_to_wait_for() -> None:
    clock = ManualClock()
    with pytest.raises(ModelBusy) as caught:
        await ask(client_of([scripted(clock, ModelBusy("x", retry_after_s=11))], clock=clock))
    assert caught.value.retry_after_s == 11


async def test_the_last_hope_is_asked_although_it_is_passed_over() -> None:
    async def story(clock: ManualClock) -> None:
        first, second = scripted(clock, *[DOWN] * 4), scripted(clock, *[DOWN] * 3)
        model = client_of([first, second], clock=clock, attempts=1)
        for _ in range(3):
            with pytest.raises(ModelBusy):
                await ask(model)
        assert text(await ask(model)) == "You said: hi"
        assert (len(first.requests), len(second.requests)) == (4, 4)

    await story(ManualClock())
