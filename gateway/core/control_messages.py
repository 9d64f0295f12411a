"""What whoever steers a running gateway asks of it, and what it answers.

Pure; `gateway.core.control_socket` carries it.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from gateway.core.events import ConversationId, PresenceLevel, Time

DmnAction = Literal["status", "pause", "wake", "sleep", "quiet", "rest", "off", "presence", "debug"]
"""`status` and `debug` only ask. `sleep`: rest until a time, or a kind of notification; the others say themselves."""
PresenceChoice = Literal[PresenceLevel, "auto"]
"""How near the people are, whatever their words show; `auto`: as these show."""

_ShortText = Annotated[str, Field(max_length=200)]


class _ControlModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class DmnRequest(_ControlModel):
    """For the Default Mode Networks of the agents."""

    what: DmnAction
    by: _ShortText
    """Who says so, for people. Nobody vouches for it."""
    agent: _ShortText | None = None
    """One of them, by its id. None: all."""
    until: Time | None = None
    """Of `sleep` and `quiet`. None: until it is woken; for an hour."""
    on: Annotated[tuple[_ShortText, ...], Field(max_length=20)] = ()
    """Of `sleep`: types of notifications that wake it, too."""
    level: PresenceChoice = "auto"
    """Of `presence`, which is the same for all agents."""
    kind: Literal["dmn"] = "dmn"


class ContextRequest(_ControlModel):
    """For the view of one conversation: as `gateway.runtime.rewind` has it."""

    what: Literal["new", "retry", "rewind", "compact"]
    conversation: Annotated[ConversationId, Field(max_length=2_000)]
    by: _ShortText
    """Who says so, for people. Nobody vouches for it."""
    count: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Of `rewind`: exchanges."""
    kind: Literal["context"] = "context"


class PairingRequest(_ControlModel):
    """For who may speak to the agents: as `gateway.access.pairing_admin` has it."""

    what: Literal["list", "approve", "revoke", "seed"]
    by: _ShortText
    """Who says so, for people. Nobody vouches for it."""
    who: _ShortText = ""
    """Of `approve`: the code; of `revoke` and `seed`: `channel:id`."""
    role: Literal["owner", "admin", "member"] = "member"
    """Of `seed`."""
    kind: Literal["pair"] = "pair"


class StopTurnRequest(_ControlModel):
    """Leave off what goes on in one conversation, as `/stop` there."""

    conversation: Annotated[ConversationId, Field(max_length=2_000)]
    by: _ShortText = "operator"
    """Who says so, for people. Nobody vouches for it."""
    kind: Literal["stop"] = "stop"


class KillToolRequest(_ControlModel):
    """End the tool that runs in one conversation. The model is told, and the turn goes on."""

    conversation: Annotated[ConversationId, Field(max_length=2_000)]
    by: _ShortText = "operator"
    """Who says so, for people. Nobody vouches for it."""
    kind: Literal["kill"] = "kill"


class ReloadRequest(_ControlModel):
    """Read the configuration again, as `/reload`."""

    by: _ShortText = "operator"
    """Who says so, for people. Nobody vouches for it."""
    kind: Literal["reload"] = "reload"


ControlRequest = DmnRequest | ContextRequest | PairingRequest | StopTurnRequest | KillToolRequest | ReloadRequest
"""Everything that can be asked of a running gateway, tagged by `kind`."""


class WantedTurn(_ControlModel):
    """Where an autonomous turn would start."""

    conversation: ConversationId
    why: str
    """`pending`: something waits there; `continuing`: it goes on with what it did; `low`: it is looking for work."""


class DmnStatus(_ControlModel):
    """One agent's Default Mode Network, as it stands."""

    agent: str
    mode: str
    next_tick_s: float | None
    """Until it looks again. None: it does not run."""
    running: tuple[ConversationId, ...]
    """A turn is under way here."""
    waiting: tuple[ConversationId, ...]
    """Somebody is owed a turn here."""
    wanted: tuple[WantedTurn, ...]
    """What an autonomous turn would take up, the first first."""
    held: tuple[str, ...]
    """Why none may start now, each in words. Empty: one may."""
    low: tuple[ConversationId, ...]
    """Something low waits here."""
    in_a_row: int
    """Autonomous turns since a person last spoke to it."""
    max_in_a_row: int
    turns_today: int
    """Autonomous ones, as is what was spent."""
    daily_turns: int
    spent_today_usd: float
    daily_cost_usd: float
    errors: int
    """Failed turns in a row."""
    quiet: bool
    quiet_until: Time | None
    """None: it is not quiet, or until it is woken."""
    stored_until: Time | None
    """Of mode `stored`. None: until it is woken."""
    wake_on: tuple[str, ...]
    presence: str
    """How near the people are."""


class ControlResponse(_ControlModel):
    """What became of an order."""

    ok: bool
    """False: it was not carried out, and the lines say why."""
    lines: tuple[str, ...]
    """For people. Rooms are named in them: not safe on a terminal as they are."""
    data: tuple[DmnStatus, ...] = ()
    """For programs: the agents that it was about, afterwards."""


def _request_kind(said: object) -> object:
    """`dmn` where nothing is said: so did those who knew no other."""
    return said.get("kind", "dmn") if isinstance(said, dict) else getattr(said, "kind", None)


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
