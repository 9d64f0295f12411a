"""What one turn is told as new, and what it has dealt with thereby."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

from agent import view
from agent.brief import NOTHING_NEW
from agent.outcome import Outcome
from agent.tools.notes import RECALL
from gateway.askers import apart, reminders
from gateway.events import Alarm, Sender
from gateway.fitting import Told, pick, tell
from gateway.hands import Asker, Whereabouts
from gateway.hearing import Heard, Standing, addressed
from gateway.labels import ANYBODY, CLEAN, Label
from gateway.means import Means
from gateway.past import View
from gateway.recalled import Recalled
from gateway.records import Reminded, Seq
from gateway.store import Stored, Unread
from gateway.turn import Basis, Begun, Dealt, omitted

MOST_LINES = 50
"""Unread lines told to one turn. Of what was overheard older ones are counted, so that a raid of thousands costs one
bounded prompt; what was said to the agent waits for the next turn."""
MIND_LINES = 10
"""Newest lines that are looked at for what to call to mind."""


class Fresh:
    """Of one turn. What it was told so far can be read at any time."""

    def __init__(self, means: Means, begun: Begun) -> None:
        self.rendered = Told()
        self.lines: Sequence[Heard] = ()
        """What is new, as it reads now. Empty before `read`."""
        self._context = means
        self._start = begun
        self._conversation = begun.place.conversation
        self._omitted = 0
        self._upto = Seq(0)
        self._messages = tuple(begun.messages)
        self._overheard_roles: set[str] = set()
        self.label: Label = CLEAN
        """Of everybody whose words it was told so far."""
        self.reminder_setters = dict[Seq, Sender]()
        """Who had each reminder set: they bear what it costs."""
        self._reminder_roles = dict[Seq, str]()
        """Of each reminder: as `gateway.askers.reminders`."""

    async def load(self) -> None:
        """Look at what is new."""
        self.lines = await self._context.reader.render(self._start.messages, sees=self._context.model.takes_images)
        await self._load_reminders(self._start.unread.messages)

    async def _load_reminders(self, some: Sequence[Stored]) -> None:
        """Look up whose the reminders among these are."""
        store = self._context.store
        self._reminder_roles |= await reminders(store, some)
        for one in some:
            if isinstance(one.fact, Alarm):
                entry = await store.entry_by_key(f"reminded:{one.fact.reminder}")
                fact = entry.fact if entry is not None else None
                if isinstance(fact, Reminded) and fact.by:
                    self.reminder_setters[one.seq] = Sender(id=fact.by, name=fact.asked_by, verified=True)

    def _charge_reminder_setters(self, told: Told) -> Told:
        """The same, with what reminders cost borne by who had them set."""
        pairs = zip(told.covers, told.senders, strict=False)
        borne = [self.reminder_setters[seq].id if seq in self.reminder_setters else sender for seq, sender in pairs]
        return replace(told, senders=tuple(borne))

    def consumed_input(self, outcome: Outcome, basis: Basis) -> Dealt:
        """What it has dealt with, if it ended like this."""
        digest, told, upto = self._start.digest, self.rendered, self._upto
        if digest is not None and outcome.outcome == "interrupted":  # what was pending everywhere still is
            return Dealt(rendered=replace(told, covers=(), senders=()), omitted=0, upto=Seq(0), basis=basis)
        looked = digest.looked if digest is not None else ()
        return Dealt(
            rendered=told, omitted=self._omitted, upto=upto, messages=self._messages, looked=looked, basis=basis
        )

    async def render_fitting(self, budget: int) -> tuple[Unread, Told]:
        """What is told of what is new, and what that deals with."""
        digest, unread = self._start.digest, self._start.unread
        if digest is not None:
            return unread, Told(text=digest.text, covers=digest.covers, senders=digest.senders)
        told = pick(self.lines, omitted=unread.omitted, budget=budget, plain=self._context.is_small_model)
        if told.has_more:
            unread, told = await self._keep_addressed(told.covers, unread, self.lines)
        return unread, told if told.text else replace(told, text=NOTHING_NEW)

    async def recall(self, seen: View, where: Whereabouts, shown: str) -> Recalled:
        """What it calls to mind. `shown`: what the prompt says anyway of what it knows for good."""
        means, tokens = self._context, self._context.recall_config.ambient_tokens
        lines = [one.line.text for one in self.lines if not one.line.event][-MIND_LINES:]
        if means.is_small_model or not tokens or not lines:
            return Recalled()
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
            where.trust.add(Label(ANYBODY, RECALL.name))
        return recalled

    def mark_read(self, unread: Unread, told: Told) -> None:
        """From here on the model may have read this."""
        digest = self._start.digest
        self.rendered = self._charge_reminder_setters(told)
        self._overheard_roles = {digest.label.role} if digest is not None else _overheard(self.lines, told)
        self.label |= digest.label if digest is not None else _label(self.lines, told)
        self._upto = digest.upto if digest is not None else unread.upto
        self._omitted = digest.omitted if digest is not None else omitted(unread, told)

    def roles(self) -> list[str]:
        """Of those who say to the agent what is new."""
        return [one.line.role for one in self.lines if one.line.is_addressed and not one.line.event]

    def requesters(self) -> tuple[Asker, ...]:
        """Who said to the agent what it was told at its beginning, oldest first."""
        return _askers(self._messages, self.lines, self.rendered)

    def overheard_roles(self) -> tuple[str, ...]:
        """Roles of those whose words it was told, though they were not said to the agent."""
        return tuple(sorted(self._overheard_roles))

    def reminder_roles(self) -> tuple[str, ...]:
        """The least role of those who had each reminder set that it was told."""
        return tuple(
            sorted({role for seq, role in self._reminder_roles.items() if role and seq in self.rendered.covers})
        )

    async def render_news(self, budget: int, room: int) -> tuple[str, tuple[Asker, ...]]:
        """What has arrived meanwhile, as the model reads it, and who asks by that.

        At most `room` tokens, and a share of `budget`: what does not fit stays unread, for another turn.
        """
        means = self._context
        unread = await means.store.unread_entries(self._conversation, most=MOST_LINES, after=self._upto)
        if not unread.messages:
            return "", ()
        standing = await means.reader.read_current(unread)
        await self._load_reminders(unread.messages)
        lines = await means.reader.render(standing, sees=False)  # a tool's results are no place for images
        budget = min(budget, int(room / view.NEW_SHARE))
        told = pick(lines, omitted=unread.omitted, budget=budget, plain=means.is_small_model)
        if told.has_more:
            unread, told = await self._keep_addressed(told.covers, unread, lines, after=self._upto)
        if view.estimate_tokens(told.text) > room:
            return "", ()
        told = self._charge_reminder_setters(told)
        self.rendered = replace(
            self.rendered, covers=(*self.rendered.covers, *told.covers), senders=(*self.rendered.senders, *told.senders)
        )
        self._omitted += omitted(unread, told)
        self._overheard_roles |= _overheard(lines, told)
        self.label |= _label(lines, told)
        self._upto = unread.upto
        self._messages = (*self._messages, *standing)
        return told.text, _askers(standing, lines, told)

    async def _keep_addressed(
        self, covers: Sequence[Seq], unread: Unread, lines: Sequence[Heard], *, after: int = 0
    ) -> tuple[Unread, Told]:
        """Only these lines, all said to the agent, where there is no room for the others: those stay unread."""
        first = [one for one in unread.messages if one.seq <= covers[-1] and addressed(one.fact)]
        unread = await self._context.store.unread_entries(self._conversation, most=len(first), after=after)
        told = [one for one in lines if one.seq in covers]
        return unread, tell(told, omitted=unread.omitted, plain=self._context.is_small_model)


def _askers(standing: Sequence[Standing], lines: Sequence[Heard], told: Told) -> tuple[Asker, ...]:
    """Who said to the agent what is told, oldest first."""
    roles = {one.seq: one.line.role for one in lines if one.line.is_addressed and one.seq in told.covers}
    spoke = [one for one in standing if one.seq in roles and not one.notice]
    said = [(one.message.sender, roles[one.seq]) for one in spoke]
    return apart(
        [
            Asker(id=who.id, name=who.name, role=role, verified=who.verified, ranks=who.ranks, is_bot=who.is_bot)
            for who, role in said
        ]
    )


def _overheard(lines: Sequence[Heard], told: Told) -> set[str]:
    return {one.label.role for one in lines if one.seq in told.covers and not one.line.is_addressed}


def _label(lines: Sequence[Heard], told: Told) -> Label:
    return reduce(or_, [one.label for one in lines if one.seq in told.covers], CLEAN)
