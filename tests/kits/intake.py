"""Intakes for tests."""

from collections.abc import Mapping
from functools import partial

from channels.base import Channel, Emit
from gateway.commands.dispatcher import CommandDispatcher
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import ChannelName, PresenceLevel
from gateway.core.identity import AccessPolicy
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.ingest.intake import EventJudge, Intake
from gateway.runtime.rewind import Rewinder
from gateway.store import Store
from gateway.stream import policies
from gateway.stream.access_service import AccessService
from gateway.stream.place_names import PlaceTitles
from gateway.stream.presence import PresencePolicy, PresenceTracker
from gateway.stream.routing import Bindings, CommandPrefixes, PrivacyCache
from gateway.tools.approvals import Approvals
from gateway.tools.dispatch import ToolList
from tests.kits.commands import NoApprovals, agents_of, command_context, parts_of, people_of


class FixedPresence(PresenceTracker):
    """People who are as near as the test says."""

    fixed: PresenceLevel = "present"

    def __init__(self, clock: Clock, access_policy: AccessPolicy) -> None:
        super().__init__(PresencePolicy(), clock, access_policy)

    @property
    def level(self) -> PresenceLevel:
        return self.fixed


def present(clock: Clock) -> FixedPresence:
    """Return people who are there."""
    return FixedPresence(clock, AccessPolicy(dm_policy="open", roles={}, open_rooms={}))


def emits(
    store: Store,
    clock: Clock,
    live: LiveSettings,
    channels: Mapping[ChannelName, Channel],
    *,
    access_policy: AccessPolicy,
    bindings: Bindings,
    rewinds: Rewinder,
    people: AccessService | None = None,
    presence: PresenceTracker | None = None,
    approvals: Approvals | None = None,
) -> dict[ChannelName, Emit]:
    """Return the `emit` of each channel, of one intake."""
    stats = GatewayStats({name: one.capabilities.platform for name, one in channels.items()}, clock.now())
    places = PrivacyCache(store, bindings)
    context = command_context(
        store,
        clock,
        live=live,
        channels=channels,
        stats=stats,
        people=people or people_of(access_policy, CommandPrefixes(live, channels)),
        services=parts_of(places=places),
        agents=agents_of(tool_list=lambda _: ToolList(), agents=[]),
        rewinder=rewinds,
        approvals=approvals or NoApprovals(),
    )
    judge = EventJudge(
        store,
        clock,
        live=live,
        access_policy=access_policy,
        attention_policy=policies.build_attention_policy(live.settings),
        bindings=bindings,
        presence=presence or FixedPresence(clock, access_policy),
    )
    titles = PlaceTitles(store, Redactor(), channels)
    intake = Intake(
        store,
        clock,
        stats=stats,
        titles=titles,
        places=places,
        judge=judge,
        dispatcher=CommandDispatcher(context),
        people=people,
    )
    return {name: partial(intake.accept, name) for name in channels}
