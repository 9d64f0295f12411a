"""Course and outcomes of turns, with a scripted model."""

import asyncio
from collections.abc import Awaitable

import pytest

from agent.models.base import TextPart, ToolResult
from agent.prompts import load_prompt
from agent.turn import ANSWER_NOW_HINT, CUT_OFF, ENDLESS_CALLS_REASON, OVER_BUDGET_REASON, UNANSWERED_HINT, take_turn
from agent.turn_context import TurnOutcome, TurnProgress
from gateway.core.tool_spec import ToolCall
from tests.kits.scripted_turn import Drawer, Host, Played, Say, brief

SILENT, YIELD = ("s", "stay_silent"), ("y", "yield_to_user")
LOOK, JOT, UNKNOWN = ("l", "look_up"), ("j", "jot"), ("u", "fly")


def run(*answers: Say, tools: Drawer | None = None, max_tool_rounds: int = 8) -> tuple[TurnOutcome, Played]:
    model = Played(*answers)
    return asyncio.run(
        _taken(take_turn(brief(), model, tools or Drawer(), key="ana", max_tool_rounds=max_tool_rounds))
    ), model


async def _taken(turn: Awaitable[TurnOutcome]) -> TurnOutcome:
    async with asyncio.timeout(120):
        return await turn


@pytest.mark.parametrize(
    ("answer", "outcome", "text", "yielded", "posted"),
    [
        (Say(text="Hi."), "replied", "Hi.", False, True),
        (Say(calls=(SILENT,)), "silent", "", False, False),
        (Say(text="Hm.", calls=(SILENT,)), "silent", "", False, False),
        (Say(calls=(YIELD,)), "yielded", "", True, True),
        (Say(text="Bye.", calls=(YIELD,)), "replied", "Bye.", True, True),
        (Say(text="Bye.", calls=(JOT, YIELD)), "replied", "Bye.", True, True),
        (Say(calls=(YIELD, JOT)), "yielded", "", True, True),
        (Say(text="Hm.", calls=(JOT, SILENT)), "silent", "", False, False),
        (Say(text="Hm.", calls=(SILENT, YIELD)), "silent", "", True, False),
        (Say(text="I", refused=True), "failed", "", False, False),
        (Say(text="I", calls=(JOT,), refused=True), "failed", "", False, False),
    ],
)
def test_one_answer_that_ends_the_turn(answer: Say, outcome: str, text: str, yielded: bool, posted: bool) -> None:
    tools = Drawer()
    ended, _ = run(answer, tools=tools)
    assert (ended.outcome, ended.text, ended.yielded, ended.requests) == (outcome, text, yielded, 1)
    carried_out = [] if answer.refused else [name for _, name in answer.calls if name == "jot"]
    assert [call.name for call in tools.used] == carried_out
    assert not ended.used_tools
    if answer.refused or not answer.calls:
        assert ended.steps == ()
        return
    (step,) = ended.steps
    assert [(called.name, called.ended) for called in step.calls] == [(n, n != "jot") for _, n in answer.calls]
    assert step.text == ("" if posted else answer.text)


def test_calls_are_carried_out_side_by_side_and_told_in_order() -> None:
    async def story() -> None:
        second = asyncio.Event()
        order = list[str]()

        async def meanwhile() -> None:
            await second.wait()
            order.append("first")

        class Two(Drawer):
            async def call(self, call: ToolCall) -> ToolResult:
                if call.id == "b":
                    order.append("second")
                    second.set()
                return await super().call(call)

        model = Played(Say(text="Let me see.", calls=(("a", "look_up"), ("b", "jot"))))
        ended = await _taken(take_turn(brief(), model, Two(meanwhile), key="ana"))
        assert (ended.outcome, ended.text, ended.used_tools, order) == ("replied", "Done.", True, ["second", "first"])
        assert [called.id for called in ended.steps[0].calls] == ["a", "b"]
        asked, told = model.requests[1].conversation[-2:]
        assert asked.parts[0] == TextPart(text="Let me see.")
        assert [part.id for part in told.parts if isinstance(part, ToolResult)] == ["a", "b"]

    asyncio.run(story())


@pytest.mark.parametrize(("calls", "worked"), [((JOT,), False), ((UNKNOWN,), False), ((JOT, LOOK), True)])
def test_only_tasks_are_work(calls: tuple[tuple[str, str], ...], worked: bool) -> None:
    ended, _ = run(Say(calls=calls))
    assert (ended.outcome, ended.used_tools, len(ended.steps)) == ("replied", worked, 1)


def test_who_is_told_that_it_is_enough_has_not_worked_for_that() -> None:
    ended, model = run(Say(calls=(JOT,)), Say(calls=(JOT,)), max_tool_rounds=2)
    assert (ended.outcome, ended.used_tools, len(model.requests)) == ("replied", False, 3)
    assert [request.now for request in model.requests] == ["", load_prompt("synthesise"), ANSWER_NOW_HINT]


def test_who_does_not_stop_fails() -> None:
    tools = Drawer()
    ended, model = run(*[Say(calls=(LOOK,))] * 9, tools=tools, max_tool_rounds=2)
    assert (ended.outcome, ended.reason, len(model.requests), len(tools.used)) == ("failed", ENDLESS_CALLS_REASON, 4, 2)
    assert [request.answer_only for request in model.requests] == [False, False, True, False]
    assert model.requests[2].tools == model.requests[1].tools
    assert not model.requests[3].tools
    assert len(ended.steps) == 2
    ended, model = run(*[Say(calls=(LOOK,))] * 3, Say(text="It is 4."), max_tool_rounds=2)
    assert (ended.outcome, ended.text, len(model.requests)) == ("replied", "It is 4.", 4)
    ended, model = run(*[Say(calls=(LOOK,))] * 2, Say(text="It is 4.", calls=(LOOK,)), max_tool_rounds=2)
    assert (ended.outcome, ended.text, len(model.requests)) == ("replied", "It is 4.", 3)
    ended, _ = run(Say(calls=(LOOK,)), Say(text="Bye.", calls=(LOOK, YIELD)), max_tool_rounds=1)
    assert (ended.outcome, ended.text) == ("replied", "Bye.")


def test_who_rests_without_answering_what_was_said_meanwhile_is_asked_to() -> None:
    async def story() -> None:
        async def news(_: int) -> str:
            return "[x] bob (guest): two plus two?"

        model = Played(Say(calls=(LOOK,)), Say(calls=(YIELD,)), Say(text="Four."))
        heard = brief(now=f"{load_prompt('working')}\nBe quick.")
        ended = await _taken(take_turn(heard, model, Drawer(), Host(news=news, spoken_to=True), key="ana"))
        assert (ended.outcome, ended.text) == ("replied", "Four.")
        first, second, third = [request.now for request in model.requests]
        assert first == heard.now
        assert second == f"{load_prompt('answer_first')}\nBe quick.\n{load_prompt('synthesise')}"
        assert UNANSWERED_HINT in third
        assert model.requests[2].conversation == model.requests[1].conversation
        model = Played(Say(calls=(LOOK,)), Say(calls=(YIELD,)), Say(calls=(YIELD,)))
        ended = await _taken(take_turn(heard, model, Drawer(), Host(news=news, spoken_to=True), key="ana"))
        assert (ended.outcome, ended.reason) == ("failed", "the model answered with nothing, twice")
        model = Played(Say(calls=(LOOK,)), Say(calls=(("s", "stay_silent"),)))
        ended = await _taken(take_turn(heard, model, Drawer(), Host(news=news, spoken_to=True), key="ana"))
        assert ended.outcome == "silent"

    asyncio.run(story())


def test_an_answer_without_anything_is_asked_for_once_more() -> None:
    ended, model = run(Say(), Say(calls=(LOOK,)), Say())
    assert (ended.outcome, ended.reason, len(model.requests)) == ("failed", "the model answered with nothing, twice", 3)
    assert len(ended.steps) == 1


def test_ids_that_come_again_are_told_apart() -> None:
    ended, _ = run(*[Say(calls=(("call_0", "jot"), ("call_0", "look_up")))] * 2)
    assert [called.id for step in ended.steps for called in step.calls] == [
        "call_0",
        "call_0_2",
        "call_0_3",
        "call_0_4",
    ]


def test_news_stands_behind_the_results() -> None:
    async def story() -> None:
        told = ["[x] bob (guest): wait", ""]

        async def news(_: int) -> str:
            return told.pop(0)

        model = Played(Say(calls=(LOOK,)), Say(calls=(LOOK,)))
        ended = await _taken(take_turn(brief(), model, Drawer(), Host(news=news), key="ana"))
        assert [step.heard for step in ended.steps] == ["[x] bob (guest): wait", ""]
        assert model.requests[1].conversation[-1].parts[1:] == (TextPart(text="[x] bob (guest): wait"),)
        assert model.requests[2].conversation[:3] == model.requests[1].conversation

    asyncio.run(story())


def test_what_cannot_be_afforded_is_not_asked() -> None:
    async def story(times: int) -> tuple[TurnOutcome, Played]:
        model, left = Played(Say(calls=(LOOK,))), [True] * times
        ended = await _taken(
            take_turn(brief(), model, Drawer(), Host(afford=lambda _: bool(left and left.pop())), key="ana")
        )
        return ended, model

    for times in (0, 1):
        ended, model = asyncio.run(story(times))
        assert (ended.outcome, ended.reason, ended.is_over_budget) == ("silent", OVER_BUDGET_REASON, True)
        assert len(model.requests) == ended.requests == len(ended.steps) == times


def test_one_that_is_cut_off_leaves_what_it_has_done() -> None:
    async def story() -> None:
        async def long() -> None:
            await asyncio.Event().wait()

        model, tools, progress = Played(Say(calls=(LOOK, JOT))), Drawer(long), TurnProgress()
        turn = asyncio.ensure_future(take_turn(brief(), model, tools, key="ana", progress=progress))
        async with asyncio.timeout(120):
            await tools.done.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        done = progress.current
        assert (done.outcome, done.used_tools, done.requests, done.model) == ("interrupted", True, 1, "played-1")
        first, second = done.steps[0].calls
        assert (first.result, first.error, second.result) == (CUT_OFF, True, "jot is done")

    asyncio.run(story())


def test_half_characters_can_be_written_down() -> None:
    ended, _ = run(Say(text="\ud83d", calls=(("\udc00", "look_up"),)))
    assert ended.steps[0].text == "\ufffd"
    assert ended.steps[0].calls[0].id == "\ufffd"
