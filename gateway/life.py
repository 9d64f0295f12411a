"""What goes on beside the turns, wired: notes, reminders, who is near, and what happens inside."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.signals import Level
from agent.tools import evidence as proving
from agent.tools import notes as noting
from agent.tools import remind as reminding
from channels.base import Channel
from gateway import access, attention, own_files, policies
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.dreaming import Dreaming
from gateway.events import Alarm, ChannelName, ConversationId
from gateway.evidence import Evidences
from gateway.following import Following
from gateway.forgetting import Forgetting
from gateway.hands import Given, Hand, Whereabouts
from gateway.hands_remind import RemindHands
from gateway.inbox import Arrival
from gateway.inward import Inward
from gateway.live import Live, Takes
from gateway.material import Note
from gateway.memory import Memory
from gateway.notes import Notes
from gateway.places import Places
from gateway.prefetch import Prefetch
from gateway.presence import away_note
from gateway.recall import Recall
from gateway.recalling import Recalling
from gateway.reception import scope_told, space_of
from gateway.redaction import Redact
from gateway.reminders import Reminders
from gateway.settings import Settings
from gateway.store import Store
from gateway.titles import Titles


@dataclass(frozen=True, slots=True, kw_only=True)
class Ears:
    """Who is told what, on the event loop."""

    arrived: Callable[[Arrival], None]
    """Something is unread."""
    rang: Callable[[Alarm], None]
    """A reminder has come, and is unread."""
    presence: Callable[[Level], None]
    """The people came nearer, or went."""


class Life:
    """Everything of it, for all agents."""

    def __init__(
        self,
        *,
        live: Live,
        store: Store,
        clock: Clock,
        who: access.Policy,
        attend: attention.Policy,
        bindings: Bindings,
        ears: Ears,
        channels: Mapping[ChannelName, Channel] | None = None,
        propose: Callable[[str, Sequence[Note]], Awaitable[None]] | None = None,
        redact: Redact | None = None,
        titles: Titles | None = None,
    ) -> None:
        """`channels`: those that there are just now. None: none tells who can read what is said.

        `propose`: as of `gateway.dreaming.Dreaming`.
        """
        self._store = store
        self._who = who
        self._ears = ears
        settings = live.settings
        self._live = live
        self._agents = [agent.id for agent in settings.agents]
        channels = channels or {}
        self.places = Places(store, bindings, told=scope_told(channels), space=space_of(channels), titles=titles)
        store.hear(self.places.wrote)
        self.following = Following(policies.habits(settings), clock, who, ears.presence)
        self.inward = Inward(store, clock, attend, bindings, arrived=ears.arrived, level=lambda: self.following.level)
        self.notes = Notes(store, clock, self.directory)
        self.memory = Memory(store, clock, self.directory)
        self.dreaming = Dreaming(store, self.notes, self.memory, propose)
        self.forgetting = Forgetting(store, clock, self.places, self.notes, self.memory)
        said = settings.dmn
        self.reminders = Reminders(store, clock, timezone=said.timezone, most=said.max_reminders, fire=self._ring)
        live.hear(Takes(policies.habits, self.following.become))
        live.hear(Takes(lambda new: new, self._become))
        self.evidences = Evidences(store, clock, self.places)
        minds = (self.places, self.memory.read, self.notes.by_hand)
        self._recall = Recall(store, *minds)
        self.recalling = Recalling(store, *minds, clock, _prefetch(settings), redact)
        self._remind = RemindHands(self.reminders, clock)

    def _become(self, new: Settings) -> None:
        self.reminders.timezone, self.reminders.most = new.dmn.timezone, new.dmn.max_reminders
        self.recalling.prefetch = _prefetch(new)

    def directory(self, agent: str) -> Path:
        """Where an agent's own files are."""
        return own_files.own(self._live.agent(agent).workspace, self._store.path, agent)

    @property
    def hands(self) -> Sequence[Hand]:
        """The tools by which agents write down, look up and have themselves reminded."""

        async def journal(asked: noting.Journal, where: Whereabouts) -> str:
            return await self.notes.journal(where, asked.title, asked.text)

        async def remember(asked: noting.Remember, where: Whereabouts) -> str:
            return await self.notes.remember(where, asked.text)

        async def recall(asked: noting.Recall, where: Whereabouts) -> Given:
            found = await self._recall(where, asked.query)
            return Given(text=found, kind="messages", untrusted=True, foreign=True)

        return (
            Hand.of(noting.JOURNAL, noting.Journal, journal),
            Hand.of(noting.REMEMBER, noting.Remember, remember),
            Hand.of(noting.RECALL, noting.Recall, recall),
            self.forgetting.hand,
            Hand.of(proving.FETCH_EVIDENCE, proving.FetchEvidence, self.evidences.fetch),
            Hand.of(reminding.REMIND, reminding.Remind, self._remind.remind),
            Hand.of(reminding.LIST_REMINDERS, reminding.ListReminders, self._remind.list_reminders),
            Hand.of(reminding.CANCEL_REMINDER, reminding.CancelReminder, self._remind.cancel_reminder),
        )

    async def begin(self) -> None:
        """Take up what an earlier process left. Call once, before the first turn."""
        await self.places.begin()
        await self.notes.recover(self._agents)
        for agent in self._agents:
            await self.memory.recover(agent)
        await self.forgetting.recover(self._agents)
        await self.following.begin(self._store)

    async def returned(self, conversation: ConversationId) -> str:
        """What an owner alone with the agent is told who was away until now, in numbers. Empty: nothing."""
        if not (self.following.came_back and self.places.known_direct(conversation)):
            return ""
        newest = await self.places.newest(conversation)
        if newest is None or access.role_of(self._who, newest.at, newest.sender) != "owner":
            return ""
        gone = self.following.returned()
        if gone is None:
            return ""
        pending = [one for one in await self._store.pending() if one.conversation != conversation]
        return away_note(gone, [one for one in pending if not await self.places.private(one.conversation)])

    async def _ring(self, alarm: Alarm) -> None:
        await self.inward.tell(alarm)
        self._ears.rang(alarm)


def _prefetch(settings: Settings) -> Prefetch | None:
    asked = settings.recall.prefetch
    return Prefetch(asked.command, asked.timeout) if asked.command else None
