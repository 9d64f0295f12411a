"""Turns of one agent on a real store: what they are handed is in the test's hands."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from agent.cache.plan import CacheForecast
from agent.journal import JournalEntry
from agent.models.base import ModelRequest, TextPart
from agent.turn import Toolset
from agent.workspace.persona import PersonaBundle, PersonaScope
from gateway.config.models import ContextOptimizationConfig, RecallConfig
from gateway.context.compaction import Compactor, Summarizer
from gateway.context.conversation import ConversationReader
from gateway.context.digest import Digest
from gateway.context.evidence import EvidenceStore
from gateway.context.history import HistoryStore
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
from gateway.core.redaction import Redactor
from gateway.core.tool import ToolContext
from gateway.runtime.lane import TurnHandle
from gateway.runtime.turn import TurnResult, TurnRunner
from gateway.runtime.turn_input import AgentContext
from gateway.store import NewEntry, OutboxPost, Store
from gateway.stream.media import MediaStore
from gateway.stream.preview import TurnPreviews
from gateway.stream.routing import BindingPattern, Bindings, ConversationBinding, PrivacyCache
from tests.kits.scripted_turn import Drawer, Played, Say
from tests.kits.settings import live_settings
from tests.kits.store import posts_of
from tests.kits.tasks import LooseTasks

ROOM = Address(channel=ChannelName("irc"), room=RoomId("#a"))
INNER = inner_conversation("ana")
WHEN = datetime(2026, 11, 21, 12, tzinfo=UTC)
WHO = identity.AccessPolicy(dm_policy="open", roles={}, open_rooms={ChannelName("irc"): frozenset({RoomId("#a")})})
ANYWHERE = BindingPattern(
    channel="*", room="*", thread=None, binding=ConversationBinding(listen="all", agent="ana", private=False)
)


async def nothing(_: str) -> str:
    """No memory."""
    return ""


async def nothing_by_hand(_: str) -> list[JournalEntry]:
    """Nobody wrote into the journal."""
    return []


def folds_of(desk: "Desk", views: HistoryStore) -> Compactor:
    """As a mind makes them."""
    compacting = Summarizer(
        agent="ana",
        store=desk.store,
        clock=desk.clock,
        random=lambda: 0.5,
        model=lambda: desk.model,
        settings=lambda: desk.context.compaction,
        on_outcome=lambda outcome, _: desk.compacted.append(outcome),
    )
    return Compactor(
        store=desk.store,
        clock=desk.clock,
        history=views,
        model=desk.model,
        cache_forecast=lambda _: desk.outlook,
        settings=lambda: desk.context,
        is_enabled=lambda: desk.compacts,
        summarizer=compacting,
    )


WARM = CacheForecast(is_cold=False, read_share=0.1, write_share=1.25, expected_requests=20.0)


@dataclass
class Desk:
    """What the turns are handed, and what they hand out."""

    store: Store
    model: Played
    clock: ManualClock = field(default_factory=lambda: ManualClock(WHEN))
    drawer: Drawer = field(default_factory=Drawer)
    digest: Digest | None = None
    guidance: str = ""
    afford: int = 1_000
    posts: list[OutboxPost] = field(init=False)
    where: list[ToolContext] = field(default_factory=list)
    lane: TurnHandle = field(default_factory=TurnHandle)
    before: Callable[[], Awaitable[None]] | None = None
    """Happens while a turn is prepared."""
    after: Callable[[], None] | None = None
    """Happens once the model has answered, before that is written down."""
    said: int = 0
    context: ContextOptimizationConfig = field(default_factory=ContextOptimizationConfig)
    recall: RecallConfig = field(default_factory=lambda: RecallConfig(ambient_tokens=0))
    outlook: CacheForecast = WARM
    compacts: bool = False
    compacted: list[str] = field(default_factory=list)
    """What became of summaries, and results that were too large."""

    def __post_init__(self) -> None:
        self.posts = posts_of(self.store)
        media = MediaStore(live_settings(), Path("/nonexistent"), {}, self.clock)
        bindings = Bindings((ANYWHERE,))
        briefing = PromptContextBuilder(
            persona=self._me,
            peers=(),
            bindings=bindings,
            access_policy=WHO,
            cards=ChannelCards(self.store, self.clock, {}, WHO, redactor=Redactor()),
            places=PrivacyCache(self.store, bindings),
        )
        places, views = PrivacyCache(self.store, bindings), HistoryStore(self.store, self.clock, media)
        self.means = AgentContext(
            store=self.store,
            clock=self.clock,
            model=self.model,
            agent_id="ana",
            prompt_context=briefing,
            reader=ConversationReader(self.store, WHO, media, redactor=Redactor()),
            media=media,
            history=views,
            compactor=folds_of(self, views),
            evidence=EvidenceStore(self.store, self.clock, places),
            ambient_recall=AmbientRecall(
                self.store, places, nothing, nothing_by_hand, self.clock, redactor=Redactor(), live=live_settings()
            ),
            optimization=lambda: self.context,
            recall_config=self.recall,
            tools_for=self._hands,
            directives=self._guide,
            can_afford=self._afford,
            on_truncated=lambda: self.compacted.append("tool_result_truncated"),
            access_policy=WHO,
            redactor=Redactor(),
        )
        self.turns = TurnRunner(
            self.means,
            previews=TurnPreviews(self.store, self.clock, {}, LooseTasks(), redactor=Redactor()),
            digests=self,
            on_answered=lambda _agent, _account: self.after() if self.after is not None else None,
        )

    async def _me(self, _: PersonaScope) -> PersonaBundle:
        return PersonaBundle(identity="You are Ana.", private="")

    async def build(self) -> Digest | None:
        return self.digest

    def _hands(self, where: ToolContext) -> Toolset:
        self.where.append(where)
        return self.drawer

    async def _guide(self, _: ConversationId, _autonomous: bool, _continuing: bool) -> str:
        if self.before is not None:
            await self.before()
        return self.guidance

    def _afford(self, agent: str, _: ModelRequest) -> bool:
        assert agent == "ana"
        self.afford -= 1
        return self.afford >= 0

    async def say(
        self, name: str, text: str, *, kind: Literal["direct", "mention", "room"] = "mention", urgency: int = URGENT
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
        gone = MessageDeleted(id=EventId(f"d{message.id}"), at=ROOM, message=message.id, sent=self.clock.now())
        await self.store.append(
            [NewEntry(fact=gone, at=self.clock.now(), conversation=ROOM.conversation, key=dedup_key(gone))]
        )

    async def tell(self, event: Notification, place: ConversationId, urgency: int) -> None:
        """Make something unread there."""
        came = NewEntry(fact=event, at=self.clock.now(), conversation=place, key=dedup_key(event))
        assert urgency in (0, 1, 2, 3)
        judged = Judgement(type="t", urgency=urgency, fate="due" if urgency else "context", rule="test", role="guest")  # type: ignore[arg-type]
        await self.store.append([came, NewEntry(fact=judged, at=self.clock.now(), conversation=place, cause=came)])

    async def take(
        self, place: ConversationId = ROOM.conversation, *, autonomous: bool = False, continuing: bool = False
    ) -> TurnResult:
        self.lane = TurnHandle()
        self.model.asked.clear()
        async with asyncio.timeout(120):
            return await self.turns.run(place, autonomous=autonomous, continuing=continuing, handle=self.lane)

    async def ended(self, place: ConversationId = ROOM.conversation) -> list[TurnRecord]:
        found = await self.store.entries(kinds=["turn_ended"], conversation=place)
        return [stored.fact for stored in found if isinstance(stored.fact, TurnRecord)]

    async def unread(self, place: ConversationId = ROOM.conversation) -> list[Seq]:
        return [stored.seq for stored in (await self.store.unread_entries(place, most=100)).messages]

    def told(self, number: int = -1) -> str:
        """The last side of a request."""
        parts = self.model.requests[number].conversation[-1].parts
        return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def at_desk(tmp_path: Path, story: Callable[[Desk], Awaitable[None]], *answers: Say) -> None:
    """Run a story with these answers."""

    async def run() -> None:
        store = await Store.open(tmp_path / "reverie.db", ManualClock(WHEN))
        try:
            await story(Desk(store, Played(*answers)))
        finally:
            await store.close()

    asyncio.run(run())
