"""Texts in files: how they are told, and how a piece of one is replaced."""

import re
import zlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.tool_spec import ToolCallRefused
from gateway.tools.files import (
    MAX_LINE_CHARS,
    MAX_READ_CHARS,
    MAX_REPLACEMENTS,
    decode_text,
    describe_binary,
    render_edit,
    render_lines,
    replace_text,
)

MOST = 1_000_000


def edit(data: bytes | str, old: str, new: str, *, everywhere: bool = False, most: int = MOST) -> bytes:
    whole = data.encode() if isinstance(data, str) else data
    return replace_text("a.txt", whole, old, new, everywhere=everywhere, max_bytes=most).data


def refusal(data: bytes | str, old: str, new: str = "NEW", *, everywhere: bool = False, most: int = MOST) -> str:
    with pytest.raises(ToolCallRefused) as why:
        edit(data, old, new, everywhere=everywhere, most=most)
    return str(why.value)


def read(data: bytes, offset: int = 1, limit: int = 10_000) -> str:
    return render_lines("a.txt", decode_text(data), offset, limit)[0]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", ""),
        (b"plain", ""),
        ("größer 🙂".encode(), ""),
        ("größer".encode("latin-1"), ""),
        (b"\xef\xbb\xbfwith a mark", ""),
        (b"GIF89a is how a GIF begins", ""),
        (b"ID3 is a tag", ""),
        (b"x" * 8_192 + b"\0", ""),
        (b"x" * 8_191 + b"\0", "binary data"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a picture: look at it with view_image"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a picture: look at it with view_image"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"PK\x03\x04\x14\0", "a ZIP archive (or an office document)"),
        (b"\x1f\x8b\x08", "a gzip archive"),
        (zlib.compress(b"") + b"\0", "binary data"),
        (b"\x7fELF\x02\x01\x01\0", "a program"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"OggS\0", "a sound"),
        ("UTF-16".encode("utf-16"), "a text in UTF-16, and only UTF-8 can be read"),
    ],
)
def test_what_is_no_text_is_known_by_what_is_in_it(data: bytes, what: str) -> None:
    assert describe_binary(data) == what


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", "a.txt is empty."),
        (b"\xef\xbb\xbf", "a.txt is empty; begins with a byte order mark."),
        (b"one", "a.txt, 1 line\n     1\tone"),
        (b"one\n", "a.txt, 1 line\n     1\tone"),
        (b"\n", "a.txt, 1 line\n     1\t"),
        (b"one\n\ntwo\n", "a.txt, 3 lines\n     1\tone\n     2\t\n     3\ttwo"),
        (b"one\r\ntwo\r\n", "a.txt, 2 lines; lines end with CRLF\n     1\tone\n     2\ttwo"),
        (b"one\r\ntwo\n", "a.txt, 2 lines; 1 of its lines end with CRLF\n     1\tone\n     2\ttwo"),
        (b"\xef\xbb\xbfone", "a.txt, 1 line; begins with a byte order mark\n     1\tone"),
        ("a\u2028b\x0bc\x85d".encode(), "a.txt, 1 line\n     1\ta\u2028b\x0bc\x85d"),
        (
            b"na\xefve\xff \xef\xbf\xbd",
            "a.txt, 1 line; 2 bytes that are no text in UTF-8 are shown as \ufffd\n     1\tna\ufffdve\ufffd \ufffd",
        ),
    ],
)
def test_it_is_told_with_what_cannot_be_seen(data: bytes, shown: str) -> None:
    assert read(data) == shown


def test_a_part_says_where_to_go_on() -> None:
    data = b"".join(b"line %d\n" % number for number in range(1, 21))
    assert read(data, 1, 2) == "a.txt, 20 lines, here 1 to 2 (go on with offset=3)\n     1\tline 1\n     2\tline 2"
    assert read(data, 19, 5) == "a.txt, 20 lines, here 19 to 20\n    19\tline 19\n    20\tline 20"
    with pytest.raises(ToolCallRefused, match="has 20 lines: offset can be 1 to 20"):
        read(data, 21)


def test_long_lines_and_long_parts_are_cut_and_say_so() -> None:
    one = read(b"x" * (MAX_LINE_CHARS + 1_234))
    assert one.endswith("x... [1,234 more characters in this line]")
    many = (b"y" * 999 + b"\n") * 1_000
    first = read(many)
    assert len(first) <= MAX_READ_CHARS + 200
    number = int(re.findall(r"offset=(\d+)", first)[0])
    assert read(many, number).splitlines()[1].startswith(f"{number:6}\ty")


one_line = st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8"), max_size=20)
lines = st.lists(one_line, min_size=1, max_size=30)


@given(lines, st.integers(1, 10))
def test_going_on_brings_every_line_once(given_lines: list[str], limit: int) -> None:
    data = ("\n".join(given_lines) + "\n").encode()
    assume(not data.startswith(b"\xef\xbb\xbf"))
    found, offset = list[str](), 1
    while offset <= len(given_lines):
        text, last = render_lines("a.txt", decode_text(data), offset, limit)
        found += text.split("\n")[1:]
        offset = last + 1
    assert [line.partition("\t")[2] for line in found] == given_lines
    assert [int(line.partition("\t")[0]) for line in found] == list(range(1, len(given_lines) + 1))


@pytest.mark.parametrize(
    ("data", "old", "new", "made"),
    [
        (b"one two three", "two", "2", b"one 2 three"),
        (b"one two three", "two ", "", b"one three"),
        (b"a\nb\nc\n", "a\nb", "x", b"x\nc\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\nb\nc\n", "b", "x\r\ny", b"a\nx\ny\nc\n"),
        (b"a\r\nb\nc\nd\n", "a\nb", "x\ny", b"x\r\ny\nc\nd\n"),
        (b"a\r\nb\nc\nd\n", "b\nc", "x\ny", b"a\r\nx\ny\nd\n"),
        (b"\xef\xbb\xbfone", "one", "1", b"\xef\xbb\xbf1"),
        (b"caf\xe9 one", "one", "1", b"caf\xe9 1"),
        ("größer".encode(), "ö", "oe", b"gro" + "eßer".encode()),
        (b"a.c abc", "a.c", "x", b"x abc"),
        (b"a\r\n", "\n", "", b"a"),
        (b"\\1 \\g<0>", "\\1", "\\2", b"\\2 \\g<0>"),
        (b"x", "x", "\\g<0>\\n", b"\\g<0>\\n"),
    ],
)
def test_what_is_replaced_keeps_the_files_ways(data: bytes, old: str, new: str, made: bytes) -> None:
    assert edit(data, old, new) == made


@pytest.mark.parametrize(
    ("data", "old", "why"),
    [
        (b"one", "two", "`old` does not stand in a.txt: read the file again, and copy it exactly."),
        (b"a\n\tif x:\n", "    if x:", "but with other blanks or line ends in line 2: copy it exactly"),
        (b"a b\n", "a\nb", "but with other blanks or line ends in line 1"),
        (b"one\ntwo", "     1\tone\n     2\ttwo", "leave out the line numbers and the tabs behind them"),
        (b"\none\ntwo", "one\nthree", "its first line does, in line 2, and goes on differently"),
        (b"a\nNEW\n", "old", "but `new` does already, in line 2: nothing is to be done"),
        (b"a\nb\na\n", "a", "stands in a.txt 2 times (lines 1, 3)"),
        (b"a\n" * 9, "a", "stands in a.txt 9 times (lines 1, 2, 3, 4, 5 and more)"),
        (b"aaa", "aa", "more than once, overlapping"),
        (b"aa\naa\naa\n", "aa\naa", "more than once, overlapping"),
        (b"NEW", "NEW", "would change nothing"),
        (b"x", "\ud800", "half a surrogate pair"),
    ],
)
def test_what_is_refused_says_what_to_do(data: bytes, old: str, why: str) -> None:
    assert why in refusal(data, old)


def test_all_of_them_are_replaced_if_it_is_asked_for() -> None:
    assert edit(b"a b a b a", "a", "xx", everywhere=True) == b"xx b xx b xx"
    assert edit(b"aaaaa", "aa", "b", everywhere=True) == b"bba"


def test_a_change_that_would_fill_the_memory_is_refused_before() -> None:
    assert "more than the 1,000,000 bytes" in refusal(b"a" * 50_000, "a", "x" * 1_000_000, everywhere=True)
    assert "`old` has at most 100,000 bytes" in refusal(b"a", "a" * 100_001)
    assert f"more than {MAX_REPLACEMENTS:,} times" in refusal(b"a" * (MAX_REPLACEMENTS + 1), "a", everywhere=True)


def test_the_change_is_shown_where_it_is() -> None:
    data = "".join(f"line {number}\n" for number in range(1, 101)).encode()
    one = replace_text("a.txt", data, "line 50\n", "fifty\nand more\n", everywhere=False, max_bytes=MOST)
    assert render_edit("a.txt", one).split("\n") == [
        "a.txt, 101 lines; 1 place changed:",
        *(f"{at:6}\t{line}" for at, line in enumerate(("line 48", "line 49", "fifty", "and more", "line 51"), 48)),
        "    53\tline 52",
    ]
    many = replace_text("a.txt", data, "line 1", "LINE 1", everywhere=True, max_bytes=MOST)
    shown = render_edit("a.txt", many)
    assert "12 places changed" in shown
    assert shown.endswith("... and 9 more places")
    assert [int(number) for number in re.findall(r"(\d+)\tLINE", shown)] == [1, 10, 11, 12, 13]
    assert shown.count("\n   ...") == 2
    all_gone = replace_text("a.txt", b"a", "a", "", everywhere=False, max_bytes=MOST)
    assert render_edit("a.txt", all_gone) == "a.txt, 0 lines; 1 place changed:"
    long = replace_text("a.txt", b"a\n", "a", "\n".join(["x"] * 500), everywhere=False, max_bytes=MOST)
    assert len(render_edit("a.txt", long).splitlines()) < 40


short = st.text(st.sampled_from("ab \n"), max_size=12)


@given(short, short.filter(bool), short, st.booleans())
def test_it_does_what_replacing_text_does(text: str, old: str, new: str, crlf: bool) -> None:
    assume(not crlf or "\n" in text)

    def ended(one: str) -> bytes:
        return one.replace("\n", "\r\n").encode() if crlf else one.encode()

    times = sum(text.startswith(old, at) for at in range(len(text)))
    if times == 0 or old == new:
        refusal(ended(text), old, new)
        return
    assert edit(ended(text), old, new, everywhere=True) == ended(text.replace(old, new))
    if times == 1:
        assert edit(ended(text), old, new) == ended(text.replace(old, new))
    else:
        assert "`all`" in refusal(ended(text), old, new)


@given(st.binary(max_size=60), st.text(min_size=1, max_size=5), st.text(max_size=5), st.binary(max_size=60))
def test_every_other_byte_stays(before: bytes, old: str, new: str, behind: bytes) -> None:
    assume("\r" not in old + new and "\n" not in old + new and old != new)
    data = before + old.encode() + behind
    assume(data.count(old.encode()) == 1 and old.encode() not in data[len(before) + 1 :])
    assert edit(data, old, new) == before + new.encode() + behind


@given(st.binary(max_size=200))
def test_any_bytes_are_told(data: bytes) -> None:
    text = read(data) if data else ""
    assert "\0" not in text
    text.encode()
