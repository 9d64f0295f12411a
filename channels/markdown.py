"""Markdown parsed once for all renderers: plain text with marks on stretches of it. Pure.

Models write CommonMark with habits of their own; people read it on three platforms. So the parser
follows the intended meaning, not the rendering of a browser: line breaks stay, code is never
changed, and an underscore or asterisk inside a word is a character. `channels/commonmark.py` has
the rules.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from channels.text import clean_outgoing, clean_text
from gateway.core.frozen import frozen

if TYPE_CHECKING:
    from markdown_it.token import Token


Mark = Literal["bold", "italic", "strike", "spoiler", "code", "pre", "quote", "heading"]

BULLET = "•"
_INLINE: dict[str, Mark] = {"strong": "bold", "em": "italic", "s": "strike", "spoiler": "spoiler"}
_PLAIN = re.compile(
    r"[^\W\d_](?:[^\n\t*_`~|\[\]<>#\\&=@/]*[^\s*_`~|\[\]<>#\\&=@/])?",
)
"""One line, begun by a letter, without any character of which Markdown is made."""
_NONE: frozenset[Mark] = frozenset()
_QUOTE: frozenset[Mark] = frozenset(["quote"])


@frozen
class TextRun:
    """Stretch of text with the same marks."""

    text: str
    """Not empty; may hold line breaks. Bullets, numbers and rules are part of the text."""
    marks: frozenset[Mark] = frozenset()
    """`code` and `pre` exclude the inline formatting marks (`code` may be in a `quote`, a link or
    inside bold text; its content is never parsed as Markdown)."""
    href: str | None = None
    """Link target as written: it may be relative or no address at all. Not empty."""
    lang: str | None = None
    """Label of the fence, for `pre`."""


def parse_markdown(markdown: str) -> tuple[TextRun, ...]:
    """Return the content of `markdown`; text without Markdown comes back unchanged. Never raises.

    Blocks are separated by as many line breaks as in the source (at most one blank line), whatever
    marks they have; those line breaks are in runs with their own marks. A bullet is "• ", a number
    stays as written, and nested list content is indented by two spaces a level, except code: a
    `pre` is the code, byte for byte, without a line break at its end. A quote has no `>`, a table
    is a `pre` with aligned columns. Two neighbouring runs differ. Control characters but tabs and
    line feeds are dropped, and so are invisible characters and direction marks; lone surrogates
    become U+FFFD. If the text is nothing but marks, the marks are its content; only blank text
    gives ().
    """
    source = clean_outgoing(markdown)
    if _PLAIN.fullmatch(source):
        return (TextRun(text=source),)
    # Here and not above: it costs 50 ms and 4 MB, and check-config needs none of it.
    from channels.commonmark import commonmark_parser  # noqa: PLC0415

    writer = _RunWriter(source.split("\n"))
    writer.write_blocks(commonmark_parser().parse(source))
    runs = _merge_runs(writer.runs)
    if "&" in source:  # an entity may encode a character that was removed from the source
        runs = _merge_runs(replace(run, text=clean_outgoing(run.text)) for run in runs)
    if not any(run.text.strip() for run in runs):
        return (TextRun(text=source.strip("\n")),) if source.strip() else ()
    return runs


def _merge_runs(runs: Iterable[TextRun]) -> tuple[TextRun, ...]:
    merged: list[tuple[TextRun, list[str]]] = []
    for run in runs:
        if merged and replace(run, text="") == merged[-1][0]:
            merged[-1][1].append(run.text)
        elif run.text:
            merged.append((replace(run, text=""), [run.text]))
    return tuple(replace(run, text="".join(texts)) for run, texts in merged)


class _RunWriter:
    def __init__(self, lines: Sequence[str]) -> None:
        self.runs: list[TextRun] = []
        self._lines = lines
        self._last_line: int | None = None
        """Line after the last written block; None: nothing is written yet."""
        self._quotes, self._lists = 0, 0
        self._was_quote = False
        self._heading = False
        self._marker = ""
        """Marker of a list item whose content is not written yet."""

    def write_blocks(self, tokens: Sequence["Token"]) -> None:
        for token in tokens:
            match token.type:
                case "blockquote_open" | "blockquote_close":
                    self._quotes += token.nesting
                case (
                    "bullet_list_open"
                    | "ordered_list_open"
                    | "bullet_list_close"
                    | "ordered_list_close"
                ):
                    self._lists += token.nesting
                case "heading_open" | "heading_close":
                    self._heading = token.nesting > 0
                case "list_item_open":
                    self._start_item(token)
                case "list_item_close" if self._marker:
                    # A marker without content is no list: it stays as it was written.
                    self._marker = self._marker.replace(BULLET, token.markup).rstrip()
                    self._start_block(token.map or self._item_lines)
                case "inline":
                    self._write_text_block(token)
                case "fence" | "code_block":
                    self._write_code_block(token)
                case "hr":
                    self._start_block(token.map)
                    self._add_run(self._rule_text(token))

    def _rule_text(self, token: "Token") -> str:
        """Return a rule as it was written: it may be meant as an underline or as a blank in a
        form.
        """
        written = self._lines[(token.map or [0])[0]].rstrip()
        return written[len(written.rstrip(f"{token.markup[0]} \t")) :].strip()

    def _start_item(self, token: "Token") -> None:
        """Remember the marker until the item's first block; an item in an item shares its line."""
        start = (token.map or [0])[0]
        self._item_lines = [start, start + 1]
        if not self._marker:
            written = self._lines[start]
            # Two or three spaces are too few to nest under "1. ", but writers mean it so.
            sloppy = (
                self._lists == 1
                and not self._quotes
                and len(written) - len(written.lstrip(" ")) > 1
            )
            self._marker = "  " * (self._lists - 1 + sloppy)
        self._marker += f"{token.info}{token.markup} " if token.info else f"{BULLET} "

    def _write_text_block(self, token: "Token") -> None:
        if not token.content:
            if self._heading:
                self._start_block(token.map)
                self._add_run(self._lines[(token.map or [0])[0]].strip())
            return
        self._start_block(token.map)
        if not (self._lists or self._quotes or self._heading):
            line = self._lines[(token.map or [0])[0]]
            self._add_run(line[: len(line) - len(line.lstrip())])
        self._write_inline(token.children or [])

    def _write_code_block(self, token: "Token") -> None:
        code = token.content.removesuffix("\n")
        if not code.strip():
            return
        if self._marker:
            self._marker = self._marker.rstrip(" ") + "\n"
        self._start_block(token.map, indent="")
        label = token.info.split()
        self._add_run(code, frozenset(["pre"]), lang=label[0] if label else None)

    def _start_block(self, lines: list[int] | None, indent: str | None = None) -> None:
        """Separate a block from the one before; write its list item's marker if it is the first
        there.
        """
        start, end = lines or [0, 0]
        if self._last_line is not None:
            quote = _QUOTE if self._quotes and self._was_quote else _NONE
            self.runs.append(TextRun(text="\n\n" if start > self._last_line else "\n", marks=quote))
        self._last_line, self._was_quote = end, bool(self._quotes)
        self._add_run(self._marker or ("  " * self._lists if indent is None else indent))
        self._marker = ""

    def _write_inline(self, tokens: Sequence["Token"]) -> None:
        marks: list[Mark] = []
        href: str | None = None
        linked_since = 0
        aligned = False
        for token in tokens:
            kind = token.type.rpartition("_")[0]
            if kind in _INLINE:
                # Properly nested, so a closing token ends the mark that was opened last.
                marks.append(_INLINE[kind]) if token.nesting > 0 else marks.pop()
                continue
            match token.type:
                case "link_open":
                    href, linked_since = str(token.attrGet("href") or "") or None, len(self.runs)
                case "link_close":
                    if not any(run.text.strip() for run in self.runs[linked_since:]):
                        self._add_run(href or "[]()", frozenset(marks), href)
                    href = None
                case "image":
                    source = str(token.attrGet("src") or "") or None
                    self._add_run(
                        _image_text(token) or source or "![]()", frozenset(marks), href or source
                    )
                case "softbreak" | "hardbreak":
                    self._add_run("\n" + "  " * self._lists, frozenset(marks), href)
                    aligned = self._lists > 0
                    continue
                case "code_inline":
                    self._add_run(token.content, frozenset([*marks, "code"]), href)
                case _:
                    self._add_run(
                        token.content.lstrip() if aligned else token.content, frozenset(marks), href
                    )
            aligned = aligned and not token.content

    def _add_run(
        self,
        text: str,
        marks: frozenset[Mark] = _NONE,
        href: str | None = None,
        lang: str | None = None,
    ) -> None:
        if self._heading:
            marks |= {"heading"}
        if self._quotes:
            marks |= _QUOTE
        # Cleaned again: an entity may encode any character.
        self.runs.append(
            TextRun(
                text=clean_text(text), marks=marks, href=clean_text(href or "") or None, lang=lang
            )
        )


def _image_text(token: "Token") -> str:
    return "".join(
        _image_text(child) if child.children else child.content for child in token.children or []
    )
