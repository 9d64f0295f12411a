"""Write a store with the code of another checkout: `python write.py CHECKOUT schema-NN.db.gz`.

Run it once, before a migration is added, with a checkout of the last version that has the present schema; the file is
kept permanently. It holds generated facts, six of each kind at most, and posts in each state.
"""

import asyncio
import gzip
import importlib.util
import json
import os
import random
import sqlite3
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st


def facts() -> list[tuple[Any, Any]]:
    """Of each kind, with the conversation that it stands in."""
    kit, strategies = importlib.import_module("tests.kits.store"), importlib.import_module("tests.kits.strategies")
    found: dict[str, list[tuple[Any, Any]]] = {}

    @seed(7)
    @settings(
        max_examples=400, database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    @given(strategies.facts, st.sampled_from([None, kit.place("#a").conversation, kit.place("#b").conversation]))
    def collect(fact: Any, place: Any) -> None:
        # What no model costs, what no version ever wrote, and NUL, in which SQLite's own JSON ends a text.
        accounts = [one for one in getattr(fact, "accounts", ()) if (one.cost_usd or 0) > 10_000 or not spends()]
        if not accounts and "\0" not in getattr(fact, "model", ""):
            found.setdefault(f"{type(fact).__name__}.{fact.kind}", []).append((fact, place))

    collect()
    return [one for kind in sorted(found) for one in found[kind][:6]]


def spends() -> bool:
    """Whether that version has written down what requests cost."""
    return importlib.util.find_spec("gateway.store.projections") is not None


async def write(path: Path) -> int:
    """How many entries there are."""
    kit, records, store_, clock = (
        importlib.import_module(name)
        for name in ("tests.kits.store", "gateway.core.facts", "gateway.store", "gateway.core.clock")
    )
    entry, at = store_.NewEntry, kit.place("#a").conversation
    story = [
        one
        for number in range(6)
        for one in kit.heard(number, f"line {number} of a talk", "#b" if number % 2 else "#a")
    ]
    story.append(kit.turn(at, 1))
    story += [
        entry(fact=records.PostQueued(post=kit.post(key)), at=kit.NOW, conversation=at, key=f"post:{key}")
        for key in ("done", "half", "begun", "waiting")
    ]
    story += [
        entry(fact=records.PartSendStarted(post="half", part=0, bodies=("one", "two")), at=kit.NOW, conversation=at),
        entry(fact=records.PartSendEnded(post="half", part=0, state="sent", reason=""), at=kit.NOW, conversation=at),
        entry(fact=records.PartSendStarted(post="begun", part=0, bodies=("one",)), at=kit.NOW, conversation=at),
        kit.delivered("done"),
        entry(fact=records.CursorMoved(channel="irc.test", value="c1"), at=kit.NOW),
    ]
    async with await store_.Store.open(path, clock.ManualClock()) as store:
        await store.append(story)
        for number, (fact, place) in enumerate(facts()):
            await store.append([entry(fact=fact, at=kit.NOW + timedelta(seconds=number), conversation=place)])
        return len(await store.entry_rows(limit=100_000))


def main() -> None:
    checkout, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    sys.path.insert(0, str(checkout))
    os.chdir(checkout)
    random.seed(7)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        entries = asyncio.run(write(path))
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = DELETE")
        (schema,) = connection.execute("PRAGMA user_version").fetchone()
        connection.close()
        with target.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(path.read_bytes())
    print(json.dumps({"schema": schema, "entries": entries, "bytes": target.stat().st_size}))


if __name__ == "__main__":
    main()
