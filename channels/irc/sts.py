"""Strict transport security: https://ircv3.net/specs/extensions/sts. Pure: time is handed in.

A server that is reached in the clear may say on which port it speaks TLS: then nothing more is said in the
clear. Over TLS it may say for how long that is to be remembered; here that is until the process ends at most.
"""

from dataclasses import dataclass

_MOST_PORT = 65_535
_LONGEST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Offer:
    """One `sts` capability as offered."""

    port: int | None = None
    duration_s: int | None = None

    @classmethod
    def read(cls, value: str) -> "Offer":
        """Nonsense is as good as nothing."""
        keys = dict(item.partition("=")[::2] for item in value.split(","))
        port = _number(keys.get("port", ""))
        return cls(port if port and port <= _MOST_PORT else None, _number(keys.get("duration", "")))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_DIGITS else None


class Policy:
    """What one server has told, in the life of a process."""

    def __init__(self) -> None:
        self._port: int | None = None
        self._duration_s: float | None = None
        self._until_s = 0.0

    def port(self, now_s: float) -> int | None:
        """The port to speak TLS on instead of the configured way; None: as configured."""
        if self._duration_s is not None and now_s >= self._until_s:
            self._port = None
        return self._port

    def upgrade(self, port: int) -> None:
        """Told in the clear: holds until the other port has said for how long."""
        self._port, self._duration_s = port, None

    def secured(self, offer: Offer | None, port: int, now_s: float) -> None:
        """Told over TLS on `port`; `offer` None: it told nothing, so the next connection asks again."""
        duration_s = offer.duration_s if offer else None
        self._port, self._duration_s, self._until_s = port, duration_s or 0, now_s + (duration_s or 0)
