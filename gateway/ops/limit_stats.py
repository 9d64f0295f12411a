"""Which limits people have reached, counted since this process started. No IO, no clock."""

from collections import Counter
from collections.abc import Iterable

from gateway.ops.metrics import MetricFamily, MetricSample


class LimitStats:
    """Counts. Everything happens on the event loop, so that nothing is seen half."""

    def __init__(self) -> None:
        self._limited = Counter[tuple[str, str]]()
        self._notices = 0

    def count_limited(self, limit: str, whose: str) -> None:
        """A message was not answered because of this limit."""
        self._limited[limit, whose] += 1

    def count_notice(self) -> None:
        """Those who reached one were told."""
        self._notices += 1

    def families(self) -> list[MetricFamily]:
        """All of it, ready to be shown."""
        return list(self._families())

    def _families(self) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="reverie_limited_total",
            kind="counter",
            help_text="Messages that were not answered, by the limit that was reached and whose it is.",
            samples=[MetricSample({"limit": limit, "whose": whose}, n) for (limit, whose), n in self._limited.items()],
        )
        yield MetricFamily(
            name="reverie_limit_notices_total",
            kind="counter",
            help_text="Notices that a limit was reached.",
            samples=[MetricSample({}, self._notices)],
        )
