"""The log in PostgreSQL in parts: parts are begun in time, leave at once, and make no read slow."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.core.facts import Seq
from gateway.store import AppendResult, LogRow, ServerStore, Store, queries, rebuild
from gateway.store.archive import archive_directory, list_archives, read_rows
from gateway.store.postgres_log import PostgresLog
from gateway.store.retention import begin_parts
from gateway.store.schema import migrations
from tests.gateway.store.test_retention import (
    KEEP,
    LATER,
    ROOT,
    A,
    B,
    _line,
    _same,
    looked_at,
    opened,
    pruned,
    tables,
    whole,
)
from tests.gateway.store.test_sharing import connect, processes
from tests.kits.store import NOW, heard, located, look_into, turn

pytestmark = pytest.mark.postgresql
PER_DAY = 10
PART = 30 * 2 * PER_DAY


async def talked(store: Store, days: int) -> None:
    """Lines of two rooms, day by day from `NOW` on, in parts of 30 days, with a turn for each room on each day.

    `LATER` is 500 days after `NOW`, and what is older than 400 days leaves.
    """
    await begin_parts(store, NOW, least=PART)
    for day in range(days):
        at = NOW + timedelta(days=day)
        lines = [_line(day * PER_DAY + number, "#a" if number % 2 else "#b", at) for number in range(PER_DAY)]
        await store.append([entry for line in lines for entry in line])
        await store.append([replace(turn(room, upto=store.last), at=at) for room in (A, B)])
        if day % 10 == 0:
            await begin_parts(store, at, least=PART)


def parts(path: Path) -> list[tuple[int, int, int | None]]:
    with closing(look_into(path)) as connection:
        return connection.fetch("SELECT number, first, until FROM part ORDER BY first")


def tables_of_parts(path: Path) -> list[str]:
    with closing(look_into(path)) as connection:
        return sorted(
            name
            for (name,) in connection.fetch(
                "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relname ~ '^(log|search)_[0-9]+$' "
                "AND relnamespace = current_schema()::regnamespace"
            )
        )


def size(path: Path, table: str) -> int:
    with closing(look_into(path)) as connection:
        ((found,),) = connection.fetch("SELECT pg_table_size(to_regclass($1))::bigint", (table,))
        return cast("int", found)


def is_whole(path: Path) -> bool:
    """Whether there is a part for each position, with its words, and no other table of a part."""
    found = parts(path)
    firsts, ends = [first for _, first, _ in found], [until for _, _, until in found]
    names = sorted(f"{table}_{number}" for number, _, _ in found for table in ("log", "search"))
    return firsts[0] == 1 and ends == [*firsts[1:], None] and names == tables_of_parts(path)


async def test_a_part_leaves_when_all_of_it_is_old_and_its_space_is_free_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with await opened(path) as store:
        await talked(store, 240)
        rows, before = await whole(store), await looked_at(store)
        old = parts(path)
        assert len(old) > 6
        kept, before_bytes = tables(path), size(path, f"log_{old[0][0]}")
        assert await pruned(store, KEEP | {"room": 1e10}) == 0, "judgements stay with messages"
        moved = await pruned(store)
        left = {row[0] for row in await store.entry_rows(limit=100_000)}
        assert moved == len(rows) - len(left)
        assert {row[0] for row in rows if row[1] > (LATER - timedelta(days=400)).isoformat()} <= left
        whole_parts = [
            (number, until) for number, _, until in old if until and rows[min(until, len(rows)) - 2][1] < "2026-06-12"
        ]
        assert len(whole_parts) >= 2
        assert not {f"log_{number}" for number, _ in whole_parts} & set(tables_of_parts(path))
        end = whole_parts[-1][1]
        assert not {row[0] for row in rows if row[2] == "room" and row[0] < end} & left
        assert {row[0] for row in rows if row[0] >= end} <= left, "of the part in which the age ends nothing leaves"
        assert size(path, f"log_{parts(path)[0][0]}") < before_bytes / 2, "turns in view stay"
        assert is_whole(path)
        assert (tables(path), await looked_at(store)) == (kept, before)
        assert _same(await whole(store), rows)
        assert (await store.append(_line(3)))[0] == AppendResult(Seq(rows[6][0]), is_new=False), "for good"
        assert await pruned(store) == 0
        assert len(await store.entries(match="garden")) > 0
    assert await rebuild(located(path)) == []


async def test_what_stays_of_a_part_stays_and_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with await opened(path) as store:
        await begin_parts(store, NOW, least=PART)
        await store.append(_line(100_000, "#c", NOW, urgency=3))
        await talked(store, 150)
        before, rows = await looked_at(store), await whole(store)
        assert await pruned(store) > PART
        assert [row[0] for row in await store.entry_rows(limit=2)] == [1, 2]
        assert [one.seq for one in await store.entries(match='"line 100000"')] == [1]
        assert await looked_at(store) == before
        assert _same(await whole(store), rows)
        with closing(look_into(path)) as connection:
            for table in ("log", f"log_{parts(path)[0][0]}"):
                with pytest.raises(Exception, match="append-only"):
                    connection.write(f"DELETE FROM {table}")
    assert await rebuild(located(path)) == []


async def test_a_long_part_and_one_that_stays_in_use_are_left_by_steps(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with await opened(path) as store:
        await begin_parts(store, NOW, least=10 * PART)
        await talked(store, 150)
        found = parts(path)
        rows = await whole(store)
        moved = await pruned(store)
        assert parts(path) == found
        assert moved > 0
        stays = {row[0] for row in await store.entry_rows(limit=100_000)}
        gone = [row for row in rows if row[0] not in stays]
        assert max(row[1] for row in gone) > "2026-06-11", "up to the age to the day"
    assert await rebuild(located(path)) == []


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.store import ServerStore, Store
from gateway.store import retention
from tests.gateway.store.test_retention import LATER, Now, pruned

path = Path(sys.argv[1])
steps = iter(range(int(sys.argv[2])))
retention.PART_STEP_ROWS = 400

def die():
    if next(steps, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with await Store.open(ServerStore(sys.argv[3], path), Now(LATER)) as store:
        await pruned(store, after_archive=die)

asyncio.run(main())
"""


@pytest.mark.parametrize("step", range(6))
async def test_a_kill_at_any_point_loses_and_repeats_nothing(tmp_path: Path, step: int) -> None:
    """Two steps of archives, the copy and the replacement of a part; then the next part."""
    path = tmp_path / "s.db"
    async with await opened(path) as store:
        await talked(store, 150)
        rows = await whole(store)
    store_ = located(path)
    assert isinstance(store_, ServerStore)
    command = [sys.executable, "-c", KILLED, str(path), str(step), store_.url]
    child = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=False)
    assert child.returncode == -signal.SIGKILL
    async with await opened(path) as store:
        assert _same(await whole(store), rows), "read while both have it"
        await pruned(store)
        assert is_whole(path)
        assert _same(await whole(store), rows)
        archived = [row[0] for one in list_archives(archive_directory(path)) for row in read_rows(one.path)]
        stored = [row[0] for row in await store.entry_rows(limit=100_000)]
        assert sorted([*archived, *stored]) == [row[0] for row in rows], "each once"
    assert await rebuild(located(path)) == []


async def test_a_part_is_replaced_when_who_reads_the_old_one_has_ended(tmp_path: Path) -> None:
    """To a snapshot from before the copy the new part would look empty; and nobody waits for the end of a backup."""
    path = tmp_path / "s.db"
    async with await opened(path) as store:
        await talked(store, 150)
        rows = await whole(store)
        with closing(look_into(path)) as reading:
            reading.begin_snapshot()
            reading.write("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            ((unread,),) = reading.fetch("SELECT count(*) FROM unread")
            assert unread == 0
            leaving = asyncio.create_task(pruned(store))
            for number in range(20):
                assert (await store.append(_line(50_000 + number, at=LATER)))[0].is_new
            assert not leaving.done()
            ((count,),) = reading.fetch("SELECT count(*) FROM log")
            assert count == len(rows), "one snapshot"
            reading.commit()
        assert await leaving > PART
        assert len(await whole(store)) == len(rows) + 40


async def test_parts_are_begun_before_they_are_needed_and_also_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with await opened(path) as store:
        assert [until for _, _, until in parts(path)] == [None], "a new log has its reserve"
        assert await begin_parts(store, NOW, least=100)
        assert not await begin_parts(store, NOW, least=100)
        assert [until for _, _, until in parts(path)] == [101, None]
        for number in range(26):
            await store.append(heard(number))
        assert await begin_parts(store, NOW - timedelta(days=9), least=10)
        assert [until for _, _, until in parts(path)] == [101, 153, None], "at the pace of the last days"
        for number in range(100, 400):
            await store.append(heard(number))
        assert await begin_parts(store, NOW + timedelta(days=50), least=10)
        assert [until for _, _, until in parts(path)] == [101, 153, 653, 663, None]
        assert is_whole(path)
        assert len(await store.entry_rows(limit=1_000)) == store.last == 652
    assert await rebuild(located(path)) == []


async def test_a_key_is_written_once_in_all_parts_whoever_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with processes(path, 3) as found:
        store = found[0].store
        await begin_parts(store, NOW, least=10)
        for number in range(4):
            appends = [
                one.store.append(heard(100 * number + key)) for key in range(12) for one in found for _ in range(2)
            ]
            begun = asyncio.create_task(begin_parts(store, NOW + timedelta(days=99), least=10))
            results = await asyncio.gather(*appends)
            assert sum(result[0].is_new for result in results) == 12
            await begun
            again = await asyncio.gather(*[one.store.append(heard(100 * number)) for one in found])
            assert not any(result[0].is_new for result in again)
        assert len(parts(path)) > 4
        first = await asyncio.gather(*[one.store.append(heard(0)) for one in found])
        assert [result[0].is_new for result in first] == [False] * 3, "it is in the oldest part"
        keys = [row[4] for row in await store.entry_rows(limit=1_000) if row[4] is not None]
        assert len(keys) == len(set(keys)) == 48
        assert [row[0] for row in await store.entry_rows(limit=1_000)] == [*range(1, 97)]
    assert await rebuild(located(path)) == []


async def test_a_log_from_before_becomes_the_first_part(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with await opened(path) as store:
        await talked(store, 20)
        rows = await whole(store)
    with closing(connect(located(path))) as old:
        old_schema(old, rows)
    async with await opened(path) as store:
        assert _same(await whole(store), rows)
        assert [first for _, first, _ in parts(path)] == [1, 10_001]
        assert (await store.append(_line(3)))[0] == AppendResult(Seq(7), is_new=False)
        assert (await store.append(_line(99_999)))[0].is_new
        assert len(await store.entries(match='"line 7"')) == 1
        assert is_whole(path)
    assert [one.table for one in await rebuild(located(path))] != ["log"]
    assert await rebuild(located(path)) == []


def old_schema(connection: PostgresLog, rows: list[LogRow]) -> None:
    """Make the tables as they were before the log had parts, with these rows."""
    connection.write(f"DROP SCHEMA {connection.schema} CASCADE")
    connection.migrate([one for one in migrations("migrations/postgresql") if one[0] < 14])
    connection.write(f"INSERT INTO log ({queries.COLUMNS}) VALUES {{}}", rows)
    connection.write("INSERT INTO search (rowid, text) SELECT seq, text FROM said")


HOT: dict[str, tuple[str, tuple[Any, ...], int]] = {
    "unread": (queries.UNREAD_ENTRIES, (A, 50, 0), 3),
    "view": (queries.TURNS_IN_VIEW, (A,), 3),
    "newest turns": (queries.NEWEST_TURNS, (A, queries.LAST, 20), 2),
    "by key": (queries.ENTRY_BY_KEY, ("message:irc.test/#a:77",), 1),
    "by position": (queries.ENTRY, (77,), 1),
    "caused by": (queries.CAUSED_BY, (77,), 1),
    "changes": (queries.MESSAGE_CHANGES, (A, 0, 20), 0),
    "newest posts": (queries.NEWEST_POSTS, (A, 20), 0),
    "newest of a room": (
        f"SELECT {queries.COLUMNS} FROM log WHERE conversation = $1 ORDER BY seq DESC LIMIT 50",
        (A,),
        2,
    ),
    "last position": ("SELECT max(seq) FROM log", (), 1),
    "news": (f"SELECT {queries.COLUMNS} FROM log WHERE seq > $1 ORDER BY seq", (15_000,), 2),
}


async def test_no_hot_query_reads_the_rows_of_all_parts(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with await opened(path) as store:
        await talked(store, 720)
        await store.append([entry for number in range(60) for entry in _line(90_000 + number, at=LATER, urgency=2)])
        assert len(parts(path)) >= 24
    with closing(connect(located(path))) as connection:
        connection.write("INSERT INTO view (conversation, start) SELECT $1, max(seq) - 500 FROM log", [(A,)])
        connection._open().execute("VACUUM ANALYZE log, search")
        wrong = list[str]()
        for name, (query, params, most) in HOT.items():
            for mode in ("force_generic_plan", "force_custom_plan"):
                connection.write(f"SET plan_cache_mode = {mode}")
                read = read_parts(connection, query, params)
                if len(read) > most:
                    wrong.append(f"{name}, {mode}: {sorted(read)}")
    assert wrong == []


def read_parts(connection: PostgresLog, query: str, params: tuple[Any, ...]) -> set[str]:
    """The parts of which a query reads rows."""
    server = connection._open()
    server.execute(f"PREPARE asked AS {query}", prepare=False)
    given = ", ".join(str(one) if isinstance(one, int) else f"'{one}'" for one in params)
    execute = f"EXECUTE asked ({given})" if params else "EXECUTE asked"
    (row,) = server.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {execute}", prepare=False).fetchall()
    server.execute("DEALLOCATE asked")
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    found = set[str]()
    for node in nodes(plan[0]["Plan"]):
        table = node.get("Relation Name", "")
        if table.startswith("log_"):
            touched = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            if node["Actual Loops"] and touched:
                found.add(table)
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)
