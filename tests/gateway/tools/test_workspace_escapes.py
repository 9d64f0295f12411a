"""What a model, or a shell that means harm, may try to get out of the agent's directory."""

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tool_spec import ToolCallRefused
from gateway.tools.files import search_text
from gateway.tools.workspace_fs import MAX_PATH_PARTS, SearchLimits, display_path, parse_path
from tests.gateway.tools.files_kit import SECRET, files, state, traps

ATTEMPTS = (
    "..",
    "../outside/secret.txt",
    "real/../../outside/secret.txt",
    "real/up/outside/secret.txt",
    "./../outside/secret.txt",
    "nowhere/../../outside/secret.txt",
    "plain.txt/../../outside/secret.txt",
    "plain.txt/x",
    "/etc/passwd",
    "//etc/passwd",
    "/",
    "/workspace/../outside/secret.txt",
    "/workspace/link.txt",
    "/workspaces/secret.txt",
    "/workspace/..",
    "link.txt",
    "link_abs.txt",
    "link.txt/",
    "link.txt/.",
    "up/outside/secret.txt",
    "self/../outside/secret.txt",
    "self/link.txt",
    "top/etc/passwd",
    "top/proc/self/environ",
    "out/secret.txt",
    "out",
    "out/",
    "out/new.txt",
    "chain/secret.txt",
    "chain.txt",
    "loop",
    "loop/x",
    "gone",
    "proc/root/etc/passwd",
    "proc/environ",
    "proc/cwd",
    "fds/0",
    "null",
    "pipe",
    "sock",
    "zero",
    "real",
    "",
    ".",
    "/workspace",
    "/workspace/",
    "~",
    "~/secret.txt",
    "secret.txt\0.png",
    "a\nb",
    "a\rb",
    "a\x1b[2Jb",
    "a\u202etxt.exe",
    "..\u200b/secret.txt",
    "x" * 256,
    "é" * 128,
    "x/" * 2_000,
    "/".join("x" * (MAX_PATH_PARTS + 1)),
    "../" * 60 + "etc/passwd",
)
"""No file is at any of these, for any of the tools."""
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


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_nothing_outside_is_read_or_written(attempt: str, tmp_path: Path) -> None:
    here = files(tmp_path)
    traps(here.path, here.outside)
    before = state(here.outside), sorted(one.name for one in tmp_path.iterdir())
    for tool, arguments in (
        ("read_file", {}),
        ("write_file", {"text": "mine"}),
        ("edit_file", {"old": "secret", "new": "mine"}),
        ("view_image", {}),
    ):
        assert str(tmp_path) not in here.refused(tool, path=attempt, **arguments)
    for found in (here.call("grep", pattern="secret|root:", path=attempt), here.call("glob", pattern=attempt or "x")):
        assert SECRET not in found.text.replace(f"hard.txt:1:{SECRET}", "")
        assert "root:" not in found.text
    assert (state(here.outside), sorted(one.name for one in tmp_path.iterdir())) == before


@pytest.mark.parametrize("attempt", STRANGE)
def test_what_only_looks_like_a_way_out_is_a_name(attempt: str, tmp_path: Path) -> None:
    here = files(tmp_path)
    before = state(here.outside)
    here.told("write_file", path=attempt, text="mine")
    assert here.told("read_file", path=attempt).endswith("\tmine")
    assert state(here.outside) == before
    assert [one.read_text() for one in here.path.rglob("*") if one.is_file()] == ["mine"]


def test_a_file_that_has_another_name_is_not_written(tmp_path: Path) -> None:
    here = files(tmp_path)
    traps(here.path, here.outside)
    assert "several names" in here.refused("write_file", path="hard.txt", text="mine")
    assert "several names" in here.refused("edit_file", path="hard.txt", old="secret", new="mine")
    assert (here.outside / "secret.txt").read_text() == SECRET


def test_a_search_goes_through_no_link_and_into_no_pipe(tmp_path: Path) -> None:
    here = files(tmp_path)
    traps(here.path, here.outside)
    (here.path / "hard.txt").unlink()
    listed = here.told("glob", pattern="**").splitlines()[1:]
    assert {"out (a link)", "pipe (no file)", "plain.txt", "real/", "real/up (a link)"} <= set(listed)
    assert not [one for one in listed if one.startswith(("out/", "up/", "top/", "self/", "loop/"))]
    assert SECRET not in here.told("grep", pattern="secret", glob="**")


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


def checked_first(top: Path, path: str) -> str:
    """As one would do it who does not know better: look where it leads, then open it."""
    file = top / path
    if not file.resolve().is_relative_to(top):
        raise ToolCallRefused("outside")
    return file.read_text()


def test_nobody_wins_a_race_for_a_directory(tmp_path: Path) -> None:
    here = files(tmp_path)
    here.put("d/secret.txt", "inside")
    (here.path / "out").symlink_to(here.outside)
    seen = {"refused": 0, "inside": 0}
    with meanwhile(swap(here.path / "d", here.path / "out")):
        for number in races(seen):
            try:
                if number % 50 == 0:
                    here.root.write("d/secret.txt", b"inside")
                    here.root.write(f"d/new{number % 7}/a.txt", b"inside")
                seen[here.root.read_bytes("d/secret.txt").decode()] += 1
            except ToolCallRefused:
                seen["refused"] += 1
    assert [one.name for one in here.outside.iterdir()] == ["secret.txt"]
    assert (here.outside / "secret.txt").read_text() == SECRET


def test_nobody_wins_a_race_for_a_file(tmp_path: Path) -> None:
    here = files(tmp_path)
    here.put("a.txt", "inside")
    (here.path / "link.txt").symlink_to(here.outside / "secret.txt")
    seen = {"refused": 0, "inside": 0}
    with meanwhile(swap(here.path / "a.txt", here.path / "link.txt")):
        for number in races(seen, 3 * RACES):
            try:
                seen[here.root.read_bytes("a.txt").decode()] += 1
            except ToolCallRefused:
                seen["refused"] += 1
            if number % 500 == 0:
                assert "operator" not in search_text(here.root, "operator|inside", SearchLimits())


def test_a_link_that_is_put_where_something_is_written_is_not_written_through(tmp_path: Path) -> None:
    here = files(tmp_path)
    here.path.mkdir()

    def plant() -> None:
        (here.path / "seed").symlink_to(here.outside / "secret.txt")
        (here.path / "seed").rename(here.path / "a.txt")
        (here.path / "a.txt").unlink(missing_ok=True)

    seen = {"refused": 0, "written": 0}
    with meanwhile(plant):
        for _ in races(seen):
            try:
                here.root.write("a.txt", b"inside")
                seen["written"] += 1
            except ToolCallRefused:
                seen["refused"] += 1
    assert (here.outside / "secret.txt").read_text() == SECRET


def test_who_looks_first_and_then_opens_loses_such_a_race(tmp_path: Path) -> None:
    here = files(tmp_path)
    here.put("d/secret.txt", "inside")
    (here.path / "out").symlink_to(here.outside)
    with meanwhile(swap(here.path / "d", here.path / "out")):
        for _ in range(200_000):
            with contextlib.suppress(ToolCallRefused, OSError):
                if checked_first(here.path, "d/secret.txt") == SECRET:
                    return
    pytest.fail("the races above prove nothing")


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
