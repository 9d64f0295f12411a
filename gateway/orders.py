"""What whoever steers a running gateway asks of it, and what it answers. Pure; `gateway.control` carries it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from agent.signals import Level
from gateway.events import ConversationId, Time

What = Literal["status", "pause", "wake", "sleep", "quiet", "rest", "off", "presence", "debug"]
"""`status` and `debug` only ask. `sleep`: rest until a time, or a kind of notification; the others say themselves."""
Near = Literal[Level, "auto"]
"""How near the people are, whatever their words show; `auto`: as these show."""

_Word = Annotated[str, Field(max_length=200)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class DmnOrder(_Line):
    """For the Default Mode Networks of the agents."""

    what: What
    by: _Word
    """Who says so, for people. Nobody vouches for it."""
    agent: _Word | None = None
    """One of them, by its id. None: all."""
    until: Time | None = None
    """Of `sleep` and `quiet`. None: until it is woken; for an hour."""
    on: Annotated[tuple[_Word, ...], Field(max_length=20)] = ()
    """Of `sleep`: types of notifications that wake it, too."""
    level: Near = "auto"
    """Of `presence`, which is the same for all agents."""
    kind: Literal["dmn"] = "dmn"


class ContextOrder(_Line):
    """For the view of one conversation: as `gateway.rewinding` has it."""

    what: Literal["new", "retry", "rewind", "compact"]
    conversation: Annotated[ConversationId, Field(max_length=2_000)]
    by: _Word
    """Who says so, for people. Nobody vouches for it."""
    count: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Of `rewind`: exchanges."""
    kind: Literal["context"] = "context"


class PairOrder(_Line):
    """For who may speak to the agents: as `gateway.roster.deskless` has it."""

    what: Literal["list", "approve", "revoke", "seed"]
    by: _Word
    """Who says so, for people. Nobody vouches for it."""
    who: _Word = ""
    """Of `approve`: the code; of `revoke` and `seed`: `channel:id`."""
    role: Literal["owner", "admin", "member"] = "member"
    """Of `seed`."""
    kind: Literal["pair"] = "pair"


class StopOrder(_Line):
    """Leave off what goes on in one conversation, as `/stop` there."""

    conversation: Annotated[ConversationId, Field(max_length=2_000)]
    by: _Word = "operator"
    """Who says so, for people. Nobody vouches for it."""
    kind: Literal["stop"] = "stop"


class KillOrder(_Line):
    """End the tool that runs in one conversation. The model is told, and the turn goes on."""

    conversation: Annotated[ConversationId, Field(max_length=2_000)]
    by: _Word = "operator"
    """Who says so, for people. Nobody vouches for it."""
    kind: Literal["kill"] = "kill"


class ReloadOrder(_Line):
    """Read the configuration again, as `/reload`."""

    by: _Word = "operator"
    """Who says so, for people. Nobody vouches for it."""
    kind: Literal["reload"] = "reload"


Order = DmnOrder | ContextOrder | PairOrder | StopOrder | KillOrder | ReloadOrder
"""Everything that can be asked of a running gateway, tagged by `kind`."""


class Wish(_Line):
    """Where an autonomous turn would start."""

    conversation: ConversationId
    why: str
    """`pending`: something waits there; `continuing`: it goes on with what it did; `low`: it is looking for work."""


class MindSeen(_Line):
    """One agent's Default Mode Network, as it stands."""

    agent: str
    mode: str
    next_tick_s: float | None
    """Until it looks again. None: it does not run."""
    running: tuple[ConversationId, ...]
    """A turn is under way here."""
    waiting: tuple[ConversationId, ...]
    """Somebody is owed a turn here."""
    wanted: tuple[Wish, ...]
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


class Answer(_Line):
    """What became of an order."""

    ok: bool
    """False: it was not carried out, and the lines say why."""
    lines: tuple[str, ...]
    """For people. Rooms are named in them: not safe on a terminal as they are."""
    data: tuple[MindSeen, ...] = ()
    """For programs: the agents that it was about, afterwards."""


def _kind(said: object) -> object:
    """`dmn` where nothing is said: so did those who knew no other."""
    return said.get("kind", "dmn") if isinstance(said, dict) else getattr(said, "kind", None)


_Tagged = Annotated[
    Annotated[DmnOrder, Tag("dmn")]
    | Annotated[ContextOrder, Tag("context")]
    | Annotated[PairOrder, Tag("pair")]
    | Annotated[StopOrder, Tag("stop")]
    | Annotated[KillOrder, Tag("kill")]
    | Annotated[ReloadOrder, Tag("reload")],
    Discriminator(_kind),
]
ORDER: TypeAdapter[Order] = TypeAdapter(_Tagged)
ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)
"""`dump_json` and `validate_json` are each other's inverse; a dumped one has no line end in it."""
