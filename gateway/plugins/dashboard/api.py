"""Paths of the dashboard and of its API. Imported at the first connection.

The dashboard's files contain no data, so they need no token; their content security policy allows
nothing from other addresses, and no script or style in the markup.
"""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import cache
from importlib.resources import files
from inspect import signature
from typing import Final

from pydantic import ConfigDict, TypeAdapter, create_model
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from gateway.core.api_models import Position
from gateway.core.route import Route, RouteRefused, routes_of
from gateway.plugins.dashboard.api_views import PLUGINS_PATH, Api
from gateway.plugins.dashboard.live_events import EventBroadcaster
from gateway.plugins.http import HttpRoute
from gateway.plugins.http.site import JSON_TYPE, read_input, validate

RESPONSE_TIMEOUT_S = 20.0
"""Seconds for the gateway to build a response. Orders wait until they are carried out."""
STALLED_READER_S = 30.0
"""Seconds without reading after which the client of a stream is considered gone."""
MAX_STREAMS = 16
EVENTS_PATH: Final = "/api/events"
ASSET_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ASSET_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
INDEX_FILE: Final = "index.html"
_EVENTS_QUERY: Final = TypeAdapter(
    create_model(
        "EventsQuery",
        __config__=ConfigDict(extra="forbid"),
        after=(Position | None, None),  # begin behind this position of the log; None: now
    )
)


def list_routes(events: EventBroadcaster) -> Iterator[HttpRoute]:
    """Yield all paths: of the page's files, the API, the plugins, and the live events."""

    async def send_asset(request: Request) -> Response:
        plain, packed = load_assets()[request.url.path]
        return packed if "gzip" in request.headers.get("accept-encoding", "") else plain

    for path in load_assets():
        yield HttpRoute(path, send_asset, "page")
    for declared in routes_of(events.api):
        yield _build_route(events.api, declared.path, declared)
    for plugin in events.api.plugins.all:
        for declared in routes_of(plugin):
            path = f"{PLUGINS_PATH}/{plugin.name}/{declared.path}"
            yield _build_route(events.api, path, declared, plugin.name)

    async def listen(request: Request) -> Response:
        last = request.headers.get("last-event-id")  # as browsers that connect again send it
        query = {**({"after": last} if last else {}), **request.query_params}
        after = validate(_EVENTS_QUERY, query).after
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if events.listener_count >= MAX_STREAMS:
            raise HTTPException(503, f"{MAX_STREAMS} others listen already: end one of them")
        return EventResponse(events.subscribe(after), media_type="text/event-stream")

    yield HttpRoute(EVENTS_PATH, listen, "read")


@cache
def load_assets() -> Mapping[str, tuple[Response, Response]]:
    """Return the dashboard's files by path (`/` and `/page/...`), each also compressed."""
    found = dict[str, tuple[Response, Response]]()
    plain = {"Content-Security-Policy": ASSET_CSP}
    packed = {**plain, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    for file in files("gateway.plugins.dashboard").joinpath("page").iterdir():
        kind = ASSET_TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            data = file.read_bytes()
            found["/" if file.name == INDEX_FILE else f"/page/{file.name}"] = (
                Response(data, media_type=kind, headers=plain),
                Response(gzip.compress(data), media_type=kind, headers=packed),
            )
    return found


def _build_route(api: Api, path: str, declared: Route, plugin: str = "") -> HttpRoute:
    """Return the HTTP route of a declared one. `plugin`: whose it is; what it raises is recorded as
    that plugin's problem, and its POSTs are audited here.
    """
    arguments = TypeAdapter(declared.arguments)
    takes_client = "client" in signature(declared.answer).parameters

    async def answer(request: Request) -> Response:
        given, text, why = dict(await read_input(request, arguments)), b"", ""
        client = {"client": request.state.client} if takes_client else {}
        with api.plugins.guard(plugin, path) if plugin else contextlib.nullcontext():
            try:
                async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                    text = await api.serialize(await declared.answer(**given, **client))
            except RouteRefused as refused:
                why = str(refused)
        if plugin and declared.method == "POST":
            done = why or ("" if text else "it has failed")
            await api.audit(request.state.client, path, given, done, ok=bool(text))
        if why:
            raise HTTPException(409, why)
        if not text:
            raise HTTPException(500, f"the plugin {plugin} has failed; the log says more")
        return Response(text, media_type=JSON_TYPE)

    return HttpRoute(path, answer, declared.role, declared.method)


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
