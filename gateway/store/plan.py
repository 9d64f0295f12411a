"""Which entries are written, and where: the pure half of an append."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import NamedTuple

from gateway.records import FACT, Seq
from gateway.store.entries import AppendResult, NewEntry
from gateway.store.projections import SEARCHABLE_KINDS, Statement, project_fact


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
    """An entry, ready to be written but for its place."""

    entry: NewEntry
    at: str
    body: str


@dataclass(slots=True, kw_only=True)
class AppendPlan:
    """What one transaction writes, and what to answer each append that is in it."""

    rows: list[NewLogRow] = field(default_factory=list)
    answers: list[tuple[AppendResult, ...]] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    has_text: bool = False
    """There is text for the search index."""


def draft_entries(entries: Sequence[NewEntry]) -> tuple[EntryDraft, ...]:
    """Write the entries down. Raises ValueError for one that could never be stored or read back."""
    earlier: set[int] = set()
    drafts = []
    for entry in entries:
        if entry.at.tzinfo is None:
            raise ValueError("an entry's time needs a time zone")
        if isinstance(entry.cause, NewEntry) and id(entry.cause) not in earlier:
            raise ValueError("an entry's cause must stand before it in the same append")
        for text in (entry.key, entry.conversation):
            if text is not None:
                text.encode()  # a lone surrogate cannot be stored; UnicodeEncodeError is a ValueError
        earlier.add(id(entry))
        at = entry.at.astimezone(UTC).isoformat(timespec="microseconds")
        drafts.append(EntryDraft(entry=entry, at=at, body=FACT.dump_json(entry.fact).decode()))
    return tuple(drafts)


def dedup_keys(batch: Sequence[Sequence[EntryDraft]]) -> Iterator[str]:
    """Every key that must be looked up before `plan_append`."""
    return (draft.entry.key for drafts in batch for draft in drafts if draft.entry.key is not None)


def plan_append(batch: Sequence[Sequence[EntryDraft]], known: dict[str, Seq], last: Seq) -> AppendPlan:
    """Decide on a whole batch. `known`: keys already in the log; `last`: the log's last seq."""
    made = AppendPlan()
    known = dict(known)
    for drafts in batch:
        answered: dict[int, AppendResult] = {}
        for one in drafts:
            last = _place_draft(one, answered, known, last, made)
        made.answers.append(tuple(answered[id(one.entry)] for one in drafts))
    return made


def _place_draft(
    one: EntryDraft, answered: dict[int, AppendResult], known: dict[str, Seq], last: Seq, made: AppendPlan
) -> Seq:
    entry = one.entry
    cause = entry.cause
    if isinstance(cause, NewEntry):
        led = answered[id(cause)]
        if not led.is_new:
            answered[id(entry)] = led
            return last
        cause = led.seq
    if entry.key is not None:
        first = known.get(entry.key)
        if first is not None:
            answered[id(entry)] = AppendResult(first, is_new=False)
            return last
    seq = Seq(last + 1)
    if entry.key is not None:
        known[entry.key] = seq
    kind = entry.fact.kind
    made.rows.append(NewLogRow(seq, one.at, kind, entry.conversation, entry.key, cause, one.body))
    made.statements.extend(project_fact(seq, one.at, entry.conversation, cause, entry.fact))
    made.has_text = made.has_text or kind in SEARCHABLE_KINDS
    answered[id(entry)] = AppendResult(seq, is_new=True)
    return seq
