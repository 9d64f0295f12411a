"""Counters of models and agents since the process started, as Prometheus metric families. No IO, no clock."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from agent.signals import DmnMode
from agent.tokens.calibration import drift_percent
from gateway.context.compaction import CompactionOutcome
from gateway.core.control_messages import DmnStatus
from gateway.core.events import Address, ConnectionChanged, RequestUsage, Usage
from gateway.core.facts import INNER_CHANNEL, Fact, Judgement, TurnRecord
from gateway.core.metrics import Histogram, MetricFamily, MetricSample
from gateway.store import LogEntry

COMPACTION_OUTCOMES: Final[tuple[CompactionOutcome, ...]] = (
    "ok",
    "failed",
    "lock_held",
    "no_boundary",
    "tool_result_truncated",
)


COMPACTION_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)


DRIFT_PERCENT = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
"""Histogram bounds. An offline tokenizer is 5 to 15 % off and wrong beyond 20 %, so the bounds are close there."""


MAX_MODELS = 100
"""Models with labels of their own. A server that invents model names must not fill the memory, here or in Prometheus.
"""
OTHER_MODELS = "other"


class MetricSource(Protocol):
    """A group of counters."""

    def families(self) -> list[MetricFamily]:
        """Return all metric families."""


class RequestLabels(NamedTuple):
    """Labels of one model of one agent."""

    agent: str
    provider: str
    model: str


TIMED_OUTCOMES: Final[tuple[CompactionOutcome, ...]] = ("ok", "failed")
"""Outcomes of a compaction that called a model and therefore has a duration worth measuring."""


WorkspaceCounts = Mapping[str, tuple[int, int, int]]
"""Hits, misses and invalidations, by directory."""


@dataclass(slots=True)
class _RequestCounters:
    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0
    priced: bool = False
    estimated: int = 0
    drift: Histogram = field(default_factory=lambda: Histogram(DRIFT_PERCENT))


class AgentStats:
    """Counters of notifications, turns, model requests and compactions, and gauges of the DMN.

    Used on the event loop only, so a scrape is consistent.
    """

    def __init__(
        self,
        agents: Iterable[str] = (),
        workspace: Callable[[], WorkspaceCounts] = dict,
        minds: Callable[[], Sequence[DmnStatus]] = tuple,
    ) -> None:
        """`agents`: all agent ids. `workspace`, and `minds` for the DMN status of each, are called at each scrape."""
        self._list_minds = minds
        self._turns = Counter[tuple[str, str, str]]()
        self._notifications = Counter[tuple[str, str, str]]()
        self._workspace = workspace
        self._requests: dict[RequestLabels, _RequestCounters] = {}
        self._compactions = Counter({(agent, outcome): 0 for agent in agents for outcome in COMPACTION_OUTCOMES})
        self._durations_s = {
            (agent, outcome): Histogram(COMPACTION_S) for agent in agents for outcome in TIMED_OUTCOMES
        }

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Count the turns, their requests, and the judgements among the new entries."""
        facts = {entry.seq: entry.fact for entry in entries}
        for entry in entries:
            if isinstance(entry.fact, Judgement) and entry.cause in facts:
                event = facts[entry.cause]
                self.count_notification(_find_channel(event), event.kind, entry.fact.fate)
            elif isinstance(entry.fact, TurnRecord):
                if entry.fact.within is None:  # a turn within another one is counted with it
                    self.count_turn(entry.fact.agent, entry.fact.cause, entry.fact.outcome)
                for account in entry.fact.accounts:
                    self.count_request(entry.fact.agent, account)

    def count_turn(self, agent: str, cause: str, outcome: str) -> None:
        """Count a turn that ended, by the fields of its `TurnRecord`."""
        self._turns[agent, cause, outcome] += 1

    def count_notification(self, channel: str, kind: str, fate: str) -> None:
        """Count a new notification by the decision about it (`Judgement.fate`)."""
        self._notifications[channel, kind, fate] += 1

    def count_request(self, agent: str, account: RequestUsage) -> None:
        """Count a model request that was answered, with its usage and cost."""
        labels = RequestLabels(agent, account.provider, account.model)
        if labels not in self._requests and len(self._requests) >= MAX_MODELS:
            labels = RequestLabels(agent, OTHER_MODELS, OTHER_MODELS)
        counters = self._requests.setdefault(labels, _RequestCounters())
        counters.requests += 1
        counters.usage += account.usage
        if account.cost_usd is not None:
            counters.cost_usd, counters.priced = counters.cost_usd + account.cost_usd, True
        estimated, billed = sum(block.tokens for block in account.blocks), account.usage.prompt_tokens
        if estimated > 0:
            counters.estimated = estimated
            if billed > 0:
                counters.drift.observe(drift_percent(estimated, billed))

    def count_compaction(self, agent: str, outcome: CompactionOutcome, took_s: float | None = None) -> None:
        """Count a compaction by its outcome. `took_s`: duration; None: no model was called."""
        self._compactions[agent, outcome] += 1
        if took_s is not None and outcome in TIMED_OUTCOMES:
            self._durations_s.setdefault((agent, outcome), Histogram(COMPACTION_S)).observe(took_s)

    def families(self) -> list[MetricFamily]:
        """Return all metric families."""
        return [
            *self._cache_families(),
            *self._estimate_families(),
            *self._compaction_families(),
            *self._workspace_families(),
            *self._build_dmn_families(list(self._list_minds())),
            *self._build_counter_families(),
        ]

    def _cache_families(self) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="llm_requests_total",
            kind="counter",
            help_text="Model requests that were answered.",
            samples=self._samples(lambda counters: counters.requests),
        )
        yield MetricFamily(
            name="llm_cost_usd_total",
            kind="counter",
            help_text="What they cost in US dollars; absent where no price is known.",
            samples=self._samples(lambda counters: counters.cost_usd if counters.priced else None),
        )
        yield MetricFamily(
            name="llm_cache_read_tokens_total",
            kind="counter",
            help_text="Prompt tokens read from the provider's cache.",
            samples=self._samples(lambda counters: counters.usage.cache_read_tokens),
        )
        yield MetricFamily(
            name="llm_cache_creation_tokens_total",
            kind="counter",
            help_text="Prompt tokens written to the provider's cache.",
            samples=self._samples(lambda counters: counters.usage.cache_write_tokens),
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
            samples=self._samples(lambda counters: counters.estimated or None),
        )
        yield MetricFamily(
            name="llm_prompt_tokens_drift",
            kind="histogram",
            help_text="How far estimates were from the bill, in percent of the bill, whichever way.",
            samples=[
                sample
                for labels, counters in self._requests.items()
                for sample in counters.drift.samples(labels._asdict())
            ],
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
        for place, (what, help_text) in enumerate(
            (
                ("hits", "Persona files answered from memory, by workspace."),
                ("misses", "Persona files read from the disk, by workspace."),
                ("invalidations", "Changes of persona files that were noticed, by workspace."),
            )
        ):
            samples = [MetricSample({"path": path}, counts[path][place]) for path in sorted(counts)]
            yield MetricFamily(
                name=f"workspace_cache_{what}_total", kind="counter", help_text=help_text, samples=samples
            )

    def _samples(self, value: Callable[[_RequestCounters], float | None]) -> Sequence[MetricSample]:
        """Return one sample for each model for which `value` returns a number."""
        found = ((labels, value(counters)) for labels, counters in self._requests.items())
        return [MetricSample(labels._asdict(), number) for labels, number in found if number is not None]

    def _ratios(self) -> Sequence[MetricSample]:
        usage: dict[str, Usage] = {}
        for labels, counters in self._requests.items():
            usage[labels.agent] = usage.get(labels.agent, Usage()) + counters.usage
        billed = {agent: one for agent, one in usage.items() if one.prompt_tokens > 0}
        return [
            MetricSample({"agent": agent}, one.cache_read_tokens / one.prompt_tokens) for agent, one in billed.items()
        ]

    @staticmethod
    def _build_dmn_families(minds: Sequence[DmnStatus]) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="reverie_dmn_state",
            kind="gauge",
            help_text="1 for the state that the agent's Default Mode Network is in, 0 for the others.",
            samples=[
                MetricSample({"agent": one.agent, "state": mode.value}, float(one.mode == mode.value))
                for one in minds
                for mode in DmnMode
            ],
        )
        for name, help_text, value in _GAUGES:
            samples = [MetricSample({"agent": one.agent}, float(value(one))) for one in minds]
            yield MetricFamily(name=f"reverie_dmn_{name}", kind="gauge", help_text=help_text, samples=samples)

    def _build_counter_families(self) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="reverie_turns_total",
            kind="counter",
            help_text="Turns that ended, by why they were taken and how they ended.",
            samples=_build_samples(self._turns, ("agent", "cause", "outcome")),
        )
        yield MetricFamily(
            name="reverie_notifications_total",
            kind="counter",
            help_text="Notifications that were taken in, by channel, kind, and what was decided about them.",
            samples=_build_samples(self._notifications, ("channel", "kind", "fate")),
        )


_GAUGES: tuple[tuple[str, str, Callable[[DmnStatus], float]], ...] = (
    ("quiet", "1 if nothing below urgent starts anything.", lambda one: one.quiet),
    ("held", "1 if no autonomous turn may start now, for whatever reason.", lambda one: bool(one.held)),
    ("running_turns", "Turns that are under way.", lambda one: len(one.running)),
    ("waiting_turns", "Conversations that are owed a turn and wait for a lane.", lambda one: len(one.waiting)),
    ("pending", "Conversations that a tick would take up.", lambda one: len(one.wanted)),
    ("autonomous_turns_today", "Turns that nobody asked for, on this UTC day.", lambda one: one.turns_today),
    ("autonomous_cost_usd_today", "What these cost in US dollars.", lambda one: one.spent_today_usd),
)
"""Name, help text and value of each gauge."""


def _find_channel(event: Fact) -> str:
    if isinstance(event, ConnectionChanged):
        return event.channel
    at: Address | None = getattr(event, "at", None)
    return at.channel if at is not None else INNER_CHANNEL


def _build_samples(counts: Counter[tuple[str, str, str]], names: tuple[str, str, str]) -> list[MetricSample]:
    return [MetricSample(dict(zip(names, labels, strict=True)), count) for labels, count in sorted(counts.items())]
