"""The API as it is asked over HTTP: finds the row, reads what is asked, writes the answer."""

import json
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway.events import ConversationId
from gateway.ops.api import asks
from gateway.ops.api.house import ApiServices
from gateway.ops.api.openapi import build_openapi
from gateway.ops.api.reading import ApiBackend
from gateway.ops.api.table import EVENTS_PATH, ROUTES, SPEC_PATH, ApiRoute
from gateway.ops.api.telling import SseEncoder
from gateway.ops.api.written import add_titles, find_untitled, serialize_answer
from gateway.ops.http import (
    JSON_TYPE,
    HttpProblem,
    HttpRequestHead,
    HttpResponse,
    StreamingHttpResponse,
    problem_response,
)
from gateway.ops.stream import EventBroadcaster
from gateway.store import StoreError

_ROUTES_BY_PATH: dict[tuple[str, str], ApiRoute] = {(row.method, row.path): row for row in ROUTES}
_EVENTS_QUERY: TypeAdapter[asks.EventsQuery] = TypeAdapter(asks.EventsQuery)
ALLOWED_METHODS = {
    EVENTS_PATH: "GET, HEAD",
    SPEC_PATH: "GET, HEAD",
    **{row.path: "POST" if row.method == "POST" else "GET, HEAD" for row in ROUTES},
}
"""By path, what may be asked of it."""


class ApiRouter:
    """One for each server. Close it."""

    def __init__(self, house: ApiServices) -> None:
        self._services = house
        self._backend = ApiBackend(house)

    async def respond(
        self, head: HttpRequestHead, body: bytes, stream: EventBroadcaster
    ) -> HttpResponse | StreamingHttpResponse:
        """The answer to a request of whoever bears the token, for a path and a method that are there."""
        try:
            if head.path == EVENTS_PATH:
                after = _parse_after(head)
                return StreamingHttpResponse(content_type="text/event-stream", chunks=lambda: stream.subscribe(after))
            if head.path == SPEC_PATH:
                return HttpResponse(body=json.dumps(build_openapi(self._services.version)), content_type=JSON_TYPE)
            row = _ROUTES_BY_PATH["GET" if head.method == "HEAD" else head.method, head.path]
            answer = await row.handler(self._backend, _parse_input(row, head, body))
            told, titles = answer.model_dump(mode="json"), self._services.titles
            await titles.load([ConversationId(named) for _, named in find_untitled(told)])
            add_titles(told, titles.title)
            return HttpResponse(
                body=serialize_answer(told, self._services.redact, chars=row.max_text_chars), content_type=JSON_TYPE
            )
        except HttpProblem as refused:
            return refused.response
        except StoreError as error:
            return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, f"the store cannot be read: {error}")

    def create_encoder(self) -> SseEncoder:
        """What makes events of what happens, from now on."""
        return SseEncoder(self._backend)

    async def close(self) -> None:
        """Let go of the store."""
        await self._backend.close()


def _parse_input(row: ApiRoute, head: HttpRequestHead, body: bytes) -> Any:  # noqa: ANN401 - each row takes something else
    """What is asked. Raises Refused."""
    try:
        if row.method == "GET":
            return row.input_type.validate_python(dict(head.query))
        return row.input_type.validate_json(body)
    except ValidationError as error:
        raise HttpProblem(problem_response(HTTPStatus.BAD_REQUEST, _format_error(error))) from None


def _parse_after(head: HttpRequestHead) -> int | None:
    said = dict(head.query)
    last = head.headers.get("last-event-id", "")
    if last and "after" not in said:
        said["after"] = last
    try:
        return _EVENTS_QUERY.validate_python(said).after
    except ValidationError as error:
        raise HttpProblem(problem_response(HTTPStatus.BAD_REQUEST, _format_error(error))) from None


def _format_error(error: ValidationError) -> str:
    """The first mistake in words, without what was sent."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where or 'the body'}: {first['msg']}"
