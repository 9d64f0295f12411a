"""Servers' addresses and certificates: DNS, TCP and TLS handshake, without sending anything.

Codes: `net.name`, `net.refused`, `net.route`, `net.timeout`, `net.lost`, `net.proxy`,
`net.tls.expired`, `net.tls.clock`, `net.tls.issuer`, `net.tls.host`, `net.tls.none`, `net.tls`,
`net.ok`.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from gateway.core.findings import PROBE_TIMEOUT_S, Finding, FindingCollector, bad
from gateway.core.proxy import find_proxy, through

_OTHER_HOST: Final = (
    "net.tls.host",
    "is for another name",
    "write the name in the certificate instead of {host}",
)
_UNKNOWN_ISSUER: Final = (
    "net.tls.issuer",
    "is not signed by an authority that this machine trusts",
    "install the package ca-certificates if every server is refused{own}",
)
_CERTIFICATE_ERRORS: Final = {
    9: ("net.tls.clock", "is not valid yet", "set this machine's clock"),
    10: (
        "net.tls.expired",
        "has expired",
        "whoever runs the server must renew it; also check this machine's clock",
    ),
    **dict.fromkeys((18, 19, 20, 21), _UNKNOWN_ISSUER),
    **dict.fromkeys((62, 64), _OTHER_HOST),
}
"""By the code of OpenSSL, X509_V_ERR_*: x509_vfy.h."""
_UNREACHABLE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL}
)
_NO_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
)
_DEFAULT_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}


def explain_connection_error(
    error: BaseException, host: str, port: int, *, ca_key: str = ""
) -> Finding:
    """Explain a connection error and state a remedy.

    `ca_key`: the configuration key for another root certificate, where there is one.
    """
    address = f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        other = "net.tls", f"is not valid: {error.verify_message}", "ask who runs the server"
        code, what, fix = _CERTIFICATE_ERRORS.get(error.verify_code, other)
        own = f"; for a server of your own, name its root in {ca_key}" if ca_key else ""
        what = f"the certificate of {address} {what}"
        return bad(code, what, fix.format(host=host, own=own))
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason in _NO_TLS:
            return bad(
                "net.tls.none",
                f"{address} does not speak TLS",
                "use its port for TLS, or turn TLS off",
            )
        return bad(
            "net.tls",
            f"TLS with {address} failed ({reason or 'no reason'})",
            "check the server's TLS settings",
        )
    if isinstance(error, socket.gaierror):
        if error.errno in {socket.EAI_AGAIN, getattr(socket, "EAI_SYSTEM", None)}:
            fix = "check this machine's network and its name server (/etc/resolv.conf)"
            return bad("net.name", f"the name {host} could not be looked up", fix)
        return bad(
            "net.name",
            f"there is no host called {host}",
            "check the spelling of the name, and whether this machine has a network",
        )
    if isinstance(error, ConnectionRefusedError):
        return bad(
            "net.refused", f"nothing listens at {address}", "start the server, or correct the port"
        )
    if isinstance(error, TimeoutError):
        fix = "check the port and the firewalls on the way"
        return bad("net.timeout", f"{address} does not answer", fix)
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return bad("net.route", f"there is no route to {address}", "check this machine's network")
    return bad(
        "net.lost",
        f"{address} closed the connection ({type(error).__name__})",
        "check the port and whether it uses TLS",
    )


async def probe_net(
    host: str, port: int, *, tls: bool | ssl.SSLContext = True, where: str = "", ca_key: str = ""
) -> Finding:
    """Connect, shake hands and close. Takes 10 s at most; raises nothing but CancelledError.

    `tls` True: with the system's root certificates.
    """
    context = (ssl.create_default_context() if tls else None) if isinstance(tls, bool) else tls
    found = FindingCollector(where)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 0.5)
    except (UnicodeError, ValueError):
        found.add(_not_a_host(host))
    except OSError as error:
        found.add(explain_connection_error(error, host, port, ca_key=ca_key))
    else:
        found.ok("net.ok", f"{host}:{port} can be reached{' over TLS' if context else ''}")
    return found.findings[0]


def _not_a_host(host: str) -> Finding:
    return bad(
        "net.name",
        f"{host or 'that'} is not the name of a host",
        "write it as a name or an address",
    )


async def probe_url(url: str, *, where: str = "", proxy: SecretStr | None = None) -> Finding:
    """Probe the host and port of an http, https, ws or wss URL. Only host and port are quoted.

    With a proxy (`proxy` is the setting for it), the result is `net.proxy`: a failure may be the
    proxy's.
    """
    scheme, host, port = "", "", 0
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        scheme, host, port = (
            parts.scheme,
            parts.hostname or "",
            parts.port or _DEFAULT_PORTS.get(parts.scheme, 443),
        )
    found = FindingCollector(where)
    if not host:
        found.add(_not_a_host(""))
        return found.findings[0]
    try:
        way = through(find_proxy(proxy, url))
    except ValueError as error:
        found.bad("net.proxy", f"{host}:{port} cannot be reached: {error}", PROXY_FIX)
        return found.findings[0]
    if not way:
        return await probe_net(host, port, tls=scheme in {"https", "wss"}, where=where)
    found.add(bad("net.proxy", f"{host}:{port} cannot be reached{way}", PROXY_FIX))
    return found.findings[0]


async def probe_direct(
    url: str, *, where: str = "", proxy: SecretStr | None = None
) -> list[Finding]:
    """Return the result of `probe_url`; nothing if a proxy leads there, for then only a request
    shows what is wrong.
    """
    with contextlib.suppress(ValueError):  # told by the probe
        if find_proxy(proxy, url):
            return []
    return [await probe_url(url, where=where, proxy=proxy)]


PROXY_FIX: Final = (
    "check that the proxy runs; it comes from the key `proxy` or from ALL_PROXY, "
    "HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
)
