"""The process is cut in any step of a fold: the view is the old one or the new one, and the story goes on.

Every append is a step (see `cut_kit`), and so is every request that is out. Folds of all kinds: results are cleared
because the cache is cold, loops are summed, turns leave under pressure and for a summary, and people ask for a fresh
view, for the last exchanges to be taken back and for a fold.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from gateway.context.history import HistoryStore
from gateway.core.clock import ManualClock
from gateway.core.events import Address
from gateway.core.facts import CompactionLocked, TurnRecord, ViewFolded
from gateway.runtime.rewind import RewindRequest
from gateway.store import AppendResult, NewEntry, Store, rebuild
from tests.gateway.system.crash.cut_kit import Steps, cutting
from tests.gateway.system.long_run.conversation_script import Mix, Script, content, said
from tests.kits.model_gateway import BEGIN, ROOM, Home, Provider, at_home, settings
from tests.servers.model_api import Answer, Json

PLACE: Final = ROOM.conversation
MIX: Final = Mix(name="cuts", tools=0.6, chars=(500, 9_000), rounds=2, looks=0.0, notes=0.1)
SUMMARY: Final = "They read files of the project and spoke of gardens; ann wants the harbour to be rebuilt by May."
ASK: Final = "will leave your view"
"""In what asks for a summary."""
LAST: Final = 100
"""Durable steps that are tried; the story has a few less."""
REQUESTS: Final = 80
Deed = tuple[str, int]
STORY: Final[Sequence[Deed]] = (
    *(("say", number) for number in range(12)),
    ("wait", 4_000),
    *(("say", number) for number in range(12, 18)),
    ("rewind", 2),
    *(("say", number) for number in range(18, 24)),
    ("compact", 0),
    ("say", 24),
    ("new", 0),
    *(("say", number) for number in range(25, 30)),
)


def summary(text: str) -> Answer | None:
    return Answer(text=SUMMARY) if ASK in text else None


@dataclass
class Life:
    """One folder, through any number of processes."""

    folder: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(BEGIN))
    script: Script = field(default_factory=lambda: Script(3, MIX, other=summary, grows=False))
    at: int = 0
    """Of the story."""
    shown: set[str] = field(default_factory=set)
    """Views, as the processes had them."""
    seen: list[str] = field(default_factory=list)
    """The view, as the log had it after each step."""
    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def home(self, opened: Callable[[Path, ManualClock], object], hangs: Callable[[Json], bool]) -> Home:
        provider = Provider(self.script, self.clock, window=16_000, hangs=hangs)
        compaction = {"enabled": True, "compact_at_pct": 0.7, "tail_keep_tokens": 1_500}
        made = settings(self.folder, window=16_000, output=1_000, recall_tokens=0, compaction=compaction)
        return Home(made, self.clock, provider, content, opened)  # type: ignore[arg-type] # it opens a store

    async def go_on(self, home: Home) -> None:
        """From where it was."""
        while self.at < len(STORY):
            what, number = STORY[self.at]
            await self._do(home, what, number)
            self.shown.add(await shown(home))
            self.at += 1

    async def _do(self, home: Home, what: str, number: int) -> None:
        if what == "wait":
            self.clock.advance(number)
        elif what == "say":
            self.clock.advance(30)
            home.said = number
            if await home.store.entry_by_key(f"message:{PLACE}:m{number + 1}") is None:
                await home.say(said(3, number, MIX))
            if (await home.store.unread_entries(PLACE, most=9)).messages:
                assert not (await home.take()).has_failed
        elif not await self._was_done(home, what):
            request = RewindRequest(
                action="rewind" if what == "rewind" else "new", at=Address.parse(PLACE), by="ann", count=max(1, number)
            )
            if what == "compact":
                await home.rewinder.compact_now(PLACE)
                return
            effect = await home.rewinder.plan(request)
            entries = [NewEntry(fact=one.fact, at=self.clock.now(), conversation=PLACE) for one in effect.facts]
            written = await home.store.append(entries)
            effect.settle(written[0])

    async def _was_done(self, home: Home, what: str) -> bool:
        """It was durable before the cut, so nobody asks again."""
        if what == "rewind":
            return bool(await home.log("rewound"))
        folds = [one.fact for one in await home.log("folded") if isinstance(one.fact, ViewFolded)]
        return any(what in fold.kinds for fold in folds)


async def shown(home: Home) -> str:
    """The view, as the process has it."""
    views = home.minds.agent_for(PLACE).context.history
    seen = await views.view(PLACE)
    return seen.digest


async def logged(home: Home) -> str:
    """The view, as the log has it."""
    kept = home.minds.agent_for(PLACE).context.history
    return (await HistoryStore(kept._store, kept._clock, kept.media).view(PLACE)).digest


def noting(life: Life, home: list[Home]) -> type[Store]:
    """A store that says what the view is like after each step."""

    class Noting(Store):
        async def append(self, entries: Sequence[NewEntry], *, lazily: bool = False) -> tuple[AppendResult, ...]:
            written = await super().append(entries, lazily=lazily)
            if home and hasattr(home[0], "minds"):
                life.seen.append(await logged(home[0]))
            return written

    return Noting


def whole_story(folder: Path) -> Life:
    """Without a cut."""

    async def run() -> Life:
        life, homes = Life(folder), list[Home]()

        def counted(_: Json) -> bool:
            life.requests += 1
            return False

        async with at_home(life.home(noting(life, homes).open, counted)) as home:
            homes.append(home)
            life.shown.add(await shown(home))
            await life.go_on(home)
            folds = [one.fact for one in await home.log("folded") if isinstance(one.fact, ViewFolded)]
            life.outcomes = Counter(kind for fold in folds for kind in fold.kinds)
            turns = [one.fact for one in await home.log("turn_ended") if isinstance(one.fact, TurnRecord)]
            life.shown |= {turn.view for turn in turns}
        return life

    return asyncio.run(run())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return whole_story(tmp_path_factory.mktemp("whole"))


def test_the_story_has_folds_of_every_kind(whole: Life) -> None:
    assert {"trim", "sum", "summary", "new"} <= set(whole.outcomes), whole.outcomes
    assert len(whole.seen) <= LAST
    assert whole.requests <= REQUESTS


def test_the_log_never_shows_a_view_that_no_process_had(whole: Life) -> None:
    """After each step it is what it was, or what it becomes."""
    assert set(whole.seen) <= whole.shown


def cut(folder: Path, *, step: int | None = None, request: int | None = None) -> tuple[Life, Steps, str]:
    """The process ends after this step, or with this request out; another one opens the store, then the story goes on.

    Returns with it the view that the second process began with.
    """
    life, steps = Life(folder), Steps([step] if step is not None else [])

    async def first() -> None:
        asked = 0

        def hangs(_: Json) -> bool:
            nonlocal asked
            asked += 1
            if asked == request:
                steps.cut.set()
            return steps.cut.is_set()

        home = life.home(cutting(steps).open, hangs)
        await home.begin()
        going, ended = asyncio.ensure_future(life.go_on(home)), asyncio.ensure_future(steps.cut.wait())
        await asyncio.wait([going, ended], return_when=asyncio.FIRST_COMPLETED)
        if going.done():
            await going
        going.cancel()
        await asyncio.sleep(0.01)  # whoever gives something back on the way out finds that nobody writes any more
        await home.kill()

    async def second() -> str:
        async with at_home(life.home(Store.open, lambda _: False)) as home:
            view = await shown(home)
            unread = (await home.store.unread_entries(PLACE, most=9)).messages
            assert len(unread) <= 1
            await life.go_on(home)
            await _ended_well(home)
            return view

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(first())
    life.script._rounds = []
    view = asyncio.run(second())
    assert asyncio.run(rebuild(folder / "reverie.db")) == [], "every table matches the log"
    return life, steps, view


async def _ended_well(home: Home) -> None:
    """Everybody was answered once, nothing was refused, and no lock is left that does not expire."""
    turns = [one.fact for one in await home.log("turn_ended") if isinstance(one.fact, TurnRecord)]
    covered = Counter(seq for turn in turns for seq in turn.covers)
    said_ = [one.seq for one in await home.log("mention")]
    assert covered == Counter(said_), "each is answered once"
    assert {turn.outcome for turn in turns} == {"replied"}
    assert home.provider is not None
    assert not home.provider.complaints
    for one in await home.log("compaction_lock"):
        assert isinstance(one.fact, CompactionLocked)
        assert (one.fact.until - one.at).total_seconds() <= 300
    assert not (await home.store.unread_entries(PLACE, most=9)).messages


def steps_of(last: int, *, every: int) -> list[object]:
    """Those in between are slow."""
    slow = [pytest.mark.system]
    return [pytest.param(step, marks=() if step % every == 0 else slow) for step in range(1, last + 1)]


@pytest.mark.parametrize("step", steps_of(LAST, every=40))
def test_after_a_cut_the_view_is_the_old_one_or_the_new_one(tmp_path: Path, whole: Life, step: int) -> None:
    life, steps, view = cut(tmp_path, step=step)
    assert steps.cut.is_set() == (step <= len(whole.seen))
    if steps.cut.is_set():
        assert view == whole.seen[step - 1]
    assert view in whole.shown
    assert life.at == len(STORY)


@pytest.mark.parametrize("request_", steps_of(REQUESTS, every=40))
def test_with_a_request_out_the_view_is_as_the_log_had_it(tmp_path: Path, whole: Life, request_: int) -> None:
    _, steps, view = cut(tmp_path, request=request_)
    assert steps.cut.is_set() == (request_ <= whole.requests)
    assert view in whole.seen or view in whole.shown


def test_a_lock_that_was_left_is_waited_out(tmp_path: Path) -> None:
    """The first process dies with the request for a summary out: the next one goes on without, then makes one."""
    life = Life(tmp_path)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_until_summary(life))
    life.script._rounds = []

    async def after() -> None:
        async with at_home(life.home(Store.open, lambda _: False)) as home:
            left = await home.store.compaction_lock(PLACE)
            assert left is not None
            assert left[1] > life.clock.now(), "it still holds"
            await life.go_on(home)
            folds = [one.fact for one in await home.log("folded") if isinstance(one.fact, ViewFolded)]
            assert sum(fold.summary is not None for fold in folds) > 0
            await _ended_well(home)

    asyncio.run(after())


async def _until_summary(life: Life) -> None:
    out = asyncio.Event()

    def hangs(body: Json) -> bool:
        if ASK in str(body["messages"][-2:]):
            out.set()
        return out.is_set()

    steps = Steps([])
    home = life.home(cutting(steps).open, hangs)
    await home.begin()
    going = asyncio.ensure_future(life.go_on(home))
    await asyncio.wait([going, asyncio.ensure_future(out.wait())], return_when=asyncio.FIRST_COMPLETED)
    if going.done():
        await going
    assert out.is_set()
    steps.cut.set()
    going.cancel()
    await asyncio.sleep(0.01)
    await home.kill()
