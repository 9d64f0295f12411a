"""Several agents in one gateway, taken apart: which one takes a turn, and what becomes of one that
breaks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from agent.models.scripted import ScriptedModel
from gateway.config.reload import LiveSettings
from gateway.context.conversation import ConversationReader
from gateway.context.dream import Dreamer
from gateway.context.evidence import EvidenceStore
from gateway.context.journal import JournalStore
from gateway.context.memory import MemoryStore
from gateway.context.observer import TurnTracker
from gateway.context.prompt_context import ChannelCards
from gateway.context.recall import AmbientRecall
from gateway.context.recap import RecapBuilder
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
from gateway.core.redaction import Redactor
from gateway.runtime.agents import Agents
from gateway.runtime.dream_turn import DreamRunner
from gateway.runtime.loop import TurnHandle, TurnResult
from gateway.runtime.models import open_model_services
from gateway.store import NewEntry, Store
from gateway.stream.inbox import ConversationInbox
from gateway.stream.internal import InternalIntake
from gateway.stream.media import MediaStore
from gateway.stream.mute import MutePlaces
from gateway.stream.presence import PresenceTracker
from gateway.stream.preview import TurnPreviews
from gateway.tools.agent import SkillTools
from gateway.tools.approvals import Approvals
from gateway.tools.dispatch import PermissionGate
from gateway.tools.mcp.client import McpServers
from gateway.tools.mcp.review import ToolDefinitionReview
from gateway.tools.platform import MessagingTools
from gateway.tools.read_room import RoomReader
from gateway.tools.registry import ToolRegistry
from gateway.tools.shell import ShellTools
from gateway.tools.workspace_fs import AgentFiles
from tests.kits.gateway import CONSOLE, settings
from tests.kits.owners import NotedNotices
from tests.kits.places import PlayedChannels, privacy, titles
from tests.kits.policies import attention_of, bindings_of, policy_of
from tests.kits.tools import running_calls

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
    who, model = policy_of(made), ScriptedModel(clock=clock)
    async with (
        open_model_services(live, clock, model=model) as equipment,
        await Store.open(tmp / "reverie.db", clock) as store,
        asyncio.TaskGroup() as tasks,
    ):
        bindings = bindings_of(made)
        media = MediaStore(live, tmp / "media", {}, clock)
        places, presence = privacy(store, bindings), PresenceTracker(live, clock, who)
        internal = InternalIntake(store, clock, attention_of(store, made), bindings, presence)
        journal = JournalStore(store, clock, live.agent_directory)
        memory = MemoryStore(store, clock, live.agent_directory)
        owners = NotedNotices(store, clock)
        skills, files = SkillTools(live, bindings), AgentFiles(live, store.path, places)
        approvals = Approvals(
            store=store,
            clock=clock,
            live=live,
            places=places,
            access_policy=who,
            channels=PlayedChannels(prefixes={}),
            definitions=ToolDefinitionReview(store, clock, tasks, owners),
        )
        rooms = RoomReader(
            reader=store,
            places=places,
            bindings=bindings,
            access_policy=who,
            channels={},
            redactor=Redactor(),
        )
        messaging = MessagingTools(
            store=store,
            clock=clock,
            bindings=bindings,
            places=places,
            access_policy=who,
            channels=(CONSOLE,),
            internal=internal,
        )
        tooling = ToolRegistry(
            live=live,
            gate=PermissionGate(live, store, clock, approvals, who, places),
            running=running_calls(),
            redactor=Redactor(),
            mcp=McpServers({}, clock, tasks),
            shell=ShellTools(
                live,
                clock,
                files,
                skills,
                internal,
                access_policy=who,
                places=places,
            ),
            families={"itself": [messaging, skills], "rooms": [rooms]},
        )
        dreamer = Dreamer(store, journal, memory)
        yield (
            Agents(
                store=store,
                clock=clock,
                tasks=tasks,
                models=equipment,
                places=places,
                presence=presence,
                dreams=DreamRunner(dreamer, journal, internal),
                evidence=EvidenceStore(store, clock, places, media),
                ambient_recall=AmbientRecall(
                    store, places, memory, journal, clock, Redactor(), live
                ),
                recaps=RecapBuilder(store, places, Redactor(), clock, live),
                registry=tooling,
                skills=skills,
                reader=ConversationReader(store, who, media, Redactor()),
                media=media,
                bindings=bindings,
                cards=ChannelCards(store, clock, {}, who, redactor=Redactor()),
                messaging=messaging,
                inbox=(inbox := ConversationInbox(clock, live)),
                mute=MutePlaces(
                    store,
                    clock,
                    PlayedChannels(),
                    tasks,
                    owners=owners,
                    titles=titles(store),
                    inbox=inbox,
                ),
                previews=TurnPreviews(store, clock, {}, tasks, redactor=Redactor()),
                tracker=TurnTracker(),
                limits=None,
                states={},
                chosen={},
            ),
            store,
        )


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
        assert report.has_failed
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
        assert not (await take(mind, gone)).has_failed
        assert await mind.agent_for(gone).unread_urgency(gone) == 0
