"""Markdown as the HTML of Matrix, and back. Pure.

https://spec.matrix.org/latest/client-server-api/#mroommessage-msgtypes lists the elements that
clients show (`org.matrix.custom.html`). Typed characters of incoming text are never escaped.
"""

import contextlib
import re
from collections.abc import Iterable
from html import escape
from html.parser import HTMLParser
from itertools import groupby
from typing import Final

from reverie.platforms import TextRun, clean_text, parse_markdown

_TAGS: Final = (
    (("bold", "heading"), "strong", ""),
    (("italic",), "em", ""),
    (("strike",), "del", ""),
    (("spoiler",), "span", " data-mx-spoiler"),
    (("code",), "code", ""),
)
"""Marks, the element that shows them, and its attribute; the outermost first."""
_LINK: Final = re.compile(r"(?:https?|ftp|mailto|magnet|matrix):\S+", re.IGNORECASE)
"""Targets that clients follow."""
_INDENT: Final = re.compile(r"(?<=\n) +")
_INLINE: Final = {
    "b": "**",
    "strong": "**",
    "i": "*",
    "em": "*",
    "s": "~~",
    "del": "~~",
    "strike": "~~",
}
_PARAGRAPHS: Final = frozenset({"p", "div", "table", "ul", "ol", "details"})
_VOID: Final = frozenset({"br", "hr", "img"})
_HEADING: Final = re.compile(r"h[1-6]")
_MAX_DEPTH: Final = 100
"""Levels of elements; the standard's own limit."""
_GAP, _BREAK = "\x00", "\x01"
"""Space between paragraphs, and between lines, until it is known what stands beside it."""
_GAPS: Final = re.compile(rf"[\s{_BREAK}]*{_GAP}[\s{_GAP}{_BREAK}]*")
_BREAKS: Final = re.compile(rf"\s*{_BREAK}[\s{_BREAK}]*")
_LINE: Final = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


def to_html(markdown: str) -> str:
    """Return what shows `markdown`; empty if the text has no formatting."""
    runs = parse_markdown(markdown)
    if not any(run.marks or run.href for run in runs):
        return ""
    parts = []
    for is_quote, group in groupby(runs, key=lambda run: "quote" in run.marks):
        inner = "".join(map(_show_run, group))
        parts.append(f"<blockquote>{_trim(inner)}</blockquote>" if is_quote else inner)
    return re.sub(
        r"(?:<br>)?(<pre>.*?</pre>|</?blockquote>)(?:<br>)?", r"\1", _trim("".join(parts))
    )


def _trim(html: str) -> str:
    return html.removeprefix("<br>").removesuffix("<br>")


def _show_run(run: TextRun) -> str:
    if "pre" in run.marks:
        language = re.sub(r"[^\w+#.-]", "", run.lang or "")
        label = f' class="language-{language}"' if language else ""
        code = escape(run.text, quote=False).replace("\n", "&#10;")
        return f"<pre><code{label}>{code}</code></pre>"
    text = escape(run.text, quote=False)
    text = _INDENT.sub(lambda found: "&nbsp;" * len(found[0]), text).replace("\n", "<br>")
    if not run.text.strip():
        return text
    for marks, tag, attribute in reversed(_TAGS):
        if run.marks.intersection(marks):
            text = f"<{tag}{attribute}>{text}</{tag}>"
    if run.href and _LINK.fullmatch(run.href):
        return f'<a href="{escape(run.href)}">{text}</a>'
    return f"{text} ({escape(run.href)})" if run.href and run.href not in run.text else text


def to_markdown(html: str) -> str:
    """Return the text of `html` with its formatting as Markdown. Never raises.

    What a reply quotes of another message (`mx-reply`) is left out.
    """
    reader = _HtmlReader()
    # `html.parser` of Python 3.11 raises it at an odd declaration: what stands before it counts.
    with contextlib.suppress(AssertionError):
        reader.feed(clean_text(html))
        reader.close()
    return reader.finish()


class _HtmlReader(HTMLParser):
    """Elements that are open, each with the Markdown of its content so far."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, dict[str, str], list[str]]] = [("", {}, [])]
        self._item_numbers: list[int | None] = []
        """Number of the next item of each open list; None: it has bullets."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in _VOID:
            alternative = given.get("alt") or given.get("title") or ""
            self._write({"br": "\n", "hr": f"{_GAP}---{_GAP}", "img": alternative}[tag])
        elif len(self._open) < _MAX_DEPTH:
            if tag in ("ul", "ol"):
                start = given.get("start", "1")
                number = int(start) if start.isdecimal() and len(start) < 10 else 1  # noqa: PLR2004 - CommonMark's limit
                self._item_numbers.append(number if tag == "ol" else None)
            language = re.search(r"language-([\w+#.-]+)", given.get("class", ""))
            if tag == "code" and language and self._open[-1][0] == "pre":
                self._open[-1][1]["language"] = language[1]
            self._open.append((tag, given, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if any(open_tag == tag for open_tag, _, _ in self._open[1:]):
            while self._close_last() != tag:
                pass

    def handle_data(self, data: str) -> None:
        self._write(data if self._is_in("pre") else re.sub(r"\s+", " ", data))

    def finish(self) -> str:
        """Return the Markdown of all that was read."""
        while len(self._open) > 1:
            self._close_last()
        return clean_text(_settle(self._open[0][2]))

    def _is_in(self, *tags: str) -> bool:
        return any(tag in tags for tag, _, _ in self._open)

    def _write(self, text: str) -> None:
        self._open[-1][2].append(text)

    def _close_last(self) -> str:
        tag, given, parts = self._open.pop()
        if tag in ("ul", "ol"):
            self._item_numbers.pop()
        self._write(self._format(tag, given, parts))
        return tag

    def _format(self, tag: str, given: dict[str, str], parts: list[str]) -> str:  # noqa: C901, PLR0912 - a table
        inner = "".join(parts)
        if self._is_in("pre"):
            return inner
        match tag:
            case "mx-reply":
                return ""
            case "pre":
                return self._format_code(inner, given)
            case "code":
                ticks = _backticks(inner, 1)
                pad = " " if inner[:1] == "`" or inner[-1:] == "`" else ""
                return f"{ticks}{pad}{inner}{pad}{ticks}" if inner.strip() else inner
            case "a":
                href = "".join(given.get("href", "").split())
                plain = not href or href == inner.strip() or "matrix.to/#/" in href
                return inner if plain else _wrap_words(inner, "[", f"]({href})")
            case "span" if "data-mx-spoiler" in given:
                return _wrap_words(inner, "||", "||")
            case "blockquote":
                lines = _settle(parts).split("\n")
                return _GAP + "\n".join(f"> {line}".rstrip() for line in lines) + _GAP
            case "li":
                return self._format_item(_settle(parts))
            case "tr":
                return f"{_BREAK}{inner.strip().removesuffix('|').rstrip()}{_BREAK}"
            case "td" | "th":
                return f"{inner.strip()} | "
            case "ul" | "ol" if self._is_in("li"):
                return f"{_BREAK}{inner}{_BREAK}"
            case _ if tag in _INLINE:
                return _wrap_words(inner, _INLINE[tag], _INLINE[tag])
            case _ if _HEADING.fullmatch(tag):
                return f"{_GAP}{'#' * int(tag[1])} {_settle(parts)}{_GAP}"
            case _ if tag in _PARAGRAPHS:
                return _GAP + inner + _GAP
            case _:
                return inner

    @staticmethod
    def _format_code(inner: str, given: dict[str, str]) -> str:
        code, language = inner.strip("\n"), given.get("language", "")
        fence = _backticks(code, 3)
        return f"{_GAP}{fence}{language}\n{code}\n{fence}{_GAP}" if code.strip() else ""

    def _format_item(self, text: str) -> str:
        number = self._item_numbers[-1] if self._item_numbers else None
        if number is not None:
            self._item_numbers[-1] = number + 1
        marker = "- " if number is None else f"{number}. "
        indented = text.replace("\n", "\n" + " " * len(marker))
        return f"{_BREAK}{marker}{indented}{_BREAK}"


def _settle(parts: Iterable[str]) -> str:
    """Return the text with its gaps and breaks as line ends, and none at its edges."""
    text = _BREAKS.sub("\n", _GAPS.sub("\n\n", "".join(parts)))
    return text.strip("\n ")


def _backticks(text: str, least: int) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


def _wrap_words(text: str, before: str, after: str) -> str:
    """Put marks around the words of each line: emphasis has no white space at its edges."""

    def wrap(line: str) -> str:
        found = _LINE.fullmatch(line)
        assert found is not None
        return f"{found[1]}{before}{found[2]}{after}{found[3]}" if found[2] else line

    return "\n".join(map(wrap, text.split("\n")))
