"""A snapshot in Prometheus' text format. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from collections.abc import Iterator
from datetime import datetime

from gateway.ops.stats import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[dict[str, str], float]


def render(snapshot: Snapshot, now: datetime, version: str) -> str:
    """Every metric with its help, ready to be scraped. Ends in a line feed, as the format wants."""
    return "".join(f"{line}\n" for line in _lines(snapshot, now, version))


def _lines(snapshot: Snapshot, now: datetime, version: str) -> Iterator[str]:
    channels = snapshot.channels
    yield from _metric("reverie_build_info", "gauge", "Which version this is.", [({"version": version}, 1)])
    yield from _metric(
        "process_start_time_seconds",
        "gauge",
        "When this process started, in seconds since 1970.",
        [({}, snapshot.started.timestamp())],
    )
    yield from _metric(
        "reverie_channel_up",
        "gauge",
        "1 if the channel is connected.",
        [({"channel": one.channel}, float(one.state == "up")) for one in channels],
    )
    yield from _metric(
        "reverie_channel_refused",
        "gauge",
        "1 if its platform refused the channel, which stays off.",
        [({"channel": one.channel}, float(one.state == "refused")) for one in channels],
    )
    yield from _metric(
        "reverie_channel_last_event_age_seconds",
        "gauge",
        "Time since the last event of the channel; absent before the first.",
        [
            ({"channel": one.channel}, max(0.0, (now - one.last_event).total_seconds()))
            for one in channels
            if one.last_event is not None
        ],
    )
    yield from _metric(
        "reverie_channel_reconnects_total",
        "counter",
        "How often the channel came up again.",
        [({"channel": one.channel}, one.reconnects) for one in channels],
    )
    yield from _metric(
        "reverie_channel_events_total",
        "counter",
        "Events of the channel that were taken in, by kind.",
        [({"channel": one.channel, "kind": kind}, count) for one in channels for kind, count in one.events.items()],
    )


def _metric(name: str, kind: str, told: str, samples: list[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{written}}} {value:.17g}" if written else f"{name} {value:.17g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
