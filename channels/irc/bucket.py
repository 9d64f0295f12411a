"""A token bucket (RFC 2813 section 5.8 in today's words). Pure: time is handed in."""


class IrcTokenBucket:
    """Holds `burst` tokens at most and gets `per_s` new ones."""

    def __init__(self, burst: int, per_s: float, now_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._tokens, self._at_s = float(burst), now_s

    def wait_s(self, now_s: float, tokens: int = 1) -> float:
        """How long until there are so many tokens; 0: there are."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        # A billionth of slack: floating point must not make us sleep for nothing.
        return 0.0 if self._tokens >= tokens - 1e-9 else (tokens - self._tokens) / self._per_s

    def take(self) -> None:
        """Use a token up."""
        self._tokens -= 1
