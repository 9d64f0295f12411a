"""What the agents' tools did and what was decided about them, counted since this process started. No IO, no clock."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from gateway.ops.metrics import Family, Histogram, Sample
from gateway.records import ApprovalEnded, ToolRefused
from gateway.store import Appended, Entry

Outcome = Literal["ok", "error", "refused", "timeout", "unknown"]
"""It did what it was to do; it did not; it was not carried out; its time was over; there is no such tool."""
SECONDS: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 20.0, 60.0, 300.0)
MOST_TOOLS: Final = 200
"""Told apart. Models make up names, and so do servers of tools."""
OTHER: Final = "other"


class ToolStats:
    """Counts. Everything happens on the event loop, so that nothing is seen half."""

    def __init__(self, waiting: Callable[[], int] = lambda: 0) -> None:
        """`waiting`: how many calls wait for an approval; asked at each scrape."""
        self._count_waiting = waiting
        self._calls = Counter[tuple[str, Outcome]]()
        self._refusals = Counter[str]()
        self._verdicts = Counter[tuple[str, str]]()
        self._durations = dict[str, Histogram]()
        self._known = set[str]()

    def count_call(self, tool: str, outcome: Outcome, took_s: float) -> None:
        """A call has ended. `took_s`: without what it waited for an approval."""
        name = OTHER if outcome == "unknown" else self._find_label(tool)
        self._calls[name, outcome] += 1
        if outcome not in ("refused", "unknown"):
            self._durations.setdefault(name, Histogram(SECONDS)).observe(took_s)

    def on_appended(self, entries: Sequence[Entry], written: Sequence[Appended]) -> None:
        """These were appended to the log: refusals by right and verdicts on approvals among them are counted."""
        for entry, done in zip(entries, written, strict=True):
            if done.is_new and isinstance(entry.fact, ToolRefused):
                self._refusals[self._find_label(entry.fact.tool)] += 1
            elif done.is_new and isinstance(entry.fact, ApprovalEnded):
                self._verdicts[self._find_label(entry.fact.tool), entry.fact.verdict] += 1

    def families(self) -> list[Family]:
        """All of it, ready to be shown."""
        return list(self._build_families())

    def _build_families(self) -> Iterable[Family]:
        yield Family(
            name="reverie_tool_calls_total",
            kind="counter",
            help_text="Calls of tools, by how they ended.",
            samples=[Sample({"tool": tool, "outcome": outcome}, n) for (tool, outcome), n in self._calls.items()],
        )
        yield Family(
            name="reverie_tool_duration_seconds",
            kind="histogram",
            help_text="How long calls took that were carried out.",
            samples=[sample for tool, took in self._durations.items() for sample in took.samples({"tool": tool})],
        )
        yield Family(
            name="reverie_tool_refusals_total",
            kind="counter",
            help_text="Calls that were refused by right, before anything was done.",
            samples=[Sample({"tool": tool}, n) for tool, n in self._refusals.items()],
        )
        yield Family(
            name="reverie_tool_approvals_total",
            kind="counter",
            help_text="Calls that an admin was asked about, by what came of it.",
            samples=[Sample({"tool": tool, "verdict": said}, n) for (tool, said), n in self._verdicts.items()],
        )
        yield Family(
            name="reverie_tool_approvals_waiting",
            kind="gauge",
            help_text="Calls that wait for an admin now.",
            samples=[Sample({}, self._count_waiting())],
        )

    def _find_label(self, tool: str) -> str:
        if tool not in self._known and len(self._known) >= MOST_TOOLS:
            return OTHER
        self._known.add(tool)
        return tool
