"""Images and uncached context in the requests of both dialects, and what is shown of a growing
answer."""

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.adapt import adapt_request, append_suffix
from agent.models.anthropic import AnthropicModel
from agent.models.anthropic_wire import build_anthropic_request
from agent.models.base import (
    CacheBreakpoint,
    Model,
    ModelBusy,
    ModelMessage,
    ModelRequest,
    PartialText,
    RequestRefused,
    StreamEnd,
    TextPart,
    ToolResult,
)
from agent.models.config import build_model
from agent.models.gemini import build_gemini_request
from agent.models.http import encode_body
from agent.models.openai import OpenAIDialect, OpenAIModel
from agent.models.scripted import Script, ScriptedModel
from agent.models.settings import ModelConfig
from agent.prompt import PromptInput
from agent.turn import presentable_text
from gateway.core.clock import ManualClock
from gateway.core.events import RequestUsage
from gateway.core.tool_spec import Image, ToolCall
from reverie.testing.servers.gemini_api import check as refused_by_gemini
from reverie.testing.servers.messages_prompt import blocks
from reverie.testing.servers.model_api import Answer, ModelApi
from reverie.testing.servers.model_api_rules import check
from reverie.testing.servers.model_api_rules import openai as refused_by_openai
from tests.agent.cache.request_kit import IDENTITY, Bench
from tests.agent.models.test_anthropic import OPUS, again, kinds, opus, other, roles, thinks
from tests.kits.models import (
    SERVERS,
    TOOL,
    against,
    ask,
    assistant,
    chat_body,
    client_of,
    end,
    make,
    parse_provider,
    request,
    text,
    user,
)
from tests.kits.scripted_turn import NoTools, take_turn

PNG = b"\x89PNG\r\n\x1a\n rest"
IMAGE = Image(media_type="image/png", data=PNG, description="[image cat.png]")
LOOK = ModelMessage(role="user", parts=(TextPart(text="look"), IMAGE, TextPart(text="at it")))
CARD = "# Where you are\nPlace: the room #lobby"


def seeing(kind: str, url: str) -> Model:
    return (
        OpenAIModel(name="main", model="m", base_url=url, takes_images=True)
        if kind == "openai"
        else make(kind, url)
    )


@pytest.mark.parametrize("kind", SERVERS)
async def test_an_image_is_sent_between_the_words(kind: str) -> None:
    async with SERVERS[kind]() as api, aclosing(seeing(kind, api.url)) as model:
        assert model.takes_images
        end(await ask(model, request(LOOK, tools=(TOOL,))))
        (seen,) = api.seen
        last = (seen.body.get("messages") or seen.body["contents"])[-1]
        pieces = last.get("content") or last["parts"]
        kinds = [piece.get("type") or next(iter(piece)) for piece in pieces]
        image = {"anthropic": "image", "gemini": "inlineData"}.get(model.family, "image_url")
        assert kinds == ["text", image, "text"]
        assert not api.violations


PDF = Image(
    media_type="application/pdf", data=b"%PDF-1.7 x", description="[file a.pdf, 2 pages]", pages=2
)
READ = ModelMessage(role="user", parts=(TextPart(text="read"), PDF))


async def test_a_pdf_is_a_document_for_anthropic_a_file_for_openai_and_words_for_a_compatible_server() -> (
    None
):
    async with against(lambda url: seeing("anthropic", url)) as (api, model):
        end(await ask(model, request(READ)))
        end(
            await ask(
                model,
                replace(
                    request(READ),
                    breakpoints=(CacheBreakpoint(behind="said", index=0, lifetime="5m"),),
                ),
            )
        )
        plain, marked = (one.body["messages"][-1]["content"][1] for one in api.seen)
        source = {
            "type": "base64",
            "media_type": "application/pdf",
            "data": base64.b64encode(PDF.data).decode(),
        }
        assert plain == {"type": "document", "source": source}
        assert marked == plain | {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
    body = chat_body(request(READ), model="gpt-5.1", dialect=OpenAIDialect(is_openai=True))
    file = {
        "filename": "document.pdf",
        "file_data": f"data:application/pdf;base64,{source['data']}",
    }
    assert body["messages"][-1]["content"] == [
        {"type": "text", "text": "read"},
        {"type": "file", "file": file},
    ]
    del body["prompt_cache_key"]  # OpenAI's alone; the rules are those of a compatible server
    assert refused_by_openai(body) is None
    body["messages"][-1]["content"][1]["file"]["file_data"] = "data:application/pdf;base64,aGk="
    assert refused_by_openai(body) == "The PDF specified was not valid."
    async with against(lambda url: seeing("openai", url)) as (api, model):
        end(await ask(model, request(READ)))
        assert "[file a.pdf, 2 pages]" in json.dumps(api.seen[0].body["messages"][-1])


def test_a_fallback_that_does_not_see_reads_what_it_is_about() -> None:
    blind = ScriptedModel(clock=ManualClock())
    parts = adapt_request(request(LOOK), blind).conversation[0].parts
    assert parts == (
        TextPart(text="look"),
        TextPart(text="[image cat.png]"),
        TextPart(text="at it"),
    )
    sighted = ScriptedModel(clock=ManualClock(), takes_images=True, takes_tools=False)
    assert adapt_request(request(LOOK), sighted).conversation == (LOOK,)


@pytest.mark.parametrize(
    ("provider", "name", "told", "expected"),
    [
        ({"kind": "anthropic"}, "claude-sonnet-5-5", None, True),
        ({"kind": "anthropic"}, "claude-sonnet-5-5", False, False),
        ({"kind": "openai"}, "gpt-4o-mini", None, True),
        ({"kind": "openai"}, "gpt-5.1", None, True),
        ({"kind": "openai"}, "gpt-3.5-turbo", None, False),
        ({"kind": "openai", "base_url": "http://127.0.0.1:8000/v1"}, "gpt-4o", None, False),
        ({"kind": "openai", "base_url": "http://127.0.0.1:8000/v1"}, "qwen-vl", True, True),
        ({"kind": "gemini"}, "gemini-3.8-flash", None, True),
        ({"kind": "llamacpp"}, None, None, False),
        ({"kind": "local"}, None, None, False),
        ({"kind": "scripted"}, None, None, False),
    ],
)
def test_who_sees(
    provider: dict[str, str], name: str | None, told: bool | None, expected: bool
) -> None:
    models = {"main": ModelConfig(provider="p", name=name, sees=told)}
    providers = {"p": parse_provider(provider)}
    assert build_model("main", models, providers, ManualClock()).takes_images is expected


async def test_what_grows_is_passed_on_and_counts_only_when_it_is_whole() -> None:
    async with ModelApi() as api:
        api.then(
            Answer(text="a first answer that is cut off", cut_after=4),
            Answer(text="a whole answer, at last"),
        )
        clock = ManualClock()
        model = client_of([make("openai", api.url)], clock=clock)
        task = asyncio.create_task(ask(model))
        while not task.done():
            await asyncio.sleep(0.005)
            clock.advance(1)
        chunks = task.result()
        await model.aclose()
    partials = [chunk.text for chunk in chunks if isinstance(chunk, PartialText)]
    assert partials[0] == "a first answ"
    assert partials[-1] == text(chunks) == "a whole answer, at last"
    places = [isinstance(chunk, PartialText) for chunk in chunks]
    assert places == sorted(places, reverse=True)  # all of them before anything that counts
    assert isinstance(chunks[-1], StreamEnd)


@pytest.mark.parametrize("error", [RequestRefused("no such image"), ModelBusy("later")])
async def test_a_refused_image_is_told_to_the_caller_and_nothing_else_is(
    error: RequestRefused | ModelBusy,
) -> None:
    model = ScriptedModel(Script(errors=(error, error)), clock=ManualClock(), takes_images=True)
    brief = PromptInput(persona="You.", card=CARD, history=(), input_text="look", images=(IMAGE,))
    if isinstance(error, RequestRefused):
        with pytest.raises(RequestRefused):
            await take_turn(brief, model, NoTools(), key="k")
        brief = replace(brief, images=())
    outcome = await take_turn(brief, model, NoTools(), key="k")
    assert (outcome.outcome, outcome.reason) == ("failed", error.reason)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Let me look. <tool_call>{}", "Let me look."),
        ("Let me look. <tool", "Let me look."),
        ("Let me look. <|tool_calls_begin|>", "Let me look."),
        ("Wait [TOOL_CALLS]", "Wait"),
        ('{"name": "look_up"', ""),
        ("[a link](https://example.org) is fine", "[a link](https://example.org) is fine"),
        ("if a < b: print(<https://example.org>)", "if a < b: print(<https://example.org>)"),
        ("half a character \ud83d", "half a character"),
        ("<think>hm", ""),
        ("to=functions.look_up", ""),
        ("today is fine", "today is fine"),
    ],
)
def test_only_words_are_shown(said: str, shown: str) -> None:
    assert presentable_text(said) == shown


@given(st.text())
def test_what_is_shown_is_a_beginning_that_can_be_written(said: str) -> None:
    shown = presentable_text(said)
    shown.encode()
    assert shown in said


ASIDE = "(Called to mind: Ann said that her cat is Ada.)"
NOW = "It is late."
RECALLING = replace(request(user("hi")), aside=ASIDE, now=NOW)


def contents(body: Any) -> list[tuple[str, list[str]]]:
    """Role and words of each message."""
    return [
        (m["role"], [str(b.get("text", b["type"])) for b in blocks(m["content"])])
        for m in body["messages"]
    ]


def test_it_stands_behind_the_marked_words_and_in_front_of_what_holds_now() -> None:
    asked = replace(
        RECALLING, breakpoints=(CacheBreakpoint(behind="said", index=0, lifetime="5m"),)
    )
    told = build_anthropic_request(asked, model="m", takes_system_messages=True).body
    assert contents(told) == [("user", ["hi", ASIDE]), ("system", [NOW])]
    told = build_anthropic_request(asked, model="m").body
    assert contents(told) == [("user", ["hi", ASIDE, NOW])]
    messages: Any = told["messages"]
    assert ["cache_control" in block for block in messages[0]["content"]] == [True, False, False]


def test_other_dialects_tell_it_as_the_user_s_last_words() -> None:
    assert append_suffix(RECALLING) == (
        ModelMessage(
            role="user", parts=(TextPart(text="hi"), TextPart(text=ASIDE), TextPart(text=NOW))
        ),
    )
    assert append_suffix(replace(RECALLING, now=" ", conversation=())) == (user(ASIDE),)
    marked = replace(
        RECALLING, breakpoints=(CacheBreakpoint(behind="said", index=0, lifetime="5m"),)
    )
    dialect = OpenAIDialect(is_openai=True, takes_breakpoints=True)
    messages = chat_body(marked, dialect=dialect)["messages"]
    assert ["prompt_cache_breakpoint" in piece for piece in messages[-1]["content"]] == [
        True,
        False,
        False,
    ]


Make = Callable[[str], AnthropicModel]


@pytest.mark.parametrize("make", [opus, other])
@pytest.mark.parametrize("now", ["", NOW])
async def test_it_stays_in_front_of_the_thinking_that_came_after_it(make: Make, now: str) -> None:
    async with against(make) as (api, model):
        first = replace(request(user("hi"), tools=(TOOL,)), aside=ASIDE, now=now)
        api.then(thinks("a"), thinks("b"), thinks("c"), Answer(text="Done."))
        await ask(model, first)
        await ask(model, again(first, "a"))
        last = replace(again(again(first, "a"), "b"), aside=f"{ASIDE}\nAnd that it is old.")
        await ask(model, last)
        await ask(model, again(last, "c"))
        for seen in api.seen[1:]:
            assert {
                kinds(seen, place)[0] for place in range(roles(seen.body).count("assistant"))
            } == {"thinking"}
            assert (
                seen.body["messages"][: len(api.seen[0].body["messages"])]
                == api.seen[0].body["messages"]
            )
        told = [json.dumps(seen.body["messages"]) for seen in api.seen]
        assert [(one.count(ASIDE), one.count("it is old")) for one in told] == [
            (1, 0),
            (1, 0),
            (1, 1),
            (1, 1),
        ]
        assert not api.violations
        await ask(
            model,
            replace(first, conversation=(user("hi"), assistant("Done."), user("thanks")), aside=""),
        )
        assert ASIDE not in json.dumps(api.seen[-1].body)
        assert not api.violations


async def test_one_that_changes_with_each_turn_costs_nothing_of_what_is_cached(
    bench: Bench,
) -> None:
    said: list[ModelMessage] = []
    accounts: list[RequestUsage] = []
    for number in range(8):
        said.append(user(f"{number} " + "and so on " * 80))
        asked = ModelRequest(
            blocks=(IDENTITY,),
            conversation=tuple(said),
            aside=f"(Called to mind: {'words ' * number}{number})" if number % 3 else "",
            now=f"It is {number}." if number % 2 else "",
            max_output_tokens=100,
            shared_key="ana",
            conversation_id="irc/#a",
        )
        accounts.append(await bench.ask(asked))
        said.append(assistant("Yes."))
        bench.clock.advance(30)
    assert [account.missed for account in accounts] == [""] * 8
    for before, account in pairwise(accounts):
        cached = before.usage.cache_read_tokens + before.usage.cache_write_tokens
        assert account.usage.cache_read_tokens == cached > 0
    assert not bench.api.violations


WORDS = st.sampled_from(["", " ", "a", "two\nlines"])
LOOPS = st.lists(st.tuples(WORDS, st.integers(1, 2), WORDS), max_size=3)


@given(
    turns=st.lists(st.tuples(WORDS, LOOPS, WORDS), min_size=1, max_size=3),
    aside=WORDS,
    now=WORDS,
    ident=st.sampled_from(["t", f"chatcmpl-tool-{'0' * 32}"]),
    data=st.data(),
)
def test_every_request_that_holds_it_is_a_valid_one(
    turns: list[tuple[str, list[tuple[str, int, str]], str]],
    aside: str,
    now: str,
    ident: str,
    data: st.DataObject,
) -> None:
    said: list[ModelMessage] = []
    for number, (heard, loops, reply) in enumerate(turns):
        said.append(user(f"turn {number}", heard))
        for step, (words, calls, behind) in enumerate(loops):
            idents = [f"{ident}{number}_{step}_{place}" for place in range(calls)]
            asked = tuple(ToolCall(id=one, name="look_up", arguments="{}") for one in idents)
            results = tuple(ToolResult(id=one, text="found") for one in idents)
            said.append(ModelMessage(role="assistant", parts=(TextPart(text=words), *asked)))
            said.append(ModelMessage(role="user", parts=(*results, TextPart(text=behind))))
        said.append(assistant(reply or "yes"))
    cut = data.draw(
        st.sampled_from([place for place, one in enumerate(said) if one.role == "user"])
    )
    asking = replace(request(*said[: cut + 1], tools=(TOOL,)), aside=aside, now=now)
    for model, systems in ((OPUS, True), ("claude-sonnet-5", False)):
        body: Any = build_anthropic_request(asking, model=model, takes_system_messages=systems).body
        assert check(body) is None
    assert refused_by_openai(chat_body(asking)) is None
    for model in ("gemini-3.8-flash", "gemini-2.5-pro"):
        written = encode_body(build_gemini_request(asking, model=model))
        assert refused_by_gemini(json.loads(written), model) is None
