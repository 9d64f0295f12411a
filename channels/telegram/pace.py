"""When something may be sent. Pure: time is handed in.

Telegram: about one message a second in a chat, twenty a minute in a group, thirty a second overall
(core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this). One chat's limits never delay another.
"""

from collections import deque
from dataclasses import dataclass, field

from channels.telegram.config import TelegramRateLimit

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
