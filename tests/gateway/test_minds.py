"""Several agents in one gateway, taken apart: which one takes a turn, and what becomes of one that breaks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from agent.models.scripted import ScriptedModel
from gateway import policies
from gateway.cards import Cards
from gateway.clock import ManualClock
from gateway.equipment import equip
from gateway.events import Address, ChannelName, Message, MessageId, RoomId, Sender, SenderId
from gateway.live import Live
from gateway.media import Media
from gateway.minds import Minds, Shared
from gateway.preview import Signs
from gateway.records import Judged, TurnEnded
from gateway.store import Entry, Store
from tests.gateway.kit import CONSOLE, settings

AGENTS = [
    {"id": "ana", "bindings": [{"match": {"room": "garden"}}]},
    {"id": "max", "model": "main", "bindings": [{"match": {"room": "lobby"}}]},
]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def place(room: str) -> Address:
    return Address(channel=CONSOLE, room=RoomId(room))


@contextlib.asynccontextmanager
async def minds(tmp: Path) -> AsyncIterator[tuple[Minds, Store]]:
    clock, made = ManualClock(NOW), settings(tmp, ("garden", "lobby", "hall"), agents=AGENTS)
    who, model = policies.access_policy(made), ScriptedModel(clock=clock)
    async with (
        equip(made, clock, Live(made), model=model) as equipment,
        await Store.open(tmp / "reverie.db", clock) as store,
        asyncio.TaskGroup() as tasks,
    ):
        shared = Shared(
            settings=made,
            store=store,
            clock=clock,
            bindings=policies.bindings(made),
            who=who,
            cards=Cards(store, clock, {}, who),
            media=Media(made.media, tmp / "media", {}, clock),
            signs=Signs(store, clock, {}, tasks.create_task),
            post=lambda _: None,
            answered=lambda *_: None,
        )
        yield Minds(shared, equipment), store


async def say(store: Store, room: str, number: int = 1) -> None:
    message = Message(
        id=MessageId(f"{room}-{number}"),
        at=place(room),
        sender=Sender(id=SenderId("ann"), name="ann"),
        text="hello",
        sent=NOW,
        kind="mention",
    )
    noticed = Entry(fact=message, at=NOW, conversation=message.at.conversation)
    judged = Judged(type="console.mention", urgency=3, fate="due", rule="test", role="guest")
    await store.append([noticed, Entry(fact=judged, at=NOW, conversation=message.at.conversation, cause=noticed)])


async def agents(store: Store) -> list[tuple[str, str]]:
    turns = [one.fact for one in await store.entries(kinds=["turn_ended"])]
    return [(one.agent, one.outcome) for one in turns if isinstance(one, TurnEnded)]


def test_what_matches_no_binding_any_more_is_still_dealt_with(tmp_path: Path) -> None:
    async def story() -> None:
        async with minds(tmp_path) as (mind, store):
            for room in ("lobby", "garden", "hall"):
                await say(store, room)
                await mind.take(place(room).conversation, autonomous=False)
            assert await agents(store) == [("max", "replied"), ("ana", "replied"), ("ana", "replied")]
            assert await store.due(0) == []

    asyncio.run(story())


def test_who_said_nothing_is_told_of_no_failure(tmp_path: Path) -> None:
    async def story() -> None:
        async with minds(tmp_path) as (mind, store):
            lobby = place("lobby").conversation
            report = await mind.give_up(lobby, "internal error: KeyError", autonomous=True)
            assert report.failed
            assert await store.outbox() == []
            await say(store, "lobby")
            await mind.give_up(lobby, "internal error: KeyError", autonomous=False)
            assert [post.post.to for post in await store.outbox()] == [place("lobby")]
            await say(store, "lobby", 2)
            await mind.take(lobby, autonomous=False)
            assert await agents(store) == [("max", "failed"), ("max", "replied")]

    asyncio.run(story())


def test_a_channel_that_is_gone_does_not_end_its_conversations(tmp_path: Path) -> None:
    async def story() -> None:
        async with minds(tmp_path) as (mind, _):
            gone = Address(channel=ChannelName("irc.gone"), room=RoomId("#x")).conversation
            assert not (await mind.take(gone, autonomous=False)).failed
            assert await mind.left(gone) == 0

    asyncio.run(story())
