"""TLS contexts, and strict transport security (https://ircv3.net/specs/extensions/sts).

A server that is reached in plain text may name its TLS port: then nothing more is sent in plain
text. Over TLS it may say for how long to remember that, also across restarts. The STS part is pure:
time is passed in.
"""

import contextlib
import hashlib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from channels.base import Denied
from channels.irc.config import TlsConfig

_MAX_PORT = 65_535
_MAX_DIGITS = 10
_MAX_DURATION_S = 10 * 365 * 86_400


def parse_numbers(value: str) -> dict[str, int]:
    """Return the numbers in the value of a capability, e.g. `port=6697,duration=60`. Anything else
    is left out.
    """
    pairs = (item.partition("=")[::2] for item in value.split(","))
    return {
        name: int(text)
        for name, text in pairs
        if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    }


def sts_port(value: str) -> int:
    """Return the TLS port in the value of the `sts` capability; 0: none."""
    port = parse_numbers(value).get("port", 0)
    return port if port <= _MAX_PORT else 0


class StsPolicy:
    """STS policy of one server."""

    def __init__(self, text: str = "") -> None:
        """Restore `text` of an earlier process; invalid text counts as none."""
        self._host = ""
        self._port: int | None = None
        self._duration_s: int | None = None
        """None: received in plain text, so valid until the TLS port sends a duration."""
        self._until = datetime.min.replace(tzinfo=UTC)
        with contextlib.suppress(ValueError):
            host, port_text, duration_text, until_text = text.split(",")
            port, duration_s, until = (
                int(port_text),
                int(duration_text),
                datetime.fromisoformat(until_text),
            )
            if 0 < port <= _MAX_PORT and duration_s > 0 and until.tzinfo:
                self._host, self._port, self._duration_s, self._until = (
                    host,
                    port,
                    duration_s,
                    until,
                )

    @property
    def serialized(self) -> str:
        """Text to store across restarts; empty: nothing. A policy received in plain text is not
        stored.
        """
        if not self._port or not self._duration_s:
            return ""
        until = self._until.isoformat(timespec="seconds")
        return f"{self._host},{self._port},{self._duration_s},{until}"

    def tls_port(self, host: str, now: datetime) -> int | None:
        """Return the TLS port to use instead of the configured one; None: connect as configured."""
        if host != self._host or (self._duration_s is not None and now >= self._until):
            self._port = None
        return self._port

    def record_upgrade(self, host: str, port: int) -> None:
        """Record an offer received in plain text: valid until the TLS port sends a duration."""
        self._host, self._port, self._duration_s = host, port, None

    def record_policy(self, host: str, port: int, offer: str | None, now: datetime) -> None:
        """Record the value of `sts` received over TLS on `port`, or the end of a connection there.

        The duration runs again from `now`. `offer` None: the server sent none, so the earlier one
        stays valid.
        """
        earlier = self._duration_s if host == self._host else None
        duration_s = earlier if offer is None else parse_numbers(offer).get("duration")
        self._host, self._port, self._duration_s = host, port, duration_s or 0
        self._until = now + timedelta(seconds=min(self._duration_s, _MAX_DURATION_S))


def connect_error_text(error: OSError) -> str:
    """Return the reason for a failed connection, for people."""
    return str(error) or ("timeout" if isinstance(error, TimeoutError) else "the server hung up")


def check_fingerprint(config: bool | TlsConfig, certificate: bytes | None) -> None:
    """Raise ssl.SSLCertVerificationError if fingerprints are configured and `certificate` (DER) has
    none of them.
    """
    accepted = config.fingerprints if isinstance(config, TlsConfig) else ()
    shown = hashlib.sha256(certificate or b"").hexdigest()
    if accepted and shown not in accepted:
        message = f"it has the fingerprint {shown}, which is not in tls.fingerprints"
        error = ssl.SSLCertVerificationError(f"certificate verify failed: {message}")
        error.verify_code, error.verify_message = 0, message
        raise error


def create_ssl_context(config: bool | TlsConfig) -> ssl.SSLContext | None:
    """Return the context, None without TLS. Reads the configured files; raises Denied if one is
    unusable.

    With `tls.fingerprints` the context accepts any certificate: call `check_fingerprint` before
    anything is sent.
    """
    if config is False:
        return None
    tls = config if isinstance(config, TlsConfig) else TlsConfig()
    for path in filter(None, (tls.ca_file, tls.cert_file)):
        if Path(path).exists() and not Path(path).is_file():  # opening a pipe could block for ever
            raise Denied(f"cannot use the TLS files of the configuration: {path} is no plain file")
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file)
    except OSError as error:
        raise Denied(f"cannot use the TLS files of the configuration: {error}") from error
    if tls.fingerprints or not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
