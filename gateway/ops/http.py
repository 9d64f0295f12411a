"""What is asked of the operator's HTTP server, and what it answers. Pure."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qsl, unquote

JSON = "application/json"
PROBLEM = "application/problem+json"
"""https://www.rfc-editor.org/rfc/rfc9457"""
MAX_FIELDS = 32
"""Of one query."""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A request without its body."""

    method: str
    path: str
    """As it was sent, decoded, without the query."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case; of a name that came twice the last one. `host` comes once: h11 sees to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer."""

    body: str | bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An answer that goes on until whoever reads it goes, or the server ends."""

    content_type: str
    chunks: Callable[[], AsyncGenerator[bytes]]
    """Begins it. Each chunk is written as it is; the generator is closed when nobody reads any more."""


class Site(Protocol):
    """What a server serves. Called on the event loop."""

    async def check_request(self, head: Head) -> Page | None:
        """What a request is answered before its body is read; None: read it, and ask `answer`."""

    async def respond(self, head: Head, body: bytes) -> Page | Flow:
        """The answer. What it raises ends that request only."""


class Refused(Exception):
    """A request gets a problem as its answer."""

    def __init__(self, page: Page) -> None:
        super().__init__(page.status.phrase)
        self.response = page


def problem(status: HTTPStatus, detail: str, *, headers: Headers = ()) -> Page:
    """What is wrong, and how to do it right, in words. Never quotes what was sent."""
    body = {"title": status.phrase, "status": status.value, "detail": detail}
    return Page(body=json.dumps(body) + "\n", status=status, content_type=PROBLEM, headers=headers)


def head_of(method: bytes, target: bytes, headers: Mapping[str, str]) -> Head:
    """Read a request line. Raises ValueError for a query that is none, or that has too many fields."""
    path, _, query = target.decode("ascii", "replace").partition("?")
    fields = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="replace")
    return Head(
        method=method.decode("ascii", "replace"),
        path=unquote(path, errors="replace"),
        query=dict(fields),
        headers=headers,
    )
