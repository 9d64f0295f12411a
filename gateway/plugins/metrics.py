"""Metrics of a gateway for Prometheus, `/metrics`: of the process, its channels, its agents and
their models.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.signals import DmnMode
from gateway import __version__
from gateway.config.models import OpsConfig
from gateway.core.addresses import is_loopback_host
from gateway.core.clock import Clock
from gateway.core.control_messages import DmnStatus
from gateway.core.events import RequestUsage, Usage
from gateway.core.facts import TurnRecord
from gateway.core.format import age_s
from gateway.core.frozen import frozen
from gateway.core.metrics import ChannelStats, GatewayStats
from gateway.core.redaction import Redactor
from gateway.plugin import Plugin, PluginContext
from gateway.plugins.http import Http, HttpRoute
from gateway.store import LogEntry

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from gateway.commands.services import Services

disable_created_metrics()  # type: ignore[no-untyped-call] # a further series for each counter and histogram

DRIFT_PERCENT = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
"""Histogram bounds. An offline tokenizer is 5 to 15 % off and wrong beyond 20 %, so the bounds are
close there."""
MAX_MODELS = 100
"""Models with labels of their own. A server that invents model names must not fill the memory, here
or in Prometheus.
"""
OTHER_MODELS = "other"
MODEL_LABELS: Final = ("agent", "provider", "model")
WorkspaceCounts = Mapping[str, tuple[int, int, int]]
"""Hits, misses and invalidations, by directory."""


@frozen(kw_only=False)
class RedactedMetrics:
    """Metrics of several collectors with redacted label values: models and servers chose some of
    them.
    """

    sources: tuple[Collector, ...]
    redactor: Redactor

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        for source in self.sources:
            for metric in source.collect():
                metric.samples = [
                    sample._replace(
                        labels={name: self.redactor(value) for name, value in sample.labels.items()}
                    )
                    for sample in metric.samples
                ]
                yield metric


MetricRow = tuple[
    type[GaugeMetricFamily | CounterMetricFamily],
    str,
    str,
    Sequence[str],
    Callable[[Any], Iterable[tuple[Sequence[str], float]]],
]
"""A metric that is asked for at each scrape: type, name, help text, labels, and a function of its
source that returns the samples, each with the values of the labels."""


def collect_rows(rows: Iterable[MetricRow], source: object) -> Iterator[Metric]:
    """Yield the metrics of a table."""
    for kind, name, help_text, labels, read in rows:
        family = kind(name, help_text, labels=labels)
        for values, number in read(source):
            family.add_metric(values, number)
        yield family


def _of_channels(
    value: Callable[[ChannelStats], float | None],
) -> Callable[["ChannelMetrics"], Any]:
    return lambda own: [
        ([one.channel], number)
        for one in own.stats.snapshot().channels
        if (number := value(one)) is not None
    ]


_CHANNEL_ROWS: Final[tuple[MetricRow, ...]] = (
    (
        GaugeMetricFamily,
        "reverie_build_info",
        "Which version this is.",
        ["version"],
        lambda own: [([own.version], 1)],
    ),
    (
        GaugeMetricFamily,
        "reverie_channel_up",
        "1 if the channel is connected.",
        ["channel"],
        _of_channels(lambda one: one.state == "up"),
    ),
    (
        GaugeMetricFamily,
        "reverie_channel_refused",
        "1 if its platform refuses the channel, which tries again every ten minutes.",
        ["channel"],
        _of_channels(lambda one: one.state == "refused"),
    ),
    (
        GaugeMetricFamily,
        "reverie_channel_last_event_age_seconds",
        "Time since the last event of the channel; absent before the first.",
        ["channel"],
        lambda own: [
            ([one.channel], age_s(one.last_event, own.clock.now()))
            for one in own.stats.snapshot().channels
            if one.last_event is not None
        ],
    ),
    (
        CounterMetricFamily,
        "reverie_channel_reconnects",
        "How often the channel came up again.",
        ["channel"],
        _of_channels(lambda one: one.reconnects),
    ),
    (
        CounterMetricFamily,
        "reverie_channel_events",
        "Events of the channel that were taken in, by kind.",
        ["channel", "kind"],
        lambda own: [
            ([one.channel, kind], count)
            for one in own.stats.snapshot().channels
            for kind, count in one.events.items()
        ],
    ),
    (
        CounterMetricFamily,
        "reverie_notifications",
        "Notifications that were taken in, by channel, kind, and what was decided about them.",
        ["channel", "kind", "fate"],
        lambda own: own.stats.events.items(),
    ),
)


@frozen(kw_only=False)
class ChannelMetrics:
    """Collector of the gateway's version and its channels."""

    stats: GatewayStats
    clock: Clock
    version: str

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        return collect_rows(_CHANNEL_ROWS, self)


class AgentStats:
    """Counters of turns and model requests, and gauges of the DMN."""

    def __init__(
        self,
        workspace: Callable[[], WorkspaceCounts] = dict,
        minds: Callable[[], Sequence[DmnStatus]] = tuple,
    ) -> None:
        """`workspace`, and `minds` for the DMN status of each agent, are called at each scrape."""
        self.metrics = CollectorRegistry()
        self.list_minds, self.workspace = minds, workspace
        self.usage = dict[str, Usage]()
        """Tokens since the start, by agent."""
        self.turns = Counter[tuple[str, str, str]]()
        """Turns by the labels of their metric; so the others."""
        self.requests = Counter[tuple[str, str, str]]()
        self.cost_usd = dict[tuple[str, str, str], float]()
        self.read_tokens = Counter[tuple[str, str, str]]()
        self.written_tokens = Counter[tuple[str, str, str]]()
        self.estimated = dict[tuple[str, str, str], int]()
        self._drift = Histogram(
            "llm_prompt_tokens_drift",
            "How far estimates were from the bill, in percent of the bill, whichever way.",
            MODEL_LABELS,
            buckets=DRIFT_PERCENT,
            registry=self.metrics,
        )
        self.metrics.register(self)

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Count the turns among the new entries, and their requests."""
        for entry in entries:
            if isinstance(entry.fact, TurnRecord):
                if entry.fact.within is None:  # a turn within another one is counted with it
                    self.turns[entry.fact.agent, entry.fact.cause, entry.fact.outcome] += 1
                for account in entry.fact.accounts:
                    self.count_request(entry.fact.agent, account)

    def count_request(self, agent: str, account: RequestUsage) -> None:
        """Count a model request that was answered, with its usage and cost."""
        labels = (agent, account.provider, account.model)
        if labels not in self.requests and len(self.requests) >= MAX_MODELS:
            labels = (agent, OTHER_MODELS, OTHER_MODELS)
        self.usage[agent] = self.usage.get(agent, Usage()) + account.usage
        self.requests[labels] += 1
        self.read_tokens[labels] += account.usage.cache_read_tokens
        self.written_tokens[labels] += account.usage.cache_write_tokens
        if account.cost_usd is not None:
            self.cost_usd[labels] = self.cost_usd.get(labels, 0.0) + account.cost_usd
        estimated, billed = (
            sum(block.tokens for block in account.blocks),
            account.usage.prompt_tokens,
        )
        if estimated > 0:
            self.estimated[labels] = estimated
            if billed > 0:
                self._drift.labels(*labels).observe(100.0 * abs(estimated - billed) / billed)

    def collect(self) -> Iterator[Metric]:
        """Yield what is asked at each scrape."""
        return collect_rows(_AGENT_ROWS, self)


def _of_workspaces(place: int) -> Callable[[AgentStats], Any]:
    return lambda own: [([path], counts[place]) for path, counts in sorted(own.workspace().items())]


def _of_minds(value: Callable[[DmnStatus], float]) -> Callable[[AgentStats], Any]:
    return lambda own: [([one.agent], value(one)) for one in own.list_minds()]


_DMN_GAUGES: Final[tuple[tuple[str, str, Callable[[DmnStatus], float]], ...]] = (
    ("quiet", "1 if nothing below urgent starts anything.", lambda one: one.quiet),
    (
        "held",
        "1 if no autonomous turn may start now, for whatever reason.",
        lambda one: bool(one.held),
    ),
    ("running_turns", "Turns that are under way.", lambda one: len(one.running)),
    (
        "waiting_turns",
        "Conversations that are owed a turn and wait for a lane.",
        lambda one: len(one.waiting),
    ),
    ("pending", "Conversations that a tick would take up.", lambda one: len(one.wanted)),
    (
        "autonomous_turns_today",
        "Turns that nobody asked for, on this UTC day.",
        lambda one: one.turns_today,
    ),
    (
        "autonomous_cost_usd_today",
        "What these cost in US dollars.",
        lambda one: one.spent_today_usd,
    ),
)
_WORKSPACE_COUNTERS: Final = (
    ("hits", "Persona files answered from memory, by workspace."),
    ("misses", "Persona files read from the disk, by workspace."),
    ("invalidations", "Changes of persona files that were noticed, by workspace."),
)


_AGENT_ROWS: Final[tuple[MetricRow, ...]] = (
    (
        CounterMetricFamily,
        "llm_requests",
        "Model requests that were answered.",
        MODEL_LABELS,
        lambda own: own.requests.items(),
    ),
    (
        CounterMetricFamily,
        "llm_cost_usd",
        "What they cost in US dollars; absent where no price is known.",
        MODEL_LABELS,
        lambda own: own.cost_usd.items(),
    ),
    (
        CounterMetricFamily,
        "llm_cache_read_tokens",
        "Prompt tokens read from the provider's cache.",
        MODEL_LABELS,
        lambda own: own.read_tokens.items(),
    ),
    (
        CounterMetricFamily,
        "llm_cache_creation_tokens",
        "Prompt tokens written to the provider's cache.",
        MODEL_LABELS,
        lambda own: own.written_tokens.items(),
    ),
    (
        GaugeMetricFamily,
        "llm_prompt_tokens_estimated",
        "Tokens that the newest request's prompt was thought to have before it was sent.",
        MODEL_LABELS,
        lambda own: own.estimated.items(),
    ),
    (
        CounterMetricFamily,
        "reverie_turns",
        "Turns that ended, by why they were taken and how they ended.",
        ["agent", "cause", "outcome"],
        lambda own: own.turns.items(),
    ),
    (
        GaugeMetricFamily,
        "llm_cache_hit_ratio",
        (
            "Share of all prompt tokens since the start that was read from the cache; absent "
            "before the first."
        ),
        ["agent"],
        lambda own: [
            ([agent], usage.cache_read_tokens / usage.prompt_tokens)
            for agent, usage in own.usage.items()
            if usage.prompt_tokens > 0
        ],
    ),
    *(
        (CounterMetricFamily, f"workspace_cache_{what}", text, ["path"], _of_workspaces(place))
        for place, (what, text) in enumerate(_WORKSPACE_COUNTERS)
    ),
    (
        GaugeMetricFamily,
        "reverie_dmn_state",
        "1 for the state that the agent's Default Mode Network is in, 0 for the others.",
        ["agent", "state"],
        lambda own: [
            ([one.agent, mode.value], one.mode == mode.value)
            for one in own.list_minds()
            for mode in DmnMode
        ],
    ),
    *(
        (GaugeMetricFamily, f"reverie_dmn_{name}", text, ["agent"], _of_minds(value))
        for name, text, value in _DMN_GAUGES
    ),
)


class Metrics(Plugin):
    """Answers `/metrics`; with the operator's token only where others than this machine can reach
    it.
    """

    name = "metrics"
    summary = "metrics for Prometheus: /metrics"
    requires = ("http",)

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._services: Services | None = None
        self._agents = AgentStats(self._count_workspaces, self._list_minds)
        context.gateway.store.subscribe(self._agents.on_appended, TurnRecord, own=True)
        context.get(Http).add(self._list_routes)

    def on_built(self, services: "Services") -> None:
        self._services = services
        services.models.keep_warm.listeners.append(self._agents.count_request)

    def _count_workspaces(self) -> WorkspaceCounts:
        assert self._services is not None
        return self._services.models.workspaces.counts.by_path()

    def _list_minds(self) -> Sequence[DmnStatus]:
        assert self._services is not None
        return self._services.agents.dmn_status()

    def _list_routes(self) -> list[HttpRoute]:
        gateway = self.context.gateway
        channels = ChannelMetrics(gateway.stats, gateway.clock, __version__)
        own = ProcessCollector(registry=None), channels, self._agents.metrics
        others = self._services.collectors if self._services is not None else ()
        metrics = RedactedMetrics((*own, *others), gateway.redactor)
        return list_routes(metrics, gateway.live.settings.ops)


def list_routes(metrics: RedactedMetrics, ops: OpsConfig) -> list[HttpRoute]:
    """Return the path of these metrics."""
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - most gateways are never asked
    from starlette.responses import Response  # noqa: PLC0415 - as above

    async def answer(request: "Request") -> "Response":
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics), headers={"Content-Type": content_type})

    return [HttpRoute("/metrics", answer, "page" if is_loopback_host(ops.host) else "read")]
