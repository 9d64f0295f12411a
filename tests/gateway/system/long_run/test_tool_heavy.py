"""Long talks full of tools, with real files, a real shell and real pages, on a strict model API: nothing is refused."""

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gateway.core.events import RequestUsage
from gateway.core.facts import TurnRecord
from tests.gateway.system.long_run.tool_heavy_kit import PLACES, Heavy, heavy
from tests.gateway.system.long_run.tool_heavy_script import Script
from tests.kits.shell import inside

pytestmark = pytest.mark.boxed

GAPS_S = (1, 5, 20, 60, 200, 900, 4_000)
EVERY = 25
"""Turns, then another process begins."""
NATIVE = (
    ("anthropic", "claude-opus-5-5", "native"),  # binds thinking
    ("anthropic", "claude-sonnet-5-5", "capability"),  # binds thinking
    ("openai", "some-model", "native"),
)
OTHERS = (
    ("anthropic", "claude-sonnet-5-5", "native"),
    ("anthropic", "claude-opus-4-8", "native"),  # takes system messages, binds nothing
    ("anthropic", "claude-sonnet-4-6", "capability"),  # takes no system messages
    ("openai", "some-model", "capability"),
)


async def live(folder: Path, turns: int, seed: int, **how: Any) -> tuple[Heavy, Script, list[RequestUsage]]:
    """Live through it. Raises AssertionError for everything that must not be."""
    rng = random.Random(seed)
    async with heavy(folder, seed=seed, **how) as (it, script):
        for number in range(turns):
            if number % EVERY == EVERY - 1:
                await it.gateway.end()
                await it.gateway.start()
            await it.turn(rng.choice(PLACES), "go on")
            assert [one.complaint for one in it.api.violations] == []
            assert script.wrong == []
            it.clock.advance(rng.choice(GAPS_S))
        entries = await it.reader.entries(kinds=["turn_ended"], limit=1_000_000)
    assert inside(folder / "files") == []
    assert [one.complaint for one in it.api.violations] == []
    ended = [one.fact for one in entries if isinstance(one.fact, TurnRecord)]
    assert {one.outcome for one in ended} <= {"replied", "yielded", "silent", "interrupted"}
    return it, script, [account for one in ended for account in one.accounts]


def lived(**how: Any) -> tuple[Heavy, Script, list[RequestUsage]]:
    """The same, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(live(Path(folder), **how))


def agrees(accounts: list[RequestUsage]) -> tuple[int, int]:
    """What was expected to be read from the cache, and what was by the provider's own bill, all together, in tokens.

    Folds in a cold cache are the reason for what differs in single requests: a place of another conversation may be
    believed to be read.
    """
    expected = sum(block.read for one in accounts for block in one.blocks)
    read = sum(one.usage.cache_read_tokens for one in accounts)
    missed = [one.missed for one in accounts if "no byte differs" in one.missed]
    assert len(missed) <= len(accounts) // 30, missed
    assert read >= 0.9 * expected
    return expected, read


@pytest.mark.parametrize(("kind", "name", "surface"), NATIVE[:1])
def test_a_talk_full_of_tools(kind: str, name: str, surface: str) -> None:
    it, script, accounts = lived(turns=15, seed=3, kind=kind, name=name, surface=surface, sees=True)
    assert script.turns == 15
    assert min(script.told, it.compared) > 20
    if kind == "anthropic":
        agrees(accounts)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "name", "surface"), [*NATIVE, *OTHERS])
def test_three_hundred_turns_full_of_tools(kind: str, name: str, surface: str) -> None:
    it, script, accounts = lived(turns=300, seed=7, kind=kind, name=name, surface=surface, sees=True)
    expected, read = agrees(accounts) if kind == "anthropic" else (0, 0)
    print(
        f"{name}, {surface}: {script.turns} turns, {script.calls} calls in {script.rounds} "
        f"rounds, {script.parts} results in part, {script.images} images, {len(it.api.seen)} requests, {it.compared} "
        f"held to the one before, {it.folds} folds, {it.shortened} shortened, {read} of {expected} tokens read"
    )
    assert script.told > 1_000
    assert it.folds > 10
