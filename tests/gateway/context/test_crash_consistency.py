"""The process ends before, or in the middle of, any step that it takes on the disk: what the next start makes of it."""

import contextlib
import os
from pathlib import Path

import pytest

from agent.journal import parse_journal
from gateway.core import private_files
from tests.gateway.context.test_dream import dream, dreamed, model
from tests.kits.channels import story
from tests.kits.journal import ANN, ROOM, Papers, at, papers

STEPS = frozenset({"open", "write", "fsync", "replace", "unlink"})


class Cut(BaseException):
    """The end."""


class Disk:
    """The real one, until its patience is at an end. A write that is cut off has written half."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name not in STEPS:
            return real

        def step(*args: object, **kwargs: object) -> object:
            self.left -= 1
            if self.left < 0:
                raise Cut
            if self.left == 0 and name == "write":
                handle, text = args
                assert isinstance(handle, int)
                assert isinstance(text, memoryview)
                os.write(handle, text[: len(text) // 2])
                raise Cut
            return real(*args, **kwargs)

        return step


async def live(kit: Papers) -> None:
    """Everything that an agent keeps for itself, twice."""
    for number in range(2):
        await kit.notes.write_entry(at(ROOM), f"title {number}", f"text {number}\n## 2026-01-01 00:00\nand more")
        await kit.notes.remember(at(ANN), f"fact {number}")
        await dream(kit, model(f"- dream {number}"))


@pytest.mark.parametrize("first", range(0, 96, 8))
def test_wherever_it_ends_the_files_follow_the_log_after_the_next_start(tmp_path: Path, first: int) -> None:
    @story
    async def run() -> None:
        cuts = 0
        for steps in range(first, first + 8):
            directory = tmp_path / f"{steps}"
            directory.mkdir()
            with contextlib.suppress(Cut):
                async with papers(directory) as kit:
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr(private_files, "os", Disk(steps))
                        try:
                            await live(kit)
                        except Cut:
                            cuts += 1
                            raise
            with contextlib.suppress(Cut), pytest.MonkeyPatch.context() as patch:  # the next start is cut off, too
                patch.setattr(private_files, "os", Disk(steps % 7))
                async with papers(directory):
                    pass
            async with papers(directory) as kit:
                entries = parse_journal(kit.journal.read_text())
                assert [one.text for one in entries] == [noted.text for noted in await kit.noted()]
                keys = [one.key for one in await kit.store.newest_entries(9, kinds=["noted"])]
                assert [f"note:{one.note_id}" for one in entries] == keys
                dreams, memory = await dreamed(kit), kit.directory / "MEMORY.md"
                assert (memory.read_text() if memory.exists() else "") == (dreams[-1].after if dreams else "")
                assert sorted(path.name for path in kit.directory.glob(".*")) == []
        assert cuts == 8 or first > 72, "every number of steps up to all of them was tried"

    run()


def test_the_steps_are_fewer_than_are_tried(tmp_path: Path) -> None:
    @story
    async def run() -> None:
        disk = Disk(1_000)
        async with papers(tmp_path) as kit:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(private_files, "os", disk)
                await live(kit)
        assert 80 < 1_000 - disk.left < 96

    run()
