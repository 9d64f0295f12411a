"""The cache of workspaces, on real directories."""

import asyncio
import logging
import os
import shutil
import socket
from pathlib import Path

import pytest

from agent.workspace.cache import WorkspaceCache
from agent.workspace.persona import PersonaBundle, PersonaScope
from gateway.core.clock import ManualClock


class Cached:
    """A cache that has read a directory once."""

    def __init__(self, root: Path, max_age_seconds: float = 0) -> None:
        self.root, self.clock = root, ManualClock()
        self.cache = WorkspaceCache(self.clock, max_age_seconds=max_age_seconds)
        assert self.soul() == "calm"

    def bundle(self, scope: PersonaScope = "public", family: str = "x") -> PersonaBundle:
        """What a turn reads once a change is noticed."""
        self.clock.advance(0.5)
        return asyncio.run(self.cache.get(self.root, scope=scope, family=family))

    def soul(self, scope: PersonaScope = "public") -> str:
        return self.bundle(scope).identity.removeprefix("# SOUL.md\n\n")

    @property
    def counts(self) -> tuple[int, int, int]:
        """Hits, misses, invalidations."""
        return self.cache.counts.by_path()[str(self.root)]


@pytest.fixture
def it(root: Path) -> Cached:
    return Cached(root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "w", "calm")


def make(directory: Path, text: str) -> Path:
    directory.mkdir()
    (directory / "SOUL.md").write_text(text)
    return directory


def test_a_hit_waits_for_nothing_and_is_counted(root: Path, it: Cached) -> None:
    asked = it.cache.get(root, scope="public", family="x")
    with pytest.raises(StopIteration) as done:
        asked.send(None)
    assert done.value.value is it.bundle()
    assert it.counts == (2, 1, 0)


def test_an_edit_is_seen_by_the_next_turn_after_the_debounce(root: Path, it: Cached) -> None:
    (root / "SOUL.md").write_text("bolder")
    asked = asyncio.run(it.cache.get(root, scope="public", family="x"))
    assert asked.identity == "# SOUL.md\n\ncalm"
    assert (it.soul(), it.soul()) == ("bolder", "bolder")
    assert it.counts == (2, 2, 1)


def test_only_persona_files_count(root: Path, it: Cached) -> None:
    (root / "notes.txt").write_text("x")
    (root / "AVATAR.json.tmp").write_text("x")
    (root / "sub").mkdir()
    (root / "sub" / "SOUL.md").write_text("x")
    assert (it.soul(), it.counts) == ("calm", (1, 1, 0))
    (root / "AGENTS.md").write_text("work")
    assert (it.soul(), it.counts[1:]) == ("calm\n\n# AGENTS.md\n\nwork", (2, 1))


def test_scopes_and_families_are_kept_apart(root: Path, it: Cached) -> None:
    (root / "USER.md").write_text("likes tea")
    (root / "SOUL.small.md").write_text("small")
    for _ in range(2):
        assert it.bundle("private").private == "# USER.md\n\nlikes tea"
        assert it.bundle("public").private == ""
        assert it.bundle(family="small").identity == "# SOUL.md\n\nsmall"
    assert it.counts[1] == 3
    (root / "SOUL.md").write_text("bolder")
    assert it.soul() == it.soul("private") == "bolder"


def test_a_directory_that_is_deleted_and_made_again_is_seen(
    root: Path, caplog: pytest.LogCaptureFixture, it: Cached
) -> None:
    shutil.rmtree(root)
    assert it.soul() == it.soul() == "calm"
    assert caplog.text.count("is not there now") == 1
    make(root, "reborn")
    assert it.soul() == "reborn"


def test_what_cannot_be_read_just_now_leaves_what_was_read(
    root: Path, caplog: pytest.LogCaptureFixture, it: Cached
) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        (root / "SOUL.md").unlink()
        busy.bind(str(root / "SOUL.md"))  # opening a socket fails, for root too
        assert it.soul() == it.soul() == "calm"
    assert caplog.text.count("cannot be read now") == 1
    (root / "SOUL.md").unlink()
    (root / "SOUL.md").write_text("fine")
    assert it.soul() == "fine"


def test_a_file_behind_a_link_counts(root: Path, it: Cached) -> None:
    (root / "real").write_text("calm")
    (root / "SOUL.md").unlink()
    (root / "SOUL.md").symlink_to("real")
    (root / "real").write_text("bolder")
    assert it.soul() == "bolder"


def test_after_max_age_it_is_read_again_whatever_it_looks_like(root: Path) -> None:
    it = Cached(root, max_age_seconds=60)
    it.clock.advance(59)
    it.soul()
    assert it.counts == (1, 1, 0)
    it.soul()
    assert it.counts == (1, 2, 0)


async def test_switched_off_it_reads_each_time(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = WorkspaceCache(ManualClock())
    (root / "AVATAR.png").write_text("junk")
    for text in ("one", "two"):
        (root / "SOUL.md").write_text(text)
        bundle = await cache.get(root, scope="public", family="x", cached=False)
        assert bundle.identity == f"# SOUL.md\n\n{text}"
    assert cache.counts.by_path() == {}
    assert caplog.text.count("AVATAR.png is left out") == 1


def test_a_change_is_logged_with_its_place(
    root: Path, caplog: pytest.LogCaptureFixture, it: Cached
) -> None:
    caplog.set_level(logging.INFO, "reverie.workspace")
    os.utime(root / "SOUL.md")  # the same bytes: read again, and nothing to tell
    it.soul()
    assert it.counts[1] == 2
    assert "has changed" not in caplog.text
    (root / "SOUL.md").write_text("bolder")
    it.soul()
    assert f"{root} has changed and was read again" in caplog.text
