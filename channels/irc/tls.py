"""TLS contexts, and strict transport security (https://ircv3.net/specs/extensions/sts).

A server that is reached in plain text may name its TLS port: then nothing more is sent in plain text. Over TLS it may
say for how long to remember that, also across restarts. The STS part is pure: time is passed in.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from channels.base import Denied
from channels.irc.config import TlsConfig

_MAX_PORT = 65_535
_MAX_DIGITS = 10
_MAX_DURATION_S = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class StsCapability:
    """The `sts` capability as offered by a server."""

    port: int | None = None
    duration_s: int | None = None

    @classmethod
    def parse(cls, value: str) -> "StsCapability":
        """Parse the value; invalid keys count as missing."""
        keys = dict(item.partition("=")[::2] for item in value.split(","))
        port = _parse_number(keys.get("port", ""))
        return cls(port if port and port <= _MAX_PORT else None, _parse_number(keys.get("duration", "")))


def _parse_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


class StsPolicy:
    """STS policy of one server."""

    def __init__(self, text: str = "") -> None:
        """Restore `text` of an earlier process; invalid text counts as none."""
        self._host = ""
        self._port: int | None = None
        self._duration_s: int | None = None
        """None: received in plain text, so valid until the TLS port sends a duration."""
        self._until = datetime.min.replace(tzinfo=UTC)
        fields = text.split(",")
        if len(fields) == 4 and (port := _parse_number(fields[1])) and (duration_s := _parse_number(fields[2])):  # noqa: PLR2004 - as `text` writes it
            try:
                until = datetime.fromisoformat(fields[3])
            except ValueError:
                return
            if port <= _MAX_PORT and until.tzinfo:
                self._host, self._port, self._duration_s, self._until = fields[0], port, duration_s, until

    @property
    def serialized(self) -> str:
        """Text to store across restarts; empty: nothing. A policy received in plain text is not stored."""
        if not self._port or not self._duration_s:
            return ""
        return f"{self._host},{self._port},{self._duration_s},{self._until.isoformat(timespec='seconds')}"

    def tls_port(self, host: str, now: datetime) -> int | None:
        """Return the TLS port to use instead of the configured one; None: connect as configured."""
        if host != self._host or (self._duration_s is not None and now >= self._until):
            self._port = None
        return self._port

    def record_upgrade(self, host: str, port: int) -> None:
        """Record an offer received in plain text: valid until the TLS port sends a duration."""
        self._host, self._port, self._duration_s = host, port, None

    def record_policy(self, host: str, port: int, offer: StsCapability | None, now: datetime) -> None:
        """Record an offer received over TLS on `port`, or the end of a connection there.

        The duration runs again from `now`. `offer` None: the server sent none, so the earlier one stays valid.
        """
        duration_s = offer.duration_s if offer else self._duration_s if host == self._host else None
        self._host, self._port, self._duration_s = host, port, duration_s or 0
        self._until = now + timedelta(seconds=min(self._duration_s, _MAX_DURATION_S))


def connect_error_text(error: OSError) -> str:
    """Return the reason for a failed connection, for people."""
    return str(error) or ("timeout" if isinstance(error, TimeoutError) else "the server hung up")


def create_ssl_context(config: bool | TlsConfig) -> ssl.SSLContext | None:
    """Return the context, None without TLS. Reads the configured files; raises Denied if one is unusable."""
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
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
