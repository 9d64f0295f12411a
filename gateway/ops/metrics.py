"""A snapshot in Prometheus' text format. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Literal, NamedTuple

from gateway.ops.stats import GatewaySnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class MetricSample(NamedTuple):
    """One number."""

    labels: Labels
    value: float
    suffix: str = ""
    """Behind the family's name; histograms have some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric with all its labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help_text: str
    """What it is, in one line."""
    samples: Sequence[MetricSample]


class Histogram:
    """How many observations there were up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: rising, without infinity, which is always there."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count it in every bucket whose bound is at least this."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, labels: Labels) -> Iterator[MetricSample]:
        """As Prometheus wants them: cumulative, then the sum and the count."""
        names = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        for le, count in zip(names, accumulate(self._counts), strict=True):
            yield MetricSample({**labels, "le": le}, count, "_bucket")
        yield MetricSample(labels, self._sum, "_sum")
        yield MetricSample(labels, sum(self._counts), "_count")


def render_metrics(
    snapshot: GatewaySnapshot,
    now: datetime,
    version: str,
    more: Iterable[MetricFamily] = (),
    redact: Callable[[str], str] = str,
) -> str:
    """Every metric with its help, ready to be scraped. Ends in a line feed, as the format wants.

    `redact` is given each value of a label: models and servers chose some of them.
    """
    families = (*_channel_families(snapshot, now, version), *more)
    return "".join(f"{line}\n" for family in families for line in _family_lines(family, redact))


def _channel_families(snapshot: GatewaySnapshot, now: datetime, version: str) -> Iterator[MetricFamily]:
    channels = snapshot.channels
    yield _build_family("reverie_build_info", "gauge", "Which version this is.", [({"version": version}, 1)])
    yield _build_family(
        "process_start_time_seconds",
        "gauge",
        "When this process started, in seconds since 1970.",
        [({}, snapshot.started.timestamp())],
    )
    yield _build_family(
        "reverie_channel_up",
        "gauge",
        "1 if the channel is connected.",
        [({"channel": one.channel}, float(one.state == "up")) for one in channels],
    )
    yield _build_family(
        "reverie_channel_refused",
        "gauge",
        "1 if its platform refused the channel, which stays off.",
        [({"channel": one.channel}, float(one.state == "refused")) for one in channels],
    )
    yield _build_family(
        "reverie_channel_last_event_age_seconds",
        "gauge",
        "Time since the last event of the channel; absent before the first.",
        [
            ({"channel": one.channel}, max(0.0, (now - one.last_event).total_seconds()))
            for one in channels
            if one.last_event is not None
        ],
    )
    yield _build_family(
        "reverie_channel_reconnects_total",
        "counter",
        "How often the channel came up again.",
        [({"channel": one.channel}, one.reconnects) for one in channels],
    )
    yield _build_family(
        "reverie_channel_events_total",
        "counter",
        "Events of the channel that were taken in, by kind.",
        [({"channel": one.channel, "kind": kind}, count) for one in channels for kind, count in one.events.items()],
    )


def _build_family(
    name: str, kind: Literal["counter", "gauge"], told: str, samples: list[tuple[Labels, float]]
) -> MetricFamily:
    return MetricFamily(name=name, kind=kind, help_text=told, samples=[MetricSample(*sample) for sample in samples])


def _family_lines(family: MetricFamily, redact: Callable[[str], str]) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help_text}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value, suffix in family.samples:
        written = ",".join(f'{label}="{_escape_label(redact(text))}"' for label, text in labels.items())
        name = f"{family.name}{suffix}"
        yield f"{name}{{{written}}} {value:.17g}" if written else f"{name} {value:.17g}"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
