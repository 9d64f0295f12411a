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

    on_arrival: Callable[[Arrival], None]
    """Something is unread."""
    on_alarm: Callable[[Alarm], None]
    """A reminder has come, and is unread."""
    on_presence: Callable[[Level], None]
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
        self._access = who
        self._callbacks = ears
        settings = live.settings
        self._live = live
        self._agents = [agent.id for agent in settings.agents]
        channels = channels or {}
        self.places = Places(store, bindings, told=scope_told(channels), space=space_of(channels), titles=titles)
        store.add_listener(self.places.on_appended)
        self.presence = Following(policies.habits(settings), clock, who, ears.on_presence)
        self.internal_intake = Inward(
            store, clock, attend, bindings, arrived=ears.on_arrival, level=lambda: self.presence.level
        )
        self.journal_store = Notes(store, clock, self.agent_directory)
        self.memory = Memory(store, clock, self.agent_directory)
        self.dreamer = Dreaming(store, self.journal_store, self.memory, propose)
        self.forgetter = Forgetting(store, clock, self.places, self.journal_store, self.memory)
        said = settings.dmn
        self.reminders = Reminders(
            store, clock, timezone=said.timezone, max_count=said.max_reminders, fire=self._fire_alarm
        )
        live.add_listener(Takes(policies.habits, self.presence.update))
        live.add_listener(Takes(lambda new: new, self._apply_settings))
        self.evidence = Evidences(store, clock, self.places)
        minds = (self.places, self.memory.read, self.journal_store.read_handwritten)
        self._recall_search = Recall(store, *minds)
        self.ambient_recall = Recalling(store, *minds, clock, _prefetch(settings), redact)
        self._reminder_tools = RemindHands(self.reminders, clock)

    def _apply_settings(self, new: Settings) -> None:
        self.reminders.timezone, self.reminders.max_count = new.dmn.timezone, new.dmn.max_reminders
        self.ambient_recall.prefetch = _prefetch(new)

    def agent_directory(self, agent: str) -> Path:
        """Where an agent's own files are."""
        return own_files.own(self._live.agent_config(agent).workspace, self._store.path, agent)

    @property
    def tools(self) -> Sequence[Hand]:
        """The tools by which agents write down, look up and have themselves reminded."""

        async def journal(asked: noting.Journal, where: Whereabouts) -> str:
            return await self.journal_store.write_entry(where, asked.title, asked.text)

        async def remember(asked: noting.Remember, where: Whereabouts) -> str:
            return await self.journal_store.remember(where, asked.text)

        async def recall(asked: noting.Recall, where: Whereabouts) -> Given:
            found = await self._recall_search(where, asked.query)
            return Given(text=found, kind="messages", is_untrusted=True, is_foreign=True)

        return (
            Hand.create(noting.JOURNAL, noting.Journal, journal),
            Hand.create(noting.REMEMBER, noting.Remember, remember),
            Hand.create(noting.RECALL, noting.Recall, recall),
            self.forgetter.tool,
            Hand.create(proving.FETCH_EVIDENCE, proving.FetchEvidence, self.evidence.fetch),
            Hand.create(reminding.REMIND, reminding.Remind, self._reminder_tools.remind),
            Hand.create(reminding.LIST_REMINDERS, reminding.ListReminders, self._reminder_tools.list_reminders),
            Hand.create(reminding.CANCEL_REMINDER, reminding.CancelReminder, self._reminder_tools.cancel_reminder),
        )

    async def start(self) -> None:
        """Take up what an earlier process left. Call once, before the first turn."""
        await self.places.load()
        await self.journal_store.recover(self._agents)
        for agent in self._agents:
            await self.memory.recover(agent)
        await self.forgetter.recover(self._agents)
        await self.presence.load(self._store)

    async def render_away_note(self, conversation: ConversationId) -> str:
        """What an owner alone with the agent is told who was away until now, in numbers. Empty: nothing."""
        if not (self.presence.came_back and self.places.is_known_direct(conversation)):
            return ""
        newest = await self.places.newest_message(conversation)
        if newest is None or access.role_of(self._access, newest.at, newest.sender) != "owner":
            return ""
        gone = self.presence.take_absence()
        if gone is None:
            return ""
        pending = [one for one in await self._store.pending_counts() if one.conversation != conversation]
        return away_note(gone, [one for one in pending if not await self.places.private(one.conversation)])

    async def _fire_alarm(self, alarm: Alarm) -> None:
        await self.internal_intake.submit(alarm)
        self._callbacks.on_alarm(alarm)


def _prefetch(settings: Settings) -> Prefetch | None:
    asked = settings.recall.prefetch
    return Prefetch(asked.command, asked.timeout) if asked.command else None
