"""An agent's pencil and papers, on a real store and real files."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from gateway import own_files
from gateway.bindings import Bindings, Bound, Pattern
from gateway.clock import ManualClock
from gateway.dreaming import Dreaming
from gateway.events import Address, ChannelName, Message, MessageId, RoomId, Sender, SenderId
from gateway.forgetting import Forgetting
from gateway.hands import Whereabouts
from gateway.memory import Memory
from gateway.notes import Notes
from gateway.places import Places
from gateway.recall import Recall
from gateway.recalling import Recalling
from gateway.records import Fact, Judged, Noted, TurnId, inner, key_of
from gateway.scopes import PUBLIC, Sight
from gateway.store import Entry, Store
from tests.store.kit import NOW, Fate

ROOM = Address(channel=ChannelName("irc.test"), room=RoomId("#room"))
ANN = Address(channel=ChannelName("irc.test"), room=RoomId("ann"))
"""A direct chat of somebody who is not the owner."""
BOB = Address(channel=ChannelName("tg.test"), room=RoomId("7"))
"""Another one's."""
OWNER = Address(channel=ChannelName("tg.test"), room=RoomId("1"))
"""The owner's."""
STAFF = Address(channel=ChannelName("irc.test"), room=RoomId("#staff"))
"""A room that the operator calls private."""
OWN = Address.parse(inner("reverie"))
PRIVATE = (ANN, BOB, OWNER, STAFF)
PLACES = (*PRIVATE, ROOM, OWN)


def at(place: Address, *, agent: str = "reverie", everything: bool | None = None) -> Whereabouts:
    """A turn there."""
    scope = place.conversation if place in PRIVATE else PUBLIC
    own = frozenset([place.conversation])
    sight = Sight(scope=scope, other_scopes=own, sees_everything=place == OWNER if everything is None else everything)
    return Whereabouts(turn=TurnId("t"), agent=agent, at=place, visibility=sight, autonomous=False)


@dataclass
class Papers:
    """All of it, wired as the gateway does."""

    store: Store
    clock: ManualClock
    notes: Notes
    memory: Memory
    recall: Recall
    recalling: Recalling
    dreaming: Dreaming
    forgetting: Forgetting
    places: Places
    directory: Path
    """Of the journal and of MEMORY.md."""

    @property
    def journal(self) -> Path:
        return self.directory / own_files.JOURNAL

    async def say(
        self, number: int, text: str, place: Address = ROOM, *, fate: Fate = "due", who: str = "Ulla"
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
        await self.judged(message, fate)

    async def judged(self, fact: Message, fate: Fate) -> None:
        entry = Entry(fact=fact, at=NOW, conversation=fact.at.conversation, key=key_of(fact))
        said = Judged(type="x", urgency=3, fate=fate, rule="r", role="guest")
        await self.store.append([entry, Entry(fact=said, at=NOW, conversation=fact.at.conversation, cause=entry)])

    async def noted(self, agent: str = "reverie") -> list[Noted]:
        found = await self.store.newest_entries(100, kinds=["noted"])
        return [one.fact for one in found if isinstance(one.fact, Noted) and one.fact.agent == agent]

    async def append(self, place: Address, *facts: Fact) -> None:
        await self.store.append([Entry(fact=fact, at=NOW, conversation=place.conversation) for fact in facts])


@contextlib.asynccontextmanager
async def papers(
    tmp: Path, *, agents: tuple[str, ...] = ("reverie",), where: Callable[[str], Path] | None = None
) -> AsyncIterator[Papers]:
    """Open them, as a start does."""
    clock = ManualClock(NOW)
    path = tmp / "s.db"
    directory = where or (lambda agent: own_files.mind(path, agent))
    async with await Store.open(path, clock) as store:
        notes, memory = Notes(store, clock, directory), Memory(store, clock, directory)
        await notes.recover(agents)
        for agent in agents:
            await memory.recover(agent)
        staff = Pattern(channel="irc.*", room="#staff", thread=None, binding=Bound(listen="all", private=True))
        places = Places(
            store,
            Bindings([staff, Pattern(channel="*", room="*", thread=None, binding=Bound(listen="all", private=False))]),
        )
        forgetting = Forgetting(store, clock, places, notes, memory)
        await forgetting.recover(agents)
        yield Papers(
            store=store,
            clock=clock,
            notes=notes,
            memory=memory,
            recall=Recall(store, places, memory.read, notes.read_handwritten),
            recalling=Recalling(store, places, memory.read, notes.read_handwritten, clock),
            dreaming=Dreaming(store, notes, memory),
            forgetting=forgetting,
            places=places,
            directory=directory(agents[0]),
        )
        await notes.close()
