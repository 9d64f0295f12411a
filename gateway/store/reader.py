"""Queries of the store on a read-only connection, which sees only what is committed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final, NamedTuple, Self

from gateway.core.events import (
    ChannelName,
    ConversationId,
    MembershipChanged,
    Message,
    MessageId,
    Post,
    PostKey,
    Sender,
)
from gateway.core.facts import (
    MESSAGE_KINDS,
    ChannelCardPinned,
    Judgement,
    PartSendEnded,
    PostQueued,
    Seq,
)
from gateway.core.frozen import frozen
from gateway.store import queries
from gateway.store.log import Arguments, Log, Result, Role
from gateway.store.queries import LAST, LAST_POSITION
from gateway.store.schema import (
    ServerStore,
    StoreLocation,
    check_current_schema,
    connect_server,
    local_path,
    sqlite_uri,
    unreadable_error,
)
from gateway.store.spending import (
    AUTONOMOUS_USAGE,
    NANO_PER_USD,
    SPENDING_SUMS,
    SpendingKey,
    SpendingSum,
)
from gateway.store.sqlite_log import SqliteLog
from gateway.store.types import (
    BadSearchQuery,
    ConnectionState,
    LogEntry,
    LogError,
    OutboxPart,
    OutboxPost,
    StatementRefused,
    StoreError,
    StoreGrowth,
    StoreUnreadable,
    UnreadEntries,
    read_entries,
)


def to_log_time(at: datetime) -> str:
    """Return a time as the log writes it."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


GROWTH_DAYS = 7.0
"""Days from which the growth is told."""
LogRow = tuple[int, str, str, str | None, str | None, int | None, str]
"""seq, at, kind, conversation, key, cause, and the fact as JSON text."""


def clamp_params(params: Iterable[str | int | None]) -> list[str | int | None]:
    """Limit numbers to SQLite's range: a position beyond 64 bits is after every entry, like the
    largest integer.
    """
    return [max(-LAST, min(value, LAST)) if isinstance(value, int) else value for value in params]


_MODES: Final[Mapping[Role, str]] = {"reader": "ro", "visitor": "still"}


def connect(location: StoreLocation, role: Role) -> Log:
    """Connect to a store that exists. Blocking. Raises StoreUnreadable without the driver, and
    LogError.
    """
    if isinstance(location, ServerStore):
        return connect_server(location, role)
    return SqliteLog(sqlite_uri(location, _MODES.get(role, "rw")))


async def open_log(location: StoreLocation, role: Role) -> Log:
    """Connect as `connect`, with a thread. Cancelled, it closes what it brings."""

    async def connect_and_start() -> Log:
        log = await asyncio.to_thread(connect, location, role)
        await log.start()
        return log

    connecting = asyncio.create_task(connect_and_start())
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        with contextlib.suppress(StoreError):
            await (await connecting).aclose()
        raise


async def open_reading(path: StoreLocation, role: Role = "reader") -> Log:
    """Connect for reading to a store of this version. Raises StoreMissing, StoreTooNew or
    StoreUnreadable.
    """
    await asyncio.to_thread(check_current_schema, path, _MODES[role])
    try:
        return await open_log(path, role)
    except LogError as error:
        raise unreadable_error(path, error) from error


@frozen
class WordUses:
    """Positions of entries of the log that use certain words."""

    last: Seq
    """The log's last position. 0: it is empty."""
    positions: Sequence[Sequence[int]]
    """Positions for each searched term, the newest first."""
    note_positions: Sequence[int]


@frozen
class EntryLocation:
    """Position and state of an entry of the log, without its text."""

    seq: Seq
    at: datetime
    is_note: bool
    conversation: ConversationId | None
    unread: int | None
    """Urgency of an entry that is still unread. None: it is not."""
    agent: str | None
    """The agent that wrote it, if it is a note."""
    scope: str | None
    """Scope of its readers, if it is a note."""
    is_removed: bool
    """True for a rewound turn, a message that was new in one, and a forgotten note: treated as if
    absent."""
    is_left_behind: bool
    """True if a person asked for a fresh view in that conversation since."""

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of a row of `queries.ENTRY_LOCATIONS`."""
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


class DueReason(NamedTuple):
    """A rule by which unread entries of a conversation are due."""

    rule: str
    urgency: int
    """The highest of these entries."""
    entries: int


MAX_DUE_REASONS_OF: Final = 50
"""Due entries of one conversation whose rules are read."""


class ViewEntries(NamedTuple):
    """Entries that the view of a conversation is made of, as of one moment."""

    turns: list[LogEntry]
    """Records of the turns since the start of the view that were not rewound, oldest first."""
    fold: LogEntry | None
    """The newest `ViewFolded`, which gives the form of the view; None: it was never folded."""
    as_of: Seq


def _read_view_entries(log: Log, conversation: ConversationId) -> ViewEntries:
    with log.snapshot():
        as_of = log.last_seq()
        turns = log.fetch(queries.TURNS_IN_VIEW, (conversation,))
        fold = next(iter(log.fetch(queries.NEWEST_FOLD, (conversation,))), None)
    return ViewEntries(
        [LogEntry.from_row(turn) for turn in turns],
        LogEntry.from_row(fold) if fold is not None else None,
        as_of,
    )


def first_entry(rows: Iterable[Sequence[object]]) -> LogEntry | None:
    """Return the first of these rows of the log. None: there is none."""
    return next(iter(read_entries(rows)), None)


def search_terms(text: str) -> str:
    """Return a query for `match` that finds all the words of any text. Blank for text without
    words.
    """
    return " ".join('"' + word.replace('"', '""') + '"' for word in text.replace("\0", " ").split())


class StoreReader:
    """Every query of a store.

    Each method is one SQL statement, hence one consistent snapshot, and is safe to cancel. All
    raise StoreUnreadable if the file is damaged, ValueError once closed.
    """

    def __init__(self, location: StoreLocation, reading: Log) -> None:
        self.location = location
        self.path = local_path(location)
        """Path that the files of the store are beside."""
        self._reading = reading

    @staticmethod
    async def open_readonly(path: StoreLocation, role: Role = "reader") -> "StoreReader":
        """Open for reading, with or without a running gateway. Raises as `open_reading`."""
        return StoreReader(path, await open_reading(path, role))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the file. Idempotent."""
        await self._reading.aclose()

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
        """Return the first `limit` matching entries with `after` < seq < `before`, oldest first.

        `kinds`: any of these; None is all that this version knows, empty is none. `match`: FTS5
        query over the texts (https://www.sqlite.org/fts5.html#full_text_query_syntax), without
        forgotten notes; raises BadSearchQuery for invalid ones.
        """
        rows = await self.entry_rows(
            after=after,
            before=before,
            kinds=kinds,
            conversation=conversation,
            match=match,
            limit=limit,
        )
        return read_entries(rows)

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
        """Return the last `limit` matching entries, oldest first. Otherwise like `entries`."""
        rows = await self.entry_rows(
            after=after,
            before=before,
            kinds=kinds,
            conversation=conversation,
            match=match,
            limit=limit,
            newest=True,
        )
        return read_entries(rows)

    async def iter_newest(
        self,
        most: int,
        *,
        page: int = 200,
        before: int | None = None,
        kinds: Sequence[str],
        conversation: ConversationId | None = None,
        match: str | None = None,
    ) -> AsyncIterator[LogEntry]:
        """Yield the last `most` matching entries, newest first, read `page` at a time. Otherwise
        like `newest_entries`.
        """
        for left in range(most, 0, -page):
            limit = min(page, left)
            found = await self.newest_entries(
                limit, before=before, kinds=kinds, conversation=conversation, match=match
            )
            for one in reversed(found):
                yield one
            if len(found) < limit:
                return
            before = found[0].seq

    async def first_entry_since(self, at: datetime) -> Seq:
        """Return the position of the first entry not older than that; after all of them if there is
        none.
        """
        return Seq((await self.rows(queries.FIRST_ENTRY_SINCE, to_log_time(at)))[0][0])

    async def last_position(self) -> Seq:
        """Return the log's last position; 0 if it is empty."""
        return Seq((await self.rows(LAST_POSITION))[0][0])

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
        """Return rows like `entries` (or `newest_entries`), with the facts as the JSON text of the
        log.
        """
        sql, params = queries.browse(
            self._reading.dialect,
            after=after,
            before=before,
            kinds=kinds,
            conversation=conversation,
            match=match,
            limit=limit,
            newest=newest,
        )
        try:
            return await self._read(self._reading.fetch, sql, clamp_params(params))
        except LogError as error:
            if match is not None and isinstance(error, StatementRefused):
                raise BadSearchQuery(f"cannot search for {match!r}: {error}") from error
            raise self._read_error(error) from error

    async def entry(self, seq: int) -> LogEntry | None:
        """Return the entry at this position."""
        return first_entry(await self.rows(queries.ENTRY, seq))

    async def entry_by_key(self, key: str) -> LogEntry | None:
        """Return the entry with this deduplication key."""
        return first_entry(await self.rows(queries.ENTRY_BY_KEY, key))

    async def caused_by(self, seq: int) -> list[LogEntry]:
        """Return the entries directly caused by this one, oldest first."""
        return read_entries(await self.rows(queries.CAUSED_BY, seq))

    async def handled_by(self, judgement: LogEntry) -> LogEntry | None:
        """Return the turn or decision that dealt with a judged entry, shown or not; None if none
        has yet.
        """
        return first_entry(
            await self.rows(
                queries.HANDLED_BY,
                judgement.conversation,
                judgement.seq,
                judgement.cause or judgement.seq,
            )
        )

    async def due_conversations(self, urgency: int) -> list[tuple[ConversationId, int]]:
        """Return conversations with unread entries of at least this urgency, and the highest one;
        by name.
        """
        rows = await (
            self.rows(queries.DUE_CONVERSATIONS, urgency)
            if urgency >= 1
            else self.rows(queries.DUE_OR_AMBIENT_CONVERSATIONS)
        )
        return [(ConversationId(conversation), highest) for conversation, highest in rows]

    async def due_reasons(self, conversation: ConversationId) -> list[DueReason]:
        """Return the rules by which unread entries there are due, the most urgent first, each with
        their highest urgency and their number; of the `MAX_DUE_REASONS_OF` most urgent entries.
        """
        rows = await self.rows(queries.DUE_REASONS, conversation, MAX_DUE_REASONS_OF)
        return [DueReason(*row) for row in rows]

    async def unread_entries(
        self, conversation: ConversationId, *, most: int, after: int = 0
    ) -> UnreadEntries:
        """Return the unread entries for a turn that are after `after`, at most so many.

        Messages addressed to the agent are never skipped: they are taken from the oldest on, and
        the rest stays unread. Overheard ones fill the remaining room, the newest first, ambient
        talk last.
        """
        rows = await self.rows(queries.UNREAD_ENTRIES, conversation, most, after)
        count, upto, changed, *_ = rows[0]
        messages = tuple(LogEntry.from_row(row[3:]) for row in rows if row[3] is not None)
        return UnreadEntries(
            messages=messages,
            omitted=count - len(messages),
            upto=Seq(upto),
            has_changes=bool(changed),
        )

    async def unread_urgency(self, conversation: ConversationId) -> int:
        """Return the highest urgency of an unread entry there; 0 if there is none, or only ambient
        talk.
        """
        ((urgency,),) = await self.rows(queries.UNREAD_URGENCY, conversation)
        return int(urgency)

    async def newest_senders(
        self, conversation: ConversationId, *, before: int, most: int
    ) -> list[Sender]:
        """Return the senders of the newest messages there before this position, one for each,
        oldest first.
        """
        found = await self.newest_entries(
            most, before=before, kinds=MESSAGE_KINDS, conversation=conversation
        )
        return [entry.fact.sender for entry in found if isinstance(entry.fact, Message)]

    async def message_changes(
        self, conversation: ConversationId, *, after: int, newest: int
    ) -> list[LogEntry]:
        """Return the newest edits and deletions in a conversation with `after` < seq, oldest
        first.
        """
        return [
            LogEntry.from_row(row)
            for row in reversed(
                await self.rows(queries.MESSAGE_CHANGES, conversation, after, newest)
            )
        ]

    async def latest_message_change(self, message: Message, seq: Seq) -> LogEntry | None:
        """Return the deletion of the message at `seq`, else its newest edit; None: it is unchanged.

        Only its author's edits count, and only those that access did not refuse.
        """
        place = message.at.conversation
        return first_entry(
            await self.rows(
                queries.LATEST_MESSAGE_CHANGE, place, message.id, seq, message.sender.id
            )
        )

    async def pinned_card(self, conversation: ConversationId) -> ChannelCardPinned | None:
        """Return the card that is pinned there; None: none is."""
        entry = first_entry(await self.rows(queries.PINNED_CARD, conversation))
        return (
            entry.fact if entry is not None and isinstance(entry.fact, ChannelCardPinned) else None
        )

    async def last_topic_change(self, conversation: ConversationId) -> MembershipChanged | None:
        """Return the last change of the topic, with its author; None: none was reported."""
        entry = first_entry(await self.rows(queries.LAST_TOPIC_CHANGE, conversation))
        return (
            entry.fact if entry is not None and isinstance(entry.fact, MembershipChanged) else None
        )

    async def find_post(self, key: PostKey) -> tuple[Post | None, LogEntry | None]:
        """Return a post, and the entry that caused it. None: there is none."""
        queued = await self.entry_by_key(f"post:{key}")
        if queued is None or not isinstance(queued.fact, PostQueued):
            return None, None
        return queued.fact.post, (None if queued.cause is None else await self.entry(queued.cause))

    async def find_own_post(self, conversation: ConversationId, message: MessageId) -> Post | None:
        """Return the post that the platform shows as this message; None if it is not ours."""
        entry = first_entry(await self.rows(queries.OWN_POST, conversation, message))
        return entry.fact.post if entry is not None and isinstance(entry.fact, PostQueued) else None

    async def message_ids(self, place: ConversationId, post: PostKey) -> list[MessageId]:
        """Return the platform's ids of the messages of a post whose delivery has ended. Empty: none
        was shown.
        """
        queued = await self.entry_by_key(f"post:{post}")
        ended = await self.entry_by_key(f"delivery:{place}:{post}")
        if queued is None or ended is None:
            return []
        parts = await self.entries(
            after=queued.seq, before=ended.seq, kinds=["part"], conversation=place
        )
        sent = (
            one.fact
            for one in parts
            if isinstance(one.fact, PartSendEnded) and one.fact.state == "sent"
        )
        return [message for one in sent if one.post == post for message in one.ids]

    async def open_previews(self) -> list[tuple[ConversationId, MessageId]]:
        """Return the preview messages of growing answers that have not been deleted."""
        return [
            (ConversationId(place), MessageId(message))
            for place, message in await self.rows(queries.OPEN_PREVIEWS)
        ]

    async def view_entries(self, conversation: ConversationId) -> ViewEntries:
        """Return the entries that the view of a conversation is made of. Reads nothing before its
        start.
        """
        try:
            return await self._read(_read_view_entries, self._reading, conversation)
        except LogError as error:
            raise self._read_error(error) from error

    async def newest_turns(
        self, conversation: ConversationId, *, before: int | None, newest: int
    ) -> list[LogEntry]:
        """Return the newest turns there before this position (None: the end), oldest first."""
        rows = await self.rows(
            queries.NEWEST_TURNS, conversation, queries.LAST if before is None else before, newest
        )
        return [LogEntry.from_row(row) for row in reversed(rows)]

    async def find_word_uses(
        self, terms: Sequence[str], *, newest: int, notes_after: int
    ) -> WordUses:
        """Return the newest texts with each of these words or phrases, and all notes after a
        position.
        """
        queries_json = json.dumps([search_terms(term) for term in terms])
        (last, notes), *rows = await self.rows(
            self._reading.dialect.word_uses, queries_json, newest, notes_after
        )
        return WordUses(
            last=Seq(last),
            note_positions=json.loads(notes),
            positions=[json.loads(seqs) for _, seqs in rows],
        )

    async def locate_entries(self, seqs: Sequence[int]) -> list[EntryLocation]:
        """Return the location of these entries, without their texts, in any order."""
        return [
            EntryLocation.from_row(row)
            for row in await self.rows(queries.ENTRY_LOCATIONS, json.dumps(seqs))
        ]

    async def forgotten_notes(self, seqs: Iterable[int]) -> set[int]:
        """Return those of these notes that are forgotten."""
        return {seq for (seq,) in await self.rows(queries.FORGOTTEN_NOTES, json.dumps(list(seqs)))}

    async def undelivered_posts(self) -> list[OutboxPost]:
        """Return the posts whose delivery has not ended, in log order."""
        posts = []
        for (seq, at, body), group in groupby(
            await self.rows(queries.UNDELIVERED_POSTS), key=lambda row: row[:3]
        ):
            entry = LogEntry.from_row((seq, at, "post", None, None, None, body))
            assert isinstance(entry.fact, PostQueued)
            parts = tuple(OutboxPart.from_row(row[3:]) for row in group if row[3] is not None)
            posts.append(OutboxPost(seq=entry.seq, at=entry.at, post=entry.fact.post, parts=parts))
        return posts

    async def dmn_state(self, agent: str) -> str | None:
        """Return an agent's last saved state; None if there is none."""
        rows = await self.rows(queries.DMN_STATE, agent)
        return rows[0][0] if rows else None

    async def autonomous_usage(self, agent: str, day: str) -> tuple[int, float]:
        """Return the number of autonomous turns of a day (YYYY-MM-DD, UTC), and their cost in US
        dollars.
        """
        rows = await self.rows(AUTONOMOUS_USAGE, agent, day)
        return (rows[0][0], rows[0][1] / NANO_PER_USD) if rows else (0, 0.0)

    async def current_facts(self, kind: str) -> list[LogEntry]:
        """Return the current facts of a kind, oldest first: see `gateway.store.projections`."""
        return [LogEntry.from_row(row) for row in await self.rows(queries.CURRENT_FACTS, kind)]

    async def saved_cursor(self, channel: ChannelName) -> str | None:
        """Return the cursor of a platform's queue; None if none was saved."""
        rows = await self.rows(queries.SAVED_CURSOR, channel)
        return rows[0][0] if rows else None

    async def connection_states(self) -> list[ConnectionState]:
        """Return the last reported state of each account's connection, by name."""
        return [
            ConnectionState(
                channel=ChannelName(channel),
                up=bool(up),
                reason=reason,
                at=datetime.fromisoformat(at),
            )
            for channel, up, reason, at in await self.rows(queries.CONNECTION_STATES)
        ]

    async def spending_sums(
        self,
        by: SpendingKey,
        *,
        since: str = "",
        conversation: ConversationId | None = None,
        threads: bool = False,
    ) -> list[SpendingSum]:
        """Return the spending from this day on (YYYY-MM-DD, UTC), one sum for each key, by key.

        Reads sums, not the log. `conversation`: only there; `threads`: also in the threads of that
        room.
        """
        return [
            SpendingSum.from_row(row)
            for row in await self.rows(SPENDING_SUMS[by], since, conversation, int(threads))
        ]

    async def growth(self, now: datetime) -> StoreGrowth:
        """Return the size of the store and how it grew in the last days."""
        ((last, first, left, oldest, whole, free),) = await self.rows(
            self._reading.dialect.growth, to_log_time(now - timedelta(days=GROWTH_DAYS))
        )
        days = (
            min(GROWTH_DAYS, (now - datetime.fromisoformat(oldest)) / timedelta(days=1))
            if oldest
            else 0.0
        )
        per_day = (
            (whole - free) / max(1, last - left) * max(0, last - first + 1) / days
            if days >= 1
            else None
        )
        return StoreGrowth(size_bytes=whole, unused_bytes=free, bytes_per_day=per_day)

    async def find_judgement(self, seq: int) -> Judgement | None:
        """Return the judgement of this entry by access and attention; None if it was not judged."""
        return next(
            (one.fact for one in await self.caused_by(seq) if isinstance(one.fact, Judgement)), None
        )

    async def rows(self, sql: str, *params: str | int | None) -> list[Any]:
        """Return the rows of one statement. For queries that stand beside the feature that asks
        them.
        """
        try:
            return await self._read(self._reading.fetch, sql, clamp_params(params))
        except LogError as error:
            raise self._read_error(error) from error

    async def _read(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        """Execute a function in the connection's thread. Raises LogError."""
        return await self._reading.run(function, *args)

    def _read_error(self, error: LogError) -> StoreError:
        return StoreUnreadable(f"cannot read {self.location}: {error}")
