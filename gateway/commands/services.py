"""What exists once a gateway is built, for plugins that show or steer all of it."""

from typing import Protocol, runtime_checkable

from prometheus_client.registry import Collector

from gateway.cluster.monitor import ProcessMonitor
from gateway.commands.dispatcher import CommandDispatcher
from gateway.context.observer import TurnTracker
from gateway.core.frozen import frozen
from gateway.hooks import Plugins
from gateway.runtime.agents import Agents
from gateway.runtime.models import ModelServices
from gateway.stream.mute import MutePlaces
from gateway.stream.outbox import Outbox


@frozen(eq=False)
class Services:
    """Services that stand above the plugins, so that no plugin can be given them when it is
    built.
    """

    agents: Agents
    models: ModelServices
    dispatcher: CommandDispatcher
    plugins: Plugins
    tracker: TurnTracker
    outbox: Outbox
    mute: MutePlaces
    processes: ProcessMonitor | None
    """None: this is the only process."""
    collectors: tuple[Collector, ...]
    """Metrics of the path and of plugins."""


@runtime_checkable
class TakesServices(Protocol):
    """A plugin that works with the services of the whole gateway."""

    def on_built(self, services: Services) -> None:
        """Take them. Called once, before `start`; returns at once."""
