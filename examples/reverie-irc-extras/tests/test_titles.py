"""Links in messages, and titles of pages."""

import pytest
from reverie_irc_extras.titles import MAX_TITLE_CHARS, find_links, read_title


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("see https://example.org/a.", ["https://example.org/a"]),
        (
            "(https://example.org/a_(b)) and HTTP://example.org!",
            ["https://example.org/a_(b)", "HTTP://example.org"],
        ),
        ("<https://example.org/?q=1&r=2#s>", ["https://example.org/?q=1&r=2#s"]),
        (
            "https://a.org https://a.org https://b.org https://c.org",
            ["https://a.org", "https://b.org"],
        ),
        ("ftp://example.org, example.org and https:// are none", []),
    ],
)
def test_links_of_a_message_are_found(text: str, links: list[str]) -> None:
    assert find_links(text, 2) == links


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("<title>Tea &amp; cake</title>", "Tea & cake"),
        ("<svg><title>icon</title></svg><TITLE lang=en>\n Two\t lines \n</TITLE>", "Two lines"),
        ("<title>first</title><title>second</title>", "first"),
        ("<p>none", ""),
        ("<title>never closed", "never closed"),
        ("<![broken", ""),
    ],
)
def test_a_title_is_read_in_one_line(page: str, title: str) -> None:
    assert read_title(page) == title


def test_a_long_title_is_cut() -> None:
    assert len(read_title(f"<title>{'x' * 1000}</title>")) == MAX_TITLE_CHARS
