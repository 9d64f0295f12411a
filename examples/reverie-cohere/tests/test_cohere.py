"""The client holds what every client must hold, and a whole gateway answers through it."""

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cohere_server import CohereApi
from pydantic import SecretStr
from reverie_cohere import CoherePlugin, CohereSettings

from reverie.providers import (
    EMPTY_USER_TEXT,
    Image,
    ModelBusy,
    ModelMessage,
    ModelRequest,
    RequestRefused,
    StreamEnd,
    TextPart,
    ThinkingDelta,
    ToolCall,
    ToolResult,
)
from reverie.testing.gateway import Gateway, settings
from reverie.testing.plugins import PluginConformance
from reverie.testing.providers import TOOL, ModelApiKit, ProviderConformance, ask, ask_for, user
from reverie.testing.servers.model_api import Answer

KEY = "co-very-secret-0123456789"


class CohereKit(ModelApiKit):
    server = CohereApi
    length_stop = "MAX_TOKENS"
    model = "command-a-vision-07-2025"
    api: CohereApi

    def settings(self, timeout_s: float = 10.0) -> CohereSettings:
        return CohereSettings(
            kind="cohere", base_url=self.api.url, api_key=SecretStr(KEY), timeout=timeout_s
        )

    def usage(self, prompt: int, output: int) -> dict[str, Any]:
        return {"input_tokens": prompt, "output_tokens": output}


class TestCohere(ProviderConformance):
    kit = CohereKit


class TestPlugin(PluginConformance):
    plugin = CoherePlugin


async def test_a_plan_goes_back_with_its_calls_and_is_shown_as_thinking() -> None:
    kit = CohereKit()
    async with kit.connection(), aclosing(kit.make()) as model:
        kit.api.plan = "I will look it up."
        kit.api.then(Answer(calls=(("c-1", "look_up", '{"word": "naïve"}'),)))
        chunks = await ask(model, ask_for(tools=(TOOL,)))
        [call], end = [one for one in chunks if isinstance(one, ToolCall)], chunks[-1]
        assert isinstance(end, StreamEnd)
        thought = [one.text for one in chunks if isinstance(one, ThinkingDelta)]
        assert "".join(thought) == kit.api.plan
        said = ModelMessage(role="assistant", parts=(call,), thinking=end.thinking)
        result = user(ToolResult(id=call.id, text="simple"))
        await ask(model, ask_for(user(TextPart(text="hi")), said, result, tools=(TOOL,)))
        assert kit.api.seen[-1].body["messages"][-2]["tool_plan"] == kit.api.plan
        assert not kit.api.violations


def test_only_addresses_of_this_api_are_taken_for_it_and_a_broken_list_has_no_models() -> None:
    for url, is_ours in (
        ("https://api.cohere.com/v2", True),
        ("https://api.cohere.com/compatibility/v1", False),
        ("https://api.cohere.com.example/v2", False),
    ):
        assert CohereSettings.is_at(urlsplit(url)) is is_ours
    settings = CohereSettings(kind="cohere")
    broken: list[object] = [{"models": 5}, {"models": [5]}, [], None]
    for answer in broken:
        assert list(settings.listed_models(answer)) == []


async def test_images_go_to_models_that_see_and_an_empty_conversation_is_said_to_be_so() -> None:
    kit = CohereKit()
    async with kit.connection(), aclosing(kit.make()) as model:
        assert model.takes_images
        image = Image(media_type="image/png", data=b"\x89PNG", description="[a cat]")
        await ask(model, ask_for(ModelMessage(role="user", parts=(image,))))
        [content] = kit.api.seen[-1].body["messages"][-1]["content"]
        assert content["image_url"]["url"].startswith("data:image/png;base64,")
        empty = ModelRequest(blocks=(), conversation=(), max_output_tokens=9, shared_key="a")
        await ask(model, empty)
        assert kit.api.seen[-1].body["messages"] == [{"role": "user", "content": EMPTY_USER_TEXT}]


async def test_an_answer_that_failed_is_busy_and_calls_must_be_answered() -> None:
    kit = CohereKit()
    async with kit.connection(), aclosing(kit.make()) as model:
        kit.api.then(Answer(text="so far", stop="ERROR"))
        with pytest.raises(ModelBusy, match="the generation failed"):
            await ask(model)
        call = ToolCall(id="c-1", name="look_up", arguments="no JSON")
        open_call = ModelMessage(role="assistant", parts=(call,))
        with pytest.raises(RequestRefused, match="have no answer"):
            await ask(model, ask_for(user(TextPart(text="hi")), open_call, tools=(TOOL,)))


async def test_a_gateway_answers_through_it(tmp_path: Path) -> None:
    async with CohereApi() as api:
        api.key, api.models = KEY, [{"id": "command-a-03-2025"}]
        llm = {
            "providers": {"c": {"kind": "cohere", "base_url": api.url, "api_key": KEY}},
            "models": {"main": {"provider": "c", "name": "command-a-03-2025"}},
        }
        api.then(Answer(text="Good morning, Ann."))
        async with Gateway(settings(tmp_path, llm=llm)) as gateway:
            assert await gateway.ask("hello") == "Good morning, Ann."
        [turn] = await gateway.turns()
        body = api.seen[-1].body
    assert (turn.model, turn.usage.output_tokens) == ("command-a-03-2025", 3)
    assert "hello" in json.dumps(body["messages"])
    assert not api.violations
