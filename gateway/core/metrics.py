"""State and counters of the channels and of health problems. No IO, no clock: times are passed in.

They start with the process and live in memory. `gateway.plugins.metrics` shows them to Prometheus.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from functools import cache
from typing import Final, Literal

from pydantic import TypeAdapter

from gateway.core.events import ChannelName, ConnectionChanged
from gateway.core.frozen import frozen

OWN_KINDS: Final = frozenset({"alarm", "finished", "delivery"})
"""Kinds of notifications that come from inside the gateway, and not from a channel."""
ChannelState = Literal["connecting", "up", "down", "refused"]
"""`refused`: the platform rejects the account; it is tried again every ten minutes."""


@frozen
class ChannelStats:
    """State and counters of one account's connection."""

    channel: ChannelName
    platform: str
    state: ChannelState
    since: datetime
    """Start of this state, UTC."""
    reason: str = ""
    last_event: datetime | None = None
    """Time of the last event other than a connection change. None: none since the start."""
    events: Mapping[str, int] = field(default_factory=dict)
    """Number of events by kind. Repeats that the store already knew do not count."""
    reconnects: int = 0
    """Number of times it came up again after it had been up."""
    holder: str | None = None
    """Name of another process that holds it; empty: no process does. None: this one."""


@frozen
class HealthProblem:
    """A condition that keeps the gateway from doing its work, besides a channel that is not up."""

    what: str
    """Name, e.g. `store`; there is one problem of a name at a time."""
    since: datetime
    reason: str
    """One sentence for people, with a remedy. Untrusted: perhaps text from a server."""
    partial: bool = False
    """True if the gateway works all the same, but does less than it is configured for."""


@frozen
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
    is_shared: bool = False
    """True: other processes may hold channels in place of this one."""

    @property
    def is_ready(self) -> bool:
        """True without problems and with every channel up, except refused ones, which need the
        operator, not time.

        Channels of other processes do not count.
        """
        wanted = [
            one.state for one in self.channels if one.state != "refused" and one.holder is None
        ]
        return (
            (bool(wanted) or self.is_shared)
            and all(state == "up" for state in wanted)
            and all(one.partial for one in self.problems)
        )


@frozen
class GatewayState:
    """State of the gateway that uses a store, seen from outside."""

    kind: Literal["running", "hangs", "died", "stopped"]
    """hangs: it does not answer; died: it left a socket behind, which a clean exit removes."""
    snapshot: GatewaySnapshot | None = None
    """Not None if it is running."""
    reason: str = ""
    """What was seen of one that hangs."""

    @property
    def is_alive(self) -> bool:
        """True if a process may be using the store."""
        return self.kind in ("running", "hangs")


Elsewhere = tuple[Sequence[ChannelStats], Sequence[HealthProblem]]


@cache
def snapshot_adapter() -> TypeAdapter[GatewaySnapshot]:
    """Return what writes and reads snapshots: its `dump_json` and `validate_json` are each other's
    inverse.
    """
    return TypeAdapter(GatewaySnapshot)


class GatewayStats:
    """Counters of channels and problems. Used on the event loop only, so that no reader sees a
    partial change.
    """

    def __init__(
        self,
        platforms: Mapping[ChannelName, str],
        started: datetime,
    ) -> None:
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
        self.events = Counter[tuple[ChannelName, str, str]]()
        """Number of notifications that were taken in, by channel, kind and what was decided about
        them (`gateway.stream.supervisor.count_events`)."""
        self.last_events = dict[ChannelName, datetime]()
        """Time of the last event of each channel, other than a connection change."""
        self.listeners = list[Callable[[], None]]()
        self.look_elsewhere: Callable[[], Elsewhere] | None = None
        """Returns the channels that this process does not hold, and its problems among the other
        processes. None: there are none."""

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    def add_channel(self, channel: ChannelName, platform: str, now: datetime) -> None:
        """Add a channel, or replace the one of that name."""
        new = ChannelStats(channel=channel, platform=platform, state="connecting", since=now)
        if (before := self._channels.get(channel)) is not None:
            new = replace(before, platform=platform, state="connecting", since=now, reason="")
        self._channels[channel] = new
        self._tell()

    def remove_channel(self, channel: ChannelName) -> None:
        """Remove a channel."""
        self._channels.pop(channel, None)
        self._was_up.discard(channel)
        self._tell()

    def record_reload(self, later: Iterable[str], now: datetime, *, broken: bool) -> None:
        """Record a reload. `broken`: it could not be applied; then `later` has no meaning."""
        self._broken = broken
        if not broken:
            self._read, self._later = now, tuple(later)
        self._tell()

    def report_problem(
        self, what: str, reason: str, since: datetime, *, partial: bool = False
    ) -> bool:
        """Record a problem until `clear_problem`, or its new reason. Return whether it is new."""
        before = self._problems.get(what)
        now = HealthProblem(
            what=what,
            since=since if before is None else before.since,
            reason=reason,
            partial=partial,
        )
        self._problems[what] = now
        if now != before:
            self._tell()
        return before is None

    def clear_problem(self, what: str) -> bool:
        """Remove a problem. Return whether there was one."""
        if self._problems.pop(what, None) is None:
            return False
        self._tell()
        return True

    def problem_names(self, prefixes: tuple[str, ...]) -> list[str]:
        """Return the names of present problems that begin with one of these."""
        return [what for what in self._problems if what.startswith(prefixes)]

    def record_link(self, link: ConnectionChanged, now: datetime) -> None:
        """Record that a channel came up or went down. One that is not known is left out."""
        if (before := self._channels.get(link.channel)) is None:
            return
        is_again = link.up and before.state != "up" and link.channel in self._was_up
        if link.up:
            self._was_up.add(link.channel)
        counted = replace(before, reconnects=before.reconnects + is_again)
        self._change(counted, "up" if link.up else "down", link.reason, now)

    def mark_refused(self, channel: ChannelName, reason: str, now: datetime) -> None:
        """Record that the platform rejected the account."""
        self._change(self._channels[channel], "refused", reason, now)

    def _change(
        self, before: ChannelStats, state: ChannelState, reason: str, now: datetime
    ) -> None:
        since = before.since if before.state == state else now
        self._channels[before.channel] = replace(before, state=state, reason=reason, since=since)
        self._tell()

    def snapshot(self) -> GatewaySnapshot:
        """Return the present state; later changes do not affect it."""
        counts = defaultdict[ChannelName, Counter[str]](Counter)
        for (name, kind, _), count in sorted(self.events.items()):
            if kind not in OWN_KINDS:
                counts[name][kind] += count
        channels = tuple(
            replace(one, last_event=self.last_events.get(name), events=dict(counts[name]))
            for name, one in self._channels.items()
        )
        problems = tuple(self._problems.values())
        if self.look_elsewhere is not None:
            elsewhere, more = self.look_elsewhere()
            channels += tuple(one for one in elsewhere if one.channel not in self._channels)
            problems += tuple(more)
        return GatewaySnapshot(
            started=self._started,
            channels=channels,
            read=self._read,
            later=self._later,
            broken=self._broken,
            problems=problems,
            is_shared=self.look_elsewhere is not None,
        )
