"""Intakes for tests."""

from collections.abc import Mapping
from functools import partial

from channels.base import Channel, Emit
from gateway.commands.context import CommandContext, CommandHandler
from gateway.commands.dispatcher import CommandDispatcher
from gateway.commands.info import BASE_HANDLERS
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
    handlers: Mapping[str, CommandHandler] = BASE_HANDLERS,
    approvals: Approvals | None = None,
) -> dict[ChannelName, Emit]:
    """Return the `emit` of each channel, of one intake."""
    stats = GatewayStats({name: one.capabilities.platform for name, one in channels.items()}, clock.now())
    context = CommandContext(
        reader=store,
        clock=clock,
        stats=stats,
        version="0",
        model_name=lambda: "",
        agent_mode=lambda: "",
        prefixes=CommandPrefixes(live, channels),
        rewinds=rewinds,
        count_pages=lambda _: 1,
        approvals=approvals,
    )
    dispatcher = CommandDispatcher(
        context, access_policy, lambda: live.settings.commands, handlers=handlers, redactor=Redactor()
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
    titles, places = PlaceTitles(store, Redactor(), channels), PrivacyCache(store, bindings)
    intake = Intake(
        store,
        clock,
        stats=stats,
        titles=titles,
        places=places,
        judge=judge,
        dispatcher=dispatcher,
        people=people,
    )
    return {name: partial(intake.accept, name) for name in channels}
