"""What a Default Mode Network was told between two saves of its state, and that it would decide the same again. Pure.

A stretch is whole by itself: the policy, the state that it begins with, every signal that changed something with the
effects it had, and a digest of the state that came of it. So any one of them can be decided again, whatever stands in
front of it. Signals that changed nothing and asked for nothing but the timer are counted only: an agent at rest is told
nothing else, for days.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from agent import dmn
from agent.signals import (
    BudgetSpent,
    Directive,
    Effect,
    LeftOff,
    Noticed,
    Policy,
    Presence,
    SetTimer,
    Signal,
    State,
    Stopping,
    Tick,
    TurnEnded,
    TurnFailed,
    save,
)

MANY: Final = 200
"""Signals that are enough to be written down, also if what outlives the process has not changed."""
MOST: Final = 400
"""More are not listed: such a stretch cannot be decided again."""

_KINDS: Final = (Noticed, TurnEnded, TurnFailed, Tick, Presence, Directive, LeftOff, BudgetSpent, Stopping)
_READ: Final[dict[str, TypeAdapter[Any]]] = {kind.__name__: TypeAdapter(kind) for kind in (State, Policy, *_KINDS)}
_MICROSECOND: Final = timedelta(microseconds=1)


class _Written(BaseModel):
    """A stretch as it stands in the log. Unknown keys: another version wrote it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: dict[str, Any]
    policy_sum: str
    """Of all of it, with the defaults of the version that wrote this."""
    begin: dict[str, Any] = {}
    at: datetime
    """Of the first signal."""
    told: tuple[tuple[int, str, dict[str, Any], tuple[str, ...]], ...] = ()
    """Microseconds since the one in front of it, its name, its fields, and the effects."""
    quiet: int = 0
    """Signals that changed nothing."""
    lost: int = 0
    """Signals that are not listed because there were too many. 0: the stretch is whole."""
    end_sum: str = ""


class Stretch:
    """The one that is under way."""

    def __init__(self) -> None:
        self._begin = State()
        self._policy: Policy | None = None
        self._signals: list[tuple[Signal, tuple[Effect, ...]]] = []
        self._quiet_count = 0
        self._lost_count = 0

    @property
    def is_full(self) -> bool:
        """It is time to write it down."""
        return len(self._signals) >= MANY

    def record(self, before: State, signal: Signal, policy: Policy, after: State, effects: tuple[Effect, ...]) -> None:
        """One step that was made."""
        if after == before and all(isinstance(effect, SetTimer) for effect in effects):
            self._quiet_count += 1
            return
        if not self._signals:
            self._begin, self._policy = before, policy
        if len(self._signals) >= MOST or policy != self._policy:
            self._lost_count += 1
        else:
            self._signals.append((signal, effects))

    def flush(self, state: State) -> str:
        """All that was noted, as it is written down; `state`: as it is now. Begins anew. Empty: nothing was."""
        begin, policy, told, quiet, lost = self._begin, self._policy, self._signals, self._quiet_count, self._lost_count
        self._policy, self._signals, self._quiet_count, self._lost_count = None, [], 0, 0
        if policy is None:
            return ""
        written = _Written(
            policy=_dump(policy),
            policy_sum=_digest(policy),
            begin=_dump(begin) if not lost else {},
            at=told[0][0].at.astimezone(UTC),
            told=tuple(_list(told)) if not lost else (),
            quiet=quiet,
            lost=lost + len(told) if lost else 0,
            end_sum=_digest(state),
        )
        return json.dumps(written.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A stretch, decided once more."""

    signal_count: int = 0
    """That were decided again."""
    quiet_count: int = 0
    """That had changed nothing, and are only counted."""
    skip_reason: str = ""
    """Why it cannot be decided again, in words. Empty: it was."""
    differences: tuple[str, ...] = ()
    """In words."""
    policy: Policy | None = None
    """By which it was decided. None: it is not known."""


def again(text: str, saved: str) -> Again:
    """Decide a stretch once more. `saved`: the state that was written down with it, as `agent.signals.save` has it."""
    try:
        written = _Written.model_validate_json(text)
        policy, begin = cast("Policy", _load("Policy", written.policy)), cast("State", _load("State", written.begin))
        told = _read(written)
    except (ValidationError, KeyError, OverflowError):
        return Again(skip_reason="another version wrote it")
    if written.lost:
        return Again(quiet_count=written.quiet, skip_reason="there were too many signals to list", policy=policy)
    if _digest(policy) != written.policy_sum:
        return Again(quiet_count=written.quiet, skip_reason="the policy has other defaults in this version")
    state, differences = begin, list[str]()
    for number, (signal, effects) in enumerate(told, start=1):
        state, now = dmn.step(state, signal, policy)
        found = tuple(map(describe, now))
        if found != effects:
            differences.append(
                f"signal {number} ({type(signal).__name__} at {signal.at.isoformat()}): the effects were "
                f"{_words(effects)}, and are {_words(found)}"
            )
    if save(state) != saved:
        differences.append(f"the state that was written down is not what comes of it: {_unlike(saved, save(state))}")
    elif _digest(state) != written.end_sum:
        differences.append("the state that came of it was another one in what does not outlive the process")
    return Again(signal_count=len(told), quiet_count=written.quiet, differences=tuple(differences), policy=policy)


def describe(effect: Effect) -> str:
    """An effect with all that it says, in a few words."""
    return " ".join([type(effect).__name__, *(str(getattr(effect, field.name)) for field in fields(effect))])


def _list(told: Sequence[tuple[Signal, tuple[Effect, ...]]]) -> list[tuple[int, str, dict[str, Any], tuple[str, ...]]]:
    listed, since = [], told[0][0].at
    for signal, effects in told:
        kind = type(signal).__name__
        effected = tuple(map(describe, effects))
        listed.append(((signal.at - since) // _MICROSECOND, kind, _dump(signal), effected))
        since = signal.at
    return listed


def _read(written: _Written) -> list[tuple[Signal, tuple[str, ...]]]:
    told, at = list[tuple[Signal, tuple[str, ...]]](), written.at
    for later, kind, said, effects in written.told:
        at += later * _MICROSECOND
        told.append((cast("Signal", _load(kind, {**said, "at": at})), effects))
    return told


def _dump(value: State | Policy | Signal) -> dict[str, Any]:
    """Of what is not as it is by default; without the time of a signal."""
    said = _READ[type(value).__name__].dump_python(value, mode="json", exclude_defaults=True, exclude={"at"})
    return cast("dict[str, Any]", said)


def _load(kind: str, said: dict[str, Any]) -> object:
    """Reverse `_dump`. Raises KeyError for what this version does not know, ValidationError."""
    made = _READ[kind].validate_python(said)
    if unknown := set(said) - {field.name for field in fields(made)}:
        raise KeyError(*unknown)
    return made


def _digest(value: State | Policy) -> str:
    return hashlib.sha256(_READ[type(value).__name__].dump_json(value)).hexdigest()[:16]


def _words(effects: Sequence[str]) -> str:
    return ", ".join(effects) or "none"


def _unlike(one: str, other: str) -> str:
    """In what two saved states differ."""
    try:
        was, now = json.loads(one), json.loads(other)
        unlike = [f"{key} was {was.get(key)!r}, and is {now.get(key)!r}" for key in now if was.get(key) != now[key]]
    except (ValueError, AttributeError):
        return "it cannot be read"
    return "; ".join(unlike) or "it says more"
