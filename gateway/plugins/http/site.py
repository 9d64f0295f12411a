"""The paths of plugins on Starlette, and the connections that serve them on uvicorn. Imported at
the first connection.

A browser lets every page that a user visits send requests to this machine, under any host name
whose owner points it at this machine (DNS rebinding). So only known host names are accepted, and
data requires the token, which no browser sends on its own.

uvicorn bounds neither the time of a request nor that of a reader
(https://www.uvicorn.org/deployment/). So bodies and answers have a deadline, a stream is dropped
when its client stops reading, and `HttpServer` drops connections that have no request to be
answered.
"""

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from channels.aio import cancel_and_wait
from gateway.config.models import OpsConfig
from gateway.core.addresses import is_loopback_host
from gateway.core.clock import Clock
from gateway.core.control_messages import OPERATOR
from gateway.core.route import ClientRole
from gateway.plugins.http import Client, HttpRoute
from gateway.store import StoreError

logger = logging.getLogger("reverie.ops")

MAX_BODY_BYTES = 65_536
REQUEST_TIMEOUT_S = 5.0
"""Seconds for a client to send its body, and between two looks for connections without a
request."""
MAX_CONNECTIONS = 48
"""Connections without those of streams. Where there are more, those without a request are
dropped."""
MAX_STREAMS = 16
DENIAL_DELAY_S = 1.0
MAX_DENIALS = 32
"""Wrong tokens that may wait for their refusal: beside them no other token is looked at, so that
few can be tried."""
JSON_TYPE: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"
"""https://www.rfc-editor.org/rfc/rfc9457"""
DEFAULT_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
ROLES: Final[tuple[ClientRole, ...]] = get_args(ClientRole)
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")


def is_known_host(header: str, host: str, names: Collection[str]) -> bool:
    """Return whether a `Host` header names us: a loopback name, the address that we listen on, or
    one of `names`.

    `host`: the address that we listen on. A numeric address does not come from a foreign name
    server, so it is accepted when we listen on an address that others can reach.
    """
    if (found := _HOST.fullmatch(header)) is None:
        return False
    name = found["name"].strip("[]").rstrip(".").lower()
    if name == host.strip("[]").lower() or name in names or name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback_host(host)


def find_client(authorization: str, tokens: Sequence[tuple[Client, str]]) -> Client | None:
    """Return whose token a request carries; None: nobody's. It takes the same time for every wrong
    token.
    """
    match = re.fullmatch(r"bearer +(?P<token>\S.*)", authorization, re.IGNORECASE)
    sent, found = match["token"].strip().encode("utf-8", "replace") if match else b"", None
    for client, token in tokens:
        if hmac.compare_digest(sent, token.encode()) and sent:
            found = client
    return found


def is_foreign(request: Request) -> bool:
    """Return whether a browser sends it for a page of another site
    (https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/Sec-Fetch-Site).
    """
    origin = request.headers.get("origin")
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return True
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")


class OpsSite:
    """ASGI application: the paths of plugins, each for whom it is for."""

    def __init__(self, config: OpsConfig, clock: Clock, routes: Sequence[HttpRoute]) -> None:
        self._host, self._names = config.host, frozenset(name.lower() for name in config.hosts)
        self._tokens = [
            (Client(one.name, one.role), one.token.get_secret_value()) for one in config.tokens
        ]
        if config.token is not None:
            self._tokens.append((Client(OPERATOR, "own"), config.token.get_secret_value()))
        self._clock = clock
        self._denied, self._waiting_denials = 0, 0
        self._paths = ", ".join(dict.fromkeys(one.path for one in routes))
        self._public = frozenset(one.path for one in routes if one.needs == "anybody")
        self._app = Starlette(
            routes=[Route(one.path, self._guard(one), methods=[one.method]) for one in routes],
            exception_handlers={
                HTTPException: self._answer_problem,
                TimeoutError: _answer_late,
                StoreError: _answer_store_error,
                Exception: _answer_bug,
            },
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        answer: ASGIApp = self._app
        if request.url.path not in self._public and not is_known_host(
            request.headers.get("host", ""), self._host, self._names
        ):
            detail = "that host name is not known here: use 127.0.0.1, or add it to ops.hosts"
            answer = _problem_response(403, detail)
        await answer(scope, receive, send_with_headers)

    def _guard(self, route: HttpRoute) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            await self._check(request, route)
            found: Response = await route.answer(request)
            return found

        return answer

    async def _check(self, request: Request, route: HttpRoute) -> None:
        """Raise HTTPException for a request that is refused whatever its body."""
        if request.method == "POST" and is_foreign(request):
            raise HTTPException(403, "another site's page sends this: use the page of this server")
        if route.needs not in {"anybody", "page"}:
            client = request.state.client = await self._identify(request)
            if ROLES.index(client.role) < ROLES.index(route.needs):
                raise HTTPException(
                    403, f"this needs a token with the role {route.needs}: yours has {client.role}"
                )
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and media != JSON_TYPE:
            raise HTTPException(415, f"send the body as {JSON_TYPE}")

    async def _identify(self, request: Request) -> Client:
        if not self._tokens:
            raise HTTPException(
                403,
                "there is no API without a token: set ops.token, at least 16 characters, and start "
                "the gateway anew",
            )
        authorization = request.headers.get("authorization")
        if self._waiting_denials >= MAX_DENIALS:
            raise HTTPException(
                429,
                "many wrong tokens came just now: try again in a second",
                headers={"Retry-After": "1"},
            )
        if (client := find_client(authorization or "", self._tokens)) is not None:
            return client
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
            "send `Authorization: Bearer TOKEN` with the value of ops.token, or one of ops.tokens",
            headers={"WWW-Authenticate": 'Bearer realm="reverie"'},
        )

    async def _answer_problem(self, _request: Request, error: Exception) -> Response:
        """Build a problem document (RFC 9457): what is wrong and how to correct it. It never quotes
        the request.
        """
        assert isinstance(error, HTTPException)
        detail, headers = error.detail, dict(error.headers or {})
        if error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
            detail = f"there is {self._paths}"
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = detail = ", ".join(sorted(headers["Allow"].split(", ")))
            detail = f"only {detail}"
        return _problem_response(error.status_code, detail, headers)


def validate(kind: TypeAdapter[Any], sent: dict[str, str] | bytes) -> Any:  # noqa: ANN401 - of any type
    """Validate a query, or a body. Raises HTTPException with the first error, without the input."""
    try:
        return kind.validate_json(sent) if isinstance(sent, bytes) else kind.validate_python(sent)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise HTTPException(400, f"{where or 'the body'}: {first['msg']}") from None


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
            h11_max_incomplete_event_size=16_384,
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


async def read_input(request: Request, kind: TypeAdapter[Any]) -> Any:  # noqa: ANN401 - of any type
    """Return the validated input of a request: the query; of a `POST`, the body. Raises
    HTTPException.
    """
    is_get = request.method in {"GET", "HEAD"}
    return validate(kind, dict(request.query_params) if is_get else await _read_body(request))


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
