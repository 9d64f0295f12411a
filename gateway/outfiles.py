"""Files that go with posts: kept beside the store from before the post is durable until it is delivered.

They are named by their digests, so the same file in two posts is there once, and one that was changed is found out.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from channels.base import Capabilities, OutgoingFile, Rejected
from gateway import own_files
from gateway.events import PostFile
from gateway.store import StoreReader

logger = logging.getLogger("reverie.outbox")

_NAME: Final = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.new")
"""A file of ours, or half of one: a crash came while it was written."""


class OutgoingFiles:
    """All of a store's."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._directory = store.path.parent / "outfiles"
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def store_file(self, data: bytes) -> AsyncIterator[str]:
        """On the disk, under this digest. Inside, make the post durable that it goes with. Raises OSError.

        What no waiting post needs is removed.
        """
        async with self._lock:
            digest = hashlib.sha256(data).hexdigest()
            await asyncio.to_thread(own_files.replace_private, self._directory / digest, data)
            yield digest

    async def load_file(self, file: PostFile, able: Capabilities) -> OutgoingFile:
        """As the channel takes it. Raises Rejected: without its file a post is not what was to be said."""
        try:
            data = await asyncio.to_thread(own_files.read_private, self._directory / file.sha256, most=file.size_bytes)
        except OSError as error:
            logger.warning("the file %s cannot be read: %s", file.sha256, error.strerror or error)
            data = None
        if data is None or hashlib.sha256(data).hexdigest() != file.sha256:
            raise Rejected("the file that goes with it is gone, or is not what it was")
        if len(data) > able.max_file_bytes:
            raise Rejected(f"{able.platform} takes no files of more than {able.max_file_bytes} bytes")
        return OutgoingFile(name=file.name, content_type=file.content_type, data=data)

    async def sweep(self) -> None:
        """Remove those that no waiting post needs. What the disk refuses is logged. Raises StoreError."""
        async with self._lock:
            waiting = {
                item.post.file.sha256 for item in await self._store.undelivered_posts() if item.post.file is not None
            }
            await asyncio.to_thread(_remove_unneeded, self._directory, waiting)


def _remove_unneeded(directory: Path, keep: set[str]) -> None:
    try:
        found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.name not in keep]
        for path in found:
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("files that were sent cannot be removed: %s", error)
