"""Trace of the signals that a Default Mode Network received, and its replay. Pure.

A trace covers the time between two saves of the state. It is complete by itself: the policy, the state at its
beginning, every signal that changed something with its effects, and a digest of the state at its end. So each trace can
be replayed without the ones before it. Signals that changed nothing and had no effect but the timer are only counted:
an agent at rest receives nothing else, for days.
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
"""Signals after which a trace is saved even if the persistent state has not changed."""
MAX_SIGNALS: Final = 400
"""Limit of listed signals. A longer trace cannot be replayed."""

_SIGNAL_TYPES: Final = (Noticed, TurnEnded, TurnFailed, Tick, Presence, Directive, LeftOff, BudgetSpent, Stopping)
_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {
    kind.__name__: TypeAdapter(kind) for kind in (DmnState, DmnPolicy, *_SIGNAL_TYPES)
}
_MICROSECOND: Final = timedelta(microseconds=1)


class _TraceRecord(BaseModel):
    """Trace as stored in the log. Unknown keys mean that another version wrote it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: dict[str, Any]
    policy_sum: str
    """Digest of the whole policy, with the defaults of the version that wrote it."""
    begin: dict[str, Any] = {}
    at: datetime
    """Time of the first signal."""
    told: tuple[tuple[int, str, dict[str, Any], tuple[str, ...]], ...] = ()
    """For each signal: microseconds since the signal before it, its class name, its fields, its effects."""
    quiet: int = 0
    """Number of signals that changed nothing."""
    lost: int = 0
    """Signals that are not listed because there were too many. 0: the trace is complete."""
    end_sum: str = ""


class DmnTrace:
    """Recorder of the trace that is under way."""

    def __init__(self) -> None:
        self._begin = DmnState()
        self._policy: DmnPolicy | None = None
        self._signals: list[tuple[Signal, tuple[Effect, ...]]] = []
        self._quiet_count = 0
        self._lost_count = 0

    @property
    def is_full(self) -> bool:
        """True if it is time to save the trace."""
        return len(self._signals) >= FLUSH_SIGNALS

    def record(
        self, before: DmnState, signal: Signal, policy: DmnPolicy, after: DmnState, effects: tuple[Effect, ...]
    ) -> None:
        """Record one step."""
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
        """Return the trace in its stored form, and begin a new one. Empty: nothing was recorded.

        `state`: the present one.
        """
        begin, policy, signals, quiet, lost = (
            self._begin,
            self._policy,
            self._signals,
            self._quiet_count,
            self._lost_count,
        )
        self._policy, self._signals, self._quiet_count, self._lost_count = None, [], 0, 0
        if policy is None:
            return ""
        record = _TraceRecord(
            policy=_dump_fields(policy),
            policy_sum=_digest(policy),
            begin=_dump_fields(begin) if not lost else {},
            at=signals[0][0].at.astimezone(UTC),
            told=tuple(_serialize_signals(signals)) if not lost else (),
            quiet=quiet,
            lost=lost + len(signals) if lost else 0,
            end_sum=_digest(state),
        )
        return json.dumps(record.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReplay:
    """Result of a replay."""

    signal_count: int = 0
    """Signals that were decided again."""
    quiet_count: int = 0
    """Signals that had changed nothing, and were only counted."""
    skip_reason: str = ""
    """Reason why a replay is not possible, in words. Empty: it was done."""
    differences: tuple[str, ...] = ()
    """Differences from the record, in words."""
    policy: DmnPolicy | None = None
    """Policy of the trace. None: not known."""


def replay_trace(text: str, saved: str) -> TraceReplay:
    """Decide the signals of a trace again, and compare.

    `saved`: the state that was saved with it, as `agent.signals.dump_state` writes it.
    """
    try:
        record = _TraceRecord.model_validate_json(text)
        policy, begin = (
            cast("DmnPolicy", _load_value("DmnPolicy", record.policy)),
            cast("DmnState", _load_value("DmnState", record.begin)),
        )
        signals = _deserialize_signals(record)
    except (ValidationError, KeyError, OverflowError):
        return TraceReplay(skip_reason="another version wrote it")
    if record.lost:
        return TraceReplay(quiet_count=record.quiet, skip_reason="there were too many signals to list", policy=policy)
    if _digest(policy) != record.policy_sum:
        return TraceReplay(quiet_count=record.quiet, skip_reason="the policy has other defaults in this version")
    state, differences = begin, list[str]()
    for number, (signal, effects) in enumerate(signals, start=1):
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
    elif _digest(state) != record.end_sum:
        differences.append("the state that came of it was another one in what does not outlive the process")
    return TraceReplay(
        signal_count=len(signals), quiet_count=record.quiet, differences=tuple(differences), policy=policy
    )


def describe_effect(effect: Effect) -> str:
    """Return an effect's class name and its field values."""
    return " ".join([type(effect).__name__, *(str(getattr(effect, field.name)) for field in fields(effect))])


def _serialize_signals(
    signals: Sequence[tuple[Signal, tuple[Effect, ...]]],
) -> list[tuple[int, str, dict[str, Any], tuple[str, ...]]]:
    listed, since = [], signals[0][0].at
    for signal, effects in signals:
        kind = type(signal).__name__
        effected = tuple(map(describe_effect, effects))
        listed.append(((signal.at - since) // _MICROSECOND, kind, _dump_fields(signal), effected))
        since = signal.at
    return listed


def _deserialize_signals(record: _TraceRecord) -> list[tuple[Signal, tuple[str, ...]]]:
    signals, at = list[tuple[Signal, tuple[str, ...]]](), record.at
    for later, kind, values, effects in record.told:
        at += later * _MICROSECOND
        signals.append((cast("Signal", _load_value(kind, {**values, "at": at})), effects))
    return signals


def _dump_fields(value: DmnState | DmnPolicy | Signal) -> dict[str, Any]:
    """Return the fields that differ from their defaults, without the time of a signal."""
    dumped = _ADAPTERS[type(value).__name__].dump_python(value, mode="json", exclude_defaults=True, exclude={"at"})
    return cast("dict[str, Any]", dumped)


def _load_value(kind: str, values: dict[str, Any]) -> object:
    """Reverse `_dump_fields`.

    Raises KeyError for fields or types that this version does not know, and ValidationError.
    """
    loaded = _ADAPTERS[kind].validate_python(values)
    if unknown := set(values) - {field.name for field in fields(loaded)}:
        raise KeyError(*unknown)
    return loaded


def _digest(value: DmnState | DmnPolicy) -> str:
    return hashlib.sha256(_ADAPTERS[type(value).__name__].dump_json(value)).hexdigest()[:16]


def _format_effects(effects: Sequence[str]) -> str:
    return ", ".join(effects) or "none"


def _describe_difference(saved: str, replayed: str) -> str:
    """Return the keys in which two saved states differ."""
    try:
        was, now = json.loads(saved), json.loads(replayed)
        unlike = [f"{key} was {was.get(key)!r}, and is {now.get(key)!r}" for key in now if was.get(key) != now[key]]
    except (ValueError, AttributeError):
        return "it cannot be read"
    return "; ".join(unlike) or "it says more"
