"""An agent's hands on a platform that can do everything: a real store, a real outbox, a channel in
the process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from channels.base import (
    BeforeSend,
    Capabilities,
    Emit,
    PostPart,
    RoomMembers,
    SendError,
    no_before_send,
)
from gateway.access.place_names import PlaceTitles
from gateway.access.policy import ConversationBinding
from gateway.config.models import AttentionConfig
from gateway.context.conversation import ConversationLocks, ConversationReader
from gateway.context.digest import DigestBuilder
from gateway.core import identity
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Post,
    PostKey,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import (
    Fact,
    PlatformAction,
    PostQueued,
    Seq,
    TurnId,
    inner_conversation,
)
from gateway.core.redaction import Redactor
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import Requester, Tool, ToolContext, ToolOutput, tools_of
from gateway.plugins.messaging import MessageActions, Messaging
from gateway.plugins.read_room import RoomReader
from gateway.store import NewEntry, Store
from gateway.stream.attention import InternalIntake
from gateway.stream.media import MediaStore
from gateway.stream.outbox import Outbox, OutgoingFiles
from gateway.stream.presence import PresenceTracker
from gateway.stream.routing import BindingPattern, Bindings
from gateway.tools.dispatch import ToolDispatcher
from tests.gateway.plugins.files.files_kit import agent_files
from tests.kits.agent import digests_of
from tests.kits.handle import handle_of
from tests.kits.places import PlayedChannels, privacy
from tests.kits.plugins import plugins_of
from tests.kits.policies import attention_of
from tests.kits.settings import live_settings
from tests.kits.store import NOW, Fate, taken_in, turn
from tests.kits.tasks import LooseTasks
from tests.kits.tools import dispatcher

NAME = ChannelName("tg.test")
ROOM = Address(channel=NAME, room=RoomId("#room"))
OTHER = Address(channel=NAME, room=RoomId("#other"))
STAFF = Address(channel=NAME, room=RoomId("#staff"))
"""A room that the operator calls private."""
PEER = Address(channel=NAME, room=RoomId("#peer"))
"""Another agent's."""
ANN = Address(channel=NAME, room=RoomId("ann"))
"""A direct chat."""
OWNER = Address(channel=NAME, room=RoomId("olga"))
"""The owner's."""
OWN = Address.parse(inner_conversation("reverie"))
PRIVATE = (STAFF, ANN, OWNER)
DIRECT = (ANN, OWNER)
WHO = identity.AccessPolicy(
    dm_policy="open",
    roles={f"{NAME}:olga": "owner", f"{NAME}:mia": "member"},
    open_rooms={NAME: frozenset(place.room for place in (ROOM, OTHER, STAFF, PEER))},
)


class Stage:
    """A channel that can do everything, and fails as it is told to."""

    name = NAME

    def __init__(self) -> None:
        self.capabilities = Capabilities(platform="Stage", formatting="", max_file_bytes=1_000)
        self.done: list[tuple[str, ...]] = []
        """What was done besides sending."""
        self.sent: list[PostPart] = []
        self.fails: SendError | None = None
        self.hold: asyncio.Event | None = None
        """What is done waits for it."""
        self.present = RoomMembers(members=())

    async def run(self, emit: Emit) -> None:
        raise AssertionError(f"not used here: {emit}")

    def split(self, post: Post) -> tuple[str, ...]:
        return tuple(post.text.split("|"))

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        await going()
        self.sent.append(part)
        return Receipt(ids=(MessageId(f"p{len(self.sent)}"),))

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        await self._do("react" if add else "unreact", at.room, message, reaction)

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        await self._do("edit", at.room, message, text)

    async def delete(self, at: Address, message: MessageId) -> None:
        await self._do("delete", at.room, message)

    async def set_topic(self, at: Address, topic: str) -> None:
        await self._do("topic", at.room, topic)

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        await self._do("people", at.room, str(most))
        return self.present

    async def _do(self, *what: str) -> None:
        if self.hold is not None:
            self.done.append(("begun", *what))
            await self.hold.wait()
        if self.fails is not None:
            raise self.fails
        self.done.append(what)


class Deaf:
    """A channel that can only speak."""

    name = NAME
    capabilities = Capabilities(platform="Deaf", formatting="")

    async def run(self, emit: Emit) -> None:
        raise AssertionError(f"not used here: {emit}")

    def split(self, post: Post) -> tuple[str, ...]:
        return (post.text,)

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        await going()
        return Receipt(ids=(MessageId(part.key),))


def at(
    place: Address, *askers: str, turn_id: str = "t", everything: bool | None = None
) -> ToolContext:
    """A turn there; `askers` by their ids."""
    scope = place.conversation if place in PRIVATE else PUBLIC
    people = tuple(
        Requester(
            id=SenderId(who), name=who, role=WHO.roles.get(f"{NAME}:{who}", "guest"), verified=True
        )
        for who in askers
    )
    sight = Visibility(
        scope=scope, sees_everything=place == OWNER if everything is None else everything
    )
    return ToolContext(
        turn=TurnId(turn_id),
        agent="reverie",
        at=place,
        visibility=sight,
        autonomous=not askers,
        requesters=people,
    )


@dataclass
class Stagehands:
    """All of it, wired as the gateway does."""

    store: Store
    clock: ManualClock
    stage: Stage | Deaf
    outbox: Outbox
    tools: list[Tool]
    hands: ToolDispatcher
    files: Path
    """The agent's."""
    digests: DigestBuilder
    locks: ConversationLocks
    titles: PlaceTitles
    tasks: LooseTasks = field(default_factory=LooseTasks)
    up: bool = True

    def put(self, path: str, data: bytes) -> None:
        """Put a file where the agent has its own."""
        file = self.files / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def link(self, *, up: bool) -> None:
        self.up = up
        self.outbox.set_link_up(NAME, up=up)

    async def say(
        self,
        number: int,
        text: str,
        place: Address = ROOM,
        *,
        who: str = "ann",
        fate: Fate = "due",
        reply_to: str | None = None,
        urgency: Literal[2, 3] = 3,
    ) -> Seq:
        """Somebody says something, and it is judged. Where it stands."""
        message = Message(
            id=MessageId(str(number)),
            at=place,
            sender=Sender(id=SenderId(who), name=who.title(), verified=True),
            text=text,
            sent=NOW + timedelta(minutes=number),
            kind="direct" if place in DIRECT else "mention",
            reply_to=MessageId(reply_to) if reply_to is not None else None,
        )
        return await self.happen(message, fate, urgency)

    async def happen(
        self,
        event: Message | MessageEdited | MessageDeleted,
        fate: Fate = "noted",
        urgency: Literal[2, 3] = 3,
    ) -> Seq:
        return (await self.store.append(taken_in(event, fate, urgency=urgency)))[0].seq

    async def post(self, text: str, place: Address = ROOM, *, agent: str = "reverie") -> Seq:
        """A turn ends with an answer, which is delivered. Where the post stands."""
        ended = turn(place.conversation, upto=10_000, text=text, agent=agent)
        key = f"{place.room}:{text[:20]}"
        return await self.queue(Post(key=PostKey(key), to=place, text=text), ended)

    async def queue(self, post: Post, cause: NewEntry | None = None) -> Seq:
        queued = NewEntry(
            fact=PostQueued(post=post),
            at=NOW,
            conversation=post.to.conversation,
            key=f"post:{post.key}",
            cause=cause,
        )
        *_, at_ = await self.store.append([*([cause] if cause is not None else []), queued])
        if self.up:
            await self.delivered()
        return at_.seq

    async def delivered(self) -> None:
        async with asyncio.timeout(120):
            while self.tasks.running:
                await asyncio.wait(self.tasks.running)

    async def facts(self, *kinds: str) -> list[Fact]:
        return [one.fact for one in await self.store.entries(kinds=kinds)]

    async def acted(self) -> list[tuple[str, str]]:
        return [
            (one.what, one.state)
            for one in await self.facts("acted")
            if isinstance(one, PlatformAction)
        ]

    async def read(self, where: ToolContext, **asked: object) -> list[str]:
        """Lines of `read_room`, below the first."""
        given = await self.hand("read_room", where, **asked)
        assert isinstance(given, ToolOutput)
        assert given.is_untrusted
        return given.text.split("\n")[1:]

    async def hand(self, name: str, where: ToolContext, **asked: object) -> str | ToolOutput:
        """Carry one out, past the gate. Raises Refused."""
        (hand,) = [one for one in self.tools if one.spec.name == name]
        return await hand.handler(where, **asked)


@contextlib.asynccontextmanager
async def stagehands(tmp: Path, stage: Stage | Deaf | None = None) -> AsyncIterator[Stagehands]:
    """Open the store, and the house."""
    clock, played = ManualClock(NOW), stage or Stage()
    async with await Store.open(tmp / "s.db", clock) as store:
        tasks = LooseTasks()
        bounds = {
            "#staff": ConversationBinding(listen="all", agent="reverie", private=True),
            "#peer": ConversationBinding(listen="all", agent="peer", private=False),
            "*": ConversationBinding(listen="all", agent="reverie", private=False),
        }
        patterns = [
            BindingPattern(channel="*", room=room, thread=None, binding=bound)
            for room, bound in bounds.items()
        ]
        bindings = Bindings(patterns)
        places, files, channels = privacy(store, bindings), OutgoingFiles(store), {NAME: played}
        outbox = Outbox(store, channels, clock, tasks, files=files, redactor=Redactor())
        presence = PresenceTracker(live_settings(attention=AttentionConfig()), clock, WHO)
        presence.set_level("present")
        attention = attention_of(store, presence=presence)
        await attention.load()
        internal = InternalIntake(store, clock, attention, bindings)
        locks = ConversationLocks()
        media = MediaStore(live_settings(), Path("/nonexistent"), {}, clock)
        reader = ConversationReader(handle_of(store, clock, people=WHO), media)
        digests = digests_of(
            "reverie", reader, store=store, clock=clock, places=places, locks=locks
        )
        gateway = handle_of(
            store, clock, channels=PlayedChannels(channels), people=WHO, places=places
        )
        own_files = agent_files(tmp / "files", store)
        plugins = plugins_of(
            RoomReader,
            Messaging,
            MessageActions,
            gateway=gateway,
            internal=internal,
            locks=locks,
            digests={"reverie": digests},
            files=own_files,
            outgoing=files,
        )
        tools = tools_of(*plugins.all)
        await outbox.open()
        outbox.set_link_up(NAME, up=True)
        own = own_files.directory("reverie") / "public"
        yield Stagehands(
            store,
            clock,
            played,
            outbox,
            tools,
            dispatcher(tools),
            own,
            digests,
            locks,
            places.titles,
            tasks,
        )
        await outbox.drain(0)
        await outbox.close()
