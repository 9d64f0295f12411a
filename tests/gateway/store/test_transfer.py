"""Copies of whole stores from a file to a database and back: the same log, tables and archives."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from gateway.cli.main import main
from gateway.core.clock import ManualClock
from gateway.store import NewEntry, ServerStore, Store, StoreMissing, StoreUnreadable, rebuild
from gateway.store.transfer import CopyReport, transfer_store
from tests.gateway.plugins.test_retention import in_files, moved, talked
from tests.gateway.plugins.test_retention import opened as opened_late
from tests.gateway.store.test_rebuild import batches
from tests.kits.backup import configured, made, put
from tests.kits.examples import examples
from tests.kits.store import ENGINE, heard, located, opened, run, said, within

pytestmark = pytest.mark.postgresql


def copied(source: Path | ServerStore, target: Path | ServerStore) -> CopyReport:
    return transfer_store(source, target, ManualClock(), lambda _done, _whole: None)


async def filled(path: Path, batches_: list[list[NewEntry]]) -> None:
    async with await Store.open(path, ManualClock()) as store:
        for batch in batches_:
            await store.append(within(batch, store))


@settings(max_examples=examples(15))
@given(batches)
def test_there_and_back_all_is_the_same(given_batches: list[list[NewEntry]]) -> None:
    with TemporaryDirectory() as folder:
        start, middle, end = (
            Path(folder, "a.db"),
            located(Path(folder, "b.db")),
            Path(folder, "c.db"),
        )
        run(filled(start, given_batches))
        report = copied(start, middle)
        assert copied(middle, end) == report
        for store in (start, middle, end):
            # PostgreSQL holds no NUL: a column that had one has its picture, and the body its escape
            assert run(rebuild(store)) == [] or "\\x00" in repr(given_batches)


def test_files_of_old_months_come_along_and_the_copy_goes_on(tmp_path: Path) -> None:
    async def fill() -> None:
        async with await opened_late(tmp_path / "s.db") as store:
            await talked(store, 30)
            assert await moved(store) == 61

    async def look(path: Path) -> None:
        async with await opened(path) as store:
            again = await store.append([said(3, "line 3 of the garden")])
            assert (again[0].seq, again[0].is_new) == (7, False), "a key counts for good"
            await store.append(heard(9_000))
            assert [row[0] for row in [*in_files(path), *await store.entry_rows()]] == list(
                range(1, 65)
            )
            assert len(await store.entries(match='"line 9000"')) == 1

    run(fill())
    server, file = located(tmp_path / "s.db"), tmp_path / "other" / "t.db"
    assert copied(server, file).entries == 1
    ENGINE.server, kept = None, ENGINE.server
    try:
        run(look(file))
        assert run(rebuild(file)) == []
    finally:
        ENGINE.server = kept
    run(look(tmp_path / "s.db"))


def test_nothing_is_copied_over_a_log_or_from_nowhere(tmp_path: Path) -> None:
    run(filled(tmp_path / "a.db", [heard(1)]))
    target = located(tmp_path / "b.db")
    copied(tmp_path / "a.db", target)
    with pytest.raises(StoreUnreadable, match="holds a log already"):
        copied(tmp_path / "a.db", target)
    with pytest.raises(StoreMissing):
        copied(tmp_path / "missing.db", located(tmp_path / "c.db"))


def test_the_command_copies_the_configured_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(filled(tmp_path / "a.db", [heard(1), heard(2)]))
    configuration = {
        "channels": {"here": {"platform": "console"}},
        "agents": [{"id": "reverie", "model": "main"}],
        "llm": {"providers": {"p": {"kind": "local"}}, "models": {"main": {"provider": "p"}}},
    }
    store = {"path": str(tmp_path / "a.db")}
    (tmp_path / "reverie.yaml").write_text(json.dumps(configuration | {"store": store}))
    target = located(tmp_path / "a.db")
    assert isinstance(target, ServerStore)
    command = ["store", "copy", "--config", str(tmp_path)]
    assert main([*command, "--to", target.url]) == 0
    assert "holds all 4 entries of" in capsys.readouterr().out
    assert main([*command, "--to", target.url]) == 2
    assert "holds a log already" in capsys.readouterr().err
    (tmp_path / "reverie.yaml").write_text(
        json.dumps(configuration | {"store": store | {"url": target.url}})
    )
    assert main(["log", "rebuild", "--config", str(tmp_path)]) == 0
    assert main(["log", "show", "--config", str(tmp_path)]) == 0
    assert "line 2" in capsys.readouterr().out
    assert main([*command, "--to", str(tmp_path / "back.db")]) == 0


def test_a_backup_of_a_database_is_that_of_a_file(tmp_path: Path) -> None:
    one, other = configured(tmp_path / "a"), configured(tmp_path / "b")
    one.store.path.parent.mkdir(parents=True)

    async def fill() -> None:
        async with await opened_late(one.store.path) as store:
            await talked(store, 200)
            await moved(store)

    run(fill())
    server = located(one.store.path)
    assert isinstance(server, ServerStore)
    config = one.store.model_validate({"path": one.store.path, "url": server.url}, strict=False)
    made(one.model_copy(update={"store": config}), tmp_path / "b.tar")
    put(tmp_path / "b.tar", other, exact=True)
    assert run(rebuild(other.store.path)) == []
    with pytest.raises(StoreUnreadable, match="restored into a file"):
        put(tmp_path / "b.tar", one.model_copy(update={"store": config}), exact=True)
