"""Markdown as texts with entities, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telegram import MessageEntity

from channels.split import utf16_length
from channels.telegram.outgoing import to_entities
from channels.telegram.render import (
    MAX_ENTITIES,
    MAX_TEXT_UNITS,
    TelegramText,
    parse_body,
    render,
    to_markdown,
)
from reverie.testing.servers.bot_api_world import checked

FAMILY = "👨‍👩‍👧"


def entities(text: TelegramText) -> list[MessageEntity]:
    return list(to_entities(text.spans) or ())


def shown(source: str) -> tuple[str, list[tuple[str, str, str | None]]]:
    """The text of one message, and of each entity its type, what it covers and what it says."""
    (text,) = render(source)
    raw = text.text.encode("utf-16-le")
    return text.text, [
        (
            span.type,
            raw[2 * span.start : 2 * span.end].decode("utf-16-le"),
            span.url or span.language,
        )
        for span in text.spans
    ]


@pytest.mark.parametrize(
    ("source", "text", "spans"),
    [
        ("plain *text", "plain *text", []),
        (
            "**bold** and *italic*",
            "bold and italic",
            [("bold", "bold", None), ("italic", "italic", None)],
        ),
        ("😀 **b😀ld** x", "😀 b😀ld x", [("bold", "b😀ld", None)]),
        ("**a *b* c**", "a b c", [("bold", "a b c", None), ("italic", "b", None)]),
        (
            "*a **b** c*",
            "a b c",
            [
                ("italic", "a ", None),
                ("bold", "b", None),
                ("italic", "b", None),
                ("italic", " c", None),
            ],
        ),
        (
            "~~gone~~ ||hidden||",
            "gone hidden",
            [("strikethrough", "gone", None), ("spoiler", "hidden", None)],
        ),
        ("**a `b` c**", "a b c", [("bold", "a ", None), ("code", "b", None), ("bold", " c", None)]),
        ("```py\nx = 1\n\ny\n```", "x = 1\n\ny", [("pre", "x = 1\n\ny", "py")]),
        ("# Title\ntext", "Title\ntext", [("bold", "Title", None)]),
        ("[here](https://e.org/a)", "here", [("text_link", "here", "https://e.org/a")]),
        ("[`f()`](https://e.org/a)", "f()", [("text_link", "f()", "https://e.org/a")]),
        ("<https://e.org/a>", "https://e.org/a", []),
        ("[here](../there)", "here (../there)", []),
        ("[**bold** here](/x) on", "bold here (/x) on", [("bold", "bold", None)]),
        ("> said\n> he", "said\nhe", [("blockquote", "said\nhe", None)]),
        ("__dunder__ a*b*c", "__dunder__ a*b*c", []),
        ("- one\n- two", "• one\n• two", []),
    ],
)
def test_markdown_becomes_entities(
    source: str, text: str, spans: list[tuple[str, str, str | None]]
) -> None:
    made = shown(source)
    assert made[0] == text
    assert [span for span in made[1] if span[1].strip()] == made[1]
    if source != "*a **b** c*":  # which of the two is outside is a matter of order
        assert made[1] == spans


@pytest.mark.parametrize(
    ("text", "entities_", "source"),
    [
        ("a b", [("bold", 0, 1)], "**a** b"),
        ("😀 b", [("italic", 3, 1)], "😀 *b*"),
        ("a  b", [("bold", 0, 3)], "**a**  b"),
        ("one\ntwo", [("bold", 0, 7)], "**one**\n**two**"),
        ("abc", [("bold", 0, 3), ("italic", 1, 1)], "**a*b*c**"),
        ("a`b", [("code", 0, 3)], "``a`b``"),
        ("x\ny\nz", [("pre", 2, 1)], "x\n```\ny\n```\nz"),
        ("x y z", [("pre", 2, 1)], "x \n```\ny\n```\n z"),
        ("said\nhe\nme", [("blockquote", 0, 7)], "> said\n> he\nme"),
        ("@a #b http://c", [("mention", 0, 2), ("hashtag", 3, 2), ("url", 6, 8)], "@a #b http://c"),
        # What does not fit is left out: past the end, negative, inside a pair, crossing, unknown.
        ("ab", [("bold", 1, 9), ("bold", -1, 2), ("bold", 0, 0), ("new", 0, 1)], "ab"),
        ("😀", [("bold", 1, 1), ("bold", 0, 1)], "😀"),
        ("abcd", [("bold", 0, 3), ("italic", 2, 2)], "**abc**d"),
    ],
)
def test_entities_become_markdown(
    text: str, entities_: list[tuple[str, int, int]], source: str
) -> None:
    assert to_markdown(text, [MessageEntity(*entity) for entity in entities_]) == source


def test_a_link_and_a_language_come_back() -> None:
    link = MessageEntity("text_link", 0, 1, url="https://e.org/(x)")
    assert to_markdown("a", [link]) == "[a](<https://e.org/(x)>)"
    pre = MessageEntity("pre", 0, 9, language="py")
    assert to_markdown("a\n```\nb\n", [pre]) == "a\n```\nb\n"  # one unit too long: left out
    assert (
        to_markdown("a\n```\nb\n", [MessageEntity("pre", 0, 8, language="py")])
        == "````py\na\n```\nb\n````"
    )


@pytest.mark.parametrize(
    "source",
    [
        "**a**",
        "a *b* c",
        "`x`",
        "```py\nx\n```",
        "> q",
        "[a](https://e.org/)",
        "~~s~~",
        "||s||",
        "**a *b* c**",
        "a\n\nb",
    ],
)
def test_what_people_format_is_what_we_would(source: str) -> None:
    (text,) = render(source)
    assert to_markdown(text.text, entities(text)) == source


def test_long_text_is_cut_between_paragraphs_lines_or_words() -> None:
    words = " ".join(f"word{number}" for number in range(2000))
    parts = render(words)
    assert [utf16_length(part.text) <= MAX_TEXT_UNITS for part in parts] == [True] * len(parts)
    assert " ".join(part.text for part in parts) == words
    lines = "\n".join("x" * 100 for _ in range(100))
    assert "\n".join(part.text for part in render(lines)) == lines
    first, second = render("a" * 3000 + "\n\n" + "b" * 3000)
    assert (first.text, second.text) == ("a" * 3000, "b" * 3000)


def test_formatting_goes_on_behind_a_cut() -> None:
    code = "\n".join(f"    line {number}" for number in range(600))
    parts = render(f"before\n```py\n{code}\n```\n**after**")
    assert len(parts) > 1
    pieces = []
    for part in parts:
        (pre,) = [span for span in part.spans if span.type == "pre"]
        assert pre.language == "py"
        pieces.append(part.text[pre.start : pre.end])
    assert "\n".join(pieces) == code
    bold = render("**" + "b" * 5000 + "**")
    assert [(s.start, s.end) for part in bold for s in part.spans] == [(0, 4096), (0, 904)]


def test_code_that_fits_a_message_is_not_cut() -> None:
    code = "\n".join(f"line {number}" for number in range(100))
    first, second = render(f"{'word ' * 750}\n```\n{code}\n```\nend")
    assert [span.type for part in (first, second) for span in part.spans] == ["pre"]
    assert second.text == f"{code}\nend"


@pytest.mark.parametrize("character", ["😀", FAMILY, "🇩🇪", "e\u0301", "👍🏽", "❤️"])
def test_no_character_is_broken(character: str) -> None:
    text = "x" + character * 3000
    parts = render(text)
    assert "".join(part.text for part in parts) == text
    assert all(part.text.removeprefix("x").replace(character, "") == "" for part in parts)


@pytest.mark.parametrize(
    ("href", "taken"),
    [
        ("https://e.org", True),
        ("http://e.org:8080/a?b#c", True),
        ("HTTPS://münchen.de/ä", True),
        ("https://bob:x@e.org/", True),
        ("https://e%2Eorg.net/", True),
        ("tg://resolve?domain=x", True),
        ("http://localhost:8080", False),
        ("http://intranet/x", False),
        ("https://{host}.org/", False),
        ("https://api.${REGION}.x.com", False),
        ("https://e.org:99999/", False),
        ("https://e.org:0/", False),
        ("https://e.org:port/", False),
        ("https://e%2.org/", False),
        ("https://./", False),
        ("tel:+491", False),
        ("mailto:a@b.c", False),
        ("tg://us er", False),
    ],
)
def test_a_link_that_telegram_refuses_is_written_and_costs_the_rest_nothing(
    href: str, taken: bool
) -> None:
    (text,) = render(f"**b** [docs](<{href}>)")
    assert [span.type for span in text.spans] == (["bold", "text_link"] if taken else ["bold"])
    assert text.text == ("b docs" if taken else f"b docs ({href})")


def test_links_to_many_people_notify_nobody_and_are_counted_with_names() -> None:
    links = [f"[@user-{number}](tg://user?id={number})" for number in range(30)]
    assert not any(span.url for part in render(" ".join(links)) for span in part.spans)
    (few,) = render(" ".join(links[:2]))
    assert len(few.spans) == 2
    (mixed,) = render(" ".join([*links[:3], *(f"@name{number}" for number in range(30))]))
    assert not mixed.spans
    assert "@name1 " not in mixed.text


@pytest.mark.parametrize("label", ["the admin", "@admin", "@user-71", "**@user-1** 0"])
@pytest.mark.parametrize("form", ["tg://user?id=7", "tg:user?id=7", "TG://user/?x=7&id=7"])
def test_a_link_to_a_person_says_to_whom_it_leads_or_is_none(label: str, form: str) -> None:
    (masked,) = render(f"ask [{label}](<{form}>)")
    assert not [span for span in masked.spans if span.type == "text_link"]
    (shown,) = render("ask [@user-**7**](tg://user?id=7)")
    assert (shown.text, {span.url for span in shown.spans if span.url}) == (
        "ask @user-7",
        {"tg://user?id=7"},
    )


def test_surplus_formatting_is_dropped_and_text_is_not() -> None:
    (text,) = render(" ".join(f"**b{number}**" for number in range(150)) + "\n```\nkept\n```")
    assert len(text.spans) == MAX_ENTITIES
    assert "b149" in text.text
    assert "pre" in [span.type for span in text.spans]


def test_a_body_is_read_back_and_anything_else_is_text() -> None:
    (text,) = render("**a** [b](https://e.org/) `c`")
    assert parse_body(text.to_json()) == text
    assert parse_body(text.to_json()).to_json() == text.to_json()
    for body in [
        "plain",
        "{}",
        '{"text": 1, "spans": []}',
        "[1]",
        '{"text": "x", "spans": [{"what": 1}]}',
        "null",
    ]:
        assert parse_body(body) == TelegramText(text=body)


_PIECES = st.sampled_from(
    ["**", "*", "`", "```\n", "\n", "\n\n", "> ", "[a](", ")", "~~", "||", "# ", "- ", " ", "word", "😀", FAMILY, "é",
     "https://e.org/x", "<", ">", "\t", "_", "1. ", "\\"]
)  # fmt: skip
_MARKDOWN = st.lists(st.one_of(_PIECES, st.text(max_size=8)), max_size=80).map("".join)


@given(_MARKDOWN, st.integers(16, 200))
def test_every_message_is_one_that_telegram_takes(source: str, limit: int) -> None:
    if not source.strip():
        return
    for part in render(source, limit):
        assert utf16_length(part.text) <= limit
        assert part.text.strip()
        assert checked(part.text, [entity.to_dict() for entity in entities(part)]) == part.text
        assert parse_body(part.to_json()) == part


@given(_MARKDOWN, st.integers(16, 64))
def test_a_cut_loses_nothing_but_white_space(source: str, limit: int) -> None:
    whole, cut = ("".join(part.text for part in render(source, most)) for most in (10**6, limit))
    assert "".join(cut.split()) == "".join(whole.split())


_ENTITY = st.builds(
    MessageEntity,
    type=st.sampled_from(
        ["bold", "italic", "code", "pre", "text_link", "blockquote", "spoiler", "url", "new"]
    ),
    offset=st.integers(-3, 30),
    length=st.integers(-3, 30),
    url=st.none() | st.text(max_size=9),
    language=st.none() | st.text(max_size=9),
)


@given(st.text(st.characters(codec=None), max_size=40), st.lists(_ENTITY, max_size=12))
def test_any_entities_leave_the_text_whole(text: str, found: list[MessageEntity]) -> None:
    made = to_markdown(text, found)
    made.encode()
    letters = [character for character in text if character.isalnum()]
    left = iter(made)
    assert all(character in left for character in letters)
