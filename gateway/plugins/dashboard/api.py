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
from types import MappingProxyType
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from gateway.core.api_models import EventsQuery
from gateway.core.route import ClientRole, RouteRefused, routes_of
from gateway.core.route import Route as PluginRoute
from gateway.plugins.dashboard.api_views import (
    COMMANDS,
    PAGES,
    PLUGINS_PATH,
    ApiBackend,
    View,
    audit,
    serialize_answer,
)
from gateway.plugins.dashboard.live_events import EventBroadcaster
from gateway.plugins.http import HttpRoute
from gateway.plugins.http.site import JSON_TYPE, read_input, validate

RESPONSE_TIMEOUT_S = 20.0
"""Seconds for the gateway to build a response. Orders wait until they are carried out."""
STALLED_READER_S = 30.0
"""Seconds without reading after which the client of a stream is considered gone."""
MAX_STREAMS = 16
EVENTS_PATH: Final = "/api/events"
CONFIG_PATH: Final = "/api/config"
"""Path, and beginning of the paths, that need the role `own`."""
ASSET_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ASSET_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
INDEX_FILE: Final = "index.html"
_EVENTS_QUERY: Final = TypeAdapter(EventsQuery)


def list_routes(events: EventBroadcaster) -> Iterator[HttpRoute]:
    """Yield all paths: of the page's files, the views, the plugins, and the live events."""
    for path in load_assets():
        yield HttpRoute(path, _send_asset, "page")
    for path, view in PAGES.items():
        needs: ClientRole = "own" if path.startswith(CONFIG_PATH) else "read"
        yield _build_route(events.backend, path, view, needs)
    for path, view in COMMANDS.items():
        needs = "own" if path.startswith(CONFIG_PATH) else "operate"
        yield _build_route(events.backend, path, view, needs, "POST")
    for plugin in events.backend.plugins.all:
        for declared in routes_of(plugin):
            yield _build_plugin_route(events.backend, plugin.name, declared)

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


@cache
def _compress_asset(path: str) -> Response:
    plain = load_assets()[path]
    headers = {
        "Content-Security-Policy": ASSET_CSP,
        "Content-Encoding": "gzip",
        "Vary": "Accept-Encoding",
    }
    return Response(gzip.compress(plain.body), media_type=plain.media_type, headers=headers)


async def _send_asset(request: Request) -> Response:
    path, accepted = request.url.path, request.headers.get("accept-encoding", "")
    return _compress_asset(path) if "gzip" in accepted else load_assets()[path]


def _build_route(
    backend: ApiBackend, path: str, view: View, needs: ClientRole, method: str = "GET"
) -> HttpRoute:
    """Return the route of a view. Its input is the query; of a `POST`, the body."""
    hints = get_type_hints(view)
    input_type, takes_client = TypeAdapter(tuple(hints.values())[1]), "client" in hints

    async def answer(request: Request) -> Response:
        given = await read_input(request, input_type)
        client = [request.state.client] if takes_client else []
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                text = await serialize_answer(backend, await view(backend, given, *client))
        except RouteRefused as refused:
            raise HTTPException(409, str(refused)) from None
        return Response(text, media_type=JSON_TYPE)

    return HttpRoute(path, answer, needs, method)


def _build_plugin_route(backend: ApiBackend, plugin: str, declared: PluginRoute) -> HttpRoute:
    """Return the route that a plugin answers."""
    input_type: TypeAdapter[Any] = TypeAdapter(declared.arguments)
    path = f"{PLUGINS_PATH}/{plugin}/{declared.path}"

    async def answer(request: Request) -> Response:
        given, text, why = dict(await read_input(request, input_type)), b"", ""
        with backend.plugins.guard(plugin, path):
            try:
                async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                    text = await serialize_answer(backend, await declared.answer(**given))
            except RouteRefused as refused:
                why = str(refused)
        if declared.method == "POST":
            done = why or ("" if text else "it has failed")
            await audit(backend, request.state.client, path, given, done, ok=bool(text))
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
