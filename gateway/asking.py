"""One turn while it runs: what it is told, what the model makes of it, and what is left of it where it is cut off."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_

from agent.asked import Fits, request_of
from agent.brief import Brief
from agent.cache.prices import ASSUMED
from agent.models.base import Malformed, Request, TooLong
from agent.outcome import Outcome, Progress
from agent.prompts import prompt
from agent.turn import take_turn
from gateway import access
from gateway.askers import Behind, apart, behind, wrote
from gateway.briefing import Setting
from gateway.events import Address, Sender
from gateway.fitting import Told
from gateway.folds import Due
from gateway.fresh import Fresh
from gateway.hands import Asker, Trace, Whereabouts
from gateway.hearing import addressed
from gateway.labels import UNKNOWN, Label
from gateway.lane import Lane
from gateway.limits.words import Bite
from gateway.means import Exchanged, Means
from gateway.past import View
from gateway.pressure import Pressed
from gateway.recalled import Recalled
from gateway.tools.gate import role_now
from gateway.turn import Basis, Begun, Dealt

logger = logging.getLogger("reverie.turns")

WORTH_FOLDING = 300
"""Tokens of a view: what would stand in for less takes as much."""
MAX_FOLDS = 2
"""Tries to make a conversation fit after the provider says that it does not."""


BLOCKED = "whoever asked for it is blocked"


def are_blocked(who: access.Policy, at: Address, askers: Sequence[Asker]) -> bool:
    """Whether somebody asked there, and everybody who did is blocked by now. Pure."""
    return bool(askers) and all(role_now(who, at, one) == "blocked" for one in askers)


@dataclass(slots=True, kw_only=True)
class _Told:
    """What the turn's requests are made of, beside what is new."""

    now: str = ""
    reach: str = ""
    """Where it may write to besides."""
    recalled: Recalled = field(default_factory=Recalled)
    seeing: bool = False
    """Images of earlier turns are shown."""
    refused: bool = False
    """The provider has said that it was too long."""
    basis: Basis = field(default_factory=Basis)

    def folded(self, due: Due) -> None:
        """The view is this from here on."""
        weighed = None if due.folded else due.weighed
        self.basis = replace(self.basis, view=due.view.digest, weighed=weighed, recalled=self.recalled.names)


class Asking:
    """One turn. What it was told so far can be read at any time."""

    def __init__(self, means: Means, begun: Begun, lane: Lane) -> None:
        self.begun = begun
        self.glimpse: Callable[[str], None] | None = None  # as `take_turn` has both
        self.thought: Callable[[str], None] = lambda _: None
        self.bite: Bite | None = None
        """The budget that it would go beyond. None: none so far."""
        self.progress = Progress()
        self.seen: View | None = None
        """What is in view. None: not read yet."""
        self._means = means
        self._conversation = begun.place.conversation
        self._lane = lane
        self._fresh = Fresh(means, begun)
        self._told = _Told()
        self._room = Progress()
        """What making room for it has cost."""
        self._behind = Behind()
        self._spoken_to = False
        """Somebody has said something to the agent since the turn began."""
        self._trace: Trace | None = None
        """None: nothing was read yet."""

    def settled(self, outcome: Outcome) -> Outcome:
        """The same with what making room for it has cost."""
        room = self._room.done
        return replace(
            outcome,
            usage=room.usage + outcome.usage,
            requests=room.requests + outcome.requests,
            accounts=(*room.accounts, *outcome.accounts),
        )

    def dealt(self, outcome: Outcome) -> Dealt:
        """What it has dealt with, if it ended like this."""
        label = self._trace.label if self._trace is not None else None
        return self._fresh.dealt(outcome, replace(self._told.basis, label=label))

    async def run(self) -> Outcome:
        """Ask the model until the turn has ended. May be cancelled at any time."""
        means, begun, fresh = self._means, self.begun, self._fresh
        seen = await means.views.take(self._conversation) if self.seen is None else self.seen
        self.seen = seen
        setting = await means.briefing.setting(begun.place, begun.unread, seen.turns)
        await fresh.read()
        where = self._at(setting)
        self._behind = await behind(means.store, means.who, seen.turns, continuing=begun.continuing)
        self._trace = where.trace
        self._trace.see(seen.label | setting.label)
        self._told = await self._remind(seen, where, setting.binding.private)
        outcome, tries = Outcome(outcome="failed"), 0
        seeing = news = means.model.sees  # what was shown before, and what is new: that is left out first
        while tries <= MAX_FOLDS:
            unread, told = await fresh.fit(self._budget(setting) >> tries)
            told = told if news else replace(told, media=())
            self._told.seeing, self._told.refused = seeing, tries > 0
            brief = await self._fold(setting, told, tries)
            fresh.begin(unread, told)
            whose = self._whose(where)
            if self.blocked():
                return Outcome(outcome="yielded", reason=BLOCKED, yielded=True)
            try:
                return await self._take(setting, brief, whose)
            except TooLong as error:
                self._room.lost(error.accounts)
                outcome = Outcome(outcome="failed", reason=error.reason, cause=error.cause)
                tries += 1
            except Malformed as error:  # an image that looks whole and is not must not end all talk there
                logger.warning("%s: asked again without images: %s", self._conversation, error.reason)
                self._room.lost(error.accounts)
                outcome = Outcome(outcome="failed", reason=error.reason, cause=error.cause)
                seeing, news = seeing and bool(told.media), False
        return outcome

    def _whose(self, where: Whereabouts) -> Whereabouts:
        """The same with those whose idea it may be what the turn does."""
        fresh, taken = self._fresh, self._behind
        reminded = tuple(sorted({*taken.reminded, *fresh.reminded()}))
        where.trace.see(reduce(or_, map(Label, reminded), fresh.label))
        now = replace(
            where,
            askers=apart([*taken.askers, *where.askers, *fresh.askers()]),
            overheard=tuple(sorted({*taken.overheard, *fresh.overheard()})),
            reminded=reminded,
        )
        self._lane.askers = now.askers
        return now

    def blocked(self) -> bool:
        """Whether all who asked for it are blocked by now: then nothing is said."""
        return are_blocked(self._means.who, self.begun.place, self._lane.askers)

    async def tidy(self) -> str:
        """Fold what is in view, because somebody wants that. In words, what came of it. Raises StoreError."""
        means = self._means
        seen = self.seen = await means.views.take(self._conversation)
        if seen.tokens < WORTH_FOLDING:
            return f"What I see of it is small already: about {seen.tokens} tokens."
        setting = await means.briefing.setting(self.begun.place, self.begun.unread, seen.turns)
        self._trace = Trace()
        self._trace.see(seen.label | setting.label)
        await self._fold(setting, Told(), 0, asked=True)
        now = self.seen
        if now is seen:
            return "There is nothing that could be folded."
        left = f"{len(seen.turns) - len(now.turns)} of {len(seen.turns)} turns have left the view"
        return f"{left}; it takes about {now.tokens} tokens, and took {seen.tokens}."

    def _budget(self, setting: Setting) -> int:
        """Tokens for the conversation and what is new."""
        said = self._means.context().folds
        return max(256, int(self._means.folds.usable() * said.fold_at_pct) - setting.tokens)

    async def _remind(self, seen: View, where: Whereabouts, shown: str) -> "_Told":
        """What holds for this turn only."""
        means, begun = self._means, self.begun
        now = await means.guidance(self._conversation, begun.autonomous, begun.continuing)
        now = "\n".join(filter(None, [now, await means.tools(self._conversation, self._fresh.roles())]))
        nearly = means.folds.full(seen, means.context().folds.nudge_at_pct)
        nudged = nearly and means.model.takes_tools and not any(turn.nudged for turn in seen.since_fold())
        now = "\n".join(filter(None, [now, prompt("write_down") if nudged else ""]))
        recalled = await self._fresh.recalled(seen, where, shown)
        reach = await means.reach(self._conversation)
        return _Told(now=now, reach=reach, recalled=recalled, basis=Basis(nudged=nudged))

    async def _fold(self, setting: Setting, told: Told, tries: int, *, asked: bool = False) -> Brief:
        """Make what is in view smaller where that is due, and write out what the turn is told."""
        assert self.seen is not None

        async def request(seen: View) -> Request:
            means = self._means
            brief = await self._brief(setting, seen, Told(), folded=False)
            return request_of(brief, means.model, means.hands(self._at(setting)).specs, means.agent_id)

        due = await self._means.folds.due(
            self.begun.place,
            self.seen,
            Pressed(
                fixed=setting.tokens,
                told=told,
                tries=tries,
                asked=asked,
                request=request,
                afford=self._affordable,
                spent=self._room,
                label=self._label,
            ),
        )
        self.seen = due.view
        self._told.folded(due)
        return await self._brief(setting, due.view, told, folded=due.folded)

    def _label(self) -> Label:
        """Of all that its requests held so far."""
        return self._trace.label if self._trace is not None else UNKNOWN

    async def _brief(self, setting: Setting, seen: View, told: Told, *, folded: bool) -> Brief:
        means, mine = self._means, self._told
        card, label = await means.briefing.card(self.begun.place, setting, folded=folded)
        if self._trace is not None:
            self._trace.see(label)
        return Brief(
            persona=setting.persona,
            skills=await means.skills(),
            binding=setting.binding,
            card=card,
            history=await means.views.history(seen, seeing=mine.seeing),
            heard=told.heard,
            images=await means.media.load(told.media),
            aside="\n".join(filter(None, [mine.reach, mine.recalled.text])) if told.heard else "",
            now=mine.now if told.heard else "",
            surface=means.surface,
            late=means.late,
            conversation=self._conversation,
        )

    def _at(self, setting: Setting) -> Whereabouts:
        """Where the turn uses its tools."""
        return Whereabouts(
            turn=self.begun.turn,
            agent=self._means.agent_id,
            at=self.begun.place,
            sight=setting.sight,
            autonomous=self.begun.autonomous,
            wrote=partial(wrote, self._means.store, self._means.who, self._conversation),
        )

    async def _take(self, setting: Setting, brief: Brief, where: Whereabouts) -> Outcome:
        means, hands = self._means, Exchanged(self._means.hands(where))

        async def news(room: int) -> str:
            """What has arrived meanwhile. What comes to the inner conversation is for its next digest."""
            nonlocal where
            if self.begun.inner or not self._lane.news():
                return ""
            heard, asking = await self._fresh.news(self._budget(setting), room)
            if asking:  # then it is theirs, whatever began it
                self._spoken_to = True
                self.begun = replace(self.begun, autonomous=False)
                where = replace(where, autonomous=False)
            now = self._whose(replace(where, askers=(*where.askers, *asking)))
            if now != where:  # whoever speaks in its middle asks, too
                where = now
                hands.tools = means.hands(where)
            return heard

        async def shorten(times: int) -> Brief | None:
            """The same with less of what was before."""
            return await self._fold(setting, self._fresh.told, times)

        return await take_turn(
            brief,
            means.model,
            hands,
            key=means.agent_id,
            max_tool_rounds=means.max_rounds,
            glimpse=self.glimpse,
            thought=self.thought,
            news=news,
            wait=self._wait,
            afford=self._affordable,
            progress=self.progress,
            evidence=means.evidence.shelf(
                where.turn, self._conversation, means.context(), means.folds.usable(), means.truncated
            ),
            shorten=shorten,
            spoken_to=lambda: self._spoken_to,
            fits=Fits(scale=self.seen.scale if self.seen is not None else 1.0, refused=self._told.refused),
        )

    def _affordable(self, request: Request) -> bool:
        means, begun = self._means, self.begun
        if begun.autonomous and not means.afford(means.agent_id, request):
            return False
        if means.limits is not None:
            cost_usd = means.ceiling_usd(request)
            self.bite = means.limits.afford(begun.place, means.agent_id, self._payers(), cost_usd, self._spent_usd())
        return self.bite is None

    async def _wait(self, request: Request) -> None:
        """Until it is known whether there is money for it."""
        means = self._means
        if means.limits is not None:
            cost_usd = means.ceiling_usd(request)
            await means.limits.wait(self.begun.place, means.agent_id, self._payers(), cost_usd, self._spent_usd())

    def _spent_usd(self) -> float:
        """What it has cost so far."""
        accounts = (*self._room.done.accounts, *self.progress.done.accounts)
        costs = (ASSUMED.cost_usd(one.usage) if one.cost_usd is None else one.cost_usd for one in accounts)
        return sum(cost or 0.0 for cost in costs)

    def _payers(self) -> list[Sender]:
        """Whose budgets it is paid from: who said to the agent what it was told, and who set its reminders."""
        said = [one.message.sender for one in self.begun.standing if addressed(one.message)]
        behind = [
            Sender(id=one.id, name=one.name, verified=one.verified, ranks=one.ranks, is_bot=one.is_bot)
            for one in self._lane.askers
        ]
        return [*({one.id: one for one in [*said, *behind]}.values()), *self._fresh.setters.values()]
