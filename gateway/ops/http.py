"""What is asked of the operator's HTTP server, and what it answers. Pure."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
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
