"""How long a start takes until the first view is there: `python tests/bench/bench_restore.py [--json]`.

A conversation with so many turns in its past, of which the newest are in view behind a fold, as the next process finds
it: the store is opened, what the networks remember is read, and the view is made of what is in it.
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

from gateway.context.history import HistoryStore
from gateway.core.clock import SystemClock
from gateway.core.events import Address, ChannelName, RoomId, ToolCallRecord, TurnStep, Usage
from gateway.core.facts import FACT, ConversationRewound, Seq, TurnId, TurnRecord, ViewFolded
from gateway.runtime.dmn_admin import load_dmn_states
from gateway.store import Store
from gateway.stream.media import MediaStore
from tests.kits.settings import live_settings

START = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = Address(channel=ChannelName("irc.bench"), room=RoomId("#room")).conversation
IN_VIEW = 60
HEARD = "[2026-01-01 09:00] ann (guest): the build is green again but the cache test fails on every second run\n" * 2
Row = tuple[int, str, str, str, str | None, int | None, str]


def _turn(number: int) -> TurnRecord:
    call = ToolCallRecord(
        id=f"c{number}", name="recall", arguments='{"query":"cache"}', result="a line of what was found\n" * 20
    )
    return TurnRecord(
        turn=TurnId(f"t{number}"),
        covers=(),
        omitted=0,
        heard=HEARD,
        upto=Seq(0),
        outcome="replied",
        text="It fails because the clock is not the one that the cache looks at. " * 3,
        reason="",
        model="m",
        usage=Usage(),
        requests=2,
        autonomous=False,
        steps=(TurnStep(text="", calls=(call,)),),
    )


def _rows(turns: int) -> Iterator[Row]:
    """Every tenth turn was taken back."""
    for number in range(1, turns + 1):
        at = (START + timedelta(seconds=number)).isoformat(timespec="microseconds")
        yield 2 * number, at, "turn_ended", PLACE, None, None, FACT.dump_json(_turn(number)).decode()
        if number % 10 == 0:
            back = ConversationRewound(first=Seq(2 * number), last=Seq(2 * number), by="bench")
            yield 2 * number + 1, at, "rewound", PLACE, None, None, FACT.dump_json(back).decode()


async def fill(path: Path, turns: int) -> None:
    """A log with so many turns, written past the store for speed."""
    await (await Store.open(path, SystemClock())).close()
    start, seq = 2 * (turns - IN_VIEW) + 2, 2 * turns + 2
    fold = ViewFolded(
        start=Seq(start), reason="", head="What was before.", summed=Seq(start + 20), trimmed=Seq(seq - 20)
    )
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    with connection:
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", _rows(turns))
        row = (
            seq,
            START.isoformat(timespec="microseconds"),
            "folded",
            PLACE,
            None,
            None,
            FACT.dump_json(fold).decode(),
        )
        connection.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        connection.execute("INSERT INTO view (conversation, start, fold) VALUES (?, ?, ?)", (PLACE, start, seq))
        connection.execute("INSERT INTO view_cut SELECT conversation, seq - 1, seq - 1 FROM log WHERE kind = 'rewound'")
    connection.close()


async def start(path: Path) -> tuple[float, float]:
    """Milliseconds until the store is open and the networks are restored, and from there until the view is there."""
    began, clock = time.perf_counter(), SystemClock()
    async with await Store.open(path, clock) as store:
        await load_dmn_states(store, ["reverie"], clock.now())
        await store.due_conversations(1)
        opened = time.perf_counter()
        view = await HistoryStore(store, clock, MediaStore(live_settings(), path.parent / "media", {}, clock)).view(
            PLACE
        )
        assert len(view.turns) == IN_VIEW - IN_VIEW // 10
        assert view.digest
        return (opened - began) * 1_000, (time.perf_counter() - opened) * 1_000


def measured(folder: Path, turns: int, rounds: int) -> tuple[float, float]:
    """Medians of both."""
    path = folder / f"{turns}.db"
    asyncio.run(fill(path, turns))
    taken = [asyncio.run(start(path)) for _ in range(rounds + 1)][1:]
    return statistics.median(one for one, _ in taken), statistics.median(one for _, one in taken)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, nargs="*", default=[1_000, 100_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        for turns in options.turns:
            opened, view = measured(Path(folder), turns, options.rounds)
            figures[f"start_with_{turns}_turns_ms"] = round(opened, 2)
            figures[f"first_view_with_{turns}_turns_ms"] = round(view, 2)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:36} {value}")


if __name__ == "__main__":
    main()
