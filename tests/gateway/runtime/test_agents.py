"""Several agents in one gateway, taken apart: which one takes a turn, and what becomes of one that
breaks."""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from agent.models.scripted import ScriptedModel
from agent.signals import TurnEnded
from gateway.app import open_services
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    ConversationId,
    Message,
    MessageId,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import Judgement, TurnRecord
from gateway.runtime.agents import Agents
from gateway.runtime.turn_handle import TurnHandle
from gateway.store import NewEntry, Store
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, settings

AGENTS = [
    {"id": "ana", "bindings": [{"match": {"room": "garden"}}]},
    {"id": "max", "model": "main", "bindings": [{"match": {"room": "lobby"}}]},
]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def place(room: str) -> Address:
    return Address(channel=CONSOLE, room=RoomId(room))


@contextlib.asynccontextmanager
async def minds(tmp: Path) -> AsyncIterator[tuple[Agents, Store]]:
    clock, made = ManualClock(NOW), settings(tmp, ("garden", "lobby", "hall"), agents=AGENTS)
    console = ConsoleChannel(CONSOLE, lambda _: None, now=clock.now)
    store = await Store.open(tmp / "reverie.db", clock)
    services = open_services(
        LiveSettings(made), clock, {CONSOLE: console}, store, model=ScriptedModel(clock=clock)
    )
    async with services as (gateway, tasks):
        await gateway.inbox.close()  # nobody but `take` begins a turn
        await gateway.load()
        yield gateway.agents, store
        tasks.cancel()


async def take(minds: Agents, conversation: ConversationId) -> TurnEnded:
    return await minds.agent_for(conversation).take_turn(
        conversation, autonomous=False, continuing=False, handle=TurnHandle()
    )


async def say(store: Store, room: str, number: int = 1) -> None:
    message = Message(
        id=MessageId(f"{room}-{number}"),
        at=place(room),
        sender=Sender(id=SenderId("ann"), name="ann"),
        text="hello",
        sent=NOW,
        kind="mention",
    )
    noticed = NewEntry(fact=message, at=NOW, conversation=message.at.conversation)
    judged = Judgement(type="console.mention", urgency=3, fate="due", rule="test", role="guest")
    await store.append(
        [
            noticed,
            NewEntry(fact=judged, at=NOW, conversation=message.at.conversation, cause=noticed),
        ]
    )


async def agents(store: Store) -> list[tuple[str, str]]:
    turns = [one.fact for one in await store.entries(kinds=["turn_ended"])]
    return [(one.agent, one.outcome) for one in turns if isinstance(one, TurnRecord)]


async def test_what_matches_no_binding_any_more_is_still_dealt_with(tmp_path: Path) -> None:
    async with minds(tmp_path) as (mind, store):
        for room in ("lobby", "garden", "hall"):
            await say(store, room)
            await take(mind, place(room).conversation)
        assert await agents(store) == [
            ("max", "replied"),
            ("ana", "replied"),
            ("ana", "replied"),
        ]
        assert await store.due_conversations(0) == []


async def test_who_said_nothing_is_told_of_no_failure(tmp_path: Path) -> None:
    async with minds(tmp_path) as (mind, store):
        lobby = place("lobby").conversation
        report = await mind.agent_for(lobby).give_up(
            lobby, "internal error: KeyError", autonomous=True
        )
        assert report.failed
        assert await store.undelivered_posts() == []
        await say(store, "lobby")
        await mind.agent_for(lobby).give_up(lobby, "internal error: KeyError", autonomous=False)
        assert [post.post.to for post in await store.undelivered_posts()] == [place("lobby")]
        await say(store, "lobby", 2)
        await take(mind, lobby)
        assert await agents(store) == [("max", "failed"), ("max", "replied")]


async def test_a_channel_that_is_gone_does_not_end_its_conversations(tmp_path: Path) -> None:
    async with minds(tmp_path) as (mind, _):
        gone = Address(channel=ChannelName("irc.gone"), room=RoomId("#x")).conversation
        assert not (await take(mind, gone)).failed
        assert await mind.agent_for(gone).unread_urgency(gone) == 0
