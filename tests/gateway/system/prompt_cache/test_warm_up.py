"""What is read in before anybody has said anything: the common beginning, on a local model."""

from pathlib import Path

from gateway.core.clock import ManualClock
from reverie.testing.gateway import Gateway, settings
from reverie.testing.servers.llama_api import LlamaApi


async def test_the_first_person_does_not_pay_for_the_identity_on_a_local_model(
    tmp_path: Path,
) -> None:
    (tmp_path / "ana").mkdir()
    (tmp_path / "ana" / "IDENTITY.md").write_text("You are Ana . " + "Knows of gardens . " * 200)
    async with LlamaApi() as api:
        llm = {
            "providers": {"p": {"kind": "llamacpp", "base_url": api.url, "api_key": "k"}},
            "models": {"main": {"provider": "p", "name": "claude-sonnet-5-5"}},
            "context_optimization": {"token_counter": {"backend": "tiktoken"}},
        }
        made = settings(tmp_path, llm=llm, agents=[{"id": "ana", "workspace": "ana"}])
        async with Gateway(made, clock=ManualClock()) as gateway:
            await gateway.until(lambda: any(api.held))
            read_in, *_ = api.read_in
            await gateway.ask("reverie, hello")
        first = api.answered[0].body
        beginning = read_in.body["messages"][0]["content"]
        assert first["messages"][0]["content"].startswith(beginning)
        assert read_in.body.get("tools") == first.get("tools")
        shared = len(beginning.split())
        number = api.completions.index(api.answered[0])
        assert shared > 600
        assert api.timings[number]["cache_n"] >= shared
