"""The journal: an append-only Markdown file of what an agent wrote down, for people to read and to edit. Pure.

An entry is a header with its time and title, whose it is, the text, and a last line that names the note:

    ## 2026-11-21 19:40:12Z — About the harbour
    scope: public

    Ada comes back on Monday.
    <!-- note 01KAM3Q0V5T9S8 -->

The last line stands last because a write that was cut off must not pass for a whole one. People may write entries
of their own, without a scope and without that line: only a date and a time in the header make one, so ordinary
headings are text. A time without a zone is UTC. What says no scope, or one that cannot be, is private to the owner.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from agent.workspace.character_card import normalize_text
from gateway.core.events import Address

MAX_TITLE_CHARS: Final = 120
MAX_TEXT_CHARS: Final = 4_000
PUBLIC_SCOPE: Final = "public"
"""As `gateway.core.scopes` calls it."""
REMEMBERED_TITLE: Final = "to remember"
"""The title of what is remembered for good."""

_HEADER: Final = re.compile(
    r"##[ \t]+(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)(:\d\d)?(?:\.\d+)? ?(Z|UTC|[+-]\d\d:?\d\d)?"
    r"(?:(?:[ \t]+(?:—|–|--?)|:)[ \t]+(.*)|[ \t]*)"  # noqa: RUF001 - some write this dash
)
_SCOPE: Final = re.compile(r"scope:[ \t]*(.*)")
_NOTE: Final = re.compile(r"<!-- note ([0-9A-Za-z]+) -->")
_ESCAPED: Final = re.compile(rf"\\*(?:{_HEADER.pattern}|{_NOTE.pattern})")
"""Lines that an entry's text may not hold as they are: one more backslash stands in front of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """Something that was written down."""

    at: datetime
    """UTC; whole seconds once it was in the file."""
    title: str
    """`to_single_line`; may be empty."""
    text: str
    """`normalize_text`; may be empty where a person wrote it."""
    scope: str | None
    """`PUBLIC_SCOPE`, or the private place that it is of. None: the owner's."""
    note_id: str = ""
    """Which note of the log it is. Empty: a person wrote it."""


def to_single_line(text: str, most: int = MAX_TITLE_CHARS) -> str:
    """On one line, without characters that nobody sees, at most so long."""
    plain = text.isascii() and text.isprintable()  # most is
    shown = (
        text if plain else "".join(c if unicodedata.category(c)[0] not in "CZ" else " " for c in normalize_text(text))
    )
    return " ".join(shown.split())[:most].rstrip()


def format_entry(entry: JournalEntry) -> str:
    """The entry as it stands in the file, with an empty line in front. `parse_journal` reverses it.

    `title` and `text` are as the fields' comments say.
    """
    title = f" — {entry.title}" if entry.title else ""
    scope = f"scope: {_format_scope(entry.scope)}\n" if entry.scope is not None else "scope:\n"
    lines = "".join(f"\\{line}\n" if _ESCAPED.fullmatch(line) else f"{line}\n" for line in entry.text.split("\n"))
    note = f"<!-- note {entry.note_id} -->\n" if entry.note_id else ""
    at = entry.at.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat(" ")  # %Y has no zeros in front
    return f"\n## {at}Z{title}\n{scope}\n{lines}{note}"


def parse_journal(text: str) -> list[JournalEntry]:
    """All entries of a file, in its order. What stands in front of the first is nobody's. Takes any text."""
    return [_build_entry(*one) for one in _iter_sections(normalize_text(text).split("\n"))]


def find_note_ids(text: str) -> set[str]:
    """Which notes of the log stand whole in a file, or in its end."""
    return {found[1] for line in text.split("\n") if (found := _NOTE.fullmatch(line))}


def remove_note(text: str, note: str) -> str:
    """A file without this note of the log, all else as it stands there.

    What a person wrote below it stays what it is: an entry of theirs, of the same time and scope.
    """
    lines = text.split("\n")
    last = next((place for place, line in enumerate(lines) if line.rstrip() == f"<!-- note {note} -->"), None)
    if last is None:
        return text
    heads = [place for place, line in enumerate(lines) if _is_entry_start(line)]
    first = max((place for place in heads if place < last), default=None)
    if first is None:
        return text
    end = min((place for place in heads if place > last), default=len(lines))
    left = lines[last + 1 : end]
    if any(line.strip() for line in left):
        scope = [lines[first + 1]] if _SCOPE.fullmatch(lines[first + 1].rstrip()) else []
        return "\n".join([*lines[:first], _strip_title(lines[first]), *scope, *left, *lines[end:]])
    blank = first > 0 and not lines[first - 1].strip()  # that `format_entry` put in front
    return "\n".join([*lines[: first - blank], *left, *lines[end:]])


def _iter_sections(lines: Sequence[str]) -> Iterator[tuple[datetime, str, list[str]]]:
    at, title, body = None, "", list[str]()
    for line in lines:
        header = _HEADER.fullmatch(line)
        begun = _parse_time(header) if header is not None else None
        if header is None or begun is None:
            body.append(line)
            continue
        if at is not None:
            yield at, title, body
        at, title, body = begun, header[5] or "", []
    if at is not None:
        yield at, title, body


def _is_entry_start(line: str) -> bool:
    header = _HEADER.fullmatch(line.rstrip())
    return header is not None and _parse_time(header) is not None


def _strip_title(line: str) -> str:
    header = _HEADER.fullmatch(line.rstrip())
    at = _parse_time(header) if header is not None else None
    assert at is not None
    return f"## {at.replace(tzinfo=None).isoformat(' ')}Z"


def _parse_time(header: re.Match[str]) -> datetime | None:
    zone = header[4] if header[4] not in (None, "Z", "UTC") else "+00:00"
    try:
        return datetime.fromisoformat(f"{header[1]} {header[2]}{header[3] or ':00'}{zone}").astimezone(UTC)
    except (ValueError, OverflowError):  # the 31st of February; an hour before the first of all days
        return None


def _build_entry(at: datetime, title: str, body: list[str]) -> JournalEntry:
    scope = None
    if body and (told := _SCOPE.fullmatch(body[0])):
        scope, body = _parse_scope(told[1].strip()), body[1:]
    notes = [found for line in body if (found := _NOTE.fullmatch(line))]
    kept = [line for line in body if not _NOTE.fullmatch(line)]
    text = "\n".join(line[1:] if line.startswith("\\") and _ESCAPED.fullmatch(line) else line for line in kept)
    return JournalEntry(
        at=at,
        title=to_single_line(title),
        text=normalize_text(text),
        scope=scope,
        note_id=notes[-1][1] if notes else "",
    )


def _format_scope(scope: str) -> str:
    """As it is, or as JSON where a line would not carry it or it would not come back."""
    return scope if _parse_scope(scope) == scope and to_single_line(scope, len(scope)) == scope else json.dumps(scope)


def _parse_scope(told: str) -> str | None:
    if told.startswith('"'):
        try:
            told = str(json.loads(told))
        except ValueError:
            return None
    if told == PUBLIC_SCOPE:
        return PUBLIC_SCOPE
    try:
        return Address.parse(told).conversation
    except ValueError:
        return None
