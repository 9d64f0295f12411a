"""Answers that name the line they are about: https://ircv3.net/specs/extensions/labeled-response. Pure.

Such an answer may be late (a refusal by another server of the network), but there is always exactly one.
"""

import itertools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from channels.irc import refusals
from channels.irc.window import Verdict
from channels.irc.wire import Line
from gateway.events import MessageId

Owner = TypeVar("Owner", bound=Hashable)
_NUMERIC = 3


@dataclass(eq=False, slots=True)
class _Told(Generic[Owner]):
    owner: Owner
    sent_s: float
    refusal: str = ""
    id: MessageId | None = None
    answered: bool = False


@dataclass(eq=False, slots=True)
class _Lines(Generic[Owner]):
    told: list[_Told[Owner]] = field(default_factory=list)
    whole: bool = False
    """All of its lines are written."""


class Labels(Generic[Owner]):
    """Which lines carry a label, and what was answered to them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._told: dict[str, _Told[Owner]] = {}
        self._lines: dict[Owner, _Lines[Owner]] = {}

    def wrote(self, owner: Owner, now_s: float) -> str:
        """The label for a line that goes out in this moment."""
        label = f"r{next(self._numbers)}"
        told = self._told[label] = _Told(owner, now_s)
        self._lines.setdefault(owner, _Lines()).told.append(told)
        return label

    def written(self, owner: Owner) -> Verdict | None:
        """All of its lines are out; what became of them if all are answered."""
        lines = self._lines.get(owner)
        if lines is None:
            return None
        lines.whole = True
        return self._verdict(owner)

    def heard(self, label: str, line: Line) -> None:
        """Take in a line of an answer; an unknown label is ignored."""
        told = self._told.get(label)
        if told is None:
            return
        if line.command == "FAIL" or (len(line.command) == _NUMERIC and line.command[0] in "45"):
            told.refusal = told.refusal or refusals.reason(line)
        elif line.command in {"PRIVMSG", "NOTICE"} and (msgid := line.tags.get("msgid")):
            told.id = MessageId(msgid)

    def answered(self, label: str) -> tuple[Owner, Verdict] | None:
        """The answer is whole; what became of its owner's lines, if that was the last that was missing."""
        told = self._told.pop(label, None)
        if told is None:
            return None
        told.answered = True
        verdict = self._verdict(told.owner)
        return (told.owner, verdict) if verdict else None

    def overdue(self, before_s: float) -> list[Owner]:
        """Owners with a line that went out before, and has no answer. Their labels are forgotten."""
        late = list(dict.fromkeys(told.owner for told in self._told.values() if told.sent_s < before_s))
        for owner in late:
            self.forget(owner)
        return late

    def forget(self, owner: Owner) -> None:
        """Nobody waits for its answers any more."""
        self._lines.pop(owner, None)
        self._told = {label: told for label, told in self._told.items() if told.owner is not owner}

    def owners(self) -> list[Owner]:
        """All that wait for an answer."""
        return list(self._lines)

    def _verdict(self, owner: Owner) -> Verdict | None:
        lines = self._lines.get(owner)
        if lines is None or not lines.whole or not all(told.answered for told in lines.told):
            return None
        del self._lines[owner]
        refused = [told.refusal for told in lines.told if told.refusal]
        ids = tuple(told.id for told in lines.told if told.id)
        if not refused:
            return Verdict("taken", ids)
        return Verdict("refused" if len(refused) == len(lines.told) else "unknown", ids, refused[0])
