"""A gateway's handle of the parts that a test has."""

import asyncio

from gateway.access.channels import Channels
from gateway.access.roster import Roster
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.identity import AccessPolicy
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.store import Store
from gateway.stream.handle import GatewayHandle
from gateway.stream.notices import Notices
from gateway.stream.routing import Bindings, LiveBindings, PrivacyCache
from tests.kits.places import PlayedChannels, privacy
from tests.kits.policies import NOBODY, EmptyRoster
from tests.kits.settings import live_settings
from tests.kits.tasks import LooseTasks


def handle_of(
    store: Store,
    clock: Clock,
    *,
    live: LiveSettings | None = None,
    tasks: asyncio.TaskGroup | None = None,
    channels: Channels | None = None,
    people: AccessPolicy = NOBODY,
    places: PrivacyCache | None = None,
    bindings: Bindings | None = None,
    roster: Roster | None = None,
    notices: Notices | None = None,
    redactor: Redactor | None = None,
    stats: GatewayStats | None = None,
) -> GatewayHandle:
    """Return a handle of these parts; what is None is empty. `bindings`: of the places, unless
    these are given; None: those of the settings."""
    live, tasks = live or live_settings(agents=()), tasks or LooseTasks()
    channels = PlayedChannels() if channels is None else channels
    return GatewayHandle(
        store=store,
        clock=clock,
        live=live,
        tasks=tasks,
        channels=channels,
        people=people,
        roster=roster or EmptyRoster(),
        notices=notices or Notices(tasks, clock),
        places=places or privacy(store, bindings or LiveBindings(live), channels),
        redactor=redactor or Redactor(),
        stats=stats or GatewayStats({}, clock.now()),
    )
