"""Intakes for tests."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from channels.base import Channel, Emit
from gateway.access.channels import Channels
from gateway.access.place_names import PlaceTitles
from gateway.config.reload import LiveSettings
from gateway.context.conversation import ConversationLocks
from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, PlaceRenamed
from gateway.core.identity import AccessPolicy
from gateway.core.redaction import Redactor
from gateway.hooks import Plugins
from gateway.ingest.intake import Intake
from gateway.plugins.pairing import Pairing
from gateway.plugins.reminders import Reminders
from gateway.plugins.rewind import Rewind
from gateway.plugins.usage import UsageReports
from gateway.store import Store
from gateway.stream.attention import InternalIntake
from gateway.stream.loops import LoopGuard
from gateway.stream.presence import PresenceTracker
from gateway.stream.routing import Bindings, PrivacyCache
from tests.kits.commands import agents_of, command_context, dispatcher_of
from tests.kits.people import People
from tests.kits.plugins import plugins_of
from tests.kits.policies import EmptyRoster, attention_of


def emits(
    store: Store,
    clock: Clock,
    live: LiveSettings,
    channels: Mapping[ChannelName, Channel],
    *,
    access_policy: AccessPolicy,
    bindings: Bindings,
    people: People | None = None,
    presence: PresenceTracker | None = None,
    locks: ConversationLocks | None = None,
    plugins: Plugins | None = None,
) -> dict[ChannelName, Emit]:
    """Return the `emit` of each channel, of one intake."""

    def describe_tools(_: Address, *, brief: bool) -> str:  # noqa: ARG001 - as it is called
        return "I have no tools."

    there = Channels(live, channels)
    titles = PlaceTitles(store, Redactor(), channels)
    store.subscribe(titles.on_appended, PlaceRenamed)
    places = PrivacyCache(store, bindings, there, titles)
    attention = attention_of(store, live, presence)
    context = command_context(
        store,
        clock,
        live=live,
        channels=there,
        people=access_policy,
        roster=None if people is None else people.roster,
        places=places,
        attention=attention,
        agents=agents_of(describe_tools=describe_tools, agents=[], bindings=bindings),
        plugins=plugins,
    )
    internal = InternalIntake(store, clock, attention, bindings)
    made = plugins_of(
        *(Reminders, Pairing, UsageReports, Rewind),
        gateway=context.gateway,
        internal=internal,
        attention=attention,
        locks=locks or ConversationLocks(),
    )
    context = replace(context, plugins=Plugins(*context.plugins.all, *made.all))
    people = people or People(live, store, clock, there, roster=EmptyRoster())
    intake = Intake(
        context.gateway,
        dispatcher=dispatcher_of(context),
        attention=attention,
        loops=LoopGuard(store, clock, live, context.gateway.notices),
        limits=people.limits,
        plugins=made.judgings(),
    )
    return {name: partial(intake.accept, name) for name in channels}
