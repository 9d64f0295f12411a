"""Policies for tests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.access.roster import Roster
from gateway.config.models import AttentionConfig, Settings
from gateway.config.reload import LiveSettings
from gateway.core.events import Address, RoomId
from gateway.core.identity import AccessPolicy, RosterState
from gateway.store import Store
from gateway.stream.attention import LiveAttention
from gateway.stream.routing import Bindings, LiveAccessPolicy, LiveBindings
from tests.kits.places import PlayedChannels
from tests.kits.settings import live_settings

NOBODY: Final = AccessPolicy(dm_policy="open", roles={}, open_rooms={})
"""Nobody has a role."""


@dataclass(frozen=True, kw_only=True, eq=False)
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


def bindings_of(settings: Settings) -> Bindings:
    """Return the bindings of these settings."""
    return LiveBindings(LiveSettings(settings))


def policy_of(settings: Settings | LiveSettings) -> AccessPolicy:
    """Return the access policy of these settings alone."""
    live = settings if isinstance(settings, LiveSettings) else LiveSettings(settings)
    return LiveAccessPolicy(live, EmptyRoster(), PlayedChannels(), LiveBindings(live))


def attention_of(store: Store, settings: Settings | None = None) -> LiveAttention:
    """Return the attention of these settings; None: the defaults."""
    return LiveAttention(
        store,
        LiveSettings(settings)
        if settings is not None
        else live_settings(attention=AttentionConfig()),
    )
