"""Claude in Vertex AI, against a fake of its endpoint and of what gives tokens for it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from agent.models.base import (
    CacheBreakpoint,
    ModelBusy,
    ModelError,
    ModelMessage,
    ModelUnusable,
    PromptTooLong,
    RequestRefused,
    ToolResult,
)
from agent.models.config import build_model
from agent.models.settings import ModelConfig
from agent.models.vertex import (
    ServiceAccount,
    VertexModel,
    find_base_url,
    parse_service_account,
)
from gateway.config.models import PromptCacheConfig
from gateway.core.clock import ManualClock
from gateway.core.tool_spec import ToolCall
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import Answer, failure
from reverie.testing.servers.vertex_api import VertexApi, google_error
from tests.kits.models import TOOL, ask, assistant, end, parse_provider, request, text, user

MODEL = "claude-sonnet-4-5@20250929"
PATH = f"/v1/projects/a-project/locations/europe-west1/publishers/anthropic/models/{MODEL}"


def vertex(api: VertexApi, clock: ManualClock, account: ServiceAccount | None) -> VertexModel:
    return VertexModel(
        name="main",
        model=MODEL,
        project="a-project",
        region="europe-west1",
        clock=clock,
        account=account,
        base_url=api.url,
        metadata_url=api.url,
    )


@asynccontextmanager
async def served(
    *, machine: bool = False, cache: MessagesCache | None = None
) -> AsyncIterator[tuple[VertexApi, VertexModel, ManualClock]]:
    clock = ManualClock()
    async with VertexApi(clock=clock, prompt_cache=cache) as api:
        account = None if machine else parse_service_account(api.credentials())
        async with aclosing(vertex(api, clock, account)) as model:
            yield api, model, clock


async def test_the_model_stands_in_the_url_and_the_version_in_the_body() -> None:
    async with served() as (api, model, _):
        marks = (
            CacheBreakpoint(behind="block", index=1, lifetime="1h"),
            CacheBreakpoint(behind="said", index=2, lifetime="5m"),
        )
        asked = request(user("hi"), assistant("hello"), user("tea?"), tools=(TOOL,))
        chunks = await ask(model, replace(asked, breakpoints=marks))
        assert text(chunks) == "You said: tea?"
        assert end(chunks).usage.output_tokens
        (seen,) = api.seen
        assert seen.path == f"{PATH}:streamRawPredict"
        assert seen.body["anthropic_version"] == "vertex-2023-10-16"
        assert "model" not in seen.body
        assert [one.get("cache_control") for one in seen.body["system"]] == [
            None,
            {"type": "ephemeral", "ttl": "1h"},
            None,
            None,
        ]
        last = seen.body["messages"][-1]["content"][-1]
        assert last["cache_control"] == {"type": "ephemeral", "ttl": "5m"}
        assert not api.violations


async def test_an_hour_is_written_and_read_again() -> None:
    cache = MessagesCache(len)
    async with served(cache=cache) as (api, model, clock):
        mark = CacheBreakpoint(behind="block", index=3, lifetime="1h")
        blocks = tuple(replace(one, text=one.text * 60) for one in request().blocks)
        asked = replace(request(blocks=blocks), breakpoints=(mark,))
        wrote = end(await ask(model, asked)).usage
        clock.advance(3_000)
        read = end(await ask(model, asked)).usage
        assert wrote.cache_write_1h_tokens > 0
        assert read.cache_read_tokens == wrote.cache_write_1h_tokens
        assert not api.violations


async def test_an_empty_answer_is_asked_for_without_a_stream() -> None:
    async with served() as (api, model, _):
        end(await ask(model, replace(request(), max_output_tokens=0)))
        assert api.seen[0].path == f"{PATH}:rawPredict"
        assert not api.violations


async def test_a_tool_loop_with_thinking_passes_the_rules_of_the_messages_api() -> None:
    async with served() as (api, model, _):
        api.then(Answer(text="Wait.", thinking="hm", calls=(("a", "look_up", "{}"),)))
        chunks = await ask(model, request(tools=(TOOL,)))
        call = next(one for one in chunks if isinstance(one, ToolCall))
        said = ModelMessage(role="assistant", parts=(*assistant("Wait.").parts, call))
        result = ModelMessage(role="user", parts=(ToolResult(id="a", text="found"),))
        assert text(await ask(model, request(user("hi"), said, result, tools=(TOOL,))))
        content = api.seen[1].body["messages"][1]["content"]
        assert [one["type"] for one in content] == ["thinking", "text", "tool_use"]
        assert not api.violations


@pytest.mark.parametrize("machine", [False, True])
async def test_a_token_is_used_until_shortly_before_its_end(machine: bool) -> None:
    async with served(machine=machine) as (api, model, clock):
        for wait_s in (0, 3_000, 300, 300, 0):
            clock.advance(wait_s)
            assert text(await ask(model)) == "You said: hi"
        sent = [seen.headers["authorization"].removeprefix("Bearer ") for seen in api.seen]
        first, second = api.issued
        assert sent == [first, first, first, second, second]
        assert [seen.method for seen in api.token_requests] == ["GET" if machine else "POST"] * 2
        assert len(api.claims) == (0 if machine else 2)


async def test_many_requests_wait_for_one_token() -> None:
    async with served() as (api, model, _):
        assert len(await asyncio.gather(*(ask(model) for _ in range(5)))) == 5
        assert len(api.issued) == 1


async def test_a_refused_token_is_replaced_once() -> None:
    async with served() as (api, model, _):
        await ask(model)
        api.revoke()
        assert text(await ask(model)) == "You said: hi"
        assert len(api.issued) == 2
        gone = google_error(401, "UNAUTHENTICATED", "no")
        api.default = lambda _: gone
        with pytest.raises(ModelUnusable) as caught:
            await ask(model)
        assert caught.value.status == 401
        assert len(api.issued) == 3
        assert len(api.seen) == 5


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (google_error(400, "INVALID_ARGUMENT", "no"), RequestRefused),
        (google_error(403, "PERMISSION_DENIED", "no"), ModelUnusable),
        (google_error(404, "NOT_FOUND", "Publisher Model was not found"), ModelUnusable),
        (google_error(429, "RESOURCE_EXHAUSTED", "Quota exceeded"), ModelBusy),
        (google_error(499, "CANCELLED", "The operation was cancelled."), ModelBusy),
        (google_error(500, "INTERNAL", "no"), ModelBusy),
        (google_error(503, "UNAVAILABLE", "no"), ModelBusy),
        (google_error(504, "DEADLINE_EXCEEDED", "no"), ModelBusy),
        (failure(529, "overloaded_error"), ModelBusy),
        (
            google_error(400, "INVALID_ARGUMENT", "prompt is too long: 2 tokens > 1 maximum"),
            PromptTooLong,
        ),
        (
            Answer(
                status=400,
                body=b'[{"error": {"code": 400, "status": "FAILED_PRECONDITION", '
                b'"message": "prompt is too long: 2 tokens > 1 maximum"}}]',
            ),
            PromptTooLong,
        ),
    ],
)
async def test_an_error_of_google_says_what_to_do(
    answer: Answer, expected: type[ModelError]
) -> None:
    async with served() as (api, model, _):
        api.then(answer)
        with pytest.raises(expected) as caught:
            await ask(model)
        assert caught.value.status == answer.status
        assert str(answer.status) in caught.value.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client_email": "other@a-project.iam.gserviceaccount.com"}, "Invalid JWT"),
        ({"private_key_id": "key-2"}, "invalid_grant"),
        ({"private_key": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"}, "key"),
    ],
)
async def test_an_account_that_is_not_known_is_told_without_a_secret(
    changes: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with caplog.at_level(logging.DEBUG):
        async with VertexApi(clock=clock, quotes_claims=True) as api:
            account = parse_service_account(api.credentials(**changes))
            async with aclosing(vertex(api, clock, account)) as model:
                with pytest.raises(ModelUnusable, match=words) as caught:
                    await ask(model)
        assert not api.seen
        told = f"{caught.value.reason} {caught.value.provider_message} {caplog.text}"
        for seen in api.token_requests:
            assert seen.raw.decode().rpartition("=")[2][:40] not in told  # a reason is shortened
        assert "PRIVATE" not in told


async def test_tokens_are_in_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with served() as (api, model, _):
            await ask(model)
            token = api.issued[0]
            api.then(
                google_error(403, "PERMISSION_DENIED", f"not for {token}"),
                Answer(text="on", error_after=(3, "api_error"), error_says=f"not for {token}"),
            )
            for _ in range(2):
                with pytest.raises(ModelError, match="not for") as caught:
                    await ask(model)
                assert token not in f"{caught.value.reason} {caught.value.provider_message}"
    assert token not in caplog.text
    assert "BEGIN" not in caplog.text + repr(parse_service_account(api.credentials()))


async def test_a_token_endpoint_that_is_busy_is_asked_again_later() -> None:
    async with served() as (api, _, clock):
        nowhere = parse_service_account(api.credentials(token_uri="http://127.0.0.1:1/token"))
        async with aclosing(vertex(api, clock, nowhere)) as model:
            with pytest.raises(ModelBusy, match="cannot connect"):
                await ask(model)


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("global", "aiplatform.googleapis.com"),
        ("us", "aiplatform.us.rep.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
        ("europe-west1", "europe-west1-aiplatform.googleapis.com"),
    ],
)
def test_each_region_has_its_endpoint(region: str, host: str) -> None:
    assert find_base_url(region) == f"https://{host}/v1"
    provider = parse_provider({"kind": "vertex", "project": "p", "region": region})
    entry = ModelConfig(provider="v", name="claude-sonnet-5-5")
    model = build_model("main", {"main": entry}, {"v": provider}, ManualClock())
    assert (model.label, model.family) == (f"claude-sonnet-5-5 at {host}", "anthropic")
    assert (model.context_tokens, model.max_output_tokens) == (200_000, 16_384)
    assert model.takes_images
    assert provider.traits("claude-sonnet-5-5").caching == "marks"


def test_an_hour_may_be_asked_for() -> None:
    assert "vertex" in PromptCacheConfig().long_ttl_providers


@pytest.mark.parametrize(
    "wrong",
    [
        {"project": "a/b"},
        {"project": "p", "region": "evil.example/"},
        {"project": "p", "credentials": "{}"},
        {"project": "p", "credentials": '{"type": "authorized_user", "private_key": "sk-secret"}'},
        {"project": "p", "credentials": "sk-secret"},
        {},
    ],
)
def test_wrong_settings_are_refused_without_showing_a_secret(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_provider({"kind": "vertex"} | wrong)
    assert not any("sk-secret" in one["msg"] for one in caught.value.errors())


async def test_a_configured_key_gives_the_tokens() -> None:
    clock = ManualClock()
    async with VertexApi(clock=clock) as api:
        written = {"kind": "vertex", "project": api.project, "region": api.region}
        written |= {"base_url": api.url, "credentials": api.credentials()}
        provider = parse_provider(written)
        assert "BEGIN" not in repr(provider)
        entry = ModelConfig(provider="v", name=MODEL)
        async with aclosing(build_model("main", {"main": entry}, {"v": provider}, clock)) as model:
            assert text(await ask(model)) == "You said: hi"
        assert len(api.claims) == 1
