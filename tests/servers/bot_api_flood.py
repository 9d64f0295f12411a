"""Flood limits as core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this gives them.

About 1 message a second in one chat, 20 a minute in one group, 30 a second overall. Telegram keeps the exact rules
to itself; these are windows that slide, with `chat_burst` messages at once allowed in one chat.
"""

import math
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field

from tests.servers.bot_api_text import ApiError
from tests.servers.bot_api_world import Chat


@dataclass(slots=True, kw_only=True)
class Flood:
    """Limits in force. `hits` counts the refusals by chat."""

    chat_burst: int = 1
    chat_s: float = 1.0
    group_per_min: int = 20
    overall_per_s: int = 30
    hits: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _chats: dict[int, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _groups: dict[int, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _all: deque[float] = field(default_factory=deque)

    def spend(self, chat: Chat) -> None:
        """Count one message, or raise `ApiError` 429."""
        now = time.monotonic()
        windows = [(self._chats[chat.id], self.chat_burst, self.chat_s), (self._all, self.overall_per_s, 1.0)]
        if not chat.private:
            windows.append((self._groups[chat.id], self.group_per_min, 60.0))
        wait_s = 0.0
        for sent, most, window_s in windows:
            while sent and sent[0] <= now - window_s:
                sent.popleft()
            if len(sent) >= most:
                wait_s = max(wait_s, sent[0] + window_s - now)
        if wait_s > 0:
            self.hits[chat.id] += 1
            whole_s = max(1, math.ceil(wait_s))
            raise ApiError(429, f"Too Many Requests: retry after {whole_s}", retry_after=whole_s)
        for sent, _, _ in windows:
            sent.append(now)
