"""What may interrupt, as the operator says it. See `gateway.settings` for what holds of every section."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.fields import ConfigSection, Duration, TimeZone
from gateway.records import AMBIENT, LOW, NORMAL, URGENT
from gateway.regexes import GuardedRegex
from gateway.settings_operator import PersonKey

_URGENCY_LEVELS = {"inherit": -1, "ambient": AMBIENT, "low": LOW, "normal": NORMAL, "urgent": URGENT}


def _parse_level(value: object) -> object:
    return _URGENCY_LEVELS.get(value, value) if isinstance(value, str) else value


def _check_regex(value: str) -> str:
    GuardedRegex(value)
    return value


def _check_hours(value: str) -> str:
    start, _, end = value.partition("-")
    if not all(re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", part) for part in (start, end)) or start == end:
        raise ValueError("write from when to when, e.g. 23:00-07:00")
    return value


ThresholdLevel = Annotated[int, BeforeValidator(_parse_level), Field(ge=-1, le=URGENT)]
"""0 ambient, 1 low, 2 normal, 3 urgent, -1 inherits; reads the names too."""


class AttentionRuleConfig(ConfigSection):
    """Gives an urgency to notifications. The first rule that fits decides."""

    type: str
    """Glob or prefix of a dotted type, e.g. `irc.libera.room.#ops` or `*.reaction`."""
    urgency: Literal["ambient", "low", "normal", "urgent"]
    """ambient: context only; low: told later; normal: wakes the agent at its next look; urgent: a turn begins."""
    keyword: str | None = None
    """Only where the text contains this, in any case. None: always."""
    role: Literal["guest", "member", "admin", "owner"] | None = None
    """Only what somebody did who has this role or a higher one. None: always, also what nobody did."""
    regex: Annotated[str, AfterValidator(_check_regex)] | None = None
    """Only where this expression is found in the first 4,096 characters of the text. None: always."""


class SalienceConfig(ConfigSection):
    """What lifts the talk of a room with `listen: ambient` to normal, though nobody spoke to the agent."""

    people: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """`<channel>:<sender id>`: whatever they say."""
    keywords: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), strict=False)
    """Any of these in the text, in any case."""
    questions: bool = False
    """A line that ends with a question mark and names nobody."""
    activity: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """So many times as many lines in a minute as were usual in the last hour, and ten at least. 0: however many."""
    rest: Duration = 300.0
    """After a room was lifted it is not lifted again for so long."""


class PresenceConfig(ConfigSection):
    """How near people are taken to be, by when they last spoke to the agent: owners and admins, else anybody."""

    idle: Duration = 900.0
    """After so much silence thresholds are one lower."""
    away: Duration = 14_400.0
    """After so much they are away, and told what is unread when they come back. Not less than `idle`."""
    sleep: Annotated[str, AfterValidator(_check_hours)] | None = None
    """`HH:MM-HH:MM`. Who is silent then sleeps, and only what is urgent wakes the agent. None: nobody sleeps."""
    timezone: TimeZone = "UTC"
    """Of `sleep`, e.g. `Europe/Zurich`."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.away < self.idle:
            raise ValueError("`away` must not be less than `idle`")
        return self


class AttentionConfig(ConfigSection):
    """What may interrupt whom."""

    coalesce: Duration = 1.5
    """How long a turn waits for more lines of the same conversation. 0: at once."""
    rules: tuple[AttentionRuleConfig, ...] = Field(default=(), strict=False)
    thresholds: dict[str, ThresholdLevel] = Field(default={})
    """Lowest urgency that passes, by type prefix; the longest prefix decides."""
    salience: SalienceConfig = SalienceConfig()
    presence: PresenceConfig = PresenceConfig()
