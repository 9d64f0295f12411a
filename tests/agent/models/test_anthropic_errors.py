"""What Anthropic's refusals mean: platform.claude.com/docs/en/api/errors and api/rate-limits."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from agent.models.anthropic import AnthropicModel
from agent.models.base import (
    CacheBreakpoint,
    Model,
    ModelBusy,
    ModelError,
    ModelUnusable,
    PromptTooLong,
    RequestRefused,
)
from agent.models.failover import FailoverModel
from agent.models.http import error_from_response, retry_after_s
from gateway.core.clock import ManualClock
from tests.agent.models.test_anthropic import opus
from tests.kits.models import KEY, against, ask, request, text
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer, failure, spend_limit

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def said(message: str, status: int = 400, kind: str = "invalid_request_error") -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011"}
    return Answer(status=status, body=json.dumps(body).encode())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (failure(400, "invalid_request_error"), RequestRefused),
        (said("prompt is too long: 200001 tokens > 200000 maximum"), PromptTooLong),
        (said("Your credit balance is too low to access the Anthropic API."), ModelUnusable),
        (failure(401, "authentication_error"), ModelUnusable),
        (failure(402, "billing_error"), ModelUnusable),
        (failure(403, "permission_error"), ModelUnusable),
        (failure(404, "not_found_error"), ModelUnusable),
        (failure(409, "conflict_error"), ModelBusy),
        (failure(413, "request_too_large"), PromptTooLong),
        (failure(429, "rate_limit_error", retry_after_s=2), ModelBusy),
        (failure(429, "rate_limit_error"), ModelBusy),
        (spend_limit(), ModelUnusable),
        (failure(500, "api_error"), ModelBusy),
        (failure(504, "timeout_error"), ModelBusy),
        (failure(529, "overloaded_error"), ModelBusy),
    ],
)
def test_every_status(answer: Answer, expected: type[ModelError]) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(answer)
        with pytest.raises(ModelError) as raised:
            await ask(model)
        assert type(raised.value) is expected
        assert f"answered {answer.status}" in raised.value.reason
        assert raised.value.reason.endswith(("(req_scripted)", "(req_011)"))
        assert len(api.seen) == 1

    against(opus, story)


def test_a_month_whose_budget_is_used_up_is_not_waited_for() -> None:
    async def story(api: ModelApi, model: AnthropicModel) -> None:
        api.then(spend_limit())
        patient = FailoverModel([model], clock=ManualClock(), random=lambda: 0.0)
        async with asyncio.timeout(120):
            with pytest.raises(ModelUnusable):
                await ask(patient)
        assert len(api.seen) == 1

    against(opus, story)


def test_a_hint_comes_with_the_error() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(
            failure(429, "rate_limit_error", retry_after_s=7),
            Answer(status=429, headers={"retry-after-ms": "1500", "retry-after": "2", "request-id": "req_head"}),
        )
        with pytest.raises(ModelBusy) as first:
            await ask(model)
        with pytest.raises(ModelBusy) as second:
            await ask(model)
        assert (first.value.retry_after_s, second.value.retry_after_s) == (7.0, 1.5)
        assert second.value.reason.endswith("(req_head)")

    against(opus, story)


def limits(**headers: str) -> dict[str, str]:
    return {f"anthropic-ratelimit-{name.replace('_', '-')}": value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (limits(requests_remaining="0", requests_reset="2026-11-21T12:00:30Z"), 30.0),
        (
            limits(
                requests_remaining="0",
                requests_reset="2026-11-21T12:00:30Z",
                input_tokens_remaining="0",
                input_tokens_reset="2026-11-21T12:00:40+00:00",
                output_tokens_remaining="1000",
                output_tokens_reset="2026-11-21T12:01:00Z",
            ),
            40.0,
        ),
        (limits(tokens_remaining="0", tokens_reset="2026-11-21T11:59:00Z"), 0.0),
        (limits(tokens_remaining="5", tokens_reset="2026-11-21T12:00:30Z"), None),
        (limits(tokens_remaining="0"), None),
        (limits(tokens_remaining="0", tokens_reset="soon"), None),
        (limits(tokens_remaining="0", tokens_reset="2026-11-21T12:00:30Z") | {"retry-after": "3"}, 3.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:05 GMT"}, 5.0),
        (limits(tokens_remaining="0", tokens_reset="2026-11-21T12:00:30Z") | {"retry-after": "soon"}, 30.0),
        ({}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after_s(headers, NOW) == expected


@pytest.mark.parametrize(
    "request_id", ["", KEY, f"req_{KEY}", "two words", "a\nb", "x" * 81, "\u00e9", "{}"], ids=range(8)
)
def test_a_reason_holds_neither_secrets_nor_what_is_no_request_id(request_id: str) -> None:
    body = {"error": {"type": "authentication_error", "message": f"bad key {KEY}"}, "request_id": request_id}
    error = error_from_response(401, {}, json.dumps(body).encode(), where="x", secret=KEY, now=NOW)
    assert error.reason == "x answered 401: bad key ***"


@pytest.mark.parametrize("body", [b'{"request_id": 5}', b"[]", b'"words"', b"null", b"", b"\xff", b"<html>(x)</html>"])
def test_whatever_the_body_is_there_is_a_reason(body: bytes) -> None:
    reason = error_from_response(500, {}, body, where="x", secret=KEY, now=NOW).reason
    assert reason.startswith("x answered 500")
    assert "(" not in reason


def test_who_takes_no_cache_control_is_asked_without_marks_from_then_on() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        marks = (
            CacheBreakpoint(behind="block", index=0, lifetime="1h"),
            CacheBreakpoint(behind="said", index=0, lifetime="5m"),
        )
        marked = replace(request(), breakpoints=marks)
        api.then(said("system.0.cache_control: Extra inputs are not permitted"))
        assert text(await ask(model, marked)) == text(await ask(model, marked)) == "You said: hi"
        assert ["cache_control" in json.dumps(seen.body) for seen in api.seen] == [True, False, False]
        api.then(said("cache_control is still not taken"))
        with pytest.raises(RequestRefused):
            await ask(model, marked)
        assert len(api.seen) == 4

    against(opus, story)
