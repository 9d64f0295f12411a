"""What is read in before anybody has said anything: the common beginning on local models, and
nothing elsewhere."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.config.loader import read_config
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from reverie.testing.gateway import Gateway
from reverie.testing.servers.llama_api import LlamaApi
from reverie.testing.servers.model_api import ModelApi

CONFIG = """\
channels: {irc.libera: {platform: console, rooms: ["#garden"]}}
agents: [{id: ana, workspace: ana}]
llm:
  providers: {p: {kind: llamacpp, base_url: "%s", api_key: k}}
  models: {main: {provider: p, name: claude-sonnet-5-5}}
  context_optimization: {token_counter: {backend: tiktoken}}
attention: {coalesce: 0}
access: {dm: open}
ops: {port: 0}
"""


@contextlib.asynccontextmanager
async def gateway(tmp: Path, api: ModelApi) -> AsyncIterator[Gateway]:
    (tmp / "reverie.yaml").write_text(CONFIG % api.url)
    (tmp / "reverie.yaml").chmod(0o600)
    (tmp / "ana").mkdir()
    (tmp / "ana" / "IDENTITY.md").write_text("You are Ana . " + "Knows of gardens . " * 200)
    settings = read_config(tmp, {}).settings
    async with (
        asyncio.timeout(120),
        Gateway(settings, clock=ManualClock(), live=LiveSettings(settings, tmp, {})) as made,
    ):
        yield made


async def ask(made: Gateway) -> None:
    await made.ask("reverie, hello", sender="ann", room=None)


async def test_the_first_person_does_not_pay_for_the_identity_on_a_local_model(
    tmp_path: Path,
) -> None:
    async with LlamaApi() as api, gateway(tmp_path, api) as made:
        while not any(held for held in api.held):
            await asyncio.sleep(0.005)
        read_in, *_ = api.read_in
        await ask(made)
        first = api.answered[0].body
        beginning = read_in.body["messages"][0]["content"]
        assert first["messages"][0]["content"].startswith(beginning)
        assert read_in.body.get("tools") == first.get("tools")
        shared = len(beginning.split())
        number = api.completions.index(api.answered[0])
        assert shared > 600
        assert api.timings[number]["cache_n"] >= shared
