"""Cache reads of turns with tools: each request reads everything that the one before it wrote."""

from dataclasses import replace

import pytest

from agent.models.base import ToolResult
from agent.prompt import PromptInput, PromptTurn
from agent.turn import take_turn
from agent.turn_context import TurnOutcome
from gateway.core.events import RequestUsage
from gateway.core.tool_spec import ToolCall
from tests.agent.cache.test_client import IDENTITY, Bench, story
from tests.kits.scripted_turn import Drawer
from tests.servers.model_api_events import Answer

WORDS = "many words of a result, " * 120


class Wordy(Drawer):
    """Tools that tell a lot."""

    async def call(self, call: ToolCall) -> ToolResult:
        return replace(await super().call(call), text=f"{call.id}: {WORDS}")


async def turn(bench: Bench, history: list[PromptTurn], heard: str, *, rounds: int = 8) -> TurnOutcome:
    brief = PromptInput(
        persona=IDENTITY.text, card="# Where", history=tuple(history), input_text=heard, conversation="irc/#a"
    )
    outcome = await take_turn(brief, bench.keeper, Wordy(), key="ana", max_tool_rounds=rounds)
    history.append(PromptTurn(input_text=heard, reply=outcome.text, steps=outcome.steps))
    bench.clock.advance(30)
    return outcome


def test_each_request_reads_what_the_one_before_it_had() -> None:
    async def test(bench: Bench) -> None:
        history = list[PromptTurn]()
        accounts = list[RequestUsage]()
        for number in range(6):
            first, second = (
                tuple((f"call_{place}", "look_up", f'{{"q": {10 * asked + place}}}') for place in range(1 + number % 3))
                for asked in range(2)
            )
            bench.api.then(Answer(calls=first), Answer(text="Hm.", calls=second), Answer(text=f"Answer {number}."))
            outcome = await turn(bench, history, f"[x] ann (guest): {number} " + "and so on " * 40)
            assert (outcome.outcome, len(outcome.steps), outcome.requests) == ("replied", 2, 3)
            accounts += outcome.accounts
        assert [account.missed for account in accounts] == [""] * 18
        prompts = [
            one.usage.input_tokens + one.usage.cache_read_tokens + one.usage.cache_write_tokens for one in accounts
        ]
        for before, account in zip(prompts[2:], accounts[3:], strict=False):
            assert account.usage.cache_read_tokens > before * 0.9
        assert not bench.api.violations

    story(test)


def test_the_request_at_the_limit_of_tools_is_billed_as_was_expected() -> None:
    """With another `tool_choice` tools and blocks are read and nothing of the messages; who asks next reads them."""

    async def test(bench: Bench) -> None:
        history = list[PromptTurn]()
        for number in range(4):
            calls = (("call", "look_up", "{}"),)
            bench.api.then(Answer(text="Hm.", calls=calls), Answer(text=f"Answer {number}."))
            outcome = await turn(bench, history, f"[x] ann (guest): {number} " + "and so on " * 200, rounds=1)
            assert (outcome.outcome, outcome.requests) == ("replied", 2)
            assert [account.missed for account in outcome.accounts] == ["", ""]
            assert [one.body.get("tool_choice") for one in bench.api.seen[-2:]] == [None, {"type": "none"}]
            for account in outcome.accounts if number else ():  # until something was billed, tokens are a guess
                read, written = (sum(getattr(block, name) for block in account.blocks) for name in ("read", "written"))
                assert read == pytest.approx(account.usage.cache_read_tokens, rel=0.05, abs=64)
                assert written == pytest.approx(account.usage.cache_write_tokens, rel=0.2, abs=64)
            first, last = outcome.accounts
            before, now = ({block.name: block.read for block in one.blocks} for one in (first, last))
            assert now["tools"] > 0
            assert now["history"] == 0
            assert bool(before["history"]) == bool(number)
            assert last.usage.cache_read_tokens > 2_000
        asked = bench.keeper.last_requests.get("ana", "irc/#a")
        assert asked is not None
        assert asked.request.answer_only
        kept = await bench.keeper.refresh("ana", "irc/#a")
        assert kept is not None
        assert kept.missed == ""
        assert next(block.read for block in kept.blocks if block.name == "history") > 1_000
        assert "tool_choice" not in bench.api.seen[-1].body
        assert not bench.api.violations

    story(test)
