"""Who may do what, as the gateway builds it."""

from gateway.access.channels import Channels
from gateway.access.limits import UsageLimiter
from gateway.access.roster import ROSTER_FACTS, Roster
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import Message
from gateway.core.facts import LimitReached, PostQueued, TurnRecord
from gateway.store import Store
from gateway.stream.routing import LiveAccessPolicy, LiveBindings


class People:
    """Who may do what, on one store."""

    def __init__(
        self,
        live: LiveSettings,
        store: Store,
        clock: Clock,
        channels: Channels,
        *,
        roster: Roster | None = None,
    ) -> None:
        self._store = store
        self.roster = roster or Roster(store, clock)
        self.policy = LiveAccessPolicy(live, self.roster, channels, LiveBindings(live))
        self.limits = UsageLimiter(live, clock, self.policy)
        store.subscribe(self.roster.on_appended, *ROSTER_FACTS)
        store.subscribe(self.limits.on_appended, TurnRecord, LimitReached, PostQueued, Message)

    async def load(self) -> None:
        await self.roster.load()
        await self.limits.load(self._store)
