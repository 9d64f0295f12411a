"""Sending to Telegram: in order in each chat, and never twice."""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from telegram import (
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputFile,
    LinkPreviewOptions,
    Message,
    MessageEntity,
    ReplyParameters,
)
from telegram.error import BadRequest, ChatMigrated, Forbidden, RetryAfter, TelegramError

from channels.aio import Backoff, with_timeout
from channels.base import (
    Announce,
    BeforeSend,
    Denied,
    PostPart,
    RateLimited,
    Rejected,
    Uncertain,
    Unreachable,
    Unsettled,
    is_provisional,
    provisional_hint,
    provisional_id,
)
from channels.telegram.api import TelegramApi
from channels.telegram.ids import (
    CRASH_GAP,
    GAP,
    TAP_PREFIX,
    format_message_id,
    parse_message_number,
    sequence_of,
)
from channels.telegram.people import seconds
from channels.telegram.rate_limit import PREVIEW_RETRY_S, HandOver
from channels.telegram.render import (
    TelegramSpan,
    TelegramText,
    parse_body,
)
from channels.telegram.wire import UpdateReader
from channels.text import safe_content_type, safe_file_name
from gateway.core.clock import Clock
from gateway.core.events import Address, MessageId, PostButton, Receipt

logger = logging.getLogger("reverie.telegram")
NO_LINK_PREVIEW = LinkPreviewOptions(is_disabled=True)
MAX_FILE_BYTES: Final = 50_000_000
"""core.telegram.org/bots/api#sending-files: 50 MB."""
MAX_TAP_ANSWER_CHARS: Final = 200
"""core.telegram.org/bots/api#answercallbackquery; longer answers are cut."""
_UPLOAD_TIMEOUT_S = 120.0
"""For the answer to a file, which Telegram checks first."""
_MAX_TRIES = 5
"""One attempt, and one each without the formatting, without the reply, outside its topic and with
the new chat id."""
_NO_TOPIC: Final = ("message thread not found", "topic_closed", "topic_deleted")
"""Refusals of a topic in which nothing can be said any more."""
_MAX_RECOVERY_DELAY_S = 10.0
"""Longest delay between two questions whether a failed server answers again."""
_SETTLE_DELAY_S = 3.0
"""Time after that for the server to complete the request."""
_MAX_BEHIND_S = 60
"""Longest time for which a look waits until all that was said is heard."""


class TelegramOutgoing:
    """Outgoing messages of one account."""

    def __init__(
        self,
        api: TelegramApi,
        clock: Clock,
        reader: UpdateReader,
        *,
        has_caught_up: asyncio.Event,
    ) -> None:
        """Send with `api`; `reader` knows each room's current chat and the messages in it.

        `has_caught_up`: set while `reader` knows all that was said.
        """
        self.api, self._clock, self.reader, self.numbers = api, clock, reader, reader.numbers
        self._has_caught_up = has_caught_up
        self._probe_lock = asyncio.Lock()
        """Held while ids are looked at, so that an outage does not end in a flood of questions."""
        self._open_count = 0
        """Messages that may have taken an id that is not known yet."""
        self.closed = asyncio.Event()
        """To be set when the connection is let go: ends the waits for a server without an
        answer."""
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def chat_id(self, at: Address) -> int:
        """Return the chat's current id. Raises Rejected."""
        try:
            return int(self.reader.chat_id(at.room))
        except ValueError:
            raise Rejected(f"{at.room!r} is not the id of a Telegram chat") from None

    def lock(self, at: Address) -> asyncio.Lock:
        """Return the lock that keeps the messages and edits of a room in order."""
        return self._locks.setdefault(at.room, asyncio.Lock())

    async def send(self, part: PostPart, before_send: BeforeSend) -> Receipt:
        message = HandOver(before_send)
        try:
            if part.reply_to is not None and part.reply_to.startswith(TAP_PREFIX):
                try:
                    return await self._answer_tap(part, part.reply_to, message)
                except BadRequest as error:
                    if (
                        "query is too old" not in str(error).casefold()
                        or part.maybe_sent_after is not None
                        or self.chat_id(part.to) < 0
                    ):
                        raise
                    # As after an outage: alone with somebody, a message is as private.
                    part = replace(part, reply_to=None)
            async with self.lock(part.to):
                return Receipt(ids=(await self._send_or_find(part, message),))
        except Exception as error:
            if not message.is_started:
                raise
            verdict = self.api.to_send_error(error)
            if isinstance(
                verdict, Denied
            ):  # the polling side confirms whether the token is really refused
                raise Unreachable(verdict.reason) from None
            raise verdict from None

    async def _send_or_find(self, part: PostPart, message: HandOver) -> MessageId:
        if (finished := await self._finish(part, message)) is not None:
            return finished
        if part.maybe_sent_after is not None:
            reason = "the process ended while this part was being sent"
            found = await self._find_behind(part.to, part.maybe_sent_after, part.buttons, reason)
            if found is not None:
                return found
        return await self._send_in_some_form(part, message)

    async def begin_preview(
        self, at: Address, text: TelegramText, reply_to: MessageId | None, announce: Announce
    ) -> MessageId:
        """Send the message of a preview. Raises what a request raises, or a `SendError`."""
        async with self.lock(at):
            chat = self.chat_id(at)
            position = self.position(at)
            if not position:
                raise RateLimited(
                    "the position in this chat is not known", retry_after_s=PREVIEW_RETRY_S
                )
            message = HandOver(partial(announce, provisional_id(position)), is_preview=True)
            part = PostPart(key="", to=at, body="", reply_to=reply_to)
            self._open_count += 1
            try:
                sent = await self._call_send(
                    part, chat, text, self._reply_number(part, chat), message
                )
            except BaseException as error:
                if message.is_started and (
                    not isinstance(error, Exception)
                    or isinstance(self.api.to_send_error(error), Uncertain)
                ):
                    self.mark_unknown(chat)
                raise
            finally:
                self._open_count -= 1
            self.numbers.record_sent(chat, sent.message_id)
        return format_message_id(sent.message_id, str(chat), at.room)

    async def find_preview(self, at: Address, preview: MessageId) -> MessageId | None:
        """Return the id of a preview whose provisional id is known. None: it is not there. Hold the
        room's lock.

        Raises `Rejected` if that cannot be told, `Unsettled` if the connection is let go before.
        """
        try:
            return await self._find_behind(
                at, provisional_hint(preview), (), "no answer came to a preview"
            )
        except Unsettled:
            raise
        except Uncertain as error:
            raise Rejected(error.reason) from None

    async def _finish(self, part: PostPart, message: HandOver) -> MessageId | None:
        """Make the preview the part. None: there is none. Raises `Unsettled` where this is to be
        repeated.
        """
        preview = part.finishes
        if preview is None:
            return None
        try:
            if is_provisional(preview):
                preview = await self.find_preview(part.to, preview)
            return preview and await self._send_in_some_form(
                replace(part, replaces=preview), message
            )
        except Exception as error:
            verdict = self.api.to_send_error(error)
            if isinstance(verdict, Rejected):
                logger.info("a preview cannot become the answer: %s", verdict.reason)
                if preview is not None and "not found" not in verdict.reason:
                    await self._delete_quietly(part.to, preview)
                return None
            if message.is_started and isinstance(verdict, Uncertain):
                raise Unsettled(verdict.reason) from None
            raise

    async def _delete_quietly(self, at: Address, message: MessageId) -> None:
        """Delete half an answer that would stand beside the whole; whether that works or not."""
        chat = self.chat_id(at)
        if (number := parse_message_number(message, str(chat), at.room)) is not None:
            with contextlib.suppress(TelegramError):
                await self.api.bot.delete_message(chat, number)

    async def _find_behind(
        self, at: Address, after: str, buttons: Sequence[PostButton], reason: str
    ) -> MessageId | None:
        """Return the id of a message of ours behind this `position` that is not accounted for.
        None: there is none.

        `reason`: why it may be there. Raises Uncertain if that cannot be told.
        """
        chat = self.chat_id(at)
        sequence, _, number = after.rpartition(":")
        # A group that has become a supergroup begins to count anew.
        position = int(number) if number.isdigit() and sequence == str(sequence_of(chat)) else None
        gap = GAP if sequence_of(chat) else CRASH_GAP
        found = await self._find_or_raise(buttons, chat, position, reason, gap)
        if found is None:
            return None
        self.numbers.record_sent(chat, found)
        return format_message_id(found, str(chat), at.room)

    def position(self, at: Address) -> str:
        """Return the newest message known where `at` counts its messages, as
        `PostPart.maybe_sent_after`.
        """
        chat = self.chat_id(at)
        newest = self.numbers.newest(chat)
        return "" if newest is None else f"{sequence_of(chat)}:{newest}"

    async def _answer_tap(self, part: PostPart, tap: MessageId, message: HandOver) -> Receipt:
        """Show the text to the person who tapped: it is no message, so it waits for none and counts
        for no limit.
        """
        await message.before_send()
        message.is_started = True
        await self.api.bot.answer_callback_query(
            tap.removeprefix(TAP_PREFIX),
            text=parse_body(part.body).text,
            show_alert=part.style == "message",
        )
        return Receipt()

    async def _send_in_some_form(self, part: PostPart, message: HandOver) -> MessageId:
        text = parse_body(part.body)
        for _ in range(_MAX_TRIES):
            chat = self.chat_id(part.to)
            reply = self._reply_number(part, chat)
            try:
                if part.replaces is not None:
                    await self._replace(part, part.replaces, chat, text, message)
                    return part.replaces
                number = await self._send_once(part, chat, text, reply, message)
                return format_message_id(number, str(chat), part.to.room)
            # Each of these errors proves that the message was not sent.
            except ChatMigrated as error:
                self.record_move(chat, error)
            except BadRequest as error:
                description = str(error).casefold()
                if text.spans and "entit" in description:
                    text = TelegramText(text=text.text)
                elif reply and "repl" in description:
                    part = replace(part, reply_to=None)
                elif part.to.thread is not None and any(
                    words in description for words in _NO_TOPIC
                ):
                    logger.info(
                        "a topic is closed or gone, so its answer stands in the main chat: %s",
                        error,
                    )
                    # A reply would stand in the topic of what it replies to
                    # (https://github.com/tdlib/telegram-bot-api/issues/447).
                    part = replace(part, to=replace(part.to, thread=None), reply_to=None)
                else:
                    raise
        raise Rejected("Telegram refuses this message in every form")

    def _reply_number(self, part: PostPart, chat: int) -> int | None:
        """Return the message to quote, which the part replies to: in a private chat only if more
        was said there since.
        """
        if part.reply_to is None or (
            chat > 0 and self.reader.newest_said.get(part.to) == part.reply_to
        ):
            return None
        return parse_message_number(part.reply_to, str(chat), part.to.room)

    async def _replace(
        self, part: PostPart, old: MessageId, chat: int, text: TelegramText, message: HandOver
    ) -> None:
        """Give a message of ours this text and these buttons: without any, Telegram takes away
        those that it has.
        """
        number = number_in(part.to, chat, old)
        try:
            await self.api.bot.edit_message_text(
                text.text,
                chat,
                number,
                entities=to_entities(text.spans),
                link_preview_options=NO_LINK_PREVIEW,
                reply_markup=to_keyboard(part.buttons),
                rate_limit_args=message,
            )
        except BadRequest as error:
            if "not modified" not in str(error).casefold().replace("_", " "):
                raise

    async def _send_once(
        self, part: PostPart, chat: int, text: TelegramText, reply: int | None, message: HandOver
    ) -> int:
        """Return the id of the message that was sent, also if its answer got lost."""
        newest = self.numbers.newest(chat)
        self._open_count += 1
        try:
            await self._call_send(part, chat, text, reply, message)
        except Exception as error:
            if (
                message.message_id is None
            ):  # else it was sent, and only the rest of the answer is odd
                verdict = self.api.to_send_error(error)
                if not message.is_started or not isinstance(verdict, Uncertain):
                    raise
                message.message_id = await self._find_or_raise(
                    part.buttons, chat, newest, verdict.reason
                )
                if message.message_id is None:
                    raise Unreachable(f"not sent: {verdict.reason}") from None
        finally:
            self._open_count -= 1
        if message.message_id is None:
            raise TelegramError("an answer without the id of the message")
        self.numbers.record_sent(chat, message.message_id)
        return message.message_id

    async def _find_or_raise(
        self,
        buttons: Sequence[PostButton],
        chat: int,
        after: int | None,
        reason: str,
        gap: int = GAP,
    ) -> int | None:
        """Return the id of a message that may have been sent after the message `after`. None: it is
        not there.

        Raises Uncertain if that cannot be told; Unsettled if the connection is let go before, or
        the bot is not let into the chat: it looks once it is. `gap`: as in `MessageNumbers.search`.
        """
        if after is not None:
            try:
                # It answers again, and has had time for what it was doing.
                await self._ask(self.api.bot.get_me)
                await self._sleep(_SETTLE_DELAY_S)
                await self._wait_until_caught_up()
                async with self._probe_lock:
                    number = await self._find_sent(buttons, chat, after, gap)
            except Forbidden as refused:
                raise Unsettled(f"{reason}; and {self.api.redact(refused)}") from None
            except TelegramError as failed:
                reason += f"; and looking for it failed: {self.api.redact(failed)}"
            else:
                logger.info(
                    "a message without an answer (%s) was %s",
                    reason,
                    "sent" if number else "not sent",
                )
                return number
        self.mark_unknown(chat)
        raise Uncertain(reason)

    async def _ask(self, call: Callable[[], Awaitable[object]]) -> None:
        """Repeat a call until Telegram answers it. Raises the refusal, or Unsettled once the
        connection is let go.
        """
        backoff, delay_s = Backoff(_MAX_RECOVERY_DELAY_S), 0.0
        while True:
            try:
                await self.api.await_call(call())
            except (BadRequest, Forbidden, ChatMigrated):
                raise
            except RetryAfter as error:
                await self._sleep(seconds(error.retry_after))
            except TelegramError:
                await self._sleep(
                    delay_s
                )  # the first time at once: it may only have closed an idle connection
                delay_s = backoff.next_delay_s(0.0, 0.5)
            else:
                return

    async def _sleep(self, duration_s: float) -> None:
        """Sleep. Raises Unsettled once the connection is let go."""
        with contextlib.suppress(TimeoutError):
            await with_timeout(self._clock, duration_s, self.closed.wait())
        if self.closed.is_set():
            raise Unsettled(
                "the gateway lets go of Telegram before it is known whether this was sent"
            )

    async def _wait_until_caught_up(self) -> None:
        """Wait until all that was said is heard: messages of others stand before the one that is
        looked for.

        Raises TelegramError if that takes too long, or Unsettled.
        """
        for _ in range(_MAX_BEHIND_S):
            if self._has_caught_up.is_set():
                return
            await self._sleep(1.0)
        raise TelegramError("what was said meanwhile is not heard yet")

    def mark_unknown(self, chat: int) -> None:
        """Record that a message of ours with an unknown id may be there now."""
        self.numbers.mark_unknown(chat, self._clock.now().timestamp())

    async def _find_sent(
        self, buttons: Sequence[PostButton], chat: int, after: int, gap: int
    ) -> int | None:
        """Return an unknown message of ours behind `after`. None: there is none. Raises
        TelegramError.

        `gap`: as `MessageNumbers.search`, besides those of what is under way just now.
        """
        search, keyboard = (
            self.numbers.search(chat, after, gap + self._open_count),
            to_keyboard(buttons),
        )
        try:
            number = next(search)
            while True:
                number = search.send(await self._look_at(chat, number, keyboard))
        except StopIteration as end:
            found: int | None = end.value
            return found
        except OverflowError as error:
            raise TelegramError(str(error)) from None

    async def _look_at(
        self, chat: int, number: int, keyboard: InlineKeyboardMarkup | None
    ) -> Literal["ours", "other", "none"]:
        """Return whose message it is, by an edit that changes nothing: with the buttons that ours
        has.

        Raises TelegramError.
        """
        try:
            await self._ask(
                partial(self.api.bot.edit_message_reply_markup, chat, number, reply_markup=keyboard)
            )
        except BadRequest as error:
            description = str(error).casefold().replace("_", " ")
            if "can't be edited" in description:
                return "other"
            if "not found" in description or "id invalid" in description:
                return "none"
            if "not modified" not in description:
                raise
        return "ours"

    async def _call_send(
        self, part: PostPart, chat: int, text: TelegramText, reply: int | None, message: HandOver
    ) -> Message:
        bot, marks = self.api.bot, to_entities(text.spans)
        more: dict[str, Any] = {
            "disable_notification": True if part.style == "notice" else None,
            "message_thread_id": parse_topic_id(part.to),
            "reply_parameters": ReplyParameters(reply, allow_sending_without_reply=True)
            if reply
            else None,
            "reply_markup": to_keyboard(part.buttons),
            "rate_limit_args": message,
        }
        if part.file is None:
            return await bot.send_message(
                chat, text.text, entities=marks, link_preview_options=NO_LINK_PREVIEW, **more
            )
        file = InputFile(part.file.data, safe_file_name(part.file.name))
        file.mimetype = safe_content_type(part.file.content_type)  # it guesses by the name
        more["read_timeout"] = _UPLOAD_TIMEOUT_S
        return await bot.send_document(
            chat, file, caption=text.text, caption_entities=marks, **more
        )

    def record_move(self, chat: int, error: ChatMigrated) -> None:
        self.reader.record_move(str(chat), str(error.new_chat_id))


def number_in(at: Address, chat: int, message: MessageId) -> int:
    """Return the number of a message in the chat that the place has now. Raises Rejected."""
    number = parse_message_number(message, str(chat), at.room)
    if number is None:
        raise Rejected(
            "there is no such message in this chat; perhaps it stands where the group was before "
            "it moved"
        )
    return number


def to_entities(spans: tuple[TelegramSpan, ...]) -> list[MessageEntity] | None:
    """Return the library's entities; None for none."""
    return [
        MessageEntity(
            type=span.type,
            offset=span.start,
            length=span.end - span.start,
            url=span.url,
            language=span.language,
        )
        for span in spans
    ] or None


def to_keyboard(buttons: Sequence[PostButton]) -> InlineKeyboardMarkup | None:
    """Return the library's keyboard, a row for each button; None for none."""
    rows = [
        [InlineKeyboardButton(button.label, callback_data=button.command)] for button in buttons
    ]
    return InlineKeyboardMarkup(rows) if rows else None


def parse_topic_id(at: Address) -> int | None:
    """Return a topic's id. Raises Rejected."""
    try:
        return int(at.thread) if at.thread is not None else None
    except ValueError:
        raise Rejected(f"{at.thread!r} is not the id of a Telegram topic") from None
