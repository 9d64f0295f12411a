"""The journal: an append-only Markdown file of an agent's notes, for people to read and to edit.
Pure.

An entry is a header with its time and title, its scope, the text, and a last line with the id of
the note:

    ## 2026-11-21 19:40:12Z — About the harbour
    scope: public

    Ada comes back on Monday.
    <!-- note 01KAM3Q0V5T9S8 -->

That line comes last so that an interrupted write cannot pass for a complete entry. People may write
entries of their own, without a scope and without that line: only a date and a time in the header
make an entry, so ordinary headings are text. A time without a zone is UTC. An entry without a valid
scope is private to the owner.
"""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from gateway.core.events import Address
from gateway.core.frozen import frozen
from gateway.core.scopes import PUBLIC
from gateway.core.text_safety import normalize_text, to_single_line

MAX_TITLE_CHARS: Final = 120
MAX_TEXT_CHARS: Final = 4_000
REMEMBERED_TITLE: Final = "to remember"
"""Title of facts to keep for good."""

_HEADER: Final = re.compile(
    r"##[ \t]+(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)(:\d\d)?(?:\.\d+)? ?(Z|UTC|[+-]\d\d:?\d\d)?"
    r"(?:(?:[ \t]+(?:—|–|--?)|:)[ \t]+(.*)|[ \t]*)"  # noqa: RUF001 - some people write this dash
)
_SCOPE: Final = re.compile(r"scope:[ \t]*(.*)")
_NOTE: Final = re.compile(r"<!-- note ([0-9A-Za-z]+) -->")
_ESCAPED: Final = re.compile(rf"\\*(?:{_HEADER.pattern}|{_NOTE.pattern})")
"""Lines that need an escape in an entry's text: one more backslash in front."""


@frozen
class JournalEntry:
    """A note in the journal."""

    at: datetime
    """UTC. Whole seconds after it was read from the file."""
    title: str
    """As `to_single_line` returns it; may be empty."""
    text: str
    """As `normalize_text` returns it; may be empty if a person wrote it."""
    scope: str | None
    """`PUBLIC`, or the conversation to which it is private. None: private to the owner."""
    note_id: str = ""
    """Id of the note in the log. Empty: a person wrote the entry."""


def format_entry(entry: JournalEntry) -> str:
    """Return the entry as it stands in the file, after an empty line. `parse_journal` reverses it.

    `title` and `text` must be as the docstrings of the fields require.
    """
    title = f" — {entry.title}" if entry.title else ""
    scope = f"scope: {_format_scope(entry.scope)}\n" if entry.scope is not None else "scope:\n"
    lines = "".join(
        f"\\{line}\n" if _ESCAPED.fullmatch(line) else f"{line}\n"
        for line in entry.text.split("\n")
    )
    note = f"<!-- note {entry.note_id} -->\n" if entry.note_id else ""
    at = (
        entry.at.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat(" ")
    )  # %Y has no zeros in front
    return f"\n## {at}Z{title}\n{scope}\n{lines}{note}"


def parse_journal(text: str) -> list[JournalEntry]:
    """Return all entries of a file, in its order. Text in front of the first is ignored. Accepts
    any text.
    """
    return [_build_entry(*section) for section in _iter_sections(normalize_text(text).split("\n"))]


def find_note_ids(text: str) -> set[str]:
    """Return the ids of the notes that are complete in a file, or in the end of one."""
    return {found[1] for line in text.split("\n") if (found := _NOTE.fullmatch(line))}


def remove_note(text: str, note: str) -> str:
    """Return the file without this note; everything else is unchanged.

    Text that a person wrote below the note becomes an entry of its own, with the note's time and
    scope.
    """
    lines = text.split("\n")
    last = next(
        (place for place, line in enumerate(lines) if line.rstrip() == f"<!-- note {note} -->"),
        None,
    )
    if last is None:
        return text
    heads = [place for place, line in enumerate(lines) if _read_header(line.rstrip())]
    first = max((place for place in heads if place < last), default=None)
    if first is None:
        return text
    end = min((place for place in heads if place > last), default=len(lines))
    left = lines[last + 1 : end]
    if any(line.strip() for line in left):
        scope = [lines[first + 1]] if _SCOPE.fullmatch(lines[first + 1].rstrip()) else []
        header = _read_header(lines[first].rstrip())
        assert header is not None
        head = f"## {header[0].replace(tzinfo=None).isoformat(' ')}Z"
        return "\n".join([*lines[:first], head, *scope, *left, *lines[end:]])
    blank = first > 0 and not lines[first - 1].strip()  # the empty line of `format_entry`
    return "\n".join([*lines[: first - blank], *left, *lines[end:]])


def _iter_sections(lines: Sequence[str]) -> Iterator[tuple[datetime, str, list[str]]]:
    at, title, body = None, "", list[str]()
    for line in lines:
        header = _read_header(line)
        if header is None:
            body.append(line)
            continue
        if at is not None:
            yield at, title, body
        at, title, body = *header, []
    if at is not None:
        yield at, title, body


def _read_header(line: str) -> tuple[datetime, str] | None:
    """Return time and title of a line that begins an entry. None: it is text."""
    if (header := _HEADER.fullmatch(line)) is None:
        return None
    zone = header[4] if header[4] not in (None, "Z", "UTC") else "+00:00"
    try:
        at = datetime.fromisoformat(f"{header[1]} {header[2]}{header[3] or ':00'}{zone}")
        return at.astimezone(UTC), header[5] or ""
    except (ValueError, OverflowError):  # the 31st of February; an hour before year 1
        return None


def _build_entry(at: datetime, title: str, body: list[str]) -> JournalEntry:
    scope = None
    if body and (match := _SCOPE.fullmatch(body[0])):
        scope, body = _parse_scope(match[1].strip()), body[1:]
    notes = [found for line in body if (found := _NOTE.fullmatch(line))]
    kept = [line for line in body if not _NOTE.fullmatch(line)]
    text = "\n".join(
        line[1:] if line.startswith("\\") and _ESCAPED.fullmatch(line) else line for line in kept
    )
    return JournalEntry(
        at=at,
        title=to_single_line(title),
        text=normalize_text(text),
        scope=scope,
        note_id=notes[-1][1] if notes else "",
    )


def _format_scope(scope: str) -> str:
    return (
        scope
        if _parse_scope(scope) == scope and to_single_line(scope, len(scope)) == scope
        else json.dumps(scope)
    )


def _parse_scope(written: str) -> str | None:
    if written.startswith('"'):
        try:
            written = str(json.loads(written))
        except ValueError:
            return None
    if written == PUBLIC:
        return PUBLIC
    try:
        return Address.parse(written).conversation
    except ValueError:
        return None
