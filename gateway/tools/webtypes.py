"""What is asked of a web server, and what it says. Pure."""

from dataclasses import dataclass, field

from gateway.tools.addresses import FetchTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest:
    """What to ask a server for."""

    target: FetchTarget
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names in lower case. May hold a key."""
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebResponse:
    """What a server said."""

    target: FetchTarget
    """Where it was, after all redirects."""
    status: int
    media_type: str
    """The media type, in lower case and without parameters. Empty: the server did not say."""
    charset: str
    declared_bytes: int | None
    """Of the body in bytes, as the server said. None: it did not."""
    body: bytes
    """Unpacked. Empty if its kind is not to be read."""
    is_truncated: bool
    """There was more of it."""
