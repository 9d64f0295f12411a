"""Markdown as texts with message entities, and back (core.telegram.org/bots/api#messageentity).
Pure.

Outgoing text uses no parse mode, so nothing needs escaping: entities mark formatting by offset, in
UTF-16 units. Incoming entities that do not fit the text, or cross another entity, are ignored.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError
from telegram import MessageEntity

from channels.markdown import TextRun, parse_markdown
from channels.split import character_boundary, fitting_length, utf16_length
from channels.telegram.people import mention_of
from channels.text import clean_text
from gateway.core.frozen import frozen
from gateway.core.text_safety import break_mentions, mentions_many

_INLINE_MARKS = {"bold": "**", "italic": "*", "strikethrough": "~~", "spoiler": "||"}
_BLOCK_TYPES = frozenset({"pre", "blockquote", "expandable_blockquote"})
_RENDERED_TYPES = _BLOCK_TYPES | _INLINE_MARKS.keys() | {"code", "text_link", "text_mention"}
_SURROGATE_BITS = b"\x00\xd8\x00\xdc"
"""First bits of a surrogate pair, little-endian (RFC 2781 section 2.1)."""
_MAX_PARSED_ENTITIES = 200
"""Entities that are parsed; Telegram sends at most 100."""
_LINE = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


@frozen
class TelegramSpan:
    """Entity; its offsets count code points or UTF-16 units, depending on its owner."""

    type: str
    start: int
    end: int
    url: str | None = None
    language: str | None = None
    mention: str | None = None
    """What stands for the text of a `text_mention`, which is a name that somebody else has
    chosen."""


def to_markdown(text: str, entities: Iterable[MessageEntity]) -> str:
    """Return `text` with its formatting as Markdown; typed characters are never escaped."""
    units = Utf16Text(text)
    return _write_spans(units.cut, 0, units.size, list(_nest_spans(units, entities)))


class Utf16Text:
    """Text that can be cut at UTF-16 offsets."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode("utf-16-le", "surrogatepass")
        self.size = len(self._bytes) // 2

    def cut(self, start: int, end: int) -> str:
        return clean_text(self._bytes[2 * start : 2 * end].decode("utf-16-le", "surrogatepass"))

    def find_span(self, entity: MessageEntity) -> tuple[int, int] | None:
        """Return start and end, if they are inside the text and split no surrogate pair."""
        start, end = entity.offset, entity.offset + entity.length
        is_inside = 0 <= start < end <= self.size and not (
            self._splits_pair(start) or self._splits_pair(end)
        )
        return (start, end) if is_inside else None

    def _splits_pair(self, at: int) -> bool:
        """Return whether `at` is between a high and a low surrogate."""
        around = self._bytes[2 * at - 2 : 2 * at + 2] if at else b""
        return (
            len(around) == len(_SURROGATE_BITS)
            and around[1] & 0xFC == _SURROGATE_BITS[1]
            and around[3] & 0xFC == _SURROGATE_BITS[3]
        )


def _nest_spans(units: Utf16Text, entities: Iterable[MessageEntity]) -> Iterator[TelegramSpan]:
    spans: list[TelegramSpan] = []
    for entity in entities:
        place = units.find_span(entity)
        if place and entity.type in _RENDERED_TYPES and len(spans) < _MAX_PARSED_ENTITIES:
            url, language = (
                "".join(clean_text(text or "").split()) for text in (entity.url, entity.language)
            )
            mention = mention_of(entity.user) if entity.type == "text_mention" else None
            spans.append(
                TelegramSpan(
                    type=entity.type,
                    start=place[0],
                    end=place[1],
                    url=url,
                    language=language,
                    mention=mention,
                )
            )
    mentions = [span for span in spans if span.mention]
    spans = [
        span
        for span in spans
        if span.mention or not any(_cuts(span, mention) for mention in mentions)
    ]
    opened: list[TelegramSpan] = []
    for span in sorted(
        spans, key=lambda span: (span.start, -span.end, span.type not in _BLOCK_TYPES)
    ):
        while opened and opened[-1].end <= span.start:
            opened.pop()
        if not opened or span.end <= opened[-1].end:
            opened.append(span)
            yield span


def _cuts(span: TelegramSpan, mention: TelegramSpan) -> bool:
    """Return whether a span would show text of the mention as it is."""
    if span.end <= mention.start or mention.end <= span.start:
        return False
    is_nested = span.start <= mention.start and mention.end <= span.end
    return not is_nested or span.type in ("code", "pre")


def _write_spans(
    cut: Callable[[int, int], str], start: int, end: int, spans: Sequence[TelegramSpan]
) -> str:
    out, at, first = "", start, 0
    while first < len(spans):
        span, after = spans[first], first + 1
        while after < len(spans) and spans[after].start < span.end:
            after += 1
        out += cut(at, span.start)
        inner = spans[first + 1 : after] if span.type not in ("code", "pre") else ()
        written = _wrap_span(span, _write_spans(cut, span.start, span.end, inner))
        if span.type in _BLOCK_TYPES:
            written = ("" if not out or out.endswith("\n") else "\n") + written
            written += (
                "\n" if span.end < end and not cut(span.end, span.end + 1).startswith("\n") else ""
            )
        out, at, first = out + written, span.end, after
    return out + cut(at, end)


def _wrap_span(span: TelegramSpan, inner: str) -> str:
    match span.type:
        case "pre":
            fence = _backticks(inner, 3)
            return f"{fence}{span.language}\n{inner.strip(chr(10))}\n{fence}"
        case "blockquote" | "expandable_blockquote":
            return quote_lines(inner)
        case "code":
            ticks = _backticks(inner, 1)
            pad = " " if inner.startswith("`") or inner.endswith("`") else ""
            return "\n".join(
                f"{ticks}{pad}{line}{pad}{ticks}" if line.strip() else line
                for line in inner.split("\n")
            )
        case "text_mention":
            return span.mention or ""
        case "text_link":
            target = f"<{span.url}>" if set(span.url or "") & set("()<>") else span.url
            return _wrap_words(inner, "[", f"]({target})") if span.url else inner
        case _:
            mark = _INLINE_MARKS[span.type]
            return _wrap_words(inner, mark, mark)


def quote_lines(text: str) -> str:
    """Return `text` as a Markdown quote."""
    return "\n".join(f"> {line}".rstrip() for line in text.strip("\n").split("\n"))


def _wrap_words(text: str, before: str, after: str) -> str:
    """Put marks around the words of each line: emphasis includes no white space at its edges, and
    no line end.
    """

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
"""UTF-16 units of a text under a file."""
MAX_ENTITIES = 100
"""Telegram ignores any more, and not the least important ones."""

_NESTING_ORDER = (
    "blockquote",
    "text_link",
    "bold",
    "italic",
    "strikethrough",
    "spoiler",
    "code",
    "pre",
)
"""Allowed nesting, outermost first; code may contain nothing, and be only in a quote."""
_PRIORITY = ("pre", "code", "text_link", "blockquote", "bold", "spoiler", "italic", "strikethrough")
"""Order in which entities are kept if there are too many."""
_URL_HOST = r"(?:[\w.\-!$,~*'();&+=]|[^\x00-\x7f]|%[0-9a-f]{2})"
_LINK = re.compile(
    rf"https?://(?:(?:{_URL_HOST}|:)*@)?(?={_URL_HOST}*\.)(?!\.(?:[:/?#]|$)){_URL_HOST}+(?::0*[1-9]\d{{0,4}})?(?:[/?#]\S*)?"
    r"|(?:tg|ton)://[\w\-]+(?:[/?#]\S*)?",
    re.ASCII | re.IGNORECASE,
)
"""Links that Telegram takes: it refuses a whole message for another one. `check_link_impl` and
`parse_url` of https://github.com/tdlib/td (`LinkManager.cpp`, `HttpUrl.cpp`): the host has a dot,
the port is at most 65535."""
_USER_LINK = re.compile(r"tg:(?://)?user/?\?(?:\S*&)?id=", re.IGNORECASE)
_MAX_PORT = 65535


@frozen
class TelegramText:
    """Text of one message; its spans count UTF-16 units."""

    text: str
    spans: tuple[TelegramSpan, ...] = ()

    def to_json(self) -> str:
        """Return JSON, the same for equal texts."""
        return _BODY.dump_json(self, exclude_none=True).decode()


_BODY = TypeAdapter(TelegramText)


def parse_body(body: str) -> TelegramText:
    """Reverse `TelegramText.to_json`; any other text has no formatting."""
    try:
        return _BODY.validate_json(body)
    except ValidationError:
        return TelegramText(text=body)


def render(
    markdown: str, limit: int = MAX_TEXT_UNITS, *, first: int | None = None
) -> tuple[TelegramText, ...]:
    """Return the messages to send, at least one, none blank.

    Each has at most `limit` units, the first one at most `first`.
    """
    text, spans = _flatten(_break_mass_mentions(_drop_masked_mentions(parse_markdown(markdown))))
    texts = tuple(
        _build_text(text, spans, start, end)
        for start, end in _cut_text(text, spans, limit, first or limit)
    )
    # Only invisible characters (controls): show a placeholder.
    return texts or (TelegramText(text="\ufffd"),)


def is_link(href: str) -> bool:
    """Return whether Telegram takes `href` as the target of a link."""
    port = re.match(r"https?://[^/?#]*:(\d+)(?:[/?#]|$)", href, re.IGNORECASE)
    return _LINK.fullmatch(href) is not None and (port is None or int(port[1]) <= _MAX_PORT)


def _drop_masked_mentions(runs: Sequence[TextRun]) -> list[TextRun]:
    """Return the runs without links to people whose label is not the id that they lead to, as
    `@user-7` is.

    Behind another label nobody sees who is notified.
    """
    found = list[TextRun]()
    for href, group in itertools.groupby(runs, key=lambda run: run.href):
        same, user = list(group), _USER_LINK.match(href or "")
        label = "".join(run.text for run in same)
        masked = user is not None and (href or "")[user.end() :] not in re.findall(r"\d+", label)
        found += [replace(run, href=None) for run in same] if masked else same
    return found


def _break_mass_mentions(runs: Sequence[TextRun]) -> Sequence[TextRun]:
    """Return the runs with @names broken up, and links to people as text, if there are many of them
    together.

    In code and other links names notify nobody.
    """
    said = list[str]()
    for run in runs:
        user = _USER_LINK.match(run.href) if run.href else None
        notifies = not (run.href or run.marks & {"code", "pre"})
        said.append(
            f" @user{run.href[user.end() :]} "
            if user and run.href
            else run.text
            if notifies
            else "\n"
        )
    if not mentions_many("".join(said)):
        return runs
    return [
        replace(run, href=None)
        if run.href and _USER_LINK.match(run.href)
        else run
        if run.href or run.marks & {"code", "pre"}
        else replace(run, text=break_mentions(run.text))
        for run in runs
    ]


def _flatten(runs: Sequence[TextRun]) -> tuple[str, list[TelegramSpan]]:
    """Return the whole text, and its spans in code points."""
    text, spans = "", list[TelegramSpan]()
    opened: list[TelegramSpan] = []
    for index, run in enumerate(runs):
        wanted = list(_run_spans(run, len(text)))
        common = 0
        while common < min(len(opened), len(wanted)) and _is_same_entity(
            opened[common], wanted[common]
        ):
            common += 1
        spans += [replace(span, end=len(text)) for span in opened[common:]]
        opened = opened[:common] + wanted[common:]
        text += run.text
        following = runs[index + 1].href if index + 1 < len(runs) else None
        if (
            run.href
            and following != run.href
            and not is_link(run.href)
            and run.href not in run.text
        ):
            spans += [replace(span, end=len(text)) for span in opened]
            opened = []
            text += f" ({run.href})"
    spans += [replace(span, end=len(text)) for span in opened]
    return text, [span for span in spans if text[span.start : span.end].strip()]


def _run_spans(run: TextRun, start: int) -> Iterator[TelegramSpan]:
    if "quote" in run.marks:
        yield TelegramSpan(type="blockquote", start=start, end=start)
    linked = run.href is not None and is_link(run.href) and run.href != run.text
    if linked and "pre" not in run.marks:  # a working link is worth more than a code font
        yield TelegramSpan(type="text_link", start=start, end=start, url=run.href)
    if "pre" in run.marks:
        language = "".join((run.lang or "").split()) or None
        yield TelegramSpan(type="pre", start=start, end=start, language=language)
    elif "code" in run.marks:
        if not linked:
            yield TelegramSpan(type="code", start=start, end=start)
    else:
        names = {
            "bold": {"bold", "heading"},
            "italic": {"italic"},
            "strikethrough": {"strike"},
            "spoiler": {"spoiler"},
        }
        for name, marks in names.items():
            if run.marks & marks:
                yield TelegramSpan(type=name, start=start, end=start)


def _is_same_entity(first: TelegramSpan, second: TelegramSpan) -> bool:
    return (first.type, first.url, first.language) == (second.type, second.url, second.language)


def _cut_text(
    text: str, spans: Sequence[TelegramSpan], limit: int, first: int
) -> Iterator[tuple[int, int]]:
    """Yield the pieces' bounds: without white space at their ends, except the indentation of a
    line.

    A code block that fits a piece is not cut.
    """
    blocks = [
        span
        for span in spans
        if span.type == "pre" and utf16_length(text[span.start : span.end]) <= limit
    ]
    at, room = _skip_blank(text, 0), first
    while at < len(text):
        end = at + fitting_length(text[at : at + room], room)
        if end < len(text):
            cut = next((span for span in blocks if at < span.start < end < span.end), None)
            is_first = cut is None or not text[at : cut.start].strip()
            end = _find_boundary(text, at, end) if cut is None or is_first else cut.start
        piece_end = at + len(text[at:end].rstrip())
        if piece_end > at:
            yield at, piece_end
            room = limit
        at = _skip_blank(text, end)


def _skip_blank(text: str, at: int) -> int:
    """Return the start of the first line that is not blank; after a cut inside a line, spaces are
    skipped, too.
    """
    skip = len(text) - len(text[at:].lstrip()) if text[at:].strip() else len(text)
    if at and text[at - 1] != "\n" and "\n" not in text[at:skip]:
        return skip
    return max(at, text.rfind("\n", at, skip) + 1)


def _find_boundary(text: str, at: int, end: int) -> int:
    """Return the best cut at or before `end`: between paragraphs, lines, words, else characters."""
    size = end - at
    for mark, least in (("\n\n", size // 2), ("\n", size // 3), (" ", size // 4)):
        found = text.rfind(mark, at, end + len(mark))
        if found > at + least and text[at:found].strip():
            return found
    return character_boundary(text, at, end)


def _build_text(text: str, spans: Sequence[TelegramSpan], start: int, end: int) -> TelegramText:
    """Return one piece with its share of the spans, which are reopened after a cut."""
    piece = text[start:end]
    inside = []
    for span in spans:
        first, last = max(span.start, start) - start, min(span.end, end) - start
        if first < last and (covered := piece[first:last]).strip():
            if (
                span.type == "pre"
            ):  # after a cut between its lines, the line break belongs to neither piece
                first += len(covered) - len(covered.lstrip("\n"))
                last -= len(covered) - len(covered.rstrip("\n"))
            units_before = utf16_length(piece[:first])
            units = utf16_length(piece[first:last])
            inside.append(replace(span, start=units_before, end=units_before + units))
    if len(inside) > MAX_ENTITIES:
        inside = sorted(inside, key=lambda span: _PRIORITY.index(span.type))[:MAX_ENTITIES]
    order = sorted(
        inside, key=lambda span: (span.start, -span.end, _NESTING_ORDER.index(span.type))
    )
    return TelegramText(text=piece, spans=tuple(order))
