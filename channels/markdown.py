"""One reading of Markdown, shared by all renderers: plain text with marks on stretches of it. Pure.

Models write CommonMark with habits of their own; people read it on three platforms. So this reads what was
meant rather than what a browser would show: line breaks stay, code is never touched, and an underscore or
asterisk inside a word is a character.
"""

from dataclasses import dataclass
from typing import Literal

Mark = Literal["bold", "italic", "strike", "spoiler", "code", "pre", "quote", "heading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A stretch of text with the same marks."""

    text: str
    """May hold line breaks. Bullets, numbers and rules stand in it as text."""
    marks: frozenset[Mark] = frozenset()
    """`code` and `pre` stand alone among the inline ones: nothing inside code is formatted."""
    href: str | None = None
    """Where it links to."""
    lang: str | None = None
    """Of `pre`: what its fence was labelled."""


def read(markdown: str) -> tuple[Run, ...]:
    """Return what `markdown` says; text without Markdown comes back as it is. Never raises.

    Blocks are kept apart by as many line breaks as stood there (at most one blank line).
    """
    raise NotImplementedError
