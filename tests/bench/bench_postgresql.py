"""The store in PostgreSQL beside the one in a file: `python tests/bench/bench_postgresql.py`.

Both wait for the same disk at each commit. The drivers are measured below the store: groups of 500 rows in one
transaction, single rows, and reads of 50 rows; asyncpg only where it is installed. Then reads from a log in one part
and in 24 (about a month each), and how long appends wait while a part is replaced.
"""

import asyncio
import importlib
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg

from gateway.core.clock import ManualClock, SystemClock
from gateway.core.facts import PRUNABLE_KINDS, Judgement
from gateway.store import NewEntry, ServerStore, Store, StoreLocation
from gateway.store.retention import begin_parts, prune_store
from tests.bench.bench_store import START, ingest, latency, notification
from tests.kits.store import turn
from tests.servers.real_postgresql import PostgresServer

GROUP = 500
GROUPS = 40
READS = 500
TABLE = (
    "CREATE TABLE one (seq bigint PRIMARY KEY, at text, kind text, conversation text, key text UNIQUE, cause bigint, "
    "body text)"
)
INSERT = "INSERT INTO one VALUES ($1, $2, $3, $4, $5, $6, $7)"
READ = "SELECT * FROM one WHERE seq > $1 ORDER BY seq LIMIT 50"
Row = tuple[int, str, str, str, str, int | None, str]


def rows(first: int, count: int) -> list[Row]:
    at, body = "2026-03-04T05:06:07.000000+00:00", f'{{"text":"{"x" * 300}"}}'
    return [(seq, at, "room", "irc.x/#a", f"message:irc.x/#a:{seq}", None, body) for seq in range(first, first + count)]


async def measure(
    write: Callable[[list[Row]], Awaitable[object]], read: Callable[[int], Awaitable[object]]
) -> tuple[float, float, float]:
    """Rows per second in groups, milliseconds of a commit of one row, and of a read."""
    began = time.perf_counter()
    for number in range(GROUPS):
        await write(rows(1 + number * GROUP, GROUP))
    per_second = GROUP * GROUPS / (time.perf_counter() - began)
    singles, reads = list[float](), list[float]()
    for number in range(READS):
        one = rows(10_000_000 + number, 1)
        began = time.perf_counter()
        await write(one)
        singles.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        await read(number)
        reads.append((time.perf_counter() - began) * 1000)
    return per_second, statistics.median(singles), statistics.median(reads)


async def with_psycopg(url: str) -> tuple[float, float, float]:
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor, prepare_threshold=1) as connection:
        connection.execute(f"CREATE SCHEMA psycopg; {TABLE}")

        def write(many: list[Row]) -> None:
            values = ", ".join(
                f"({', '.join(f'${7 * row + column}' for column in range(1, 8))})" for row in range(len(many))
            )
            with connection.pipeline():
                connection.execute("BEGIN")
                connection.execute(f"INSERT INTO one VALUES {values}", [value for row in many for value in row])
                connection.execute("COMMIT")

        def read(after: int) -> None:
            connection.execute(READ, (after,)).fetchall()

        return await measure(lambda many: asyncio.to_thread(write, many), lambda after: asyncio.to_thread(read, after))


async def with_asyncpg(url: str) -> tuple[float, float, float]:
    connection = await importlib.import_module("asyncpg").connect(url)
    try:
        await connection.execute(f"CREATE SCHEMA asyncpg; {TABLE}")

        async def write(many: list[Row]) -> None:
            async with connection.transaction():
                await connection.executemany(INSERT, many)

        return await measure(write, lambda after: connection.fetch(READ, after))
    finally:
        await connection.close()


async def reads(location: StoreLocation) -> dict[str, float]:
    """Milliseconds of queries that a turn makes, and of a search, over 20,000 entries."""
    place = notification(1)[0].conversation
    assert place is not None
    async with await Store.open(location, SystemClock()) as store:
        for start in range(0, 10_000, 500):
            await store.append([entry for number in range(start, start + 500) for entry in notification(number)])
        queries: dict[str, Callable[[], Awaitable[object]]] = {
            "unread of a room": lambda: store.unread_entries(place, most=50),
            "view of a room": lambda: store.view_entries(place),
            "newest 50 entries": lambda: store.newest_entries(50),
            "uses of four words": lambda: store.find_word_uses(
                ["cache", "9876", "look", "x"], newest=50, notes_after=0
            ),
            "all words of a search": lambda: store.newest_entries(20, match='"cache" "9876"'),
        }
        found = {}
        for name, query in queries.items():
            taken = list[float]()
            for _ in range(200):
                began = time.perf_counter()
                await query()
                taken.append((time.perf_counter() - began) * 1000)
            found[name] = statistics.median(taken)
    return found


async def fill(store: Store, entries: int, *, days: float, parts: int) -> None:
    """Messages of 50 rooms with their judgements, some turns, and urgent unread messages, in so many parts."""
    many = entries // 2
    for start in range(0, many, 500):
        batch = list[NewEntry]()
        for number in range(start, min(start + 500, many)):
            message, judged = notification(number)
            assert isinstance(judged.fact, Judgement)
            fact = replace(judged.fact, urgency=2 if number % 5_000 < 50 else 0)
            message = replace(message, at=START + timedelta(days=days * number / many))
            batch += [message, replace(judged, at=message.at, cause=message, fact=fact)]
        await store.append(batch)
        if parts > 1:
            await begin_parts(store, batch[-1].at, least=entries // parts)
        if start % 2_500 == 0:
            places = {one.conversation for one in batch if one.conversation is not None}
            turns = [turn(place, upto=max(1, store.last - 2_000)) for place in places]
            await store.append([replace(one, at=START + timedelta(days=days * start / many)) for one in turns])


async def part_reads(location: StoreLocation, parts: int) -> dict[str, float]:
    """Milliseconds of reads from 200,000 entries of two years."""
    async with await Store.open(location, SystemClock()) as store:
        await fill(store, 200_000, days=730, parts=parts)
        place = notification(1)[0].conversation
        assert place is not None
        with psycopg.connect(str(getattr(location, "url", "")), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        keys = [notification(number)[0].key for number in range(1, 100_000, 501)]
        queries: dict[str, Callable[[int], Awaitable[object]]] = {
            "unread of a room": lambda _: store.unread_entries(place, most=50),
            "view of a room": lambda _: store.view_entries(place),
            "newest 50 of a room": lambda _: store.newest_entries(50, conversation=place),
            "an entry by its key": lambda number: store.entry_by_key(keys[number % len(keys)] or ""),
            "an entry by its position": lambda number: store.entry(1 + number * 997),
            "all words of a search": lambda _: store.newest_entries(20, match='"cache" "9876"'),
        }
        return {name: await milliseconds(query) for name, query in queries.items()}


async def milliseconds(query: Callable[[int], Awaitable[object]]) -> float:
    taken = list[float]()
    for number in range(200):
        began = time.perf_counter()
        await query(number)
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


async def replaced(location: StoreLocation) -> str:
    """A part of 300,000 entries leaves while messages come."""
    async with await Store.open(location, SystemClock()) as store:
        await fill(store, 300_000, days=30, parts=1)
        await begin_parts(store, START)
        clock = ManualClock(START + timedelta(days=100))
        taken = list[float]()
        leaving = asyncio.create_task(
            prune_store(store, dict.fromkeys(PRUNABLE_KINDS, 86_400.0 * 35), Flowing(clock.now()))
        )
        number, began_s = 40_000_000, time.perf_counter()
        while not leaving.done():
            began = time.perf_counter()
            await store.append(notification(number := number + 1))
            taken.append((time.perf_counter() - began) * 1000)
        report, whole_s = await leaving, time.perf_counter() - began_s
    taken.sort()
    return (
        f"{report.entries:,} entries left a part in {whole_s:.0f} s; an append meanwhile "
        f"{statistics.median(taken):.1f} ms, p99 {taken[len(taken) * 99 // 100]:.1f} ms, longest {taken[-1]:.0f} ms; "
        f"the part was replaced in {report.longest_s * 1000:.0f} ms"
    )


class Flowing(ManualClock):
    """A clock that stands, and pauses as long as the real one."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, PostgresServer(is_durable=True) as server:
        drivers = {"psycopg": with_psycopg}
        if importlib.util.find_spec("asyncpg") is not None:
            drivers["asyncpg"] = with_asyncpg
        for name, driver in drivers.items():
            per_second, single, read = await driver(server.url(name))
            print(
                f"{name}: {per_second:,.0f} rows/s in groups of {GROUP}, one row {single:.2f} ms, a read {read:.2f} ms"
            )
        for number in range(3):
            engines: dict[str, StoreLocation] = {
                "a file": Path(folder, f"{number}.db"),
                "PostgreSQL": ServerStore(server.url(f"bench{number}"), Path(folder, f"{number}.server")),
            }
            for name, location in engines.items():
                if number == 2:
                    told = ", ".join(f"{query} {ms:.2f} ms" for query, ms in (await reads(location)).items())
                elif number == 1:
                    taken = await latency(location, rounds=500)
                    told = f"an append alone {taken[250]:.2f} ms (p99 {taken[495]:.2f} ms)"
                else:
                    rate, group = await ingest(location, callers=500, seconds=5, busy=False)
                    told = f"{2 * rate:,.0f} entries/s from 500 callers, {group:,.0f} in a commit"
                print(f"{name}: {told}")
        for parts in (1, 24):
            found = await part_reads(ServerStore(server.url(f"parts{parts}"), Path(folder, f"parts{parts}")), parts)
            print(f"{parts} parts: {', '.join(f'{query} {ms:.2f} ms' for query, ms in found.items())}")
        print(await replaced(ServerStore(server.url("replaced"), Path(folder, "replaced"))))


if __name__ == "__main__":
    asyncio.run(main())
