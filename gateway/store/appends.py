"""The pure half of an append: which entries are written, at which positions, and with which
statements.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from gateway.core.facts import Seq, dump_fact
from gateway.store.projections import (
    SEARCHABLE_KINDS,
    Params,
    Statement,
    fold_entry,
    group_statements,
    project_fact,
)
from gateway.store.types import AppendResult, LogEntry, NewEntry

_INSERT_LOG = "INSERT INTO log (seq, at, kind, conversation, key, cause, body) VALUES {}"
_INSERT_SEARCH = (
    "INSERT INTO search (rowid, text) SELECT seq, text FROM said WHERE seq BETWEEN $1 AND $2"
)


class NewLogRow(NamedTuple):
    """A row of the log, in the order of its columns."""

    seq: Seq
    at: str
    kind: str
    conversation: str | None
    key: str | None
    cause: Seq | None
    body: str


class EntryDraft(NamedTuple):
    """An entry that is complete except for its position."""

    entry: NewEntry
    at: datetime
    """UTC."""
    body: str


News = Sequence[tuple[Seq, list[LogEntry]]]
"""Entries of other processes, those of one transaction together, each with the position of its last
one."""


@dataclass(slots=True, kw_only=True)
class AppendPlan:
    """Rows and statements of one transaction, and what comes of each append in it."""

    rows: list[NewLogRow] = field(default_factory=list)
    answers: list[tuple[AppendResult, ...]] = field(default_factory=list)
    written: list[list[LogEntry]] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    before: News = ()
    """What other processes have appended before it."""


def draft_entries(entries: Sequence[NewEntry]) -> tuple[EntryDraft, ...]:
    """Serialise the entries. Raises ValueError for one that could never be stored or read back."""
    earlier = set[NewEntry]()
    drafts = []
    for entry in entries:
        if entry.at.tzinfo is None:
            raise ValueError("an entry's time needs a time zone")
        if isinstance(entry.cause, NewEntry) and entry.cause not in earlier:
            raise ValueError("an entry's cause must stand before it in the same append")
        for text in (entry.key, entry.conversation):
            if text is not None:
                # a lone surrogate cannot be stored; UnicodeEncodeError is a ValueError
                text.encode()
        earlier.add(entry)
        drafts.append(EntryDraft(entry, entry.at.astimezone(UTC), dump_fact(entry.fact)))
    return tuple(drafts)


def dedup_keys(batch: Sequence[Sequence[EntryDraft]]) -> list[str | None]:
    """Return every key that must be looked up before `plan_append`."""
    return [draft.entry.key for drafts in batch for draft in drafts if draft.entry.key is not None]


def plan_append(
    batch: Sequence[Sequence[EntryDraft]], known: dict[str, Seq], last: Seq
) -> AppendPlan:
    """Plan one transaction for a batch. `known`: keys already in the log; `last`: the log's last
    seq.

    Raises ValueError for a cause beyond the log's end.
    """
    plan, known, told_at, told = AppendPlan(), dict(known), None, ""
    for drafts in batch:
        results, written = dict[NewEntry, AppendResult](), list[LogEntry]()
        for entry, at, body in drafts:
            cause, key, fact = entry.cause, entry.key, entry.fact
            if isinstance(cause, NewEntry):
                if not results[cause].is_new:
                    results[entry] = results[cause]
                    continue
                cause = results[cause].seq
            elif cause is not None and cause > last:
                raise ValueError(f"an entry's cause must precede it, and {cause} is not in the log")
            if key is not None and (first := known.get(key)) is not None:
                results[entry] = AppendResult(first, is_new=False)
                continue
            last, place = Seq(last + 1), entry.conversation
            if key is not None:
                known[key] = last
            if at is not told_at:  # most entries of an append are of one moment
                told_at, told = at, at.isoformat(timespec="microseconds")
            plan.rows.append(NewLogRow(last, told, fact.kind, place, key, cause, body))
            plan.statements.extend(project_fact(last, told, place, cause, fact))
            results[entry] = AppendResult(last, is_new=True)
            row = LogEntry(last, at, fact.kind, place, key, cause, fact)
            plan.statements.extend(fold_entry(row))
            written.append(row)
        plan.answers.append(tuple([results[draft.entry] for draft in drafts]))
        plan.written.append(written)
    return plan


def append_statements(plan: AppendPlan) -> Iterator[tuple[str, Sequence[Params]]]:
    """Yield the SQL of a transaction, in order, each with its rows."""
    yield _INSERT_LOG, plan.rows
    yield from group_statements(plan.statements)
    if any(row.kind in SEARCHABLE_KINDS for row in plan.rows):
        yield _INSERT_SEARCH, [(plan.rows[0].seq, plan.rows[-1].seq)]


def key_digest(key: str) -> bytes:
    """Return what is kept of the deduplication key of an entry that has left the log."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
