"""Reminders and intentions: set, listed, ended, and fired when they are due.

A reminder is to be told, an intention to be done. The log holds both (`ReminderSet`, then an
`Alarm` each time), so they survive restarts. All times that passed while the gateway was down
become one alarm, which says how many there were. An intention that waits for a line of talk is
fired by `gateway.context.intentions`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from channels.aio import with_timeout
from channels.text import clean_name, single_line
from gateway.cluster.cluster import Cluster, agent_lease
from gateway.config.reload import LiveSettings
from gateway.context.history import find_write_of_cut_off_turn
from gateway.context.requesters import BLOCKED_REASON
from gateway.context.schedule import (
    CronSchedule,
    OnceSchedule,
    ScheduleError,
    SpokenTime,
    collapse_due_times,
    describe_schedule_text,
    format_schedule,
    parse_schedule,
    parse_spoken_time,
    parse_timezone,
)
from gateway.core.clock import Clock, new_id
from gateway.core.events import (
    Address,
    Alarm,
    ChannelName,
    ConversationId,
    EventId,
    Sender,
    SenderId,
)
from gateway.core.facts import (
    NoteWritten,
    ReminderEnded,
    ReminderOutcome,
    ReminderSet,
    RoleAssigned,
    TurnId,
    inner_conversation,
)
from gateway.core.identity import AccessPolicy, person_key, role_of, stable_source
from gateway.core.permissions import lowest_role
from gateway.core.tool_spec import ToolCallRefused
from gateway.store import NewEntry, PendingReminder, Store, StoreError
from gateway.stream.internal import InternalIntake

logger = logging.getLogger("reverie.reminders")

ROLE_CAPS: Final[Mapping[str, tuple[int, float]]] = {"guest": (2, 600.0), "member": (10, 300.0)}
"""Reminders of one person at the same time, and the seconds between two times of a repeating one.
Owners and admins have only the limit of each conversation."""
MAX_REMINDERS: Final = 20
"""Of one conversation at once."""
OPEN_TIME: Final = timedelta(days=30)
"""Life of an intention that has neither a time nor an end."""
MAX_REMINDER_CHARS: Final = 500
"""Longest text of a reminder."""
MAX_SLEEP_S: Final = 60.0
"""Longest sleep without a look at the clock: the time of day may be set, and a machine may
sleep."""
SAME_TIME_TOLERANCE: Final = timedelta(minutes=1)
"""Two due times this close count as equal."""
_ID_CHARS: Final = 6
COMPARED_TIMES: Final = 150
"""Times of a schedule that are compared: as many as a day has at the shortest interval."""
_LOOKALIKES: Final = str.maketrans("OIL", "011")
"""Letters that ids do not contain, and the digits that are meant (crockford.com/base32.html)."""

MAX_LISTED: Final = 50


def new_reminder_id(now: datetime) -> str:
    """Return a random id (30 bits), easy to read aloud and to type. The caller checks that it is
    new.
    """
    return new_id(now)[-_ID_CHARS:]


class ReminderService:
    """Reminders of all agents. One `run` for each store, while the gateway runs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        live: LiveSettings,
        access_policy: AccessPolicy,
        internal: InternalIntake,
        ids: Callable[[datetime], str] = new_reminder_id,
        cluster: Cluster | None = None,
        most: int = MAX_REMINDERS,
    ) -> None:
        """`most`: reminders of one conversation at once.

        `cluster` None: this is the only process; else each agent's reminders are fired where it is
        led.
        """
        self._cluster = cluster or Cluster()
        self._most = most
        self._live = live
        self._store = store
        self._clock = clock
        self._internal = internal
        self._ids = ids
        self._access_policy = access_policy
        self._roles_changed = asyncio.Event()
        self._changed = asyncio.Event()
        store.subscribe(lambda _: self._on_roles_changed(), RoleAssigned)
        store.subscribe(lambda _: self._changed.set(), ReminderSet, ReminderEnded, own=False)
        live.on_change(lambda _: self._on_roles_changed)
        self._set_lock = asyncio.Lock()

    @property
    def timezone(self) -> str:
        """Time zone of schedules that name none. Reminders keep the time that was understood when
        they were set.
        """
        return self._live.settings.dmn.timezone

    async def run(self) -> None:
        """Fire each reminder when it is due, until cancelled; the next process fires one that was
        in progress then.

        Without reminders it waits without waking. Raises StoreError.
        """
        fired: dict[str, datetime] = {}
        while True:
            self._changed.clear()
            if self._roles_changed.is_set():
                self._roles_changed.clear()
                await self._end_blocked()
            rows = await self._find_own()
            # A reminder still pending after it was fired would be fired without end, so it is
            # skipped.
            fired = {row.id: row.due for row in rows if fired.get(row.id) == row.due}
            rows = [row for row in rows if row.id not in fired]
            now = self._clock.now()
            if not rows or rows[0].due > now:
                await self._wait_until(rows[0].due if rows else None)
                continue
            for row in rows:
                if row.due > now or self._changed.is_set():  # one of them may have been cancelled
                    break
                await self._fire_reminder(row)
                fired[row.id] = row.due

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
        requester_role: str = "",
        readers: tuple[str, ...] | None = None,
        intended: bool = False,
        on: str = "",
        word: str = "",
    ) -> PendingReminder:
        """Set a reminder; durable on return. Raises ToolCallRefused with a sentence that says what
        would be possible.

        An intention may do without a time, and with `on` its time is its end. The fields are those
        of `ReminderSet`.

        The caps are exact, also where other processes set reminders at the same moment: the log
        says who was first. `turn`: the turn that sets it; what that turn set before its process
        ended is not set again. `role`: see `ReminderSet.role`. `requester_role`: role of `by`,
        which limits what they may set. Empty: no person asked.
        """
        now = self._clock.now()
        place = at.conversation if at is not None else None
        cleaned = single_line(text, MAX_REMINDER_CHARS + 1)
        if not cleaned or len(cleaned) > MAX_REMINDER_CHARS:
            raise ToolCallRefused(
                f"A reminder needs a text of 1 to {MAX_REMINDER_CHARS} characters."
            )
        schedule, due = "", now + OPEN_TIME
        if not intended or spoken != SpokenTime():
            try:
                parsed, due = parse_spoken_time(spoken, now, self.timezone)
            except ScheduleError as error:
                raise ToolCallRefused(str(error)) from None
            schedule = "" if on else format_schedule(parsed)
        async with self._set_lock:  # two at once would both find room for one
            fact = ReminderSet(
                reminder="",
                agent=agent,
                at=at,
                text=cleaned,
                by=by,
                asked_by=clean_name(asked_by),
                schedule=schedule,
                due=due,
                turn=turn,
                role=role,
                readers=readers,
                intended=intended,
                on=on,
                word=word,
            )
            where = place or inner_conversation(agent)
            before = await find_write_of_cut_off_turn(
                self._store,
                where,
                turn,
                lambda one, previous: _is_same_reminder(fact, now, previous, one.at),
            )
            written = before.fact if before is not None else None
            if not isinstance(written, ReminderSet):
                if refusal := self._find_excess(
                    fact, requester_role, await self._store.pending_reminders()
                ):
                    raise ToolCallRefused(refusal)
                written = await self._write_new(fact, where, now)
        self._changed.set()
        return to_row(written)

    def _find_excess(self, fact: ReminderSet, role: str, rows: Sequence[PendingReminder]) -> str:
        """Return why a reminder beside these is above the cap of that role or of its place. Empty:
        it is not.
        """
        if role in ROLE_CAPS and (excess := _find_role_excess(fact, role, rows)):
            return excess
        if (
            len(
                _select_place(
                    rows, fact.agent, fact.at.conversation if fact.at is not None else None
                )
            )
            >= self._most
        ):
            return (
                f"There are {self._most} reminders and intentions here already, which is the "
                "limit; drop one first."
            )
        return ""

    async def list(self, agent: str, place: ConversationId | None) -> Sequence[PendingReminder]:
        """Return the pending reminders of a place (None: of the agent itself), the next first."""
        return _select_place(await self._store.pending_reminders(place), agent, place)

    async def least_role(self, reminders: Sequence[PendingReminder]) -> str:
        """Return the lowest role of those who caused any of them; `owner`: the agent itself. Raises
        StoreError.
        """
        roles = ["owner"]
        for one in reminders:
            found = await self._store.entry_by_key(_set_key(one.id))
            fact = found.fact if found is not None else None
            roles.append((fact.role or "owner") if isinstance(fact, ReminderSet) else "guest")
        return lowest_role(roles)

    async def end(
        self,
        id: str,  # noqa: A002 - it is what it is
        *,
        agent: str,
        place: ConversationId | None,
        reason: str,
        outcome: ReminderOutcome = "dropped",
    ) -> bool:
        """End a reminder of a place (None: of the agent itself). False: there is none with this
        id.
        """
        wanted = normalize_reminder_id(id)
        if not any(row.id == wanted for row in await self.list(agent, place)):
            return False
        await self._write_end(wanted, place or inner_conversation(agent), reason, outcome)
        self._changed.set()
        return True

    def _on_roles_changed(self) -> None:
        self._roles_changed.set()
        self._changed.set()

    async def _end_blocked(self) -> None:
        """End the reminders of people who are blocked by now."""
        for row in await self._find_own():
            if not row.sender or row.conversation is None:
                continue
            sender = Sender(id=row.sender, name=row.asked_by, verified=True)
            if role_of(self._access_policy, Address.parse(row.conversation), sender) == "blocked":
                await self._write_end(row.id, row.conversation, BLOCKED_REASON)

    async def _find_own(self) -> Sequence[PendingReminder]:
        """Return the pending reminders of the agents that are led here, the next first."""
        rows = await self._store.pending_reminders()
        return [row for row in rows if self._cluster.holds(agent_lease(row.agent))]

    def notify_changed(self) -> None:
        """Read the log again, because other code changed a reminder there, or another agent is led
        here.
        """
        self._changed.set()

    async def _wait_until(self, due: datetime | None) -> None:
        """Return when that time has come, or when the reminders have changed."""
        if due is None:
            await self._changed.wait()
            return
        while (
            not self._changed.is_set() and (left_s := (due - self._clock.now()).total_seconds()) > 0
        ):
            with contextlib.suppress(TimeoutError):
                await with_timeout(self._clock, min(left_s, MAX_SLEEP_S), self._changed.wait())

    async def _fire_reminder(self, row: PendingReminder) -> None:
        now, home = self._clock.now(), row.conversation or inner_conversation(row.agent)
        if not row.schedule:
            await self._write_end(row.id, home, "its time is over", "expired")
            return
        try:
            schedule = parse_schedule(row.schedule)
            place = Address.parse(row.conversation) if row.conversation is not None else None
        except ValueError as error:  # e.g. a time zone that exists no more
            logger.warning("reminder %s is over: %s", row.id, error)
            await self._write_end(row.id, home, f"it cannot be read any more: {error}")
            return
        passed = collapse_due_times(schedule, row.due, now)
        alarm = Alarm(
            id=EventId(
                f"{row.id}:{row.due.isoformat()}"
            ),  # its due time, so that the id is the same at every try
            text=row.text,
            sent=now,
            at=place,
            agent=row.agent,
            reminder=row.id,
            asked_by=row.asked_by,
            due=passed.last,
            missed=passed.missed,
            next=passed.next,
            intended=row.intended,
        )
        try:
            await self._internal.submit(alarm)
        except StoreError:
            raise  # without its log the gateway cannot go on
        # A bug: skipped until the next start, so that one reminder does not end the process each
        # time.
        except Exception:
            logger.exception("reminder %s could not be told", row.id)

    async def _write_new(
        self, fact: ReminderSet, place: ConversationId, now: datetime
    ) -> ReminderSet:
        """Append a reminder under an id that no reminder ever had: the log would take two with one
        id for one.
        """
        while True:
            fact = replace(fact, reminder=self._ids(now))
            entry = NewEntry(fact=fact, at=now, conversation=place, key=_set_key(fact.reminder))
            [written] = await self._store.append([entry])
            if written.is_new:
                return fact

    async def _write_end(
        self,
        reminder: str,
        place: ConversationId,
        reason: str,
        outcome: ReminderOutcome = "dropped",
    ) -> None:
        fact = ReminderEnded(
            reminder=reminder, reason=single_line(reason, MAX_REMINDER_CHARS), outcome=outcome
        )
        await self._store.append([NewEntry(fact=fact, at=self._clock.now(), conversation=place)])


def _set_key(reminder: str) -> str:
    """Return the key of the entry that sets a reminder."""
    return f"reminded:{reminder}"


def _select_place(
    rows: Iterable[PendingReminder], agent: str, place: ConversationId | None
) -> Sequence[PendingReminder]:
    """Return the reminders of a place. None: of the agent itself."""
    return [
        row
        for row in rows
        if row.conversation == place and (place is not None or row.agent == agent)
    ]


def _find_role_excess(fact: ReminderSet, role: str, rows: Sequence[PendingReminder]) -> str:
    """Return why a reminder is above the cap of a role: each firing is a request that costs money.
    Empty: it is not.
    """
    time, (most, every_s) = fact.due, ROLE_CAPS[role]
    schedule = parse_schedule(fact.schedule) if fact.schedule else OnceSchedule(time=time)
    for _ in range(COMPARED_TIMES if not isinstance(schedule, OnceSchedule) else 0):
        later = collapse_due_times(schedule, time, time).next
        if later is None:
            break
        if (later - time).total_seconds() < every_s:
            return (
                f"For people with the role {role} a reminder comes every {every_s / 60:g} "
                "minutes at most."
            )
        time = later
    channel = fact.at.channel if fact.at is not None else ChannelName("")
    mine = [one for one in rows if (one.conversation or "").startswith(f"{channel}/")]
    whose = stable_source(person_key(channel, fact.by))
    count = sum(stable_source(person_key(channel, one.sender)) == whose for one in mine)
    if count < most:
        return ""
    return (
        f"Somebody with the role {role} may have {most} reminders and intentions at a time, and "
        f"has {count} already; drop one first."
    )


def normalize_reminder_id(id: str) -> str:  # noqa: A002 - it is what it is
    """Return the id that a person may have meant."""
    return id.strip().upper().translate(_LOOKALIKES)


def format_due(reminder: PendingReminder, timezone: str) -> str:
    """Return the next time, or the end, in the time zone of its schedule, else in `timezone`."""
    try:
        schedule = parse_schedule(reminder.schedule)
        place = schedule.timezone if isinstance(schedule, CronSchedule) else timezone
    except ScheduleError:  # e.g. a time zone that exists no more
        place = timezone
    return f"{reminder.due.astimezone(parse_timezone(place)):%a %Y-%m-%d %H:%M} ({place})"


def describe_wait(reminder: PendingReminder, timezone: str) -> str:
    """Return for the model what it waits for."""
    due = format_due(reminder, timezone)
    if reminder.schedule:
        return f"{due}, {describe_schedule_text(reminder.schedule)}"
    word = f" with {reminder.word!r}" if reminder.word else ""
    return f"on {reminder.on}{word} until {due}" if reminder.on else f"open until {due}"


def _is_same_reminder(
    fact: ReminderSet, now: datetime, previous: NoteWritten | ReminderSet, then: datetime
) -> bool:
    """Return whether `fact` repeats the reminder `previous`, set at `then`: the same time, or the
    same delay.
    """
    if not isinstance(previous, ReminderSet) or replace(
        previous, reminder="", turn=fact.turn, due=fact.due, schedule="", readers=fact.readers
    ) != replace(fact, schedule=""):
        return False
    later = (fact.due - previous.due) - (now - then)
    return (
        fact.due == previous.due
        or fact.schedule == previous.schedule
        or abs(later) <= SAME_TIME_TOLERANCE
    )


def to_row(fact: ReminderSet) -> PendingReminder:
    """Return a reminder as the store has it until it is fired."""
    return PendingReminder(
        id=fact.reminder,
        agent=fact.agent,
        conversation=fact.at.conversation if fact.at is not None else None,
        due=fact.due,
        schedule=fact.schedule,
        text=fact.text,
        sender=fact.by,
        asked_by=fact.asked_by,
        intended=fact.intended,
        on=fact.on,
        word=fact.word,
    )
