"""Google's Gemini API (ai.google.dev/api/generate-content), against a server that refuses what
Google refuses."""

import base64
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from agent.models.base import (
    EMPTY_USER_TEXT,
    AnswerSpoiled,
    CacheBreakpoint,
    ModelBusy,
    ModelError,
    ModelMessage,
    ModelRequest,
    ModelUnusable,
    PromptTooLong,
    RequestRefused,
    StreamChunk,
    StreamStart,
    TextPart,
    ThinkingDelta,
    ToolResult,
)
from agent.models.config import build_model
from agent.models.gemini import GeminiModel, build_gemini_request
from agent.models.http import encode_body
from agent.models.settings import ModelConfig, ProviderSettings
from gateway.core.clock import ManualClock
from gateway.core.events import Usage
from gateway.core.tool_spec import Image, ToolCall
from gateway.plugins.providers import GeminiConfig
from reverie.testing.servers.gemini_api import UNSIGNED, GeminiApi, error, exhausted
from reverie.testing.servers.model_api import Answer
from tests.kits.models import KEY, TOOL, against, ask, assistant, end, request, text, user

FLASH = "gemini-3.8-flash"
OLDER = "gemini-2.5-flash"
CALLS = (("a1", "look_up", '{"word": "naïve"}'), ("b2", "look_up", "{}"))


def gemini(url: str, model: str = FLASH, key: str = KEY) -> GeminiModel:
    return GeminiModel(name="main", model=model, base_url=url, api_key=key)


def older(url: str) -> GeminiModel:
    return gemini(url, OLDER)


def body(asked: ModelRequest, model: str = FLASH) -> Any:
    """The body of a request, as a server reads it."""
    return json.loads(encode_body(build_gemini_request(asked, model=model)))


def answered(chunks: list[StreamChunk]) -> ModelMessage:
    """The message that a turn makes of an answer with calls."""
    calls = tuple(chunk for chunk in chunks if isinstance(chunk, ToolCall))
    words = (TextPart(text=text(chunks)),) if text(chunks) else ()
    return ModelMessage(role="assistant", parts=(*words, *calls), thinking=end(chunks).thinking)


def looped(asked: ModelRequest, answer: ModelMessage, *, wrong: bool = False) -> ModelRequest:
    """The next request of the tool loop."""
    results = tuple(
        ToolResult(id=call.id, text="found", is_error=wrong)
        for call in answer.parts
        if isinstance(call, ToolCall)
    )
    more = (answer, ModelMessage(role="user", parts=results))
    return replace(asked, conversation=(*asked.conversation, *more))


async def test_a_request_on_the_wire() -> None:
    async with against(gemini) as (api, model):
        marked = CacheBreakpoint(behind="block", index=1, lifetime="1h")
        said = (user("hi"), assistant("hello"), user("stable", "volatile"))
        asked = replace(request(*said, tools=(TOOL,)), breakpoints=(marked,), now="It is late.")
        assert text(await ask(model, asked)) == "You said: stable\nvolatile\nIt is late."
        (seen,) = api.seen
        assert seen.path == f"/v1beta/models/{FLASH}:streamGenerateContent?alt=sse"
        assert seen.headers["x-goog-api-key"] == KEY
        assert seen.body["systemInstruction"]["parts"] == [
            {"text": "\n\n".join(block.text for block in asked.blocks)}
        ]
        (tool,) = seen.body["tools"][0]["functionDeclarations"]
        assert tool["parametersJsonSchema"] == {"properties": {}, "type": "object"}
        assert [one["role"] for one in seen.body["contents"]] == ["user", "model", "user"]
        assert seen.body["generationConfig"] == {"maxOutputTokens": 100}
        assert seen.body == body(replace(asked, breakpoints=()))


@pytest.mark.parametrize(
    ("base", "model", "path"),
    [
        ("", "models/gemini-x", "/v1beta/models/gemini-x"),
        ("/v1alpha", "gemini-flash-latest", "/v1alpha/models/gemini-flash-latest"),
    ],
)
async def test_the_address_takes_a_version_and_the_name_its_prefix(
    base: str, model: str, path: str
) -> None:
    async with GeminiApi() as api, aclosing(gemini(api.url + base, model)) as one:
        await ask(one)
        assert api.seen[0].path == f"{path}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize("wrong", [False, True])
async def test_a_tool_loop_sends_signatures_back_with_their_parts(wrong: bool) -> None:
    async with against(gemini) as (api, model):
        api.then(Answer(text="Let me see.", calls=CALLS, thinking="hmm"), Answer(calls=CALLS[:1]))
        asked = request(tools=(TOOL,))
        chunks = await ask(model, asked)
        assert end(chunks).stop_reason == "tools"
        assert text(chunks) == "Let me see."
        assert [chunk.text for chunk in chunks if isinstance(chunk, ThinkingDelta)] == ["hmm"]
        first = looped(asked, answered(chunks), wrong=wrong)
        second = looped(first, answered(await ask(model, first)))
        await ask(model, second)
        contents = api.seen[-1].body["contents"]
        assert ["thoughtSignature" in part for part in contents[1]["parts"]] == [False, True, False]
        assert contents[1]["parts"][1]["functionCall"] == {
            "id": "a1",
            "name": "look_up",
            "args": {"word": "naïve"},
        }
        assert contents[2]["parts"][1]["functionResponse"] == {
            "id": "b2",
            "name": "look_up",
            "response": {"error" if wrong else "output": "found"},
        }
        later = (*second.conversation, assistant("It is there."), user("thanks"))
        await ask(model, request(*later, tools=(TOOL,)))
        assert api.seen[-1].body["contents"][: len(contents)] == contents
        assert not api.violations


async def test_text_in_front_of_calls_keeps_its_own_signature() -> None:
    async with against(older) as (api, model):
        signed = {"text": "Let me ", "thoughtSignature": True}
        api.signs = False
        api.then(Answer(content=(signed,), text="look it up.", calls=CALLS))
        asked = request(tools=(TOOL,))
        answer = answered(await ask(model, asked))
        await ask(model, looped(asked, answer))
        sent = api.seen[-1].body["contents"][1]["parts"]
        assert [part.get("text") for part in sent] == ["Let me ", "look it up.", None, None]
        assert ["thoughtSignature" in part for part in sent] == [True, False, False, False]
        changed = replace(answer, parts=(TextPart(text="Changed."), *answer.parts[1:]))
        assert body(looped(asked, changed), OLDER)["contents"][1]["parts"][0] == {
            "text": "Changed."
        }
        assert not api.violations


async def test_a_call_without_an_id_is_answered_without_one() -> None:
    async with against(older) as (api, model):
        api.gives_ids = api.signs = False
        api.then(Answer(calls=CALLS))
        asked = request(tools=(TOOL,))
        answer = answered(await ask(model, asked))
        assert len({call.id for call in answer.parts if isinstance(call, ToolCall)}) == 2
        await ask(model, looped(asked, answer))
        assert "id" not in json.dumps(api.seen[-1].body["contents"])
        assert not api.violations


FOREIGN = ModelMessage(
    role="assistant",
    parts=(
        ToolCall(
            id="toolu_1",
            name="look_up",
            arguments="{}",
            extra='{"model": "other", "thoughtSignature": "b3RoZXI="}',
        ),
        ToolCall(id="toolu_2", name="look_up", arguments='{"half'),
    ),
    thinking='{"model": "other", "parts": [{"text": "x"}]}',
)


@pytest.mark.parametrize(("make", "signature"), [(gemini, UNSIGNED), (older, None)])
async def test_calls_of_another_model_are_taken(make: Any, signature: str | None) -> None:
    async with against(make) as (api, model):
        await ask(model, looped(request(tools=(TOOL,)), FOREIGN))
        first, second = api.seen[0].body["contents"][1]["parts"]
        assert first.get("thoughtSignature") == signature
        assert isinstance(second["functionCall"]["args"], dict)
        assert not api.violations


async def test_signatures_that_are_refused_are_left_out_and_new_ones_are_not() -> None:
    async with against(gemini) as (api, model):
        api.then(Answer(calls=CALLS))
        asked = request(tools=(TOOL,))
        call = answered(await ask(model, asked)).parts[0]
        assert isinstance(call, ToolCall)
        kept = json.loads(call.extra) | {"thoughtSignature": "c3RhbGU="}
        stale = ModelMessage(role="assistant", parts=(replace(call, extra=json.dumps(kept)),))
        api.then(Answer(calls=CALLS))
        again = looped(asked, stale)
        fresh = looped(again, answered(await ask(model, again)))
        assert len(api.violations) == 1
        await ask(model, fresh)
        assert len(api.violations) == 1
        sent = [one for one in api.seen[-1].body["contents"] if one["role"] == "model"]
        signatures = [one["parts"][0]["thoughtSignature"] for one in sent]
        assert signatures[0] == UNSIGNED
        assert signatures[1] not in {UNSIGNED, "c3RhbGU="}
        api.then(error(400, "INVALID_ARGUMENT", "Corrupted thought signature."))
        with pytest.raises(RequestRefused):  # there is none that could be left out
            await ask(model, request())


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            {
                "promptTokenCount": 100,
                "cachedContentTokenCount": 60,
                "candidatesTokenCount": 7,
                "thoughtsTokenCount": 30,
            },
            Usage(input_tokens=40, cache_read_tokens=60, output_tokens=37),
        ),
        ({"promptTokenCount": 9, "thoughtsTokenCount": None}, Usage(input_tokens=9)),
    ],
)
async def test_usage_counts_thoughts_as_output_and_does_not_overlap(
    told: dict[str, object], expected: Usage
) -> None:
    async with against(gemini) as (api, model):
        api.then(Answer(text="hi", usage=told))
        assert end(await ask(model)).usage == expected


@pytest.mark.parametrize(
    ("told", "stop"),
    [
        ("STOP", "end"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "refused"),
        ("PROHIBITED_CONTENT", "refused"),
        ("RECITATION", "refused"),
        ("SPII", "refused"),
        ("OTHER", "end"),
        ("UNEXPECTED_TOOL_CALL", "end"),
        ("INVENTED_LATER", "end"),
    ],
)
async def test_finish_reasons(told: str, stop: str) -> None:
    async with against(gemini) as (api, model):
        api.then(Answer(text="hi", stop=told))
        assert end(await ask(model)).stop_reason == stop


async def test_calls_before_the_limit_are_whole_and_those_of_a_refused_answer_are_not_made() -> (
    None
):
    async with against(gemini) as (api, model):
        api.then(Answer(calls=CALLS, stop="MAX_TOKENS"), Answer(calls=CALLS, stop="SAFETY"))
        asked = request(tools=(TOOL,))
        whole, refused = await ask(model, asked), await ask(model, asked)
        assert end(whole).stop_reason == "tools"
        assert [type(chunk) for chunk in whole[:-1]] == [ToolCall, ToolCall]
        assert (end(refused).stop_reason, len(refused)) == ("refused", 1)


async def hear(model: GeminiModel, billed: list[Usage | None]) -> None:
    async for chunk in model.stream(request()):
        billed += [chunk.usage] if isinstance(chunk, StreamStart) else []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(stop="MALFORMED_FUNCTION_CALL"), AnswerSpoiled),
        (Answer(stop="OTHER"), AnswerSpoiled),
        (Answer(stop_details={"blockReason": "PROHIBITED_CONTENT"}), RequestRefused),
    ],
)
async def test_an_answer_that_is_none_raises_and_is_billed(
    answer: Answer, expected: type[ModelError]
) -> None:
    async with against(gemini) as (api, model):
        api.then(answer)
        billed: list[Usage | None] = []
        with pytest.raises(expected) as caught:
            await hear(model, billed)
        assert billed[-1] is not None
        assert billed[-1].input_tokens > 0
        assert caught.value.cause == ("refused" if expected is RequestRefused else "nothing")


@pytest.mark.parametrize(
    ("answer", "expected", "wait_s"),
    [
        (exhausted("31.5s"), ModelBusy, 31.5),
        (exhausted("soon"), ModelBusy, None),
        (replace(exhausted("9s"), headers={"retry-after": "7"}), ModelBusy, 7.0),
        (exhausted("12s", "GenerateRequestsPerDayPerProjectPerModel"), ModelUnusable, None),
        (error(503, "UNAVAILABLE", "The model is overloaded."), ModelBusy, None),
        (error(500, "INTERNAL", "An internal error has occurred."), ModelBusy, None),
        (error(403, "PERMISSION_DENIED", "no"), ModelUnusable, None),
        (error(404, "NOT_FOUND", "no such model"), ModelUnusable, None),
        (error(400, "INVALID_ARGUMENT", "Unknown name"), RequestRefused, None),
        (
            error(
                400,
                "INVALID_ARGUMENT",
                "The input token count (9) exceeds the maximum number of tokens allowed (8).",
            ),
            PromptTooLong,
            None,
        ),
    ],
)
@pytest.mark.parametrize("in_list", [False, True])
async def test_errors(
    answer: Answer, expected: type[ModelError], wait_s: float | None, in_list: bool
) -> None:
    async with against(gemini) as (api, model):
        api.then(replace(answer, body=b"[%s]" % answer.body) if in_list else answer)
        with pytest.raises(expected) as caught:
            await ask(model)
        assert caught.value.status == answer.status
        assert getattr(caught.value, "retry_after_s", None) == wait_s
        quota = answer.status == 429 and expected is ModelUnusable
        assert (caught.value.cause == "budget") == quota


async def test_a_wrong_key_is_known_as_one_and_not_shown() -> None:
    async with against(gemini) as (api, model):
        api.key = "another"
        with pytest.raises(ModelUnusable) as caught:
            await ask(model)
        assert caught.value.status == 401
        assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "expected"), [("UNAVAILABLE", ModelBusy), ("UNAUTHENTICATED", ModelUnusable)]
)
async def test_an_error_inside_the_stream(word: str, expected: type[ModelError]) -> None:
    async with against(gemini) as (api, model):
        api.then(Answer(text="a longer answer", error_after=(2, word)))
        with pytest.raises(expected):
            await ask(model)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (FLASH, {"thinkingLevel": "LOW"}),
        ("gemini-flash-latest", {"thinkingLevel": "LOW"}),
        ("gemini-2.5-pro", {"thinkingBudget": 128}),
        (OLDER, {"thinkingBudget": 0}),
        ("gemini-2.0-flash", None),
        ("gemma-4-31b-it", None),
    ],
)
async def test_as_little_thinking_as_the_model_takes(
    name: str, options: dict[str, object] | None
) -> None:
    async with against(lambda url: gemini(url, name)) as (api, model):
        await ask(model, replace(request(), thinks_less=True))
        assert api.seen[0].body["generationConfig"].get("thinkingConfig") == options
        assert not api.violations


async def test_a_model_that_refuses_a_thinking_level_is_asked_without_from_then_on() -> None:
    async with against(gemini) as (api, model):
        told = "Thinking level is not supported for this model."
        api.then(error(400, "INVALID_ARGUMENT", told))
        for _ in range(2):
            assert text(await ask(model, replace(request(), thinks_less=True))) == "You said: hi"
        sent = ["thinkingConfig" in seen.body["generationConfig"] for seen in api.seen]
        assert sent == [True, False, False]


def image(media_type: Any, data: bytes, pages: int = 0) -> Image:
    return Image(media_type=media_type, data=data, description="[what it is]", pages=pages)


@pytest.mark.parametrize(
    ("one", "is_sent"),
    [
        (image("image/png", b"\x89PNG\r\n\x1a\n rest"), True),
        (image("application/pdf", b"%PDF-1.7 x", 2), True),
        (image("image/gif", b"GIF89a rest"), False),
    ],
)
async def test_images_of_types_that_it_takes_are_sent_inline(one: Image, is_sent: bool) -> None:
    async with against(gemini) as (api, model):
        parts = (TextPart(text="look"), one, TextPart(text="at it"))
        await ask(model, request(ModelMessage(role="user", parts=parts)))
        data = base64.b64encode(one.data).decode()
        assert api.seen[0].body["contents"][0]["parts"][1] == (
            {"inlineData": {"mimeType": one.media_type, "data": data}}
            if is_sent
            else {"text": "[what it is]"}
        )
        assert not api.violations


@pytest.mark.parametrize(
    "said", [(), (user("hi"), assistant("hello")), (assistant("hello"),), (user(" "),), (FOREIGN,)]
)
async def test_there_is_always_a_user_first_and_last(said: tuple[ModelMessage, ...]) -> None:
    async with against(gemini) as (api, model):
        asked = replace(request(), conversation=said)
        contents = body(looped(asked, FOREIGN) if FOREIGN in said else asked)["contents"]
        assert (contents[0]["role"], contents[-1]["role"]) == ("user", "user")
        if FOREIGN not in said:
            await ask(model, asked)
            assert EMPTY_USER_TEXT in json.dumps(contents)
        assert not api.violations


async def test_nothing_is_sent_for_an_answer_of_no_tokens() -> None:
    async with against(gemini) as (api, model):
        assert end(await ask(model, replace(request(), max_output_tokens=0))).stop_reason == "end"
        assert not api.seen


async def test_halves_of_characters_are_joined_and_chunks_of_another_form_left_out() -> None:
    async with against(gemini) as (api, model):
        odd: tuple[Any, ...] = ({"text": 7}, {"text": "\ud83d"}, {"text": "\ude00"}, {"text": ""})
        api.then(Answer(content=odd, text=" ok", calls=(("a", "look_up", '{"x": "\\ud83d"}'),)))
        chunks = await ask(model, request(tools=(TOOL,)))
        assert text(chunks) == "😀 ok"
        (call,) = [chunk for chunk in chunks if isinstance(chunk, ToolCall)]
        call.arguments.encode()


def test_that_it_has_no_cache_marks_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    providers: dict[str, ProviderSettings] = {"google": GeminiConfig(kind="gemini", api_key=None)}
    models = {
        "main": ModelConfig(provider="google", name=FLASH, fallbacks=("spare",)),
        "spare": ModelConfig(provider="google", name=OLDER),
    }
    with caplog.at_level("INFO"):
        build_model("main", models, providers, ManualClock())
    told = [one for one in caplog.records if "cache marks" in one.getMessage()]
    assert [(one.levelname, one.name) for one in told] == [("INFO", "agent.models.config")]
