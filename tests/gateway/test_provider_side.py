"""What the operator lets a provider do by itself: from the configuration to the wire."""

import asyncio
from pathlib import Path

import pytest

from gateway.clock import ManualClock
from gateway.equipment import equip
from gateway.live import Live
from gateway.settings_load import load
from tests.agent.models_kit import ask
from tests.servers.model_api import ModelApi

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
            settings = load(tmp_path, {})
            async with equip(settings, ManualClock(), Live(settings), model=None) as equipment:
                await ask(equipment.models["ana"])
            edits = api.seen[0].body.get("context_management", {"edits": []})["edits"]
            assert [edit["keep"]["value"] for edit in edits] == ([] if keep is None else [keep])
            assert not api.violations

    asyncio.run(story())
