"""Several processes append to one log in PostgreSQL: one order for all, and nothing of a removed
process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from gateway.core.clock import SystemClock
from gateway.core.events import Message
from gateway.core.facts import Seq
from gateway.store import LogEntry, ServerStore, Store, StoreClosed, StoreInUse, rebuild
from gateway.store.postgres_log import PostgresLog
from gateway.store.schema import migrations
from gateway.store.shared import SharedStore
from gateway.store.types import ServerUnavailable
from reverie.testing.waiting import until
from tests.gateway.store.test_postgresql import Proxy, behind_proxy, moved
from tests.kits.store import append_newer, heard, located, look_into, place, turn

pytestmark = pytest.mark.postgresql
A = place().conversation


class Process:
    """A store as one of several processes has it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.number = 0
        self.seen, self.own, self.groups = list[LogEntry](), list[LogEntry](), list[list[int]]()
        store.subscribe(self._see)
        store.subscribe(self.own.extend, own=True)

    def _see(self, entries: Sequence[LogEntry]) -> None:
        self.seen += entries
        self.groups.append([one.seq for one in entries])

    async def join(self, *, follows: bool = True) -> None:
        with closing(connect(located(self.store.path))) as other:  # beside a proxy
            ((self.number,),) = other.fetch(
                "INSERT INTO process (name, host, pid, version) VALUES ('p', 'h', 1, '1') "
                "RETURNING number"
            )
        assert isinstance(self.store, SharedStore)
        await self.store.join(self.number)
        if follows:
            await self.store.follow()

    @property
    def positions(self) -> list[int]:
        return [one.seq for one in self.seen]


def connect(location: object) -> PostgresLog:
    assert isinstance(location, ServerStore)
    return PostgresLog(location.url, "other")


@asynccontextmanager
async def processes(path: Path, count: int = 2) -> AsyncIterator[list[Process]]:
    async with AsyncExitStack() as stack:
        found = list[Process]()
        for _ in range(count):
            store = await Store.open(located(path), SystemClock(), patient=True, is_shared=True)
            found.append(Process(await stack.enter_async_context(store)))
            await found[-1].join()
        yield found


@asynccontextmanager
async def process_behind_proxy(path: Path) -> AsyncIterator[tuple[Process, Proxy]]:
    async with behind_proxy(path, is_shared=True) as (store, proxy):
        one = Process(store)
        await one.join()
        yield one, proxy


async def test_all_processes_see_one_log_in_one_order(tmp_path: Path) -> None:
    async with processes(tmp_path / "s.db", 3) as found:
        appends = [
            one.store.append(heard(1000 * place + number))
            for place, one in enumerate(found)
            for number in range(40)
        ]
        results = await asyncio.gather(*appends)
        for one in found:
            await one.store.follow()
        assert [one.positions for one in found] == [list(range(1, 241))] * 3
        assert sorted(seq for result in results for seq in [one.seq for one in result]) == list(
            range(1, 241)
        )
        assert sorted(one.seq for process in found for one in process.own) == list(range(1, 241))
        assert all(len(one.own) == 80 for one in found)
    assert await rebuild(located(tmp_path / "s.db")) == []


async def test_what_others_appended_is_published_before_an_own_append_succeeds(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path / "s.db") as (first, second):
        for number in range(5):
            await first.store.append(heard(number))
            ((seq, _), *_) = [
                (one.seq, one.is_new) for one in await second.store.append(heard(100 + number))
            ]
            assert second.positions[-4:] == [seq - 2, seq - 1, seq, seq + 1]
        assert second.store.last == 20


async def test_entries_of_one_append_are_published_together(tmp_path: Path) -> None:
    async with processes(tmp_path / "s.db") as (first, second):
        await first.store.append([*heard(1), moved("1"), *heard(2)])
        await first.store.append(heard(3))
        await second.store.append(heard(4))
        assert second.groups[:2] == [[1, 2, 3, 4, 5], [6, 7]]


@pytest.mark.parametrize("code", ["08006", "25P03", "25P04", "40P01", "53100", "57P01"])
async def test_errors_that_pass_are_waited_out(tmp_path: Path, code: str) -> None:
    """25P03: the server has ended a transaction of this process, which hung while others waited."""

    async with processes(tmp_path / "s.db", 1):
        with (
            closing(connect(located(tmp_path / "s.db"))) as log,
            pytest.raises(ServerUnavailable, match="it passes"),
        ):
            log.fetch(f"DO $$BEGIN RAISE 'it passes' USING ERRCODE = '{code}'; END$$")


async def test_processes_that_start_together_on_an_empty_database_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.store.postgres_log.LOCK_WAIT_S", 0.05)
    location = located(tmp_path / "s.db")
    assert isinstance(location, ServerStore)
    slow = PostgresLog(location.url, "sharer")
    with closing(slow):
        assert slow.schema_version() == 0
        opening = [
            asyncio.create_task(Store.open(location, SystemClock(), patient=True, is_shared=True))
            for _ in range(3)
        ]
        done, _ = await asyncio.wait(opening, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        assert not done
    for store in await asyncio.gather(*opening):
        await store.close()


async def test_who_does_not_follow_yet_sees_all_that_others_appended_once_it_does(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path / "s.db") as (first, second):
        late = await Store.open(
            located(tmp_path / "s.db"), SystemClock(), patient=True, is_shared=True
        )
        async with late:
            third = Process(late)
            await third.join(follows=False)
            await first.store.append(heard(1))
            await second.store.append(heard(2))
            assert third.seen == []
            await late.follow()
            assert third.positions == [1, 2, 3, 4]


async def test_who_waits_to_have_followed_is_told_that_the_store_is_given_up(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path / "s.db", 1) as (first,):
        late = await Store.open(
            located(tmp_path / "s.db"), SystemClock(), patient=True, is_shared=True
        )
        async with late:
            await Process(late).join(follows=False)
            await first.store.append(heard(1))
            late.give_up()  # a stop while the process still starts
            with pytest.raises(StoreClosed):
                await late.follow()


async def test_a_key_is_written_once_whoever_writes_it(tmp_path: Path) -> None:
    async with processes(tmp_path / "s.db", 3) as found:
        results = await asyncio.gather(
            *[one.store.append(heard(7)) for one in found for _ in range(5)]
        )
        assert sum(result[0].is_new for result in results) == 1
        assert {result[0].seq for result in results} == {1}


async def test_what_one_process_answers_is_read_in_the_memory_of_the_other(tmp_path: Path) -> None:
    async with processes(tmp_path / "s.db") as (first, second):
        ((said, _), _) = [(one.seq, one.is_new) for one in await first.store.append(heard(1))]
        place = heard(1)[0].conversation
        assert place is not None
        for one in (first, second):
            await one.store.follow()
            await one.store.activate(place)
        assert len((await first.store.unread_entries(place, most=5)).messages) == 1
        await second.store.append([turn(place, said, upto=said)])
        await first.store.follow()
        assert (await first.store.unread_entries(place, most=5)).messages == ()


async def test_an_entry_of_a_newer_version_is_left_out_and_its_position_counts(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path / "s.db", 1) as (one,):
        await one.store.append(heard(1))
        append_newer(tmp_path / "s.db")
        await one.store.follow()
        assert one.store.last == 3
        await one.store.append(heard(2))
        assert one.positions == [1, 2, 4, 5]


async def test_what_an_entry_of_a_newer_version_changes_within_an_append_is_read_from_the_tables(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path / "s.db", 1) as (one,):
        await one.store.append(heard(1))
        await one.store.activate(A)
        with closing(look_into(tmp_path / "s.db")) as other, other.transaction():
            other.write(
                "INSERT INTO log (seq, at, kind, conversation, body) "
                "SELECT $1, at, $2, conversation, body FROM log WHERE seq = 1",
                [(3, "room"), (4, "weather"), (5, "room")],
            )
            other.write("DELETE FROM unread")
        await one.store.follow()
        assert one.groups[-1] == [3, 5]
        assert (await one.store.unread_entries(A, most=5)).messages == ()


async def test_a_removed_process_writes_nothing_any_more(tmp_path: Path) -> None:
    async with processes(tmp_path / "s.db") as (first, second):
        await second.store.append(heard(1))
        with closing(connect(first.store.location)) as other:
            other.write(f"DELETE FROM process WHERE number = {second.number}")
        with pytest.raises(StoreClosed, match="took this one for dead"):
            await second.store.append(heard(2))
        with pytest.raises(StoreClosed):
            await second.store.append(heard(3))
        await first.store.append(heard(4))
        assert len([one for one in first.seen if isinstance(one.fact, Message)]) == 2, "of 1 and 4"


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("cut_at", ["before", "after"])
async def test_a_commit_that_is_cut_is_done_once_beside_others(
    tmp_path: Path, cut_at: str, *, closes: bool
) -> None:
    async with (
        process_behind_proxy(tmp_path / "s.db") as (one, proxy),
        processes(tmp_path / "s.db", 1) as (other,),
    ):
        await other.store.append(heard(1))
        proxy.cut_at, proxy.closes_at_cut = cut_at, closes
        appending = asyncio.create_task(one.store.append([moved("2"), *heard(2)]))
        if closes:
            await until(lambda: one.store.outage is not None)
            await other.store.append(heard(3))
            proxy.is_open = True
        results = await appending
        assert [result.is_new for result in results] == [True, True, True]
        await other.store.append(heard(4))
        await one.store.follow()
        log = await other.store.entries()
        assert [entry.seq for entry in log] == [*range(1, len(log) + 1)]
        assert len(log) == (9 if closes else 7), "each entry once"
        assert one.positions == other.positions == [entry.seq for entry in log]
    assert await rebuild(located(tmp_path / "s.db")) == []


async def test_a_process_that_hangs_in_a_transaction_stops_others_only_for_a_while(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path / "s.db", 1) as (one,):
        hung = PostgresLog(one.store.location.url, "sharer")  # type: ignore[union-attr]
        with closing(hung):
            hung.join(one.number)
            hung.begin_append(Seq(0))
            await one.store.append(heard(1))  # the server ends the other session


async def test_a_process_that_was_cut_off_while_a_newer_version_migrated_the_store_writes_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    async with process_behind_proxy(path) as (one, proxy):
        await one.store.append(heard(1))
        proxy.is_open = False
        proxy.cut_all()
        appending = asyncio.create_task(one.store.append(heard(2)))
        await until(lambda: one.store.outage is not None)
        newer = migrations("migrations/postgresql")
        newer = (*newer, (newer[-1][0] + 1, "CREATE TABLE weather (at text);"))
        with monkeypatch.context() as patched:
            patched.setattr("gateway.store.schema.migrations", lambda _folder: newer)
            async with await Store.open(located(path), SystemClock(), patient=True, is_shared=True):
                pass
        proxy.is_open = True
        with pytest.raises(StoreClosed, match="took this one for dead"):
            await appending


async def test_who_needs_the_store_alone_is_refused_while_processes_share_it(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "s.db", tmp_path / "other"
    async with processes(path, 1) as (one,):
        assert isinstance(one.store.location, ServerStore)
        with pytest.raises(StoreInUse):
            await Store.open(located(path), SystemClock())
        with pytest.raises(Exception, match="another process writes to this store"):
            await Store.open(ServerStore(one.store.location.url, other), SystemClock())
    async with await Store.open(located(path), SystemClock()) as alone:
        await alone.append(heard(1))
