"""Derived tables: a rebuild gives the same, and repairs changed ones."""

import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.events import PostKey, RequestUsage
from gateway.core.facts import (
    ConversationRewound,
    DmnStateSaved,
    Fact,
    Judgement,
    PartSendEnded,
    PartSendStarted,
    PostQueued,
    Seq,
    TurnRecord,
    ViewFolded,
)
from gateway.store import NewEntry, StoreUnreadable, TableDifference, rebuild
from gateway.store.projections import (
    COUNT_TYPES,
    PROJECTED_TABLES,
    SEARCHABLE_KINDS,
    Statement,
    TypeSighting,
    group_statements,
    merge_sightings,
    project_fact,
)
from tests.kits import strategies
from tests.kits.examples import examples
from tests.kits.store import NOW, delivered, heard, opened, place, post, run, turn

A = place("#a").conversation
_places = st.sampled_from([place("#a").conversation, place("#b").conversation])
_keys = st.sampled_from([PostKey("p"), PostKey("q")])
_near = st.integers(1, 12).map(Seq)
_small = st.integers(0, 2)
_models = st.sampled_from(["a", "b"])

close_facts: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Judgement, urgency=st.sampled_from([0, 1, 2, 3])),
    st.builds(TurnRecord, covers=st.just(()), omitted=_small, upto=_near, usage=strategies.usages, requests=_small),
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
    st.builds(ConversationRewound, first=_near, last=_near, again=st.lists(_near, max_size=2).map(tuple)),
    strategies.locks,
    strategies.folds,
    st.builds(PostQueued, post=_keys.map(post)),
    st.builds(PartSendStarted, post=_keys, part=_small, bodies=st.sampled_from([None, ("a", "b"), ("x", "y", "z")])),
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
def test_rebuilding_what_the_writer_made_finds_no_difference(given_batches: list[list[NewEntry]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"

        async def story() -> list[TableDifference]:
            async with await opened(path) as store:
                for batch in given_batches:
                    await store.append(batch)
                before = [
                    await store.undelivered_posts(),
                    await store.due_conversations(0),
                    await store.connection_states(),
                ]
            differences = await rebuild(path)
            async with await opened(path) as store:
                assert [
                    await store.undelivered_posts(),
                    await store.due_conversations(0),
                    await store.connection_states(),
                ] == before
            return differences

        assert run(story()) == []


@given(st.lists(entries, max_size=30))
def test_statements_keep_their_order_within_a_table(some: list[NewEntry]) -> None:
    flat = [
        statement
        for seq, entry in enumerate(some, 1)
        for statement in project_fact(Seq(seq), "now", entry.conversation, Seq(1), entry.fact)
    ]
    regrouped: dict[str, list[tuple[str, object]]] = {table: [] for table in PROJECTED_TABLES}
    by_sql = {statement.sql: statement.table for statement in flat}
    for sql, rows in group_statements(flat):
        regrouped[by_sql[sql]] += [(sql, row) for row in rows]
    for table in PROJECTED_TABLES:
        expected = [(one.sql, one.params) for one in flat if one.table == table]
        if table == "notification_type" and expected:  # many types are one statement
            expected = [(COUNT_TYPES, (merge_sightings([TypeSighting._make(params) for _, params in expected]),))]
        assert regrouped[table] == expected


def test_grouping_joins_runs_and_only_runs() -> None:
    some = [Statement("a", "x", (1,)), Statement("b", "y", (2,)), Statement("a", "x", (3,)), Statement("a", "z", ())]
    assert list(group_statements(some)) == [("x", [(1,), (3,)]), ("z", [()]), ("y", [(2,)])]


async def _story(path: Path) -> None:
    async with await opened(path) as store:
        for number in range(3):
            await store.append(heard(number, f"number {number}"))
        await store.append([turn(A, 1)])
        await store.append(
            [
                NewEntry(fact=PostQueued(post=post("p")), at=NOW),
                NewEntry(fact=PartSendStarted(post=PostKey("p"), part=0, bodies=("a", "b")), at=NOW),
                NewEntry(fact=ViewFolded(start=Seq(7), reason="size"), at=NOW, conversation=A),
                NewEntry(fact=DmnStateSaved(state="resting"), at=NOW),
            ]
        )


def _tamper(path: Path, *sql: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for one in sql:
            connection.execute(one)
    connection.close()


def _dump(path: Path) -> list[list[object]]:
    connection = sqlite3.connect(path)
    tables = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in PROJECTED_TABLES]
    tables.append(connection.execute("SELECT rowid FROM search WHERE search MATCH 'number OR answer'").fetchall())
    connection.close()
    return tables


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM unread WHERE seq = 3", TableDifference(table="unread", missing=1, extra=0)),
        ("INSERT INTO unread VALUES (99, 'x/y', 3)", TableDifference(table="unread", missing=0, extra=1)),
        (
            "UPDATE outbox_part SET state = 'sent' WHERE part = 0",
            TableDifference(table="outbox_part", missing=1, extra=1),
        ),
        ("DELETE FROM outbox", TableDifference(table="outbox", missing=1, extra=0)),
        ("UPDATE view SET start = 1", TableDifference(table="view", missing=1, extra=1)),
        ("UPDATE view SET fresh = 1", TableDifference(table="view", missing=1, extra=1)),
        ("UPDATE dmn_state SET state = 'off'", TableDifference(table="dmn_state", missing=1, extra=1)),
        ("INSERT INTO cursor VALUES ('a', 'b')", TableDifference(table="cursor", missing=0, extra=1)),
        ("UPDATE spending SET read = read + 1", TableDifference(table="spending", missing=1, extra=1)),
        ("UPDATE notification_type SET count = 7", TableDifference(table="notification_type", missing=1, extra=1)),
        ("INSERT INTO link VALUES ('a', 1, '', '')", TableDifference(table="link", missing=0, extra=1)),
        ("INSERT INTO search (search) VALUES ('delete-all')", TableDifference(table="search", missing=4, extra=0)),
        ("INSERT INTO search (rowid, text) VALUES (2, 'number')", TableDifference(table="search", missing=0, extra=1)),
        (
            "INSERT INTO search (search, rowid, text) VALUES ('delete', 1, 'number 0')",
            TableDifference(table="search", missing=1, extra=0),
        ),
    ],
)
def test_a_tampered_table_is_reported_and_mended(tmp_path: Path, sql: str, expected: TableDifference) -> None:
    path = tmp_path / "s.db"
    run(_story(path))
    before = _dump(path)
    _tamper(path, sql)
    assert _dump(path) != before
    assert run(rebuild(path)) == [expected]
    assert _dump(path) == before
    assert run(rebuild(path)) == []


def test_words_changed_inside_the_index_are_found(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    run(_story(path))
    _tamper(
        path,
        "INSERT INTO search (search, rowid, text) VALUES ('delete', 1, 'number 0')",
        "INSERT INTO search (rowid, text) VALUES (1, 'something else')",
    )
    assert run(rebuild(path)) == [TableDifference(table="search", missing=0, extra=0)]
    assert run(rebuild(path)) == []


def test_progress_is_told_and_a_fact_that_is_none_stops_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    run(_story(path))
    told: list[tuple[int, int]] = []
    run(rebuild(path, progress=lambda done, whole: told.append((done, whole))))
    assert told == [(11, 11)]
    _tamper(path, "INSERT INTO log (seq, at, kind, body) VALUES (50, '2026-01-01T00:00:00+00:00', 'odd', '{}')")
    with pytest.raises(StoreUnreadable, match="entry 50"):
        run(rebuild(path))
    run(_open_again(path))


async def _open_again(path: Path) -> None:
    async with await opened(path) as store:
        assert len(await store.entry_rows()) == 12


def test_the_view_said_names_the_kinds_that_are_said(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    run(_story(path))
    connection = sqlite3.connect(path)
    (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'said'").fetchone()
    connection.close()
    assert {word.strip("(), ;'") for word in sql.partition(" IN ")[2].split(",")} == SEARCHABLE_KINDS
