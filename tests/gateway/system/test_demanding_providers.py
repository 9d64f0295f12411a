"""Providers with demands of their own, behind a whole gateway."""

import json
from pathlib import Path

from reverie.testing.gateway import Gateway, settings
from reverie.testing.servers.gemini_api import UNSIGNED, GeminiApi
from reverie.testing.servers.model_api import Answer, Json, ModelApi

GLOB = '{"capability": "glob", "args": {"pattern": "*.md"}}'
LOOK = ("functions.call_capability:0", "call_capability", GLOB)


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


async def test_gemini_gets_its_signatures_back_after_a_restart_and_nobody_reads_thoughts(
    tmp_path: Path,
) -> None:
    async with GeminiApi() as api:
        llm = {
            "providers": {"p": {"kind": "gemini", "base_url": api.url, "api_key": "k"}},
            "models": {"main": {"provider": "p", "name": "gemini-3.8-flash"}},
        }
        api.then(Answer(calls=(LOOK,), thinking="Secretly, I look."), Answer(text="One file."))
        async with Gateway(settings(tmp_path, llm=llm)) as gateway:
            answer = await gateway.ask("what is there?")
        assert "One file." in answer
        assert "Secretly" not in answer
        async with Gateway(settings(tmp_path, llm=llm)) as gateway:
            await gateway.ask("and now?")
        first, *_, last = (seen.body for seen in api.seen)
        assert last["systemInstruction"]["parts"] == first["systemInstruction"]["parts"]
        (called,) = [one for one in last["contents"] if "functionCall" in json.dumps(one)]
        assert called["parts"][0]["functionCall"]["id"] == LOOK[0]
        assert called["parts"][0]["thoughtSignature"] != UNSIGNED
        assert not api.violations
