"""Stores written by released versions (`released/write.py`) open with this version and lose nothing."""

import gzip
import logging
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.store import Store, StoreOpenError, StoreTooNew, rebuild
from gateway.store.rebuild import old_schema_path, upgrade_store
from gateway.store.schema import migrations
from tests.kits.backup import configured, made, put
from tests.kits.store import heard, opened, run

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
def test_it_opens_and_loses_nothing(tmp_path: Path, schema: int) -> None:
    path = released(schema, tmp_path / "s.db")
    assert version_of(path) == schema
    before = log_of(path)
    assert len(before) > 100

    async def story() -> None:
        async with await opened(path) as store:
            assert len(await store.entries(limit=10_000)) == len(before), "each fact of then is a fact of now"
            waiting = {
                str(item.post.key): [part.state for part in item.parts] for item in await store.undelivered_posts()
            }
            assert waiting["half"] == ["sent", "pending"]
            assert waiting["begun"] == ["sending"]
            assert waiting["waiting"] == []
            assert "done" not in waiting
            assert (await store.append(heard(1000)))[0].is_new
            assert not (await store.append(heard(2)))[0].is_new, "what was known then is known now"
            assert await store.entry_rows(match="talk")

    run(story())
    assert log_of(path)[: len(before)] == before, "no entry was touched"
    assert version_of(path) == NEWEST
    assert run(rebuild(path)) == [], "every table is what the log says"


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
def test_a_migration_that_is_killed_leaves_the_old_or_the_new(tmp_path: Path, step: int) -> None:
    path = released(1, tmp_path / "s.db")
    before = log_of(path)
    done = subprocess.run([sys.executable, "-c", KILLED, path, str(step - 1)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert version_of(path) == step - 1, "the step before is whole, and nothing of this one is there"
    assert log_of(path) == before

    async def story() -> None:
        async with await opened(path) as store:
            assert len(await store.entries(limit=10_000)) == len(before)

    run(story())
    assert run(rebuild(path)) == []
    assert version_of(old_schema_path(path, 1)) == 1


def test_a_newer_one_is_refused_with_the_fix_and_left_alone(tmp_path: Path) -> None:
    path = released(NEWEST, tmp_path / "s.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {NEWEST + 1}")
    before = path.read_bytes()
    for trying in (opened(path), Store.open_readonly(path), rebuild(path)):
        with pytest.raises(
            StoreTooNew, match=rf"schema {NEWEST + 1} and this reverie knows up to {NEWEST}: run a newer"
        ):
            run(trying)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.schema-*"))


def test_an_older_one_is_not_read_before_it_is_brought_forward(tmp_path: Path) -> None:
    path = released(2, tmp_path / "s.db")
    with pytest.raises(StoreOpenError, match=r"older schema 2: start the gateway once"):
        run(Store.open_readonly(path))


@pytest.mark.parametrize("schema", [1, 5, NEWEST])
def test_a_backup_of_an_older_one_is_restored_and_brought_forward(tmp_path: Path, schema: int) -> None:
    settings = configured(tmp_path / "a")
    released(schema, settings.store.path)
    before = log_of(settings.store.path)
    backup = made(settings, tmp_path / "b.tar")
    assert backup.manifest.schema_version == schema
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
