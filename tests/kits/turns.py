"""Turns of one agent on a real store: what they are handed is in the test's hands."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from agent.cache.client import CacheWarmer
from agent.cache.plan import CacheForecast
from agent.models.base import Model, TextPart
from agent.signals import DmnPolicy, DmnState
from agent.turn import Toolset
from agent.workspace.cache import WorkspaceCache
from agent.workspace.persona import PersonaBundle, PersonaScope
from gateway.config.models import ContextOptimizationConfig
from gateway.config.reload import LiveSettings
from gateway.context.compaction import CompactionOutcome, CompactionStats, Compactor, Summarizer
from gateway.context.conversation import ConversationReader
from gateway.context.digest import Digest, DigestBuilder
from gateway.context.evidence import EvidenceStore
from gateway.context.history import HistoryStore, HistoryView
from gateway.context.journal import JournalStore
from gateway.context.memory import MemoryStore
from gateway.context.observer import TurnTracker
from gateway.context.prompt_context import ChannelCards, PromptContextBuilder
from gateway.context.recall import AmbientRecall
from gateway.core import identity
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    ConversationId,
    EventId,
    Message,
    MessageDeleted,
    MessageId,
    Notification,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import URGENT, Judgement, Seq, TurnRecord, dedup_key, inner_conversation
from gateway.core.labels import TRUSTED_LABEL, Label
from gateway.core.redaction import Redactor
from gateway.core.scopes import Visibility
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolSpec
from gateway.runtime.loop import AgentLoop, TurnHandle, TurnResult
from gateway.runtime.models import AgentModel
from gateway.runtime.turn import TurnRunner
from gateway.runtime.turn_input import AgentContext, TurnGuidance
from gateway.store import NewEntry, OutboxPost, Store, UnreadEntries
from gateway.stream.media import MediaStore
from gateway.stream.preview import TurnPreviews
from gateway.stream.routing import BindingPattern, Bindings, ConversationBinding
from gateway.tools.dispatch import ToolDispatcher
from tests.kits.gateway import settings
from tests.kits.places import privacy
from tests.kits.scripted_turn import Drawer, Played, Say
from tests.kits.settings import live_settings
from tests.kits.store import posts_of
from tests.kits.tasks import LooseTasks
from tests.kits.tools import NoApprovals, running_calls

ROOM = Address(channel=ChannelName("irc"), room=RoomId("#a"))
INNER = inner_conversation("ana")
WHEN = datetime(2026, 11, 21, 12, tzinfo=UTC)
WHO = identity.AccessPolicy(
    dm_policy="open", roles={}, open_rooms={ChannelName("irc"): frozenset({RoomId("#a")})}
)
ANYWHERE = BindingPattern(
    channel="*",
    room="*",
    thread=None,
    binding=ConversationBinding(listen="all", agent="ana", private=False),
)


WARM = CacheForecast(is_cold=False, read_share=0.1, write_share=1.25, expected_requests=20.0)


class Folds(Compactor):
    """As an agent has it; a desk says what its cache is like, and whether a model summarises."""

    desk: "Desk | None" = None

    def forecast(self, conversation: ConversationId) -> CacheForecast:  # noqa: ARG002 - as the product's
        return WARM if self.desk is None else self.desk.outlook

    def is_summarising(self) -> bool:
        return self.desk is not None and self.desk.compacts


class Outcomes(CompactionStats):
    """What became of summaries, and results that were too large."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[tuple[str, float | None]] = []

    def count(self, agent: str, outcome: CompactionOutcome, took_s: float | None = None) -> None:
        super().count(agent, outcome, took_s)
        self.counted.append((outcome, took_s))


class Idle(AgentLoop):
    """The loop of an agent that begins nothing by itself. Its budget reaches for so many
    requests."""

    def __init__(self, store: Store, clock: ManualClock, *, afford: int = 1_000) -> None:
        super().__init__(
            "ana", store, clock, policy=DmnPolicy(inner=INNER), state=DmnState(), tasks=LooseTasks()
        )
        self.afford = afford

    def reserve(self, conversation: ConversationId, cost_usd: float) -> bool:  # noqa: ARG002 - as the loop
        self.afford -= 1
        return self.afford >= 0

    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnResult:
        raise AssertionError((conversation, autonomous, continuing, handle))

    async def dream(self, handle: TurnHandle) -> TurnResult:
        raise AssertionError(handle)

    async def give_up(
        self, conversation: ConversationId, reason: str, *, autonomous: bool
    ) -> TurnResult:
        raise AssertionError((conversation, reason, autonomous))

    def show_queued(self, conversation: ConversationId, *, waits: bool) -> None:
        pass

    async def tell_queued(self, conversation: ConversationId) -> None:
        raise AssertionError(conversation)

    async def unread_urgency(self, conversation: ConversationId) -> int:
        raise AssertionError(conversation)

    def is_arriving(self, conversation: ConversationId) -> bool:  # noqa: ARG002 - as the product's
        return False

    def is_direct(self, conversation: ConversationId) -> bool:
        raise AssertionError(conversation)

    def material_tokens(self) -> int:
        return 0


class Hands(ToolDispatcher):
    """The tools in the desk's drawer."""

    def __init__(self, desk: "Desk") -> None:
        super().__init__([], NoApprovals(), running_calls(), Redactor())
        self._desk = desk

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self._desk.drawer.specs

    @specs.setter
    def specs(self, pinned: tuple[ToolSpec, ...]) -> None:
        """They are not pinned."""

    @property
    def changed_names(self) -> tuple[list[str], list[str]]:
        return [], []

    def for_turn(self, context: ToolContext) -> Toolset:  # type: ignore[override] # the drawer
        self._desk.where.append(context)
        return self._desk.drawer


class Guidance(TurnGuidance):
    """What the test says, and nothing else."""

    has_late_tools = False

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk

    async def directives(
        self,
        conversation: ConversationId,  # noqa: ARG002 - as the product's
        *,
        autonomous: bool,  # noqa: ARG002 - the same
        continuing: bool,  # noqa: ARG002 - the same
    ) -> str:
        if self._desk.before is not None:
            await self._desk.before()
        return self._desk.guidance

    async def meanwhile(
        self,
        conversation: ConversationId,  # noqa: ARG002 - as the product's
        unread: UnreadEntries,  # noqa: ARG002 - the same
        view: HistoryView,  # noqa: ARG002 - the same
        sight: Visibility,  # noqa: ARG002 - the same
    ) -> tuple[str, Label]:
        return "", TRUSTED_LABEL

    async def skill_catalogue(self, tools: ToolDispatcher) -> str:  # noqa: ARG002 - as the product's
        return ""


class Digests(DigestBuilder):
    """What the test says that is pending."""

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk

    async def build(self, *, plain: bool) -> Digest | None:  # noqa: ARG002 - as the product's
        return self._desk.digest


class Ana(PromptContextBuilder):
    """Ana's, whose persona stands in no file."""

    async def load_persona(self, scope: PersonaScope) -> PersonaBundle:  # noqa: ARG002 - the same everywhere
        return PersonaBundle(identity="You are Ana.", private="")


def context_of(  # noqa: PLR0917 - as an agent has them
    agent: AgentLoop,
    store: Store,
    clock: ManualClock,
    model: Model,
    tools: ToolDispatcher,
    guidance: TurnGuidance,
    history: HistoryStore | None = None,
    *,
    desk: "Desk | None" = None,
    stats: CompactionStats | None = None,
    who: identity.AccessPolicy = WHO,
) -> AgentContext:
    """What turns need, with a real store and nobody who speaks or listens."""
    made = settings(store.path.parent, agents=[{"id": "ana"}], recall={"ambient_tokens": 0})
    live, bindings = LiveSettings(made), Bindings((ANYWHERE,))
    media = MediaStore(live, Path("/nonexistent"), {}, clock)
    places = privacy(store, bindings)
    journal = JournalStore(store, clock, live.agent_directory)
    memory = MemoryStore(store, clock, live.agent_directory)
    history = history or HistoryStore(store, clock, media)
    summarizer = Summarizer(
        agent.id, store, clock, live, model=model, stats=stats or Outcomes(), random=lambda: 0.5
    )
    folds = Folds(
        store, clock, live, history=history, model=model, primary=model, summarizer=summarizer
    )
    folds.desk = desk
    return AgentContext(
        agent=agent,
        store=store,
        clock=clock,
        live=live,
        model=AgentModel(
            name="main",
            model=model,
            primary=model,
            caching_models=frozenset(),
            models=[model],
            summarizer=None,
        ),
        reader=ConversationReader(store, who, media, Redactor()),
        evidence=EvidenceStore(store, clock, places, media),
        ambient_recall=AmbientRecall(store, places, memory, journal, clock, Redactor(), live),
        prompt_context=Ana(
            "ana",
            live,
            workspaces=WorkspaceCache(clock),
            own=Path("/nonexistent"),
            family=model.family,
            keep_warm=CacheWarmer(clock, budget_usd=lambda: 0.0),
            bindings=bindings,
            access_policy=who,
            cards=ChannelCards(store, clock, {}, who, redactor=Redactor()),
            places=places,
        ),
        history=history,
        compaction=folds,
        tools=tools,
        guidance=guidance,
    )


@dataclass
class Desk:
    """What the turns are handed, and what they hand out."""

    store: Store
    model: Played
    clock: ManualClock = field(default_factory=lambda: ManualClock(WHEN))
    drawer: Drawer = field(default_factory=Drawer)
    digest: Digest | None = None
    guidance: str = ""
    posts: list[OutboxPost] = field(init=False)
    where: list[ToolContext] = field(default_factory=list)
    lane: TurnHandle = field(default_factory=TurnHandle)
    before: Callable[[], Awaitable[None]] | None = None
    """Happens while a turn is prepared."""
    after: Callable[[], None] | None = None
    """Happens once the answer is written down, before the turn goes on."""
    said: int = 0
    outlook: CacheForecast = WARM
    compacts: bool = False
    outcomes: Outcomes = field(default_factory=Outcomes)
    who: identity.AccessPolicy = WHO

    def __post_init__(self) -> None:
        views = HistoryStore(
            self.store,
            self.clock,
            MediaStore(live_settings(), Path("/nonexistent"), {}, self.clock),
        )
        self.posts = posts_of(self.store)
        self.agent = Idle(self.store, self.clock)
        self.means = context_of(
            self.agent,
            self.store,
            self.clock,
            self.model,
            Hands(self),
            Guidance(self),
            views,
            desk=self,
            stats=self.outcomes,
            who=self.who,
        )
        self.turns = TurnRunner(
            previews=TurnPreviews(self.store, self.clock, {}, LooseTasks(), redactor=Redactor()),
            digests=Digests(self),
            tracker=TurnTracker(),
        )
        self.store.subscribe(lambda _: self.after() if self.after is not None else None, TurnRecord)

    @property
    def compacted(self) -> list[str]:
        return [outcome for outcome, _ in self.outcomes.counted]

    @property
    def context(self) -> ContextOptimizationConfig:
        return self.means.live.optimization

    @context.setter
    def context(self, new: ContextOptimizationConfig) -> None:
        live = self.means.live
        llm = live.settings.llm.model_copy(update={"context_optimization": new})
        live._settings = live.settings.model_copy(update={"llm": llm})

    async def say(
        self,
        name: str,
        text: str,
        *,
        kind: Literal["direct", "mention", "room"] = "mention",
        urgency: int = URGENT,
    ) -> Message:
        self.said += 1
        message = Message(
            id=MessageId(f"m{self.said}"),
            at=ROOM,
            sender=Sender(id=SenderId(name), name=name),
            text=text,
            sent=self.clock.now(),
            kind=kind,
        )
        await self.tell(message, ROOM.conversation, urgency)
        return message

    async def delete(self, message: Message) -> None:
        gone = MessageDeleted(
            id=EventId(f"d{message.id}"), at=ROOM, message=message.id, sent=self.clock.now()
        )
        await self.store.append(
            [
                NewEntry(
                    fact=gone,
                    at=self.clock.now(),
                    conversation=ROOM.conversation,
                    key=dedup_key(gone),
                )
            ]
        )

    async def tell(self, event: Notification, place: ConversationId, urgency: int) -> None:
        """Make something unread there."""
        came = NewEntry(fact=event, at=self.clock.now(), conversation=place, key=dedup_key(event))
        assert urgency in (0, 1, 2, 3)
        judged = Judgement(
            type="t",
            urgency=urgency,  # type: ignore[arg-type]
            fate="due" if urgency else "context",
            rule="test",
            role="guest",
        )
        await self.store.append(
            [came, NewEntry(fact=judged, at=self.clock.now(), conversation=place, cause=came)]
        )

    async def take(
        self,
        place: ConversationId = ROOM.conversation,
        *,
        autonomous: bool = False,
        continuing: bool = False,
    ) -> TurnResult:
        self.lane = TurnHandle()
        self.model.asked.clear()
        async with asyncio.timeout(120):
            return await self.turns.run(
                self.means, place, autonomous=autonomous, continuing=continuing, handle=self.lane
            )

    async def compact(self) -> str:
        return await self.turns.compact(self.means, ROOM.conversation)

    async def ended(self, place: ConversationId = ROOM.conversation) -> list[TurnRecord]:
        found = await self.store.entries(kinds=["turn_ended"], conversation=place)
        return [stored.fact for stored in found if isinstance(stored.fact, TurnRecord)]

    async def unread(self, place: ConversationId = ROOM.conversation) -> list[Seq]:
        return [
            stored.seq for stored in (await self.store.unread_entries(place, most=100)).messages
        ]

    def told(self, number: int = -1) -> str:
        """The last side of a request."""
        parts = self.model.requests[number].conversation[-1].parts
        return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def at_desk(
    tmp_path: Path,
    story: Callable[[Desk], Awaitable[None]],
    *answers: Say,
    who: identity.AccessPolicy = WHO,
) -> None:
    """Run a story with these answers."""

    async def run() -> None:
        store = await Store.open(tmp_path / "reverie.db", ManualClock(WHEN))
        try:
            await story(Desk(store, Played(*answers), who=who))
        finally:
            await store.close()

    asyncio.run(run())
