"""Course and outcomes of turns, with a scripted model."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.anthropic import AnthropicModel
from agent.models.base import (
    Model,
    ModelMessage,
    ModelRequest,
    RequestRefused,
    TextPart,
    ToolResult,
)
from agent.models.gemini import GeminiModel
from agent.models.llamacpp import LlamaCppModel
from agent.models.openai import OpenAIModel
from agent.prompt import (
    PromptInput,
    PromptTurn,
    build_request,
    make_call_ids_unique,
)
from agent.prompts import load_prompt
from agent.tools import (
    CALL_CAPABILITY,
    CONTINUE_TASK,
    STAY_SILENT,
    carried_out,
    find_next_step,
    read_call,
)
from agent.turn import (
    ANSWER_NOW_HINT,
    CALL_AS_TEXT,
    CUT_OFF,
    ENDLESS_CALLS_REASON,
    OVER_BUDGET_REASON,
    REPEATED_CALL,
    UNANSWERED_HINT,
)
from agent.turn_context import UNSEEN_IMAGES, TurnOutcome, TurnProgress
from gateway.core.events import RequestUsage, ToolCallRecord, ToolImage, TurnStep
from gateway.core.tool_spec import Image, ToolCall, ToolSpec
from gateway.plugins.files import Files
from gateway.plugins.memory import Memory
from gateway.plugins.reminders import Reminders
from gateway.plugins.shell import Shell
from gateway.plugins.web import Web
from reverie.testing.servers.llama_api import LlamaApi
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import Answer, ModelApi, Seen
from tests.agent.cache.request_kit import IDENTITY, Bench
from tests.agent.models.test_anthropic import opus, other
from tests.kits.evidence import Bring, Desk, calls
from tests.kits.models import KEY, SERVERS, against, make
from tests.kits.scripted_turn import (
    NOTHING,
    Drawer,
    Host,
    Played,
    Say,
    brief,
    kept,
    take_turn,
)
from tests.kits.tools import specs_of

SILENT, YIELD = ("s", "stay_silent"), ("y", "yield_to_user")
LOOK, JOT, UNKNOWN = ("l", "look_up"), ("j", "jot"), ("u", "fly")


def run(
    *answers: Say, tools: Drawer | None = None, max_tool_rounds: int = 8
) -> tuple[TurnOutcome, Played]:
    model = Played(*answers)
    return asyncio.run(
        _taken(
            take_turn(brief(), model, tools or Drawer(), key="ana", max_tool_rounds=max_tool_rounds)
        )
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
def test_one_answer_that_ends_the_turn(
    answer: Say, outcome: str, text: str, yielded: bool, posted: bool
) -> None:
    tools = Drawer()
    ended, _ = run(answer, tools=tools)
    assert (ended.outcome, ended.text, ended.yielded, ended.requests) == (outcome, text, yielded, 1)
    carried_out = [] if answer.refused else [name for _, name in answer.calls if name == "jot"]
    assert [call.name for call in tools.used] == carried_out
    if answer.refused or not answer.calls:
        assert ended.steps == ()
        return
    (step,) = ended.steps
    assert [(read_call(called)[0], called.ended) for called in step.calls] == [
        (n, n != "jot") for _, n in answer.calls
    ]
    assert step.text == ("" if posted else answer.text)


async def test_calls_are_carried_out_side_by_side_and_told_in_order() -> None:
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
    assert (ended.outcome, ended.text, order) == ("replied", "Done.", ["second", "first"])
    assert [called.id for called in ended.steps[0].calls] == ["a", "b"]
    asked, told = model.requests[1].conversation[-2:]
    assert asked.parts[0] == TextPart(text="Let me see.")
    assert [part.id for part in told.parts if isinstance(part, ToolResult)] == ["a", "b"]


GO_ON, NEXT = ("g", CONTINUE_TASK), '{"next":"look\\nagain"}'


@pytest.mark.parametrize(
    ("answers", "requests", "text", "step"),
    [
        ((Say(text="So far.", calls=(GO_ON,), arguments=NEXT),), 1, "So far.", "look again"),
        ((Say(calls=(GO_ON,), arguments=NEXT), Say(text="So far.")), 2, "So far.", "look again"),
        ((Say(text="Hm.", calls=(JOT, GO_ON), arguments=NEXT),), 2, "Done.", "look again"),
        ((Say(calls=(GO_ON, SILENT), arguments=NEXT),), 1, "", "look again"),
        ((Say(text="Bye.", calls=(GO_ON, YIELD), arguments=NEXT),), 1, "Bye.", ""),
        ((Say(calls=(GO_ON,), arguments=NEXT), Say(calls=(YIELD,))), 2, "", ""),
        ((Say(calls=(JOT,)),), 2, "Done.", ""),
    ],
)
def test_it_goes_on_if_it_says_so_and_does_not_yield(
    answers: tuple[Say, ...], requests: int, text: str, step: str
) -> None:
    tools = Drawer(
        specs=(*Drawer.specs, ToolSpec(name=CONTINUE_TASK, description="Go on.", schema=NOTHING))
    )
    ended, _ = run(*answers, tools=tools)
    assert (ended.requests, ended.text, find_next_step(ended.steps)) == (requests, text, step)
    assert [one.text for one in ended.steps if one.text] == ["Hm."] * (
        text == "Done." and step != ""
    )


def test_what_failed_was_not_carried_out_and_leaves_nothing_open() -> None:
    ended, _ = run(Say(calls=(UNKNOWN, GO_ON), arguments=NEXT))  # the drawer has neither
    assert (carried_out(ended.steps), find_next_step(ended.steps)) == ([], "")
    ended, _ = run(Say(calls=(JOT, LOOK)), Say(calls=(YIELD,)))
    assert [name for name, _ in carried_out(ended.steps)] == ["jot", "look_up"]


def test_who_does_not_stop_fails() -> None:
    tools = Drawer()
    ended, model = run(*[Say(calls=(LOOK,))] * 9, tools=tools, max_tool_rounds=2)
    assert (ended.outcome, ended.reason, len(model.requests), len(tools.used)) == (
        "failed",
        ENDLESS_CALLS_REASON,
        4,
        2,
    )
    assert [request.answer_only for request in model.requests] == [False, False, True, False]
    assert model.requests[2].tools == model.requests[1].tools
    assert not model.requests[3].tools
    assert len(ended.steps) == 2
    ended, model = run(*[Say(calls=(LOOK,))] * 3, Say(text="It is 4."), max_tool_rounds=2)
    assert (ended.outcome, ended.text, len(model.requests)) == ("replied", "It is 4.", 4)
    ended, model = run(
        *[Say(calls=(LOOK,))] * 2, Say(text="It is 4.", calls=(LOOK,)), max_tool_rounds=2
    )
    assert (ended.outcome, ended.text, len(model.requests)) == ("replied", "It is 4.", 3)
    ended, _ = run(Say(calls=(LOOK,)), Say(text="Bye.", calls=(LOOK, YIELD)), max_tool_rounds=1)
    assert (ended.outcome, ended.text) == ("replied", "Bye.")


@pytest.mark.parametrize(
    ("rounds", "then", "wants_more"),
    [
        (1, [Say(text="It is 4.")], False),
        (1, [Say(text="It is 4.", calls=(LOOK,))], True),
        (1, [Say(calls=(LOOK,)), Say(text="It is 4.")], True),
        (2, [Say(calls=(LOOK,)), Say(text="It is 4.", calls=(LOOK,))], False),
    ],
)
def test_who_has_one_round_and_calls_more_has_a_task_that_is_open(
    rounds: int, then: list[Say], wants_more: bool
) -> None:
    tools = Drawer()
    ended, _ = run(Say(calls=(LOOK,)), *then, tools=tools, max_tool_rounds=rounds)
    assert (ended.outcome, ended.text) == ("replied", "It is 4.")
    assert (len(tools.used), ended.wants_more) == (rounds, wants_more)


async def test_who_rests_without_answering_what_was_said_meanwhile_is_asked_to() -> None:
    async def news(_: int) -> str:
        return "[x] bob (guest): two plus two?"

    model = Played(Say(calls=(LOOK,)), Say(calls=(YIELD,)), Say(text="Four."))
    heard = brief(now=f"{load_prompt('working')}\nBe quick.")
    ended = await _taken(
        take_turn(heard, model, Drawer(), Host(news=news, spoken_to=True), key="ana")
    )
    assert (ended.outcome, ended.text) == ("replied", "Four.")
    first, second, third = [request.now for request in model.requests]
    assert first == heard.now
    assert second == f"{load_prompt('answer_first')}\nBe quick."
    assert UNANSWERED_HINT in third
    assert model.requests[2].conversation == model.requests[1].conversation
    model = Played(Say(calls=(LOOK,)), Say(calls=(YIELD,)), Say(calls=(YIELD,)))
    ended = await _taken(
        take_turn(heard, model, Drawer(), Host(news=news, spoken_to=True), key="ana")
    )
    assert (ended.outcome, ended.reason) == ("failed", "the model answered with nothing, twice")
    model = Played(Say(calls=(LOOK,)), Say(calls=(("s", "stay_silent"),)))
    ended = await _taken(
        take_turn(heard, model, Drawer(), Host(news=news, spoken_to=True), key="ana")
    )
    assert ended.outcome == "silent"


@pytest.mark.parametrize("nothing", ["", "\N{ZERO WIDTH SPACE} \N{WORD JOINER}"])
def test_an_answer_without_anything_is_asked_for_once_more(nothing: str) -> None:
    ended, model = run(Say(text=nothing), Say(calls=(LOOK,)), Say(text=nothing))
    assert (ended.outcome, ended.reason, len(model.requests)) == (
        "failed",
        "the model answered with nothing, twice",
        3,
    )
    assert len(ended.steps) == 1


def test_ids_that_come_again_are_told_apart() -> None:
    ended, _ = run(*[Say(calls=(("call_0", "jot"), ("call_0", "look_up")))] * 2)
    assert [called.id for step in ended.steps for called in step.calls] == [
        "call_0",
        "call_0_2",
        "call_0_3",
        "call_0_4",
    ]


async def test_news_stands_behind_the_results() -> None:
    told = ["[x] bob (guest): wait", ""]

    async def news(_: int) -> str:
        return told.pop(0)

    model = Played(Say(calls=(LOOK,)), Say(calls=(LOOK,)))
    ended = await _taken(take_turn(brief(), model, Drawer(), Host(news=news), key="ana"))
    assert [step.heard for step in ended.steps] == ["[x] bob (guest): wait", ""]
    assert model.requests[1].conversation[-1].parts[1:] == (TextPart(text="[x] bob (guest): wait"),)
    assert model.requests[2].conversation[:3] == model.requests[1].conversation


def test_what_cannot_be_afforded_is_not_asked() -> None:
    async def story(times: int) -> tuple[TurnOutcome, Played]:
        model, left = Played(Say(calls=(LOOK,))), [True] * times
        ended = await _taken(
            take_turn(
                brief(),
                model,
                Drawer(),
                Host(afford=lambda _: bool(left and left.pop())),
                key="ana",
            )
        )
        return ended, model

    for times in (0, 1):
        ended, model = asyncio.run(story(times))
        assert (ended.outcome, ended.reason, ended.is_over_budget) == (
            "silent",
            OVER_BUDGET_REASON,
            True,
        )
        assert len(model.requests) == ended.requests == len(ended.steps) == times


async def test_one_that_is_cut_off_leaves_what_it_has_done() -> None:
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
    assert (done.outcome, done.requests, done.model) == ("interrupted", 1, "played-1")
    first, second = done.steps[0].calls
    assert (first.result, first.error, second.result) == (CUT_OFF, True, "jot is done")


# Execution of tools in a turn: side by side if that is safe, nothing twice, and with a directive to
# answer.


READ, KNOW = (
    ToolSpec(name=name, description="It.", schema=NOTHING, is_parallel=True, offer="described")
    for name in ("read", "know")
)
WRITE = ToolSpec(name="write", description="Write.", schema=NOTHING, offer="described")
POLL = ToolSpec(
    name="poll",
    description="Look.",
    schema=NOTHING,
    is_parallel=True,
    is_polling=True,
    offer="described",
)
IMAGE = Image(media_type="image/png", data=b"x", description="a cat")


class Asks(Played):
    """A model whose calls have arguments: `(id, name, arguments)`."""

    def __init__(self, *answers: Sequence[tuple[str, str, str]] | str) -> None:
        super().__init__()
        self.says = list(answers)

    async def stream(self, request: ModelRequest):  # type: ignore[no-untyped-def]  # noqa: ANN201 - as `Played.stream`
        said = self.says.pop(0) if self.says else "Done."
        self.answers.append(Say(text=said if isinstance(said, str) else ""))
        end = None
        async for chunk in super().stream(request):
            if isinstance(chunk, TextPart):
                yield chunk
            else:
                end = chunk
        if not isinstance(said, str):
            for ident, name, arguments in said:
                yield ToolCall(id=ident, name=name, arguments=arguments)
        assert end is not None
        yield end


class Counting:
    """`Tools` that say how often they were carried out, and how many were at once."""

    specs: tuple[ToolSpec, ...] = (KNOW, POLL, READ, WRITE)

    def __init__(self, *errors: str, images: bool = False) -> None:
        self.calls: list[str] = []
        self.recovered: list[str] = []
        self.now = self.most = 0
        self.errors = errors
        self.images = (
            (ToolImage(sha256="ab", media_type="image/png", about="a cat", size_bytes=1), IMAGE),
        )[: int(images)]

    async def call(self, call: ToolCall) -> ToolResult:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(3):
            await asyncio.sleep(0)
        self.now -= 1
        self.calls.append(f"{call.name}{call.arguments}")
        self.recovered += [call.name] if call.is_recovered else []
        text = f"{call.name} {len(self.calls)}"
        return ToolResult(
            id=call.id, text=text, is_error=call.name in self.errors, images=self.images
        )


def run_asks(model: Played, tools: Counting, **options: object) -> TurnOutcome:
    return asyncio.run(take_turn(brief(), model, tools, key="ana", **options))  # type: ignore[arg-type]


def results(outcome: TurnOutcome) -> list[str]:
    return [called.result for step in outcome.steps for called in step.calls]


def test_what_is_safe_goes_side_by_side_and_results_keep_their_order() -> None:
    tools = Counting()
    ended = run_asks(Asks([("a", "read", "{}"), ("b", "know", "{}"), ("c", "poll", "{}")]), tools)
    assert tools.most == 3
    assert [called.id for called in ended.steps[0].calls] == ["a", "b", "c"]


def test_what_is_not_safe_goes_alone_and_in_its_place() -> None:
    tools = Counting()
    run_asks(
        Asks(
            [
                ("a", "read", "{}"),
                ("b", "write", "{}"),
                ("c", "read", "{}"),
                ("d", "write", '{"x":1}'),
            ]
        ),
        tools,
    )
    assert tools.most == 1
    assert tools.calls == ["read{}", "write{}", "read{}", 'write{"x":1}']


def test_the_same_call_again_is_answered_from_the_first_result() -> None:
    tools = Counting()
    ended = run_asks(
        Asks([("a", "know", '{"a":1,"b":2}')], [("b", "know", '{"b": 2, "a": 1}')]), tools
    )
    assert tools.calls == ['know{"a":1,"b":2}']
    assert results(ended) == ["know 1", "know 1"]


def test_what_may_have_changed_is_asked_for_again() -> None:
    tools = Counting()
    run_asks(Asks([("a", "know", "{}")], [("b", "write", "{}")], [("c", "know", "{}")]), tools)
    assert tools.calls == ["know{}", "write{}", "know{}"]
    tools = Counting()
    run_asks(Asks([("a", "poll", "{}")], [("b", "poll", "{}")]), tools)
    assert tools.calls == ["poll{}", "poll{}"]


def real(*calls: tuple[str, str]) -> list[str]:
    """Which of these calls of our own tools are carried out, each in an answer of its own."""

    class Real(Counting):
        specs = tuple(specs_of(Memory, Reminders, Shell, Files, Web))

    tools = Real()
    run_asks(
        Asks(
            *[[(f"c{number}", name, arguments)] for number, (name, arguments) in enumerate(calls)]
        ),
        tools,
    )
    return tools.calls


def test_what_failed_may_be_tried_again_but_not_for_ever() -> None:
    tools = Counting("know")
    run_asks(Asks(*[[(ident, "know", "{}")] for ident in "abcd"]), tools)
    assert tools.calls == ["know{}", "know{}"]


def test_nothing_is_told_behind_results_that_stands_in_front_of_them() -> None:
    model = Asks([("a", "know", '{"q": "x\\ny"}')], [("b", "know", '{"q": "x\\ny"}')])
    run_asks(model, Counting())
    first, second, third = model.requests
    assert (first.now, first.aside) == ("", "")
    assert (second.now, second.aside) == (third.now, third.aside) == ("", "")
    assert second.tools == third.tools == first.tools


def test_capabilities_are_called_by_their_names_and_end_a_turn_too() -> None:
    tools = Counting()
    wrapped = '{"capability":"know","args":{"a":1}}'
    model = Asks(
        [("a", CALL_CAPABILITY.name, wrapped)],
        [("b", CALL_CAPABILITY.name, '{"capability":"stay_silent"}')],
    )
    tools.specs = tuple([replace(one, offer="named") for one in tools.specs])
    ended = asyncio.run(take_turn(brief(), model, tools, key="ana"))
    assert (ended.outcome, tools.calls) == ("silent", ['know{"a":1}'])
    assert set(model.requests[0].tools) == {CALL_CAPABILITY, STAY_SILENT}
    assert [called.name for step in ended.steps for called in step.calls] == [
        CALL_CAPABILITY.name
    ] * 2


def test_the_same_call_is_not_made_a_third_time_whatever_it_brings() -> None:
    for name in ("poll", "write"):
        tools = Counting()
        model = Asks(
            *[
                [(ident, name, arguments)]
                for ident, arguments in (("a", "{}"), ("b", " {} "), ("c", "{ }"))
            ]
        )
        ended = run_asks(model, tools, max_tool_rounds=8)
        assert len(tools.calls) == (2 if name == "poll" else 1)
        assert (ended.outcome, ended.text, results(ended)[-1]) == (
            "replied",
            "Done.",
            REPEATED_CALL,
        )
        assert [request.answer_only for request in model.requests] == [False, False, False, True]
        assert ANSWER_NOW_HINT in model.requests[-1].now


@pytest.mark.parametrize("kind", [*SERVERS, "llamacpp"])
async def test_who_is_to_answer_may_call_nothing_and_its_words_are_taken(kind: str) -> None:
    """With the wire of each: the tools stay as they were, so that what is cached of them is
    read."""
    call = (("a", "know", '{"q": 1}'),)
    async with SERVERS[kind]() if kind in SERVERS else LlamaApi() as api:
        model: Model = LlamaCppModel(name="main", base_url=api.url)
        if kind in SERVERS:
            model = make(kind, api.url)

        async def taken(*answers: str) -> tuple[TurnOutcome, list[dict[str, Any]]]:
            left, before = list(answers), len(api.seen)
            api.default = lambda body: (
                Answer() if body.get("n_predict") == 0 else Answer(text=left.pop(0), calls=call)
            )
            ended = await take_turn(brief(), model, Counting(), key="ana", max_tool_rounds=1)
            return ended, [
                one.body for one in api.seen[before:] if one.body and one.body.get("n_predict") != 0
            ]

        ended, bodies = await taken("Let me see.", "It is 4.")
        assert (ended.outcome, ended.text, len(bodies)) == ("replied", "It is 4.", 2)
        first, last = bodies
        assert not {"tool_choice", "toolConfig"} & first.keys()
        mode = last.get("tool_choice") or last["toolConfig"]["functionCallingConfig"]["mode"]
        assert mode in ("none", {"type": "none"}, "NONE")
        for same in ("tools", "system", "systemInstruction"):
            assert first.get(same) == last.get(same)

        ended, bodies = await taken("", "", "")
        assert (ended.outcome, ended.reason, len(bodies)) == ("failed", ENDLESS_CALLS_REASON, 3)
        assert "tools" not in bodies[-1]
        assert not api.violations
        await model.aclose()


@pytest.mark.parametrize("sees", [True, False])
def test_images_are_shown_behind_the_results_to_who_sees(sees: bool) -> None:
    model, tools = Asks([("a", "read", "{}"), ("b", "know", "{}")]), Counting(images=True)
    model.takes_images = sees
    ended = run_asks(model, tools)
    told = model.requests[1].conversation[-1].parts
    assert [part for part in told if isinstance(part, Image)] == [IMAGE, IMAGE] * sees
    results = [part for part in told[:2] if isinstance(part, ToolResult)]
    assert [UNSEEN_IMAGES in one.text for one in results] == [not sees, not sees]
    assert ended.steps[0].calls[0].images[0].sha256 == "ab"


def test_a_picture_that_the_provider_refuses_does_not_end_the_turn() -> None:
    class Picky(Asks):
        takes_images = True

        async def stream(self, request: ModelRequest):  # type: ignore[no-untyped-def]  # noqa: ANN202 - as `Played.stream`
            if any(isinstance(part, Image) for said in request.conversation for part in said.parts):
                self.requests.append(request)
                raise RequestRefused("could not process the image")
            async for chunk in super().stream(request):
                yield chunk

    model, tools = Picky([("a", "read", "{}")], [("b", "write", "{}")]), Counting(images=True)
    ended = run_asks(model, tools)
    assert (ended.outcome, tools.calls) == ("replied", ["read{}", "write{}"])
    refused, again = model.requests[1:3]
    told = [part for part in refused.conversation[-1].parts if not isinstance(part, Image)]
    assert list(again.conversation[-1].parts) == told
    assert again.now != refused.now, "the model is not told that it sees nothing"
    assert all(not one.images for step in ended.steps for one in step.calls)


async def test_cut_off_in_the_middle_what_is_done_is_kept_and_the_rest_does_not_begin() -> None:
    class Stuck(Counting):
        async def call(self, call: ToolCall) -> ToolResult:
            if call.name == "write":
                began.set()
                await asyncio.Event().wait()
            return await super().call(call)

    tools, began = Stuck(), asyncio.Event()
    progress = TurnProgress()
    model = Asks([("a", "read", "{}"), ("b", "write", "{}"), ("c", "know", "{}")])
    task = asyncio.create_task(take_turn(brief(), model, tools, key="ana", progress=progress))
    await began.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert results(progress.current) == ["read 1", CUT_OFF, CUT_OFF]
    assert tools.calls == ["read{}"]


LEAKED = '<tool_call>\n{"name": "know", "arguments": {"a": 1}}\n</tool_call>'


class Leaky(Asks):
    """The same, which is known to write its calls as text."""

    leaks = True


def test_an_answer_that_is_a_call_is_carried_out_if_the_model_is_known_to_write_them() -> None:
    tools = Counting()
    ended = run_asks(Leaky(LEAKED, "It is 1."), tools)
    assert (ended.text, tools.calls) == ("It is 1.", ['know{"a": 1}'])
    assert tools.recovered == ["know"]


def test_of_another_model_it_is_neither_carried_out_nor_posted() -> None:
    tools, model = Counting(), Asks(LEAKED, "It is 1.")
    assert (run_asks(model, tools).text, tools.calls) == ("It is 1.", [])
    assert CALL_AS_TEXT in model.requests[1].now
    assert run_asks(Asks(*[LEAKED] * 3), tools).outcome == "failed"
    call = LEAKED.replace("1", '"the whole of it"')
    heard = brief(f"[x] ann (owner): proofread {call}")
    assert asyncio.run(take_turn(heard, Asks(call), tools, key="ana")).text == call
    assert tools.calls == []


@pytest.mark.parametrize(
    "around", ["Let me see.\n{}", "Write it so:\n```\n{}\n```", "mallory said: {}", "{} Done."]
)
def test_beside_other_words_it_is_text(around: str) -> None:
    tools, text = Counting(), around.replace("{}", LEAKED)
    assert run_asks(Leaky(text), tools).text == text
    assert tools.calls == []


def test_a_call_that_cannot_be_read_is_asked_for_again_and_never_posted() -> None:
    broken = LEAKED.replace("1}}", "1")
    tools, model = Counting(), Leaky(broken, "Sorry, it is 1.")
    assert run_asks(model, tools).text == "Sorry, it is 1."
    assert "know" in model.requests[1].now
    ended = run_asks(Leaky(*[broken] * 3), tools)
    assert (ended.outcome, ended.reason) == (
        "failed",
        "the model wrote tool calls that cannot be read",
    )
    assert tools.calls == []


# Prompts that become too long in the middle of a turn: the turn goes on with less, also on the
# strict API.


TOO_LONG = Answer(
    status=400,
    body=json.dumps(
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 200001 tokens > 200000 maximum",
            },
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
        return (
            None
            if number > self.times
            else replace(brief("[x] ann (guest): hello", now="It is late."), history=())
        )


def thinks(ident: str) -> Answer:
    return Answer(
        text="Let me see.", calls=((ident, "look_up", f'{{"q": "{ident}"}}'),), thinking="hmm"
    )


def parts(seen: Seen) -> list[str]:
    """Types of all that the model has said."""
    said = [
        message["content"] for message in seen.body["messages"] if message["role"] == "assistant"
    ]
    return [block["type"] for content in said if isinstance(content, list) for block in content]


def result_texts(seen: Seen) -> list[str]:
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


@asynccontextmanager
async def too_long(
    answers: Sequence[Answer], *, times: int = 2
) -> AsyncIterator[tuple[ModelApi, TurnOutcome, Desk, Less]]:
    """A turn that took results of 3,000 letters each, whose host can leave things out `times`
    times."""
    async with against(other) as (api, model):
        api.then(*answers)
        desk, less, progress = Desk(), Less(times), TurnProgress()
        texts = [f"{n}" * 3_000 for n in range(5)]
        long = replace(brief("[x] ann (guest): hello", OLD, now="It is late."))
        ended = await take_turn(
            long,
            model,
            Bring(*texts),
            Host(shorten=less),
            key="ana",
            evidence=desk,
            progress=progress,
        )
        assert not api.violations
        assert ended.steps == progress.current.steps
        yield api, ended, desk, less


async def test_a_turn_that_has_become_too_long_goes_on_with_less() -> None:
    async with too_long(
        [thinks("a"), thinks("b"), TOO_LONG, thinks("c"), Answer(text="Done.")]
    ) as (
        api,
        ended,
        desk,
        less,
    ):
        assert (ended.outcome, ended.text, less.asked) == ("replied", "Done.", [1])
        assert len(api.seen) == 5
        refused, again, last = api.seen[2:]
        assert "a long story" in json.dumps(refused.body)
        assert "a long story" not in json.dumps(again.body)
        assert json.dumps(again.body).count("It is late.") == 1
        assert parts(again) == ["thinking", "text", "tool_use"] * 2
        older, newest = result_texts(again)
        assert older.startswith("[TOOL RESULT SUMMARY]")
        assert newest == "1" * 3_000
        assert desk.kept == {"e1": "0" * 3_000}
        assert (
            [called.result for called in calls(ended)]
            == result_texts(last)
            == [older, newest, "2" * 3_000]
        )
        assert (
            last.body["messages"][: len(again.body["messages"]) - 1] == again.body["messages"][:-1]
        )


async def test_the_next_turn_begins_with_the_bytes_of_the_last_request() -> None:
    plain = [Answer(calls=((ident, "look_up", "{}"),)) for ident in "ab"]

    async with too_long([*plain, TOO_LONG, Answer(text="Done.")]) as (
        api,
        ended,
        _desk,
        _less,
    ):
        model = AnthropicModel(name="main", model="m-1", base_url=api.url, api_key=KEY)
        history = kept("[x] ann (guest): hello", ended.text, ended.steps)
        await take_turn(brief("[x] ann (guest): more?", history), model, Bring(), key="ana")
        await model.aclose()
        sent, later = (seen.body["messages"] for seen in api.seen[-2:])
        spoken = [message for message in sent if "It is late." not in json.dumps(message)]
        assert later[1 : len(spoken)] == spoken[1:]
        assert "a long story" not in json.dumps(later)


async def test_the_second_time_the_newest_results_give_way_too_and_there_is_no_third() -> None:
    async with too_long([thinks("a"), thinks("b"), TOO_LONG, TOO_LONG, TOO_LONG]) as (
        api,
        ended,
        desk,
        less,
    ):
        assert less.asked == [1, 2]
        assert (ended.outcome, len(api.seen)) == ("failed", 5)
        assert "too long" in ended.reason
        assert all(
            result.startswith("[TOOL RESULT SUMMARY]") for result in result_texts(api.seen[-1])
        )
        assert [len(result) > 700 for result in result_texts(api.seen[-1])] == [False, True]
        assert sorted(desk.kept.values()) == ["0" * 3_000, "1" * 3_000]
        assert [called.result for called in calls(ended)] == result_texts(api.seen[-1])


@pytest.mark.parametrize(("chars", "refused"), [(4, []), (1.5, [1])])
async def test_a_model_that_counts_otherwise_is_refused_once_at_most(
    chars: float, refused: list[int]
) -> None:
    """It has twice as many tokens as was thought, and says so only by refusing."""
    cache = MessagesCache(lambda text: int(len(text) / chars) + 1)
    async with ModelApi(cache=cache, window=9_000) as api, asyncio.timeout(120):
        model = AnthropicModel(
            name="main",
            model="m-1",
            base_url=api.url,
            api_key=KEY,
            context_tokens=10_000,
            max_output_tokens=1_000,
        )
        api.then(
            *[
                Answer(calls=((ident, "look_up", f'{{"q": "{ident}"}}'),), usage=NOTHING_TOLD)
                for ident in "abcdef"
            ],
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
    assert [seen.complaint.startswith("prompt is too long") for seen in api.violations] == [
        True
    ] * len(refused)


# Cache reads of turns with tools: each request reads everything that the one before it wrote.


WORDS = "many words of a result, " * 120


class Wordy(Drawer):
    """Tools that tell a lot."""

    async def call(self, call: ToolCall) -> ToolResult:
        return replace(await super().call(call), text=f"{call.id}: {WORDS}")


async def turn(
    bench: Bench, history: list[PromptTurn], heard: str, *, rounds: int = 8
) -> TurnOutcome:
    brief = PromptInput(
        persona=IDENTITY.text,
        card="# Where",
        history=tuple(history),
        input_text=heard,
        conversation="irc/#a",
    )
    outcome = await take_turn(brief, bench.model, Wordy(), key="ana", max_tool_rounds=rounds)
    history.append(PromptTurn(input_text=heard, reply=outcome.text, steps=outcome.steps))
    bench.clock.advance(30)
    return outcome


async def test_each_request_reads_what_the_one_before_it_had(bench: Bench) -> None:
    history = list[PromptTurn]()
    accounts = list[RequestUsage]()
    for number in range(6):
        first, second = (
            tuple(
                (f"call_{place}", "look_up", f'{{"q": {10 * asked + place}}}')
                for place in range(1 + number % 3)
            )
            for asked in range(2)
        )
        bench.api.then(
            Answer(calls=first), Answer(text="Hm.", calls=second), Answer(text=f"Answer {number}.")
        )
        outcome = await turn(bench, history, f"[x] ann (guest): {number} " + "and so on " * 40)
        assert (outcome.outcome, len(outcome.steps), outcome.requests) == ("replied", 2, 3)
        accounts += outcome.accounts
    assert [account.missed for account in accounts] == [""] * 18
    prompts = [
        one.usage.input_tokens + one.usage.cache_read_tokens + one.usage.cache_write_tokens
        for one in accounts
    ]
    for before, account in zip(prompts[2:], accounts[3:], strict=False):
        assert account.usage.cache_read_tokens > before * 0.9
    assert not bench.api.violations


async def test_the_request_at_the_limit_of_tools_is_billed_as_was_expected(bench: Bench) -> None:
    """With another `tool_choice` tools and blocks are read and nothing of the messages; who asks
    next reads them."""

    history = list[PromptTurn]()
    for number in range(4):
        calls = (("call", "look_up", "{}"),)
        bench.api.then(Answer(text="Hm.", calls=calls), Answer(text=f"Answer {number}."))
        outcome = await turn(
            bench, history, f"[x] ann (guest): {number} " + "and so on " * 200, rounds=1
        )
        assert (outcome.outcome, outcome.requests) == ("replied", 2)
        assert [account.missed for account in outcome.accounts] == ["", ""]
        assert [one.body.get("tool_choice") for one in bench.api.seen[-2:]] == [
            None,
            {"type": "none"},
        ]
        for account in (
            outcome.accounts if number else ()
        ):  # until something was billed, tokens are a guess
            read, written = (
                sum(getattr(block, name) for block in account.blocks)
                for name in ("read", "written")
            )
            assert read == pytest.approx(account.usage.cache_read_tokens, rel=0.05, abs=64)
            assert written == pytest.approx(account.usage.cache_write_tokens, rel=0.2, abs=64)
        first, last = outcome.accounts
        before, now = ({block.name: block.read for block in one.blocks} for one in (first, last))
        assert now["tools"] > 0
        assert now["history"] == 0
        assert bool(before["history"]) == bool(number)
        assert last.usage.cache_read_tokens > 2_000
    asked = bench.cache.last_requests.get("ana", "irc/#a")
    assert asked is not None
    assert asked.request.answer_only
    kept = await bench.cache.refresh("ana", "irc/#a")
    assert kept is not None
    assert kept.missed == ""
    assert next(block.read for block in kept.blocks if block.name == "history") > 1_000
    assert "tool_choice" not in bench.api.seen[-1].body
    assert not bench.api.violations


# A turn with tools, on the wire: each request begins with the bytes of the one before, also across
# turns.


STEPS = st.lists(
    st.builds(
        TurnStep,
        text=st.text(max_size=9),
        calls=st.lists(st.builds(ToolCallRecord), min_size=1, max_size=3).map(tuple),
        heard=st.text(max_size=9),
    ),
    max_size=3,
).map(tuple)


def plain(url: str) -> AnthropicModel:
    return AnthropicModel(
        name="main", model="claude-opus-4-8", base_url=url, api_key=KEY, timeout_s=10
    )


def openai(url: str) -> OpenAIModel:
    return OpenAIModel(name="main", model="m-1", base_url=url, api_key=KEY, timeout_s=10)


def told(*heard: str) -> Callable[[int], Any]:
    left = list(heard)

    async def news(_: int) -> str:
        return left.pop(0) if left else ""

    return news


def grows(before: Seen, after: Seen) -> bool:
    """Whether everything that was sent is sent again, in front: all but what holds for one request,
    and the end."""
    said = "contents" if "contents" in after.body else "messages"
    rest = [
        {key: value for key, value in seen.body.items() if key != said} for seen in (before, after)
    ]
    old, new = (json.dumps(seen.body[said], sort_keys=True) for seen in (before, after))
    return rest[0] == rest[1] and new.startswith(old.removesuffix("]"))


async def wire_turn(model: Model, asked: PromptInput, *heard: str) -> PromptTurn:
    outcome = await take_turn(asked, model, Drawer(), Host(news=told(*heard)), key="ana")
    return kept(asked.input_text, outcome.text, outcome.steps)


def gemini(url: str) -> GeminiModel:
    return GeminiModel(name="main", model="gemini-3.8-flash", base_url=url, api_key=KEY)


@pytest.mark.parametrize("make", [plain, openai, gemini])
async def test_on_the_wire_the_next_turn_begins_with_the_bytes_of_the_last_request(
    make: Callable[[str], Model],
) -> None:
    async with against(make) as (api, model):
        again = (("call_0", "look_up", '{"word": "a"}'), ("call_1", "jot", "{}"))
        api.then(
            Answer(text="Let me see.", calls=again), Answer(calls=again[:1]), Answer(text="Done.")
        )
        first = await wire_turn(model, brief(), "[x] bob (guest): wait")
        api.then(Answer(calls=again), Answer(text="More."))
        second = await wire_turn(model, brief("[x] ann (guest): more?", first))
        api.then(Answer(text="Last."))
        await wire_turn(model, brief("[x] ann (guest): and?", first, second))
        assert len(api.seen) == 6
        assert all(grows(before, after) for before, after in pairwise(api.seen))
        assert not api.violations


async def test_thinking_stays_in_its_loop_and_later_turns_are_taken_without() -> None:
    async with against(opus) as (api, model):
        call = (("a", "look_up", "{}"),)
        api.then(Answer(text="Hm.", calls=call, thinking="hmm"), Answer(text="Done."))
        first = await wire_turn(model, brief(now="It is late."))
        api.then(Answer(calls=(("b", "look_up", "{}"),), thinking="hmm"), Answer(text="More."))
        await wire_turn(model, brief("[x] ann (guest): more?", first))
        thinking = [json.dumps(seen.body["messages"]).count('"thinking": "') for seen in api.seen]
        assert thinking == [0, 1, 0, 1]
        assert "It is late." not in json.dumps(api.seen[2].body)
        assert not api.violations


@given(st.lists(st.tuples(st.text(max_size=9), STEPS, st.text(max_size=9)), max_size=4))
def test_history_is_what_the_loops_said(turns: list[tuple[str, tuple[TurnStep, ...], str]]) -> None:
    """Sides alternate, each call has its result right behind it, and only what is not blank is
    said."""
    history = tuple(kept(heard, reply, steps) for heard, steps, reply in turns)
    request = build_request(
        brief("now?", *history), tools=(), max_output_tokens=9, key="k", plain=False
    )
    sides = request.conversation
    assert [said.role for said in sides] == [
        ("user", "assistant")[place % 2] for place in range(len(sides))
    ]
    for asked, answer in zip(sides[1::2], sides[2::2], strict=False):
        calls = [part.id for part in asked.parts if isinstance(part, ToolCall)]
        assert [
            part.id for part in answer.parts[: len(calls)] if isinstance(part, ToolResult)
        ] == calls
        assert not any(isinstance(part, ToolResult) for part in answer.parts[len(calls) :])


@given(
    st.lists(st.lists(st.text(alphabet="a:_/2", max_size=3), min_size=1, max_size=3), max_size=5)
)
def test_every_id_is_told_apart(rounds: list[list[str]]) -> None:
    conversation: tuple[ModelMessage, ...] = ()
    for ids in rounds:
        calls = make_call_ids_unique(
            [ToolCall(id=ident, name="x", arguments="{}") for ident in ids], conversation
        )
        conversation = (*conversation, ModelMessage(role="assistant", parts=calls))
    plain = [
        part.id.replace(":", "_").replace("/", "_")
        for said in conversation
        for part in said.parts
        if isinstance(part, ToolCall)
    ]
    assert len(set(plain)) == len(plain)
    assert all(plain)
