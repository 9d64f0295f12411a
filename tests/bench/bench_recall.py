"""What it costs to call something to mind before a turn: `python tests/bench/bench_recall.py [--messages N] [--json]`.

A year of talk in 200 places, a third of them private, with words as frequent as Zipf's law has them, an answer to each
fifth message, and notes. Half of the questions are made of such words; the others, of everyday words, ask for something
that was said once.
"""

import argparse
import asyncio
import bisect
import itertools
import json
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.context.journal import JournalStore
from gateway.context.memory import MemoryStore
from gateway.context.recall import AmbientRecall
from gateway.core.clock import SystemClock
from gateway.core.events import Address, ChannelName, Message, MessageId, RoomId, Sender, SenderId
from gateway.core.facts import FACT, Fact, Judgement, NoteWritten, Seq, TurnId, TurnRecord, dedup_key
from gateway.core.redaction import Redactor
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.store import Store
from gateway.stream.routing import BindingPattern, Bindings, ConversationBinding
from tests.kits.places import privacy
from tests.kits.settings import live_settings
from tests.kits.store import turn

DAYS, PLACES, ANSWERED = 365, 200, 5
EVERYDAY = 1_000
CHUNK = 50
"""Entries of a commit: the search index has as many pieces as in a store that grew."""
START = datetime.now(UTC) - timedelta(days=DAYS)
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "is", "ol")]


class Words:
    """Made-up ones, the first the most frequent."""

    def __init__(self, count: int = 60_000) -> None:
        self.random = random.Random(7)
        made = ("".join(self.random.choices(SYLLABLES, k=self.random.choice((2, 3, 3, 4)))) for _ in itertools.count())
        self.all = list(itertools.islice(dict.fromkeys(itertools.islice(made, 4 * count)), count))
        self._sums = list(itertools.accumulate(1 / (rank + 2) for rank in range(count)))

    def some(self, count: int) -> list[str]:
        return [
            self.all[bisect.bisect(self._sums, self.random.random() * self._sums[-1]) % len(self.all)]
            for _ in range(count)
        ]

    def text(self, count: int) -> str:
        return " ".join(self.some(count))


def place(number: int) -> Address:
    """Each third one is a direct chat."""
    name = f"nick{number}" if number % 3 == 0 else f"#room{number}"
    return Address(channel=ChannelName("irc.bench"), room=RoomId(name))


def facts(words: Words, number: int) -> Iterator[tuple[Fact, str | None]]:
    """What one message leads to, with keys."""
    at = place(number % PLACES)
    sender = Sender(id=SenderId(f"user{number % 500}"), name=f"user{number % 500}")
    text = f"{words.text(12)} once{number}"
    direct = number % PLACES % 3 == 0
    said = Message(
        id=MessageId(str(number)), at=at, sender=sender, text=text, sent=START, kind="direct" if direct else "room"
    )
    yield said, dedup_key(said)
    yield Judgement(type="bench", urgency=0, fate="context", rule="default", role="guest"), None
    if number % ANSWERED == 0:
        ended = turn(at.conversation, text=words.text(30)).fact
        assert isinstance(ended, TurnRecord)
        yield replace(ended, heard=text), None


def rows(messages: int, notes: int) -> Iterator[tuple[int, str, str, str, str | None, int | None, str]]:
    """Of the log."""
    words, seq = Words(), 0
    for number in range(messages):
        at = (START + timedelta(days=DAYS * number / messages)).isoformat(timespec="microseconds")
        there, message = place(number % PLACES).conversation, seq + 1
        for fact, key in facts(words, number):
            seq += 1
            cause = message if isinstance(fact, Judgement) else None
            yield seq, at, fact.kind, there, key, cause, FACT.dump_json(fact).decode()
        if number % (messages // notes) == 0:
            seq += 1
            scope = there if number % PLACES % 3 == 0 else PUBLIC
            text = f"{words.text(40)} noted{number}"
            noted = NoteWritten(agent="reverie", scope=scope, title=words.text(3), text=text, lasting=False)
            yield seq, at, "noted", there, f"note:{number}", None, FACT.dump_json(noted).decode()


async def fill(path: Path, messages: int, notes: int) -> None:
    """Written past the store for speed."""
    await (await Store.open(path, SystemClock())).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    made = rows(messages, notes)
    while chunk := list(itertools.islice(made, CHUNK)):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", chunk)
        connection.execute(
            "INSERT INTO search (rowid, text) SELECT seq, text FROM said WHERE seq BETWEEN ? AND ?",
            (chunk[0][0], chunk[-1][0]),
        )
        connection.execute("COMMIT")
    connection.close()


def questions(messages: int, count: int) -> Iterator[tuple[list[str], str]]:
    """What is asked, and the word that only one message has; empty: none does."""
    words = Words()
    words.random.seed(8)
    for number in range(count):
        if number % 2:
            rare = f"once{words.random.randrange(messages)}"
            everyday = " ".join(words.random.choices(words.all[:EVERYDAY], k=9))
            yield [everyday, f"{everyday} {rare}"], rare
        else:
            yield [words.text(12), words.text(9)], ""


async def ask(path: Path, messages: int, rounds: int) -> dict[str, float]:
    """Milliseconds, and how often what only one message has came up where it may."""
    async with await Store.open(path, SystemClock()) as store:
        bound = Bindings(
            [
                BindingPattern(
                    channel="*", room="*", thread=None, binding=ConversationBinding(listen="all", private=False)
                )
            ]
        )
        clock, places = SystemClock(), privacy(store, bound)
        memory = MemoryStore(store, clock, lambda _: path.parent)
        journal = JournalStore(store, clock, lambda _: path.parent)
        recalling = AmbientRecall(store, places, memory, journal, clock, Redactor(), live_settings())
        at = place(1)
        sight = Visibility(scope=PUBLIC)
        where = ToolContext(turn=TurnId("t"), agent="reverie", at=at, visibility=sight, autonomous=False)
        taken, told, asked, found = [], 0, 0, 0
        asking = [*questions(messages, rounds)]
        busy = time.process_time()
        for lines, rare in asking:
            began = time.perf_counter()
            came = await recalling(where, lines, known_names=(), since=Seq(0), tokens=150, is_addressed=False)
            taken.append((time.perf_counter() - began) * 1000)
            told += bool(came.text) and not rare
            public = bool(rare) and int(rare.removeprefix("once")) % PLACES % 3 != 0
            asked, found = asked + public, found + (public and rare in came.text)
            assert public or not rare or rare not in came.text, "what is private was told"
        busy = time.process_time() - busy
    rest = sorted(taken[rounds // 10 :])
    return {
        "recall_first_ms": round(taken[0], 2),
        "recall_p50_ms": round(statistics.median(rest), 2),
        "recall_p99_ms": round(rest[int(len(rest) * 0.99)], 2),
        "recall_cpu_ms": round(busy / rounds * 1000, 2),
        "recall_max_ms": round(rest[-1], 2),
        "something_was_told": round(2 * told / rounds, 2),
        "said_once_and_found": round(found / max(1, asked), 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--notes", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--store", type=Path, help="made by an earlier run, or to be kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        path = options.store or Path(folder) / "s.db"
        if not path.exists():
            asyncio.run(fill(path, options.messages, options.notes))
        figures = asyncio.run(ask(path, options.messages, options.rounds))
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
