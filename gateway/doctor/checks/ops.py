"""Looks at the operator's port: asks whoever listens there who it is, and tries it where nobody does."""

import errno
import ipaddress
import json
import socket
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from gateway.doctor.base import DoctorContext, run_in_thread
from gateway.doctor.rules.ops import PortHolder, PortObservation, judge_port, judge_token
from gateway.doctor.rules.running import judge_running_version
from gateway.probes.base import Finding

ANSWER_TIMEOUT_S: Final = 3.0
MAX_ANSWER_BYTES: Final = 10_000
PORT_TAKEN: Final = "somebody listens there already"


async def check_port(subject: DoctorContext) -> Sequence[Finding]:
    """Who holds the port, whether anybody could, and which version it is."""
    said, running = subject.settings.ops, subject.gateway_state.kind == "running"
    token = None if said.token is None else said.token.get_secret_value()
    found = list(judge_token(said.host, token, loopback=_is_loopback(said.host)))
    holder: PortHolder = "nobody"
    unbound, release = "", ""
    if said.port:
        unbound = "" if running else await run_in_thread(lambda: _try_bind(said.host, said.port))
        if running or unbound == PORT_TAKEN:
            holder, release, started = await _identify_listener(_find_reachable_host(said.host), said.port)
            if holder == "another gateway" and running and started == subject.gateway_state.started:
                holder = "ours"
            elif holder == "nobody" and unbound:  # it listens elsewhere, or at another address of this machine
                holder = "another program"
    port = PortObservation(
        host=said.host, port=said.port, holder=holder, bind_problem=unbound, is_gateway_running=running
    )
    found += judge_port(port)
    if holder == "ours" and release:
        found += judge_running_version(release, version("reverie-gateway"))
    return found


async def _identify_listener(host: str, port: int) -> tuple[PortHolder, str, str]:
    """Who listens there; of a gateway its version, and when it started."""
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
        said = json.loads(body)
        return "another gateway", str(said["version"]), str(said["started"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another program", "", ""


def _try_bind(host: str, port: int) -> str:
    """Why nobody could listen there. Nobody does: the port is bound for a moment, and not listened on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
    except OSError as error:
        return PORT_TAKEN if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ""


def _find_reachable_host(host: str) -> str:
    """Where somebody on this machine finds what listens there."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - nothing is bound


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
