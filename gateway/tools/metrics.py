"""Counters of tool calls and approvals since this process started. No IO, no clock."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from gateway.core.facts import ApprovalEnded, ApprovalRequested, ToolRefused
from gateway.core.metrics import Histogram, MetricFamily, MetricSample
from gateway.store import LogEntry

ToolOutcome = Literal["ok", "error", "refused", "timeout", "unknown"]
"""ok: done; error: failed; refused: not carried out; timeout: took too long; unknown: there is no such tool."""
DURATION_BUCKETS_S: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 20.0, 60.0, 300.0)
MAX_LABELLED_TOOLS: Final = 200
"""Tools with labels of their own; models make up names, and so do servers."""
OTHER_TOOL: Final = "other"


class ToolStats:
    """Counters. Everything happens on the event loop, so the counts are consistent."""

    def __init__(self) -> None:
        self._waiting = set[str]()
        """Approvals that were asked for and are not decided."""
        self._calls = Counter[tuple[str, ToolOutcome]]()
        self._refusals = Counter[str]()
        self._verdicts = Counter[tuple[str, str]]()
        self._durations = dict[str, Histogram]()
        self._known = set[str]()

    def count_call(self, tool: str, outcome: ToolOutcome, took_s: float) -> None:
        """Count a call that has ended. `took_s`: seconds, without the wait for an approval."""
        name = OTHER_TOOL if outcome == "unknown" else self._find_label(tool)
        self._calls[name, outcome] += 1
        if outcome not in ("refused", "unknown"):
            self._durations.setdefault(name, Histogram(DURATION_BUCKETS_S)).observe(took_s)

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Count refusals, verdicts and what waits: `ToolRefused`, `ApprovalRequested` and `ApprovalEnded`."""
        for entry in entries:
            if isinstance(entry.fact, ToolRefused):
                self._refusals[self._find_label(entry.fact.tool)] += 1
            elif isinstance(entry.fact, ApprovalRequested):
                self._waiting.add(entry.fact.approval)
            elif isinstance(entry.fact, ApprovalEnded):
                self._waiting.discard(entry.fact.approval)
                self._verdicts[self._find_label(entry.fact.tool), entry.fact.verdict] += 1

    def families(self) -> list[MetricFamily]:
        """Return all metrics."""
        return list(self._build_families())

    def _build_families(self) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="reverie_tool_calls_total",
            kind="counter",
            help_text="Calls of tools, by how they ended.",
            samples=[MetricSample({"tool": tool, "outcome": outcome}, n) for (tool, outcome), n in self._calls.items()],
        )
        yield MetricFamily(
            name="reverie_tool_duration_seconds",
            kind="histogram",
            help_text="How long calls took that were carried out.",
            samples=[sample for tool, took in self._durations.items() for sample in took.samples({"tool": tool})],
        )
        yield MetricFamily(
            name="reverie_tool_refusals_total",
            kind="counter",
            help_text="Calls that were refused by right, before anything was done.",
            samples=[MetricSample({"tool": tool}, n) for tool, n in self._refusals.items()],
        )
        yield MetricFamily(
            name="reverie_tool_approvals_total",
            kind="counter",
            help_text="Calls that an admin was asked about, by what came of it.",
            samples=[
                MetricSample({"tool": tool, "verdict": verdict}, n) for (tool, verdict), n in self._verdicts.items()
            ],
        )
        yield MetricFamily(
            name="reverie_tool_approvals_waiting",
            kind="gauge",
            help_text="Calls that wait for an admin now.",
            samples=[MetricSample({}, len(self._waiting))],
        )

    def _find_label(self, tool: str) -> str:
        if tool not in self._known and len(self._known) >= MAX_LABELLED_TOOLS:
            return OTHER_TOOL
        self._known.add(tool)
        return tool
