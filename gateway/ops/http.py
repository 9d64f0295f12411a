"""What is asked of the operator's HTTP server, and what it answers. Pure.

Who may ask the operator's HTTP server. Pure.

A browser lets any page that somebody looks at send requests to this machine, under any name that its owner has made
mean this machine (DNS rebinding). So only names count that are known to be ours, and data is given to nobody without
the token, which no browser sends by itself.
"""

import hmac
import json
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from typing import Protocol
from urllib.parse import parse_qsl, unquote

JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
"""https://www.rfc-editor.org/rfc/rfc9457"""
MAX_FIELDS = 32
"""Of one query."""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequestHead:
    """A request without its body."""

    method: str
    path: str
    """As it was sent, decoded, without the query."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case; of a name that came twice the last one. `host` comes once: h11 sees to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """An answer."""

    body: str | bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingHttpResponse:
    """An answer that goes on until whoever reads it goes, or the server ends."""

    content_type: str
    chunks: Callable[[], AsyncGenerator[bytes]]
    """Begins it. Each chunk is written as it is; the generator is closed when nobody reads any more."""


class HttpHandler(Protocol):
    """What a server serves. Called on the event loop."""

    async def check_request(self, head: HttpRequestHead) -> HttpResponse | None:
        """What a request is answered before its body is read; None: read it, and ask `answer`."""

    async def respond(self, head: HttpRequestHead, body: bytes) -> HttpResponse | StreamingHttpResponse:
        """The answer. What it raises ends that request only."""


class HttpProblem(Exception):
    """A request gets a problem as its answer."""

    def __init__(self, page: HttpResponse) -> None:
        super().__init__(page.status.phrase)
        self.response = page


def problem_response(status: HTTPStatus, detail: str, *, headers: Headers = ()) -> HttpResponse:
    """What is wrong, and how to do it right, in words. Never quotes what was sent."""
    body = {"title": status.phrase, "status": status.value, "detail": detail}
    return HttpResponse(body=json.dumps(body) + "\n", status=status, content_type=PROBLEM_TYPE, headers=headers)


def parse_request_head(method: bytes, target: bytes, headers: Mapping[str, str]) -> HttpRequestHead:
    """Read a request line. Raises ValueError for a query that is none, or that has too many fields."""
    path, _, query = target.decode("ascii", "replace").partition("?")
    fields = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="replace")
    return HttpRequestHead(
        method=method.decode("ascii", "replace"),
        path=unquote(path, errors="replace"),
        query=dict(fields),
        headers=headers,
    )


_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")
_BEARER = re.compile(r"bearer +(?P<token>\S.*)", re.IGNORECASE)
CHALLENGE = (("WWW-Authenticate", 'Bearer realm="reverie"'),)
OPS_DISABLED_HINT = "there is no API without a token: set ops.token, at least 16 characters, and start the gateway anew"


def is_loopback(host: str) -> bool:
    """Whether whatever listens there is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_known_host(said: str, host: str, names: Collection[str]) -> bool:
    """Whether a `Host` header names us: by a loopback name, by the address that we listen on, or one of the names.

    `host`: what we listen on. An address as such was made by nobody's name server, so it counts where we listen on one
    that others reach.
    """
    found = _HOST.fullmatch(said)
    if found is None:
        return False
    name = found["name"].strip("[]").rstrip(".").lower()
    if name == host.strip("[]").lower() or name in names or name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(host)


def reject_unknown_host(head: HttpRequestHead, host: str, names: Collection[str]) -> HttpResponse | None:
    """The answer to a request for another host. None: it is for us."""
    if is_known_host(head.headers.get("host", ""), host, names):
        return None
    return problem_response(
        HTTPStatus.FORBIDDEN, "that host name is not known here: use 127.0.0.1, or add it to ops.hosts"
    )


def has_token(head: HttpRequestHead, token: str) -> bool:
    """Whether a request comes with the token. Takes as long for every wrong one."""
    said = _BEARER.fullmatch(head.headers.get("authorization", ""))
    given = said["token"].strip() if said is not None else ""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()) and bool(given)


def unauthorized_response() -> HttpResponse:
    """The answer to whoever does not bear it."""
    return problem_response(
        HTTPStatus.UNAUTHORIZED, "send `Authorization: Bearer TOKEN` with the value of ops.token", headers=CHALLENGE
    )


def missing_token_response() -> HttpResponse:
    """The answer where there is none."""
    return problem_response(HTTPStatus.FORBIDDEN, OPS_DISABLED_HINT)
