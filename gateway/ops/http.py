"""The operator's site on Starlette, and the connections that serve it on uvicorn. Imported at the
first connection.

A browser lets every page that a user visits send requests to this machine, under any host name
whose owner points it at this machine (DNS rebinding). So only known host names are accepted, and
data requires the token, which no browser sends on its own. The dashboard's files contain no data,
so they need no token; their content security policy allows nothing from other addresses, and no
script or style in the markup.

uvicorn bounds neither the time of a request nor that of a reader
(https://www.uvicorn.org/deployment/). So bodies and answers have a deadline, a stream is dropped
when its client stops reading, and `HttpServer` drops connections that have no request to be
answered.
"""

import asyncio
import contextlib
import hmac
import logging
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, Final

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from channels.aio import cancel_and_wait
from gateway.config.models import OpsConfig
from gateway.core.addresses import is_loopback_host
from gateway.core.api_models import EventsQuery
from gateway.core.clock import Clock
from gateway.core.format import describe_problem
from gateway.core.metrics import ChannelStats, GatewayStats
from gateway.core.redaction import Redactor
from gateway.core.route import Route as PluginRoute
from gateway.core.route import routes_of
from gateway.ops.api_views import (
    COMMANDS,
    PAGES,
    PLUGINS_PATH,
    View,
    find_input_type,
    release_version,
    serialize_answer,
)
from gateway.ops.live_events import EventBroadcaster
from gateway.ops.metrics import ChannelMetrics, RedactedMetrics
from gateway.store import StoreError

logger = logging.getLogger("reverie.ops")

MAX_HEAD_BYTES = 16_384
MAX_BODY_BYTES = 65_536
REQUEST_TIMEOUT_S = 5.0
"""Seconds for a client to send its body, and between two looks for connections without a
request."""
RESPONSE_TIMEOUT_S = 20.0
"""Seconds for the gateway to build a response. Orders wait until they are carried out."""
STALLED_READER_S = 30.0
"""Seconds without reading after which the client of a stream is considered gone."""
MAX_CONNECTIONS = 48
"""Connections without those of streams. Where there are more, those without a request are
dropped."""
MAX_STREAMS = 16
DENIAL_DELAY_S = 1.0
"""Seconds before a wrong token is refused."""
MAX_DENIALS = 32
"""Wrong tokens that may wait for their refusal: beside them no other token is looked at, so that
few can be tried."""
RETRY_SOON: Final = {"Retry-After": "1"}
JSON_TYPE: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"
"""https://www.rfc-editor.org/rfc/rfc9457"""
METRICS_PATH: Final = "/metrics"
EVENTS_PATH: Final = "/api/events"
PUBLIC_PATHS: Final = frozenset({"/health", "/ready"})
"""Paths that accept every host name: they contain no secrets, and process monitors call them by any
name."""
DEFAULT_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
ASSET_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ASSET_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
INDEX_FILE: Final = "index.html"
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")
_BEARER = re.compile(r"bearer +(?P<token>\S.*)", re.IGNORECASE)


def is_known_host(header: str, host: str, names: Collection[str]) -> bool:
    """Return whether a `Host` header names us: a loopback name, the address that we listen on, or
    one of `names`.

    `host`: the address that we listen on. A numeric address does not come from a foreign name
    server, so it is accepted when we listen on an address that others can reach.
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
    return address.is_loopback or not is_loopback_host(host)


def has_token(authorization: str, token: str) -> bool:
    """Return whether a request carries the token. The comparison takes the same time for every
    wrong token.
    """
    match = _BEARER.fullmatch(authorization)
    sent_token = match["token"].strip() if match is not None else ""
    return hmac.compare_digest(sent_token.encode("utf-8", "replace"), token.encode()) and bool(
        sent_token
    )


@cache
def load_assets() -> Mapping[str, Response]:
    """Return the dashboard's files by path (`/` and `/page/...`)."""
    found = dict[str, Response]()
    for file in files("gateway.plugins.dashboard").joinpath("page").iterdir():
        kind = ASSET_TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            path = "/" if file.name == INDEX_FILE else f"/page/{file.name}"
            found[path] = Response(
                file.read_bytes(), media_type=kind, headers={"Content-Security-Policy": ASSET_CSP}
            )
    return MappingProxyType(found)


class OpsSite:
    """ASGI application: pages and dashboard for everybody, the API for clients with the token."""

    def __init__(
        self,
        config: OpsConfig,
        clock: Clock,
        stats: GatewayStats,
        redactor: Redactor,
        *,
        sources: Iterable[Collector] = (),
        stream: EventBroadcaster | None = None,
    ) -> None:
        """`stream` is there if the configuration has a token. `sources`: of metrics besides those
        of the channels.
        """
        self._host, self._names = config.host, frozenset(name.lower() for name in config.hosts)
        self._token = config.token.get_secret_value() if config.token is not None else None
        self._clock, self._stats, self._redactor, self._stream = clock, stats, redactor, stream
        channels = ChannelMetrics(stats, clock, release_version())
        self._collector = RedactedMetrics(
            (ProcessCollector(registry=None), channels, *sources), redactor
        )
        self._denied, self._waiting_denials = 0, 0
        self._app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route(METRICS_PATH, self._metrics),
                *(Route(path, self._asset) for path in load_assets()),
                *(self._build_route(path, view, "GET") for path, view in PAGES.items()),
                *(self._build_route(path, view, "POST") for path, view in COMMANDS.items()),
                *(self._build_plugin_route(name, one) for name, one in self._list_plugin_routes()),
                Route(EVENTS_PATH, self._listen),
            ],
            exception_handlers={
                HTTPException: _answer_problem,
                TimeoutError: _answer_late,
                StoreError: _answer_store_error,
                Exception: _answer_bug,
            },
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        answer: ASGIApp = self._app
        try:
            await self._check(request)
        except HTTPException as refused:
            answer = await _answer_problem(request, refused)
        await answer(scope, receive, send_with_headers)

    async def _check(self, request: Request) -> None:
        """Raise HTTPException for a request that is refused whatever its body."""
        path = request.url.path
        if path not in PUBLIC_PATHS and not is_known_host(
            request.headers.get("host", ""), self._host, self._names
        ):
            raise HTTPException(
                403, "that host name is not known here: use 127.0.0.1, or add it to ops.hosts"
            )
        is_api = path.startswith("/api/")
        if is_api or (path == METRICS_PATH and not is_loopback_host(self._host)):
            await self._check_token(request)
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if is_api and request.method == "POST" and media != JSON_TYPE:
            raise HTTPException(415, f"send the body as {JSON_TYPE}")

    async def _check_token(self, request: Request) -> None:
        if self._token is None:
            raise HTTPException(
                403,
                "there is no API without a token: set ops.token, at least 16 characters, and start "
                "the gateway anew",
            )
        authorization = request.headers.get("authorization")
        if self._waiting_denials >= MAX_DENIALS:
            raise HTTPException(
                429, "many wrong tokens came just now: try again in a second", headers=RETRY_SOON
            )
        if has_token(authorization or "", self._token):
            return
        if authorization is not None:
            self._denied += 1
            logger.warning("somebody came with a wrong token (%d so far)", self._denied)
            self._waiting_denials += 1
            try:
                await self._clock.sleep(DENIAL_DELAY_S)
            finally:
                self._waiting_denials -= 1
        raise HTTPException(
            401,
            "send `Authorization: Bearer TOKEN` with the value of ops.token",
            headers={"WWW-Authenticate": 'Bearer realm="reverie"'},
        )

    async def _health(self, _request: Request) -> Response:
        """The process lives."""
        started = self._stats.snapshot().started.isoformat()
        return JSONResponse({"status": "ok", "version": release_version(), "started": started})

    async def _ready(self, _request: Request) -> Response:
        """The gateway is connected."""
        now = self._stats.snapshot()
        reasons = [self._redactor(describe_problem(one)) for one in now.problems]
        reasons += [
            self._redactor(_describe_channel(one)) for one in now.channels if one.state != "up"
        ]
        return JSONResponse(
            {
                "ready": now.is_ready,
                "channels": {one.channel: one.state for one in now.channels},
                "reasons": reasons,
            },
            status_code=200 if now.is_ready else 503,
        )

    async def _metrics(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._collector), headers={"Content-Type": content_type})

    async def _asset(self, request: Request) -> Response:
        return load_assets()[request.url.path]

    def _build_route(self, path: str, view: View, method: str) -> Route:
        """Return the route of a view. Its input is the query; of a `POST`, the body."""
        input_type = find_input_type(view)

        async def answer(request: Request) -> Response:
            assert self._stream is not None
            sent = dict(request.query_params) if method == "GET" else await _read_body(request)
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                found = await view(self._stream.backend, _validate(input_type, sent))
                text = await serialize_answer(self._stream.backend, found)
            return Response(text, media_type=JSON_TYPE)

        return Route(path, answer, methods=[method])

    def _list_plugin_routes(self) -> Iterator[tuple[str, PluginRoute]]:
        for one in self._stream.backend.plugins.all if self._stream is not None else ():
            for declared in routes_of(one):
                yield one.name, declared

    def _build_plugin_route(self, plugin: str, declared: PluginRoute) -> Route:
        """Return the route that a plugin answers."""
        input_type: TypeAdapter[Any] = TypeAdapter(declared.arguments)
        path = f"{PLUGINS_PATH}/{plugin}/{declared.path}"

        async def answer(request: Request) -> Response:
            assert self._stream is not None
            is_get, backend = declared.method == "GET", self._stream.backend
            sent = dict(request.query_params) if is_get else await _read_body(request)
            given = dict(_validate(input_type, sent))
            text = b""
            with backend.plugins.guard(plugin, path):
                async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                    text = await serialize_answer(backend, await declared.answer(**given))
            if not text:
                raise HTTPException(500, f"the plugin {plugin} has failed; the log says more")
            return Response(text, media_type=JSON_TYPE)

        return Route(path, answer, methods=[declared.method])

    async def _listen(self, request: Request) -> Response:
        assert self._stream is not None
        last = request.headers.get("last-event-id")  # as browsers that connect again send it
        query = {**({"after": last} if last else {}), **request.query_params}
        after = _validate(_EVENTS_QUERY, query).after
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._stream.listener_count >= MAX_STREAMS:
            raise HTTPException(503, f"{MAX_STREAMS} others listen already: end one of them")
        return EventResponse(self._stream.subscribe(after), media_type="text/event-stream")


_EVENTS_QUERY: Final = TypeAdapter(EventsQuery)


def _validate(kind: TypeAdapter[Any], sent: dict[str, str] | bytes) -> Any:  # noqa: ANN401 - of any type
    """Validate a query, or a body. Raises HTTPException with the first error, without the input."""
    try:
        return kind.validate_json(sent) if isinstance(sent, bytes) else kind.validate_python(sent)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise HTTPException(400, f"{where or 'the body'}: {first['msg']}") from None


class EventResponse(StreamingResponse):
    """A response that continues until the client disconnects, stops reading, or the server
    closes.
    """

    body_iterator: AsyncGenerator[bytes]

    async def stream_response(self, send: Send) -> None:
        async def send_soon(message: Message) -> None:
            async with asyncio.timeout(STALLED_READER_S):
                await send(message)

        async with contextlib.aclosing(self.body_iterator):
            with contextlib.suppress(TimeoutError):
                await super().stream_response(send_soon)


class HttpServer:
    """Connections of one site."""

    def __init__(self, site: ASGIApp) -> None:
        self._state, self._idle = ServerState(), frozenset[tuple[H11Protocol, object]]()
        self._config = Config(
            site,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # it warns of each request that cannot be read
            access_log=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            limit_concurrency=MAX_CONNECTIONS + MAX_STREAMS,
        )
        self._config.load()
        self._sweeping = asyncio.create_task(self._sweep())

    @property
    def connection_count(self) -> int:
        """Number of open connections, with those of streams."""
        return len(self._state.connections)

    def connect(self) -> H11Protocol:
        """Return the protocol of a new connection. A crowd without requests is dropped, so that it
        silences nobody.
        """
        if self.connection_count >= MAX_CONNECTIONS:
            self._idle = self._find_idle()
            self._drop_idle()
        return H11Protocol(self._config, self._state, {})

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(REQUEST_TIMEOUT_S)
            self._drop_idle()

    def _drop_idle(self) -> None:
        """Drop each connection that has had no request to be answered since the last call."""
        idle = self._find_idle()
        for connection, _ in idle & self._idle:
            connection.transport.abort()
        self._idle = idle

    def _find_idle(self) -> frozenset[tuple[H11Protocol, object]]:
        """Return the connections without a running request, each with its last one."""
        return frozenset(
            (one, one.cycle)
            for one in self._state.connections
            if isinstance(one, H11Protocol)
            and (one.cycle is None or one.cycle.response_complete or one.transport.is_closing())
        )

    async def close(self) -> None:
        """Drop every connection."""
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        await cancel_and_wait(self._sweeping, *self._state.tasks)


async def _read_body(request: Request) -> bytes:
    """Return the whole body. A body that declares itself too long is not read at all. Raises
    HTTPException.
    """
    too_long = HTTPException(413, f"at most {MAX_BODY_BYTES} bytes are taken")
    declared, found = request.headers.get("content-length", "0"), bytearray()
    if len(declared) > len(str(MAX_BODY_BYTES)) or int(declared) > MAX_BODY_BYTES:
        raise too_long
    async with asyncio.timeout(REQUEST_TIMEOUT_S):
        async for chunk in request.stream():
            found += chunk
            if len(found) > MAX_BODY_BYTES:
                raise too_long
    return bytes(found)


async def _answer_problem(_request: Request, error: Exception) -> Response:
    """Build a problem document (RFC 9457): what is wrong and how to correct it. It never quotes the
    request.
    """
    assert isinstance(error, HTTPException)
    detail, headers = error.detail, dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = (
            f"there is /, /health, /ready, {METRICS_PATH}, {EVENTS_PATH}, "
            f"{', '.join([*PAGES, *COMMANDS])}"
        )
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = detail = ", ".join(sorted(headers["Allow"].split(", ")))
        detail = f"only {detail}"
    return _problem_response(error.status_code, detail, headers)


async def _answer_late(_request: Request, _error: Exception) -> Response:
    return _problem_response(408, "that took too long")


async def _answer_store_error(_request: Request, error: Exception) -> Response:
    return _problem_response(503, f"the store cannot be read: {error}")


async def _answer_bug(_request: Request, error: Exception) -> Response:
    logger.error("a request broke", exc_info=error)
    return _problem_response(500, "the gateway could not answer; its log says why")


def _problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    body = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(body, status_code=status, media_type=PROBLEM_TYPE, headers=headers)


def _describe_channel(one: ChannelStats) -> str:
    """Return why a channel is not up, in one line. Untrusted: it may quote the platform."""
    why = " ".join(one.reason.split())
    return f"{one.channel} is {one.state}{f': {why}' if why else ''}"
