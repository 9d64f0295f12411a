"""What can be asked of the API with a path: one model for each query. Pure."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_LIMIT = 200
"""Entries of one answer."""
MAX_HOURS = 24 * 31

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Position = Annotated[int, Field(ge=0, lt=2**63)]
ConversationParam = Annotated[str, Field(max_length=2_000)]


class ApiQuery(BaseModel):
    """Nothing is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LimitQuery(ApiQuery):
    """How many."""

    limit: Limit = 50


class ConversationQuery(ApiQuery):
    """Which conversation."""

    id: ConversationParam
    limit: Limit = 50


class PageQuery(LimitQuery):
    """A page of the log."""

    before: Position | None = None
    """Only what stands in front of this."""


class ConversationPageQuery(PageQuery):
    """The same of one conversation."""

    conversation: ConversationParam | None = None


class NotificationQuery(ConversationPageQuery):
    """The same, or forward."""

    after: Position | None = None
    """Only what stands behind this, the oldest first."""


class HoursQuery(ApiQuery):
    """How far back."""

    hours: Annotated[int, Field(ge=1, le=MAX_HOURS)] = 24


class SpendingQuery(HoursQuery):
    """And by what."""

    by: Literal["channel", "conversation", "agent", "model"] = "channel"


class EventsQuery(ApiQuery):
    """Where events begin."""

    after: Position | None = None
    """Behind this position of the log; None: now."""


class SayRequest(BaseModel):
    """What the operator says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: Annotated[str, Field(min_length=1, max_length=16_000)]
