"""What need not be: showing that we write, showing what we write, and fetching files."""

import asyncio
from typing import Literal

from telegram.constants import ChatAction
from telegram.error import BadRequest

from channels.base import Denied, RateLimited, Rejected, SendError, Unreachable
from channels.telegram.calls import TelegramApi
from channels.telegram.ids import format_message_id, parse_message_number
from channels.telegram.outgoing import NO_LINK_PREVIEW, TelegramOutgoing, parse_topic_id, to_entities
from channels.telegram.render import render
from gateway.clock import Clock
from gateway.events import Address, Attachment, MessageId

_OK, _SERVER = 200, 500
_DOWNLOAD_TIMEOUT_S = 300.0
_PREVIEW_RETRY_S = 3.0
_DRAFT_TIMEOUT_S = 1.5
"""A draft that takes longer is given up, for it leaves nothing; the whole answer may be waiting behind it."""
_MAX_CONCURRENT = 8
"""Calls that show something; the other connections are for messages."""
_MAX_DRAFTS = 1000


class TelegramExtras:
    """All of it obeys the pace, and none of it takes a message's place."""

    def __init__(
        self, api: TelegramApi, clock: Clock, outgoing: TelegramOutgoing, preview: Literal["off", "private", "all"]
    ) -> None:
        self._api, self._clock, self._outgoing, self._preview = api, clock, outgoing, preview
        self._drafts: dict[Address, int] = {}
        """By place: the id of the draft that is shown there. Another for every answer."""
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def typing(self, at: Address) -> None:
        """As `CanType`, for `active`."""
        try:
            chat = self._outgoing.chat_id(at)
            if self._outgoing.pacer.is_free(chat, self._clock.monotonic()) and not self._slots.locked():
                async with self._slots:
                    await self._api.bot.send_chat_action(chat, ChatAction.TYPING, message_thread_id=parse_topic_id(at))
        except Exception as error:  # noqa: BLE001 - best effort, whatever breaks
            self._to_send_error(error, at)

    def end_preview(self, at: Address) -> None:
        """A message was sent there: what is shown next belongs to another answer."""
        if len(self._drafts) > _MAX_DRAFTS:
            self._drafts.clear()
        self._drafts[at] = self._drafts.get(at, 1) + 1

    async def preview(self, at: Address, text: str, shown: MessageId | None) -> MessageId | None:
        """As `CanPreview`; `Rejected` where the configuration does not want it."""
        chat = self._outgoing.chat_id(at)
        private = chat > 0
        if self._preview == "off" or (self._preview == "private" and not private):
            raise Rejected("previews are not wanted here")
        if not text.strip():
            return shown
        if self._slots.locked() or not self._outgoing.pacer.take_optional(chat, self._clock.monotonic()):
            raise RateLimited("no room for a preview", retry_after_s=_PREVIEW_RETRY_S)
        try:
            async with self._slots:
                return await (
                    self._send_draft(at, chat, text) if private else self._send_or_edit(at, chat, text, shown)
                )
        except Exception as error:  # noqa: BLE001 - said as what it means
            if isinstance(error, BadRequest) and "not modified" in str(error):
                return shown
            verdict = self._to_send_error(error, at)
            if isinstance(verdict, Denied):  # 404: an older server, which does not know drafts
                raise Rejected("this Bot API server shows no drafts") from None
            raise verdict from None

    async def _send_draft(self, at: Address, chat: int, text: str) -> None:
        last, draft = render(text)[-1], self._drafts.setdefault(at, 1)
        async with asyncio.timeout(_DRAFT_TIMEOUT_S):
            await self._api.bot.send_message_draft(
                chat, draft, last.text, entities=to_entities(last.spans), message_thread_id=parse_topic_id(at)
            )

    async def _send_or_edit(self, at: Address, chat: int, text: str, shown: MessageId | None) -> MessageId:
        last, bot = render(text)[-1], self._api.bot
        marks = to_entities(last.spans)
        if shown is not None:
            number = _preview_number(at, chat, shown)
            await bot.edit_message_text(last.text, chat, number, entities=marks, link_preview_options=NO_LINK_PREVIEW)
            return shown
        self._outgoing.numbers.mark_unknown(chat)  # until it is known which one it is
        sent = await bot.send_message(
            chat,
            last.text,
            entities=marks,
            disable_notification=True,
            message_thread_id=parse_topic_id(at),
            link_preview_options=NO_LINK_PREVIEW,
        )
        self._outgoing.numbers.record_sent(chat, sent.message_id)
        return format_message_id(sent.message_id, str(chat), at.room)

    async def delete_preview(self, at: Address, shown: MessageId) -> None:
        """As `CanPreview`."""
        chat = self._outgoing.chat_id(at)
        try:
            await self._api.bot.delete_message(chat, _preview_number(at, chat, shown))
        except Exception as error:  # noqa: BLE001 - said as what it means
            if not (isinstance(error, BadRequest) and "not found" in str(error)):
                raise self._to_send_error(error, at) from None

    def _to_send_error(self, error: Exception, at: Address) -> SendError:
        """As ours. Being told to wait with what need not be is no reason to wait with a message."""
        verdict = self._api.to_send_error(error)
        if isinstance(verdict, RateLimited):
            until_s = self._clock.monotonic() + verdict.retry_after_s
            self._outgoing.pacer.hold_optional(self._outgoing.chat_id(at), until_s)
        return verdict

    async def download(self, attachment: Attachment, limit_bytes: int) -> bytes:
        """As `CanDownload`. Nothing was sent, so whatever breaks may be tried again."""
        _check_size(attachment.size_bytes, limit_bytes)
        try:
            async with asyncio.timeout(_DOWNLOAD_TIMEOUT_S):
                file = await self._api.bot.get_file(attachment.id)
                _check_size(file.file_size, limit_bytes)
                return await self._fetch(file.file_path, limit_bytes)
        except SendError:
            raise
        except Exception as error:  # noqa: BLE001 - the network's, the API's, or an answer that cannot be read
            verdict = self._api.to_send_error(error)
            sure = isinstance(verdict, (Rejected, RateLimited))
            raise verdict if sure else Unreachable(verdict.reason) from None

    async def _fetch(self, url: str | None, limit_bytes: int) -> bytes:
        # A server in local mode names a path of its own machine instead: nothing for us to open.
        if not url or not url.startswith(self._api.file_base_url):
            raise Rejected("the Bot API server keeps its files to itself")
        async with self._api.stream_file(url) as response:
            if response.status_code != _OK:
                said = f"the file cannot be had: HTTP {response.status_code}"
                raise Unreachable(said) if response.status_code >= _SERVER else Rejected(said)
            data = bytearray()
            async for chunk in response.aiter_raw():
                data += chunk
                _check_size(len(data), limit_bytes)
            return bytes(data)


def _preview_number(at: Address, chat: int, shown: MessageId) -> int:
    number = parse_message_number(shown, str(chat), at.room)
    if number is None:
        raise Rejected("it stands where the group was before it moved")
    return number


def _check_size(size_bytes: int | None, limit_bytes: int) -> None:
    if size_bytes is not None and size_bytes > limit_bytes:
        raise Rejected(f"larger than {limit_bytes} bytes")
