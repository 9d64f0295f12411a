"""The channels of a gateway, running or stopped, seen from outside its process."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gateway.events import ChannelName
from gateway.ops.health import STALE_S, last_sign
from gateway.ops.report import COLUMNS, age_s, clock_time, rows, span, table, told_problem
from gateway.ops.stats import Snapshot
from gateway.store import LinkState, Store, StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found."""

    running: bool
    finding: str
    """In one sentence."""
    snapshot: Snapshot | None
    """What the gateway said of itself last; None: it is not there to say anything."""
    links: tuple[LinkState, ...]
    """The last link states in the store, where there is no snapshot."""
    platforms: Mapping[ChannelName, str]

    def render_lines(self, now: datetime) -> list[str]:
        """For people. Untrusted text is in it as it came."""
        if self.snapshot is not None:
            problems = [told_problem(one) for one in self.snapshot.problems]
            return [self.finding, *problems, *table([COLUMNS, *rows(self.snapshot, now)])]
        known = [
            (
                one.channel,
                self.platforms.get(one.channel, "-"),
                f"was {_word(one)}",
                clock_time(one.at),
                one.reason or "-",
            )
            for one in self.links
        ]
        return [self.finding, *(table([("channel", "platform", "state", "since", "reason"), *known]) if known else [])]

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
                    "last_state": _word(one),
                    "since": one.at.isoformat(),
                    "reason": one.reason,
                }
                for one in self.links
            ]
        problems = [told_problem(one) for one in self.snapshot.problems] if self.snapshot is not None else []
        return json.dumps({"running": self.running, "finding": self.finding, "problems": problems, "channels": told})


async def seen(store: Path, platforms: Mapping[ChannelName, str], now: datetime) -> Seen:
    """Look at the gateway that uses this store. `platforms`: of the channels that are configured."""
    sign = last_sign(store, now)
    if sign is not None:
        running = sign.age_s <= STALE_S
        told = f"running since {clock_time(sign.snapshot.started)}"
        finding = told if running else f"no sign of life for {span(sign.age_s)}: stopped, or it hangs; then it was:"
        return Seen(running=running, finding=finding, snapshot=sign.snapshot, links=(), platforms=platforms)
    links: tuple[LinkState, ...] = ()
    finding = f"no gateway is running with the store {store}"
    try:
        async with await Store.open_readonly(store) as reader:
            links = tuple(await reader.connection_states())
    except StoreError as error:
        finding = f"{finding} ({error})"
    return Seen(running=False, finding=finding, snapshot=None, links=links, platforms=platforms)


def _word(link: LinkState) -> str:
    return "up" if link.up else "down"
