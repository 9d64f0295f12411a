"""When something may be sent. Pure: time is handed in.

Telegram: about one message a second in a chat, twenty a minute in a group, thirty a second overall
(core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this). One chat's limits never delay another.
"""

from collections import deque
from dataclasses import dataclass, field

from channels.telegram.config import Flood

_MINUTE_S, _SECOND_S = 60.0, 1.0
_AGAIN_S = 0.05
"""When to look again if all that is allowed is on its way."""
_SLACK_S = 1e-9
"""Floating point must not make us sleep for nothing."""
_MANY = 1000
"""Chats that are remembered before the quiet ones are forgotten."""


@dataclass(eq=False, slots=True)
class _Chat:
    said: deque[float] = field(default_factory=deque)
    """When something was sent in the last minute."""
    extra: deque[float] = field(default_factory=deque)
    """The same for what need not have been: previews."""
    held_until: float = 0.0
    hushed_until: float = 0.0


class Pace:
    """The pace of one bot account."""

    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._chats: dict[int, _Chat] = {}
        self._said: deque[float] = deque()
        """When messages were answered, in the last second, of all chats."""
        self._going = 0
        """Messages that are on their way."""

    def wait_s(self, chat: int, now_s: float) -> float:
        """How long until a message may go to `chat`; 0: now."""
        known = self._known(chat, now_s)
        waits = [known.held_until - now_s]
        if known.said:
            waits.append(known.said[-1] + self._flood.per_chat_s - now_s)
        if _group(chat) and len(known.said) >= self._flood.group_per_min:
            waits.append(known.said[-self._flood.group_per_min] + _MINUTE_S - now_s)
        if (surplus := self._going + len(self._said) - self._flood.overall_per_s) >= 0:
            waits.append(self._said[surplus] + _SECOND_S - now_s if surplus < len(self._said) else _AGAIN_S)
        return longest if (longest := max(waits)) > _SLACK_S else 0.0

    def take(self, chat: int, now_s: float) -> None:
        """A message goes to `chat` now. Call `done` when that is over."""
        self._known(chat, now_s).said.append(now_s)
        self._going += 1

    def done(self, chat: int, now_s: float) -> None:
        """The message that was taken last in `chat` has been answered; Telegram counts from some time before that."""
        self._going -= 1
        self._said.append(now_s)
        known = self._known(chat, now_s)
        if known.said:
            known.said[-1] = now_s

    def spare(self, chat: int, now_s: float) -> bool:
        """Take room for something that need not be sent, if half of what is allowed is free."""
        known = self._known(chat, now_s)
        busy = _group(chat) and len(known.said) + len(known.extra) >= self._flood.group_per_min / 2
        if not self.free(chat, now_s) or busy or self._going + len(self._said) >= max(1, self._flood.overall_per_s / 2):
            return False
        known.extra.append(now_s)
        return True

    def free(self, chat: int, now_s: float) -> bool:
        """Whether Telegram has not told us to be quiet in `chat`."""
        return self.quiet_s(chat, now_s) <= 0

    def quiet_s(self, chat: int, now_s: float) -> float:
        """For how long Telegram has told us to be quiet in `chat` with what is no message; 0: it has not."""
        known = self._known(chat, now_s)
        return max(0.0, known.held_until - now_s, known.hushed_until - now_s)

    def hold(self, chat: int, until_s: float) -> None:
        """Telegram wants nothing for `chat` before that."""
        known = self._chats.setdefault(chat, _Chat())
        known.held_until = max(known.held_until, until_s)

    def hush(self, chat: int, until_s: float) -> None:
        """Telegram wants nothing for `chat` before that which need not be sent. A message may be refused, or not."""
        known = self._chats.setdefault(chat, _Chat())
        known.hushed_until = max(known.hushed_until, until_s)

    def _known(self, chat: int, now_s: float) -> _Chat:
        while self._said and self._said[0] <= now_s - _SECOND_S:
            self._said.popleft()
        if len(self._chats) > _MANY:
            self._chats = {key: one for key, one in self._chats.items() if not _quiet(one, now_s)}
        known = self._chats.setdefault(chat, _Chat())
        for times in (known.said, known.extra):
            while times and times[0] <= now_s - max(_MINUTE_S, self._flood.per_chat_s):
                times.popleft()
        return known


def _group(chat: int) -> bool:
    return chat < 0


def _quiet(chat: _Chat, now_s: float) -> bool:
    last = max(*chat.said, *chat.extra, max(chat.held_until, chat.hushed_until) - _MINUTE_S, -_MINUTE_S)
    return last <= now_s - _MINUTE_S
