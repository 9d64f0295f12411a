from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.base import CanPage
from channels.irc.channel import IrcChannel
from channels.irc.compose import paginate, paginate_lines
from channels.irc.config import IrcConfig
from channels.irc.render import render
from gateway.core.clock import ManualClock
from gateway.core.events import Address, ChannelName, Post, PostKey, RoomId

NAME = ChannelName("irc.test")


def channel(page_lines: int = 12) -> IrcChannel:
    config = IrcConfig(host="127.0.0.1", nick="reverie", page_lines=page_lines)
    return IrcChannel(NAME, config, ManualClock())


def post(text: str, page: int = 1) -> Post:
    return Post(key=PostKey("p"), to=Address(channel=NAME, room=RoomId("#room")), text=text, page=page)


def numbered(start: int, end: int) -> list[str]:
    return [f"line {number}" for number in range(start, end)]


def test_a_long_text_comes_in_pages_and_says_so() -> None:
    irc = channel()
    assert isinstance(irc, CanPage)
    text = "\n".join(numbered(0, 30))
    assert irc.page_count(post(text)) == 3
    assert irc.split(post(text)) == (*numbered(0, 12), '(page 1 of 3; say "reverie: more")')
    assert irc.split(post(text, 2)) == (*numbered(12, 24), '(page 2 of 3; say "reverie: more")')
    assert irc.split(post(text, 3)) == irc.split(post(text, 9)) == tuple(numbered(24, 30))


@pytest.mark.parametrize(("lines", "pages"), [(1, 1), (12, 1), (13, 1), (14, 2), (25, 2), (26, 3)])
def test_no_page_is_made_for_one_line(lines: int, pages: int) -> None:
    assert channel().page_count(post("\n".join(numbered(0, lines)))) == pages


def test_zero_means_all_of_it() -> None:
    irc = channel(page_lines=0)
    text = "\n".join(numbered(0, 100))
    assert irc.page_count(post(text)) == 1
    assert irc.split(post(text, 5)) == tuple(numbered(0, 100))


def first_page(markdown: str, page_lines: int = 6) -> tuple[str, ...]:
    return paginate_lines(render(markdown), 100, page_lines)[0][:-1]


def code(lines: int) -> str:
    return "\n".join(["```", *(f"code {number}" for number in range(lines)), "```"])


@pytest.mark.parametrize(
    ("markdown", "last"),
    [
        ("a\nb\nc\nd\n\ne\nf\ng\nh", "d"),
        ("a\n\nb\nc\nd\ne\nf\ng\nh", "f"),
        ("a\n\nb\n\nc\n\nd\n\ne\n\nf\n\ng\n\nh", "f"),
        (f"a\nb\nc\nd\n{code(3)}\nz\nz", "d"),
        (f"a\nb\nc\nd\n{code(9)}", "d"),
        (f"a\nb\n{code(5)}\n{'z ' * 80}", "code 2"),
        (f"{code(7)}\nz", "code 4"),
        (f"{code(20)}", "code 5"),
        ("a\nb\nc\nd\n" + "words " * 60, "d"),
    ],
)
def test_a_page_ends_in_a_good_place(markdown: str, last: str) -> None:
    assert first_page(markdown)[-1] == last


@given(st.text("ab `*#->\n", max_size=300), st.integers(0, 9), st.integers(30, 60))
def test_pages_are_all_of_it(markdown: str, page_lines: int, limit: int) -> None:
    lines = render(markdown)
    pages = paginate_lines(lines, limit, page_lines)
    (whole,) = paginate_lines(lines, limit, 0)
    assert whole == tuple(body for page in pages[:-1] for body in page[:-1]) + pages[-1]
    assert all(len(page) <= page_lines + 1 for page in pages) or not page_lines
    assert all(page[-1] == f'(page {number} of {len(pages)}; say "more")' for number, page in enumerate(pages[:-1], 1))
    assert all(len(body.encode()) <= limit for page in pages for body in page)


def test_what_fits_a_page_in_the_room_there_is_is_not_paged() -> None:
    text = "\n".join(f"{number} " + "word " * 20 for number in range(8))
    assert len(paginate(text, 64, 64, 10)) > 1
    assert len(paginate(text, 64, 400, 10)) == 1
    assert len(paginate(text, 400, 64, 10)) == 1
    assert paginate(text, 64, 90, 10) == paginate(text, 64, 64, 10), "pages do not depend on our mask"


def test_a_notice_is_never_cut_into_pages_for_who_approves_must_have_seen_all_of_it() -> None:
    notice = replace(post("\n".join(numbered(0, 40))), style="notice")
    assert channel().page_count(notice) == 1
    assert channel().page_count(replace(notice, private=True)) > 1, "an answer that is long for its own sake"
    shown = "\n".join(channel().split(notice))
    assert all(line in shown for line in numbered(0, 40))
