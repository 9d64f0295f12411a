"""When to show that an answer is being written: https://ircv3.net/specs/client-tags/typing. Pure.

Not more often than every 3 s; after 6 s without news others take it that we have stopped.
"""

from typing import Final

TYPING_INTERVAL_S: Final = 3.0
_TYPING_EXPIRES_S: Final = 6.0
_MAX_TARGETS: Final = 256


class TypingState:
    """Where we are shown as writing. Targets are folded."""

    def __init__(self) -> None:
        self._sent_s: dict[str, float] = {}
        self.is_unsupported = False
        """The server has said that it knows no such thing."""

    def should_send(self, target: str, now_s: float, *, active: bool) -> bool:
        """Whether telling it would be news."""
        if self.is_unsupported:
            return False
        age_s = now_s - self._sent_s.get(target, float("-inf"))
        return age_s >= TYPING_INTERVAL_S if active else age_s < _TYPING_EXPIRES_S

    def mark_sent(self, target: str, now_s: float, *, active: bool) -> None:
        """It was told."""
        self._sent_s.pop(target, None)
        if active:
            self._sent_s[target] = now_s
            if len(self._sent_s) > _MAX_TARGETS:
                del self._sent_s[next(iter(self._sent_s))]

    def mark_stopped(self, target: str) -> None:
        """A message says that we have stopped, too."""
        self._sent_s.pop(target, None)
