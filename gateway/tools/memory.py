"""Tools of an agent's memory: journal, notes, recall, evidence and reminders."""

from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field

from agent.journal import MAX_TEXT_CHARS, MAX_TITLE_CHARS
from gateway.context.evidence import EvidenceStore
from gateway.context.journal import JournalStore, NoteForgetter
from gateway.context.recall import RecallSearch
from gateway.context.reminders import MAX_LISTED, ReminderService, format_due
from gateway.context.schedule import (
    OnceSchedule,
    SpokenTime,
    describe_schedule_text,
    format_duration,
    parse_schedule,
)
from gateway.core.clock import Clock
from gateway.core.events import Address, SenderId
from gateway.core.facts import is_inner
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
        forgetter: NoteForgetter,
        evidence: EvidenceStore,
    ) -> None:
        self._journal = journal
        self._recall = recall
        self._forgetter = forgetter
        self._evidence = evidence

    @tool(
        "Write into your journal: what happened, what you found out, what you plan. It is not "
        "posted; from a private chat, it is found in private only.",
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
        "Keep a fact for good, such as a name, a preference or a promise. It is not posted; from a "
        "private chat, it is found in private only.",
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
        "Search all earlier messages that you may see here, and your notes: up to ten results, the "
        "newest first.",
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
                description="Words that all occur in the note, or its handle, e.g. n12.",
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
                description="It stands beside the part, e.g. e12, t12.3, a12.1 or v12-34.",
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
    """Tools for reminders. Each returns a text for the model, or raises ToolCallRefused."""

    def __init__(self, reminders: ReminderService, clock: Clock) -> None:
        self._reminders = reminders
        self._clock = clock

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
            Field(description="2026-11-22T09:00, 18:30, tomorrow 9:00, monday or in 2h30m."),
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
        """Set a reminder for the requester with the least role; of several, for the last one."""
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
        reminder = await self._reminders.set(
            agent=context.agent,
            at=_place_of(context),
            by=requester.id if requester is not None else SenderId(""),
            asked_by=requester.name if requester is not None else "",
            text=text,
            spoken=SpokenTime(at=at, every=every, cron=cron, timezone=timezone),
            turn=context.turn,
            role=""
            if context.request.label == TRUSTED_LABEL and not context.requesters
            else context.least_role,
            requester_role=least_role,
        )
        ahead = format_duration(round((reminder.due - self._clock.now()) / timedelta(seconds=1)))
        then = (
            ""
            if isinstance(parse_schedule(reminder.schedule), OnceSchedule)
            else f", then {describe_schedule_text(reminder.schedule)}"
        )
        return (
            f"Reminder {reminder.id} is set for "
            f"{format_due(reminder, self._reminders.timezone)}, in {ahead}{then}."
        )

    @tool("List the reminders of this conversation.", effect=OWN, parallel=True)
    async def list_reminders(self, context: ToolContext) -> str | ToolOutput:
        place = _place_of(context)
        found = await self._reminders.list(
            context.agent, place.conversation if place is not None else None
        )
        lines = [self._format_line(one) for one in found[:MAX_LISTED]]
        if len(found) > MAX_LISTED:
            lines.append(f"(and {len(found) - MAX_LISTED} later ones)")
        if not lines:
            return "There are no reminders here."
        label = label_of_role(await self._reminders.least_role(found[:MAX_LISTED]), "a reminder")
        text = "\n".join(lines)
        return ToolOutput(
            text=text,
            kind="reminders",
            origin="what people asked for",
            is_untrusted=True,
            label=label,
        )

    @tool("Cancel a reminder of this conversation.", effect=OWN)
    async def cancel_reminder(
        self,
        context: ToolContext,
        *,
        id: Annotated[str, Field(description="From list_reminders.")],  # noqa: A002 - the model's word
    ) -> str:
        place = _place_of(context)
        done = await self._reminders.cancel(
            id,
            agent=context.agent,
            place=place.conversation if place is not None else None,
            reason=f"cancelled for {context.requesters[-1].name}"
            if context.requesters
            else "cancelled by the agent",
        )
        if not done:
            raise ToolCallRefused("There is no such reminder here; list_reminders names them.")
        return "It is cancelled."

    def _format_line(self, reminder: PendingReminder) -> str:
        requester_note = f", asked for by {reminder.asked_by}" if reminder.asked_by else ""
        return (
            f"{reminder.id}: {format_due(reminder, self._reminders.timezone)}, "
            f"{describe_schedule_text(reminder.schedule)}{requester_note}: {reminder.text}"
        )


def _place_of(context: ToolContext) -> Address | None:
    return None if is_inner(context.at.conversation) else context.at
