"""Reminders and intentions: set, listed, ended, and fired when they are due.

A reminder is to be told, an intention to be done. The log holds both (`ReminderSet`, then an
`Alarm` each time), so they survive restarts. All times that passed while the gateway was down
become one alarm, which says how many there were.

An intention may wait for talk in a room instead. The line that it awaits fires the `Alarm` in the
place where the intention was made, in one transaction with itself, so nothing is lost or fired
twice. The inner conversation sees rooms in its digest: for one of its intentions the line becomes
a normal notification.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from agent.signals import DmnMode
from channels.aio import with_timeout
from channels.base import CommandCompletion
from channels.text import clean_name, fold_words, single_line
from gateway.access.policy import Routed, list_open_rooms
from gateway.cluster.cluster import agent_lease
from gateway.commands.context import OPERATOR_PLACE, CommandCall, find_hidden, format_place
from gateway.commands.definition import command
from gateway.commands.parser import join_or
from gateway.context.history import find_write_of_cut_off_turn
from gateway.context.requesters import BLOCKED_REASON, label_alarm
from gateway.core.clock import new_id
from gateway.core.events import (
    Address,
    Alarm,
    ChannelName,
    ConversationId,
    EventId,
    Message,
    Sender,
    SenderId,
    Time,
    room_of,
)
from gateway.core.facts import (
    AMBIENT,
    NORMAL,
    PluginFact,
    RoleAssigned,
    TurnId,
    dedup_key,
    inner_conversation,
    is_inner,
)
from gateway.core.frozen import frozen
from gateway.core.i18n import _
from gateway.core.identity import (
    ADMIN_ROLES,
    MASK_PREFIX,
    identify,
    lowest_role,
    person_key,
    proven_role,
    stable_source,
)
from gateway.core.labels import TRUSTED_LABEL, label_of_role, readers_of
from gateway.core.moments import InvalidTime, parse_timezone
from gateway.core.permissions import OWN
from gateway.core.route import route
from gateway.core.text_safety import inline_code
from gateway.core.tool import ToolContext, ToolOutput, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Plan, Plugin, PluginContext, hook
from gateway.plugins.reminders.schedule import (
    OnceSchedule,
    SpokenTime,
    collapse_due_times,
    describe_schedule_text,
    format_duration,
    format_schedule,
    parse_schedule,
    parse_spoken_time,
    split_reminder,
)
from gateway.runtime.dmn_admin import MODE_TEXTS, load_dmn_states
from gateway.store import LogEntry, NewEntry, StoreError, StoreReader
from gateway.store.effects import CommandEffect, Decision, EffectFact, done, refuse
from gateway.store.projections import Params, Table
from gateway.store.queries import COLUMNS
from gateway.store.reader import to_log_time
from gateway.stream.attention import NAMES_OWNER

logger = logging.getLogger("reverie.reminders")

ROLE_CAPS: Final[Mapping[str, tuple[int, float]]] = {"guest": (2, 600.0), "member": (10, 300.0)}
"""Reminders of one person at the same time, and the seconds between two times of a repeating one.
Owners and admins have only the limit of each conversation."""
MAX_REMINDERS: Final = 20
"""Of one conversation at once. Owners and admins find room for as many more."""
OPEN_TIME: Final = timedelta(days=30)
"""Life of an intention that has neither a time nor an end."""
MAX_REMINDER_CHARS: Final = 500
MAX_LISTED: Final = 50
MAX_SLEEP_S: Final = 60.0
"""Longest sleep without a look at the clock: the time of day may be set, and a machine may
sleep."""
SAME_TIME_TOLERANCE: Final = timedelta(minutes=1)
"""Two due times this close count as equal."""
COMPARED_TIMES: Final = 150
"""Times of a schedule that are compared: as many as a day has at the shortest interval."""
MAX_SHOWN_CHARS: Final = 160
REST_S: Final = 300.0
"""Time before an intention that waits for talk is fired again."""
MAX_UNREAD: Final = 50
"""Unread entries of a place that are searched for an alarm of the same intention."""
_ID_CHARS: Final = 6
_LOOKALIKES: Final = str.maketrans("OIL", "011")
"""Letters that ids do not contain, and the digits that are meant (crockford.com/base32.html)."""

# Facts, and the table of those that are pending


@frozen
class ReminderSet(PluginFact):
    """A new reminder, or an intention of the agent. Each occurrence is an `Alarm`, whose `next` is
    the time of the following one.
    """

    is_kept = True
    reminder: str
    agent: str
    at: Address | None
    """The conversation where it is delivered; None: to the agent itself."""
    text: str
    by: SenderId
    """The person who asked for it; empty: the agent itself."""
    asked_by: str
    """Their display name. Untrusted."""
    schedule: str
    """Schedule in the form of `gateway.plugins.reminders.schedule`. Empty: it has no time, and ends
    at `due`."""
    due: Time
    """First occurrence; of a pending reminder, the next one."""
    turn: TurnId | None = None
    """The turn that set it. None: no turn did."""
    role: str = ""
    """Lowest role of the people who may have caused it: actions that follow from it have these
    rights at most. Empty: only the agent itself."""
    readers: tuple[str, ...] | None = None
    """`Label.readers` of the request that set it. None: not recorded."""
    intended: bool = False
    """True: the agent means to do it. False: it is to be told."""
    on: str = ""
    """Address of the room whose talk it waits for, its threads included. Empty: it waits for its
    time; without one it is work that is open now."""
    word: str = ""
    """With `on`: text that a line or the name of its author must contain, in any case. Empty: every
    line is meant."""
    kind: Literal["reminded"] = "reminded"

    def describe(self) -> str:
        return f"{self.reminder}, {self.schedule}: {self.text}"

    @property
    def place(self) -> ConversationId | None:
        """The conversation where it is delivered; None: to the agent itself."""
        return self.at.conversation if self.at is not None else None

    @property
    def home(self) -> ConversationId:
        """The conversation of its entries in the log."""
        return self.place or inner_conversation(self.agent)

    @property
    def least_role(self) -> str:
        """As `role`, but never empty where a person asked."""
        return self.role or ("guest" if self.by else "")


ReminderOutcome = Literal["dropped", "done", "expired"]


@frozen
class ReminderEnded(PluginFact):
    """End of a reminder or intention that would have come again."""

    is_kept = True
    reminder: str
    reason: str
    outcome: ReminderOutcome = "dropped"
    kind: Literal["reminder_ended"] = "reminder_ended"

    def describe(self) -> str:
        return f"{self.reminder} is over: {self.reason}"


def _fold(entry: LogEntry) -> Iterator[tuple[str, Params]]:
    match entry.fact:
        case ReminderSet(reminder=one, due=due):
            sql = "INSERT INTO reminder (id, seq, due) VALUES {} ON CONFLICT DO NOTHING"
            yield sql, (one, entry.seq, to_log_time(due))
        case Alarm(reminder=str(one), next=datetime() as due) if one:
            yield "UPDATE reminder SET due = $1 WHERE id = $2", (to_log_time(due), one)
        case Alarm(reminder=str(one)) | ReminderEnded(reminder=one) if one:
            yield "DELETE FROM reminder WHERE id = $1", (one,)


TABLE: Final = Table(
    name="reminder",
    columns="id text PRIMARY KEY, seq bigint NOT NULL, due text NOT NULL",
    kinds=frozenset({"reminded", "alarm", "reminder_ended"}),
    fold=_fold,
)
_PENDING: Final = (
    f"SELECT {', '.join(f'log.{name}' for name in COLUMNS.split(', '))}, reminder.due "  # noqa: S608 - constants only
    "FROM reminder JOIN log ON log.seq = reminder.seq ORDER BY reminder.due, reminder.id"
)


async def find_pending(reader: StoreReader) -> list[ReminderSet]:
    """Return the reminders that are still to come, the next first. Raises StoreError."""
    found = list[ReminderSet]()
    for *row, due in await reader.rows(_PENDING):
        fact = LogEntry.from_row(row).fact
        assert isinstance(fact, ReminderSet)
        found.append(replace(fact, due=datetime.fromisoformat(due)))
    return found


def new_reminder_id(now: datetime) -> str:
    """Return a random id (30 bits), easy to read aloud and to type. The caller checks that it is
    new.
    """
    return new_id(now)[-_ID_CHARS:]


class Reminders(Plugin):
    """Reminders and intentions of all agents. Each agent's are fired where it is led."""

    name = "reminders"
    summary = "reminds the agent of what is due, and of what it intends"
    family = "itself"
    facts = (ReminderSet, ReminderEnded)
    tables = (TABLE,)
    watches = (ReminderSet, ReminderEnded, RoleAssigned)
    judged_kinds = ("room",)
    judged_fates = ("context", "due")

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self._store, self._clock, self._people = gateway.store, gateway.clock, gateway.people
        self._places, self._live = gateway.places, gateway.live
        self.ids: Callable[[datetime], str] = new_reminder_id
        self._roles_changed = False
        self._changed = asyncio.Event()
        self._set_lock = asyncio.Lock()
        self._watching = dict[str, ReminderSet]()
        """Open intentions that wait for talk, by id."""
        self._fired = dict[str, datetime]()
        """When each of them was fired last by this process."""

    @property
    def timezone(self) -> str:
        """Time zone of schedules that name none. Reminders keep the time that was understood when
        they were set.
        """
        return self._live.settings.dmn.timezone

    async def start(self) -> None:
        self._watching |= {one.reminder: one for one in await find_pending(self._store) if one.on}
        self._live.on_change(lambda _: self._on_roles_changed)

    async def on_lease(self, lease: str) -> None:  # noqa: ARG002 - of whatever is led here now
        self._changed.set()

    @hook
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            match entry.fact:
                case ReminderSet() as one if one.on:
                    self._watching[one.reminder] = one
                case ReminderEnded():
                    self._watching.pop(entry.fact.reminder, None)
                    self._fired.pop(entry.fact.reminder, None)
                case RoleAssigned():
                    self._roles_changed = True
        self._changed.set()

    def _on_roles_changed(self) -> None:
        self._roles_changed = True
        self._changed.set()

    @hook
    async def plans(self, agent: str, place: ConversationId) -> Iterable[Plan]:
        """Return what is pending there, with its label."""
        where = None if is_inner(place) else place
        inner = inner_conversation(agent)
        return [
            Plan(
                text=f"{one.reminder}, {describe_wait(one, 'UTC')}: {one.text}",
                label=await label_alarm(self._store, self._people, self._alarm(one, ""), inner),
                is_open=one.intended and not (one.schedule or one.on),
            )
            for one in await self.list(agent, where)
            if one.agent == agent
        ]

    @hook
    async def judge(self, routed: Routed, so_far: Decision) -> Decision | None:
        """Judge a line of a room that is heard: it fires the alarms that wait for it. Raises
        StoreError.
        """
        line, judged, alarms = routed.event, so_far.judgement, list[EffectFact]()
        assert isinstance(line, Message)
        if line.history:
            return None
        for one in [*self._watching.values()]:
            if not awaits(one, line) or not await self._is_due(one, line.at):
                continue
            self._fired[one.reminder] = self._clock.now()
            if one.at is not None:
                alarms.append(await self._build_awaited_alarm(one, line))
                if judged.rule == NAMES_OWNER and await self._tells_who_is_named(one, line):
                    rule = f"intention {one.reminder}"
                    judged = replace(judged, urgency=AMBIENT, fate="context", rule=rule)
            elif judged.urgency < NORMAL:
                rule = f"intention {one.reminder}"
                judged = replace(judged, urgency=NORMAL, fate="due", rule=rule)
        return replace(so_far, judgement=judged).with_facts(alarms)

    # Tools

    def _describe_timezone(self) -> str:
        return f"Default timezone: {self.timezone}."

    @tool(
        "Set a reminder: you are told its text here. Give `at`, `every` or `cron`.",
        effect=OWN,
        note=_describe_timezone,
        offer="described",
    )
    async def remind(
        self,
        context: ToolContext,
        *,
        text: Annotated[str, Field(description="What to do or say then.")],
        at: Annotated[
            str,
            Field(description="2026-11-22T09:00, tomorrow 9:00 or in 2h30m."),
        ] = "",
        every: Annotated[
            str,
            Field(description="E.g. 1 day; `at` is the first time."),
        ] = "",
        cron: Annotated[
            str,
            Field(description="E.g. 0 9 * * 1-5."),
        ] = "",
        timezone: Annotated[
            str,
            Field(description="E.g. Europe/Zurich."),
        ] = "",
    ) -> str:
        spoken = SpokenTime(at=at, every=every, cron=cron, timezone=timezone)
        one = await self._add_for(context, text, spoken)
        then = (
            ""
            if isinstance(parse_schedule(one.schedule), OnceSchedule)
            else f", then {describe_schedule_text(one.schedule)}"
        )
        return f"Reminder {one.reminder} is set for {self._format_ahead(one)}{then}."

    @tool(
        "Keep a plan or promise. You are given it here to do at its time, or when somebody writes "
        "in a room.",
        effect=OWN,
    )
    async def intend(
        self,
        context: ToolContext,
        *,
        what: Annotated[str, Field(description="What to do, in one line.")],
        when: Annotated[
            str, Field(description="E.g. 18:30 or in 2h. With `on`: until when to watch.")
        ] = "",
        on: Annotated[
            str,
            Field(
                description="Room to watch, and a word or name if one matters: `#build: failed`."
            ),
        ] = "",
    ) -> str:
        room, word = await self._find_room(on, context) if on.strip() else ("", "")
        spoken = SpokenTime(at=when.strip())
        one = await self._add_for(context, what, spoken, intended=True, on=room, word=word)
        if one.schedule:
            return f"Intention {one.reminder} is set for {self._format_ahead(one)}."
        wait = describe_wait(one, self.timezone)
        return f"Intention {one.reminder} is set: {wait}. Finish it once it is done."

    @tool(
        "List or end your intentions and reminders here.",
        effect=OWN,
    )
    async def intentions(
        self,
        context: ToolContext,
        *,
        action: Literal["list", "finish", "drop"] = "list",
        id: Annotated[str, Field(description="Id of the one to end.")] = "",  # noqa: A002 - the model's word
        note: Annotated[str, Field(description="What came of it.")] = "",
    ) -> str | ToolOutput:
        at = _place_of(context)
        found = await self.list(context.agent, at.conversation if at is not None else None)
        if action == "list":
            return self._render_list(found)
        wanted = normalize_reminder_id(id)
        if not (named := [one for one in found if one.reminder == wanted]):
            raise ToolCallRefused("There is none with that id here; `list` names them.")
        if not await self._may_end(named[0], context):
            raise ToolCallRefused("Only an admin, or whoever asked for it, may have it ended.")
        by = f"for {context.requesters[-1].name}" if context.requesters else "by the agent"
        done = action == "finish"
        await self.end(
            named[0],
            note.strip() or f"{'done' if done else 'dropped'} {by}",
            "done" if done else "dropped",
        )
        return "It is done." if done else "It is dropped."

    async def _may_end(self, one: ReminderSet, context: ToolContext) -> bool:
        """Return whether all who ask may have it ended; in a direct chat it is theirs. Work without
        a time or room is finished in whose turn it is done; other intentions also by the agent
        itself.
        """
        asking = context.requesters
        return (
            (one.intended and (not asking or not (one.schedule or one.on)))
            or one.at is None
            or await self._places.is_direct(one.home) is True
            or (bool(asking) and all(_may_person_end(one, who, who.role) for who in asking))
        )

    async def _add_for(
        self,
        context: ToolContext,
        text: str,
        spoken: SpokenTime,
        *,
        intended: bool = False,
        on: str = "",
        word: str = "",
    ) -> ReminderSet:
        """Set it for the requester with the least role; of several, for the last one."""
        roles = [proven_role(one.role, verified=one.verified) for one in context.requesters]
        least_role = lowest_role(roles) if roles else ""
        found = [
            one for one, role in zip(context.requesters, roles, strict=True) if role == least_role
        ]
        label = context.request.label
        fact = ReminderSet(
            reminder="",
            agent=context.agent,
            at=_place_of(context),
            text=text,
            by=found[-1].id if found else SenderId(""),
            asked_by=found[-1].name if found else "",
            schedule="",
            due=self._clock.now(),
            turn=context.turn,
            role="" if label == TRUSTED_LABEL and not context.requesters else context.least_role,
            readers=label.readers,
            intended=intended,
            on=on,
            word=word,
        )
        return await self.add(fact, spoken, role=least_role)

    async def _find_room(self, written: str, context: ToolContext) -> tuple[str, str]:
        name, __, word = written.rpartition(":")
        for room, text in ((written, ""), (name, word.strip())):
            found = await self.find_rooms(room, context.agent, context.at)
            if len(found) == 1:
                return found[0].conversation, text
            if found:
                named = ", ".join(one.conversation for one in found)
                raise ToolCallRefused(f"Several are called so; name one by its address: {named}.")
        raise ToolCallRefused("You hear no room of that name that everybody here may read.")

    def _render_list(self, found: Sequence[ReminderSet]) -> str | ToolOutput:
        shown = found[:MAX_LISTED]
        lines = [
            f"{one.reminder}: {describe_wait(one, self.timezone)}"
            f"{f', asked for by {one.asked_by}' if one.asked_by else ''}: {one.text}"
            for one in shown
        ]
        if len(found) > len(shown):
            lines.append(f"(and {len(found) - len(shown)} later ones)")
        if not lines:
            return "There is nothing that you intend here, and no reminder."
        least_role = lowest_role([one.role or "owner" for one in shown])
        return ToolOutput(
            text="\n".join(lines),
            kind="reminders",
            origin="what people asked for",
            is_untrusted=True,
            label=label_of_role(least_role, "a reminder"),
        )

    def _format_ahead(self, one: ReminderSet) -> str:
        ahead = format_duration(round((one.due - self._clock.now()) / timedelta(seconds=1)))
        return f"{format_due(one, self.timezone)}, in {ahead}"

    # Commands

    INTENTIONS = command(
        "intentions",
        "Set a reminder, list them and what I intend to do, or drop one.",
        group="this conversation",
        default_sub="add",
        aliases=("remind", "reminders"),
    )

    async def suggest_ids(self, typed: CommandCompletion) -> Sequence[str]:
        """Suggest what is pending in that place, the next first."""
        rows = await find_pending(self._store)
        return [one.reminder for one in rows if one.place == typed.at.conversation]

    @route("GET", "list", panel="Reminders")
    async def list_all(self) -> list[dict[str, object]]:
        """Return what is still to come, in all places, the next one first."""
        titles, rows = self.context.gateway.places.titles, await find_pending(self._store)
        return [
            {
                "due": one.due,
                "repeats": describe_schedule_text(one.schedule) if one.schedule else "",
                "text": one.text,
                "for": one.asked_by,
                "where": titles.label(one.home),
                "_actions": [
                    {
                        "label": "Cancel",
                        "words": ["intentions", "drop", one.reminder],
                        "confirm": "Cancel this?",
                    }
                ],
            }
            for one in sorted(rows, key=lambda one: one.due)
        ]

    @command("intentions list", "List what I intend to do, and reminders.")
    async def list_intentions(self, call: CommandCall) -> CommandEffect:
        here, elsewhere, private = await self._find_shown(call)
        lines = [self._format_reminder(one) for one in here]
        lines = lines or [_("There is nothing that I intend here, and no reminder.")]
        if elsewhere or private:
            others = [
                _("{reminder}, in {room}").format(
                    reminder=self._format_reminder(one), room=format_place(one.home)
                )
                for one in elsewhere
            ]
            counted = (
                [_("- {count} in private conversations").format(count=private)] if private else []
            )
            lines += ["", _("In other rooms:"), *others, *counted]
        return done("\n".join(lines), data=[_to_data(one) for one in (*here, *elsewhere)])

    @command(
        "intentions add", "Set a reminder.", example="!remind in 10 minutes tea", private=False
    )
    async def add_reminder(
        self, call: CommandCall, *, what: Annotated[str, "When, and of what: 10m tea."]
    ) -> CommandEffect:
        now, sender = self._clock.now(), call.command.sender
        found = split_reminder(what, now, self.timezone)
        if found is None or call.command.at == OPERATOR_PLACE:
            examples = (
                _("10m tea"),
                _("tomorrow 9:00 call Ann"),
                _("every 2 days at 18:00 water"),
            )
            return refuse(
                _("I find no time to come in that. Write e.g. {examples}, or just ask me.").format(
                    examples=join_or([f"`{call.prefix}remind {one}`" for one in examples])
                )
            )
        spoken, text = found
        role = proven_role(call.role, verified=sender.verified)
        while await self._store.entry_by_key(key := f"reminded:{(reminder := self.ids(now))}"):
            pass  # that id has been in use
        fact = ReminderSet(
            reminder=reminder,
            agent=call.agent,
            at=call.command.at,
            text=text,
            by=sender.id,
            asked_by=sender.name,
            schedule="",
            due=now,
            role=role,
        )
        try:
            fact = self._complete(fact, spoken, now)
        except ToolCallRefused as error:
            return refuse(str(error))
        if _find_excess(fact, role, await find_pending(self._store)):
            text = _("You may have no more reminders, or none so often. To drop one: {command}.")
            return refuse(
                text.format(
                    command=f"`{call.prefix}remind list`, `{call.prefix}intentions drop ID`"
                )
            )
        words = _("I will remind you:") + self._format_reminder(fact).removeprefix("-")
        mode = (await load_dmn_states(self._store, [call.agent], now))[call.agent].mode
        if mode in (DmnMode.PAUSED, DmnMode.OFF):
            text = _("But I am {mode}: it comes once an admin has written {command}.")
            wake = f"`{call.prefix}dmn wake`"
            words += f"\n{text.format(mode=_(MODE_TEXTS[mode]), command=wake)}"
        return done(words, EffectFact(fact, fact.home, key))

    @command("intentions drop", "Have me drop one: yours, or any for an admin.", private=False)
    async def drop_intention(
        self,
        call: CommandCall,
        id: Annotated[str, "As list shows it.", suggest_ids],  # noqa: A002 - the user's word
    ) -> CommandEffect:
        wanted, sender = normalize_reminder_id(id.strip(" `")), call.command.sender
        here, elsewhere, __ = await self._find_shown(call)
        row = next((one for one in (*here, *elsewhere) if one.reminder == wanted), None)
        if row is None:
            return refuse(_("There is no {id} here.").format(id=inline_code(id)))
        if not (call.command.direct or _may_person_end(row, sender, call.role)):
            return refuse(_("Only an admin, or whoever asked for it, may have it dropped."))
        fact = ReminderEnded(reminder=row.reminder, reason=f"cancelled by {call.person}")
        words = _("`{id}` is dropped.").format(id=row.reminder)
        return done(words, EffectFact(fact, place=row.home))

    async def _find_shown(
        self, call: CommandCall
    ) -> tuple[Sequence[ReminderSet], Sequence[ReminderSet], int]:
        """Return what is pending in this place, what of others may be shown here, and the number of
        the rest.
        """
        at, rows = call.command.at.conversation, await find_pending(self._store)
        here = [one for one in rows if one.place == at]
        if not (call.command.direct and call.global_role in ADMIN_ROLES):
            return here, [], 0
        others = [one for one in rows if one.place != at]
        private = await find_hidden(call, self._places, [one.place for one in others if one.place])
        visible = [one for one in others if one.place not in private]
        return here, visible, len(others) - len(visible)

    def _format_reminder(self, one: ReminderSet) -> str:
        due = format_due(one, self.timezone)
        if one.schedule:
            when = f"{due}, {describe_schedule_text(one.schedule)}".removesuffix(", once")
        elif one.on:
            word = f": {inline_code(one.word)}" if one.word else ""
            room = f"{format_place(ConversationId(one.on))}{word}"
            when = _("if somebody writes in {room}, until {time}").format(room=room, time=due)
        else:
            when = _("open until {time}").format(time=due)
        line = (
            _("- `{id}`: {when}, for {person}: {text}")
            if one.asked_by
            else _("- `{id}`: {when}: {text}")
        )
        return line.format(
            id=one.reminder,
            when=when,
            person=inline_code(one.asked_by),
            text=inline_code(one.text, MAX_SHOWN_CHARS),
        )

    # Setting, listing and ending

    async def add(self, fact: ReminderSet, spoken: SpokenTime, *, role: str = "") -> ReminderSet:
        """Set a reminder, whose id, schedule and due time are filled in; durable on return. Raises
        ToolCallRefused with a sentence that says what would be possible.

        An intention may do without a time, and with `on` its time is its end. The caps are exact,
        also where other processes set reminders at the same moment: the log says who was first.
        What a turn set before its process ended is not set again. `role`: of the person who asks,
        which limits what they may set. Empty: no person asked.
        """
        now = self._clock.now()
        fact = self._complete(fact, spoken, now)
        async with self._set_lock:  # two at once would both find room for one
            before = await find_write_of_cut_off_turn(
                self._store,
                fact.home,
                fact.turn,
                "reminded",
                lambda previous: _is_same_reminder(fact, now, previous),
            )
            if before is not None and isinstance(before.fact, ReminderSet):
                return before.fact
            if refusal := _find_excess(fact, role, await find_pending(self._store)):
                raise ToolCallRefused(refusal)
            return await self._write_new(fact, now)

    def _complete(self, fact: ReminderSet, spoken: SpokenTime, now: datetime) -> ReminderSet:
        """Return it with its schedule and due time, its texts cleaned. Raises ToolCallRefused."""
        cleaned = single_line(fact.text, MAX_REMINDER_CHARS + 1)
        if not cleaned or len(cleaned) > MAX_REMINDER_CHARS:
            raise ToolCallRefused(
                f"A reminder needs a text of 1 to {MAX_REMINDER_CHARS} characters."
            )
        schedule, due = "", now + OPEN_TIME
        if not fact.intended or spoken != SpokenTime():
            try:
                parsed, due = parse_spoken_time(spoken, now, self.timezone)
            except InvalidTime as error:
                raise ToolCallRefused(str(error)) from None
            schedule = "" if fact.on else format_schedule(parsed)
        return replace(
            fact,
            text=cleaned,
            asked_by=clean_name(fact.asked_by),
            schedule=schedule,
            due=due,
        )

    async def list(self, agent: str, place: ConversationId | None) -> Sequence[ReminderSet]:
        """Return the pending reminders of a place (None: of the agent itself), the next first."""
        return _select_place(await find_pending(self._store), agent, place)

    async def end(
        self, one: ReminderSet, reason: str, outcome: ReminderOutcome = "dropped"
    ) -> None:
        reason = single_line(reason, MAX_REMINDER_CHARS)
        ended = ReminderEnded(reminder=one.reminder, reason=reason, outcome=outcome)
        entry = NewEntry(fact=ended, at=self._clock.now(), conversation=one.home)
        await self._store.append([entry])

    async def _write_new(self, fact: ReminderSet, now: datetime) -> ReminderSet:
        """Append a reminder under an id that no reminder ever had: the log would take two with one
        id for one.
        """
        while True:
            fact = replace(fact, reminder=self.ids(now))
            key = f"reminded:{fact.reminder}"
            entry = NewEntry(fact=fact, at=now, conversation=fact.home, key=key)
            [written] = await self._store.append([entry])
            if written.is_new:
                return fact

    # Firing

    async def run(self) -> None:
        """Fire each reminder when it is due, until cancelled; the next process fires one that was
        in progress then.

        Without reminders it waits without waking. Raises StoreError.
        """
        fired: dict[str, datetime] = {}
        while True:
            self._changed.clear()
            if self._roles_changed:
                self._roles_changed = False
                await self._end_blocked()
            rows = await self._find_own()
            # A reminder still pending after it was fired would be fired without end, so it is
            # skipped.
            fired = {one.reminder: one.due for one in rows if fired.get(one.reminder) == one.due}
            rows = [one for one in rows if one.reminder not in fired]
            now = self._clock.now()
            if not rows or rows[0].due > now:
                await self._wait_until(rows[0].due if rows else None)
                continue
            for one in rows:
                if one.due > now or self._changed.is_set():  # one of them may have been cancelled
                    break
                await self._fire(one)
                fired[one.reminder] = one.due

    async def _find_own(self) -> Sequence[ReminderSet]:
        cluster = self.context.gateway.channels.cluster
        rows = await find_pending(self._store)
        return [one for one in rows if cluster.holds(agent_lease(one.agent))]

    async def _end_blocked(self) -> None:
        for one in await self._find_own():
            if not one.by or one.at is None:
                continue
            sender = Sender(id=one.by, name=one.asked_by, verified=True)
            if identify(self._people, one.at, sender).role == "blocked":
                await self.end(one, BLOCKED_REASON)

    async def _wait_until(self, due: datetime | None) -> None:
        if due is None:
            await self._changed.wait()
            return
        while (
            not self._changed.is_set() and (left_s := (due - self._clock.now()).total_seconds()) > 0
        ):
            with contextlib.suppress(TimeoutError):
                await with_timeout(self._clock, min(left_s, MAX_SLEEP_S), self._changed.wait())

    async def _fire(self, one: ReminderSet) -> None:
        now = self._clock.now()
        if not one.schedule:
            await self.end(one, "its time is over", "expired")
            return
        try:
            schedule = parse_schedule(one.schedule)
        except InvalidTime as error:  # e.g. a time zone that exists no more
            logger.warning("reminder %s is over: %s", one.reminder, error)
            await self.end(one, f"it cannot be read any more: {error}")
            return
        passed = collapse_due_times(schedule, one.due, now)
        alarm = self._alarm(one, one.due.isoformat())  # the same at every try
        alarm = replace(alarm, due=passed.last, missed=passed.missed, next=passed.next)
        try:
            await self.context.internal.submit(alarm)
        except StoreError:
            raise  # without its log the gateway cannot go on
        # A bug: skipped until the next start, so that one reminder does not end the process each
        # time.
        except Exception:
            logger.exception("reminder %s could not be told", one.reminder)

    def _alarm(self, one: ReminderSet, what: str) -> Alarm:
        """Return an occurrence. `what`: makes its id different from that of other occurrences."""
        readers = () if one.readers is None else one.readers
        if one.least_role and one.readers is None:
            readers = (inner_conversation(one.agent),)  # the agent may repeat it to itself only
        return Alarm(
            id=EventId(f"{one.reminder}:{what}"),
            text=one.text,
            sent=self._clock.now(),
            at=one.at,
            agent=one.agent,
            reminder=one.reminder,
            by=one.by,
            role=one.least_role,
            asked_by=one.asked_by,
            intended=one.intended,
            readers=readers if one.at is None else (),
        )

    # Intentions that wait for talk

    async def find_rooms(self, written: str, agent: str, at: Address) -> Sequence[Address]:
        """Return the rooms of that title or address that the agent may watch from there."""
        known, places = [at, *list_open_rooms(self._people)], self._places
        return [
            one
            for one in places.titles.find_places(written, known)
            if (one in known or await places.is_direct(one.conversation) is not None)
            and await self._may_watch(agent, at.conversation, one)
        ]

    async def _may_watch(self, agent: str, place: ConversationId, room: Address) -> bool:
        """Return whether the agent hears that room, and everybody in the place may read it. By
        itself it may watch the rooms of its digests.
        """
        bound, where = self._places.bindings.find(room), room.conversation
        is_heard = bound.agent == agent and bound.listen in ("ambient", "all")
        if not is_heard or await self._places.is_direct(where):
            return False
        if is_inner(place):
            return not await self._places.is_private(where)
        newest = await self._places.newest_message(place)
        is_owner = (
            newest is not None
            and newest.kind == "direct"
            and newest.sender.verified
            and identify(self._people, newest.at, newest.sender).role == "owner"
        )
        visibility = await self._places.visibility(place, everything=is_owner)
        return visibility.can_see(await self._places.scope(where))

    async def _is_due(self, one: ReminderSet, room: Address) -> bool:
        fired, now, place = self._fired.get(one.reminder), self._clock.now(), one.place
        if now >= one.due or (fired is not None and (now - fired).total_seconds() < REST_S):
            return False
        unread = (
            (await self._store.unread_entries(place, most=MAX_UNREAD)).messages
            if place is not None
            else ()
        )
        waits = any(isinstance(e.fact, Alarm) and e.fact.reminder == one.reminder for e in unread)
        return not waits and await self._may_watch(one.agent, one.home, room)

    async def _tells_who_is_named(self, one: ReminderSet, line: Message) -> bool:
        """Return whether an intention tells an owner, in their own chat, whom the line names: they
        need not be told of the line once more.
        """
        asker = Sender(id=one.by, name=one.asked_by, verified=True)
        return (
            one.at is not None
            and fold_words(one.asked_by).partition(" ")[0] in fold_words(line.text).split()
            and identify(self._people, one.at, asker).role == "owner"
            and await self._places.is_direct(one.home) is True
        )

    async def _build_awaited_alarm(self, one: ReminderSet, line: Message) -> EffectFact:
        room, titles = line.at.conversation, self._places.titles
        await titles.load([room])
        alarm = replace(
            self._alarm(one, dedup_key(line) or ""),  # the same where the line is reported again
            next=one.due,
            source=titles.trusted_label(room),
            readers=readers_of(await self._places.scope(room)),
        )
        judged = self.context.internal.build_judgement(alarm)
        return EffectFact(alarm, one.home, dedup_key(alarm), judged)


def awaits(one: ReminderSet, line: Message) -> bool:
    """Return whether an intention waits for this line of a room."""
    is_meant = bool(one.on) and one.on in (line.at.conversation, room_of(line.at.conversation))
    return is_meant and one.word.casefold() in f"{line.sender.name}: {line.text}".casefold()


def _may_person_end(one: ReminderSet, who: Sender, role: str) -> bool:
    """Return whether somebody with this role may have it ended: an admin, or whoever asked for it.
    A mask is all that guests of IRC have.
    """
    return proven_role(role, verified=who.verified) in ADMIN_ROLES or (
        who.id == one.by and (who.verified or who.id.startswith(MASK_PREFIX))
    )


def _place_of(context: ToolContext) -> Address | None:
    return None if is_inner(context.at.conversation) else context.at


def _select_place(
    rows: Iterable[ReminderSet], agent: str, place: ConversationId | None
) -> Sequence[ReminderSet]:
    return [one for one in rows if one.place == place and (place is not None or one.agent == agent)]


def _find_excess(fact: ReminderSet, role: str, rows: Sequence[ReminderSet]) -> str:
    """Return why a reminder beside these is above the cap of that role or of its place. Empty: it
    is not.
    """
    if role in ROLE_CAPS and (excess := _find_role_excess(fact, role, rows)):
        return excess
    most = 2 * MAX_REMINDERS if role in ADMIN_ROLES else MAX_REMINDERS
    if len(_select_place(rows, fact.agent, fact.place)) >= most:
        return (
            f"There are {most} reminders and intentions here already, which is the "
            "limit; drop one first."
        )
    return ""


def _find_role_excess(fact: ReminderSet, role: str, rows: Sequence[ReminderSet]) -> str:
    """Return why a reminder is above the cap of a role: each firing is a request that costs money.
    Empty: it is not.
    """
    time, (most, every_s) = fact.due, ROLE_CAPS[role]
    schedule = parse_schedule(fact.schedule) if fact.schedule else OnceSchedule(time=time)
    for __ in range(COMPARED_TIMES if not isinstance(schedule, OnceSchedule) else 0):
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
    mine = [one for one in rows if one.at is not None and one.at.channel == channel]
    whose = stable_source(person_key(channel, fact.by))
    count = sum(stable_source(person_key(channel, one.by)) == whose for one in mine)
    if count < most:
        return ""
    return (
        f"Somebody with the role {role} may have {most} reminders and intentions at a time, and "
        f"has {count} already; drop one first."
    )


def normalize_reminder_id(id: str) -> str:  # noqa: A002 - it is what it is
    """Return the id that a person may have meant."""
    return id.strip().upper().translate(_LOOKALIKES)


def format_due(reminder: ReminderSet, timezone: str) -> str:
    """Return the next time, or the end, in the time zone of its schedule, else in `timezone`."""
    try:
        schedule = parse_schedule(reminder.schedule)
        place = (not isinstance(schedule, OnceSchedule) and schedule.timezone) or timezone
    except InvalidTime:  # e.g. a time zone that exists no more
        place = timezone
    return f"{reminder.due.astimezone(parse_timezone(place)):%a %Y-%m-%d %H:%M} ({place})"


def describe_wait(reminder: ReminderSet, timezone: str) -> str:
    """Return for the model what it waits for."""
    due = format_due(reminder, timezone)
    if reminder.schedule:
        return f"{due}, {describe_schedule_text(reminder.schedule)}"
    word = f" with {reminder.word!r}" if reminder.word else ""
    return f"on {reminder.on}{word} until {due}" if reminder.on else f"open until {due}"


def _is_same_reminder(fact: ReminderSet, now: datetime, entry: LogEntry) -> bool:
    """Return whether `fact`, set now, repeats the reminder of that entry: the same time, or the
    same delay.
    """
    previous = entry.fact
    if not isinstance(previous, ReminderSet) or replace(
        previous, reminder="", turn=fact.turn, due=fact.due, schedule="", readers=fact.readers
    ) != replace(fact, schedule=""):
        return False
    later = (fact.due - previous.due) - (now - entry.at)
    return (
        fact.due == previous.due
        or fact.schedule == previous.schedule
        or abs(later) <= SAME_TIME_TOLERANCE
    )


def _to_data(one: ReminderSet) -> Mapping[str, object]:
    return {
        "id": one.reminder,
        "agent": one.agent,
        "conversation": one.place,
        "due": one.due,
        "schedule": one.schedule,
        "text": one.text,
        "sender": one.by,
        "asked_by": one.asked_by,
        "intended": one.intended,
        "on": one.on,
        "word": one.word,
    }
