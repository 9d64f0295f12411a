"""A provider that wants back what it signed, behind a whole gateway."""

import json
from pathlib import Path

from tests.kits.gateway import Gateway, settings
from tests.servers.model_api import Answer, Json, ModelApi

LOOK = ("functions.glob:0", "glob", '{"pattern": "*.md"}')


async def test_a_signature_of_a_call_comes_back_with_it_and_to_its_own_model_only(
    tmp_path: Path,
) -> None:
    signature: Json = {"extra_content": {"google": {"thought_signature": "c2lnbmF0dXJl"}}}

    async def asked(name: str) -> Json:
        """By each of them in a process of its own; the last request."""
        llm = {
            "providers": {"p": {"kind": "openai", "base_url": api.url, "api_key": "k"}},
            "models": {"main": {"provider": "p", "name": name}},
        }
        async with Gateway(settings(tmp_path, llm=llm)) as gateway:
            await gateway.ask("what is there?")
        return api.seen[-1].body

    async with ModelApi() as api:
        api.then(Answer(calls=(LOOK,), extra=signature), Answer(text="One file."))
        for body in (await asked("gemini-3-pro"), await asked("gemini-3-pro")):
            (called,) = [one for one in body["messages"] if one.get("tool_calls")]
            assert called["tool_calls"][0].items() >= signature.items()
        assert "signature" not in json.dumps(await asked("gpt-5"))
