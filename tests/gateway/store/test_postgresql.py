"""The store in PostgreSQL: a lost connection, a second process, what it cannot hold, and search
like SQLite's."""

import asyncio
import contextlib
import re
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.clock import SystemClock
from gateway.core.events import ChannelName
from gateway.core.facts import CursorMoved
from gateway.store import (
    NewEntry,
    ServerStore,
    Store,
    StoreClosed,
    StoreInUse,
    StoreMissing,
    StoreOpenError,
    StoreTooNew,
    StoreUnavailable,
    StoreUnreadable,
    rebuild,
    search_terms,
)
from gateway.store.reader import open_log
from gateway.store.schema import migrations
from gateway.store.types import ServerUnavailable
from reverie.testing.waiting import until
from tests.kits.examples import examples
from tests.kits.store import ENGINE, NOW, heard, located, look_into, opened, run, said

pytestmark = pytest.mark.postgresql


class Proxy:
    """Stands between the store and its server, and cuts the connection."""

    def __init__(self) -> None:
        self.port = 0
        self.is_open = True
        self.cut_at = ""
        """Where the next commit is cut: `before` the server gets it, or `after` it was done."""
        self.closes_at_cut = False
        """Whether nobody gets in from the cut on."""
        self.refused = 0
        """Connections that did not get in."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert ENGINE.server is not None
        if not self.is_open:
            self.refused += 1
            writer.close()
            return
        with contextlib.closing(writer):
            from_server, to_server = await asyncio.open_connection("127.0.0.1", ENGINE.server.port)
            with contextlib.closing(to_server):
                cut = asyncio.Event()

                async def pump(
                    source: asyncio.StreamReader, target: asyncio.StreamWriter, when: str
                ) -> None:
                    try:
                        while data := await source.read(1 << 20):
                            if self.cut_at == when and b"COMMIT" in data:
                                self.cut_at, self.is_open = "", not self.closes_at_cut
                                break
                            target.write(data)
                    finally:
                        cut.set()

                pumps = [
                    asyncio.create_task(pump(reader, to_server, "before")),
                    asyncio.create_task(pump(from_server, writer, "after")),
                ]
                await cut.wait()
                for one in pumps:
                    one.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    async def refuse_two(self) -> None:
        """Wait until something was tried once more, and failed."""
        before = self.refused
        await until(lambda: self.refused >= before + 2)

    def cut_all(self) -> None:
        assert ENGINE.server is not None
        ENGINE.server.end_connections()


@contextlib.asynccontextmanager
async def behind_proxy(
    path: Path, *, is_shared: bool = False
) -> AsyncIterator[tuple[Store, Proxy]]:
    """A patient store whose connections go through a proxy."""
    proxy, store = Proxy(), located(path)
    assert isinstance(store, ServerStore)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        there = ServerStore(re.sub(r":\d+/", f":{port}/", store.url), path)
        async with await Store.open(
            there, SystemClock(), patient=True, is_shared=is_shared
        ) as opened_:
            yield opened_, proxy


def moved(value: str) -> NewEntry:
    """An entry without a key: it would be written twice."""
    return NewEntry(fact=CursorMoved(channel=ChannelName("x"), value=value), at=NOW)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("cut_at", ["before", "after"])
async def test_a_commit_that_is_cut_is_done_once(
    tmp_path: Path, cut_at: str, *, closes: bool
) -> None:
    told = list[str]()
    async with behind_proxy(tmp_path / "s.db") as (store, proxy):
        store.subscribe(lambda entries: told.extend(str(one.seq) for one in entries))
        await store.append([moved("1")])
        proxy.cut_at, proxy.closes_at_cut = cut_at, closes
        appending = asyncio.create_task(store.append([moved("2"), *heard(1)]))
        beside = asyncio.create_task(store.append([moved("3")]))
        if closes:
            await until(lambda: store.outage is not None)
            assert store.outage is not None
            assert "the database cannot be" in store.outage.reason
            beside.cancel()  # it may be committed with the other one
            await proxy.refuse_two()  # and that cannot be seen yet
            proxy.is_open = True
        results = await appending
        assert [(one.seq, one.is_new) for one in results] == [(2, True), (3, True), (4, True)]
        await asyncio.wait([beside])
        assert [entry.seq for entry in await store.entries()] == [1, 2, 3, 4, 5]
        assert told == ["1", "2", "3", "4", "5"]
        assert store.outage is None
    assert await rebuild(located(tmp_path / "s.db")) == []


async def test_a_commit_that_is_cut_and_whose_caller_has_gone_is_told_before_the_next(
    tmp_path: Path,
) -> None:
    told = list[int]()
    async with behind_proxy(tmp_path / "s.db") as (store, proxy):
        store.subscribe(lambda entries: told.extend(one.seq for one in entries))
        proxy.cut_at, proxy.closes_at_cut = "after", True
        gone = asyncio.create_task(store.append([moved("1")]))
        await until(lambda: store.outage is not None)
        gone.cancel()
        await proxy.refuse_two()
        proxy.is_open = True
        assert [one.seq for one in await store.append([moved("1")])] == [2]
    assert told == [1, 2]


async def test_a_read_waits_for_the_server_until_the_gateway_gives_up(tmp_path: Path) -> None:
    async with behind_proxy(tmp_path / "s.db") as (store, proxy):
        await store.append(heard(1))
        proxy.cut_all()
        assert len(await store.entries()) == 2, "a lost connection is made again"
        await until(lambda: store.outage is None)
        proxy.is_open = False
        proxy.cut_all()
        reading = asyncio.create_task(store.entries())
        await until(lambda: store.outage is not None)
        assert not reading.done()
        proxy.is_open = True
        assert len(await reading) == 2
        await until(lambda: store.outage is None)
        proxy.is_open = False
        proxy.cut_all()
        reading = asyncio.create_task(store.entries())
        await until(lambda: store.outage is not None)
        store.give_up()
        with pytest.raises(StoreClosed):
            await reading


async def test_a_second_process_is_refused_and_one_that_wrote_meanwhile_is_noticed(
    tmp_path: Path,
) -> None:
    store = located(tmp_path / "s.db")
    assert isinstance(store, ServerStore)
    elsewhere = ServerStore(store.url, tmp_path / "elsewhere/s.db")
    async with behind_proxy(tmp_path / "s.db") as (first, proxy):
        await first.append(heard(1))
        with pytest.raises(StoreInUse, match="another process writes to this store"):
            await Store.open(elsewhere, SystemClock())
        proxy.is_open = False
        proxy.cut_all()
        async with await Store.open(elsewhere, SystemClock()) as second:
            await second.append(heard(2))
        proxy.is_open = True
        with pytest.raises(StoreClosed, match="took this one for dead"):
            await first.append(heard(3))
    async with await opened(tmp_path / "s.db") as again:
        assert len(await again.entries()) == 4


async def test_a_nul_character_stays_in_the_log_and_is_found_beside(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        entry = said(1, "nothing\0here")
        await store.append([entry, moved("a\0b")])
        found = await store.entries(match="here")
        assert [one.fact for one in found] == [entry.fact]
        assert await store.saved_cursor(ChannelName("x")) == "a\u2400b"
    assert await rebuild(located(tmp_path / "s.db")) == []


async def test_both_engines_have_the_same_tables(tmp_path: Path) -> None:
    """But for those of the processes that share a database. The index for words is each engine's
    own."""
    await (await opened(tmp_path / "s.db")).close()
    with closing(look_into(tmp_path / "s.db")) as connection:
        there = connection.fetch(
            "SELECT relname::text, attname::text FROM pg_class JOIN pg_attribute ON attrelid = "
            "pg_class.oid WHERE relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0 AND "
            "relnamespace = current_schema()::regnamespace"
        )
    with closing(sqlite3.connect(":memory:")) as memory:
        for _, script in migrations():
            memory.executescript(script)
        here = memory.execute(
            "SELECT m.name, p.name FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS p "
            "WHERE m.type = 'table'"
        ).fetchall()
    own = {"schema_version", "process", "heartbeat", "lease"}
    assert own <= {table for table, _ in there}
    assert sorted(one for one in there if one[0] not in {*own, "search"}) == sorted(
        one for one in here if not one[0].startswith(("search", "sqlite_"))
    )


async def test_what_cannot_be_opened_is_said_without_the_password(tmp_path: Path) -> None:
    assert ENGINE.server is not None
    path = tmp_path / "s.db"
    with pytest.raises(StoreMissing):
        await Store.open_readonly(located(path))
    await (await opened(path)).close()
    with closing(look_into(path)) as connection:
        connection.write("UPDATE schema_version SET version = 999")
    for opening in (opened(path), Store.open_readonly(located(path)), rebuild(located(path))):
        with pytest.raises(StoreTooNew, match="schema 999"):
            await opening
    with closing(look_into(path)) as connection:
        connection.write("CREATE TABLE call ()")
    for opening in (opened(path), Store.open_readonly(located(path)), rebuild(located(path))):
        with pytest.raises(StoreUnreadable, match=r"before 0\.2\.0, whose stores are read no more"):
            await opening
    port = ENGINE.server.port
    cases: dict[str, type[StoreOpenError]] = {
        "postgresql://ann:secret@127.0.0.1:1/x": StoreUnavailable,
        f"postgresql://ann:secret@127.0.0.1:{port}/x": StoreUnreadable,
        f"postgresql://reverie:secret@127.0.0.1:{port}/x": StoreUnreadable,
        "postgresql://ann:secret%zz@127.0.0.1/x": StoreUnreadable,
    }
    for url, expected in cases.items():
        with pytest.raises(expected) as caught:
            await Store.open(ServerStore(url, path), SystemClock())
        assert type(caught.value) is expected
        assert "secret" not in (
            f"{caught.value} {caught.value!r} {ServerStore(url, path)} {ServerStore(url, path)!r}"
        )


def test_a_failed_connection_leaves_no_thread_that_reports_to_a_closed_loop(tmp_path: Path) -> None:
    nowhere = ServerStore("postgresql://ann:secret@127.0.0.1:1/x", tmp_path / "s.db")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):  # each a loop of its own; an exception in a thread fails the test
            with pytest.raises(ServerUnavailable):
                asyncio.run(open_log(nowhere, "reader"))
    finally:
        sys.setswitchinterval(interval)


WORDS = st.lists(
    st.sampled_from(
        [
            "harbour",
            "Hafen",
            "café",
            "CAFE",
            "Straße",
            "naïve",
            "it's",
            "x86",
            "3.14",
            "42",
            "日本",
            "a_b",
            "e-mail",
            "ann@b.de",
            "-",
            "...",
        ]
    ),
    min_size=1,
    max_size=6,
).map(" ".join)


@settings(max_examples=examples(20))
@given(st.lists(WORDS, min_size=1, max_size=6), WORDS, st.integers(2, 4))
def test_words_are_found_as_in_a_file(texts: list[str], wanted: str, prefix: int) -> None:
    """Each with its own tokens: the words, phrases of them, and their beginnings."""
    word = wanted.split(maxsplit=1)[0]
    queries = [
        search_terms(wanted),
        f'"{wanted}"',
        f"{search_terms(word[:prefix])}*",
        f'"{word}" OR "lake"',
    ]

    async def find(path: Path) -> list[list[int]]:
        async with await opened(path) as store:
            await store.append([said(number, text) for number, text in enumerate(texts)])
            return [[one.seq for one in await store.entries(match=query)] for query in queries]

    async def story(folder: Path) -> None:
        on_server = await find(folder / "s.db")
        server, ENGINE.server = ENGINE.server, None
        try:
            in_file = await find(folder / "s.db")
        finally:
            ENGINE.server = server
        assert on_server == in_file

    with TemporaryDirectory() as folder:
        run(story(Path(folder)))
