"""HTTP API of a running gateway: one row for each path (`ROUTES`), their router, and their OpenAPI document.

Routes, input validation and `/openapi.json` (OpenAPI 3.1, https://spec.openapis.org/oas/v3.1.1) are made of the rows.
`api_models` has the models of queries, answers and events. Every path needs the token.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.exceptions import HTTPException

from gateway.commands.dispatcher import CommandDispatcher
from gateway.core import api_models as models
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.events import ConversationId
from gateway.core.facts import OPERATOR_CHANNEL
from gateway.ops import api_views as views
from gateway.ops.api_views import (
    MAX_TEXT_CHARS,
    ApiBackend,
    add_titles,
    find_untitled,
    release_version,
    serialize_answer,
)
from gateway.ops.live_events import EventBroadcaster
from gateway.stream.operator import OperatorChannel


async def say_as_operator(backend: ApiBackend, request: models.SayRequest) -> models.SayReceipt:
    """Post a text as the operator."""
    operator = backend.channels[OPERATOR_CHANNEL]
    assert isinstance(operator, OperatorChannel)
    return models.SayReceipt(seq=await operator.receive(request.text, backend.store))


EVENTS_PATH: Final = "/api/events"
SPEC_PATH: Final = "/openapi.json"


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One method of one path."""

    path: str
    summary: str
    """One sentence for the OpenAPI document."""
    input_type: TypeAdapter[Any]
    """Validator of the query; of a `POST`, of the body."""
    response_model: type[BaseModel]
    handler: Callable[[ApiBackend, Any], Awaitable[BaseModel]] | None
    """None: the input is an order."""
    method: Literal["GET", "POST"] = "GET"
    max_text_chars: int = MAX_TEXT_CHARS
    """Longest text of the answer."""


def _get_route(
    path: str, view: Callable[[ApiBackend, Any], Awaitable[BaseModel]], summary: str, *, chars: int = MAX_TEXT_CHARS
) -> ApiRoute:
    """Return the row of a view, whose annotations are the models of its query and its answer."""
    _, query, response = get_type_hints(view).values()
    return ApiRoute(path, summary, TypeAdapter(query), response, view, max_text_chars=chars)


ROUTES: Final[tuple[ApiRoute, ...]] = (
    _get_route("/api/status", views.get_status, "The gateway as a whole."),
    _get_route("/api/channels", views.list_channels, "Every account's connection."),
    _get_route("/api/conversations", views.list_conversations, "The newest conversations."),
    _get_route(
        "/api/conversation",
        views.get_conversation,
        "One conversation, and the exact blocks of the last request that was made for it.",
        chars=views.MAX_PROMPT_CHARS,
    ),
    _get_route("/api/notifications", views.list_notifications, "What was noticed, and what became of it."),
    _get_route("/api/turns", views.list_turns, "The turns that were taken, and what they cost."),
    _get_route("/api/cache", views.get_cache_report, "What requests cost, and what the cache spared."),
    _get_route("/api/dmn", views.list_minds, "The agents' Default Mode Networks."),
    _get_route("/api/dmn/history", views.get_dmn_history, "When they entered which mode."),
    _get_route("/api/outbox", views.get_outbox, "What is to be delivered, and what was."),
    _get_route("/api/audit", views.list_audit, "Acts of administration."),
    ApiRoute(
        method="POST",
        path="/api/orders",
        summary="Carries out a command of the command table as the operator: `words`, as `reverie ctl` takes them.",
        input_type=TypeAdapter(CommandRequest),
        response_model=ControlResponse,
        handler=None,
    ),
    ApiRoute(
        method="POST",
        path="/api/say",
        summary="Says something as the operator, in the operator's own conversation.",
        input_type=TypeAdapter(models.SayRequest),
        response_model=models.SayReceipt,
        handler=say_as_operator,
    ),
)
"""All paths except `EVENTS_PATH`, whose response is a stream, and `SPEC_PATH`."""

_REF = "#/components/schemas/{model}"
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["title", "status", "detail"],
    "properties": {"title": {"type": "string"}, "status": {"type": "integer"}, "detail": {"type": "string"}},
}
_REFUSALS = {
    "400": "It cannot be understood.",
    "401": "The token is missing or wrong.",
    "403": "No token is configured, or the host name is not known.",
}


def build_openapi(version: str) -> dict[str, Any]:
    """Build the OpenAPI document, ready for JSON."""
    responses = [(row.response_model, "serialization") for row in ROUTES]
    events: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (kind, "serialization") for kind in models.EVENT_MODELS.values()
    ]
    refs, definitions = models_json_schema([*_unique_models(responses), *events], ref_template=_REF)
    schemas: dict[str, Any] = dict(definitions.get("$defs", {}))
    paths: dict[str, Any] = {}
    for row in ROUTES:
        paths.setdefault(row.path, {})[row.method.lower()] = _build_operation(
            row, refs[row.response_model, "serialization"], schemas
        )
    paths[EVENTS_PATH] = {
        "get": _build_events_operation(schemas, [refs[kind, "serialization"] for kind in models.EVENT_MODELS.values()])
    }
    paths[SPEC_PATH] = {
        "get": {
            "summary": "This document.",
            "responses": {"200": {"description": "OpenAPI 3.1", "content": {"application/json": {"schema": {}}}}},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Reverie",
            "version": version,
            "description": "What a running gateway does, and what can be asked of it. Times are ISO 8601, UTC.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "`ops.token`"}},
            "schemas": {**schemas, "Problem": _PROBLEM},
        },
    }


def _unique_models(
    kinds: Iterable[tuple[type[BaseModel], str]],
) -> list[tuple[type[BaseModel], JsonSchemaMode]]:
    return [(kind, "serialization") for kind in dict.fromkeys(kind for kind, _ in kinds)]


def _build_operation(row: ApiRoute, response: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": row.summary}
    if row.method == "GET":
        operation["parameters"] = _build_parameters(row.input_type)
    else:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _build_body_schema(row.input_type, schemas)}},
        }
    operation["responses"] = {
        "200": {"description": row.summary, "content": {"application/json": {"schema": response}}},
        **_build_refusals(),
    }
    return operation


def _build_events_operation(schemas: dict[str, Any], kinds: list[dict[str, Any]]) -> dict[str, Any]:
    schemas["AnyEvent"] = {
        "oneOf": kinds,
        "description": f"By the name of the event: {', '.join(models.EVENT_MODELS)}.",
    }
    return {
        "summary": "What happens, as it happens: server-sent events.",
        "parameters": [
            *_build_parameters(TypeAdapter(models.EventsQuery)),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "schema": {"type": "string"},
                "description": "As `after`, for clients that connect again by themselves.",
            },
        ],
        "responses": {
            "200": {
                "description": "Each `data` is one of these. `id` is a position of the log.",
                "content": {"text/event-stream": {"schema": {"$ref": _REF.format(model="AnyEvent")}}},
            },
            **_build_refusals(),
        },
    }


def _build_refusals() -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}}
    return {status: {"description": description, "content": problem} for status, description in _REFUSALS.items()}


def _build_parameters(query: TypeAdapter[Any]) -> list[dict[str, Any]]:
    schema = query.json_schema(mode="validation")
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in schema.get("properties", {}).items()
    ]


def _build_body_schema(body: TypeAdapter[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the body; add the schemas that it refers to."""
    schema = body.json_schema(mode="validation", ref_template=_REF)
    schemas.update(schema.pop("$defs", {}))
    return schema


_ROUTES_BY_PATH = {row.path: row for row in ROUTES}
_EVENTS_QUERY: TypeAdapter[models.EventsQuery] = TypeAdapter(models.EventsQuery)


class ApiRouter:
    """Router of the API of one server. Its errors are HTTPException and StoreError."""

    def __init__(self, backend: ApiBackend, stream: EventBroadcaster, dispatcher: CommandDispatcher) -> None:
        """`dispatcher`: carries out what is posted to `/api/orders`."""
        self.stream = stream
        self._backend, self._dispatcher = backend, dispatcher

    async def answer(self, path: str, query: Mapping[str, str], body: bytes) -> bytes:
        """Return the answer to a request for an existing path, except `EVENTS_PATH`, as JSON."""
        if path == SPEC_PATH:
            return json.dumps(build_openapi(release_version())).encode()
        row = _ROUTES_BY_PATH[path]
        try:
            sent = (
                row.input_type.validate_python(dict(query))
                if row.method == "GET"
                else row.input_type.validate_json(body)
            )
        except ValidationError as error:
            raise HTTPException(400, _format_error(error)) from None
        answer: BaseModel
        if row.handler is None:
            answer = await self._dispatcher.carry_out(sent)
        else:
            answer = await row.handler(self._backend, sent)
        dumped, titles = answer.model_dump(mode="json"), self._backend.titles
        await titles.load([ConversationId(named) for _, named in find_untitled(dumped)])
        add_titles(dumped, titles)
        return serialize_answer(dumped, self._backend.redactor, chars=row.max_text_chars)

    def subscribe(self, query: Mapping[str, str], last_event_id: str) -> AsyncGenerator[bytes]:
        """Return the event stream. `last_event_id`: as browsers that connect again send it; `after` goes before it."""
        try:
            after = _EVENTS_QUERY.validate_python(
                {**({"after": last_event_id} if last_event_id else {}), **query}
            ).after
        except ValidationError as error:
            raise HTTPException(400, _format_error(error)) from None
        return self.stream.subscribe(after)

    async def close(self) -> None:
        """End the event stream and the connection to the store."""
        await self.stream.close()
        await self._backend.close()


def _format_error(error: ValidationError) -> str:
    """Render the first validation error, without the input."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where or 'the body'}: {first['msg']}"
