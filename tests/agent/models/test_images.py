"""Images in both dialects and for those who do not see, and what is shown of a growing answer."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.anthropic import AnthropicModel
from agent.models.base import (
    Model,
    ModelBusy,
    ModelMessage,
    PartialText,
    RequestRefused,
    StreamEnd,
    TextPart,
    adapt_request,
)
from agent.models.config import ModelConfig, ProviderConfig, build_model
from agent.models.failover import FailoverModel
from agent.models.openai import OpenAIModel
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from agent.prompt import PromptInput, PromptTurn, build_request
from agent.tokens.counter import MAX_IMAGE_TOKENS, estimate_image_tokens
from agent.turn import presentable_text, take_turn
from gateway.config.models import LlmConfig
from gateway.core.clock import ManualClock
from gateway.core.facts import MediaRef, Seq
from gateway.core.tool_spec import Image
from tests.kits.models import TOOL, against, ask, end, make, request, text
from tests.kits.scripted_turn import Host, NoTools
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer

PNG = b"\x89PNG\r\n\x1a\n rest"
IMAGE = Image(media_type="image/png", data=PNG, description="[image cat.png]")
LOOK = ModelMessage(role="user", parts=(TextPart(text="look"), IMAGE, TextPart(text="at it")))
CARD = "# Where you are\nPlace: the room #lobby"


def seeing(kind: str, url: str) -> OpenAIModel | AnthropicModel:
    return OpenAIModel(name="main", model="m", base_url=url, takes_images=True) if kind == "openai" else make(kind, url)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_an_image_is_sent_between_the_words(kind: str) -> None:
    async def story(api: ModelApi, model: OpenAIModel | AnthropicModel) -> None:
        assert model.takes_images
        end(await ask(model, request(LOOK, tools=(TOOL,))))
        (seen,) = api.seen
        kinds = [piece["type"] for piece in seen.body["messages"][-1]["content"]]
        assert kinds == ["text", "image" if kind == "anthropic" else "image_url", "text"]

    against(lambda url: seeing(kind, url), story)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize(
    "bad",
    [
        Image(media_type="image/jpeg", data=PNG, description="x"),
        Image(media_type="image/png", data=PNG + b"broken", description="x"),
        Image(media_type="image/png", data=PNG + b"0" * 4_000_000, description="x"),
    ],
)
def test_the_fakes_refuse_what_the_real_ones_refuse(kind: str, bad: Image) -> None:
    async def story(_: ModelApi, model: Model) -> None:
        with pytest.raises(RequestRefused):
            await ask(model, request(ModelMessage(role="user", parts=(TextPart(text="look"), bad))))

    against(lambda url: seeing(kind, url), story)


def test_a_fallback_that_does_not_see_reads_what_it_is_about() -> None:
    blind = ScriptedModel(clock=ManualClock())
    parts = adapt_request(request(LOOK), blind).conversation[0].parts
    assert parts == (TextPart(text="look"), TextPart(text="[image cat.png]"), TextPart(text="at it"))
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
        ({"kind": "llamacpp"}, None, None, False),
        ({"kind": "local"}, None, None, False),
        ({"kind": "scripted"}, None, None, False),
    ],
)
def test_who_sees(provider: dict[str, str], name: str | None, told: bool | None, expected: bool) -> None:
    models = {"main": ModelConfig(provider="p", name=name, sees=told)}
    providers: dict[str, ProviderConfig] = LlmConfig.model_validate(
        {"providers": {"p": provider}, "models": {}}
    ).providers
    assert build_model("main", models, providers, ManualClock()).takes_images is expected


def test_images_follow_the_lines_they_came_with() -> None:
    earlier = PromptTurn(input_text="[x] ann (guest): look", reply="A cat.", images=(IMAGE,))
    brief = PromptInput(persona="You.", card=CARD, history=(earlier,), input_text="and this?", images=(IMAGE,))
    made = build_request(brief, tools=(), max_output_tokens=10, key="k", plain=False)
    assert [said.parts[1:] for said in made.conversation] == [(IMAGE,), (), (IMAGE,)]
    silent = replace(brief, history=(PromptTurn(input_text="", reply=""),))
    assert len(build_request(silent, tools=(), max_output_tokens=10, key="k", plain=False).conversation) == 1


def test_tokens_of_an_image() -> None:
    ref = MediaRef(sha256="0", media_type="image/png", line=Seq(1), about="x", size_bytes=1, width=750, height=100)
    assert estimate_image_tokens([ref]) == 101
    assert estimate_image_tokens([replace(ref, width=0), replace(ref, width=9000, height=9000)]) == 2 * MAX_IMAGE_TOKENS


def test_what_grows_is_passed_on_and_counts_only_when_it_is_whole() -> None:
    async def story() -> None:
        async with ModelApi() as api:
            api.then(Answer(text="a first answer that is cut off", cut_after=4), Answer(text="a whole answer, at last"))
            clock = ManualClock()
            model = FailoverModel([make("openai", api.url)], clock=clock, random=lambda: 0.0)
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

    asyncio.run(story())


def test_a_glimpse_never_goes_beyond_the_answer_under_way() -> None:
    async def story() -> None:
        clock = ManualClock()
        rules = (
            ScriptRule(match="time", reply="Let me see the clock.", calls=(("clock", "{}"),)),
            ScriptRule(match="", reply="Noon."),
        )
        model = FailoverModel([ScriptedModel(Script(rules=rules), clock=clock)], clock=clock, random=lambda: 0.0)
        seen: list[str] = []
        brief = PromptInput(persona="You.", card=CARD, history=(), input_text="what time is it?")
        outcome = await take_turn(brief, model, NoTools(), Host(glimpse=seen.append), key="k")
        assert (outcome.text, seen) == ("Noon.", ["Let me see the c", "Let me see the clock.", "Noon."])

    asyncio.run(story())


@pytest.mark.parametrize("error", [RequestRefused("no such image"), ModelBusy("later")])
def test_a_refused_image_is_told_to_the_caller_and_nothing_else_is(error: RequestRefused | ModelBusy) -> None:
    async def story() -> None:
        model = ScriptedModel(Script(errors=(error, error)), clock=ManualClock(), takes_images=True)
        brief = PromptInput(persona="You.", card=CARD, history=(), input_text="look", images=(IMAGE,))
        if isinstance(error, RequestRefused):
            with pytest.raises(RequestRefused):
                await take_turn(brief, model, NoTools(), key="k")
            brief = replace(brief, images=())
        outcome = await take_turn(brief, model, NoTools(), key="k")
        assert (outcome.outcome, outcome.reason) == ("failed", error.reason)

    asyncio.run(story())


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
    ],
)
def test_only_words_are_shown(said: str, shown: str) -> None:
    assert presentable_text(said) == shown


@given(st.text())
def test_what_is_shown_is_a_beginning_that_can_be_written(said: str) -> None:
    shown = presentable_text(said)
    shown.encode()
    assert shown in said
