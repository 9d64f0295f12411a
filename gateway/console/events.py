"""What the gateway's API says, as far as the console shows it. Parsed once, here; what is not known is left aside.

Reads an older or newer gateway too: a field that is missing is empty, one that is new is not looked at.
"""

import json
from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError


def _as_text(value: object) -> object:
    """Some texts are null where there is nothing to say; arguments and results may be any JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


ApiText = Annotated[str, BeforeValidator(_as_text)]


class ConsoleApiModel(BaseModel):
    """An event, or an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: datetime | None = None
    title: ApiText = ""
    """What people call the conversation that it is about. Empty: there is none."""


class ConsoleNotification(ConsoleApiModel):
    """Something came in: `notification`."""

    seq: int = 0
    type: ApiText = ""
    kind: ApiText = ""
    conversation: ApiText = ""
    who: ApiText = ""
    text: ApiText = ""
    fate: ApiText = ""


class ConsoleFate(ConsoleApiModel):
    """What became of it: `fate`."""

    seq: int = 0
    conversation: ApiText = ""
    fate: ApiText = ""
    rule: ApiText = ""


class ConsoleTurnEvent(ConsoleApiModel):
    """One began or ended: `turn`."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    state: ApiText = ""
    autonomous: bool = False
    cause: ApiText = ""
    outcome: ApiText = ""
    model: ApiText = ""
    input_tokens: int | None = None
    read_tokens: int | None = None
    written_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class ConsoleTextDelta(ConsoleApiModel):
    """What it is writing: `text` and `thinking`."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    autonomous: bool = False
    delta: ApiText = ""
    begins: bool = False
    """What was written before in this turn is over, or is replaced by this."""


class ConsoleThinkingDelta(ConsoleTextDelta):
    """`thinking`."""


class ConsoleToolEvent(ConsoleApiModel):
    """A call began or ended: `tool`."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    call: ApiText = ""
    name: ApiText = ""
    state: ApiText = ""
    arguments: ApiText = ""
    """As JSON, if it was not cut."""
    result: ApiText = ""
    error: bool = False


class ConsolePost(ConsoleApiModel):
    """The gateway says something: `post`."""

    seq: int = 0
    conversation: ApiText = ""
    text: ApiText = ""


class ConsoleDelivery(ConsoleApiModel):
    """What came of that: `delivery`."""

    seq: int = 0
    conversation: ApiText = ""
    outcome: ApiText = ""
    reason: ApiText = ""


class ConsoleDmnState(ConsoleApiModel):
    """An agent's Default Mode Network: `dmn`."""

    agent: ApiText = ""
    mode: ApiText = ""
    next_tick_s: float | None = None
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    in_a_row: int = 0
    turns_today: int = 0
    daily_turns: int = 0
    quiet: bool = False


class ConsoleChannelState(ConsoleApiModel):
    """A channel: `channel`."""

    channel: ApiText = ""
    platform: ApiText = ""
    state: ApiText = ""
    reason: ApiText = ""


class ConsoleReload(ConsoleApiModel):
    """The configuration was read again: `reloaded`."""

    taken: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    problems: tuple[ApiText, ...] = ()


class ConsoleLogRecord(ConsoleApiModel):
    """A warning, or worse: `log`."""

    level: ApiText = ""
    logger: ApiText = ""
    message: ApiText = ""


class ConsoleEventsLost(ConsoleApiModel):
    """We were too slow: `lost`."""

    count: int = 0


class ConsoleUsageToday(ConsoleApiModel):
    """What was used since midnight, UTC."""

    requests: int = 0
    input_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    read_share: float | None = None


class ConsoleRunningTurn(ConsoleApiModel):
    """A turn that runs."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    since: datetime | None = None
    tool: ApiText = ""


class ConsoleStatus(ConsoleApiModel):
    """`GET /api/status`."""

    version: ApiText = ""
    now: datetime | None = None
    ready: bool = False
    model: ApiText = ""
    agents: tuple[ConsoleDmnState, ...] = ()
    today: ConsoleUsageToday = ConsoleUsageToday()
    activity: tuple[ConsoleRunningTurn, ...] = ()


class ConsoleMessage(ConsoleApiModel):
    """A message of a conversation."""

    seq: int = 0
    who: ApiText = ""
    ours: bool = False
    text: ApiText = ""
    kind: ApiText = ""
    fate: ApiText = ""


class ConsoleHistory(ConsoleApiModel):
    """`GET /api/conversation`."""

    conversation: ApiText = ""
    agent: ApiText = ""
    messages: tuple[ConsoleMessage, ...] = ()


class ConsoleConversation(ConsoleApiModel):
    """One of `GET /api/conversations`."""

    conversation: ApiText = ""
    agent: ApiText = ""
    last_at: datetime | None = None
    last_text: ApiText = ""
    last_who: ApiText = ""
    unread: int = 0
    running: bool = False


class ConsoleConversationList(ConsoleApiModel):
    """`GET /api/conversations`."""

    conversations: tuple[ConsoleConversation, ...] = ()


class ConsoleOrderResult(ConsoleApiModel):
    """What became of an order."""

    ok: bool = False
    lines: tuple[ApiText, ...] = ()


EVENT_MODELS: Final[dict[str, type[ConsoleApiModel]]] = {
    "notification": ConsoleNotification,
    "fate": ConsoleFate,
    "turn": ConsoleTurnEvent,
    "text": ConsoleTextDelta,
    "thinking": ConsoleThinkingDelta,
    "tool": ConsoleToolEvent,
    "post": ConsolePost,
    "delivery": ConsoleDelivery,
    "dmn": ConsoleDmnState,
    "channel": ConsoleChannelState,
    "reloaded": ConsoleReload,
    "log": ConsoleLogRecord,
    "lost": ConsoleEventsLost,
}
"""By the name of the event."""


def parse_event(name: str, data: str) -> ConsoleApiModel | None:
    """An event of the stream; None: it is of no kind that is shown, or not as it should be."""
    kind = EVENT_MODELS.get(name)
    if kind is None:
        return None
    try:
        return kind.model_validate_json(data)
    except ValidationError:
        return None
