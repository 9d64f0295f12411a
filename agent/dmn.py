"""The Default Mode Network: decides, all the time, what happens next.

Rules:
  1. `step` is total and pure: any signal in any state gives a next state and effects. The time comes
     with the signal; the shell (`gateway.loop`) carries the effects out and sends the next signal.
  2. One turn at a time in a conversation, at most `Policy.lanes` at once, first come first served.
  3. A tick with nothing pending starts nothing. Only what somebody said, or what attention called
     normal, ever costs a model call.
  4. The timer is always armed, except after `Stopping`.

Theory of operation. Somebody speaks to the agent: Engaged, and a turn starts at once or as soon as a
lane is free. A turn that used tools leads to Working, one that did not winds down a step, and one that
yielded rests. Ticks look at what is pending; with nothing pending they wind down too, so that an agent
left alone comes to Resting within two ticks and stays there. Turns that nobody asked for are counted:
so many in a row, so many a day, and after errors they wait longer and longer.
"""
# size: all transitions stand in one file, behind the types that they are about

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from pydantic import TypeAdapter

from gateway.events import ConversationId

LOW, NORMAL, URGENT = 1, 2, 3

MAX_BACKOFF_S = 3600.0
"""Errors double the interval up to an hour: longer would look dead, shorter keeps paying."""


class Mode(StrEnum):
    """What the agent is doing, by how soon it looks again."""

    ENGAGED = "engaged"
    WORKING = "working"
    FORAGING = "foraging"
    RESTING = "resting"


WIND_DOWN = {
    Mode.ENGAGED: Mode.FORAGING,
    Mode.WORKING: Mode.FORAGING,
    Mode.FORAGING: Mode.RESTING,
    Mode.RESTING: Mode.RESTING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the operator wants it."""

    engaged_s: float = 5.0
    working_s: float = 3.0
    foraging_s: float = 30.0
    resting_s: float = 300.0
    max_autonomous_turns: int = 20
    """In a row; a person's word starts the count again."""
    daily_turns: int = 200
    """Autonomous ones, per UTC day."""
    forage: bool = False
    """True: a foraging agent also takes up low notifications."""
    lanes: int = 8
    """Turns side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that the DMN remembers. A restart keeps all but `running`, `waiting` and `pending`."""

    mode: Mode = Mode.RESTING
    running: tuple[ConversationId, ...] = ()
    """A turn is under way here."""
    waiting: tuple[ConversationId, ...] = ()
    """Somebody is owed a turn here; oldest first."""
    pending: tuple[ConversationId, ...] = ()
    """Looked at when a tick comes; oldest first."""
    autonomous: int = 0
    """Autonomous turns since a person last spoke to the agent."""
    day: str = ""
    """The UTC date that `turns_today` counts."""
    turns_today: int = 0
    errors: int = 0
    """Failed turns in a row."""
    stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """Something in the inbox is ripe."""

    at: datetime
    conversation: ConversationId
    urgency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """A turn ended in a reply, in silence, or by yielding."""

    at: datetime
    conversation: ConversationId
    used_tools: bool
    yielded: bool
    left: int
    """Highest urgency still unread there: what came while the turn ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """A turn ended without an answer."""

    at: datetime
    conversation: ConversationId
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The timer came."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The process ends soon: start nothing more."""

    at: datetime


Signal = Noticed | TurnEnded | TurnFailed | Tick | Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTurn:
    """Begin a turn in this conversation now."""

    conversation: ConversationId
    autonomous: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send a `Tick` after `delay_s` seconds, instead of any set before."""

    delay_s: float
    sooner: bool = False
    """True: only if that comes before the one set before, which else stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Write the state down: what a restart must keep has changed."""


Effect = StartTurn | SetTimer | Persist

_STATE: TypeAdapter[State] = TypeAdapter(State)


def save(state: State) -> str:
    """The part of a state that outlives the process, as JSON."""
    return _STATE.dump_json(_lasting(state)).decode()


def restore(saved: str) -> State:
    """Reverse `save`. Raises ValueError for text that `save` did not make."""
    return _STATE.validate_json(saved)


def interval_s(state: State, policy: Policy) -> float:
    """How long until the next tick."""
    calm = {
        Mode.ENGAGED: policy.engaged_s,
        Mode.WORKING: policy.working_s,
        Mode.FORAGING: policy.foraging_s,
        Mode.RESTING: policy.resting_s,
    }[state.mode]
    return max(calm, min(calm * 2.0 ** min(state.errors, 12), MAX_BACKOFF_S))


def step(state: State, signal: Signal, policy: Policy) -> tuple[State, tuple[Effect, ...]]:
    """Decide. Never raises; signals that make no sense in a state change nothing."""
    after = state
    starts: tuple[Effect, ...] = ()
    match signal:
        case Noticed():
            after = _noticed(state, signal, policy)
        case TurnEnded() | TurnFailed():
            after = _ended(state, signal)
        case Tick():
            after, starts = _ticked(state, signal, policy)
        case Stopping():
            after = replace(state, stopping=True, waiting=(), pending=())
    after, asked = _dispatch(after, policy)
    effects: list[Effect] = [*starts, *asked]
    timed = isinstance(signal, Tick) or after.mode != state.mode or after.errors != state.errors
    if timed and not after.stopping:
        # People who keep talking change the mode all the time: that must not put off what waits for a tick.
        keep = bool(state.pending and after.pending) and not isinstance(signal, Tick) and after.errors <= state.errors
        effects.append(SetTimer(delay_s=interval_s(after, policy), sooner=keep))
    if _lasting(after) != _lasting(state):
        effects.append(Persist())
    return after, tuple(effects)


def _lasting(state: State) -> State:
    return replace(state, running=(), waiting=(), pending=(), stopping=False)


def _noticed(state: State, signal: Noticed, policy: Policy) -> State:
    if state.stopping:
        return state
    if signal.urgency >= URGENT:
        state = replace(state, mode=Mode.ENGAGED, autonomous=0)
    elif signal.urgency == LOW and not (policy.forage and state.mode is Mode.FORAGING):
        return state
    return _owe(state, signal.conversation, signal.urgency)


def _owe(state: State, conversation: ConversationId, urgency: int) -> State:
    """Remember that a turn is due here. While one runs nothing is: its end tells what is left."""
    if state.stopping or urgency < LOW or conversation in state.running or conversation in state.waiting:
        return state
    if urgency >= URGENT:
        pending = tuple(c for c in state.pending if c != conversation)
        return replace(state, waiting=(*state.waiting, conversation), pending=pending)
    if conversation in state.pending:
        return state
    return replace(state, pending=(*state.pending, conversation))


def _ended(state: State, signal: TurnEnded | TurnFailed) -> State:
    if signal.conversation not in state.running:
        return state
    running = tuple(c for c in state.running if c != signal.conversation)
    if isinstance(signal, TurnFailed):
        mode, errors = WIND_DOWN[state.mode], state.errors + 1
    elif signal.yielded:
        mode, errors = Mode.RESTING, 0
    else:
        mode, errors = (Mode.WORKING if signal.used_tools else WIND_DOWN[state.mode]), 0
    if signal.left >= URGENT:
        mode = Mode.ENGAGED
    state = replace(state, running=running, mode=mode, errors=errors)
    # Low notices alone never start a turn; they ride along with the next one.
    return _owe(state, signal.conversation, signal.left) if signal.left >= NORMAL else state


def _ticked(state: State, signal: Tick, policy: Policy) -> tuple[State, tuple[Effect, ...]]:
    if state.stopping:
        return state, ()
    today = signal.at.date().isoformat()
    if today != state.day:
        state = replace(state, day=today, turns_today=0)
    calmer = state if state.running else replace(state, mode=WIND_DOWN[state.mode])
    if (
        not state.pending
        or state.autonomous >= policy.max_autonomous_turns
        or state.turns_today >= policy.daily_turns
        or len(state.running) + len(state.waiting) >= policy.lanes
    ):
        return calmer, ()
    conversation, *rest = state.pending
    state = replace(
        state,
        pending=tuple(rest),
        running=(*state.running, conversation),
        autonomous=state.autonomous + 1,
        turns_today=state.turns_today + 1,
    )
    return state, (StartTurn(conversation=conversation, autonomous=True),)


def _dispatch(state: State, policy: Policy) -> tuple[State, tuple[Effect, ...]]:
    free = max(0, policy.lanes - len(state.running))
    now, later = state.waiting[:free], state.waiting[free:]
    state = replace(state, running=(*state.running, *now), waiting=later)
    return state, tuple(StartTurn(conversation=c, autonomous=False) for c in now)
