"""What turns with tools read from the cache: all that the request before them had."""

from dataclasses import replace

from agent.brief import Brief, Exchange
from agent.models.base import ToolCall, ToolResult
from agent.outcome import Outcome
from agent.turn import take_turn
from gateway.events import Account
from tests.agent.test_cache_keeper import IDENTITY, Bench, story
from tests.agent.turn_kit import Drawer
from tests.servers.model_api import Answer

WORDS = "many words of a result, " * 120


class Wordy(Drawer):
    """Tools that tell a lot."""

    async def call(self, call: ToolCall) -> ToolResult:
        return replace(await super().call(call), text=f"{call.id}: {WORDS}")


async def turn(bench: Bench, history: list[Exchange], heard: str) -> Outcome:
    brief = Brief(persona=IDENTITY.text, card="# Where", history=tuple(history), heard=heard, conversation="irc/#a")
    outcome = await take_turn(brief, bench.keeper, Wordy(), key="ana")
    history.append(Exchange(heard=heard, reply=outcome.text, steps=outcome.steps))
    bench.clock.advance(30)
    return outcome


def test_each_request_reads_what_the_one_before_it_had() -> None:
    async def test(bench: Bench) -> None:
        history = list[Exchange]()
        accounts = list[Account]()
        for number in range(6):
            calls = tuple((f"call_{place}", "look_up", "{}") for place in range(1 + number % 3))
            bench.api.then(Answer(calls=calls), Answer(text="Hm.", calls=calls), Answer(text=f"Answer {number}."))
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
