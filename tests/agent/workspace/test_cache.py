"""The cache of workspaces, on real directories with a real watcher."""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent.workspace.cache import WorkspaceCache, is_persona_file
from agent.workspace.persona import PersonaBundle, PersonaScope
from gateway.core.clock import ManualClock
from tests.kits.waiting import until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "w", "calm")


@contextlib.asynccontextmanager
async def open_cache(
    root: Path, *, max_age_seconds: float = 0, watched: bool = True
) -> AsyncIterator[tuple[WorkspaceCache, Callable[[], int]]]:
    """A cache that has read `root` once and listens; and how many files' readings there were."""
    cache = WorkspaceCache(ManualClock(), watch_debounce_ms=20, max_age_seconds=max_age_seconds)
    async with contextlib.aclosing(cache):
        await soul(cache, root)
        await until(lambda: not (watched and (not cache._workspaces[root].is_watching)))
        await soul(cache, root)
        yield cache, lambda: cache.counts.misses[str(root)]


async def soul(cache: WorkspaceCache, root: Path, scope: PersonaScope = "public") -> str:
    return (await cache.get(root, scope=scope, family="x")).identity.removeprefix("# SOUL.md\n\n")


async def seen(cache: WorkspaceCache, root: Path, text: str) -> None:
    """Take turns until one sees the text."""
    while await soul(cache, root) != text:
        await asyncio.sleep(0.01)


def put(root: Path, name: str, text: str) -> None:
    """Write a file in one step, so that it is one change however slow the machine is."""
    (root / "half").write_text(text)
    (root / "half").rename(root / name)


def make(directory: Path, text: str) -> Path:
    directory.mkdir()
    (directory / "SOUL.md").write_text(text)
    return directory


def at_once(cache: WorkspaceCache, root: Path) -> PersonaBundle:
    """An answer from memory: one that had to wait for anything would not be ready."""
    asked = cache.get(root, scope="public", family="x")
    with pytest.raises(StopIteration) as done:
        asked.send(None)
    bundle = done.value.value
    assert isinstance(bundle, PersonaBundle)
    return bundle


def counts(cache: WorkspaceCache, root: Path) -> tuple[int, int, int]:
    """Hits, misses, invalidations."""
    path = str(root)
    return cache.counts.hits[path], cache.counts.misses[path], cache.counts.invalidations[path]


async def test_a_hit_waits_for_nothing_and_is_counted(root: Path) -> None:
    async with open_cache(root) as (cache, _):
        first = at_once(cache, root)
        assert at_once(cache, root) is first
        assert counts(cache, root) == (
            3,
            1,
            0,
        )  # the second look while the watcher began was a comparison


async def test_an_edit_is_seen_by_the_next_turn_after_the_debounce(root: Path) -> None:
    async with open_cache(root) as (cache, misses):
        put(root, "SOUL.md", "bold")
        await seen(cache, root, "bold")
        assert misses() == 2
        assert counts(cache, root)[2] == 1
        at_once(cache, root)


async def test_only_persona_files_count(root: Path) -> None:
    async with open_cache(root) as (cache, misses):
        (root / "notes.txt").write_text("x")
        (root / "AVATAR.json.tmp").write_text("x")
        (root / "sub").mkdir()
        (root / "sub" / "deep.md").write_text("x")
        (root / "SOUL.md").read_bytes()
        put(root, "AGENTS.md", "work")  # what came before it would have been heard before it
        await seen(cache, root, "calm\n\n# AGENTS.md\n\nwork")
        assert (misses(), counts(cache, root)[2]) == (2, 1)


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("/w/SOUL.md", True),
        ("/w/anything.md", True),
        ("/w/AVATAR.json", True),
        ("/w/AVATAR.png", True),
        ("/w/other.png", False),
        ("/w/package.json", False),
        ("/w/x.mdx", False),
        ("/w.md/x", False),
    ],
)
def test_which_files_are_the_persona(path: str, counts: bool) -> None:
    assert is_persona_file(path) is counts


async def test_scopes_and_families_are_kept_apart(root: Path) -> None:
    (root / "USER.md").write_text("likes tea")
    (root / "SOUL.small.md").write_text("small")
    async with open_cache(root) as (cache, misses):
        for _ in range(2):
            assert (
                await cache.get(root, scope="private", family="x")
            ).private == "# USER.md\n\nlikes tea"
            assert (await cache.get(root, scope="public", family="x")).private == ""
            assert (
                await cache.get(root, scope="public", family="small")
            ).identity == "# SOUL.md\n\nsmall"
        assert misses() == 3
        put(root, "SOUL.md", "bold")
        await seen(cache, root, "bold")
        assert await soul(cache, root, "private") == "bold"
        assert counts(cache, root)[2] == 1  # one change, however many bundles it touched


async def test_a_directory_that_is_deleted_and_made_again_is_seen(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cache(root) as (cache, _):
        shutil.rmtree(root)
        async with asyncio.timeout(120):
            while "is not there now" not in caplog.text:
                assert await soul(cache, root) == "calm"
                await asyncio.sleep(0.01)
        make(root, "reborn")
        await seen(cache, root, "reborn")
        await until(lambda: cache._workspaces[root].is_watching)
        (root / "SOUL.md").write_text("edited")
        await seen(cache, root, "edited")


async def test_what_cannot_be_read_just_now_leaves_what_was_read(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cache(root) as (cache, _):
        with socket.socket(socket.AF_UNIX) as busy:
            (root / "SOUL.md").unlink()
            busy.bind(str(root / "SOUL.md"))  # opening a socket fails, for root too
            async with asyncio.timeout(120):
                while "cannot be read now" not in caplog.text:
                    assert await soul(cache, root) == "calm"
                    await asyncio.sleep(0.01)
            assert await soul(cache, root) == "calm"
        assert caplog.text.count("cannot be read now") == 1
        (root / "SOUL.md").unlink()
        (root / "SOUL.md").write_text("fine")
        await seen(cache, root, "fine")


async def test_after_max_age_it_is_read_again_whatever_was_heard(root: Path) -> None:
    async with open_cache(root, max_age_seconds=60) as (cache, misses):
        clock = cache._clock
        assert isinstance(clock, ManualClock)
        clock.advance(59.9)
        at_once(cache, root)
        clock.advance(0.1)
        await soul(cache, root)
        assert misses() == 2
        at_once(cache, root)
        assert counts(cache, root)[2] == 0


async def test_switched_off_it_reads_each_time_and_starts_no_thread(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = WorkspaceCache(ManualClock())
    (root / "AVATAR.png").write_text("junk")
    for text in ("one", "two"):
        (root / "SOUL.md").write_text(text)
        bundle = await cache.get(root, scope="public", family="x", cached=False)
        assert bundle.identity == f"# SOUL.md\n\n{text}"
    assert counts(cache, root) == (0, 0, 0)
    assert not [thread for thread in threading.enumerate() if thread.name == f"watch {root.name}"]
    assert caplog.text.count("AVATAR.png is left out") == 1


async def test_no_thread_is_left_and_answers_still_come(root: Path) -> None:
    missing = root.with_name("missing")
    async with open_cache(root) as (cache, _):
        await soul(cache, missing)
        names = {thread.name for thread in threading.enumerate()}
        assert {"watch w", "watch missing"} <= names
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]
    (root / "SOUL.md").write_text("after")
    assert await soul(cache, root) == "after"
    await cache.aclose()


async def test_a_change_is_logged_with_its_place(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reverie.workspace")
    async with open_cache(root) as (cache, misses):
        os.utime(root / "SOUL.md")  # the same bytes: read again, and nothing to tell
        async with asyncio.timeout(120):
            while misses() < 2:
                await soul(cache, root)
                await asyncio.sleep(0.01)
        assert "has changed" not in caplog.text
        (root / "SOUL.md").write_text("bold")
        await seen(cache, root, "bold")
        assert f"{root} has changed and was read again" in caplog.text
