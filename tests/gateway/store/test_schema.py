"""The store's file: created, locked, refused, migrated, complete after a kill, and opened from any released version."""

import asyncio
import gzip
import json
import logging
import os
import re
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
from gateway.store.rebuild import old_schema_path, upgrade_store
from gateway.store.schema import APPLICATION_ID, migrations, unreadable_error
from tests.kits.backup import configured, made, put
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
    return subprocess.Popen([sys.executable, "-c", code, *args], cwd=ROOT, stdout=subprocess.PIPE, text=True)


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
        with pytest.raises(StoreInUse, match=f"process {holder.pid} .*kill {holder.pid}") as refusal:
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
async def test_a_second_process_is_refused_whatever_path_leads_to_the_store(tmp_path: Path, way: str) -> None:
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
async def test_kill_9_loses_nothing_acknowledged_and_leaves_nothing_half(tmp_path: Path, rounds: int) -> None:
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


# Stores written by released versions (`released/write.py`) open with this version and lose nothing

RELEASED = Path(__file__).parent / "released"
NEWEST = len(migrations())
SCHEMAS = list(range(1, NEWEST + 1))
Rows = list[tuple[object, ...]]


def released(schema: int, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.decompress((RELEASED / f"schema-{schema:02d}.db.gz").read_bytes()))
    return path


def log_of(path: Path) -> Rows:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM log ORDER BY seq").fetchall()


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return found


def test_there_is_one_of_each_schema_but_a_newest_that_is_not_released_yet() -> None:
    there = {int(path.name[7:9]) for path in RELEASED.glob("schema-*.db.gz")}
    assert {*SCHEMAS[:-1]} <= there <= {*SCHEMAS}, "before a migration is added: tests/gateway/store/released/write.py"


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_it_opens_and_loses_nothing(tmp_path: Path, schema: int) -> None:
    path = released(schema, tmp_path / "s.db")
    assert version_of(path) == schema
    before = log_of(path)
    assert len(before) > 100
    async with await opened(path) as store:
        assert len(await store.entries(limit=10_000)) == len(before), "each fact of then is a fact of now"
        waiting = {str(item.post.key): [part.state for part in item.parts] for item in await store.undelivered_posts()}
        assert waiting["half"] == ["sent", "pending"]
        assert waiting["begun"] == ["sending"]
        assert waiting["waiting"] == []
        assert "done" not in waiting
        assert (await store.append(heard(1000)))[0].is_new
        assert not (await store.append(heard(2)))[0].is_new, "what was known then is known now"
        assert await store.entry_rows(match="talk")
    assert log_of(path)[: len(before)] == before, "no entry was touched"
    assert version_of(path) == NEWEST
    assert await rebuild(path) == [], "every table matches the log"


@pytest.mark.parametrize("schema", SCHEMAS[:-1])
def test_it_is_kept_as_it_was(tmp_path: Path, schema: int, caplog: pytest.LogCaptureFixture) -> None:
    path = released(schema, tmp_path / "s.db")
    before = log_of(path)
    with caplog.at_level(logging.INFO):
        upgrade_store(path)
    old = old_schema_path(path, schema)
    assert (version_of(old), log_of(old)) == (schema, before)
    assert old.stat().st_mode & 0o777 == 0o600
    assert f"it is kept as {old}" in caplog.text
    upgrade_store(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s.db", f"s.db.schema-{schema}"], "and once"


def test_a_disk_without_room_is_told_and_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = released(3, tmp_path / "s.db")
    monkeypatch.setattr(sys.modules["gateway.store.rebuild"], "_FREE_SPACE_FACTOR", 1e12)
    upgrade_store(path)
    assert version_of(path) == NEWEST
    assert not old_schema_path(path, 3).exists()
    assert "there is no room to keep it as it was, with schema 3" in caplog.text


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from gateway.store import schema
from gateway.store.rebuild import upgrade_store

steps, at = schema.migrations(), int(sys.argv[2])
number, sql = steps[at]
# All of this one is done, and it is not committed.
schema.migrations = lambda: [*steps[:at], (number, f"{sql}; SELECT die()"), *steps[at + 1:]]
connect = sqlite3.connect

def connected(*args, **more):
    made = connect(*args, **more)
    made.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    return made

sqlite3.connect = connected
upgrade_store(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("step", SCHEMAS[1:])
async def test_a_migration_that_is_killed_leaves_the_old_or_the_new(tmp_path: Path, step: int) -> None:
    path = released(1, tmp_path / "s.db")
    before = log_of(path)
    done = subprocess.run([sys.executable, "-c", KILLED, path, str(step - 1)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert version_of(path) == step - 1, "the step before is whole, and nothing of this one is there"
    assert log_of(path) == before
    async with await opened(path) as store:
        assert len(await store.entries(limit=10_000)) == len(before)
    assert await rebuild(path) == []
    assert version_of(old_schema_path(path, 1)) == 1


async def test_a_newer_one_is_refused_with_the_fix_and_left_alone(tmp_path: Path) -> None:
    path = released(NEWEST, tmp_path / "s.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {NEWEST + 1}")
    before = path.read_bytes()
    for trying in (opened(path), Store.open_readonly(path), rebuild(path)):
        with pytest.raises(
            StoreTooNew, match=rf"schema {NEWEST + 1} and this reverie knows up to {NEWEST}: run a newer"
        ):
            await trying
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.schema-*"))


async def test_an_older_one_is_not_read_before_it_is_brought_forward(tmp_path: Path) -> None:
    path = released(2, tmp_path / "s.db")
    with pytest.raises(StoreOpenError, match=r"older schema 2: start the gateway once"):
        await Store.open_readonly(path)


@pytest.mark.parametrize("schema", [1, 5, NEWEST])
def test_a_backup_of_an_older_one_is_restored_and_brought_forward(tmp_path: Path, schema: int) -> None:
    settings = configured(tmp_path / "a")
    released(schema, settings.store.path)
    before = log_of(settings.store.path)
    assert made(settings, tmp_path / "b.tar").store.schema == schema
    assert version_of(settings.store.path) == schema, "the running one may be of the version before"
    other = configured(tmp_path / "c")
    put(tmp_path / "b.tar", other)
    assert version_of(other.store.path) == NEWEST
    assert log_of(other.store.path)[: len(before)] == before
    assert run(rebuild(other.store.path)) == []
    assert not list((tmp_path / "c").rglob("*.schema-*")), "as it was it stands in the backup"


def test_released_migrations_are_not_changed() -> None:
    """The migrations up to a schema make the same tables as the version that released it."""
    for schema in SCHEMAS[:-1]:
        sql = ";".join(text for _, text in migrations()[:schema])
        with closing(sqlite3.connect(":memory:")) as now, closing(sqlite3.connect(":memory:")) as then:
            now.executescript(sql)
            then.deserialize(gzip.decompress((RELEASED / f"schema-{schema:02d}.db.gz").read_bytes()))
            told = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name"
            made_now, made_then = (
                [(kind, name, re.sub(r"\s+", " ", text)) for kind, name, text in one.execute(told)]
                for one in (now, then)
            )
            assert made_now == made_then, schema


# Copies of a store: one moment of it, however much is written meanwhile, and checked before use


async def grown_of_files(path: Path) -> Path:
    """Make a store that takes several steps to copy."""
    async with await opened(path) as store:
        for batch in range(30):
            lines = range(200 * batch, 200 * (batch + 1))
            await store.append([one for line in lines for one in heard(line, "a line of a talk " * 30)])
    return path


def entries(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("SELECT count(*) FROM log").fetchone()[0]
        return found


async def test_who_writes_between_any_two_steps_is_not_waited_for_and_not_in_it(tmp_path: Path) -> None:
    path = await grown_of_files(tmp_path / "s.db")
    before, steps = entries(path), 0
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:

        def write(done: int, whole: int) -> None:
            nonlocal steps
            steps += 1
            assert steps < 100, "it begins again with each write, and never ends"
            assert done <= whole
            row = (before + steps, "2026-03-04T05:06:07.000000+00:00", "dmn", '{"state": "x", "kind": "dmn"}')
            writer.execute("INSERT INTO log (seq, at, kind, body) VALUES (?, ?, ?, ?)", row)

        copy_store(path, tmp_path / "copy.db", write)
    assert steps >= 4
    assert entries(path) == before + steps
    found = check_store(tmp_path / "copy.db")
    assert (found.entries, found.last) == (before, before)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


async def test_it_is_one_file_and_can_be_read_without_another(tmp_path: Path) -> None:
    path = await grown_of_files(tmp_path / "s.db")
    copy_store(path, tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy.db?*"))
    with closing(sqlite3.connect(f"file:{tmp_path / 'copy.db'}?immutable=1", uri=True)) as connection:
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
