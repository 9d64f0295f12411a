"""Anthropic's counting endpoint, over real sockets: requests, remembered counts and failures."""

from dataclasses import replace

import pytest

from agent.models.anthropic_wire import build_anthropic_request
from agent.models.base import CacheBreakpoint, ModelRequest
from agent.tokens.counter import TokenMeter
from reverie.testing.servers.count_tokens_api import KEY, Reply, asking, body, size
from tests.kits.models import TOOL, assistant, request, user


async def test_a_request_is_counted_as_it_is_sent_but_without_what_concerns_the_answer() -> None:
    async with asking() as (api, counter, _):
        sent = build_anthropic_request(_marked(), model="m-1").body
        assert "cache_control" in str(sent)
        counts: list[int] = []
        counter.request_count(sent, counts.append)
        assert (api.seen, counts, counter.get_count(sent)) == (
            [],
            [],
            None,
        )  # nothing is waited for
        await counter.wait_settled()
        asked = api.seen[0]
        assert asked.path == "/v1/messages/count_tokens"
        assert asked.headers["x-api-key"] == KEY
        assert asked.headers["anthropic-version"] == "2023-06-01"
        assert asked.headers["accept"] == asked.headers["content-type"] == "application/json"
        assert set(asked.body) == {"model", "tools", "system", "messages"}
        assert "cache_control" not in str(asked.body)
        assert counts == [counter.get_count(sent)] == [size(asked.body)]
        assert counter.is_exact


async def test_the_same_request_is_asked_once_wherever_its_marks_are() -> None:
    async with asking() as (api, counter, _):
        counts: list[int] = []
        counter.request_count(body("hi"), counts.append)
        counter.request_count(body("hi", mark=True))  # being asked
        await counter.wait_settled()
        counter.request_count(body("hi", mark=True) | {"max_tokens": 1}, counts.append)  # known
        assert len(api.seen) == 1
        assert counts == [counter.get_count(body("hi"))] * 2
        assert counter.get_count(body("ho")) is None


@pytest.mark.parametrize(
    ("capacity", "remembered"), [(0, []), (2, ["a", "c"]), (9, ["a", "b", "c"])]
)
async def test_what_was_used_last_is_remembered(capacity: int, remembered: list[str]) -> None:
    async with asking(capacity=capacity) as (_, counter, _):
        for text in ("a", "b", "c"):
            counter.request_count(body(text))
            await counter.wait_settled()
            counter.get_count(body("a"))
        assert [
            text for text in ("a", "b", "c") if counter.get_count(body(text)) is not None
        ] == remembered


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500, body=b"oops"),
        Reply(status=529, body=b'{"error": {"type": "overloaded_error", "message": "busy"}}'),
        Reply(status=401, body=b'{"error": {"message": "bad key %s"}}' % KEY.encode()),
        Reply(status=404, body=b"no such path"),
        Reply(status=400, body=b'{"error": {"message": "no"}}'),
        Reply(cut=True),
        Reply(silent=True),
        Reply(drips=True),
        Reply(body=b""),
        Reply(body=b"[" * 9999),
        Reply(body=b'{"input_tokens": -1}'),
        Reply(body=b'{"input_tokens": "12"}'),
        Reply(body=b'{"input_tokens": null}'),
        Reply(body=b" " * 2_000_000),
        Reply(body=b"<html>", headers={"content-type": "text/html"}),
    ],
    ids=range(15),
)
async def test_whatever_goes_wrong_is_a_failure_and_nothing_else(reply: Reply) -> None:
    async with asking(timeout_s=0.2 if reply.silent or reply.drips else 10.0) as (api, counter, _):
        api.script.extend([reply] * 3)
        for number in range(5):
            counter.request_count(body(f"text {number}"), _never)
            await counter.wait_settled()
        assert len(api.seen) == 3
        assert counter.breaker.is_open
        assert not counter.is_exact


async def test_a_broken_endpoint_is_left_alone_ever_longer_and_never_called_exact_again() -> None:
    async with asking() as (api, counter, clock):
        api.script.extend([Reply(status=503, body=b"")] * 6)
        asked = []
        for second in range(200):
            before = len(api.seen)
            counter.request_count(body(f"at {second}"))
            counter.request_count(body(f"also at {second}"))
            await counter.wait_settled()
            asked.append(len(api.seen) - before)
            clock.advance(1)
        assert [second for second, count in enumerate(asked) if count] == [0, 1, 31, 91]
        clock.advance(11)
        counter.request_count(body("again"))
        await counter.wait_settled()
        assert counter.get_count(body("again")) is not None
        assert not counter.breaker.is_open
        assert not counter.is_exact


async def test_its_answers_correct_the_estimates() -> None:
    async with asking() as (_, counter, _):
        meter = TokenMeter()
        asked = request(user("The quick brown fox jumps over the lazy dog. " * 50))
        first = meter.estimate("m-1", asked)
        sent = build_anthropic_request(asked, model="m-1").body
        counter.request_count(sent, lambda tokens: meter.record_count(first, tokens))
        assert meter.estimate("m-1", asked).tokens == first.tokens
        await counter.wait_settled()
        assert meter.estimate("m-1", asked).tokens == counter.get_count(sent) != first.tokens


def _marked() -> ModelRequest:
    asked = request(user("hi"), assistant("hello"), user("who are you?"), tools=(TOOL,))
    places = (
        CacheBreakpoint(behind="block", index=1, lifetime="1h"),
        CacheBreakpoint(behind="said", index=2, lifetime="5m"),
    )
    return replace(asked, breakpoints=places)


def _never(tokens: int) -> None:
    raise AssertionError(f"nobody should have counted {tokens}")
