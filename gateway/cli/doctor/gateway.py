"""Checks of the gateway process and of its HTTP port.

The gateway is detected by its heartbeat and its lock. It is asked for nothing but `/health`.
"""

import errno
import json
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from gateway.cli.doctor.base import (
    DoctorContext,
    DoctorEnvironment,
    Finding,
    GatewayState,
    bad,
    ok,
    run_in_thread,
    warning,
)
from gateway.core.addresses import is_loopback_host
from gateway.core.control_socket import SocketPathTooLong, socket_path
from gateway.core.metrics import GatewaySnapshot
from gateway.core.process_files import list_process_paths, process_name
from gateway.core.redaction import looks_random
from gateway.ops.health import STALE_HEARTBEAT_S, read_heartbeat

STARTING_S: Final = 60.0
"""Seconds after taking the store within which a gateway may be without a heartbeat."""


def infer_gateway_state(
    *, sign_age_s: float | None, stale_s: float, held: bool, held_for_s: float | None, pid: int | None, left: bool
) -> GatewayState:
    """Infer the state of the gateway.

    `sign_age_s`: seconds since the last heartbeat, None: there is none. `held`: a process holds the lock. `left`: a
    socket or a heartbeat file exists beside the store.
    """
    if sign_age_s is not None and sign_age_s <= stale_s:
        return GatewayState(kind="running", pid=pid, silent_s=sign_age_s)
    if held:
        young = sign_age_s is None and held_for_s is not None and held_for_s < STARTING_S
        return GatewayState(kind="starting" if young else "hangs", pid=pid, silent_s=sign_age_s or 0.0)
    return GatewayState(kind="died" if left else "stopped", silent_s=sign_age_s or 0.0)


ANSWER_TIMEOUT_S: Final = 3.0
MAX_ANSWER_BYTES: Final = 10_000
PORT_TAKEN: Final = "another program listens there already"


async def check_port(context: DoctorContext) -> Sequence[Finding]:
    """Check who holds the port, whether it can be bound, and the version of the gateway that listens."""
    ops, is_running = context.settings.ops, context.gateway_state.kind == "running"
    found = [_judge_token(ops.host, None if ops.token is None else ops.token.get_secret_value())]
    if not ops.port:
        return [*found, ok("ops.port", "any free port is taken (ops.port: 0)")]
    place, holder, release = f"{ops.host}:{ops.port}", "nobody", ""
    problem = "" if is_running else await run_in_thread(lambda: _try_bind(ops.host, ops.port))
    if is_running or problem == PORT_TAKEN:
        holder, release, started = await _identify_listener(_find_reachable_host(ops.host), ops.port)
        if holder == "another gateway" and is_running and started in context.gateway_state.started:
            holder = "ours"
        elif holder == "nobody" and problem:  # it listens elsewhere, or at another address of this machine
            holder = "another program"
    if holder.startswith("another"):
        what = f"{place} is in use by {holder}, so there are no dashboard and no metrics"
        fix = "set ops.port to a free port (0: any free one), or end that program"
        found.append(warning("ops.port", what, fix, "ops.port"))
    elif problem:
        fix = "set ops.host to an address of this machine (127.0.0.1) and ops.port to one above 1023"
        found.append(warning("ops.unbound", f"the gateway cannot listen at {place}: {problem}", fix, "ops.host"))
    elif is_running and holder == "nobody" and context.settings.store.url is None:
        fix = "see the gateway's log for why it could not listen, then restart it"
        found.append(warning("ops.silent", f"the gateway runs, but does not listen at {place}", fix, "ops.port"))
    else:
        status = "is held by our own gateway" if holder == "ours" else "is free"
        if is_running and holder == "nobody":
            status += "; `reverie status` shows where each process listens"
        found.append(ok("ops.port", f"{place} {status}"))
    if holder == "ours" and release:
        found.append(_judge_version(release, version("reverie-gateway")))
    return found


def _judge_token(host: str, token: str | None) -> Finding:
    if token is None:
        return ok("ops.token", "there is no ops.token: the dashboard and the console are off", "ops.token")
    if is_loopback_host(host) or looks_random(token):
        return ok("ops.token", "the dashboard asks for a token", "ops.token")
    what = f"the token looks like words, which can be guessed, and {host} can be reached over the network"
    fix = "make a random one (openssl rand -hex 24), or set ops.host: 127.0.0.1"
    return warning("ops.token", what, fix, "ops.token")


def _judge_version(running: str, installed: str) -> Finding:
    if running == installed:
        return ok("gateway.version", f"the running gateway is version {running}")
    what = f"the running gateway is version {running}, and {installed} is installed"
    return warning("gateway.version", what, "restart the gateway to run the installed version")


async def _identify_listener(host: str, port: int) -> tuple[str, str, str]:
    """Identify the listener; for a gateway also return its version and its start time."""
    import httpx  # noqa: PLC0415 - only here

    try:
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=False) as client:
            url = httpx.URL(scheme="http", host=host, port=port, path="/health")
            async with client.stream("GET", url) as answer:
                body = b""
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > MAX_ANSWER_BYTES:
                        break
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return "nobody", "", ""
    except (httpx.HTTPError, httpx.InvalidURL):
        return "another program", "", ""
    try:
        health = json.loads(body)
        return "another gateway", str(health["version"]), str(health["started"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another program", "", ""


def _try_bind(host: str, port: int) -> str:
    """Return why the port cannot be bound; empty: it can. It is bound for a moment without listening."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return PORT_TAKEN if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ""


def _find_reachable_host(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - nothing is bound


RELOAD_GRACE_S: Final = 60.0
"""Seconds: twice the gateway's reload interval where file changes are not reported (`gateway.config.reload`)."""

_COLUMNS: Final = 8
"""Fewest columns of a row of /proc/locks; the last four are the process, the file and the byte range."""


def find_gateway_state(environment: DoctorEnvironment, store: Path, now: datetime) -> GatewayState:
    """Determine the state of the gateway that uses the store. Blocks for a few system calls.

    Of several processes the one with the newest heartbeat counts.
    """
    heartbeat, processes = read_heartbeat(store, now), list_process_paths(store)
    beats = [read_heartbeat(store, now, process_name(one, store)) for one in processes]
    store = processes[0]
    lock = store.with_name(f"{store.name}.lock")
    holder = _read_lock_holder(lock)
    held = _is_locked(lock, environment.root, None if holder is None else holder[0])
    try:
        left = socket_path(store).is_socket()
    except (SocketPathTooLong, OSError):  # the store's own check reports closed directories
        left = False
    state = infer_gateway_state(
        sign_age_s=None if heartbeat is None else heartbeat.age_s,
        stale_s=STALE_HEARTBEAT_S,
        held=held,
        held_for_s=None if holder is None else (now - holder[1]).total_seconds(),
        pid=None if holder is None else holder[0],
        left=left or heartbeat is not None,
    )
    return replace(state, started=[one.snapshot.started.isoformat() for one in beats if one is not None])


async def check_running(context: DoctorContext) -> Sequence[Finding]:
    """Check whether the gateway runs and its channels are up."""
    path, state = context.settings.store.path, context.gateway_state
    process, where = f"process {state.pid}" if state.pid else "a process", str(path)
    match state.kind:
        case "running":
            found = [ok("gateway.running", f"the gateway runs ({process})")]
            heartbeat = await run_in_thread(lambda: read_heartbeat(path, datetime.now(UTC)))
            if heartbeat is not None:
                found += _judge_channels(context.settings.channels, heartbeat.snapshot)
            return found
        case "starting":
            return [ok("gateway.running", f"the gateway is just starting ({process})")]
        case "hangs":
            silence = f"no sign of life for {state.silent_s:.0f} s" if state.silent_s else "no sign of life"
            what = f"{process} holds the store, and there is {silence}: the gateway hangs"
            fix = (
                f"stop it (kill {state.pid or 'PID'}, after a minute kill -9) and start it again; "
                "nothing that was saved is lost"
            )
            return [bad("gateway.hangs", what, fix, where)]
        case "died":
            what = "the gateway does not run, and the last one was killed or crashed"
            fix = "find the reason at the end of its log, then start it; it goes on where it stopped"
            return [warning("gateway.died", what, fix, where)]
        case "stopped":
            return [ok("gateway.running", "the gateway is stopped")]


def _judge_channels(wanted: Iterable[str], snapshot: GatewaySnapshot) -> list[Finding]:
    """Judge the channels of the running gateway. `wanted`: channels of the configuration."""
    running, found = {str(one.channel): one for one in snapshot.channels}, []
    for name in wanted:
        one = running.get(name)
        if one is None:
            fix = "restart it, or `/reload`, if the channel was added since it started"
            found.append(bad("gateway.channel", "the running gateway does not have this channel", fix, name))
        elif one.state == "refused":
            fix = "correct what the platform complains about (see the findings of this channel), then restart it"
            what = f"its platform refuses it: {one.reason or 'no reason is known'}"
            found.append(bad("gateway.channel", what, fix, name))
        elif one.state != "up":
            fix = "see the findings of this channel and of the network; the gateway keeps trying"
            judge = warning if one.state == "connecting" else bad
            what = f"it is {one.state}: {one.reason or 'no reason is known'}"
            found.append(judge("gateway.channel", what, fix, name))
    return found or [ok("gateway.channel", "all channels of the running gateway are connected")]


async def check_config_freshness(context: DoctorContext) -> Sequence[Finding]:
    """Check whether the running gateway uses the configuration as it is on disk."""
    if context.gateway_state.kind != "running":
        return []
    path, now, directory = context.settings.store.path, datetime.now(UTC), context.environment.directory
    heartbeat = await run_in_thread(lambda: read_heartbeat(path, now))
    if heartbeat is None:
        return []
    snapshot, where = heartbeat.snapshot, str(directory)
    since, until = (snapshot.read or snapshot.started).timestamp(), now.timestamp() - RELOAD_GRACE_S
    written = await run_in_thread(lambda: _read_config_times(directory))
    unseen = sorted(name for name, at in written.items() if since < at < until)
    if snapshot.broken:
        what = "the running gateway could not use the changed configuration, and goes on with the earlier one"
        fix = "its log says why; most often, its environment lacks a variable that you have (then restart it)"
        return [warning("gateway.config_newer", what, fix, where)]
    if unseen:
        what = f"{', '.join(unseen)} changed after the running gateway read its configuration"
        return [warning("gateway.config_newer", what, "write /reload to the bot, or send the process SIGHUP", where)]
    if snapshot.later:
        what = f"{', '.join(sorted(snapshot.later))} changed, which takes effect only after a restart"
        return [warning("gateway.restart", what, "restart the gateway when convenient", where)]
    return [ok("gateway.config", "the running gateway uses the present configuration")]


def _read_config_times(directory: Path) -> dict[str, float]:
    return {
        path.name: path.stat().st_mtime
        for path in directory.iterdir()
        if path.suffix in (".yaml", ".yml") and path.is_file()
    }


def _read_lock_holder(lock: Path) -> tuple[int, datetime] | None:
    """Return the last holder of the lock and when it took it, as recorded in the lock file."""
    try:
        record = json.loads(lock.read_bytes())
        since = datetime.fromisoformat(str(record["started"]))
        return int(record["pid"]), since if since.tzinfo else since.replace(tzinfo=UTC)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_locked(lock: Path, root: Path, pid: int | None) -> bool:
    """Return whether a process holds the lock. The lock is not tried: a gateway that starts just then would fail.

    The kernel lists locks with process, device (hexadecimal) and inode (decimal)
    (https://man7.org/linux/man-pages/man5/proc_locks.5.html). With layered file systems the device may differ, and in
    containers the process id, so one of the two must match. On other systems only heartbeats show whether a gateway
    runs.
    """
    try:
        status = lock.stat()
        rows = (root / "proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for row in rows:
        words = row.split()
        if "FLOCK" not in words or len(words) < _COLUMNS:
            continue
        place, _, number = words[-3].rpartition(":")
        if number == str(status.st_ino) and (place == device or words[-4] == str(pid)):
            return True
    return False
