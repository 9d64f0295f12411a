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

    directives: str = ""
    reachable_places: str = ""
    """Where it may write to besides."""
    recalled: Recalled = field(default_factory=Recalled)
    shows_past_images: bool = False
    """Images of earlier turns are shown."""
    was_too_long: bool = False
    """The provider has said that it was too long."""
    basis: Basis = field(default_factory=Basis)

    def set_view(self, due: Due) -> None:
        """The view is this from here on."""
        weighed = None if due.is_folded else due.weighed
        self.basis = replace(self.basis, view=due.view.digest, weighed=weighed, recalled=self.recalled.names)


class Asking:
    """One turn. What it was told so far can be read at any time."""

    def __init__(self, means: Means, begun: Begun, lane: Lane) -> None:
        self.start = begun
        self.on_text: Callable[[str], None] | None = None  # as `take_turn` has both
        self.on_thinking: Callable[[str], None] = lambda _: None
        self.limit_hit: Bite | None = None
        """The budget that it would go beyond. None: none so far."""
        self.progress = Progress()
        self.view: View | None = None
        """What is in view. None: not read yet."""
        self._context = means
        self._conversation = begun.place.conversation
        self._handle = lane
        self._unread_input = Fresh(means, begun)
        self._prompt = _Told()
        self._preparation = Progress()
        """What making room for it has cost."""
        self._inherited = Behind()
        self._is_addressed = False
        """Somebody has said something to the agent since the turn began."""
        self._trust: Trace | None = None
        """None: nothing was read yet."""

    def with_preparation_cost(self, outcome: Outcome) -> Outcome:
        """The same with what making room for it has cost."""
        room = self._preparation.current
        return replace(
            outcome,
            usage=room.usage + outcome.usage,
            requests=room.requests + outcome.requests,
            accounts=(*room.accounts, *outcome.accounts),
        )

    def consumed_input(self, outcome: Outcome) -> Dealt:
        """What it has dealt with, if it ended like this."""
        label = self._trust.label if self._trust is not None else None
        return self._unread_input.consumed_input(outcome, replace(self._prompt.basis, label=label))

    async def run(self) -> Outcome:
        """Ask the model until the turn has ended. May be cancelled at any time."""
        means, begun, fresh = self._context, self.start, self._unread_input
        seen = await means.history.take(self._conversation) if self.view is None else self.view
        self.view = seen
        setting = await means.prompt_context.build(begun.place, begun.unread, seen.turns)
        await fresh.load()
        where = self._tool_context(setting)
        self._inherited = await behind(means.store, means.access_policy, seen.turns, continuing=begun.continuing)
        self._trust = where.trust
        self._trust.add(seen.label | setting.label)
        self._prompt = await self._build_turn_prompt(seen, where, setting.binding.private)
        outcome, tries = Outcome(outcome="failed"), 0
        seeing = news = means.model.takes_images  # what was shown before, and what is new: that is left out first
        while tries <= MAX_FOLDS:
            unread, told = await fresh.render_fitting(self._budget_tokens(setting) >> tries)
            told = told if news else replace(told, media=())
            self._prompt.shows_past_images, self._prompt.was_too_long = seeing, tries > 0
            brief = await self._fold_and_build(setting, told, tries)
            fresh.mark_read(unread, told)
            whose = self._with_requesters(where)
            if self.is_blocked():
                return Outcome(outcome="yielded", reason=BLOCKED, yielded=True)
            try:
                return await self._take_turn(setting, brief, whose)
            except TooLong as error:
                self._preparation.record_lost(error.accounts)
                outcome = Outcome(outcome="failed", reason=error.reason, cause=error.cause)
                tries += 1
            except Malformed as error:  # an image that looks whole and is not must not end all talk there
                logger.warning("%s: asked again without images: %s", self._conversation, error.reason)
                self._preparation.record_lost(error.accounts)
                outcome = Outcome(outcome="failed", reason=error.reason, cause=error.cause)
                seeing, news = seeing and bool(told.media), False
        return outcome

    def _with_requesters(self, where: Whereabouts) -> Whereabouts:
        """The same with those whose idea it may be what the turn does."""
        fresh, taken = self._unread_input, self._inherited
        reminded = tuple(sorted({*taken.reminder_roles, *fresh.reminder_roles()}))
        where.trust.add(reduce(or_, map(Label, reminded), fresh.label))
        now = replace(
            where,
            requesters=apart([*taken.requesters, *where.requesters, *fresh.requesters()]),
            overheard_roles=tuple(sorted({*taken.overheard_roles, *fresh.overheard_roles()})),
            reminder_roles=reminded,
        )
        self._handle.requesters = now.requesters
        return now

    def is_blocked(self) -> bool:
        """Whether all who asked for it are blocked by now: then nothing is said."""
        return are_blocked(self._context.access_policy, self.start.place, self._handle.requesters)

    async def compact(self) -> str:
        """Fold what is in view, because somebody wants that. In words, what came of it. Raises StoreError."""
        means = self._context
        seen = self.view = await means.history.take(self._conversation)
        if seen.tokens < WORTH_FOLDING:
            return f"What I see of it is small already: about {seen.tokens} tokens."
        setting = await means.prompt_context.build(self.start.place, self.start.unread, seen.turns)
        self._trust = Trace()
        self._trust.add(seen.label | setting.label)
        await self._fold_and_build(setting, Told(), 0, asked=True)
        now = self.view
        if now is seen:
            return "There is nothing that could be folded."
        left = f"{len(seen.turns) - len(now.turns)} of {len(seen.turns)} turns have left the view"
        return f"{left}; it takes about {now.tokens} tokens, and took {seen.tokens}."

    def _budget_tokens(self, setting: Setting) -> int:
        """Tokens for the conversation and what is new."""
        said = self._context.optimization().folds
        return max(256, int(self._context.compactor.usable_tokens() * said.fold_at_pct) - setting.tokens)

    async def _build_turn_prompt(self, seen: View, where: Whereabouts, shown: str) -> "_Told":
        """What holds for this turn only."""
        means, begun = self._context, self.start
        now = await means.directives(self._conversation, begun.autonomous, begun.continuing)
        now = "\n".join(filter(None, [now, await means.describe_tools(self._conversation, self._unread_input.roles())]))
        nearly = means.compactor.is_full(seen, means.optimization().folds.nudge_at_pct)
        nudged = nearly and means.model.takes_tools and not any(turn.nudged for turn in seen.turns_since_fold())
        now = "\n".join(filter(None, [now, prompt("write_down") if nudged else ""]))
        recalled = await self._unread_input.recall(seen, where, shown)
        reach = await means.reachable_places(self._conversation)
        return _Told(directives=now, reachable_places=reach, recalled=recalled, basis=Basis(nudged=nudged))

    async def _fold_and_build(self, setting: Setting, told: Told, tries: int, *, asked: bool = False) -> Brief:
        """Make what is in view smaller where that is due, and write out what the turn is told."""
        assert self.view is not None

        async def request(seen: View) -> Request:
            means = self._context
            brief = await self._build_prompt_input(setting, seen, Told(), folded=False)
            return request_of(brief, means.model, means.tools_for(self._tool_context(setting)).specs, means.agent_id)

        due = await self._context.compactor.fold_if_due(
            self.start.place,
            self.view,
            Pressed(
                fixed_tokens=setting.tokens,
                rendered=told,
                attempts=tries,
                is_requested=asked,
                build_request=request,
                can_afford=self._can_afford,
                progress=self._preparation,
                current_label=self._current_label,
            ),
        )
        self.view = due.view
        self._prompt.set_view(due)
        return await self._build_prompt_input(setting, due.view, told, folded=due.is_folded)

    def _current_label(self) -> Label:
        """Of all that its requests held so far."""
        return self._trust.label if self._trust is not None else UNKNOWN

    async def _build_prompt_input(self, setting: Setting, seen: View, told: Told, *, folded: bool) -> Brief:
        means, mine = self._context, self._prompt
        card, label = await means.prompt_context.card(self.start.place, setting, folded=folded)
        if self._trust is not None:
            self._trust.add(label)
        return Brief(
            persona=setting.persona,
            skills=await means.skill_catalogue(),
            binding=setting.binding,
            card=card,
            history=await means.history.load_exchanges(seen, seeing=mine.shows_past_images),
            input_text=told.text,
            images=await means.media.load_images(told.media),
            aside="\n".join(filter(None, [mine.reachable_places, mine.recalled.text])) if told.text else "",
            now=mine.directives if told.text else "",
            tool_surface=means.surface,
            has_late_tools=means.has_late_tools,
            conversation=self._conversation,
        )

    def _tool_context(self, setting: Setting) -> Whereabouts:
        """Where the turn uses its tools."""
        return Whereabouts(
            turn=self.start.turn,
            agent=self._context.agent_id,
            at=self.start.place,
            visibility=setting.visibility,
            autonomous=self.start.autonomous,
            was_user_written=partial(wrote, self._context.store, self._context.access_policy, self._conversation),
        )

    async def _take_turn(self, setting: Setting, brief: Brief, where: Whereabouts) -> Outcome:
        means, hands = self._context, Exchanged(self._context.tools_for(where))

        async def news(room: int) -> str:
            """What has arrived meanwhile. What comes to the inner conversation is for its next digest."""
            nonlocal where
            if self.start.is_inner or not self._handle.take_news():
                return ""
            heard, asking = await self._unread_input.render_news(self._budget_tokens(setting), room)
            if asking:  # then it is theirs, whatever began it
                self._is_addressed = True
                self.start = replace(self.start, autonomous=False)
                where = replace(where, autonomous=False)
            now = self._with_requesters(replace(where, requesters=(*where.requesters, *asking)))
            if now != where:  # whoever speaks in its middle asks, too
                where = now
                hands.tools = means.tools_for(where)
            return heard

        async def shorten(times: int) -> Brief | None:
            """The same with less of what was before."""
            return await self._fold_and_build(setting, self._unread_input.rendered, times)

        return await take_turn(
            brief,
            means.model,
            hands,
            key=means.agent_id,
            max_tool_rounds=means.max_tool_rounds,
            glimpse=self.on_text,
            thought=self.on_thinking,
            news=news,
            wait=self._wait_for_budget,
            afford=self._can_afford,
            progress=self.progress,
            evidence=means.evidence.for_turn(
                where.turn,
                self._conversation,
                means.optimization(),
                means.compactor.usable_tokens(),
                means.on_truncated,
            ),
            shorten=shorten,
            spoken_to=lambda: self._is_addressed,
            fits=Fits(scale=self.view.scale if self.view is not None else 1.0, was_refused=self._prompt.was_too_long),
        )

    def _can_afford(self, request: Request) -> bool:
        means, begun = self._context, self.start
        if begun.autonomous and not means.can_afford(means.agent_id, request):
            return False
        if means.limits is not None:
            cost_usd = means.ceiling_usd(request)
            self.limit_hit = means.limits.reserve(
                begun.place, means.agent_id, self._find_payers(), cost_usd, self._spent_usd()
            )
        return self.limit_hit is None

    async def _wait_for_budget(self, request: Request) -> None:
        """Until it is known whether there is money for it."""
        means = self._context
        if means.limits is not None:
            cost_usd = means.ceiling_usd(request)
            await means.limits.wait_for_budget(
                self.start.place, means.agent_id, self._find_payers(), cost_usd, self._spent_usd()
            )

    def _spent_usd(self) -> float:
        """What it has cost so far."""
        accounts = (*self._preparation.current.accounts, *self.progress.current.accounts)
        costs = (ASSUMED.cost_usd(one.usage) if one.cost_usd is None else one.cost_usd for one in accounts)
        return sum(cost or 0.0 for cost in costs)

    def _find_payers(self) -> list[Sender]:
        """Whose budgets it is paid from: who said to the agent what it was told, and who set its reminders."""
        said = [one.message.sender for one in self.start.messages if addressed(one.message)]
        behind = [
            Sender(id=one.id, name=one.name, verified=one.verified, ranks=one.ranks, is_bot=one.is_bot)
            for one in self._handle.requesters
        ]
        return [*({one.id: one for one in [*said, *behind]}.values()), *self._unread_input.reminder_setters.values()]
