"""The agent's directory: what a write leaves behind, and ways out of it that are closed."""

import contextlib
import ctypes
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.workspace_fs import AgentFiles, WorkspaceRoot, display_path, parse_path
from gateway.core.clock import SystemClock
from gateway.core.private_files import PARTIAL_MAX_AGE_S, is_partial_file
from gateway.core.tool_spec import ToolCallRefused
from gateway.store import Store
from gateway.stream.routing import Bindings
from tests.gateway.plugins.files.files_kit import SECRET, files, state
from tests.kits.places import privacy
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
    assert root.write(parse_path("a/b/c.txt"), b"one") is None
    assert root.write(parse_path("/workspace/a/./b//c.txt"), b"two!") == 3
    assert root.read(parse_path("a/b/c.txt")) == b"two!"
    assert names(path / "a/b") == ["c.txt"]


def test_it_is_made_when_it_is_needed_for_its_owner_only(root: WorkspaceRoot, path: Path) -> None:
    with refused("there is no such file"):
        root.read(parse_path("a.txt"))
    root.write(parse_path("sub/a.txt"), b"")
    assert [mode(one) for one in (path, path.parent, path / "sub", path / "sub/a.txt")] == [
        0o700,
        0o700,
        0o700,
        0o600,
    ]


def test_where_it_cannot_be_nothing_works_and_no_path_is_told(
    path: Path, root: WorkspaceRoot
) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("a file")
    with refused("The files cannot be reached now"):
        root.read(parse_path("a.txt"))
    with refused("The files cannot be reached now"):
        root.write(parse_path("a.txt"), b"")


def test_sizes_are_held(root: WorkspaceRoot, path: Path) -> None:
    root.write(parse_path("full.txt"), b"x" * 10_000)
    assert len(root.read(parse_path("full.txt"))) == 10_000
    with refused("would have 10,001 bytes, and a file may have 10,000"):
        root.write(parse_path("new/more.txt"), b"x" * 10_001)
    with refused("would have 20,000 bytes"):
        root.edit(parse_path("full.txt"), lambda data: data * 2)
    (path / "log.txt").write_bytes(b"x" * 10_001)
    with refused("log.txt has 10,001 bytes, more than the 10,000 that can be read at once"):
        root.read(parse_path("log.txt"))
    assert names(path) == ["full.txt", "log.txt"], (
        "not even a directory was made for what was refused"
    )


def test_what_stands_in_the_way_is_not_replaced(root: WorkspaceRoot, path: Path) -> None:
    root.write(parse_path("d/a.txt"), b"a")
    with refused("d is a directory"):
        root.write(parse_path("d"), b"")
    with refused("d is a directory"):
        root.read(parse_path("d/"))
    with refused("a part of the path is a link, or no directory"):
        root.write(parse_path("d/a.txt/b.txt"), b"")
    with refused("there is no such file"):
        root.edit(parse_path("d/b.txt"), lambda data: data)
    assert names(path) == ["d"]
    assert names(path / "d") == ["a.txt"]


def test_a_file_keeps_its_mode_but_no_rights_of_its_owner(root: WorkspaceRoot, path: Path) -> None:
    root.write(parse_path("run.sh"), b"true")
    (path / "run.sh").chmod(0o4755)
    root.write(parse_path("run.sh"), b"false")
    assert mode(path / "run.sh") == 0o755


def test_two_edits_at_once_are_both_done(root: WorkspaceRoot) -> None:
    root.write(parse_path("a.txt"), b"")

    def add() -> None:
        for _ in range(50):
            root.edit(parse_path("a.txt"), lambda data: data + b"x")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert root.read(parse_path("a.txt")) == b"x" * 200


def test_what_does_not_fit_on_the_disk_leaves_the_old_text_and_no_half(
    root: WorkspaceRoot, path: Path
) -> None:
    root.write(parse_path("a.txt"), b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1_000, before[1])
    )  # as a full disk: the write ends in the middle
    try:
        with refused("a.txt: file too large"):
            root.write(parse_path("a.txt"), b"x" * 5_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert root.read(parse_path("a.txt")) == b"old"
    assert names(path) == ["a.txt"]


def test_the_disk_is_not_filled(
    root: WorkspaceRoot, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.write(parse_path("a.txt"), b"old")
    nearly = os.statvfs_result((4_096, 4_096, 100_000, 5_001, 5_001, 1_000, 1_000, 1_000, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: nearly)
    root.write(parse_path("a.txt"), b"x" * 4_096)
    with refused("The disk is nearly full"):
        root.write(parse_path("a.txt"), b"x" * 4_097)
    assert names(path) == ["a.txt"]


def test_a_kill_leaves_one_whole_text_and_its_half_is_swept_away_later(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from gateway.context.workspace_fs import "
        "WorkspaceRoot\nroot = WorkspaceRoot(Path(sys.argv[1]), 2_000_000)\nwhile True:\n    for "
        "text in (b'a' * 1_000_000, b'b' * 2_000_000):\n        root.write(('a.txt',), text)\n     "
        "   print(flush=True)\n"
    )
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE
        ) as writing:
            assert writing.stdout is not None
            for _ in range(4):
                writing.stdout.readline()
            writing.send_signal(signal.SIGKILL)
        text = (tmp_path / "a.txt").read_bytes()
        assert text in (b"a" * 1_000_000, b"b" * 2_000_000)
    for name in names(tmp_path):
        if is_partial_file(name):
            os.utime(tmp_path / name, (0, 0))
    WorkspaceRoot(tmp_path, 100).write(parse_path("b.txt"), b"")
    assert names(tmp_path) == ["a.txt", "b.txt"]


def test_a_half_of_now_is_somebody_elses_work(root: WorkspaceRoot, path: Path) -> None:
    root.write(parse_path("a.txt"), b"")
    (path / HALF).write_bytes(b"half")
    root.write(parse_path("b.txt"), b"")
    assert names(path) == [HALF, "a.txt", "b.txt"]
    long_ago = time.time() - PARTIAL_MAX_AGE_S - 1
    os.utime(path / HALF, (long_ago, long_ago))
    root.write(parse_path("b.txt"), b"")
    assert names(path) == ["a.txt", "b.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_what_its_mode_forbids_is_told(root: WorkspaceRoot, path: Path) -> None:
    root.write(parse_path("a.txt"), b"a")
    (path / "a.txt").chmod(0)
    with refused("its mode forbids it"):
        root.read(parse_path("a.txt"))
    (path / "a.txt").chmod(0o600)
    path.chmod(0o500)
    with refused("its mode forbids it"):
        root.write(parse_path("a.txt"), b"b")
    path.chmod(0o700)


def test_no_handle_is_left_open(root: WorkspaceRoot) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    root.write(parse_path("a/b/c.txt"), b"a")
    before = opened()
    for path in ("a/b/c.txt", "a/b", "a/x/y", "a/b/c.txt/d", "..", "a/b/c.txt"):
        with contextlib.suppress(ToolCallRefused):
            root.read(parse_path(path))
        with contextlib.suppress(ToolCallRefused):
            root.write(parse_path(path), b"x" * 20_000)
        with contextlib.suppress(ToolCallRefused):
            root.edit(parse_path(path), lambda data: data)
    assert opened() == before


async def test_no_command_sees_the_configuration_the_store_or_what_is_an_agents_own(
    tmp_path: Path,
) -> None:
    live = live_tools(workspace=tmp_path / "ana")
    live.directory = tmp_path / "config"
    async with await Store.open(tmp_path / "store" / "reverie.db", SystemClock()) as store:
        found = AgentFiles(live, store.path, privacy(store, Bindings(()))).hidden_directories()
    assert found == [
        tmp_path / "store",
        tmp_path / "ana",
        tmp_path / "ana" / "files",
        tmp_path / "config",
    ]


STRANGE = (
    "..\\..\\outside\\secret.txt",
    "%2e%2e/outside/secret.txt",
    "..%2foutside%2fsecret.txt",
    "．．/outside/secret.txt",
    "…/secret.txt",
    "file:///etc/passwd",
    "$HOME/secret.txt",
    "`cat secret`",
    "-rf",
    "C:\\secret.txt",
    "... /secret.txt",
    ". ./secret.txt",
)
"""Names like others."""


RACES = 10_000


@pytest.mark.parametrize("attempt", STRANGE)
def test_what_only_looks_like_a_way_out_is_a_name(attempt: str, tmp_path: Path) -> None:
    here = files(tmp_path)
    before = state(here.outside)
    here.told("write_file", path=attempt, text="mine")
    assert here.told("read_file", path=attempt).endswith("\tmine")
    assert state(here.outside) == before
    assert [one.read_text() for one in here.path.rglob("*") if one.is_file()] == ["mine"]


@contextlib.contextmanager
def meanwhile(does: Callable[[], object]) -> Iterator[None]:
    """Somebody who does this all the time."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            does()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def swap(one: Path, other: Path) -> Callable[[], object]:
    """Put each in the place of the other, at once: renameat2(2), RENAME_EXCHANGE."""
    here, exchange, libc = -100, 2, ctypes.CDLL(None)
    return lambda: libc.renameat2(here, bytes(one), here, bytes(other), exchange)


def races(seen: dict[str, int], least: int = RACES) -> Iterator[int]:
    """Some thousand, and more until each of these has happened."""
    for number in range(100 * least):
        if number >= least and min(seen.values()) > 0:
            return
        yield number
    pytest.fail(f"no race: {seen}")


def test_nobody_wins_a_race_for_a_directory(tmp_path: Path) -> None:
    here = files(tmp_path)
    here.put("d/secret.txt", "inside")
    (here.path / "out").symlink_to(here.outside)
    seen = {"refused": 0, "inside": 0}
    with meanwhile(swap(here.path / "d", here.path / "out")):
        for number in races(seen):
            try:
                if number % 50 == 0:
                    here.root.write(parse_path("d/secret.txt"), b"inside")
                    here.root.write(parse_path(f"d/new{number % 7}/a.txt"), b"inside")
                seen[here.root.read(parse_path("d/secret.txt")).decode()] += 1
            except ToolCallRefused:
                seen["refused"] += 1
    assert [one.name for one in here.outside.iterdir()] == ["secret.txt"]
    assert (here.outside / "secret.txt").read_text() == SECRET


def test_a_link_that_is_put_where_something_is_written_is_not_written_through(
    tmp_path: Path,
) -> None:
    here = files(tmp_path)
    here.path.mkdir(parents=True)

    def plant() -> None:
        (here.path / "seed").symlink_to(here.outside / "secret.txt")
        (here.path / "seed").rename(here.path / "a.txt")
        (here.path / "a.txt").unlink(missing_ok=True)

    seen = {"refused": 0, "written": 0}
    with meanwhile(plant):
        for _ in races(seen):
            try:
                here.root.write(parse_path("a.txt"), b"inside")
                seen["written"] += 1
            except ToolCallRefused:
                seen["refused"] += 1
    assert (here.outside / "secret.txt").read_text() == SECRET


paths = st.text(st.sampled_from("ab./~ \\\n\0é*"), max_size=20) | st.text(max_size=40)


@given(paths)
def test_a_path_is_refused_or_leads_down(path: str) -> None:
    try:
        parts = parse_path(path)
    except ToolCallRefused:
        return
    assert all(one not in ("", ".", "..") and "/" not in one and "\0" not in one for one in parts)
    assert parse_path("/".join(parts)) == parts == parse_path(f"/workspace/{'/'.join(parts)}")
    assert display_path(parts) == ("/".join(parts) or ".")
