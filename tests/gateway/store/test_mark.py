"""A store that has lost the end of its log is known when it is opened."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gateway.core.facts import Seq, TurnRecord
from gateway.store import LostEnd, build_dismissal_entries
from gateway.store.mark import mark_path
from tests.kits.store import ENGINE, NOW, heard, look_into, opened, place, run, turn


async def cut(path: Path) -> None:
    """Have four entries written, and the last two taken back."""
    async with await opened(path) as store:
        await store.append(heard(1))
        for file in path.parent.glob(f"{path.name}*"):
            shutil.copyfile(file, path.parent / f"old.{file.name}")
        await store.append(heard(2))
    if ENGINE.server is not None:
        with closing(look_into(path)) as connection:
            connection.execute("DELETE FROM search WHERE rowid > 2")
            for sql in ("ALTER TABLE log DISABLE TRIGGER USER", "DELETE FROM log WHERE seq > 2"):
                connection.execute(sql)
    for file in path.parent.glob("old.*"):
        file.replace(path.parent / file.name.removeprefix("old."))


def test_an_end_that_is_gone_is_known_until_it_was_dealt_with(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        await cut(path)
        for number in (3, 4, 5):  # a command of a stopped gateway, and then the log is longer than it was
            async with await opened(path) as store:
                assert store.lost_end == LostEnd(last=Seq(2 * (number - 2)), marked=Seq(4), at=NOW)
                later = heard(number)
                for entry in later:
                    object.__setattr__(entry, "at", NOW.replace(hour=7))
                await store.append(later)
        async with await opened(path) as store:
            assert store.lost_end is not None
            store.accept_lost_end()
            await store.append(heard(6))
            lost = store.lost_end
        for number in (7, 8):  # a platform may deliver again what was in it long after
            async with await opened(path) as store:
                assert (store.lost_end, store.newest_lost_end) == (None, lost)
                await store.append(heard(number))

    run(story())


def test_a_whole_store_or_one_without_a_mark_has_lost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        for number in range(3):
            async with await opened(path) as store:
                assert store.newest_lost_end is None
                await store.append(heard(number))
        for text in (b"", b"no mark", b'{"seq": "x"}', b"[]", b'{"lost": [1, "x"]}', b'{"lost": [1, 2, "x"]}'):
            mark_path(path).write_bytes(text)
            async with await opened(path) as store:
                assert store.newest_lost_end is None
        await cut(tmp_path / "other.db")
        mark_path(tmp_path / "other.db").unlink()
        async with await opened(tmp_path / "other.db") as store:
            assert store.lost_end is None

    run(story())


def test_a_new_store_where_there_was_one_is_known(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        async with await opened(path) as store:
            await store.append(heard(1))
        for file in tmp_path.glob("s.db*"):
            file.unlink()
        ENGINE.drop(path)
        async with await opened(path) as store:
            assert store.lost_end == LostEnd(last=Seq(0), marked=Seq(2), at=NOW)

    run(story())


def test_no_turn_is_shown_what_a_lost_end_may_have_answered(tmp_path: Path) -> None:
    """Unread talk, an answered question's edit that is context alone, and the lines of turns that were interrupted."""
    a, b, c = (place(room).conversation for room in ("#a", "#b", "#c"))

    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            (first, _), (second, _) = [await store.append(heard(number)) for number in (1, 2)]
            whole, cut = turn(a, first.seq), turn(a, second.seq, text="")
            assert isinstance(cut.fact, TurnRecord)
            cut = replace(cut, fact=replace(cut.fact, outcome="interrupted", heard="ulla: line 2"))
            await store.append([whole, cut, cut, *heard(3, room="#b"), *heard(4, room="#c", urgency=0)])
            assert [place for place, _ in await store.due_conversations(0)] == [b, c]
            await store.append(await build_dismissal_entries(store, NOW))
            assert await store.due_conversations(0) == []
            (left,) = (await store.view_entries(a)).turns
            assert left.fact == whole.fact

    run(story())
