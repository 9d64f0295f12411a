"""Rate limits of one bot account, as a rate limiter of python-telegram-bot.

Telegram allows about one message a second in a chat, twenty a minute in a group, thirty a second
overall (core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this). One chat's limits
never delay another chat: the library's own `AIORateLimiter` stops all chats where one must wait.
`TelegramPacer` decides, and is pure.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from telegram.error import RetryAfter
from telegram.ext import BaseRateLimiter

from channels.base import BeforeSend, RateLimited, no_before_send
from channels.telegram.config import TelegramRateLimit
from channels.telegram.people import seconds
from channels.text import get_int
from gateway.core.clock import Clock

_MINUTE_S, _SECOND_S = 60.0, 1.0
_RECHECK_S = 0.05
"""Delay of the next check if all allowed messages are in flight."""
_SLACK_S = 1e-9
"""Tolerance, so that rounding errors cause no extra sleep."""
_MAX_CHATS = 1000
"""Tracked chats; past that, idle ones are forgotten."""
_MAX_WAIT_S = 60.0
"""Group limits are counted by the minute; a longer wait is demanded by Telegram, and raised as
`RateLimited`."""
PREVIEW_RETRY_S = 3.0
_TYPING_SHARE, _PREVIEW_SHARE = 0.5, 0.75
"""Shares of the account's limit up to which typing and previews are shown: messages have the rest
to themselves."""


@dataclass(eq=False, slots=True)
class _ChatPace:
    sent_s: deque[float] = field(default_factory=deque)
    """Times of messages in the last minute."""
    optional_s: deque[float] = field(default_factory=deque)
    """Times of optional calls (previews) in the last minute."""
    held_until: float = 0.0
    hushed_until: float = 0.0


class TelegramPacer:
    """Rate limits of one bot account. A negative chat id is a group's."""

    def __init__(self, flood: TelegramRateLimit) -> None:
        self._flood = flood
        self._chats: dict[int, _ChatPace] = {}
        self._answered_s: deque[float] = deque()
        """Times of answers in the last second, of all chats: also to what is no message."""
        self._in_flight = 0
        """Number of unanswered calls."""

    def wait_s(self, chat: int, now_s: float) -> float:
        """Return the seconds until a message may go to `chat`; 0: now."""
        pace = self._chat_pace(chat, now_s)
        waits = [pace.held_until - now_s]
        if pace.sent_s:
            waits.append(pace.sent_s[-1] + self._flood.per_chat_s - now_s)
        if chat < 0 and len(pace.sent_s) >= self._flood.group_per_min:
            waits.append(pace.sent_s[-self._flood.group_per_min] + _MINUTE_S - now_s)
        if (surplus := self._in_flight + len(self._answered_s) - self._flood.overall_per_s) >= 0:
            waits.append(
                self._answered_s[surplus] + _SECOND_S - now_s
                if surplus < len(self._answered_s)
                else _RECHECK_S
            )
        return longest if (longest := max(waits)) > _SLACK_S else 0.0

    def start(self, chat: int, now_s: float) -> None:
        """Record that a message to `chat` is sent now. Call `finish` afterwards."""
        self._chat_pace(chat, now_s).sent_s.append(now_s)
        self.start_other()

    def finish(self, chat: int, now_s: float) -> None:
        """Record the answer to the last message of `chat`; Telegram counts from a time before
        that.
        """
        self.finish_other(now_s)
        pace = self._chat_pace(chat, now_s)
        if pace.sent_s:
            pace.sent_s[-1] = now_s

    def start_other(self) -> None:
        """Record that a call is made now that is no message. Call `finish_other` afterwards."""
        self._in_flight += 1

    def finish_other(self, now_s: float) -> None:
        """Record the answer to such a call."""
        self._in_flight -= 1
        self._answered_s.append(now_s)

    def has_room(self, share: float, now_s: float) -> bool:
        """Return whether less than this share of the account's limit is used, so that an optional
        call may be made.
        """
        self._forget_answered(now_s)
        return self._in_flight + len(self._answered_s) < max(1, self._flood.overall_per_s * share)

    def take_optional(self, chat: int, now_s: float) -> bool:
        """Reserve a preview, if a quarter of the account's limit is free, and half of the
        group's.
        """
        pace = self._chat_pace(chat, now_s)
        busy = chat < 0 and len(pace.sent_s) + len(pace.optional_s) >= self._flood.group_per_min / 2
        if self.quiet_s(chat, now_s) > 0 or busy or not self.has_room(_PREVIEW_SHARE, now_s):
            return False
        pace.optional_s.append(now_s)
        return True

    def quiet_s(self, chat: int, now_s: float) -> float:
        """Return the seconds of the pause in `chat` for calls other than messages; 0: none."""
        pace = self._chat_pace(chat, now_s)
        return max(0.0, pace.held_until - now_s, pace.hushed_until - now_s)

    def hold(self, chat: int, until_s: float) -> None:
        """Delay all calls to `chat`, as Telegram demanded."""
        pace = self._chats.setdefault(chat, _ChatPace())
        pace.held_until = max(pace.held_until, until_s)

    def hold_optional(self, chat: int, until_s: float) -> None:
        """Delay calls to `chat` other than messages, as Telegram demanded. Messages are still
        tried.
        """
        pace = self._chats.setdefault(chat, _ChatPace())
        pace.hushed_until = max(pace.hushed_until, until_s)

    def _forget_answered(self, now_s: float) -> None:
        while self._answered_s and self._answered_s[0] <= now_s - _SECOND_S:
            self._answered_s.popleft()

    def _chat_pace(self, chat: int, now_s: float) -> _ChatPace:
        self._forget_answered(now_s)
        if len(self._chats) > _MAX_CHATS:
            self._chats = {
                key: chat_pace
                for key, chat_pace in self._chats.items()
                if not _is_idle(chat_pace, now_s)
            }
        pace = self._chats.setdefault(chat, _ChatPace())
        for times in (pace.sent_s, pace.optional_s):
            while times and times[0] <= now_s - max(_MINUTE_S, self._flood.per_chat_s):
                times.popleft()
        return pace


def _is_idle(chat: _ChatPace, now_s: float) -> bool:
    last = max(
        *chat.sent_s,
        *chat.optional_s,
        max(chat.held_until, chat.hushed_until) - _MINUTE_S,
        -_MINUTE_S,
    )
    return last <= now_s - _MINUTE_S


@dataclass(slots=True)
class HandOver:
    """A message or an edit on its way, through all requests that try it."""

    before_send: BeforeSend = no_before_send
    is_started: bool = False
    """True: `before_send` has returned, so Telegram may have the message."""
    is_preview: bool = False
    """True: it is refused at once where a preview is."""
    message_id: int | None = None
    """Id of the message, once Telegram has accepted it, whatever else its answer holds."""


RateLimitArgs = HandOver | Literal["action", "typing", "preview"]
"""What a request is: a message, which waits; an action, refused while Telegram demands a pause in
the chat; typing or a preview, which also needs a part of the limits free. All are counted. None: it
is neither limited nor counted."""


_Answer = bool | dict[str, Any] | list[dict[str, Any]]
_Request = Callable[[], Coroutine[Any, Any, _Answer]]


class TelegramRateLimiter(BaseRateLimiter[RateLimitArgs]):
    """The pace of every request of one account, over all its connections."""

    def __init__(self, flood: TelegramRateLimit, clock: Clock) -> None:
        self._pacer, self._clock = TelegramPacer(flood), clock

    async def initialize(self) -> None:
        """Do nothing: there are no resources."""

    async def shutdown(self) -> None:
        """Do nothing: there are no resources."""

    async def process_request(  # noqa: PLR0917 - the library's own
        self,
        callback: Callable[..., Coroutine[Any, Any, _Answer]],
        args: Any,  # noqa: ANN401 - the library's own
        kwargs: dict[str, Any],
        endpoint: str,  # noqa: ARG002 - the kind of a request says more
        data: dict[str, Any],
        rate_limit_args: RateLimitArgs | None,
    ) -> _Answer:
        """Make the request in its turn. Raises RateLimited before it, if it would wait for long or
        is not to wait.
        """
        if rate_limit_args is None:
            return await callback(*args, **kwargs)
        chat: int = data["chat_id"]
        if isinstance(rate_limit_args, HandOver) and not rate_limit_args.is_preview:
            return await self._hand_over(rate_limit_args, chat, partial(callback, *args, **kwargs))
        if wait_s := self._pacer.quiet_s(chat, self._clock.monotonic()):
            raise RateLimited("Telegram asks for quiet in this chat", retry_after_s=wait_s)
        now_s = self._clock.monotonic()
        if rate_limit_args == "typing" and not self._pacer.has_room(_TYPING_SHARE, now_s):
            raise RateLimited("no room for typing", retry_after_s=PREVIEW_RETRY_S)
        if rate_limit_args not in ("action", "typing") and not self._pacer.take_optional(
            chat, now_s
        ):
            raise RateLimited("no room for a preview", retry_after_s=PREVIEW_RETRY_S)
        self._pacer.start_other()
        try:
            if isinstance(rate_limit_args, HandOver):
                await rate_limit_args.before_send()
                rate_limit_args.is_started = True
            return await callback(*args, **kwargs)
        except RetryAfter as error:
            self._pacer.hold_optional(chat, self._clock.monotonic() + seconds(error.retry_after))
            raise
        finally:
            self._pacer.finish_other(self._clock.monotonic())

    async def _hand_over(self, message: HandOver, chat: int, request: _Request) -> _Answer:
        while not message.is_started and (
            wait_s := self._pacer.wait_s(chat, self._clock.monotonic())
        ):
            if wait_s > _MAX_WAIT_S:
                raise RateLimited(
                    "Telegram wants no more messages in this chat for now", retry_after_s=wait_s
                )
            await self._clock.sleep(wait_s)
        self._pacer.start(chat, self._clock.monotonic())
        try:
            if not message.is_started:
                await message.before_send()
                message.is_started = True
            answer = await request()
        except RetryAfter as error:
            self._pacer.hold(chat, self._clock.monotonic() + seconds(error.retry_after))
            raise
        finally:
            self._pacer.finish(chat, self._clock.monotonic())
        message.message_id = get_int(answer, "message_id")
        return answer
