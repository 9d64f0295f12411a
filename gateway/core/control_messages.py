"""An order of the operator to a running gateway, and its answer. Pure;
`gateway.core.control_socket` carries them.
"""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.events import ConversationId, Time

OPERATOR: Final = "operator"
OPERATOR_EVIDENCE: Final = "may use the gateway's own files, or bears its token"
"""Only the user that runs the gateway can access its store and its socket."""


class _ControlModel(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, defer_build=True
    )


class CommandRequest(_ControlModel):
    """A command of the command table, in the words that people write in a chat."""

    words: Annotated[
        tuple[Annotated[str, Field(max_length=4_000)], ...], Field(min_length=1, max_length=1_000)
    ]
    by: Annotated[str, Field(max_length=200)] = OPERATOR
    """The person asking, for people. Not verified."""
    place: Annotated[str, Field(max_length=2_000)] = ""
    """Conversation that the command is about, as the log has it. Empty: the operator's own."""
    agent: Annotated[str, Field(max_length=200)] = ""
    """Agent that the command is about. Empty: that of the place; for `dmn` without a place, all."""


class WantedTurn(_ControlModel):
    """A conversation where an autonomous turn would start."""

    conversation: ConversationId
    why: str
    """`pending`: something waits there; `continuing`: it continues its own work; `low`: it is
    looking for work."""


class DmnStatus(_ControlModel):
    """State of one agent's Default Mode Network."""

    agent: str
    mode: str
    next_tick_s: float | None
    """Seconds until its next tick. None: it does not run."""
    running: tuple[ConversationId, ...]
    waiting: tuple[ConversationId, ...]
    wanted: tuple[WantedTurn, ...]
    """Work for an autonomous turn, in order."""
    held: tuple[str, ...]
    """Reasons why none may start now, in words. Empty: one may."""
    low: tuple[ConversationId, ...]
    in_a_row: int
    """Autonomous turns since a person last addressed it."""
    max_in_a_row: int
    turns_today: int
    """Autonomous turns; `spent_today_usd` is their cost."""
    daily_turns: int
    foraged_today: int
    """Those of `turns_today` that only low notifications caused."""
    forage_per_day: int
    spent_today_usd: float
    daily_cost_usd: float
    errors: int
    quiet: bool
    quiet_until: Time | None
    """None: it is not quiet, or quiet until it is woken."""
    stored_until: Time | None
    """End of mode `stored`. None: until it is woken."""
    wake_on: tuple[str, ...]
    presence: str


class ControlResponse(_ControlModel):
    """Answer to a command."""

    ok: bool
    """False: it was not carried out, and the lines say why."""
    understood: bool = True
    """False: there is no such command, or its arguments do not fit."""
    lines: tuple[str, ...]
    """Text for people. It names rooms: escape it before printing."""
    data: Any = None
    """The same for programs, where the command has it."""
