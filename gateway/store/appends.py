"""The pure half of an append: which entries are written, at which positions, and with which
statements.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import NamedTuple, Self

from gateway.core.facts import Seq, dump_fact
from gateway.store.projections import (
    SEARCHABLE_KINDS,
    Params,
    Statement,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDraft:
    """An entry that is complete except for its position."""

    entry: NewEntry
    at: str
    body: str


@dataclass(slots=True, kw_only=True)
class AppendPlan:
    """Rows and statements of one transaction, and the results for each append in it."""

    rows: list[NewLogRow] = field(default_factory=list)
    answers: list[tuple[AppendResult, ...]] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    has_text: bool = False
    """True if there is text for the search index."""
    before: Sequence[tuple[Seq, list[LogEntry]]] = ()
    """Entries of other processes before it: those of one transaction together, each with the
    position of its last one.
    """

    def pick(
        self, drafted: Sequence[Sequence[EntryDraft]], batch: Sequence[Sequence[EntryDraft]]
    ) -> Self | None:
        """Return the plan with the answers for a part of the batch that it was made of. None: it is
        no part of it.
        """
        answers = {id(one): answer for one, answer in zip(drafted, self.answers, strict=True)}
        if not all(id(one) in answers for one in batch):
            return None
        return replace(self, answers=[answers[id(one)] for one in batch])


def draft_entries(entries: Sequence[NewEntry]) -> tuple[EntryDraft, ...]:
    """Serialise the entries. Raises ValueError for one that could never be stored or read back."""
    earlier: set[int] = set()
    drafts = []
    for entry in entries:
        if entry.at.tzinfo is None:
            raise ValueError("an entry's time needs a time zone")
        if isinstance(entry.cause, NewEntry) and id(entry.cause) not in earlier:
            raise ValueError("an entry's cause must stand before it in the same append")
        for text in (entry.key, entry.conversation):
            if text is not None:
                # a lone surrogate cannot be stored; UnicodeEncodeError is a ValueError
                text.encode()
        earlier.add(id(entry))
        at = entry.at.astimezone(UTC).isoformat(timespec="microseconds")
        drafts.append(EntryDraft(entry=entry, at=at, body=dump_fact(entry.fact)))
    return tuple(drafts)


def dedup_keys(batch: Sequence[Sequence[EntryDraft]]) -> Iterator[str]:
    """Yield every key that must be looked up before `plan_append`."""
    return (draft.entry.key for drafts in batch for draft in drafts if draft.entry.key is not None)


def plan_append(
    batch: Sequence[Sequence[EntryDraft]], known: dict[str, Seq], last: Seq
) -> AppendPlan:
    """Plan one transaction for a batch. `known`: keys already in the log; `last`: the log's last
    seq.
    """
    plan = AppendPlan()
    known = dict(known)
    for drafts in batch:
        results: dict[int, AppendResult] = {}
        for draft in drafts:
            last = _place_draft(draft, results, known, last, plan)
        plan.answers.append(tuple(results[id(draft.entry)] for draft in drafts))
    return plan


def _place_draft(
    draft: EntryDraft,
    results: dict[int, AppendResult],
    known: dict[str, Seq],
    last: Seq,
    plan: AppendPlan,
) -> Seq:
    """Add the draft to the plan, unless it or its cause is in the log already; return the last seq
    after it.

    Adds to `results`, by entry, and to `known`.
    """
    entry = draft.entry
    cause = entry.cause
    if isinstance(cause, NewEntry):
        cause_result = results[id(cause)]
        if not cause_result.is_new:
            results[id(entry)] = cause_result
            return last
        cause = cause_result.seq
    if entry.key is not None:
        first_seq = known.get(entry.key)
        if first_seq is not None:
            results[id(entry)] = AppendResult(first_seq, is_new=False)
            return last
    seq = Seq(last + 1)
    if entry.key is not None:
        known[entry.key] = seq
    kind = entry.fact.kind
    plan.rows.append(
        NewLogRow(seq, draft.at, kind, entry.conversation, entry.key, cause, draft.body)
    )
    plan.statements.extend(project_fact(seq, draft.at, entry.conversation, cause, entry.fact))
    plan.has_text = plan.has_text or kind in SEARCHABLE_KINDS
    results[id(entry)] = AppendResult(seq, is_new=True)
    return seq


def list_written(entries: Sequence[NewEntry], results: Sequence[AppendResult]) -> list[LogEntry]:
    """Return the entries of one append that are new in the log, as it holds them."""
    seqs = {id(entry): result.seq for entry, result in zip(entries, results, strict=True)}
    return [
        LogEntry(
            seq=result.seq,
            at=entry.at.astimezone(UTC),
            kind=entry.fact.kind,
            conversation=entry.conversation,
            key=entry.key,
            cause=seqs[id(entry.cause)] if isinstance(entry.cause, NewEntry) else entry.cause,
            fact=entry.fact,
        )
        for entry, result in zip(entries, results, strict=True)
        if result.is_new
    ]


def append_statements(plan: AppendPlan) -> Iterator[tuple[str, Sequence[Params]]]:
    """Yield the SQL of a transaction, in order, each with its rows."""
    yield _INSERT_LOG, plan.rows
    yield from group_statements(plan.statements)
    if plan.has_text:
        yield _INSERT_SEARCH, [(plan.rows[0].seq, plan.rows[-1].seq)]


def key_digest(key: str) -> bytes:
    """Return what is kept of the deduplication key of an entry that has left the log."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
