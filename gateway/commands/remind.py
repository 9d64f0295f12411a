"""The commands about reminders."""

from collections.abc import Mapping, Sequence
from typing import Final

from channels.base import CommandCompletion
from gateway.changes import CommandEffect, EffectFact
from gateway.commands.sight import ConversationPrivacy, find_hidden, format_place, match_suggestions
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.hands_remind import format_due
from gateway.records import ReminderEnded, inner_conversation
from gateway.reminders import ReminderService, normalize_reminder_id
from gateway.schedules import describe_schedule_text
from gateway.standing import ADMIN_ROLES
from gateway.store import AppendResult, PendingReminder, StoreReader
from gateway.tools.consent import inline_code

MAX_REMINDERS: Final = 20
"""Of a place, in one answer."""
MAX_REMINDER_CHARS: Final = 160
"""Of a reminder's text."""


class ReminderCommands:
    """`remind`: whoever may use it sees those of their conversation; administrators, alone with the agent, others."""

    def __init__(self, reminders: ReminderService, reader: StoreReader, places: ConversationPrivacy) -> None:
        self._reminders = reminders
        self._reader = reader
        self._places = places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By name and sub."""
        return {"remind list": self.list_reminders, "remind cancel": self.cancel}

    async def list_reminders(self, ask: CommandCall, _world: CommandContext) -> str:
        """Those that are still to come, the next first."""
        here, elsewhere, private = await self._find_reminders(ask)
        lines = [*map(self._format_reminder, here[:MAX_REMINDERS]), *_format_remaining(here)] or [
            "There are no reminders here."
        ]
        if elsewhere or private:
            told = [
                f"{self._format_reminder(one)}, in {format_place(one.conversation or inner_conversation(one.agent))}"
                for one in elsewhere[:MAX_REMINDERS]
            ]
            counted = [f"- {private} in private conversations"] if private else []
            lines += ["", "Elsewhere:", *told, *_format_remaining(elsewhere), *counted]
        return "\n".join(lines)

    async def cancel(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """End one for good."""
        wanted = normalize_reminder_id(ask.arguments["id"].strip(" `"))
        here, elsewhere, _ = await self._find_reminders(ask)
        row = next((one for one in (*here, *elsewhere) if one.id == wanted), None)
        if row is None:
            return CommandReply(text=f"There is no reminder {inline_code(ask.arguments['id'])} here.", ok=False)
        words = f"Reminder `{row.id}` is cancelled."
        fact = ReminderEnded(reminder=row.id, reason=f"cancelled by {ask.person}")
        made = EffectFact(fact, place=row.conversation or inner_conversation(row.agent))
        return CommandReply(text=words, effect=CommandEffect(answer=words, facts=(made,), settle=self._settle_cancel))

    async def suggest_ids(self, typed: CommandCompletion) -> list[str]:
        """To suggest: those of that place, the next first."""
        return match_suggestions(
            [one.id for one in await self._reader.pending_reminders(typed.at.conversation)], typed.prefix
        )

    def _settle_cancel(self, asked: AppendResult | None) -> None:
        if asked is not None and asked.is_new:
            self._reminders.notify_changed()

    async def _find_reminders(self, ask: CommandCall) -> tuple[list[PendingReminder], list[PendingReminder], int]:
        """Those of this place, those of others that may be told here, and how many may not."""
        at = ask.command.at.conversation
        if not (ask.command.direct and ask.global_role in ADMIN_ROLES):
            return list(await self._reader.pending_reminders(at)), [], 0
        rows = await self._reader.pending_reminders()
        others = [one for one in rows if one.conversation != at]
        private = await find_hidden(ask, self._places, (one.conversation for one in others if one.conversation))
        told = [one for one in others if one.conversation not in private]
        return [one for one in rows if one.conversation == at], told, len(others) - len(told)

    def _format_reminder(self, one: PendingReminder) -> str:
        asked = f", asked for by {inline_code(one.asked_by)}" if one.asked_by else ""
        text = inline_code(one.text, MAX_REMINDER_CHARS)
        return (
            f"- `{one.id}`: {format_due(one, self._reminders.timezone)}, "
            f"{describe_schedule_text(one.schedule)}{asked}: {text}"
        )


def _format_remaining(rows: Sequence[PendingReminder]) -> Sequence[str]:
    return [f"(and {len(rows) - MAX_REMINDERS} later ones)"] if len(rows) > MAX_REMINDERS else []
