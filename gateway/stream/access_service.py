"""Access services of all channels, wired: roster, pairing, linking, limits, notices to owners, and command menus.

It is not in `gateway.access`, because it needs this package's `policies` and `routing`, which stand above it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from channels.base import Channel
from gateway.access.channel_lookup import ChannelLookup
from gateway.access.greeting import Greeter
from gateway.access.limits import UsageLimiter
from gateway.access.linking import AccountLinker
from gateway.access.owners import CommandMenuPublisher, OwnerNotifier
from gateway.access.roster import ROSTER_FACTS, ChannelStyle, Roster
from gateway.access.texts import render_request_for_owners
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, Message
from gateway.core.facts import (
    CodeIssued,
    IdentityLinked,
    LimitReached,
    PostQueued,
    RoleAssigned,
    TurnRecord,
)
from gateway.core.identity import AccessPolicy
from gateway.store import LogEntry, Store
from gateway.stream import policies
from gateway.stream.routing import CommandPrefixes, make_private_address_lookup, make_space_lookup


class AccessService:
    """Composition of the access package over the channels of the gateway."""

    def __init__(
        self,
        live: LiveSettings,
        store: Store,
        clock: Clock,
        channels: Mapping[ChannelName, Channel],
        *,
        tasks: asyncio.TaskGroup,
        title: Callable[[Address], str] = lambda _: "",
        with_titles: Callable[[str], str] = str,
    ) -> None:
        """`title`: title of a room. Empty: unknown. `with_titles` inserts the titles of places into a text."""
        self._store = store
        self.roster = Roster(store, clock)
        self.policy: AccessPolicy = replace(
            policies.build_access_policy(live.settings),
            space_of=make_space_lookup(channels),
            roster_state=lambda: self.roster.known,
        )
        self.channel_style = ChannelStyle(
            prefixes=CommandPrefixes(live, channels),
            platforms=ChannelLookup(channels, lambda channel: channel.capabilities.platform),
        )
        self.account_linker = AccountLinker(self.roster, self.policy, clock, self.channel_style)
        self.greeter = Greeter(
            self.roster,
            self.policy,
            clock,
            linking=self.account_linker,
            channel_style=self.channel_style,
            private_address=make_private_address_lookup(channels),
            title=title,
        )
        self.owner_notifier = OwnerNotifier(
            store,
            clock,
            self.policy,
            live=live,
            tasks=tasks,
            with_titles=with_titles,
        )
        self.limits = UsageLimiter(live, clock, self.policy)
        self.command_menus = CommandMenuPublisher(self.policy, channels)
        store.subscribe(self.roster.on_appended, *ROSTER_FACTS)
        store.subscribe(self.command_menus.on_appended, RoleAssigned, IdentityLinked)
        store.subscribe(self.limits.on_appended, TurnRecord, LimitReached, PostQueued, Message)
        store.subscribe(self._on_code_issued, CodeIssued)
        live.add_change_listener(self._apply_settings)

    def _apply_settings(self, new: Settings) -> None:
        self.policy.update_from(policies.build_access_policy(new))
        self.command_menus.refresh()

    async def load(self) -> None:
        """Load the state from the log. Until then nobody has access by it. Raises StoreError."""
        await self.roster.load()
        await self.owner_notifier.load()
        await self.limits.load(self._store)

    def _on_code_issued(self, entries: Sequence[LogEntry]) -> None:
        """Notify owners of each new request."""
        for entry in entries:
            if isinstance(entry.fact, CodeIssued) and entry.fact.what in ("pair", "room"):
                self._notify_owners(entry.fact)

    def _notify_owners(self, request: CodeIssued) -> None:
        def text(to: Address | None) -> str:
            return render_request_for_owners(
                request, "reverie " if to is None else self.channel_style.command_prefix(to.channel)
            )

        self.owner_notifier.notify(f"code:{request.salt}", text)
