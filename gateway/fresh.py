"""What one turn is told as new, and what it has dealt with thereby."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

from agent import view
from agent.brief import NOTHING_NEW
from agent.outcome import TurnOutcome
from agent.tools.notes import RECALL
from gateway.askers import deduplicate_requesters, find_reminder_roles
from gateway.events import Alarm, Sender
from gateway.fitting import RenderedInput, fit_lines, render_lines
from gateway.hands import Requester, ToolContext
from gateway.hearing import CurrentMessage, RenderedMessage, is_addressed
from gateway.labels import ANYBODY_ROLE, TRUSTED_LABEL, TrustLabel
from gateway.means import AgentContext
from gateway.past import HistoryView
from gateway.recalled import RecallResult
from gateway.records import ReminderSet, Seq
from gateway.store import LogEntry, UnreadEntries
from gateway.turn import ConsumedInput, TurnBasis, TurnStart, count_omitted

MAX_UNREAD_LINES = 50
"""Unread lines told to one turn. Of what was overheard older ones are counted, so that a raid of thousands costs one
bounded prompt; what was said to the agent waits for the next turn."""
MAX_RECALL_LINES = 10
"""Newest lines that are looked at for what to call to mind."""


class UnreadInput:
    """Of one turn. What it was told so far can be read at any time."""

    def __init__(self, means: AgentContext, begun: TurnStart) -> None:
        self.rendered = RenderedInput()
        self.lines: Sequence[RenderedMessage] = ()
        """What is new, as it reads now. Empty before `read`."""
        self._context = means
        self._start = begun
        self._conversation = begun.place.conversation
        self._omitted = 0
        self._upto = Seq(0)
        self._messages = tuple(begun.messages)
        self._overheard_roles: set[str] = set()
        self.label: TrustLabel = TRUSTED_LABEL
        """Of everybody whose words it was told so far."""
        self.reminder_setters = dict[Seq, Sender]()
        """Who had each reminder set: they bear what it costs."""
        self._reminder_roles = dict[Seq, str]()
        """Of each reminder: as `gateway.askers.find_reminder_roles`."""

    async def load(self) -> None:
        """Look at what is new."""
        self.lines = await self._context.reader.render(self._start.messages, sees=self._context.model.takes_images)
        await self._load_reminders(self._start.unread.messages)

    async def _load_reminders(self, some: Sequence[LogEntry]) -> None:
        """Look up whose the reminders among these are."""
        store = self._context.store
        self._reminder_roles |= await find_reminder_roles(store, some)
        for one in some:
            if isinstance(one.fact, Alarm):
                entry = await store.entry_by_key(f"reminded:{one.fact.reminder}")
                fact = entry.fact if entry is not None else None
                if isinstance(fact, ReminderSet) and fact.by:
                    self.reminder_setters[one.seq] = Sender(id=fact.by, name=fact.asked_by, verified=True)

    def _charge_reminder_setters(self, told: RenderedInput) -> RenderedInput:
        """The same, with what reminders cost borne by who had them set."""
        pairs = zip(told.covers, told.senders, strict=False)
        borne = [self.reminder_setters[seq].id if seq in self.reminder_setters else sender for seq, sender in pairs]
        return replace(told, senders=tuple(borne))

    def consumed_input(self, outcome: TurnOutcome, basis: TurnBasis) -> ConsumedInput:
        """What it has dealt with, if it ended like this."""
        digest, told, upto = self._start.digest, self.rendered, self._upto
        if digest is not None and outcome.outcome == "interrupted":  # what was pending everywhere still is
            return ConsumedInput(rendered=replace(told, covers=(), senders=()), omitted=0, upto=Seq(0), basis=basis)
        looked = digest.looked if digest is not None else ()
        return ConsumedInput(
            rendered=told, omitted=self._omitted, upto=upto, messages=self._messages, looked=looked, basis=basis
        )

    async def render_fitting(self, budget: int) -> tuple[UnreadEntries, RenderedInput]:
        """What is told of what is new, and what that deals with."""
        digest, unread = self._start.digest, self._start.unread
        if digest is not None:
            return unread, RenderedInput(text=digest.text, covers=digest.covers, senders=digest.senders)
        told = fit_lines(self.lines, omitted=unread.omitted, budget=budget, plain=self._context.is_small_model)
        if told.has_more:
            unread, told = await self._keep_addressed(told.covers, unread, self.lines)
        return unread, told if told.text else replace(told, text=NOTHING_NEW)

    async def recall(self, seen: HistoryView, where: ToolContext, shown: str) -> RecallResult:
        """What it calls to mind. `shown`: what the prompt says anyway of what it knows for good."""
        means, tokens = self._context, self._context.recall_config.ambient_tokens
        lines = [one.line.text for one in self.lines if not one.line.event][-MAX_RECALL_LINES:]
        if means.is_small_model or not tokens or not lines:
            return RecallResult()
        recalled = await means.ambient_recall(
            where,
            lines,
            seen={name for turn in seen.turns for name in turn.recalled},
            since=seen.turns[0].seq if seen.turns else None,
            tokens=tokens,
            asked=any(one.line.is_addressed for one in self.lines),
            shown=shown,
        )
        if recalled.is_foreign:
            where.trust.add(TrustLabel(ANYBODY_ROLE, RECALL.name))
        return recalled

    def mark_read(self, unread: UnreadEntries, told: RenderedInput) -> None:
        """From here on the model may have read this."""
        digest = self._start.digest
        self.rendered = self._charge_reminder_setters(told)
        self._overheard_roles = {digest.label.role} if digest is not None else _find_overheard_roles(self.lines, told)
        self.label |= digest.label if digest is not None else _label_of_rendered(self.lines, told)
        self._upto = digest.upto if digest is not None else unread.upto
        self._omitted = digest.omitted if digest is not None else count_omitted(unread, told)

    def roles(self) -> list[str]:
        """Of those who say to the agent what is new."""
        return [one.line.role for one in self.lines if one.line.is_addressed and not one.line.event]

    def requesters(self) -> tuple[Requester, ...]:
        """Who said to the agent what it was told at its beginning, oldest first."""
        return _find_requesters(self._messages, self.lines, self.rendered)

    def overheard_roles(self) -> tuple[str, ...]:
        """Roles of those whose words it was told, though they were not said to the agent."""
        return tuple(sorted(self._overheard_roles))

    def reminder_roles(self) -> tuple[str, ...]:
        """The least role of those who had each reminder set that it was told."""
        return tuple(
            sorted({role for seq, role in self._reminder_roles.items() if role and seq in self.rendered.covers})
        )

    async def render_news(self, budget: int, room: int) -> tuple[str, tuple[Requester, ...]]:
        """What has arrived meanwhile, as the model reads it, and who asks by that.

        At most `room` tokens, and a share of `budget`: what does not fit stays unread, for another turn.
        """
        means = self._context
        unread = await means.store.unread_entries(self._conversation, most=MAX_UNREAD_LINES, after=self._upto)
        if not unread.messages:
            return "", ()
        standing = await means.reader.read_current(unread)
        await self._load_reminders(unread.messages)
        lines = await means.reader.render(standing, sees=False)  # a tool's results are no place for images
        budget = min(budget, int(room / view.UNREAD_SHARE))
        told = fit_lines(lines, omitted=unread.omitted, budget=budget, plain=means.is_small_model)
        if told.has_more:
            unread, told = await self._keep_addressed(told.covers, unread, lines, after=self._upto)
        if view.estimate_tokens(told.text) > room:
            return "", ()
        told = self._charge_reminder_setters(told)
        self.rendered = replace(
            self.rendered, covers=(*self.rendered.covers, *told.covers), senders=(*self.rendered.senders, *told.senders)
        )
        self._omitted += count_omitted(unread, told)
        self._overheard_roles |= _find_overheard_roles(lines, told)
        self.label |= _label_of_rendered(lines, told)
        self._upto = unread.upto
        self._messages = (*self._messages, *standing)
        return told.text, _find_requesters(standing, lines, told)

    async def _keep_addressed(
        self, covers: Sequence[Seq], unread: UnreadEntries, lines: Sequence[RenderedMessage], *, after: int = 0
    ) -> tuple[UnreadEntries, RenderedInput]:
        """Only these lines, all said to the agent, where there is no room for the others: those stay unread."""
        first = [one for one in unread.messages if one.seq <= covers[-1] and is_addressed(one.fact)]
        unread = await self._context.store.unread_entries(self._conversation, most=len(first), after=after)
        told = [one for one in lines if one.seq in covers]
        return unread, render_lines(told, omitted=unread.omitted, plain=self._context.is_small_model)


def _find_requesters(
    standing: Sequence[CurrentMessage], lines: Sequence[RenderedMessage], told: RenderedInput
) -> tuple[Requester, ...]:
    """Who said to the agent what is told, oldest first."""
    roles = {one.seq: one.line.role for one in lines if one.line.is_addressed and one.seq in told.covers}
    spoke = [one for one in standing if one.seq in roles and not one.notice]
    said = [(one.message.sender, roles[one.seq]) for one in spoke]
    return deduplicate_requesters(
        [
            Requester(id=who.id, name=who.name, role=role, verified=who.verified, ranks=who.ranks, is_bot=who.is_bot)
            for who, role in said
        ]
    )


def _find_overheard_roles(lines: Sequence[RenderedMessage], told: RenderedInput) -> set[str]:
    return {one.label.role for one in lines if one.seq in told.covers and not one.line.is_addressed}


def _label_of_rendered(lines: Sequence[RenderedMessage], told: RenderedInput) -> TrustLabel:
    return reduce(or_, [one.label for one in lines if one.seq in told.covers], TRUSTED_LABEL)
