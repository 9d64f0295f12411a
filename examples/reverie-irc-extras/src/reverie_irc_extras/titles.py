"""Links in messages, and titles of pages. Pure."""

import re
from html.parser import HTMLParser

_LINK = re.compile(r"https?://[^\s<>\"`|\\^{}]+", re.IGNORECASE)
_BEHIND = ".,;:!?'*_~"
"""Punctuation behind a link, which belongs to the sentence."""
MAX_TITLE_CHARS = 200


def find_links(text: str, most: int) -> list[str]:
    """Return the first different links of a message, at most so many."""
    found = dict[str, None]()
    for match in _LINK.finditer(text):
        link = match[0].rstrip(_BEHIND)
        while link.endswith(")") and link.count(")") > link.count("("):
            link = link[:-1].rstrip(_BEHIND)
        if link.partition("://")[2]:
            found.setdefault(link)
    return list(found)[:most]


def read_title(page: str) -> str:
    """Return the title of an HTML page in one line, cut. Empty: it has none."""
    reader = _TitleReader()
    reader.feed(page)
    title = " ".join("".join(reader.pieces).split())
    return title if len(title) <= MAX_TITLE_CHARS else f"{title[: MAX_TITLE_CHARS - 1].rstrip()}…"


class _TitleReader(HTMLParser):
    """Takes the text of the first `title` outside of images."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._state = "before"
        self._images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - of the base class
        self._images += tag == "svg"
        if tag == "title" and self._state == "before" and not self._images:
            self._state = "inside"

    def handle_endtag(self, tag: str) -> None:
        self._images -= tag == "svg" and self._images > 0
        if tag == "title" and self._state == "inside":
            self._state = "behind"

    def handle_data(self, data: str) -> None:
        if self._state == "inside":
            self.pieces.append(data)
