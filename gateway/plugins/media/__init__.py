"""What is in voice notes and documents that people send, told to the turns that they are for.

A command of the operator's writes out the words of a voice note. Of a document, the beginning of
its text stands in the line, and `fetch_evidence` reads the rest. A document is read by a program of
its own without secrets (`extract.py`), and so is a page of the web.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.models.base import MAX_IMAGE_BYTES
from agent.prompt import fence_text
from gateway.config.models import FILE_PLACEHOLDER, MediaConfig
from gateway.core.events import Attachment, Message
from gateway.core.facts import MediaRef, Seq
from gateway.core.media_types import (
    MAX_TRANSCRIPT_CHARS,
    describe_attachment,
    is_document,
    sound_suffix,
)
from gateway.core.process import (
    SYSTEM_VARIABLES,
    ProgramNotStarted,
    run_program,
    select_environment,
)
from gateway.plugin import Plugin, PluginContext
from gateway.stream.media import (
    AttachmentNotFetched,
    AttachmentReader,
    DescribedAttachment,
    document_handle,
)

logger = logging.getLogger("reverie.media")

MAX_TRANSCRIBED_VOICES: Final = 4
"""Newest voice notes transcribed for one turn, one after the other."""
MAX_DOCUMENTS: Final = 4
"""Newest documents addressed to the agent of which one turn is told the beginning."""
_PAGES: Final = re.compile(r"(\d+) pages?")
EXTRACT_PROGRAM: Final = Path(__file__).with_name("extract.py")
MAX_EXTRACT_BYTES: Final = 14_000_000
"""A million characters of twelve bytes at most in JSON, and a title."""
UNREADABLE_STATUS: Final = 3
"""Exit status of the program for a file that is no text."""


class ExtractedText(BaseModel):
    """Text of a page or document."""

    model_config = ConfigDict(frozen=True)

    title: str
    """One line. Empty: it has none."""
    text: str
    parts: str
    """Number of its pages or sheets, e.g. `14 pages`. Empty: it has none."""
    cut: bool


class ExtractionError(Exception):
    """A file whose text cannot be read. The message gives the reason in a few words."""


class Media(Plugin):
    """Voice notes and documents, for all agents. Its settings are those of the path's `media`."""

    name = "media"
    summary = "tells turns what is in voice notes and documents"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._store = context.media
        self._voice_lock = asyncio.Lock()
        self._document_slots = asyncio.Semaphore(2)
        context.media.readers += [
            AttachmentReader(self._takes_voice, MAX_TRANSCRIBED_VOICES, self._write_out),
            AttachmentReader(
                lambda message, one, _: message.kind != "room" and is_document(one),
                MAX_DOCUMENTS,
                self._quote_document,
            ),
        ]

    @property
    def settings(self) -> MediaConfig:
        return self.context.gateway.live.settings.media

    async def read_document(self, message: Message, place: int) -> ExtractedText:
        """Return the text of an attachment, from the kept copy or fetched again. Raises
        AttachmentNotFetched.

        `place`: position in `message.shown_attachments`, from 0. On cancellation, and on a full
        disk, no copy is kept.
        """
        attachment = message.shown_attachments[place]
        key = f"{message.at.conversation}\0{message.id}\0{attachment.id}"
        name = hashlib.sha256(key.encode()).hexdigest()
        with contextlib.suppress(ValidationError):
            if (kept := await self._store.load(name)) is not None:
                return ExtractedText.model_validate_json(kept)
        data = await self._store.fetch(message.at, attachment)
        try:
            async with self._document_slots:
                found = await extract_text(data)
        except ExtractionError as error:
            raise AttachmentNotFetched(str(error)) from None
        try:
            await self._store.save(found.model_dump_json().encode(), name)
        except OSError as error:
            logger.warning("the text of a document cannot be kept: %s", error.strerror)
        return found

    async def _quote_document(
        self, seq: Seq, message: Message, place: int, sees: bool
    ) -> DescribedAttachment:
        attachment = message.shown_attachments[place]
        found = await self.read_document(message, place)
        pages = int(counted[1]) if (counted := _PAGES.fullmatch(found.parts)) else 0
        shown = (
            await self._show_pdf(seq, message, place, pages)
            if sees and pages <= self.settings.pdf_pages
            else None
        )
        chars, handle = len(found.text), document_handle(seq, place)
        beginning = found.text[:4_000]
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
            data = await self._store.fetch(message.at, attachment, MAX_IMAGE_BYTES)
            if not pages or not data.startswith(b"%PDF-"):
                return None
            name = await self._store.save(data)
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

    def _takes_voice(self, _message: Message, attachment: Attachment, _sees: bool) -> bool:
        return bool(self.settings.transcribe) and attachment.form == "audio"

    async def _write_out(
        self, _seq: Seq, message: Message, place: int, _sees: bool
    ) -> DescribedAttachment:
        attachment, limit_s = message.shown_attachments[place], self.settings.transcribe_timeout
        data = await self._store.fetch(message.at, attachment)
        try:
            # the wait for the lock counts: transcription takes all the processors it can get
            async with asyncio.timeout(limit_s), self._voice_lock:
                file = await asyncio.to_thread(self._store.write, data, sound_suffix(data))
                try:
                    words = await transcribe(self.settings.transcribe, file, timeout_s=limit_s)
                finally:
                    file.unlink(missing_ok=True)
        except (TranscriptionError, TimeoutError, OSError) as error:
            why = str(error) or "it took longer than media.transcribe_timeout"
            logger.warning("a voice note is not written out: %s", why)
            raise AttachmentNotFetched("could not be written out") from None
        if not words:
            raise AttachmentNotFetched("no words in it")
        return DescribedAttachment(describe_attachment(attachment, words=words))


class TranscriptionError(Exception):
    """Failed transcription. The message gives the reason."""


async def transcribe(command: Sequence[str], file: Path, *, timeout_s: float) -> str:
    """Run the command on a file and return its standard output.

    No shell is involved, and only `{file}` is replaced. Raises `TranscriptionError`. On return,
    also when cancelled, the command and all processes it started have ended.
    """
    argv = [argument.replace(FILE_PLACEHOLDER, str(file)) for argument in command]
    try:
        ran = await run_program(
            argv,
            env=select_environment(*SYSTEM_VARIABLES),
            time_s=timeout_s,
            max_bytes=16 * MAX_TRANSCRIPT_CHARS,
            cwd=file.parent,
        )
    except ProgramNotStarted as reason:
        raise TranscriptionError(str(reason)) from None
    if ran.end_reason == "late":
        raise TranscriptionError(f"{argv[0]} took longer than {timeout_s:g} s")
    if ran.status:
        raise TranscriptionError(f"{argv[0]} ended with status {ran.status}")
    return ran.output.decode("utf-8", "replace").strip()


async def extract_text(
    body: bytes, *, kind: str = "", charset: str = "", url: str = "", cut: bool = False
) -> ExtractedText:
    """Extract the text of a page or document in a process without secrets. Raises ExtractionError.

    `kind`: media type as its server said; empty: not known. `url`: base of its links. `cut`: only
    its beginning is there.
    """
    head = json.dumps(
        {"kind": kind, "charset": charset, "url": url, "cut": "yes" if cut else ""}
    ).encode()
    try:
        ran = await run_program(
            (sys.executable, "-I", str(EXTRACT_PROGRAM)),
            env={},
            cwd=Path("/"),
            time_s=15.0,
            max_bytes=MAX_EXTRACT_BYTES,
            said=head + b"\n" + body,
        )
    except ProgramNotStarted:
        raise ExtractionError("the program that reads files cannot be started") from None
    if ran.end_reason == "exit" and ran.status == UNREADABLE_STATUS:
        raise ExtractionError(ran.output.decode())
    try:
        if ran.end_reason == "exit" and ran.status == 0:
            return ExtractedText.model_validate_json(ran.output)
    except ValidationError:
        pass  # treated like a crash: the file may have caused it
    raise ExtractionError("broken, or too much to be read")
