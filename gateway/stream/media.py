"""Attachments: fetched when a turn needs them, and kept for later prompts.

Images, PDFs that are shown, and texts of documents are kept beside the store under digests, never
under a given name. They are no record: if one is deleted, its description stays in its line, and a
document is fetched again.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from agent.models.base import MAX_IMAGE_BYTES, MAX_IMAGE_SIDE, MAX_IMAGES_BYTES
from agent.prompt import fence_text
from channels.base import CanDownload, Channel, SendError
from gateway.config.models import MediaConfig
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import Address, Attachment, ChannelName, Message, ToolImage
from gateway.core.facts import MediaRef, Seq
from gateway.core.media_types import (
    ExtractedText,
    ExtractionError,
    ImageInfo,
    TranscriptionError,
    describe_attachment,
    extract_text,
    identify_image,
    is_document,
    sound_suffix,
    transcribe,
)
from gateway.core.tool_spec import Image, ToolCallRefused

logger = logging.getLogger("reverie.media")

MAX_TRANSCRIBED_VOICES = 4
"""Newest voice notes transcribed for one turn, one after the other."""
MAX_DOCUMENTS = 4
"""Newest documents addressed to the agent of which one turn is told the beginning."""
MAX_DOCUMENT_CHARS = 4_000
"""Characters of that beginning."""
MAX_IMAGES = 4
"""Newest images shown with the new lines of one turn, if the model has vision."""
DOWNLOADS_S = 20.0
"""Time limit for the downloads of one turn, which run in parallel."""
SWEEP_INTERVAL_S = 3600.0
_PAGES = re.compile(r"(\d+) pages?")
_STORED_NAME = re.compile(r"[0-9a-f]{64}|new-.*")


class DescribedAttachment(NamedTuple):
    """Text about one attachment in its line, and the image that is shown for it."""

    description: str
    """One line; for a document, the beginning of its text may follow inside a fence."""
    image: MediaRef | None = None


class AttachmentNotFetched(Exception):
    """Attachment that could not be fetched. The text says why, for the line."""


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
        self._voice_lock = asyncio.Lock()
        self._document_slots = asyncio.Semaphore(2)

    @property
    def _config(self) -> MediaConfig:
        return self._live.settings.media

    async def describe_attachments(
        self, messages: Sequence[tuple[Seq, Message]], *, sees: bool
    ) -> dict[Seq, tuple[DescribedAttachment, ...]]:
        """Return descriptions, and images, of each message's attachments. Never raises for what
        somebody sent.

        `sees`: the model accepts images. Then images are fetched, and voice notes if they can be
        transcribed, up to the most for one turn: first those of messages to the agent, then the
        newest, all at once. Of documents sent to the agent the beginning is told, and a short PDF
        is shown whole (`media.pdf_pages`). The others are only described, and so is what does not
        come within the configured time.
        """
        images_left = MAX_IMAGES if sees else 0
        voices_left = MAX_TRANSCRIBED_VOICES if self._config.transcribe else 0
        documents_left = MAX_DOCUMENTS
        work = []
        for seq, message in sorted(messages, key=lambda one: (one[1].kind == "room", -one[0])):
            can_fetch = (
                isinstance(self._channels.get(message.at.channel), CanDownload)
                and self._config.max_bytes > 0
            )
            for place in reversed(range(len(message.shown_attachments))):
                attachment = message.shown_attachments[place]
                if can_fetch and images_left and is_image(attachment):
                    images_left -= 1
                    work.append((seq, place, self._fetch_image(seq, message.at, attachment)))
                elif can_fetch and voices_left and attachment.form == "audio":
                    voices_left -= 1
                    work.append((seq, place, self._transcribe_voice(message.at, attachment)))
                elif (
                    can_fetch
                    and documents_left
                    and message.kind != "room"
                    and is_document(attachment)
                ):
                    documents_left -= 1
                    work.append((seq, place, self._quote_document(seq, message, place, sees=sees)))
        results = await asyncio.gather(*(doing for _, _, doing in work))
        done = {
            (seq, place): result
            for (seq, place, _), result in zip(work, _fit_pdfs(results), strict=True)
        }
        return {
            seq: tuple(
                _mark_quoted(
                    message,
                    place,
                    done.get((seq, place))
                    or DescribedAttachment(describe_unread(seq, message, place)),
                )
                for place in range(len(message.shown_attachments))
            )
            for seq, message in messages
            if message.shown_attachments
        }

    async def read_document(self, message: Message, place: int) -> ExtractedText:
        """Return the text of an attachment, from the kept copy or fetched again. Raises
        AttachmentNotFetched.

        `place`: position in `message.shown_attachments`, from 0. On cancellation, and on a full
        disk, no copy is kept.
        """
        attachment = message.shown_attachments[place]
        key = f"{message.at.conversation}\0{message.id}\0{attachment.id}"
        path = self._folder / hashlib.sha256(key.encode()).hexdigest()
        with contextlib.suppress(OSError, ValidationError):
            kept = ExtractedText.model_validate_json(await asyncio.to_thread(path.read_bytes))
            os.utime(path)
            return kept
        data = await self._fetch(message.at, attachment, self._config.max_bytes)
        try:
            async with self._document_slots:
                found = await extract_text(data)
        except ExtractionError as error:
            raise AttachmentNotFetched(str(error)) from None
        try:
            (await asyncio.to_thread(self._write, found.model_dump_json().encode(), "")).replace(
                path
            )
        except OSError as error:
            logger.warning(
                "the text of a document cannot be kept in %s: %s", self._folder, error.strerror
            )
        return found

    async def load_images(self, refs: Sequence[MediaRef | ToolImage]) -> tuple[Image, ...]:
        """Return the images as they were shown, without those that are gone."""
        return await asyncio.to_thread(self._load_existing, refs) if refs else ()

    async def save_picture(self, data: bytes, found: ImageInfo, about: str) -> ToolImage:
        """Keep an image that came with no message, for the same time as those of messages. Raises
        OSError.
        """
        name = await asyncio.to_thread(self._save, data)
        return ToolImage(
            sha256=name, media_type=found.media_type, about=about, size_bytes=len(data)
        )

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
            await self._clock.sleep(SWEEP_INTERVAL_S)

    async def _fetch_image(
        self, seq: Seq, at: Address, attachment: Attachment
    ) -> DescribedAttachment:
        try:
            data = await self._fetch(at, attachment, min(self._config.max_bytes, MAX_IMAGE_BYTES))
        except AttachmentNotFetched as error:
            return DescribedAttachment(describe_attachment(attachment, note=str(error)))
        found = identify_image(data)
        if found is None:
            return DescribedAttachment(
                describe_attachment(
                    attachment, size_bytes=len(data), note="of a kind that cannot be shown"
                )
            )
        pixels = (found.width, found.height)
        if max(pixels) > MAX_IMAGE_SIDE:
            return DescribedAttachment(
                describe_attachment(
                    attachment, size_bytes=len(data), pixels=pixels, note="too large to be shown"
                )
            )
        try:
            name = await asyncio.to_thread(self._save, data)
        except OSError as error:
            logger.warning("an image cannot be kept in %s: %s", self._folder, error.strerror)
            return DescribedAttachment(
                describe_attachment(
                    attachment, size_bytes=len(data), pixels=pixels, note="could not be kept"
                )
            )
        about = describe_attachment(attachment, size_bytes=len(data), pixels=pixels)
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

    async def _quote_document(
        self, seq: Seq, message: Message, place: int, *, sees: bool
    ) -> DescribedAttachment:
        attachment = message.shown_attachments[place]
        try:
            found = await self.read_document(message, place)
        except AttachmentNotFetched as error:
            return DescribedAttachment(describe_attachment(attachment, note=str(error)))
        pages = int(counted[1]) if (counted := _PAGES.fullmatch(found.parts)) else 0
        shown = (
            await self._show_pdf(seq, message, place, pages)
            if sees and pages <= self._config.pdf_pages
            else None
        )
        chars, handle = len(found.text), document_handle(seq, place)
        beginning = found.text[:MAX_DOCUMENT_CHARS]
        if not beginning:
            note = "no text in it"
        elif chars > len(beginning) or found.cut:
            note = (
                f'{len(beginning)} of {chars} characters follow, fetch_evidence("{handle}") '
                "gives the rest"
            )
        else:
            note = "its text follows"
        about = describe_attachment(
            attachment, note=", ".join(part for part in (found.parts, note) if part)
        )
        if not beginning:
            return DescribedAttachment(about, shown)
        fenced = fence_text(
            beginning, about=f"file {attachment.name or ''}", key=f"{handle} {attachment.id}"
        )
        return DescribedAttachment(f"{about}\n{fenced}\n", shown)

    async def _show_pdf(
        self, seq: Seq, message: Message, place: int, pages: int
    ) -> MediaRef | None:
        """Return the file of an attachment as it is. None: it is no PDF, or cannot be shown."""
        attachment = message.shown_attachments[place]
        try:
            data = await self._fetch(
                message.at, attachment, min(self._config.max_bytes, MAX_IMAGE_BYTES)
            )
            if not pages or not data.startswith(b"%PDF-"):
                return None
            name = await asyncio.to_thread(self._save, data)
        except (AttachmentNotFetched, OSError) as error:
            logger.info("a PDF is not shown whole: %s", error)
            return None
        return MediaRef(
            sha256=name,
            media_type="application/pdf",
            line=seq,
            about=describe_attachment(attachment, size_bytes=len(data), note=f"{pages} pages"),
            size_bytes=len(data),
            width=0,
            height=0,
            pages=pages,
        )

    async def _transcribe_voice(self, at: Address, attachment: Attachment) -> DescribedAttachment:
        try:
            data = await self._fetch(at, attachment, self._config.max_bytes)
            async with asyncio.timeout(
                self._config.transcribe_timeout
            ):  # including the wait for the lock
                words = await self._transcribe(data)
        except AttachmentNotFetched as error:
            return DescribedAttachment(describe_attachment(attachment, note=str(error)))
        except (TranscriptionError, TimeoutError, OSError) as error:
            why = str(error) or "it took longer than media.transcribe_timeout"
            logger.warning("a voice note is not written out: %s", why)
            return DescribedAttachment(
                describe_attachment(attachment, note="could not be written out")
            )
        if not words:
            return DescribedAttachment(describe_attachment(attachment, note="no words in it"))
        return DescribedAttachment(describe_attachment(attachment, words=words))

    async def _transcribe(self, data: bytes) -> str:
        async with self._voice_lock:  # transcription takes all the processors it can get
            file = await asyncio.to_thread(self._write, data, sound_suffix(data))
            try:
                return await transcribe(
                    self._config.transcribe, file, timeout_s=self._config.transcribe_timeout
                )
            finally:
                file.unlink(missing_ok=True)

    async def _fetch(self, at: Address, attachment: Attachment, limit_bytes: int) -> bytes:
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

    def _save(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        path = self._folder / name
        if path.exists() and path.stat().st_size == len(data):
            os.utime(path)
        else:
            self._write(data, "").replace(path)
        return name

    def _write(self, data: bytes, suffix: str) -> Path:
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

    def _load_existing(self, refs: Sequence[MediaRef | ToolImage]) -> tuple[Image, ...]:
        found = []
        for ref in refs:
            path = self._folder / ref.sha256
            try:
                data = path.read_bytes()
            except OSError:
                continue
            with contextlib.suppress(OSError):  # it is shown all the same
                os.utime(path)
            if len(data) == ref.size_bytes:  # else a crash of the machine cut it off
                pages = ref.pages if isinstance(ref, MediaRef) else 0
                found.append(
                    Image(media_type=ref.media_type, data=data, description=ref.about, pages=pages)
                )
        return tuple(found)

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
                if _STORED_NAME.fullmatch(path.name) and path.stat().st_mtime < oldest:
                    path.unlink()
            except OSError as error:  # gone already, or another user's: a log line is enough
                logger.info("%s is not removed: %s", path, error.strerror)


async def prepare_image(media: MediaStore, data: bytes, name: str) -> tuple[ToolImage, Image]:
    """Save an image, ready for a model. `name` (untrusted): its name.

    Raises ToolCallRefused if models do not take it.
    """
    found = identify_image(data)
    if found is None:
        raise ToolCallRefused(
            f"{name} is not a picture that can be shown: PNG, JPEG, GIF and WebP can."
        )
    if len(data) > MAX_IMAGE_BYTES:
        raise ToolCallRefused(
            f"{name} has {len(data):,} bytes, and a picture may have {MAX_IMAGE_BYTES:,}: make it "
            "smaller."
        )
    if not found.width or not found.height or not _is_complete_image(data, found.media_type):
        raise ToolCallRefused(
            f"{name} is damaged: it is not a whole "
            f"{found.media_type.removeprefix('image/').upper()} file."
        )
    if max(found.width, found.height) > MAX_IMAGE_SIDE:
        raise ToolCallRefused(
            f"{name} has {found.width}x{found.height} pixels, and {MAX_IMAGE_SIDE:,} a side are "
            "shown: make it smaller."
        )
    attachment = Attachment(id=name, name=name, content_type=found.media_type, form="image")
    about = describe_attachment(
        attachment, size_bytes=len(data), pixels=(found.width, found.height)
    )
    try:
        kept = await media.save_picture(data, found, about)
    except OSError as error:
        logger.warning("a picture cannot be kept: %s", error.strerror)
        raise ToolCallRefused(
            f"{name} could not be kept to be shown: an admin has to look at the disk."
        ) from error
    return kept, Image(media_type=found.media_type, data=data, description=about)


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


def describe_unread(seq: Seq, message: Message, place: int) -> str:
    """Describe an attachment that was not fetched, with the handle that reads it if it is a
    document.
    """
    attachment = message.shown_attachments[place]
    handle = (
        f'fetch_evidence("{document_handle(seq, place)}") reads it'
        if is_document(attachment)
        else ""
    )
    return describe_attachment(attachment, note=handle)


def _mark_quoted(
    message: Message, place: int, described: DescribedAttachment
) -> DescribedAttachment:
    """Say of an attachment that it belongs to the message replied to, if it does."""
    if place < len(message.attachments):
        return described
    return described._replace(description=f"(with the message replied to:) {described.description}")


def is_image(attachment: Attachment) -> bool:
    """Return whether a model that takes images is shown it."""
    content_type = attachment.content_type or ""
    return attachment.form == "image" or (
        attachment.form == "file" and content_type.startswith("image/")
    )
