"""Who may do what, wired: the picture of it, who is greeted, what is limited, and who is told."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace

from channels.base import Channel
from gateway import access, policies
from gateway.channels_now import Each
from gateway.clock import Clock
from gateway.events import Address, ChannelName
from gateway.limits.limits import Limits
from gateway.live import Live, Takes
from gateway.offers import Offers
from gateway.ops.limit_stats import LimitStats
from gateway.owners import Owners
from gateway.reception import Prefixes, reaching, space_of
from gateway.records import CodeGiven
from gateway.roster import words
from gateway.roster.greeting import Greeter
from gateway.roster.letters import Letters
from gateway.roster.linking import Linking
from gateway.roster.manners import Manners
from gateway.roster.roster import Roster
from gateway.store import Appended, Entry, OutboxPost, Store


class People:
    """Of all channels."""

    def __init__(
        self,
        live: Live,
        store: Store,
        clock: Clock,
        channels: Mapping[ChannelName, Channel],
        *,
        post: Callable[[OutboxPost], None],
        join: Callable[[Address], None],
        leave: Callable[[Address], None],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        title: Callable[[Address], str] = lambda _: "",
        named: Callable[[str], str] = str,
    ) -> None:
        """`post`, `join` and `leave` are called on the event loop, and return at once; not before `begin`.

        `title`: what a room calls itself. Empty: that is not known. `named` puts the titles of places into a text.
        """
        self._store = store
        self.roster = Roster(store, clock)
        self.policy: access.Policy = replace(
            policies.access_policy(live.settings), space_of=space_of(channels), roster_state=lambda: self.roster.known
        )
        self.channel_style = Manners(
            prefixes=Prefixes(live, channels),
            platforms=Each(channels, lambda channel: channel.capabilities.platform),
        )
        self.account_linker = Linking(self.roster, self.policy, clock, self.channel_style)
        self.greeter = Greeter(
            self.roster,
            self.policy,
            clock,
            linking=self.account_linker,
            manners=self.channel_style,
            reach=reaching(channels),
            title=title,
        )
        self.owner_notifier = Owners(
            store, clock, self.policy, to=lambda: _told(live), post=post, spawn=spawn, named=named
        )
        self.stats = LimitStats()
        self.limits = Limits(
            policies.most(live.settings), clock, self.policy, tell=self.owner_notifier.notify, stats=self.stats
        )
        self.command_menus = Offers(self.policy, channels)
        for source in (
            self.roster,
            self.command_menus,
            self.owner_notifier,
            self.limits,
            Letters(self.policy, post, join, leave),
        ):
            store.add_listener(source.on_appended)
        store.add_listener(self._on_appended)
        live.add_listener(Takes(policies.access_policy, self._update_policy))
        live.add_listener(Takes(policies.most, self.limits.update))

    def _update_policy(self, policy: access.Policy) -> None:
        self.policy.update_from(policy)
        self.command_menus.refresh()

    async def load(self) -> None:
        """Read what holds. Until then nobody is let in by it. Raises StoreError."""
        await self.roster.load()
        await self.owner_notifier.load()
        await self.limits.load(self._store)

    def _on_appended(self, entries: Sequence[Entry], written: Sequence[Appended]) -> None:
        """Who asks to be let in is told to owners."""
        for entry, one in zip(entries, written, strict=True):
            if one.is_new and isinstance(entry.fact, CodeGiven) and entry.fact.what in ("pair", "room"):
                self._notify_owners(entry.fact)

    def _notify_owners(self, request: CodeGiven) -> None:
        def text(to: Address | None) -> str:
            return words.wanted(request, "reverie " if to is None else self.channel_style.command_prefix(to.channel))

        self.owner_notifier.notify(f"code:{request.salt}", text)


def _told(live: Live) -> Address | None:
    """Where owners are told, by now."""
    tell = live.settings.access.tell
    return Address.parse(tell) if tell else None
