"""Files that go with posts.

They are named by digest, so the same file in two posts is stored once, and a changed one is
detected.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from channels.base import Capabilities, OutgoingFile, Rejected
from gateway.core.events import PostFile
from gateway.core.private_files import is_half_written, read_private, replace_private
from gateway.store import StoreReader

logger = logging.getLogger("reverie.outbox")

_DIGEST: Final = "[0-9a-f]{64}"
FILE_AGE_S: Final = 3600.0
"""Seconds for which a file stays where other processes store files, too: its post may not be in the
log yet. Longer than the clocks of two hosts differ."""


class OutgoingFiles:
    """Files of the posts of one store."""

    def __init__(self, store: StoreReader, *, is_shared: bool = False) -> None:
        """`is_shared`: other processes store files there, too."""
        self._store = store
        self._least_age_s = FILE_AGE_S if is_shared else None
        self._directory = store.path.parent / "outfiles"
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def store_file(self, data: bytes) -> AsyncIterator[str]:
        """Store a file and yield its digest. Append the post that refers to it inside the context.
        Raises OSError.

        `sweep` removes files that no waiting post needs.
        """
        async with self._lock:
            digest = hashlib.sha256(data).hexdigest()
            await asyncio.to_thread(replace_private, self._directory / digest, data)
            yield digest

    async def load_file(self, file: PostFile, able: Capabilities) -> OutgoingFile:
        """Return the file for the channel. Raises Rejected: a post is not sent without its file."""
        try:
            data = await asyncio.to_thread(
                read_private, self._directory / file.sha256, most=file.size_bytes
            )
        except OSError as error:
            logger.warning("the file %s cannot be read: %s", file.sha256, error.strerror or error)
            data = None
        if data is None or hashlib.sha256(data).hexdigest() != file.sha256:
            raise Rejected("the file that goes with it is gone, or is not what it was")
        if len(data) > able.max_file_bytes:
            raise Rejected(
                f"{able.platform} takes no files of more than {able.max_file_bytes} bytes"
            )
        return OutgoingFile(name=file.name, content_type=file.content_type, data=data)

    async def sweep(self) -> None:
        """Remove files that no waiting post needs. Errors of the file system are logged. Raises
        StoreError.
        """
        async with self._lock:
            waiting = {
                item.post.file.sha256
                for item in await self._store.undelivered_posts()
                if item.post.file is not None
            }
            await asyncio.to_thread(_remove_unneeded, self._directory, waiting, self._least_age_s)


def _remove_unneeded(directory: Path, keep: set[str], least_age_s: float | None) -> None:
    """Remove what is not to be kept. `least_age_s`: younger files stay; None: none does."""
    try:
        names = [path.name for path in directory.iterdir() if path.name not in keep]
        ours = [one for one in names if re.fullmatch(_DIGEST, one) or is_half_written(one, _DIGEST)]
        for path in [directory / one for one in ours]:
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                if least_age_s is None or time.time() - path.stat().st_mtime >= least_age_s:
                    path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("files that were sent cannot be removed: %s", error)
