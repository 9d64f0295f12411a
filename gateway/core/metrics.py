"""Counters of this process and their export as Prometheus text. No IO, no clock: times are passed in.

Counts start with the process and live in memory: `GatewayStats` of channels and health problems, `LimitStats` of
reached limits; `render_metrics` writes a snapshot and further families in the text format
(https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from gateway.core.events import ChannelName, ConnectionChanged, Notification
from gateway.core.redaction import Redactor

ChannelState = Literal["connecting", "up", "down", "refused"]
"""`refused`: the platform rejected the account, and it stays off."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStats:
    """State and counters of one account's connection."""

    channel: ChannelName
    platform: str
    state: ChannelState
    """See `ChannelState`."""
    since: datetime
    """Start of this state, UTC."""
    reason: str = ""
    """Reason for the state, as far as it is known."""
    last_event: datetime | None = None
    """Time of the last event other than a connection change. None: none since the start."""
    events: Mapping[str, int] = field(default_factory=dict)
    """Number of events by kind. Repeats that the store already knew do not count."""
    reconnects: int = 0
    """Number of times it came up again after it had been up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthProblem:
    """A condition that keeps the gateway from doing its work, besides a channel that is not up."""

    what: str
    """Name, e.g. `store`; there is one problem of a name at a time."""
    since: datetime
    reason: str
    """One sentence for people, with a remedy. Untrusted: perhaps text from a server."""
    partial: bool = False
    """True if the gateway works all the same, but does less than it is configured for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySnapshot:
    """State of a gateway at one moment."""

    started: datetime
    channels: tuple[ChannelStats, ...]
    read: datetime | None = None
    """Time of the last successful reload of the configuration. None: none since the start."""
    later: tuple[str, ...] = ()
    """Configuration keys that have changed and take effect after a restart only."""
    broken: bool = False
    """True if the configuration files have changed since and could not be applied."""
    problems: tuple[HealthProblem, ...] = ()
    """Present problems, the oldest first."""

    @property
    def is_ready(self) -> bool:
        """True without problems and with every channel up, except refused ones, which need the operator, not time."""
        wanted = [one.state for one in self.channels if one.state != "refused"]
        is_working = all(one.partial for one in self.problems)
        return bool(wanted) and all(state == "up" for state in wanted) and is_working


SNAPSHOT: TypeAdapter[GatewaySnapshot] = TypeAdapter(GatewaySnapshot)
"""`dump_json` and `validate_json` are each other's inverse."""


class GatewayStats:
    """Counters of channels and problems. Used on the event loop only, so that no reader sees a partial change."""

    def __init__(self, platforms: Mapping[ChannelName, str], started: datetime) -> None:
        """`platforms`: every channel and the name of its platform."""
        self._started = started
        self._read: datetime | None = None
        self._later: tuple[str, ...] = ()
        self._broken = False
        self._channels = {
            name: ChannelStats(channel=name, platform=platform, state="connecting", since=started)
            for name, platform in platforms.items()
        }
        self._was_up: set[ChannelName] = set()
        self._problems: dict[str, HealthProblem] = {}
        self._counts: dict[ChannelName, Counter[str]] = {name: Counter() for name in platforms}
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of a state."""

    def add_channel(self, channel: ChannelName, platform: str, now: datetime) -> None:
        """Add a channel, or replace the one of that name and keep its counts."""
        new = ChannelStats(channel=channel, platform=platform, state="connecting", since=now)
        if (before := self._channels.get(channel)) is not None:
            new = replace(before, platform=platform, state="connecting", since=now, reason="")
        self._channels[channel] = new
        self._counts.setdefault(channel, Counter())
        self.on_change()

    def remove_channel(self, channel: ChannelName) -> None:
        """Remove a channel with its counts."""
        self._channels.pop(channel, None)
        self._counts.pop(channel, None)
        self._was_up.discard(channel)
        self.on_change()

    def record_reload(self, later: Iterable[str], now: datetime, *, broken: bool) -> None:
        """Record a reload. `broken`: it could not be applied; then `later` has no meaning."""
        self._broken = broken
        if not broken:
            self._read, self._later = now, tuple(later)
        self.on_change()

    def report_problem(self, what: str, reason: str, since: datetime, *, partial: bool = False) -> bool:
        """Record a problem until `clear_problem`, or its new reason. Return whether it is new."""
        before = self._problems.get(what)
        now = HealthProblem(what=what, since=since if before is None else before.since, reason=reason, partial=partial)
        self._problems[what] = now
        if now != before:
            self.on_change()
        return before is None

    def clear_problem(self, what: str) -> bool:
        """Remove a problem. Return whether there was one."""
        if self._problems.pop(what, None) is None:
            return False
        self.on_change()
        return True

    def problem_names(self, prefix: str) -> list[str]:
        """Return the names of present problems that begin with `prefix`."""
        return [what for what in self._problems if what.startswith(prefix)]

    def count_events(self, channel: ChannelName, events: Iterable[Notification], now: datetime) -> None:
        """Count new events of a channel. Events of unknown channels are not counted."""
        if channel not in self._channels:
            return
        for event in events:
            self._counts[channel][event.kind] += 1
            if isinstance(event, ConnectionChanged):
                self._link(channel, up=event.up, reason=event.reason, now=now)
            else:
                self._set(channel, last_event=now)

    def mark_refused(self, channel: ChannelName, reason: str, now: datetime) -> None:
        """Record that the platform rejected the account."""
        self._change(channel, "refused", reason, now)

    def _link(self, channel: ChannelName, *, up: bool, reason: str, now: datetime) -> None:
        before = self._channels[channel]
        if up and before.state != "up":
            if channel in self._was_up:
                self._set(channel, reconnects=before.reconnects + 1)
            self._was_up.add(channel)
        self._change(channel, "up" if up else "down", reason, now)

    def _change(self, channel: ChannelName, state: ChannelState, reason: str, now: datetime) -> None:
        before = self._channels[channel]
        self._set(channel, state=state, reason=reason, since=before.since if before.state == state else now)
        self.on_change()

    def _set(self, channel: ChannelName, **news: object) -> None:
        self._channels[channel] = replace(self._channels[channel], **news)  # type: ignore[arg-type]

    def snapshot(self) -> GatewaySnapshot:
        """Return the present state; later changes do not affect it."""
        channels = tuple(
            replace(one, events=dict(sorted(self._counts[name].items()))) for name, one in self._channels.items()
        )
        return GatewaySnapshot(
            started=self._started,
            channels=channels,
            read=self._read,
            later=self._later,
            broken=self._broken,
            problems=tuple(self._problems.values()),
        )


class MetricSample(NamedTuple):
    """One value of a metric."""

    labels: Labels
    value: float
    suffix: str = ""
    """Suffix of the family's name; histograms have some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric with all its labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help_text: str
    """Description in one line."""
    samples: Sequence[MetricSample]


class Histogram:
    """Number of observations up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: ascending, without infinity, which is always present."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count the value in every bucket whose bound is at least this."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, labels: Labels) -> Iterator[MetricSample]:
        """Yield the samples in Prometheus' form: cumulative, then the sum and the count."""
        names = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        for le, count in zip(names, accumulate(self._counts), strict=True):
            yield MetricSample({**labels, "le": le}, count, "_bucket")
        yield MetricSample(labels, self._sum, "_sum")
        yield MetricSample(labels, sum(self._counts), "_count")


def render_metrics(
    snapshot: GatewaySnapshot,
    now: datetime,
    version: str,
    redactor: Redactor,
    more: Iterable[MetricFamily] = (),
) -> str:
    """Return every metric with its help text, ready to be scraped. Ends in a line feed, as the format requires.

    `redactor` is applied to each label value: models and servers chose some of them.
    """
    families = (*_channel_families(snapshot, now, version), *more)
    return "".join(f"{line}\n" for family in families for line in _family_lines(family, redactor))


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
    name: str, kind: Literal["counter", "gauge"], help_text: str, samples: list[tuple[Labels, float]]
) -> MetricFamily:
    return MetricFamily(
        name=name, kind=kind, help_text=help_text, samples=[MetricSample(*sample) for sample in samples]
    )


def _family_lines(family: MetricFamily, redactor: Redactor) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help_text}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value, suffix in family.samples:
        label_text = ",".join(f'{label}="{_escape_label(redactor(text))}"' for label, text in labels.items())
        name = f"{family.name}{suffix}"
        yield f"{name}{{{label_text}}} {value:.17g}" if label_text else f"{name} {value:.17g}"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class LimitStats:
    """Counters of reached limits. Used on the event loop only, so that no reader sees a partial change."""

    def __init__(self) -> None:
        self._limited = Counter[tuple[str, str]]()
        self._notices = 0

    def count_limited(self, limit: str, whose: str) -> None:
        """Count a message that was not answered because of this limit."""
        self._limited[limit, whose] += 1

    def count_notice(self) -> None:
        """Count a notice about a reached limit."""
        self._notices += 1

    def families(self) -> list[MetricFamily]:
        """Return all counters as metric families."""
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
