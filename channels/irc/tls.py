"""What the operator wrote about TLS, as Python's TLS wants it.

Strict transport security: https://ircv3.net/specs/extensions/sts. Pure: time is handed in.

A server that is reached in the clear may say on which port it speaks TLS: then nothing more is said in the
clear. Over TLS it may say for how long that is to be remembered, which is over restarts, too.
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
    """One `sts` capability as offered."""

    port: int | None = None
    duration_s: int | None = None

    @classmethod
    def parse(cls, value: str) -> "StsCapability":
        """Nonsense is as good as nothing."""
        keys = dict(item.partition("=")[::2] for item in value.split(","))
        port = _parse_number(keys.get("port", ""))
        return cls(port if port and port <= _MAX_PORT else None, _parse_number(keys.get("duration", "")))


def _parse_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


class StsPolicy:
    """What one server has told."""

    def __init__(self, text: str = "") -> None:
        """`text`: of an earlier process; nonsense is as good as nothing."""
        self._host = ""
        self._port: int | None = None
        self._duration_s: int | None = None
        """None: told in the clear, so it holds until the secure port has said for how long."""
        self._until = datetime.min.replace(tzinfo=UTC)
        words = text.split(",")
        if len(words) == 4 and (port := _parse_number(words[1])) and (duration_s := _parse_number(words[2])):  # noqa: PLR2004 - as `text` writes it
            try:
                until = datetime.fromisoformat(words[3])
            except ValueError:
                return
            if port <= _MAX_PORT and until.tzinfo:
                self._host, self._port, self._duration_s, self._until = words[0], port, duration_s, until

    @property
    def serialized(self) -> str:
        """What is to be kept over a restart; empty: nothing. What was told in the clear is not."""
        if not self._port or not self._duration_s:
            return ""
        return f"{self._host},{self._port},{self._duration_s},{self._until.isoformat(timespec='seconds')}"

    def tls_port(self, host: str, now: datetime) -> int | None:
        """The port to speak TLS on instead of the configured way; None: as configured."""
        if host != self._host or (self._duration_s is not None and now >= self._until):
            self._port = None
        return self._port

    def record_upgrade(self, host: str, port: int) -> None:
        """Told in the clear: holds until the other port has said for how long."""
        self._host, self._port, self._duration_s = host, port, None

    def record_policy(self, host: str, port: int, offer: StsCapability | None, now: datetime) -> None:
        """Told over TLS on `port`, or the end of a connection there, from which the time runs anew.

        `offer` None: it told nothing, so what it told before holds.
        """
        duration_s = offer.duration_s if offer else self._duration_s if host == self._host else None
        self._host, self._port, self._duration_s = host, port, duration_s or 0
        self._until = now + timedelta(seconds=min(self._duration_s, _MAX_DURATION_S))


def connect_error_text(error: OSError) -> str:
    """Why a connection did not come about, for people."""
    return str(error) or ("timeout" if isinstance(error, TimeoutError) else "the server hung up")


def create_ssl_context(config: bool | TlsConfig) -> ssl.SSLContext | None:
    """None: no TLS. Reads the configured files; raises Denied if one cannot be used."""
    if config is False:
        return None
    tls = config if isinstance(config, TlsConfig) else TlsConfig()
    for path in filter(None, (tls.ca_file, tls.cert_file)):
        if Path(path).exists() and not Path(path).is_file():  # a pipe would keep us waiting, perhaps for ever
            raise Denied(f"cannot use the TLS files of the configuration: {path} is no plain file")
    try:
        made = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            made.load_cert_chain(tls.cert_file)
    except OSError as error:
        raise Denied(f"cannot use the TLS files of the configuration: {error}") from error
    if not tls.verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made
