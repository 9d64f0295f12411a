"""Which tools an agent is told of: all that its model's window has room for, what it does with itself always."""

import asyncio
from pathlib import Path

import pytest

from agent.tokens.counter import estimate_tokens
from gateway.core.clock import ManualClock
from gateway.tools.dispatch import MAX_WINDOW_SHARE
from tests.kits.model_gateway import BEGIN, Home, at_home, settings

FAMILIES = {"itself": "remind", "rooms": "read_room", "files": "read_file", "shell": "bash", "web": "web_fetch"}
"""One tool of each, in their order."""


def told(folder: Path, window: int) -> tuple[dict[str, bool], int]:
    """Of which families the agent has tools, and how many tokens they take."""

    async def story() -> tuple[dict[str, bool], int]:
        made = settings(folder, window=window, output=min(4_096, window // 8))
        home = Home(made, ManualClock(BEGIN), None, lambda _: "")
        home._give = lambda _: None  # type: ignore[method-assign, assignment]  # nothing but what is the gateway's own
        async with at_home(home):
            specs = home.minds.by_id["ana"].tools.specs
            names = {spec.name for spec in specs}
            tokens = sum(estimate_tokens(spec.name + spec.description + spec.schema) for spec in specs)
            return {family: tool in names for family, tool in FAMILIES.items()}, tokens

    return asyncio.run(story())


@pytest.mark.parametrize("window", [100_000, 200_000])
def test_a_large_window_has_room_for_all(tmp_path: Path, window: int, caplog: pytest.LogCaptureFixture) -> None:
    families, tokens = told(tmp_path, window)
    assert all(families.values())
    assert tokens <= window * MAX_WINDOW_SHARE
    assert "has no tools for" not in caplog.text


@pytest.mark.parametrize("window", [1_000, 4_000, 8_000, 12_000, 16_000])
def test_a_small_one_has_the_first_that_fit(tmp_path: Path, window: int, caplog: pytest.LogCaptureFixture) -> None:
    families, tokens = told(tmp_path, window)
    kept = [family for family, there in families.items() if there]
    assert kept[0] == "itself"
    assert kept == list(FAMILIES)[: len(kept)], "a later family is no stand-in for one that has no room"
    assert len(kept) == 1 or tokens <= window * MAX_WINDOW_SHARE
    left = [family for family in FAMILIES if family not in kept]
    assert ("has no tools for " + ", ".join(left) in caplog.text) == bool(left)
