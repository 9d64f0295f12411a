"""Derived tables and counters, and what is kept in memory: equal by append and by rebuild, and
repaired if changed."""

import asyncio
import re
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.events import (
    ConversationId,
    Message,
    MessageDeleted,
    MessageEdited,
    PostKey,
    ReactionChanged,
    RequestUsage,
    Sender,
    SenderId,
)
from gateway.core.facts import (
    URGENT,
    ConversationRewound,
    DmnStateSaved,
    Fact,
    Judgement,
    PartSendEnded,
    PartSendStarted,
    PostQueued,
    Seq,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
)
from gateway.store import (
    LogEntry,
    NewEntry,
    Store,
    StoreReader,
    StoreUnreadable,
    TableDifference,
    UnreadEntries,
    active,
    rebuild,
)
from gateway.store.active import read_conversation
from gateway.store.projections import (
    PROJECTED_TABLES,
    SEARCHABLE_KINDS,
    counted_type,
)
from tests.kits import strategies
from tests.kits.examples import examples
from tests.kits.store import (
    ENGINE,
    NOW,
    delivered,
    heard,
    judged,
    located,
    look_into,
    opened,
    place,
    post,
    run,
    said,
    turn,
    within,
)

# Derived tables: a rebuild gives the same, and repairs changed ones

A = place("#a").conversation
_places = st.sampled_from([place("#a").conversation, place("#b").conversation])
_keys = st.sampled_from([PostKey("p"), PostKey("q")])
_near = st.integers(1, 12).map(Seq)
_small = st.integers(0, 2)
_models = st.sampled_from(["a", "b"])

close_facts: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Judgement, urgency=st.sampled_from([0, 1, 2, 3])),
    st.builds(
        TurnRecord,
        covers=st.just(()),
        omitted=_small,
        upto=_near,
        usage=strategies.usages,
        requests=_small,
    ),
    st.builds(
        TurnRecord,
        covers=st.just(()),
        omitted=_small,
        upto=_near,
        usage=strategies.usages,
        requests=_small,
        model=_models,
        agent=_models,
        senders=st.lists(_models, max_size=4).map(tuple),
        accounts=st.lists(
            st.builds(
                RequestUsage,
                provider=_models,
                model=_models,
                blocks=st.just(()),
                usage=strategies.usages,
                cost_usd=st.none() | st.floats(),
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(ViewFolded, start=_near),
    st.builds(
        ConversationRewound, first=_near, last=_near, again=st.lists(_near, max_size=2).map(tuple)
    ),
    strategies.locks,
    strategies.folds,
    st.builds(PostQueued, post=_keys.map(post)),
    st.builds(
        PartSendStarted,
        post=_keys,
        part=_small,
        bodies=st.sampled_from([None, ("a", "b"), ("x", "y", "z")]),
    ),
    st.builds(PartSendEnded, post=_keys, part=_small),
    _keys.map(lambda key: delivered(key).fact),
    strategies.messages,
    strategies.links,
    strategies.cursors,
    strategies.dmn_states,
)
"""Facts about few things, so that they meet."""

entries = st.builds(
    NewEntry,
    fact=close_facts | strategies.facts,
    at=st.just(NOW),
    conversation=st.none() | _places,
    key=st.none() | st.sampled_from("abcdefgh"),
    cause=st.none() | _near,
)
batches = st.lists(st.lists(entries, min_size=1, max_size=6), max_size=8)


@settings(max_examples=examples(80))
@given(batches)
def test_rebuilding_what_the_writer_made_finds_no_difference(
    given_batches: list[list[NewEntry]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"

        async def story() -> list[TableDifference]:
            async with await opened(path) as store:
                for batch in given_batches:
                    await store.append(within(batch, store))
                before = [
                    await store.undelivered_posts(),
                    await store.due_conversations(0),
                    await store.connection_states(),
                ]
            differences = await rebuild(located(path))
            async with await opened(path) as store:
                assert [
                    await store.undelivered_posts(),
                    await store.due_conversations(0),
                    await store.connection_states(),
                ] == before
            return differences

        assert run(story()) == []


async def _story(path: Path) -> None:
    async with await opened(path) as store:
        for number in range(3):
            await store.append(heard(number, f"number {number}"))
        await store.append([turn(A, 1)])
        await store.append(
            [
                NewEntry(fact=PostQueued(post=post("p")), at=NOW),
                NewEntry(
                    fact=PartSendStarted(post=PostKey("p"), part=0, bodies=("a", "b")), at=NOW
                ),
                NewEntry(fact=ViewFolded(start=Seq(7), reason="size"), at=NOW, conversation=A),
                NewEntry(fact=DmnStateSaved(state="resting", agent="a"), at=NOW),
            ]
        )


_ON_SERVER = {
    "INSERT INTO search (search) VALUES ('delete-all')": "DELETE FROM search",
    (
        "INSERT INTO search (search, rowid, text) VALUES ('delete', 1, 'number 0')"
    ): "DELETE FROM search WHERE rowid = 1",
}
"""The same in PostgreSQL, whose index is a table."""


def _tamper(path: Path, *sql: str) -> None:
    with closing(look_into(path)) as connection:
        for one in sql:
            connection.write(_ON_SERVER.get(one, one) if ENGINE.server is not None else one)


def _dump(path: Path) -> list[list[object]]:
    connection = look_into(path)
    tables = [connection.fetch(f"SELECT * FROM {table}") for table in PROJECTED_TABLES]
    match = connection.dialect.match.format("$1")
    tables.append(
        connection.fetch(f"SELECT rowid FROM search WHERE {match}", ("number OR answer",))
    )
    connection.close()
    return tables


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM unread WHERE seq = 3", TableDifference(table="unread", missing=1, extra=0)),
        (
            "INSERT INTO unread VALUES (99, 'x/y', 3)",
            TableDifference(table="unread", missing=0, extra=1),
        ),
        (
            "UPDATE outbox_part SET state = 'sent' WHERE part = 0",
            TableDifference(table="outbox_part", missing=1, extra=1),
        ),
        ("DELETE FROM outbox", TableDifference(table="outbox", missing=1, extra=0)),
        ("UPDATE view SET start = 1", TableDifference(table="view", missing=1, extra=1)),
        ("UPDATE view SET fresh = 1", TableDifference(table="view", missing=1, extra=1)),
        (
            "UPDATE dmn_state SET state = 'off'",
            TableDifference(table="dmn_state", missing=1, extra=1),
        ),
        (
            "INSERT INTO cursor VALUES ('a', 'b')",
            TableDifference(table="cursor", missing=0, extra=1),
        ),
        (
            "UPDATE spending SET read = read + 1",
            TableDifference(table="spending", missing=1, extra=1),
        ),
        (
            "UPDATE notification_type SET count = 7",
            TableDifference(table="notification_type", missing=1, extra=1),
        ),
        (
            "INSERT INTO link VALUES ('a', 1, '', '')",
            TableDifference(table="link", missing=0, extra=1),
        ),
        (
            "INSERT INTO search (search) VALUES ('delete-all')",
            TableDifference(table="search", missing=4, extra=0),
        ),
        (
            "INSERT INTO search (rowid, text) VALUES (2, 'number')",
            TableDifference(table="search", missing=0, extra=1),
        ),
        (
            "INSERT INTO search (search, rowid, text) VALUES ('delete', 1, 'number 0')",
            TableDifference(table="search", missing=1, extra=0),
        ),
    ],
)
async def test_a_tampered_table_is_reported_and_mended(
    tmp_path: Path, sql: str, expected: TableDifference
) -> None:
    path = tmp_path / "s.db"
    await _story(path)
    before = _dump(path)
    _tamper(path, sql)
    assert _dump(path) != before
    assert await rebuild(located(path)) == [expected]
    assert _dump(path) == before
    assert await rebuild(located(path)) == []


async def test_words_changed_inside_the_index_are_found(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await _story(path)
    _tamper(
        path,
        "INSERT INTO search (search, rowid, text) VALUES ('delete', 1, 'number 0')",
        "INSERT INTO search (rowid, text) VALUES (1, 'something else')",
    )
    assert await rebuild(located(path)) == [TableDifference(table="search", missing=0, extra=0)]
    assert await rebuild(located(path)) == []


async def test_progress_is_told_and_a_fact_that_is_none_stops_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await _story(path)
    told: list[tuple[int, int]] = []
    await rebuild(located(path), progress=lambda done, whole: told.append((done, whole)))
    assert told == [(11, 11)]
    _tamper(
        path,
        "INSERT INTO log (seq, at, kind, body) VALUES (12, '2026-01-01T00:00:00+00:00', 'odd', "
        "'{}')",
    )
    with pytest.raises(StoreUnreadable, match="entry 12"):
        await rebuild(located(path))
    await _open_again(path)


async def _open_again(path: Path) -> None:
    async with await opened(path) as store:
        assert len(await store.entry_rows()) == 12


async def test_the_view_said_names_the_kinds_that_are_said(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await _story(path)
    text = (
        "sql FROM sqlite_master WHERE name = 'said'"
        if ENGINE.server is None
        else "pg_get_viewdef('said')"
    )
    with closing(look_into(path)) as connection:
        ((sql,),) = connection.fetch(f"SELECT {text}")
    assert set(re.findall(r"'(\w+)'", sql.rpartition("kind")[2])) == SEARCHABLE_KINDS


# What is kept in memory of active conversations is what the tables hold, for any log

ROOMS = [place("#a").conversation, place("#b").conversation]
_rooms = st.sampled_from(ROOMS)
_close_by = st.integers(1, 40).map(Seq)
_senders = st.sampled_from([Sender(id=SenderId(name), name=name) for name in ("ann", "bob", "cid")])
_judgements = st.builds(
    Judgement,
    urgency=st.sampled_from([0, 1, 1, 1, 2, 3]),
    fate=st.sampled_from(["due", "due", "context", "refused"]),
)
_events: st.SearchStrategy[Fact] = st.one_of(
    st.builds(
        Message,
        at=st.just(place()),
        sender=_senders,
        sent=st.just(NOW),
        kind=st.sampled_from(["direct", "mention", "room", "room"]),
        attachments=st.just(()),
    ),
    *[st.builds(ReactionChanged, at=st.just(place()), sender=_senders, sent=st.just(NOW))] * 5,
    st.builds(MessageEdited, at=st.just(place()), sender=_senders, sent=st.just(NOW)),
    st.builds(MessageDeleted, at=st.just(place()), sender=st.just(None), sent=st.just(NOW)),
    strategies.alarms,
    strategies.deliveries,
)


@st.composite
def _arrivals(draw: st.DrawFn) -> list[NewEntry]:
    """Some events of a room with their judgements, as the intake appends them."""
    entries = list[NewEntry]()
    for _ in range(draw(st.integers(1, 5))):
        room = draw(_rooms)
        event = NewEntry(fact=draw(_events), at=NOW, conversation=room)
        entries += [event, NewEntry(fact=draw(_judgements), at=NOW, conversation=room, cause=event)]
    return entries


_anything = st.builds(
    NewEntry,
    fact=_judgements
    | st.builds(
        ConversationRewound,
        first=_close_by,
        last=_close_by,
        again=st.lists(_close_by, max_size=2).map(tuple),
    )
    | strategies.facts,
    at=st.just(NOW),
    conversation=st.none() | _rooms,
    key=st.none() | st.sampled_from("abc"),
    cause=st.none() | _close_by,
)


class End(NamedTuple):
    """End of a turn, a dismissal, or a rewind that makes one message unread again."""

    room: ConversationId
    kind: Literal["turn", "dismissed", "rewound"]
    back: int
    """Number of the newest entries of the log that stay unread."""
    looked: tuple[tuple[ConversationId, int], ...]
    """Places that the turn looked at, each with such a number."""

    def entries(self, last: int) -> list[NewEntry]:
        """`last`: the log's last position."""
        upto = Seq(max(0, last - self.back))
        fact: Fact = UnreadDismissed(upto=upto)
        if self.kind == "rewound":
            fact = ConversationRewound(first=upto, last=upto, by="", again=(upto,))
        elif self.kind == "turn":
            ended = turn(self.room).fact
            assert isinstance(ended, TurnRecord)
            looked = tuple((place, Seq(max(0, last - back))) for place, back in self.looked)
            fact = replace(ended, upto=upto, looked=looked)
        return [NewEntry(fact=fact, at=NOW, conversation=self.room)]


_back = st.integers(0, 12)
_ends = st.builds(
    End,
    room=_rooms,
    kind=st.sampled_from(["turn", "turn", "dismissed", "rewound"]),
    back=_back,
    looked=st.lists(st.tuples(_rooms, _back), max_size=2).map(tuple),
)
_appends = st.one_of(
    _arrivals(), _arrivals(), _arrivals(), _ends, st.lists(_anything, min_size=1, max_size=2)
)
_steps = st.lists(st.tuples(_appends, st.sets(_rooms)), max_size=15)
"""Appends, each while these rooms become active."""
Steps = Sequence[tuple[Sequence[NewEntry] | End, set[ConversationId]]]


async def compare(store: Store) -> None:
    """Compare what the store answers for each room with its tables."""
    for room in ROOMS:
        assert await store.unread_urgency(room) == await StoreReader.unread_urgency(store, room)
        assert (await store.view_entries(room))[:2] == (
            await StoreReader.view_entries(store, room)
        )[:2]
        assert await store.pinned_card(room) == await StoreReader.pinned_card(store, room)
        for most, after in ((0, 0), (1, 0), (2, 3), (7, 0), (50, 0), (50, 9)):
            told = await store.unread_entries(room, most=most, after=after)
            assert told == await StoreReader.unread_entries(store, room, most=most, after=after)
        for before in (1, 9, 20, 10_000):
            senders = await store.newest_senders(room, before=before, most=4)
            assert senders == await StoreReader.newest_senders(store, room, before=before, most=4)


async def play(path: Path, steps: Steps) -> None:
    async with await opened(path) as store:
        for appended, rooms in steps:
            newest = await store.newest_entries(1)
            entries = (
                appended.entries(newest[0].seq if newest else 0)
                if isinstance(appended, End)
                else appended
            )
            await asyncio.gather(
                store.append(within(entries, store)),
                *[store.activate(room) for room in ROOMS if room in rooms],
            )
            await compare(store)


@settings(max_examples=examples(150))
@given(_steps)
def test_memory_and_tables_agree(steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(play(Path(folder) / "s.db", steps))


@settings(max_examples=examples(100))
@given(_steps)
def test_memory_and_tables_agree_also_at_the_limits(steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "MAX_CONVERSATIONS": 1,
            "MAX_UNREAD": 4,
            "MAX_SENDERS": 6,
            "READ_SENDERS": 3,
        }.items():
            patch.setattr(active, name, value)
        run(play(Path(folder) / "s.db", steps))


async def test_an_active_conversation_costs_no_read(store: Store) -> None:
    await store.append(heard(1))
    await store.activate(ROOMS[0])
    await store._reading.aclose()
    await store.append([*heard(2, urgency=2), *heard(1, room="#b")])
    await store.activate(ROOMS[0])
    unread = await store.unread_entries(ROOMS[0], most=9)
    assert ([one.seq for one in unread.messages], unread.upto) == ([1, 3], 3)
    assert await store.unread_urgency(ROOMS[0]) == URGENT
    assert len(await store.newest_senders(ROOMS[0], before=3, most=9)) == 1
    assert await store.pinned_card(ROOMS[0]) is None
    await store.append([turn(ROOMS[0], 1, 3)])
    assert await store.unread_entries(ROOMS[0], most=9) == UnreadEntries(
        messages=(), omitted=0, upto=Seq(0)
    )
    with pytest.raises(ValueError, match="losed"):
        await store.unread_entries(ROOMS[1], most=9)


async def test_what_a_read_has_seen_is_not_applied_again_and_what_came_during_it_is(
    tmp_path: Path,
) -> None:
    """An append is durable before its subscribers are called, so a read may be ahead of them."""
    told = list[Sequence[LogEntry]]()
    async with await opened(tmp_path / "s.db") as store:
        store.subscribe(told.append)
        for number in range(1, 4):
            await store.append(heard(number))
        found = await store._reading.run(read_conversation, store._reading, ROOMS[0])
        await store.append(heard(4))
        conversations = active.ActiveConversations(Seq(0))

        async def activate(*meanwhile: Sequence[LogEntry]) -> None:
            may_end = asyncio.Event()

            async def read() -> active.ActiveConversation | None:
                await may_end.wait()
                return found

            reading = asyncio.create_task(conversations.activate(ROOMS[0], read))
            await asyncio.sleep(0)
            await conversations.activate(ROOMS[0], read)  # it is being read already
            for entries in meanwhile:
                conversations.on_appended(entries)
            may_end.set()
            await reading

        await activate(told[1])  # a gap: what was being read is dropped
        assert conversations.kept.get(ROOMS[0]) is None
        await activate(told[2], told[3])
        kept = conversations.kept.get(ROOMS[0])
        assert kept is not None
        assert kept.unread_entries(most=9, after=0) == await StoreReader.unread_entries(
            store, ROOMS[0], most=9
        )
        assert len(kept.newest_senders(before=100, most=9) or ()) == 4
        conversations.on_appended(told[1])
        assert conversations.kept.get(ROOMS[0]) is None


# Counters of notification types: bounded, and equal by append and by rebuild

Row = tuple[str, int, str, str]


def table(path: Path) -> list[Row]:
    with closing(look_into(path)) as connection:
        return connection.fetch("SELECT * FROM notification_type ORDER BY type")


def came(number: int, room: str = "#a", hours: int = 0) -> list[NewEntry]:
    message = said(number, room=room)
    made = judged(message)
    assert isinstance(made.fact, Judgement)
    return [
        message,
        replace(
            made,
            fact=replace(made.fact, type=f"irc.test.room.{room}"),
            at=NOW + timedelta(hours=hours),
        ),
    ]


@pytest.mark.parametrize(
    ("dotted", "place", "counted"),
    [
        ("irc.x.mention.#a.b", "irc.x/#a.b", "irc.x.mention"),
        ("irc.x.mention.-1001.7", "irc.x/-1001/7", "irc.x.mention"),
        ("irc.x.link", None, "irc.x.link"),
        ("agent.alarm", "irc.x/#a", "agent.alarm"),
    ],
)
def test_a_type_is_counted_without_its_place(dotted: str, place: str | None, counted: str) -> None:
    assert counted_type(dotted, ConversationId(place) if place else None) == counted


async def test_each_type_counts_and_tells_when_it_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with await opened(path) as store:
        await store.append([*came(1), *came(2, hours=1), *came(3, "#b")])
        await store.append(came(1, hours=5))  # a repeat
        await store.append(came(4, hours=2))
    rows = table(path)
    at = [f"2026-03-04T0{hour}:06:07.000000+00:00" for hour in (5, 7)]
    assert rows == [("irc.test.room", 4, at[0], at[1])]
    assert await rebuild(located(path)) == []
    assert table(path) == rows
