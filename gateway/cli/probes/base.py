"""Findings of probes, and the probe of a server's address: DNS, TCP and TLS handshake, without sending anything.

Codes: `net.name`, `net.refused`, `net.route`, `net.timeout`, `net.lost`, `net.proxy`, `net.tls.expired`,
`net.tls.clock`, `net.tls.issuer`, `net.tls.host`, `net.tls.none`, `net.tls`, and `net.ok`.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from gateway.core.redaction import REDACTED, Redactor
from gateway.core.text_safety import escape_unprintable, shorten

Severity = Literal["ok", "warning", "bad"]
"""`warning`: it works, but will surprise somebody; `bad`: it does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    code: str
    """Stable code of the check, for programs: dotted, lower case, e.g. `telegram.token`."""
    level: Severity
    what: str
    """The state in one sentence without secrets. Quotes of servers are printable."""
    fix: str = ""
    """One sentence that tells the operator what to do. Never empty unless the level is `ok`."""
    where: str = ""
    """Key of the configuration, file or channel. Empty: the machine."""


def ok(code: str, what: str, where: str = "") -> Finding:
    """Build a finding of something that is as it should be."""
    return Finding(code=code, level="ok", what=what, where=where)


def warning(code: str, what: str, fix: str, where: str = "") -> Finding:
    """Build a finding of something that works, but will surprise somebody."""
    return Finding(code=code, level="warning", what=what, fix=fix, where=where)


def bad(code: str, what: str, fix: str, where: str = "") -> Finding:
    """Build a finding of something that does not work."""
    return Finding(code=code, level="bad", what=what, fix=fix, where=where)


_MAX_SENTENCE_CHARS = 400
"""Longest sentence; sentences may quote a server."""


class FindingCollector:
    """Collects the findings of one probe, in order, without secrets and safe for any terminal."""

    def __init__(self, where: str = "", secrets: Iterable[str] = ()) -> None:
        """`where`: see `Finding.where`. `secrets`: texts that never appear in a finding."""
        known = [secret for secret in secrets if secret]
        self._where, self._redactor = where, Redactor(known)
        self._short_secrets = [secret for secret in known if len(secret) > 2]  # noqa: PLR2004 - less is in any word
        self.findings: list[Finding] = []

    def ok(self, code: str, what: str) -> None:
        """Add a finding of level `ok`."""
        self._add(code, "ok", what, "")

    def warn(self, code: str, what: str, fix: str) -> None:
        """Add a finding of level `warning`."""
        self._add(code, "warning", what, fix)

    def bad(self, code: str, what: str, fix: str) -> None:
        """Add a finding of level `bad`."""
        self._add(code, "bad", what, fix)

    @property
    def has_failed(self) -> bool:
        """True if a finding is bad."""
        return any(finding.level == "bad" for finding in self.findings)

    def clean(self, text: object) -> str:
        """Return foreign text as one printable line, limited in length, without secrets."""
        line = self._redactor(" ".join(str(text).split()))
        for secret in self._short_secrets:  # secrets too short for the redactor: a server may quote them
            line = line.replace(secret, REDACTED)
        return shorten(escape_unprintable(line), _MAX_SENTENCE_CHARS)

    def _add(self, code: str, level: Severity, what: str, fix: str) -> None:
        finding = Finding(code=code, level=level, what=self.clean(what), fix=self.clean(fix), where=self._where)
        self.findings.append(finding)


PROBE_TIMEOUT_S: Final = 10.0
"""Seconds for one probe as a whole."""
_EXPIRED, _NOT_YET, _SELF_SIGNED, _WRONG_HOST = 10, 9, frozenset({18, 19, 20, 21}), frozenset({62, 64})
"""Codes of OpenSSL, X509_V_ERR_*: x509_vfy.h."""
_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL})
DEFAULT_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}
"""Port of a URL without one, by scheme."""


@dataclass(frozen=True, slots=True)
class ConnectionProblem:
    """Why a connection could not be established, and what to do about it."""

    code: str
    what: str
    fix: str


def explain_connection_error(error: BaseException, host: str, port: int, *, ca_key: str = "") -> ConnectionProblem:
    """Explain a connection error and state a remedy. Pure.

    `ca_key`: the configuration key for another root certificate, where there is one.
    """
    address = f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate_error(error, address, host, ca_key)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason in {"WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
            return ConnectionProblem(
                "net.tls.none", f"{address} does not speak TLS", "take its port for TLS, or turn TLS off"
            )
        return ConnectionProblem(
            "net.tls", f"TLS with {address} failed ({reason or 'no reason'})", "look at the server's TLS settings"
        )
    if isinstance(error, socket.gaierror):
        if error.errno in {socket.EAI_AGAIN, getattr(socket, "EAI_SYSTEM", None)}:
            fix = "look at this machine's network and its name server (/etc/resolv.conf)"
            return ConnectionProblem("net.name", f"the name {host} could not be looked up", fix)
        return ConnectionProblem("net.name", f"there is no host called {host}", "look for a typing mistake in the name")
    if isinstance(error, ConnectionRefusedError):
        fix = "start the server, or correct the port"
        return ConnectionProblem("net.refused", f"nothing listens at {address}", fix)
    if isinstance(error, TimeoutError):
        fix = "look at the port, and at firewalls between here and there"
        return ConnectionProblem("net.timeout", f"{address} does not answer", fix)
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return ConnectionProblem("net.route", f"there is no way to {address}", "look at this machine's network")
    return ConnectionProblem(
        "net.lost", f"{address} hung up ({type(error).__name__})", "look at the port, and whether it takes TLS"
    )


def _explain_certificate_error(
    error: ssl.SSLCertVerificationError, address: str, host: str, ca_key: str
) -> ConnectionProblem:
    number = error.verify_code
    if number == _EXPIRED:
        fix = "whoever runs the server must renew it; look at this machine's clock, too"
        return ConnectionProblem("net.tls.expired", f"the certificate of {address} has expired", fix)
    if number == _NOT_YET:
        return ConnectionProblem(
            "net.tls.clock", f"the certificate of {address} is not valid yet", "set this machine's clock"
        )
    if number in _WRONG_HOST:
        fix = f"write the name that the certificate is for, in place of {host}"
        return ConnectionProblem("net.tls.host", f"the certificate of {address} is for another name", fix)
    if number in _SELF_SIGNED:
        own = f"; for a server of your own, name its root in {ca_key}" if ca_key else ""
        fix = f"install the package ca-certificates if every server is refused{own}"
        return ConnectionProblem(
            "net.tls.issuer", f"the certificate of {address} is signed by nobody whom this machine trusts", fix
        )
    return ConnectionProblem(
        "net.tls", f"the certificate of {address} is not good: {error.verify_message}", "ask who runs the server"
    )


async def probe_net(
    host: str, port: int, *, tls: bool | ssl.SSLContext = True, where: str = "", ca_key: str = ""
) -> list[Finding]:
    """Connect, shake hands and close. Returns one finding. Takes 10 s at most; raises nothing but CancelledError.

    `tls` True: with the system's root certificates.
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
        problem = (
            _invalid_host_problem(host)
            if isinstance(error, UnicodeError | ValueError)
            else explain_connection_error(error, host, port, ca_key=ca_key)
        )
        found.bad(problem.code, problem.what, problem.fix)
    else:
        found.ok("net.ok", f"{host}:{port} can be reached{' over TLS' if context else ''}")
    return found.findings


async def probe_url(url: str, *, where: str = "") -> list[Finding]:
    """Probe the host and port of an http, https, ws or wss URL. Only host and port are quoted.

    If the environment configures a proxy for it, the result is one finding `net.proxy`: a failure may be the proxy's.
    """
    scheme, host, port = "", "", 0
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 443)
    if not host:
        problem = _invalid_host_problem("")
        found = FindingCollector(where)
        found.bad(problem.code, problem.what, problem.fix)
        return found.findings
    if uses_proxy(scheme, host):
        found = FindingCollector(where)
        fix = "look at HTTPS_PROXY, HTTP_PROXY and NO_PROXY in the environment"
        found.bad("net.proxy", f"{host}:{port} cannot be reached through the proxy that the environment names", fix)
        return found.findings
    return await probe_net(host, port, tls=scheme in {"https", "wss"}, where=where)


def uses_proxy(scheme: str, host: str) -> bool:
    """Return whether HTTP libraries use a proxy of the environment for this host."""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return False
    proxies = urllib.request.getproxies_environment()
    named = scheme.replace("ws", "http") in proxies or "all" in proxies
    return named and not urllib.request.proxy_bypass(host)


def _invalid_host_problem(host: str) -> ConnectionProblem:
    return ConnectionProblem(
        "net.name", f"{host or 'that'} is not the name of a host", "write it as a name or an address"
    )


def clean_person_name(name: str) -> str:
    """Return the name without control characters, in at most 60 characters."""
    return FindingCollector().clean(name)[:60]
