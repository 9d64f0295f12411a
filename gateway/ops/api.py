"""The API in OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1), made of the table. Pure.

The API as it is asked over HTTP: finds the row, reads what is asked, writes the answer.

Every path of the API: a row each. The routes, what they are checked by, and `/openapi.json` are made of it.

What is asked of the gateway: orders, and words of the operator.

The operator's API: what can be asked about a running gateway and of it, over HTTP, for whoever bears its token.

`table` has a row for each path; `shapes` and `events` say what is answered and told. Loaded when somebody first asks.
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from gateway.core.control_messages import CONTROL_REQUEST, ControlRequest, ControlResponse
from gateway.core.events import ConversationId
from gateway.ops.api_schemas import (
    MAX_PROMPT_CHARS,
    MAX_TEXT_CHARS,
    ApiBackend,
    ApiQuery,
    ApiServices,
    AuditPage,
    CacheReport,
    ChannelList,
    ConversationDetail,
    ConversationList,
    ConversationPageQuery,
    ConversationQuery,
    DmnHistory,
    DmnStatusList,
    EventsQuery,
    GatewayStatus,
    HoursQuery,
    LimitQuery,
    NotificationPage,
    NotificationQuery,
    OutboxStatus,
    PageQuery,
    SayReceipt,
    SayRequest,
    SpendingQuery,
    TurnPage,
    add_titles,
    find_untitled,
    serialize_answer,
)
from gateway.ops.api_views import (
    get_cache_report,
    get_conversation,
    get_dmn_history,
    get_outbox,
    get_status,
    list_audit,
    list_channels,
    list_conversations,
    list_minds,
    list_notifications,
    list_turns,
)
from gateway.ops.http import (
    JSON_TYPE,
    HttpProblem,
    HttpRequestHead,
    HttpResponse,
    StreamingHttpResponse,
    problem_response,
)
from gateway.ops.live_events import EVENT_NAMES, ApiEvent, EventBroadcaster, SseEncoder
from gateway.store import StoreError


async def carry_out_order(desk: ApiBackend, asked: ControlRequest) -> ControlResponse:
    """Carry out an order."""
    return await desk.services.carry_out_order(asked)


async def say_as_operator(desk: ApiBackend, said: SayRequest) -> SayReceipt:
    """Say something as the operator."""
    return SayReceipt(seq=await desk.services.say_as_operator(said.text))


EVENTS_PATH: Final = "/api/events"
SPEC_PATH: Final = "/openapi.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    """One method of one path."""

    path: str
    summary: str
    """What it is for, in one sentence."""
    input_type: TypeAdapter[Any]
    """The query; of a `POST`, the body."""
    response_model: type[BaseModel]
    handler: Callable[[ApiBackend, Any], Awaitable[BaseModel]]
    method: Literal["GET", "POST"] = "GET"
    max_text_chars: int = MAX_TEXT_CHARS
    """Of each text of the answer."""


def _get_route(
    path: str,
    takes: type[ApiQuery],
    does: Callable[[ApiBackend, Any], Awaitable[BaseModel]],
    gives: type[BaseModel],
    told: str,
    *,
    chars: int = MAX_TEXT_CHARS,
) -> ApiRoute:
    return ApiRoute(
        path=path, summary=told, input_type=TypeAdapter(takes), response_model=gives, handler=does, max_text_chars=chars
    )


ROUTES: Final[tuple[ApiRoute, ...]] = (
    _get_route("/api/status", ApiQuery, get_status, GatewayStatus, "The gateway as a whole."),
    _get_route("/api/channels", ApiQuery, list_channels, ChannelList, "Every account's connection."),
    _get_route(
        "/api/conversations",
        LimitQuery,
        list_conversations,
        ConversationList,
        "The newest conversations.",
    ),
    _get_route(
        "/api/conversation",
        ConversationQuery,
        get_conversation,
        ConversationDetail,
        "One conversation, and the exact blocks of the last request that was made for it.",
        chars=MAX_PROMPT_CHARS,
    ),
    _get_route(
        "/api/notifications",
        NotificationQuery,
        list_notifications,
        NotificationPage,
        "What was noticed, and what became of it.",
    ),
    _get_route(
        "/api/turns",
        ConversationPageQuery,
        list_turns,
        TurnPage,
        "The turns that were taken, and what they cost.",
    ),
    _get_route(
        "/api/cache",
        SpendingQuery,
        get_cache_report,
        CacheReport,
        "What requests cost, and what the cache spared.",
    ),
    _get_route("/api/dmn", ApiQuery, list_minds, DmnStatusList, "The agents' Default Mode Networks."),
    _get_route("/api/dmn/history", HoursQuery, get_dmn_history, DmnHistory, "When they entered which mode."),
    _get_route("/api/outbox", ApiQuery, get_outbox, OutboxStatus, "What is to be delivered, and what was."),
    _get_route("/api/audit", PageQuery, list_audit, AuditPage, "Acts of administration."),
    ApiRoute(
        method="POST",
        path="/api/orders",
        summary="Steers the gateway.",
        input_type=CONTROL_REQUEST,
        response_model=ControlResponse,
        handler=carry_out_order,
    ),
    ApiRoute(
        method="POST",
        path="/api/say",
        summary="Says something as the operator, in the operator's own conversation.",
        input_type=TypeAdapter(SayRequest),
        response_model=SayReceipt,
        handler=say_as_operator,
    ),
)
"""Beside `EVENTS_PATH`, whose answer flows on, and `SPEC_PATH`."""

EVENT_MODELS: Final[dict[str, type[ApiEvent]]] = {name: kind for kind, name in EVENT_NAMES.items()}
"""By name, what is told on `EVENTS_PATH`."""


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
    """The document, ready to be written as JSON."""
    gives = [(row.response_model, "serialization") for row in ROUTES]
    told: list[tuple[type[BaseModel], JsonSchemaMode]] = [(kind, "serialization") for kind in EVENT_MODELS.values()]
    refs, definitions = models_json_schema([*_unique_models(gives), *told], ref_template=_REF)
    schemas: dict[str, Any] = dict(definitions.get("$defs", {}))
    paths: dict[str, Any] = {}
    for row in ROUTES:
        paths.setdefault(row.path, {})[row.method.lower()] = _build_operation(
            row, refs[row.response_model, "serialization"], schemas
        )
    paths[EVENTS_PATH] = {
        "get": _build_events_operation(schemas, [refs[kind, "serialization"] for kind in EVENT_MODELS.values()])
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


def _build_operation(row: ApiRoute, gives: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": row.summary}
    if row.method == "GET":
        operation["parameters"] = _build_parameters(row.input_type)
    else:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _build_body_schema(row.input_type, schemas)}},
        }
    operation["responses"] = {
        "200": {"description": row.summary, "content": {"application/json": {"schema": gives}}},
        **_build_refusals(),
    }
    return operation


def _build_events_operation(schemas: dict[str, Any], kinds: list[dict[str, Any]]) -> dict[str, Any]:
    schemas["AnyEvent"] = {"oneOf": kinds, "description": f"By the name of the event: {', '.join(EVENT_MODELS)}."}
    return {
        "summary": "What happens, as it happens: server-sent events.",
        "parameters": [
            *_build_parameters(TypeAdapter(EventsQuery)),
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
    return {status: {"description": told, "content": problem} for status, told in _REFUSALS.items()}


def _build_parameters(takes: TypeAdapter[Any]) -> list[dict[str, Any]]:
    schema = takes.json_schema(mode="validation")
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": said}
        for name, said in schema.get("properties", {}).items()
    ]


def _build_body_schema(takes: TypeAdapter[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """The body's, with what it refers to among the others."""
    schema = takes.json_schema(mode="validation", ref_template=_REF)
    schemas.update(schema.pop("$defs", {}))
    return schema


_ROUTES_BY_PATH: dict[tuple[str, str], ApiRoute] = {(row.method, row.path): row for row in ROUTES}
_EVENTS_QUERY: TypeAdapter[EventsQuery] = TypeAdapter(EventsQuery)
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
