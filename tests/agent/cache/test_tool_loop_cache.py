"""Messages and thinking that only a tool loop sends: cached for the rest of that loop, and not after it."""

from dataclasses import replace

import pytest

from agent.models.anthropic_wire import build_anthropic_request
from agent.models.base import ModelMessage, TextPart, ToolResult
from agent.prompt import PromptTurn
from agent.turn_context import TurnOutcome
from gateway.core.events import RequestUsage
from gateway.core.tool_spec import ToolCall
from tests.agent.cache.test_client import Bench, story
from tests.agent.models.test_anthropic import LOOP, after
from tests.agent.test_turn import turn
from tests.kits.models import TOOL, assistant, request, user
from tests.servers.model_api import Answer

HEARD = "[x] ann (guest): " + "and so on " * 200


async def turns(bench: Bench, loops: list[int]) -> list[RequestUsage]:
    """Take turns with so many rounds of tools each, all of them thought about."""
    history = list[PromptTurn]()
    accounts = list[RequestUsage]()
    for number, rounds in enumerate(loops):
        for place in range(rounds):
            calls = tuple(
                (f"c{number}_{place}_{which}", "look_up", f'{{"q": {10 * place + which}}}') for which in range(4)
            )
            bench.api.then(Answer(thinking="hmm " * 50, text="Hm.", calls=calls))
        bench.api.then(Answer(thinking="hmm", text=f"Answer {number}."))
        outcome: TurnOutcome = await turn(bench, history, f"{HEARD} {number}")
        assert (outcome.outcome, len(outcome.steps)) == ("replied", rounds)
        accounts += outcome.accounts
    assert not bench.api.violations
    return accounts


@pytest.mark.parametrize("loops", [[2, 2, 2, 0, 0, 2], [0, 5, 0, 5, 0]])
def test_the_next_turn_reads_what_was_in_front_of_the_loop_and_expects_no_more(loops: list[int]) -> None:
    async def test(bench: Bench) -> None:
        accounts = await turns(bench, loops)
        assert [account.missed for account in accounts] == [""] * len(accounts)
        begins = [sum(rounds + 1 for rounds in loops[:number]) for number in range(len(loops))]
        for first in begins[1:]:
            usage, expected = accounts[first].usage, sum(block.read for block in accounts[first].blocks)
            assert usage.cache_read_tokens == pytest.approx(expected, rel=0.05, abs=256)
            assert expected > 2_000  # however long the loop was, what was in front of it is found

    story(test)


def test_from_where_on_it_is_so() -> None:
    again = ToolCall(id="c", name="look_up", arguments="{}")
    asked = request(*LOOP, tools=(TOOL,))
    thought = after(asked, again, content=({"type": "thinking"},))
    longer = request(
        user("before"),
        assistant("yes"),
        *LOOP,
        ModelMessage(role="assistant", parts=(TextPart(text="Let me see."), again)),
        ModelMessage(role="user", parts=(ToolResult(id="c", text="found"),)),
        tools=(TOOL,),
    )
    bound = replace(
        thought,
        prefix_digest=build_anthropic_request(
            replace(longer, conversation=longer.conversation[:5]), model="m"
        ).digest(),
    )
    assert build_anthropic_request(longer, model="m").ephemeral_from is None
    assert (
        build_anthropic_request(
            longer, model="m", recall=lambda said: bound if again in said.parts else None
        ).ephemeral_from
        == 5
    )
