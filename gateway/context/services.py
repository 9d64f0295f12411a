"""Background services of all agents, wired: journal, memory, reminders, presence, recall and internal events."""

from pathlib import Path

from gateway.access.channel_lookup import Channels
from gateway.access.owners import OwnerNotifier
from gateway.access.place_names import PlaceTitles
from gateway.config.reload import LiveSettings
from gateway.context.dream import Dreamer
from gateway.context.evidence import EvidenceStore
from gateway.context.journal import JournalStore, NoteForgetter
from gateway.context.memory import MemoryStore
from gateway.context.recall import AmbientRecall
from gateway.context.reminders import ReminderService
from gateway.context.search import RecallSearch
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, Message
from gateway.core.facts import AudienceReported, Judgement
from gateway.core.identity import AccessPolicy, role_of
from gateway.core.private_files import agent_directory
from gateway.core.redaction import Redactor
from gateway.store import Store
from gateway.stream import attention, policies
from gateway.stream.internal import InternalIntake
from gateway.stream.presence import PresenceTracker, render_away_note
from gateway.stream.routing import Bindings, PrivacyCache


class BackgroundServices:
    """Background services, for all agents."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: Store,
        clock: Clock,
        access_policy: AccessPolicy,
        attention_policy: attention.AttentionPolicy,
        bindings: Bindings,
        channels: Channels,
        owners: OwnerNotifier,
        redactor: Redactor,
        titles: PlaceTitles,
    ) -> None:
        self._store = store
        self._access = access_policy
        settings = live.settings
        self._live = live
        self._agents = [agent.id for agent in settings.agents]
        self.places = PrivacyCache(store, bindings, channels, titles)
        store.subscribe(self.places.on_appended, AudienceReported)
        self.presence = PresenceTracker(policies.build_presence_policy(settings), clock, access_policy)
        store.subscribe(self.presence.on_judged, Judgement, Message)
        self.internal_intake = InternalIntake(store, clock, attention_policy, bindings, self.presence)
        self.journal_store = JournalStore(store, clock, self.agent_directory)
        self.memory = MemoryStore(store, clock, self.agent_directory)
        self.dreamer = Dreamer(
            store, self.journal_store, self.memory, owners=owners, places=self.places, channels=channels
        )
        self.forgetter = NoteForgetter(store, clock, self.places, self.journal_store, self.memory, redactor=redactor)
        self.reminders = ReminderService(store, clock, live=live, fire=self.internal_intake.submit)
        live.add_change_listener(lambda new: self.presence.update(policies.build_presence_policy(new)))
        self.evidence = EvidenceStore(store, clock, self.places)
        sources = (self.places, self.memory.read, self.journal_store.read_handwritten)
        self.recall_search = RecallSearch(store, *sources, redactor)
        self.ambient_recall = AmbientRecall(store, *sources, clock, redactor, live)

    def agent_directory(self, agent: str) -> Path:
        """Return the directory of an agent's own files."""
        return agent_directory(self._live.agent_config(agent).workspace, self._store.path, agent)

    async def start(self) -> None:
        """Recover what an earlier process left. Call once, before the first turn."""
        await self.places.load()
        await self.journal_store.recover(self._agents)
        for agent in self._agents:
            await self.memory.recover(agent)
        await self.forgetter.recover(self._agents)
        await self.presence.load(self._store)

    async def render_away_note(self, conversation: ConversationId) -> str:
        """Return the note to an owner who was away until now, in numbers; only in a direct chat. Empty: none."""
        if not (self.presence.came_back and self.places.is_known_direct(conversation)):
            return ""
        newest = await self.places.newest_message(conversation)
        if newest is None or role_of(self._access, newest.at, newest.sender) != "owner":
            return ""
        absence = self.presence.take_absence()
        if absence is None:
            return ""
        pending = [one for one in await self._store.pending_counts() if one.conversation != conversation]
        return render_away_note(absence, [one for one in pending if not await self.places.is_private(one.conversation)])
