"""The commands about reminders."""

from collections.abc import Mapping, Sequence
from typing import Final

from channels.base import CommandTyped
from gateway.changes import Change, Made
from gateway.commands.sight import Homes, hidden, matching, place_of
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.hands_remind import when
from gateway.records import ReminderEnded, inner
from gateway.reminders import Reminders, meant
from gateway.schedules import again
from gateway.standing import ADMINS
from gateway.store import Appended, Reader, Reminder
from gateway.tools.consent import code

MOST_TOLD: Final = 20
"""Of a place, in one answer."""
TEXT_CHARS: Final = 160
"""Of a reminder's text."""


class RemindCommands:
    """`remind`: whoever may use it sees those of their conversation; administrators, alone with the agent, others."""

    def __init__(self, reminders: Reminders, reader: Reader, places: Homes) -> None:
        self._reminders = reminders
        self._reader = reader
        self._places = places

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By name and sub."""
        return {"remind list": self.list_reminders, "remind cancel": self.cancel}

    async def list_reminders(self, ask: Ask, _world: World) -> str:
        """Those that are still to come, the next first."""
        here, elsewhere, private = await self._find_reminders(ask)
        lines = [*map(self._format_reminder, here[:MOST_TOLD]), *_more(here)] or ["There are no reminders here."]
        if elsewhere or private:
            told = [
                f"{self._format_reminder(one)}, in {place_of(one.conversation or inner(one.agent))}"
                for one in elsewhere[:MOST_TOLD]
            ]
            counted = [f"- {private} in private conversations"] if private else []
            lines += ["", "Elsewhere:", *told, *_more(elsewhere), *counted]
        return "\n".join(lines)

    async def cancel(self, ask: Ask, _world: World) -> Answer:
        """End one for good."""
        wanted = meant(ask.arguments["id"].strip(" `"))
        here, elsewhere, _ = await self._find_reminders(ask)
        row = next((one for one in (*here, *elsewhere) if one.id == wanted), None)
        if row is None:
            return Answer(text=f"There is no reminder {code(ask.arguments['id'])} here.", ok=False)
        words = f"Reminder `{row.id}` is cancelled."
        fact = ReminderEnded(reminder=row.id, reason=f"cancelled by {ask.person}")
        made = Made(fact, place=row.conversation or inner(row.agent))
        return Answer(text=words, effect=Change(answer=words, facts=(made,), settle=self._settle_cancel))

    async def suggest_ids(self, typed: CommandTyped) -> list[str]:
        """To suggest: those of that place, the next first."""
        return matching([one.id for one in await self._reader.pending_reminders(typed.at.conversation)], typed.prefix)

    def _settle_cancel(self, asked: Appended | None) -> None:
        if asked is not None and asked.is_new:
            self._reminders.notify_changed()

    async def _find_reminders(self, ask: Ask) -> tuple[list[Reminder], list[Reminder], int]:
        """Those of this place, those of others that may be told here, and how many may not."""
        at = ask.command.at.conversation
        if not (ask.command.direct and ask.global_role in ADMINS):
            return list(await self._reader.pending_reminders(at)), [], 0
        rows = await self._reader.pending_reminders()
        others = [one for one in rows if one.conversation != at]
        private = await hidden(ask, self._places, (one.conversation for one in others if one.conversation))
        told = [one for one in others if one.conversation not in private]
        return [one for one in rows if one.conversation == at], told, len(others) - len(told)

    def _format_reminder(self, one: Reminder) -> str:
        asked = f", asked for by {code(one.asked_by)}" if one.asked_by else ""
        text = code(one.text, TEXT_CHARS)
        return f"- `{one.id}`: {when(one, self._reminders.timezone)}, {again(one.schedule)}{asked}: {text}"


def _more(rows: Sequence[Reminder]) -> Sequence[str]:
    return [f"(and {len(rows) - MOST_TOLD} later ones)"] if len(rows) > MOST_TOLD else []
