"""What is written down of acts of administration, allowed and refused. Pure.

Nobody can fill the log with refusals: of somebody who administers nothing there is one a minute.
"""

from collections.abc import Callable
from typing import Final

from gateway.access import Decision
from gateway.changes import Made
from gateway.commands.pace import Pace
from gateway.commands.table import Row
from gateway.commands.words import masked
from gateway.events import Command
from gateway.records import Audited, key_of
from gateway.standing import ADMINS, Policy, person, standing

LINE_CHARS: Final = 200
"""Of arguments, and of what was answered."""
_NAME_CHARS: Final = 64
_REFUSALS: Final = 1
"""A minute and person."""

Redact = Callable[[str], str]
"""The same text without secrets."""


class Audit:
    """Makes the facts."""

    def __init__(self, policy: Policy, redact: Redact) -> None:
        self._policy, self._redact = policy, redact
        self._refusals = Pace()

    def build_use_facts(self, row: Row, command: Command, answer: str, *, ok: bool) -> tuple[Made, ...]:
        """Somebody who may use it did. Nothing, if it administers nothing."""
        return (self._build_fact(row, command, answer, ok=ok),) if row.is_administrative else ()

    def build_refusal_facts(
        self, row: Row, command: Command, decision: Decision, rule: str, now_s: float
    ) -> tuple[Made, ...]:
        """Somebody may not."""
        who = person(command.at.channel, command.sender.id)
        trusted = decision.role in ADMINS and not command.sender.is_bot
        if not row.is_administrative or not (trusted or self._refusals.try_acquire(who, now_s, _REFUSALS)):
            return ()
        return (self._build_fact(row, command, f"refused: {rule}", ok=False),)

    def _build_fact(self, row: Row, command: Command, result: str, *, ok: bool) -> Made:
        who = standing(self._policy, command.at, command.sender)
        fact = Audited(
            what=row.name,
            by=person(command.at.channel, command.sender.id),
            name=_line(command.sender.name, _NAME_CHARS),
            evidence=evidence(command),
            role=who.role,
            rule=who.rule,
            at=command.at,
            args=_line(self._redact(masked(row, command.args)), LINE_CHARS),
            ok=ok,
            result=_line(self._redact(_first(result)), LINE_CHARS),
        )
        return Made(fact, key=f"audited:{key_of(command)}")


def evidence(command: Command) -> str:
    """Why this is who it was."""
    sender = command.sender
    who = f"account {sender.account}" if sender.account else f"id {sender.id}"
    vouched = "vouched for by the platform" if sender.verified else "which nobody vouches for"
    how = "by the platform's own command" if command.origin == "native" else "in writing"
    return _line(f"{who}, {vouched}; {'a bot; ' if sender.is_bot else ''}{how}", LINE_CHARS)


def _first(text: str) -> str:
    """The first line that says something: no code's beginning."""
    return next((line for line in text.splitlines() if line.strip("` ")), "")


def _line(text: str, chars: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= chars else f"{line[: chars - 1]}…"
