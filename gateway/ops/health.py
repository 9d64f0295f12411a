"""Is the gateway alive and connected, seen from outside its process.

The running gateway writes its channels' states to a file beside its store every few seconds. Whoever asks
looks at how long ago that was, and at the last link state of each channel in the store: no port is needed,
and a process that hangs is found out.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gateway.clock import Clock
from gateway.events import ChannelName
from gateway.ops.report import describe_problem
from gateway.ops.stats import SNAPSHOT, GatewaySnapshot, GatewayStats
from gateway.store import Store, StoreError

HEARTBEAT_INTERVAL_S = 5.0
BLOCK_BYTES = 4096
"""The sign is filled up with blanks, a block or two of a disk, so that the next one has room in its place."""
STALE_HEARTBEAT_S = 30.0
"""Six missed beats: longer than any pause of a healthy process, shorter than people's patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """What was found."""

    ok: bool
    findings: tuple[str, ...]
    """One line each: the bad ones if not ok, and in any case what works in part only."""


def heartbeat_file(store: Path) -> Path:
    """The file whose time of change is the last sign of life; a `GatewaySnapshot` as JSON."""
    return store.with_name(f"{store.name}.alive")


async def run_heartbeat(
    store: Path, clock: Clock, stats: GatewayStats, news: asyncio.Event, look: Callable[[], None]
) -> None:
    """Give signs of life until cancelled; then none is left to be mistaken for one.

    `news`: set when a channel's state has changed, which is then told at once. `look`: called before each sign.
    """
    file = heartbeat_file(store)
    try:
        while True:
            look()
            news.clear()
            with contextlib.suppress(OSError):  # read-only: then the sign is missing, and that is seen
                _write_heartbeat(file, SNAPSHOT.dump_json(stats.snapshot()), clock.now().timestamp())
            waits = [asyncio.ensure_future(clock.sleep(HEARTBEAT_INTERVAL_S)), asyncio.ensure_future(news.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
    finally:
        with contextlib.suppress(OSError):  # the same
            file.unlink(missing_ok=True)


def _write_heartbeat(file: Path, text: bytes, now_s: float) -> None:
    """Whole or not at all for whoever reads it meanwhile; on a full disk over the last one, which needs no room."""
    text = text.ljust((len(text) // BLOCK_BYTES + 2) * BLOCK_BYTES)
    fresh = file.with_name(f"{file.name}.new")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as opened:
            opened.write(text)
        os.utime(fresh, (now_s, now_s))
        fresh.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        if len(text) > file.stat().st_size:  # half of it would be no sign at all
            raise
        with file.open("r+b", buffering=0) as opened:
            opened.write(text)
            opened.truncate(len(text))
        os.utime(file, (now_s, now_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The last sign of life."""

    snapshot: GatewaySnapshot
    age_s: float


def read_heartbeat(store: Path, now: datetime) -> Heartbeat | None:
    """What the gateway that uses this store said last; None: none is running."""
    file = heartbeat_file(store)
    try:
        return Heartbeat(
            snapshot=SNAPSHOT.validate_json(file.read_bytes()), age_s=max(0.0, now.timestamp() - file.stat().st_mtime)
        )
    except (OSError, ValueError):
        return None


async def check_health(store: Path, channels: Collection[str], now: datetime) -> HealthReport:
    """Ask about the gateway that uses this store and is configured with these channels."""
    sign = read_heartbeat(store, now)
    if sign is None:
        return HealthReport(ok=False, findings=(f"no gateway is running with the store {store}",))
    if sign.age_s > STALE_HEARTBEAT_S:
        why = f"the gateway has stopped, hangs, or cannot write beside {store}"
        return HealthReport(ok=False, findings=(f"no sign of life for {sign.age_s:.0f} s: {why}",))
    try:
        async with await Store.open_readonly(store) as reader:
            links = {
                link.channel: link for link in await reader.connection_states() if link.at >= sign.snapshot.started
            }
    except StoreError as error:
        return HealthReport(ok=False, findings=(str(error),))
    bad = [describe_problem(one) for one in sign.snapshot.problems if not one.partial]
    less = [describe_problem(one) for one in sign.snapshot.problems if one.partial]
    for name in channels:
        link = links.get(ChannelName(name))
        if link is None:
            bad.append(f"{name} has not connected yet")
        elif not link.up:
            bad.append(f"{name} is down: {link.reason}")
    return HealthReport(ok=not bad, findings=(*(bad or [f"{name} is up" for name in channels]), *less))
