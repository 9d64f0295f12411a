"""A snapshot in Prometheus' text format. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format

What each agent's model requests did, counted in memory since this process started. No IO, no clock.

Names and outcomes are those that dashboards for this kind of agent already ask for.

What each channel is doing, counted in memory since this process started. No IO, no clock: times are handed in.

Which limits people have reached, counted since this process started. No IO, no clock.
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

ChannelState = Literal["connecting", "up", "down", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStats:
    """One account's connection."""

    channel: ChannelName
    platform: str
    state: ChannelState
    """`refused`: its platform does not want it, and it stays off."""
    since: datetime
    """When it entered this state, UTC."""
    reason: str = ""
    """Why, as far as it is known."""
    last_event: datetime | None = None
    """When something other than a change of the link last came in. None: never since the start."""
    events: Mapping[str, int] = field(default_factory=dict)
    """How many came in, by kind. Repeats that the store knew already do not count."""
    reconnects: int = 0
    """How often it came up again after it had been up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthProblem:
    """What keeps the gateway from doing its work, besides a channel that is not up."""

    what: str
    """Its name, e.g. `store`; there is one problem of a name at a time."""
    since: datetime
    reason: str
    """One sentence for people, with what to do. Untrusted: perhaps a server's words."""
    partial: bool = False
    """The gateway does its work all the same, but less of it than it is configured for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySnapshot:
    """The state of a gateway at one moment."""

    started: datetime
    channels: tuple[ChannelStats, ...]
    read: datetime | None = None
    """When the configuration was last read again and taken. None: at the start."""
    later: tuple[str, ...] = ()
    """Keys of it that say something else by now and count after a restart only."""
    broken: bool = False
    """It was written since and could not be taken."""
    problems: tuple[HealthProblem, ...] = ()
    """Those that there are, the oldest first."""

    @property
    def is_ready(self) -> bool:
        """No problem, and everything that may be connected is: a refused channel needs the operator, not time."""
        wanted = [one.state for one in self.channels if one.state != "refused"]
        whole = all(one.partial for one in self.problems)
        return bool(wanted) and all(state == "up" for state in wanted) and whole


SNAPSHOT: TypeAdapter[GatewaySnapshot] = TypeAdapter(GatewaySnapshot)
"""`dump_json` and `validate_json` are each other's inverse."""


class GatewayStats:
    """Counts. Everything happens on the event loop, so that nothing is seen half."""

    def __init__(self, platforms: Mapping[ChannelName, str], started: datetime) -> None:
        """`platforms`: every channel and what it is called."""
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
        """There is this channel from now on; or it is another one of that name, and what it did still counts."""
        new = ChannelStats(channel=channel, platform=platform, state="connecting", since=now)
        if (before := self._channels.get(channel)) is not None:
            new = replace(before, platform=platform, state="connecting", since=now, reason="")
        self._channels[channel] = new
        self._counts.setdefault(channel, Counter())
        self.on_change()

    def remove_channel(self, channel: ChannelName) -> None:
        """There is no such channel any more."""
        self._channels.pop(channel, None)
        self._counts.pop(channel, None)
        self._was_up.discard(channel)
        self.on_change()

    def record_reload(self, later: Iterable[str], now: datetime, *, broken: bool) -> None:
        """The configuration was read again. `broken`: it could not be taken; then `later` says nothing."""
        self._broken = broken
        if not broken:
            self._read, self._later = now, tuple(later)
        self.on_change()

    def report_problem(self, what: str, reason: str, since: datetime, *, partial: bool = False) -> bool:
        """There is this problem until it is `solved`. Said again, it has another reason by now. Whether it is new."""
        before = self._problems.get(what)
        now = HealthProblem(what=what, since=since if before is None else before.since, reason=reason, partial=partial)
        self._problems[what] = now
        if now != before:
            self.on_change()
        return before is None

    def clear_problem(self, what: str) -> bool:
        """There is no such problem any more. Whether there was."""
        if self._problems.pop(what, None) is None:
            return False
        self.on_change()
        return True

    def problem_names(self, prefix: str) -> list[str]:
        """The names of those that there are and that begin so."""
        return [what for what in self._problems if what.startswith(prefix)]

    def count_events(self, channel: ChannelName, events: Iterable[Notification], now: datetime) -> None:
        """These came in and were new. What comes from elsewhere is not counted."""
        if channel not in self._channels:
            return
        for event in events:
            self._counts[channel][event.kind] += 1
            if isinstance(event, ConnectionChanged):
                self._link(channel, up=event.up, reason=event.reason, now=now)
            else:
                self._set(channel, last_event=now)

    def mark_refused(self, channel: ChannelName, reason: str, now: datetime) -> None:
        """Its platform does not want it."""
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
        """As it is now; what happens later does not change it."""
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
