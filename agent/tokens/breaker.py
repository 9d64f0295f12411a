"""When to stop asking a service that fails, and when to try it again. Pure: times are handed in.

Theory of operation. A breaker is a value; each event gives the next one.

    closed   everyone may ask. A success forgets the failures, the n-th failure in a row opens.
    open     nobody may ask until `retry_at_s`. Then one may try, and only one: a trial that is never heard of again
             (cancelled) keeps the others out for one more wait. If it succeeds, closed. If it fails, open for twice as
             long, up to a limit.

    breaker = Breaker()
    if breaker.admits(now_s):
        breaker = breaker.asked(now_s)
        ...                                     # ask
        breaker = breaker.succeeded()           # or breaker.failed(now_s)

Precedent: M. Nygard, Release It!, "Circuit Breaker"; the numbers are those of the source of this design.
"""

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """The state of one service. Times are seconds on any one clock that does not go back."""

    failures_to_open: int = 3
    """In a row. At least 1."""
    first_wait_s: float = 30.0
    longest_wait_s: float = 300.0
    failures: int = 0
    """In a row, while closed."""
    wait_s: float = 0.0
    """How long it stays open. 0: it is closed."""
    retry_at_s: float = 0.0
    """While open: nobody may ask before."""
    is_trying: bool = False
    """While open: somebody was let through and has not said how it went."""
    has_opened: bool = False
    """Ever; stays true."""

    @property
    def is_open(self) -> bool:
        """Whether the service is taken for broken; a trial does not change that, its success does."""
        return self.wait_s > 0

    def admits(self, now_s: float) -> bool:
        """Whether one may ask now. Who then does says so with `asked`."""
        return not self.is_open or now_s >= self.retry_at_s

    def record_attempt(self, now_s: float) -> Self:
        """Somebody asks, as `admits` allowed."""
        return replace(self, is_trying=True, retry_at_s=now_s + self.wait_s) if self.is_open else self

    def record_success(self) -> Self:
        """The service answered. That counts whoever asked, also from before it opened."""
        return replace(self, failures=0, wait_s=0.0, retry_at_s=0.0, is_trying=False)

    def record_failure(self, now_s: float, *, hint_s: float | None = None) -> Self:
        """The service failed. `hint_s`: when it asks to be left alone, in seconds; the longest wait bounds it."""
        if self.is_open and not self.is_trying:
            return self  # asked before it opened: nothing new
        failures = self.failures + 1
        if not self.is_open and failures < self.failures_to_open:
            return replace(self, failures=failures)
        wait_s = min(self.wait_s * 2 if self.is_open else self.first_wait_s, self.longest_wait_s)
        pause_s = min(max(wait_s, hint_s or 0.0), self.longest_wait_s)
        return replace(
            self, failures=0, wait_s=wait_s, retry_at_s=now_s + pause_s, is_trying=False, has_opened=True
        )  # fmt: skip
