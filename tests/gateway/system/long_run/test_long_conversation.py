"""A long conversation, lived through: people speak, processes end and begin, and in the end all
handles are opened."""

import asyncio
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.clock import ManualClock
from gateway.core.facts import Evidence, Seq, TurnRecord, ViewFolded
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugins.evidence import EvidenceReader
from gateway.store import AppendResult, NewEntry, Store
from gateway.stream.media import MediaStore
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import ModelApi
from tests.gateway.system.long_run.conversation_script import LONG, Mix, Script, content, said
from tests.kits.handle import handle_of
from tests.kits.model_gateway import BEGIN, ROOM, Home, Provider, at_home, settings, tokens
from tests.kits.plugins import plugin_of
from tests.kits.settings import live_settings

SAMPLED = 100
"""Handles that are opened at each restart."""


@dataclass(kw_only=True)
class Tale:
    turns: int
    window: int
    spent_s: list[float] = field(default_factory=list)
    """Of each turn."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Of folds."""
    overflows: int = 0
    opened: int = 0
    """Handles."""
    resident_mb: list[float] = field(default_factory=list)
    """After each tenth."""
    script: Script
    digest: str = ""
    """Of the view, in the end."""

    def told(self) -> str:
        part = min(1_000, len(self.spent_s) // 4)
        first, last = (
            statistics.median(some) * 1_000 for some in (self.spent_s[:part], self.spent_s[-part:])
        )
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())
        return (
            f"window {self.window}: {self.turns} turns, {self.script.requests} requests, "
            f"{self.overflows} refused as too long, folds: {kinds}; {self.script.told} results and "
            f"{self.opened} handles held to the truth, {self.script.compared} requests to the one "
            f"before; {first:.1f} ms a turn at first, {last:.1f} ms at last; "
            f"{self.resident_mb[0]:.0f} MB after a tenth, {self.resident_mb[-1]:.0f} MB in the end"
        )


def watching(script: Script) -> type[Store]:
    """A store that says when a view was folded."""

    class Watching(Store):
        async def append(self, entries: Sequence[NewEntry]) -> tuple[AppendResult, ...]:
            written = await super().append(entries)
            script.folded = script.folded or any(
                isinstance(entry.fact, ViewFolded) for entry in entries
            )
            return written

    return Watching


async def digest(home: Home) -> str:
    """Of the view as this process has it."""
    views = home.minds.agent_for(ROOM.conversation).context.history
    seen = await views.view(ROOM.conversation)
    history = await views.load_exchanges(seen, seeing=False)
    return f"{hash((seen.head, *(exchange.messages for exchange in history)))}"


async def truth(home: Home, handle: str) -> str | None:
    """What this handle names, by what was asked for; None: there is more to it."""
    kind, numbers = handle[0], [Seq(int(number)) for number in re.findall(r"\d+", handle)]
    entry = await home.store.entry(numbers[0])
    fact = entry.fact if entry is not None else None
    if kind == "e":
        assert isinstance(fact, Evidence), handle
        return (
            content(path[0]) if (path := re.findall(r"/srv/\S+\.txt", fact.origin)) else fact.text
        )
    if kind == "t":
        assert isinstance(fact, TurnRecord), handle
        called = [called for step in fact.steps for called in step.calls][numbers[1] - 1]
        return (
            content(path[0]) if (path := re.findall(r"/srv/\S+\.txt", called.arguments)) else None
        )
    return None


async def audit(home: Home, handles: Sequence[str]) -> int:
    """Open these. Raises AssertionError where one brings something else."""
    places = home.places
    media = MediaStore(live_settings(), Path("/nonexistent"), {}, home.clock)
    opener, sight = (
        plugin_of(
            EvidenceReader,
            gateway=handle_of(home.store, home.clock, places=places),
            media=media,
            plugins={},
        ),
        await places.visibility(ROOM.conversation),
    )
    for handle in handles:
        try:
            found = await opener.find(handle, sight, ROOM.conversation)
        except ToolCallRefused as refused:
            raise AssertionError(f"{handle} does not open: {refused}") from refused
        expected = await truth(home, handle)
        assert expected is None or found.text == expected, f"{handle} brings {found.text[:200]!r}"
        assert found.source.chars == len(found.text), handle
        if handle.startswith("v"):
            await _transcribed(home, handle, found.text)
    return len(handles)


async def _transcribed(home: Home, handle: str, text: str) -> None:
    """All words of these turns are in it, in their order."""
    first, end = (int(number) for number in re.findall(r"\d+", handle))
    at = 0
    for entry in await home.store.entries(
        kinds=["turn_ended"],
        conversation=ROOM.conversation,
        after=first - 1,
        before=end,
        limit=100_000,
    ):
        if isinstance(entry.fact, TurnRecord):
            for words in (entry.fact.heard, entry.fact.text):
                at = text.find(words, at)
                assert at >= 0, f"{handle} lacks {words[:200]!r}"


async def live(
    folder: Path,
    *,
    window: int,
    turns: int,
    seed: int = 1,
    mix: Mix = LONG,
    restarts: int = 4,
    chars_per_token: float = 4.0,
    real: int | None = None,
    socket: bool = False,
    names: bool = False,
    recall_tokens: int = 0,
    **optimization: Any,
) -> Tale:
    """Live through it. Raises AssertionError for everything that must not be.

    `real`: the window that the provider has, if it is not the one that is configured.
    """
    clock, script = ManualClock(BEGIN), Script(seed, mix, names=names)
    tale = Tale(turns=turns, window=window, script=script)

    def count(text: str) -> int:
        return tokens(text) if chars_per_token == 4 else int(len(text) / chars_per_token) + 1

    api = ModelApi(cache=MessagesCache(count), clock=clock.monotonic, window=real or window)
    api.default = script
    provider = Provider(script, clock, window=real or window, count=count)
    async with api:
        made = settings(
            folder,
            window=window,
            output=min(4_096, window // 8),
            url=api.url,
            recall_tokens=recall_tokens,
            **optimization,
        )
        home = Home(made, clock, None if socket else provider, content, watching(script).open)
        async with at_home(home):
            await _talk(home, tale, restarts)
            rng = random.Random(seed)
            known = sorted(script.handles)
            tale.opened += await audit(home, rng.sample(known, min(len(known), turns // 2)))
            await _reckon(home, tale)
            tale.digest = await digest(home)
    complaints = [one.complaint for one in api.violations] if socket else provider.complaints
    long = [one for one in complaints if "prompt is too long" in one]
    assert len(complaints) == len(long), next(one for one in complaints if one not in long)
    tale.overflows = len(long) if socket else provider.overflows
    return tale


async def _talk(home: Home, tale: Tale, restarts: int) -> None:
    rng, dice = random.Random(tale.script.seed), random.Random(tale.script.seed + 1)
    stops = {tale.turns * part // (restarts + 1) for part in range(1, restarts + 1)}
    for number in range(tale.turns):
        if number in stops:
            known = sorted(tale.script.handles)
            before = await digest(home)
            await home.restart()
            assert await digest(home) == before, "a restart shows other bytes"
            tale.opened += await audit(home, rng.sample(known, min(len(known), SAMPLED)))
        began = time.perf_counter()
        await home.say(said(tale.script.seed, number, tale.script.mix))
        report = await home.take()
        tale.spent_s.append(time.perf_counter() - began)
        assert not report.failed, (
            await home.store.newest_turns(ROOM.conversation, before=None, newest=1)
        )[0].fact
        home.clock.advance(dice.choice([5, 20, 40, 60, 120, 200, 900, 4_000]))
        if number % max(1, tale.turns // 10) == 0:
            tale.resident_mb.append(_resident_mb())


async def _reckon(home: Home, tale: Tale) -> None:
    for _, turn in await home.ended():
        assert turn.outcome == "replied"
        assert turn.text.startswith("Answer"), turn.text
    for entry in await home.log("folded", place=ROOM.conversation):
        assert isinstance(entry.fact, ViewFolded)
        tale.kinds.update(entry.fact.kinds)


def _resident_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def lived(**how: Any) -> Tale:
    """The same, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(live(Path(folder), **how))


# One conversation through thousands of turns: the window holds, handles open, and a restart
# changes no byte.

MANY = Mix(name="many", tools=0.25, rounds=2, calls=1)
BIG = replace(MANY, said=(50, 400), replies=(40, 120))
"""Fewer and longer lines, so that a large window is full of something else than frames."""


@pytest.mark.parametrize(
    ("window", "turns"),
    [
        (8_000, 80),
        *(
            pytest.param(window, 200, marks=pytest.mark.system)
            for window in (8_000, 32_000, 200_000)
        ),
    ],
)
def test_a_long_conversation_goes_on(window: int, turns: int) -> None:
    tale = lived(window=window, turns=turns, recall_tokens=150)
    assert tale.script.told > turns // 2
    assert tale.opened > turns // 2
    assert tale.kinds["trim"] > 0


def test_texts_may_be_denser_than_anybody_estimates() -> None:
    lived(window=8_000, turns=50, chars_per_token=2.0)


@pytest.mark.system
def test_a_window_that_is_smaller_than_anybody_was_told_is_found_out() -> None:
    """Each turn is folded and asked again until it fits; nobody is told."""
    assert lived(window=32_000, real=12_000, turns=60).overflows > 0


@pytest.mark.system
def test_it_goes_on_over_a_socket() -> None:
    assert lived(window=32_000, turns=60, socket=True, restarts=2).script.told > 20


@pytest.mark.parametrize(
    ("turns", "restarts"), [(40, 3), pytest.param(120, 11, marks=pytest.mark.system)]
)
def test_a_restart_changes_no_byte_of_any_request(turns: int, restarts: int) -> None:
    """Folded under pressure only: what is believed of the provider's cache does not outlive a
    process."""
    how = {"window": 32_000, "turns": turns, "folds": {"policy": "full"}, "names": True}
    restarted, twin = lived(restarts=restarts, **how), lived(restarts=0, **how)
    assert restarted.kinds
    assert restarted.kinds == twin.kinds
    assert restarted.script.digests == twin.script.digests


@pytest.mark.soak
@pytest.mark.parametrize("window", [8_000, 32_000, 200_000])
def test_twenty_thousand_turns(window: int) -> None:
    tale = lived(window=window, turns=20_000, restarts=10, mix=BIG if window > 100_000 else MANY)
    print(tale.told())
    early, late = (
        statistics.median(tale.spent_s[start : start + 2_000]) for start in (2_000, 18_000)
    )
    assert late < 3 * early, "turns take longer and longer"
    assert tale.resident_mb[-1] < tale.resident_mb[2] + 100, "memory grows"
