"""The channels of a gateway, running or stopped, seen from outside its process."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gateway.events import ChannelName
from gateway.ops.health import STALE_HEARTBEAT_S, read_heartbeat
from gateway.ops.report import (
    CHANNEL_COLUMNS,
    age_s,
    channel_rows,
    describe_problem,
    format_duration,
    format_table,
    format_time,
)
from gateway.ops.stats import GatewaySnapshot
from gateway.store import ConnectionState, Store, StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """What was found."""

    running: bool
    finding: str
    """In one sentence."""
    snapshot: GatewaySnapshot | None
    """What the gateway said of itself last; None: it is not there to say anything."""
    links: tuple[ConnectionState, ...]
    """The last link states in the store, where there is no snapshot."""
    platforms: Mapping[ChannelName, str]

    def render_lines(self, now: datetime) -> list[str]:
        """For people. Untrusted text is in it as it came."""
        if self.snapshot is not None:
            problems = [describe_problem(one) for one in self.snapshot.problems]
            return [self.finding, *problems, *format_table([CHANNEL_COLUMNS, *channel_rows(self.snapshot, now)])]
        known = [
            (
                one.channel,
                self.platforms.get(one.channel, "-"),
                f"was {_format_link_state(one)}",
                format_time(one.at),
                one.reason or "-",
            )
            for one in self.links
        ]
        return [
            self.finding,
            *(format_table([("channel", "platform", "state", "since", "reason"), *known]) if known else []),
        ]

    def to_json(self, now: datetime) -> str:
        """For programs: `running`, `finding`, `problems`, `channels`. ASCII, one line. Absent there: null."""
        told: list[dict[str, object]]
        if self.snapshot is not None:
            told = [
                {
                    "channel": one.channel,
                    "platform": one.platform,
                    "state": one.state,
                    "since": one.since.isoformat(),
                    "last_event_age_s": None if one.last_event is None else age_s(one.last_event, now),
                    "reconnects": one.reconnects,
                    "events": dict(one.events),
                    "reason": one.reason,
                }
                for one in self.snapshot.channels
            ]
        else:
            told = [
                {
                    "channel": one.channel,
                    "platform": self.platforms.get(one.channel),
                    "last_state": _format_link_state(one),
                    "since": one.at.isoformat(),
                    "reason": one.reason,
                }
                for one in self.links
            ]
        problems = [describe_problem(one) for one in self.snapshot.problems] if self.snapshot is not None else []
        return json.dumps({"running": self.running, "finding": self.finding, "problems": problems, "channels": told})


async def read_gateway_report(store: Path, platforms: Mapping[ChannelName, str], now: datetime) -> GatewayReport:
    """Look at the gateway that uses this store. `platforms`: of the channels that are configured."""
    sign = read_heartbeat(store, now)
    if sign is not None:
        running = sign.age_s <= STALE_HEARTBEAT_S
        told = f"running since {format_time(sign.snapshot.started)}"
        finding = (
            told
            if running
            else f"no sign of life for {format_duration(sign.age_s)}: stopped, or it hangs; then it was:"
        )
        return GatewayReport(running=running, finding=finding, snapshot=sign.snapshot, links=(), platforms=platforms)
    links: tuple[ConnectionState, ...] = ()
    finding = f"no gateway is running with the store {store}"
    try:
        async with await Store.open_readonly(store) as reader:
            links = tuple(await reader.connection_states())
    except StoreError as error:
        finding = f"{finding} ({error})"
    return GatewayReport(running=False, finding=finding, snapshot=None, links=links, platforms=platforms)


def _format_link_state(link: ConnectionState) -> str:
    return "up" if link.up else "down"
