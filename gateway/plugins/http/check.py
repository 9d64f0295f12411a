"""Checks of the operator's HTTP port and of its token."""

import errno
import socket
from collections.abc import Sequence
from typing import Final

from gateway.config.check_registry import CheckContext, check
from gateway.core.addresses import is_loopback_host
from gateway.core.findings import Finding, ok, run_in_daemon_thread, warning
from gateway.core.redaction import looks_random

PORT_TAKEN: Final = "another program listens there already"


@check("operator's port")
async def check_port(context: CheckContext) -> Sequence[Finding]:
    """Check who holds the port, whether it can be bound."""
    ops, is_running = context.settings.ops, context.gateway_state.kind == "running"
    found = [
        _judge_token(ops.host, None if token is None else token.get_secret_value())
        for token in (ops.token, *(one.token for one in ops.tokens))
    ]
    if not ops.port:
        return [*found, ok("ops.port", "any free port is taken (ops.port: 0)")]
    place = f"{ops.host}:{ops.port}"
    problem = await run_in_daemon_thread(lambda: _try_bind(ops.host, ops.port))
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
