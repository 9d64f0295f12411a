"""What an agent writes down: in the log first, then in a file that people may edit."""

import asyncio
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.journal import MAX_TEXT_CHARS, MAX_TITLE_CHARS, JournalEntry, format_entry, parse_journal
from gateway.core import private_files
from gateway.core.facts import MemoryConsolidated, Seq
from gateway.core.scopes import PUBLIC
from gateway.core.tool_spec import ToolCallRefused
from tests.kits.channels import story
from tests.kits.examples import examples
from tests.kits.journal import ANN, OWN, ROOM, Papers, at, papers
from tests.kits.store import NOW


def entries(kit: Papers) -> list[JournalEntry]:
    return parse_journal(kit.journal.read_text())


@story
async def test_a_note_is_in_the_log_and_in_the_file_before_the_model_hears_of_it(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        assert await kit.notes.write_entry(at(ROOM), "Har\nbour\x07", "Ada comes\x00 back\n\n## Monday") == (
            "It is in your journal."
        )
        assert await kit.notes.remember(at(ANN), "Ann likes tea.") == "You will remember it."
        first, second = await kit.noted()
        assert (first.title, first.text, first.scope, first.lasting) == (
            "Har bour",
            "Ada comes back\n\n## Monday",
            PUBLIC,
            False,
        )
        assert (second.title, second.text, second.scope, second.lasting) == (
            "",
            "Ann likes tea.",
            ANN.conversation,
            True,
        )
        assert [(one.title, one.text, one.scope, one.at) for one in entries(kit)] == [
            ("Har bour", first.text, PUBLIC, NOW),
            ("to remember", second.text, ANN.conversation, NOW),
        ]
        stored = await kit.store.newest_entries(2, kinds=["noted"])
        assert [one.key for one in stored] == [f"note:{one.note_id}" for one in entries(kit)]
        assert [one.conversation for one in stored] == [ROOM.conversation, ANN.conversation]


@story
async def test_the_files_are_their_owners_alone(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "x")
        assert kit.directory == tmp_path / "mind" / "reverie"
        for path in (kit.directory, kit.directory.parent):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(kit.journal.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("title", "text"), [("", " \n\x00\t"), ("", "x" * (MAX_TEXT_CHARS + 1)), ("t" * (MAX_TITLE_CHARS + 1), "x")]
)
def test_what_is_blank_or_too_long_is_refused_in_words(tmp_path: Path, title: str, text: str) -> None:
    @story
    async def refused() -> None:
        async with papers(tmp_path) as kit:
            with pytest.raises(ToolCallRefused):
                await kit.notes.write_entry(at(ROOM), title, text)
            assert await kit.noted() == []
            assert not kit.journal.exists()
            assert not kit.notes.material_tokens("reverie")

    refused()


@story
async def test_notes_that_are_written_at_once_all_stand_in_the_order_of_the_log(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await asyncio.gather(*(kit.notes.remember(at(ROOM), f"fact {number}") for number in range(20)))
        assert [one.text for one in entries(kit)] == [noted.text for noted in await kit.noted()]
        assert len(entries(kit)) == 20


@story
async def test_a_turn_that_is_interrupted_leaves_a_whole_note_or_none(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        for number in range(30):
            writing = asyncio.create_task(kit.notes.remember(at(ROOM), f"fact {number}"))
            for _ in range(number):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])
        await kit.notes.close()
        assert [one.text for one in entries(kit)] == [noted.text for noted in await kit.noted()]
        assert len(entries(kit)) == 29, "the first had not begun"


def crash(kit: Papers, keep: bytes, mark: bytes | None) -> None:
    """The files as they were before the last note, or in its middle."""
    kit.journal.write_bytes(keep)
    path = kit.directory / "journal.mark"
    path.unlink()
    if mark is not None:
        path.write_bytes(mark)


@pytest.mark.parametrize("with_mark", [True, False])
@pytest.mark.parametrize("cut", [0, 2, 5, 30, 60, 100, 10_000])
def test_a_start_writes_what_a_crash_kept_from_the_file_once(tmp_path: Path, cut: int, with_mark: bool) -> None:
    @story
    async def run() -> None:
        async with papers(tmp_path) as kit:
            await kit.notes.write_entry(at(ROOM), "one", "first")
            before, mark = kit.journal.read_bytes(), (kit.directory / "journal.mark").read_bytes()
            await kit.notes.write_entry(at(ANN), "two", "second " * 10)
            whole = kit.journal.read_bytes()
            crash(kit, whole[: len(before) + cut], mark if with_mark else None)
        for _ in range(2):
            async with papers(tmp_path) as kit:
                assert kit.journal.read_bytes() == whole

    run()


@story
async def test_a_journal_that_is_lost_with_its_mark_is_written_anew_from_the_log(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        for number in range(3):
            await kit.notes.write_entry(at(ROOM), "", f"{number}")
        whole = kit.journal.read_bytes()
        for path in kit.directory.iterdir():
            path.unlink()
    async with papers(tmp_path) as kit:
        assert kit.journal.read_bytes() == whole


@story
async def test_what_somebody_deleted_by_hand_does_not_come_back(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        for text in ("one", "two", "three"):
            await kit.notes.write_entry(at(ROOM), "", text)
        kept = "# Mine\n\n" + format_entry(entries(kit)[0]) + "## 2026-11-21 10:00 - by hand\n\nand no end"
        kit.journal.write_text(kept)
    async with papers(tmp_path) as kit:
        assert kit.journal.read_text() == kept
        await kit.notes.write_entry(at(ROOM), "", "four")
        assert kit.journal.read_text().startswith(f"{kept}\n\n## ")
        assert [(one.text, one.scope) for one in entries(kit)] == [
            ("one", PUBLIC),
            ("and no end", None),
            ("four", PUBLIC),
        ]
        kit.journal.unlink()
    async with papers(tmp_path) as kit:
        assert not kit.journal.exists()


@story
async def test_a_note_whose_mark_was_cut_off_does_not_come_back_either(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.write_entry(at(ROOM), "", "one")
        (kit.directory / "journal.mark").unlink()
    async with papers(tmp_path) as kit:
        kit.journal.write_text("")
    async with papers(tmp_path) as kit:
        assert kit.journal.read_text() == ""


@story
async def test_another_stores_mark_does_not_count(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.write_entry(at(ROOM), "", "one")
        crash(kit, b"", b"01OTHER")
    async with papers(tmp_path) as kit:
        assert [one.text for one in entries(kit)] == ["one"]


@story
async def test_what_the_disk_refuses_is_in_the_log_and_comes_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with papers(tmp_path) as kit:
        kit.journal.mkdir(parents=True)
        with caplog.at_level(logging.WARNING):
            assert await kit.notes.remember(at(ROOM), "first") == "You will remember it."
        assert "cannot be written" in caplog.text
        assert "first" not in caplog.text
        kit.journal.rmdir()
        await kit.notes.remember(at(ROOM), "second")
        assert [one.text for one in entries(kit)] == ["first", "second"]
        kit.journal.unlink()
        kit.journal.mkdir()
        await kit.notes.remember(at(ROOM), "third")
    kit.journal.rmdir()
    async with papers(tmp_path) as kit:
        assert [one.text for one in entries(kit)] == ["third"]


@story
async def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    async with papers(tmp_path) as kit:
        kit.directory.mkdir(parents=True)
        kit.journal.symlink_to(outside)
        await kit.notes.remember(at(ROOM), "x")
        assert outside.read_text() == "theirs"
        kit.journal.unlink()
        os.mkfifo(kit.journal)
        await kit.notes.remember(at(ROOM), "y")
        kit.journal.unlink()
        await kit.notes.remember(at(ROOM), "z")
        assert [one.text for one in entries(kit)] == ["x", "y", "z"]


@story
async def test_agents_have_their_own_papers(tmp_path: Path) -> None:
    async with papers(tmp_path, agents=("reverie", "echo")) as kit:
        await kit.notes.remember(at(ROOM), "mine")
        await kit.notes.remember(at(ROOM, agent="echo"), "hers")
        assert [one.text for one in entries(kit)] == ["mine"]
        assert "hers" in (tmp_path / "mind" / "echo" / "journal.md").read_text()
        assert kit.notes.material_tokens("echo") > 0


@story
async def test_agents_that_share_a_workspace_share_a_journal(tmp_path: Path) -> None:
    shared = tmp_path / "workspace"
    both = ("reverie", "echo")
    async with papers(tmp_path, agents=both, where=lambda _: shared) as kit:
        await asyncio.gather(*(kit.notes.remember(at(ROOM, agent=agent), agent) for agent in both))
        whole = kit.journal.read_text()
        assert sorted(one.text for one in entries(kit)) == ["echo", "reverie"]
    async with papers(tmp_path, agents=both, where=lambda _: shared) as kit:
        assert kit.journal.read_text() == whole


@story
async def test_material_is_what_was_written_down_since_the_last_dream_also_after_a_restart(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        assert kit.notes.material_tokens("reverie") == 0
        for number in range(3):
            await kit.notes.write_entry(at(ROOM), "", f"{number}" * 350)
        everything = kit.notes.material_tokens("reverie")
        assert everything == 3 * 104
        second = (await kit.store.newest_entries(2, kinds=["noted"]))[0].seq
        await kit.append(OWN, MemoryConsolidated(agent="reverie", before="", after="x", upto=Seq(second), reason="r"))
        await kit.append(
            OWN, *[MemoryConsolidated(agent="echo", before="", after="x", upto=Seq(9_999), reason="r")] * 50
        )
        kit.notes.mark_dreamt("reverie", second)
        assert kit.notes.material_tokens("reverie") == 104
    async with papers(tmp_path) as kit:
        assert kit.notes.material_tokens("reverie") == 104
        await kit.notes.remember(replace(at(ROOM), agent="echo"), "x" * 350)
        assert kit.notes.material_tokens("reverie") == 104


@given(before=st.binary(max_size=60), text=st.binary(min_size=30, max_size=60), cut=st.integers(0, 60))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_append_that_was_cut_off_anywhere_is_gone_on_with(
    tmp_path: Path, before: bytes, text: bytes, cut: int
) -> None:
    path = tmp_path / "f"
    path.write_bytes(before)
    text = b"\n## 2026-11-21 19" + text
    private_files.append_private(path, text)
    whole = path.read_bytes()
    assert whole.startswith(before)
    assert whole.endswith(text[1:])
    path.write_bytes(whole[: len(whole) - min(cut, len(text) - 2)])
    private_files.append_private(path, text)
    private_files.append_private(path, text)
    assert path.read_bytes() == whole


def test_a_file_is_replaced_whole_and_never_a_link(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "MEMORY.md"
    private_files.replace_private(path, b"one")
    (path.parent / ".MEMORY.md.new").write_bytes(b"half, of a crash")
    private_files.replace_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert [one.name for one in path.parent.iterdir()] == ["MEMORY.md"]
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(OSError, match="link"):
        private_files.replace_private(path, b"three")
    with pytest.raises(OSError, match="symbolic link"):
        private_files.read_private(path, most=99)
    with pytest.raises(OSError, match="symbolic link"):
        private_files.read_tail(path, most=99)
    assert (outside.read_text(), path.is_symlink()) == ("theirs", True)
    path.unlink()
    path.write_bytes(b"x" * 100)
    with pytest.raises(OSError, match="more than 99 bytes"):
        private_files.read_private(path, most=99)
    assert private_files.read_tail(path, most=3) == b"xxx"
    assert private_files.read_private(tmp_path / "none" / "f", most=1) is None
