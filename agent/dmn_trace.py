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
    DmnPolicy,
    DmnState,
    Effect,
    LeftOff,
    Noticed,
    Presence,
    SetTimer,
    Signal,
    Stopping,
    Tick,
    TurnEnded,
    TurnFailed,
    dump_state,
)

FLUSH_SIGNALS: Final = 200
"""Signals that are enough to be written down, also if what outlives the process has not changed."""
MAX_SIGNALS: Final = 400
"""More are not listed: such a stretch cannot be decided again."""

_SIGNAL_TYPES: Final = (Noticed, TurnEnded, TurnFailed, Tick, Presence, Directive, LeftOff, BudgetSpent, Stopping)
_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {
    kind.__name__: TypeAdapter(kind) for kind in (DmnState, DmnPolicy, *_SIGNAL_TYPES)
}
_MICROSECOND: Final = timedelta(microseconds=1)


class _TraceRecord(BaseModel):
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


class DmnTrace:
    """The one that is under way."""

    def __init__(self) -> None:
        self._begin = DmnState()
        self._policy: DmnPolicy | None = None
        self._signals: list[tuple[Signal, tuple[Effect, ...]]] = []
        self._quiet_count = 0
        self._lost_count = 0

    @property
    def is_full(self) -> bool:
        """It is time to write it down."""
        return len(self._signals) >= FLUSH_SIGNALS

    def record(
        self, before: DmnState, signal: Signal, policy: DmnPolicy, after: DmnState, effects: tuple[Effect, ...]
    ) -> None:
        """One step that was made."""
        if after == before and all(isinstance(effect, SetTimer) for effect in effects):
            self._quiet_count += 1
            return
        if not self._signals:
            self._begin, self._policy = before, policy
        if len(self._signals) >= MAX_SIGNALS or policy != self._policy:
            self._lost_count += 1
        else:
            self._signals.append((signal, effects))

    def flush(self, state: DmnState) -> str:
        """All that was noted, as it is written down; `state`: as it is now. Begins anew. Empty: nothing was."""
        begin, policy, told, quiet, lost = self._begin, self._policy, self._signals, self._quiet_count, self._lost_count
        self._policy, self._signals, self._quiet_count, self._lost_count = None, [], 0, 0
        if policy is None:
            return ""
        written = _TraceRecord(
            policy=_dump_fields(policy),
            policy_sum=_digest(policy),
            begin=_dump_fields(begin) if not lost else {},
            at=told[0][0].at.astimezone(UTC),
            told=tuple(_serialize_signals(told)) if not lost else (),
            quiet=quiet,
            lost=lost + len(told) if lost else 0,
            end_sum=_digest(state),
        )
        return json.dumps(written.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReplay:
    """A stretch, decided once more."""

    signal_count: int = 0
    """That were decided again."""
    quiet_count: int = 0
    """That had changed nothing, and are only counted."""
    skip_reason: str = ""
    """Why it cannot be decided again, in words. Empty: it was."""
    differences: tuple[str, ...] = ()
    """In words."""
    policy: DmnPolicy | None = None
    """By which it was decided. None: it is not known."""


def replay_trace(text: str, saved: str) -> TraceReplay:
    """Decide a stretch once more.

    `saved`: the state that was written down with it, as `agent.signals.dump_state` has it.
    """
    try:
        written = _TraceRecord.model_validate_json(text)
        policy, begin = (
            cast("DmnPolicy", _load_value("DmnPolicy", written.policy)),
            cast("DmnState", _load_value("DmnState", written.begin)),
        )
        told = _deserialize_signals(written)
    except (ValidationError, KeyError, OverflowError):
        return TraceReplay(skip_reason="another version wrote it")
    if written.lost:
        return TraceReplay(quiet_count=written.quiet, skip_reason="there were too many signals to list", policy=policy)
    if _digest(policy) != written.policy_sum:
        return TraceReplay(quiet_count=written.quiet, skip_reason="the policy has other defaults in this version")
    state, differences = begin, list[str]()
    for number, (signal, effects) in enumerate(told, start=1):
        state, now = dmn.step(state, signal, policy)
        found = tuple(map(describe_effect, now))
        if found != effects:
            differences.append(
                f"signal {number} ({type(signal).__name__} at {signal.at.isoformat()}): the effects were "
                f"{_format_effects(effects)}, and are {_format_effects(found)}"
            )
    if dump_state(state) != saved:
        differences.append(
            f"the state that was written down is not what comes of it: {_describe_difference(saved, dump_state(state))}"
        )
    elif _digest(state) != written.end_sum:
        differences.append("the state that came of it was another one in what does not outlive the process")
    return TraceReplay(signal_count=len(told), quiet_count=written.quiet, differences=tuple(differences), policy=policy)


def describe_effect(effect: Effect) -> str:
    """An effect with all that it says, in a few words."""
    return " ".join([type(effect).__name__, *(str(getattr(effect, field.name)) for field in fields(effect))])


def _serialize_signals(
    told: Sequence[tuple[Signal, tuple[Effect, ...]]],
) -> list[tuple[int, str, dict[str, Any], tuple[str, ...]]]:
    listed, since = [], told[0][0].at
    for signal, effects in told:
        kind = type(signal).__name__
        effected = tuple(map(describe_effect, effects))
        listed.append(((signal.at - since) // _MICROSECOND, kind, _dump_fields(signal), effected))
        since = signal.at
    return listed


def _deserialize_signals(written: _TraceRecord) -> list[tuple[Signal, tuple[str, ...]]]:
    told, at = list[tuple[Signal, tuple[str, ...]]](), written.at
    for later, kind, said, effects in written.told:
        at += later * _MICROSECOND
        told.append((cast("Signal", _load_value(kind, {**said, "at": at})), effects))
    return told


def _dump_fields(value: DmnState | DmnPolicy | Signal) -> dict[str, Any]:
    """Of what is not as it is by default; without the time of a signal."""
    said = _ADAPTERS[type(value).__name__].dump_python(value, mode="json", exclude_defaults=True, exclude={"at"})
    return cast("dict[str, Any]", said)


def _load_value(kind: str, said: dict[str, Any]) -> object:
    """Reverse `_dump_fields`. Raises KeyError for what this version does not know, ValidationError."""
    made = _ADAPTERS[kind].validate_python(said)
    if unknown := set(said) - {field.name for field in fields(made)}:
        raise KeyError(*unknown)
    return made


def _digest(value: DmnState | DmnPolicy) -> str:
    return hashlib.sha256(_ADAPTERS[type(value).__name__].dump_json(value)).hexdigest()[:16]


def _format_effects(effects: Sequence[str]) -> str:
    return ", ".join(effects) or "none"


def _describe_difference(one: str, other: str) -> str:
    """In what two saved states differ."""
    try:
        was, now = json.loads(one), json.loads(other)
        unlike = [f"{key} was {was.get(key)!r}, and is {now.get(key)!r}" for key in now if was.get(key) != now[key]]
    except (ValueError, AttributeError):
        return "it cannot be read"
    return "; ".join(unlike) or "it says more"
