"""Looks for the gateway that uses the store, without asking it for anything but how it is."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.control import SocketPathTooLong, socket_path
from gateway.doctor.base import DoctorContext, DoctorEnvironment, run_in_thread
from gateway.doctor.rules.running import (
    GatewayState,
    RunningChannel,
    infer_gateway_state,
    judge_config_freshness,
    judge_gateway_state,
    judge_running_channels,
)
from gateway.ops.health import STALE_HEARTBEAT_S, read_heartbeat
from gateway.probes.base import Finding

RELOAD_GRACE_S: Final = 60.0
"""Twice as long as the gateway takes where no change is told (`gateway.watching`)."""

_COLUMNS: Final = 8
"""Of a row of /proc/locks; the last four are the process, the file, and which bytes of it."""


def find_gateway_state(machine: DoctorEnvironment, store: Path, now: datetime) -> GatewayState:
    """Whether a gateway uses the store. Blocks for a few system calls."""
    sign = read_heartbeat(store, now)
    lock = store.with_name(f"{store.name}.lock")
    holder = _read_lock_holder(lock)
    held = _is_locked(lock, machine.root, None if holder is None else holder[0])
    try:
        left = socket_path(store).is_socket()
    except (SocketPathTooLong, OSError):  # the store's own check says what is closed
        left = False
    state = infer_gateway_state(
        sign_age_s=None if sign is None else sign.age_s,
        stale_s=STALE_HEARTBEAT_S,
        held=held,
        held_for_s=None if holder is None else (now - holder[1]).total_seconds(),
        pid=None if holder is None else holder[0],
        left=left or sign is not None,
    )
    started = "" if sign is None else sign.snapshot.started.isoformat()
    return GatewayState(kind=state.kind, pid=state.pid, silent_s=state.silent_s, started=started)


async def check_running(subject: DoctorContext) -> Sequence[Finding]:
    """Whether it runs, and whether its channels are up."""
    store, now = subject.settings.store.path, datetime.now(UTC)
    found = judge_gateway_state(subject.gateway_state, str(store))
    if subject.gateway_state.kind != "running":
        return found
    sign = await run_in_thread(lambda: read_heartbeat(store, now))
    if sign is not None:
        seen = {str(one.channel): RunningChannel(state=one.state, reason=one.reason) for one in sign.snapshot.channels}
        found += judge_running_channels(list(subject.settings.channels), seen)
    return found


async def check_config_freshness(subject: DoctorContext) -> Sequence[Finding]:
    """Whether the running gateway goes by what is written."""
    store, now, directory = subject.settings.store.path, datetime.now(UTC), subject.environment.directory
    sign = await run_in_thread(lambda: read_heartbeat(store, now)) if subject.gateway_state.kind == "running" else None
    if sign is None:
        return []
    said = sign.snapshot
    since, until = (said.read or said.started).timestamp(), now.timestamp() - RELOAD_GRACE_S
    written = await run_in_thread(lambda: _read_config_times(directory))
    unseen = [name for name, at in written.items() if since < at < until]
    return judge_config_freshness(later=said.later, broken=said.broken, unseen=unseen, where=str(directory))


def _read_config_times(directory: Path) -> dict[str, float]:
    return {
        path.name: path.stat().st_mtime
        for path in directory.iterdir()
        if path.suffix in (".yaml", ".yml") and path.is_file()
    }


def _read_lock_holder(lock: Path) -> tuple[int, datetime] | None:
    """Who took the lock last, and when, as the file says."""
    try:
        said = json.loads(lock.read_bytes())
        since = datetime.fromisoformat(str(said["started"]))
        return int(said["pid"]), since if since.tzinfo else since.replace(tzinfo=UTC)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_locked(lock: Path, root: Path, pid: int | None) -> bool:
    """Whether somebody holds the lock. It is not tried: a gateway that starts in that moment would be refused.

    The kernel lists locks with the process, the device in hexadecimal and the number of the file in decimal
    (https://man7.org/linux/man-pages/man5/proc_locks.5.html). Where file systems lie on each other it may know another
    device, and in containers other numbers of processes: one of both is right. Elsewhere signs of life alone tell.
    """
    try:
        seen = lock.stat()
        rows = (root / "proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    device = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}"
    for row in rows:
        words = row.split()
        if "FLOCK" not in words or len(words) < _COLUMNS:
            continue
        place, _, number = words[-3].rpartition(":")
        if number == str(seen.st_ino) and (place == device or words[-4] == str(pid)):
            return True
    return False
