"""What each channel is doing, counted in memory since this process started. No IO, no clock: times are handed in."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from pydantic import TypeAdapter

from gateway.events import ChannelName, ConnectionChanged, Notification

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
