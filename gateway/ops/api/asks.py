"""What can be asked of the API with a path: one model for each query. Pure."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST = 200
"""Entries of one answer."""
MOST_HOURS = 24 * 31

Limit = Annotated[int, Field(ge=1, le=MOST)]
Position = Annotated[int, Field(ge=0, lt=2**63)]
Place = Annotated[str, Field(max_length=2_000)]


class Query(BaseModel):
    """Nothing is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Many(Query):
    """How many."""

    limit: Limit = 50


class One(Query):
    """Which conversation."""

    id: Place
    limit: Limit = 50


class Back(Many):
    """A page of the log."""

    before: Position | None = None
    """Only what stands in front of this."""


class BackThere(Back):
    """The same of one conversation."""

    conversation: Place | None = None


class Either(BackThere):
    """The same, or forward."""

    after: Position | None = None
    """Only what stands behind this, the oldest first."""


class Hours(Query):
    """How far back."""

    hours: Annotated[int, Field(ge=1, le=MOST_HOURS)] = 24


class Spent(Hours):
    """And by what."""

    by: Literal["channel", "conversation", "agent", "model"] = "channel"


class After(Query):
    """Where events begin."""

    after: Position | None = None
    """Behind this position of the log; None: now."""


class Say(BaseModel):
    """What the operator says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: Annotated[str, Field(min_length=1, max_length=16_000)]
