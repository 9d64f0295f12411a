"""Every path of the API: a row each. The routes, what they are checked by, and `/openapi.json` are made of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, TypeAdapter

from gateway.ops.api import asks, doing, now, pages, places, shapes
from gateway.ops.api.events import EVENT_NAMES, ApiEvent
from gateway.ops.api.reading import ApiBackend
from gateway.ops.api.written import MAX_PROMPT_CHARS, MAX_TEXT_CHARS
from gateway.orders import CONTROL_REQUEST, ControlResponse

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
    takes: type[asks.ApiQuery],
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
    _get_route("/api/status", asks.ApiQuery, now.get_status, shapes.GatewayStatus, "The gateway as a whole."),
    _get_route("/api/channels", asks.ApiQuery, now.list_channels, shapes.ChannelList, "Every account's connection."),
    _get_route(
        "/api/conversations",
        asks.LimitQuery,
        places.list_conversations,
        shapes.ConversationList,
        "The newest conversations.",
    ),
    _get_route(
        "/api/conversation",
        asks.ConversationQuery,
        places.get_conversation,
        shapes.ConversationDetail,
        "One conversation, and the exact blocks of the last request that was made for it.",
        chars=MAX_PROMPT_CHARS,
    ),
    _get_route(
        "/api/notifications",
        asks.NotificationQuery,
        pages.list_notifications,
        shapes.NotificationPage,
        "What was noticed, and what became of it.",
    ),
    _get_route(
        "/api/turns",
        asks.ConversationPageQuery,
        pages.list_turns,
        shapes.TurnPage,
        "The turns that were taken, and what they cost.",
    ),
    _get_route(
        "/api/cache",
        asks.SpendingQuery,
        pages.get_cache_report,
        shapes.CacheReport,
        "What requests cost, and what the cache spared.",
    ),
    _get_route("/api/dmn", asks.ApiQuery, now.list_minds, shapes.DmnStatusList, "The agents' Default Mode Networks."),
    _get_route(
        "/api/dmn/history", asks.HoursQuery, now.get_dmn_history, shapes.DmnHistory, "When they entered which mode."
    ),
    _get_route(
        "/api/outbox", asks.ApiQuery, pages.get_outbox, shapes.OutboxStatus, "What is to be delivered, and what was."
    ),
    _get_route("/api/audit", asks.PageQuery, pages.list_audit, shapes.AuditPage, "Acts of administration."),
    ApiRoute(
        method="POST",
        path="/api/orders",
        summary="Steers the gateway.",
        input_type=CONTROL_REQUEST,
        response_model=ControlResponse,
        handler=doing.carry_out_order,
    ),
    ApiRoute(
        method="POST",
        path="/api/say",
        summary="Says something as the operator, in the operator's own conversation.",
        input_type=TypeAdapter(asks.SayRequest),
        response_model=shapes.SayReceipt,
        handler=doing.say_as_operator,
    ),
)
"""Beside `EVENTS_PATH`, whose answer flows on, and `SPEC_PATH`."""

EVENT_MODELS: Final[dict[str, type[ApiEvent]]] = {name: kind for kind, name in EVENT_NAMES.items()}
"""By name, what is told on `EVENTS_PATH`."""
