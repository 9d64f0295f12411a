"""Counters of tool calls since this process started, for Prometheus."""

from collections.abc import Sequence
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.core.facts import ToolRefused
from gateway.store import LogEntry

ToolOutcome = Literal["ok", "error", "refused", "timeout", "unknown"]
"""ok: done; error: failed; refused: not carried out; timeout: took too long; unknown: there is no
such tool."""
DURATION_BUCKETS_S: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 20.0, 60.0, 300.0)
MAX_LABELLED_TOOLS: Final = 200
"""Tools with labels of their own; models make up names, and so do servers."""
OTHER_TOOL: Final = "other"


class ToolLabels:
    """Names of tools as values of a label."""

    def __init__(self) -> None:
        self._known = set[str]()

    def find(self, tool: str) -> str:
        """Return the name, or `OTHER_TOOL` for a new one once there are `MAX_LABELLED_TOOLS`."""
        if tool not in self._known and len(self._known) >= MAX_LABELLED_TOOLS:
            return OTHER_TOOL
        self._known.add(tool)
        return tool


class ToolStats:
    """Counters of one gateway."""

    def __init__(self) -> None:
        self.metrics = CollectorRegistry()
        self._calls = Counter(
            "reverie_tool_calls",
            "Calls of tools, by how they ended.",
            ["tool", "outcome"],
            registry=self.metrics,
        )
        self._durations = Histogram(
            "reverie_tool_duration_seconds",
            "How long calls took that were carried out.",
            ["tool"],
            buckets=DURATION_BUCKETS_S,
            registry=self.metrics,
        )
        self._refusals = Counter(
            "reverie_tool_refusals",
            "Calls that were refused by right, before anything was done.",
            ["tool"],
            registry=self.metrics,
        )
        self._labels = ToolLabels()

    def count_call(self, tool: str, outcome: ToolOutcome, took_s: float) -> None:
        """Count a call that has ended. `took_s`: seconds, without the wait for an approval."""
        name = OTHER_TOOL if outcome == "unknown" else self._labels.find(tool)
        self._calls.labels(name, outcome).inc()
        if outcome not in ("refused", "unknown"):
            self._durations.labels(name).observe(took_s)

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Count refusals: `ToolRefused`."""
        for entry in entries:
            if isinstance(entry.fact, ToolRefused):
                self._refusals.labels(self._labels.find(entry.fact.tool)).inc()
