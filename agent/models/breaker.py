"""State of the circuit breaker of one service."""

from dataclasses import replace
from typing import Self

from gateway.core.frozen import frozen

MIN_HINT_S = 1.0
"""A shorter hint of a server is no reason to pass it over."""


@frozen
class CircuitBreaker:
    """State of the circuit breaker of one service. Pure: a breaker is a value, and each event
    returns the next one.

        closed   Everyone may call. A success resets the failures, the n-th failure in a row
                 opens it, and so does one failure with which the service asked not to be called
                 for a while.
        open     No calls until `retry_at_s`. Then one trial is allowed, and only one: a trial
                 without an outcome (cancelled) keeps the others out for one more wait. Success:
                 closed. Failure: open for twice as long, up to a limit.

        breaker = CircuitBreaker()
        if breaker.admits(now_s):
            breaker = breaker.record_attempt(now_s)
            ...                                     # call
            breaker = breaker.record_success()      # or breaker.record_failure(now_s)

    Times are seconds of any one monotonic clock. Precedent: M. Nygard, Release It!, "Circuit
    Breaker"; the numbers are those of the source of this design.
    """

    failures_to_open: int = 3
    """Failures in a row that open it. At least 1."""
    first_wait_s: float = 30.0
    longest_wait_s: float = 300.0
    failures: int = 0
    """Failures in a row while closed."""
    wait_s: float = 0.0
    """Duration of the open state. 0: closed."""
    retry_at_s: float = 0.0
    """Time before which no call is allowed while open."""
    is_trying: bool = False
    """True: while open, a trial is under way."""
    has_opened: bool = False
    """True once it was open; stays true."""

    @property
    def is_open(self) -> bool:
        """Return whether the service counts as broken. A trial does not change that, its success
        does.
        """
        return self.wait_s > 0

    def admits(self, now_s: float) -> bool:
        """Return whether a call is allowed now. The caller then reports it by `record_attempt`."""
        return not self.is_open or now_s >= self.retry_at_s

    def record_attempt(self, now_s: float) -> Self:
        """Record a call that `admits` allowed."""
        return (
            replace(self, is_trying=True, retry_at_s=now_s + self.wait_s) if self.is_open else self
        )

    def record_success(self) -> Self:
        """Record an answer of the service, also to a call from before it opened."""
        return replace(self, failures=0, wait_s=0.0, retry_at_s=0.0, is_trying=False)

    def record_failure(self, now_s: float, *, hint_s: float | None = None) -> Self:
        """Record a failure of the service.

        `hint_s`: seconds for which the service asked not to be called, limited by the longest wait.
        Such a wish opens it at once, for as long.
        """
        if self.is_open and not self.is_trying:
            return self  # called before it opened: nothing new
        failures, wait_s = self.failures + 1, self.wait_s * 2 if self.is_open else self.first_wait_s
        if not self.is_open and failures < self.failures_to_open:
            if hint_s is None or hint_s < MIN_HINT_S:
                return replace(self, failures=failures)
            wait_s = hint_s
        wait_s = min(wait_s, self.longest_wait_s)
        pause_s = min(max(wait_s, hint_s or 0.0), self.longest_wait_s)
        return replace(
            self,
            failures=0,
            wait_s=wait_s,
            retry_at_s=now_s + pause_s,
            is_trying=False,
            has_opened=True,
        )
