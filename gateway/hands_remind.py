"""The tools for reminders, carried out: in a conversation for that place, in the inner one for the agent itself."""

from datetime import timedelta
from typing import Final

from agent.tools.remind import CancelReminderArgs, ListRemindersArgs, RemindArgs
from agent.tools.schema import ToolCallRefused
from gateway.askers import find_least_role
from gateway.clock import Clock
from gateway.events import Address, SenderId
from gateway.hands import ToolContext, ToolOutput
from gateway.records import is_inner
from gateway.reminders import ReminderService
from gateway.schedules import (
    CronSchedule,
    OnceSchedule,
    ScheduleError,
    describe_schedule_text,
    format_duration,
    parse_schedule,
    parse_timezone,
)
from gateway.spoken import SpokenTime
from gateway.store import PendingReminder
from gateway.tools.permits import lowest_role, proven_role

MAX_LISTED: Final = 50


class ReminderTools:
    """Each method answers with a text for the model, or raises Refused."""

    def __init__(self, reminders: ReminderService, clock: Clock) -> None:
        self._reminders = reminders
        self._clock = clock

    async def remind(self, args: RemindArgs, where: ToolContext) -> str:
        """Set one. It counts for whoever asked with the least role, and of these for who spoke last."""
        roles = [proven_role(one.role, verified=one.verified) for one in where.requesters]
        weak = lowest_role(roles) if roles else ""
        asker = next((one for one, role in zip(where.requesters[::-1], roles[::-1], strict=True) if role == weak), None)
        made = await self._reminders.set(
            agent=where.agent,
            at=_place_of(where),
            by=asker.id if asker is not None else SenderId(""),
            asked_by=asker.name if asker is not None else "",
            text=args.text,
            spoken=SpokenTime(at=args.at, every=args.every, cron=args.cron, timezone=args.timezone),
            turn=where.turn,
            role=find_least_role(where),
            asker_role=weak,
        )
        ahead = format_duration(round((made.due - self._clock.now()) / timedelta(seconds=1)))
        then = (
            ""
            if isinstance(parse_schedule(made.schedule), OnceSchedule)
            else f", then {describe_schedule_text(made.schedule)}"
        )
        return f"Reminder {made.id} is set for {format_due(made, self._reminders.timezone)}, in {ahead}{then}."

    async def list_reminders(self, _: ListRemindersArgs, where: ToolContext) -> str | ToolOutput:
        """Those of this place only."""
        place = _place_of(where)
        found = await self._reminders.list(where.agent, place.conversation if place is not None else None)
        lines = [self._format_line(one) for one in found[:MAX_LISTED]]
        if len(found) > MAX_LISTED:
            lines.append(f"(and {len(found) - MAX_LISTED} later ones)")
        if not lines:
            return "There are no reminders here."
        role = await self._reminders.least_role(found[:MAX_LISTED])
        text = "\n".join(lines)
        return ToolOutput(text=text, kind="reminders", origin="what people asked for", is_untrusted=True, role=role)

    async def cancel_reminder(self, args: CancelReminderArgs, where: ToolContext) -> str:
        """End one of this place."""
        place = _place_of(where)
        done = await self._reminders.cancel(
            args.id,
            agent=where.agent,
            where=place.conversation if place is not None else None,
            reason=f"cancelled for {where.requesters[-1].name}" if where.requesters else "cancelled by the agent",
        )
        if not done:
            raise ToolCallRefused("There is no such reminder here; list_reminders names them.")
        return "It is cancelled."

    def _format_line(self, one: PendingReminder) -> str:
        asked = f", asked for by {one.asked_by}" if one.asked_by else ""
        return (
            f"{one.id}: {format_due(one, self._reminders.timezone)}, "
            f"{describe_schedule_text(one.schedule)}{asked}: {one.text}"
        )


def format_due(one: PendingReminder, timezone: str) -> str:
    """When it comes next, on the clocks where its schedule is read, else on those of `timezone`."""
    try:
        schedule = parse_schedule(one.schedule)
        place = schedule.timezone if isinstance(schedule, CronSchedule) else timezone
    except ScheduleError:  # e.g. a time zone that is gone
        place = timezone
    return f"{one.due.astimezone(parse_timezone(place)):%a %Y-%m-%d %H:%M} ({place})"


def _place_of(where: ToolContext) -> Address | None:
    return None if is_inner(where.at.conversation) else where.at
