"""Several agents in one gateway, taken apart: which one takes a turn, and what becomes of one that breaks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from agent.models.scripted import ScriptedModel
from gateway.config.reload import LiveSettings
from gateway.context.observer import TurnTracker
from gateway.context.prompt_context import ChannelCards
from gateway.context.services import BackgroundServices, ServiceCallbacks
from gateway.core.clock import ManualClock
from gateway.core.events import Address, ChannelName, ConversationId, Message, MessageId, RoomId, Sender, SenderId
from gateway.core.facts import Judgement, TurnRecord
from gateway.core.redaction import Redactor
from gateway.runtime.agent import GatewayServices
from gateway.runtime.agents import Agents
from gateway.runtime.lane import TurnHandle
from gateway.runtime.models import open_model_services
from gateway.runtime.turn import TurnResult
from gateway.store import NewEntry, Store
from gateway.stream import policies
from gateway.stream.media import MediaStore
from gateway.stream.outbox import OutgoingFiles
from gateway.stream.preview import TurnPreviews
from gateway.tools.platform import ConversationLocks
from gateway.tools.registry import ToolRegistry, ToolServices
from tests.kits.gateway import CONSOLE, settings

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
    live = LiveSettings(made)
    who, model = policies.build_access_policy(made), ScriptedModel(clock=clock)
    async with (
        open_model_services(live, clock, model=model) as equipment,
        await Store.open(tmp / "reverie.db", clock) as store,
        asyncio.TaskGroup() as tasks,
    ):
        bindings = policies.build_bindings(made)
        ears = ServiceCallbacks(on_arrival=lambda _: None, on_alarm=lambda _: None, on_presence=lambda _: None)
        life, media = (
            BackgroundServices(
                live=live,
                store=store,
                clock=clock,
                access_policy=who,
                attention_policy=policies.build_attention_policy(made),
                bindings=bindings,
                callbacks=ears,
                redactor=Redactor(),
            ),
            MediaStore(made.media, tmp / "media", {}, clock),
        )
        tooling = ToolRegistry(
            ToolServices(
                live=live,
                store=store,
                clock=clock,
                channels={},
                life=life,
                access_policy=who,
                bindings=bindings,
                media=media,
                outfiles=OutgoingFiles(store),
                post=lambda _: None,
                command_prefixes={},
                tasks=tasks,
                turn_tracker=TurnTracker(clock),
                redactor=Redactor(),
            )
        )
        shared = GatewayServices(
            live=live,
            store=store,
            clock=clock,
            bindings=bindings,
            access_policy=who,
            room_locks=ConversationLocks(),
            channels=frozenset({CONSOLE}),
            background_services=life,
            tool_registry=tooling,
            has_waiting=lambda _: False,
            tasks=tasks,
            channel_cards=ChannelCards(store, clock, {}, who, redactor=Redactor()),
            media=media,
            previews=TurnPreviews(store, clock, {}, tasks, redactor=Redactor()),
            post=lambda _: None,
            on_answered=lambda *_: None,
            turn_tracker=TurnTracker(clock),
            on_compacted=lambda *_: None,
            redactor=Redactor(),
        )
        yield Agents(shared, equipment, {}), store


def test_no_command_sees_the_configuration_the_store_or_what_is_an_agents_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with minds(tmp_path) as (all_minds, store):
            tooling = all_minds.agent_for(place("garden").conversation)._services.tool_registry
            tooling._services = replace(tooling._services, directory=tmp_path / "config")
            ana, max_ = tooling._services.live.settings.agents
            own = [
                tooling.files_directory(ana),
                tooling.files_directory(max_),
                *(one.workspace for one in (ana, max_) if one.workspace),
            ]
            assert {*tooling._hidden_directories()} == {store.path.parent, tmp_path / "config", *own}

    asyncio.run(story())


async def take(minds: Agents, conversation: ConversationId) -> TurnResult:
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
    await store.append([noticed, NewEntry(fact=judged, at=NOW, conversation=message.at.conversation, cause=noticed)])


async def agents(store: Store) -> list[tuple[str, str]]:
    turns = [one.fact for one in await store.entries(kinds=["turn_ended"])]
    return [(one.agent, one.outcome) for one in turns if isinstance(one, TurnRecord)]


def test_what_matches_no_binding_any_more_is_still_dealt_with(tmp_path: Path) -> None:
    async def story() -> None:
        async with minds(tmp_path) as (mind, store):
            for room in ("lobby", "garden", "hall"):
                await say(store, room)
                await take(mind, place(room).conversation)
            assert await agents(store) == [("max", "replied"), ("ana", "replied"), ("ana", "replied")]
            assert await store.due_conversations(0) == []

    asyncio.run(story())


def test_who_said_nothing_is_told_of_no_failure(tmp_path: Path) -> None:
    async def story() -> None:
        async with minds(tmp_path) as (mind, store):
            lobby = place("lobby").conversation
            report = await mind.agent_for(lobby).give_up(lobby, "internal error: KeyError", autonomous=True)
            assert report.has_failed
            assert await store.undelivered_posts() == []
            await say(store, "lobby")
            await mind.agent_for(lobby).give_up(lobby, "internal error: KeyError", autonomous=False)
            assert [post.post.to for post in await store.undelivered_posts()] == [place("lobby")]
            await say(store, "lobby", 2)
            await take(mind, lobby)
            assert await agents(store) == [("max", "failed"), ("max", "replied")]

    asyncio.run(story())


def test_a_channel_that_is_gone_does_not_end_its_conversations(tmp_path: Path) -> None:
    async def story() -> None:
        async with minds(tmp_path) as (mind, _):
            gone = Address(channel=ChannelName("irc.gone"), room=RoomId("#x")).conversation
            assert not (await take(mind, gone)).has_failed
            assert await mind.agent_for(gone).unread_urgency(gone) == 0

    asyncio.run(story())
