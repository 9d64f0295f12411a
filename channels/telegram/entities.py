"""Formatted text from Telegram as our Markdown (core.telegram.org/bots/api#messageentity). Pure.

Offsets and lengths count UTF-16 units. What does not fit the text, or crosses another entity, is left out.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from channels.payload import Json, get_int, get_raw_str
from channels.text import clean_text

_INLINE_MARKS = {"bold": "**", "italic": "*", "strikethrough": "~~", "spoiler": "||"}
_BLOCK_TYPES = frozenset({"pre", "blockquote", "expandable_blockquote"})
_RENDERED_TYPES = _BLOCK_TYPES | _INLINE_MARKS.keys() | {"code", "text_link"}
_SURROGATE_BITS = b"\x00\xd8\x00\xdc"
"""The first bits of a surrogate pair, little-endian (RFC 2781 section 2.1)."""
_MAX_PARSED_ENTITIES = 200
"""Entities that are looked at; Telegram sends at most 100."""
_LINE = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _EntitySpan:
    start: int
    end: int
    type: str
    argument: str
    """The link's target, or the code's language."""


def to_markdown(text: str, entities: Iterable[Json]) -> str:
    """`text` with the formatting that Markdown has; what was typed is never escaped."""
    units = Utf16Text(text)
    return _write_spans(units.cut, 0, units.size, list(_nest_spans(units, entities)))


class Utf16Text:
    """A text that can be cut at UTF-16 offsets."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode("utf-16-le", "surrogatepass")
        self.size = len(self._bytes) // 2

    def cut(self, start: int, end: int) -> str:
        return clean_text(self._bytes[2 * start : 2 * end].decode("utf-16-le", "surrogatepass"))

    def find_span(self, start: int | None, length: int | None) -> tuple[int, int] | None:
        """Start and end, if they are inside the text and part no surrogate pair."""
        if start is None or length is None or start < 0 or length <= 0 or start + length > self.size:
            return None
        return (start, start + length) if not (self._splits_pair(start) or self._splits_pair(start + length)) else None

    def _splits_pair(self, at: int) -> bool:
        """Whether a high surrogate is before `at` and a low one behind it."""
        around = self._bytes[2 * at - 2 : 2 * at + 2] if at else b""
        return (
            len(around) == len(_SURROGATE_BITS)
            and around[1] & 0xFC == _SURROGATE_BITS[1]
            and around[3] & 0xFC == _SURROGATE_BITS[3]
        )


def _nest_spans(units: Utf16Text, entities: Iterable[Json]) -> Iterator[_EntitySpan]:
    spans: list[_EntitySpan] = []
    for entity in entities:
        place = units.find_span(get_int(entity, "offset"), get_int(entity, "length"))
        kind = get_raw_str(entity, "type")
        if place and kind in _RENDERED_TYPES and len(spans) < _MAX_PARSED_ENTITIES:
            more = get_raw_str(entity, "url") if kind == "text_link" else get_raw_str(entity, "language")
            spans.append(_EntitySpan(*place, kind, "".join(clean_text(more).split())))
    opened: list[_EntitySpan] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end, span.type not in _BLOCK_TYPES)):
        while opened and opened[-1].end <= span.start:
            opened.pop()
        if not opened or span.end <= opened[-1].end:
            opened.append(span)
            yield span


def _write_spans(cut: Callable[[int, int], str], start: int, end: int, spans: Sequence[_EntitySpan]) -> str:
    out, at, first = "", start, 0
    while first < len(spans):
        span, after = spans[first], first + 1
        while after < len(spans) and spans[after].start < span.end:
            after += 1
        out += cut(at, span.start)
        inner = spans[first + 1 : after] if span.type not in ("code", "pre") else ()
        shown = _wrap_span(span, _write_spans(cut, span.start, span.end, inner))
        if span.type in _BLOCK_TYPES:
            shown = ("" if not out or out.endswith("\n") else "\n") + shown
            shown += "\n" if span.end < end and not cut(span.end, span.end + 1).startswith("\n") else ""
        out, at, first = out + shown, span.end, after
    return out + cut(at, end)


def _wrap_span(span: _EntitySpan, inner: str) -> str:
    match span.type:
        case "pre":
            fence = _backticks(inner, 3)
            return f"{fence}{span.argument}\n{inner.strip(chr(10))}\n{fence}"
        case "blockquote" | "expandable_blockquote":
            return quote_lines(inner)
        case "code":
            ticks = _backticks(inner, 1)
            pad = " " if inner.startswith("`") or inner.endswith("`") else ""
            return "\n".join(f"{ticks}{pad}{line}{pad}{ticks}" if line.strip() else line for line in inner.split("\n"))
        case "text_link":
            target = f"<{span.argument}>" if set(span.argument) & set("()<>") else span.argument
            return _wrap_words(inner, "[", f"]({target})") if span.argument else inner
        case _:
            mark = _INLINE_MARKS[span.type]
            return _wrap_words(inner, mark, mark)


def quote_lines(text: str) -> str:
    """`text` as a Markdown quote."""
    return "\n".join(f"> {line}".rstrip() for line in text.strip("\n").split("\n"))


def _wrap_words(text: str, before: str, after: str) -> str:
    """Marks hug the words of each line: emphasis does not reach over white space at its edges, or a line's end."""

    def line(part: str) -> str:
        found = _LINE.fullmatch(part)
        assert found is not None
        return f"{found[1]}{before}{found[2]}{after}{found[3]}" if found[2] else part

    return "\n".join(line(part) for part in text.split("\n"))


def _backticks(text: str, least: int) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)
