"""Views on a real store: folded when that is due, the same bytes after a restart, and the old ones
if it fails."""

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from agent.models.base import (
    ModelBusy,
    ModelMessage,
    ModelRequest,
    PromptTooLong,
    TextPart,
    ToolResult,
)
from agent.prompts import load_prompt
from agent.tokens.counter import measure_prompt
from agent.view import HEAD_START
from gateway.config.models import CompactionConfig, ContextOptimizationConfig, FoldsConfig
from gateway.context.compaction import TURNS_BETWEEN_SUMMARIES
from gateway.context.history import HistoryStore, HistoryView
from gateway.core.facts import NoteWritten, Seq, TurnRecord, ViewFolded
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolCall
from gateway.plugins.evidence import EvidenceReader
from gateway.plugins.rewind import TurnInView, find_overheard_upto, plan_new
from gateway.store import NewEntry, rebuild
from tests.kits.plugins import plugin_of
from tests.kits.scripted_turn import Drawer, Say
from tests.kits.turns import ROOM, Desk, at_desk

LOOK = Say(text="Let me see.", calls=(("c", "look_up"),))
SUMMARY = "Ann asked for many things, and each was looked up. " * 8
ALWAYS = ContextOptimizationConfig(folds=FoldsConfig(policy="always"))
ONLY_FULL = ContextOptimizationConfig(folds=FoldsConfig(policy="full"))


@dataclass
class Library(Drawer):
    """Brings much."""

    chars: int = 3_000
    brought: dict[str, str] = field(default_factory=dict)

    async def call(self, call: ToolCall) -> ToolResult:
        await super().call(call)
        text = f"{call.id}: " + "a page of it, " * (self.chars // 14)
        self.brought[call.id] = text
        return ToolResult(id=call.id, text=text)


async def talk(desk: Desk, turns: int, *, text: str = "what is that?") -> None:
    """Turns that each look something up."""
    for number in range(turns):
        desk.model.answers += [
            Say(calls=((f"c{number}", "look_up"),)),
            Say(text=f"That is {number}."),
        ]
        await desk.say("ann", f"{text} {number}")
        await desk.take()
        desk.clock.advance(60)


async def folds(desk: Desk) -> list[ViewFolded]:
    found = await desk.store.entries(kinds=["folded"], conversation=ROOM.conversation)
    return [one.fact for one in found if isinstance(one.fact, ViewFolded)]


async def viewed(desk: Desk) -> HistoryView:
    return await HistoryStore(desk.store, desk.clock, desk.means.history.media).view(
        ROOM.conversation
    )


def told(request: ModelRequest) -> str:
    return "\n".join(
        part.text
        for said in request.conversation
        for part in said.parts
        if isinstance(part, TextPart)
    )


def results(request: ModelRequest) -> list[str]:
    return [
        part.text
        for said in request.conversation
        for part in said.parts
        if isinstance(part, ToolResult)
    ]


def paired(request: ModelRequest) -> bool:
    """Sides alternate, and each call is answered by what comes next."""
    sides = request.conversation
    calls = [[part.id for part in said.parts if isinstance(part, ToolCall)] for said in sides]
    answers = [
        [part.id for part in said.parts if isinstance(part, ToolResult)]
        for said in (*sides[1:], _NOBODY)
    ]
    alternate = all(one.role != other.role for one, other in itertools.pairwise(sides))
    return alternate and calls == answers and sides[0].role == sides[-1].role == "user"


_NOBODY = ModelMessage(role="user", parts=())


async def test_what_is_cold_is_folded_for_nothing(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.drawer = Library()
        await talk(desk, 4)
        assert await folds(desk) == []
        desk.outlook = replace(desk.outlook, is_cold=True)
        await desk.say("ann", "and now?")
        await desk.take()
        (fold,) = await folds(desk)
        assert (fold.start, fold.head) == (0, "")
        assert "trim" in fold.kinds or "sum" in fold.kinds
        asked = desk.model.requests[-1]
        assert sum(len(text) > 2_900 for text in results(asked)) == 2  # the newest are whole
        assert "fetch_evidence" in told(asked) + "".join(results(asked))
        assert paired(asked)


async def test_a_view_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.drawer, desk.context = Library(), ALWAYS
        await talk(desk, 5)
        kept = await desk.means.history.view(ROOM.conversation)
        read = await viewed(desk)
        assert (kept.head, kept.turns) == (read.head, read.turns)
        assert len(await folds(desk)) > 1
        assert await rebuild_finds_nothing(desk)


async def rebuild_finds_nothing(desk: Desk) -> bool:
    await desk.store.close()
    return not await rebuild(desk.store.path)


async def test_turns_that_leave_can_be_had_back_word_for_word(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.model.context_tokens = 3_000
        for number in range(30):
            await desk.say(
                "ann", f"the number of door {number} is {number * 7919}" + ", they say" * 20
            )
            await desk.take()
        view = await viewed(desk)
        assert view.head.startswith(HEAD_START)
        assert view.turns[0].seq > 1
        (first,) = [fold for fold in await folds(desk) if fold.head][:1]
        handle = first.head.split('fetch_evidence("')[1].split('"')[0]
        where = ToolContext(
            turn=(await desk.ended())[0].turn,
            agent="ana",
            at=ROOM,
            visibility=Visibility(scope=PUBLIC),
            autonomous=False,
        )
        found = await plugin_of(
            EvidenceReader,
            gateway=desk.means.gateway,
            media=desk.means.history.media,
            plugins={},
        ).find(handle, where.visibility, where.at.conversation)
        assert "the number of door 0 is 0" in found.text
        assert "the number of door 1 is 7919" in found.text
        assert max(len(told(request)) for request in desk.model.requests) < 3_000 * 3.5
        assert all(paired(request) for request in desk.model.requests)


async def test_a_journal_entry_stands_in_for_what_it_covers(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.model.context_tokens = 3_000
        for number in range(4):
            await desk.say("ann", f"my {number}th wish is a longer one: " + "roses, " * 60)
            await desk.take()
        note = NoteWritten(
            agent="ana", scope=PUBLIC, title="Wishes", text="Ann wishes for roses.", lasting=False
        )
        at = desk.clock.now() + timedelta(seconds=1)
        await desk.store.append([NewEntry(fact=note, at=at, conversation=ROOM.conversation)])
        desk.clock.advance(60)
        for number in range(8):
            await desk.say("ann", f"and {number} " + "tulips, " * 60)
            await desk.take()
        (fold, *_) = [fold for fold in await folds(desk) if fold.head]
        assert "bridge" in fold.kinds
        assert "Wishes" in fold.head
        assert "Ann wishes for roses." in fold.head
        assert (await viewed(desk)).head in told(desk.model.requests[-1])


def compacting(desk: Desk, tail: int) -> None:
    desk.model.context_tokens = 8_000
    desk.context = ContextOptimizationConfig(
        compaction=CompactionConfig(enabled=True, tail_keep_tokens=tail)
    )


async def chat_until_folded(desk: Desk, most: int = 40) -> None:
    for number in range(most):
        await desk.say("ann", f"line {number} about the harbour " + "x" * 400)
        await desk.take()
        if await folds(desk):
            return
    raise AssertionError("nothing was folded")


async def test_a_model_summarises_what_leaves(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        compacting(desk, 300)
        said = desk.model.stream
        desk.model.stream = summarising(desk, said)  # type: ignore[method-assign]
        await chat_until_folded(desk)
        (fold,) = await folds(desk)
        assert fold.summary is not None
        assert fold.kinds[-1] == "summary"
        assert (fold.carried, fold.summary.text) == (SUMMARY.strip(), SUMMARY.strip())
        assert SUMMARY.split(".", maxsplit=1)[0] in fold.head
        assert desk.compacted == ["ok"]
        newest = (await desk.ended())[-1]
        assert newest.requests == len(newest.accounts) == 2  # the turn bears what its summary cost
        asked, answered = desk.model.requests[-2:]
        assert asked.tools == answered.tools
        assert asked.blocks == answered.blocks
        assert fold.head in told(answered)


async def test_a_summary_is_not_followed_by_another_one_at_once(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        compacting(desk, 300)
        desk.model.stream = summarising(desk, desk.model.stream)  # type: ignore[method-assign]
        for number in range(24):
            await desk.say("ann", f"line {number} about the harbour " + "x" * 4_000)
            await desk.take()
        ended = [stored.seq for stored in await desk.store.entries(kinds=["turn_ended"])]
        made = [
            stored.seq
            for stored in await desk.store.entries(kinds=["folded"])
            if isinstance(stored.fact, ViewFolded) and stored.fact.summary is not None
        ]
        assert len(made) >= 2
        between = [sum(first < seq < second for seq in ended) for first, second in pairwise(made)]
        assert min(between) >= TURNS_BETWEEN_SUMMARIES
        assert len(await folds(desk)) > len(made)  # meanwhile folds without a request make room


def summarising(desk: Desk, said):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - wraps a method of the kit
    asked = load_prompt("summarise").split("{", maxsplit=1)[0][:40]

    def stream(request: ModelRequest):  # type: ignore[no-untyped-def]  # noqa: ANN202 - the same
        if asked in told(request):
            desk.model.answers.insert(0, Say(text=SUMMARY))
        return said(request)

    return stream


async def test_without_a_summary_it_goes_on_as_it_was(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        compacting(desk, 300)
        asked = load_prompt("summarise").split("{", maxsplit=1)[0][:40]
        said = desk.model.stream

        def stream(request: ModelRequest):  # type: ignore[no-untyped-def]  # noqa: ANN202 - wraps a method of the kit
            if asked in told(request):
                desk.model.answers.insert(
                    0, Say(error=ModelBusy("overloaded", retry_after_s=3_600))
                )
            return said(request)

        desk.model.stream = stream  # type: ignore[method-assign]
        for number in range(30):
            await desk.say("ann", f"line {number} about the harbour " + "x" * 1_000)
            await desk.take()
            if desk.compacted:
                break
        assert desk.compacted == ["failed"]
        assert await folds(desk) == []
        assert "line 0 about" in told(desk.model.requests[-1])


async def test_what_the_provider_finds_too_long_is_folded_and_asked_again(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        for number in range(6):
            await desk.say("ann", f"line {number}")
            await desk.take()
        desk.model.answers += [
            Say(error=PromptTooLong("prompt is too long")),
            Say(error=PromptTooLong("still")),
            Say(text="Yes."),
        ]
        await desk.say("ann", "are you there?")
        report = await desk.take()
        assert not report.failed
        assert desk.posts[-1].post.text == "Yes."
        assert [len(fold.kinds) > 0 for fold in await folds(desk)] == [True, True]


def billed(request: ModelRequest) -> int:
    return measure_prompt(request).total


@pytest.mark.parametrize("line_tokens", [300, 1_000, 1_600])
async def test_it_is_asked_to_write_down_what_matters_once_and_before_the_fold(
    tmp_path: Path, line_tokens: int
) -> None:
    """The usable window is 12,000 tokens: nudge at 9,600, fold at 10,800."""

    async with at_desk(tmp_path) as desk:
        desk.context, desk.model.context_tokens = ONLY_FULL, 20_000
        desk.model.bill = billed
        nudged, folded = list[bool](), [0]
        while folded[-1] < 3:
            await desk.say("ann", "harbour " * (line_tokens * 7 // 16))
            await desk.take()
            nudged.append(load_prompt("write_down") in desk.model.requests[-1].now)
            folded.append(len(await folds(desk)))
        assert nudged == [turn.nudged for turn in await desk.ended()]
        at = [turn for turn, (old, new) in enumerate(pairwise(folded)) if new > old]
        assert [nudged[turn] for turn in at] == [False] * 3
        assert [sum(nudged[begun:end]) for begun, end in pairwise([0, *at])] == [1] * 3
        assert max(map(billed, desk.model.requests)) <= 12_000


async def test_what_would_be_larger_than_the_usable_window_is_folded_without_a_nudge(
    tmp_path: Path,
) -> None:
    async with at_desk(tmp_path) as desk:
        desk.context, desk.model.context_tokens = ONLY_FULL, 20_000
        desk.model.bill = billed
        for lines in ([1_000], [1_000], [1_000], [300], [1_000, 1_000]):
            for words in lines:
                await desk.say("ann", "harbour " * words)
            await desk.take()
        (fold,) = await folds(desk)
        assert "drop" in fold.kinds
        assert [turn.nudged for turn in await desk.ended()] == [False] * 5
        assert not any(load_prompt("write_down") in one.now for one in desk.model.requests)


async def test_somebody_can_want_it_folded(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.drawer, desk.context = Library(), ONLY_FULL
        assert "already short" in await desk.compact()
        await talk(desk, 6)
        words = await desk.compact()
        assert "of 6 turns" in words
        assert await folds(desk)
        assert (await desk.ended())[
            -1
        ].cause == "addressed"  # nothing was asked for it, so there is no turn
        await desk.say("ann", "go on")
        await desk.take()
        assert paired(desk.model.requests[-1])


async def test_results_keep_their_handles_whatever_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.context.compaction.ACTIVE_EVIDENCE_TOKENS", 2_000)

    async with at_desk(tmp_path) as desk:
        library = desk.drawer = Library(chars=30_000)
        desk.context = ContextOptimizationConfig(folds=FoldsConfig(policy="always"))
        await talk(desk, 6)
        where = ToolContext(
            turn=(await desk.ended())[0].turn,
            agent="ana",
            at=ROOM,
            visibility=Visibility(scope=PUBLIC),
            autonomous=False,
        )
        steps = [step for turn in await desk.ended() for step in turn.steps]
        handles = [
            called.source.handle
            for step in steps
            for called in step.calls
            if called.source is not None
        ]
        assert len(handles) == 6
        for handle, text in zip(handles, library.brought.values(), strict=True):
            assert (
                await plugin_of(
                    EvidenceReader,
                    gateway=desk.means.gateway,
                    media=desk.means.history.media,
                    plugins={},
                ).find(handle, where.visibility, where.at.conversation)
            ).text == text
            assert Seq(int(handle[1:])) > 0


async def test_a_summary_that_failed_is_not_tried_again_with_each_turn(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        compacting(desk, 300)
        asked = load_prompt("summarise").split("{", maxsplit=1)[0][:40]
        said, requests = desk.model.stream, list[ModelRequest]()

        def stream(request: ModelRequest):  # type: ignore[no-untyped-def]  # noqa: ANN202 - wraps a method of the kit
            if asked in told(request):
                requests.append(request)
                desk.model.answers.insert(
                    0, Say(error=ModelBusy("overloaded", retry_after_s=3_600))
                )
            return said(request)

        desk.model.stream = stream  # type: ignore[method-assign]
        for number in range(60):
            await desk.say("ann", f"line {number} about the harbour " + "x" * 300)
            await desk.take()
        assert len(requests) == 1
        assert desk.compacted == ["failed"]  # nobody else has its lock
        assert await folds(desk)  # it was folded without one once it had to be


async def test_what_folding_by_hand_cost_is_written_down_also_if_it_is_cut_off(
    tmp_path: Path,
) -> None:
    async with at_desk(tmp_path) as desk:
        compacting(desk, 300)
        for number in range(6):
            await desk.say("ann", f"line {number} about the harbour " + "x" * 400)
            await desk.take()
        desk.model.answers += [Say(text=""), Say(waits=True)]
        desk.model.asked.clear()
        task = asyncio.ensure_future(desk.compact())
        while len(desk.model.requests) < 8:
            desk.clock.advance(2)
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        newest = (await desk.ended())[-1]
        assert (newest.cause, newest.requests) == ("compact", 1)
        assert not (await viewed(desk)).interrupted


async def test_what_was_overheard_before_a_fresh_view_is_not_told_and_who_asked_is_answered(
    tmp_path: Path,
) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.say("ann", "hello")
        await desk.take()
        await desk.say("bob", "overheard before", kind="room", urgency=0)
        await desk.say("cat", "and I ask you")
        await desk.say("bob", "overheard later", kind="room", urgency=0)
        place = ROOM.conversation
        view = [
            TurnInView(one.seq, one.fact)
            for one in (await desk.store.view_entries(place)).turns
            if isinstance(one.fact, TurnRecord)
        ]
        unread = await desk.store.unread_entries(place, most=50)
        overheard = find_overheard_upto(unread.messages, unread.upto)
        back = plan_new(view, None, "ann", overheard=overheard)
        await desk.store.append(
            [NewEntry(fact=one.fact, at=desk.clock.now(), conversation=place) for one in back.facts]
        )
        await desk.take()
        assert "overheard before" not in desk.told()
        assert "and I ask you" in desk.told()
        assert "hello" not in told(desk.model.requests[-1])
