"""The tools for reminders, carried out: in a conversation for that place, in the inner one for the agent itself."""

from datetime import timedelta
from typing import Final

from agent.tools.remind import CancelReminder, ListReminders, Remind
from agent.tools.schema import Refused
from gateway.askers import least
from gateway.clock import Clock
from gateway.events import Address, SenderId
from gateway.hands import Given, Whereabouts
from gateway.records import is_inner
from gateway.reminders import Reminders
from gateway.schedules import At, BadSchedule, Cron, again, lasting, parse, zone
from gateway.spoken import Spoken
from gateway.store import Reminder
from gateway.tools.permits import standing, weakest

MOST_LISTED: Final = 50


class RemindHands:
    """Each method answers with a text for the model, or raises Refused."""

    def __init__(self, reminders: Reminders, clock: Clock) -> None:
        self._reminders = reminders
        self._clock = clock

    async def remind(self, args: Remind, where: Whereabouts) -> str:
        """Set one. It counts for whoever asked with the least role, and of these for who spoke last."""
        roles = [standing(one.role, verified=one.verified) for one in where.requesters]
        weak = weakest(roles) if roles else ""
        asker = next((one for one, role in zip(where.requesters[::-1], roles[::-1], strict=True) if role == weak), None)
        made = await self._reminders.set(
            agent=where.agent,
            at=_place(where),
            by=asker.id if asker is not None else SenderId(""),
            asked_by=asker.name if asker is not None else "",
            text=args.text,
            spoken=Spoken(at=args.at, every=args.every, cron=args.cron, timezone=args.timezone),
            turn=where.turn,
            role=least(where),
            asker_role=weak,
        )
        ahead = lasting(round((made.due - self._clock.now()) / timedelta(seconds=1)))
        then = "" if isinstance(parse(made.schedule), At) else f", then {again(made.schedule)}"
        return f"Reminder {made.id} is set for {when(made, self._reminders.timezone)}, in {ahead}{then}."

    async def list_reminders(self, _: ListReminders, where: Whereabouts) -> str | Given:
        """Those of this place only."""
        place = _place(where)
        found = await self._reminders.list(where.agent, place.conversation if place is not None else None)
        lines = [self._format_line(one) for one in found[:MOST_LISTED]]
        if len(found) > MOST_LISTED:
            lines.append(f"(and {len(found) - MOST_LISTED} later ones)")
        if not lines:
            return "There are no reminders here."
        role = await self._reminders.least_role(found[:MOST_LISTED])
        text = "\n".join(lines)
        return Given(text=text, kind="reminders", origin="what people asked for", is_untrusted=True, role=role)

    async def cancel_reminder(self, args: CancelReminder, where: Whereabouts) -> str:
        """End one of this place."""
        place = _place(where)
        done = await self._reminders.cancel(
            args.id,
            agent=where.agent,
            where=place.conversation if place is not None else None,
            reason=f"cancelled for {where.requesters[-1].name}" if where.requesters else "cancelled by the agent",
        )
        if not done:
            raise Refused("There is no such reminder here; list_reminders names them.")
        return "It is cancelled."

    def _format_line(self, one: Reminder) -> str:
        asked = f", asked for by {one.asked_by}" if one.asked_by else ""
        return f"{one.id}: {when(one, self._reminders.timezone)}, {again(one.schedule)}{asked}: {one.text}"


def when(one: Reminder, timezone: str) -> str:
    """When it comes next, on the clocks where its schedule is read, else on those of `timezone`."""
    try:
        schedule = parse(one.schedule)
        place = schedule.timezone if isinstance(schedule, Cron) else timezone
    except BadSchedule:  # e.g. a time zone that is gone
        place = timezone
    return f"{one.due.astimezone(zone(place)):%a %Y-%m-%d %H:%M} ({place})"


def _place(where: Whereabouts) -> Address | None:
    return None if is_inner(where.at.conversation) else where.at
