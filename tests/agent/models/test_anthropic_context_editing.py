"""Old tool results that the API leaves out by itself: https://platform.claude.com/docs/en/build-with-claude/context-editing."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from agent.cache.client import CachingModel
from agent.cache.plan import CacheProfile, find_idle_conversation
from agent.models.anthropic import AnthropicModel
from agent.models.anthropic_wire import CONTEXT_EDITING_BETA, find_context_editing, render_context_editing
from agent.models.base import Model, ModelMessage, ModelRequest, RequestRefused, TextPart, ToolResult
from gateway.core.clock import ManualClock
from gateway.core.events import RequestUsage, Usage
from gateway.core.tool_spec import ToolCall
from tests.agent.cache.test_client import IDENTITY, MODEL, PRICES, Bench, Bytes
from tests.agent.models.test_anthropic import LOOP, OPUS, RESULTS, calls
from tests.agent.models.test_anthropic_thinking import again, kinds, thinks
from tests.kits.models import KEY, TOOL, against, ask, assistant, end, request, user
from tests.servers.messages_cache import MessagesCache
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer

WINDOW = 40_000
TRIGGER = 16_800
WORDS = "many words of a result, " * 240
RESULT_TOKENS = 1_400
"""Of each that is left out, about: the placeholder has some, too."""


def clears(url: str, model: str = OPUS) -> AnthropicModel:
    return AnthropicModel(name="main", model=model, base_url=url, api_key=KEY, context_tokens=WINDOW, clear_keeping=2)


def other(url: str) -> AnthropicModel:
    return clears(url, "m-1")


def quiet(url: str) -> AnthropicModel:
    return AnthropicModel(name="main", model=OPUS, base_url=url, api_key=KEY, context_tokens=WINDOW)


def used(number: int, times: int = 1) -> tuple[ModelMessage, ...]:
    """A turn that used a tool, up to its reply."""
    idents = [f"t{number}_{place}" for place in range(times)]
    asked = tuple(ToolCall(id=ident, name="look_up", arguments="{}") for ident in idents)
    results = tuple(ToolResult(id=ident, text=f"{ident}: {WORDS}") for ident in idents)
    said = ModelMessage(role="assistant", parts=(TextPart(text="Let me see."), *asked))
    return user(f"turn {number}"), said, ModelMessage(role="user", parts=results), assistant(f"Answer {number}.")


def kept(body: Any) -> int:
    """How many results are to stay."""
    value: int = body["context_management"]["edits"][0]["keep"]["value"]
    return value


def test_it_is_asked_for_before_the_view_would_be_folded() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        await ask(model, request(*LOOP[:1], tools=(TOOL,)))
        seen = api.seen[0]
        assert seen.headers["anthropic-beta"] == CONTEXT_EDITING_BETA
        assert seen.body["context_management"] == {
            "edits": [
                {
                    "type": "clear_tool_uses_20250919",
                    "trigger": {"type": "input_tokens", "value": TRIGGER},
                    "keep": {"type": "tool_uses", "value": 2},
                    "clear_at_least": {"type": "input_tokens", "value": TRIGGER // 10},
                }
            ]
        }
        await ask(model, replace(request(), max_output_tokens=0))  # it must find the same bytes in the cache
        assert "context_management" in api.seen[1].body
        assert not api.violations

    against(clears, story)


@pytest.mark.parametrize("make", [other, quiet])
def test_it_is_not_asked_of_who_is_not_known_to_have_it_nor_unless_it_is_wanted(
    make: Callable[[str], AnthropicModel],
) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        await ask(model)
        assert "context_management" not in api.seen[0].body
        assert "anthropic-beta" not in api.seen[0].headers
        assert not api.violations

    against(make, story)


def test_what_the_running_loop_brought_is_never_left_out() -> None:
    wanted = find_context_editing(OPUS, WINDOW, 4_096, 2)
    assert wanted is not None
    before = used(0, 3)
    told = {
        "before": (*before, user("more")),
        "loop": (*before, user("more"), calls(), RESULTS),
        "longer": (*before, user("more"), calls(), RESULTS, calls(), RESULTS),
        "after": (*before, user("more"), calls(), RESULTS, assistant("ok"), user("thanks")),
    }
    stay = {name: kept({"context_management": render_context_editing(wanted, said)}) for name, said in told.items()}
    assert stay == {"before": 2, "loop": 4, "longer": 6, "after": 2}
    assert kept({"context_management": render_context_editing(replace(wanted, keep_results=0), told["before"])}) == 1


def test_what_was_left_out_is_told_and_the_request_stays_whole(caplog: pytest.LogCaptureFixture) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        long = request(*used(0, 5), *used(1, 8), user("more"), tools=(TOOL,))
        with caplog.at_level(logging.INFO):
            told = end(await ask(model, long))
        assert told.cleared_tokens > 11 * RESULT_TOKENS
        assert f"left out 11 tool results, {told.cleared_tokens} tokens" in caplog.text
        assert json.dumps(api.seen[0].body).count(WORDS.strip()) == 13
        assert end(await ask(model, request(*used(0, 2), user("more"), tools=(TOOL,)))).cleared_tokens == 0
        assert len([r for r in caplog.records if "left out" in r.getMessage()]) == 1
        assert not api.violations

    against(clears, story)


REFUSALS = (
    "context_management: Extra inputs are not permitted",
    f"Unexpected value(s) `{CONTEXT_EDITING_BETA}` for the `anthropic-beta` header.",
)


@pytest.mark.parametrize("complaint", REFUSALS)
def test_who_refuses_it_is_not_asked_again(complaint: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        body = {"type": "error", "error": {"type": "invalid_request_error", "message": complaint}}
        api.then(Answer(status=400, body=json.dumps(body).encode()))
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                assert end(await ask(model)).stop_reason == "end"
        assert [CONTEXT_EDITING_BETA in str(seen.headers) for seen in api.seen] == [True, False, False]
        assert ["context_management" in seen.body for seen in api.seen] == [True, False, False]
        assert caplog.text.count("not asked to any more") == 1
        api.then(Answer(status=400, body=json.dumps(body).encode()))
        with pytest.raises(RequestRefused):
            await ask(model)

    against(clears, story)


def test_thinking_stays_valid_whatever_is_left_out() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        first = request(*used(0, 7), *used(1, 7), user("more"), tools=(TOOL,))
        api.then(thinks("a"), thinks("b"), Answer(text="Done."))
        asked = first
        for ident in ("a", "b", ""):
            assert end(await ask(model, asked)).cleared_tokens > 0
            asked = again(asked, ident) if ident else asked
        assert [kinds(seen)[0] for seen in api.seen[1:]] == ["thinking", "thinking"]
        assert not api.violations

    against(clears, story)


def test_the_bill_is_the_sum_of_all_that_was_asked_in_one() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        created = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 7}
        one = {"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 7}
        parts = [{"type": "compaction", **one, "cache_creation": created}, {"type": "message", **one}]
        api.then(Answer(text="hi", usage={"input_tokens": 100, "output_tokens": 10, "iterations": parts}))
        assert end(await ask(model)).usage == Usage(
            input_tokens=200, output_tokens=20, cache_read_tokens=2, cache_write_tokens=14, cache_write_1h_tokens=7
        )

    against(clears, story)


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    clock = ManualClock()
    async with ModelApi(cache=MessagesCache(lambda text: -(-len(text) // 4)), clock=clock.monotonic) as api:
        api.default = lambda _: Answer(text="Yes.")
        made = Bench(api, None, clock)  # type: ignore[arg-type]  # the keeper asks the bench
        made.keeper = CachingModel(
            clears(api.url, MODEL),
            CacheProfile(provider="anthropic", model=MODEL, price=PRICES.find(MODEL), caching="marks"),
            clock=clock,
            gauge=Bytes(),
            policy=lambda _: made.policy,
        )
        async with aclosing(made.keeper):
            yield made


def story(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def told() -> None:
        async with bench() as made, asyncio.timeout(120):
            await test(made)

    asyncio.run(told())


def of(*said: ModelMessage) -> ModelRequest:
    return replace(request(*said, tools=(TOOL,), blocks=(IDENTITY,)), shared_key="ana", conversation_id="irc/#a")


async def turns(bench: Bench, number: int) -> tuple[list[RequestUsage], list[ModelMessage]]:
    """Turns with a tool, and then some without."""
    said: list[ModelMessage] = []
    accounts: list[RequestUsage] = []
    for place in range(number):
        heard, calling, results, reply = used(place)
        said.append(heard)
        accounts.append(await bench.ask(of(*said)))
        said += [calling, results]
        accounts.append(await bench.ask(of(*said)))
        said.append(reply)
        bench.clock.advance(20)
    for place in range(3):
        said.append(user(f"and {place}"))
        accounts.append(await bench.ask(of(*said)))
        said.append(assistant("Yes."))
        bench.clock.advance(20)
    return accounts, said


def tokens(account: RequestUsage) -> int:
    usage = account.usage
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def test_what_was_left_out_is_no_miss_and_spoils_no_estimate() -> None:
    async def test(bench: Bench) -> None:
        accounts, _ = await turns(bench, 16)
        assert [account.missed for account in accounts] == [""] * len(accounts)
        assert accounts[0].cleared == 0
        assert accounts[-1].cleared > 10 * RESULT_TOKENS
        assert max(map(tokens, accounts)) < TRIGGER + len(WORDS)
        # While nothing more is left out than in the request before it reads what that had.
        for before, account in list(pairwise(accounts))[-2:]:
            assert account.usage.cache_read_tokens > tokens(before) * 0.9
        loops = [pair for pair in pairwise(accounts) if pair[0].cleared == pair[1].cleared > 0]
        assert len(loops) > 5
        # The estimate is of the whole request, and so is what it was compared with.
        expected = sum(block.tokens for block in accounts[-1].blocks)
        assert expected == pytest.approx(tokens(accounts[-1]) + accounts[-1].cleared, rel=0.1)
        assert not bench.api.violations

    story(test)


def test_what_the_provider_lost_is_a_miss_all_the_same() -> None:
    async def test(bench: Bench) -> None:
        _, said = await turns(bench, 12)
        bench.api._messages.cache = MessagesCache(lambda text: -(-len(text) // 4))
        account = await bench.ask(of(*said, user("more")))
        assert account.cleared > 0
        assert account.missed.startswith("0 of about ")
        assert "no byte differs" in account.missed

    story(test)


def test_it_is_not_kept_warm() -> None:
    async def test(bench: Bench) -> None:
        await turns(bench, 12)
        keeper = bench.keeper
        ask = keeper.last_requests.get("ana", "irc/#a")
        assert ask is not None
        lasting = keeper._cache_state.find_with_expiry(ask.digests, bench.clock.now().timestamp())
        assert ask.cleared_tokens > 0
        assert find_idle_conversation(ask, lasting) is None
        assert find_idle_conversation(replace(ask, cleared_tokens=0), lasting) is not None

    story(test)
