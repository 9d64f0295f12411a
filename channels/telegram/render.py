"""Markdown as texts with message entities (core.telegram.org/bots/api#messageentity). Pure.

No parse mode, so there is nothing to escape: entities say by offset what is bold, in UTF-16 units.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from channels.markdown import TextRun, parse_markdown
from gateway.safety.mentions import break_mentions, mentions_many

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
