"""What is told of a running gateway as it happens: one model for each kind of event. Pure.

The name of an event is its class's in `EVENT_NAMES`. `at` is when it happened, UTC.
"""

from typing import Final, Literal

from gateway.events import Time
from gateway.ops.api.shapes import ApiModel, BilledTokens, ChannelStatus, UrgencyLevel
from gateway.orders import DmnStatus


class ApiEvent(ApiModel):
    """Something happened."""

    at: Time


class NotificationEvent(ApiEvent):
    """Something was noticed."""

    seq: int
    type: str
    kind: str
    conversation: str | None
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    who: str
    text: str
    urgency: UrgencyLevel


class FateEvent(ApiEvent):
    """What became of it, by now."""

    seq: int
    """Of the notification."""
    conversation: str | None
    fate: str
    rule: str


class TurnEvent(ApiEvent, BilledTokens):
    """A turn began (then nothing is known of what it costs) or ended."""

    turn: str
    agent: str
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    state: Literal["started", "ended"]
    autonomous: bool
    cause: str
    outcome: str
    """Empty: it has only begun, or it ended without a trace."""
    model: str


class _TurnPartEvent(ApiEvent):
    turn: str
    agent: str
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""


class TextEvent(_TurnPartEvent):
    """The answer has grown."""

    autonomous: bool
    delta: str
    begins: bool
    """What was told of this turn before is over: another answer begins, or the same one anew."""


class ThinkingEvent(_TurnPartEvent):
    """So much more was thought."""

    autonomous: bool
    delta: str


class ToolEvent(_TurnPartEvent):
    """A tool is carried out."""

    call: str
    name: str
    state: Literal["started", "ended"]
    arguments: str
    result: str
    error: bool


class PostEvent(ApiEvent):
    """Something is to be said."""

    seq: int
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    text: str


class DeliveryEvent(ApiEvent):
    """How a post ended."""

    seq: int
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    outcome: Literal["sent", "uncertain", "failed"]
    reason: str


class DmnEvent(ApiEvent, DmnStatus):
    """An agent's network has changed."""


class ChannelEvent(ApiEvent, ChannelStatus):
    """A connection has changed."""


class ReloadedEvent(ApiEvent):
    """The configuration was read again. Keys, never values."""

    taken: tuple[str, ...]
    later: tuple[str, ...]
    problems: tuple[str, ...]


class LogEvent(ApiEvent):
    """A warning, or worse."""

    level: str
    logger: str
    message: str


class LostEvent(ApiEvent):
    """So many events were not told: there were too many for whoever reads."""

    count: int


EVENT_NAMES: Final[dict[type[ApiEvent], str]] = {
    NotificationEvent: "notification",
    FateEvent: "fate",
    TurnEvent: "turn",
    TextEvent: "text",
    ThinkingEvent: "thinking",
    ToolEvent: "tool",
    PostEvent: "post",
    DeliveryEvent: "delivery",
    DmnEvent: "dmn",
    ChannelEvent: "channel",
    ReloadedEvent: "reloaded",
    LogEvent: "log",
    LostEvent: "lost",
}
