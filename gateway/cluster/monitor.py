"""What one process says of itself and of the others that share its store: problems, states of
channels, metrics, and a report for operators.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.cluster.cluster import CHANNEL_PREFIX
from gateway.core.clock import Clock
from gateway.core.events import ChannelName, ConnectionChanged
from gateway.core.format import format_duration, format_table
from gateway.core.metrics import ChannelState, ChannelStats, HealthProblem
from gateway.core.process_files import (
    lock_file,
    process_path,
)
from gateway.store import LogEntry, Store

if TYPE_CHECKING:
    from gateway.cluster.database import DatabaseCluster
    from gateway.core.api_models import LeaseRecord, ProcessRecord, ProcessReport

logger = logging.getLogger("reverie.ops")

FREE_S: Final = 15.0
"""Seconds without a holder after which a lease is a problem: longer than any take-over."""
SILENT_S: Final = 10.0
"""Seconds without a sign of life in the database after which a process says so itself."""

UNSEEN_S: Final = 120.0
"""Seconds after its start in which the lock of a process is seen: a network file system may show a
new file a minute late."""


def find_unseen(members: "Iterable[ProcessRecord]", store: Path, now: datetime) -> str:
    """Say which processes are connected to the database, and have no lock beside the store.

    The remedy stands behind a semicolon. Empty: none. Blocks for a system call each.
    """
    found = [
        f"{one.name} on {one.host}"
        for one in members
        if one.state in ("running", "stopping")
        and (now - one.started).total_seconds() > UNSEEN_S
        and not os.path.lexists(lock_file(process_path(store, one.name)))
    ]
    if not found:
        return ""
    return (
        f"{store.parent} has no lock of {', '.join(found)}: another directory is used there; let "
        "every process see one "
        "writable directory there, e.g. a volume that all machines mount"
    )


class ProcessMonitor:
    """Used where processes share the store. A prometheus `Collector`, and a source of
    `GatewayStats`.
    """

    def __init__(
        self,
        cluster: "DatabaseCluster",
        store: Store,
        clock: Clock,
        platforms: Callable[[], Mapping[ChannelName, str]],
    ) -> None:
        """`platforms`: returns the configured channels, each with its platform."""
        self._cluster, self._store, self._clock, self._platforms = cluster, store, clock, platforms
        self.lag = 0
        """Entries of the log that this process had not published yet, as last looked at."""
        self._links = dict[ChannelName, tuple[bool, str, datetime]]()
        """State of the connections as the log tells it: up, reason, and since when."""
        self._unseen, self._unseen_since = "", clock.now()
        """Which processes do not use this directory, as last looked at, and since when that is
        so."""

    async def run(self) -> None:
        """Look now and then how far the log is ahead, and who uses the directory, until
        cancelled.
        """
        for one in await self._store.connection_states():
            self._links.setdefault(one.channel, (one.up, one.reason, one.at))
        while True:
            self.lag = max(0, await self._store.last_position() - self._store.last)
            await self._look_at_directory()
            await self._clock.sleep(5.0)

    async def _look_at_directory(self) -> None:
        members = self._cluster.describe().processes
        now, before = self._clock.now(), self._unseen
        self._unseen = await asyncio.to_thread(find_unseen, members, self._store.path, now)
        if self._unseen and not before:
            self._unseen_since = now
            logger.warning("%s", self._unseen)

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Follow the state of connections. Subscribes to ConnectionChanged."""
        for entry in entries:
            fact = entry.fact
            if isinstance(fact, ConnectionChanged):
                before = self._links.get(fact.channel)
                since = before[2] if before is not None and before[0] == fact.up else entry.at
                self._links[fact.channel] = fact.up, fact.reason, since

    def look(self) -> tuple[list[ChannelStats], list[HealthProblem]]:
        """Return the channels whose lease this process does not hold, and what keeps it from its
        work, and in part what nobody does.
        """
        report = self._cluster.describe()
        return self._list_elsewhere(report.leases), self._list_problems(report)

    def _list_elsewhere(self, leases: "Iterable[LeaseRecord]") -> list[ChannelStats]:
        found = list[ChannelStats]()
        platforms = self._platforms()
        for lease in leases:
            name = ChannelName(lease.name.removeprefix(CHANNEL_PREFIX))
            if name not in platforms or lease.name == name or self._cluster.holds(lease.name):
                continue
            up, reason, since = self._links.get(name, (None, "", self._clock.now()))
            state: ChannelState = "connecting" if up is None else "up" if up else "down"
            if not lease.holder:
                state, reason = "down", "no process holds this connection"
            found.append(
                ChannelStats(
                    channel=name,
                    platform=platforms[name],
                    state=state,
                    since=since,
                    reason=reason,
                    holder=lease.holder,
                )
            )
        return found

    def _list_problems(self, report: "ProcessReport") -> list[HealthProblem]:
        now, me = self._clock.now(), _find_me(report)
        found = [
            HealthProblem(
                what=f"lease:{one.name}",
                since=now - timedelta(seconds=one.free_s),
                reason=f"no process holds {one.name}: start one that may (its log says why it "
                "could not)",
                partial=True,
            )
            for one in report.leases
            if one.free_s is not None and one.free_s > FREE_S
        ]
        if self._unseen:
            since = self._unseen_since
            found.append(
                HealthProblem(
                    what="directory:shared", since=since, reason=self._unseen, partial=True
                )
            )
        if me is None:
            text = (
                "this process is no member of the gateway: it starts, or was removed by the others"
            )
            found.append(HealthProblem(what="process", since=now, reason=text))
        elif me.state == "starting":
            found.append(
                HealthProblem(what="process", since=me.started, reason="this process is starting")
            )
        elif me.state == "stopping":
            found.append(
                HealthProblem(
                    what="process", since=now, reason="this process stops, and takes nothing new"
                )
            )
        elif me.age_s > SILENT_S:
            text = "this process gives no sign of life in the database: the others may remove it"
            found.append(
                HealthProblem(what="process", since=now - timedelta(seconds=me.age_s), reason=text)
            )
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this process among the others."""
        report = self._cluster.describe()
        me = _find_me(report)
        rows: list[tuple[str, str, float | None]] = [
            ("processes", "Processes of the gateway that are there.", len(report.processes)),
            (
                "leases_held",
                "Leases of channels, agents and upkeep that this process holds.",
                len(me.leases) if me is not None else 0,
            ),
            (
                "leases_free",
                "Leases that no process holds.",
                sum(not one.holder for one in report.leases),
            ),
            (
                "log_lag_entries",
                "Entries of the log that this process had not read yet, each 5 seconds.",
                self.lag,
            ),
            (
                "process_draining",
                "1 while this process stops.",
                me is not None and me.state == "stopping",
            ),
            (
                "process_sign_age_seconds",
                "Time since this process gave a sign of life in the database.",
                me.age_s if me is not None else None,
            ),
        ]
        for name, help_text, value in rows:
            yield GaugeMetricFamily(f"reverie_{name}", help_text, value=value)
        taken = "How often this process has taken a lease."
        yield CounterMetricFamily("reverie_leases_taken", taken, value=self._cluster.taken_leases)


def _find_me(report: "ProcessReport") -> "ProcessRecord | None":
    return next((one for one in report.processes if one.answers), None)


_COLUMNS = ("process", "state", "last sign", "running for", "holds", "host", "address", "version")


def render_process_report(report: "ProcessReport", now: datetime) -> list[str]:
    """Render as two tables: the processes, and their leases."""
    rows = [
        (
            one.name,
            one.state,
            f"{one.age_s:.0f} s ago",
            format_duration(max(0.0, (now - one.started).total_seconds())),
            ", ".join(one.leases) or "-",
            one.host,
            one.ops or "-",
            one.version,
        )
        for one in report.processes
    ]
    leases = [
        (
            one.name,
            one.holder
            or (f"nobody for {one.free_s:.0f} s" if one.free_s is not None else "nobody"),
            f"{format_duration(max(0.0, (now - one.since).total_seconds()))} ago"
            if one.since is not None
            else "-",
        )
        for one in report.leases
    ]
    lines = format_table([_COLUMNS, *rows]) if rows else []
    return lines + (format_table([("lease", "holder", "since"), *leases]) if leases else [])
