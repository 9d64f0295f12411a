import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord.outgoing import render as discord_markdown
from channels.markdown import TextRun, parse_markdown
from channels.text import clean_outgoing
from tests.kits.scaling import assert_in_proportion

NBSP = "\u00a0"


def shown(markdown: str) -> str:
    """Runs in one line: `{marks|text}`, links as `{text>href}`; plain text as it is."""
    return "".join(_shown(run) for run in parse_markdown(markdown))


def _shown(run: TextRun) -> str:
    marks = ",".join(sorted(run.marks)) + (f":{run.lang}" if run.lang else "")
    text = run.text + (f">{run.href}" if run.href else "")
    return f"{{{marks}|{text}}}" if marks or run.href else text


INLINE = [
    (
        "**bold** *italic* ~~gone~~ ||secret||",
        "{bold|bold} {italic|italic} {strike|gone} {spoiler|secret}",
    ),
    ("__two words__ _two words_", "{bold|two words} {italic|two words}"),
    ("***both***", "{bold,italic|both}"),
    ("**a *b* c**", "{bold|a }{bold,italic|b}{bold| c}"),
    ("**a\nb**", "{bold|a\nb}"),
    (
        "__init__ __init__() __init__.py _x_ snake_case_name",
        "__init__ __init__() __init__.py _x_ snake_case_name",
    ),
    ("a*b*c 2 * 3 * 4 2**3**4 **kwargs *args", "a*b*c 2 * 3 * 4 2**3**4 **kwargs *args"),
    ("**H**yper**T**ext walk**ed** x**y**z", "{bold|H}yper{bold|T}ext walk{bold|ed} x**y**z"),
    ("src/**/*.py or tests/**/*.py", "src/**/*.py or tests/**/*.py"),
    ("a **** b", "a **** b"),
    ("____ is blank", "____ is blank"),
    ("если a||b||c", "если a||b||c"),
    ("**Важно:** да", "{bold|Важно:} да"),
    ("**「重要」**です", "{bold|「重要」}です"),
    ("`a*b` ``a`b`` `` ` ``", "{code|a*b} {code|a`b} {code|`}"),
    ("**see `x`**", "{bold|see }{bold,code|x}"),
    ("`open", "`open"),
    ("[*t*](http://x/a_(b) 'title')", "{italic|t>http://x/a_(b)}"),
    ("![a *cat*](c.png)", "{|a cat>c.png}"),
    ("[](http://x) [a]() []()", "{|http://x>http://x} a []()"),
    ("<http://y_z_> <a@b.org>", "{|http://y_z_>http://y_z_} {|a@b.org>mailto:a@b.org}"),
    ("[x](javascript:alert)", "[x](javascript:alert)"),
    ("http://x/a_b_c/__d__ _http://x/y_", "http://x/a_b_c/__d__ {italic|http://x/y}"),
    ("~~http://x/~y~~ **http://x**", "{strike|http://x/~y} {bold|http://x}"),
    (r"\*a\* C:\dir \\", "*a* C:\\dir \\"),
    ("&amp; &lt;b&gt; AT&T <b>x</b>", "& <b> AT&T <b>x</b>"),
    ("&#2; &#13;x", "\ufffd \nx"),
    ("[ref][1]\n\n[1]: http://x", "[ref][1]\n\n[1]: http://x"),
]


BLOCKS = [
    ("a\nb\n\nc\n\n\n\nd", "a\nb\n\nc\n\nd"),
    ("a  \nb\\\nc", "a\nb\nc"),
    ("   poem\n     line\n", "   poem\n     line"),
    ("# Title **x** #\ntext", "{heading|Title }{bold,heading|x}\ntext"),
    ("#python #1\n#", "#python #1\n{heading|#}"),
    ("a\n---\nb\n***", "a\n---\nb\n***"),
    ("a\n===", "a\n==="),
    ("- a\n* b\n+ c", "• a\n• b\n• c"),
    ("1. a\n1. b\n7) c", "1. a\n1. b\n7) c"),
    ("2024. A year", "2024. A year"),
    ("- a\n  - b\n    - c\n      more\n- d", "• a\n  • b\n    • c\n      more\n• d"),
    ("1. a\n  - b\n   - c", "1. a\n  • b\n  • c"),
    ("- a\nnot in it", "• a\nnot in it"),
    ("- a\n\n  b\n\n- c", "• a\n\n  b\n\n• c"),
    ("- - a", "• • a"),
    ("+\n\n-", "+\n\n-"),
    ("- ```\n  x\n    y\n  ```\n- z", "•\n{pre|x\n  y}\n• z"),
    ("> a\n> b\nc", "{quote|a\nb}\nc"),
    ("> a\n>\n> - **b**", "{quote|a\n\n• }{bold,quote|b}"),
    ("> a\n\n> b", "{quote|a\n\nb}"),
    (">= 5 and >_<", ">= 5 and >_<"),
    (">>> print(1)\n1", ">>> print(1)\n1"),
    ("| a | **b** |\n|---|---|\n| 1 | 2 |", "{pre|a | b\n1 | 2}"),
    (
        "> |a|n|\n> |:-|--:|\n> |`x\\|y`|10|z|\n> | 你 | 5\nb",
        "{pre,quote|a   |  n\nx|y | 10 | z\n你  |  5}\nb",
    ),
    ("x\n```py title\n\n  a*b\n\t__c__\n\n```\ny", "x\n{pre:py|\n  a*b\n\t__c__\n}\ny"),
    ("```\n**open\n", "{pre|**open}"),
    ("~~~\n```\n~~~", "{pre|```}"),
    ("a:\n\n    code\n      more\n\nb", "a:\n\n{pre|code\n  more}\n\nb"),
    ("1. do\n```\nx\n```\n2. then", "1. do\n{pre|x}\n2. then"),
    ("```\n```", "```\n```"),
    ("> ", "> "),
    ("a\r\nb\rc\u2028d\x02e\ud800", "a\nb\nc\nde\ufffd"),
    (" \n\t\n", ""),
    (f"{NBSP}a", f"{NBSP}a"),
    (">" * 50 + " a", ">" * 50 + " a"),
    ("> " * 30 + "a", "{quote|" + "> " * 10 + "a}"),
    ("- " * 30 + "a", "• " * 10 + "- " * 20 + "a"),
]


@pytest.mark.parametrize(("markdown", "expected"), [*INLINE, *BLOCKS])
def test_reads_what_stands_in_a_line_and_blocks(markdown: str, expected: str) -> None:
    assert shown(markdown) == expected


PUNCTUATION = "\\`*_{}[]()<>#+-.!|~&=:\"'$%@^"


@given(st.text(max_size=200))
def test_never_raises_and_invents_nothing(markdown: str) -> None:
    runs = parse_markdown(markdown)
    assert bool("".join(run.text for run in runs).strip()) == bool(runs)
    for run, following in zip(runs, (*runs[1:], None), strict=False):
        assert run.text
        assert following is None or (run.marks, run.href, run.lang) != (
            following.marks,
            following.href,
            following.lang,
        )
        for char in run.text + (run.href or ""):
            assert char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cs"}
            assert unicodedata.category(char) != "Co" or char in markdown or "&" in markdown


@given(st.text("ab*_~|<#-+>1.!\\& \n\t", max_size=80))
def test_no_letter_is_lost_among_marks(markdown: str) -> None:
    said = "".join(run.text for run in parse_markdown(markdown))
    assert re.sub("[^ab]", "", said) == re.sub("[^ab]", "", markdown)


# What nobody sees is left out before all else: see `tests/gateway/core/test_text_safety.py`.
LINE = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=40).map(
    clean_outgoing
)
UNMARKED = st.text(
    st.characters(exclude_characters=PUNCTUATION, exclude_categories=["Cc", "Cs", "Zl", "Zp"]),
    max_size=40,
).map(clean_outgoing)


@given(st.lists(UNMARKED.filter(lambda line: bool(line.strip())), max_size=6), st.integers(1, 4))
def test_text_without_marks_is_itself(lines: list[str], breaks: int) -> None:
    text = clean_outgoing(("\n" * breaks).join("x " + line.rstrip() for line in lines))
    assert "".join(run.text for run in parse_markdown(text)) == re.sub("\n{3,}", "\n\n", text)


@given(UNMARKED)
def test_indentation_stays(text: str) -> None:
    if text.strip() and not text.startswith("    "):
        assert "".join(run.text for run in parse_markdown(text)).rstrip() == text.rstrip()


@given(st.lists(LINE, min_size=1, max_size=8))
def test_code_is_never_touched(lines: list[str]) -> None:
    code = clean_outgoing("\n".join(lines))
    runs = parse_markdown(f"~~~~~~~~~\n{code}\n~~~~~~~~~")
    if code.strip() and "~~~~~~~~~" not in code:
        assert runs == (TextRun(text=code, marks=frozenset(["pre"])),)


@given(
    st.lists(
        st.sampled_from(["- ", "> ", "1. ", "  ", "# ", "```\n", "a", "\n", "**", "`", "    "]),
        max_size=60,
    )
)
def test_never_raises_on_blocks(pieces: list[str]) -> None:
    parse_markdown("".join(pieces))


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "![",
        "*",
        ">",
        "> ",
        "- ",
        "[a](",
        "`",
        "**a",
        "ab**",
        "_a ",
        "_a",
        "a_",
        "~~a",
        "||a ",
        "<a",
        "&",
        "# \n",
        r"\(",
        r"\[",
        "$",
        r"$\a",
        r"$$\x",
    ],
)
def test_much_of_one_thing_takes_no_long_time(piece: str) -> None:
    assert_in_proportion(lambda size: parse_markdown((piece * size)[:size]), 25_000)


@pytest.mark.parametrize(
    ("markdown", "discord"),
    [
        (r"\(e^{i\pi}=-1\)", r"\\(e^{i\\pi}=-1\\)"),
        (r"$$x=\frac{-b*c*d}{\{2\}}$$", r"$$x=\\frac{-b\*c\*d}{\\{2\\}}$$"),
        (r"let $\{x_1\}$ be", r"let $\\{x\_1\\}$ be"),
        ("\\[\na_1 *b* \\\\\n\\]", "\\\\[\na\\_1 \\*b\\* \\\\\\\\\n\\\\]"),
    ],
)
def test_mathematics_stays_as_it_is_written(markdown: str, discord: str) -> None:
    assert "".join(run.text for run in parse_markdown(markdown)) == markdown
    assert discord_markdown(markdown) == discord


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        (r"a \(b *c*", "a (b c"),
        (r"$5 \* $6", "$5 * $6"),
        (r"\$5 *or* \$6", "$5 or $6"),
        (r"C:\\(x) *y*", r"C:\(x) y"),
    ],
)
def test_what_is_no_mathematics_is_markdown(markdown: str, text: str) -> None:
    assert "".join(run.text for run in parse_markdown(markdown)) == text
    assert discord_markdown(markdown) == markdown


@given(
    st.text(alphabet="abW .,:;!?()'\"-+$%^{}éß你9\u00a0", min_size=1, max_size=40).map(
        lambda text: f"a{text}b"
    )
)
def test_a_line_without_markup_is_what_the_parser_makes_of_it(line: str) -> None:
    assert parse_markdown(line) == (TextRun(text=line),)
    assert parse_markdown(f"{line}\n\n**bold**")[0] == TextRun(text=f"{line}\n\n")
