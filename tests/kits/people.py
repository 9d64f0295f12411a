"""The services of `gateway.access` as the gateway builds them."""

import asyncio

from gateway.access.channels import Channels
from gateway.access.greeting import Greeter
from gateway.access.limits import UsageLimiter
from gateway.access.linking import AccountLinker
from gateway.access.owners import OwnerNotifier
from gateway.access.roster import ROSTER_FACTS, Roster
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import Message
from gateway.core.facts import LimitReached, PostQueued, TurnRecord
from gateway.store import Store
from gateway.stream.routing import LiveAccessPolicy, LiveBindings
from tests.kits.places import titles


class People:
    """Who may do what, on one store."""

    def __init__(
        self,
        live: LiveSettings,
        store: Store,
        clock: Clock,
        channels: Channels,
        tasks: asyncio.TaskGroup,
        *,
        roster: Roster | None = None,
    ) -> None:
        self._store = store
        self.roster = roster or Roster(store, clock)
        self.policy = LiveAccessPolicy(live, self.roster, channels, LiveBindings(live))
        self.linker = AccountLinker(self.roster, self.policy, clock, channels)
        self.greeter = Greeter(
            self.roster,
            self.policy,
            clock,
            linking=self.linker,
            channels=channels,
            titles=titles(store),
        )
        self.owners = OwnerNotifier(
            store,
            clock,
            self.policy,
            live=live,
            tasks=tasks,
            channels=channels,
            titles=titles(store),
        )
        self.limits = UsageLimiter(live, clock, self.policy)
        store.subscribe(self.roster.on_appended, *ROSTER_FACTS)
        store.subscribe(self.limits.on_appended, TurnRecord, LimitReached, PostQueued, Message)

    async def load(self) -> None:
        await self.roster.load()
        await self.owners.load()
        await self.limits.load(self._store)
