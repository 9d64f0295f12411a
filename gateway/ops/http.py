"""Requests and responses of the operator's HTTP server, and the checks of host name and token. Pure.

A browser lets every page that a user visits send requests to this machine, under any host name whose owner points it at
this machine (DNS rebinding). So only known host names are accepted, and data requires the token, which no browser sends
on its own.
"""

import hmac
import json
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import parse_qsl, unquote

JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
"""https://www.rfc-editor.org/rfc/rfc9457"""
MAX_FIELDS = 32
"""Query parameters of one request."""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequestHead:
    """An HTTP request without its body."""

    method: str
    path: str
    """Path as sent, decoded, without the query."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header values by lower-case name; the last value of a repeated name. `host` occurs once: h11 checks that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A complete HTTP response."""

    body: str | bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingHttpResponse:
    """A response that continues until the client disconnects or the server stops."""

    content_type: str
    chunks: Callable[[], AsyncGenerator[bytes]]
    """Start the stream. Each chunk is written unchanged; the generator is closed when the client is gone."""


class HttpProblem(Exception):
    """An error that is answered with a problem response."""

    def __init__(self, page: HttpResponse) -> None:
        super().__init__(page.status.phrase)
        self.response = page


def problem_response(status: HTTPStatus, detail: str, *, headers: Headers = ()) -> HttpResponse:
    """Build a problem document (RFC 9457): what is wrong and how to correct it. It never quotes the request."""
    body = {"title": status.phrase, "status": status.value, "detail": detail}
    return HttpResponse(body=json.dumps(body) + "\n", status=status, content_type=PROBLEM_TYPE, headers=headers)


def parse_request_head(method: bytes, target: bytes, headers: Mapping[str, str]) -> HttpRequestHead:
    """Parse a request line. Raises ValueError for a malformed query or one with more than `MAX_FIELDS` fields."""
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
    """Return whether a listener on this host can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_known_host(header: str, host: str, names: Collection[str]) -> bool:
    """Return whether a `Host` header names us: a loopback name, the address that we listen on, or one of `names`.

    `host`: the address that we listen on. A numeric address does not come from a foreign name server, so it is accepted
    when we listen on an address that others can reach.
    """
    found = _HOST.fullmatch(header)
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
    """Return the response to a request for an unknown host. None: the host is known."""
    if is_known_host(head.headers.get("host", ""), host, names):
        return None
    return problem_response(
        HTTPStatus.FORBIDDEN, "that host name is not known here: use 127.0.0.1, or add it to ops.hosts"
    )


def has_token(head: HttpRequestHead, token: str) -> bool:
    """Return whether a request carries the token. The comparison takes the same time for every wrong token."""
    match = _BEARER.fullmatch(head.headers.get("authorization", ""))
    sent_token = match["token"].strip() if match is not None else ""
    return hmac.compare_digest(sent_token.encode("utf-8", "replace"), token.encode()) and bool(sent_token)


def unauthorized_response() -> HttpResponse:
    """Build the response to a request without the right token."""
    return problem_response(
        HTTPStatus.UNAUTHORIZED, "send `Authorization: Bearer TOKEN` with the value of ops.token", headers=CHALLENGE
    )


def missing_token_response() -> HttpResponse:
    """Build the response to an API request when no token is configured."""
    return problem_response(HTTPStatus.FORBIDDEN, OPS_DISABLED_HINT)
