"""Rate limits of one bot account, as a rate limiter of python-telegram-bot.

Telegram allows about one message a second in a chat, twenty a minute in a group, thirty a second
overall (core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this). One chat's limits
never delay another chat: the library's own `AIORateLimiter` stops all chats where one must wait.
`TelegramPacer` decides, and is pure.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from telegram.error import RetryAfter
from telegram.ext import BaseRateLimiter

from channels.base import BeforeSend, RateLimited, no_before_send
from channels.telegram.config import TelegramRateLimit
from channels.telegram.people import seconds
from channels.text import get_int
from gateway.core.clock import Clock
from gateway.core.ratelimit import LruDict, SlidingWindows

_RECHECK_S = 0.05
"""Delay of the next check if all allowed messages are in flight."""
_SLACK_S = 1e-9
"""Tolerance, so that rounding errors cause no extra sleep."""
_MAX_WAIT_S = 60.0
"""Group limits are counted by the minute; a longer wait is demanded by Telegram, and raised as
`RateLimited`."""
PREVIEW_RETRY_S = 3.0
_OPTIONAL_SHARE = 0.5
"""Share of each limit up to which typing and previews are shown: messages have the rest to
themselves."""


class TelegramPacer:
    """Rate limits of one bot account. A negative chat id is a group's."""

    def __init__(self, flood: TelegramRateLimit) -> None:
        self._flood = flood
        self._chats = SlidingWindows(flood.per_chat_s)
        self._groups, self._previews = SlidingWindows(60.0), SlidingWindows(60.0)
        """Messages, and previews, to each group."""
        self._all = SlidingWindows(1.0)
        """Answered calls; Telegram counts each from a time before its answer."""
        self._in_flight = 0
        self._held_until, self._hushed_until = LruDict[int, float](), LruDict[int, float]()
        """Chat -> end of the pause that Telegram demanded, for all calls, and for those that are no
        message."""

    def wait_s(self, chat: int, now_s: float) -> float:
        """Return the seconds until a message may go to `chat`; 0: now."""
        free = self._flood.overall_per_s - self._in_flight
        longest = max(
            self._held_until.get(chat, now_s) - now_s,
            self._chats.wait_s(str(chat), now_s, 1),
            self._groups.wait_s(str(chat), now_s, self._flood.group_per_min),
            self._all.wait_s("", now_s, free) if free > 0 else _RECHECK_S,
        )
        return longest if longest > _SLACK_S else 0.0

    def start(self) -> None:
        """Record that a call is made now. Call `finish` afterwards."""
        self._in_flight += 1

    def finish(self, now_s: float, chat: int | None = None) -> None:
        """Record the answer to a call; `chat`: of a message to it."""
        self._in_flight -= 1
        self._all.add("", now_s)
        if chat is not None:
            self._chats.add(str(chat), now_s)
        if chat is not None and chat < 0:
            self._groups.add(str(chat), now_s)

    def has_room(self, now_s: float) -> bool:
        """Return whether so little of the account's limit is used that an optional call may be
        made.
        """
        used = self._in_flight + self._all.count("", now_s)
        return used < max(1, self._flood.overall_per_s * _OPTIONAL_SHARE)

    def take_optional(self, chat: int, now_s: float) -> bool:
        """Reserve a preview, if enough of the account's limit is free, and of the group's."""
        used = self._groups.count(str(chat), now_s) + self._previews.count(str(chat), now_s)
        is_busy = chat < 0 and used >= self._flood.group_per_min * _OPTIONAL_SHARE
        if is_busy or self.quiet_s(chat, now_s) > 0 or not self.has_room(now_s):
            return False
        self._previews.add(str(chat), now_s)
        return True

    def quiet_s(self, chat: int, now_s: float) -> float:
        """Return the seconds of the pause in `chat` for calls other than messages; 0: none."""
        ends = (pauses.get(chat, now_s) for pauses in (self._held_until, self._hushed_until))
        return max(0.0, max(ends) - now_s)

    def hold(self, chat: int, until_s: float, *, all_calls: bool = True) -> None:
        """Delay calls to `chat`, as Telegram demanded: all, or those other than messages, which are
        still tried.
        """
        (self._held_until if all_calls else self._hushed_until).put(chat, until_s)


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
        message = rate_limit_args if isinstance(rate_limit_args, HandOver) else None
        waits = message is not None and not message.is_preview
        if message is None or message.is_preview:
            self._refuse_without_room(rate_limit_args, chat)
        elif not message.is_started:
            await self._wait_for_turn(chat)
        self._pacer.start()
        try:
            if message is not None and not message.is_started:
                await message.before_send()
                message.is_started = True
            answer = await callback(*args, **kwargs)
        except RetryAfter as error:
            until_s = self._clock.monotonic() + seconds(error.retry_after)
            self._pacer.hold(chat, until_s, all_calls=waits)
            raise
        finally:
            self._pacer.finish(self._clock.monotonic(), chat if waits else None)
        if message is not None:
            message.message_id = get_int(answer, "message_id")
        return answer

    def _refuse_without_room(self, kind: RateLimitArgs, chat: int) -> None:
        now_s = self._clock.monotonic()
        if wait_s := self._pacer.quiet_s(chat, now_s):
            raise RateLimited("Telegram asks for quiet in this chat", retry_after_s=wait_s)
        if kind == "action":
            return
        has_room = self._pacer.has_room(now_s)
        if not (has_room if kind == "typing" else self._pacer.take_optional(chat, now_s)):
            raise RateLimited("no room for typing and previews", retry_after_s=PREVIEW_RETRY_S)

    async def _wait_for_turn(self, chat: int) -> None:
        while wait_s := self._pacer.wait_s(chat, self._clock.monotonic()):
            if wait_s > _MAX_WAIT_S:
                raise RateLimited(
                    "Telegram wants no more messages in this chat for now", retry_after_s=wait_s
                )
            await self._clock.sleep(wait_s)
