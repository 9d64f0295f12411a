"""What the operator's HTTP server serves, and to whom: pages for everybody, the API for whoever bears the token."""

import logging
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gateway.clock import Clock, SystemClock
from gateway.ops import guard
from gateway.ops.assets import load_assets
from gateway.ops.http import JSON_TYPE, HttpRequestHead, HttpResponse, StreamingHttpResponse, problem_response

if TYPE_CHECKING:
    from gateway.ops.api.door import ApiRouter
    from gateway.ops.stream import EventBroadcaster


logger = logging.getLogger("reverie.ops")

PageFactories = Mapping[str, Callable[[], HttpResponse]]
"""By path. Each is made anew for every request, on the event loop."""

DENIAL_DELAY_S: Final = 1.0
"""A wrong token is told so late: whoever tries many has few tries a second, for connections are few."""
_PUBLIC_PATHS: Final = frozenset({"/health", "/ready"})
"""Nothing in them is worth hiding, and whoever watches over processes calls them by any name."""
METRICS_PATH: Final = "/metrics"


class OpsSite:
    """Implements `gateway.ops.http.HttpHandler`."""

    def __init__(
        self,
        pages: PageFactories,
        *,
        host: str = "127.0.0.1",
        names: Collection[str] = (),
        token: str | None = None,
        door: "Callable[[], ApiRouter] | None" = None,
        stream: "EventBroadcaster | None" = None,
        clock: Clock | None = None,
    ) -> None:
        """`host`: what is listened on. `names`: other names for us. `token`: None: there is no API.

        `door` makes the API, which is loaded when somebody first asks for it.
        """
        self._pages = pages
        self._host, self._names = host, frozenset(name.lower() for name in names)
        self._token = token
        self._make, self._stream = door, stream
        self._router: ApiRouter | None = None
        self._clock = clock or SystemClock()
        self.denied_requests = 0
        """Requests with a wrong token, or none where one is needed."""

    async def check_request(self, head: HttpRequestHead) -> HttpResponse | None:
        path = head.path
        if (
            path not in _PUBLIC_PATHS
            and (elsewhere := guard.reject_unknown_host(head, self._host, self._names)) is not None
        ):
            return elsewhere
        if path in self._pages or path in load_assets():
            return await self._check_page(head)
        if not path.startswith("/api/") and path != "/openapi.json":
            there = ", ".join((*self._pages, "/", "/openapi.json", "/api/..."))
            return problem_response(HTTPStatus.NOT_FOUND, f"there is {there}")
        if (refused := await self._check_token(head)) is not None:
            return refused
        from gateway.ops.api.door import ALLOWED_METHODS  # noqa: PLC0415 - loaded when somebody first asks

        if path not in ALLOWED_METHODS:
            return problem_response(HTTPStatus.NOT_FOUND, "/openapi.json says what there is")
        if head.method not in ALLOWED_METHODS[path].split(", "):
            return _method_not_allowed(ALLOWED_METHODS[path])
        media = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if head.method == "POST" and media != JSON_TYPE:
            return problem_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the body as {JSON_TYPE}")
        return None

    async def respond(self, head: HttpRequestHead, body: bytes) -> HttpResponse | StreamingHttpResponse:
        if head.path in self._pages:
            return self._pages[head.path]()
        if head.path in load_assets():
            return load_assets()[head.path]
        assert self._stream is not None
        return await self.open_router().respond(head, body, self._stream)

    def open_router(self) -> "ApiRouter":
        """The API."""
        assert self._make is not None
        if self._router is None:
            self._router = self._make()
        return self._router

    async def close(self) -> None:
        """Let go of what the API holds."""
        if self._router is not None:
            await self._router.close()

    async def _check_page(self, head: HttpRequestHead) -> HttpResponse | None:
        if head.method not in ("GET", "HEAD"):
            return _method_not_allowed("GET, HEAD")
        if head.path == METRICS_PATH and not guard.is_loopback(self._host):
            return await self._check_token(head)
        return None

    async def _check_token(self, head: HttpRequestHead) -> HttpResponse | None:
        if self._token is None or self._make is None:
            return guard.missing_token_response()
        if guard.has_token(head, self._token):
            return None
        self.denied_requests += 1
        if "authorization" in head.headers:
            logger.warning("somebody came with a wrong token (%d so far)", self.denied_requests)
            await self._clock.sleep(DENIAL_DELAY_S)
        return guard.unauthorized_response()


def _method_not_allowed(methods: str) -> HttpResponse:
    return problem_response(HTTPStatus.METHOD_NOT_ALLOWED, f"only {methods}", headers=(("Allow", methods),))
