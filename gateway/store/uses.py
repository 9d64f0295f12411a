"""Where words stand in the log: for whoever weighs many entries before reading any."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from gateway.events import ConversationId
from gateway.records import Seq


@dataclass(frozen=True, slots=True, kw_only=True)
class WordUses:
    """Where words stand in the log."""

    last: Seq
    """The log's last position. 0: it is empty."""
    positions: Sequence[Sequence[int]]
    """Of each that was asked for, the newest first."""
    note_positions: Sequence[int]
    """Where notes stand, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryLocation:
    """Where an entry of the log stands, without what it says."""

    seq: Seq
    at: datetime
    is_note: bool
    conversation: ConversationId | None
    unread: int | None
    """How urgent it is where it is still unread. None: it is not."""
    agent: str | None
    """Of a note: who wrote it down."""
    scope: str | None
    """Of a note: who may be told of it."""
    is_removed: bool
    """It is a turn that was taken back, or was told to one as new, or a forgotten note: as if it had not been."""
    is_left_behind: bool
    """Somebody asked for a fresh view in that conversation since."""

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of what `queries.PLACED` gives."""
        seq, at, kind, conversation, unread, agent, scope, cut, left = row
        return cls(
            seq=Seq(seq),
            at=datetime.fromisoformat(at),
            is_note=kind == "noted",
            conversation=conversation,
            unread=unread,
            agent=agent,
            scope=scope,
            is_removed=bool(cut),
            is_left_behind=bool(left),
        )
