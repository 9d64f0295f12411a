"""Small facts for the store's tests."""

import asyncio
import hashlib
from collections.abc import Coroutine, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import (
    Address,
    BlockUsage,
    ChannelName,
    ConversationId,
    DeliveryReport,
    EventId,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Post,
    PostKey,
    RequestUsage,
    RoomId,
    Sender,
    SenderId,
    Usage,
)
from gateway.core.facts import Judgement, PostQueued, Seq, TurnId, TurnRecord, dedup_key
from gateway.core.labels import TRUSTED_LABEL
from gateway.store import (
    LogEntry,
    NewEntry,
    OutboxPost,
    ServerStore,
    Store,
    StoreLocation,
    StoreReader,
)
from gateway.store.log import Log
from gateway.store.reader import connect
from gateway.store.shared import SharedStore
from tests.servers.real_postgresql import PostgresServer

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
Result = TypeVar("Result")
Urgency = Literal[0, 1, 2, 3]
Fate = Literal["due", "context", "refused", "noted"]


def taken_in(
    fact: Message | MessageEdited | MessageDeleted,
    fate: Fate = "due",
    *,
    urgency: Urgency = 3,
    role: str = "guest",
    at: datetime = NOW,
) -> list[NewEntry]:
    """An event with its judgement."""
    place = fact.at.conversation
    entry = NewEntry(fact=fact, at=at, conversation=place, key=dedup_key(fact))
    said = Judgement(type="x", urgency=urgency, fate=fate, rule="r", role=role)
    return [entry, NewEntry(fact=said, at=at, conversation=place, cause=entry)]


def run(story: Coroutine[Any, Any, Result]) -> Result:
    """The story in a loop of its own, or a failure if it hangs."""

    async def bounded() -> Result:
        async with asyncio.timeout(60):
            return await story

    return asyncio.run(bounded())


class Engine:
    """Where the stores of the tests are: files, or schemas of a PostgreSQL server."""

    def __init__(self) -> None:
        self.server: PostgresServer | None = None
        self._schemas = list[str]()

    def locate(self, path: Path) -> StoreLocation:
        """Return the store that stands for this path. On a server only the newest ones are kept."""
        if self.server is None:
            return path
        schema = _schema_of(path)
        if schema not in self._schemas:
            self._schemas.append(schema)
            if len(self._schemas) > _KEPT_SCHEMAS:
                self.server.drop(self._schemas.pop(0))
        return ServerStore(self.server.url(schema), path)

    def drop(self, path: Path) -> None:
        """Drop the store of this path, if it is on a server."""
        if self.server is not None:
            self.server.drop(_schema_of(path))


def _schema_of(path: Path) -> str:
    return f"s{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"


_KEPT_SCHEMAS = 8
ENGINE = Engine()
located = ENGINE.locate


def look_into(path: Path) -> Log:
    """Connect to the store of this path as another program would. Close it."""
    return connect(located(path), "other")


async def in_writer(store: Store, sql: str) -> list[Any]:
    """Execute a statement on the connection of a file that appends."""
    return await store._writing.run(store._writing.fetch, sql)


def append_newer(path: Path, *, cause: int | None = None) -> None:
    """Append an entry as only a newer version does: of a kind that this one does not know."""
    with closing(look_into(path)) as other:
        other.write(
            "INSERT INTO log (seq, at, kind, conversation, cause, body) "
            "SELECT max(seq) + 1, $1, 'weather', $2, $3, $4 FROM log",
            [
                (
                    NOW.isoformat(timespec="microseconds"),
                    place().conversation,
                    cause,
                    '{"kind": "weather"}',
                )
            ],
        )


async def opened(path: Path) -> Store:
    return await Store.open(located(path), ManualClock())


async def open_shared(location: StoreLocation, *, patient: bool = True) -> SharedStore:
    """Open a store as one of several processes. `join` comes next."""
    store = await Store.open(location, SystemClock(), patient=patient, is_shared=True)
    assert isinstance(store, SharedStore)
    return store


def place(room: str = "#a") -> Address:
    return Address(channel=ChannelName("irc.test"), room=RoomId(room))


def posts_of(store: Store) -> list[OutboxPost]:
    """Return a list that gets each post that is queued from now on, as an outbox would."""
    posts = list[OutboxPost]()

    def on_queued(entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, PostQueued):
                posts.append(OutboxPost(seq=entry.seq, at=entry.at, post=entry.fact.post, parts=()))

    store.subscribe(on_queued, PostQueued)
    return posts


def within(entries: Sequence[NewEntry], store: Store) -> list[NewEntry]:
    """Return the entries without causes that are not in the log."""
    return [
        replace(one, cause=None) if isinstance(one.cause, int) and one.cause > store.last else one
        for one in entries
    ]


def said(
    number: int,
    text: str = "",
    room: str = "#a",
    kind: Literal["room", "mention", "direct"] = "room",
) -> NewEntry:
    fact = Message(
        id=MessageId(str(number)),
        at=place(room),
        sender=Sender(id=SenderId("u"), name="Ulla"),
        text=text or f"line {number}",
        sent=NOW,
        kind=kind,
    )
    return NewEntry(fact=fact, at=NOW, conversation=fact.at.conversation, key=dedup_key(fact))


def judged(cause: NewEntry, urgency: Urgency = 3, fate: Fate = "due") -> NewEntry:
    fact = Judgement(
        type="irc.test.room.#a", urgency=urgency, fate=fate, rule="default", role="guest"
    )
    return NewEntry(fact=fact, at=NOW, conversation=cause.conversation, cause=cause)


def heard(number: int, text: str = "", room: str = "#a", urgency: Urgency = 3) -> list[NewEntry]:
    message = said(number, text, room)
    return [message, judged(message, urgency)]


def turn(
    conversation: ConversationId,
    *covers: int,
    upto: int = 0,
    text: str = "answer",
    key: str | None = None,
    **fields: Any,
) -> NewEntry:
    """A turn that has ended. `fields`: of its record, besides."""
    fact = TurnRecord(
        turn=TurnId("t"),
        covers=tuple(Seq(seq) for seq in covers),
        omitted=0,
        heard="",
        upto=Seq(upto or max(covers, default=0)),
        outcome="replied",
        text=text,
        reason="",
        model="scripted",
        usage=Usage(),
        requests=1,
        autonomous=False,
        label=TRUSTED_LABEL,
    )
    return NewEntry(fact=replace(fact, **fields), at=NOW, conversation=conversation, key=key)


def account(
    *,
    read: int = 0,
    written: int = 0,
    plain: int = 0,
    cost: float | None = None,
    model: str = "m",
    missed: str = "",
) -> RequestUsage:
    """One request: 100 tokens of identity were expected from the cache and 20 of history to be
    written."""
    return RequestUsage(
        provider="anthropic",
        model=model,
        blocks=(
            BlockUsage(name="identity", tokens=100, read=100, written=0, lifetime=None),
            BlockUsage(name="history", tokens=30, read=0, written=20, lifetime="1h"),
        ),
        usage=Usage(
            input_tokens=plain,
            cache_read_tokens=read,
            cache_write_tokens=written,
            cache_write_1h_tokens=written,
            output_tokens=7,
        ),
        cost_usd=cost,
        exact=False,
        missed=missed,
    )


def spent(
    conversation: ConversationId,
    *accounts: RequestUsage,
    senders: Sequence[str] = (),
    at: datetime = NOW,
) -> NewEntry:
    """A turn that cost this much, for these people's messages."""
    plain = turn(conversation, upto=1)
    assert isinstance(plain.fact, TurnRecord)
    fact = replace(
        plain.fact,
        covers=tuple(Seq(1 + number) for number in range(len(senders))),
        senders=tuple(SenderId(sender) for sender in senders),
        accounts=accounts,
        usage=sum((one.usage for one in accounts), Usage()),
        requests=len(accounts),
        agent="reverie",
    )
    return replace(plain, fact=fact, at=at)


def post(key: str, text: str = "hello", room: str = "#a") -> Post:
    return Post(key=PostKey(key), to=place(room), text=text)


def delivered(key: str, state: Literal["sent", "uncertain", "failed"] = "sent") -> NewEntry:
    fact = DeliveryReport(
        id=EventId(key), at=place(), post=PostKey(key), state=state, reason="", sent=NOW
    )
    return NewEntry(fact=fact, at=NOW, conversation=place().conversation, key=dedup_key(fact))


async def list_unread(store: StoreReader) -> list[tuple[str, int]]:
    """Return conversation and urgency of each unread entry."""
    rows = await store.rows("SELECT conversation, urgency FROM unread ORDER BY seq")
    return [(place, urgency) for place, urgency in rows]
