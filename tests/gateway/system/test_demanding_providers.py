"""Providers that want more than others do, behind a whole gateway: thinking back, their own form of
ids, signatures."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.kits.console_platforms import IRC, gateway
from tests.servers.model_api import Answer, Json, ModelApi
from tests.servers.model_api_rules import deepseek

THOUGHT = "A list \U0001f914."
LOOK = ("functions.glob:0", "glob", '{"pattern": "*.md"}')


def sent(api: ModelApi) -> list[list[dict[str, Any]]]:
    """The messages of each request that was answered, without the system's."""
    refused = [id(one.body) for one in api.violations]
    return [seen.body["messages"][1:] for seen in api.seen if id(seen.body) not in refused]


def with_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in messages if message.get("tool_calls")]


def test_thinking_in_front_of_calls_comes_back_in_all_later_requests_and_after_a_restart(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with ModelApi() as api:
            api.rule = deepseek
            api.then(
                Answer(text="Let me look.", thinking=THOUGHT, calls=(LOOK,)),
                Answer(text="One file."),
            )
            async with gateway(tmp_path, api, "openai") as made:
                await made.ask(IRC, "what is there?", sender="olga", room=None)
                await made.ask(IRC, "and now?", sender="olga", room=None)
                await made.ask(IRC, "once more?", sender="olga", room=None)
                assert made.said[0] == "One file."
                assert all("once more?" in one or "and now?" in one for one in made.said[1:])
            assert len(api.violations) == 1  # it is learnt once
            learnt = sent(api)[2:]
            assert [with_calls(one)[0]["reasoning_content"] for one in learnt] == [THOUGHT] * 2
            assert (
                learnt[1][: len(learnt[0]) - 1] == learnt[0][:-1]
            )  # what was said stays the same bytes
            async with gateway(tmp_path, api, "openai") as made:
                await made.ask(IRC, "still there?", sender="olga", room=None)
                await made.ask(IRC, "and there?", sender="olga", room=None)
                assert len(made.said) == 2
            assert len(api.violations) == 2
            assert [with_calls(one)[0]["reasoning_content"] for one in sent(api)[-2:]] == [
                THOUGHT
            ] * 2
            assert sent(api)[-2][: len(learnt[1]) - 1] == learnt[1][:-1]

    asyncio.run(story())


def test_a_signature_of_a_call_comes_back_with_it_and_to_its_own_model_only(tmp_path: Path) -> None:
    signature: Json = {"extra_content": {"google": {"thought_signature": "c2lnbmF0dXJl"}}}

    async def story() -> None:
        async with ModelApi() as api:
            api.then(Answer(calls=(LOOK,), extra=signature), Answer(text="One file."))
            async with gateway(tmp_path, api, "openai", name="gemini-3-pro") as made:
                await made.ask(IRC, "what is there?", sender="olga", room=None)
            async with gateway(tmp_path, api, "openai", name="gemini-3-pro") as made:
                await made.ask(IRC, "and now?", sender="olga", room=None)
            for one in sent(api)[1:]:
                assert (
                    with_calls(one)[0]["tool_calls"][0]["extra_content"]
                    == signature["extra_content"]
                )
            async with gateway(tmp_path, api, "openai", name="gpt-5") as made:
                await made.ask(IRC, "and now?", sender="olga", room=None)
            assert "signature" not in json.dumps(sent(api)[-1])

    asyncio.run(story())
