"""Counters of notification types: bounded, and equal by append and by rebuild."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import Address, ChannelName, ConversationId, RoomId, ThreadId
from gateway.core.facts import FACT, Judgement
from gateway.store import NewEntry, rebuild
from gateway.store.projections import (
    COUNT_TYPES,
    MAX_FAMILY_TYPES,
    TypeSighting,
    merge_sightings,
    sight_type,
    type_family,
)
from gateway.store.schema import migrations
from tests.kits.store import NOW, judged, opened, place, run, said

Row = tuple[str, str, int, str, str]


def table(path: Path) -> list[Row]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM notification_type ORDER BY family, type").fetchall()


def came(number: int, room: str = "#a", hours: int = 0) -> list[NewEntry]:
    message = said(number, room=room)
    made = judged(message)
    assert isinstance(made.fact, Judgement)
    return [
        message,
        replace(made, fact=replace(made.fact, type=f"irc.test.room.{room}"), at=NOW + timedelta(hours=hours)),
    ]


@pytest.mark.parametrize("room", ["#python", "#a.b", "a/b", "100%", "*", "-1001"])
@pytest.mark.parametrize("thread", [None, "7", "a/b%2Fc"])
def test_the_family_is_the_type_without_its_place(room: str, thread: str | None) -> None:
    at = Address(channel=ChannelName("irc.x"), room=RoomId(room), thread=ThreadId(thread) if thread else None)
    dotted = f"irc.x.mention.{room}" + (f".{thread}" if thread else "")
    assert type_family(dotted, at.conversation) == "irc.x.mention"


def test_what_names_no_place_has_no_family() -> None:
    assert type_family("irc.x.link", None) == ""
    assert type_family("agent.alarm", ConversationId("irc.x/#a")) == ""
    assert sight_type("agent.alarm", None, "now").together == "*"


def test_each_type_counts_and_tells_when_it_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        async with await opened(path) as store:
            await store.append([*came(1), *came(2, hours=1), *came(3, "#b")])
            await store.append(came(1, hours=5))  # a repeat
            await store.append(came(4, hours=2))

    run(story())
    at = [f"2026-03-04T0{hour}:06:07.000000+00:00" for hour in (5, 7)]
    assert table(path) == [
        ("irc.test.room", "irc.test.room.#a", 3, at[0], at[1]),
        ("irc.test.room", "irc.test.room.#b", 1, at[0], at[0]),
    ]


def test_made_up_rooms_fill_neither_the_table_nor_another_family(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        async with await opened(path) as store:
            await store.append([one for number in range(MAX_FAMILY_TYPES + 50) for one in came(number, f"#{number}")])
            for number in range(3):
                await store.append(came(1_000 + number, f"#late{number}"))
            await store.append(came(2_000, "#7"))
            link = Judgement(type="irc.test.link", urgency=1, fate="noted", rule="r", role="guest")
            await store.append([NewEntry(fact=link, at=NOW)])

    run(story())
    rows = table(path)
    assert len(rows) == MAX_FAMILY_TYPES + 2
    counts = {row[1]: row[2] for row in rows}
    assert (counts["irc.test.room.*"], counts["irc.test.room.#7"], counts["irc.test.link"]) == (53, 2, 1)
    assert run(rebuild(path)) == []
    assert table(path) == rows


few = st.sampled_from(["x.room.1", "x.room.2", "x.room.3", "x.room.4", "x.room.*", "x.link", "y.link"])


def _fold(batches: Iterable[Sequence[TypeSighting]]) -> list[Row]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE TABLE notification_type (family, type, count, first_at, last_at, PRIMARY KEY (family, type))"
        )
        small = COUNT_TYPES.replace(f"<= {MAX_FAMILY_TYPES}", "<= 2")
        assert small != COUNT_TYPES
        for batch in batches:
            connection.execute(small, (merge_sightings(batch),))
        return connection.execute("SELECT * FROM notification_type ORDER BY family, type").fetchall()


@given(st.lists(st.lists(few, min_size=1, max_size=8), max_size=6))
def test_it_does_not_matter_how_the_log_is_cut(cut: list[list[str]]) -> None:
    told = [
        [
            sight_type(one, ConversationId(f"x/{one[-1]}") if "room" in one else None, f"{block}-{index}")
            for index, one in enumerate(batch)
        ]
        for block, batch in enumerate(cut)
    ]
    by_one = _fold([one] for batch in told for one in batch)
    assert _fold(told) == by_one
    assert _fold([[one for batch in told for one in batch]]) == by_one
    assert sum(row[2] for row in by_one) == sum(map(len, cut))
    assert len(by_one) <= 2 * (2 + 1)


def test_a_store_from_before_is_counted_as_a_rebuild_counts_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    places = [place(f"#r{number % (MAX_FAMILY_TYPES + 9)}") for number in range(2 * MAX_FAMILY_TYPES)]
    places += [Address(channel=ChannelName("d"), room=RoomId("a/b%"), thread=ThreadId("7")), place("*")]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for number, sql in migrations()[:5]:
            connection.executescript(f"{sql}; PRAGMA user_version = {number}; PRAGMA application_id = {0x52455652};")
        for seq, at in enumerate(places, 1):
            dotted = f"{at.channel}.room.{at.room}" + (f".{at.thread}" if at.thread else "")
            fact = Judgement(type=dotted, urgency=0, fate="noted", rule="r", role="guest")
            time = (NOW + timedelta(seconds=seq)).isoformat(timespec="microseconds")
            connection.execute(
                "INSERT INTO log (seq, at, kind, conversation, body) VALUES (?, ?, 'judged', ?, ?)",
                (seq, time, at.conversation, FACT.dump_json(fact).decode()),
            )
        for seq, kind in ((900, "irc.test.link"), (901, "agent.alarm"), (902, "irc.test.link")):
            fact = Judgement(type=kind, urgency=0, fate="noted", rule="r", role="guest")
            connection.execute(
                "INSERT INTO log (seq, at, kind, body) VALUES (?, ?, 'judged', ?)",
                (seq, NOW.isoformat(timespec="microseconds"), FACT.dump_json(fact).decode()),
            )

    async def story() -> None:
        await (await opened(path)).close()

    run(story())
    rows = table(path)
    counts = {row[1]: row[2] for row in rows}
    assert (counts["irc.test.room.*"], counts["d.room.a/b%.7"], counts["irc.test.link"]) == (10, 1, 2)
    assert len(rows) == MAX_FAMILY_TYPES + 1 + 1 + 2
    assert run(rebuild(path)) == []
