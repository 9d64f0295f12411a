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

from agent.models.base import ModelBusy, ModelMessage, ModelRequest, TextPart, ToolResult
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from agent.prompt import PromptBinding, PromptInput
from gateway.context.dream import DreamHost, DreamResult, strip_wrapping, truncate_lines
from gateway.core.clock import ManualClock
from gateway.core.facts import MemoryConsolidated, inner_conversation
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.plugins.recall import Recall
from gateway.tools.memory import MemoryTools
from reverie.testing.channels import story
from tests.kits.journal import ANN, OWNER, ROOM, Papers, at, papers
from tests.kits.scripted_turn import take_turn
from tests.kits.tools import specs_of

NOTE_TOOLS = (*specs_of(MemoryTools)[:2], *specs_of(Recall)[:1])
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


async def dream(kit: Papers, thinks: ScriptedModel, *, most: int = 1_000) -> DreamResult:
    return await kit.dreaming.dream(
        BRIEF, thinks, DreamHost(NOTE_TOOLS), agent="reverie", memory_chars=most
    )


@asynccontextmanager
async def noted(tmp: Path, *texts: str) -> AsyncIterator[Papers]:
    async with papers(tmp) as kit:
        for text in texts:
            await kit.notes.write_entry(at(ROOM), "", text)
        yield kit


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


@story
async def test_what_was_written_down_goes_into_memory_by_one_request(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.write_entry(at(ROOM), "Harbour", "Ada comes back\non Monday")
        await kit.notes.remember(at(ANN), "Ann likes tea")
        thinks = model("# MEMORY.md\n\n- Ada: back on Monday\x07\n- Ann: tea  ")
        came = await dream(kit, thinks)
        assert (came.outcome, came.requests, came.reason) == ("dreamt", 1, "")
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
        assert "at most 1000 characters" in text
        assert kit.notes.material_tokens("reverie") == 0


@story
async def test_the_prefix_is_that_of_every_turn(tmp_path: Path) -> None:
    async with noted(tmp_path, "x") as kit:
        thinks = model("- x")
        await take_turn(replace(BRIEF, input_text="hello"), thinks, Hands(), key="reverie")
        await dream(kit, thinks)
        turn, dreams = thinks.requests
        assert (turn.tools, turn.blocks, turn.shared_key, turn.conversation_id) == (
            dreams.tools,
            dreams.blocks,
            dreams.shared_key,
            dreams.conversation_id,
        )
        assert turn.now == dreams.now == ""


@story
async def test_without_anything_new_nothing_is_asked(tmp_path: Path) -> None:
    async with noted(tmp_path, "x") as kit:
        thinks = model("- x")
        await dream(kit, thinks)
        assert (await dream(kit, thinks)).outcome == "unchanged"
        await kit.notes.remember(at(ROOM, agent="echo"), "hers")
        assert (await dream(kit, thinks)).outcome == "unchanged"
        assert len(thinks.requests) == 1


@story
async def test_what_is_too_long_is_asked_for_once_more(tmp_path: Path) -> None:
    async with noted(tmp_path, "x") as kit:
        thinks = model("- long\n" * 20, "- short")
        came = await dream(kit, thinks, most=50)
        assert (came.outcome, came.requests, file(kit).read_text()) == ("dreamt", 2, "- short\n")
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
        (model("  \x00 "), "the model wrote nothing"),
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
    tmp_path: Path, thinks: ScriptedModel, reason: str
) -> None:
    async with noted(tmp_path, "x") as kit:
        file(kit).write_text("mine")
        before = kit.notes.material_tokens("reverie")
        came = await dream(kit, thinks)
        assert came.outcome == "failed"
        assert reason in came.reason
        assert file(kit).read_text() == "mine"
        assert await dreamed(kit) == []
        assert kit.notes.material_tokens("reverie") == before > 0


@story
async def test_no_tool_is_carried_out(tmp_path: Path) -> None:
    async with noted(tmp_path, "x") as kit:
        calls = (("journal", '{"title":"t","text":"x"}'),)
        script = Script(
            rules=(ScriptRule(match="no tools", reply="- x"), ScriptRule(match="", calls=calls))
        )
        came = await dream(kit, ScriptedModel(script, clock=ManualClock()))
        assert (came.outcome, came.requests, file(kit).read_text()) == ("dreamt", 2, "- x\n")


class Broke(DreamHost):
    async def can_afford(self, request: ModelRequest) -> bool:  # noqa: ARG002 - whatever it is
        return False


@story
async def test_a_dream_that_cannot_be_paid_is_not_dreamt(tmp_path: Path) -> None:
    async with noted(tmp_path, "x") as kit:
        thinks = model("- x")
        came = await kit.dreaming.dream(
            BRIEF,
            thinks,
            Broke(()),
            agent="reverie",
            memory_chars=99,
        )
        assert (came.outcome, came.reason, len(thinks.requests)) == (
            "failed",
            "dmn.daily_cost_usd",
            0,
        )


@story
async def test_a_dream_that_is_cancelled_changes_nothing_and_says_what_it_cost(
    tmp_path: Path,
) -> None:
    async with noted(tmp_path, "x") as kit:
        script = Script(
            rules=(
                ScriptRule(match="is the most", reply="y"),
                ScriptRule(match="", reply="- x\n" * 9),
            )
        )
        clock, host = ManualClock(), DreamHost(NOTE_TOOLS)
        thinks = ScriptedModel(replace(script, delay_s=1.0), clock=clock)
        task = asyncio.create_task(
            kit.dreaming.dream(BRIEF, thinks, host, agent="reverie", memory_chars=20)
        )
        while len(thinks.requests) < 2:
            await asyncio.sleep(0)
            clock.advance(0.5)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert host.progress.current.requests == 1
        assert await dreamed(kit) == []
        assert not file(kit).exists()


@story
async def test_notes_are_quoted_so_that_none_looks_like_another(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.write_entry(
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


@story
async def test_hand_edits_are_what_the_next_dream_begins_with(tmp_path: Path) -> None:
    async with noted(tmp_path, "x") as kit:
        await dream(kit, model("- x"))
        file(kit).write_bytes(b"- by hand\r\n")
        await kit.notes.remember(at(OWNER), "y")
        thinks = model("- both")
        await dream(kit, thinks)
        assert "\n  - by hand\n" in told(thinks.requests[0])
        assert (await dreamed(kit))[-1].before == "- by hand\r\n"


@pytest.mark.parametrize("reached", ["log", "file", "mark"])
async def test_a_crash_between_log_and_file_is_mended_at_the_next_start(
    tmp_path: Path, reached: str
) -> None:
    async with noted(tmp_path, "x", "y") as kit:
        await dream(kit, model("- old"))
        old, mark = file(kit).read_bytes(), (kit.directory / "memory.mark").read_bytes()
        await kit.notes.remember(at(ROOM), "z")
        await dream(kit, model("- new"))
        if reached == "log":
            file(kit).write_bytes(old)
        if reached != "mark":
            (kit.directory / "memory.mark").write_bytes(mark)
    async with papers(tmp_path) as kit:
        assert file(kit).read_text() == "- new\n"
        assert len(await dreamed(kit)) == 2
        file(kit).write_bytes(old)
    async with papers(tmp_path) as kit:
        assert file(kit).read_bytes() == old, (
            "a person put back what was there before, and it stays"
        )


@story
async def test_nothing_of_a_dream_is_found_where_others_look(tmp_path: Path) -> None:
    async with noted(tmp_path, "x") as kit:
        await dream(kit, model("- xylophone"))
        assert await kit.store.newest_entries(10, match="xylophone") == []
        assert "xylophone" not in await kit.recall(at(ROOM), "xylophone")
        assert "xylophone" in await kit.recall(at(OWNER), "xylophone")
        (entry,) = await kit.store.newest_entries(1, kinds=["dreamed"])
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
