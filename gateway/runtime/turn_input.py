"""One turn while it runs: what it is told, what the model makes of it, and what is left of it where it is cut off.

What one turn is told as new, and what it has dealt with thereby.

What the turns of one agent are made with.

What holds for one turn only, in the operator's weight: how the agent is to go about it, and who was away.
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
from agent.tools.specs import RECALL
from agent.tools.surface import ToolSurface
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
from gateway.core.redaction import Redact, Redactor
from gateway.core.tool import Requester, ToolContext, TurnTrust
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.core.trust import ANYBODY_ROLE, TRUSTED_LABEL, UNKNOWN_LABEL, TrustLabel
from gateway.runtime.lane import TurnHandle
from gateway.store import LogEntry, Store, UnreadEntries
from gateway.stream.media import MediaStore
from gateway.stream.place_names import PlaceTitles
from gateway.tools.dispatch import current_role
from gateway.tools.platform import MessagingTools


async def _no_text(*_: object) -> str:
    return ""


async def _no_places(_conversation: ConversationId) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """Everything of it."""

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
    """What the operator says by now of what a model is told."""
    recall_config: RecallConfig
    tools_for: Callable[[ToolContext], Toolset]
    """The tools of a turn: asked when it begins, and again when somebody speaks in its middle."""
    directives: Callable[[ConversationId, bool, bool], Awaitable[str]]
    """What a turn is to keep in mind; empty mostly."""
    reachable_places: Callable[[ConversationId], Awaitable[str]] = _no_places
    """Where a turn may write to besides; empty mostly. It is told as other people's words."""
    can_afford: Callable[[str, ModelRequest], bool]
    """Whether this agent may ask for this, unasked itself."""
    on_truncated: Callable[[], None]
    """Told when a tool's result was too large to be told whole."""

    access_policy: AccessPolicy
    limits: UsageLimiter | None = None
    """What people may cause. None: there are no budgets."""
    ceiling_usd: Callable[[ModelRequest], float] = lambda _: 0.0
    """What a request may cost at most."""
    surface: ToolSurface = "native"
    """How tools are told."""
    has_late_tools: bool = False
    """Tools may come and go while the gateway runs."""
    skill_catalogue: Callable[[], Awaitable[str]] = _no_text
    """The catalogue of skills."""
    describe_tools: Callable[[ConversationId, Sequence[str]], Awaitable[str]] = _no_text
    """How they are there just now, for whoever has these roles; empty: nothing is to be said."""
    redact: Redact = field(default_factory=Redactor)
    """Given what a turn says."""
    max_tool_rounds: int = 8
    """Answers with tool calls in one turn."""

    @property
    def is_small_model(self) -> bool:
        """The model is a very small one."""
        return self.model.family == "local"


class ReplaceableTools:
    """Tools of a turn that are others once somebody speaks in its middle."""

    def __init__(self, tools: Toolset) -> None:
        self.tools = tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """As they are by now."""
        return self.tools.specs

    async def call(self, call: ToolCall) -> ToolResult:
        """The same."""
        return await self.tools.call(call)


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
        """Of each reminder: as `gateway.context.requesters.find_reminder_roles`."""

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


class TurnDirectives:
    """One agent's."""

    def __init__(
        self,
        *,
        state: Callable[[], DmnState],
        acting: MessagingTools,
        returned: Callable[[ConversationId], Awaitable[str]],
        titles: PlaceTitles,
    ) -> None:
        """`returned`: what somebody is to be told who was away until now, in numbers; empty: nothing."""
        self._state = state
        self._platform_actions = acting
        self._titles = titles
        self._away_note = returned

    async def reachable_places(self, conversation: ConversationId) -> str:
        """Where an inner turn may write to; empty elsewhere. Other people's words are in it."""
        if not is_inner(conversation):
            return ""
        places, titles = self._platform_actions.list_places(), self._titles
        await titles.load([at.conversation for at in places])
        return format_reachable_places(places, titles)

    async def __call__(self, conversation: ConversationId, autonomous: bool, continuing: bool) -> str:
        """For `agent.brief.PromptInput.now`. It has the operator's weight, so nobody's words are in it."""
        state = self._state()
        if not autonomous:
            still = [load_prompt(state.mode.value)] if state.mode in (DmnMode.PAUSED, DmnMode.OFF) else []
            return "\n".join([*still, *filter(None, [await self._away_note(conversation)])])
        quiet = [load_prompt("quiet")] if state.quiet_until is not None else []
        if is_inner(conversation):
            mode = DmnMode.WORKING if continuing else DmnMode.STORED if state.woken else state.mode
            return "\n".join([load_prompt(mode.value), *quiet])
        return "\n".join([load_prompt("working" if continuing else "own"), *quiet])
