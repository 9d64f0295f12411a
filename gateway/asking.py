"""One turn while it runs: what it is told, what the model makes of it, and what is left of it where it is cut off."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_

from agent.asked import SizeHints, build_first_request
from agent.brief import PromptInput
from agent.cache.prices import ASSUMED_PRICE
from agent.models.base import ModelRequest, PromptTooLong, RequestRefused
from agent.outcome import TurnOutcome, TurnProgress
from agent.prompts import load_prompt
from agent.turn import take_turn
from gateway.askers import InheritedRequesters, deduplicate_requesters, find_inherited_requesters, was_written_by_member
from gateway.briefing import PromptContext
from gateway.events import Address, Sender
from gateway.fitting import RenderedInput
from gateway.folds import FoldResult
from gateway.fresh import UnreadInput
from gateway.hands import Requester, ToolContext, TurnTrust
from gateway.hearing import is_addressed
from gateway.labels import UNKNOWN_LABEL, TrustLabel
from gateway.lane import TurnHandle
from gateway.limits.words import LimitHit
from gateway.means import AgentContext, ReplaceableTools
from gateway.past import HistoryView
from gateway.pressure import CompactionInput
from gateway.recalled import RecallResult
from gateway.standing import AccessPolicy
from gateway.tools.gate import current_role
from gateway.turn import ConsumedInput, TurnBasis, TurnStart

logger = logging.getLogger("reverie.turns")

MIN_FOLD_TOKENS = 300
"""Tokens of a view: what would stand in for less takes as much."""
MAX_FOLDS = 2
"""Tries to make a conversation fit after the provider says that it does not."""


BLOCKED_REASON = "whoever asked for it is blocked"


def are_blocked(who: AccessPolicy, at: Address, askers: Sequence[Requester]) -> bool:
    """Whether somebody asked there, and everybody who did is blocked by now. Pure."""
    return bool(askers) and all(current_role(who, at, one) == "blocked" for one in askers)


@dataclass(slots=True, kw_only=True)
class _TurnPrompt:
    """What the turn's requests are made of, beside what is new."""

    directives: str = ""
    reachable_places: str = ""
    """Where it may write to besides."""
    recalled: RecallResult = field(default_factory=RecallResult)
    shows_past_images: bool = False
    """Images of earlier turns are shown."""
    was_too_long: bool = False
    """The provider has said that it was too long."""
    basis: TurnBasis = field(default_factory=TurnBasis)

    def set_view(self, due: FoldResult) -> None:
        """The view is this from here on."""
        weighed = None if due.is_folded else due.weighed
        self.basis = replace(self.basis, view=due.view.digest, weighed=weighed, recalled=self.recalled.names)


class TurnRun:
    """One turn. What it was told so far can be read at any time."""

    def __init__(self, means: AgentContext, begun: TurnStart, lane: TurnHandle) -> None:
        self.start = begun
        self.on_text: Callable[[str], None] | None = None  # as `take_turn` has both
        self.on_thinking: Callable[[str], None] = lambda _: None
        self.limit_hit: LimitHit | None = None
        """The budget that it would go beyond. None: none so far."""
        self.progress = TurnProgress()
        self.view: HistoryView | None = None
        """What is in view. None: not read yet."""
        self._context = means
        self._conversation = begun.place.conversation
        self._handle = lane
        self._unread_input = UnreadInput(means, begun)
        self._prompt = _TurnPrompt()
        self._preparation = TurnProgress()
        """What making room for it has cost."""
        self._inherited = InheritedRequesters()
        self._is_addressed = False
        """Somebody has said something to the agent since the turn began."""
        self._trust: TurnTrust | None = None
        """None: nothing was read yet."""

    def with_preparation_cost(self, outcome: TurnOutcome) -> TurnOutcome:
        """The same with what making room for it has cost."""
        room = self._preparation.current
        return replace(
            outcome,
            usage=room.usage + outcome.usage,
            requests=room.requests + outcome.requests,
            accounts=(*room.accounts, *outcome.accounts),
        )

    def consumed_input(self, outcome: TurnOutcome) -> ConsumedInput:
        """What it has dealt with, if it ended like this."""
        label = self._trust.label if self._trust is not None else None
        return self._unread_input.consumed_input(outcome, replace(self._prompt.basis, label=label))

    async def run(self) -> TurnOutcome:
        """Ask the model until the turn has ended. May be cancelled at any time."""
        means, begun, fresh = self._context, self.start, self._unread_input
        seen = await means.history.take(self._conversation) if self.view is None else self.view
        self.view = seen
        setting = await means.prompt_context.build(begun.place, begun.unread, seen.turns)
        await fresh.load()
        where = self._tool_context(setting)
        self._inherited = await find_inherited_requesters(
            means.store, means.access_policy, seen.turns, continuing=begun.continuing
        )
        self._trust = where.trust
        self._trust.add(seen.label | setting.label)
        self._prompt = await self._build_turn_prompt(seen, where, setting.binding.private)
        outcome, tries = TurnOutcome(outcome="failed"), 0
        seeing = news = means.model.takes_images  # what was shown before, and what is new: that is left out first
        while tries <= MAX_FOLDS:
            unread, told = await fresh.render_fitting(self._budget_tokens(setting) >> tries)
            told = told if news else replace(told, media=())
            self._prompt.shows_past_images, self._prompt.was_too_long = seeing, tries > 0
            brief = await self._fold_and_build(setting, told, tries)
            fresh.mark_read(unread, told)
            whose = self._with_requesters(where)
            if self.is_blocked():
                return TurnOutcome(outcome="yielded", reason=BLOCKED_REASON, yielded=True)
            try:
                return await self._take_turn(setting, brief, whose)
            except PromptTooLong as error:
                self._preparation.record_lost(error.accounts)
                outcome = TurnOutcome(outcome="failed", reason=error.reason, cause=error.cause)
                tries += 1
            except RequestRefused as error:  # an image that looks whole and is not must not end all talk there
                logger.warning("%s: asked again without images: %s", self._conversation, error.reason)
                self._preparation.record_lost(error.accounts)
                outcome = TurnOutcome(outcome="failed", reason=error.reason, cause=error.cause)
                seeing, news = seeing and bool(told.media), False
        return outcome

    def _with_requesters(self, where: ToolContext) -> ToolContext:
        """The same with those whose idea it may be what the turn does."""
        fresh, taken = self._unread_input, self._inherited
        reminded = tuple(sorted({*taken.reminder_roles, *fresh.reminder_roles()}))
        where.trust.add(reduce(or_, map(TrustLabel, reminded), fresh.label))
        now = replace(
            where,
            requesters=deduplicate_requesters([*taken.requesters, *where.requesters, *fresh.requesters()]),
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
        if seen.tokens < MIN_FOLD_TOKENS:
            return f"What I see of it is small already: about {seen.tokens} tokens."
        setting = await means.prompt_context.build(self.start.place, self.start.unread, seen.turns)
        self._trust = TurnTrust()
        self._trust.add(seen.label | setting.label)
        await self._fold_and_build(setting, RenderedInput(), 0, asked=True)
        now = self.view
        if now is seen:
            return "There is nothing that could be folded."
        left = f"{len(seen.turns) - len(now.turns)} of {len(seen.turns)} turns have left the view"
        return f"{left}; it takes about {now.tokens} tokens, and took {seen.tokens}."

    def _budget_tokens(self, setting: PromptContext) -> int:
        """Tokens for the conversation and what is new."""
        said = self._context.optimization().folds
        return max(256, int(self._context.compactor.usable_tokens() * said.fold_at_pct) - setting.tokens)

    async def _build_turn_prompt(self, seen: HistoryView, where: ToolContext, shown: str) -> "_TurnPrompt":
        """What holds for this turn only."""
        means, begun = self._context, self.start
        now = await means.directives(self._conversation, begun.autonomous, begun.continuing)
        now = "\n".join(filter(None, [now, await means.describe_tools(self._conversation, self._unread_input.roles())]))
        nearly = means.compactor.is_full(seen, means.optimization().folds.nudge_at_pct)
        nudged = nearly and means.model.takes_tools and not any(turn.nudged for turn in seen.turns_since_fold())
        now = "\n".join(filter(None, [now, load_prompt("write_down") if nudged else ""]))
        recalled = await self._unread_input.recall(seen, where, shown)
        reach = await means.reachable_places(self._conversation)
        return _TurnPrompt(directives=now, reachable_places=reach, recalled=recalled, basis=TurnBasis(nudged=nudged))

    async def _fold_and_build(
        self, setting: PromptContext, told: RenderedInput, tries: int, *, asked: bool = False
    ) -> PromptInput:
        """Make what is in view smaller where that is due, and write out what the turn is told."""
        assert self.view is not None

        async def request(seen: HistoryView) -> ModelRequest:
            means = self._context
            brief = await self._build_prompt_input(setting, seen, RenderedInput(), folded=False)
            return build_first_request(
                brief, means.model, means.tools_for(self._tool_context(setting)).specs, means.agent_id
            )

        due = await self._context.compactor.fold_if_due(
            self.start.place,
            self.view,
            CompactionInput(
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

    def _current_label(self) -> TrustLabel:
        """Of all that its requests held so far."""
        return self._trust.label if self._trust is not None else UNKNOWN_LABEL

    async def _build_prompt_input(
        self, setting: PromptContext, seen: HistoryView, told: RenderedInput, *, folded: bool
    ) -> PromptInput:
        means, mine = self._context, self._prompt
        card, label = await means.prompt_context.card(self.start.place, setting, folded=folded)
        if self._trust is not None:
            self._trust.add(label)
        return PromptInput(
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

    def _tool_context(self, setting: PromptContext) -> ToolContext:
        """Where the turn uses its tools."""
        return ToolContext(
            turn=self.start.turn,
            agent=self._context.agent_id,
            at=self.start.place,
            visibility=setting.visibility,
            autonomous=self.start.autonomous,
            was_user_written=partial(
                was_written_by_member, self._context.store, self._context.access_policy, self._conversation
            ),
        )

    async def _take_turn(self, setting: PromptContext, brief: PromptInput, where: ToolContext) -> TurnOutcome:
        means, hands = self._context, ReplaceableTools(self._context.tools_for(where))

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

        async def shorten(times: int) -> PromptInput | None:
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
            fits=SizeHints(
                scale=self.view.scale if self.view is not None else 1.0, was_refused=self._prompt.was_too_long
            ),
        )

    def _can_afford(self, request: ModelRequest) -> bool:
        means, begun = self._context, self.start
        if begun.autonomous and not means.can_afford(means.agent_id, request):
            return False
        if means.limits is not None:
            cost_usd = means.ceiling_usd(request)
            self.limit_hit = means.limits.reserve(
                begun.place, means.agent_id, self._find_payers(), cost_usd, self._spent_usd()
            )
        return self.limit_hit is None

    async def _wait_for_budget(self, request: ModelRequest) -> None:
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
        costs = (ASSUMED_PRICE.cost_usd(one.usage) if one.cost_usd is None else one.cost_usd for one in accounts)
        return sum(cost or 0.0 for cost in costs)

    def _find_payers(self) -> list[Sender]:
        """Whose budgets it is paid from: who said to the agent what it was told, and who set its reminders."""
        said = [one.message.sender for one in self.start.messages if is_addressed(one.message)]
        behind = [
            Sender(id=one.id, name=one.name, verified=one.verified, ranks=one.ranks, is_bot=one.is_bot)
            for one in self._handle.requesters
        ]
        return [*({one.id: one for one in [*said, *behind]}.values()), *self._unread_input.reminder_setters.values()]
