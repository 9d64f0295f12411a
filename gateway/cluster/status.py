"""The processes of a gateway, as operators are told of them."""

from collections.abc import Sequence
from datetime import datetime

from gateway.cluster.cluster import Cluster, LeaseStatus, Member
from gateway.core import api_models as models
from gateway.core.format import format_duration, format_table

_COLUMNS = ("process", "state", "last sign", "running for", "holds", "host", "address", "version")
_LEASE_COLUMNS = ("lease", "holder", "since")


def build_process_report(
    described: tuple[Sequence[Member], Sequence[LeaseStatus]],
    *,
    me: int = 0,
    lag: int | None = None,
) -> models.ProcessReport:
    """Build the report from what `Cluster.describe` returns.

    `me`: number of this process. `lag`: see there.
    """
    members, leases = described
    return models.ProcessReport(
        processes=tuple(
            models.ProcessRecord(
                number=one.number,
                name=one.name,
                host=one.host,
                ops=one.ops,
                pid=one.pid,
                version=one.version,
                started=one.started,
                age_s=round(one.age_s, 1),
                state=_find_state(one),
                leases=tuple(sorted(one.leases)),
                answers=one.number == me,
            )
            for one in members
        ),
        leases=tuple(
            models.LeaseRecord(name=one.name, holder=one.holder, since=one.since, free_s=one.free_s)
            for one in leases
        ),
        log_lag=lag,
    )


def _find_state(one: Member) -> models.ProcessState:
    if not one.has_session:
        return "cut off"
    if not one.is_ready:
        return "starting"
    return "stopping" if one.is_draining else "running"


def render_process_report(report: models.ProcessReport, now: datetime) -> list[str]:
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
    return lines + (format_table([_LEASE_COLUMNS, *leases]) if leases else [])


def describe_cluster(cluster: Cluster, lag: int | None = None) -> models.ProcessReport | None:
    """Return what this process knows of all. None: it is the only one, and shares nothing."""
    if not cluster.is_shared:
        return None
    return build_process_report(cluster.describe(), me=cluster.number, lag=lag)
