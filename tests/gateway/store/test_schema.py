"""The store's file: created, locked, refused, migrated, and complete after a kill."""

import asyncio
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.store import (
    Store,
    StoreError,
    StoreInUse,
    StoreMissing,
    StoreOpenError,
    StoreTooNew,
    StoreUnavailable,
    StoreUnreadable,
    rebuild,
)
from gateway.store.files import check_store, copy_store, seal_store
from gateway.store.schema import APPLICATION_ID, migrations, unreadable_error
from tests.kits.store import heard, opened, run

# The store's file: created, locked, refused, migrated, and complete after a kill

pytestmark = pytest.mark.sqlite
ROOT = Path(__file__).resolve().parents[3]

HOLD = """
import asyncio, sys
from tests.kits.store import opened
from pathlib import Path

async def main():
    async with await opened(Path(sys.argv[1])):
        print("open", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""

APPEND = """
import asyncio, itertools, sys
from tests.kits.store import heard, opened
from pathlib import Path

numbers = itertools.count(int(sys.argv[2]))

async def caller(store):
    while True:
        number = next(numbers)
        answer = await store.append(heard(number) + heard(-number))
        print(number, *(one.seq for one in answer), flush=True)

async def main():
    async with await opened(Path(sys.argv[1])) as store:
        await asyncio.gather(*(caller(store) for _ in range(8)))

asyncio.run(main())
"""


def child(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


async def test_folders_and_files_belong_to_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "s.db"
    async with await opened(path) as store:
        await store.append(heard(1))
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_second_process_is_refused_and_kill_9_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with child(HOLD, str(path)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(
            StoreInUse, match=f"process {holder.pid} .*kill {holder.pid}"
        ) as refusal:
            await opened(path)
        assert refusal.value.pid == holder.pid
        said = json.loads((tmp_path / "s.db.lock").read_text())
        assert said == {"pid": holder.pid, "started": "2026-01-01T00:00:00+00:00"}
        with pytest.raises(StoreInUse):
            await rebuild(path)

        async def beside() -> None:
            async with await Store.open_readonly(path) as reader:
                assert await reader.entries() == []

        await beside()
        holder.kill()
        holder.wait()
    async with await opened(path) as store:
        assert (await store.append(heard(1)))[0].is_new


@pytest.mark.parametrize("way", ["link", "hard link", "link to the folder", "lock file deleted"])
async def test_a_second_process_is_refused_whatever_path_leads_to_the_store(
    tmp_path: Path, way: str
) -> None:
    path = tmp_path / "data" / "s.db"
    with child(HOLD, str(path)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        other = tmp_path / "other.db"
        if way == "link":
            other.symlink_to(path)
        elif way == "hard link":
            other.hardlink_to(path)
        elif way == "link to the folder":
            (tmp_path / "elsewhere").symlink_to(path.parent)
            other = tmp_path / "elsewhere" / "s.db"
        else:
            (tmp_path / "data" / "s.db.lock").unlink()
            other = path
        for beside in (opened, rebuild):
            with pytest.raises(StoreInUse):
                await beside(other)
        holder.kill()
        holder.wait()
    async with await opened(path) as store:
        assert (await store.append(heard(1)))[0].is_new


async def test_a_store_is_refused_to_its_own_process_too(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db"):
        with pytest.raises(StoreInUse, match=f"process {os.getpid()}"):
            await opened(tmp_path / "s.db")


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.system)])
async def test_kill_9_loses_nothing_acknowledged_and_leaves_nothing_half(
    tmp_path: Path, rounds: int
) -> None:
    path = tmp_path / "s.db"
    acknowledged: dict[int, list[int]] = {}
    for number in range(rounds):
        with child(APPEND, str(path), str(1 + number * 1_000_000)) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(1 + 30 * (number % 7))]
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout
        for told in lines:
            if told.endswith("\n"):
                name, *seqs = map(int, told.split())
                acknowledged[name] = seqs
        await _check(path, acknowledged)
    assert len(acknowledged) > rounds
    assert await rebuild(path) == []


async def _check(path: Path, acknowledged: dict[int, list[int]]) -> None:
    async with await opened(path) as store:
        rows = await store.entry_rows(limit=10_000_000)
    keys = {row[4]: row[0] for row in rows if row[4]}
    for number, (message, _, mirrored, _) in acknowledged.items():
        assert keys[f"message:irc.test/#a:{number}"] == message
        assert keys[f"message:irc.test/#a:-{number}"] == mirrored
    numbers = [int(key.rpartition(":")[2]) for key in keys]
    assert sorted(numbers) == sorted(-number for number in numbers), "each transaction is whole"
    assert [row[5] for row in rows if row[2] == "judged"] == [
        row[0] for row in rows if row[2] == "room"
    ]


def _foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()


def _newer(path: Path) -> None:
    run(_touch(path))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()


async def _touch(path: Path) -> None:
    async with await opened(path) as store:
        await store.append(heard(1))


def _unreleased(path: Path) -> None:
    run(_touch(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 0x52455652")


def _torn(path: Path) -> None:
    run(_touch(path))
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 3996)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (_foreign, StoreUnreadable, "not a store of reverie's"),
        (lambda path: path.write_text("dear diary, " * 400), StoreUnreadable, "not a database"),
        (lambda path: path.mkdir(), StoreUnreadable, "cannot use"),
        (_newer, StoreTooNew, "schema 999"),
        (
            _unreleased,
            StoreUnreadable,
            "of a reverie before 0.2.0, whose stores are read no more: look into it with",
        ),
        (_torn, StoreUnreadable, "malformed"),
    ],
)
async def test_what_cannot_be_opened_is_said_and_left_alone(
    tmp_path: Path, make: object, error: type[StoreOpenError], message: str
) -> None:
    path = tmp_path / "s.db"
    assert callable(make)
    await asyncio.to_thread(make, path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(error, match=message):
        await opened(path)
    with pytest.raises(StoreOpenError):
        await Store.open_readonly(path)
    assert (path.read_bytes() if path.is_file() else None) == before
    with pytest.raises(error):  # the lock was let go: the same answer again, not InUse
        await opened(path)


async def test_a_full_disk_is_told_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    (tmp_path / "s.db.lock").symlink_to("/dev/full")
    with pytest.raises(StoreUnreadable, match=r"cannot write the lock file .*s\.db\.lock"):
        await opened(path)
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert "make room" in str(unreadable_error(path, caught.value))
    assert isinstance(unreadable_error(path, caught.value), StoreUnavailable)


async def test_reading_a_missing_store_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s.db"
    with pytest.raises(StoreMissing, match="no store at"):
        await Store.open_readonly(path)
    with pytest.raises(StoreMissing):
        await rebuild(path)
    assert list(tmp_path.iterdir()) == []


async def test_migrations_are_numbered_without_a_gap_and_recorded(tmp_path: Path) -> None:
    steps = migrations()
    assert [number for number, _ in steps] == list(range(1, len(steps) + 1))
    await _touch(tmp_path / "s.db")
    connection = sqlite3.connect(tmp_path / "s.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (len(steps),)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_a_migration_that_was_cut_off_leaves_nothing_half(tmp_path: Path) -> None:
    """A first start that is killed before its first commit leaves an empty file."""
    path = tmp_path / "s.db"
    path.touch()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(f"PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; {migrations()[0][1]}")
    connection.close()
    await _touch(path)


# A migration is whole or not there, and what it makes is refused to older versions

NEWEST = len(migrations())
KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from gateway.store import schema

# All of this one is done, and it is not committed.
steps = (*schema.migrations(), (int(sys.argv[2]), f"{sys.argv[3]}; SELECT die();"))
schema.migrations = lambda: steps
connect = sqlite3.connect

def connected(*args, **more):
    made = connect(*args, **more)
    made.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    return made

sqlite3.connect = connected
schema.migrate_schema(Path(sys.argv[1]))
"""


def log_of(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM log ORDER BY seq").fetchall()


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return found


async def test_a_migration_is_whole_or_not_there_and_its_wait_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "reverie.store")
    path, made = tmp_path / "s.db", "ALTER TABLE view ADD COLUMN colour TEXT"
    await _touch(path)
    assert not caplog.messages, "a new store makes nobody wait"
    before = log_of(path)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path, str(NEWEST + 1), made], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert (version_of(path), log_of(path)) == (NEWEST, before)
    steps = (*migrations(), (NEWEST + 1, f"{made};"))
    with monkeypatch.context() as next_version:
        next_version.setattr("gateway.store.schema.migrations", lambda: steps)
        with pytest.raises(StoreOpenError, match=rf"older schema {NEWEST}: start the gateway once"):
            await Store.open_readonly(path)
        async with await opened(path) as store:
            assert f"from schema {NEWEST}" in caplog.text
            assert (await store.append(heard(2)))[0].is_new
            assert not (await store.append(heard(1)))[0].is_new, "what was known then is known now"
        assert await rebuild(path) == [], "every table matches the log"
    assert (version_of(path), log_of(path)[: len(before)]) == (NEWEST + 1, before)
    whole = path.read_bytes()
    for trying in (opened(path), Store.open_readonly(path), rebuild(path)):
        with pytest.raises(
            StoreTooNew,
            match=rf"schema {NEWEST + 1} and this reverie knows up to {NEWEST}: run a newer",
        ):
            await trying
    assert path.read_bytes() == whole


# Copies of a store: one moment of it, however much is written meanwhile, and checked before use


async def grown_of_files(path: Path) -> Path:
    """Make a store that takes several steps to copy."""
    async with await opened(path) as store:
        for batch in range(30):
            lines = range(200 * batch, 200 * (batch + 1))
            await store.append(
                [one for line in lines for one in heard(line, "a line of a talk " * 30)]
            )
    return path


def entries(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("SELECT count(*) FROM log").fetchone()[0]
        return found


async def test_who_writes_between_any_two_steps_is_not_waited_for_and_not_in_it(
    tmp_path: Path,
) -> None:
    path = await grown_of_files(tmp_path / "s.db")
    before, steps = entries(path), 0
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:

        def write(done: int, whole: int) -> None:
            nonlocal steps
            steps += 1
            assert steps < 100, "it begins again with each write, and never ends"
            assert done <= whole
            row = (
                before + steps,
                "2026-03-04T05:06:07.000000+00:00",
                "dmn",
                '{"state": "x", "kind": "dmn"}',
            )
            writer.execute("INSERT INTO log (seq, at, kind, body) VALUES (?, ?, ?, ?)", row)

        copy_store(path, tmp_path / "copy.db", write)
    assert steps >= 4
    assert entries(path) == before + steps
    found = check_store(tmp_path / "copy.db")
    assert (found.entries, found.last) == (before, before)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


async def test_it_is_one_file_and_can_be_read_without_another(tmp_path: Path) -> None:
    copy_store(await grown_of_files(tmp_path / "s.db"), tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy.db?*"))
    with closing(
        sqlite3.connect(f"file:{tmp_path / 'copy.db'}?immutable=1", uri=True)
    ) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_sealing_brings_home_what_is_in_the_log_of_writes(tmp_path: Path) -> None:
    path = await grown_of_files(tmp_path / "s.db")
    async with await opened(path) as store:
        await store.append(heard(-1, "the last words"))
    before = entries(path)
    seal_store(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == [".s.db.mark", "s.db"]
    assert entries(path) == before


async def test_a_store_in_use_is_not_sealed(tmp_path: Path) -> None:
    path = await grown_of_files(tmp_path / "s.db")
    async with await opened(path):
        with pytest.raises(StoreError):
            seal_store(path)


async def test_what_is_there_is_not_replaced_and_what_is_not_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="no store at"):
        copy_store(tmp_path / "s.db", tmp_path / "copy.db")
    path = await grown_of_files(tmp_path / "s.db")
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(FileExistsError):
        copy_store(path, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreTooNew):
        copy_store(path, tmp_path / "other.db")


@pytest.mark.parametrize("page", [3, 40, 200, 900])
async def test_a_page_that_rots_is_found(tmp_path: Path, page: int) -> None:
    path = await grown_of_files(tmp_path / "s.db")
    seal_store(path)
    copy_store(path, tmp_path / "copy.db")
    with (tmp_path / "copy.db").open("r+b") as file:
        file.seek(4096 * page)
        file.write(b"\x5a" * 4096)
    with pytest.raises(StoreError, match=r"damaged|cannot read"):
        check_store(tmp_path / "copy.db")
