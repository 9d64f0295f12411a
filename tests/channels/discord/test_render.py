"""Our Markdown becomes Discord's, and long texts become messages that each stand alone."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord.outgoing import MAX_CONTENT_UNITS, render, render_bodies
from channels.split import split_markdown, utf16_length


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("**bold** *it* `a*b*c` __dunder__", "**bold** *it* `a*b*c` __dunder__"),
        ("#### Deep ####", "**Deep**"),
        ("###### Deep **bold**", "Deep **bold**"),
        ("### Not deep", "### Not deep"),
        ("![cat](https://example.org/c.png)", "[cat](https://example.org/c.png)"),
        ("`![x](y)` ![a](b)", "`![x](y)` [a](b)"),
        ("~~~py\nx = '#### no'\n~~~", "```py\nx = '#### no'\n```"),
        ("````\na\n```\nb\n````", "```\na\n`\u200b`\u200b`\nb\n```"),
        (
            (
                "| Name | Count | Note |\n|:--|--:|:-:|\n| alpha | 1 | bold |\n| 漢字 | 1234 | x \\| y "
                "|\nafter"
            ),
            "```\nName  | Count | Note\nalpha |     1 | bold\n漢字  |  1234 | x | y\n```\nafter",
        ),
        ("a|b\n-|-\n|2|", "```\na | b\n2\n```"),
        (
            f"a|b\n-|-\n{'x' * 99}|**2**\n[l](http://x.y/z)|",
            f"- a: {'x' * 99}\n  b: **2**\n- a: [l](http://x.y/z)",
        ),
        (
            "a|b\n-|-\n[docs](http://x.y/z)|2",
            "```\na                   | b\ndocs (http://x.y/z) | 2\n```",
        ),
        (f"a|{'x' * 99}\n-|-", f"- a\n  {'x' * 99}"),
        ("a &amp; b &lt;tag&gt;&nbsp;`&amp;` &no;", "a & b <tag> `&amp;` &no;"),
        ("&#42; x?a=1&copy=2", "\\* x?a=1&copy=2"),
        ("a | b\nno table", "a | b\nno table"),
        ("```\nunclosed", "```\nunclosed\n```"),
        ("a\r\nb\x00", "a\nb"),
    ],
)
def test_a_text_becomes_discords(ours: str, theirs: str) -> None:
    assert render(ours) == theirs


def test_a_fence_that_is_cut_is_closed_and_opened_again_with_its_language() -> None:
    first, *rest = render_bodies("Look:\n```python\n" + "x = 1  # no\n" * 400 + "```\nDone.")
    assert first.startswith("Look:\n```python\n")
    assert first.endswith("\n```")
    assert all(body.startswith("```python\n") for body in rest)
    assert rest[-1].endswith("```\nDone.")
    code = "".join(re.sub(r"(?m)^```.*\n?|^Look:\n|\nDone\.$", "", body) for body in [first, *rest])
    assert code.count("x = 1  # no") == 400


def test_the_indentation_at_a_cut_in_code_stays() -> None:
    text = "```py\n" + "    deep = 1\n" * 300 + "```"
    assert all(
        line.startswith("    ")
        for body in render_bodies(text)
        for line in body.split("\n")
        if "deep" in line
    )


def test_a_line_is_cut_between_words_and_not_in_code_or_a_link() -> None:
    code, link = "`" + "c " * 30 + "c`", "[text of it](https://example.org/" + "p" * 30 + ")"
    text = "word " * 10 + code + " word " * 10 + link + " word" * 10
    for piece in split_markdown(text, 100):
        assert piece.count("`") % 2 == 0
        assert piece.count("[") == piece.count(")")


@pytest.mark.parametrize("follows", ["text " * 30, "```\n" + "x = 1\n" * 20 + "```"])
def test_a_heading_stands_with_what_follows_it(follows: str) -> None:
    pieces = split_markdown(f"{'before ' * 15}\n\n## Section 9\n\n{follows}", 200)
    assert any("## Section 9\n\n" in piece for piece in pieces)
    assert not any(piece.endswith("## Section 9") for piece in pieces)


@pytest.mark.parametrize("whole", ["👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "e\u0301", "1\ufe0f\u20e3"])
def test_what_people_see_as_one_character_stays_whole(whole: str) -> None:
    for shift in range(12):
        pieces = split_markdown("x" * shift + whole * 40, 64)
        assert "".join(pieces) == "x" * shift + whole * 40
        assert all(piece.lstrip("x").replace(whole, "") == "" for piece in pieces)
        assert all(utf16_length(piece) <= 64 for piece in pieces)


def test_one_word_that_is_longer_than_a_message_is_cut_all_the_same() -> None:
    pieces = render_bodies("😀" * 3000)
    assert [utf16_length(piece) for piece in pieces] == [2000, 2000, 2000]
    assert render_bodies("") == render_bodies(" \n ") == ()
    with pytest.raises(ValueError, match="64"):
        split_markdown("x", 63)


_PIECES = st.sampled_from(
    [
        "word ",
        "\n",
        "\n\n",
        "\n```py\n",
        "\n```\n",
        "`co de` ",
        "[li nk](http://x.y/z) ",
        "👩‍👩‍👧",
        "e\u0301",
        "# h\n",
        "    in",
        "x" * 70,
    ]
)


@given(st.lists(_PIECES, max_size=80), st.integers(64, 300))
def test_nothing_but_white_space_is_lost_and_no_fence_is_half_open(
    parts: list[str], limit: int
) -> None:
    text = render("".join(parts))
    pieces = split_markdown(text, limit)
    for piece in pieces:
        assert piece.strip()
        assert utf16_length(piece) <= limit
        assert (
            sum(bool(re.fullmatch(r" {0,3}```[^`]*", line.rstrip())) for line in piece.split("\n"))
            % 2
            == 0
        )

    def bare(shown: str) -> str:
        return re.sub(r"\s|```(?:py)?", "", shown)

    assert bare("\n".join(pieces)) == bare(
        text
    )  # a mark at the end of a piece is not part of the next fence


@given(st.text(max_size=5000))
def test_any_text_at_all_is_shown_within_the_limit(text: str) -> None:
    for body in render_bodies(text):
        assert body.strip()
        assert utf16_length(body) <= MAX_CONTENT_UNITS
        body.encode()
