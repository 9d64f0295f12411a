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
    EditFileArgs,
    GlobArgs,
    GrepArgs,
    ReadFileArgs,
    ViewImageArgs,
    WriteFileArgs,
)
from agent.tools.schema import ToolCallRefused
from gateway.clock import Clock
from gateway.hands import Tool, ToolContext, ToolOutput
from gateway.labels import role_rank
from gateway.records import FileWritten
from gateway.store import NewEntry, Store
from gateway.tools import images, texts
from gateway.tools.listing import SearchLimits, glob
from gateway.tools.paths import display_path, parse_file_path
from gateway.tools.permits import ALLOW_MEMBERS, ToolPermit
from gateway.tools.root import WorkspaceRoot
from gateway.tools.search import grep
from gateway.tools.threads import run_in_thread

WRITE_PERMIT: Final = ToolPermit(role="admin", approval="untrusted")
MAX_CONCURRENT_SEARCHES: Final = 2
"""Of an agent at once: threads are few, and others (names of hosts, images) wait for theirs."""


class FileTools:
    """The hands of one agent for its files.

    What comes out of a file is somebody else's words, from outside, unless the agent itself wrote them
    (`AuthoredFiles`).
    """

    def __init__(
        self, root: WorkspaceRoot, pictures: images.ImageStore, authored: "AuthoredFiles | None" = None
    ) -> None:
        """`authored`: knows what the agent wrote itself. None: nobody knows, so all files may be anybody's words."""
        self._root = root
        self._images = pictures
        self._authored = authored
        self._search_slots = asyncio.Semaphore(MAX_CONCURRENT_SEARCHES)

    @property
    def tools(self) -> Sequence[Tool]:
        return (
            Tool.create(READ_FILE, ReadFileArgs, self._read, ALLOW_MEMBERS),
            Tool.create(WRITE_FILE, WriteFileArgs, self._write, WRITE_PERMIT),
            Tool.create(EDIT_FILE, EditFileArgs, self._edit, WRITE_PERMIT),
            Tool.create(GLOB, GlobArgs, self._glob, ALLOW_MEMBERS, cost="cheap"),
            Tool.create(GREP, GrepArgs, self._grep, ALLOW_MEMBERS, cost="cheap"),
            Tool.create(VIEW_IMAGE, ViewImageArgs, self._view, ALLOW_MEMBERS),
        )

    async def _read(self, asked: ReadFileArgs, where: ToolContext) -> ToolOutput:
        name = display_path(parse_file_path(asked.path))

        def read() -> tuple[bytes, str, int]:
            data = self._root.read_bytes(asked.path)
            if what := texts.describe_binary(data):
                raise ToolCallRefused(f"{name} is no text but {what}; it has {len(data):,} bytes.")
            return data, *texts.render_lines(name, texts.decode_text(data), asked.offset, asked.limit)

        data, text, last = await run_in_thread(lambda _: read())
        origin = f"{name}, lines {asked.offset}-{last}" if last else name
        return ToolOutput(text=text, origin=origin, is_untrusted=True, is_foreign=not await self._is_own(data, where))

    async def _write(self, asked: WriteFileArgs, where: ToolContext) -> str:
        data = texts.encode_text(asked.text)
        done = await run_in_thread(lambda _: self._root.write(asked.path, data))
        if self._authored is not None:
            await self._authored.record(data, where)
        what = "Made" if done.previous_bytes is None else f"Replaced {done.previous_bytes:,} bytes in"
        return (
            f"{what} {display_path(parse_file_path(asked.path))}: {done.size_bytes:,} bytes, "
            f"{asked.text.count(chr(10)):,} line ends."
        )

    async def _edit(self, asked: EditFileArgs, where: ToolContext) -> ToolOutput:
        name = display_path(parse_file_path(asked.path))
        made, before = list[texts.TextEdit](), list[bytes]()

        def change(data: bytes) -> bytes:
            if what := texts.describe_binary(data):
                raise ToolCallRefused(f"{name} is no text but {what}; it has {len(data):,} bytes.")
            most = self._root.max_bytes
            before.append(data)
            made.append(texts.replace_text(name, data, asked.old, asked.new, everywhere=asked.all, most=most))
            return made[0].data

        def edit() -> str:
            self._root.edit(asked.path, change)
            return texts.render_edit(name, made[0])

        text = await run_in_thread(lambda _: edit())
        own = await self._is_own(before[0], where)
        if own and self._authored is not None:
            await self._authored.record(made[0].data, where)
        return ToolOutput(text=text, origin=name, is_untrusted=True, is_foreign=not own)

    async def _is_own(self, data: bytes, where: ToolContext) -> bool:
        return self._authored is not None and await self._authored.is_known(data, where)

    async def _glob(self, asked: GlobArgs, where: ToolContext) -> ToolOutput:  # noqa: ARG002 - as all hands
        async with self._search_slots:
            text = await run_in_thread(lambda stopped: glob(self._root, asked.pattern, SearchLimits(stopped)))
        return ToolOutput(
            text=text, origin=f"names of files, {display_path(asked.pattern)}", is_untrusted=True, is_foreign=True
        )

    async def _grep(self, asked: GrepArgs, where: ToolContext) -> ToolOutput:  # noqa: ARG002 - as all hands
        def search(stopped: Callable[[], bool]) -> str:
            return grep(
                self._root,
                asked.pattern,
                SearchLimits(stopped),
                path=asked.path,
                files=asked.glob,
                ignore_case=asked.ignore_case,
                around=asked.context,
            )

        async with self._search_slots:
            text = await run_in_thread(search)
        return ToolOutput(
            text=text, origin=f"lines of files, {display_path(asked.pattern)}", is_untrusted=True, is_foreign=True
        )

    async def _view(self, asked: ViewImageArgs, where: ToolContext) -> ToolOutput:
        data = await run_in_thread(lambda _: self._root.read_bytes(asked.path))
        name = display_path(parse_file_path(asked.path))
        image, own = await images.prepare_image(self._images, data, name), await self._is_own(data, where)
        text = f"{image[0].about} is shown below."
        return ToolOutput(text=text, origin=name, is_untrusted=True, is_foreign=not own, images=(image,))


class AuthoredFiles:
    """What an agent wrote into files while its requests held nobody's words but those of owners and admins.

    It is known by its bytes: so it stays its own in any file, and a file that anything else has changed is not.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def record(self, data: bytes, where: ToolContext) -> None:
        """It was written just now. Raises StoreError."""
        seen = where.trust.label
        if seen.foreign or role_rank(seen.role) < role_rank("admin"):
            return
        fact = FileWritten(turn=where.turn, agent=where.agent, sha256=hashlib.sha256(data).hexdigest())
        place, key = where.at.conversation, _authored_key(where.agent, data)
        await self._store.append([NewEntry(fact=fact, at=self._clock.now(), conversation=place, key=key)])

    async def is_known(self, data: bytes, where: ToolContext) -> bool:
        """Whether the agent of that turn wrote these bytes. Raises StoreError."""
        return not data or await self._store.entry_by_key(_authored_key(where.agent, data)) is not None


def _authored_key(agent: str, data: bytes) -> str:
    return f"file:{agent}:{hashlib.sha256(data).hexdigest()}"
