"""What the store promises, measured: `python tests/bench/bench_store.py [--json]`.

A notification is a `Message` and its `Judgement`, appended by itself; many callers at once share
commits.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.core.clock import SystemClock
from gateway.core.events import Address, ChannelName, Message, MessageId, RoomId, Sender, SenderId
from gateway.core.facts import URGENT, Judgement, dedup_key, fact_adapter
from gateway.store import NewEntry, Store, StoreLocation

START = datetime(2026, 1, 1, tzinfo=UTC)
TEXT = (
    "the build is green again but the cache test fails on every second run could somebody have "
    "a look"
)
WORDS = TEXT.split()


def notification(number: int) -> list[NewEntry]:
    """One message and its judgement, as intake appends them."""
    at = Address(channel=ChannelName("irc.bench"), room=RoomId(f"#room{number % 50}"))
    text = " ".join(WORDS[(number * 7 + i) % len(WORDS)] for i in range(12)) + f" {number}"
    sender = Sender(id=SenderId(f"user{number % 500}"), name=f"user{number % 500}")
    fact = Message(
        id=MessageId(str(number)), at=at, sender=sender, text=text, sent=START, kind="room"
    )
    message = NewEntry(fact=fact, at=START, conversation=at.conversation, key=dedup_key(fact))
    judged = Judgement(
        type=f"irc.bench.room.{at.room}", urgency=0, fate="context", rule="default", role="guest"
    )
    return [message, NewEntry(fact=judged, at=START, conversation=at.conversation, cause=message)]


async def ingest(
    path: StoreLocation, *, callers: int, seconds: float, busy: bool
) -> tuple[float, float]:
    """Durable notifications per second, and entries per commit. `busy`: other work takes half of
    the event loop."""
    async with await Store.open(path, SystemClock()) as store:
        numbers = iter(range(10_000_000))
        done, stop = 0, time.perf_counter() + seconds

        async def caller() -> None:
            nonlocal done
            while time.perf_counter() < stop:
                await store.append(notification(next(numbers)))
                done += 1

        async def spin() -> None:
            while time.perf_counter() < stop:
                until = time.perf_counter() + 0.002
                while time.perf_counter() < until:
                    pass
                await asyncio.sleep(0.002)

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)), *([spin()] if busy else []))
        return done / (time.perf_counter() - began), 2 * done / store.commits


async def latency(path: StoreLocation, *, rounds: int) -> list[float]:
    """Milliseconds of appends that come one after another, sorted."""
    async with await Store.open(path, SystemClock()) as store:
        taken = []
        for number in range(rounds):
            entries = notification(20_000_000 + number)
            began = time.perf_counter()
            await store.append(entries)
            taken.append((time.perf_counter() - began) * 1000)
    return sorted(taken)


def _rows(count: int) -> Iterator[tuple[int, str, str, str, str | None, int | None, str]]:
    for number in range(count // 2):
        message, judged = notification(number)
        seq, at = (
            2 * number + 1,
            (START + timedelta(seconds=number)).isoformat(timespec="microseconds"),
        )
        place = str(message.conversation)
        yield (
            seq,
            at,
            "room",
            place,
            message.key,
            None,
            fact_adapter().dump_json(message.fact).decode(),
        )
        yield (
            seq + 1,
            at,
            "judged",
            place,
            None,
            seq,
            fact_adapter().dump_json(judged.fact).decode(),
        )


async def fill(path: Path, count: int) -> None:
    """A log of `count` entries, written past the store for speed."""
    await (await Store.open(path, SystemClock())).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    with connection:
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", _rows(count))
        connection.execute("INSERT INTO search (search) VALUES ('rebuild')")
        connection.execute(
            "INSERT INTO unread SELECT cause, conversation, ? FROM log WHERE kind = 'judged' "
            "ORDER BY seq DESC LIMIT 5000",
            (URGENT,),
        )
    connection.close()


async def opening(path: StoreLocation) -> tuple[float, float]:
    """Seconds to open, and seconds for what a start reads."""
    began = time.perf_counter()
    async with await Store.open(path, SystemClock()) as store:
        opened = time.perf_counter()
        await store.dmn_state("reverie")
        await store.undelivered_posts()
        for conversation, _ in await store.due_conversations(URGENT):
            await store.unread_entries(conversation, most=50)
            await store.view_entries(conversation)
        return opened - began, time.perf_counter() - opened


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        base = Path(folder)
        rate, grouped = asyncio.run(
            ingest(base / "a.db", callers=500, seconds=options.seconds, busy=False)
        )
        busy, _ = asyncio.run(
            ingest(base / "b.db", callers=500, seconds=options.seconds, busy=True)
        )
        alone = asyncio.run(latency(base / "c.db", rounds=1000))
        asyncio.run(fill(base / "d.db", options.entries))
        opened, read = asyncio.run(opening(base / "d.db"))
        late = asyncio.run(latency(base / "d.db", rounds=1000))
    figures = {
        "ingest_per_s": round(rate),
        "entries_per_commit": round(grouped),
        "ingest_busy_loop_per_s": round(busy),
        "append_p50_ms": round(statistics.median(alone), 2),
        "append_p99_ms": round(alone[int(len(alone) * 0.99)], 2),
        f"append_after_{options.entries}_p50_ms": round(statistics.median(late), 2),
        f"append_after_{options.entries}_p99_ms": round(late[int(len(late) * 0.99)], 2),
        f"open_with_{options.entries}_s": round(opened, 4),
        f"first_reads_with_{options.entries}_s": round(read, 4),
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
