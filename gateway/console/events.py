"""What the gateway's API says, as far as the console shows it. Parsed once, here; what is not known is left aside.

Reads an older or newer gateway too: a field that is missing is empty, one that is new is not looked at.
"""

import json
from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError


def _text(value: object) -> object:
    """Some texts are null where there is nothing to say; arguments and results may be any JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


Text = Annotated[str, BeforeValidator(_text)]


class Seen(BaseModel):
    """An event, or an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: datetime | None = None
    title: Text = ""
    """What people call the conversation that it is about. Empty: there is none."""


class Noticed(Seen):
    """Something came in: `notification`."""

    seq: int = 0
    type: Text = ""
    kind: Text = ""
    conversation: Text = ""
    who: Text = ""
    text: Text = ""
    fate: Text = ""


class Fate(Seen):
    """What became of it: `fate`."""

    seq: int = 0
    conversation: Text = ""
    fate: Text = ""
    rule: Text = ""


class Turn(Seen):
    """One began or ended: `turn`."""

    turn: Text = ""
    agent: Text = ""
    conversation: Text = ""
    state: Text = ""
    autonomous: bool = False
    cause: Text = ""
    outcome: Text = ""
    model: Text = ""
    input_tokens: int | None = None
    read_tokens: int | None = None
    written_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class Delta(Seen):
    """What it is writing: `text` and `thinking`."""

    turn: Text = ""
    agent: Text = ""
    conversation: Text = ""
    autonomous: bool = False
    delta: Text = ""
    begins: bool = False
    """What was written before in this turn is over, or is replaced by this."""


class Thought(Delta):
    """`thinking`."""


class Tool(Seen):
    """A call began or ended: `tool`."""

    turn: Text = ""
    agent: Text = ""
    conversation: Text = ""
    call: Text = ""
    name: Text = ""
    state: Text = ""
    arguments: Text = ""
    """As JSON, if it was not cut."""
    result: Text = ""
    error: bool = False


class Posted(Seen):
    """The gateway says something: `post`."""

    seq: int = 0
    conversation: Text = ""
    text: Text = ""


class Delivered(Seen):
    """What came of that: `delivery`."""

    seq: int = 0
    conversation: Text = ""
    outcome: Text = ""
    reason: Text = ""


class Mind(Seen):
    """An agent's Default Mode Network: `dmn`."""

    agent: Text = ""
    mode: Text = ""
    next_tick_s: float | None = None
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    in_a_row: int = 0
    turns_today: int = 0
    daily_turns: int = 0
    quiet: bool = False


class Linked(Seen):
    """A channel: `channel`."""

    channel: Text = ""
    platform: Text = ""
    state: Text = ""
    reason: Text = ""


class Reloaded(Seen):
    """The configuration was read again: `reloaded`."""

    taken: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    problems: tuple[Text, ...] = ()


class Logged(Seen):
    """A warning, or worse: `log`."""

    level: Text = ""
    logger: Text = ""
    message: Text = ""


class Lost(Seen):
    """We were too slow: `lost`."""

    count: int = 0


class Today(Seen):
    """What was used since midnight, UTC."""

    requests: int = 0
    input_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    read_share: float | None = None


class Activity(Seen):
    """A turn that runs."""

    turn: Text = ""
    agent: Text = ""
    conversation: Text = ""
    since: datetime | None = None
    tool: Text = ""


class Status(Seen):
    """`GET /api/status`."""

    version: Text = ""
    now: datetime | None = None
    ready: bool = False
    model: Text = ""
    agents: tuple[Mind, ...] = ()
    today: Today = Today()
    activity: tuple[Activity, ...] = ()


class Said(Seen):
    """A message of a conversation."""

    seq: int = 0
    who: Text = ""
    ours: bool = False
    text: Text = ""
    kind: Text = ""
    fate: Text = ""


class Past(Seen):
    """`GET /api/conversation`."""

    conversation: Text = ""
    agent: Text = ""
    messages: tuple[Said, ...] = ()


class Place(Seen):
    """One of `GET /api/conversations`."""

    conversation: Text = ""
    agent: Text = ""
    last_at: datetime | None = None
    last_text: Text = ""
    last_who: Text = ""
    unread: int = 0
    running: bool = False


class Places(Seen):
    """`GET /api/conversations`."""

    conversations: tuple[Place, ...] = ()


class Answered(Seen):
    """What became of an order."""

    ok: bool = False
    lines: tuple[Text, ...] = ()


KINDS: Final[dict[str, type[Seen]]] = {
    "notification": Noticed,
    "fate": Fate,
    "turn": Turn,
    "text": Delta,
    "thinking": Thought,
    "tool": Tool,
    "post": Posted,
    "delivery": Delivered,
    "dmn": Mind,
    "channel": Linked,
    "reloaded": Reloaded,
    "log": Logged,
    "lost": Lost,
}
"""By the name of the event."""


def read(name: str, data: str) -> Seen | None:
    """An event of the stream; None: it is of no kind that is shown, or not as it should be."""
    kind = KINDS.get(name)
    if kind is None:
        return None
    try:
        return kind.model_validate_json(data)
    except ValidationError:
        return None
