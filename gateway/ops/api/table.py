"""Every path of the API: a row each. The routes, what they are checked by, and `/openapi.json` are made of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, TypeAdapter

from gateway.ops.api import asks, doing, now, pages, places, shapes
from gateway.ops.api.events import EVENTS, Event
from gateway.ops.api.reading import Desk
from gateway.ops.api.written import PROMPT_CHARS, TEXT_CHARS
from gateway.orders import ORDER, Answer

EVENTS_PATH: Final = "/api/events"
SPEC_PATH: Final = "/openapi.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method of one path."""

    path: str
    summary: str
    """What it is for, in one sentence."""
    input_type: TypeAdapter[Any]
    """The query; of a `POST`, the body."""
    response_model: type[BaseModel]
    handler: Callable[[Desk, Any], Awaitable[BaseModel]]
    method: Literal["GET", "POST"] = "GET"
    max_text_chars: int = TEXT_CHARS
    """Of each text of the answer."""


def _row(
    path: str,
    takes: type[asks.Query],
    does: Callable[[Desk, Any], Awaitable[BaseModel]],
    gives: type[BaseModel],
    told: str,
    *,
    chars: int = TEXT_CHARS,
) -> Row:
    return Row(
        path=path, summary=told, input_type=TypeAdapter(takes), response_model=gives, handler=does, max_text_chars=chars
    )


TABLE: Final[tuple[Row, ...]] = (
    _row("/api/status", asks.Query, now.status, shapes.Status, "The gateway as a whole."),
    _row("/api/channels", asks.Query, now.channels, shapes.Channels, "Every account's connection."),
    _row("/api/conversations", asks.Many, places.listed, shapes.Conversations, "The newest conversations."),
    _row(
        "/api/conversation",
        asks.One,
        places.one,
        shapes.ConversationSeen,
        "One conversation, and the exact blocks of the last request that was made for it.",
        chars=PROMPT_CHARS,
    ),
    _row(
        "/api/notifications",
        asks.Either,
        pages.notifications,
        shapes.Notifications,
        "What was noticed, and what became of it.",
    ),
    _row("/api/turns", asks.BackThere, pages.turns, shapes.Turns, "The turns that were taken, and what they cost."),
    _row("/api/cache", asks.Spent, pages.cache, shapes.Cache, "What requests cost, and what the cache spared."),
    _row("/api/dmn", asks.Query, now.minds, shapes.Minds, "The agents' Default Mode Networks."),
    _row("/api/dmn/history", asks.Hours, now.history, shapes.History, "When they entered which mode."),
    _row("/api/outbox", asks.Query, pages.outbox, shapes.Outbox, "What is to be delivered, and what was."),
    _row("/api/audit", asks.Back, pages.audit, shapes.Audit, "Acts of administration."),
    Row(
        method="POST",
        path="/api/orders",
        summary="Steers the gateway.",
        input_type=ORDER,
        response_model=Answer,
        handler=doing.order,
    ),
    Row(
        method="POST",
        path="/api/say",
        summary="Says something as the operator, in the operator's own conversation.",
        input_type=TypeAdapter(asks.Say),
        response_model=shapes.Heard,
        handler=doing.say,
    ),
)
"""Beside `EVENTS_PATH`, whose answer flows on, and `SPEC_PATH`."""

TOLD: Final[dict[str, type[Event]]] = {name: kind for kind, name in EVENTS.items()}
"""By name, what is told on `EVENTS_PATH`."""
