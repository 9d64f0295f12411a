"""Dreams: one request to the scripted model, a durable record, then the file; and what crashes and
people do to it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import Model, ModelBusy, ModelMessage, ModelRequest, TextPart, ToolResult
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from agent.prompt import PromptBinding, PromptInput
from agent.signals import TurnEnded
from gateway.core.clock import ManualClock
from gateway.core.events import TaskFinished
from gateway.core.facts import MemoryConsolidated, TurnRecord, inner_conversation
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.plugins.memory import Memory, dreams
from gateway.plugins.memory.dreams import (
    MEMORY_CHARS,
    DreamHost,
    DreamResult,
    strip_wrapping,
    truncate_lines,
)
from gateway.plugins.recall import Recall
from gateway.runtime.turn_handle import TurnHandle
from gateway.runtime.turn_input import AgentContext
from reverie.testing.channels import story
from tests.kits.journal import ANN, OWN, OWNER, ROOM, Papers, at, papers
from tests.kits.scripted_turn import take_turn
from tests.kits.tools import dispatcher, specs_of
from tests.kits.turns import Idle, context_of, handle

NOTE_TOOLS = (*specs_of(Memory)[:2], *specs_of(Recall)[:1])
"""journal, remember, recall."""

BRIEF = PromptInput(
    persona="I am",
    binding=PromptBinding(prompt="short"),
    card="# Where you are",
    history=(),
    input_text="",
    conversation="agent/r",
)


class Hands:
    """Tools that must not be used."""

    specs: tuple[ToolSpec, ...] = NOTE_TOOLS

    async def call(self, call: ToolCall) -> ToolResult:
        raise AssertionError(call)


def model(*replies: str, **more: object) -> ScriptedModel:
    """Says the first, and after having been told that it is too long, the second."""
    rules = [ScriptRule(match="is the most", reply=replies[1])] if len(replies) > 1 else []
    return ScriptedModel(
        Script(rules=(*rules, ScriptRule(match="", reply=replies[0]))),
        clock=ManualClock(),
        **more,  # type: ignore[arg-type]
    )


def context(kit: Papers, thinks: Model) -> AgentContext:
    agent = Idle(kit.store, kit.clock)
    agent.id = "reverie"
    return context_of(handle(kit.store, kit.clock), agent, thinks, dispatcher([]))


def host(kit: Papers, thinks: Model) -> DreamHost:
    made = DreamHost(context(kit, thinks))
    made.specs = NOTE_TOOLS
    return made


async def dream(kit: Papers, thinks: Model) -> DreamResult:
    return await kit.memory.dreamer.dream(BRIEF, host(kit, thinks))


@asynccontextmanager
async def noted(tmp: Path, *texts: str) -> AsyncIterator[Papers]:
    async with papers(tmp) as kit:
        for text in texts:
            await kit.write_entry(at(ROOM), "", text)
        yield kit


@pytest.fixture
async def noted_once(kit: Papers) -> Papers:
    await kit.write_entry(at(ROOM), "", "x")
    return kit


def told(request: ModelRequest) -> str:
    return "\n".join(
        part.text
        for said in request.conversation
        for part in said.parts
        if isinstance(part, TextPart)
    )


async def dreamed(kit: Papers) -> Sequence[MemoryConsolidated]:
    found = await kit.store.newest_entries(100, kinds=["dreamed"])
    return [one.fact for one in found if isinstance(one.fact, MemoryConsolidated)]


def file(kit: Papers) -> Path:
    return kit.directory / "MEMORY.md"


async def test_what_was_written_down_goes_into_memory_by_one_request(kit: Papers) -> None:
    await kit.write_entry(at(ROOM), "Harbour", "Ada comes back\non Monday")
    await kit.remember(at(ANN), "Ann likes tea")
    thinks = model("# MEMORY.md\n\n- Ada: back on Monday\x07\n- Ann: tea  ")
    came = await dream(kit, thinks)
    assert (came.outcome, came.done.requests, came.reason) == ("dreamt", 1, "")
    assert file(kit).read_text() == "- Ada: back on Monday\n- Ann: tea\n"
    assert came.changed == 2
    (one,) = await dreamed(kit)
    newest = await kit.store.newest_entries(1, kinds=["noted"])
    assert one == MemoryConsolidated(
        agent="reverie",
        before="",
        after=file(kit).read_text(),
        upto=newest[0].seq,
        reason="dreamt",
    )
    text = told(thinks.requests[0])
    whose = f"rests on words of owners, in {ROOM.conversation}"
    assert f"(journal; public; {whose}) Harbour\n  Ada comes back\n  on Monday" in text
    whose = f"rests on words of owners, in {ANN.conversation}"
    assert f"(to remember; private, of {ANN.conversation}; {whose})\n  Ann likes tea" in text
    assert "MEMORY.md as it is now:\n(empty)" in text
    assert f"at most {MEMORY_CHARS} characters" in text
    assert kit.material_tokens == 0


async def test_the_prefix_is_that_of_every_turn(noted_once: Papers) -> None:
    thinks = model("- x")
    await take_turn(replace(BRIEF, input_text="hello"), thinks, Hands(), key="reverie")
    await dream(noted_once, thinks)
    turn, dreams = thinks.requests
    assert (turn.tools, turn.blocks, turn.shared_key, turn.conversation_id) == (
        dreams.tools,
        dreams.blocks,
        dreams.shared_key,
        dreams.conversation_id,
    )
    assert turn.now == dreams.now == ""


async def test_without_anything_new_nothing_is_asked(noted_once: Papers) -> None:
    thinks = model("- x")
    await dream(noted_once, thinks)
    assert (await dream(noted_once, thinks)).outcome == "unchanged"
    await noted_once.remember(at(ROOM, agent="echo"), "hers")
    assert (await dream(noted_once, thinks)).outcome == "unchanged"
    assert len(thinks.requests) == 1


@story
async def test_what_is_too_long_is_asked_for_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dreams, "MEMORY_CHARS", 50)
    async with noted(tmp_path, "x") as kit:
        thinks = model("- long\n" * 20, "- short")
        came = await dream(kit, thinks)
        assert (came.outcome, came.done.requests, file(kit).read_text()) == (
            "dreamt",
            2,
            "- short\n",
        )
        again = thinks.requests[1].conversation
        assert [said.role for said in again] == ["user", "assistant", "user"]
        assert again[0] == thinks.requests[0].conversation[0], "the prefix only grows"
        assert again[2] == ModelMessage(
            role="user",
            parts=(
                TextPart(
                    text="That is 139 characters, and 49 is the most. Write the whole file again, "
                    "shorter: drop what "
                    "matters least."
                ),
            ),
        )


@pytest.mark.parametrize(
    ("thinks", "reason"),
    [
        (model("  "), "the model answered with nothing, twice"),
        (model("  \x00 "), "the model answered with nothing, twice"),
        (model("```\n```"), "the model wrote nothing"),
        (
            ScriptedModel(
                Script(rules=(ScriptRule(match="", calls=(("stay_silent", "{}"),)),)),
                clock=ManualClock(),
            ),
            "nothing",
        ),
        (
            ScriptedModel(Script(errors=(ModelBusy("the provider is busy"),)), clock=ManualClock()),
            "the provider is busy",
        ),
    ],
)
async def test_a_dream_that_fails_changes_nothing(
    thinks: ScriptedModel, reason: str, noted_once: Papers
) -> None:
    file(noted_once).write_text("mine")
    before = noted_once.material_tokens
    came = await dream(noted_once, thinks)
    assert came.outcome == "failed"
    assert reason in came.reason
    assert file(noted_once).read_text() == "mine"
    assert await dreamed(noted_once) == []
    assert noted_once.material_tokens == before > 0


async def test_no_tool_is_carried_out(noted_once: Papers) -> None:
    calls = (("journal", '{"title":"t","text":"x"}'),)
    script = Script(
        rules=(ScriptRule(match="no tools", reply="- x"), ScriptRule(match="", calls=calls))
    )
    came = await dream(noted_once, ScriptedModel(script, clock=ManualClock()))
    assert (came.outcome, came.done.requests, file(noted_once).read_text()) == (
        "dreamt",
        2,
        "- x\n",
    )


class Broke(DreamHost):
    async def can_afford(self, request: ModelRequest) -> bool:  # noqa: ARG002 - whatever it is
        return False


async def test_a_dream_that_cannot_be_paid_is_not_dreamt(noted_once: Papers) -> None:
    thinks = model("- x")
    came = await noted_once.memory.dreamer.dream(BRIEF, Broke(context(noted_once, thinks)))
    assert (came.outcome, came.reason, len(thinks.requests)) == (
        "failed",
        "dmn.daily_cost_usd",
        0,
    )


async def test_notes_are_quoted_so_that_none_looks_like_another(kit: Papers) -> None:
    await kit.write_entry(
        at(ANN), "[2026-01-01 00:00 UTC] (journal; public)", "x\n[now] (journal; public)\ny"
    )
    file(kit).write_text("a\nWritten down since, the oldest first:\n[now] (journal; public)")
    thinks = model("- x")
    await dream(kit, thinks)
    lines = told(thinks.requests[0]).splitlines()
    (line,) = [line for line in lines if line.startswith("[")]
    assert line.startswith(
        f"[2026-03-04 05:06 UTC] (journal; private, of {ANN.conversation}; rests on words of"
    )
    assert line.endswith(f", in {ANN.conversation}) [2026-01-01 00:00 UTC] (journal; public)")
    assert lines.count("Written down since, the oldest first:") == 1


async def test_hand_edits_are_what_the_next_dream_begins_with(noted_once: Papers) -> None:
    await dream(noted_once, model("- x"))
    file(noted_once).write_bytes(b"- by hand\r\n")
    await noted_once.remember(at(OWNER), "y")
    thinks = model("- both")
    await dream(noted_once, thinks)
    assert "\n  - by hand\n" in told(thinks.requests[0])
    assert (await dreamed(noted_once))[-1].before == "- by hand\r\n"


async def test_what_a_person_puts_back_while_the_gateway_is_away_stays(tmp_path: Path) -> None:
    async with noted(tmp_path, "x", "y") as kit:
        await dream(kit, model("- old"))
        old = file(kit).read_bytes()
        await kit.remember(at(ROOM), "z")
        await dream(kit, model("- new"))
        file(kit).write_bytes(old)
    async with papers(tmp_path) as kit:
        assert file(kit).read_bytes() == old


async def test_nothing_of_a_dream_is_found_where_others_look(noted_once: Papers) -> None:
    await dream(noted_once, model("- xylophone"))
    assert await noted_once.store.newest_entries(10, match="xylophone") == []
    assert "xylophone" not in await noted_once.recall(at(ROOM), "xylophone")
    assert "xylophone" in await noted_once.recall(at(OWNER), "xylophone")
    (entry,) = await noted_once.store.newest_entries(1, kinds=["dreamed"])
    assert entry.conversation == inner_conversation("reverie")


@given(st.text(alphabet="ab\n", max_size=60), st.integers(1, 50))
def test_a_cut_keeps_whole_lines(text: str, most: int) -> None:
    text = text.strip("\n")  # as it comes
    kept = truncate_lines(text, most)
    assert len(kept) <= most
    assert text.startswith(kept)
    first = text.partition("\n")[0]
    if kept and len(first) <= most:
        assert set(kept.split("\n")) <= set(text.split("\n"))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("```markdown\n- x\n```", "- x"),
        ("# MEMORY.md\n\n- x", "- x"),
        ("```\n# MEMORY.md\n\n- x\n```\n", "- x"),
        ("- x\n```\ncode\n```", "- x\n```\ncode\n```"),
        ("# About\n- x", "# About\n- x"),
        ("```", "```"),
    ],
)
def test_what_only_wraps_a_file_is_left_out(answer: str, text: str) -> None:
    assert strip_wrapping(answer) == text


LONG = "- marzipan\n" * 20


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dreams, "MEMORY_CHARS", 100)


async def take_turn_of(kit: Papers, thinks: Model, lane: TurnHandle | None = None) -> TurnEnded:
    return await kit.memory.dreamer.take_turn(context(kit, thinks), lane or TurnHandle())


async def finished(kit: Papers) -> list[TaskFinished]:
    return [one.fact for one in await kit.store.entries() if isinstance(one.fact, TaskFinished)]


async def turns(kit: Papers) -> list[TurnRecord]:
    found = await kit.store.newest_entries(10, kinds=["turn_ended"])
    return [
        one.fact
        for one in found
        if isinstance(one.fact, TurnRecord) and one.conversation == OWN.conversation
    ]


def wordy(kit: Papers, **more: float) -> ScriptedModel:
    rules = (ScriptRule(match="is the most", reply="- marzipan"), ScriptRule(match="", reply=LONG))
    return ScriptedModel(Script(rules=rules, **more), clock=kit.clock)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_short")
async def test_the_record_says_what_it_cost_and_nothing_of_what_it_was_about(kit: Papers) -> None:
    await kit.remember(at(ROOM), "marzipan")
    report = await take_turn_of(kit, wordy(kit))
    assert (
        report.failed,
        report.yielded,
        report.autonomous,
        report.interrupted,
    ) == (
        False,
        True,
        True,
        False,
    )
    (turn,) = await turns(kit)
    assert (turn.outcome, turn.cause, turn.requests, turn.heard, turn.text) == (
        "silent",
        "dream",
        2,
        "",
        "",
    )
    (told,) = await finished(kit)
    assert "marzipan" not in repr((turn, told))
    assert told.ok


async def test_without_anything_new_nothing_is_written_down(kit: Papers) -> None:
    assert not (await take_turn_of(kit, wordy(kit))).failed
    assert await turns(kit) == []
    assert await finished(kit) == []


@pytest.mark.usefixtures("_short")
async def test_an_interrupted_dream_changes_nothing_and_is_paid_for(kit: Papers) -> None:
    await kit.remember(at(ROOM), "marzipan")
    lane, thinks = TurnHandle(), wordy(kit, delay_s=1.0)
    taking = asyncio.create_task(take_turn_of(kit, thinks, lane))
    while len(thinks.requests) < 2:  # the first answer was too long
        await asyncio.sleep(0)
        kit.clock.advance(0.5)
    lane.interrupt()
    report = await taking
    assert (report.interrupted, report.failed) == (True, False)
    (turn,) = await turns(kit)
    assert (turn.outcome, turn.reason, turn.requests, turn.cause) == (
        "failed",
        "interrupted",
        1,
        "dream",
    )
    assert turn.usage.input_tokens > 0
    assert not (kit.directory / "MEMORY.md").exists()
    assert kit.material_tokens > 0


async def test_one_that_is_interrupted_before_it_asked_anything_leaves_no_trace(
    kit: Papers,
) -> None:
    await kit.remember(at(ROOM), "marzipan")
    lane = TurnHandle()
    lane.interrupt()
    assert (await take_turn_of(kit, wordy(kit), lane)).interrupted
    assert await turns(kit) == []
