"""Checks of the gateway process, of its packages and of its HTTP port.

The gateway is detected by its control socket, which is asked for nothing that it would do.
"""

import errno
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gateway.config.check_registry import CheckContext, check
from gateway.core.addresses import is_loopback_host
from gateway.core.findings import Finding, bad, ok, run_in_thread, warning
from gateway.core.metrics import GatewaySnapshot
from gateway.core.name_clash import find_name_clashes
from gateway.core.redaction import looks_random
from gateway.ops.health import HUNG_REMEDY

PORT_TAKEN: Final = "another program listens there already"


@check("operator's port")
async def check_port(context: CheckContext) -> Sequence[Finding]:
    """Check who holds the port, whether it can be bound."""
    ops, is_running = context.settings.ops, context.gateway_state.kind == "running"
    found = [_judge_token(ops.host, None if ops.token is None else ops.token.get_secret_value())]
    if not ops.port:
        return [*found, ok("ops.port", "any free port is taken (ops.port: 0)")]
    place = f"{ops.host}:{ops.port}"
    problem = await run_in_thread(lambda: _try_bind(ops.host, ops.port))
    if is_running and problem == PORT_TAKEN:
        found.append(ok("ops.port", f"{place} is in use while the gateway runs"))
    elif is_running and not problem and context.settings.store.url is None:
        fix = "see the gateway's log for why it could not listen, then restart it"
        found.append(
            warning(
                "ops.silent", f"the gateway runs, but does not listen at {place}", fix, "ops.port"
            )
        )
    elif problem == PORT_TAKEN:
        what = f"{place} is in use by another program, so there are no dashboard and no metrics"
        fix = "set ops.port to a free port (0: any free one), or end that program"
        found.append(warning("ops.port", what, fix, "ops.port"))
    elif problem:
        fix = (
            "set ops.host to an address of this machine (127.0.0.1) and ops.port to one above 1023"
        )
        found.append(
            warning(
                "ops.unbound", f"the gateway cannot listen at {place}: {problem}", fix, "ops.host"
            )
        )
    else:
        found.append(ok("ops.port", f"{place} is free"))
    return found


def _judge_token(host: str, token: str | None) -> Finding:
    if token is None:
        return ok(
            "ops.token", "there is no ops.token: the dashboard and the console are off", "ops.token"
        )
    if is_loopback_host(host) or looks_random(token):
        return ok("ops.token", "the dashboard asks for a token", "ops.token")
    what = (
        f"the token looks like words, which can be guessed, and {host} can be reached over the "
        "network"
    )
    fix = "make a random one (openssl rand -hex 24), or set ops.host: 127.0.0.1"
    return warning("ops.token", what, fix, "ops.token")


def _try_bind(host: str, port: int) -> str:
    """Return why the port cannot be bound; empty: it can. It is bound for a moment without
    listening.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return PORT_TAKEN if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ""


@check("packages", timed=False)
def check_packages(_: CheckContext) -> Iterator[Finding]:
    """Check whether other packages have the names of ours."""
    for clash in (clashes := find_name_clashes()):
        yield bad("versions.clash", clash.what, clash.fix)
    if not clashes:
        yield ok("versions.clash", "no other distribution has packages of our names")


@check("gateway")
async def check_running(context: CheckContext) -> Sequence[Finding]:
    """Check whether the gateway runs and its channels are up."""
    state, where = context.gateway_state, str(context.settings.store.path)
    match state.kind:
        case "running":
            found = [ok("gateway.running", "the gateway runs")]
            if state.snapshot is not None:
                found += _judge_channels(context.settings.channels, state.snapshot)
                found += _judge_snapshot(state.snapshot, str(context.environment.directory))
            return found
        case "hangs":
            return [
                bad(
                    "gateway.hangs",
                    state.reason,
                    f"{HUNG_REMEDY}; nothing that was saved is lost",
                    where,
                )
            ]
        case "died":
            what = "the gateway does not run, and the last one was killed or crashed"
            fix = (
                "find the reason at the end of its log, then start it; it goes on where it stopped"
            )
            return [warning("gateway.died", what, fix, where)]
        case "stopped":
            return [ok("gateway.running", "the gateway is stopped")]


def _judge_snapshot(snapshot: GatewaySnapshot, where: str) -> Iterator[Finding]:
    """Judge the configuration of the running gateway."""
    if snapshot.broken:
        what = (
            "the running gateway could not use the changed configuration, and goes on with the "
            "earlier one"
        )
        fix = (
            "its log says why; most often, its environment lacks a variable that you have (then "
            "restart it)"
        )
        yield warning("gateway.config_newer", what, fix, where)
    elif snapshot.later:
        what = (
            f"{', '.join(sorted(snapshot.later))} changed, which takes effect only after a restart"
        )
        yield warning("gateway.restart", what, "restart the gateway when convenient", where)


def _judge_channels(wanted: Iterable[str], snapshot: GatewaySnapshot) -> list[Finding]:
    """Judge the channels of the running gateway. `wanted`: channels of the configuration."""
    running, found = {str(one.channel): one for one in snapshot.channels}, []
    for name in wanted:
        one = running.get(name)
        if one is None:
            fix = "restart it, or `/reload`, if the channel was added since it started"
            found.append(
                bad("gateway.channel", "the running gateway does not have this channel", fix, name)
            )
        elif one.state == "refused":
            fix = (
                "correct what the platform complains about (see the findings of this channel), "
                "then restart it"
            )
            what = f"its platform refuses it: {one.reason or 'no reason is known'}"
            found.append(bad("gateway.channel", what, fix, name))
        elif one.state != "up":
            fix = "see the findings of this channel and of the network; the gateway keeps trying"
            judge = warning if one.state == "connecting" else bad
            what = f"it is {one.state}: {one.reason or 'no reason is known'}"
            found.append(judge("gateway.channel", what, fix, name))
    return found or [ok("gateway.channel", "all channels of the running gateway are connected")]
