"""Posting one of the agent's files: durable, with its bytes, before it is sent."""

import asyncio
import hashlib
import mimetypes
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final, Protocol

from agent.journal import to_single_line
from agent.tools.rooms import SendFileArgs
from agent.tools.schema import ToolCallRefused
from channels.base import Channel
from channels.tasks import run_to_completion
from gateway.clock import Clock
from gateway.events import Address, ChannelName, Post, PostFile, PostKey
from gateway.hands import ToolContext
from gateway.ids import new_id
from gateway.outfiles import OutgoingFiles
from gateway.records import PlatformAction, PostQueued, is_inner
from gateway.store import NewEntry, OutboxPost, Store

MAX_FILE_NAME_CHARS: Final = 100
_RECENT_POSTS: Final = 20


class FileReader(Protocol):
    """The agent's: `gateway.tools.root.WorkspaceRoot`."""

    def read_bytes(self, path: str) -> bytes:
        """All of one. Raises Refused. Blocks on the disk."""


class FileSender:
    """Of one agent."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        channels: Mapping[ChannelName, Channel],
        files: FileReader,
        outfiles: OutgoingFiles,
        post: Callable[[OutboxPost], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._channels = channels
        self._files = files
        self._outfiles = outfiles
        self._post = post

    async def send_file(self, asked: SendFileArgs, where: ToolContext) -> str:
        """Carry out `send_file`. Raises Refused and StoreError. Cancelled, it is posted or not, as the log says."""
        most = self._max_file_bytes(where.at)
        data = await asyncio.to_thread(self._files.read_bytes, asked.path)
        if not data:
            raise ToolCallRefused("That file is empty: there is nothing to send.")
        if len(data) > most:
            raise ToolCallRefused(f"That file has {len(data):,} bytes; {most:,} is the most that can be sent here.")
        name = to_single_line(PurePosixPath(asked.path).name.replace("\\", "_"), MAX_FILE_NAME_CHARS) or "file"
        file = PostFile(
            name=name,
            content_type=mimetypes.guess_type(name)[0] or "application/octet-stream",
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
        )
        text = asked.text if asked.text.strip() else name
        if await self._was_posted_before(file, text, where):
            return "It was posted before you were interrupted: it is not posted again."
        # On its own: what is durable must also go out now, whatever becomes of the turn.
        await run_to_completion(self._queue(file, data, text, where))
        return "It is posted."

    def _max_file_bytes(self, at: Address) -> int:
        if is_inner(at.conversation):
            raise ToolCallRefused("You are by yourself here: a file is posted in the conversation that asks for it.")
        channel = self._channels.get(at.channel)
        if channel is None or channel.capabilities.max_file_bytes <= 0:
            raise ToolCallRefused("No files can be sent here: say in words what is in it.")
        return channel.capabilities.max_file_bytes

    async def _was_posted_before(self, file: PostFile, text: str, where: ToolContext) -> bool:
        """Whether the same was posted by this turn before its process ended: see `gateway.cut_off`."""
        place = where.at.conversation
        ended = await self._store.newest_entries(1, kinds=["turn_ended"], conversation=place)
        after = ended[0].seq if ended else 0
        for one in await self._store.newest_entries(_RECENT_POSTS, after=after, kinds=["post"], conversation=place):
            if isinstance(one.fact, PostQueued) and (one.fact.post.file, one.fact.post.text) == (file, text):
                cause = await self._store.entry(one.cause) if one.cause is not None else None
                if cause is not None and isinstance(cause.fact, PlatformAction) and cause.fact.turn != where.turn:
                    return True
        return False

    async def _queue(self, file: PostFile, data: bytes, text: str, where: ToolContext) -> None:
        now, place = self._clock.now(), where.at.conversation
        post = Post(key=PostKey(new_id(now)), to=where.at, text=text, file=file)
        fact = PlatformAction(
            turn=where.turn, agent=where.agent, what="file", at=where.at, message=None, text=file.name, state="done"
        )
        acted = NewEntry(fact=fact, at=now, conversation=place)
        queued = NewEntry(fact=PostQueued(post=post), at=now, conversation=place, key=f"post:{post.key}", cause=acted)
        try:
            async with self._outfiles.store_file(data):
                _, waiting = await self._store.append([acted, queued])
        except OSError as error:
            raise ToolCallRefused(
                f"It could not be kept for sending: {error.strerror or type(error).__name__}."
            ) from None
        self._post(OutboxPost(seq=waiting.seq, at=now, post=post, parts=()))
