"""The agent's own files: read, written, changed, listed, searched and looked at."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from agent.tools.files import (
    EDIT_FILE,
    GLOB,
    GREP,
    READ_FILE,
    VIEW_IMAGE,
    WRITE_FILE,
    EditFile,
    Glob,
    Grep,
    ReadFile,
    ViewImage,
    WriteFile,
)
from agent.tools.schema import Refused
from gateway.hands import Given, Hand, Whereabouts
from gateway.tools import images, texts
from gateway.tools.listing import Bounds, glob
from gateway.tools.paths import a_file, told
from gateway.tools.permits import ADMINS, MEMBERS
from gateway.tools.root import Root
from gateway.tools.search import grep
from gateway.tools.threads import threaded

SEARCHES: Final = 2
"""Of an agent at once: threads are few, and others (names of hosts, images) wait for theirs."""


class FileHands:
    """The hands of one agent for its files. What comes out of a file is somebody else's words."""

    def __init__(self, root: Root, pictures: images.Keeps) -> None:
        self._root = root
        self._pictures = pictures
        self._searching = asyncio.Semaphore(SEARCHES)

    @property
    def hands(self) -> Sequence[Hand]:
        return (
            Hand.of(READ_FILE, ReadFile, self._read, MEMBERS),
            Hand.of(WRITE_FILE, WriteFile, self._write, ADMINS),
            Hand.of(EDIT_FILE, EditFile, self._edit, ADMINS),
            Hand.of(GLOB, Glob, self._glob, MEMBERS, cost="cheap"),
            Hand.of(GREP, Grep, self._grep, MEMBERS, cost="cheap"),
            Hand.of(VIEW_IMAGE, ViewImage, self._view, MEMBERS),
        )

    async def _read(self, asked: ReadFile, where: Whereabouts) -> Given:  # noqa: ARG002 - as all hands
        name = told(a_file(asked.path))

        def read() -> tuple[str, int]:
            data = self._root.read_bytes(asked.path)
            if what := texts.binary(data):
                raise Refused(f"{name} is no text but {what}; it has {len(data):,} bytes.")
            return texts.told(name, texts.decoded(data), asked.offset, asked.limit)

        text, last = await threaded(lambda _: read())
        return Given(text=text, origin=f"{name}, lines {asked.offset}-{last}" if last else name, untrusted=True)

    async def _write(self, asked: WriteFile, where: Whereabouts) -> str:  # noqa: ARG002 - as all hands
        data = texts.encoded(asked.text)
        done = await threaded(lambda _: self._root.write(asked.path, data))
        what = "Made" if done.before is None else f"Replaced {done.before:,} bytes in"
        return f"{what} {told(a_file(asked.path))}: {done.bytes:,} bytes, {asked.text.count(chr(10)):,} line ends."

    async def _edit(self, asked: EditFile, where: Whereabouts) -> Given:  # noqa: ARG002 - as all hands
        name = told(a_file(asked.path))
        made = list[texts.Change]()

        def change(data: bytes) -> bytes:
            if what := texts.binary(data):
                raise Refused(f"{name} is no text but {what}; it has {len(data):,} bytes.")
            most = self._root.max_bytes
            made.append(texts.edited(name, data, asked.old, asked.new, everywhere=asked.all, most=most))
            return made[0].data

        def edit() -> str:
            self._root.edit(asked.path, change)
            return texts.changed(name, made[0])

        return Given(text=await threaded(lambda _: edit()), origin=name, untrusted=True)

    async def _glob(self, asked: Glob, where: Whereabouts) -> Given:  # noqa: ARG002 - as all hands
        async with self._searching:
            text = await threaded(lambda stopped: glob(self._root, asked.pattern, Bounds(stopped)))
        return Given(text=text, origin=f"names of files, {told(asked.pattern)}", untrusted=True)

    async def _grep(self, asked: Grep, where: Whereabouts) -> Given:  # noqa: ARG002 - as all hands
        def search(stopped: Callable[[], bool]) -> str:
            return grep(
                self._root,
                asked.pattern,
                Bounds(stopped),
                path=asked.path,
                files=asked.glob,
                ignore_case=asked.ignore_case,
                around=asked.context,
            )

        async with self._searching:
            text = await threaded(search)
        return Given(text=text, origin=f"lines of files, {told(asked.pattern)}", untrusted=True)

    async def _view(self, asked: ViewImage, where: Whereabouts) -> Given:  # noqa: ARG002 - as all hands
        data = await threaded(lambda _: self._root.read_bytes(asked.path))
        name = told(a_file(asked.path))
        image = await images.shown(self._pictures, data, name)
        return Given(text=f"{image[0].about} is shown below.", origin=name, untrusted=True, images=(image,))
