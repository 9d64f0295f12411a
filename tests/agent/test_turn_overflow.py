"""Prompts that become too long in the middle of a turn: the turn goes on with less, also on the strict API."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agent.models.anthropic import AnthropicModel
from agent.models.base import Model, ModelRequest, PromptTooLong, StreamChunk, ToolResult
from agent.prompt import PromptInput
from agent.turn import EMPTY_ANSWER_HINT, take_turn
from agent.turn_context import TurnOutcome, TurnProgress
from tests.agent.models.test_anthropic import opus, other
from tests.agent.test_turn_wire import openai
from tests.kits.evidence import Bring, Desk, calls
from tests.kits.models import KEY, against
from tests.kits.scripted_turn import Host, Played, Say, brief, kept
from tests.servers.messages_cache import MessagesCache
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer
from tests.servers.model_api_seen import Seen

TOO_LONG = Answer(
    status=400,
    body=json.dumps(
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 200001 tokens > 200000 maximum"},
        }
    ).encode(),
)
NOTHING_TOLD = {"input_tokens": 0, "output_tokens": 1}
OLD = kept("[x] ann (guest): a long story", "I see.", ())


@dataclass
class Less:
    """Makes the brief anew, with less history."""

    times: int = 2
    asked: list[int] = field(default_factory=list)

    async def __call__(self, number: int) -> PromptInput | None:
        self.asked.append(number)
        return None if number > self.times else replace(brief("[x] ann (guest): hello", now="It is late."), history=())


def thinks(ident: str) -> Answer:
    return Answer(text="Let me see.", calls=((ident, "look_up", f'{{"q": "{ident}"}}'),), thinking="hmm")


def parts(seen: Seen) -> list[str]:
    """Types of all that the model has said."""
    said = [message["content"] for message in seen.body["messages"] if message["role"] == "assistant"]
    return [block["type"] for content in said if isinstance(content, list) for block in content]


def results(seen: Seen) -> list[str]:
    content = [
        block
        for message in seen.body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    return [told_text(block) for block in content if block["type"] == "tool_result"]


def told_text(block: Any) -> str:
    content = block["content"]
    return content if isinstance(content, str) else "".join(piece["text"] for piece in content)


def too_long(
    make: Callable[[str], AnthropicModel],
    answers: Sequence[Answer],
    judge: Callable[[ModelApi, TurnOutcome, Desk, Less], Awaitable[None]],
    *,
    times: int = 2,
) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(*answers)
        desk, less, progress = Desk(), Less(times), TurnProgress()
        texts = [f"{n}" * 3_000 for n in range(5)]
        long = replace(brief("[x] ann (guest): hello", OLD, now="It is late."))
        ended = await take_turn(
            long, model, Bring(*texts), Host(shorten=less), key="ana", evidence=desk, progress=progress
        )
        assert not api.violations
        assert ended.steps == progress.current.steps
        await judge(api, ended, desk, less)

    against(make, story)


@pytest.mark.parametrize("make", [opus, other])
def test_a_turn_that_has_become_too_long_goes_on_with_less(make: Callable[[str], AnthropicModel]) -> None:
    async def judge(api: ModelApi, ended: TurnOutcome, desk: Desk, less: Less) -> None:
        assert (ended.outcome, ended.text, less.asked) == ("replied", "Done.", [1])
        assert len(api.seen) == 5
        refused, again, last = api.seen[2:]
        assert "a long story" in json.dumps(refused.body)
        assert "a long story" not in json.dumps(again.body)
        assert json.dumps(again.body).count("It is late.") == 1
        assert "thinking" in parts(refused)
        assert "thinking" not in parts(again)  # it is bound to what was in front of it
        assert parts(again) == ["text", "tool_use"] * 2
        older, newest = results(again)
        assert older.startswith("[TOOL RESULT SUMMARY]")
        assert newest == "1" * 3_000
        assert desk.kept == {"e1": "0" * 3_000}
        assert [called.result for called in calls(ended)] == results(last) == [older, newest, "2" * 3_000]
        assert last.body["messages"][: len(again.body["messages"]) - 1] == again.body["messages"][:-1]

    too_long(make, [thinks("a"), thinks("b"), TOO_LONG, thinks("c"), Answer(text="Done.")], judge)


def test_the_next_turn_begins_with_the_bytes_of_the_last_request() -> None:
    async def judge(api: ModelApi, ended: TurnOutcome, _desk: Desk, _less: Less) -> None:
        model = AnthropicModel(name="main", model="m-1", base_url=api.url, api_key=KEY)
        history = kept("[x] ann (guest): hello", ended.text, ended.steps)
        await take_turn(brief("[x] ann (guest): more?", history), model, Bring(), key="ana")
        await model.aclose()
        sent, later = (seen.body["messages"] for seen in api.seen[-2:])
        spoken = [message for message in sent if "It is late." not in json.dumps(message)]
        assert later[1 : len(spoken)] == spoken[1:]
        assert "a long story" not in json.dumps(later)

    plain = [Answer(calls=((ident, "look_up", "{}"),)) for ident in "ab"]
    too_long(other, [*plain, TOO_LONG, Answer(text="Done.")], judge)


def test_other_servers_are_asked_again_too() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        refusal = {"error": {"message": "This model's maximum context length is 9 tokens.", "type": "invalid_request"}}
        plain = [Answer(text="Let me see.", calls=((ident, "look_up", f'{{"q": "{ident}"}}'),)) for ident in "abc"]
        too_much = Answer(status=400, body=json.dumps(refusal).encode())
        api.then(*plain[:2], too_much, plain[2], Answer(text="Done."))
        desk, less = Desk(), Less()
        bring = Bring(*[f"{number}" * 3_000 for number in range(3)])
        ended = await take_turn(brief("hello", OLD), model, bring, Host(shorten=less), key="ana", evidence=desk)
        assert (ended.text, less.asked, desk.kept) == ("Done.", [1], {"e1": "0" * 3_000})
        told = [message["content"] for message in api.seen[-1].body["messages"] if message["role"] == "tool"]
        assert told == [called.result for called in calls(ended)]
        assert not api.violations

    against(openai, story)


def test_the_second_time_the_newest_results_give_way_too_and_there_is_no_third() -> None:
    async def judge(api: ModelApi, ended: TurnOutcome, desk: Desk, less: Less) -> None:
        assert less.asked == [1, 2]
        assert (ended.outcome, len(api.seen)) == ("failed", 5)
        assert "too long" in ended.reason
        assert all(result.startswith("[TOOL RESULT SUMMARY]") for result in results(api.seen[-1]))
        assert [len(result) > 700 for result in results(api.seen[-1])] == [False, True]
        assert sorted(desk.kept.values()) == ["0" * 3_000, "1" * 3_000]
        assert [called.result for called in calls(ended)] == results(api.seen[-1])

    too_long(opus, [thinks("a"), thinks("b"), TOO_LONG, TOO_LONG, TOO_LONG], judge)


def test_where_nothing_can_be_left_out_the_turn_fails() -> None:
    async def judge(api: ModelApi, ended: TurnOutcome, desk: Desk, less: Less) -> None:
        assert (ended.outcome, len(api.seen), less.asked, desk.kept) == ("failed", 2, [1], {})

    too_long(opus, [thinks("a"), TOO_LONG], judge, times=0)


def test_where_it_is_plain_that_the_newest_result_is_too_long_it_gives_way_at_once() -> None:
    class Narrow(Played):
        context_tokens = 8_000

        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
            if sum(len(part.text) for part in request.conversation[-1].parts if isinstance(part, ToolResult)) > 9_000:
                self.requests.append(request)
                raise PromptTooLong("prompt is too long")
            async for chunk in super().stream(request):
                yield chunk

    model, less, desk = Narrow(Say(calls=(("l", "look_up"),))), Less(), Desk()
    turn = take_turn(brief(), model, Bring("x" * 18_000), Host(shorten=less), key="ana", evidence=desk)
    ended = asyncio.run(_ended(turn))
    assert (ended.outcome, less.asked, len(model.requests)) == ("replied", [1], 3)
    assert desk.kept == {"e1": "x" * 18_000}


def test_a_turn_that_shares_its_progress_touches_its_own_steps_only() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(thinks("a"), Answer(text="One."), thinks("b"), thinks("c"), TOO_LONG, Answer(text="Two."))
        progress, desk = TurnProgress(), Desk()
        first = await take_turn(brief(), model, Bring("x" * 3_000), key="ana", evidence=desk, progress=progress)
        second = await take_turn(
            brief("and?"),
            model,
            Bring("y" * 3_000, "z" * 3_000),
            Host(shorten=Less()),
            key="ana",
            evidence=desk,
            progress=progress,
        )
        assert (first.text, second.text, len(second.steps)) == ("One.", "Two.", 3)
        assert second.steps[0] == first.steps[0]
        assert [called.source is None for called in calls(second)] == [True, False, True]
        assert len(results(api.seen[-1])) == 2

    against(opus, story)


def test_the_first_request_is_for_the_caller_to_shorten() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(TOO_LONG)
        less = Less()
        with pytest.raises(PromptTooLong):
            await take_turn(brief(), model, Bring(), Host(shorten=less), key="ana")
        assert less.asked == []

    against(opus, story)


def test_a_hint_stays_where_the_turn_is_shortened() -> None:
    class Refuses(Played):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
            if len(self.requests) == 1:
                self.requests.append(request)
                raise PromptTooLong("prompt is too long")
            async for chunk in super().stream(request):
                yield chunk

    model = Refuses(Say())
    ended = asyncio.run(_ended(take_turn(brief(), model, Bring(), Host(shorten=Less()), key="ana")))
    assert ended.outcome == "replied"
    assert [request.now.splitlines()[:1] for request in model.requests] == [[], [EMPTY_ANSWER_HINT], ["It is late."]]
    assert model.requests[2].now.endswith(EMPTY_ANSWER_HINT)


async def _ended(turn: Awaitable[TurnOutcome]) -> TurnOutcome:
    return await turn


@pytest.mark.parametrize(("chars", "refused"), [(4, []), (1.5, [1])])
def test_a_model_that_counts_otherwise_is_refused_once_at_most(chars: float, refused: list[int]) -> None:
    """It has twice as many tokens as was thought, and says so only by refusing."""

    async def story() -> None:
        cache = MessagesCache(lambda text: int(len(text) / chars) + 1)
        async with ModelApi(cache=cache, window=9_000) as api, asyncio.timeout(120):
            model = AnthropicModel(
                name="main", model="m-1", base_url=api.url, api_key=KEY, context_tokens=10_000, max_output_tokens=1_000
            )
            api.then(
                *[Answer(calls=((ident, "look_up", f'{{"q": "{ident}"}}'),), usage=NOTHING_TOLD) for ident in "abcdef"],
                Answer(text="Done."),
            )
            desk, less = Desk(), Less()
            history = [kept("[x] ann (guest): " + "long " * 300, "I see.", ())] * 3
            ended = await take_turn(
                brief("[x] ann (guest): hello", *history),
                model,
                Bring(*[f"{n}" * 6_000 for n in range(6)]),
                Host(shorten=less),
                key="ana",
                evidence=desk,
            )
            await model.aclose()
        assert (ended.outcome, ended.text) == ("replied", "Done.")
        assert less.asked == refused
        assert [seen.complaint.startswith("prompt is too long") for seen in api.violations] == [True] * len(refused)

    asyncio.run(story())
