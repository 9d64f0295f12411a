"""Tools of an agent's memory: journal, notes, recall, evidence and reminders."""

from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from agent.journal import MAX_TEXT_CHARS, MAX_TITLE_CHARS
from gateway.context.evidence import EvidenceStore
from gateway.context.intentions import IntentionWatch
from gateway.context.journal import JournalStore, NoteForgetter
from gateway.context.recall import RecallSearch
from gateway.context.recap import RecapBuilder
from gateway.context.reminders import MAX_LISTED, ReminderService, describe_wait, format_due
from gateway.context.schedule import (
    OnceSchedule,
    ScheduleError,
    SpokenTime,
    describe_schedule_text,
    format_duration,
    parse_schedule,
)
from gateway.core.clock import Clock
from gateway.core.events import Address, ConversationId, SenderId
from gateway.core.facts import is_inner
from gateway.core.format import format_time
from gateway.core.labels import TRUSTED_LABEL, label_of_role
from gateway.core.permissions import OUT, OWN, lowest_role, proven_role
from gateway.core.tool import ToolContext, ToolOutput, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.store import PendingReminder

MAX_QUERY_CHARS: Final = 200
DEFAULT_EVIDENCE_CHARS: Final = 4_000
MAX_EVIDENCE_CHARS: Final = 20_000


class MemoryTools:
    """Tools for the journal, notes, recall and evidence, for all agents. Handlers raise StoreError,
    too.
    """

    def __init__(
        self,
        journal: JournalStore,
        recall: RecallSearch,
        recaps: RecapBuilder,
        forgetter: NoteForgetter,
        evidence: EvidenceStore,
    ) -> None:
        self._journal = journal
        self._recall = recall
        self._recaps = recaps
        self._forgetter = forgetter
        self._evidence = evidence

    @tool(
        "Write into your journal: what happened, what you found out, what you plan. It is not "
        "posted, and what is private stays private.",
        effect=OWN,
        ephemeral=True,
    )
    async def journal(
        self,
        context: ToolContext,
        *,
        title: Annotated[str, Field(max_length=MAX_TITLE_CHARS, description="One line.")],
        text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)],
    ) -> str:
        return await self._journal.write_entry(context, title, text)

    @tool(
        "Keep a fact for good, such as a name or a preference. It is not posted, and what is "
        "private stays private.",
        effect=OWN,
    )
    async def remember(
        self,
        context: ToolContext,
        *,
        text: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_TEXT_CHARS,
                description="One fact, clear without this conversation: who, what, since when.",
            ),
        ],
    ) -> str:
        return await self._journal.remember(context, text)

    @tool(
        "Search earlier messages and your notes: up to ten results, the newest first.",
        effect=OWN,
        parallel=True,
    )
    async def recall(
        self,
        context: ToolContext,
        *,
        query: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_QUERY_CHARS,
                description="A few words that all occur in it.",
            ),
        ],
    ) -> ToolOutput:
        found, label = await self._recall(context, query)
        return ToolOutput(text=found, kind="messages", is_untrusted=True, label=label)

    @tool(
        "See what happened since a time: who wrote where, what you did by yourself, what waits.",
        effect=OWN,
        parallel=True,
        polls=True,
    )
    async def recap(
        self,
        context: ToolContext,
        *,
        since: Annotated[
            str,
            Field(description="E.g. 2h, 08:00, yesterday. Default: since they last wrote."),
        ] = "",
    ) -> ToolOutput:
        here = context.at.conversation
        person = context.requesters[-1].id if context.requesters else None
        try:
            begin = await self._recaps.since(since, here, person)
        except ScheduleError as error:
            raise ToolCallRefused(str(error)) from error
        text, label = await self._recaps.build(
            context.agent, here, context.visibility, begin, handles=True
        )
        what = text or "Nothing happened that may be told here."
        return ToolOutput(
            text=f"Since {format_time(begin)}:\n{what}",
            kind="recap",
            is_untrusted=True,
            label=label,
        )

    @tool(
        "Delete notes that you made with remember or journal. Messages stay.",
        effect=OUT,
    )
    async def forget(
        self,
        context: ToolContext,
        *,
        what: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_QUERY_CHARS,
                description="Words of the note, or its handle, e.g. n12.",
            ),
        ],
    ) -> str | ToolOutput:
        return await self._forgetter.forget(what, context)

    @tool(
        "Read in full what you were shown only in part: a tool result, a document that somebody "
        "sent, earlier turns.",
        effect=OWN,
        parallel=True,
    )
    async def fetch_evidence(
        self,
        context: ToolContext,
        *,
        handle: Annotated[
            str,
            Field(
                min_length=1,
                max_length=200,
                description="It stands beside the part, e.g. e12 or t12.3.",
            ),
        ],
        offset: Annotated[int, Field(ge=0, description="Characters to skip.")] = 0,
        limit: Annotated[
            int, Field(ge=1, le=MAX_EVIDENCE_CHARS, description="Most characters.")
        ] = DEFAULT_EVIDENCE_CHARS,
        find: Annotated[
            str,
            Field(
                max_length=MAX_QUERY_CHARS,
                description="Begin where these words first occur.",
            ),
        ] = "",
    ) -> ToolOutput:
        return await self._evidence.fetch(handle, offset, limit, find.strip(), context)


class ReminderTools:
    """Tools for reminders and intentions. Each returns a text for the model, or raises
    ToolCallRefused.
    """

    def __init__(
        self,
        reminders: ReminderService,
        clock: Clock,
        watch: IntentionWatch,
    ) -> None:
        self._reminders = reminders
        self._clock = clock
        self._watch = watch

    @tool(
        "Set a reminder: at its time you are told its text here. Give `at`, `every` or `cron`.",
        effect=OWN,
    )
    async def remind(
        self,
        context: ToolContext,
        *,
        text: Annotated[str, Field(description="What to do or say then, in one line.")],
        at: Annotated[
            str,
            Field(description="2026-11-22T09:00, 18:30, tomorrow 9:00 or in 2h30m."),
        ] = "",
        every: Annotated[
            str,
            Field(description="Repeat, e.g. 90 min or 1 day; `at` is the first time."),
        ] = "",
        cron: Annotated[
            str,
            Field(description="Repeat by the calendar, e.g. 0 9 * * 1-5."),
        ] = "",
        timezone: Annotated[
            str,
            Field(description="E.g. Europe/Zurich."),
        ] = "",
    ) -> str:
        spoken = SpokenTime(at=at, every=every, cron=cron, timezone=timezone)
        reminder = await self._set(context, text, spoken)
        then = (
            ""
            if isinstance(parse_schedule(reminder.schedule), OnceSchedule)
            else f", then {describe_schedule_text(reminder.schedule)}"
        )
        return f"Reminder {reminder.id} is set for {self._format_ahead(reminder)}{then}."

    @tool(
        "Keep a plan, and whatever you promise: you are given it here to do at its time, or when "
        "somebody writes in a room.",
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
            str, Field(description="Room to watch, and a word if one matters: `#build: failed`.")
        ] = "",
    ) -> str:
        event, word = await self._resolve_event(on, context) if on.strip() else ("", "")
        spoken = SpokenTime(at=when.strip())
        one = await self._set(context, what, spoken, intended=True, on=event, word=word)
        if one.schedule:
            return f"Intention {one.id} is set for {self._format_ahead(one)}."
        wait = describe_wait(one, self._reminders.timezone)
        return f"Intention {one.id} is set: {wait}. Finish it once it is done."

    @tool(
        "List what you intend and the reminders of this conversation, or finish or drop one.",
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
        place = at.conversation if at is not None else None
        if action == "list":
            return await self._list(context.agent, place)
        by = f"for {context.requesters[-1].name}" if context.requesters else "by the agent"
        done = action == "finish"
        ended = await self._reminders.end(
            id,
            agent=context.agent,
            place=place,
            reason=note.strip() or f"{'done' if done else 'dropped'} {by}",
            outcome="done" if done else "dropped",
        )
        if not ended:
            raise ToolCallRefused("There is none with that id here; `list` names them.")
        return "It is done." if done else "It is dropped."

    async def _set(
        self,
        context: ToolContext,
        text: str,
        spoken: SpokenTime,
        *,
        intended: bool = False,
        on: str = "",
        word: str = "",
    ) -> PendingReminder:
        """Set it for the requester with the least role; of several, for the last one."""
        roles = [proven_role(one.role, verified=one.verified) for one in context.requesters]
        least_role = lowest_role(roles) if roles else ""
        requester = next(
            (
                one
                for one, role in zip(context.requesters[::-1], roles[::-1], strict=True)
                if role == least_role
            ),
            None,
        )
        label = context.request.label
        return await self._reminders.set(
            agent=context.agent,
            at=_place_of(context),
            by=requester.id if requester is not None else SenderId(""),
            asked_by=requester.name if requester is not None else "",
            text=text,
            spoken=spoken,
            turn=context.turn,
            role="" if label == TRUSTED_LABEL and not context.requesters else context.least_role,
            requester_role=least_role,
            readers=label.readers,
            intended=intended,
            on=on,
            word=word,
        )

    async def _resolve_event(self, written: str, context: ToolContext) -> tuple[str, str]:
        """Return the type of talk that is meant, and the word. Raises ToolCallRefused."""
        name, _, word = written.rpartition(":")
        for room, text in ((written, ""), (name, word.strip())):
            found = await self._watch.find_rooms(room, context.agent, context.at)
            if len(found) == 1:
                return found[0].conversation, text
            if found:
                named = ", ".join(one.conversation for one in found)
                raise ToolCallRefused(f"Several are called so; name one by its address: {named}.")
        raise ToolCallRefused("You hear no room of that name that everybody here may read.")

    async def _list(self, agent: str, place: ConversationId | None) -> str | ToolOutput:
        found = await self._reminders.list(agent, place)
        lines = [self._format_line(one) for one in found[:MAX_LISTED]]
        if len(found) > MAX_LISTED:
            lines.append(f"(and {len(found) - MAX_LISTED} later ones)")
        if not lines:
            return "There is nothing that you intend here, and no reminder."
        label = label_of_role(await self._reminders.least_role(found[:MAX_LISTED]), "a reminder")
        return ToolOutput(
            text="\n".join(lines),
            kind="reminders",
            origin="what people asked for",
            is_untrusted=True,
            label=label,
        )

    def _format_ahead(self, one: PendingReminder) -> str:
        ahead = format_duration(round((one.due - self._clock.now()) / timedelta(seconds=1)))
        return f"{format_due(one, self._reminders.timezone)}, in {ahead}"

    def _format_line(self, one: PendingReminder) -> str:
        requester_note = f", asked for by {one.asked_by}" if one.asked_by else ""
        wait = describe_wait(one, self._reminders.timezone)
        return f"{one.id}: {wait}{requester_note}: {one.text}"


def _place_of(context: ToolContext) -> Address | None:
    return None if is_inner(context.at.conversation) else context.at
