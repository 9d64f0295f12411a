"""Intakes for tests."""

from collections.abc import Mapping
from functools import partial

from channels.base import Channel, Emit
from gateway.access.channels import Channels
from gateway.access.place_names import PlaceTitles
from gateway.commands.dispatcher import CommandDispatcher
from gateway.config.models import AttentionConfig
from gateway.config.reload import LiveSettings
from gateway.context.intentions import IntentionWatch
from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, PresenceLevel
from gateway.core.identity import AccessPolicy
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.ingest.intake import EventJudge, Intake
from gateway.runtime.rewind import Rewinder
from gateway.store import Store
from gateway.stream.internal import InternalIntake
from gateway.stream.presence import PresenceTracker
from gateway.stream.routing import Bindings, PrivacyCache
from gateway.tools.approvals import Approvals
from tests.kits.commands import NoApprovals, agents_of, command_context
from tests.kits.people import People
from tests.kits.policies import attention_of
from tests.kits.settings import live_settings


class FixedPresence(PresenceTracker):
    """People who are as near as the test says."""

    fixed: PresenceLevel = "present"

    def __init__(self, clock: Clock, access_policy: AccessPolicy) -> None:
        super().__init__(live_settings(attention=AttentionConfig()), clock, access_policy)

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
    people: People | None = None,
    presence: PresenceTracker | None = None,
    approvals: Approvals | None = None,
) -> dict[ChannelName, Emit]:
    """Return the `emit` of each channel, of one intake."""

    def describe_tools(_: Address) -> str:
        return "I have no tools."

    stats = GatewayStats(
        {name: one.capabilities.platform for name, one in channels.items()}, clock.now()
    )
    there = Channels(live, channels)
    places = PrivacyCache(store, bindings, there, PlaceTitles(store, Redactor(), channels))
    attention = attention_of(store, live.settings)
    context = command_context(
        store,
        clock,
        live=live,
        channels=there,
        stats=stats,
        access_policy=access_policy,
        **(
            {}
            if people is None
            else {"roster": people.roster, "account_linker": people.linker, "limits": people.limits}
        ),
        places=places,
        attention=attention,
        agents=agents_of(describe_tools=describe_tools, agents=[], bindings=bindings),
        rewinder=rewinds,
        approvals=approvals or NoApprovals(),
    )
    judge = EventJudge(
        store,
        clock,
        live=live,
        access_policy=access_policy,
        attention=attention,
        bindings=bindings,
        presence=presence or FixedPresence(clock, access_policy),
    )
    intentions = IntentionWatch(
        store,
        clock,
        bindings=bindings,
        places=places,
        access_policy=access_policy,
        internal=InternalIntake(
            store, clock, attention, bindings, presence or FixedPresence(clock, access_policy)
        ),
    )
    intake = Intake(
        store,
        clock,
        stats=stats,
        places=places,
        judge=judge,
        intentions=intentions,
        dispatcher=CommandDispatcher(context),
        greeter=None if people is None else people.greeter,
        limits=None if people is None else people.limits,
        owners=None if people is None else people.owners,
    )
    return {name: partial(intake.accept, name) for name in channels}
