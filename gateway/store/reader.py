"""Reading the store: its own connection, which sees only what is committed and can write nothing.

Where words stand in the log: for whoever weighs many entries before reading any.

A connection for reading, and what it can be asked with.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import aiosqlite

from gateway.core.events import ChannelName, ConversationId, MembershipChanged, Message, MessageId, Post
from gateway.core.facts import ChannelCardPinned, Judgement, PostQueued, Seq
from gateway.store import queries
from gateway.store.projections import NANO_PER_USD
from gateway.store.queries import LAST
from gateway.store.schema import sqlite_uri
from gateway.store.types import (
    BadSearchQuery,
    ConnectionState,
    LogEntry,
    NotificationTypeCount,
    OutboxPart,
    OutboxPost,
    PendingCounts,
    PendingReminder,
    SpendingKey,
    SpendingSum,
    StoreError,
    StoreUnreadable,
    UnreadEntries,
)


def clamp_params(params: Iterable[str | int | None]) -> list[str | int | None]:
    """Numbers as SQLite can take them: a position beyond 64 bits is beyond every entry, as the last one is."""
    return [max(-LAST, min(value, LAST)) if isinstance(value, int) else value for value in params]


async def connect_reader(path: Path) -> aiosqlite.Connection:
    """A connection that cannot write."""
    connection = await aiosqlite.connect(sqlite_uri(path, "ro"), uri=True, isolation_level=None)
    try:
        await connection.execute_fetchall("PRAGMA query_only = ON")
    except BaseException:  # cancelled, too: a connection that nobody has keeps its thread, and so the process, for ever
        await connection.close()
        raise
    return connection


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


LogRow = tuple[int, str, str, str | None, str | None, int | None, str]
"""seq, at, kind, conversation, key, cause, and the fact as JSON text."""


def search_terms(text: str) -> str:
    """A query for `match` that finds all the words of any text. Blank for text without words."""
    return " ".join('"' + word.replace('"', '""') + '"' for word in text.replace("\0", " ").split())


class StoreReader:
    """Every question that can be asked of a store.

    Each method is one SQL statement, hence one consistent snapshot, and is safe to cancel. All raise
    Unreadable if the file is damaged, ValueError once closed.
    """

    def __init__(self, path: Path, connection: aiosqlite.Connection) -> None:
        self.path = path
        self._reading = connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the file. More than once is as good as once."""
        await self._reading.close()

    async def entries(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        kinds: Sequence[str] | None = None,
        conversation: ConversationId | None = None,
        match: str | None = None,
        limit: int = 1_000,
    ) -> list[LogEntry]:
        """The first `limit` entries with `after` < seq < `before` that fit, oldest first.

        `kinds`: any of these; None is all, empty is none. `match`: FTS5 query over what was said
        (https://www.sqlite.org/fts5.html#full_text_query_syntax), without forgotten notes; raises BadQuery for one
        that is not.
        """
        rows = await self.entry_rows(
            after=after, before=before, kinds=kinds, conversation=conversation, match=match, limit=limit
        )
        return [LogEntry.from_row(row) for row in rows]

    async def newest_entries(
        self,
        limit: int,
        *,
        after: int = 0,
        before: int | None = None,
        kinds: Sequence[str] | None = None,
        conversation: ConversationId | None = None,
        match: str | None = None,
    ) -> list[LogEntry]:
        """The last `limit` entries that fit, oldest first. Otherwise like `entries`."""
        rows = await self.entry_rows(
            after=after, before=before, kinds=kinds, conversation=conversation, match=match, limit=limit, newest=True
        )
        return [LogEntry.from_row(row) for row in rows]

    async def entry_rows(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        kinds: Sequence[str] | None = None,
        conversation: ConversationId | None = None,
        match: str | None = None,
        limit: int = 1_000,
        newest: bool = False,
    ) -> list[LogRow]:
        """Like `entries` (or `newest`), with the facts left as the JSON text that is in the log."""
        sql, params = queries.browse(
            after=after, before=before, kinds=kinds, conversation=conversation, match=match, limit=limit, newest=newest
        )
        try:
            return [tuple(row) for row in await self._reading.execute_fetchall(sql, clamp_params(params))]
        except sqlite3.OperationalError as error:
            if match is not None:
                raise BadSearchQuery(f"cannot search for {match!r}: {error}") from error
            raise self._read_error(error) from error
        except sqlite3.Error as error:
            raise self._read_error(error) from error

    async def entry(self, seq: int) -> LogEntry | None:
        """The entry at this position."""
        return self._first_entry(await self._rows(queries.ENTRY, seq))

    async def entry_by_key(self, key: str) -> LogEntry | None:
        """The entry with this deduplication key."""
        return self._first_entry(await self._rows(queries.BY_KEY, key))

    async def caused_by(self, seq: int) -> list[LogEntry]:
        """What this entry led to directly, oldest first."""
        return [LogEntry.from_row(row) for row in await self._rows(queries.CAUSED_BY, seq)]

    async def handled_by(self, judgement: LogEntry) -> LogEntry | None:
        """The turn, or the decision, that dealt with what this entry judged, shown or not; None if none has yet."""
        return self._first_entry(
            await self._rows(
                queries.DEALT_WITH, judgement.conversation, judgement.seq, judgement.cause or judgement.seq
            )
        )

    async def first_looked_at_by(self, judgement: LogEntry) -> LogEntry | None:
        """The turn of an inner conversation that was the first to look at what this entry judged; None if none was.

        Reads what came of every inner turn since: it takes longer the longer that is ago.
        """
        return self._first_entry(
            await self._rows(queries.LOOKED_AT, judgement.seq, judgement.conversation, judgement.cause or judgement.seq)
        )

    async def next_finished_turn(self, turn: LogEntry) -> LogEntry | None:
        """The next turn in its conversation that dealt with something and was not interrupted; None if none has yet."""
        return self._first_entry(await self._rows(queries.WENT_ON, turn.conversation, turn.seq))

    async def due_conversations(self, urgency: int) -> list[tuple[ConversationId, int]]:
        """Conversations with something unread of at least this urgency, and their highest one; by name."""
        rows = await (self._rows(queries.DUE, urgency) if urgency >= 1 else self._rows(queries.DUE_OR_AMBIENT))
        return [(ConversationId(conversation), highest) for conversation, highest in rows]

    async def unread_entries(self, conversation: ConversationId, *, most: int, after: int = 0) -> UnreadEntries:
        """What a turn there is to be told of what stands behind `after`, at most so many entries.

        What was said to the agent is never passed over: it is taken from the oldest, and what is too much stays
        unread. What was overheard takes the room that is left, the newest of it, ambient talk last.
        """
        rows = await self._rows(queries.UNREAD, conversation, most, after)
        count, upto, changed, *_ = rows[0]
        messages = tuple(LogEntry.from_row(row[3:]) for row in rows if row[3] is not None)
        return UnreadEntries(
            messages=messages, omitted=count - len(messages), upto=Seq(upto), has_changes=bool(changed)
        )

    async def message_changes(self, conversation: ConversationId, *, after: int, newest: int) -> list[LogEntry]:
        """The newest edits and deletions in a conversation with `after` < seq, oldest first."""
        return [
            LogEntry.from_row(row) for row in reversed(await self._rows(queries.CHANGES, conversation, after, newest))
        ]

    async def latest_message_change(self, message: Message, seq: Seq) -> LogEntry | None:
        """What became of the message that stands there: its deletion, else its newest edit; None: it reads as it did.

        Only who wrote it can have edited it, and only while they were heard: what access refused changes nothing.
        """
        place = message.at.conversation
        return self._first_entry(await self._rows(queries.REWORDED, place, message.id, seq, message.sender.id))

    async def pinned_card(self, conversation: ConversationId) -> ChannelCardPinned | None:
        """The card that is pinned there; None: none is."""
        found = self._first_entry(await self._rows(queries.CARD, conversation))
        return found.fact if found is not None and isinstance(found.fact, ChannelCardPinned) else None

    async def last_topic_change(self, conversation: ConversationId) -> MembershipChanged | None:
        """The last change of the topic, and who made it; None: it was never told."""
        found = self._first_entry(await self._rows(queries.TOPIC, conversation))
        return found.fact if found is not None and isinstance(found.fact, MembershipChanged) else None

    async def find_own_post(self, conversation: ConversationId, message: MessageId) -> Post | None:
        """The post that the platform shows as this message; None if it is none of ours."""
        found = self._first_entry(await self._rows(queries.OURS, conversation, message))
        return found.fact.post if found is not None and isinstance(found.fact, PostQueued) else None

    async def open_previews(self) -> list[tuple[ConversationId, MessageId]]:
        """The messages that showed growing answers and have not been taken away."""
        return [(ConversationId(place), MessageId(message)) for place, message in await self._rows(queries.PREVIEWS)]

    async def turns_in_view(self, conversation: ConversationId) -> list[LogEntry]:
        """The records of the conversation's turns since its view began, oldest first. Reads nothing before that."""
        return [LogEntry.from_row(row) for row in await self._rows(queries.TURNS, conversation)]

    async def newest_fold(self, conversation: ConversationId) -> LogEntry | None:
        """The newest `Folded` there: how its view shows what it shows; None: it was never folded."""
        return self._first_entry(await self._rows(queries.VIEW, conversation))

    async def last_fresh_start(self, conversation: ConversationId) -> Seq:
        """Where somebody last had the conversation begin afresh; 0 if nobody did."""
        rows = await self._rows(queries.FRESH, conversation)
        return Seq(rows[0][0] if rows else 0)

    async def compaction_lock(self, conversation: ConversationId) -> tuple[str, datetime] | None:
        """Who holds the lock for summaries there, and until when; None: nobody ever did."""
        rows = await self._rows(queries.COMPACTING, conversation)
        return (rows[0][0], datetime.fromisoformat(rows[0][1])) if rows else None

    async def newest_turns(self, conversation: ConversationId, *, before: int | None, newest: int) -> list[LogEntry]:
        """The records of the newest turns there that stand before this position (None: all do), oldest first."""
        rows = await self._rows(queries.ENDED, conversation, queries.LAST if before is None else before, newest)
        return [LogEntry.from_row(row) for row in reversed(rows)]

    async def turns_between(self, conversation: ConversationId, first: int, end: int, *, most: int) -> list[LogEntry]:
        """The records of the first turns with `first` <= seq < `end` that were not taken back, oldest first."""
        return [LogEntry.from_row(row) for row in await self._rows(queries.HELD, conversation, first, end, most)]

    async def seq_after_turns(self, conversation: ConversationId, first: int, end: int, *, count: int) -> Seq | None:
        """Where the turn stands that comes behind so many turns with `first` <= seq < `end`, taken back or not.

        None: there are no more than that. Reads no records.
        """
        rows = await self._rows(queries.BEHIND, conversation, first, end, count)
        return Seq(rows[0][0]) if rows else None

    async def find_word_uses(self, terms: Sequence[str], *, newest: int, notes_after: int) -> WordUses:
        """Where the newest texts with each of these words or phrases stand, and all notes behind a position."""
        asked = json.dumps([search_terms(term) for term in terms])
        (last, notes), *found = await self._rows(queries.USES, asked, newest, notes_after)
        return WordUses(
            last=Seq(last), note_positions=json.loads(notes), positions=[json.loads(seqs) for _, seqs in found]
        )

    async def locate_entries(self, seqs: Sequence[int]) -> list[EntryLocation]:
        """Where these entries stand, and of notes whose they are: without their texts, in any order."""
        return [EntryLocation.from_row(row) for row in await self._rows(queries.PLACED, json.dumps(seqs))]

    async def forgotten_notes(self, seqs: Iterable[int]) -> set[int]:
        """Which of these notes are to be told to nobody."""
        return {seq for (seq,) in await self._rows(queries.FORGOTTEN, json.dumps(list(seqs)))}

    async def undelivered_posts(self) -> list[OutboxPost]:
        """The posts whose delivery has not ended, in log order."""
        posts = []
        for (seq, at, body), group in groupby(await self._rows(queries.OUTBOX), key=lambda row: row[:3]):
            stored = LogEntry.from_row((seq, at, "post", None, None, None, body))
            assert isinstance(stored.fact, PostQueued)
            parts = tuple(OutboxPart.from_row(row[3:]) for row in group if row[3] is not None)
            posts.append(OutboxPost(seq=stored.seq, at=stored.at, post=stored.fact.post, parts=parts))
        return posts

    async def newest_posts(self, conversation: ConversationId, *, newest: int) -> list[Post]:
        """The newest posts to a conversation, delivered or not, oldest first."""
        rows = await self._rows(queries.POSTS, conversation, newest)
        facts = [LogEntry.from_row(row).fact for row in reversed(rows)]
        return [fact.post for fact in facts if isinstance(fact, PostQueued)]

    async def dmn_state(self, agent: str = "") -> str | None:
        """An agent's, as it was saved last; None if never. Without a name: from before each agent had its own."""
        rows = await self._rows(queries.DMN_STATE, agent)
        return rows[0][0] if rows else None

    async def autonomous_usage(self, agent: str, day: str) -> tuple[int, float]:
        """Turns that nobody asked for on that day (YYYY-MM-DD, UTC), and what they cost in US dollars."""
        rows = await self._rows(queries.AUTONOMOUS, agent, day)
        return (rows[0][0], rows[0][1] / NANO_PER_USD) if rows else (0, 0.0)

    async def pending_reminders(self, conversation: ConversationId | None = None) -> list[PendingReminder]:
        """Those that are still to come, the next first. None: everywhere."""
        return [PendingReminder.from_row(row) for row in await self._rows(queries.REMINDERS, conversation)]

    async def approved(self, agent: str, tool: str, conversation: ConversationId) -> Seq | None:
        """Where it stands that an agent's tool is approved for good there. None: it is not."""
        rows = await self._rows(queries.APPROVED, agent, tool, conversation)
        return Seq(rows[0][0]) if rows else None

    async def approvals(self) -> list[tuple[str, str, ConversationId]]:
        """Everything that is approved for good: an agent, its tool, where; by place."""
        return [(agent, tool, ConversationId(place)) for agent, tool, place in await self._rows(queries.APPROVALS)]

    async def undecided(self) -> list[LogEntry]:
        """Approvals that were asked for and have not ended, oldest first. Reads all that ever were: for a start."""
        return [LogEntry.from_row(row) for row in await self._rows(queries.UNDECIDED)]

    async def current_facts(self, kind: str) -> list[LogEntry]:
        """Of facts whose newest word counts those that hold, oldest first: see `gateway.store.projections`."""
        return [LogEntry.from_row(row) for row in await self._rows(queries.HOLDS, kind)]

    async def newest_current_facts(self, kind: str, *, newest: int) -> list[LogEntry]:
        """The newest of those, newest first."""
        return [LogEntry.from_row(row) for row in await self._rows(queries.NEWEST_HOLDS, kind, newest)]

    async def current_facts_for(self, kind: str, keys: Sequence[str]) -> list[LogEntry]:
        """Those that are about one of `keys`, in any order."""
        return [LogEntry.from_row(row) for row in await self._rows(queries.HELD_OF, kind, json.dumps(keys))]

    async def saved_cursor(self, channel: ChannelName) -> str | None:
        """How far a platform's queue was taken in; None if it was never said."""
        rows = await self._rows(queries.CURSOR, channel)
        return rows[0][0] if rows else None

    async def connection_states(self) -> list[ConnectionState]:
        """The last that was heard of each account's connection, by name."""
        return [
            ConnectionState(channel=ChannelName(channel), up=bool(up), reason=reason, at=datetime.fromisoformat(at))
            for channel, up, reason, at in await self._rows(queries.LINKS)
        ]

    async def spending_sums(
        self, by: SpendingKey, *, since: str = "", conversation: ConversationId | None = None, threads: bool = False
    ) -> list[SpendingSum]:
        """What was spent from this day on (YYYY-MM-DD, UTC), one sum for each key, by key. Reads sums, not the log.

        `conversation`: there only; `threads`: in the threads of that room, too.
        """
        return [
            SpendingSum.from_row(row) for row in await self._rows(queries.SPENT[by], since, conversation, int(threads))
        ]

    async def notification_types(self) -> list[NotificationTypeCount]:
        """The types of notifications that were seen, by name. Bounded: see `gateway.store.projections`."""
        return [NotificationTypeCount.from_row(row) for row in await self._rows(queries.TYPES)]

    async def pending_counts(self) -> list[PendingCounts]:
        """Where something is unread: what is most urgent first, then what has waited longest."""
        return [PendingCounts.from_row(row) for row in await self._rows(queries.PENDING)]

    async def find_judgement(self, seq: int) -> Judgement | None:
        """What access and attention said of this entry; None if it was not judged."""
        return next((one.fact for one in await self.caused_by(seq) if isinstance(one.fact, Judgement)), None)

    async def _rows(self, sql: str, *params: str | int | None) -> list[Any]:
        try:
            return list(await self._reading.execute_fetchall(sql, clamp_params(params)))
        except sqlite3.Error as error:
            raise self._read_error(error) from error

    def _read_error(self, error: sqlite3.Error) -> StoreError:
        return StoreUnreadable(f"cannot read {self.path}: {error}")

    @staticmethod
    def _first_entry(rows: Iterable[Any]) -> LogEntry | None:
        return next((LogEntry.from_row(row) for row in rows), None)
