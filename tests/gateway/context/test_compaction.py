"""Summaries: one asker at a time, three tries, bounded in time, and nothing is spent that is not
told."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from agent.models.base import (
    Model,
    ModelBusy,
    ModelError,
    ModelRequest,
    ModelUnusable,
    PromptTooLong,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    StreamStart,
    TextPart,
)
from agent.prompt import PromptInput, PromptTurn, build_request
from agent.summary import build_summary_request
from agent.tools import ENDING_TOOLS
from agent.turn_context import TurnOutcome, TurnProgress
from gateway.config.reload import LiveSettings
from gateway.context.compaction import OVER_BUDGET, Compactor
from gateway.context.history import HistoryStore, HistoryView
from gateway.core.clock import ManualClock
from gateway.core.events import RequestUsage
from gateway.core.facts import CompactionLocked, CompactionSummary, Seq, ViewFolded
from gateway.core.labels import TRUSTED_LABEL, Label
from gateway.store import NewEntry, Store, StoreClosed, rebuild
from gateway.stream.media import MediaStore
from reverie.testing.channels import story
from reverie.testing.gateway import settings
from reverie.testing.servers.model_api import Answer
from tests.agent.cache.request_kit import IDENTITY, Bench, open_bench
from tests.kits.handle import handle_of
from tests.kits.scripted_turn import ACCOUNT, USAGE, Played, Say
from tests.kits.store import place
from tests.kits.turns import Outcomes

AT = place("#a")
_TRIGGERED = 'llm_compaction_triggered_total{{agent="reverie",outcome="{}"}} 1.0'
TEXT = "Ada wants the report in /srv/a.txt. Bob promised it for Monday."
CHAT_COMMANDS = ModelRequest(
    blocks=(IDENTITY,),
    conversation=PromptTurn(input_text="hello", reply="Hi.").messages,
    max_output_tokens=4_096,
    shared_key="r",
)


class Failing(Played):
    """Raises these first, one for each request."""

    def __init__(self, *errors: ModelError, then: Sequence[Say] = (Say(text=TEXT),)) -> None:
        super().__init__(*then)
        self.errors = list(errors)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if self.errors:
            self.requests.append(request)
            raise self.errors.pop(0)
        async for chunk in super().stream(request):
            yield chunk


class Cut(Played):
    """Every answer is cut off."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        self.requests.append(request)
        yield TextPart(text="Ada wants the rep")
        yield StreamEnd(stop_reason="length", usage=USAGE, model="played-1")


class Billing(Played):
    """Never comes to an end, and is billed all the same."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:

        self.requests.append(request)
        yield StreamStart(billed_accounts=lambda: (ACCOUNT,))
        self.asked.set()
        await asyncio.Event().wait()


class Hasty(ManualClock):
    """On which short waits are over at once."""

    async def sleep(self, delay_s: float) -> None:
        if delay_s < 60:
            self.advance(delay_s)
        else:
            await super().sleep(delay_s)


@dataclass
class Host:
    """A turn that can afford so many requests."""

    affords: int = 1_000
    preparation: TurnProgress = field(default_factory=TurnProgress)
    seen: list[ModelRequest] = field(default_factory=list)
    label: Label = TRUSTED_LABEL

    async def can_afford_now(self, request: ModelRequest) -> bool:
        self.seen.append(request)
        return len(self.seen) <= self.affords

    async def build_summary_request(self, history: HistoryView) -> ModelRequest:
        raise AssertionError(history)


@dataclass
class Kit:
    store: Store
    clock: ManualClock
    model: Model
    outcomes: Outcomes = field(default_factory=Outcomes)
    host: Host = field(default_factory=Host)
    """That of the last summary."""

    def __post_init__(self) -> None:
        live = LiveSettings(settings(self.store.path.parent))
        media = MediaStore(live, Path("/nonexistent"), {}, self.clock)
        self.compactor = Compactor(
            "reverie",
            handle_of(self.store, self.clock, live=live),
            history=HistoryStore(self.store, self.clock, media),
            model=self.model,
            cache=None,
            summarizer=self.model,
            stats=self.outcomes,
            random=lambda: 0.5,
        )

    @property
    def told(self) -> list[tuple[str, float | None]]:
        return self.outcomes.counted

    async def make(
        self,
        request: ModelRequest = CHAT_COMMANDS,
        host: Host | None = None,
        *,
        leaving: int = 3,
        **more: Any,
    ) -> CompactionSummary | str:
        self.host = host or Host()
        return await self.compactor.summarise(
            AT, request, self.host, leaving=leaving, tail=1, tokens_before=900, **more
        )

    @property
    def spent(self) -> TurnOutcome:
        """What the last summary cost."""
        return self.host.preparation.current

    async def locks(self) -> list[CompactionLocked]:
        found = await self.store.entries(kinds=["compaction_lock"])
        return [one.fact for one in found if isinstance(one.fact, CompactionLocked)]

    async def free(self) -> bool:
        locks = await self.locks()
        return not locks or locks[-1].until <= self.clock.now()

    async def rests(self) -> None:
        """The lock is free, and all the same nobody tries again at once, which counts nothing."""
        assert await self.free()
        told = list(self.told)
        came = await self.make()
        assert (came, self.spent.requests) == ("the last try failed a moment ago", 0)
        assert self.told == told
        scraped = generate_latest(self.outcomes.metrics).decode()
        assert _TRIGGERED.format("failed") in scraped
        assert "lock_held" not in scraped


@asynccontextmanager
async def kit(tmp: Path, model: Model) -> AsyncIterator[Kit]:
    clock = Hasty()
    store = await Store.open(tmp / "log.db", clock)
    try:
        yield Kit(store, clock, model)
    finally:
        await store.close()


async def lock(store: Store, clock: ManualClock, holder: str, for_s: float) -> None:
    until = datetime.fromtimestamp(clock.now().timestamp() + for_s, UTC)
    fact = CompactionLocked(holder=holder, until=until)
    await store.append([NewEntry(fact=fact, at=clock.now(), conversation=AT.conversation)])


@story
async def test_a_summary_is_made_and_the_lock_given_back(tmp_path: Path) -> None:
    async with kit(tmp_path, Played(Say(text=TEXT))) as made:
        summary = await made.make()
        assert (made.spent.requests, made.spent.accounts) == (1, (ACCOUNT,))
        assert isinstance(summary, CompactionSummary)
        assert (summary.text, summary.turns, summary.tokens_before, summary.tries) == (
            TEXT,
            3,
            900,
            1,
        )
        assert (summary.model, summary.usage, summary.cost_usd) == ("played-1", USAGE, 0.25)
        assert summary.tokens_after == 22
        taken, released = await made.locks()
        assert taken.holder == released.holder
        assert (taken.until - released.until).total_seconds() == 300
        assert await made.free()
        assert made.told == [("ok", 0.0)]


@story
async def test_the_request_begins_with_what_is_cached_and_asks_the_model_as_it_can_be_asked(
    tmp_path: Path,
) -> None:
    played = Played(Say(text=TEXT))
    async with kit(tmp_path, played) as made:
        await made.make(
            replace(CHAT_COMMANDS, tools=ENDING_TOOLS, now="It is late."), most_tokens=500
        )
        (asked,) = played.requests
        assert asked == replace(
            build_summary_request(
                replace(CHAT_COMMANDS, tools=ENDING_TOOLS), tail=1, most_tokens=500
            ),
            max_output_tokens=1_000,
        )
        assert (asked.blocks, asked.tools, asked.conversation[:2]) == (
            CHAT_COMMANDS.blocks,
            ENDING_TOOLS,
            CHAT_COMMANDS.conversation,
        )


# The lock


@story
async def test_a_lock_of_somebody_else_holds(tmp_path: Path) -> None:
    played = Played()
    async with kit(tmp_path, played) as made:
        await lock(made.store, made.clock, "other", 60)
        came = await made.make()
        assert (came, played.requests) == ("a summary of it is being made", [])
        assert [one.holder for one in await made.locks()] == ["other"]
        assert made.told == [("lock_held", None)]
        assert _TRIGGERED.format("lock_held") in generate_latest(made.outcomes.metrics).decode()
        made.clock.advance(60)
        assert isinstance(await made.make(), CompactionSummary)


@story
async def test_a_process_that_dies_in_between_leaves_a_lock_that_expires(tmp_path: Path) -> None:
    played = Played(Say(waits=True), Say(text=TEXT))
    clock = ManualClock()
    store = await Store.open(tmp_path / "log.db", clock)
    task = asyncio.ensure_future(Kit(store, clock, played).make())
    await played.asked.wait()
    await store.close()  # nothing of what this process does from here on is durable
    task.cancel()
    with pytest.raises(StoreClosed):
        await task
    store = await Store.open(tmp_path / "log.db", clock)
    try:
        again = Kit(store, clock, played)
        assert await again.make() == "a summary of it is being made"
        clock.advance(300)
        assert isinstance(await again.make(), CompactionSummary)
    finally:
        await store.close()
    assert await rebuild(tmp_path / "log.db", clock=clock) == []


@story
async def test_cancelled_at_any_moment_it_leaves_no_lock(tmp_path: Path) -> None:
    for steps in range(40):
        async with kit(tmp_path / str(steps), Played(Say(text=TEXT))) as made:
            task = asyncio.ensure_future(made.make())
            for _ in range(steps):
                await asyncio.sleep(0)
            for _ in range(9):  # somebody is in a hurry
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([task])
            assert await made.free()


@story
async def test_it_ends_before_its_lock_does(tmp_path: Path) -> None:
    played = Billing()
    async with kit(tmp_path, played) as made:
        task = asyncio.ensure_future(made.make())
        await played.asked.wait()
        made.clock.advance(240)
        came = await task
        assert (came, made.spent.accounts) == ("there was none after 240 s", (ACCOUNT,))
        assert made.told == [("failed", 240.0)]
        await made.rests()


# Tries


@story
async def test_what_can_be_mended_is_tried_three_times_with_waits_in_between(
    tmp_path: Path,
) -> None:
    busy = [ModelBusy(f"busy {number}") for number in range(3)]
    for error in busy:
        error.accounts = (ACCOUNT,)
    failing = Failing(*busy)
    async with kit(tmp_path, failing) as made:
        came = await made.make()
        assert (came, len(failing.requests)) == ("busy 2", 3)
        assert (made.spent.accounts, made.spent.requests) == ((ACCOUNT,) * 3, 3)
        assert made.told == [("failed", 1.25 + 5.0)]
        await made.rests()
        made.clock.advance(300)
        assert isinstance(await made.make(), CompactionSummary)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Played(*[Say(refused=True)] * 3), "the model declined to write a summary"),
        (Played(*[Say()] * 3), "the model wrote no summary"),
        (Cut(), "the summary was cut off before it said anything"),
        (
            Played(*[Say(calls=(("a", "jot"),))] * 3),
            "the model called tools instead of writing a summary",
        ),
    ],
    ids=["refused", "empty", "cut", "tools"],
)
@story
async def test_three_bad_answers_are_enough(tmp_path: Path, model: Played, reason: str) -> None:
    async with kit(tmp_path, model) as made:
        assert (await made.make(), len(model.requests)) == (reason, 3)


@pytest.mark.parametrize(
    "error",
    [
        ModelUnusable("no key"),
        RequestRefused("no"),
        PromptTooLong("no room"),
        ModelBusy("", retry_after_s=99),
    ],
)
@story
async def test_what_cannot_be_mended_ends_it_at_once(tmp_path: Path, error: ModelError) -> None:
    error.accounts = (ACCOUNT,)
    failing = Failing(error)
    async with kit(tmp_path, failing) as made:
        came = await made.make()
        assert (came, len(failing.requests)) == (error.reason, 1)
        assert (made.spent.accounts, made.spent.requests) == ((ACCOUNT,), 1)
        await made.rests()


@story
async def test_what_cannot_be_afforded_is_not_asked(tmp_path: Path) -> None:
    played = Played(Say(), Say(text=TEXT))
    async with kit(tmp_path, played) as made:
        host = Host(affords=1)
        came = await made.make(host=host)
        assert (came, len(played.requests)) == (OVER_BUDGET, 1)
        assert (made.spent.accounts, host.seen[0]) == ((ACCOUNT,), played.requests[0])


# What the store makes of it


@story
async def test_the_fold_that_holds_a_summary_is_a_row_for_people(tmp_path: Path) -> None:
    async with kit(tmp_path, Played(Say(text=TEXT))) as made:
        summary = await made.make()
        assert isinstance(summary, CompactionSummary)
        fold = ViewFolded(start=Seq(9), reason="full", head=TEXT, summary=summary)
        (written,) = await made.store.append(
            [NewEntry(fact=fold, at=made.clock.now(), conversation=AT.conversation)]
        )
        rows = await made.store.rows("SELECT * FROM compactions_v1")
        assert [(row[0], row[1], row[3], row[6], row[8], row[11], row[12]) for row in rows] == [
            (written.seq, AT.conversation, 3, 1, "played-1", 250_000_000, TEXT)
        ]
    assert await rebuild(tmp_path / "log.db", clock=ManualClock()) == []


# On the wire


async def test_a_summary_reads_the_whole_cached_prefix() -> None:
    async with open_bench() as bench:
        history = list[PromptTurn]()

        def next_turn(heard: str) -> ModelRequest:
            brief = PromptInput(
                persona=IDENTITY.text,
                card="# Where",
                history=tuple(history),
                input_text=heard,
                conversation=AT.conversation,
            )
            return build_request(
                brief, tools=ENDING_TOOLS, max_output_tokens=100, key="ana", plain=False
            )

        last: RequestUsage | None = None
        for number in range(5):
            heard = f"[x] ann (guest): {number} " + "and so on " * 60
            bench.api.then(Answer(text=f"Answer {number}. " * 30))
            last = await bench.ask(next_turn(heard))
            history.append(PromptTurn(input_text=heard, reply=f"Answer {number}. " * 30))
            bench.clock.advance(30)
        assert last is not None
        bench.api.then(Answer(calls=(("a", "stay_silent", "{}"),)), Answer(text=TEXT))
        whole = next_turn("")
        request = replace(whole, conversation=whole.conversation[: 2 * len(history)])
        spent = await _summarise(bench, request)
        before = (
            last.usage.input_tokens + last.usage.cache_read_tokens + last.usage.cache_write_tokens
        )
        for account in spent.accounts:
            assert account.missed == ""
            assert account.usage.cache_read_tokens > before * 0.9
        assert spent.accounts[1].usage.cache_read_tokens > spent.accounts[0].usage.cache_read_tokens
        assert bench.api.violations == []


async def _summarise(bench: Bench, request: ModelRequest) -> TurnOutcome:
    with tempfile.TemporaryDirectory() as folder:
        async with kit(Path(folder), bench.model) as made:
            assert isinstance(await made.make(request), CompactionSummary)
            return made.spent
