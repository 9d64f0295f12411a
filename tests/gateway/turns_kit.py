"""Turns of one agent on a real store: what they are handed is in the test's hands."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from agent.cache.outlook import Outlook
from agent.journal import Entry as Written
from agent.models.base import Request, Text
from agent.turn import Tools
from agent.workspace.bundle import Bundle, Scope
from gateway import access
from gateway.bindings import Bindings, Bound, Pattern
from gateway.briefing import Briefing
from gateway.cards import Cards
from gateway.clock import ManualClock
from gateway.compacting import Compacting
from gateway.digest import Digest
from gateway.events import (
    Address,
    ChannelName,
    ConversationId,
    Deleted,
    EventId,
    Message,
    MessageId,
    Notification,
    RoomId,
    Sender,
    SenderId,
)
from gateway.evidence import Evidences
from gateway.folds import Folds
from gateway.hands import Whereabouts
from gateway.hearing import Hearing
from gateway.lane import Lane
from gateway.means import Means
from gateway.media import Media
from gateway.media_config import MediaConfig
from gateway.places import Places
from gateway.preview import Signs
from gateway.recalling import Recalling
from gateway.records import URGENT, Judged, Seq, TurnEnded, inner, key_of
from gateway.settings_context import ContextOptimization, RecallConfig
from gateway.store import Entry, OutboxPost, Store
from gateway.turns import Report, Turns
from gateway.views import Views
from tests.agent.turn_kit import Drawer, Played, Say

ROOM = Address(channel=ChannelName("irc"), room=RoomId("#a"))
INNER = inner("ana")
WHEN = datetime(2026, 11, 21, 12, tzinfo=UTC)
WHO = access.Policy(dm_policy="open", roles={}, open_rooms={ChannelName("irc"): frozenset({RoomId("#a")})})
ANYWHERE = Pattern(channel="*", room="*", thread=None, binding=Bound(listen="all", agent="ana", private=False))


async def nothing(_: str) -> str:
    """No memory."""
    return ""


async def nothing_by_hand(_: str) -> list[Written]:
    """Nobody wrote into the journal."""
    return []


def folds_of(desk: "Desk", views: Views) -> Folds:
    """As a mind makes them."""
    compacting = Compacting(
        agent="ana",
        store=desk.store,
        clock=desk.clock,
        random=lambda: 0.5,
        model=lambda: desk.model,
        said=lambda: desk.context.compaction,
        compacted=lambda outcome, _: desk.compacted.append(outcome),
    )
    return Folds(
        store=desk.store,
        clock=desk.clock,
        views=views,
        model=desk.model,
        outlook=lambda _: desk.outlook,
        said=lambda: desk.context,
        compacts=lambda: desk.compacts,
        compacting=compacting,
    )


WARM = Outlook(is_cold=False, read_share=0.1, write_share=1.25, expected_requests=20.0)


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
    posts: list[OutboxPost] = field(default_factory=list)
    where: list[Whereabouts] = field(default_factory=list)
    lane: Lane = field(default_factory=Lane)
    before: Callable[[], Awaitable[None]] | None = None
    """Happens while a turn is prepared."""
    after: Callable[[], None] | None = None
    """Happens once the model has answered, before that is written down."""
    said: int = 0
    context: ContextOptimization = field(default_factory=ContextOptimization)
    recall: RecallConfig = field(default_factory=lambda: RecallConfig(ambient_tokens=0))
    outlook: Outlook = WARM
    compacts: bool = False
    compacted: list[str] = field(default_factory=list)
    """What became of summaries, and results that were too large."""

    def __post_init__(self) -> None:
        media = Media(MediaConfig(), Path("/nonexistent"), {}, self.clock)
        bindings = Bindings((ANYWHERE,))
        briefing = Briefing(
            me=self._me,
            peers=(),
            bindings=bindings,
            who=WHO,
            cards=Cards(self.store, self.clock, {}, WHO),
            places=Places(self.store, bindings),
        )
        places, views = Places(self.store, bindings), Views(self.store, self.clock, media)
        self.means = Means(
            store=self.store,
            clock=self.clock,
            model=self.model,
            agent_id="ana",
            prompt_context=briefing,
            reader=Hearing(self.store, WHO, media),
            media=media,
            history=views,
            compactor=folds_of(self, views),
            evidence=Evidences(self.store, self.clock, places),
            ambient_recall=Recalling(self.store, places, nothing, nothing_by_hand, self.clock),
            optimization=lambda: self.context,
            recall_config=self.recall,
            tools_for=self._hands,
            directives=self._guide,
            can_afford=self._afford,
            on_truncated=lambda: self.compacted.append("tool_result_truncated"),
            access_policy=WHO,
        )
        self.turns = Turns(
            self.means,
            signs=Signs(self.store, self.clock, {}, asyncio.create_task),
            digests=self,
            post=self.posts.append,
            answered=lambda _agent, _account: self.after() if self.after is not None else None,
        )

    async def _me(self, _: Scope) -> Bundle:
        return Bundle(identity="You are Ana.", private="")

    async def build(self) -> Digest | None:
        return self.digest

    def _hands(self, where: Whereabouts) -> Tools:
        self.where.append(where)
        return self.drawer

    async def _guide(self, _: ConversationId, _autonomous: bool, _continuing: bool) -> str:
        if self.before is not None:
            await self.before()
        return self.guidance

    def _afford(self, agent: str, _: Request) -> bool:
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
        gone = Deleted(id=EventId(f"d{message.id}"), at=ROOM, message=message.id, sent=self.clock.now())
        await self.store.append(
            [Entry(fact=gone, at=self.clock.now(), conversation=ROOM.conversation, key=key_of(gone))]
        )

    async def tell(self, event: Notification, place: ConversationId, urgency: int) -> None:
        """Make something unread there."""
        came = Entry(fact=event, at=self.clock.now(), conversation=place, key=key_of(event))
        assert urgency in (0, 1, 2, 3)
        judged = Judged(type="t", urgency=urgency, fate="due" if urgency else "context", rule="test", role="guest")  # type: ignore[arg-type]
        await self.store.append([came, Entry(fact=judged, at=self.clock.now(), conversation=place, cause=came)])

    async def take(
        self, place: ConversationId = ROOM.conversation, *, autonomous: bool = False, continuing: bool = False
    ) -> Report:
        self.lane = Lane()
        self.model.asked.clear()
        async with asyncio.timeout(120):
            return await self.turns.run(place, autonomous=autonomous, continuing=continuing, lane=self.lane)

    async def ended(self, place: ConversationId = ROOM.conversation) -> list[TurnEnded]:
        found = await self.store.entries(kinds=["turn_ended"], conversation=place)
        return [stored.fact for stored in found if isinstance(stored.fact, TurnEnded)]

    async def unread(self, place: ConversationId = ROOM.conversation) -> list[Seq]:
        return [stored.seq for stored in (await self.store.unread_entries(place, most=100)).messages]

    def told(self, number: int = -1) -> str:
        """The last side of a request."""
        parts = self.model.requests[number].conversation[-1].parts
        return "\n".join(part.text for part in parts if isinstance(part, Text))


def at_desk(tmp_path: Path, story: Callable[[Desk], Awaitable[None]], *answers: Say) -> None:
    """Run a story with these answers."""

    async def run() -> None:
        store = await Store.open(tmp_path / "reverie.db", ManualClock(WHEN))
        try:
            await story(Desk(store, Played(*answers)))
        finally:
            await store.close()

    asyncio.run(run())
