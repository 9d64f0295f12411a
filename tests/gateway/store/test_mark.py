"""A store that has lost the end of its log is known when it is opened."""

import shutil
from contextlib import closing
from pathlib import Path

from gateway.core.facts import Seq
from gateway.store import LostEnd
from gateway.store.files import mark_path
from tests.kits.store import ENGINE, NOW, heard, look_into, opened


async def cut(path: Path) -> None:
    """Have four entries written, and the last two taken back."""
    async with await opened(path) as store:
        await store.append(heard(1))
        for file in path.parent.glob(f"{path.name}*"):
            shutil.copyfile(file, path.parent / f"old.{file.name}")
        await store.append(heard(2))
    if ENGINE.server is not None:
        with closing(look_into(path)) as connection:
            connection.write("DELETE FROM search WHERE rowid > 2")
            for sql in ("ALTER TABLE log DISABLE TRIGGER USER", "DELETE FROM log WHERE seq > 2"):
                connection.write(sql)
    for file in path.parent.glob("old.*"):
        file.replace(path.parent / file.name.removeprefix("old."))


async def test_an_end_that_is_gone_is_known_until_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    await cut(path)
    for _ in range(2):
        async with await opened(path) as store:
            assert store.lost_end == LostEnd(last=Seq(2), marked=Seq(4), at=NOW)
    async with await opened(path) as store:
        await store.append(heard(3))
    async with await opened(path) as store:
        assert store.lost_end is None


async def test_a_whole_store_or_one_without_a_mark_has_lost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    for number in range(3):
        async with await opened(path) as store:
            assert store.lost_end is None
            await store.append(heard(number))
    for text in (b"", b"no mark", b'{"seq": "x"}', b"[]"):
        mark_path(path).write_bytes(text)
        async with await opened(path) as store:
            assert store.lost_end is None
    await cut(tmp_path / "other.db")
    mark_path(tmp_path / "other.db").unlink()
    async with await opened(tmp_path / "other.db") as store:
        assert store.lost_end is None


async def test_a_new_store_where_there_was_one_is_known(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async with await opened(path) as store:
        await store.append(heard(1))
    for file in tmp_path.glob("s.db*"):
        file.unlink()
    ENGINE.drop(path)
    async with await opened(path) as store:
        assert store.lost_end == LostEnd(last=Seq(0), marked=Seq(2), at=NOW)
