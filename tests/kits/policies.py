"""Policies for tests."""

from collections.abc import Callable
from typing import Final, cast

from gateway.access.policy import ConversationBinding, Routed, route
from gateway.access.roster import Roster
from gateway.config.models import AttentionConfig, Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock, ManualClock
from gateway.core.events import Address, Notification, PresenceLevel, RoomId
from gateway.core.frozen import frozen
from gateway.core.identity import AccessPolicy, RosterState
from gateway.store import Store, StoreReader
from gateway.stream.attention import LiveAttention
from gateway.stream.presence import PresenceTracker
from gateway.stream.routing import Bindings, LiveAccessPolicy, LiveBindings
from tests.kits.places import PlayedChannels
from tests.kits.settings import live_settings

NOBODY: Final = AccessPolicy(dm_policy="open", roles={}, open_rooms={})
"""Nobody has a role."""


@frozen(slots=False, eq=False)
class PlayedPolicy(AccessPolicy):
    """Access policy of which the test says what the log and the platforms say."""

    spaces: Callable[[Address], RoomId | None] = lambda _: None
    agents: Callable[[Address], str] = lambda _: ""
    roster: Callable[[], RosterState] = RosterState

    def space_of(self, at: Address) -> RoomId | None:
        return self.spaces(at)

    def agent_of(self, at: Address) -> str:
        return self.agents(at)

    def roster_state(self) -> RosterState:
        return self.roster()


class EmptyRoster(Roster):
    """Nobody has decided anything."""

    known = RosterState()

    def __init__(self) -> None:
        """It needs no log."""
        super().__init__(cast("StoreReader", None), ManualClock())


class FixedPresence(PresenceTracker):
    """People who are as near as the test says."""

    fixed: PresenceLevel = "present"

    def __init__(self, clock: Clock, access_policy: AccessPolicy) -> None:
        super().__init__(live_settings(attention=AttentionConfig()), clock, access_policy)

    @property
    def level(self) -> PresenceLevel:
        return self.fixed


def bindings_of(settings: Settings) -> Bindings:
    return LiveBindings(LiveSettings(settings))


def policy_of(settings: Settings | LiveSettings) -> AccessPolicy:
    """Return the access policy of these settings alone."""
    live = settings if isinstance(settings, LiveSettings) else LiveSettings(settings)
    return LiveAccessPolicy(live, EmptyRoster(), PlayedChannels(), LiveBindings(live))


def attention_of(
    store: Store,
    settings: Settings | LiveSettings | None = None,
    presence: PresenceTracker | None = None,
) -> LiveAttention:
    """Return the attention of these settings; None: the defaults. `presence` None: people are
    there.
    """
    live, clock = settings, ManualClock()
    if live is None:
        live = live_settings(attention=AttentionConfig())
    elif isinstance(live, Settings):
        live = LiveSettings(live)
    presence = presence or FixedPresence(clock, NOBODY)
    return LiveAttention(store, clock, live, presence, NOBODY)


def routed(
    event: Notification, access_policy: AccessPolicy = NOBODY, *, agent: str = "reverie"
) -> Routed:
    """Return the event in a place where the agent listens to all."""
    return route(access_policy, ConversationBinding(listen="all", agent=agent), event)
