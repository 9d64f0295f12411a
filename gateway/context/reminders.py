"""Reminders: set, listed, cancelled, and told when their time has come.

The log has them (`ReminderSet`, then an `Alarm` each time), so they hold over restarts. All times that passed while
nobody could tell are one alarm, which says how many there were.

The tools for reminders, carried out: in a conversation for that place, in the inner one for the agent itself.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.tools.specs import CancelReminderArgs, ListRemindersArgs, RemindArgs
from channels.aio import with_timeout
from channels.text import clean_name, single_line
from gateway.context.history import find_write_of_cut_off_turn
from gateway.context.requesters import find_least_role
from gateway.context.schedule import (
    CronSchedule,
    OnceSchedule,
    ScheduleError,
    SpokenTime,
    collapse_due_times,
    describe_schedule_text,
    format_duration,
    format_schedule,
    parse_schedule,
    parse_spoken_time,
    parse_timezone,
)
from gateway.core.clock import Clock, new_id
from gateway.core.events import Address, Alarm, ConversationId, EventId, SenderId
from gateway.core.facts import NoteWritten, ReminderEnded, ReminderSet, TurnId, inner_conversation, is_inner
from gateway.core.permissions import lowest_role, proven_role
from gateway.core.tool import ToolContext, ToolOutput
from gateway.core.tool_spec import ToolCallRefused
from gateway.core.trust import ANYBODY_ROLE
from gateway.store import NewEntry, PendingReminder, Store, StoreError

logger = logging.getLogger("reverie.reminders")

MAX_REMINDER_CHARS: Final = 500
"""Of a reminder's text."""
MAX_SLEEP_S: Final = 60.0
"""The time of day may be set, and a machine may sleep: nobody waits longer without looking at the clock."""
SAME_TIME_TOLERANCE: Final = timedelta(minutes=1)
"""Two times that are as near are one, as people say them."""
_ID_CHARS: Final = 6


class ReminderCap(NamedTuple):
    """What one person may have set, in all places of a channel."""

    max_count: int
    min_interval: timedelta
    """Between two times of one that comes again and again."""


ROLE_CAPS: Final[Mapping[str, ReminderCap]] = {
    "guest": ReminderCap(2, timedelta(minutes=10)),
    "member": ReminderCap(10, timedelta(minutes=5)),
}
"""By role. Owners and admins have none."""
COMPARED_TIMES: Final = 150
"""Times of a schedule that are compared: as many as a day has at the closest pace."""
_LOOKALIKES: Final = str.maketrans("OIL", "011")
"""Letters that ids do not have, and what they were meant to be (crockford.com/base32.html)."""


def new_reminder_id(now: datetime) -> str:
    """Easily read aloud and typed; whether it is new is for the log to say. 30 random bits."""
    return new_id(now)[-_ID_CHARS:]


def normalize_reminder_id(id: str) -> str:  # noqa: A002 - it is what it is
    """The id that somebody may have meant by this."""
    return id.strip().upper().translate(_LOOKALIKES)


class ReminderService:
    """Those of all agents. One `run` for each store, while the gateway runs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        timezone: str,
        max_count: int,
        fire: Callable[[Alarm], Awaitable[None]],
        ids: Callable[[datetime], str] = new_reminder_id,
    ) -> None:
        """`timezone`: of schedules that name none. `max_count`: of one place, and of one agent itself.

        `fire` returns once the alarm is in the log; one that is there already (the same id) it does not tell again.
        """
        self.timezone = timezone
        """May be another one from some moment on; what was set stays as it was understood."""
        self.max_count = max_count
        """The same: what is there already stays."""
        self._store = store
        self._clock = clock
        self._fire = fire
        self._ids = ids
        self._changed = asyncio.Event()
        self._set_lock = asyncio.Lock()

    async def run(self) -> None:
        """Tell each when its time has come, until cancelled; what was being told then is told by the next process.

        Without reminders it waits without waking. Raises StoreError.
        """
        told: dict[str, datetime] = {}
        while True:
            self._changed.clear()
            rows = await self._store.pending_reminders()
            # One that still stands where it was told would be told without end, so it is let alone.
            told = {row.id: row.due for row in rows if told.get(row.id) == row.due}
            rows = [row for row in rows if row.id not in told]
            now = self._clock.now()
            if not rows or rows[0].due > now:
                await self._wait_until(rows[0].due if rows else None)
                continue
            for row in rows:
                if row.due > now or self._changed.is_set():  # one of them may have been cancelled
                    break
                await self._fire_reminder(row)
                told[row.id] = row.due

    async def set(
        self,
        *,
        agent: str,
        at: Address | None,
        by: SenderId,
        asked_by: str,
        text: str,
        spoken: SpokenTime,
        turn: TurnId | None = None,
        role: str = "",
        asker_role: str = "",
    ) -> PendingReminder:
        """Set one; durable when this returns. Raises Refused with a sentence that says what would do instead.

        `turn`: by which; what that has set before its process ended is not set again. `role`: as `ReminderSet.role`.
        `asker_role`: the role of `by`, which bounds what they may have set. Empty: nobody asked.
        """
        now = self._clock.now()
        place = at.conversation if at is not None else None
        said = single_line(text, MAX_REMINDER_CHARS + 1)
        if not said or len(said) > MAX_REMINDER_CHARS:
            raise ToolCallRefused(f"A reminder needs a text of 1 to {MAX_REMINDER_CHARS} characters.")
        try:
            schedule, due = parse_spoken_time(spoken, now, self.timezone)
        except ScheduleError as error:
            raise ToolCallRefused(str(error)) from None
        async with self._set_lock:  # or two at once would both see room for one
            fact = ReminderSet(
                reminder="",
                agent=agent,
                at=at,
                text=said,
                by=by,
                asked_by=clean_name(asked_by),
                schedule=format_schedule(schedule),
                due=due,
                turn=turn,
                role=role,
            )
            before = await find_write_of_cut_off_turn(
                self._store,
                place or inner_conversation(agent),
                turn,
                lambda one, was: _is_same_reminder(fact, now, was, one.at),
            )
            if before is not None and isinstance(before.fact, ReminderSet):
                return _to_row(before.fact)
            if asker_role in ROLE_CAPS:
                self._check_cap(fact, ROLE_CAPS[asker_role], asker_role, await self._store.pending_reminders())
            if len(await self.list(agent, place)) >= self.max_count:
                raise ToolCallRefused(
                    f"There are {self.max_count} reminders here already, and no more may be; cancel one first."
                )
            fact = replace(fact, reminder=await self._write_new(fact, place or inner_conversation(agent), now))
        self._changed.set()
        return _to_row(fact)

    def _check_cap(self, fact: ReminderSet, cap: ReminderCap, role: str, rows: Sequence[PendingReminder]) -> None:
        """Raises Refused for what somebody of that role may not have set: each time is a request that costs money."""
        schedule, time = parse_schedule(fact.schedule), fact.due
        for _ in range(COMPARED_TIMES if not isinstance(schedule, OnceSchedule) else 0):
            later = collapse_due_times(schedule, time, time).next
            if later is None:
                break
            if later - time < cap.min_interval:
                minutes = round(cap.min_interval.total_seconds() / 60)
                raise ToolCallRefused(
                    f"For people with the role {role} a reminder comes every {minutes} minutes at most."
                )
            time = later
        channel = fact.at.channel if fact.at is not None else ""
        count = sum(one.sender == fact.by and (one.conversation or "").startswith(f"{channel}/") for one in rows)
        if count >= cap.max_count:
            raise ToolCallRefused(
                f"Somebody with the role {role} may have {cap.max_count} reminders at a time, and has {count} already; "
                "cancel one first."
            )

    async def list(self, agent: str, where: ConversationId | None) -> Sequence[PendingReminder]:
        """Those of that place (None: of that agent itself) that are still to come, the next first."""
        rows = await self._store.pending_reminders(where)
        return [row for row in rows if row.conversation == where and (where is not None or row.agent == agent)]

    async def least_role(self, some: Sequence[PendingReminder]) -> str:
        """The lowest role of those whose idea any of them was; `owner`: the agent's own. Raises StoreError."""
        roles = ["owner"]
        for one in some:
            found = await self._store.entry_by_key(f"reminded:{one.id}")
            fact = found.fact if found is not None else None
            own = isinstance(fact, ReminderSet) and not (fact.by or fact.role)
            roles.append("owner" if own else (isinstance(fact, ReminderSet) and fact.role) or ANYBODY_ROLE)
        return lowest_role(roles)

    async def cancel(self, id: str, *, agent: str, where: ConversationId | None, reason: str) -> bool:  # noqa: A002 - it is what it is
        """End one of that place (None: of that agent itself) for good. False: there is none of that name there."""
        wanted = normalize_reminder_id(id)
        if not any(row.id == wanted for row in await self.list(agent, where)):
            return False
        await self._write_end(wanted, where or inner_conversation(agent), reason)
        self._changed.set()
        return True

    async def end_matching(self, theirs: Callable[[PendingReminder], bool], reason: str) -> None:
        """End all of somebody's for good."""
        for row in await self._store.pending_reminders():
            if theirs(row):
                await self._write_end(row.id, row.conversation or inner_conversation(row.agent), reason)
        self._changed.set()

    def notify_changed(self) -> None:
        """Somebody else wrote into the log what becomes of one."""
        self._changed.set()

    async def _wait_until(self, due: datetime | None) -> None:
        """Return when that time has come, or when the reminders have changed."""
        if due is None:
            await self._changed.wait()
            return
        while not self._changed.is_set() and (left_s := (due - self._clock.now()).total_seconds()) > 0:
            with contextlib.suppress(TimeoutError):
                await with_timeout(self._clock, min(left_s, MAX_SLEEP_S), self._changed.wait())

    async def _fire_reminder(self, row: PendingReminder) -> None:
        now = self._clock.now()
        try:
            schedule = parse_schedule(row.schedule)
            place = Address.parse(row.conversation) if row.conversation is not None else None
        except ValueError as error:  # e.g. a time zone that exists no more
            logger.warning("reminder %s is over: %s", row.id, error)
            await self._write_end(
                row.id, row.conversation or inner_conversation(row.agent), f"it cannot be read any more: {error}"
            )
            return
        passed = collapse_due_times(schedule, row.due, now)
        alarm = Alarm(
            id=EventId(f"{row.id}:{row.due.isoformat()}"),  # where it stood, so that it is the same at every try
            text=row.text,
            sent=now,
            at=place,
            agent=row.agent,
            reminder=row.id,
            asked_by=row.asked_by,
            due=passed.last,
            missed=passed.missed,
            next=passed.next,
        )
        try:
            await self._fire(alarm)
        except StoreError:
            raise  # without its log the gateway cannot go on
        except Exception:  # a bug: let alone until the next start, or one reminder would end the process at every start
            logger.exception("reminder %s could not be told", row.id)

    async def _write_new(self, fact: ReminderSet, place: ConversationId, now: datetime) -> str:
        """Under an id that no reminder ever had: two would be one for the log."""
        while True:
            made = self._ids(now)
            entry = NewEntry(fact=replace(fact, reminder=made), at=now, conversation=place, key=f"reminded:{made}")
            [written] = await self._store.append([entry])
            if written.is_new:
                return made

    async def _write_end(self, reminder: str, place: ConversationId, reason: str) -> None:
        fact = ReminderEnded(reminder=reminder, reason=single_line(reason, MAX_REMINDER_CHARS))
        await self._store.append([NewEntry(fact=fact, at=self._clock.now(), conversation=place)])


def _is_same_reminder(fact: ReminderSet, now: datetime, was: NoteWritten | ReminderSet, then: datetime) -> bool:
    """Whether a reminder is one that was set `then`: to the same time, or in as long as it was then."""
    if not isinstance(was, ReminderSet) or replace(
        was, reminder="", turn=fact.turn, due=fact.due, schedule=""
    ) != replace(fact, schedule=""):
        return False
    later = (fact.due - was.due) - (now - then)
    return fact.due == was.due or fact.schedule == was.schedule or abs(later) <= SAME_TIME_TOLERANCE


def _to_row(fact: ReminderSet) -> PendingReminder:
    return PendingReminder(
        id=fact.reminder,
        agent=fact.agent,
        conversation=fact.at.conversation if fact.at is not None else None,
        due=fact.due,
        schedule=fact.schedule,
        text=fact.text,
        sender=fact.by,
        asked_by=fact.asked_by,
    )


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
