"""Retention: whole months that are old leave the log for a file beside it; nothing is lost, nothing
else changes."""

import asyncio
import gzip
import json
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.cli.main import main
from gateway.config.models import StoreConfig
from gateway.core.clock import ManualClock
from gateway.core.facts import (
    NoteWritten,
    PartSendStarted,
    PostQueued,
    Seq,
    ViewFolded,
)
from gateway.plugins.retention import Retention, move_old_months
from gateway.store import LogRow, NewEntry, ServerStore, Store, StoreUnreadable, rebuild
from gateway.store.archive import has_left, list_month_files, month_file, read_rows, whole_since
from gateway.store.projections import PROJECTED_TABLES
from gateway.store.types import LogError
from tests.gateway.store.test_rebuild import entries as any_entries
from tests.kits.backup import configured, made, put
from tests.kits.commands import parts_of
from tests.kits.examples import examples
from tests.kits.handle import handle_of
from tests.kits.settings import live_settings
from tests.kits.store import (
    ENGINE,
    NOW,
    heard,
    judged,
    located,
    look_into,
    place,
    post,
    run,
    said,
    turn,
    within,
)

ROOT = Path(__file__).resolve().parents[3]
LATER = NOW + timedelta(days=500)
KEEP_DAYS = 400.0
A, B = place("#a").conversation, place("#b").conversation


class Now(ManualClock):
    """A clock on which nobody waits."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)


async def opened(path: Path, now: datetime = LATER) -> Store:
    return await Store.open(located(path), Now(now))


async def moved(store: Store, days: float = KEEP_DAYS, **more: Any) -> int:
    return await move_old_months(store, days * 86_400.0, Now(LATER), **more)


def in_files(path: Path) -> list[LogRow]:
    return [row for file in list_month_files(path) for row in read_rows(file)]


async def in_log(store: Store) -> list[LogRow]:
    return await store.entry_rows(limit=100_000)


def tables(path: Path) -> dict[str, list[Any]]:
    with closing(look_into(path)) as connection:
        return {
            name: sorted(connection.fetch(f"SELECT * FROM {name}"), key=repr)
            for name in PROJECTED_TABLES
        }


def _same(found: list[LogRow], expected: list[LogRow]) -> bool:
    """Equal rows in the order of the log; JSON may be written in other ways."""
    found = sorted(found)
    return [(*row[:6], json.loads(row[6])) for row in found] == [
        (*row[:6], json.loads(row[6])) for row in expected
    ]


def without_months(rows: list[LogRow]) -> list[LogRow]:
    return [row for row in rows if row[2] != "archived"]


@settings(max_examples=examples(60), phases=[Phase.generate])
@given(
    st.lists(st.lists(any_entries, min_size=1, max_size=6), max_size=8),
    st.lists(st.integers(0, 7), max_size=3),
)
def test_whatever_is_in_the_log_nothing_is_lost_and_no_table_changes(
    batches: list[list[NewEntry]], passes: list[int]
) -> None:
    async def story(path: Path) -> None:
        appended: dict[str, Seq] = {}
        for number, batch in enumerate(batches):
            async with await opened(path) as store:
                results = await store.append(within(batch, store))
                for entry, result in zip(batch, results, strict=True):
                    if entry.key is not None:
                        assert appended.setdefault(entry.key, result.seq) == result.seq, (
                            "a key counts for good"
                        )
                if number not in passes:
                    continue
                rows = [*in_files(path), *await in_log(store)]
                kept, waiting = tables(path), await store.undelivered_posts()
                unread = [await store.unread_entries(place, most=50) for place in (A, B)]
                await moved(store)
                left = await in_log(store)
                assert _same(without_months([*in_files(path), *left]), without_months(sorted(rows)))
                assert not {row[0] for row in in_files(path)} & {row[0] for row in left}
                assert (tables(path), await store.undelivered_posts()) == (kept, waiting)
                for place, before in zip((A, B), unread, strict=True):
                    due = {row[0] for row in kept["unread"] if row[2] >= 1}
                    found = await store.unread_entries(place, most=50)
                    assert [one for one in found.messages if one.seq in due] == [
                        one for one in before.messages if one.seq in due
                    ]
        if batches:
            assert await rebuild(located(path)) == []

    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder) / "s.db"))


def _line(number: int, room: str = "#a", at: datetime = NOW, urgency: int = 0) -> list[NewEntry]:
    message = replace(said(number, f"line {number} of the garden", room), at=at)
    return [message, replace(judged(message, urgency, "due" if urgency else "context"), at=at)]  # type: ignore[arg-type]


async def talked(store: Store, lines: int, *, first: int = 0, at: datetime = NOW) -> None:
    """Lines of a room in one append, and a turn that deals with all of them."""
    await store.append(
        [entry for number in range(first, first + lines) for entry in _line(number, at=at)]
    )
    await store.append([replace(turn(A, upto=store.last), at=at)])


async def test_whole_months_leave_for_a_file_each_and_are_never_taken_for_new(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"

    async with await opened(path) as store:
        for month in range(16):
            await talked(store, 10, first=10 * month, at=NOW + timedelta(days=30.5 * month))
        rows = await in_log(store)
        assert await whole_since(store) is None
        assert await moved(store) == 3 * 21, "of the month in which the age ends nothing leaves"
        names = ["s.db.2026-03.jsonl.gz", "s.db.2026-04.jsonl.gz", "s.db.2026-05.jsonl.gz"]
        assert [file.name for file in list_month_files(path)] == names
        assert await whole_since(store) == date(2026, 6, 1)
        assert [await has_left(store, seq) for seq in (0, 1, 63, 64, store.last + 1)] == [
            False,
            True,
            True,
            False,
            False,
        ]
        assert _same(without_months([*in_files(path), *await in_log(store)]), rows)
        (file, *_) = list_month_files(path)
        assert file.stat().st_mode & 0o777 == 0o600
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        assert [json.loads(line)["seq"] for line in lines] == [row[0] for row in rows[:21]]
        again = await store.append(_line(3))
        assert [one.is_new for one in again] == [False, False]
        assert again[0].seq == rows[6][0], "the position that it had"
        assert len(await store.entries(match="garden", limit=1_000)) == 130
        assert await moved(store) == 0
    assert await rebuild(located(path)) == []


async def test_what_counts_or_waits_stays_and_leaves_when_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async with await opened(path) as store:
        await talked(store, 10)
        await talked(store, 10, first=100, at=NOW + timedelta(days=31))
        note = NoteWritten(agent="ana", scope="", title="", text="x", lasting=False)
        folded = ViewFolded(start=Seq(21), reason="size", head="what was before")
        begun = PartSendStarted(post=post("p").key, part=0, bodies=("one",))
        await store.append(
            [NewEntry(fact=note, at=NOW), NewEntry(fact=folded, at=NOW, conversation=A)]
        )
        await store.append(_line(50, "#b", urgency=3))
        await store.append([turn(B, text="not of that", upto=1)])
        queued = NewEntry(
            fact=PostQueued(post=post("p", room="#c")),
            at=NOW,
            conversation=place("#c").conversation,
        )
        await store.append([queued, replace(queued, fact=begun)])
        assert await moved(store) == 42
        kinds = [row[2] for row in await in_log(store)]
        assert kinds == [
            "noted",
            "folded",
            "room",
            "judged",
            "turn_ended",
            "post",
            "sending",
            "archived",
            "archived",
        ]
        view = await store.view_entries(A)
        assert view.fold is not None
        assert view.fold.fact == folded
        assert [item.parts[0].body for item in await store.undelivered_posts()] == ["one"]
        await store.append([replace(turn(B, upto=store.last), at=LATER)])
        assert await moved(store) == 3, "the same month once more"
        assert await whole_since(store) == date(2026, 5, 1)
        seqs = [row[0] for row in read_rows(month_file(path, "2026-03"))]
        assert seqs == sorted({*seqs})
        assert len(seqs) == 24
    assert await rebuild(located(path)) == []


async def test_what_was_overheard_and_has_left_is_counted(store: Store) -> None:
    await store.append([entry for number in range(300) for entry in _line(number)])
    await store.append(_line(999, at=LATER, urgency=3))
    assert await moved(store) == 600
    unread = await store.unread_entries(A, most=50)
    assert (len(unread.messages), unread.omitted) == (1, 300)
    await store.activate(A)
    await store.append([turn(A, upto=unread.upto)])
    assert (await store.unread_entries(A, most=50)).messages == ()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.store import ServerStore, Store
from tests.gateway.plugins.test_retention import LATER, Now, moved

path = Path(sys.argv[1])
steps = iter(range(int(sys.argv[2])))

def die():
    if next(steps, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    location = ServerStore(sys.argv[3], path) if sys.argv[3] else path
    async with await Store.open(location, Now(LATER)) as store:
        await moved(store, between=die)

asyncio.run(main())
"""


@pytest.mark.integration
@pytest.mark.parametrize("step", range(5))
async def test_a_kill_between_any_two_steps_loses_and_doubles_nothing(
    tmp_path: Path, step: int
) -> None:
    """After the file, after the fact, after two steps of deletions; after the file of the next
    month."""
    path = tmp_path / "s.db"

    async def prepare() -> list[LogRow]:
        async with await opened(path) as store:
            await talked(store, 90)
            await talked(store, 5, first=900, at=NOW + timedelta(days=31))
            return await in_log(store)

    rows = await prepare()
    place = located(path)
    url = place.url if isinstance(place, ServerStore) else ""
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(step), url], cwd=ROOT, check=False
    )
    assert child.returncode == -signal.SIGKILL
    if step < 3:  # it was killed while it wrote the file
        month_file(path, "2026-03").with_name(".s.db.2026-03.jsonl.gz.new").write_bytes(
            b"\x1f\x8b\x08\x00torn"
        )

    async with await opened(path) as store:
        assert {row[0] for row in rows} <= {
            row[0] for row in [*in_files(path), *await in_log(store)]
        }
        await moved(store)
        assert _same(in_files(path), rows), "each once, and in its order"
        assert [row[2] for row in await in_log(store)] == ["archived"] * len(await in_log(store))
        assert await store.append(_line(3)) == await store.append(_line(3))
    assert [file.name for file in sorted(tmp_path.glob("*.gz*"))] == [
        "s.db.2026-03.jsonl.gz",
        "s.db.2026-04.jsonl.gz",
    ]
    assert await rebuild(located(path)) == []


async def test_the_log_still_refuses_to_be_changed(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        await talked(store, 200)
        await moved(store)
    with closing(look_into(tmp_path / "s.db")) as connection:
        for sql in ("DELETE FROM log", "UPDATE log SET body = '{}'"):
            with pytest.raises(LogError, match="append-only"):
                connection.write(sql)


async def test_a_file_of_another_store_keeps_what_it_has_and_a_damaged_one_stops_the_pass(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"

    for number in (9_000, 9_001):
        async with await opened(path) as store:
            await store.append(heard(number, urgency=0))
            await moved(store)
        path.unlink(missing_ok=True)
        ENGINE.drop(path)
    assert [row[0] for row in in_files(path)] == [1, 1, 2]
    month_file(path, "2026-03").write_bytes(b"no file of ours")
    async with await opened(path) as store:
        await store.append(heard(9_002, urgency=0))
        with pytest.raises(StoreUnreadable, match="is damaged"):
            await moved(store)
        assert len(await in_log(store)) == 2


async def test_without_the_files_of_old_months_the_tables_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async with await opened(path) as store:
        await talked(store, 20)
        await moved(store)
    month_file(path, "2026-03").rename(tmp_path / "away")
    with pytest.raises(StoreUnreadable, match="put the files of old months back"):
        await rebuild(located(path))
    async with await opened(path) as store:
        assert (await store.append(_line(3)))[0].is_new is False


async def test_months_leave_again_and_again_while_messages_are_taken_in(store: Store) -> None:
    await talked(store, 1_000)
    live = live_settings(store=StoreConfig(keep=KEEP_DAYS * 86_400.0))
    gateway = handle_of(store, Now(LATER), live=live)
    running = asyncio.create_task(Retention(parts_of(gateway=gateway)).upkeep())
    for number in (5_000, 6_000):
        await talked(store, 50, first=number)
        while await store.entries(kinds=["room"]):
            assert not running.done()
            assert (await store.append([replace(turn(B), at=LATER)]))[0].is_new
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.sqlite
def test_old_months_are_in_a_backup_and_printed_as_the_log_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = configured(tmp_path / "a"), configured(tmp_path / "b")
    one.store.path.parent.mkdir(parents=True)

    async def fill() -> None:
        async with await opened(one.store.path) as store:
            await talked(store, 20)
            await moved(store)

    run(fill())
    made(one, tmp_path / "b.tar")
    put(tmp_path / "b.tar", other, exact=True)
    assert run(rebuild(located(other.store.path))) == []
    (file,) = list_month_files(other.store.path)
    assert main(["log", "show", str(file), "--last", "3"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3
    assert "line 19 of the garden" in shown[0]
    assert main(["log", "show", str(file), "--kind", "room", "--after", "35", "--jsonl"]) == 0
    assert [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()] == [37, 39]
    assert main(["log", "show", str(file), "--match", "line"]) == 2
    assert "use zgrep" in capsys.readouterr().err
    assert main(["log", "show", str(one.store.path)]) == 2
    assert "no file of the log" in capsys.readouterr().err
    assert main(["log", "show", "--store", str(other.store.path)]) == 0
    assert (
        "the log is whole since 2026-04-01; older months: reverie log show"
        in capsys.readouterr().err
    )


async def test_the_growth_of_the_last_days_tells_the_day_on_which_the_disk_is_full(
    store: Store,
) -> None:
    young = await store.growth(LATER)
    assert (young.bytes_per_day, young.full_on(LATER, 0)) == (None, None)
    assert "known after a day" in young.describe(LATER, 0)
    for day in range(60):
        at = LATER - timedelta(days=60 - day, hours=-1)
        await store.append(
            [one for number in range(50) for one in _line(day * 100 + number, at=at)]
        )
    growth = await store.growth(LATER)
    assert growth.bytes_per_day is not None
    used = growth.size_bytes - growth.unused_bytes
    assert growth.bytes_per_day == pytest.approx(used / 60, rel=0.01)
    days = 100
    free = int(growth.bytes_per_day * days) - growth.unused_bytes
    assert growth.full_on(LATER, free) in {
        (LATER + timedelta(days=n)).date() for n in (days - 1, days)
    }
    assert "its disk is full on 2027-" in growth.describe(LATER, free)
    assert growth.full_on(LATER, 10**15) is None
    await store.append([turn(A, upto=10_000)])
    before = growth.bytes_per_day
    assert await moved(store, 31.0) > 0
    later = await store.growth(LATER)
    assert later.bytes_per_day is not None
    assert later.unused_bytes > 0 or ENGINE.server is not None, (
        "PostgreSQL does not tell what is free"
    )
    assert 0.3 * before < later.bytes_per_day < 3 * before
    quiet = await store.growth(LATER + timedelta(days=40))
    assert quiet.full_on(LATER, 0) is None, "nothing came lately"
