"""Requests to a running gateway and its responses. Pure; `gateway.core.control_socket` carries them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from gateway.core.events import ConversationId, PresenceLevel, Time

DmnAction = Literal["status", "pause", "wake", "sleep", "quiet", "rest", "off", "presence", "debug"]
"""`status` and `debug` only read. `sleep`: rest until a time, or a kind of notification."""
PresenceChoice = Literal[PresenceLevel, "auto"]
"""Presence level set by hand; `auto`: by the last activity of people."""

_ShortText = Annotated[str, Field(max_length=200)]


class _ControlModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class DmnRequest(_ControlModel):
    """Request about the Default Mode Networks of the agents."""

    what: DmnAction
    by: _ShortText
    """The person asking, for people. Not verified."""
    agent: _ShortText | None = None
    """Id of one agent. None: all."""
    until: Time | None = None
    """End of `sleep` or `quiet`. None: until it is woken; for an hour."""
    on: Annotated[tuple[_ShortText, ...], Field(max_length=20)] = ()
    """With `sleep`: types of notifications that wake it, too."""
    level: PresenceChoice = "auto"
    """With `presence`, which is the same for all agents."""
    kind: Literal["dmn"] = "dmn"


class ContextRequest(_ControlModel):
    """Request about the view of one conversation: see `gateway.runtime.rewind`."""

    what: Literal["new", "retry", "rewind", "compact"]
    conversation: Annotated[ConversationId, Field(max_length=2_000)]
    by: _ShortText
    """The person asking, for people. Not verified."""
    count: Annotated[int, Field(ge=1, le=1_000)] = 1
    """With `rewind`: number of exchanges."""
    kind: Literal["context"] = "context"


class PairingRequest(_ControlModel):
    """Request about the people who may talk to the agents: see `gateway.access.pairing_admin`."""

    what: Literal["list", "approve", "revoke", "seed"]
    by: _ShortText
    """The person asking, for people. Not verified."""
    who: _ShortText = ""
    """With `approve`: the code; with `revoke` and `seed`: `channel:id`."""
    role: Literal["owner", "admin", "member"] = "member"
    """With `seed`."""
    kind: Literal["pair"] = "pair"


class StopTurnRequest(_ControlModel):
    """Stop the turn of one conversation, as `/stop` does there."""

    conversation: Annotated[ConversationId, Field(max_length=2_000)]
    by: _ShortText = "operator"
    """The person asking, for people. Not verified."""
    kind: Literal["stop"] = "stop"


class KillToolRequest(_ControlModel):
    """End the running tool of one conversation. The model gets an error, and the turn goes on."""

    conversation: Annotated[ConversationId, Field(max_length=2_000)]
    by: _ShortText = "operator"
    """The person asking, for people. Not verified."""
    kind: Literal["kill"] = "kill"


class ReloadRequest(_ControlModel):
    """Read the configuration again, like `/reload`."""

    by: _ShortText = "operator"
    """The person asking, for people. Not verified."""
    kind: Literal["reload"] = "reload"


ControlRequest = DmnRequest | ContextRequest | PairingRequest | StopTurnRequest | KillToolRequest | ReloadRequest
"""Every request to a running gateway, tagged by `kind`."""


class WantedTurn(_ControlModel):
    """A conversation where an autonomous turn would start."""

    conversation: ConversationId
    why: str
    """`pending`: something waits there; `continuing`: it continues its own work; `low`: it is looking for work."""


class DmnStatus(_ControlModel):
    """State of one agent's Default Mode Network."""

    agent: str
    mode: str
    next_tick_s: float | None
    """Seconds until its next tick. None: it does not run."""
    running: tuple[ConversationId, ...]
    """Conversations with a running turn."""
    waiting: tuple[ConversationId, ...]
    """Conversations where a person waits for a turn."""
    wanted: tuple[WantedTurn, ...]
    """Work for an autonomous turn, in order."""
    held: tuple[str, ...]
    """Reasons why none may start now, in words. Empty: one may."""
    low: tuple[ConversationId, ...]
    """Conversations with something of low urgency."""
    in_a_row: int
    """Autonomous turns since a person last addressed it."""
    max_in_a_row: int
    turns_today: int
    """Autonomous turns; `spent_today_usd` is their cost."""
    daily_turns: int
    spent_today_usd: float
    daily_cost_usd: float
    errors: int
    """Failed turns in a row."""
    quiet: bool
    quiet_until: Time | None
    """None: it is not quiet, or quiet until it is woken."""
    stored_until: Time | None
    """End of mode `stored`. None: until it is woken."""
    wake_on: tuple[str, ...]
    presence: str
    """Presence level of the people."""


class ControlResponse(_ControlModel):
    """Result of a request."""

    ok: bool
    """False: it was not carried out, and the lines say why."""
    lines: tuple[str, ...]
    """Text for people. It names rooms: escape it before printing."""
    data: tuple[DmnStatus, ...] = ()
    """The agents that the request was about, in their state afterwards, for programs."""


def _request_kind(request: object) -> object:
    """Return the kind; `dmn` where it is missing, for clients that know no other."""
    return request.get("kind", "dmn") if isinstance(request, dict) else getattr(request, "kind", None)


_TaggedRequest = Annotated[
    Annotated[DmnRequest, Tag("dmn")]
    | Annotated[ContextRequest, Tag("context")]
    | Annotated[PairingRequest, Tag("pair")]
    | Annotated[StopTurnRequest, Tag("stop")]
    | Annotated[KillToolRequest, Tag("kill")]
    | Annotated[ReloadRequest, Tag("reload")],
    Discriminator(_request_kind),
]
CONTROL_REQUEST: TypeAdapter[ControlRequest] = TypeAdapter(_TaggedRequest)
CONTROL_RESPONSE: TypeAdapter[ControlResponse] = TypeAdapter(ControlResponse)
"""`dump_json` and `validate_json` are each other's inverse; a dumped one has no line end in it."""
