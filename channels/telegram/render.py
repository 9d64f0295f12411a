"""Markdown as texts with message entities (core.telegram.org/bots/api#messageentity). Pure.

No parse mode, so there is nothing to escape: entities say by offset what is bold, in UTF-16 units.

Formatted text from Telegram as our Markdown (core.telegram.org/bots/api#messageentity). Pure.

Offsets and lengths count UTF-16 units. What does not fit the text, or crosses another entity, is left out.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from channels.markdown import TextRun, parse_markdown
from channels.text import Json, clean_text, get_int, get_raw_str
from gateway.core.text_safety import break_mentions, mentions_many

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


MAX_TEXT_UNITS = 4096
"""UTF-16 units of a text. Telegram counts code points, which are never more."""
MAX_CAPTION_UNITS = 1024
"""The same, of a text that stands under a file."""
MAX_ENTITIES = 100
"""More are ignored by Telegram, and not the least important ones."""

_NESTING_ORDER = ("blockquote", "text_link", "bold", "italic", "strikethrough", "spoiler", "code", "pre")
"""Which may hold which, outermost first; code may hold nothing, and be in nothing but a quote."""
_PRIORITY = ("pre", "code", "text_link", "blockquote", "bold", "spoiler", "italic", "strikethrough")
"""Which to keep if there are too many."""
_LINK = re.compile(r"(?:https?|tg|ton)://[^\s]+|(?:mailto|tel):[^\s]+", re.IGNORECASE)
_MAX_BACKTRACK = 64
"""Code points that a hard cut may step back to keep a character together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramSpan:
    """An entity; where it counts in code points or UTF-16 units is up to who has it."""

    type: str
    start: int
    end: int
    url: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramText:
    """One message as Telegram takes it; the spans count UTF-16 units."""

    text: str
    spans: tuple[TelegramSpan, ...] = ()

    def to_json(self) -> str:
        """As JSON, the same for equal texts."""
        spans = [
            {key: value for key in TelegramSpan.__slots__ if (value := getattr(span, key)) is not None}
            for span in self.spans
        ]
        value = {"text": self.text, "entities": spans}
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def parse_body(body: str) -> TelegramText:
    """Reverse `TelegramText.dump`; anything else is text without formatting."""
    try:
        value = json.loads(body)
        if not isinstance(value, dict) or value.keys() != {"text", "entities"}:
            return TelegramText(text=body)
        spans = tuple(TelegramSpan(**span) for span in value["entities"])
        if isinstance(value["text"], str) and all(isinstance(span.type, str) for span in spans):
            return TelegramText(text=value["text"], spans=spans)
    except (ValueError, TypeError, RecursionError):
        pass
    return TelegramText(text=body)


def render(markdown: str, limit: int = MAX_TEXT_UNITS, *, first: int | None = None) -> tuple[TelegramText, ...]:
    """The messages to send, at least one, none blank, each of at most `limit` units, the first of at most `first`."""
    text, spans = _flatten(_break_mass_mentions(parse_markdown(markdown)))
    made = tuple(_build_text(text, spans, start, end) for start, end in _cut_text(text, limit, first or limit))
    # Nothing but what is not shown (controls): say that there was something.
    return made or (TelegramText(text="\ufffd"),)


def _break_mass_mentions(runs: Sequence[TextRun]) -> Sequence[TextRun]:
    """The same runs, with @names parted if there are many of them. In code and links they call nobody."""
    calls = [not (run.href or run.marks & {"code", "pre"}) for run in runs]
    if not mentions_many("".join(run.text if may else "\n" for run, may in zip(runs, calls, strict=True))):
        return runs
    return [replace(run, text=break_mentions(run.text)) if may else run for run, may in zip(runs, calls, strict=True)]


def utf16_length(text: str) -> int:
    """UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _flatten(runs: Sequence[TextRun]) -> tuple[str, list[TelegramSpan]]:
    """The whole text, and its spans in code points."""
    text, spans = "", list[TelegramSpan]()
    opened: list[TelegramSpan] = []
    for index, run in enumerate(runs):
        wanted = list(_run_spans(run, len(text)))
        same = 0
        while same < min(len(opened), len(wanted)) and _is_same_entity(opened[same], wanted[same]):
            same += 1
        spans += [replace(span, end=len(text)) for span in opened[same:]]
        opened = opened[:same] + wanted[same:]
        text += run.text
        following = runs[index + 1].href if index + 1 < len(runs) else None
        if run.href and following != run.href and not _LINK.fullmatch(run.href) and run.href not in run.text:
            spans += [replace(span, end=len(text)) for span in opened]
            opened = []
            text += f" ({run.href})"
    spans += [replace(span, end=len(text)) for span in opened]
    return text, [span for span in spans if text[span.start : span.end].strip()]


def _run_spans(run: TextRun, start: int) -> Iterator[TelegramSpan]:
    if "quote" in run.marks:
        yield TelegramSpan(type="blockquote", start=start, end=start)
    linked = run.href is not None and _LINK.fullmatch(run.href) and run.href != run.text
    if linked and "pre" not in run.marks:  # to be clicked is worth more than to be set in another font
        yield TelegramSpan(type="text_link", start=start, end=start, url=run.href)
    if "pre" in run.marks:
        language = "".join((run.lang or "").split()) or None
        yield TelegramSpan(type="pre", start=start, end=start, language=language)
    elif "code" in run.marks:
        if not linked:
            yield TelegramSpan(type="code", start=start, end=start)
    else:
        names = {"bold": {"bold", "heading"}, "italic": {"italic"}, "strikethrough": {"strike"}, "spoiler": {"spoiler"}}
        for name, marks in names.items():
            if run.marks & marks:
                yield TelegramSpan(type=name, start=start, end=start)


def _is_same_entity(one: TelegramSpan, other: TelegramSpan) -> bool:
    return (one.type, one.url, one.language) == (other.type, other.url, other.language)


def _cut_text(text: str, limit: int, first: int) -> Iterator[tuple[int, int]]:
    """Where to cut: pieces without white space at their ends, except the indentation of a line."""
    at, room = _skip_blank(text, 0), first
    while at < len(text):
        end = at + _fitting_count(text, at, room)
        if end < len(text):
            end = _find_boundary(text, at, end)
        kept = at + len(text[at:end].rstrip())
        if kept > at:
            yield at, kept
            room = limit
        at = _skip_blank(text, end)


def _skip_blank(text: str, at: int) -> int:
    """Where the first line begins that is not blank; behind a cut inside a line, the spaces go too."""
    skip = len(text) - len(text[at:].lstrip()) if text[at:].strip() else len(text)
    if at and text[at - 1] != "\n" and "\n" not in text[at:skip]:
        return skip
    return max(at, text.rfind("\n", at, skip) + 1)


def _fitting_count(text: str, at: int, limit: int) -> int:
    """How many code points from `at` on fit into `limit` units."""
    if utf16_length(text[at : at + limit]) <= limit:
        return min(limit, len(text) - at)
    count = used = 0
    for character in text[at : at + limit]:
        used += 2 if ord(character) > 0xFFFF else 1  # noqa: PLR2004 - the Basic Multilingual Plane
        if used > limit:
            break
        count += 1
    return count


def _find_boundary(text: str, at: int, end: int) -> int:
    """The best place for a cut at or before `end`: between paragraphs, lines, words, else characters."""
    size = end - at
    for mark, least in (("\n\n", size // 2), ("\n", size // 3), (" ", size // 4)):
        found = text.rfind(mark, at, end + len(mark))
        if found > at + least and text[at:found].strip():
            return found
    back = end
    while back > max(at + 1, end - _MAX_BACKTRACK) and _is_one_character(text, back, at):
        back -= 1
    return back if back > max(at + 1, end - _MAX_BACKTRACK) else end


def _is_one_character(text: str, at: int, start: int) -> bool:
    """Whether a reader of `text` from `start` sees what is before and behind `at` as one character (as in UAX 29)."""
    before, behind = text[at - 1], text[at]
    return bool(
        unicodedata.combining(behind)
        or behind in "\u200d\ufe0e\ufe0f\u20e3"
        or before == "\u200d"
        or 0x1F3FB <= ord(behind) <= 0x1F3FF  # noqa: PLR2004 - skin tones
        or (_is_flag_letter(before) and _is_flag_letter(behind) and _count_flag_letters(text, at, start) % 2)
    )


def _is_flag_letter(character: str) -> bool:
    return 0x1F1E6 <= ord(character) <= 0x1F1FF  # noqa: PLR2004 - regional indicators: two of them are a flag


def _count_flag_letters(text: str, at: int, start: int) -> int:
    count = 0
    while count < at - start and _is_flag_letter(text[at - 1 - count]):
        count += 1
    return count


def _build_text(text: str, spans: Sequence[TelegramSpan], start: int, end: int) -> TelegramText:
    """One piece with its share of the spans, which are opened again where a cut went through them."""
    piece = text[start:end]
    offsets = _utf16_offsets(piece)
    inside = []
    for span in spans:
        first, last = max(span.start, start) - start, min(span.end, end) - start
        if first < last and (shown := piece[first:last]).strip():
            if span.type == "pre":  # a cut between its lines leaves the line break to nobody
                first += len(shown) - len(shown.lstrip("\n"))
                last -= len(shown) - len(shown.rstrip("\n"))
            inside.append(replace(span, start=offsets[first], end=offsets[last]))
    if len(inside) > MAX_ENTITIES:
        inside = sorted(inside, key=lambda span: _PRIORITY.index(span.type))[:MAX_ENTITIES]
    order = sorted(inside, key=lambda span: (span.start, -span.end, _NESTING_ORDER.index(span.type)))
    return TelegramText(text=piece, spans=tuple(order))


def _utf16_offsets(piece: str) -> Sequence[int]:
    """For every code point, and the end, its offset in UTF-16 units."""
    if utf16_length(piece) == len(piece):
        return range(len(piece) + 1)
    offsets = [0]
    for character in piece:
        offsets.append(offsets[-1] + (2 if ord(character) > 0xFFFF else 1))  # noqa: PLR2004 - as above
    return offsets
