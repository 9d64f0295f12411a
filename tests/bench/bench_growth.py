"""A store with a million messages: `python tests/bench/bench_growth.py [--messages N] [--seed N]`.

Each message is judged; each fiftieth is answered. Then: what a line takes, how long a start and a
turn's reads take.
"""

import argparse
import asyncio
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.core.clock import SystemClock
from gateway.core.events import (
    Address,
    ChannelName,
    Message,
    MessageId,
    RoomId,
    Sender,
    SenderId,
    Usage,
)
from gateway.core.facts import URGENT, Judgement, Seq, TurnId, TurnRecord, dedup_key, dump_fact
from gateway.store import NewEntry, Store

WORDS = [
    "the",
    "build",
    "is",
    "green",
    "again",
    "but",
    "the",
    "cache",
    "test",
    "fails",
    "on",
    "every",
    "second",
    "run",
    "could",
    "somebody",
    "have",
    "a",
    "look",
]
BATCH = 500
DAYS = 800


def message(number: int, at: datetime, roll: random.Random) -> list[NewEntry]:
    place = Address(channel=ChannelName("irc.bench"), room=RoomId(f"#room{roll.randrange(50)}"))
    person = f"user{roll.randrange(500)}"
    addressed = number % 50 == 0
    fact = Message(
        id=MessageId(str(number)),
        at=place,
        sender=Sender(id=SenderId(person), name=person),
        text=" ".join(roll.choices(WORDS, k=12)) + f" {number}",
        sent=at,
        kind="mention" if addressed else "room",
    )
    said = NewEntry(fact=fact, at=at, conversation=place.conversation, key=dedup_key(fact))
    judgement = Judgement(
        type=f"irc.bench.{fact.kind}.{place.room}",
        urgency=URGENT if addressed else 0,
        fate="due" if addressed else "context",
        rule="default",
        role="guest",
    )
    return [said, NewEntry(fact=judgement, at=at, conversation=place.conversation, cause=said)]


def answer(to: NewEntry, seq: Seq) -> NewEntry:
    turn = TurnRecord(
        turn=TurnId(f"t{seq}"),
        covers=(seq,),
        omitted=0,
        heard=str(getattr(to.fact, "text", "")),
        upto=seq,
        outcome="replied",
        text="yes, that is the third time this week",
        reason="",
        model="m",
        usage=Usage(input_tokens=900, output_tokens=20),
        requests=1,
        autonomous=False,
    )
    return NewEntry(fact=turn, at=to.at, conversation=to.conversation, key=f"turn:t{seq}")


def _batches(count: int, roll: random.Random) -> Iterator[list[NewEntry]]:
    begin = datetime.now(UTC) - timedelta(days=DAYS)
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        yield [
            one
            for n in numbers
            for one in message(n, begin + timedelta(days=DAYS) * (n / count), roll)
        ]


def _rows(count: int) -> Iterator[tuple[int, str, str, str, str | None, int | None, str]]:
    roll, begin = random.Random(1), datetime.now(UTC) - timedelta(days=DAYS)
    for number in range(count // 2):
        at = begin + timedelta(seconds=number)
        said, judged = message(number, at, roll)
        told, place, seq = (
            at.isoformat(timespec="microseconds"),
            str(said.conversation),
            2 * number + 1,
        )
        yield seq, told, said.fact.kind, place, said.key, None, dump_fact(said.fact)
        yield seq + 1, told, "judged", place, None, seq, dump_fact(judged.fact)


async def fill(path: Path, count: int) -> None:
    """Make a log of `count` entries, written past the store for speed."""
    await (await Store.open(path, SystemClock())).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", _rows(count))
        connection.execute("INSERT INTO search (search) VALUES ('rebuild')")
        connection.execute(
            "INSERT INTO unread SELECT cause, conversation, ? FROM log WHERE kind = 'judged' "
            "ORDER BY seq DESC LIMIT 5000",
            (URGENT,),
        )


async def build(path: Path, count: int, seed: int) -> float:
    """Append all of it, and return the seconds."""
    begun_s = time.perf_counter()
    async with await Store.open(path, SystemClock()) as store:
        for batch in _batches(count, random.Random(seed)):
            results = await store.append(batch)
            asked = [
                (e, r.seq) for e, r in zip(batch, results, strict=True) if e.fact.kind == "mention"
            ]
            await store.append([answer(e, seq) for e, seq in asked])
    return time.perf_counter() - begun_s


def sizes(path: Path) -> tuple[int, list[tuple[str, int]]]:
    """Bytes of the file, and of its largest tables and indexes."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        found = connection.execute(
            "SELECT name, sum(pgsize) FROM dbstat GROUP BY 1 ORDER BY 2 DESC LIMIT 12"
        )
        return path.stat().st_size, found.fetchall()


def tell(name: str, value: str) -> None:
    print(f"{name:44} {value}", flush=True)


async def measure(path: Path, count: int, seed: int) -> None:
    tell("build", f"{await build(path, count, seed):.0f} s")
    whole, tables = sizes(path)
    tell("store", f"{whole / 1e6:.0f} MB, {whole / count:.0f} bytes a message")
    for name, size in tables:
        tell(f"  {name}", f"{size / count:.0f} bytes a message")
    begun_s = time.perf_counter()
    async with await Store.open(path, SystemClock()) as store:
        tell("start: open", f"{(time.perf_counter() - begun_s) * 1e3:.0f} ms")
        begun_s = time.perf_counter()
        await store.undelivered_posts()
        places = [place for place, _ in await store.due_conversations(URGENT)]
        tell(
            "start: what is due",
            f"{(time.perf_counter() - begun_s) * 1e3:.1f} ms, {len(places)} conversations",
        )
        reads = []
        for room in range(20):
            place = Address(
                channel=ChannelName("irc.bench"), room=RoomId(f"#room{room}")
            ).conversation
            begun_s = time.perf_counter()
            await store.unread_entries(place, most=50)
            await store.newest_entries(1, kinds=["turn_ended"], conversation=place)
            reads.append((time.perf_counter() - begun_s) * 1e3)
        tell("turn: unread lines, median", f"{statistics.median(reads):.1f} ms")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        asyncio.run(measure(Path(folder) / "reverie.db", options.messages, options.seed))


if __name__ == "__main__":
    main()
