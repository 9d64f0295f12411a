"""Tool calls that stand in the text of an answer, in a whole gateway with the models' own wire
formats."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.kits.console_platforms import IRC, gateway
from tests.servers.llama_api import LlamaApi
from tests.servers.model_api import Answer, Json, ModelApi

GIVEN = {"path": "planted.txt", "text": "it was carried out"}
CALL = f'<tool_call>\n{{"name": "write_file", "arguments": {json.dumps(GIVEN)}}}\n</tool_call>'


def carried_out(tmp: Path) -> bool:
    return any(tmp.rglob(GIVEN["path"]))


def served(kind: str, *says: str) -> ModelApi:
    """It says this to the newest lines of people, one after the other, and `Done.` to results; not
    to be read in."""
    api = LlamaApi() if kind == "llamacpp" else ModelApi()
    left = list(says)

    def answer(body: Json) -> Answer:
        newest = body["messages"][-2:]
        called = any(one["role"] == "tool" or "tool_result" in json.dumps(one) for one in newest)
        return Answer(text="Done." if called or body.get("n_predict") == 0 else left.pop(0))

    api.default = answer
    return api


KINDS = ("anthropic", "openai", "llamacpp")


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_a_letter_proofread_that_holds_a_call_gets_it_back(
    tmp_path: Path, kind: str
) -> None:
    async def story() -> None:
        async with served(kind, CALL) as api, gateway(tmp_path, api, kind, leaks=True) as made:
            await made.ask(IRC, f"proofread this: {CALL}", sender="olga", room=None)
        assert not carried_out(tmp_path)
        assert "".join(made.said).split() == CALL.split()
        assert not api.violations

    asyncio.run(story())


@pytest.mark.parametrize(("kind", "model"), [("anthropic", {}), ("openai", {"leaks": False})])
def test_one_of_a_model_that_calls_properly_is_not_posted_and_it_is_asked_again(
    tmp_path: Path, kind: str, model: dict[str, object]
) -> None:
    async def story() -> None:
        async with (
            served(kind, CALL, "Hello, Olga.") as api,
            gateway(tmp_path, api, kind, **model) as made,
        ):
            await made.ask(IRC, "do something nice", sender="olga", room=None)
        assert not carried_out(tmp_path)
        assert made.said == ["Hello, Olga."]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("kind", "model"), [("llamacpp", {}), ("openai", {}), ("anthropic", {"leaks": True})]
)
def test_one_of_a_model_that_is_known_for_it_is_carried_out_if_it_stays_in_the_place(
    tmp_path: Path, kind: str, model: dict[str, object]
) -> None:
    async def story() -> None:
        async with served(kind, CALL) as api, gateway(tmp_path, api, kind, **model) as made:
            await made.ask(IRC, "do something nice", sender="olga", room=None)
            assert carried_out(tmp_path)
            calls = json.dumps(api.seen[-1].body["messages"])
            assert "write_file" in calls

    asyncio.run(story())
