"""What we say: paced by chat, in order, and never twice.

When something may be sent. Pure: time is handed in.

Telegram: about one message a second in a chat, twenty a minute in a group, thirty a second overall
(core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this). One chat's limits never delay another.
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
from channels.telegram.ids import MessageNumbers, format_message_id, has_own_sequence, parse_message_number
from channels.telegram.render import TelegramSpan, TelegramText, parse_body
from channels.text import safe_content_type, safe_file_name
from gateway.core.clock import Clock
from gateway.core.events import Address, MessageId, Receipt

_MINUTE_S, _SECOND_S = 60.0, 1.0
_RECHECK_S = 0.05
"""When to look again if all that is allowed is on its way."""
_SLACK_S = 1e-9
"""Floating point must not make us sleep for nothing."""
_MAX_CHATS = 1000
"""Chats that are remembered before the quiet ones are forgotten."""


@dataclass(eq=False, slots=True)
class _ChatPace:
    sent_s: deque[float] = field(default_factory=deque)
    """When something was sent in the last minute."""
    optional_s: deque[float] = field(default_factory=deque)
    """The same for what need not have been: previews."""
    held_until: float = 0.0
    hushed_until: float = 0.0


class TelegramPacer:
    """The pace of one bot account."""

    def __init__(self, flood: TelegramRateLimit) -> None:
        self._flood = flood
        self._chats: dict[int, _ChatPace] = {}
        self._answered_s: deque[float] = deque()
        """When messages were answered, in the last second, of all chats."""
        self._in_flight = 0
        """Messages that are on their way."""

    def wait_s(self, chat: int, now_s: float) -> float:
        """How long until a message may go to `chat`; 0: now."""
        known = self._chat_pace(chat, now_s)
        waits = [known.held_until - now_s]
        if known.sent_s:
            waits.append(known.sent_s[-1] + self._flood.per_chat_s - now_s)
        if _is_group(chat) and len(known.sent_s) >= self._flood.group_per_min:
            waits.append(known.sent_s[-self._flood.group_per_min] + _MINUTE_S - now_s)
        if (surplus := self._in_flight + len(self._answered_s) - self._flood.overall_per_s) >= 0:
            waits.append(
                self._answered_s[surplus] + _SECOND_S - now_s if surplus < len(self._answered_s) else _RECHECK_S
            )
        return longest if (longest := max(waits)) > _SLACK_S else 0.0

    def start(self, chat: int, now_s: float) -> None:
        """A message goes to `chat` now. Call `done` when that is over."""
        self._chat_pace(chat, now_s).sent_s.append(now_s)
        self._in_flight += 1

    def finish(self, chat: int, now_s: float) -> None:
        """The message that was taken last in `chat` has been answered; Telegram counts from some time before that."""
        self._in_flight -= 1
        self._answered_s.append(now_s)
        known = self._chat_pace(chat, now_s)
        if known.sent_s:
            known.sent_s[-1] = now_s

    def take_optional(self, chat: int, now_s: float) -> bool:
        """Take room for something that need not be sent, if half of what is allowed is free."""
        known = self._chat_pace(chat, now_s)
        busy = _is_group(chat) and len(known.sent_s) + len(known.optional_s) >= self._flood.group_per_min / 2
        if (
            not self.is_free(chat, now_s)
            or busy
            or self._in_flight + len(self._answered_s) >= max(1, self._flood.overall_per_s / 2)
        ):
            return False
        known.optional_s.append(now_s)
        return True

    def is_free(self, chat: int, now_s: float) -> bool:
        """Whether Telegram has not told us to be quiet in `chat`."""
        return self.quiet_s(chat, now_s) <= 0

    def quiet_s(self, chat: int, now_s: float) -> float:
        """For how long Telegram has told us to be quiet in `chat` with what is no message; 0: it has not."""
        known = self._chat_pace(chat, now_s)
        return max(0.0, known.held_until - now_s, known.hushed_until - now_s)

    def hold(self, chat: int, until_s: float) -> None:
        """Telegram wants nothing for `chat` before that."""
        known = self._chats.setdefault(chat, _ChatPace())
        known.held_until = max(known.held_until, until_s)

    def hold_optional(self, chat: int, until_s: float) -> None:
        """Telegram wants nothing for `chat` before that which need not be sent. A message may be refused, or not."""
        known = self._chats.setdefault(chat, _ChatPace())
        known.hushed_until = max(known.hushed_until, until_s)

    def _chat_pace(self, chat: int, now_s: float) -> _ChatPace:
        while self._answered_s and self._answered_s[0] <= now_s - _SECOND_S:
            self._answered_s.popleft()
        if len(self._chats) > _MAX_CHATS:
            self._chats = {key: one for key, one in self._chats.items() if not _is_idle(one, now_s)}
        known = self._chats.setdefault(chat, _ChatPace())
        for times in (known.sent_s, known.optional_s):
            while times and times[0] <= now_s - max(_MINUTE_S, self._flood.per_chat_s):
                times.popleft()
        return known


def _is_group(chat: int) -> bool:
    return chat < 0


def _is_idle(chat: _ChatPace, now_s: float) -> bool:
    last = max(*chat.sent_s, *chat.optional_s, max(chat.held_until, chat.hushed_until) - _MINUTE_S, -_MINUTE_S)
    return last <= now_s - _MINUTE_S


logger = logging.getLogger("reverie.telegram")
NO_LINK_PREVIEW = LinkPreviewOptions(is_disabled=True)
MAX_FILE_BYTES: Final = 50_000_000
"""core.telegram.org/bots/api#sending-files: 50 MB."""
_UPLOAD_TIMEOUT_S = 120.0
"""For the answer to a file, which Telegram looks at first."""
_MAX_TRIES = 4
"""With the formatting, the reply and the old chat id each given up once."""
_MAX_WAIT_S = 60.0
"""A group's pace is counted by the minute; what takes longer is Telegram's word, and others should know."""


_RECOVERY_TIMEOUT_S = 120.0
"""How long a server that has just failed is asked whether it is back, before nothing is known of a message."""
_SETTLE_DELAY_S = 3.0
"""After that, so long for what it had begun."""
_GAP, _SHARED_GAP, _MOST_PROBED = 3, 10, 40
"""So many ids without a message end a search, where a chat counts alone or with others; and so many are looked at."""

ResultT = TypeVar("ResultT")


class TelegramOutgoing:
    """The way out of one account."""

    def __init__(
        self,
        api: TelegramApi,
        clock: Clock,
        pace: TelegramPacer,
        chat: Callable[[str], str],
        moved: Callable[[str, str], None],
        *,
        numbers: MessageNumbers,
    ) -> None:
        """`chat` tells where a room is now; `moved(old, new)` is told where it turned out to be."""
        self._api, self._clock, self.pacer, self._resolve_chat, self._on_moved = api, clock, pace, chat, moved
        self.numbers = numbers
        self._resolve_lock = asyncio.Lock()
        """Chats may share their ids, so what became of one message is found out after the other."""
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def chat_id(self, at: Address) -> int:
        """The chat's id as Telegram wants it. Raises Rejected."""
        try:
            return int(self._resolve_chat(at.room))
        except ValueError:
            raise Rejected(f"{at.room!r} is not the id of a Telegram chat") from None

    async def send(self, part: Part, going: BeforeSend) -> Receipt:
        """As `Channel.send`."""
        try:
            return Receipt(ids=(await self.run_paced(part.to, lambda: self._hand_over(part), going),))
        except Denied as error:  # whether we are really refused is found out by whoever polls
            raise Unreachable(error.reason) from None

    async def run_paced(
        self, at: Address, hand_over: Callable[[], Awaitable[ResultT]], going: BeforeSend = no_before_send
    ) -> ResultT:
        """What `hand_over` gives, once it is a message's turn there. Raises `SendError`, and what `going` raises."""
        lane = self._locks.setdefault(at.room, asyncio.Lock())
        async with lane:  # in a chat, one after the other
            chat = self.chat_id(at)
            while wait_s := self.pacer.wait_s(chat, self._clock.monotonic()):
                if wait_s > _MAX_WAIT_S:
                    raise RateLimited("Telegram wants no more messages in this chat for now", retry_after_s=wait_s)
                await self._clock.sleep(wait_s)
                chat = self.chat_id(at)
            self.pacer.start(chat, self._clock.monotonic())
            try:
                await going()
                return await self._run_hand_over(hand_over, chat)
            finally:
                self.pacer.finish(chat, self._clock.monotonic())

    async def _run_hand_over(self, hand_over: Callable[[], Awaitable[ResultT]], chat: int) -> ResultT:
        try:
            return await hand_over()
        except Exception as error:  # noqa: BLE001 - behind the hand-over, all else leaves it uncertain
            raise self.to_send_error(error, chat) from None

    def to_send_error(self, error: Exception, chat: int) -> SendError:
        """As ours, and the chat's pace slowed down if Telegram asks for that."""
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
            # Each of these says that the message was surely not sent.
            except ChatMigrated as error:
                self.record_move(chat, error)
            except BadRequest as error:
                said = str(error).casefold()
                if text.spans and "entit" in said:
                    text = TelegramText(text=text.text)
                elif reply and "repl" in said:
                    replying = False
                else:
                    raise
        raise Rejected("Telegram refuses this message in every form")

    async def _send_once(self, chat: int, call: Callable[[], Awaitable[int]]) -> int:
        """The id of what `call` sends, also where the server fails after it has sent it."""
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
        """The id of the message, if it was sent all the same. Raises Unreachable if not, `error` if nobody knows."""
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
        if error.is_proxy_page:  # what stands in front of the servers had none that answered
            raise Unreachable(f"no Bot API server has answered: {self._api.redact(error)}") from None
        raise error

    async def _wait_until_back(self) -> bool:
        """Whether the server answers again before long."""
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
        """A message of ours behind `newest` that nobody knows of. None: there is none. Raises TelegramError."""
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
                said = str(error).casefold().replace("_", " ")
                if "not modified" in said:
                    return number
                if "can't be edited" in said:
                    last = number
                elif "not found" not in said and "id invalid" not in said:
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
        """Telegram says that the group `chat` is another one now."""
        self._on_moved(str(chat), str(error.new_chat_id))


def to_entities(spans: tuple[TelegramSpan, ...]) -> list[MessageEntity] | None:
    """As the library wants them; None for none."""
    return [
        MessageEntity(
            type=span.type, offset=span.start, length=span.end - span.start, url=span.url, language=span.language
        )
        for span in spans
    ] or None


def parse_topic_id(at: Address) -> int | None:
    """A topic's id. Raises Rejected."""
    try:
        return int(at.thread) if at.thread is not None else None
    except ValueError:
        raise Rejected(f"{at.thread!r} is not the id of a Telegram topic") from None
