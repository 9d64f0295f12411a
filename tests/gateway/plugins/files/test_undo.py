"""What a turn changes in files is kept for a day and comes back by one command."""

import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.context.workspace_fs import FilesArea, WorkspaceRoot
from gateway.core.clock import new_id
from gateway.core.facts import TurnId
from gateway.core.private_files import is_partial_file
from gateway.core.scopes import PUBLIC
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugins.files import undo
from gateway.plugins.files.undo import KEPT, keep_files, undo_files

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


class Turns:
    """Files, and turns that change them, a minute apart."""

    def __init__(self, path: Path) -> None:
        self.area = FilesArea(
            WorkspaceRoot(path / "files/public", 1_000), PUBLIC, ("public",), is_own=True
        )
        self.folder, self.path, self.now = path / "undo", path / "files/public", NOW
        self.path.mkdir(parents=True, exist_ok=True)

    def begin(self) -> TurnId:
        self.now += timedelta(minutes=1)
        return TurnId(new_id(self.now))

    def write(self, turn: TurnId, name: str, text: str) -> None:
        """As a file tool does."""
        keep_files(self.folder, turn, self.area, tuple(name.split("/")))
        self.area.root.write(tuple(name.split("/")), text.encode())

    def undo(self) -> list[str] | None:
        done = undo_files(self.folder, self.area, self.now)
        if done is None:
            return None
        _began, restored, failed = done
        assert not failed
        return ["/".join(parts) for parts in restored]

    def texts(self) -> dict[str, str]:
        files = [
            one
            for one in sorted(self.path.rglob("*"))
            if one.is_file() and not is_partial_file(one.name)
        ]
        return {str(one.relative_to(self.path)): one.read_text() for one in files}


@pytest.fixture
def it(tmp_path: Path) -> Turns:
    made = Turns(tmp_path)
    made.write(made.begin(), "notes/a.md", "one")
    (made.path / "run.sh").write_text("true")
    (made.path / "run.sh").chmod(0o755)
    return made


def test_each_undo_takes_back_a_turn(it: Turns) -> None:
    first, second = it.begin(), it.begin()
    it.write(first, "notes/a.md", "two")
    it.write(first, "notes/a.md", "three")
    keep_files(it.folder, second, it.area)
    (it.path / "notes/a.md").write_text("four")  # as a command does
    (it.path / "run.sh").unlink()
    (it.path / "new.txt").write_text("new")
    keep_files(it.folder, second, it.area)
    (it.path / "new.txt").write_text("newer")
    assert it.undo() == ["notes/a.md", "run.sh"]
    assert it.texts() == {"new.txt": "newer", "notes/a.md": "three", "run.sh": "true"}, (
        "what is new stays"
    )
    assert (it.path / "run.sh").stat().st_mode & 0o777 == 0o755
    assert it.undo() == ["notes/a.md"]
    assert it.texts()["notes/a.md"] == "one"
    assert it.undo() is None
    replaced = [one.read_text() for one in it.folder.glob("*~/public/notes/a.md")]
    assert sorted(replaced) == ["four", "three"], "and nothing is lost by undoing"


def test_it_is_kept_for_a_day(it: Turns) -> None:
    it.write(it.begin(), "notes/a.md", "two")
    it.now += KEPT - timedelta(minutes=1)
    it.write(it.begin(), "run.sh", "false")
    it.now += timedelta(minutes=2)
    assert it.undo() == ["run.sh"]
    assert it.undo() is None
    assert it.texts() == {"notes/a.md": "two", "run.sh": "true"}


def test_it_is_bounded(it: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "MAX_KEPT_FILES", 3)
    for name in ("b", "c", "d"):
        (it.path / name).write_text(name)
    (it.path / "large").write_text("x" * 1_001)
    keep_files(it.folder, it.begin(), it.area)
    for one in it.path.iterdir():
        if one.is_file():
            one.write_text("changed")
    assert it.undo() == ["b", "c", "d"]


def test_what_has_not_changed_is_kept_once(it: Turns) -> None:
    def copies(turn: TurnId) -> dict[str, int]:
        keep_files(it.folder, turn, it.area)
        return {
            name: (it.folder / turn / "public" / name).stat().st_ino
            for name in ("notes/a.md", "run.sh")
        }

    first = copies(it.begin())
    while first != (
        first := copies(it.begin())
    ):  # too new to be told from a change at the same time
        pass
    (it.path / "run.sh").write_text("last")
    (it.path / "run.sh").write_text("fals")
    second = copies(it.begin())
    assert second["notes/a.md"] == first["notes/a.md"]
    assert second["run.sh"] != first["run.sh"], "as large as before, and another"
    (it.path / "run.sh").write_text("x")
    (it.path / "notes/a.md").write_text("y")
    assert it.undo() == ["notes/a.md", "run.sh"]
    assert it.texts() == {"notes/a.md": "one", "run.sh": "fals"}
    it.undo()
    assert it.texts()["run.sh"] == "true"


def test_nothing_is_changed_that_cannot_be_kept(it: Turns) -> None:
    it.folder.write_text("in the way")
    with pytest.raises(ToolCallRefused, match="could not be undone"):
        it.write(it.begin(), "notes/a.md", "two")
    assert it.texts()["notes/a.md"] == "one"


def test_nothing_is_written_through_a_link_or_over_a_directory(it: Turns, tmp_path: Path) -> None:
    keep_files(it.folder, it.begin(), it.area)
    (tmp_path / "outside").mkdir()
    (it.path / "notes/a.md").unlink()
    (it.path / "notes").rmdir()
    (it.path / "notes").symlink_to(tmp_path / "outside")
    (it.path / "run.sh").unlink()
    (it.path / "run.sh").mkdir()
    done = undo_files(it.folder, it.area, it.now)
    assert done is not None
    assert done[1:] == ([], [("notes", "a.md"), ("run.sh",)])
    assert not list((tmp_path / "outside").iterdir())


def is_killed_at(it: Turns, step: int) -> bool:
    """Change files and bring them back in another process, which is killed at its so-many-th access
    to the disk."""
    if (child := os.fork()) == 0:
        left = step

        def access(event: str, _: object) -> None:
            nonlocal left
            if left and event in ("open", "os.mkdir", "os.rename", "os.remove", "shutil.rmtree"):
                left -= 1
                if left:
                    return
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(access)
        turn = it.begin()
        for name in ("a", "b"):
            it.write(turn, name, "changed")
        it.undo()
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


def test_a_kill_at_any_point_loses_nothing(tmp_path: Path) -> None:
    it = Turns(tmp_path)
    for name in ("a", "b"):
        (it.path / name).write_text(f"text of {name}")
    texts, step = it.texts(), 1
    while is_killed_at(it, step):
        while it.undo() is not None:
            pass
        assert it.texts() == texts, step
        step += 1
    assert step > 20
