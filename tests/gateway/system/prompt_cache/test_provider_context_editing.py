"""What the operator lets a provider do by itself: from the configuration to the wire."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.loader import read_config
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from gateway.runtime.models import open_model_services
from tests.kits.model_gateway import BEGIN, Home, at_home, settings, tokens
from tests.kits.models import ask
from tests.servers.messages_cache import MessagesCache
from tests.servers.messages_prompt import blocks
from tests.servers.model_api import Answer, ModelApi

CONFIG = """\
channels: {}
agents: [{id: ana}]
llm:
  providers: {a: {kind: anthropic, api_key: sk-test, base_url: "%s"}}
  models: {main: {provider: a, name: claude-sonnet-5-5}}
  context_optimization:
    folds: {provider_side: "%s", keep_recent_tool_results: 4}
    token_counter: {enabled: false}
"""


@pytest.mark.parametrize(("said", "keep"), [("clear", 4), ("off", None)])
def test_old_tool_results_are_left_out_where_the_operator_wants_it(tmp_path: Path, said: str, keep: int | None) -> None:
    async def story() -> None:
        async with ModelApi() as api:
            (tmp_path / "reverie.yaml").write_text(CONFIG % (api.url, said))
            loaded = read_config(tmp_path, {}).settings
            async with open_model_services(LiveSettings(loaded), ManualClock(), model=None) as equipment:
                await ask(equipment.pool.get("ana", "main").model)
            edits = api.seen[0].body.get("context_management", {"edits": []})["edits"]
            assert [edit["keep"]["value"] for edit in edits] == ([] if keep is None else [keep])
            assert not api.violations

    asyncio.run(story())


def twice(body: Any) -> Answer:
    """Think, read two files one after the other, and answer."""
    said = [message for message in body["messages"] if message["role"] != "system"]
    heard = max(
        place
        for place, one in enumerate(said)
        if one["role"] == "user" and all(block["type"] != "tool_result" for block in blocks(one["content"]))
    )
    steps = (len(said) - 1 - heard) // 2
    if steps == 2:
        return Answer(text="Done.")
    ident = f"c{heard}_{steps}"
    return Answer(thinking="hmm", text="Let me see.", calls=((ident, "read_file", json.dumps({"path": ident})),))


def test_turns_go_on_as_ever_while_results_are_left_out_also_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        clock = ManualClock(BEGIN)
        async with ModelApi(cache=MessagesCache(tokens), clock=clock.monotonic) as api:
            api.default = twice
            folds = {"provider_side": "clear", "policy": "full"}  # else old results have left before
            home = Home(
                settings=settings(tmp_path, window=40_000, model="claude-opus-5-5", url=api.url, folds=folds),
                clock=clock,
                provider=None,
                files=lambda path: f"{path}: " + "words of a file " * 300,
            )
            async with at_home(home):
                for number in range(12):
                    await home.say(f"turn {number}: please look into the files")
                    await home.take()
                    clock.advance(40)
                    if number == 9:
                        await home.restart()
                ended = [fact for _, fact in await home.ended()]
            assert api.violations == []
            assert [(one.outcome, one.text, len(one.steps)) for one in ended] == [("replied", "Done.", 2)] * 12
            left_out = [[account.cleared for account in one.accounts] for one in ended]
            assert left_out[0] == [0, 0, 0]
            assert max(map(max, left_out)) > 10_000
            assert all(len(set(one)) == 1 for one in left_out if one[0])  # while a loop runs nothing more leaves

    asyncio.run(story())
