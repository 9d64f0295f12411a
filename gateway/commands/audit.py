"""What is written down of acts of administration, allowed and refused. Pure.

Nobody can fill the log with refusals: of somebody who administers nothing there is one a minute.
"""

from collections.abc import Callable
from typing import Final

from gateway.access import AccessDecision
from gateway.changes import EffectFact
from gateway.commands.pace import Pace
from gateway.commands.table import CommandDefinition
from gateway.commands.words import mask_secrets
from gateway.events import Command
from gateway.records import AuditRecord, dedup_key
from gateway.standing import ADMIN_ROLES, AccessPolicy, identify, person_key

MAX_LINE_CHARS: Final = 200
"""Of arguments, and of what was answered."""
_MAX_NAME_CHARS: Final = 64
_MAX_REFUSALS_PER_MINUTE: Final = 1
"""A minute and person."""

RedactText = Callable[[str], str]
"""The same text without secrets."""


class CommandAudit:
    """Makes the facts."""

    def __init__(self, policy: AccessPolicy, redact: RedactText) -> None:
        self._policy, self._redact = policy, redact
        self._refusals = Pace()

    def build_use_facts(
        self, row: CommandDefinition, command: Command, answer: str, *, ok: bool
    ) -> tuple[EffectFact, ...]:
        """Somebody who may use it did. Nothing, if it administers nothing."""
        return (self._build_fact(row, command, answer, ok=ok),) if row.is_administrative else ()

    def build_refusal_facts(
        self, row: CommandDefinition, command: Command, decision: AccessDecision, rule: str, now_s: float
    ) -> tuple[EffectFact, ...]:
        """Somebody may not."""
        who = person_key(command.at.channel, command.sender.id)
        trusted = decision.role in ADMIN_ROLES and not command.sender.is_bot
        if not row.is_administrative or not (
            trusted or self._refusals.try_acquire(who, now_s, _MAX_REFUSALS_PER_MINUTE)
        ):
            return ()
        return (self._build_fact(row, command, f"refused: {rule}", ok=False),)

    def _build_fact(self, row: CommandDefinition, command: Command, result: str, *, ok: bool) -> EffectFact:
        who = identify(self._policy, command.at, command.sender)
        fact = AuditRecord(
            what=row.name,
            by=person_key(command.at.channel, command.sender.id),
            name=_clip_line(command.sender.name, _MAX_NAME_CHARS),
            evidence=describe_evidence(command),
            role=who.role,
            rule=who.rule,
            at=command.at,
            args=_clip_line(self._redact(mask_secrets(row, command.args)), MAX_LINE_CHARS),
            ok=ok,
            result=_clip_line(self._redact(_first_line(result)), MAX_LINE_CHARS),
        )
        return EffectFact(fact, key=f"audited:{dedup_key(command)}")


def describe_evidence(command: Command) -> str:
    """Why this is who it was."""
    sender = command.sender
    who = f"account {sender.account}" if sender.account else f"id {sender.id}"
    vouched = "vouched for by the platform" if sender.verified else "which nobody vouches for"
    how = "by the platform's own command" if command.origin == "native" else "in writing"
    return _clip_line(f"{who}, {vouched}; {'a bot; ' if sender.is_bot else ''}{how}", MAX_LINE_CHARS)


def _first_line(text: str) -> str:
    """The first line that says something: no code's beginning."""
    return next((line for line in text.splitlines() if line.strip("` ")), "")


def _clip_line(text: str, chars: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= chars else f"{line[: chars - 1]}…"
