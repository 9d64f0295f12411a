"""The Messages API fake over its socket: streams, whole messages, counts, the cache in its usage, and its faults."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from gateway.core.clock import ManualClock
from tests.servers.messages_cache import MessagesCache
from tests.servers.messages_prompt import CONTROLS, Json
from tests.servers.model_api import Answer, ModelApi, failure, spend_limit
from tests.servers.model_api_rules import MAX_BYTES

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
SHORT = {"type": "ephemeral"}


class Client:
    """Speaks to the server as raw HTTP clients do."""

    def __init__(self, api: ModelApi, http: httpx.AsyncClient) -> None:
        self.api = api
        self.http = http

    async def post(self, asked: Json, path: str = "/v1/messages", **headers: str) -> httpx.Response:
        return await self.http.post(self.api.url + path, json=asked, headers=HEADERS | headers)

    async def stream(self, asked: Json, **headers: str) -> list[Json]:
        answer = await self.post(asked | {"stream": True}, **headers)
        assert answer.status_code == 200, answer.text
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]

    async def usage(self, asked: Json, **headers: str) -> tuple[int, int, int]:
        """Read, written, and the rest."""
        told = (await self.post(asked, **headers)).json()["usage"]
        return told["cache_read_input_tokens"], told["cache_creation_input_tokens"], told["input_tokens"]


def tell(story: Callable[[Client, ManualClock], Awaitable[None]], **options: Any) -> None:
    """Run `story` against a server with a cache whose tokens are characters."""

    async def run() -> None:
        clock = ManualClock()
        cache = MessagesCache(len, minimum=10)
        async with ModelApi(cache=cache, clock=clock.monotonic, **options) as api, httpx.AsyncClient() as http:
            await story(Client(api, http), clock)

    asyncio.run(run())


def body(words: str = "hi", **more: Any) -> Json:
    system = [{"type": "text", "text": "You are Reverie.", "cache_control": SHORT}]
    messages = [{"role": "user", "content": words}]
    return {"model": "claude-opus-5-5", "max_tokens": 50, "system": system, "messages": messages, **more}


def kinds(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


def test_a_stream_bills_what_the_cache_says() -> None:
    async def story(client: Client, clock: ManualClock) -> None:
        client.api.then(Answer(text="Hello there."))
        events = await client.stream(body())
        assert kinds(events) == [
            "message_start",
            "ping",
            "invented_later",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        told = {
            "input_tokens": 2,
            "cache_creation_input_tokens": 16,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 16, "ephemeral_1h_input_tokens": 0},
            "output_tokens_details": {"thinking_tokens": 0},
        }
        start = events[0]["message"]
        assert start["usage"] == told | {"output_tokens": 1}
        assert (start["content"], start["stop_reason"]) == ([], None)
        assert events[-2]["usage"] == told | {"output_tokens": 4}
        assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None, "stop_details": None}
        clock.advance(299)
        assert (await client.stream(body()))[0]["message"]["usage"]["cache_read_input_tokens"] == 16
        clock.advance(300)
        assert (await client.stream(body()))[0]["message"]["usage"]["cache_read_input_tokens"] == 0
        assert client.api.seen[1].ticket is not None
        assert client.api.seen[1].ticket.usage.cache_read_input_tokens == 16

    tell(story)


def test_without_stream_the_message_comes_whole() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        client.api.then(Answer(text="Let me see.", calls=(("t1", "look_up", '{"word": "x"}'),)))
        answer = await client.post(body())
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["request-id"]
        message = answer.json()
        assert message["content"] == [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"word": "x"}},
        ]
        assert (message["stop_reason"], message["type"], message["role"]) == ("tool_use", "message", "assistant")
        assert client.api.seen[0].message == message

    tell(story)


def test_a_key_names_the_workspace() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        assert await client.usage(body()) == (0, 16, 2)
        assert await client.usage(body(), **{"x-api-key": "another"}) == (0, 16, 2)
        assert await client.usage(body()) == (16, 0, 2)

    tell(story)


def test_warming_writes_the_cache_and_leaves_the_script_alone() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        client.api.then(Answer(text="scripted"))
        warm = (await client.post(body("warm", max_tokens=0))).json()
        assert (warm["content"], warm["stop_reason"], warm["usage"]["output_tokens"]) == ([], "max_tokens", 0)
        assert warm["usage"]["cache_creation_input_tokens"] == 16
        message = (await client.post(body())).json()
        assert message["content"][0]["text"] == "scripted"
        assert message["usage"]["cache_read_input_tokens"] == 16
        client.api.then(failure(529, "overloaded_error"))
        assert (await client.post(body(max_tokens=0))).status_code == 529

    tell(story)


def test_cold_requests_at_the_same_time_all_pay() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        client.api.default = lambda _: Answer(text="slow", delay_s=0.2)
        both = await asyncio.gather(client.usage(body("one")), client.usage(body("two")))
        assert list(both) == [(0, 16, 3), (0, 16, 3)]
        assert await client.usage(body("three")) == (16, 0, 5)

    tell(story)


def test_an_answer_that_never_began_writes_nothing() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        client.api.then(Answer(text="x", cut_after=0), failure(500, "api_error"))
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(body())
        assert (await client.post(body())).status_code == 500
        assert await client.usage(body()) == (0, 16, 2)

    tell(story)


def test_counting_has_a_script_of_its_own() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        asked = body()
        del asked["max_tokens"]
        client.api.then(Answer(text="not this"))
        client.api.then_counts(failure(429, "rate_limit_error", retry_after_s=2), Answer())
        first = await client.post(asked, "/v1/messages/count_tokens")
        assert (first.status_code, first.headers["retry-after"]) == (429, "2")
        for again in (False, True):
            assert (await client.post(asked, "/v1/messages/count_tokens")).json() == {"input_tokens": 18}, again
        refused = await client.post(body(), "/v1/messages/count_tokens")
        assert refused.json()["error"]["message"] == "max_tokens: Extra inputs are not permitted"
        assert await client.usage(body()) == (0, 16, 2), "counting writes nothing"

    tell(story)


def test_what_is_refused_is_kept() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        client.api.then(Answer(text="still there"))
        refused = await client.post(body(tools=[], cats=1))
        assert refused.status_code == 400
        told = refused.json()
        assert told["error"] == {"type": "invalid_request_error", "message": "cats: Extra inputs are not permitted"}
        assert told["request_id"] == refused.headers["request-id"]
        nobody = await client.post(body(), **{"x-api-key": ""})
        assert (nobody.status_code, nobody.json()["error"]["type"]) == (401, "authentication_error")
        broken = await client.http.post(client.api.url + "/v1/messages", content=b"{", headers=HEADERS)
        assert broken.status_code == 400
        large = await client.post(body("x" * MAX_BYTES))
        assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
        assert [(v.status, v.complaint) for v in client.api.violations[:2]] == [
            (400, "cats: Extra inputs are not permitted"),
            (401, "x-api-key header is required"),
        ]
        assert len(client.api.violations) == 4
        assert (await client.post(body())).json()["content"][0]["text"] == "still there"

    tell(story)


def test_a_prompt_beyond_the_window_is_refused() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        refused = await client.post(body("x" * 100))
        assert refused.json()["error"]["message"] == "prompt is too long: 116 tokens > 100 maximum"
        assert (await client.post(body("x" * 84))).status_code == 200

    tell(story, window=100)


def test_ways_to_stop() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        details = {"type": "refusal", "category": "cyber", "explanation": None}
        client.api.then(
            Answer(stop="refusal", stop_details=details),
            Answer(text="more", stop="pause_turn"),
            Answer(text="cut", stop="model_context_window_exceeded"),
        )
        refusal = await client.stream(body())
        assert kinds(refusal) == ["message_start", "ping", "invented_later", "message_delta", "message_stop"]
        assert refusal[-2]["delta"] == {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}
        for reason in ("pause_turn", "model_context_window_exceeded"):
            assert (await client.post(body())).json()["stop_reason"] == reason

    tell(story)


def test_an_error_in_the_middle_of_a_stream() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        client.api.then(Answer(text="a long answer of many words", error_after=(5, "overloaded_error")))
        events = await client.stream(body())
        assert kinds(events)[-1] == "error"
        assert events[-1]["error"]["type"] == "overloaded_error"
        assert await client.usage(body()) == (16, 0, 2), "it had begun"

    tell(story)


def test_a_spend_limit_gives_no_hint_to_wait() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        client.api.then(spend_limit())
        answer = await client.post(body())
        assert answer.status_code == 429
        assert "retry-after" not in answer.headers
        assert answer.json()["error"]["details"] == {"error_code": "enforced_spend_limit_reached"}
        assert client.api.violations == []

    tell(story)


def test_thinking_goes_round() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        shown = body(thinking={"type": "adaptive", "display": "summarized"})
        call = ("t1", "look_up", "{}")
        client.api.then(
            Answer(content=({"type": "redacted_thinking"},), thinking="a thought of some length", calls=(call,))
        )
        events = await client.stream(shown)
        deltas = [e["delta"]["type"] for e in events if e["type"] == "content_block_delta"]
        assert deltas == ["thinking_delta", "thinking_delta", "signature_delta", "input_json_delta", "input_json_delta"]
        message = client.api.seen[0].message
        assert message is not None
        results = [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]
        turns = [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": results}]
        again = shown | {"messages": [*shown["messages"], *turns]}
        assert (await client.post(again)).status_code == 200

        edited = again | {"system": "You are another."}
        refused = await client.post(edited)
        assert "The block is bound to a different conversation." in refused.json()["error"]["message"]
        edited["thinking"] = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        dropped = (await client.post(edited, **{"anthropic-beta": CONTROLS})).json()
        assert [told["path"] for told in dropped["input_transformations"]] == [
            "messages.1.content.0",
            "messages.1.content.1",
        ]
        assert len(client.api.violations) == 1

    tell(story)


def test_diagnostics_say_why_the_cache_was_missed() -> None:
    async def story(client: Client, _: ManualClock) -> None:
        async def why(previous: str | None, **more: Any) -> Any:
            events = await client.stream(body(diagnostics={"previous_message_id": previous}, **more))
            return events[0]["message"]["id"], events[0]["message"]["diagnostics"]

        first, told = await why(None)
        assert told is None
        assert (await why(first))[1] is None
        assert (await why("msg_unknown"))[1] == {"cache_miss_reason": {"type": "previous_message_not_found"}}
        assert (await why(first, system="You are someone else."))[1] == {
            "cache_miss_reason": {"type": "system_changed", "cache_missed_input_tokens": 18}
        }

    tell(story)
