"""Tables of plugins: equal by append, by replay after an absence, and by rebuild."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway.core.clock import ManualClock
from gateway.core.facts import PluginFact
from gateway.plugin import Plugin
from gateway.plugins import UnusablePlugin, use_plugins
from gateway.store import NewEntry, ServerStore, StoreInUse, rebuild
from gateway.store.projections import Table
from gateway.store.transfer import transfer_store
from gateway.store.types import LogEntry
from tests.gateway.plugins.test_retention import moved, talked
from tests.gateway.plugins.test_retention import opened as opened_late
from tests.kits.store import ENGINE, NOW, located, look_into, open_shared, opened, said

COLUMNS = "word text PRIMARY KEY, uses bigint NOT NULL, last bigint NOT NULL"
USED = (
    "INSERT INTO tally (word, uses, last) VALUES ($1, 1, $2) ON CONFLICT (word) DO UPDATE SET "
    "uses = tally.uses + 1, last = excluded.last"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(PluginFact):
    word: str
    kind: Literal["tally.dropped"] = "tally.dropped"


def fold(entry: LogEntry) -> Iterable[tuple[str, tuple[str | int, ...]]]:
    fact: Any = entry.fact
    if isinstance(fact, Dropped):
        return [("DELETE FROM tally WHERE word = $1", (fact.word,))]
    if "broken" in fact.text:
        raise RuntimeError("a fault of the plugin")
    if "killed" in fact.text and "KILLED" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return [(USED, (word, entry.seq)) for word in fact.text.split()]


KINDS = frozenset({"room", "tally.dropped"})
TALLY = Table(name="tally", columns=COLUMNS, kinds=KINDS, fold=fold)


class Tally(Plugin):
    """Counts how often each word was used."""

    name = "tally"
    facts = (Dropped,)
    tables = (TALLY,)


async def tally(path: Path, *texts: str, drop: str = "") -> dict[str, int]:
    """Append these, and return what the table holds then."""
    async with await opened(path) as store:
        for text in texts:
            await store.append([said(store.last + 1, text)])
        if drop:
            await store.append([NewEntry(fact=Dropped(word=drop), at=NOW)])
        return dict(await store.rows("SELECT word, uses FROM tally"))


async def append(path: Path, *texts: str) -> None:
    """Append these without the plugin."""
    async with await opened(path) as store:
        for text in texts:
            await store.append([said(store.last + 1, text)])


async def test_table_follows_the_log_and_equals_its_rebuild(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with use_plugins(Tally):
        assert await tally(path, "tea and tea", "tea") == {"tea": 3, "and": 1}
        assert await tally(path, "and so on", drop="tea") == {"and": 2, "so": 1, "on": 1}
        assert await rebuild(located(path)) == []
        with closing(look_into(path)) as other:
            other.write("UPDATE tally SET uses = 9 WHERE word = 'and'")
        [difference] = await rebuild(located(path))
        assert (difference.table, difference.missing, difference.extra) == ("tally", 1, 1)
        assert await tally(path) == {"and": 2, "so": 1, "on": 1}


async def test_statements_of_one_transaction_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with use_plugins(Tally):
        async with await opened(path) as store:
            dropped = NewEntry(fact=Dropped(word="b"), at=NOW)
            await store.append([said(1, "a b"), dropped, said(2, "b c")])
        assert await tally(path) == {"a": 1, "b": 1, "c": 1}


async def test_table_of_a_plugin_that_comes_back_has_what_it_missed(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await append(path, "one")
    with use_plugins(Tally):
        assert await tally(path, "two", drop="one") == {"two": 1}
    await append(path, "one two")
    assert await rebuild(located(path)) == [], "the table that is left there belongs to nobody"
    with closing(look_into(path)) as other:
        assert other.fetch("SELECT word, uses FROM tally") == [("two", 1)]
    with use_plugins(Tally):
        assert await tally(path, "two") == {"one": 1, "two": 3}
        assert await rebuild(located(path)) == []


async def test_table_that_comes_back_has_what_has_left_the_log(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with await opened_late(path) as store:
        await talked(store, 30)
        assert await moved(store)
    with use_plugins(Tally):
        assert (await tally(path, "garden"))["garden"] == 31
        assert await rebuild(located(path)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"columns": f"{COLUMNS}, colour text"},
        {"kinds": KINDS | {"mention"}},
    ],
)
async def test_table_with_another_definition_is_made_anew(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "s.db"
    with use_plugins(Tally):
        await tally(path, "tea")
        async with await opened(path) as store:
            await store.append([said(9, "tea", kind="mention")])
    with use_plugins(type("Changed", (Tally,), {"tables": (replace(TALLY, **change),)})):
        assert await tally(path, "tea") == {"tea": 2 + ("kinds" in change)}
        assert await rebuild(located(path)) == []


async def test_entry_that_the_table_cannot_take_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.db"
    with use_plugins(Tally):
        assert await tally(path, "one", "broken", "two") == {"one": 1, "two": 1}
        assert "entry 2 is left out of the table tally" in caplog.messages
        assert await rebuild(located(path)) == []


KILLED = """
import asyncio, sys
from pathlib import Path
from gateway.core.clock import SystemClock
from gateway.plugins import use_plugins
from gateway.store import ServerStore, Store
from tests.gateway.store.test_tables import Tally

url, path = sys.argv[1], Path(sys.argv[2])
with use_plugins(Tally):
    asyncio.run(Store.open(ServerStore(url, path) if url else path, SystemClock()))
"""


async def test_table_is_whole_after_a_kill_while_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with use_plugins(Tally):
        await tally(path, "one two")
    await append(path, "two", "killed")
    location = located(path)
    url = location.url if isinstance(location, ServerStore) else ""
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, url, path, env={**os.environ, "KILLED": "yes"}
    )
    assert await killed.wait() == -signal.SIGKILL
    with closing(look_into(path)) as other:
        assert dict(other.fetch("SELECT word, uses FROM tally")) == {"one": 1, "two": 1}
    with use_plugins(Tally):
        assert await tally(path) == {"one": 1, "two": 2, "killed": 1}
        assert await rebuild(located(path)) == []


def wrong_fold(entry: LogEntry) -> Iterable[tuple[str, tuple[str | int, ...]]]:
    """Return a statement that no database understands, for one word."""
    text = getattr(entry.fact, "text", "")
    return [("INSERT INTO nowhere VALUES ($1)", (entry.seq,))] if "poison" in text else fold(entry)


class Other(Plugin):
    """Counts words, too, and has no fault."""

    name = "other"
    tables = (
        replace(
            TALLY,
            name="other",
            fold=lambda entry: [(sql.replace("tally", "other"), row) for sql, row in fold(entry)],
        ),
    )


async def test_table_with_a_refused_statement_keeps_nothing_out_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    wrong = type("Wrong", (Tally,), {"tables": (replace(TALLY, fold=wrong_fold),)})
    with use_plugins(wrong, Other):
        async with await opened(path) as store:
            await store.append([said(1, "tea")])
            await store.append([said(2, "poison"), said(3, "tea")])
            await store.append([said(4, "tea")])
            assert len(await store.entries(kinds=["room"])) == 4
            assert dict(await store.rows("SELECT word, uses FROM tally")) == {"tea": 1}
            others = dict(await store.rows("SELECT word, uses FROM other"))
            assert others == {"tea": 3, "poison": 1}
    with use_plugins(Tally):  # mended
        assert await tally(path) == {"tea": 3, "poison": 1}
        assert await rebuild(located(path)) == []


async def test_table_that_cannot_be_made_keeps_no_store_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.db"
    columns = replace(TALLY, columns="word text PRIMARY KEY, PRIMARY KEY (word)")
    for table in (columns, replace(TALLY, fold=wrong_fold)):
        await append(path, "poison")
        with use_plugins(type("Wrong", (Tally,), {"tables": (table,)}), Other):
            async with await opened(path) as store:
                await store.append([said(store.last + 1, "tea")])
                assert (await store.rows("SELECT uses FROM other WHERE word = 'tea'"))[0][0] > 0
        assert any("tally" in one and "no more" in one for one in caplog.messages)
        caplog.clear()
    with use_plugins(Tally):
        assert await tally(path) == {"poison": 2, "tea": 2}


def test_plugin_cannot_have_a_table_of_the_store() -> None:
    table = replace(TALLY, name="log")
    with (
        pytest.raises(UnusablePlugin),
        use_plugins(type("Log", (Plugin,), {"name": "log", "tables": (table,)})),
    ):
        pass


@pytest.mark.postgresql
@pytest.mark.parametrize("is_current", [True, False])
async def test_copy_of_a_store_has_the_tables(tmp_path: Path, is_current: bool) -> None:
    path, target = tmp_path / "s.db", tmp_path / "copy.db"
    with use_plugins(Tally):
        await tally(path, "tea and tea")
    if not is_current:
        await append(path, "tea")
    with use_plugins(Tally):
        await asyncio.to_thread(
            transfer_store, located(path), target, ManualClock(), lambda _done, _whole: None
        )
        assert await rebuild(target) == []
        ENGINE.server, kept = None, ENGINE.server
        try:
            assert await tally(target) == {"tea": 3 - is_current, "and": 1}
        finally:
            ENGINE.server = kept


@pytest.mark.postgresql
async def test_processes_that_share_a_store_have_the_same_plugins(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with use_plugins(Tally):
        one = await open_shared(located(path))
        other = await open_shared(located(path))
        await other.close()
    with pytest.raises(StoreInUse, match="other plugins"):
        await open_shared(located(path))
    await one.close()
    await (await open_shared(located(path))).close()
