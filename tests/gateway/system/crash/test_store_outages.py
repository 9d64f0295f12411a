"""The log cannot be written for a while: a full disk, a lock, a second writer. On a gateway with a
real file."""

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway import app
from gateway.core.clock import ManualClock
from gateway.core.control_socket import find_gateway_state
from gateway.core.facts import PostQueued
from gateway.plugins.health.program import judge_gateway
from gateway.store import Store, StoreError, StoreOutage
from gateway.stream import store_outages
from reverie.testing.gateway import CONSOLE, Gateway, Held, running
from reverie.testing.waiting import until
from tests.kits.store import NOW, heard, in_writer

LONG = "x" * 12_000
OWNED: dict[str, Any] = {"access": {"dm": "open", "roles": {"owner": ["console:ann"]}}}


class Disk:
    """What the store of the gateway under test is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store: Store | None = None
        opening = Store.open.__func__  # type: ignore[attr-defined]

        async def opened(cls: type[Store], *args: Any, **more: Any) -> Store:
            self.store = await opening(cls, *args, **more)
            return self.store

        monkeypatch.setattr(Store, "open", classmethod(opened))

    async def fill(self) -> None:
        """The file may not grow any more: what is `LONG` does not fit."""
        assert self.store is not None
        ((pages,),) = await in_writer(self.store, "PRAGMA page_count")
        await in_writer(self.store, f"PRAGMA max_page_count = {pages}")

    async def free(self) -> None:
        assert self.store is not None
        await in_writer(self.store, "PRAGMA max_page_count = 1000000")

    def has_waiting_turn(self) -> bool:
        """Whether somebody waits with what costs money."""
        assert self.store is not None
        return bool(self.store._working._waiters)

    async def damage(self) -> None:
        """All pages but the first are garbage, and nothing of them is left in memory."""
        assert self.store is not None
        await in_writer(self.store, "PRAGMA wal_checkpoint(TRUNCATE)")
        for connection in (self.store._writing, self.store._reading):
            await connection.run(connection.fetch, "PRAGMA shrink_memory")
        with self.store.path.open("r+b") as file:
            size = file.seek(0, 2)
            file.seek(4096)
            file.write(b"\xa5" * (size - 4096))

    async def until_out(self) -> StoreOutage:
        assert self.store is not None
        while (outage := self.store.outage) is None:
            await asyncio.sleep(0.005)
        return outage


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Callable[[], None]]:
    """Another program is about to write, until the block ends or what it gives is called."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield other.close
    finally:
        other.close()


@contextlib.asynccontextmanager
async def patient(path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    async with await Store.open(path, clock, patient=True, locked_s=0.01) as store:
        yield store


async def passing(clock: ManualClock, true: Callable[[], object]) -> None:
    while not true():
        clock.advance(0.25)
        await asyncio.sleep(0.002)


async def test_a_lock_of_another_program_is_waited_out_in_order_and_told_once_it_lasts(
    tmp_path: Path,
) -> None:
    clock, told = ManualClock(NOW), list[str]()
    async with patient(tmp_path / "s.db", clock) as store:
        store.outage_listeners.append(lambda outage: told.append(outage.reason if outage else ""))
        await store.append(heard(1))
        with locked(tmp_path / "s.db") as unlock:
            waiting = [asyncio.create_task(store.append(heard(number))) for number in range(2, 30)]
            begun_s = clock.monotonic()
            await passing(clock, lambda: told)
            assert clock.monotonic() - begun_s >= 5.0
            assert told == ["another program holds a lock on the store: end it"]
            assert store.outage is not None
            waiting[3].cancel()
            await passing(clock, waiting[3].done)
            assert not any(task.done() for task in waiting if task is not waiting[3])
            unlock()
        kept = [task for task in waiting if task is not waiting[3]]
        await passing(clock, lambda: all(task.done() for task in kept))
        assert all(task.result()[0].is_new for task in kept)
        assert told[1:] == [""]
        facts = [one.key for one in await store.entries(limit=1000) if one.key]
        numbers = [int(key.rpartition(":")[2]) for key in facts]
        assert numbers == [number for number in range(1, 30) if number != 5]


async def lost(clock: ManualClock, store: Store) -> str:
    """Why the log cannot be written, once the writer has noticed."""
    store.check_files()
    await passing(clock, lambda: store.outage)
    assert store.outage is not None
    return store.outage.reason


async def keys(path: Path) -> list[str]:
    async with await Store.open(path, ManualClock(NOW)) as store:
        return [one.key.rpartition(":")[2] for one in await store.entries() if one.key]


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_store_that_is_deleted_or_replaced_is_noticed_and_kept(
    tmp_path: Path, replaced: bool
) -> None:
    path, clock = tmp_path / "s.db", ManualClock(NOW)

    async with patient(path, clock) as store:
        await store.append(heard(1))
        await store.append(heard(2))
        for file in tmp_path.iterdir():
            file.unlink()
        if replaced:
            path.write_bytes(b"something else")
        reason = await lost(clock, store)
        assert ("replaced by another" if replaced else "deleted or moved") in reason
        assert f"all that it held is in {path}.rescued" in reason
        waiting = asyncio.create_task(store.append(heard(3)))
        await passing(clock, lambda: clock.monotonic() > 60)
        assert not waiting.done(), "it would be written to a file that is gone"
        store.give_up()
        await asyncio.gather(waiting, return_exceptions=True)
    if replaced:
        assert path.read_bytes() == b"something else"
        path.unlink()
    assert await keys(path) == ["1", "2"]
    assert not path.with_name("s.db.rescued").exists()


async def test_a_write_ahead_log_that_is_deleted_is_noticed_and_nothing_is_lost_by_kill_9(
    tmp_path: Path,
) -> None:
    path, clock, copy = tmp_path / "s.db", ManualClock(NOW), tmp_path / "copy.db"

    async with patient(path, clock) as store:
        await store.append(heard(1))
        path.with_name("s.db-wal").unlink()
        assert "nothing is lost: restart the gateway" in await lost(clock, store)
        shutil.copyfile(path, copy)  # what a killed process leaves
        store.give_up()
    assert await keys(copy) == await keys(path) == ["1"]


async def is_ready(gateway: Gateway) -> bool:
    snapshot = (await find_gateway_state(gateway.path)).snapshot
    return snapshot is not None and snapshot.is_ready


async def test_a_full_disk_stops_nothing_and_nothing_is_lost_or_doubled(
    tmp_path: Path, disk: Disk
) -> None:
    async with running(tmp_path, **OWNED) as gateway:
        await gateway.ask("hello", sender="ann")
        await disk.fill()
        waits = [
            asyncio.create_task(gateway.say(text, sender="ann"))
            for text in (f"long {LONG}", "and then?")
        ]
        outage = await disk.until_out()
        assert "disk is full" in outage.reason
        assert not any(task.done() for task in waits), "the platform is not told that it was heard"
        while await is_ready(gateway):
            await asyncio.sleep(0.005)
        is_well, (first, *_) = await judge_gateway(gateway.path, [CONSOLE], NOW)
        assert (is_well, "disk is full" in first) == (False, True)
        await disk.free()
        await asyncio.gather(*waits)
        await gateway.screen.until(3)
        while not await is_ready(gateway):
            await asyncio.sleep(0.005)
        heard = list(await gateway.facts("direct"))
        assert len(heard) == 3
        told = [one.post.text for one in await gateway.facts("post") if isinstance(one, PostQueued)]
        assert sum("I could not write my log" in text for text in told) == 1
        assert sum("disk is full" in text for text in gateway.sent("ann")) == 1
        asked = "".join(str(one.conversation[-1]) for one in gateway.scripted.requests)
        assert asked.count("and then?") == 1


async def test_an_answer_that_was_paid_waits_for_the_disk_and_is_not_asked_for_again(
    tmp_path: Path, disk: Disk
) -> None:
    model = Held(Script(rules=(ScriptRule(match="", reply=f"dear {LONG}"),)))
    async with running(tmp_path, model) as gateway:
        await gateway.say("hello", sender="ann")
        await gateway.asked(1)
        await disk.fill()
        model.go.set()
        await disk.until_out()
        assert gateway.screen.parts == []
        await disk.free()
        await gateway.screen.until(1)
        (turn,) = await gateway.turns()
        assert (turn.outcome, len(model.requests)) == ("replied", 1)


async def test_an_outage_that_lasts_is_told_to_an_owner_while_it_lasts(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_outages, "STORE_OUTAGE_TOLD_S", 0.0)

    async with running(tmp_path, **OWNED) as gateway:
        await gateway.ask("hello", sender="ann")
        await disk.fill()
        said = asyncio.create_task(gateway.say(LONG, sender="bob"))
        await gateway.screen.until(2)
        (told,) = gateway.sent("ann")[1:]
        assert told.startswith(
            "I cannot write my log: the disk is full: make room where the store is."
        )
        await disk.free()
        await said
        await gateway.screen.until(4)
        assert sum("I could not write my log from" in text for text in gateway.sent("ann")) == 1


async def test_a_turn_that_runs_into_an_outage_asks_the_model_for_nothing_more(
    tmp_path: Path, disk: Disk
) -> None:
    rules = (
        ScriptRule(match="hello", calls=(("recall", json.dumps({"query": "tea"})),)),
        ScriptRule(match="", reply="done"),
    )
    model = Held(Script(rules=rules))
    async with running(tmp_path, model, **OWNED) as gateway:
        await gateway.say("hello", sender="ann")
        await gateway.asked(1)
        await disk.fill()
        said = asyncio.create_task(gateway.say(LONG, sender="bob"))
        await disk.until_out()
        model.go.set()
        await until(disk.has_waiting_turn)
        assert len(model.requests) == 1
        await disk.free()
        await said
        await gateway.screen.until(1)


async def test_the_gateway_ends_for_its_supervisor_only_if_it_is_told_to(
    tmp_path: Path, disk: Disk
) -> None:
    gateway = running(tmp_path, store={"path": "reverie.db", "exit_after": 0.001})
    gateway.start()
    await gateway.ask("hello", sender="ann")
    await disk.fill()
    said = asyncio.create_task(gateway.say(LONG, sender="ann"))
    with pytest.raises(app.StoreGivenUp, match="for too long"):
        await gateway.task
    said.cancel()
    await asyncio.gather(said, return_exceptions=True)


async def test_a_second_writer_still_ends_the_gateway(tmp_path: Path) -> None:
    model = Held()
    gateway = running(tmp_path, model)
    gateway.start()
    await gateway.say("hello", sender="ann")
    await gateway.asked(1)
    with contextlib.closing(sqlite3.connect(gateway.path)) as other, other:
        other.execute(
            "INSERT INTO log (seq, at, kind, body) SELECT max(seq) + 1, 'x', 'dmn_saved', '{}' FROM log"
        )
    model.go.set()  # the turn's own entries find their places taken
    with pytest.raises(StoreError, match="not written"):
        await gateway.task


async def test_owners_are_told_before_the_gateway_ends_on_a_damaged_store(
    tmp_path: Path, disk: Disk
) -> None:
    told = list[str]()

    async def play() -> None:
        model = Held()
        async with running(tmp_path, model, **OWNED) as gateway:
            await gateway.say("hello", sender="ann")
            await gateway.asked(1)
            await disk.damage()
            model.go.set()
            await gateway.screen.until(1)
            told.append(gateway.screen.parts[-1].body)

    with pytest.raises(StoreError, match="malformed"):
        await play()
    (said,) = told
    assert "I stop now, because my log cannot be used: " in said
    assert "malformed" in said
