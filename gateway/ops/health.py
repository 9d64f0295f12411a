"""Is the gateway alive and connected, seen from outside its process.

The running gateway touches a file beside its store every few seconds. Whoever asks looks at how
long ago that was, and at the last link state of each channel in the store: no port is needed, and a
process that hangs is found out.
"""

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gateway.clock import Clock
from gateway.events import ChannelName
from gateway.store import Store, StoreError

BEAT_S = 5.0
STALE_S = 30.0
"""Six missed beats: longer than any pause of a healthy process, shorter than people's patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What was found."""

    ok: bool
    findings: tuple[str, ...]
    """One line each, the bad ones if not ok."""


def beat_file(store: Path) -> Path:
    """The file whose time of change is the last sign of life."""
    return store.with_name(f"{store.name}.alive")


async def beat(store: Path, clock: Clock) -> None:
    """Give signs of life until cancelled; then none is left to be mistaken for one."""
    file, started = beat_file(store), clock.now().isoformat()
    try:
        while True:
            now = clock.now().timestamp()
            with contextlib.suppress(OSError):  # full or read-only: then the sign is missing, and that is seen
                file.write_text(started, encoding="ascii")  # since when: older link states are not ours
                os.utime(file, (now, now))
            await clock.sleep(BEAT_S)
    finally:
        with contextlib.suppress(OSError):  # the same
            file.unlink(missing_ok=True)


async def check(store: Path, channels: Collection[str], now: datetime) -> Health:
    """Ask about the gateway that uses this store and is configured with these channels."""
    file = beat_file(store)
    try:
        started = datetime.fromisoformat(file.read_text(encoding="ascii"))
        age_s = now.timestamp() - file.stat().st_mtime
    except (OSError, ValueError):
        return Health(ok=False, findings=(f"no gateway is running with the store {store}",))
    if age_s > STALE_S:
        return Health(ok=False, findings=(f"no sign of life for {age_s:.0f} s: the gateway has stopped or hangs",))
    try:
        async with await Store.open_readonly(store) as reader:
            links = {link.channel: link for link in await reader.links() if link.at >= started}
    except StoreError as error:
        return Health(ok=False, findings=(str(error),))
    bad = []
    for name in channels:
        link = links.get(ChannelName(name))
        if link is None:
            bad.append(f"{name} has not connected yet")
        elif not link.up:
            bad.append(f"{name} is down: {link.reason}")
    return Health(ok=not bad, findings=tuple(bad) or tuple(f"{name} is up" for name in channels))
