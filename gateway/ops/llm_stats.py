"""What each agent's model requests did, counted in memory since this process started. No IO, no clock.

Names and outcomes are those that dashboards for this kind of agent already ask for.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from agent.tokens.drift import drift_percent
from gateway.events import RequestUsage, Usage
from gateway.ops.metrics import Histogram, MetricFamily, MetricSample

CompactionOutcome = Literal["ok", "failed", "lock_held", "no_boundary", "tool_result_truncated"]
COMPACTION_OUTCOMES: Final[tuple[CompactionOutcome, ...]] = (
    "ok",
    "failed",
    "lock_held",
    "no_boundary",
    "tool_result_truncated",
)
TIMED_OUTCOMES: Final[tuple[CompactionOutcome, ...]] = ("ok", "failed")
"""Outcomes of a compaction that asked a model, and so took a time worth knowing."""

DRIFT_PERCENT = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
"""An offline tokenizer is 5 to 15 % off, and beyond 20 % it is the wrong one: the bounds are close there."""
COMPACTION_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
MAX_MODELS = 100
"""Told apart. A server that makes up names for its models must not fill the memory, here and in the database."""
OTHER_MODELS = "other"

WorkspaceCounts = Mapping[str, tuple[int, int, int]]
"""Hits, misses and invalidations, by directory."""


class RequestLabels(NamedTuple):
    """Who asked whom."""

    agent: str
    provider: str
    model: str


@dataclass(slots=True)
class _RequestCounters:
    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0
    priced: bool = False
    estimated: int = 0
    drift: Histogram = field(default_factory=lambda: Histogram(DRIFT_PERCENT))


class LlmStats:
    """Counts. Everything happens on the event loop, so that nothing is seen half."""

    def __init__(self, agents: Iterable[str], workspace: Callable[[], WorkspaceCounts] = dict) -> None:
        """`agents`: every id. `workspace` is asked at each scrape."""
        self._workspace = workspace
        self._requests: dict[RequestLabels, _RequestCounters] = {}
        self._compactions = Counter({(agent, outcome): 0 for agent in agents for outcome in COMPACTION_OUTCOMES})
        self._durations_s = {
            (agent, outcome): Histogram(COMPACTION_S) for agent in agents for outcome in TIMED_OUTCOMES
        }

    def count_request(self, agent: str, account: RequestUsage) -> None:
        """A model request was answered, and this is what came of it."""
        asked = RequestLabels(agent, account.provider, account.model)
        if asked not in self._requests and len(self._requests) >= MAX_MODELS:
            asked = RequestLabels(agent, OTHER_MODELS, OTHER_MODELS)
        of = self._requests.setdefault(asked, _RequestCounters())
        of.requests += 1
        of.usage += account.usage
        if account.cost_usd is not None:
            of.cost_usd, of.priced = of.cost_usd + account.cost_usd, True
        estimated, billed = sum(block.tokens for block in account.blocks), _prompt_tokens(account.usage)
        if estimated > 0:
            of.estimated = estimated
            if billed > 0:
                of.drift.observe(drift_percent(estimated, billed))

    def count_compaction(self, agent: str, outcome: CompactionOutcome, took_s: float | None = None) -> None:
        """History was to be folded, and that is how it ended. `took_s`: None where no model was asked."""
        self._compactions[agent, outcome] += 1
        if took_s is not None and outcome in TIMED_OUTCOMES:
            self._durations_s.setdefault((agent, outcome), Histogram(COMPACTION_S)).observe(took_s)

    def families(self) -> list[MetricFamily]:
        """All of it, ready to be shown."""
        return [
            *self._cache_families(),
            *self._estimate_families(),
            *self._compaction_families(),
            *self._workspace_families(),
        ]

    def _cache_families(self) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="llm_requests_total",
            kind="counter",
            help_text="Model requests that were answered.",
            samples=self._samples(lambda of: of.requests),
        )
        yield MetricFamily(
            name="llm_cost_usd_total",
            kind="counter",
            help_text="What they cost in US dollars; absent where no price is known.",
            samples=self._samples(lambda of: of.cost_usd if of.priced else None),
        )
        yield MetricFamily(
            name="llm_cache_read_tokens_total",
            kind="counter",
            help_text="Prompt tokens read from the provider's cache.",
            samples=self._samples(lambda of: of.usage.cache_read_tokens),
        )
        yield MetricFamily(
            name="llm_cache_creation_tokens_total",
            kind="counter",
            help_text="Prompt tokens written to the provider's cache.",
            samples=self._samples(lambda of: of.usage.cache_write_tokens),
        )
        yield MetricFamily(
            name="llm_cache_hit_ratio",
            kind="gauge",
            help_text="Share of all prompt tokens since the start that was read from the cache; "
            "absent before the first.",
            samples=self._ratios(),
        )

    def _estimate_families(self) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="llm_prompt_tokens_estimated",
            kind="gauge",
            help_text="Tokens that the newest request's prompt was thought to have before it was sent.",
            samples=self._samples(lambda of: of.estimated or None),
        )
        yield MetricFamily(
            name="llm_prompt_tokens_drift",
            kind="histogram",
            help_text="How far estimates were from the bill, in percent of the bill, whichever way.",
            samples=[sample for asked, of in self._requests.items() for sample in of.drift.samples(asked._asdict())],
        )

    def _compaction_families(self) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="llm_compaction_triggered_total",
            kind="counter",
            help_text="How often history was to be folded into a summary, by how that ended.",
            samples=[
                MetricSample({"agent": agent, "outcome": outcome}, count)
                for (agent, outcome), count in self._compactions.items()
            ],
        )
        yield MetricFamily(
            name="llm_compaction_duration_seconds",
            kind="histogram",
            help_text="How long folding history took.",
            samples=[
                sample
                for (agent, outcome), took in self._durations_s.items()
                for sample in took.samples({"agent": agent, "outcome": outcome})
            ],
        )

    def _workspace_families(self) -> Iterable[MetricFamily]:
        counts = self._workspace()
        for place, (what, told) in enumerate(
            (
                ("hits", "Persona files answered from memory, by workspace."),
                ("misses", "Persona files read from the disk, by workspace."),
                ("invalidations", "Changes of persona files that were noticed, by workspace."),
            )
        ):
            samples = [MetricSample({"path": path}, counts[path][place]) for path in sorted(counts)]
            yield MetricFamily(name=f"workspace_cache_{what}_total", kind="counter", help_text=told, samples=samples)

    def _samples(self, value: Callable[[_RequestCounters], float | None]) -> Sequence[MetricSample]:
        """One sample for each that has a value."""
        found = ((asked, value(of)) for asked, of in self._requests.items())
        return [MetricSample(asked._asdict(), number) for asked, number in found if number is not None]

    def _ratios(self) -> Sequence[MetricSample]:
        usage: dict[str, Usage] = {}
        for asked, of in self._requests.items():
            usage[asked.agent] = usage.get(asked.agent, Usage()) + of.usage
        billed = {agent: one for agent, one in usage.items() if _prompt_tokens(one) > 0}
        return [
            MetricSample({"agent": agent}, one.cache_read_tokens / _prompt_tokens(one)) for agent, one in billed.items()
        ]


def _prompt_tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
