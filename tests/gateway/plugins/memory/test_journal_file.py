"""The journal as a file: entries survive writing and reading, and edits by people do no harm."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.scopes import PUBLIC
from gateway.core.text_safety import normalize_text, to_single_line
from gateway.plugins.memory import Memory
from gateway.plugins.memory.journal_file import (
    MAX_TITLE_CHARS,
    JournalEntry,
    format_entry,
    parse_journal,
)
from gateway.plugins.recall import Recall
from tests.kits.strategies import addresses
from tests.kits.tools import specs_of

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
entries = st.builds(
    JournalEntry,
    at=st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0)),
    title=titles,
    text=texts,
    scope=st.none() | st.just(PUBLIC) | addresses.map(lambda place: place.conversation),
    note_id=st.sampled_from(["", "01KAM3Q0V5T9S8"]),
)


@given(st.lists(entries, max_size=5))
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
