"""Turns of one agent on a real store: what they are handed is in the test's hands."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from agent.cache.idle import CacheForecast
from agent.cache.prompt_cache import CacheWarmer, PromptCache
from agent.models.base import Model, ModelRequest, TextPart, ToolResult
from agent.models.client import Candidate
from agent.signals import TurnEnded
from agent.workspace.cache import WorkspaceCache
from agent.workspace.persona import PersonaBundle, PersonaScope
from gateway.access.limits import UsageLimiter
from gateway.access.policy import ConversationBinding
from gateway.config.models import ContextOptimizationConfig
from gateway.config.reload import LiveSettings
from gateway.context.compaction import CompactionOutcome, CompactionStats, Compactor
from gateway.context.conversation import ConversationReader
from gateway.context.digest import Digest
from gateway.context.history import HistoryStore
from gateway.context.prompt_context import PromptContextBuilder
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
from gateway.core.frozen import frozen
from gateway.core.redaction import Redactor
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.hooks import Plugins
from gateway.runtime.agent import Agent
from gateway.runtime.models import AgentModel
from gateway.runtime.turn import TurnRunner
from gateway.runtime.turn_handle import TurnHandle
from gateway.runtime.turn_input import AgentContext, TurnServices
from gateway.store import NewEntry, OutboxPost, Store
from gateway.stream.handle import GatewayHandle
from gateway.stream.media import MediaStore
from gateway.stream.presence import PresenceTracker
from gateway.stream.routing import BindingPattern, Bindings
from gateway.tools.dispatch import ToolDispatcher
from reverie.testing.gateway import settings
from tests.kits.agent import DrivenAgent
from tests.kits.commands import parts_of
from tests.kits.handle import handle_of
from tests.kits.scripted_turn import Drawer, Played, Say
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


class Outcomes(CompactionStats):
    """What became of summaries, and results that were too large."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[tuple[str, float | None]] = []

    def count(self, agent: str, outcome: CompactionOutcome, took_s: float | None = None) -> None:
        super().count(agent, outcome, took_s)
        self.counted.append((outcome, took_s))


class Idle(DrivenAgent):
    """An agent that begins nothing by itself."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(None, store, clock, LooseTasks())


class Hands(ToolDispatcher):
    def __init__(self, desk: "Desk") -> None:
        self._desk = desk
        super().__init__([], NoApprovals(), running_calls(), Redactor())

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self._desk.drawer.specs

    @specs.setter
    def specs(self, pinned: tuple[ToolSpec, ...]) -> None:
        """They are not pinned."""

    async def call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self._desk.where.append(context)
        return await self._desk.drawer.call(call)


class Ana(PromptContextBuilder):
    """Ana's, whose persona stands in no file."""

    before: Callable[[], Awaitable[None]] | None = None

    async def load_persona(self, scope: PersonaScope) -> PersonaBundle:  # noqa: ARG002 - the same everywhere
        if self.before is not None:
            await self.before()
        return PersonaBundle(identity="You are Ana.", private="")


@frozen(eq=False)
class Priced(AgentModel):
    """A model whose next requests may cost so much, and all later ones nothing."""

    ceilings: list[float] = field(default_factory=list)

    def ceiling_usd(self, request: ModelRequest) -> float:  # noqa: ARG002 - as the product's
        return self.ceilings.pop(0) if self.ceilings else 0.0


def handle(store: Store, clock: ManualClock, who: identity.AccessPolicy = WHO) -> GatewayHandle:
    made = settings(store.path.parent, agents=[{"id": "ana"}])
    return handle_of(
        store, clock, live=LiveSettings(made), people=who, bindings=Bindings((ANYWHERE,))
    )


def context_of(
    gateway: GatewayHandle,
    agent: Agent,
    model: Model,
    tools: ToolDispatcher,
    *,
    stats: CompactionStats | None = None,
    ceilings: list[float] | None = None,
    cache: PromptCache | None = None,
) -> AgentContext:
    store, clock, live = gateway.store, gateway.clock, gateway.live
    history = HistoryStore(store, clock, MediaStore(live, Path("/nonexistent"), {}, clock))
    return AgentContext(
        gateway=gateway,
        agent=agent,
        model=Priced(
            name="main",
            model=model,
            candidates=[Candidate(model)],
            summarizer=None,
            caches=frozenset(),
            ceilings=ceilings if ceilings is not None else [],
        ),
        make_tools=lambda: tools,
        prompts=Ana(
            "ana",
            gateway,
            workspaces=WorkspaceCache(clock),
            family=model.family,
            keep_warm=CacheWarmer(clock, budget_usd=lambda: 0.0),
        ),
        compaction=Compactor(
            agent.id,
            gateway,
            history=history,
            model=model,
            cache=cache,
            summarizer=model,
            stats=stats or Outcomes(),
            random=lambda: 0.5,
        ),
        history=history,
        limits=UsageLimiter(live, clock, gateway.people),
    )


def services_of(gateway: GatewayHandle, media: MediaStore) -> TurnServices:
    """What turns share that show nothing before they have ended."""
    clock, live = gateway.clock, gateway.live
    return TurnServices(
        reader=ConversationReader(gateway, media),
        media=media,
        presence=PresenceTracker(live, clock, gateway.people),
        registry=parts_of(running=running_calls()),
        stats=Outcomes(),
        limits=UsageLimiter(live, clock, gateway.people),
        plugins=Plugins(),
    )


@dataclass
class Desk:
    """What the turns are handed, and what they hand out."""

    store: Store
    model: Played
    clock: ManualClock = field(default_factory=lambda: ManualClock(WHEN))
    drawer: Drawer = field(default_factory=Drawer)
    digest: Digest | None = None
    posts: list[OutboxPost] = field(init=False)
    where: list[ToolContext] = field(default_factory=list)
    lane: TurnHandle = field(default_factory=TurnHandle)
    after: Callable[[], None] | None = None
    """Happens once the answer is written down, before the turn goes on."""
    said: int = 0
    outlook: CacheForecast = WARM
    outcomes: Outcomes = field(default_factory=Outcomes)
    ceilings: list[float] = field(default_factory=list)
    """Highest costs of the next requests."""
    who: identity.AccessPolicy = WHO

    def __post_init__(self) -> None:
        self.posts = posts_of(self.store)
        self.agent = Idle(self.store, self.clock)
        gateway = handle(self.store, self.clock, self.who)
        self.means = context_of(
            gateway,
            self.agent,
            self.model,
            Hands(self),
            stats=self.outcomes,
            ceilings=self.ceilings,
            cache=parts_of(forecast=lambda *_: self.outlook),
        )
        services = services_of(gateway, self.means.history.media)
        self.turns = TurnRunner(services, parts_of(build=self._build_digest))
        self.store.subscribe(lambda _: self.after() if self.after is not None else None, TurnRecord)

    async def _build_digest(self, **_: object) -> Digest | None:
        return self.digest

    @property
    def live(self) -> LiveSettings:
        return self.means.gateway.live

    @property
    def compacted(self) -> list[str]:
        return [outcome for outcome, _ in self.outcomes.counted]

    @property
    def context(self) -> ContextOptimizationConfig:
        return self.live.optimization

    @context.setter
    def context(self, new: ContextOptimizationConfig) -> None:
        live = self.live
        llm = live.settings.llm.model_copy(update={"context_optimization": new})
        live.put_in_force(live.settings.model_copy(update={"llm": llm}))

    def summarise(self) -> None:
        """Have a model write summaries from now on."""
        compaction = self.context.compaction.model_copy(update={"enabled": True})
        self.context = self.context.model_copy(update={"compaction": compaction})

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
    ) -> TurnEnded:
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


@contextlib.asynccontextmanager
async def at_desk(
    tmp_path: Path, *answers: Say, who: identity.AccessPolicy = WHO
) -> AsyncIterator[Desk]:
    async with await Store.open(tmp_path / "reverie.db", ManualClock(WHEN)) as store:
        yield Desk(store, Played(*answers), who=who)
