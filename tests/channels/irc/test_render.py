""""""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.base import CanPage
from channels.irc.channel import IrcChannel
from channels.irc.config import IrcConfig
from channels.irc.render import (
    BLANK_LINE,
    BOLD,
    ITALIC,
    max_body_bytes,
    paginate,
    render,
    split_line,
    strip_formatting,
)
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    MessageId,
    Post,
    PostKey,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.identity import BRIDGE_MARK, BRIDGE_PREFIX

B, I = BOLD, ITALIC  # noqa: E741 - as in every IRC client's menu


@pytest.mark.parametrize(
    ("markdown", "lines"),
    [
        ("hi", ("hi",)),
        ("a\r\n\r\nb\rc", ("a", "b", "c")),
        ("**bold** *italic*", (f"{B}bold{B} {I}italic{I}",)),
        ("***both***", (f"{B}{I}both{B}{I}",)),
        ("**a *b* c**", (f"{B}a {I}b{I} c{B}",)),
        ("# Title **x** #", (f"{B}Title x{B}",)),
        ("#python is fine", ("#python is fine",)),
        ("`a*b*c` and `**x**`", ("`a*b*c` and `**x**`",)),
        ("`` a`*b* ``", ("`` a`*b* ``",)),
        ("a*b*c 2 * 3 * 4 2**3**4", ("a*b*c 2 * 3 * 4 2**3**4",)),
        ("__dunder_name__ snake_case _x_", ("__dunder_name__ snake_case _x_",)),
        ("*args and **kwargs", ("*args and **kwargs",)),
        ("* item\n  - nested", ("• item", "  • nested")),
        ("[text](https://x.org/a_(b)) ok", ("text (https://x.org/a_(b)) ok",)),
        ("![cat](http://x/c.png)", ("cat (http://x/c.png)",)),
        ("[http://x](http://x) <http://y>", ("http://x http://y",)),
        ("http://x/a_b_c/__d__ *e*", (f"http://x/a_b_c/__d__ {I}e{I}",)),
        (r"2 \* 3 \*not\*", ("2 * 3 *not*",)),
        (
            "x\n```py\ndef __init__(self):\n    a*b*c\n\n\t# no\n```\n*y*",
            ("x", "def __init__(self):", "    a*b*c", BLANK_LINE, "\t# no", f"{I}y{I}"),
        ),
        (
            "```\n\na\n\n\n  \nb\n\n```\n\n```\n\nc\n```\n\nd",
            ("a", BLANK_LINE, BLANK_LINE, BLANK_LINE, "b", "c", "d"),
        ),
        ("```\n**open**", ("**open**",)),
        ("~~~\n```\n~~~", ("```",)),
        ("````\n```\n````", ("```",)),
        ("\x01ACTION x\x01\x03", ("ACTION x",)),
        ("```\n```", ("```", "```")),
        ("\x02", ("\ufffd",)),
        ("**a\nb** c", (f"{B}a{B}", f"{B}b{B} c")),
        ("> a *b\n> c*\n> - d\ne", (f"> a {I}b{I}", f"> {I}c{I}", "> • d", "e")),
        ("> ||a||\n> ```\n>  b\n> ```", ("> ||a||", ">  b")),
        ("~~wrong~~ ||a **b**||", (f"~~wrong~~ ||a {B}b{B}||",)),
        ("[**t** `c`](http://u) <a@b.org>", (f"{B}t{B} `c` (http://u) a@b.org",)),
        ("[a](http://u) [b](http://u)", ("a (http://u) b (http://u)",)),
        ("| a | b |\n|---|---|\n|cc|d|", ("a  | b", "cc | d")),
        ("*a*  \n**||b||** c", (f"{I}a{I}", f"||{B}b{B}|| c")),
    ],
)
def test_renders(markdown: str, lines: tuple[str, ...]) -> None:
    assert render(markdown) == lines


@given(st.text(max_size=200))
def test_lines_are_lines(markdown: str) -> None:
    lines = render(markdown)
    assert lines
    for shown in lines:
        assert strip_formatting(shown).strip() or shown == BLANK_LINE
        assert not set(shown) & set("\r\n\0\x01")
        assert shown.count(B) % 2 == shown.count(I) % 2 == 0


@given(st.text("ab*_`\\[]()# \n~", max_size=60))
def test_code_is_never_touched(code: str) -> None:
    lines = code.split("\n")
    filled = [index for index, line in enumerate(lines) if line.strip()]
    kept = (
        tuple(line if line.strip() else BLANK_LINE for line in lines[filled[0] : filled[-1] + 1])
        if filled
        else ()
    )
    if kept and not any(line.lstrip(" ").startswith("~~~") for line in kept):
        assert tuple(line.removeprefix("•") for line in render(f"~~~\n{code}\n~~~")) == kept


COMMANDS = ["!op mallory", ".ban bob", "@kick bob", ",cmd", "~x", "/quit", "-flood", "  !op me"]
COMMANDS += ["ChanServ: op mallory", "chanserv op mallory", "BotServ, kick bob"]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_a_command_of_another_bot(command: str) -> None:
    """Anope drops spaces before a word, and bots drop formatting: neither is a guard."""
    for markdown in (command, f"```\n{command}\n```", f"text\n{command}"):
        assert re.match(r"[\s\x02\x1d]*•", render(markdown)[-1]), markdown
    assert render("**!op** me") == (f"•{B}!op{B} me",)
    for plain in (
        "... well",
        "-1",
        "- item",
        "3.5",
        "!",
        "2 + !op",
        "!?",
        "~/x",
        "$5",
        "ChanServer",
    ):
        assert render(plain) in ((plain,), ("• item",))


WORDS = st.lists(st.sampled_from([*"ab !.@\x02", " ChanServ: op ab"]), max_size=200)


@given(WORDS.map("".join), st.integers(20, 40))
def test_no_piece_of_a_line_is_one_either(line: str, limit: int) -> None:
    pieces = split_line(line, limit)
    assert not any(re.match(r"[\s\x02\x1d]*([!.@][abC]|ChanServ:)", piece) for piece in pieces)
    assert all(len(piece.encode()) <= limit for piece in pieces)


@pytest.mark.parametrize("code", [B, I])
@given(words=st.text("xyя ", min_size=1, max_size=300), limit=st.integers(20, 80))
def test_formatting_goes_on_across_a_cut(code: str, words: str, limit: int) -> None:
    if not words.strip():
        return
    pieces = split_line(f"{code}{words.strip()}{code} tail", limit)
    assert all(len(piece.encode()) <= limit for piece in pieces)
    formatted = ""
    for piece in pieces:
        assert piece.count(code) % 2 == 0
        formatted += "".join(piece.split(code)[1::2])
    assert "".join(formatted.split()) == "".join(words.split())
    assert "".join("".join(pieces).replace(code, "").split()) == "".join((words + "tail").split())


def test_reads_without_formatting() -> None:
    assert (
        strip_formatting("\x02b\x02 \x0304,12red\x03 \x04ff0000x\x0f\x1f\x16 1\t2\x00\r")
        == "b red x 1 2 "
    )
    assert strip_formatting("\x0312") == ""


NAME = ChannelName("irc.test")


def channel(page_lines: int = 12) -> IrcChannel:
    config = IrcConfig(host="127.0.0.1", nick="reverie", page_lines=page_lines)
    return IrcChannel(NAME, config, ManualClock())


def post(text: str, page: int = 1) -> Post:
    return Post(
        key=PostKey("p"), to=Address(channel=NAME, room=RoomId("#room")), text=text, page=page
    )


def numbered(start: int, end: int) -> list[str]:
    return [f"line {number}" for number in range(start, end)]


def test_a_long_text_comes_in_pages_and_says_so() -> None:
    irc = channel()
    assert isinstance(irc, CanPage)
    text = "\n".join(numbered(0, 30))
    assert irc.page_count(post(text)) == 3
    assert irc.split(post(text)) == (*numbered(0, 12), '(page 1 of 3; write "reverie: more")')
    assert irc.split(post(text, 2)) == (*numbered(12, 24), '(page 2 of 3; write "reverie: more")')
    assert irc.split(post(text, 3)) == irc.split(post(text, 9)) == tuple(numbered(24, 30))


def test_a_reminder_in_a_room_names_whom_it_is_for_so_that_their_client_tells_them() -> None:
    boss = Sender(id=SenderId("account:boss"), name="b_ss")
    reminder = replace(post("your tea is ready"), notify=(boss,))
    assert channel().split(reminder) == ("b_ss: your tea is ready",)
    assert channel().split(replace(reminder, text="- a\n- b")) == ("b_ss:", "• a", "• b")
    named = "B_SS, your tea is ready"
    assert channel().split(replace(reminder, text=named.replace("_", "\\_"))) == (named,)
    slashed = replace(reminder, notify=(replace(boss, name="b\\oss"),))
    assert channel().split(replace(slashed, text="b\\\\oss: tea")) == ("b\\oss: tea",)
    behind = Sender(id=SenderId(f"{BRIDGE_PREFIX}relay:kai"), name=f"kai{BRIDGE_MARK}relay)")
    assert channel().split(replace(reminder, notify=(behind,))) == ("kai: your tea is ready",)
    answer = replace(reminder, reply_to=MessageId("m1"))
    assert channel().split(answer) == ("your tea is ready",)
    alone = replace(reminder, to=Address(channel=NAME, room=RoomId("b_ss!account:boss")))
    assert channel().split(alone) == ("your tea is ready",)


def test_a_notice_says_how_to_ask_for_the_next_page_wherever_it_is_shown() -> None:
    aside = Address(channel=NAME, room=RoomId("ann!account:ann"))
    told = replace(post("\n".join(numbered(0, 30))), to=aside, style="notice", private=True)
    assert channel().split(told)[-1] == '(page 1 of 3; write "/msg reverie more")'
    assert (
        channel().split(replace(told, language="de"))[-1]
        == '(Seite 1 von 3; schreib "/msg reverie more")'
    )
    assert channel().split(replace(told, style="message"))[-1] == '(page 1 of 3; write "more")'


@pytest.mark.parametrize(("lines", "pages"), [(1, 1), (12, 1), (13, 1), (14, 2), (25, 2), (26, 3)])
def test_no_page_is_made_for_one_line(lines: int, pages: int) -> None:
    assert channel().page_count(post("\n".join(numbered(0, lines)))) == pages


def test_full_lines_make_shorter_pages() -> None:
    paragraphs = "\n\n".join("word " * 60 for _ in range(12))
    first, *_, last = [channel().split(post(paragraphs, page)) for page in (1, 2, 3)]
    assert (channel().page_count(post(paragraphs)), len(first), len(last)) == (3, 5, 4)


@given(
    st.text("ab `*#->\n", max_size=300),
    st.text("a \n", max_size=60),
    st.integers(0, 9),
    st.integers(30, 60),
)
def test_pages_are_all_of_it(markdown: str, code: str, page_lines: int, limit: int) -> None:
    text = f"{markdown}\n```\n{code}\n```"
    pages, (whole,) = paginate(text, limit, page_lines, "more"), paginate(text, limit, 0, "more")
    assert whole == (*(body for page in pages[:-1] for body in page[:-1]), *pages[-1])
    assert all(len(page) <= page_lines + 1 for page in pages) or not page_lines
    assert all(
        page[-1] == f'(page {number} of {len(pages)}; write "more")'
        for number, page in enumerate(pages[:-1], 1)
    )
    assert all(len(body.encode()) <= limit for page in pages for body in page)


@pytest.mark.parametrize(("nick", "target"), [("reverie", "#room"), ("я" * 40, "#" + "r" * 60)])
def test_a_line_fits_whatever_masks_the_server_gives(nick: str, target: str) -> None:
    mask = f"{nick}_20!~{'u' * 11}@{'h' * 64}"
    line = f":{mask} PRIVMSG {target} :{'x' * max_body_bytes(nick, target)}\r\n"
    assert len(line.encode()) <= 512


def test_a_notice_is_never_cut_into_pages_for_who_approves_must_have_seen_all_of_it() -> None:
    notice = replace(post("\n".join(numbered(0, 40))), style="notice")
    assert channel().page_count(notice) == 1
    assert channel().page_count(replace(notice, private=True)) > 1, (
        "an answer that is long for its own sake"
    )
    shown = "\n".join(channel().split(notice))
    assert all(line in shown for line in numbered(0, 40))
