"""Sending to Telegram: paced by chat, in order, and never twice.

`TelegramPacer` decides when something may be sent; it is pure. Telegram allows about one message a second in a chat,
twenty a minute in a group, thirty a second overall
(core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this). One chat's limits never delay another chat.
"""

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from telegram import InputFile, LinkPreviewOptions, MessageEntity, ReplyParameters
from telegram.error import BadRequest, ChatMigrated, TelegramError

from channels.aio import Backoff
from channels.base import (
    BeforeSend,
    Denied,
    Part,
    RateLimited,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    no_before_send,
)
from channels.telegram.api import FloodWait, TelegramApi, TelegramServerError
from channels.telegram.config import TelegramRateLimit
from channels.telegram.ids import format_message_id, has_own_sequence, parse_message_number
from channels.telegram.render import TelegramSpan, TelegramText, parse_body
from channels.telegram.wire import UpdateReader
from channels.text import safe_content_type, safe_file_name
from gateway.core.clock import Clock
from gateway.core.events import Address, MessageId, Receipt

logger = logging.getLogger("reverie.telegram")
_MINUTE_S, _SECOND_S = 60.0, 1.0
_RECHECK_S = 0.05
"""Delay of the next check if all allowed messages are in flight."""
_SLACK_S = 1e-9
"""Tolerance, so that rounding errors cause no extra sleep."""
_MAX_CHATS = 1000
"""Tracked chats; past that, idle ones are forgotten."""


@dataclass(eq=False, slots=True)
class _ChatPace:
    sent_s: deque[float] = field(default_factory=deque)
    """Times of messages in the last minute."""
    optional_s: deque[float] = field(default_factory=deque)
    """Times of optional calls (previews) in the last minute."""
    held_until: float = 0.0
    hushed_until: float = 0.0


class TelegramPacer:
    """Rate limits of one bot account."""

    def __init__(self, flood: TelegramRateLimit) -> None:
        self._flood = flood
        self._chats: dict[int, _ChatPace] = {}
        self._answered_s: deque[float] = deque()
        """Times of answers to messages in the last second, of all chats."""
        self._in_flight = 0
        """Number of unanswered messages."""

    def wait_s(self, chat: int, now_s: float) -> float:
        """Return the seconds until a message may go to `chat`; 0: now."""
        pace = self._chat_pace(chat, now_s)
        waits = [pace.held_until - now_s]
        if pace.sent_s:
            waits.append(pace.sent_s[-1] + self._flood.per_chat_s - now_s)
        if _is_group(chat) and len(pace.sent_s) >= self._flood.group_per_min:
            waits.append(pace.sent_s[-self._flood.group_per_min] + _MINUTE_S - now_s)
        if (surplus := self._in_flight + len(self._answered_s) - self._flood.overall_per_s) >= 0:
            waits.append(
                self._answered_s[surplus] + _SECOND_S - now_s if surplus < len(self._answered_s) else _RECHECK_S
            )
        return longest if (longest := max(waits)) > _SLACK_S else 0.0

    def start(self, chat: int, now_s: float) -> None:
        """Record that a message to `chat` is sent now. Call `finish` afterwards."""
        self._chat_pace(chat, now_s).sent_s.append(now_s)
        self._in_flight += 1

    def finish(self, chat: int, now_s: float) -> None:
        """Record the answer to the last message of `chat`; Telegram counts from a time before that."""
        self._in_flight -= 1
        self._answered_s.append(now_s)
        pace = self._chat_pace(chat, now_s)
        if pace.sent_s:
            pace.sent_s[-1] = now_s

    def take_optional(self, chat: int, now_s: float) -> bool:
        """Reserve an optional call, if half of the limits is free."""
        pace = self._chat_pace(chat, now_s)
        busy = _is_group(chat) and len(pace.sent_s) + len(pace.optional_s) >= self._flood.group_per_min / 2
        if (
            not self.is_free(chat, now_s)
            or busy
            or self._in_flight + len(self._answered_s) >= max(1, self._flood.overall_per_s / 2)
        ):
            return False
        pace.optional_s.append(now_s)
        return True

    def is_free(self, chat: int, now_s: float) -> bool:
        """Return whether Telegram has demanded no pause in `chat`."""
        return self.quiet_s(chat, now_s) <= 0

    def quiet_s(self, chat: int, now_s: float) -> float:
        """Return the seconds of the pause in `chat` for calls other than messages; 0: none."""
        pace = self._chat_pace(chat, now_s)
        return max(0.0, pace.held_until - now_s, pace.hushed_until - now_s)

    def hold(self, chat: int, until_s: float) -> None:
        """Delay all calls to `chat`, as Telegram demanded."""
        pace = self._chats.setdefault(chat, _ChatPace())
        pace.held_until = max(pace.held_until, until_s)

    def hold_optional(self, chat: int, until_s: float) -> None:
        """Delay optional calls to `chat`, as Telegram demanded. Messages are still tried."""
        pace = self._chats.setdefault(chat, _ChatPace())
        pace.hushed_until = max(pace.hushed_until, until_s)

    def _chat_pace(self, chat: int, now_s: float) -> _ChatPace:
        while self._answered_s and self._answered_s[0] <= now_s - _SECOND_S:
            self._answered_s.popleft()
        if len(self._chats) > _MAX_CHATS:
            self._chats = {key: chat_pace for key, chat_pace in self._chats.items() if not _is_idle(chat_pace, now_s)}
        pace = self._chats.setdefault(chat, _ChatPace())
        for times in (pace.sent_s, pace.optional_s):
            while times and times[0] <= now_s - max(_MINUTE_S, self._flood.per_chat_s):
                times.popleft()
        return pace


def _is_group(chat: int) -> bool:
    return chat < 0


def _is_idle(chat: _ChatPace, now_s: float) -> bool:
    last = max(*chat.sent_s, *chat.optional_s, max(chat.held_until, chat.hushed_until) - _MINUTE_S, -_MINUTE_S)
    return last <= now_s - _MINUTE_S


NO_LINK_PREVIEW = LinkPreviewOptions(is_disabled=True)
MAX_FILE_BYTES: Final = 50_000_000
"""core.telegram.org/bots/api#sending-files: 50 MB."""
_UPLOAD_TIMEOUT_S = 120.0
"""For the answer to a file, which Telegram checks first."""
_MAX_TRIES = 4
"""One attempt, and one each without the formatting, without the reply and with the new chat id."""
_MAX_WAIT_S = 60.0
"""Group limits are counted by the minute; a longer wait is demanded by Telegram, and raised as `RateLimited`."""


_RECOVERY_TIMEOUT_S = 120.0
"""Time that a failed server has to answer again, before the message counts as uncertain."""
_SETTLE_DELAY_S = 3.0
"""Time after that for the server to complete the request."""
_GAP, _SHARED_GAP, _MOST_PROBED = 3, 10, 40
"""Consecutive unused ids that end a search, in a chat with its own sequence or a shared one; and the most ids that are
checked."""

ResultT = TypeVar("ResultT")


class TelegramOutgoing:
    """Outgoing messages of one account."""

    def __init__(
        self,
        api: TelegramApi,
        clock: Clock,
        pace: TelegramPacer,
        reader: UpdateReader,
    ) -> None:
        """Send with `api`; `reader` knows each room's current chat and the messages in it."""
        self._api, self._clock, self.pacer, self._reader, self.numbers = api, clock, pace, reader, reader.numbers
        self._resolve_lock = asyncio.Lock()
        """Chats may share their numbers, so failed messages are resolved one after the other."""
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def chat_id(self, at: Address) -> int:
        """Return the chat's current id. Raises Rejected."""
        try:
            return int(self._reader.chat_id(at.room))
        except ValueError:
            raise Rejected(f"{at.room!r} is not the id of a Telegram chat") from None

    async def send(self, part: Part, before_send: BeforeSend) -> Receipt:
        try:
            return Receipt(ids=(await self.run_paced(part.to, lambda: self._hand_over(part), before_send),))
        except Denied as error:  # the polling side confirms whether the token is really refused
            raise Unreachable(error.reason) from None

    async def run_paced(
        self, at: Address, hand_over: Callable[[], Awaitable[ResultT]], before_send: BeforeSend = no_before_send
    ) -> ResultT:
        """Return the result of `hand_over`, called when it is the message's turn.

        Raises `SendError`, and errors of `before_send`.
        """
        lock = self._locks.setdefault(at.room, asyncio.Lock())
        async with lock:  # in a chat, one after the other
            chat = self.chat_id(at)
            while wait_s := self.pacer.wait_s(chat, self._clock.monotonic()):
                if wait_s > _MAX_WAIT_S:
                    raise RateLimited("Telegram wants no more messages in this chat for now", retry_after_s=wait_s)
                await self._clock.sleep(wait_s)
                chat = self.chat_id(at)
            self.pacer.start(chat, self._clock.monotonic())
            try:
                await before_send()
                return await self._run_hand_over(hand_over, chat)
            finally:
                self.pacer.finish(chat, self._clock.monotonic())

    async def _run_hand_over(self, hand_over: Callable[[], Awaitable[ResultT]], chat: int) -> ResultT:
        try:
            return await hand_over()
        except Exception as error:  # noqa: BLE001 - after the hand-over every other error is uncertain
            raise self.to_send_error(error, chat) from None

    def to_send_error(self, error: Exception, chat: int) -> SendError:
        """Translate the error, and delay the chat if Telegram demands it."""
        verdict = self._api.to_send_error(error)
        if isinstance(verdict, RateLimited):
            self.pacer.hold(chat, self._clock.monotonic() + verdict.retry_after_s)
        return verdict

    async def _hand_over(self, part: Part) -> MessageId:
        text, replying = parse_body(part.body), part.reply_to is not None
        for _ in range(_MAX_TRIES):
            chat, room = self.chat_id(part.to), part.to.room
            reply = parse_message_number(part.reply_to, str(chat), room) if part.reply_to and replying else None
            try:
                sent = await self._send_once(chat, lambda: self._call_send(part, chat, text, reply))  # noqa: B023 - called at once
                return format_message_id(sent, str(chat), room)
            # Each of these errors proves that the message was not sent.
            except ChatMigrated as error:
                self.record_move(chat, error)
            except BadRequest as error:
                description = str(error).casefold()
                if text.spans and "entit" in description:
                    text = TelegramText(text=text.text)
                elif reply and "repl" in description:
                    replying = False
                else:
                    raise
        raise Rejected("Telegram refuses this message in every form")

    async def _send_once(self, chat: int, call: Callable[[], Awaitable[int]]) -> int:
        """Return the id of the message that `call` sends, also if the server fails after sending it."""
        newest = self.numbers.newest(chat)
        try:
            number = await call()
        except TelegramServerError as error:
            number = await self._resolve_failed(chat, newest, error)
        except Exception as error:
            if isinstance(self._api.to_send_error(error), Uncertain):
                self.numbers.mark_unknown(chat)
            raise
        self.numbers.record_sent(chat, number)
        return number

    async def _resolve_failed(self, chat: int, newest: int | None, error: TelegramServerError) -> int:
        """Return the id of the message if it was sent despite the error.

        Raises Unreachable if not, `error` if that is unknown.
        """
        try:
            async with self._resolve_lock:
                if newest is not None and await self._wait_until_back():
                    await self._clock.sleep(_SETTLE_DELAY_S)
                    if (number := await self._find_sent(chat, newest)) is not None:
                        logger.info("a message that the server answered with %s was sent all the same", error)
                        return number
                    raise Unreachable(f"not sent: {self._api.redact(error)}")
        except TelegramError as failed:
            logger.info("nobody knows what became of a message: %s", self._api.redact(failed))
        self.numbers.mark_unknown(chat)
        if error.is_proxy_page:  # no Bot API server has received it
            raise Unreachable(f"no Bot API server has answered: {self._api.redact(error)}") from None
        raise error

    async def _wait_until_back(self) -> bool:
        """Return whether the server answers again within the time limit."""
        backoff, until_s = Backoff(10.0), self._clock.monotonic() + _RECOVERY_TIMEOUT_S
        while self._clock.monotonic() < until_s:
            try:
                await self._api.get_me()
            except TelegramError as error:
                wait_s = error.retry_after_s if isinstance(error, FloodWait) else backoff.next_delay_s(0.0, 0.5)
                await self._clock.sleep(wait_s)
            else:
                return True
        return False

    async def _find_sent(self, chat: int, newest: int) -> int | None:
        """Return an unknown message of ours after `newest`. None: there is none. Raises TelegramError."""
        number, last = newest, newest
        gap = _GAP if has_own_sequence(chat) else _SHARED_GAP
        while number < max(last, self.numbers.newest(chat) or 0) + gap:
            number += 1
            if number > newest + _MOST_PROBED:
                raise TelegramError("too much was said since")
            if number in self.numbers.recent_own(chat):
                last = number
                continue
            try:
                await self._api.await_call(self._api.bot.edit_message_reply_markup(chat, number))
            except BadRequest as error:
                description = str(error).casefold().replace("_", " ")
                if "not modified" in description:
                    return number
                if "can't be edited" in description:
                    last = number
                elif "not found" not in description and "id invalid" not in description:
                    raise
            else:
                return number
        return None

    async def _call_send(self, part: Part, chat: int, text: TelegramText, reply: int | None) -> int:
        bot, marks = self._api.bot, to_entities(text.spans)
        more: dict[str, Any] = {
            "disable_notification": True if part.style == "notice" else None,
            "message_thread_id": parse_topic_id(part.to),
            "reply_parameters": ReplyParameters(reply, allow_sending_without_reply=True) if reply else None,
        }
        if part.file is None:
            sent = await bot.send_message(chat, text.text, entities=marks, link_preview_options=NO_LINK_PREVIEW, **more)
        else:
            file = InputFile(part.file.data, safe_file_name(part.file.name))
            file.mimetype = safe_content_type(part.file.content_type)  # it guesses by the name
            more["read_timeout"] = _UPLOAD_TIMEOUT_S
            sent = await bot.send_document(chat, file, caption=text.text, caption_entities=marks, **more)
        return sent.message_id

    def record_move(self, chat: int, error: ChatMigrated) -> None:
        """Record that the group `chat` has a new id."""
        self._reader.record_move(str(chat), str(error.new_chat_id))


def to_entities(spans: tuple[TelegramSpan, ...]) -> list[MessageEntity] | None:
    """Return the library's entities; None for none."""
    return [
        MessageEntity(
            type=span.type, offset=span.start, length=span.end - span.start, url=span.url, language=span.language
        )
        for span in spans
    ] or None


def parse_topic_id(at: Address) -> int | None:
    """Return a topic's id. Raises Rejected."""
    try:
        return int(at.thread) if at.thread is not None else None
    except ValueError:
        raise Rejected(f"{at.thread!r} is not the id of a Telegram topic") from None
