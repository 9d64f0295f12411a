"""Tools for the agent's own files: read, write, edit, list, search and view.

The order of this file: the tools, images for a model, text in files, then search.

Replacing text works on bytes: invalid UTF-8, byte order marks and line ends stay as they are. Searching blocks; it is
bounded as listing is (`workspace_fs.SearchLimits`), and in the time that a pattern may take.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import os
import re
import struct
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import Field

from agent.models.base import MAX_IMAGE_BYTES, MAX_IMAGE_SIDE
from gateway.core.clock import Clock
from gateway.core.events import Attachment, ConversationId, ToolImage
from gateway.core.facts import CommandRun, FileWritten
from gateway.core.fields import compile_regex
from gateway.core.labels import OUTSIDE_LABEL, TRUSTED_LABEL, Label, RequestLabel, join, rank_integrity, readers_of
from gateway.core.media_types import describe_attachment, identify_image, sound_suffix
from gateway.core.permissions import ALLOW_ADMINS, ALLOW_MEMBERS, OWN
from gateway.core.scopes import OWNER_SCOPE, Visibility
from gateway.core.tool import ToolContext, ToolOutput, run_in_thread, tool
from gateway.core.tool_spec import Image, ToolCallRefused
from gateway.store import NewEntry, Store
from gateway.stream.media import MediaStore
from gateway.stream.routing import PrivacyCache
from gateway.tools.sandbox import HOME, CommandGate
from gateway.tools.workspace_fs import (
    AgentFiles,
    EntryKind,
    FileContent,
    FoundEntry,
    GlobPattern,
    PathParts,
    SearchLimits,
    WorkspaceRoot,
    display_path,
    is_partial_file,
    list_paths,
    parse_file_path,
    parse_path,
    refuse_missing,
    walk,
)

logger = logging.getLogger("reverie.tools")


MAX_CONCURRENT_SEARCHES: Final = 2
"""Searches of an agent at once: threads are few, and others (host names, images) need them, too."""
DEFAULT_LINES: Final = 2_000
"""Lines read at once without a `limit`."""
MAX_LINES: Final = 10_000
MAX_CONTEXT_LINES: Final = 20
"""Limit of lines on each side of a match."""
MAX_PATTERN_CHARS: Final = 500

MAX_MASKS: Final = 200
"""Files and directories that are hidden from one command. bubblewrap takes the longer for each the more there are."""
SURVEY_S: Final = 60.0
"""Seconds for looking through all files before a command."""
MAX_KNOWN: Final = 100_000
"""Files of an agent whose digests and labels are kept in memory: as many as are looked through before a command."""
SETTLED_NS: Final = 1_000_000_000
"""Age of a file's change from which on its time tells it from the next one: file systems count in ticks."""
_PAGE: Final = 1_000

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_FileKey = tuple[int, int, int, int]
_DirectoryKey = tuple[int, int, int]
"""Device, inode, size and time of change of a file."""
_Path = Annotated[str, Field(description="Path in your files, e.g. notes/today.md.")]


class FileTools:
    """File tools of all agents.

    A file has the label that `FileLabels` finds. Where it may not be read, it is as if there were none.
    """

    def __init__(self, files: AgentFiles, images: MediaStore, labels: "FileLabels") -> None:
        self._files = files
        self._images = images
        self._labels = labels
        self._search_slots = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(MAX_CONCURRENT_SEARCHES))
        """By agent."""

    @tool(
        "Read a text file. Its lines are shown with a number and a tab, which are not in the file.",
        ALLOW_MEMBERS,
        effect=OWN,
        task=True,
        parallel=True,
    )
    async def read_file(
        self,
        context: ToolContext,
        *,
        path: _Path,
        offset: Annotated[int, Field(ge=1, description="First line to read.")] = 1,
        limit: Annotated[int, Field(ge=1, le=MAX_LINES, description="Lines to read at most.")] = DEFAULT_LINES,
    ) -> ToolOutput:
        name = display_path(parse_file_path(path))
        data, label = await self._labels.read(self._files.root(context.agent), path, context)

        def render() -> tuple[str, int]:
            if what := describe_binary(data):
                raise ToolCallRefused(f"{name} is no text but {what}; it has {len(data):,} bytes.")
            return render_lines(name, decode_text(data), offset, limit)

        text, last = await run_in_thread(lambda _: render())
        origin = f"{name}, lines {offset}-{last}" if last else name
        return ToolOutput(text=text, origin=origin, is_untrusted=True, label=label)

    @tool(
        "Write a file: create it, or replace all of it. To change a part, use edit_file.",
        ALLOW_ADMINS,
        effect=OWN,
        task=True,
    )
    async def write_file(
        self,
        context: ToolContext,
        *,
        path: _Path,
        text: Annotated[str, Field(description="The complete text of the file.")],
    ) -> str:
        data, root = encode_text(text), self._files.root(context.agent)
        if not await self._labels.may_replace(root, path, context):
            raise ToolCallRefused(f"{display_path(parse_file_path(path))} cannot be written here: choose another name.")
        async with self._labels.writing(root, path, data, context.request.label, context):
            done = await run_in_thread(lambda _: root.write(path, data))
        what = "Made" if done.previous_bytes is None else f"Replaced {done.previous_bytes:,} bytes in"
        return (
            f"{what} {display_path(parse_file_path(path))}: {done.size_bytes:,} bytes, "
            f"{text.count(chr(10)):,} line ends."
        )

    @tool("Replace a piece of text in a file, and show the changed lines.", ALLOW_ADMINS, effect=OWN, task=True)
    async def edit_file(
        self,
        context: ToolContext,
        *,
        path: _Path,
        old: Annotated[
            str, Field(min_length=1, description="Text to replace, exactly as in the file, without line numbers.")
        ],
        new: Annotated[str, Field(description="Text to put in its place.")],
        all: Annotated[bool, Field(description="Replace every occurrence. Default: it must occur once.")] = False,  # noqa: A002 - the model's word
    ) -> ToolOutput:
        name, root = display_path(parse_file_path(path)), self._files.root(context.agent)
        before, label = await self._labels.read(root, path, context)
        edits = list[TextEdit]()

        def change(data: bytes) -> bytes:
            if what := describe_binary(data):
                raise ToolCallRefused(f"{name} is no text but {what}; it has {len(data):,} bytes.")
            if data != before:
                raise ToolCallRefused(f"{name} was changed by another program just now: read it again.")
            edits.append(replace_text(name, data, old, new, everywhere=all, max_bytes=root.max_bytes))
            return edits[0].data

        def edit() -> str:
            root.edit(path, change)
            return render_edit(name, edits[0])

        after = await run_in_thread(lambda _: change(before))
        async with self._labels.writing(root, path, after, context.request.label | label, context):
            text = await run_in_thread(lambda _: edit())
        return ToolOutput(text=text, origin=name, is_untrusted=True, label=label)

    @tool(
        "List files and directories by pattern: `*` stays in one directory, `**` goes through all.",
        ALLOW_MEMBERS,
        effect=OWN,
        task=True,
        parallel=True,
    )
    async def glob(
        self,
        context: ToolContext,
        *,
        pattern: Annotated[
            str, Field(max_length=MAX_PATTERN_CHARS, description="E.g. `*`, `notes/*.md` or `**/*.{py,toml}`.")
        ],
    ) -> ToolOutput:
        root, shown = self._files.root(context.agent), RequestLabel()
        labels_of = self._labels.entry_labels(root, context.agent)

        def is_shown(one: FoundEntry) -> bool:
            label = _readable(labels_of(one), context.visibility)
            shown.add(label or TRUSTED_LABEL)
            return label is not None

        async with self._search_slots[context.agent]:
            text = await run_in_thread(lambda stopped: list_paths(root, pattern, SearchLimits(stopped), is_shown))
        return ToolOutput(
            text=text, origin=f"names of files, {display_path(pattern)}", is_untrusted=True, label=shown.label
        )

    @tool("Search your text files for a regular expression.", ALLOW_MEMBERS, effect=OWN, task=True, parallel=True)
    async def grep(
        self,
        turn: ToolContext,
        *,
        pattern: Annotated[
            str,
            Field(min_length=1, max_length=MAX_PATTERN_CHARS, description="Regular expression, matched line by line."),
        ],
        path: Annotated[str, Field(description="File or directory. Default: all files.")] = "",
        glob: Annotated[str, Field(max_length=MAX_PATTERN_CHARS, description="Only these files, e.g. `*.md`.")] = "",
        ignore_case: bool = False,
        context: Annotated[int, Field(ge=0, le=MAX_CONTEXT_LINES, description="Lines to show around each match.")] = 0,
    ) -> ToolOutput:
        find, shown = self._labels.finder(turn), RequestLabel()

        def search(stopped: Callable[[], bool]) -> str:
            return search_text(
                self._files.root(turn.agent),
                pattern,
                SearchLimits(stopped),
                find=find,
                shown=shown,
                path=path,
                files=glob,
                ignore_case=ignore_case,
                context_lines=context,
            )

        async with self._search_slots[turn.agent]:
            text = await run_in_thread(search)
        return ToolOutput(
            text=text, origin=f"lines of files, {display_path(pattern)}", is_untrusted=True, label=shown.label
        )

    @tool("Look at an image file: PNG, JPEG, GIF or WebP.", ALLOW_MEMBERS, effect=OWN, task=True, parallel=True)
    async def view_image(self, context: ToolContext, *, path: _Path) -> ToolOutput:
        root = self._files.root(context.agent)
        data, label = await self._labels.read(root, path, context)
        name = display_path(parse_file_path(path))
        image = await prepare_image(self._images, data, name)
        text = f"{image[0].about} is shown below."
        return ToolOutput(text=text, origin=name, is_untrusted=True, label=label, images=(image,))


class FileLabels:
    """Labels of the files of all agents.

    What the agent wrote is recognised by the hash of its bytes, in any file. Any other content has the label of the
    commands during which the file was last changed, by the file's ctime, which no command can set. What neither wrote
    was put there by the operator: it is text from outside, for everybody.

    A command is shown the files that may be read in its place (`CommandFiles`). Its output, and what it leaves, has the
    label of its request joined with those of the files that it opened.

    Commands of places that do not see the same never run at the same time (`follow`).

    Not defended: names of directories, and to commands those of files and the targets of links, are shown everywhere.
    What the operator puts there while a command runs counts as that command's. A clock that is set back makes files
    look older than they are.
    """

    def __init__(self, store: Store, clock: Clock, places: PrivacyCache) -> None:
        self._store = store
        self._clock = clock
        self._places = places
        self._digests = defaultdict[str, dict[_FileKey, str]](dict)
        """Digests of the files that an agent has, as they were when they were last looked through."""
        self._written = defaultdict[str, dict[str, tuple[Label, ...]]](dict)
        """Labels of the bytes that an agent wrote, by their digest: of those that it was asked for. None of them: it
        did not write them."""
        self._directories = defaultdict[str, dict[_DirectoryKey, Label]](dict)
        """Labels of the directories in which an agent has written files, as long as nothing else changes in them.
        Forgotten at a restart: then their names are text from outside."""
        self._made = defaultdict[str, dict[int, Label | None]](dict)
        """Label of the commands that ran at a time of change, by that time: of those that it was asked for."""
        self._of_all = defaultdict[str, tuple[int, Label]](lambda: (0, OUTSIDE_LABEL))
        """Label of all that an agent ever wrote or made, up to a position of the log."""
        self._runs = defaultdict[str, dict[int, CommandRun]](dict)
        """Commands of an agent that run, or have ended since the oldest of these began, by their begin."""
        self._active = defaultdict[str, dict[int, CommandFiles]](dict)
        """Commands of an agent that run, by their begin."""
        self._starting = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """Held while a command of an agent waits for those that may not run beside it."""
        self._writing = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """Held while a tool writes a file of an agent."""
        self._wrote_ns = defaultdict[str, int](int)
        """Time of the newest write by a tool of an agent."""
        self._lock = asyncio.Lock()
        """Held while the store is asked, or a label recorded."""

    async def read(self, root: WorkspaceRoot, path: str, context: ToolContext) -> tuple[bytes, Label]:
        """Return the content of a file and its label. Raises ToolCallRefused, also if it may not be read there."""
        labels_at = self._labels_at(context.agent)
        content = await run_in_thread(lambda _: root.read(path))
        labels = await run_in_thread(lambda _: labels_at(hashlib.sha256(content.data).hexdigest(), content.changed_ns))
        label = _readable(labels, await self.visibility(context, *labels))
        if label is None:
            raise refuse_missing(parse_file_path(path))
        return content.data, label

    async def may_replace(self, root: WorkspaceRoot, path: str, context: ToolContext) -> bool:
        """Return False if there is a file that may not be read there."""
        find = self.finder(context)
        try:
            return await run_in_thread(lambda _: find(root.read(path))) is not None
        except ToolCallRefused:  # there is none, or writing says why it cannot be
            return True

    def finder(self, context: ToolContext) -> Callable[[FileContent], Label | None]:
        """Return a function for threads: the label of a file, None if it may not be read there. Raises StoreError."""
        labels_at, visibility = self._labels_at(context.agent), context.visibility

        def find(content: FileContent) -> Label | None:
            return _readable(labels_at(hashlib.sha256(content.data).hexdigest(), content.changed_ns), visibility)

        return find

    async def visibility(self, context: ToolContext, *labels: Label) -> Visibility:
        """Return what may be shown there, also as a member of the rooms of these labels. Raises StoreError."""
        readers = [reader for label in labels for reader in label.readers]
        return await self._places.with_memberships(context.visibility, readers)

    def entry_labels(
        self,
        root: WorkspaceRoot,
        agent: str,
        *,
        digests: dict[_FileKey, str] | None = None,
        times: set[int] | None = None,
    ) -> Callable[[FoundEntry], list[Label]]:
        """Return a function for threads: labels of an entry of a directory, whoever may read one of them may see it.

        That of a directory, whose name may be words, is that of the writes and commands that changed it, and so is that
        of an empty file. `digests`, `times`: get the digests of the entries
        that are asked for, and the times of their changes. Raises StoreError.
        """
        known, labels_at = self._digests[agent], self._labels_at(agent)

        def labels(one: FoundEntry) -> list[Label]:
            try:
                status = os.stat(one.parts[-1], dir_fd=one.parent_fd, follow_symlinks=False)
            except OSError:  # it is gone
                return []
            if times is not None:
                times.add(status.st_ctime_ns)
            if one.kind == "directory":
                own = self._directories[agent].get((status.st_dev, status.st_ino, status.st_ctime_ns))
                return [own] if own is not None else labels_at("", status.st_ctime_ns)
            key = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
            digest = _digest(root, one, key, known) if one.kind == "file" else ""
            if digests is not None and key in known:
                digests[key] = digest
            return labels_at("" if digest == _EMPTY else digest, status.st_ctime_ns)

        return labels

    def _labels_at(self, agent: str) -> Callable[[str, int], list[Label]]:
        """Return a function for threads: labels of a content with a digest, changed at a time.

        No digest: there is none, or it cannot be read. The store is asked once about each.
        """
        loop, written, made = asyncio.get_running_loop(), self._written[agent], self._made[agent]

        def labels(digest: str, changed_ns: int) -> list[Label]:
            if digest == _EMPTY:
                return [TRUSTED_LABEL]
            if digest:
                found = written.get(digest)
                if found is None:
                    found = asyncio.run_coroutine_threadsafe(self._find_written(agent, digest), loop).result()
                if found:
                    return [*found]
            try:
                label = made[changed_ns]
            except KeyError:
                label = asyncio.run_coroutine_threadsafe(self._find_made(agent, changed_ns), loop).result()
            return [label or OUTSIDE_LABEL]

        return labels

    async def _find_written(self, agent: str, digest: str) -> tuple[Label, ...]:
        """Return the labels with which an agent wrote these bytes. Raises StoreError."""
        async with self._lock:
            return await self._ask_written(agent, digest)

    async def _ask_written(self, agent: str, digest: str) -> tuple[Label, ...]:
        known = self._written[agent]
        if digest not in known:
            key, found = f"file:{agent}:{digest}", list[Label]()
            for entry in await self._store.entries_by_key([(key, f"{key}:~")]):
                assert isinstance(entry.fact, FileWritten)
                label = entry.fact.label
                if label is None and entry.conversation is not None:  # only trusted requests were recorded
                    label = Label(readers=readers_of(await self._places.scope(entry.conversation, entry.seq)))
                found.append(label or Label(readers=readers_of(OWNER_SCOPE)))
            _remember(known, digest, tuple(found))
        return known[digest]

    async def _find_made(self, agent: str, changed_ns: int) -> Label | None:
        """Return the label of the commands that ran at that time. None: none did. Raises StoreError."""
        async with self._lock:
            spans = [
                (_run_key(agent, bits, changed_ns - (1 << bits)), f"{_run_key(agent, bits, changed_ns)}:~")
                for bits in _RUN_BITS
            ]
            runs, ended = dict[int, CommandRun](), set[int]()
            for entry in await self._store.entries_by_key(spans):
                assert isinstance(entry.fact, CommandRun)
                if entry.fact.began_ns in runs:
                    ended.add(entry.fact.began_ns)
                runs[entry.fact.began_ns] = entry.fact
            covering = {began: run for began, run in runs.items() if began <= changed_ns <= run.until_ns}
            halted = {began for run in covering.values() for began in run.halted}
            covering = {began: run for began, run in covering.items() if began not in halted}
            label = join(run.label for run in covering.values()) if covering else None
            now = time.time_ns()
            if changed_ns < now - SETTLED_NS and all(
                began in ended or run.until_ns < now for began, run in covering.items()
            ):
                _remember(self._made[agent], changed_ns, label)
            return label

    async def _label_of_all(self, agent: str) -> Label:
        """Return the label of all that an agent ever wrote or made. Reads all records of it. Raises StoreError."""
        async with self._lock:
            after, label = self._of_all[agent]
            kinds = ["file_written", "command_run"]
            while page := await self._store.entries(after=after, kinds=kinds, limit=_PAGE):
                after = page[-1].seq
                found = [one.fact for one in page if isinstance(one.fact, FileWritten | CommandRun)]
                label |= join(one.label or Label(readers=(OWNER_SCOPE,)) for one in found if one.agent == agent)
                self._of_all[agent] = after, label
            return label

    @contextlib.asynccontextmanager
    async def writing(
        self, root: WorkspaceRoot, path: str, data: bytes, label: Label, context: ToolContext
    ) -> AsyncIterator[None]:
        """Record that a file is about to be written, in the block. Raises ToolCallRefused, and StoreError."""
        async with self._writing[context.agent]:
            active = self._active[context.agent]
            for one in active.values():
                if one.has_network and not one.here.can_read(label.readers):
                    raise ToolCallRefused(
                        "A command with network runs in another conversation, and could send this out: try again later."
                    )
            await self._record(data, label, context)
            parents = [parse_file_path(path)[:depth] for depth in range(1, len(parse_file_path(path)))]
            before = {one: await self._directory_label(root, one, context.agent) for one in parents}
            try:
                yield
            finally:
                beside = join(one.label for one in active.values())
                for parts, was in before.items():
                    with contextlib.suppress(ToolCallRefused):
                        key = _directory_key(root, parts)
                        _remember(self._directories[context.agent], key, label | was | beside)
                for one in active.values():
                    one.hidden.pop(parse_file_path(path), None)  # what is put in its place is not
                self._wrote_ns[context.agent] = time.time_ns()  # commands that run may have seen it

    async def _directory_label(self, root: WorkspaceRoot, parts: PathParts, agent: str) -> Label:
        """Return the label of a directory's name; of one that is not there: that of nobody's words."""
        try:
            key = _directory_key(root, parts)
        except ToolCallRefused:
            return TRUSTED_LABEL
        return self._directories[agent].get(key) or await self._find_made(agent, key[2]) or OUTSIDE_LABEL

    async def _record(self, data: bytes, label: Label, context: ToolContext) -> None:
        async with self._lock:
            digest = hashlib.sha256(data).hexdigest()
            labels = await self._ask_written(context.agent, digest)
            if any((one.integrity, one.readers) == (label.integrity, label.readers) for one in labels):
                return
            fact = FileWritten(turn=context.turn, agent=context.agent, sha256=digest, label=label)
            key = f"file:{context.agent}:{digest}" + (f":{len(labels)}" if labels else "")
            await self._store.append(
                [NewEntry(fact=fact, at=self._clock.now(), conversation=context.at.conversation, key=key)]
            )
            self._written[context.agent][digest] = (*labels, label)

    async def follow(
        self,
        root: WorkspaceRoot,
        directory: Path,
        label: Label,
        context: ToolContext,
        *,
        can_hide: bool,
        has_network: bool,
        is_job: bool,
    ) -> "CommandFiles":
        """Look through the files for a command that is about to start, and follow which it opens, until `stop`.

        Commands of places that do not see the same never run at the same time: this one waits for others, and jobs are
        halted while it runs. With network it waits for jobs, too: what it makes would be there when they go on.
        `directory`: that of the files. `label`: of the command's request. `can_hide`: it runs in a sandbox. Raises
        ToolCallRefused if there are too many files, or jobs of such places if this is one, and StoreError.
        """
        digests, times = dict[_FileKey, str](), set[int]()
        labels_of = self.entry_labels(root, context.agent, digests=digests, times=times)
        active, here = self._active[context.agent], await self.visibility(context, label)
        async with self._starting[context.agent]:
            with contextlib.ExitStack() as halts:
                while others := [one for one in active.values() if one.here != here]:
                    if is_job and any(one.is_job for one in others):
                        raise ToolCallRefused(
                            "A background job of another conversation runs, and this one may not run beside it: "
                            "run it without `background`, or try again later."
                        )
                    waits = [one for one in others if has_network or not one.is_job]
                    if not waits:
                        break
                    await waits[0].ended.wait()
                for job in others:
                    await job.gate.halt()
                    halts.callback(job.gate.go_on)
                began_ns = await wait_for_file_time(directory)
                files = active[began_ns] = CommandFiles(began_ns, label, here, is_job=is_job)
                files.has_network, files.halted = has_network, others
                files.halts = halts.pop_all()
        try:
            async with self._writing[context.agent]:  # those that began before have ended
                pass
            if await run_in_thread(lambda stopped: files.survey(root, labels_of, stopped, can_hide=can_hide)):
                self._keep_only(context.agent, digests, times)
            else:
                files.add_unseen(await self._label_of_all(context.agent))
            files.begin()
        except BaseException:
            self.stop(context.agent, files)
            raise
        return files

    def _keep_only(self, agent: str, digests: dict[_FileKey, str], times: set[int]) -> None:
        """Forget what is known of files that are not there any more. The store knows it."""
        self._digests[agent] = digests
        _keep(self._written[agent], {*digests.values()})
        _keep(self._made[agent], times)

    def stop(self, agent: str, files: "CommandFiles") -> Label:
        """Stop to follow a command. Return the label of all that it can have brought."""
        files.close()
        for job in files.halted:
            job.find_hidden()
        files.halts.close()
        self._active[agent].pop(files.began_ns, None)
        if run := self._runs[agent].get(files.began_ns):
            self._runs[agent][files.began_ns] = replace(run, until_ns=min(run.until_ns, time.time_ns()))
        oldest_ns = min(self._active[agent], default=time.time_ns() + 1)
        most = files.possible | join(run.label for run in self._runs_beside(agent, files))
        self._runs[agent] = {began: run for began, run in self._runs[agent].items() if run.until_ns >= oldest_ns}
        return most

    def _runs_beside(self, agent: str, files: "CommandFiles") -> list[CommandRun]:
        own = {files.began_ns, *(one.began_ns for one in files.halted)}
        return [one for one in self._runs[agent].values() if one.until_ns >= files.began_ns and one.began_ns not in own]

    async def label_so_far(self, root: WorkspaceRoot, files: "CommandFiles", agent: str) -> Label:
        """Return the label of what a command has brought: of what it opened, and of what others changed meanwhile.

        What is new could not be hidden from it.
        """
        runs = self._runs_beside(agent, files)
        if not runs and self._wrote_ns[agent] < files.began_ns:
            return files.label
        labels_of = self.entry_labels(root, agent)

        def labels_at(changed_ns: int) -> list[Label]:
            return [one.label for one in runs if one.began_ns <= changed_ns <= one.until_ns]

        def look(stopped: Callable[[], bool]) -> Label:
            label, limits = TRUSTED_LABEL, SearchLimits(stopped, seconds=SURVEY_S)
            with root.open_directory(()) as handle:
                changed_ns = os.fstat(handle).st_ctime_ns
            if changed_ns >= files.began_ns:
                label |= join(labels_at(changed_ns))
            with contextlib.closing(walk(root, (), _EVERYTHING, limits)) as found:
                for one in found:
                    with contextlib.suppress(FileNotFoundError):
                        changed_ns = os.stat(one.parts[-1], dir_fd=one.parent_fd, follow_symlinks=False).st_ctime_ns
                        if changed_ns < files.began_ns or files.is_hidden(one.parts):
                            continue
                        theirs = labels_at(changed_ns)
                        if theirs or self._wrote_ns[agent] >= files.began_ns:
                            written = _readable(labels_of(one), files.here)
                            label |= join([*theirs, *([] if written is not None else labels_of(one))])
            return label if not limits.cut_reason else label | join(one.label for one in runs)

        return files.label | await run_in_thread(look)

    async def record_run(self, run: CommandRun, files: "CommandFiles", place: ConversationId) -> None:
        """Record a command that is about to start, or has ended. Raises StoreError."""
        key = f"{files.run_key}:ended"
        if not files.run_key:
            bits = max(_RUN_BITS.start, (run.until_ns - run.began_ns).bit_length())
            key = files.run_key = _run_key(run.agent, bits, run.began_ns)
            self._runs[run.agent][run.began_ns] = run
        elif run.began_ns in self._runs[run.agent]:
            self._runs[run.agent][run.began_ns] = run
        await self._store.append([NewEntry(fact=run, at=self._clock.now(), conversation=place, key=key)])


_RUN_BITS: Final = range(30, 63)
"""Lengths of the longest times of commands, in nanoseconds: from a second to a century."""


def _run_key(agent: str, bits: int, began_ns: int) -> str:
    """Return the key of the record that a command begins. Those of one length are sorted by their begin.

    `bits`: length of the time after which it would be ended.
    """
    return f"run:{agent}:{bits:02}:{max(0, began_ns):020}"


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(known) >= MAX_KNOWN:
        known.clear()
    known[key] = value


def _keep(known: dict[_Key, _Value], kept: set[_Key]) -> None:
    for key in [one for one in known if one not in kept]:
        del known[key]


async def wait_for_file_time(directory: Path) -> int:
    """Return the time of a change there now, in nanoseconds since 1970, which no earlier change has.

    File systems take the time of the kernel's last tick.
    """
    with tempfile.TemporaryFile(dir=directory) as probe:
        before = now = os.fstat(probe.fileno()).st_ctime_ns
        while now == before:
            await asyncio.sleep(0.001)
            os.utime(probe.fileno())
            now = os.fstat(probe.fileno()).st_ctime_ns
    return now


def _directory_key(root: WorkspaceRoot, parts: PathParts) -> _DirectoryKey:
    """Return which directory it is, and its last change. Raises ToolCallRefused: it is not there."""
    with root.open_directory(parts) as handle:
        status = os.fstat(handle)
    return status.st_dev, status.st_ino, status.st_ctime_ns


_EMPTY: Final = hashlib.sha256(b"").hexdigest()
_EVERYTHING: Final = GlobPattern("{**,**/.git/**}")
_EVENT: Final = struct.Struct("iIII")
"""`struct inotify_event`, without the name."""
_IN_OPEN, _IN_Q_OVERFLOW, _IN_DONT_FOLLOW = 0x20, 0x4000, 0x02000000
_IN_MODIFY, _IN_ATTRIB, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x2, 0x4, 0x400, 0x800


class CommandFiles:
    """Files of an agent as one command sees them, and which of them it has opened.

    Only files whose label would change the command's are followed, and directories with the names of such files: by
    inotify(7), which sees each opening in any namespace. What cannot be followed counts as opened.
    """

    def __init__(self, began_ns: int, label: Label, here: Visibility, *, is_job: bool) -> None:
        """`began_ns`: a time of file changes before its start. `label`: of its request. `here`: what its place sees."""
        self.began_ns = began_ns
        self.here = here
        self.is_job = is_job
        self.ended = asyncio.Event()
        self.run_key = ""
        """Key of the record that it begins. Empty: there is none yet."""
        self.gate = CommandGate()
        self.has_network = False
        self.halted: Sequence[CommandFiles] = ()
        """Jobs of places that do not see the same, which are halted while it runs."""
        self.halts = contextlib.ExitStack()
        """Closed when these may go on."""
        self.hidden: dict[PathParts, EntryKind] = {}
        """Files, and directories with nothing else in them, that may not be read in the command's place."""
        self.possible = label
        """Label of a command that opens all that it is shown."""
        self._label = label
        self._watched: dict[int, Label] = {}
        self._touched = set[int]()
        """Numbers of files that have got other attributes, or other names, without being opened."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def label(self) -> Label:
        """Label of the request, joined with those of what was opened so far."""
        self._read_events()
        return self._label | join(self._watched.get(number, TRUSTED_LABEL) for number in self._touched)

    def is_hidden(self, parts: PathParts) -> bool:
        """Return whether the command cannot read what is there."""
        return any(parts[:depth] in self.hidden for depth in range(1, len(parts) + 1))

    def find_hidden(self) -> None:
        """Find out what is still hidden from it. The kernel takes a mask off what is removed or replaced elsewhere."""
        mounted = self.gate.mount_points()
        if mounted is not None:
            self.hidden = {one: kind for one, kind in self.hidden.items() if "/".join((HOME, *one)) in mounted}

    def begin(self) -> None:
        """Follow from now on."""
        label = self._label
        self._read_events()
        self._label = label  # what was opened so far was opened by ourselves
        if self._inotify >= 0:
            asyncio.get_running_loop().add_reader(self._inotify, lambda: self.label)

    def close(self) -> None:
        """Stop to follow. The label stays as it is."""
        self.ended.set()
        if self._inotify >= 0:
            asyncio.get_running_loop().remove_reader(self._inotify)
            os.close(self._inotify)
        self._inotify = -1

    def survey(
        self,
        root: WorkspaceRoot,
        labels_of: Callable[[FoundEntry], list[Label]],
        is_stopped: Callable[[], bool],
        *,
        can_hide: bool,
    ) -> bool:
        """Look through all files. For a thread. Return False if there are too many. Raises ToolCallRefused."""
        shown, hidden, names = set[PathParts](), list[PathParts](), dict[PathParts, Label]()
        limits = SearchLimits(is_stopped, seconds=SURVEY_S)
        with contextlib.closing(walk(root, (), _EVERYTHING, limits)) as found:
            for one in found:
                labels = labels_of(one)
                label = _readable(labels, self.here)
                if one.kind == "other" and self.halted:  # a socket or a pipe would lead to those who are halted
                    label = None
                if one.kind != "directory":
                    if label is None and can_hide:
                        if one.kind != "link":  # what it leads to is hidden by itself
                            hidden.append(one.parts)
                        continue
                    shown.update(one.parts[:depth] for depth in range(len(one.parts)))
                    self._follow_file(one, label or join(labels))
                if label is not None and _adds(self._label, label):
                    names[one.parts[:-1]] = names.get(one.parts[:-1], TRUSTED_LABEL) | label
        for parts, label in names.items():
            with root.open_directory(parts) as handle:
                self._watch(f"/proc/self/fd/{handle}/.", label, _IN_OPEN)
        self.possible |= self._label
        self.hidden = _fold(hidden, shown)
        return not limits.cut_reason and not limits.unopened

    def add_unseen(self, label: Label) -> None:
        """Count files with this label as opened: they could not be looked through. Raises ToolCallRefused."""
        if not self.here.can_read(label.readers):
            raise ToolCallRefused("There are too many files to look through, or some that cannot be opened.")
        self._label |= label
        self.possible |= label

    def _follow_file(self, one: FoundEntry, label: Label) -> None:
        if _adds(self._label, label):
            changes = _IN_MODIFY | _IN_ATTRIB | _IN_MOVE_SELF | _IN_DELETE_SELF  # they change its ctime, unopened
            self._watch(f"/proc/self/fd/{one.parent_fd}/{one.parts[-1]}", label, _IN_OPEN | changes)

    def _watch(self, path: str, label: Label, events: int) -> None:
        self.possible |= label
        number = self._libc.inotify_add_watch(self._inotify, os.fsencode(path), events | _IN_DONT_FOLLOW)
        if number < 0:
            self._label |= label
        else:
            self._watched[number] = self._watched.get(number, TRUSTED_LABEL) | label

    def _read_events(self) -> None:
        """Read what was done to the watched files since the last call."""
        with contextlib.suppress(OSError):  # nothing more now; or it is closed
            while True:
                data, at = os.read(self._inotify, 65_536), 0
                while at < len(data):
                    number, mask, _, name_bytes = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + name_bytes
                    if name_bytes:  # it tells of a file in a directory that is watched
                        continue
                    if mask & _IN_Q_OVERFLOW:
                        self._label |= join(self._watched.values())
                    elif mask & (_IN_OPEN | _IN_MODIFY | _IN_MOVE_SELF):
                        self._label |= self._watched.get(number, TRUSTED_LABEL)
                    elif mask & _IN_ATTRIB:
                        self._touched.add(number)
                    elif mask & _IN_DELETE_SELF:  # its last name is gone: that was all that had changed
                        self._touched.discard(number)


def _adds(label: Label, other: Label) -> bool:
    """Return whether a text is less trusted, or for fewer readers, because of the other."""
    both = label | other
    return (both.integrity, both.readers) != (label.integrity, label.readers)


def _readable(labels: Iterable[Label], here: Visibility) -> Label | None:
    """Return the most trusted of the labels that may be read there. None: none may."""
    readable = [one for one in labels if here.can_read(one.readers)]
    return max(readable, key=lambda one: rank_integrity(one.integrity), default=None)


def _fold(hidden: Iterable[PathParts], shown: Collection[PathParts]) -> dict[PathParts, EntryKind]:
    """Return the files to hide, in place of several their directory if it holds nothing else. Raises ToolCallRefused.

    `shown`: the directories that hold something else.
    """
    masks = dict[PathParts, EntryKind]()
    for parts in hidden:
        closed = next((parts[:depth] for depth in range(1, len(parts)) if parts[:depth] not in shown), None)
        masks[closed or parts] = "directory" if closed else "file"
    if len(masks) > MAX_MASKS:
        whole = {parts if kind == "directory" else parts[:-1] for parts, kind in masks.items()}
        masks = {one: "directory" for one in whole if not any(one[:depth] in whole for depth in range(len(one)))}
    if len(masks) > MAX_MASKS or () in masks:
        raise ToolCallRefused("Too many of the files are for other conversations only, so no command can run here.")
    return masks


def _digest(root: WorkspaceRoot, one: FoundEntry, key: _FileKey, known: dict[_FileKey, str]) -> str:
    """Return the digest of a file. Empty: it cannot be read, or is too large to have been written by a tool."""
    if key in known:
        return known[key]
    try:
        content = root.read_at(one.parent_fd, one.parts)
    except (OSError, ToolCallRefused):
        return ""
    digest = hashlib.sha256(content.data).hexdigest()
    if content.changed_ns == key[-1] < time.time_ns() - SETTLED_NS:
        _remember(known, key, digest)
    return digest


async def prepare_image(media: MediaStore, data: bytes, name: str) -> tuple[ToolImage, Image]:
    """Save an image, ready for a model. `name` (untrusted): its name.

    Raises ToolCallRefused if models do not take it.
    """
    found = identify_image(data)
    if found is None:
        raise ToolCallRefused(f"{name} is not a picture that can be shown: PNG, JPEG, GIF and WebP can.")
    if len(data) > MAX_IMAGE_BYTES:
        raise ToolCallRefused(
            f"{name} has {len(data):,} bytes, and a picture may have {MAX_IMAGE_BYTES:,}: make it smaller."
        )
    if not found.width or not found.height or not _is_complete_image(data, found.media_type):
        raise ToolCallRefused(
            f"{name} is damaged: it is not a whole {found.media_type.removeprefix('image/').upper()} file."
        )
    if max(found.width, found.height) > MAX_IMAGE_SIDE:
        raise ToolCallRefused(
            f"{name} has {found.width}x{found.height} pixels, and {MAX_IMAGE_SIDE:,} a side are shown: make it smaller."
        )
    attachment = Attachment(id=name, name=name, content_type=found.media_type, form="image")
    about = describe_attachment(attachment, size_bytes=len(data), pixels=(found.width, found.height))
    try:
        kept = await media.save_picture(data, found, about)
    except OSError as error:
        logger.warning("a picture cannot be kept: %s", error.strerror)
        raise ToolCallRefused(f"{name} could not be kept to be shown: an admin has to look at the disk.") from error
    return kept, Image(media_type=found.media_type, data=data, description=about)


def _is_complete_image(data: bytes, media_type: str) -> bool:
    """Return True if the end of the file is there: a provider refuses a whole request because of half an image."""
    if media_type == "image/webp":
        return int.from_bytes(data[4:8], "little") + 8 <= len(data)  # the length in RIFF's header leaves out 8 bytes
    if media_type == "image/gif":
        return data.rstrip(b"\0\r\n").endswith(b";")
    return (b"IEND" if media_type == "image/png" else b"\xff\xd9") in data[len(data) // 2 :]


MAX_READ_CHARS: Final = 200_000
"""Characters that are returned at once."""
MAX_LINE_CHARS: Final = 20_000
"""Characters of one line: generated files may have everything on one."""
MAX_REPLACEMENTS: Final = 100_000
"""Replacements in one edit."""
MAX_OLD_BYTES: Final = 100_000
"""Bytes of the text to replace."""
_HEAD_BYTES: Final = 8_192
"""Bytes that are searched for a NUL, as git does: text has none."""
_SHOWN_PLACES: Final = 3
_SHOWN_LINES: Final = 30
"""Lines of each place."""
_CONTEXT_LINES: Final = 2
"""Lines before and behind it."""
_BOM: Final = b"\xef\xbb\xbf"
_REPLACEMENT_CHAR: Final = "\ufffd"
_KINDS: Final = (
    (b"%PDF-", "a PDF document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xff\xfe", "a text in UTF-16, and only UTF-8 can be read"),
    (b"\xfe\xff", "a text in UTF-16, and only UTF-8 can be read"),
)
"""Beginnings of binary files that may have no NUL there."""
_BINARY_KINDS: Final = (
    (b"PK\x03\x04", "a ZIP archive (or an office document)"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
)
_LINE_END: Final = rb"(?:\r\n|(?<!\r)\n)"
"""Matches a line end, never half of one."""
_NUMBERED_LINE: Final = re.compile(r"\s*\d+\t")


class DecodedText(NamedTuple):
    """Content of a text file."""

    lines: Sequence[str]
    """Without line ends; a line end at the end of the file begins no line."""
    notes: str
    """Facts that the lines do not show. Empty: none."""


class TextEdit(NamedTuple):
    """A file with replacements."""

    data: bytes
    starts: Sequence[int]
    """Positions of the replacements, in bytes."""
    length: int
    """Bytes of the longest replacement."""


def describe_binary(data: bytes) -> str:
    """Return the kind of a file that is not text, with a hint. Empty: it is text."""
    for magic, what in _KINDS:
        if data.startswith(magic):
            return what
    if b"\0" not in data[:_HEAD_BYTES]:
        return ""
    if identify_image(data):
        return "a picture: look at it with view_image"
    if sound_suffix(data) != ".bin":
        return "a sound"
    return next((what for magic, what in _BINARY_KINDS if data.startswith(magic)), "binary data")


def decode_text(data: bytes) -> DecodedText:
    """Decode a file as text, whatever is in it."""
    bom = data.startswith(_BOM)
    text = data[len(_BOM) if bom else 0 :].decode("utf-8", "replace").replace("\0", _REPLACEMENT_CHAR)
    lost = text.count(_REPLACEMENT_CHAR) - data.count(_REPLACEMENT_CHAR.encode())
    crlf, ends = text.count("\r\n"), text.count("\n")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if crlf:
        lines = [line.removesuffix("\r") for line in lines]
    notes = (
        "begins with a byte order mark" if bom else "",
        "" if not crlf else "lines end with CRLF" if crlf == ends else f"{crlf} of its lines end with CRLF",
        f"{lost} bytes that are no text in UTF-8 are shown as {_REPLACEMENT_CHAR}" if lost else "",
    )
    return DecodedText(lines, "; ".join(note for note in notes if note))


def render_lines(name: str, text: DecodedText, offset: int, limit: int) -> tuple[str, int]:
    """Return `limit` numbered lines from `offset` on (1: the first), and the number of the last.

    Raises ToolCallRefused.
    """
    total = len(text.lines)
    notes = f"; {text.notes}" if text.notes else ""
    if not total:
        return f"{name} is empty{notes}.", 0
    if offset > total:
        raise ToolCallRefused(f"{name} has {total:,} lines: offset can be 1 to {total}.")
    rendered, chars, last = list[str](), 0, offset - 1
    for number, line in enumerate(text.lines[offset - 1 : offset - 1 + limit], start=offset):
        numbered = number_line(number, line)
        chars += len(numbered) + 1
        if rendered and chars > MAX_READ_CHARS:
            break
        rendered.append(numbered)
        last = number
    part = "" if (offset, last) == (1, total) else f", here {offset} to {last}"
    more = f" (go on with offset={last + 1})" if last < total else ""
    return "\n".join([f"{name}, {total} {'line' if total == 1 else 'lines'}{part}{more}{notes}", *rendered]), last


def number_line(number: int, line: str) -> str:
    """Return a line in the format of `cat -n`."""
    beyond = len(line) - MAX_LINE_CHARS
    cut = f"{line[:MAX_LINE_CHARS]}... [{beyond:,} more characters in this line]" if beyond > 0 else line
    return f"{number:6}\t{cut}"


def encode_text(text: str) -> bytes:
    """Encode as UTF-8. Raises ToolCallRefused for lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolCallRefused(
            "The text has half a surrogate pair in it, which is no character: write the whole one."
        ) from None


def replace_text(name: str, data: bytes, old: str, new: str, *, everywhere: bool, max_bytes: int) -> TextEdit:
    """Replace `old` by `new`; line ends become those of the file.

    Raises ToolCallRefused, also if the file gets too large.

    Unless `everywhere`, `old` must occur exactly once. The error quotes nothing of the file.
    """
    old_bytes = encode_text(old.replace("\r\n", "\n"))
    new_bytes = encode_text(new.replace("\r\n", "\n"))
    if len(old_bytes) > MAX_OLD_BYTES:
        raise ToolCallRefused(
            f"`old` has at most {MAX_OLD_BYTES:,} bytes: name less of the file, or write all of it anew."
        )
    pattern = re.compile(_LINE_END.join(map(re.escape, old_bytes.split(b"\n"))))
    crlf = data.count(b"\r\n") * 2 > data.count(b"\n")
    matches = list[re.Match[bytes]]()
    for match in pattern.finditer(data):
        matches.append(match)
        if len(matches) > MAX_REPLACEMENTS:
            raise ToolCallRefused(
                f"That stands in {name} more than {MAX_REPLACEMENTS:,} times: change it with the shell."
            )
    if not matches:
        raise ToolCallRefused(_explain_not_found(name, data, old_bytes, new_bytes))
    again = pattern.search(data, matches[0].start() + 1)
    if again and not everywhere:
        lines = _format_line_numbers(
            data, [match.start() for match in (matches if len(matches) > 1 else [matches[0], again])]
        )
        times = f"{max(2, len(matches))} times" if len(matches) > 1 else "more than once, overlapping"
        raise ToolCallRefused(
            f"`old` stands in {name} {times} ({lines}): add lines around it until it stands there once, "
            "or set `all` to replace every one."
        )
    if (
        len(data) + len(matches) * (2 * len(new_bytes) - len(old_bytes)) > 2 * max_bytes
    ):  # line ends are two bytes at most
        raise ToolCallRefused(f"{name} would have more than the {max_bytes:,} bytes that a file may have.")
    edit = _apply_replacements(data, matches, new_bytes, crlf=crlf)
    if edit.data == data:
        raise ToolCallRefused(f"That would change nothing in {name}: `old` and `new` are the same.")
    return edit


def render_edit(name: str, edit: TextEdit) -> str:
    """Render the changed lines, with some around them."""
    count = len(edit.starts)
    lines = decode_text(edit.data).lines
    rendered = [f"{name}, {len(lines)} lines; {'1 place' if count == 1 else f'{count} places'} changed:"]
    last = 0
    for start in edit.starts[:_SHOWN_PLACES]:
        line = edit.data.count(b"\n", 0, start) + 1
        height = edit.data.count(b"\n", start, start + max(0, edit.length - 1))
        first = max(line - _CONTEXT_LINES, last + 1)
        if last and first > last + 1:
            rendered.append("   ...")
        last = max(last, min(line + min(height, _SHOWN_LINES) + _CONTEXT_LINES, len(lines)))
        rendered += [number_line(number, lines[number - 1]) for number in range(first, last + 1)]
    return "\n".join(
        rendered if count <= _SHOWN_PLACES else [*rendered, f"   ... and {count - _SHOWN_PLACES} more places"]
    )


def _apply_replacements(data: bytes, matches: Iterable[re.Match[bytes]], new_bytes: bytes, *, crlf: bool) -> TextEdit:
    new_crlf = new_bytes.replace(b"\n", b"\r\n")
    pieces, starts, end, size, length = list[bytes](), list[int](), 0, 0, 0
    for match in matches:
        was = match.group()
        now = new_crlf if b"\r\n" in was or (crlf and b"\n" not in was) else new_bytes
        pieces += (data[end : match.start()], now)
        size += match.start() - end
        starts.append(size)
        size += len(now)
        length = max(length, len(now))
        end = match.end()
    return TextEdit(b"".join([*pieces, data[end:]]), starts, length)


def _explain_not_found(name: str, data: bytes, old_bytes: bytes, new_bytes: bytes) -> str:
    why = f"`old` does not stand in {name}"
    lines = [line for line in old_bytes.decode().split("\n") if line.strip()]
    if lines and all(map(_NUMBERED_LINE.match, lines)):
        return f"{why}: leave out the line numbers and the tabs behind them."
    words = old_bytes.split()
    loose = re.search(rb"\s+".join(map(re.escape, words)), data) if words else None
    if loose:
        return (
            f"{why}, but with other blanks or line ends in {_format_line_numbers(data, [loose.start()])}: "
            "copy it exactly."
        )
    if new_bytes.strip() and new_bytes in data:
        lines_of_new = _format_line_numbers(data, [data.index(new_bytes)])
        return f"{why}, but `new` does already, in {lines_of_new}: nothing is to be done."
    first = lines[0].strip().encode() if lines else b""
    if first and first in data:
        return (
            f"{why}: its first line does, in {_format_line_numbers(data, [data.index(first)])}, and goes "
            "on differently."
        )
    return f"{why}: read the file again, and copy it exactly."


def _format_line_numbers(data: bytes, starts: Sequence[int]) -> str:
    numbers = [str(data.count(b"\n", 0, start) + 1) for start in starts[:5]]
    more = " and more" if len(starts) > len(numbers) else ""
    return f"{'line' if len(starts) == 1 else 'lines'} {', '.join(numbers)}{more}"


MAX_MATCHES: Final = 500
"""Matching lines that are returned."""
MAX_SHOWN_CHARS: Final = 400
"""Characters of one line."""
MAX_OUTPUT_CHARS: Final = 200_000
MAX_SEARCHED_CHARS: Final = 100_000
"""Characters of one line that are searched, from its beginning: a pattern takes memory for each."""
LINE_TIMEOUT_S: Final = 0.5
"""Seconds for one line. A pattern that takes longer would never end."""
_TIME_CHECK_LINES: Final = 1_000
"""Lines after which the time is checked."""
_SPECIAL_CHARS: Final = frozenset("\\.^$*+?{}[]()|\ufffd")
"""A pattern without these characters matches itself only, so files without its bytes can be skipped."""
_BEFORE_CHARS: Final = 100
"""Characters before the match, in a long line."""


def search_text(
    root: WorkspaceRoot,
    pattern: str,
    bounds: SearchLimits,
    *,
    path: str = "",
    files: str = "",
    ignore_case: bool = False,
    context_lines: int = 0,
    find: Callable[[FileContent], Label | None] = lambda _: OUTSIDE_LABEL,
    shown: RequestLabel | None = None,
) -> str:
    """Return matching lines as `path:number:line`, and lines around them as `path-number-line`.

    `context_lines`: on each side of a match. `path`: a file, or the directory to search. `files`: a glob that may begin
    in any directory. `find`: returns the label of a file, None to leave it out. `shown`: gets the labels of the files
    with matches. Raises ToolCallRefused.
    """
    try:
        search = _GrepSearch(compile_regex(pattern, ignore_case=ignore_case), context_lines, bounds, find, shown)
    except ValueError as error:
        raise ToolCallRefused(f"The pattern is refused: {error}.") from None
    if not ignore_case and _SPECIAL_CHARS.isdisjoint(pattern):
        search.required_bytes = encode_text(pattern)
    parts = parse_path(path)
    if parts and not root.is_directory(parts):
        content = root.read(path)
        if find(content) is None:
            raise refuse_missing(parts)
        if what := describe_binary(content.data):
            raise ToolCallRefused(f"{display_path(parts)} is {what}.")
        search.search_text(parts, content)
        return search.render()
    with contextlib.closing(walk(root, parts, GlobPattern(files or "**", anywhere=True), bounds)) as found:
        for one in found:
            if one.kind == "file" and not is_partial_file(one.parts[-1]):
                search.search_file(root, one)
            if search.is_full:
                break
    return search.render()


class _GrepSearch:
    """State of one search, over all files."""

    def __init__(
        self,
        pattern: Any,  # noqa: ANN401 - the library has no types
        context_lines: int,
        bounds: SearchLimits,
        find: Callable[[FileContent], Label | None],
        shown: RequestLabel | None,
    ) -> None:
        self.required_bytes = b""
        """Bytes that every matching file has."""
        self.is_full = False
        """True once the search must not go on."""
        self._find = find
        self._shown = shown or RequestLabel()
        self._pattern = pattern
        self._context_lines = context_lines
        self._limits = bounds
        self._lines = list[str]()
        self._chars = self._matches = self._files = self._searched = 0
        self._left_out = Counter[str]()

    def search_file(self, root: WorkspaceRoot, found: FoundEntry) -> None:
        """Search a file, if it can be opened and is text. Raises ToolCallRefused for a pattern that is too slow."""
        try:
            content = root.read_at(found.parent_fd, found.parts)
        except (OSError, ToolCallRefused):
            self._left_out["too large or not to be opened"] += 1
            return
        if not self._limits.spend(read=len(content.data)):
            self.is_full = True
        elif self._find(content) is None:
            return
        elif describe_binary(content.data):
            self._left_out["binary"] += 1
        else:
            self.search_text(found.parts, content)

    def search_text(self, parts: PathParts, content: FileContent) -> None:
        """Search the content of a file."""
        self._searched += 1
        data = content.data
        if self.required_bytes not in data:
            return
        lines, name, spans = decode_text(data).lines, display_path(parts), dict[int, tuple[int, int]]()
        for number, line in enumerate(lines, start=1):
            if number % _TIME_CHECK_LINES == 0 and self._limits.is_late():
                self.is_full = True
                break
            span = self._match_span(name, number, line)
            if span is None:
                continue
            if self._matches + len(spans) == MAX_MATCHES:
                self._stop_at_limit()
                break
            spans[number] = span
        if spans:
            self._shown.add(self._find(content) or OUTSIDE_LABEL)
            self._files += 1
            self._matches += len(spans)
            self._append_lines(name, lines, spans)

    def render(self) -> str:
        cut = f"; there may be more, but {self._limits.cut_reason}: look for less" if self._limits.cut_reason else ""
        left = "".join(f"; {_format_count(count, 'file')} left out ({why})" for why, count in self._left_out.items())
        unopened = f"; {self._limits.unopened} directories could not be opened" if self._limits.unopened else ""
        searched = f"of {_format_count(self._searched, 'file')} searched"
        if not self._matches:
            return f"No line matches, {searched}{cut}{left}{unopened}."
        what = (
            f"{_format_count(self._matches, 'line')} in {_format_count(self._files, 'file')}, "
            f"{searched}{cut}{left}{unopened}:"
        )
        return "\n".join([what, *self._lines])

    def _match_span(self, name: str, number: int, line: str) -> tuple[int, int] | None:
        """Return the begin and end of the match in the line; None: no match."""
        if len(line) > MAX_SEARCHED_CHARS:
            line = line[:MAX_SEARCHED_CHARS]
            self._limits.cut_reason = (
                self._limits.cut_reason or f"lines are searched up to their character {MAX_SEARCHED_CHARS:,}"
            )
        try:
            match = self._pattern.search(line, timeout=LINE_TIMEOUT_S, concurrent=True)
        except (TimeoutError, MemoryError):
            raise ToolCallRefused(
                f"The pattern takes too long on line {number} of {name}: write it without one repetition in another."
            ) from None
        return None if match is None else match.span()

    def _append_lines(self, name: str, lines: Sequence[str], spans: dict[int, tuple[int, int]]) -> None:
        last = 0
        for middle in spans:
            first, until = max(1, middle - self._context_lines, last + 1), min(len(lines), middle + self._context_lines)
            if self._context_lines and self._lines and (not last or first > last + 1):
                self._lines.append("--")
            for number in range(first, until + 1):
                mark = ":" if number in spans else "-"
                line = _clip_line(lines[number - 1], spans.get(number, (0, 0)))
                self._lines.append(f"{name}{mark}{number}{mark}{line}")
                self._chars += len(self._lines[-1]) + 1
            last = max(last, until)
            if self._chars > MAX_OUTPUT_CHARS:
                self._stop_at_limit()
                break

    def _stop_at_limit(self) -> None:
        self._limits.cut_reason = "so many match"
        self.is_full = True


def _clip_line(line: str, span: tuple[int, int]) -> str:
    if len(line) <= MAX_SHOWN_CHARS:
        return line
    start = max(0, span[0] - _BEFORE_CHARS)
    end = start + MAX_SHOWN_CHARS
    return f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"


def _format_count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
