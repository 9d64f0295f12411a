"""An agent's pencil and papers, on a real store and real files."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.prompt import PromptLine
from gateway.access.policy import ConversationBinding
from gateway.config.reload import LiveSettings
from gateway.context.conversation import RenderedMessage
from gateway.context.dream import Dreamer
from gateway.context.history import HistoryTurn
from gateway.context.journal import JournalStore, NoteForgetter
from gateway.context.memory import MemoryStore
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
    Judgement,
    NoteWritten,
    Seq,
    TurnId,
    TurnRecord,
    dedup_key,
    inner_conversation,
)
from gateway.core.labels import TRUSTED_LABEL
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.plugin import Part, TurnView
from gateway.plugins.recall import Recall, RecallSettings
from gateway.store import NewEntry, Store
from gateway.stream.routing import BindingPattern, Bindings, PrivacyCache
from tests.kits.handle import handle_of
from tests.kits.places import privacy
from tests.kits.plugins import plugin_of
from tests.kits.settings import reload
from tests.kits.store import NOW, Fate, turn

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
    """A turn there."""
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
    notes: JournalStore
    memory: MemoryStore
    recalling: Recall
    live: LiveSettings
    dreaming: Dreamer
    forgetting: NoteForgetter
    places: PrivacyCache
    directory: Path
    """Of the journal and of MEMORY.md."""

    @property
    def journal(self) -> Path:
        return self.directory / private_files.JOURNAL_FILE

    async def recall(self, context: ToolContext, query: str) -> str:
        """What the tool finds."""
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
        reload(self.live, recall=config or RecallSettings(ambient_tokens=1_000))
        earlier = turn(context.at.conversation, upto=0).fact
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
        await self.judged(message, fate, role)

    async def judged(self, fact: Message, fate: Fate, role: str = "guest") -> None:
        entry = NewEntry(fact=fact, at=NOW, conversation=fact.at.conversation, key=dedup_key(fact))
        said = Judgement(type="x", urgency=3, fate=fate, rule="r", role=role)
        await self.store.append(
            [entry, NewEntry(fact=said, at=NOW, conversation=fact.at.conversation, cause=entry)]
        )

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
    tmp: Path, *, agents: tuple[str, ...] = ("reverie",), where: Callable[[str], Path] | None = None
) -> AsyncIterator[Papers]:
    """Open them, as a start does."""
    clock = ManualClock(NOW)
    path = tmp / "s.db"
    directory = where or (lambda agent: private_files.agent_state_directory(path, agent))
    async with await Store.open(path, clock) as store:
        notes, memory = JournalStore(store, clock, directory), MemoryStore(store, clock, directory)
        await notes.recover(agents)
        for agent in agents:
            await memory.recover(agent)
        staff = BindingPattern(
            channel="irc.*",
            room="#staff",
            thread=None,
            binding=ConversationBinding(listen="all", private=True),
        )
        places = privacy(
            store,
            Bindings(
                [
                    staff,
                    BindingPattern(
                        channel="*",
                        room="*",
                        thread=None,
                        binding=ConversationBinding(listen="all", private=False),
                    ),
                ]
            ),
        )
        gateway = handle_of(store, clock, places=places)
        forgetting = NoteForgetter(gateway, notes, memory)
        await forgetting.recover(agents)
        yield Papers(
            store=store,
            clock=clock,
            notes=notes,
            memory=memory,
            recalling=plugin_of(Recall, gateway=gateway, journal=notes, memory=memory),
            live=gateway.live,
            dreaming=Dreamer(store, notes, memory),
            forgetting=forgetting,
            places=places,
            directory=directory(agents[0]),
        )
        await notes.close()
