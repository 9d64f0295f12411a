"""HTTP server of the operator: serves pages and the dashboard to everybody, and the API to clients with the token.

Every connection carries one request and is bounded in size, time and number. h11 parses HTTP. A streaming response no
longer counts as a request: streams are bounded in number only, and a stream is dropped when its client stops reading.

The dashboard's files contain no data, so they need no token. Their content security policy allows nothing from other
addresses, and no script or style in the markup.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from types import MappingProxyType
from typing import Final

import h11

from gateway.config.models import OpsConfig
from gateway.core import metrics
from gateway.core.clock import Clock
from gateway.core.format import describe_problem
from gateway.core.metrics import ChannelStats, GatewayStats
from gateway.core.redaction import Redactor
from gateway.ops.api import ALLOWED_METHODS, ApiRouter
from gateway.ops.api_views import release_version
from gateway.ops.health import OutageMonitor, run_heartbeat
from gateway.ops.http import (
    JSON_TYPE,
    Headers,
    HttpProblem,
    HttpRequestHead,
    HttpResponse,
    StreamingHttpResponse,
    has_token,
    is_loopback,
    missing_token_response,
    parse_request_head,
    problem_response,
    reject_unknown_host,
    unauthorized_response,
)
from gateway.ops.metrics import MetricSource
from gateway.store import Store

logger = logging.getLogger("reverie.ops")


ASSET_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ASSET_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
INDEX_FILE: Final = "index.html"


@cache
def load_assets() -> MappingProxyType[str, HttpResponse]:
    """Return the dashboard's files by path (`/` and `/page/...`). They are read once, at the first request."""
    found = dict[str, HttpResponse]()
    for file in files("gateway.ops").joinpath("page").iterdir():
        kind = ASSET_TYPES.get(file.name[file.name.rfind(".") :])
        if kind is None:
            continue
        path = "/" if file.name == INDEX_FILE else f"/page/{file.name}"
        found[path] = HttpResponse(
            body=file.read_bytes(), content_type=kind, headers=(("Content-Security-Policy", ASSET_CSP),)
        )
    return MappingProxyType(found)


PageFactories = Mapping[str, Callable[[], HttpResponse]]
"""Page builders by path. Each is called for every request, on the event loop."""

DENIAL_DELAY_S: Final = 1.0
"""Seconds before a wrong token is refused: connections are few, so this limits how many tokens can be tried."""
_PUBLIC_PATHS: Final = frozenset({"/health", "/ready"})
"""Paths that accept every host name: they contain no secrets, and process monitors call them by any name."""
METRICS_PATH: Final = "/metrics"


class OpsSite:
    """Pages, dashboard and API under one host."""

    def __init__(self, pages: PageFactories, config: OpsConfig, clock: Clock, router: ApiRouter | None = None) -> None:
        """`router` is there if the configuration has a token."""
        self._pages = pages
        self._host, self._names = config.host, frozenset(name.lower() for name in config.hosts)
        self._token = config.token.get_secret_value() if config.token is not None else None
        self._router, self._clock = router, clock
        self.denied_requests = 0
        """Requests with a wrong token, or without one where it is needed."""

    async def check_request(self, head: HttpRequestHead) -> HttpResponse | None:
        """Return the response to a request that is decided without its body; None: read the body and call `respond`."""
        path = head.path
        if path not in _PUBLIC_PATHS and (elsewhere := reject_unknown_host(head, self._host, self._names)) is not None:
            return elsewhere
        if path in self._pages or path in load_assets():
            return await self._check_page(head)
        if not path.startswith("/api/") and path != "/openapi.json":
            paths = ", ".join((*self._pages, "/", "/openapi.json", "/api/..."))
            return problem_response(HTTPStatus.NOT_FOUND, f"there is {paths}")
        if (refused := await self._check_token(head)) is not None:
            return refused
        if path not in ALLOWED_METHODS:
            return problem_response(HTTPStatus.NOT_FOUND, "/openapi.json says what there is")
        if head.method not in ALLOWED_METHODS[path].split(", "):
            return _method_not_allowed(ALLOWED_METHODS[path])
        media = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if head.method == "POST" and media != JSON_TYPE:
            return problem_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the body as {JSON_TYPE}")
        return None

    async def respond(self, head: HttpRequestHead, body: bytes) -> HttpResponse | StreamingHttpResponse:
        """Return the response to a checked request. An exception ends this request only."""
        if head.path in self._pages:
            return self._pages[head.path]()
        if head.path in load_assets():
            return load_assets()[head.path]
        assert self._router is not None
        return await self._router.respond(head, body)

    async def _check_page(self, head: HttpRequestHead) -> HttpResponse | None:
        if head.method not in ("GET", "HEAD"):
            return _method_not_allowed("GET, HEAD")
        if head.path == METRICS_PATH and not is_loopback(self._host):
            return await self._check_token(head)
        return None

    async def _check_token(self, head: HttpRequestHead) -> HttpResponse | None:
        if self._token is None:
            return missing_token_response()
        if has_token(head, self._token):
            return None
        self.denied_requests += 1
        if "authorization" in head.headers:
            logger.warning("somebody came with a wrong token (%d so far)", self.denied_requests)
            await self._clock.sleep(DENIAL_DELAY_S)
        return unauthorized_response()


def _method_not_allowed(methods: str) -> HttpResponse:
    return problem_response(HTTPStatus.METHOD_NOT_ALLOWED, f"only {methods}", headers=(("Allow", methods),))


def build_pages(
    stats: GatewayStats, clock: Clock, version: str, redactor: Redactor, sources: Iterable[MetricSource] = ()
) -> PageFactories:
    """Build `/health` (the process lives), `/ready` (it is connected) and `/metrics` (for Prometheus).

    `sources`: of the metrics beside those of the channels. `redactor` is applied to the labels of metrics.
    """

    def health() -> HttpResponse:
        started = stats.snapshot().started
        body = {"status": "ok", "version": version, "started": started.isoformat()}
        return HttpResponse(body=json.dumps(body) + "\n", content_type="application/json")

    def ready() -> HttpResponse:
        now = stats.snapshot()
        states = {one.channel: one.state for one in now.channels}
        reasons = [redactor(describe_problem(one)) for one in now.problems]
        reasons += [redactor(_format_channel_problem(one)) for one in now.channels if one.state != "up"]
        return HttpResponse(
            body=json.dumps({"ready": now.is_ready, "channels": states, "reasons": reasons}) + "\n",
            status=HTTPStatus.OK if now.is_ready else HTTPStatus.SERVICE_UNAVAILABLE,
            content_type="application/json",
        )

    def metric() -> HttpResponse:
        more = [family for source in sources for family in source.families()]
        text = metrics.render_metrics(stats.snapshot(), clock.now(), version, redactor, more)
        return HttpResponse(body=text, content_type=metrics.CONTENT_TYPE)

    return {"/health": health, "/ready": ready, "/metrics": metric}


def _format_channel_problem(one: ChannelStats) -> str:
    """Return why a channel is not up, in one line. Untrusted: it may quote the platform."""
    why = " ".join(one.reason.split())
    return f"{one.channel} is {one.state}{f': {why}' if why else ''}"


MAX_HEAD_BYTES = 16_384
MAX_BODY_BYTES = 65_536
REQUEST_TIMEOUT_S = 5.0
"""Seconds for a client to send its request, and again to read the response. Programs need milliseconds."""
RESPONSE_TIMEOUT_S = 20.0
"""Seconds for the gateway to build a response. Orders wait until they are carried out."""
STALLED_READER_S = 30.0
"""Seconds without reading after which the client of a stream is considered gone."""
LINGER_S, LINGER_BYTES = 1.0, 4_194_304
"""Seconds and bytes that are still read from a client whose request was refused, so that it sees the response."""
MAX_CONNECTIONS = 32
MAX_STREAMS = 16
"""Streaming responses, in addition to `MAX_CONNECTIONS`."""
_READ_BYTES = 4_096
_BUFFER_BYTES = 65_536
"""Bytes of a stream that may wait in the transport until the client reads them."""
_DEFAULT_HEADERS: Headers = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
    ("Connection", "close"),
)
_DEFAULT_CSP = ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")


class OpsServer:
    """HTTP server of one site on one port."""

    def __init__(self, host: str, port: int, site: OpsSite) -> None:
        """`port` 0: any free port; `port` holds its number after `start`."""
        self._host = host
        self.port = port
        self._site = site
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.Task[None]] = set()

    async def start(self) -> bool:
        """Start to listen. False after a logged warning that says what to change: the gateway can run without it."""
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self.port, limit=_READ_BYTES)
        except (OSError, UnicodeError) as error:
            logger.warning(
                "no /health, /ready and /metrics: cannot listen on %s port %d (%s); "
                "set ops.port to another port, or to 0 for any free one",
                self._host,
                self.port,
                error.strerror if isinstance(error, OSError) else "not a host",
            )
            return False
        self.port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        logger.info("health and metrics on http://%s:%d/metrics", host, self.port)
        return True

    async def close(self) -> None:
        """End every connection and close the port. May be called more than once."""
        if self._server is None:
            return
        self._server.close()
        ending = (*self._connections, *self._streams)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= MAX_CONNECTIONS:
                http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
                flow = await self._exchange(http, reader, writer)
                if flow is not None:
                    self._connections.discard(task)
                    self._streams.add(task)
                    await _stream_chunks(http, flow, reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()  # the client does not wait, or cannot be answered
        except Exception:
            logger.exception("a request broke")
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            self._streams.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _exchange(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> AsyncGenerator[bytes] | None:
        """Read a request and answer it. Return the chunks of a streaming response, else None."""
        bare, answer = False, None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await _next_event(http, reader)
            if not isinstance(request, h11.Request):
                return None  # closed without a request
            bare = request.method == b"HEAD"
            answer = await self._respond(http, reader, _parse_head(request))
        except h11.RemoteProtocolError as error:
            answer = problem_response(
                HTTPStatus(error.error_status_hint), "that is no HTTP request that can be understood"
            )
        except HttpProblem as refused:
            answer = refused.response
        if isinstance(answer, StreamingHttpResponse) and len(self._streams) >= MAX_STREAMS:
            answer = problem_response(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_STREAMS} others listen already: end one of them"
            )
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            writer.write(_serialize_response(http, answer, bare=bare))
            await writer.drain()
            if http.their_state is h11.SEND_BODY:
                await _drain_request(reader, writer)
        return answer.chunks() if isinstance(answer, StreamingHttpResponse) and not bare else None

    async def _respond(
        self, http: h11.Connection, reader: asyncio.StreamReader, head: HttpRequestHead
    ) -> HttpResponse | StreamingHttpResponse:
        async with asyncio.timeout(RESPONSE_TIMEOUT_S):
            refused = await self._site.check_request(head)
        if refused is not None:
            return refused
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            body = await _read_body(http, reader, head)
        async with asyncio.timeout(RESPONSE_TIMEOUT_S):
            return await self._site.respond(head, body)


async def _next_event(http: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(_READ_BYTES))
    return event


async def _drain_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read on until the client has seen the response.

    Closing with unread data would reset the connection (RFC 9112, 9.6).
    """
    writer.write_eof()
    left = LINGER_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (data := await reader.read(_READ_BYTES)):
                left -= len(data)


def _parse_head(request: h11.Request) -> HttpRequestHead:
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
    try:
        return parse_request_head(request.method, request.target, headers)
    except ValueError:
        raise HttpProblem(problem_response(HTTPStatus.BAD_REQUEST, "the query cannot be read")) from None


async def _read_body(http: h11.Connection, reader: asyncio.StreamReader, head: HttpRequestHead) -> bytes:
    """Read the whole body. A body that declares itself too long is not read at all. Raises HttpProblem."""
    long = HttpProblem(
        problem_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_BODY_BYTES} bytes are taken")
    )
    declared = head.headers.get("content-length", "0")
    if len(declared) > len(str(MAX_BODY_BYTES)) or int(declared) > MAX_BODY_BYTES:
        raise long
    found = bytearray()
    while isinstance(event := await _next_event(http, reader), h11.Data):
        found += event.data
        if len(found) > MAX_BODY_BYTES:
            raise long
    return bytes(found)


def _serialize_response(http: h11.Connection, answer: HttpResponse | StreamingHttpResponse, *, bare: bool) -> bytes:
    """Serialize a response; of a streaming response its head. `bare`: without the body."""
    body = (
        b""
        if isinstance(answer, StreamingHttpResponse)
        else answer.body.encode()
        if isinstance(answer.body, str)
        else answer.body
    )
    length: Headers = () if isinstance(answer, StreamingHttpResponse) else (("Content-Length", str(len(body))),)
    own = () if isinstance(answer, StreamingHttpResponse) else answer.headers
    csp = () if any(name == _DEFAULT_CSP[0] for name, _ in own) else (_DEFAULT_CSP,)
    always = [one for one in _DEFAULT_HEADERS if one[0] not in {name for name, _ in own}]
    headers = [("Content-Type", answer.content_type), *length, *always, *csp, *own]
    status = HTTPStatus.OK if isinstance(answer, StreamingHttpResponse) else answer.status
    head = http.send(h11.Response(status_code=status, headers=headers, reason=status.phrase)) or b""
    return head if bare else head + body


async def _stream_chunks(
    http: h11.Connection,
    chunks: AsyncGenerator[bytes],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Write the chunks until they end or the client has gone. Returns soon after the client disconnects."""
    writer.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
    gone = asyncio.ensure_future(reader.read(1))  # a client of a stream sends nothing more: any byte means the end
    coming: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(chunks, None))
            await asyncio.wait({coming, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return
            chunk = coming.result()
            data = http.send(h11.EndOfMessage() if chunk is None else h11.Data(data=chunk))
            writer.write(data or b"")
            async with asyncio.timeout(STALLED_READER_S):
                await writer.drain()
            if chunk is None:
                return
    finally:
        for one in (gone, coming):
            if one is not None:
                one.cancel()
                await asyncio.wait({one})
        await chunks.aclose()


class OpsService:
    """Heartbeat, outage checks and HTTP server of a running gateway."""

    def __init__(
        self,
        config: OpsConfig,
        store: Store,
        clock: Clock,
        stats: GatewayStats,
        redactor: Redactor,
        *,
        sources: Iterable[MetricSource] = (),
        outages: OutageMonitor | None = None,
        router: ApiRouter | None = None,
    ) -> None:
        """`sources`: see `build_pages`; `router`: see `OpsSite`. `outages`: rooms are checked with each heartbeat."""
        self._store, self._clock, self._stats = store, clock, stats
        self._outages, self._router = outages, router
        pages = build_pages(stats, clock, release_version(), redactor, sources)
        self._server = OpsServer(config.host, config.port, OpsSite(pages, config, clock, router))
        self._status_changed = asyncio.Event()
        stats.on_change = self._on_status_changed

    async def run(self) -> None:
        """Run until cancelled. A port in use is logged as a warning only."""
        try:
            await self._server.start()
            await run_heartbeat(self._store.path, self._clock, self._stats, self._status_changed, self._outages)
        finally:
            await self._server.close()
            if self._router is not None:
                await self._router.close()

    def _on_status_changed(self) -> None:
        self._status_changed.set()
        if self._router is not None:
            self._router.stream.on_status_changed()
