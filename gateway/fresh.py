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
        self.told = Told()
        self.lines: Sequence[Heard] = ()
        """What is new, as it reads now. Empty before `read`."""
        self._means = means
        self._begun = begun
        self._conversation = begun.place.conversation
        self._omitted = 0
        self._upto = Seq(0)
        self._standing = tuple(begun.standing)
        self._overheard: set[str] = set()
        self.label: Label = CLEAN
        """Of everybody whose words it was told so far."""
        self.setters = dict[Seq, Sender]()
        """Who had each reminder set: they bear what it costs."""
        self._reminders = dict[Seq, str]()
        """Of each reminder: as `gateway.askers.reminders`."""

    async def read(self) -> None:
        """Look at what is new."""
        self.lines = await self._means.hearing.tell(self._begun.standing, sees=self._means.model.sees)
        await self._remind(self._begun.unread.messages)

    async def _remind(self, some: Sequence[Stored]) -> None:
        """Look up whose the reminders among these are."""
        store = self._means.store
        self._reminders |= await reminders(store, some)
        for one in some:
            if isinstance(one.fact, Alarm):
                entry = await store.by_key(f"reminded:{one.fact.reminder}")
                fact = entry.fact if entry is not None else None
                if isinstance(fact, Reminded) and fact.by:
                    self.setters[one.seq] = Sender(id=fact.by, name=fact.asked_by, verified=True)

    def _borne(self, told: Told) -> Told:
        """The same, with what reminders cost borne by who had them set."""
        pairs = zip(told.covers, told.senders, strict=False)
        borne = [self.setters[seq].id if seq in self.setters else sender for seq, sender in pairs]
        return replace(told, senders=tuple(borne))

    def dealt(self, outcome: Outcome, basis: Basis) -> Dealt:
        """What it has dealt with, if it ended like this."""
        digest, told, upto = self._begun.digest, self.told, self._upto
        if digest is not None and outcome.outcome == "interrupted":  # what was pending everywhere still is
            return Dealt(told=replace(told, covers=(), senders=()), omitted=0, upto=Seq(0), basis=basis)
        looked = digest.looked if digest is not None else ()
        return Dealt(told=told, omitted=self._omitted, upto=upto, standing=self._standing, looked=looked, basis=basis)

    async def fit(self, budget: int) -> tuple[Unread, Told]:
        """What is told of what is new, and what that deals with."""
        digest, unread = self._begun.digest, self._begun.unread
        if digest is not None:
            return unread, Told(heard=digest.heard, covers=digest.covers, senders=digest.senders)
        told = pick(self.lines, omitted=unread.omitted, budget=budget, plain=self._means.plain)
        if told.more:
            unread, told = await self._first(told.covers, unread, self.lines)
        return unread, told if told.heard else replace(told, heard=NOTHING_NEW)

    async def recalled(self, seen: View, where: Whereabouts, shown: str) -> Recalled:
        """What it calls to mind. `shown`: what the prompt says anyway of what it knows for good."""
        means, tokens = self._means, self._means.recall.ambient_tokens
        lines = [one.line.text for one in self.lines if not one.line.happened][-MIND_LINES:]
        if means.plain or not tokens or not lines:
            return Recalled()
        recalled = await means.recalling(
            where,
            lines,
            seen={name for turn in seen.turns for name in turn.recalled},
            since=seen.turns[0].seq if seen.turns else None,
            tokens=tokens,
            asked=any(one.line.addressed for one in self.lines),
            shown=shown,
        )
        if recalled.foreign:
            where.trace.see(Label(ANYBODY, RECALL.name))
        return recalled

    def begin(self, unread: Unread, told: Told) -> None:
        """From here on the model may have read this."""
        digest = self._begun.digest
        self.told = self._borne(told)
        self._overheard = {digest.label.role} if digest is not None else _overheard(self.lines, told)
        self.label |= digest.label if digest is not None else _label(self.lines, told)
        self._upto = digest.upto if digest is not None else unread.upto
        self._omitted = digest.omitted if digest is not None else omitted(unread, told)

    def roles(self) -> list[str]:
        """Of those who say to the agent what is new."""
        return [one.line.role for one in self.lines if one.line.addressed and not one.line.happened]

    def askers(self) -> tuple[Asker, ...]:
        """Who said to the agent what it was told at its beginning, oldest first."""
        return _askers(self._standing, self.lines, self.told)

    def overheard(self) -> tuple[str, ...]:
        """Roles of those whose words it was told, though they were not said to the agent."""
        return tuple(sorted(self._overheard))

    def reminded(self) -> tuple[str, ...]:
        """The least role of those who had each reminder set that it was told."""
        return tuple(sorted({role for seq, role in self._reminders.items() if role and seq in self.told.covers}))

    async def news(self, budget: int, room: int) -> tuple[str, tuple[Asker, ...]]:
        """What has arrived meanwhile, as the model reads it, and who asks by that.

        At most `room` tokens, and a share of `budget`: what does not fit stays unread, for another turn.
        """
        means = self._means
        unread = await means.store.unread(self._conversation, most=MOST_LINES, after=self._upto)
        if not unread.messages:
            return "", ()
        standing = await means.hearing.standing(unread)
        await self._remind(unread.messages)
        lines = await means.hearing.tell(standing, sees=False)  # a tool's results are no place for images
        budget = min(budget, int(room / view.NEW_SHARE))
        told = pick(lines, omitted=unread.omitted, budget=budget, plain=means.plain)
        if told.more:
            unread, told = await self._first(told.covers, unread, lines, after=self._upto)
        if view.estimate_tokens(told.heard) > room:
            return "", ()
        told = self._borne(told)
        self.told = replace(
            self.told, covers=(*self.told.covers, *told.covers), senders=(*self.told.senders, *told.senders)
        )
        self._omitted += omitted(unread, told)
        self._overheard |= _overheard(lines, told)
        self.label |= _label(lines, told)
        self._upto = unread.upto
        self._standing = (*self._standing, *standing)
        return told.heard, _askers(standing, lines, told)

    async def _first(
        self, covers: Sequence[Seq], unread: Unread, lines: Sequence[Heard], *, after: int = 0
    ) -> tuple[Unread, Told]:
        """Only these lines, all said to the agent, where there is no room for the others: those stay unread."""
        first = [one for one in unread.messages if one.seq <= covers[-1] and addressed(one.fact)]
        unread = await self._means.store.unread(self._conversation, most=len(first), after=after)
        told = [one for one in lines if one.seq in covers]
        return unread, tell(told, omitted=unread.omitted, plain=self._means.plain)


def _askers(standing: Sequence[Standing], lines: Sequence[Heard], told: Told) -> tuple[Asker, ...]:
    """Who said to the agent what is told, oldest first."""
    roles = {one.seq: one.line.role for one in lines if one.line.addressed and one.seq in told.covers}
    spoke = [one for one in standing if one.seq in roles and not one.happened]
    said = [(one.message.sender, roles[one.seq]) for one in spoke]
    return apart(
        [
            Asker(id=who.id, name=who.name, role=role, verified=who.verified, ranks=who.ranks, is_bot=who.is_bot)
            for who, role in said
        ]
    )


def _overheard(lines: Sequence[Heard], told: Told) -> set[str]:
    return {one.label.role for one in lines if one.seq in told.covers and not one.line.addressed}


def _label(lines: Sequence[Heard], told: Told) -> Label:
    return reduce(or_, [one.label for one in lines if one.seq in told.covers], CLEAN)
