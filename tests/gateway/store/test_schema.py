"""The store's file: created, locked, refused, migrated, and complete after a kill."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.store import Store, StoreInUse, StoreMissing, StoreOpenError, StoreTooNew, StoreUnreadable, rebuild
from gateway.store.schema import APPLICATION_ID, migrations, unreadable_error
from tests.kits.store import heard, opened, run

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
    return subprocess.Popen([sys.executable, "-c", code, *args], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_folders_and_files_belong_to_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "s.db"

    async def story() -> None:
        async with await opened(path) as store:
            await store.append(heard(1))
            for file in path.parent.iterdir():
                assert stat.S_IMODE(file.stat().st_mode) == 0o600, file

    run(story())
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_second_process_is_refused_and_kill_9_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with child(HOLD, str(path)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse, match=f"process {holder.pid} .*kill {holder.pid}") as refusal:
            run(opened(path))
        assert refusal.value.pid == holder.pid
        said = json.loads((tmp_path / "s.db.lock").read_text())
        assert said == {"pid": holder.pid, "started": "2026-01-01T00:00:00+00:00"}
        with pytest.raises(StoreInUse):
            run(rebuild(path))

        async def beside() -> None:
            async with await Store.open_readonly(path) as reader:
                assert await reader.entries() == []

        run(beside())
        holder.kill()
        holder.wait()

    async def after() -> None:
        async with await opened(path) as store:
            assert (await store.append(heard(1)))[0].is_new

    run(after())


def test_a_store_is_refused_to_its_own_process_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db"):
            with pytest.raises(StoreInUse, match=f"process {os.getpid()}"):
                await opened(tmp_path / "s.db")

    run(story())


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.system)])
def test_kill_9_loses_nothing_acknowledged_and_leaves_nothing_half(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "s.db"
    acknowledged: dict[int, list[int]] = {}
    for number in range(rounds):
        with child(APPEND, str(path), str(1 + number * 1_000_000)) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(0.05 + 0.02 * (number % 7))
            writer.send_signal(signal.SIGKILL)
            lines = [first, *writer.stdout]
        for told in lines:
            if told.endswith("\n"):
                name, *seqs = map(int, told.split())
                acknowledged[name] = seqs
        run(_check(path, acknowledged))
    assert len(acknowledged) > rounds
    assert run(rebuild(path)) == []


async def _check(path: Path, acknowledged: dict[int, list[int]]) -> None:
    async with await opened(path) as store:
        rows = await store.entry_rows(limit=10_000_000)
    keys = {row[4]: row[0] for row in rows if row[4]}
    for number, (message, _, mirrored, _) in acknowledged.items():
        assert keys[f"message:irc.test/#a:{number}"] == message
        assert keys[f"message:irc.test/#a:-{number}"] == mirrored
    numbers = [int(key.rpartition(":")[2]) for key in keys]
    assert sorted(numbers) == sorted(-number for number in numbers), "each transaction is whole"
    assert [row[5] for row in rows if row[2] == "judged"] == [row[0] for row in rows if row[2] == "room"]


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
        (_torn, StoreUnreadable, "malformed"),
    ],
)
def test_what_cannot_be_opened_is_said_and_left_alone(
    tmp_path: Path, make: object, error: type[StoreOpenError], message: str
) -> None:
    path = tmp_path / "s.db"
    assert callable(make)
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(error, match=message):
        run(opened(path))
    with pytest.raises(StoreOpenError):
        run(Store.open_readonly(path))
    assert (path.read_bytes() if path.is_file() else None) == before
    with pytest.raises(error):  # the lock was let go: the same answer again, not InUse
        run(opened(path))


def test_a_full_disk_is_told_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    (tmp_path / "s.db.lock").symlink_to("/dev/full")
    with pytest.raises(StoreUnreadable, match=r"cannot write the lock file .*s\.db\.lock"):
        run(opened(path))
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert "make room" in str(unreadable_error(path, caught.value))
    assert "restore" not in str(unreadable_error(path, caught.value))


def test_reading_a_missing_store_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s.db"
    with pytest.raises(StoreMissing, match="no store at"):
        run(Store.open_readonly(path))
    with pytest.raises(StoreMissing):
        run(rebuild(path))
    assert list(tmp_path.iterdir()) == []


def test_migrations_are_numbered_without_a_gap_and_recorded(tmp_path: Path) -> None:
    steps = migrations()
    assert [number for number, _ in steps] == list(range(1, len(steps) + 1))
    run(_touch(tmp_path / "s.db"))
    connection = sqlite3.connect(tmp_path / "s.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (len(steps),)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_migration_that_was_cut_off_leaves_nothing_half(tmp_path: Path) -> None:
    """A first start that is killed before its first commit leaves an empty file."""
    path = tmp_path / "s.db"
    path.touch()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(f"PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; {migrations()[0][1]}")
    connection.close()
    run(_touch(path))
