import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.irc.render import cut, plain, render

B, I = "\x02", "\x1d"  # noqa: E741 - as in every IRC client's menu


@pytest.mark.parametrize(
    ("markdown", "lines"),
    [
        ("hi", ("hi",)),
        ("a\r\n\r\nb\rc", ("a", "b", "c")),
        ("**bold** *italic*", (f"{B}bold{B} {I}italic{I}",)),
        ("***both***", ("***both***",)),
        ("**a *b* c**", (f"{B}a {I}b{I} c{B}",)),
        ("# Title **x** #", (f"{B}Title x{B}",)),
        ("#python is fine", ("#python is fine",)),
        ("`a*b*c` and `**x**`", ("`a*b*c` and `**x**`",)),
        ("`` a`*b* ``", ("`` a`*b* ``",)),
        ("a*b*c 2 * 3 * 4 2**3**4", ("a*b*c 2 * 3 * 4 2**3**4",)),
        ("__dunder_name__ snake_case _x_", ("__dunder_name__ snake_case _x_",)),
        ("*args and **kwargs", ("*args and **kwargs",)),
        ("* item", ("* item",)),
        ("[text](https://x.org/a_(b)) ok", ("text (https://x.org/a_(b)) ok",)),
        ("![cat](http://x/c.png)", ("cat (http://x/c.png)",)),
        ("[http://x](http://x) <http://y>", ("http://x http://y",)),
        ("http://x/a_b_c/__d__ *e*", (f"http://x/a_b_c/__d__ {I}e{I}",)),
        (r"2 \* 3 \*not\*", ("2 * 3 *not*",)),
        (
            "x\n```py\ndef __init__(self):\n    a*b*c\n\n\t# no\n```\n*y*",
            ("x", "def __init__(self):", "    a*b*c", "\t# no", f"{I}y{I}"),
        ),
        ("```\n**open**", ("**open**",)),
        ("~~~\n```\n~~~", ("```",)),
        ("````\n```\n````", ("```",)),
        ("\x01ACTION x\x01\x03", ("ACTION x",)),
        ("```\n```", ("```", "```")),
        ("\x02", ("\ufffd",)),
    ],
)
def test_renders(markdown: str, lines: tuple[str, ...]) -> None:
    assert render(markdown) == lines


@given(st.text(max_size=200))
def test_lines_are_lines(markdown: str) -> None:
    lines = render(markdown)
    assert lines
    for shown in lines:
        assert shown.strip(B + I + " ")
        assert not set(shown) & set("\r\n\0\x01")


@given(st.text("ab*_`\\[]()# \n~", max_size=60))
def test_code_is_never_touched(code: str) -> None:
    kept = tuple(line for line in code.split("\n") if line.strip())
    if kept and not any(line.lstrip(" ").startswith("~~~") for line in kept):
        assert render(f"~~~\n{code}\n~~~") == kept


@given(st.text("xyя ", min_size=1, max_size=300), st.integers(20, 80))
def test_formatting_goes_on_across_a_cut(words: str, limit: int) -> None:
    if not words.strip():
        return
    pieces = cut(f"{B}{words.strip()}{B} tail", limit)
    assert all(len(piece.encode()) <= limit for piece in pieces)
    assert all(piece.count(B) % 2 == 0 for piece in pieces)
    assert "".join("".join(pieces).replace(B, "").split()) == "".join((words + "tail").split())


def test_reads_without_formatting() -> None:
    assert plain("\x02b\x02 \x0304,12red\x03 \x04ff0000x\x0f\x1f\x16 1\t2\x00\r") == "b red x 1 2"
    assert plain("\x0312") == ""
