"""One turn while it runs: what it is told, what the model makes of it, and what is left of it where it is cut off."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from agent import view
from agent.brief import NOTHING_NEW, Brief
from agent.models.base import Malformed, Model, Request, ToolCall, TooLong, ToolResult, ToolSpec
from agent.outcome import Outcome, Progress
from agent.turn import Tools, take_turn
from gateway.briefing import Briefing, Setting
from gateway.clock import Clock
from gateway.events import ConversationId, SenderId
from gateway.fitting import Told, fold, pick, tell
from gateway.hands import Asker, Whereabouts
from gateway.hearing import Heard, Hearing, Standing, addressed
from gateway.lane import Lane
from gateway.media import Media
from gateway.past import PastTurn
from gateway.records import Seq
from gateway.store import Store, Unread
from gateway.turn import Begun, Dealt, omitted
from gateway.views import Views

logger = logging.getLogger("reverie.turns")

MOST_LINES = 50
"""Unread lines told to one turn. Of what was overheard older ones are counted, so that a raid of thousands costs one
bounded prompt; what was said to the agent waits for the next turn."""
MAX_FOLDS = 2
"""Tries to make a conversation fit after the provider says that it does not."""
FULL, TOO_LONG = "the window is full", "the provider said that it was too long"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the turns of one agent are made with."""

    store: Store
    clock: Clock
    model: Model
    agent_id: str
    briefing: Briefing
    hearing: Hearing
    media: Media
    views: Views
    hands: Callable[[Whereabouts], Tools]
    """The tools of a turn: asked when it begins, and again when somebody speaks in its middle."""
    guidance: Callable[[ConversationId, bool, bool], Awaitable[str]]
    """What a turn is to keep in mind; empty mostly."""
    afford: Callable[[str, Request], bool]
    """Whether this agent may ask for this, unasked itself."""

    @property
    def plain(self) -> bool:
        """The model is a very small one."""
        return self.model.family == "local"


class Asking:
    """One turn. What it was told so far can be read at any time."""

    def __init__(self, means: Means, begun: Begun, lane: Lane) -> None:
        self.begun = begun
        self.progress = Progress()
        self.past: tuple[PastTurn, ...] | None = None
        """The turns in view. None: not read yet."""
        self._means = means
        self._conversation = begun.place.conversation
        self._lane = lane
        self._budget = 0
        self._told = Told()
        self._omitted = 0
        self._upto = Seq(0)
        self._standing = tuple(begun.standing)

    def dealt(self, outcome: Outcome) -> Dealt:
        """What it has dealt with, if it ended like this."""
        digest, told, upto = self.begun.digest, self._told, self._upto
        if digest is not None and outcome.outcome == "interrupted":  # what was pending everywhere still is
            return Dealt(told=replace(told, covers=(), senders=()), omitted=0, upto=Seq(0))
        looked = digest.looked if digest is not None else ()
        return Dealt(told=told, omitted=self._omitted, upto=upto, standing=self._standing, looked=looked)

    async def run(self, glimpse: Callable[[str], None] | None) -> Outcome:
        """Ask the model until the turn has ended. May be cancelled at any time."""
        means, begun = self._means, self.begun
        past = await means.views.take(self._conversation) if self.past is None else self.past
        setting = await means.briefing.setting(begun.place, begun.unread, past)
        now = await means.guidance(self._conversation, begun.autonomous, begun.continuing)
        self._budget = view.budget_tokens(means.model.context_tokens, setting.tokens)
        lines = await means.hearing.tell(begun.standing, sees=means.model.sees)
        outcome, tries = Outcome(outcome="failed"), 0
        seeing = news = means.model.sees  # what was shown before, and what is new: that is left out first
        while tries <= MAX_FOLDS:
            unread, told = await self._fit(lines, self._budget >> tries)
            start = fold(past, told, budget=self._budget >> tries, force=tries > 0)
            past = await means.views.fold(self._conversation, past, start, TOO_LONG if tries else FULL)
            told = told if news else replace(told, media=())
            brief = Brief(
                persona=setting.persona,
                binding=setting.binding,
                card=await means.briefing.card(begun.place, setting, folded=start > 0),
                history=await means.views.history(past, seeing=seeing),
                heard=told.heard,
                images=await means.media.load(told.media),
                now=now,
                conversation=self._conversation,
            )
            self._begin(unread, told, past)
            try:
                return await self._take(brief, self._at(setting, lines), glimpse)
            except TooLong as error:
                outcome = Outcome(outcome="failed", reason=error.reason)
                tries += 1
            except Malformed as error:  # an image that looks whole and is not must not end all talk there
                logger.warning("%s: asked again without images: %s", self._conversation, error.reason)
                outcome = Outcome(outcome="failed", reason=error.reason)
                seeing, news = seeing and bool(told.media), False
        return outcome

    async def _fit(self, lines: Sequence[Heard], budget: int) -> tuple[Unread, Told]:
        """What is told of what is new, and what that deals with."""
        digest, unread = self.begun.digest, self.begun.unread
        if digest is not None:
            return unread, Told(heard=digest.heard, covers=digest.covers, senders=digest.senders)
        told = pick(lines, omitted=unread.omitted, budget=budget, plain=self._means.plain)
        if told.more:
            unread, told = await self._first(told.covers, unread, lines)
        return unread, told if told.heard else replace(told, heard=NOTHING_NEW)

    async def _first(
        self, covers: Sequence[Seq], unread: Unread, lines: Sequence[Heard], *, after: int = 0
    ) -> tuple[Unread, Told]:
        """Only these lines, all said to the agent, where there is no room for the others: those stay unread."""
        first = [one for one in unread.messages if one.seq <= covers[-1] and addressed(one.fact)]
        unread = await self._means.store.unread(self._conversation, most=len(first), after=after)
        told = [one for one in lines if one.seq in covers]
        return unread, tell(told, omitted=unread.omitted, plain=self._means.plain)

    def _begin(self, unread: Unread, told: Told, past: tuple[PastTurn, ...]) -> None:
        """From here on the model may have read this."""
        digest = self.begun.digest
        self.past, self._told = past, told
        self._upto = digest.upto if digest is not None else unread.upto
        self._omitted = digest.omitted if digest is not None else omitted(unread, told)

    def _at(self, setting: Setting, lines: Sequence[Heard]) -> Whereabouts:
        """Where the turn uses its tools."""
        return Whereabouts(
            turn=self.begun.turn,
            agent=self._means.agent_id,
            at=self.begun.place,
            sight=setting.sight,
            autonomous=self.begun.autonomous,
            askers=() if self.begun.autonomous else _askers(self._standing, lines, self._told),
        )

    async def _take(self, brief: Brief, where: Whereabouts, glimpse: Callable[[str], None] | None) -> Outcome:
        means = self._means
        hands = _Hands(means.hands(where))

        async def news() -> str:
            nonlocal where
            heard, now = await self._news(where)
            if now != where:
                where, hands.tools = now, means.hands(now)
            return heard

        return await take_turn(
            brief,
            means.model,
            hands,
            key=means.agent_id,
            glimpse=glimpse,
            news=news,
            afford=lambda request: not self.begun.autonomous or means.afford(means.agent_id, request),
            progress=self.progress,
        )

    async def _news(self, where: Whereabouts) -> tuple[str, Whereabouts]:
        """What has arrived meanwhile, and where that leaves the turn: whoever speaks in its middle asks, too.

        What comes to the inner conversation is for its next digest.
        """
        if self.begun.inner or not self._lane.news():
            return "", where
        means = self._means
        unread = await means.store.unread(self._conversation, most=MOST_LINES, after=self._upto)
        if not unread.messages:
            return "", where
        standing = await means.hearing.standing(unread)
        lines = await means.hearing.tell(standing, sees=False)  # a tool's results are no place for images
        told = pick(lines, omitted=unread.omitted, budget=self._budget, plain=means.plain)
        if told.more:
            unread, told = await self._first(told.covers, unread, lines, after=self._upto)
        self._told = replace(
            self._told, covers=(*self._told.covers, *told.covers), senders=(*self._told.senders, *told.senders)
        )
        self._omitted += omitted(unread, told)
        self._upto = unread.upto
        self._standing = (*self._standing, *standing)
        known = {asker.id for asker in where.askers}
        asking = [asker for asker in _askers(standing, lines, told) if asker.id not in known]
        return told.heard, replace(where, askers=(*where.askers, *asking))


class _Hands:
    """The tools as they are by now."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self.tools.specs

    async def call(self, call: ToolCall) -> ToolResult:
        return await self.tools.call(call)


def _askers(standing: Sequence[Standing], lines: Sequence[Heard], told: Told) -> tuple[Asker, ...]:
    """Who said to the agent what is told, oldest first."""
    roles = {one.seq: one.line.role for one in lines if one.line.addressed and one.seq in told.covers}
    asking: dict[SenderId, Asker] = {}
    spoke = [one for one in standing if one.seq in roles and not one.happened]
    for sender, role in [(one.message.sender, roles[one.seq]) for one in spoke]:
        asking.setdefault(sender.id, Asker(id=sender.id, name=sender.name, role=role, verified=sender.verified))
    return tuple(asking.values())
