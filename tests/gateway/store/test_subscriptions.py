"""Subscribers get the new entries of each append, also if its caller was cancelled."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from gateway.core.clock import ManualClock
from gateway.core.events import ChannelName, ConversationId
from gateway.core.facts import CursorMoved, DmnDirective, RoleAssigned
from gateway.store import LogEntry, NewEntry, Store
from tests.kits.channels import story

AT = datetime(2026, 3, 1, tzinfo=UTC)


def moved(value: str, **fields: object) -> NewEntry:
    return NewEntry(fact=CursorMoved(channel=ChannelName("x"), value=value), at=AT, **fields)  # type: ignore[arg-type]


def role(person: str, cause: NewEntry | None = None) -> NewEntry:
    return NewEntry(fact=RoleAssigned(person=person, role="member", by="console", why="role"), at=AT, cause=cause)


def values(entries: Sequence[LogEntry]) -> list[str]:
    return [entry.fact.value for entry in entries if isinstance(entry.fact, CursorMoved)]


@story
async def test_called_in_order_also_if_the_caller_has_gone_and_if_another_subscriber_fails(tmp_path: Path) -> None:
    told = list[str]()

    def subscriber(entries: Sequence[LogEntry]) -> None:
        told.extend(values(entries))

    def broken(_entries: Sequence[LogEntry]) -> None:
        raise RuntimeError("a bug")

    async with await Store.open(tmp_path / "log.db", ManualClock()) as store:
        store.subscribe(broken, CursorMoved)
        store.subscribe(subscriber, CursorMoved)
        assert [one.is_new for one in await store.append([moved("1"), moved("2")])] == [True, True]
        assert told == ["1", "2"]
        tasks = [asyncio.ensure_future(store.append([moved(str(number))])) for number in range(3, 30)]
        for number, task in enumerate(tasks):
            await asyncio.sleep(0)
            if number % 2:
                task.cancel()
        await asyncio.wait(tasks)
        assert values(await store.entries(kinds=["cursor"])) == told


@story
async def test_called_once_per_append_with_new_entries_of_its_types_as_the_log_holds_them(tmp_path: Path) -> None:
    cursors, everything = list[Sequence[LogEntry]](), list[Sequence[LogEntry]]()
    async with await Store.open(tmp_path / "log.db", ManualClock()) as store:
        store.subscribe(cursors.append, CursorMoved, DmnDirective)
        store.subscribe(everything.append)
        one = moved("1", key="one", conversation=ConversationId("demo/lobby"))
        await store.append([one, role("irc.a:ann", cause=one), moved("2")])
        repeated = moved("1", key="one")
        await store.append([repeated, role("irc.a:bob", cause=repeated)])
        await store.append([role("irc.a:cid")])
        assert [values(entries) for entries in cursors] == [["1", "2"]]
        assert [entry for entries in everything for entry in entries] == await store.entries()
        assert [len(entries) for entries in everything] == [3, 1]


@story
async def test_times_are_utc(tmp_path: Path) -> None:
    told = list[LogEntry]()
    async with await Store.open(tmp_path / "log.db", ManualClock()) as store:
        store.subscribe(told.extend)
        late = AT.astimezone(timezone(timedelta(hours=5)))
        await store.append([NewEntry(fact=CursorMoved(channel=ChannelName("x"), value="1"), at=late)])
        assert [entry.at.tzinfo for entry in told] == [UTC]


@story
async def test_called_before_the_caller_goes_on_who_has_the_result_already(tmp_path: Path) -> None:
    events = list[str]()
    async with await Store.open(tmp_path / "log.db", ManualClock()) as store:
        store.subscribe(lambda entries: events.extend(values(entries)), CursorMoved)

        async def append(value: str) -> None:
            await store.append([moved(value)])
            events.append(f"{value} done")

        await asyncio.gather(append("1"), append("2"))
        assert sorted(events) == ["1", "1 done", "2", "2 done"]
        assert all(events.index(value) < events.index(f"{value} done") for value in "12")
