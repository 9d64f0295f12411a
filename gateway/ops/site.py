"""What the operator's HTTP server serves, and to whom: pages for everybody, the API for whoever bears the token."""

import logging
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gateway.clock import Clock, SystemClock
from gateway.ops import guard
from gateway.ops.assets import assets
from gateway.ops.http import JSON, Flow, Head, Page, problem

if TYPE_CHECKING:
    from gateway.ops.api.door import Door
    from gateway.ops.stream import Stream

logger = logging.getLogger("reverie.ops")

Pages = Mapping[str, Callable[[], Page]]
"""By path. Each is made anew for every request, on the event loop."""

DENIED_S: Final = 1.0
"""A wrong token is told so late: whoever tries many has few tries a second, for connections are few."""
_FOR_ALL: Final = frozenset({"/health", "/ready"})
"""Nothing in them is worth hiding, and whoever watches over processes calls them by any name."""
METRICS: Final = "/metrics"


class OpsSite:
    """Implements `gateway.ops.http.Site`."""

    def __init__(
        self,
        pages: Pages,
        *,
        host: str = "127.0.0.1",
        names: Collection[str] = (),
        token: str | None = None,
        door: "Callable[[], Door] | None" = None,
        stream: "Stream | None" = None,
        clock: Clock | None = None,
    ) -> None:
        """`host`: what is listened on. `names`: other names for us. `token`: None: there is no API.

        `door` makes the API, which is loaded when somebody first asks for it.
        """
        self._pages = pages
        self._host, self._names = host, frozenset(name.lower() for name in names)
        self._token = token
        self._make, self._stream = door, stream
        self._router: Door | None = None
        self._clock = clock or SystemClock()
        self.denied_requests = 0
        """Requests with a wrong token, or none where one is needed."""

    async def check_request(self, head: Head) -> Page | None:
        path = head.path
        if path not in _FOR_ALL and (elsewhere := guard.misdirected(head, self._host, self._names)) is not None:
            return elsewhere
        if path in self._pages or path in assets():
            return await self._check_page(head)
        if not path.startswith("/api/") and path != "/openapi.json":
            there = ", ".join((*self._pages, "/", "/openapi.json", "/api/..."))
            return problem(HTTPStatus.NOT_FOUND, f"there is {there}")
        if (refused := await self._check_token(head)) is not None:
            return refused
        from gateway.ops.api.door import METHODS  # noqa: PLC0415 - loaded when somebody first asks

        if path not in METHODS:
            return problem(HTTPStatus.NOT_FOUND, "/openapi.json says what there is")
        if head.method not in METHODS[path].split(", "):
            return _only(METHODS[path])
        media = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if head.method == "POST" and media != JSON:
            return problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the body as {JSON}")
        return None

    async def respond(self, head: Head, body: bytes) -> Page | Flow:
        if head.path in self._pages:
            return self._pages[head.path]()
        if head.path in assets():
            return assets()[head.path]
        assert self._stream is not None
        return await self.open_router().respond(head, body, self._stream)

    def open_router(self) -> "Door":
        """The API."""
        assert self._make is not None
        if self._router is None:
            self._router = self._make()
        return self._router

    async def close(self) -> None:
        """Let go of what the API holds."""
        if self._router is not None:
            await self._router.close()

    async def _check_page(self, head: Head) -> Page | None:
        if head.method not in ("GET", "HEAD"):
            return _only("GET, HEAD")
        if head.path == METRICS and not guard.is_loopback(self._host):
            return await self._check_token(head)
        return None

    async def _check_token(self, head: Head) -> Page | None:
        if self._token is None or self._make is None:
            return guard.unset()
        if guard.bears(head, self._token):
            return None
        self.denied_requests += 1
        if "authorization" in head.headers:
            logger.warning("somebody came with a wrong token (%d so far)", self.denied_requests)
            await self._clock.sleep(DENIED_S)
        return guard.denied()


def _only(methods: str) -> Page:
    return problem(HTTPStatus.METHOD_NOT_ALLOWED, f"only {methods}", headers=(("Allow", methods),))
