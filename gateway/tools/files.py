"""The agent's own files: read, written, changed, listed, searched and looked at."""

import asyncio
import hashlib
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
from gateway.clock import Clock
from gateway.hands import Given, Hand, Whereabouts
from gateway.labels import rank
from gateway.records import FileWritten
from gateway.store import Entry, Store
from gateway.tools import images, texts
from gateway.tools.listing import Bounds, glob
from gateway.tools.paths import a_file, told
from gateway.tools.permits import MEMBERS, Permit
from gateway.tools.root import Root
from gateway.tools.search import grep
from gateway.tools.threads import threaded

WRITING: Final = Permit(role="admin", approval="untrusted")
SEARCHES: Final = 2
"""Of an agent at once: threads are few, and others (names of hosts, images) wait for theirs."""


class FileHands:
    """The hands of one agent for its files.

    What comes out of a file is somebody else's words, from outside, unless the agent itself wrote them (`Authored`).
    """

    def __init__(self, root: Root, pictures: images.Keeps, authored: "Authored | None" = None) -> None:
        """`authored`: knows what the agent wrote itself. None: nobody knows, so all files may be anybody's words."""
        self._root = root
        self._images = pictures
        self._authored = authored
        self._search_slots = asyncio.Semaphore(SEARCHES)

    @property
    def tools(self) -> Sequence[Hand]:
        return (
            Hand.create(READ_FILE, ReadFile, self._read, MEMBERS),
            Hand.create(WRITE_FILE, WriteFile, self._write, WRITING),
            Hand.create(EDIT_FILE, EditFile, self._edit, WRITING),
            Hand.create(GLOB, Glob, self._glob, MEMBERS, cost="cheap"),
            Hand.create(GREP, Grep, self._grep, MEMBERS, cost="cheap"),
            Hand.create(VIEW_IMAGE, ViewImage, self._view, MEMBERS),
        )

    async def _read(self, asked: ReadFile, where: Whereabouts) -> Given:
        name = told(a_file(asked.path))

        def read() -> tuple[bytes, str, int]:
            data = self._root.read_bytes(asked.path)
            if what := texts.binary(data):
                raise Refused(f"{name} is no text but {what}; it has {len(data):,} bytes.")
            return data, *texts.told(name, texts.decoded(data), asked.offset, asked.limit)

        data, text, last = await threaded(lambda _: read())
        origin = f"{name}, lines {asked.offset}-{last}" if last else name
        return Given(text=text, origin=origin, is_untrusted=True, is_foreign=not await self._is_own(data, where))

    async def _write(self, asked: WriteFile, where: Whereabouts) -> str:
        data = texts.encoded(asked.text)
        done = await threaded(lambda _: self._root.write(asked.path, data))
        if self._authored is not None:
            await self._authored.record(data, where)
        what = "Made" if done.previous_bytes is None else f"Replaced {done.previous_bytes:,} bytes in"
        return f"{what} {told(a_file(asked.path))}: {done.size_bytes:,} bytes, {asked.text.count(chr(10)):,} line ends."

    async def _edit(self, asked: EditFile, where: Whereabouts) -> Given:
        name = told(a_file(asked.path))
        made, before = list[texts.Change](), list[bytes]()

        def change(data: bytes) -> bytes:
            if what := texts.binary(data):
                raise Refused(f"{name} is no text but {what}; it has {len(data):,} bytes.")
            most = self._root.max_bytes
            before.append(data)
            made.append(texts.edited(name, data, asked.old, asked.new, everywhere=asked.all, most=most))
            return made[0].data

        def edit() -> str:
            self._root.edit(asked.path, change)
            return texts.changed(name, made[0])

        text = await threaded(lambda _: edit())
        own = await self._is_own(before[0], where)
        if own and self._authored is not None:
            await self._authored.record(made[0].data, where)
        return Given(text=text, origin=name, is_untrusted=True, is_foreign=not own)

    async def _is_own(self, data: bytes, where: Whereabouts) -> bool:
        return self._authored is not None and await self._authored.is_known(data, where)

    async def _glob(self, asked: Glob, where: Whereabouts) -> Given:  # noqa: ARG002 - as all hands
        async with self._search_slots:
            text = await threaded(lambda stopped: glob(self._root, asked.pattern, Bounds(stopped)))
        return Given(text=text, origin=f"names of files, {told(asked.pattern)}", is_untrusted=True, is_foreign=True)

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

        async with self._search_slots:
            text = await threaded(search)
        return Given(text=text, origin=f"lines of files, {told(asked.pattern)}", is_untrusted=True, is_foreign=True)

    async def _view(self, asked: ViewImage, where: Whereabouts) -> Given:
        data = await threaded(lambda _: self._root.read_bytes(asked.path))
        name = told(a_file(asked.path))
        image, own = await images.shown(self._images, data, name), await self._is_own(data, where)
        text = f"{image[0].about} is shown below."
        return Given(text=text, origin=name, is_untrusted=True, is_foreign=not own, images=(image,))


class Authored:
    """What an agent wrote into files while its requests held nobody's words but those of owners and admins.

    It is known by its bytes: so it stays its own in any file, and a file that anything else has changed is not.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def record(self, data: bytes, where: Whereabouts) -> None:
        """It was written just now. Raises StoreError."""
        seen = where.trust.label
        if seen.foreign or rank(seen.role) < rank("admin"):
            return
        fact = FileWritten(turn=where.turn, agent=where.agent, sha256=hashlib.sha256(data).hexdigest())
        place, key = where.at.conversation, _key(where.agent, data)
        await self._store.append([Entry(fact=fact, at=self._clock.now(), conversation=place, key=key)])

    async def is_known(self, data: bytes, where: Whereabouts) -> bool:
        """Whether the agent of that turn wrote these bytes. Raises StoreError."""
        return not data or await self._store.entry_by_key(_key(where.agent, data)) is not None


def _key(agent: str, data: bytes) -> str:
    return f"file:{agent}:{hashlib.sha256(data).hexdigest()}"
