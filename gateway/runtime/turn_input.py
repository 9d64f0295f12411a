"""One turn while it runs: its input, its requests to the model, and what remains of it when it is cut off.

- `AgentContext`: dependencies of the turns of one agent.
- `UnreadInput`: new input of one turn, and which entries it has consumed.
- `TurnRun`: builds the prompt, makes it fit, and runs the model.
- `TurnDirectives`: instructions for one turn, with the operator's authority.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_

from agent import view
from agent.brief import NOTHING_NEW, PromptInput, TurnOutcome, TurnProgress
from agent.cache.prices import ASSUMED_PRICE
from agent.models.base import Model, ModelRequest, PromptTooLong, RequestRefused, ToolResult
from agent.prompts import load_prompt
from agent.signals import DmnMode, DmnState
from agent.tools import ToolSurface
from agent.turn import Toolset, take_turn
from agent.turn_context import SizeHints, build_first_request
from gateway.access.limits import LimitHit, UsageLimiter
from gateway.config.models import ContextOptimizationConfig, RecallConfig
from gateway.context.compaction import CompactionInput, Compactor, FoldResult
from gateway.context.conversation import (
    ConversationReader,
    CurrentMessage,
    RenderedInput,
    RenderedMessage,
    fit_lines,
    is_addressed,
    render_lines,
)
from gateway.context.digest import format_reachable_places
from gateway.context.evidence import EvidenceStore
from gateway.context.history import HistoryStore, HistoryView
from gateway.context.prompt_context import PromptContext, PromptContextBuilder
from gateway.context.recall import AmbientRecall, RecallResult
from gateway.context.requesters import (
    InheritedRequesters,
    deduplicate_requesters,
    find_inherited_requesters,
    find_reminder_roles,
    was_written_by_member,
)
from gateway.context.turn_facts import ConsumedInput, TurnBasis, TurnStart, count_omitted
from gateway.core.clock import Clock
from gateway.core.events import Address, Alarm, ConversationId, Sender
from gateway.core.facts import ReminderSet, Seq, is_inner
from gateway.core.identity import AccessPolicy
from gateway.core.redaction import Redactor
from gateway.core.tool import Requester, ToolContext, TurnTrust
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.core.trust import ANYBODY_ROLE, TRUSTED_LABEL, UNKNOWN_LABEL, TrustLabel
from gateway.runtime.lane import TurnHandle
from gateway.store import LogEntry, Store, UnreadEntries
from gateway.stream.media import MediaStore
from gateway.stream.place_names import PlaceTitles
from gateway.tools.dispatch import current_role
from gateway.tools.platform import MessagingTools

logger = logging.getLogger("reverie.turns")

MAX_UNREAD_LINES = 50
"""Unread lines in one turn. Older lines not addressed to the agent are only counted, so that a raid of thousands costs
one bounded prompt; addressed ones wait for the next turn."""
MAX_RECALL_LINES = 10
"""Newest lines that recall uses as its query."""

MIN_FOLD_TOKENS = 300
"""Smallest view that is folded: the text that stands for less takes as much."""
MAX_FOLDS = 2
"""Tries to make a conversation fit after the provider has refused it as too long."""

BLOCKED_REASON = "whoever asked for it is blocked"


async def _no_text(*_: object) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """Dependencies of the turns of one agent."""

    store: Store
    clock: Clock
    model: Model
    agent_id: str
    prompt_context: PromptContextBuilder
    reader: ConversationReader
    media: MediaStore
    history: HistoryStore
    compactor: Compactor
    evidence: EvidenceStore
    ambient_recall: AmbientRecall
    optimization: Callable[[], ContextOptimizationConfig]
    """Return the operator's present settings of the context."""
    recall_config: RecallConfig
    tools_for: Callable[[ToolContext], Toolset]
    """Return the tools of a turn: called when it begins, and again when a person speaks during it."""
    directives: Callable[[ConversationId, bool, bool], Awaitable[str]]
    """Return the instructions for a turn; usually empty."""
    reachable_places: Callable[[ConversationId], Awaitable[str]] = _no_text
    """Return the places that a turn may write to besides; usually empty. The text counts as other people's words."""
    can_afford: Callable[[str, ModelRequest], bool]
    """Return whether this agent may make this request without being asked."""
    on_truncated: Callable[[], None]
    """Called when a tool's result was too large to be shown whole."""

    access_policy: AccessPolicy
    limits: UsageLimiter | None = None
    """Budgets of people. None: there are none."""
    ceiling_usd: Callable[[ModelRequest], float] = lambda _: 0.0
    """Return the highest possible cost of a request."""
    surface: ToolSurface = "native"
    """Form in which tools are described to the model."""
    has_late_tools: bool = False
    """Tools may come and go while the gateway runs."""
    skill_catalogue: Callable[[], Awaitable[str]] = _no_text
    """Return the catalogue of skills."""
    describe_tools: Callable[[ConversationId, Sequence[str]], Awaitable[str]] = _no_text
    """Return the present state of the tools for people with these roles; empty: nothing to report."""
    redactor: Redactor
    """Applied to the replies of a turn."""
    max_tool_rounds: int = 8
    """Answers with tool calls in one turn."""

    @property
    def is_small_model(self) -> bool:
        """True for a very small model, which needs plain prompts."""
        return self.model.family == "local"


class TurnRun:
    """Running turn. What it has consumed so far can be read at any time."""

    def __init__(self, context: AgentContext, start: TurnStart, handle: TurnHandle) -> None:
        self.start = start
        self.on_text: Callable[[str], None] | None = None  # both as in `take_turn`
        self.on_thinking: Callable[[str], None] = lambda _: None
        self.limit_hit: LimitHit | None = None
        """The budget that the turn would exceed. None: none so far."""
        self.progress = TurnProgress()
        self.view: HistoryView | None = None
        """The view of earlier turns. None: not read yet."""
        self._context = context
        self._conversation = start.place.conversation
        self._handle = handle
        self._unread_input = UnreadInput(context, start)
        self._prompt = _TurnPrompt()
        self._preparation = TurnProgress()
        """Costs of making room for the turn."""
        self._inherited = InheritedRequesters()
        self._is_addressed = False
        """A person has addressed the agent since the turn began."""
        self._trust: TurnTrust | None = None
        """None: nothing was read yet."""

    def with_preparation_cost(self, outcome: TurnOutcome) -> TurnOutcome:
        """Return the outcome with the costs of making room for the turn."""
        room = self._preparation.current
        return replace(
            outcome,
            usage=room.usage + outcome.usage,
            requests=room.requests + outcome.requests,
            accounts=(*room.accounts, *outcome.accounts),
        )

    def consumed_input(self, outcome: TurnOutcome) -> ConsumedInput:
        """Return what the turn has consumed, if it ended with this outcome."""
        label = self._trust.label if self._trust is not None else None
        return self._unread_input.consumed_input(outcome, replace(self._prompt.basis, label=label))

    async def run(self) -> TurnOutcome:
        """Ask the model until the turn has ended. May be cancelled at any time."""
        context, start, unread_input = self._context, self.start, self._unread_input
        history = await context.history.take(self._conversation) if self.view is None else self.view
        self.view = history
        prompt_context = await context.prompt_context.build(start.place, start.unread, history.turns)
        await unread_input.load()
        tool_context = self._tool_context(prompt_context)
        self._inherited = await find_inherited_requesters(
            context.store, context.access_policy, history.turns, continuing=start.continuing
        )
        self._trust = tool_context.trust
        self._trust.add(history.label | prompt_context.label)
        self._prompt = await self._build_turn_prompt(history, tool_context, prompt_context.binding.private)
        outcome, tries = TurnOutcome(outcome="failed"), 0
        # Images of earlier turns, and of the new messages; these are left out first.
        with_past_images = with_images = context.model.takes_images
        while tries <= MAX_FOLDS:
            unread, rendered = await unread_input.render_fitting(self._budget_tokens(prompt_context) >> tries)
            rendered = rendered if with_images else replace(rendered, media=())
            self._prompt.shows_past_images, self._prompt.was_too_long = with_past_images, tries > 0
            prompt_input = await self._fold_and_build(prompt_context, rendered, tries)
            unread_input.mark_read(unread, rendered)
            with_requesters = self._with_requesters(tool_context)
            if self.is_blocked():
                return TurnOutcome(outcome="yielded", reason=BLOCKED_REASON, yielded=True)
            try:
                return await self._take_turn(prompt_context, prompt_input, with_requesters)
            except PromptTooLong as error:
                self._preparation.record_lost(error.accounts)
                outcome = TurnOutcome(outcome="failed", reason=error.reason, cause=error.cause)
                tries += 1
            except RequestRefused as error:  # an image that looks whole and is not must not end all conversation there
                logger.warning("%s: asked again without images: %s", self._conversation, error.reason)
                self._preparation.record_lost(error.accounts)
                outcome = TurnOutcome(outcome="failed", reason=error.reason, cause=error.cause)
                with_past_images, with_images = with_past_images and bool(rendered.media), False
        return outcome

    def _with_requesters(self, tool_context: ToolContext) -> ToolContext:
        """Return the context with all people who may have caused what the turn does."""
        unread_input, inherited = self._unread_input, self._inherited
        reminder_roles = tuple(sorted({*inherited.reminder_roles, *unread_input.reminder_roles()}))
        tool_context.trust.add(reduce(or_, map(TrustLabel, reminder_roles), unread_input.label))
        updated = replace(
            tool_context,
            requesters=deduplicate_requesters(
                [*inherited.requesters, *tool_context.requesters, *unread_input.requesters()]
            ),
            overheard_roles=tuple(sorted({*inherited.overheard_roles, *unread_input.overheard_roles()})),
            reminder_roles=reminder_roles,
        )
        self._handle.requesters = updated.requesters
        return updated

    def is_blocked(self) -> bool:
        """Return whether all requesters are blocked by now: then nothing is posted."""
        return are_blocked(self._context.access_policy, self.start.place, self._handle.requesters)

    async def compact(self) -> str:
        """Fold the view on request. Return the result in words. Raises StoreError."""
        context = self._context
        history = self.view = await context.history.take(self._conversation)
        if history.tokens < MIN_FOLD_TOKENS:
            return f"What I see of it is small already: about {history.tokens} tokens."
        prompt_context = await context.prompt_context.build(self.start.place, self.start.unread, history.turns)
        self._trust = TurnTrust()
        self._trust.add(history.label | prompt_context.label)
        await self._fold_and_build(prompt_context, RenderedInput(), 0, is_requested=True)
        folded = self.view
        if folded is history:
            return "There is nothing that could be folded."
        left = f"{len(history.turns) - len(folded.turns)} of {len(history.turns)} turns have left the view"
        return f"{left}; it takes about {folded.tokens} tokens, and took {history.tokens}."

    def _budget_tokens(self, prompt_context: PromptContext) -> int:
        """Return how many tokens the conversation and the new input may take."""
        folds = self._context.optimization().folds
        return max(256, int(self._context.compactor.usable_tokens() * folds.fold_at_pct) - prompt_context.tokens)

    async def _build_turn_prompt(
        self, history: HistoryView, tool_context: ToolContext, memory_in_prompt: str
    ) -> "_TurnPrompt":
        """Return the parts of the prompt that hold for this turn only."""
        context, start = self._context, self.start
        directives = await context.directives(self._conversation, start.autonomous, start.continuing)
        directives = "\n".join(
            filter(None, [directives, await context.describe_tools(self._conversation, self._unread_input.roles())])
        )
        is_nearly_full = context.compactor.is_full(history, context.optimization().folds.nudge_at_pct)
        nudged = (
            is_nearly_full and context.model.takes_tools and not any(turn.nudged for turn in history.turns_since_fold())
        )
        directives = "\n".join(filter(None, [directives, load_prompt("write_down") if nudged else ""]))
        recalled = await self._unread_input.recall(history, tool_context, memory_in_prompt)
        reachable = await context.reachable_places(self._conversation)
        return _TurnPrompt(
            directives=directives, reachable_places=reachable, recalled=recalled, basis=TurnBasis(nudged=nudged)
        )

    async def _fold_and_build(
        self, prompt_context: PromptContext, rendered: RenderedInput, tries: int, *, is_requested: bool = False
    ) -> PromptInput:
        """Fold the view where that is due, and build the turn's prompt."""
        assert self.view is not None

        async def request(history: HistoryView) -> ModelRequest:
            context = self._context
            prompt_input = await self._build_prompt_input(prompt_context, history, RenderedInput(), folded=False)
            return build_first_request(
                prompt_input,
                context.model,
                context.tools_for(self._tool_context(prompt_context)).specs,
                context.agent_id,
            )

        result = await self._context.compactor.fold_if_due(
            self.start.place,
            self.view,
            CompactionInput(
                fixed_tokens=prompt_context.tokens,
                rendered=rendered,
                attempts=tries,
                is_requested=is_requested,
                build_request=request,
                can_afford=self._can_afford,
                progress=self._preparation,
                current_label=self._current_label,
            ),
        )
        self.view = result.view
        self._prompt.set_view(result)
        return await self._build_prompt_input(prompt_context, result.view, rendered, folded=result.is_folded)

    def _current_label(self) -> TrustLabel:
        """Return the trust label of all that the requests held so far."""
        return self._trust.label if self._trust is not None else UNKNOWN_LABEL

    async def _build_prompt_input(
        self, prompt_context: PromptContext, history: HistoryView, rendered: RenderedInput, *, folded: bool
    ) -> PromptInput:
        context, prompt = self._context, self._prompt
        card, label = await context.prompt_context.card(self.start.place, prompt_context, folded=folded)
        if self._trust is not None:
            self._trust.add(label)
        return PromptInput(
            persona=prompt_context.persona,
            skills=await context.skill_catalogue(),
            binding=prompt_context.binding,
            card=card,
            history=await context.history.load_exchanges(history, seeing=prompt.shows_past_images),
            input_text=rendered.text,
            images=await context.media.load_images(rendered.media),
            aside="\n".join(filter(None, [prompt.reachable_places, prompt.recalled.text])) if rendered.text else "",
            now=prompt.directives if rendered.text else "",
            tool_surface=context.surface,
            has_late_tools=context.has_late_tools,
            conversation=self._conversation,
        )

    def _tool_context(self, prompt_context: PromptContext) -> ToolContext:
        """Return the context in which the turn uses its tools."""
        return ToolContext(
            turn=self.start.turn,
            agent=self._context.agent_id,
            at=self.start.place,
            visibility=prompt_context.visibility,
            autonomous=self.start.autonomous,
            was_user_written=partial(
                was_written_by_member, self._context.store, self._context.access_policy, self._conversation
            ),
        )

    async def _take_turn(
        self, prompt_context: PromptContext, prompt_input: PromptInput, tool_context: ToolContext
    ) -> TurnOutcome:
        context, tools = self._context, ReplaceableTools(self._context.tools_for(tool_context))

        async def news(room: int) -> str:
            """Return what has arrived meanwhile. News of the inner conversation wait for its next digest."""
            nonlocal tool_context
            if self.start.is_inner or not self._handle.take_news():
                return ""
            text, requesters = await self._unread_input.render_news(self._budget_tokens(prompt_context), room)
            if requesters:  # the turn is theirs now, whatever began it
                self._is_addressed = True
                self.start = replace(self.start, autonomous=False)
                tool_context = replace(tool_context, autonomous=False)
            updated = self._with_requesters(replace(tool_context, requesters=(*tool_context.requesters, *requesters)))
            if updated != tool_context:  # a person who speaks during the turn is a requester, too
                tool_context = updated
                tools.tools = context.tools_for(tool_context)
            return text

        async def shorten(times: int) -> PromptInput | None:
            """Return the prompt with less of the earlier turns."""
            return await self._fold_and_build(prompt_context, self._unread_input.rendered, times)

        return await take_turn(
            prompt_input,
            context.model,
            tools,
            key=context.agent_id,
            max_tool_rounds=context.max_tool_rounds,
            glimpse=self.on_text,
            thought=self.on_thinking,
            news=news,
            wait=self._wait_for_budget,
            afford=self._can_afford,
            progress=self.progress,
            evidence=context.evidence.for_turn(
                tool_context.turn,
                self._conversation,
                context.optimization(),
                context.compactor.usable_tokens(),
                context.on_truncated,
            ),
            shorten=shorten,
            spoken_to=lambda: self._is_addressed,
            fits=SizeHints(
                scale=self.view.scale if self.view is not None else 1.0, was_refused=self._prompt.was_too_long
            ),
        )

    def _can_afford(self, request: ModelRequest) -> bool:
        context, start = self._context, self.start
        if start.autonomous and not context.can_afford(context.agent_id, request):
            return False
        if context.limits is not None:
            cost_usd = context.ceiling_usd(request)
            self.limit_hit = context.limits.reserve(
                start.place, context.agent_id, self._find_payers(), cost_usd, self._spent_usd()
            )
        return self.limit_hit is None

    async def _wait_for_budget(self, request: ModelRequest) -> None:
        """Wait until it is known whether the budget covers the request."""
        context = self._context
        if context.limits is not None:
            cost_usd = context.ceiling_usd(request)
            await context.limits.wait_for_budget(
                self.start.place, context.agent_id, self._find_payers(), cost_usd, self._spent_usd()
            )

    def _spent_usd(self) -> float:
        """Return the costs of the turn so far."""
        accounts = (*self._preparation.current.accounts, *self.progress.current.accounts)
        costs = (ASSUMED_PRICE.cost_usd(one.usage) if one.cost_usd is None else one.cost_usd for one in accounts)
        return sum(cost or 0.0 for cost in costs)

    def _find_payers(self) -> list[Sender]:
        """Return the people whose budgets pay: authors of addressed messages, and setters of reminders."""
        addressed = [one.message.sender for one in self.start.messages if is_addressed(one.message)]
        requesters = [
            Sender(id=one.id, name=one.name, verified=one.verified, ranks=one.ranks, is_bot=one.is_bot)
            for one in self._handle.requesters
        ]
        return [
            *({one.id: one for one in [*addressed, *requesters]}.values()),
            *self._unread_input.reminder_setters.values(),
        ]


@dataclass(slots=True, kw_only=True)
class _TurnPrompt:
    """Parts of the turn's requests, beside the new input."""

    directives: str = ""
    reachable_places: str = ""
    """Places that the turn may write to besides."""
    recalled: RecallResult = field(default_factory=RecallResult)
    shows_past_images: bool = False
    """Images of earlier turns are shown."""
    was_too_long: bool = False
    """The provider has refused a request as too long."""
    basis: TurnBasis = field(default_factory=TurnBasis)

    def set_view(self, fold: FoldResult) -> None:
        """Record the view that is used from here on."""
        weighed = None if fold.is_folded else fold.weighed
        self.basis = replace(self.basis, view=fold.view.digest, weighed=weighed, recalled=self.recalled.names)


class UnreadInput:
    """New input of one turn. Its state so far can be read at any time."""

    def __init__(self, context: AgentContext, start: TurnStart) -> None:
        self.rendered = RenderedInput()
        self.lines: Sequence[RenderedMessage] = ()
        """New lines with their present texts. Empty before `load`."""
        self._context = context
        self._start = start
        self._conversation = start.place.conversation
        self._omitted = 0
        self._upto = Seq(0)
        self._messages = tuple(start.messages)
        self._overheard_roles: set[str] = set()
        self.label: TrustLabel = TRUSTED_LABEL
        """Trust label of everyone whose words it holds so far."""
        self.reminder_setters = dict[Seq, Sender]()
        """People who set each reminder: they bear its costs."""
        self._reminder_roles = dict[Seq, str]()
        """Role of each reminder, see `gateway.context.requesters.find_reminder_roles`."""

    async def load(self) -> None:
        """Render what is new."""
        self.lines = await self._context.reader.render(self._start.messages, sees=self._context.model.takes_images)
        await self._load_reminders(self._start.unread.messages)

    async def _load_reminders(self, entries: Sequence[LogEntry]) -> None:
        """Look up who set the reminders among these entries."""
        store = self._context.store
        self._reminder_roles |= await find_reminder_roles(store, entries)
        for one in entries:
            if isinstance(one.fact, Alarm):
                entry = await store.entry_by_key(f"reminded:{one.fact.reminder}")
                fact = entry.fact if entry is not None else None
                if isinstance(fact, ReminderSet) and fact.by:
                    self.reminder_setters[one.seq] = Sender(id=fact.by, name=fact.asked_by, verified=True)

    def _charge_reminder_setters(self, rendered: RenderedInput) -> RenderedInput:
        """Return the input with the setters of reminders as the senders, who bear the costs."""
        pairs = zip(rendered.covers, rendered.senders, strict=False)
        payers = [self.reminder_setters[seq].id if seq in self.reminder_setters else sender for seq, sender in pairs]
        return replace(rendered, senders=tuple(payers))

    def consumed_input(self, outcome: TurnOutcome, basis: TurnBasis) -> ConsumedInput:
        """Return what the turn has consumed, if it ended with this outcome."""
        digest, rendered, upto = self._start.digest, self.rendered, self._upto
        if digest is not None and outcome.outcome == "interrupted":  # what was pending everywhere still is
            return ConsumedInput(rendered=replace(rendered, covers=(), senders=()), omitted=0, upto=Seq(0), basis=basis)
        looked = digest.looked if digest is not None else ()
        return ConsumedInput(
            rendered=rendered, omitted=self._omitted, upto=upto, messages=self._messages, looked=looked, basis=basis
        )

    async def render_fitting(self, budget: int) -> tuple[UnreadEntries, RenderedInput]:
        """Return the new input that fits, and the unread entries that it consumes."""
        digest, unread = self._start.digest, self._start.unread
        if digest is not None:
            return unread, RenderedInput(text=digest.text, covers=digest.covers, senders=digest.senders)
        rendered = fit_lines(self.lines, omitted=unread.omitted, budget=budget, plain=self._context.is_small_model)
        if rendered.has_more:
            unread, rendered = await self._keep_addressed(rendered.covers, unread, self.lines)
        return unread, rendered if rendered.text else replace(rendered, text=NOTHING_NEW)

    async def recall(self, history: HistoryView, tool_context: ToolContext, memory_in_prompt: str) -> RecallResult:
        """Return recalled items. `memory_in_prompt`: part of MEMORY.md that the prompt holds anyway."""
        context, tokens = self._context, self._context.recall_config.ambient_tokens
        lines = [one.line.text for one in self.lines if not one.line.event][-MAX_RECALL_LINES:]
        if context.is_small_model or not tokens or not lines:
            return RecallResult()
        recalled = await context.ambient_recall(
            tool_context,
            lines,
            known_names={name for turn in history.turns for name in turn.recalled},
            since=history.turns[0].seq if history.turns else None,
            tokens=tokens,
            is_addressed=any(one.line.is_addressed for one in self.lines),
            memory_in_prompt=memory_in_prompt,
        )
        if recalled.is_foreign:
            tool_context.trust.add(TrustLabel(ANYBODY_ROLE, "recall"))
        return recalled

    def mark_read(self, unread: UnreadEntries, rendered: RenderedInput) -> None:
        """Record that the model may have read this from here on."""
        digest = self._start.digest
        self.rendered = self._charge_reminder_setters(rendered)
        self._overheard_roles = (
            {digest.label.role} if digest is not None else _find_overheard_roles(self.lines, rendered)
        )
        self.label |= digest.label if digest is not None else _label_of_rendered(self.lines, rendered)
        self._upto = digest.upto if digest is not None else unread.upto
        self._omitted = digest.omitted if digest is not None else count_omitted(unread, rendered)

    def roles(self) -> list[str]:
        """Return the roles of those who addressed the agent."""
        return [one.line.role for one in self.lines if one.line.is_addressed and not one.line.event]

    def requesters(self) -> tuple[Requester, ...]:
        """Return the senders of addressed messages that the turn began with, oldest first."""
        return _find_requesters(self._messages, self.lines, self.rendered)

    def overheard_roles(self) -> tuple[str, ...]:
        """Return the roles of the authors of rendered messages that were not addressed to the agent."""
        return tuple(sorted(self._overheard_roles))

    def reminder_roles(self) -> tuple[str, ...]:
        """Return the least role of the setters of each rendered reminder."""
        return tuple(
            sorted({role for seq, role in self._reminder_roles.items() if role and seq in self.rendered.covers})
        )

    async def render_news(self, budget: int, room: int) -> tuple[str, tuple[Requester, ...]]:
        """Return what has arrived meanwhile, rendered, and who asks by that.

        At most `room` tokens, and a share of `budget`: what does not fit stays unread, for another turn.
        """
        context = self._context
        unread = await context.store.unread_entries(self._conversation, most=MAX_UNREAD_LINES, after=self._upto)
        if not unread.messages:
            return "", ()
        current = await context.reader.read_current(unread)
        await self._load_reminders(unread.messages)
        lines = await context.reader.render(current, sees=False)  # images cannot stand in a tool's results
        budget = min(budget, int(room / view.UNREAD_SHARE))
        rendered = fit_lines(lines, omitted=unread.omitted, budget=budget, plain=context.is_small_model)
        if rendered.has_more:
            unread, rendered = await self._keep_addressed(rendered.covers, unread, lines, after=self._upto)
        if view.estimate_tokens(rendered.text) > room:
            return "", ()
        rendered = self._charge_reminder_setters(rendered)
        self.rendered = replace(
            self.rendered,
            covers=(*self.rendered.covers, *rendered.covers),
            senders=(*self.rendered.senders, *rendered.senders),
        )
        self._omitted += count_omitted(unread, rendered)
        self._overheard_roles |= _find_overheard_roles(lines, rendered)
        self.label |= _label_of_rendered(lines, rendered)
        self._upto = unread.upto
        self._messages = (*self._messages, *current)
        return rendered.text, _find_requesters(current, lines, rendered)

    async def _keep_addressed(
        self, covers: Sequence[Seq], unread: UnreadEntries, lines: Sequence[RenderedMessage], *, after: int = 0
    ) -> tuple[UnreadEntries, RenderedInput]:
        """Return only these lines, all addressed to the agent; there is no room for the others, which stay unread."""
        first = [one for one in unread.messages if one.seq <= covers[-1] and is_addressed(one.fact)]
        unread = await self._context.store.unread_entries(self._conversation, most=len(first), after=after)
        rendered = [one for one in lines if one.seq in covers]
        return unread, render_lines(rendered, omitted=unread.omitted, plain=self._context.is_small_model)


class ReplaceableTools:
    """Tools of a turn that are replaced when a person speaks during it."""

    def __init__(self, tools: Toolset) -> None:
        self.tools = tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """Specifications of the present tools."""
        return self.tools.specs

    async def call(self, call: ToolCall) -> ToolResult:
        """Carry a call out with the present tools."""
        return await self.tools.call(call)


class TurnDirectives:
    """Instructions for the turns of one agent."""

    def __init__(
        self,
        *,
        state: Callable[[], DmnState],
        platform_actions: MessagingTools,
        away_note: Callable[[ConversationId], Awaitable[str]],
        titles: PlaceTitles,
    ) -> None:
        """`away_note`: return the note for a person who was away until now, in numbers; empty: none."""
        self._state = state
        self._platform_actions = platform_actions
        self._titles = titles
        self._away_note = away_note

    async def reachable_places(self, conversation: ConversationId) -> str:
        """Return the places that an inner turn may write to; empty elsewhere. The text holds other people's words."""
        if not is_inner(conversation):
            return ""
        places, titles = self._platform_actions.list_places(), self._titles
        await titles.load([at.conversation for at in places])
        return format_reachable_places(places, titles)

    async def __call__(self, conversation: ConversationId, autonomous: bool, continuing: bool) -> str:
        """Return the text for `agent.brief.PromptInput.now`.

        It has the operator's authority, so it holds nobody's words.
        """
        state = self._state()
        if not autonomous:
            resting = [load_prompt(state.mode.value)] if state.mode in (DmnMode.PAUSED, DmnMode.OFF) else []
            return "\n".join([*resting, *filter(None, [await self._away_note(conversation)])])
        quiet = [load_prompt("quiet")] if state.quiet_until is not None else []
        if is_inner(conversation):
            mode = DmnMode.WORKING if continuing else DmnMode.STORED if state.woken else state.mode
            return "\n".join([load_prompt(mode.value), *quiet])
        return "\n".join([load_prompt("working" if continuing else "own"), *quiet])


def are_blocked(access_policy: AccessPolicy, at: Address, requesters: Sequence[Requester]) -> bool:
    """Return whether a person asked there, and everyone who did is blocked by now. Pure."""
    return bool(requesters) and all(current_role(access_policy, at, one) == "blocked" for one in requesters)


def _find_requesters(
    current: Sequence[CurrentMessage], lines: Sequence[RenderedMessage], rendered: RenderedInput
) -> tuple[Requester, ...]:
    """Return the senders of the rendered messages addressed to the agent, oldest first."""
    roles = {one.seq: one.line.role for one in lines if one.line.is_addressed and one.seq in rendered.covers}
    addressed = [one for one in current if one.seq in roles and not one.notice]
    senders = [(one.message.sender, roles[one.seq]) for one in addressed]
    return deduplicate_requesters(
        [
            Requester(
                id=sender.id,
                name=sender.name,
                role=role,
                verified=sender.verified,
                ranks=sender.ranks,
                is_bot=sender.is_bot,
            )
            for sender, role in senders
        ]
    )


def _find_overheard_roles(lines: Sequence[RenderedMessage], rendered: RenderedInput) -> set[str]:
    return {one.label.role for one in lines if one.seq in rendered.covers and not one.line.is_addressed}


def _label_of_rendered(lines: Sequence[RenderedMessage], rendered: RenderedInput) -> TrustLabel:
    return reduce(or_, [one.label for one in lines if one.seq in rendered.covers], TRUSTED_LABEL)
