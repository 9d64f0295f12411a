"""An agent's pencil and papers, on a real store and real files."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.prompt import PromptLine
from gateway.access.policy import ConversationBinding
from gateway.config.reload import LiveSettings
from gateway.context.conversation import RenderedMessage
from gateway.context.history import HistoryTurn
from gateway.core import private_files
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
from gateway.core.facts import (
    Fact,
    NoteWritten,
    Seq,
    TurnId,
    TurnRecord,
    inner_conversation,
)
from gateway.core.labels import TRUSTED_LABEL
from gateway.core.redaction import Redactor
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.hooks import Plugins
from gateway.plugin import Part, TurnView
from gateway.plugins.memory import Memory
from gateway.plugins.recall import Recall, RecallSettings
from gateway.store import NewEntry, Store
from gateway.stream.attention import InternalIntake
from gateway.stream.routing import BindingPattern, Bindings, PrivacyCache
from reverie.testing.gateway import settings
from tests.kits.handle import handle_of
from tests.kits.places import privacy
from tests.kits.plugins import plugins_of
from tests.kits.policies import attention_of
from tests.kits.store import NOW, Fate, taken_in, turn

ROOM = Address(channel=ChannelName("irc.test"), room=RoomId("#room"))
ANN = Address(channel=ChannelName("irc.test"), room=RoomId("ann"))
"""A direct chat of somebody who is not the owner."""
BOB = Address(channel=ChannelName("tg.test"), room=RoomId("7"))
"""Another one's."""
OWNER = Address(channel=ChannelName("tg.test"), room=RoomId("1"))
"""The owner's."""
STAFF = Address(channel=ChannelName("irc.test"), room=RoomId("#staff"))
"""A room that the operator calls private."""
OWN = Address.parse(inner_conversation("reverie"))
PRIVATE = (ANN, BOB, OWNER, STAFF)
PLACES = (*PRIVATE, ROOM, OWN)


NOTHING = Part(block="recall", text="", label=TRUSTED_LABEL)
NOT_YET = 1_000_000
"""Where the log does not come to."""


def sight_of(context: ToolContext) -> tuple[Visibility, ConversationId]:
    """What may be shown there, and where that is."""
    return context.visibility, context.at.conversation


def at(place: Address, *, agent: str = "reverie", everything: bool | None = None) -> ToolContext:
    scope = place.conversation if place in PRIVATE else PUBLIC
    own = frozenset([place.conversation])
    sight = Visibility(
        scope=scope,
        other_scopes=own,
        sees_everything=place == OWNER if everything is None else everything,
    )
    return ToolContext(turn=TurnId("t"), agent=agent, at=place, visibility=sight, autonomous=False)


def _line(text: str, *, is_addressed: bool) -> RenderedMessage:
    line = PromptLine(sender="Ulla", role="guest", sent=NOW, text=text, is_addressed=is_addressed)
    return RenderedMessage(seq=Seq(NOT_YET), sender=SenderId("Ulla"), line=line)


@dataclass
class Papers:
    """All of it, wired as the gateway does."""

    store: Store
    clock: ManualClock
    plugins: Plugins
    memory: Memory
    recalling: Recall
    live: LiveSettings
    places: PrivacyCache
    directory: Path
    """Of the journal and of MEMORY.md."""

    @property
    def journal(self) -> Path:
        return self.directory / private_files.JOURNAL_FILE

    async def write_entry(self, context: ToolContext, title: str, text: str) -> str:
        return await self.memory.journal(context, title=title, text=text)

    async def remember(self, context: ToolContext, text: str) -> str:
        return await self.memory.remember(context, text=text)

    @property
    def material_tokens(self) -> int:
        return self.memory.dreamer.material_tokens("reverie")

    async def recall(self, context: ToolContext, query: str) -> str:
        return (await self.recalling.recall(context, query=query)).text

    async def recalled(
        self,
        context: ToolContext,
        *lines: str,
        is_addressed: bool = True,
        since: int | None = None,
        seen: Sequence[str] = (),
        memory: str = "",
        config: RecallSettings | None = None,
    ) -> Part:
        """What such messages call to mind. `since`: where the first turn in view ended; `seen`:
        what was told in it."""
        changed = {"recall": config or RecallSettings(ambient_tokens=1_000)}
        self.live.put_in_force(self.live.settings.model_copy(update=changed))
        ended = await self.store.entry(Seq(since)) if since is not None else None
        earlier = (ended or turn(context.at.conversation, upto=0)).fact
        assert isinstance(earlier, TurnRecord)
        earlier = replace(earlier, recalled=tuple(seen))
        seq = Seq(NOT_YET if since is None else since)
        view = TurnView(
            context=context,
            lines=[_line(text, is_addressed=is_addressed) for text in lines],
            past=[] if since is None and not seen else [HistoryTurn.from_record(seq, earlier, NOW)],
            memory=memory,
        )
        return next(iter(await self.recalling.parts(view)), NOTHING)

    async def say(
        self,
        number: int,
        text: str,
        place: Address = ROOM,
        *,
        fate: Fate = "due",
        who: str = "Ulla",
        role: str = "guest",
    ) -> None:
        """Somebody says something, and it is judged."""
        direct = place in PRIVATE and place != STAFF
        message = Message(
            id=MessageId(str(number)),
            at=place,
            sender=Sender(id=SenderId(who), name=who),
            text=text,
            sent=NOW,
            kind="direct" if direct else "mention",
        )
        await self.store.append(taken_in(message, fate, role=role))

    async def noted(self, agent: str = "reverie") -> list[NoteWritten]:
        found = await self.store.newest_entries(100, kinds=["noted"])
        return [
            one.fact
            for one in found
            if isinstance(one.fact, NoteWritten) and one.fact.agent == agent
        ]

    async def append(self, place: Address, *facts: Fact) -> None:
        await self.store.append(
            [NewEntry(fact=fact, at=NOW, conversation=place.conversation) for fact in facts]
        )


@contextlib.asynccontextmanager
async def papers(
    tmp: Path,
    *,
    agents: tuple[str, ...] = ("reverie",),
    tasks: asyncio.TaskGroup | None = None,
    redactor: Redactor | None = None,
) -> AsyncIterator[Papers]:
    """Open them, as a start does."""
    clock = ManualClock(NOW)
    known = [
        {"id": one, "bindings": [{"match": {"room": f"#of-{one}"}}]}
        for one in ("reverie", "echo", "bob", "peer")
    ]
    live = LiveSettings(settings(tmp, agents=known, store={"path": "s.db"}))
    async with await Store.open(live.settings.store.path, clock) as store:
        staff = BindingPattern(
            channel="irc.*",
            room="#staff",
            thread=None,
            binding=ConversationBinding(listen="all", private=True),
        )
        rest = BindingPattern(
            channel="*",
            room="*",
            thread=None,
            binding=ConversationBinding(listen="all", private=False),
        )
        bindings = Bindings([staff, rest])
        places = privacy(store, bindings)
        gateway = handle_of(store, clock, live=live, places=places, tasks=tasks, redactor=redactor)
        internal = InternalIntake(store, clock, attention_of(store, live.settings), bindings)
        plugins = plugins_of(Memory, Recall, gateway=gateway, internal=internal)
        memory, recalling = plugins.get(Memory), plugins.get(Recall)
        assert memory is not None
        assert recalling is not None
        for agent in agents:
            await memory.recover(agent)
        yield Papers(
            store=store,
            clock=clock,
            plugins=plugins,
            memory=memory,
            recalling=recalling,
            live=live,
            places=places,
            directory=live.agent_directory(agents[0]),
        )
        await plugins.stop()
