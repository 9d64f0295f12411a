"""Is there a server at an address, and does it speak TLS as it should? DNS, TCP and the handshake; nothing is said.

The codes are `net.name`, `net.refused`, `net.route`, `net.timeout`, `net.lost`, `net.proxy`, `net.tls.expired`,
`net.tls.clock`, `net.tls.issuer`, `net.tls.host`, `net.tls.none`, `net.tls`, and `net.ok`.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
import urllib.request
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from gateway.probes.base import Finding
from gateway.probes.found import FindingCollector

PROBE_TIMEOUT_S: Final = 10.0
"""For one probe as a whole."""
_EXPIRED, _NOT_YET, _SELF_SIGNED, _WRONG_HOST = 10, 9, frozenset({18, 19, 20, 21}), frozenset({62, 64})
"""OpenSSL's X509_V_ERR_*: x509_vfy.h."""
_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL})
_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}


@dataclass(frozen=True, slots=True)
class ConnectionProblem:
    """Why a connection did not come about."""

    code: str
    what: str
    fix: str


def explain_connection_error(error: BaseException, host: str, port: int, *, ca_key: str = "") -> ConnectionProblem:
    """Name what an error of a connection means, and what to do about it. Pure.

    `ca_key`: the key that names another root, where the configuration has one.
    """
    there = f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate_error(error, there, host, ca_key)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason in {"WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
            return ConnectionProblem(
                "net.tls.none", f"{there} does not speak TLS", "take its port for TLS, or turn TLS off"
            )
        return ConnectionProblem(
            "net.tls", f"TLS with {there} failed ({reason or 'no reason'})", "look at the server's TLS settings"
        )
    if isinstance(error, socket.gaierror):
        if error.errno in {socket.EAI_AGAIN, getattr(socket, "EAI_SYSTEM", None)}:
            fix = "look at this machine's network and its name server (/etc/resolv.conf)"
            return ConnectionProblem("net.name", f"the name {host} could not be looked up", fix)
        return ConnectionProblem("net.name", f"there is no host called {host}", "look for a typing mistake in the name")
    if isinstance(error, ConnectionRefusedError):
        fix = "start the server, or correct the port"
        return ConnectionProblem("net.refused", f"nothing listens at {there}", fix)
    if isinstance(error, TimeoutError):
        fix = "look at the port, and at firewalls between here and there"
        return ConnectionProblem("net.timeout", f"{there} does not answer", fix)
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return ConnectionProblem("net.route", f"there is no way to {there}", "look at this machine's network")
    return ConnectionProblem(
        "net.lost", f"{there} hung up ({type(error).__name__})", "look at the port, and whether it takes TLS"
    )


def _explain_certificate_error(
    error: ssl.SSLCertVerificationError, there: str, host: str, ca_key: str
) -> ConnectionProblem:
    number = error.verify_code
    if number == _EXPIRED:
        fix = "whoever runs the server must renew it; look at this machine's clock, too"
        return ConnectionProblem("net.tls.expired", f"the certificate of {there} has expired", fix)
    if number == _NOT_YET:
        return ConnectionProblem(
            "net.tls.clock", f"the certificate of {there} is not valid yet", "set this machine's clock"
        )
    if number in _WRONG_HOST:
        fix = f"write the name that the certificate is for, in place of {host}"
        return ConnectionProblem("net.tls.host", f"the certificate of {there} is for another name", fix)
    if number in _SELF_SIGNED:
        own = f"; for a server of your own, name its root in {ca_key}" if ca_key else ""
        fix = f"install the package ca-certificates if every server is refused{own}"
        return ConnectionProblem(
            "net.tls.issuer", f"the certificate of {there} is signed by nobody whom this machine trusts", fix
        )
    return ConnectionProblem(
        "net.tls", f"the certificate of {there} is not good: {error.verify_message}", "ask who runs the server"
    )


async def probe_net(
    host: str, port: int, *, tls: bool | ssl.SSLContext = True, where: str = "", ca_key: str = ""
) -> list[Finding]:
    """Connect, shake hands, hang up. One finding. Never raises but for cancellation; takes 10 s at most.

    `tls` True: with the system's roots.
    """
    found = FindingCollector(where)
    context = (ssl.create_default_context() if tls else None) if isinstance(tls, bool) else tls
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 0.5)
    except (OSError, UnicodeError, ValueError) as error:
        told = (
            _invalid_host_problem(host)
            if isinstance(error, UnicodeError | ValueError)
            else explain_connection_error(error, host, port, ca_key=ca_key)
        )
        found.bad(told.code, told.what, told.fix)
    else:
        found.ok("net.ok", f"{host}:{port} can be reached{' over TLS' if context else ''}")
    return found.findings


async def probe_url(url: str, *, where: str = "") -> list[Finding]:
    """The same for where a URL of http, https, ws or wss leads; of it only host and port are told.

    Where the environment names a proxy for it, what is looked at is whether that is why: one finding `net.proxy`.
    """
    scheme, host, port = "", "", 0
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)
    if not host:
        told = _invalid_host_problem("")
        found = FindingCollector(where)
        found.bad(told.code, told.what, told.fix)
        return found.findings
    if uses_proxy(scheme, host):
        found = FindingCollector(where)
        fix = "look at HTTPS_PROXY, HTTP_PROXY and NO_PROXY in the environment"
        found.bad("net.proxy", f"{host}:{port} cannot be reached through the proxy that the environment names", fix)
        return found.findings
    return await probe_net(host, port, tls=scheme in {"https", "wss"}, where=where)


def uses_proxy(scheme: str, host: str) -> bool:
    """Whether HTTP libraries go to `host` through a proxy of the environment's."""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return False
    proxies = urllib.request.getproxies_environment()
    named = scheme.replace("ws", "http") in proxies or "all" in proxies
    return named and not urllib.request.proxy_bypass(host)


def _invalid_host_problem(host: str) -> ConnectionProblem:
    return ConnectionProblem(
        "net.name", f"{host or 'that'} is not the name of a host", "write it as a name or an address"
    )
