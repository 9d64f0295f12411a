"""Attachments: fetched when a turn needs them, and kept for later prompts.

Images are shown to models that take them. What is in files of other kinds is told by readers, which
plugins add (`MediaStore.readers`). Images, and what readers keep, stand beside the store under
digests, never under a given name. They are no record: if one is deleted, its description stays in
its line, and a document is fetched again.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.models.base import MAX_IMAGE_BYTES, MAX_IMAGE_SIDE, MAX_IMAGES_BYTES
from channels.base import CanDownload, Channel, SendError
from gateway.config.models import MediaConfig
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import Address, Attachment, ChannelName, Message, ToolImage
from gateway.core.facts import MediaRef, Seq
from gateway.core.media_types import (
    describe_attachment,
    identify_image,
    is_document,
)
from gateway.core.tool_spec import Image, ToolCallRefused

logger = logging.getLogger("reverie.media")

MAX_IMAGES = 4
"""Newest images shown with the new lines of one turn, if the model has vision."""
DOWNLOADS_S = 20.0
"""Time limit for the downloads of one turn, which run in parallel."""


class DescribedAttachment(NamedTuple):
    """Text about one attachment in its line, and the image that is shown for it."""

    description: str
    """One line; for a document, the beginning of its text may follow inside a fence."""
    image: MediaRef | None = None


class AttachmentNotFetched(Exception):
    """Attachment that could not be fetched or read. The text says why, for the line."""


class AttachmentReader(NamedTuple):
    """Tells turns what is in attachments of a kind, which can be downloaded."""

    takes: Callable[[Message, Attachment, bool], bool]
    """Returns whether it reads the attachment. The last argument is as `sees` in
    `MediaStore.describe_attachments`, also for `read`."""
    most: int
    """Attachments of one turn that it reads, all at once; the newest."""
    read: Callable[[Seq, Message, int, bool], Awaitable[DescribedAttachment]]
    """Returns the description of an attachment of the message that stands there. The number is its
    position in `Message.shown_attachments`, from 0. Raises AttachmentNotFetched. Cancelled with
    its turn."""


class MediaStore:
    """Attachments of new messages, and images of earlier ones."""

    def __init__(
        self,
        live: LiveSettings,
        folder: Path,
        channels: Mapping[ChannelName, Channel],
        clock: Clock,
    ) -> None:
        """`folder` is created when it is needed."""
        self._live = live
        self._folder = folder
        self._channels = channels
        self._clock = clock
        self.readers = [
            AttachmentReader(lambda _, one, sees: sees and is_image(one), MAX_IMAGES, self._show)
        ]
        """The first that takes an attachment reads it."""
        self.reads_documents = False
        """`fetch_evidence` reads documents, as plugins say that bring both."""

    @property
    def _config(self) -> MediaConfig:
        return self._live.settings.media

    async def describe_attachments(
        self, messages: Sequence[tuple[Seq, Message]], *, sees: bool
    ) -> dict[Seq, tuple[DescribedAttachment, ...]]:
        """Return descriptions, and images, of each message's attachments. Never raises for what
        somebody sent.

        `sees`: the model accepts images. Each reader is given those of messages to the agent first,
        then the newest, all at once. The others are only described, and so is what does not come
        within the configured time.
        """
        left, work = {one: one.most for one in self.readers}, []
        for seq, message in sorted(messages, key=lambda one: (one[1].kind == "room", -one[0])):
            can_fetch = (
                isinstance(self._channels.get(message.at.channel), CanDownload)
                and self._config.max_bytes > 0
            )
            for place in reversed(range(len(message.shown_attachments if can_fetch else ()))):
                attachment = message.shown_attachments[place]
                for reader in self.readers:
                    if left[reader] and reader.takes(message, attachment, sees):
                        left[reader] -= 1
                        work.append((seq, place, _describe(reader, seq, message, place, sees)))
                        break
        results = await asyncio.gather(*(doing for _, _, doing in work))
        done = {
            (seq, place): result
            for (seq, place, _), result in zip(work, _fit_pdfs(results), strict=True)
        }
        described = dict[Seq, tuple[DescribedAttachment, ...]]()
        for seq, message in messages:
            for place in range(len(message.shown_attachments)):
                unread = DescribedAttachment(self.describe_unread(seq, message, place))
                one = done.get((seq, place), unread)
                if place >= len(message.attachments):
                    about = f"(with the message replied to:) {one.description}"
                    one = one._replace(description=about)
                described[seq] = (*described.get(seq, ()), one)
        return described

    def describe_unread(self, seq: Seq, message: Message, place: int) -> str:
        """Describe an attachment that was not fetched, with the handle that reads it if it is a
        document, and something reads these.
        """
        attachment, note = message.shown_attachments[place], ""
        if self.reads_documents and is_document(attachment):
            note = f'fetch_evidence("{document_handle(seq, place)}") reads it'
        return describe_attachment(attachment, note=note)

    async def load_images(self, refs: Sequence[MediaRef | ToolImage]) -> tuple[Image, ...]:
        """Return the images as they were shown, without those that are gone."""
        found = []
        for ref in refs:
            data = await self.load(ref.sha256)
            if data is not None and len(data) == ref.size_bytes:  # else a crash cut it off
                pages = ref.pages if isinstance(ref, MediaRef) else 0
                found.append(
                    Image(media_type=ref.media_type, data=data, description=ref.about, pages=pages)
                )
        return tuple(found)

    async def load_images_by_hash(self, images: Sequence[ToolImage]) -> dict[str, Image]:
        """Return the images that tools produced, by digest, without those that are gone."""
        found = [(one.sha256, await self.load_images((one,))) for one in images]
        return {digest: image for digest, loaded in found for image in loaded}

    async def sweep(self) -> None:
        """Remove files that were not shown for `keep` seconds, now and every hour. Ends only by
        cancellation.
        """
        while True:
            await asyncio.to_thread(self._remove_old)
            await self._clock.sleep(3600.0)

    async def _show(self, seq: Seq, message: Message, place: int, _: bool) -> DescribedAttachment:
        attachment = message.shown_attachments[place]
        data = await self.fetch(message.at, attachment, MAX_IMAGE_BYTES)
        found, note, name = identify_image(data), _find_fault(data), ""
        pixels = (found.width, found.height) if found is not None else (0, 0)
        if not note:
            try:
                name = await self.save(data)
            except OSError as error:
                logger.warning("an image cannot be kept in %s: %s", self._folder, error.strerror)
                note = "could not be kept"
        about = describe_attachment(attachment, size_bytes=len(data), pixels=pixels, note=note)
        if found is None or not name:
            return DescribedAttachment(about)
        ref = MediaRef(
            sha256=name,
            media_type=found.media_type,
            line=seq,
            about=about,
            size_bytes=len(data),
            width=found.width,
            height=found.height,
        )
        return DescribedAttachment(about, ref)

    async def fetch(
        self, at: Address, attachment: Attachment, limit_bytes: int | None = None
    ) -> bytes:
        """Download an attachment. `limit_bytes` None: no other limit than the configured one.
        Raises AttachmentNotFetched.
        """
        limit_bytes = min(limit_bytes or self._config.max_bytes, self._config.max_bytes)
        if attachment.size_bytes is not None and attachment.size_bytes > limit_bytes:
            raise AttachmentNotFetched("too large to be fetched")
        source: object = self._channels.get(at.channel)
        if not isinstance(source, CanDownload):  # it was removed meanwhile
            raise AttachmentNotFetched("could not be fetched")
        try:
            async with asyncio.timeout(DOWNLOADS_S):
                data = await source.download(at, attachment, limit_bytes=limit_bytes)
        except TimeoutError:
            logger.info("%s: an attachment did not come within %g s", at.channel, DOWNLOADS_S)
            raise AttachmentNotFetched("could not be fetched") from None
        except SendError as error:
            logger.info("%s: an attachment could not be fetched: %s", at.channel, error.reason)
            raise AttachmentNotFetched("could not be fetched") from None
        except (
            Exception
        ) as error:  # a bug in the adapter: the text beside it is still worth an answer
            logger.exception("%s: fetching an attachment broke", at.channel)
            raise AttachmentNotFetched("could not be fetched") from error
        if len(data) > limit_bytes:
            raise AttachmentNotFetched("too large to be fetched")
        return data

    async def load(self, name: str) -> bytes | None:
        """Return what is kept under a name of 64 hexadecimal digits. None: nothing is."""
        return await asyncio.to_thread(self._load, name)

    async def save(self, data: bytes, name: str = "") -> str:
        """Keep data until it is not asked for any more, and return its name. Raises OSError, and
        keeps nothing then. `name` empty: its digest.
        """
        return await asyncio.to_thread(self._save, data, name)

    def _load(self, name: str) -> bytes | None:
        path = self._folder / name
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with contextlib.suppress(OSError):  # it is used all the same
            os.utime(path)
        return data

    def _save(self, data: bytes, name: str) -> str:
        name = name or hashlib.sha256(data).hexdigest()
        if self._load(name) != data:
            self.write(data, "").replace(self._folder / name)
        return name

    def write(self, data: bytes, suffix: str) -> Path:
        """Write a new file under a name of its own. Half a file after a crash is removed by
        `sweep`.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix="new-", suffix=suffix, dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
        except OSError:
            Path(name).unlink()  # on a full disk, half a file takes the rest
            raise
        return Path(name)

    def _remove_old(self) -> None:
        try:
            files = list(self._folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("old images cannot be removed from %s: %s", self._folder, error.strerror)
            return
        oldest = time.time() - self._config.keep
        for path in files:
            try:
                if (
                    re.fullmatch(r"[0-9a-f]{64}|new-.*", path.name)
                    and path.stat().st_mtime < oldest
                ):
                    path.unlink()
            except OSError as error:  # gone already, or another user's: a log line is enough
                logger.info("%s is not removed: %s", path, error.strerror)


async def _describe(
    reader: AttachmentReader, seq: Seq, message: Message, place: int, sees: bool
) -> DescribedAttachment:
    try:
        return await reader.read(seq, message, place, sees)
    except AttachmentNotFetched as error:
        note = str(error)
    except Exception:  # a bug in a reader: the text beside it is still worth an answer
        logger.exception("reading an attachment broke")
        note = "could not be read"
    return DescribedAttachment(describe_attachment(message.shown_attachments[place], note=note))


async def prepare_image(media: MediaStore, data: bytes, name: str) -> tuple[ToolImage, Image]:
    """Save an image, ready for a model. `name` (untrusted): its name.

    Raises ToolCallRefused if models do not take it.
    """
    found, fault = identify_image(data), _find_fault(data)
    if found is None or fault:
        raise ToolCallRefused(
            f"{name} is {fault}: whole PNG, JPEG, GIF and WebP files of at most "
            f"{MAX_IMAGE_BYTES:,} bytes and {MAX_IMAGE_SIDE:,} pixels a side can be shown."
        )
    attachment = Attachment(id=name, name=name, content_type=found.media_type, form="image")
    about = describe_attachment(
        attachment, size_bytes=len(data), pixels=(found.width, found.height)
    )
    try:
        digest = await media.save(data)
    except OSError as error:
        logger.warning("a picture cannot be kept: %s", error.strerror)
        raise ToolCallRefused(
            f"{name} could not be kept to be shown: an admin has to look at the disk."
        ) from error
    kept = ToolImage(sha256=digest, media_type=found.media_type, about=about, size_bytes=len(data))
    return kept, Image(media_type=found.media_type, data=data, description=about)


def _find_fault(data: bytes) -> str:
    """Return why a file cannot be shown as an image, as said of it; empty: it can."""
    found = identify_image(data)
    if found is None:
        return "of a kind that cannot be shown"
    if not found.width or not found.height or not _is_complete_image(data, found.media_type):
        return "damaged"
    is_large = len(data) > MAX_IMAGE_BYTES or max(found.width, found.height) > MAX_IMAGE_SIDE
    return "too large to be shown" if is_large else ""


def _is_complete_image(data: bytes, media_type: str) -> bool:
    """Return True if the end of the file is there: a provider refuses a whole request because of
    half an image.
    """
    if media_type == "image/webp":
        return int.from_bytes(data[4:8], "little") + 8 <= len(
            data
        )  # the length in RIFF's header leaves out 8 bytes
    if media_type == "image/gif":
        return data.rstrip(b"\0\r\n").endswith(b";")
    return (b"IEND" if media_type == "image/png" else b"\xff\xd9") in data[len(data) // 2 :]


def _fit_pdfs(described: Sequence[DescribedAttachment]) -> list[DescribedAttachment]:
    """Return the attachments without the PDFs for which one request has no room beside the
    images.
    """
    bytes_left = MAX_IMAGES_BYTES - sum(
        one.image.size_bytes for one in described if one.image and not one.image.pages
    )
    fitting = list(described)
    for number, one in enumerate(described):
        if one.image and one.image.pages and one.image.size_bytes > bytes_left:
            fitting[number] = one._replace(image=None)
        elif one.image and one.image.pages:
            bytes_left -= one.image.size_bytes
    return fitting


def document_handle(seq: Seq, place: int) -> str:
    """Return the argument of `fetch_evidence` for a document. `place`: its position in the message,
    from 0.
    """
    return f"a{seq}.{place + 1}"


def is_image(attachment: Attachment) -> bool:
    """Return whether a model that takes images is shown it."""
    return attachment.form == "image" or (
        attachment.form == "file" and (attachment.content_type or "").startswith("image/")
    )
