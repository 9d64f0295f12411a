"""Checks of the gateway process and of its HTTP port.

The gateway is detected by its heartbeat and its lock. It is asked for nothing but `/health`.
"""

import errno
import json
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from gateway.cli.doctor.base import DoctorContext, DoctorEnvironment, GatewayState, run_in_thread
from gateway.cli.probes.base import Finding
from gateway.core.control_socket import SocketPathTooLong, socket_path
from gateway.core.redaction import looks_random
from gateway.ops.health import STALE_HEARTBEAT_S, read_heartbeat
from gateway.ops.http import is_loopback

PortHolder = Literal["nobody", "ours", "another gateway", "another program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortObservation:
    """The HTTP port and its listener."""

    host: str
    port: int
    """Port number; 0: any free port, then nothing was checked."""
    holder: PortHolder
    bind_problem: str = ""
    """Reason why the port cannot be bound; empty: it can, or it is in use."""
    is_gateway_running: bool
    """True if a gateway runs with this store."""


def judge_port(port: PortObservation) -> Iterator[Finding]:
    """Judge whether the server can listen, or does."""
    place = f"{port.host}:{port.port}"
    if not port.port:
        yield Finding(code="ops.port", level="ok", what="any free port is taken (ops.port: 0)")
    elif port.holder in ("another program", "another gateway"):
        yield Finding(
            code="ops.port",
            level="warning",
            what=f"{place} is taken by {port.holder}: there is no dashboard, and there are no metrics",
            fix="set ops.port to a free one, or 0 for any, or end that program",
            where="ops.port",
        )
    elif port.bind_problem:
        yield Finding(
            code="ops.unbound",
            level="warning",
            what=f"nobody can listen at {place}: {port.bind_problem}",
            fix="set ops.host to an address of this machine (127.0.0.1) and ops.port to one above 1023",
            where="ops.host",
        )
    elif port.is_gateway_running and port.holder == "nobody":
        yield Finding(
            code="ops.silent",
            level="warning",
            what=f"the gateway runs, and nobody listens at {place}",
            fix="see the gateway's log for why it could not listen, then restart it",
            where="ops.port",
        )
    else:
        status = "is held by our own gateway" if port.holder == "ours" else "is free"
        yield Finding(code="ops.port", level="ok", what=f"{place} {status}")


def judge_token(host: str, token: str | None, *, loopback: bool) -> Iterator[Finding]:
    """Judge whether a stranger could get access."""
    if token is None:
        what = "there is no ops.token: the dashboard and the console are off"
        yield Finding(code="ops.token", level="ok", what=what, where="ops.token")
    elif not loopback and not looks_random(token):
        yield Finding(
            code="ops.token",
            level="warning",
            what=f"the token reads like words, which can be guessed, and {host} can be reached over the network",
            fix="write one by chance (openssl rand -hex 24), or set ops.host: 127.0.0.1",
            where="ops.token",
        )
    else:
        yield Finding(code="ops.token", level="ok", what="the dashboard asks for a token", where="ops.token")


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


def judge_gateway_state(state: GatewayState, store: str) -> list[Finding]:
    """Judge whether the gateway runs."""
    process = f"process {state.pid}" if state.pid else "a process"
    match state.kind:
        case "running":
            return [Finding(code="gateway.running", level="ok", what=f"the gateway runs ({process})")]
        case "starting":
            return [Finding(code="gateway.running", level="ok", what=f"the gateway is just starting ({process})")]
        case "hangs":
            heartbeat = f"no sign of life for {state.silent_s:.0f} s" if state.silent_s else "no sign of life"
            return [
                Finding(
                    code="gateway.hangs",
                    level="bad",
                    what=f"{process} holds the store, and there is {heartbeat}: the gateway hangs",
                    fix=f"end it (kill {state.pid or 'PID'}, after a minute kill -9) and start it again; "
                    "what was durable is taken up",
                    where=store,
                )
            ]
        case "died":
            return [
                Finding(
                    code="gateway.died",
                    level="warning",
                    what="no gateway runs, and the last one ended without a goodbye (it was killed, or it crashed)",
                    fix="look at the end of its log for the reason, then start it; it goes on where it stopped",
                    where=store,
                )
            ]
        case "stopped":
            return [Finding(code="gateway.running", level="ok", what="the gateway is stopped")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChannel:
    """One channel of the running gateway."""

    state: str
    reason: str


def judge_running_channels(wanted: Collection[str], running: Mapping[str, RunningChannel]) -> list[Finding]:
    """Judge the channels of the running gateway. `wanted`: channels of the configuration."""
    found = []
    for name in wanted:
        one = running.get(name)
        if one is None:
            fix = "restart it, or `/reload`, if the channel was added since it started"
            what = "the running gateway does not have this channel"
        elif one.state == "up":
            continue
        elif one.state == "refused":
            fix = "mend what the platform complains of (see the findings of this channel), then restart it"
            what = f"its platform refuses it: {one.reason or 'no reason is known'}"
        else:
            fix = "see the findings of this channel and of the network; it goes on trying by itself"
            what = f"it is {one.state}: {one.reason or 'no reason is known'}"
        level: Literal["bad", "warning"] = "warning" if one is not None and one.state == "connecting" else "bad"
        found.append(Finding(code="gateway.channel", level=level, what=what, fix=fix, where=name))
    return found or [Finding(code="gateway.channel", level="ok", what="all channels of the running gateway are up")]


def judge_running_version(running: str, installed: str) -> list[Finding]:
    """Judge whether the running process has the installed version."""
    if running == installed:
        return [Finding(code="gateway.version", level="ok", what=f"the running gateway is version {running}")]
    return [
        Finding(
            code="gateway.version",
            level="warning",
            what=f"the running gateway is version {running}, and {installed} is installed",
            fix="restart the gateway, so that the installed version runs",
        )
    ]


def judge_config_freshness(
    *, later: Collection[str], broken: bool, unseen: Collection[str], where: str
) -> list[Finding]:
    """Judge whether the running gateway uses the configuration as it is on disk, which is readable.

    `later`: keys that wait for a restart; `broken`: the gateway could not load the configuration; `unseen`: files
    changed after it last read them, long enough ago to have been noticed.
    """
    if broken:
        what = "the running gateway could not take what is written by now, and goes on with what it read before"
        fix = "see its log for why: most often its environment lacks a variable that you have (then restart it)"
    elif unseen:
        what = f"{', '.join(sorted(unseen))} was written after the running gateway read its configuration"
        fix = "/reload has it read again, or send it SIGHUP"
    elif later:
        keys = ", ".join(sorted(later))
        what, fix = f"{keys} changed, which counts after a restart only", "restart the gateway when it suits"
        return [Finding(code="gateway.restart", level="warning", what=what, fix=fix, where=where)]
    else:
        return [Finding(code="gateway.config", level="ok", what="the running gateway goes by what is written")]
    return [Finding(code="gateway.config_newer", level="warning", what=what, fix=fix, where=where)]


ANSWER_TIMEOUT_S: Final = 3.0
MAX_ANSWER_BYTES: Final = 10_000
PORT_TAKEN: Final = "somebody listens there already"


async def check_port(context: DoctorContext) -> Sequence[Finding]:
    """Check who holds the port, whether it can be bound, and the version of the gateway that listens."""
    ops, running = context.settings.ops, context.gateway_state.kind == "running"
    token = None if ops.token is None else ops.token.get_secret_value()
    found = list(judge_token(ops.host, token, loopback=is_loopback(ops.host)))
    holder: PortHolder = "nobody"
    unbound, release = "", ""
    if ops.port:
        unbound = "" if running else await run_in_thread(lambda: _try_bind(ops.host, ops.port))
        if running or unbound == PORT_TAKEN:
            holder, release, started = await _identify_listener(_find_reachable_host(ops.host), ops.port)
            if holder == "another gateway" and running and started == context.gateway_state.started:
                holder = "ours"
            elif holder == "nobody" and unbound:  # it listens elsewhere, or at another address of this machine
                holder = "another program"
    port = PortObservation(
        host=ops.host, port=ops.port, holder=holder, bind_problem=unbound, is_gateway_running=running
    )
    found += judge_port(port)
    if holder == "ours" and release:
        found += judge_running_version(release, version("reverie-gateway"))
    return found


async def _identify_listener(host: str, port: int) -> tuple[PortHolder, str, str]:
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
    """Return the host under which a listener is reached from this machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - nothing is bound


RELOAD_GRACE_S: Final = 60.0
"""Seconds: twice the gateway's reload interval where file changes are not reported (`gateway.config.reload`)."""

_COLUMNS: Final = 8
"""Fewest columns of a row of /proc/locks; the last four are the process, the file and the byte range."""


def find_gateway_state(environment: DoctorEnvironment, store: Path, now: datetime) -> GatewayState:
    """Determine the state of the gateway that uses the store. Blocks for a few system calls."""
    heartbeat = read_heartbeat(store, now)
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
    started = "" if heartbeat is None else heartbeat.snapshot.started.isoformat()
    return GatewayState(kind=state.kind, pid=state.pid, silent_s=state.silent_s, started=started)


async def check_running(context: DoctorContext) -> Sequence[Finding]:
    """Check whether the gateway runs and its channels are up."""
    store, now = context.settings.store.path, datetime.now(UTC)
    found = judge_gateway_state(context.gateway_state, str(store))
    if context.gateway_state.kind != "running":
        return found
    heartbeat = await run_in_thread(lambda: read_heartbeat(store, now))
    if heartbeat is not None:
        channels = {
            str(one.channel): RunningChannel(state=one.state, reason=one.reason) for one in heartbeat.snapshot.channels
        }
        found += judge_running_channels(list(context.settings.channels), channels)
    return found


async def check_config_freshness(context: DoctorContext) -> Sequence[Finding]:
    """Check whether the running gateway uses the configuration as it is on disk."""
    store, now, directory = context.settings.store.path, datetime.now(UTC), context.environment.directory
    heartbeat = (
        await run_in_thread(lambda: read_heartbeat(store, now)) if context.gateway_state.kind == "running" else None
    )
    if heartbeat is None:
        return []
    snapshot = heartbeat.snapshot
    since, until = (snapshot.read or snapshot.started).timestamp(), now.timestamp() - RELOAD_GRACE_S
    written = await run_in_thread(lambda: _read_config_times(directory))
    unseen = [name for name, at in written.items() if since < at < until]
    return judge_config_freshness(later=snapshot.later, broken=snapshot.broken, unseen=unseen, where=str(directory))


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
