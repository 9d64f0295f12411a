"""The agent's directory: what a write leaves behind, whatever happens meanwhile."""

import contextlib
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.tool_spec import ToolCallRefused
from gateway.tools.workspace_fs import PARTIAL_MAX_AGE_S, AgentFiles, WorkspaceRoot, is_partial_file
from tests.kits.tools import live_tools

HALF = ".reverie-0123456789abcdef.half"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mind/ann/files"


@pytest.fixture
def root(path: Path) -> WorkspaceRoot:
    return WorkspaceRoot(path, 10_000)


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@contextlib.contextmanager
def refused(words: str) -> Iterator[None]:
    with pytest.raises(ToolCallRefused) as why:
        yield
    assert words in str(why.value)
    assert "/mind/" not in str(why.value), "no path of the machine is told"


def test_a_file_is_read_as_it_was_written(root: WorkspaceRoot, path: Path) -> None:
    assert root.write("a/b/c.txt", b"one") == (None, 3)
    assert root.write("/workspace/a/./b//c.txt", b"two!") == (3, 4)
    assert root.read_bytes("a/b/c.txt") == b"two!"
    assert names(path / "a/b") == ["c.txt"]


def test_it_is_made_when_it_is_needed_for_its_owner_only(root: WorkspaceRoot, path: Path) -> None:
    with refused("there is no such file"):
        root.read_bytes("a.txt")
    root.write("sub/a.txt", b"")
    assert [mode(one) for one in (path, path.parent, path / "sub", path / "sub/a.txt")] == [0o700, 0o700, 0o700, 0o600]


def test_the_operator_may_give_it_as_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "files").symlink_to("there")
    WorkspaceRoot(tmp_path / "files", 100).write("a.txt", b"a")
    assert names(tmp_path / "there") == ["a.txt"]


def test_where_it_cannot_be_nothing_works_and_no_path_is_told(path: Path, root: WorkspaceRoot) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("a file")
    with refused("The files cannot be reached now"):
        root.read_bytes("a.txt")
    with refused("The files cannot be reached now"):
        root.write("a.txt", b"")


def test_sizes_are_held(root: WorkspaceRoot, path: Path) -> None:
    root.write("full.txt", b"x" * 10_000)
    assert len(root.read_bytes("full.txt")) == 10_000
    with refused("would have 10,001 bytes, and a file may have 10,000"):
        root.write("new/more.txt", b"x" * 10_001)
    with refused("would have 20,000 bytes"):
        root.edit("full.txt", lambda data: data * 2)
    (path / "log.txt").write_bytes(b"x" * 10_001)
    with refused("log.txt has 10,001 bytes, more than the 10,000 that can be read at once"):
        root.read_bytes("log.txt")
    assert names(path) == ["full.txt", "log.txt"], "not even a directory was made for what was refused"


def test_what_stands_in_the_way_is_not_replaced(root: WorkspaceRoot, path: Path) -> None:
    root.write("d/a.txt", b"a")
    with refused("d is a directory"):
        root.write("d", b"")
    with refused("d is a directory"):
        root.read_bytes("d/")
    with refused("a part of the path is a link, or no directory"):
        root.write("d/a.txt/b.txt", b"")
    with refused("there is no such file"):
        root.edit("d/b.txt", lambda data: data)
    assert names(path) == ["d"]
    assert names(path / "d") == ["a.txt"]


def test_a_file_keeps_its_mode_but_no_rights_of_its_owner(root: WorkspaceRoot, path: Path) -> None:
    root.write("run.sh", b"true")
    (path / "run.sh").chmod(0o4755)
    root.write("run.sh", b"false")
    assert mode(path / "run.sh") == 0o755


def test_what_another_program_writes_meanwhile_is_not_lost(root: WorkspaceRoot, path: Path) -> None:
    root.write("a.txt", b"one")

    def change(data: bytes) -> bytes:
        (path / "a.txt").write_bytes(b"from the shell")
        return data + b", two"

    with refused("was changed by another program just now"):
        root.edit("a.txt", change)
    assert root.read_bytes("a.txt") == b"from the shell"
    assert names(path) == ["a.txt"]


def test_two_edits_at_once_are_both_done(root: WorkspaceRoot) -> None:
    root.write("a.txt", b"")

    def add() -> None:
        for _ in range(50):
            root.edit("a.txt", lambda data: data + b"x")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert root.read_bytes("a.txt") == b"x" * 200


def test_who_reads_sees_the_old_text_or_the_new(root: WorkspaceRoot) -> None:
    texts = (b"a" * 9_000, b"b" * 10_000)
    root.write("a.txt", texts[0])
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            for text in texts:
                root.write("a.txt", text)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = {root.read_bytes("a.txt") for _ in range(300)}
    finally:
        done.set()
        thread.join()
    assert seen <= set(texts)


def test_what_does_not_fit_on_the_disk_leaves_the_old_text_and_no_half(root: WorkspaceRoot, path: Path) -> None:
    root.write("a.txt", b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))  # as a full disk: the write ends in the middle
    try:
        with refused("a.txt: file too large"):
            root.write("a.txt", b"x" * 5_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert root.read_bytes("a.txt") == b"old"
    assert names(path) == ["a.txt"]


def test_the_disk_is_not_filled(root: WorkspaceRoot, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.write("a.txt", b"old")
    nearly = os.statvfs_result((4_096, 4_096, 100_000, 5_001, 5_001, 1_000, 1_000, 1_000, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: nearly)
    root.write("a.txt", b"x" * 4_096)
    with refused("The disk is nearly full"):
        root.write("a.txt", b"x" * 4_097)
    assert names(path) == ["a.txt"]


def test_a_kill_leaves_one_whole_text_and_its_half_is_swept_away_later(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from gateway.tools.workspace_fs import WorkspaceRoot\n"
        "root = WorkspaceRoot(Path(sys.argv[1]), 2_000_000)\n"
        "while True:\n"
        "    for text in (b'a' * 1_000_000, b'b' * 2_000_000):\n"
        "        root.write('a.txt', text)\n"
        "        print(flush=True)\n"
    )
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as writing:
            assert writing.stdout is not None
            for _ in range(4):
                writing.stdout.readline()
            writing.send_signal(signal.SIGKILL)
        text = (tmp_path / "a.txt").read_bytes()
        assert text in (b"a" * 1_000_000, b"b" * 2_000_000)
    for name in names(tmp_path):
        if is_partial_file(name):
            os.utime(tmp_path / name, (0, 0))
    WorkspaceRoot(tmp_path, 100).write("b.txt", b"")
    assert names(tmp_path) == ["a.txt", "b.txt"]


def test_a_half_of_now_is_somebody_elses_work(root: WorkspaceRoot, path: Path) -> None:
    root.write("a.txt", b"")
    (path / HALF).write_bytes(b"half")
    root.write("b.txt", b"")
    assert names(path) == [HALF, "a.txt", "b.txt"]
    long_ago = time.time() - PARTIAL_MAX_AGE_S - 1
    os.utime(path / HALF, (long_ago, long_ago))
    root.write("b.txt", b"")
    assert names(path) == ["a.txt", "b.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_what_its_mode_forbids_is_told(root: WorkspaceRoot, path: Path) -> None:
    root.write("a.txt", b"a")
    (path / "a.txt").chmod(0)
    with refused("its mode forbids it"):
        root.read_bytes("a.txt")
    (path / "a.txt").chmod(0o600)
    path.chmod(0o500)
    with refused("its mode forbids it"):
        root.write("a.txt", b"b")
    path.chmod(0o700)


def test_no_handle_is_left_open(root: WorkspaceRoot) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    root.write("a/b/c.txt", b"a")
    before = opened()
    for path in ("a/b/c.txt", "a/b", "a/x/y", "a/b/c.txt/d", "..", "a/b/c.txt"):
        with contextlib.suppress(ToolCallRefused):
            root.read_bytes(path)
        with contextlib.suppress(ToolCallRefused):
            root.write(path, b"x" * 20_000)
        with contextlib.suppress(ToolCallRefused):
            root.edit(path, lambda data: data)
    assert opened() == before


def test_no_command_sees_the_configuration_the_store_or_what_is_an_agents_own(tmp_path: Path) -> None:
    live = live_tools(workspace=tmp_path / "ana")
    live.directory = tmp_path / "config"
    found = AgentFiles(live, tmp_path / "store" / "reverie.db").hidden_directories()
    assert found == [tmp_path / "store", tmp_path / "ana", tmp_path / "ana" / "files", tmp_path / "config"]
