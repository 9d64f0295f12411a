"""What most services work with: store, settings in force, platforms and their places."""

import asyncio

from gateway.access.channels import Channels
from gateway.access.roster import Roster
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.frozen import frozen
from gateway.core.identity import AccessPolicy
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.store import Store
from gateway.stream.notices import Notices
from gateway.stream.routing import PrivacyCache


@frozen(eq=False)
class GatewayHandle:
    """One gateway, as its services see it. They take it in place of its parts."""

    store: Store
    clock: Clock
    live: LiveSettings
    tasks: asyncio.TaskGroup
    """For what goes on beside its caller, until the gateway ends. A task that fails ends the
    gateway."""
    channels: Channels
    """Also which of them this process holds (`channels.holds`), and who holds others
    (`channels.cluster`)."""
    people: AccessPolicy
    roster: Roster
    """What of that was decided at run time, and who asks to be let in."""
    notices: Notices
    """For what owners should know."""
    places: PrivacyCache
    """Who can read a place; its bindings (`places.bindings`) and names (`places.titles`)."""
    redactor: Redactor
    stats: GatewayStats
    """State of the channels, and what is wrong: `/ready` and `reverie health` show it."""
