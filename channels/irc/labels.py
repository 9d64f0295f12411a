"""Answers that name the line they are about: https://ircv3.net/specs/extensions/labeled-response. Pure.

Such an answer may be late (a refusal by another server of the network), but there is always exactly one.
"""

import itertools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from channels.irc import refusals
from channels.irc.window import LineVerdict
from channels.irc.wire import IrcLine
from gateway.events import MessageId

LabelOwner = TypeVar("LabelOwner", bound=Hashable)
_NUMERIC_DIGITS = 3


@dataclass(eq=False, slots=True)
class _LabelledLine(Generic[LabelOwner]):
    owner: LabelOwner
    sent_s: float
    refusal: str = ""
    id: MessageId | None = None
    is_answered: bool = False


@dataclass(eq=False, slots=True)
class _LabelledLines(Generic[LabelOwner]):
    lines: list[_LabelledLine[LabelOwner]] = field(default_factory=list)
    is_complete: bool = False
    """All of its lines are written."""


class LabelTracker(Generic[LabelOwner]):
    """Which lines carry a label, and what was answered to them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._by_label: dict[str, _LabelledLine[LabelOwner]] = {}
        self._by_owner: dict[LabelOwner, _LabelledLines[LabelOwner]] = {}

    def add_line(self, owner: LabelOwner, now_s: float) -> str:
        """The label for a line that goes out in this moment."""
        label = f"r{next(self._numbers)}"
        told = self._by_label[label] = _LabelledLine(owner, now_s)
        self._by_owner.setdefault(owner, _LabelledLines()).lines.append(told)
        return label

    def complete(self, owner: LabelOwner) -> LineVerdict | None:
        """All of its lines are out; what became of them if all are answered."""
        lines = self._by_owner.get(owner)
        if lines is None:
            return None
        lines.is_complete = True
        return self._verdict(owner)

    def feed(self, label: str, line: IrcLine) -> None:
        """Take in a line of an answer; an unknown label is ignored."""
        told = self._by_label.get(label)
        if told is None:
            return
        if line.command == "FAIL" or (len(line.command) == _NUMERIC_DIGITS and line.command[0] in "45"):
            told.refusal = told.refusal or refusals.refusal_reason(line)
        elif line.command in {"PRIVMSG", "NOTICE"} and (msgid := line.tags.get("msgid")):
            told.id = MessageId(msgid)

    def close(self, label: str) -> tuple[LabelOwner, LineVerdict] | None:
        """The answer is whole; what became of its owner's lines, if that was the last that was missing."""
        told = self._by_label.pop(label, None)
        if told is None:
            return None
        told.is_answered = True
        verdict = self._verdict(told.owner)
        return (told.owner, verdict) if verdict else None

    def take_overdue(self, before_s: float) -> list[LabelOwner]:
        """Owners with a line that went out before, and has no answer. Their labels are forgotten."""
        late = list(dict.fromkeys(told.owner for told in self._by_label.values() if told.sent_s < before_s))
        for owner in late:
            self.forget(owner)
        return late

    def forget(self, owner: LabelOwner) -> None:
        """Nobody waits for its answers any more."""
        self._by_owner.pop(owner, None)
        self._by_label = {label: told for label, told in self._by_label.items() if told.owner is not owner}

    def owners(self) -> list[LabelOwner]:
        """All that wait for an answer."""
        return list(self._by_owner)

    def _verdict(self, owner: LabelOwner) -> LineVerdict | None:
        lines = self._by_owner.get(owner)
        if lines is None or not lines.is_complete or not all(told.is_answered for told in lines.lines):
            return None
        del self._by_owner[owner]
        refused = [told.refusal for told in lines.lines if told.refusal]
        ids = tuple(told.id for told in lines.lines if told.id)
        if not refused:
            return LineVerdict("taken", ids)
        return LineVerdict("refused" if len(refused) == len(lines.lines) else "unknown", ids, refused[0])
