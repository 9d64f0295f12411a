"""Retention: what is old and not needed leaves the log for archives; nothing is lost, and nothing else changes."""

import asyncio
import gzip
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.cli.main import main
from gateway.core.clock import ManualClock
from gateway.core.events import EventId, Message, MessageDeleted, MessageId
from gateway.core.facts import MESSAGE_KINDS, PRUNABLE_KINDS, NoteWritten, Seq, ToolStarted, TurnId
from gateway.store import LogRow, NewEntry, ServerStore, Store, StoreReader, StoreUnreadable, rebuild
from gateway.store.archive import ArchivedLog, archive_directory, list_archives, read_rows
from gateway.store.projections import PROJECTED_TABLES
from gateway.store.retention import KEPT_MESSAGES, prune_store, run_retention
from gateway.store.types import LogError
from gateway.stream.trace import explain_event
from tests.gateway.store.test_rebuild import entries as any_entries
from tests.kits.backup import configured, made, put
from tests.kits.examples import examples
from tests.kits.store import ENGINE, NOW, heard, judged, located, look_into, place, run, said, turn

ROOT = Path(__file__).resolve().parents[3]
LATER = NOW + timedelta(days=500)
KEEP = dict.fromkeys(PRUNABLE_KINDS, 400 * 86_400.0)
A, B = place("#a").conversation, place("#b").conversation


class Now(ManualClock):
    """A clock on which nobody waits."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)


async def opened(path: Path, now: datetime = LATER) -> Store:
    return await Store.open(located(path), Now(now))


async def pruned(store: Store, keep: Mapping[str, float] = KEEP, **more: Any) -> int:
    return (await prune_store(store, keep, Now(LATER), **more)).entries


async def whole(reader: StoreReader) -> list[LogRow]:
    return await ArchivedLog(reader).entry_rows(limit=100_000)


LEFT = "it has left the log (`store.keep`), and is told from the archives"


async def told(reader: StoreReader, seq: int) -> list[str]:
    """What `reverie why` tells, but for where it was read."""
    return [line for line in await explain_event(reader, seq) or [] if line != LEFT]


def tables(path: Path) -> dict[str, list[Any]]:
    with closing(look_into(path)) as connection:
        return {name: sorted(connection.fetch(f"SELECT * FROM {name}"), key=repr) for name in PROJECTED_TABLES}


async def looked_at(reader: StoreReader) -> list[Any]:
    """What requests and deliveries are made of."""
    found: list[Any] = [
        await reader.undelivered_posts(),
        await reader.due_conversations(0),
        await reader.pending_reminders(),
        await reader.undecided(),
        await reader.connection_states(),
        await reader.open_previews(),
        await reader.notification_types(),
        await reader.spending_sums("all"),
        [(one.conversation, one.oldest, one.urgent, one.ambient) for one in await reader.pending_counts()],
    ]
    found += [await reader.current_facts(kind) for kind in ("role_given", "approval_ended", "audience", "named")]
    for conversation in (A, B):
        unread, view = await reader.unread_entries(conversation, most=50), await reader.view_entries(conversation)
        found += [
            replace(unread, has_changes=False),
            view.turns,
            view.fold,
            await reader.pinned_card(conversation),
            await reader.last_topic_change(conversation),
            await reader.newest_senders(conversation, before=2**62, most=KEPT_MESSAGES),
            await reader.newest_turns(conversation, before=None, newest=20),
        ]
        for one in view.turns:
            covers = one.fact.covers if one.kind == "turn_ended" else ()  # type: ignore[union-attr]
            for seq in covers:
                found += [await reader.entry(seq), await reader.find_judgement(seq)]
        for one in unread.messages:
            found.append(await reader.find_judgement(one.seq))
    return found


@settings(max_examples=examples(60), phases=[Phase.generate])
@given(st.lists(st.lists(any_entries, min_size=1, max_size=6), max_size=8), st.lists(st.integers(0, 7), max_size=3))
def test_whatever_is_in_the_log_pruning_loses_nothing_and_changes_no_request(
    batches: list[list[NewEntry]], prunings: list[int]
) -> None:
    async def story(path: Path) -> None:
        appended: dict[str, Seq] = {}
        total = 0
        for number, batch in enumerate(batches):
            async with await opened(path) as store:
                for entry, result in zip(batch, await store.append(batch), strict=True):
                    if entry.key is not None:
                        assert appended.setdefault(entry.key, result.seq) == result.seq, "a key counts for good"
                if number not in prunings:
                    continue
                before, rows, kept = await looked_at(store), await whole(store), tables(path)
                places = {row[0]: row[3] for row in rows}
                # The gateway judges each event in its own conversation.
                apart = {row[5] for row in rows if row[2] == "judged" and places.get(row[5] or 0) != row[3]}
                asked = [row[0] for row in rows[:: 1 + len(rows) // 6] if row[0] not in apart]
                stories = [await told(store, seq) for seq in asked]
                moved = await pruned(store)
                total += moved
                assert len(await store.entry_rows(limit=100_000)) == len(rows) - total
                assert await looked_at(store) == before
                assert _same(await whole(store), rows)
                assert [await told(store, seq) for seq in asked] == stories
            assert tables(path) == kept
            async with await opened(path) as store:
                assert await looked_at(store) == before
        if batches:
            assert await rebuild(located(path)) == []

    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder) / "s.db"))


def _same(found: list[LogRow], expected: list[LogRow]) -> bool:
    """Equal rows; JSON may be written in other ways."""
    return [(*row[:6], json.loads(row[6])) for row in found] == [(*row[:6], json.loads(row[6])) for row in expected]


def _line(number: int, room: str = "#a", at: datetime = NOW, urgency: int = 0) -> list[NewEntry]:
    message = replace(said(number, f"line {number} of the garden", room), at=at)
    return [message, replace(judged(message, urgency, "due" if urgency else "context"), at=at)]  # type: ignore[arg-type]


async def talked(store: Store, lines: int, *, dealt: bool = True) -> None:
    """Lines of a room in one append, and a turn that deals with all of them and shows the last."""
    results = await store.append([entry for number in range(lines) for entry in _line(number)])
    if dealt:
        await store.append([turn(A, results[-2].seq)])


def test_what_has_left_is_read_with_the_rest_and_never_taken_for_new(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        async with await opened(path) as store:
            await talked(store, 300)
            rows = await whole(store)
            assert await pruned(store) == 2 * (300 - KEPT_MESSAGES)
            left = await store.entry_rows(limit=1_000)
            assert {row[2] for row in left} == {"room", "judged", "turn_ended"}
            assert LEFT in (await explain_event(store, rows[0][0]) or [])
            assert (await told(store, rows[0][0]))[-2:] == [
                "only counted, for newer lines filled the prompt, in turn t (entry 601), which replied",
                "fate: counted",
            ]
            log = ArchivedLog(store)
            assert _same(await whole(store), rows)
            assert [row[0] for row in await log.entry_rows(newest=True, limit=550)] == [row[0] for row in rows[-550:]]
            assert [row[0] for row in await log.entry_rows(after=100, before=110)] == list(range(101, 110))
            assert len(await log.entry_rows(kinds=["room"], limit=1_000)) == 300
            assert await log.entry_rows(kinds=["room"], conversation=B) == []
            assert [json.loads(row[6])["id"] for row in await log.entry_rows(match='"line 7 of"')] == ["7"]
            assert await log.entry_rows(limit=0, newest=True) == []
            again = await store.append(_line(3))
            assert [one.is_new for one in again] == [False, False]
            assert again[0].seq == rows[6][0], "the position that it had"
            assert len(await store.entries(match="garden")) == KEPT_MESSAGES
            (archive,) = list_archives(archive_directory(path))
            lines = gzip.decompress(archive.path.read_bytes()).decode().splitlines()
            assert [json.loads(line)["seq"] for line in lines] == [row[0] for row in rows[:500]]
            assert archive.path.stat().st_mode & 0o777 == 0o600
        assert await rebuild(located(path)) == []

    run(story())


def test_kinds_have_their_own_age_and_young_entries_stay(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await talked(store, 100)
            await store.append([entry for number in range(200, 300) for entry in _line(number, at=LATER)])
            assert await pruned(store, {"room": 600 * 86_400.0}) == 0
            await store.append([turn(A, upto=10_000)])
            assert await pruned(store, {"room": 400 * 86_400.0}) == 100 - 1, "that of the line in view stays"
            assert len(await store.entries(kinds=["judged"])) == 200
            everything = dict.fromkeys((*MESSAGE_KINDS, "edited", "deleted"), 300 * 86_400.0)
            assert await pruned(store, everything | {"judged": 86_400.0}) == 100 - 1, "as old as what they judge"

    run(story())


@pytest.mark.parametrize("kinds", [{"deleted", "edited", "judged"}, set(PRUNABLE_KINDS)])
def test_what_was_deleted_stays_deleted_and_what_was_begun_stays_begun(tmp_path: Path, kinds: set[str]) -> None:
    """The message stays, because a note was made of it."""

    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            (message, _) = await store.append(_line(1))
            note = NoteWritten(agent="ana", scope="", title="", text="x", lasting=False)
            gone = MessageDeleted(id=EventId("d"), at=place("#a"), message=MessageId("1"), sent=NOW)
            await store.append([NewEntry(fact=note, at=NOW, conversation=A, cause=message.seq)])
            (deleted,) = await store.append([NewEntry(fact=gone, at=NOW, conversation=A)])
            await talked(store, 2 * KEPT_MESSAGES)
            begun = ToolStarted(turn=TurnId("cut"), agent="ana", tool="shell", arguments="{}")
            await store.append([NewEntry(fact=begun, at=NOW, conversation=A)])
            assert (await pruned(store, dict.fromkeys(kinds, 86_400.0)) > 0) == (len(kinds) > 3)
            said = await store.entry(message.seq)
            assert said is not None
            assert isinstance(said.fact, Message)
            change = await store.latest_message_change(said.fact, message.seq)
            assert change is not None
            assert change.seq == deleted.seq
            assert (await store.find_judgement(message.seq)) is not None
            assert len(await store.entries(kinds=["tool_begun"])) == 1

    run(story())


def test_of_what_is_overheard_the_newest_stays_and_the_rest_is_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await talked(store, 1_300, dealt=False)
            before = await store.unread_entries(A, most=50)
            assert await pruned(store) == 600
            assert await store.unread_entries(A, most=50) == before
            assert before.omitted == 1_250
            ((counts,),) = [await store.pending_counts()]
            assert counts.ambient == 1_300

    run(story())


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.store import ServerStore, Store
from tests.gateway.store.test_retention import LATER, Now, pruned

path = Path(sys.argv[1])
steps = iter(range(int(sys.argv[2])))

def die():
    if next(steps, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    location = ServerStore(sys.argv[3], path) if sys.argv[3] else path
    async with await Store.open(location, Now(LATER)) as store:
        await pruned(store, after_archive=die)

asyncio.run(main())
"""


@pytest.mark.integration
@pytest.mark.parametrize("step", [0, 1])
def test_a_kill_between_archive_and_deletion_loses_and_repeats_nothing(tmp_path: Path, step: int) -> None:
    path = tmp_path / "s.db"

    async def prepare() -> list[LogRow]:
        async with await opened(path) as store:
            await talked(store, 300)
            return await whole(store)

    rows = run(prepare())
    store = located(path)
    url = store.url if isinstance(store, ServerStore) else ""
    child = subprocess.run([sys.executable, "-c", KILLED, str(path), str(step), url], cwd=ROOT, check=False)
    assert child.returncode == -signal.SIGKILL
    (archive,) = list_archives(archive_directory(path))
    with archive.path.open("ab") as torn:
        torn.write(b"\x1f\x8b\x08\x00torn")  # a disk that had not written all of it

    async def resume() -> None:
        async with await opened(path) as store:
            assert _same(await whole(store), rows), "read while both have it"
            await pruned(store)
            assert _same(await whole(store), rows)
            archived = [row[0] for row in read_rows(archive.path)]
            assert len(archived) == len(set(archived)) == 500
            assert not set(archived) & {row[0] for row in await store.entry_rows(limit=1_000)}
        assert await rebuild(located(path)) == []

    run(resume())


def test_the_log_still_refuses_to_be_changed(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await talked(store, 200)
            await pruned(store)
        with closing(look_into(tmp_path / "s.db")) as connection:
            for sql in ("DELETE FROM log", "UPDATE log SET body = '{}'"):
                with pytest.raises(LogError, match="append-only"):
                    connection.write(sql)

    run(story())


def test_archives_of_another_store_are_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        path = tmp_path / "s.db"
        for number in (9_000, 9_001):
            async with await opened(path) as store:
                await store.append(heard(number))
                await talked(store, 200 if number == 9_000 else 230)
                await pruned(store)
            if number == 9_000:
                path.unlink(missing_ok=True)
                ENGINE.drop(path)
        found = sorted(one.suffix for one in archive_directory(path).iterdir())
        assert found == [".aside", ".gz"]
        assert await rebuild(located(path)) == []
        (archive,) = list_archives(archive_directory(path))
        archive.path.unlink()
        with pytest.raises(StoreUnreadable, match="put the archives back"):
            await rebuild(located(path))

    run(story())
    assert "is not the one that this store has written" in caplog.text


def test_an_archive_that_was_taken_away_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        async with await opened(path) as store:
            await talked(store, 200)
            await pruned(store)
            (archive,) = list_archives(archive_directory(path))
            archive.path.rename(tmp_path / "away")
            await store.append([entry for number in range(300, 400) for entry in _line(number)])
            await store.append([turn(A, upto=10_000)])
            assert await pruned(store) > 0
            assert gzip.decompress(archive.path.read_bytes()).startswith(b'{"seq": ')

    run(story())


def test_entries_leave_again_and_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await talked(store, 100)
            running = asyncio.create_task(run_retention(store, KEEP, Now(LATER)))
            for _ in range(2):
                while len(await store.entries(kinds=["room"])) > KEPT_MESSAGES + 1:  # and the one that a turn covers
                    assert not running.done()
                await store.append([entry for number in range(900, 1_000) for entry in _line(number + store.last)])
                await store.append([turn(A, upto=10_000)])
            running.cancel()
            await asyncio.wait([running])

    run(story())


def test_messages_are_taken_in_while_entries_leave(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await talked(store, 1_000)
            leaving = asyncio.create_task(pruned(store))
            number = 5_000
            while not leaving.done():
                assert (await store.append(_line(number := number + 1)))[0].is_new
            assert await leaving > 0

    run(story())


@pytest.mark.sqlite
def test_a_backup_holds_the_archives_and_both_are_restored_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = configured(tmp_path / "a"), configured(tmp_path / "b")
    one.store.path.parent.mkdir(parents=True)

    async def fill() -> list[LogRow]:
        async with await opened(one.store.path) as store:
            await talked(store, 200)
            await pruned(store)
            return await whole(store)

    rows = run(fill())
    backup = made(one, tmp_path / "b.tar")
    assert (backup.differences, backup.manifest.replayed) == ((), True)
    put(tmp_path / "b.tar", other, exact=True)
    assert run(rebuild(located(other.store.path))) == []
    assert main(["log", "export", "--store", str(other.store.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [*[row[0] for row in rows], rows[-1][0] + 1]
    assert main(["log", "show", "--store", str(other.store.path), "--match", '"line 7 of"']) == 0
    assert "line 7 of the garden" in capsys.readouterr().out


def test_the_growth_of_the_last_days_tells_the_day_on_which_the_disk_is_full(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            young = await store.growth(LATER)
            assert (young.bytes_per_day, young.full_on(LATER, 0)) == (None, None)
            assert "known after a day" in young.describe(LATER, 0)
            for day in range(20):
                at = LATER - timedelta(days=20 - day, hours=-1)
                await store.append([one for number in range(100) for one in _line(day * 100 + number, at=at)])
            growth = await store.growth(LATER)
            assert growth.bytes_per_day is not None
            used = growth.size_bytes - growth.unused_bytes
            assert growth.bytes_per_day == pytest.approx(used / 20, rel=0.01)
            days = 100
            free = int(growth.bytes_per_day * days) - growth.unused_bytes
            assert growth.full_on(LATER, free) in {(LATER + timedelta(days=n)).date() for n in (days - 1, days)}
            assert "its disk is full on 2027-" in growth.describe(LATER, free)
            assert growth.full_on(LATER, 10**15) is None
            await store.append([turn(A, upto=10_000)])
            before = growth.bytes_per_day
            assert await pruned(store, dict.fromkeys(PRUNABLE_KINDS, 10 * 86_400.0)) > 0
            later = await store.growth(LATER)
            assert later.bytes_per_day is not None
            assert later.unused_bytes > 0 or ENGINE.server is not None, "PostgreSQL does not tell what is free"
            assert 0.3 * before < later.bytes_per_day < 3 * before
            quiet = await store.growth(LATER + timedelta(days=40))
            assert quiet.full_on(LATER, 0) is None, "nothing came lately"

    run(story())
