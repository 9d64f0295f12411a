"""What an agent writes down: in the log first, then in a file; how it forgets; and what crashes
leave of it."""

import asyncio
import contextlib
import logging
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import private_files
from gateway.core.events import Address, SenderId
from gateway.core.facts import MemoryConsolidated, NoteForgotten, Seq
from gateway.core.scopes import PUBLIC
from gateway.core.text_safety import normalize_text, to_single_line
from gateway.core.tool import Requester, ToolContext, ToolOutput
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugins.memory import NO_MATCH, NOT_ALLOWED, Memory
from gateway.plugins.memory.journal_file import (
    MAX_TEXT_CHARS,
    MAX_TITLE_CHARS,
    JournalEntry,
    format_entry,
    parse_journal,
)
from gateway.plugins.recall import NOTHING_FOUND, Recall
from reverie.testing.channels import story
from tests.gateway.plugins.memory.test_dreams import dream, dreamed, model, told
from tests.kits.journal import ANN, BOB, OWN, OWNER, ROOM, STAFF, Papers, at, papers
from tests.kits.store import NOW, turn
from tests.kits.strategies import addresses
from tests.kits.tools import specs_of


def entries(kit: Papers) -> list[JournalEntry]:
    return parse_journal(kit.journal.read_text())


async def test_a_note_is_in_the_log_and_in_the_file_before_the_model_hears_of_it(
    kit: Papers,
) -> None:
    assert await kit.write_entry(at(ROOM), "Har\nbour\x07", "Ada comes\x00 back\n\n## Monday") == (
        "It is in your journal."
    )
    assert await kit.remember(at(ANN), "Ann likes tea.") == "You will remember it."
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


@pytest.mark.parametrize(
    ("title", "text"),
    [("", " \n\x00\t"), ("", "x" * (MAX_TEXT_CHARS + 1)), ("t" * (MAX_TITLE_CHARS + 1), "x")],
)
async def test_what_is_blank_or_too_long_is_refused_in_words(
    title: str, text: str, kit: Papers
) -> None:
    with pytest.raises(ToolCallRefused):
        await kit.write_entry(at(ROOM), title, text)
    assert await kit.noted() == []
    assert not kit.journal.exists()
    assert not kit.material_tokens


async def test_a_turn_that_is_interrupted_leaves_a_whole_note_or_none(kit: Papers) -> None:
    for number in range(30):
        writing = asyncio.create_task(kit.remember(at(ROOM), f"fact {number}"))
        for _ in range(number):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
    await kit.memory.stop()
    assert [one.text for one in entries(kit)] == [noted.text for noted in await kit.noted()]
    assert len(entries(kit)) == 29, "the first had not begun"


@story
async def test_a_start_that_does_not_know_what_was_written_writes_it_no_second_time(
    tmp_path: Path,
) -> None:
    async with papers(tmp_path) as kit:
        await kit.write_entry(at(ROOM), "one", "first")
        await kit.write_entry(at(ANN), "two", "second")
        whole = kit.journal.read_bytes()
        (kit.directory / "journal.mark").unlink()
    async with papers(tmp_path) as kit:
        assert kit.journal.read_bytes() == whole


@story
async def test_what_somebody_deleted_by_hand_does_not_come_back(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        for text in ("one", "two", "three"):
            await kit.write_entry(at(ROOM), "", text)
        kept = (
            "# Mine\n\n"
            + format_entry(entries(kit)[0])
            + "## 2026-11-21 10:00 - by hand\n\nand no end"
        )
        kit.journal.write_text(kept)
    async with papers(tmp_path) as kit:
        assert kit.journal.read_text() == kept
        await kit.write_entry(at(ROOM), "", "four")
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
async def test_what_the_disk_refuses_is_in_the_log_and_comes_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with papers(tmp_path) as kit:
        kit.journal.mkdir(parents=True)
        with caplog.at_level(logging.WARNING):
            assert await kit.remember(at(ROOM), "first") == "You will remember it."
        assert "cannot be written" in caplog.text
        assert "first" not in caplog.text
        kit.journal.rmdir()
        await kit.remember(at(ROOM), "second")
        assert [one.text for one in entries(kit)] == ["first", "second"]
        kit.journal.unlink()
        kit.journal.mkdir()
        await kit.remember(at(ROOM), "third")
    kit.journal.rmdir()
    async with papers(tmp_path) as kit:
        assert [one.text for one in entries(kit)] == ["third"]


async def test_nothing_is_written_through_a_link(tmp_path: Path, kit: Papers) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    kit.directory.mkdir(parents=True)
    kit.journal.symlink_to(outside)
    await kit.remember(at(ROOM), "x")
    assert outside.read_text() == "theirs"
    kit.journal.unlink()
    os.mkfifo(kit.journal)
    await kit.remember(at(ROOM), "y")
    kit.journal.unlink()
    await kit.remember(at(ROOM), "z")
    assert [one.text for one in entries(kit)] == ["x", "y", "z"]


@story
async def test_material_is_what_was_written_down_since_the_last_dream_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with papers(tmp_path) as kit:
        assert kit.material_tokens == 0
        for number in range(3):
            await kit.write_entry(at(ROOM), "", f"{number}" * 350)
        assert kit.material_tokens == 3 * 104
        second = (await kit.store.newest_entries(2, kinds=["noted"]))[0].seq
        await kit.append(
            OWN,
            MemoryConsolidated(agent="reverie", before="", after="x", upto=Seq(second), reason="r"),
        )
        await kit.append(
            OWN,
            *[MemoryConsolidated(agent="echo", before="", after="x", upto=Seq(9_999), reason="r")]
            * 50,
        )
        kit.memory.notes.mark_dreamt("reverie", second)
        assert kit.material_tokens == 104
    async with papers(tmp_path) as kit:
        assert kit.material_tokens == 104
        await kit.remember(replace(at(ROOM), agent="echo"), "x" * 350)
        assert kit.material_tokens == 104


@pytest.mark.parametrize("before", [b"", b"by hand", b"by hand\n"])
def test_what_is_appended_again_is_there_once(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(before)
    for _ in range(2):
        private_files.append_private(path, b"\n## 2026-11-21 19:00", most=99)
    assert path.read_bytes().splitlines() == [
        *before.splitlines(),
        *([b""] if before else []),
        b"## 2026-11-21 19:00",
    ]


def test_a_file_is_replaced_whole_and_never_a_link(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "MEMORY.md"
    private_files.replace_private(path, b"one")
    old, young = (path.parent / f".reverie-{digits * 8}.half" for digits in ("0a", "0b"))
    for half in (old, young):
        half.write_bytes(b"half, of a crash, or of another process")
    os.utime(old, (0, 0))
    private_files.replace_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert {*path.parent.iterdir()} == {path, young}
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(OSError, match="link"):
        private_files.replace_private(path, b"three")
    with pytest.raises(OSError, match="symbolic link"):
        private_files.read_private(path, most=99)
    assert (outside.read_text(), path.is_symlink()) == ("theirs", True)
    path.unlink()
    path.write_bytes(b"x" * 100)
    with pytest.raises(OSError, match="more than 99 bytes"):
        private_files.read_private(path, most=99)
    assert private_files.read_private(tmp_path / "none" / "f", most=1) is None


def by(place: Address, *roles: str, everything: bool | None = None) -> ToolContext:
    """A turn there that people with these roles asked for."""
    askers = tuple(
        Requester(id=SenderId(role), name=role.title(), role=role, verified=True) for role in roles
    )
    return replace(at(place, everything=everything), requesters=askers)


async def forget(kit: Papers, what: str, where: ToolContext) -> str:
    given = await kit.memory.forget(where, what=what)
    if isinstance(given, ToolOutput):
        assert given.is_untrusted
        return given.text
    return given


async def forgotten(kit: Papers) -> list[NoteForgotten]:
    return [
        one.fact
        for one in await kit.store.entries(kinds=["forgotten"])
        if isinstance(one.fact, NoteForgotten)
    ]


async def newest(kit: Papers) -> Seq:
    (one,) = await kit.store.newest_entries(1, kinds=["noted"])
    return one.seq


async def recalled(kit: Papers, words: str, place: Address = OWNER) -> list[str]:
    lines = (await kit.recall(at(place), words)).splitlines()
    return [] if lines == [NOTHING_FOUND] else lines[1:]


async def comes_to_mind(kit: Papers, line: str, place: Address = OWNER) -> str:
    return (await kit.recalled(at(place), line)).text


async def test_the_one_that_is_meant_is_told_by_nothing_any_more(kit: Papers) -> None:
    await kit.write_entry(at(ROOM), "Boats", "The harbour opens on Monday")
    await kit.remember(at(ROOM), "Zanzibar is where Ulla was born")
    assert len(await recalled(kit, "zanzibar")) == 1
    assert "Zanzibar" in await comes_to_mind(kit, "What of Zanzibar?")
    assert (await forget(kit, "ULLA zanzib", by(OWNER, "owner"))).startswith("It is forgotten.")
    assert await recalled(kit, "zanzibar") == []
    assert "Zanzibar" not in await comes_to_mind(kit, "What of Zanzibar?")
    assert await kit.store.newest_entries(10, match="zanzibar") == []
    assert (await kit.store.find_word_uses(["zanzibar"], newest=10, notes_after=0)).positions == [
        []
    ]
    (fact,) = await forgotten(kit)
    assert (fact.agent, fact.by, fact.turn) == ("reverie", "Owner (owner)", "t")
    journal = kit.journal.read_text()
    assert "Zanzibar" not in journal
    assert [entry.title for entry in parse_journal(journal)] == ["Boats"]
    assert [one.text for one in await kit.noted() if "Zanzibar" in one.text]  # the log keeps it
    thinks = model("- boats")
    await dream(kit, thinks)
    assert "Zanzibar" not in told(thinks.requests[0])


@pytest.mark.parametrize("what", ["n99", "n", "n0", "lighthouse", "!!!", "m1", "n" + "9" * 18])
async def test_what_is_not_there_is_not_forgotten(what: str, kit: Papers) -> None:
    await kit.say(1, "harbour")
    await kit.remember(at(ROOM, agent="peer"), "lighthouse")
    with pytest.raises(ToolCallRefused) as refused:
        await forget(kit, what, by(OWNER, "owner"))
    assert str(refused.value) == NO_MATCH


@pytest.mark.parametrize("place", [BOB, STAFF, OWNER])
async def test_what_is_of_another_private_place_is_not_even_there(
    place: Address, kit: Papers
) -> None:
    await kit.say(1, "hello", ANN)
    await kit.remember(at(place), "harbour")
    for where in (by(ANN, "guest"), by(ANN, "admin"), by(ROOM, "admin"), by(ROOM, "owner")):
        for what in ("harbour", f"n{await newest(kit)}"):
            with pytest.raises(ToolCallRefused) as refused:
                await forget(kit, what, where)
            assert str(refused.value) == NO_MATCH


@pytest.mark.parametrize(
    ("where", "allowed"),
    [
        (by(ROOM, "guest"), False),
        (by(ROOM, "member"), False),
        (by(ROOM), False),
        (by(ROOM, "admin", "guest"), False),
        (by(STAFF, "member"), False),
        (by(OWN), False),
        (by(ROOM, "admin"), True),
        (by(ROOM, "admin", "owner"), True),
        (by(STAFF, "admin"), True),
    ],
)
async def test_elsewhere_only_admins_can(where: ToolContext, *, allowed: bool, kit: Papers) -> None:
    await kit.say(1, "hello", ROOM)
    await kit.remember(at(ROOM), "harbour")
    if allowed:
        await forget(kit, "harbour", where)
    else:
        with pytest.raises(ToolCallRefused) as refused:
            await forget(kit, "harbour", where)
        assert str(refused.value) == NOT_ALLOWED
    assert len(await forgotten(kit)) == allowed


@pytest.mark.parametrize(
    ("asked", "asks", "allowed"),
    [
        (["guest"], "guest", True),
        (["guest"], "member", False),
        (["guest", "member"], "guest", False),
        ([], "guest", False),
    ],
)
async def test_in_a_room_whoever_alone_had_it_written_down_has_it_forgotten(
    asked: list[str], asks: str, *, allowed: bool, kit: Papers
) -> None:
    for number, who in enumerate(asked, 1):
        await kit.say(number, "harbour: write that down", who=who)
    said = await kit.store.entries(kinds=["mention"])
    await kit.remember(at(ROOM), "harbour")
    record = turn(ROOM.conversation, *[one.seq for one in said])
    await kit.store.append([replace(record, key="turn:t")])
    if allowed:
        await forget(kit, "harbour", by(ROOM, asks))
    else:
        with pytest.raises(ToolCallRefused) as refused:
            await forget(kit, "harbour", by(ROOM, asks))
        assert str(refused.value) == NOT_ALLOWED
    assert len(await forgotten(kit)) == allowed


async def test_what_people_wrote_into_the_journal_stays(kit: Papers) -> None:
    await kit.write_entry(at(ANN), "One", "first")
    await kit.write_entry(at(ROOM), "Two", "second")
    await kit.write_entry(at(ROOM), "Three", "third")
    text = kit.journal.read_text().replace("first", "first, as I said")
    by_hand = "\n## 2026-03-04 09:00 — Mine\nscope: public\n\nby hand: second\n"
    one, mark, rest = text.partition("\n## 2026-03-04 05:06:07Z — Two")
    three = rest[rest.index("\n## 2026-03-04 05:06:07Z — Three") :]
    kit.journal.write_text(f"# Journal\n{one}\nMy own thoughts of it.\n{by_hand}{mark}{rest}")
    await forget(kit, "Two second", by(OWNER, "owner"))
    assert kit.journal.read_text() == f"# Journal\n{one}\nMy own thoughts of it.\n{by_hand}{three}"
    await forget(kit, "One first", by(OWNER, "owner"))
    mine = [entry for entry in parse_journal(kit.journal.read_text()) if not entry.note_id]
    assert [(entry.title, entry.text, entry.scope) for entry in mine] == [
        ("", "My own thoughts of it.", ANN.conversation),
        ("Mine", "by hand: second", "public"),
    ]


async def test_a_dream_loses_the_line_or_is_told_to_leave_it_out(kit: Papers) -> None:
    memory = kit.directory / "MEMORY.md"
    await kit.remember(at(ROOM), "Ulla was born in Zanzibar.")
    await kit.remember(at(ROOM), "The harbour opens on Monday.")
    await dream(kit, model("- Ulla was born in Zanzibar.\n- Harbour: Mondays"))
    await forget(kit, "Zanzibar", by(OWNER, "owner"))
    assert memory.read_text() == "- Harbour: Mondays\n"
    await forget(kit, "harbour opens", by(OWNER, "owner"))
    assert memory.read_text() == "- Harbour: Mondays\n"
    assert kit.material_tokens > 0
    thinks = model("- nothing")
    assert (await dream(kit, thinks)).outcome == "dreamt"
    text = told(thinks.requests[0])
    assert (
        "(to be forgotten: MEMORY.md must say nothing of it any more; public; rests on words of"
        in text
    )
    assert ")\n  The harbour opens" in text
    assert (await dream(kit, model("x"))).outcome == "unchanged"
    assert kit.material_tokens == 0


STEPS = frozenset({"open", "write", "fsync", "replace", "unlink"})


class Cut(BaseException):
    """The end."""


class Disk:
    """The real one, until its patience is at an end. A write that is cut off has written half."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name not in STEPS:
            return real

        def step(*args: object, **kwargs: object) -> object:
            self.left -= 1
            if self.left < 0:
                raise Cut
            if self.left == 0 and name == "write":
                handle, text = args
                assert isinstance(handle, int)
                assert isinstance(text, memoryview)
                os.write(handle, text[: len(text) // 2])
                raise Cut
            return real(*args, **kwargs)

        return step


async def live(kit: Papers) -> None:
    """Everything that an agent keeps for itself, twice."""
    for number in range(2):
        await kit.write_entry(
            at(ROOM), f"title {number}", f"text {number}\n## 2026-01-01 00:00\nand more"
        )
        await kit.remember(at(ANN), f"fact {number}")
        await dream(kit, model(f"- dream {number}"))


@pytest.mark.parametrize("first", range(0, 80, 8))
def test_wherever_it_ends_the_files_follow_the_log_after_the_next_start(
    tmp_path: Path, first: int
) -> None:
    @story
    async def run() -> None:
        cuts = 0
        for steps in range(first, first + 8):
            directory = tmp_path / f"{steps}"
            directory.mkdir()
            with contextlib.suppress(Cut):
                async with papers(directory) as kit:
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr(private_files, "os", Disk(steps))
                        try:
                            await live(kit)
                        except Cut:
                            cuts += 1
                            raise
            with (
                contextlib.suppress(Cut),
                pytest.MonkeyPatch.context() as patch,
            ):  # the next start is cut off, too
                patch.setattr(private_files, "os", Disk(steps % 7))
                async with papers(directory):
                    pass
            async with papers(directory) as kit:
                entries = parse_journal(kit.journal.read_text())
                assert [one.text for one in entries] == [noted.text for noted in await kit.noted()]
                keys = [one.key for one in await kit.store.newest_entries(9, kinds=["noted"])]
                assert [f"note:{one.note_id}" for one in entries] == keys
                dreams, memory = await dreamed(kit), kit.directory / "MEMORY.md"
                assert (memory.read_text() if memory.exists() else "") == (
                    dreams[-1].after if dreams else ""
                )
        assert cuts == 8 or first >= 72, "every number of steps up to all of them was tried"

    run()


# The journal as a file: entries survive writing and reading, and edits by people do no harm.

NOTE_TOOLS = (*specs_of(Memory)[:2], *specs_of(Recall)[:1])
"""journal, remember, recall."""

AT = datetime(2026, 11, 21, 19, 40, 12, tzinfo=UTC)

odd_lines = st.sampled_from(
    [
        "## 2026-11-21 19:40:12Z",
        "## 2026-11-21 19:40 - x",
        "## 2026-99-99 99:99:99Z — no such day",
        "## 0001-01-01 00:00+23:59",
        "## 0001-01-01 00:00",
        "##\t2026-11-21T19:40:12.5-0700: x",
        "scope:",
        "\\## 2026-11-21 19:40:12Z — t",
        "\\\\## 2026-11-21T19:40Z",
        "scope: public",
        "scope: irc.libera/nick",
        "<!-- note 01ABC -->",
        "\\<!-- note 01ABC -->",
        "## Heading",
        "",
        "\\",
    ]
)
texts = st.lists(odd_lines | st.text(max_size=30), max_size=8).map("\n".join).map(normalize_text)
titles = (
    st.text(max_size=150).map(to_single_line)
    | odd_lines.map(to_single_line)
    | st.sampled_from(["- a", "— b", "a — b", "Z"])
)
kept_entries = st.builds(
    JournalEntry,
    at=st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0)),
    title=titles,
    text=texts,
    scope=st.none() | st.just(PUBLIC) | addresses.map(lambda place: place.conversation),
    note_id=st.sampled_from(["", "01KAM3Q0V5T9S8"]),
)


@given(st.lists(kept_entries, max_size=5))
def test_what_is_written_is_read_again(made: list[JournalEntry]) -> None:
    assert parse_journal("".join(map(format_entry, made))) == made


@given(st.text() | texts)
def test_any_text_is_read_and_what_was_read_can_be_written(text: str) -> None:
    read = parse_journal(text)
    assert parse_journal("".join(map(format_entry, read))) == read


@given(st.text(max_size=300))
def test_a_title_stands_on_one_line_and_is_bounded(title: str) -> None:
    assert len(to_single_line(title)) <= MAX_TITLE_CHARS
    assert len(to_single_line(title).splitlines()) <= 1
    assert to_single_line(to_single_line(title)) == to_single_line(title)


def test_an_entry_looks_like_this() -> None:
    entry = JournalEntry(
        at=AT,
        title="Harbour",
        text="## Ada\n## 2026-01-01 00:00:00Z — not one",
        scope="t.main/42",
        note_id="01A",
    )
    assert format_entry(entry) == (
        "\n## 2026-11-21 19:40:12Z — Harbour\nscope: t.main/42\n\n"
        "## Ada\n\\## 2026-01-01 00:00:00Z — not one\n<!-- note 01A -->\n"
    )


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("scope: public\nhello", PUBLIC),
        ("scope:   irc.libera/nick!user@host  \nhello", "irc.libera/nick!user@host"),
        ("hello", None),
        ("scope:\nhello", None),
        ("scope: everybody\nhello", None),
        ("scope: Public\nhello", None),
        ('scope: "public\nhello', None),
        ("scope: 17\nhello", None),
        ("\nscope: public\nhello", None),
    ],
)
def test_what_says_no_scope_is_closed(text: str, scope: str | None) -> None:
    (entry,) = parse_journal(f"# My journal\n\nKept by hand.\n\n## 2026-11-21 19:40\n{text}")
    assert entry.scope == scope
    assert entry.text.endswith("hello")
    assert entry.note_id == ""


@pytest.mark.parametrize(
    ("header", "title"),
    [
        ("## 2026-11-21 19:40:12Z", ""),
        ("## 2026-11-21 19:40:12Z — Harbour", "Harbour"),
        ("## 2026-11-21 19:40:12Z - Harbour - and more  ", "Harbour - and more"),
        ("## 2026-11-21T19:40:12.123Z — Harbour", "Harbour"),
        ("## 2026-11-21 19:40:12 — Harbour", "Harbour"),
        ("##  2026-11-21 19:40:12 UTC – Harbour", "Harbour"),
        ("## 2026-11-21T20:40:12+01:00 -- Harbour", "Harbour"),
        ("## 2026-11-21 14:10:12-0530: Harbour: and more", "Harbour: and more"),
        ("## 2026-11-22 00:40:12 +05:00", ""),
    ],
)
def test_headers_are_read_as_people_write_them(header: str, title: str) -> None:
    assert parse_journal(f"{header}\r\nscope: public\r\n\r\n## Heading\r\nhello\r\n") == [
        JournalEntry(at=AT, title=title, text="## Heading\nhello", scope=PUBLIC)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "## 2026-11-21",
        "### 2026-11-21 19:40:12Z",
        "# 2026-11-21 19:40:12Z",
        " ## 2026-11-21 19:40:12Z",
        "##2026-11-21 19:40:12Z",
        "## 2026-02-31 10:00:00Z",
        "## 2026-11-21 24:00:00Z",
        "## 0001-01-01 00:00:00+01:00",
        "## 2026-11-21 10:00:00+99:00",
        "## On 2026",
        "## 2026-11-21 19:40 and so on",
        "## 2026-11-21 19:40—Harbour",
        "2026-11-21 19:40:12Z — Harbour",
    ],
)
def test_other_headings_are_text(line: str) -> None:
    (entry,) = parse_journal(f"## 2026-11-21 19:40:12Z\nx\n{line}\nhello")
    assert entry.text == f"x\n{line}\nhello"


def test_a_write_that_was_cut_off_does_not_pass_for_a_whole_one() -> None:
    whole = format_entry(JournalEntry(at=AT, title="t", text="hello", scope=PUBLIC, note_id="01A"))
    assert all(
        not entry.note_id for cut in range(len(whole) - 4) for entry in parse_journal(whole[:cut])
    )
    assert parse_journal(whole)[0].note_id == "01A"


def test_the_tools_are_told_in_the_same_bytes() -> None:
    assert [tool.name for tool in NOTE_TOOLS] == ["journal", "remember", "recall"]
    assert NOTE_TOOLS[2].schema == (
        '{"properties":{"query":{"description":"A few words that all occur in '
        'it.","type":"string"}},'
        '"required":["query"],"type":"object"}'
    )
