"""How long to wait between new sessions. Pure: time is handed in."""

IDENTIFY_INTERVAL_S = 5.0
"""https://discord.com/developers/docs/events/gateway#rate-limiting: so long between two IDENTIFY of one bucket."""
MARGIN_S = 0.25
"""Discord counts where they arrive: the later one may have been the faster."""
DAY_S = 86400.0
MAX_PER_DAY = 1000
"""The same page: more IDENTIFY than that in a day, and the token is reset."""
RESERVE = 10
"""So many are left to the operator, who may restart us."""


class IdentifyLimiter:
    """When a new session may be begun."""

    def __init__(self) -> None:
        self._buckets = 1
        self._remaining = MAX_PER_DAY
        self._resets_s: float | None = None
        self._identified_s: dict[int, float] = {}

    def set_budget(self, now_s: float, *, remaining: int, reset_after_s: float, max_concurrency: int) -> None:
        """What Discord says of our budget."""
        self._remaining, self._resets_s = max(0, remaining), now_s + max(0.0, reset_after_s)
        self._buckets = max(1, max_concurrency)

    def wait_s(self, shard: int, now_s: float) -> float:
        """Seconds until this shard may identify; 0: now."""
        if self._resets_s is not None and now_s >= self._resets_s:
            self._remaining, self._resets_s = MAX_PER_DAY, None
        if self._remaining <= RESERVE:
            return max(1.0, (self._resets_s or now_s + DAY_S) - now_s)
        last_s = self._identified_s.get(shard % self._buckets)
        return 0.0 if last_s is None else max(0.0, last_s + IDENTIFY_INTERVAL_S + MARGIN_S - now_s)

    def take(self, shard: int, now_s: float) -> None:
        """It does so now."""
        self._identified_s[shard % self._buckets] = now_s
        self._remaining -= 1
        if self._resets_s is None:
            self._resets_s = now_s + DAY_S

    def mark_sent(self, shard: int, now_s: float) -> None:
        """What it `took` went out only now: connecting took its time."""
        self._identified_s[shard % self._buckets] = now_s
