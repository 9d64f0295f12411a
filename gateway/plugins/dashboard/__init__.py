"""Dashboard of the operator: a page for browsers, the HTTP API that it uses, and live events.

`gateway.core.api_models` has the models of answers and events, which the console reads as well.
`api_views` has all paths but `/api/events` (server-sent events), which `live_events` has. `page/`
holds the files of the page.

Rules: what a client receives is redacted and cut in one place, where it becomes JSON
(`Api.dump`), not where it is made. A request never changes state without a
token.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateway.plugin import Plugin, PluginContext
from gateway.plugins.http import Http, HttpRoute

if TYPE_CHECKING:
    from gateway.commands.services import Services
    from gateway.plugins.dashboard.live_events import EventBroadcaster


class Dashboard(Plugin):
    """Serves the page and the API."""

    name = "dashboard"
    summary = "the operator's page in a browser, and the HTTP API"
    requires = ("http",)

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._services: Services | None = None
        self._events: EventBroadcaster | None = None
        """None: nobody came yet."""
        context.get(Http).add(self._list_routes)

    def on_built(self, services: "Services") -> None:
        """Take the services that are shown and steered."""
        self._services = services

    def _list_routes(self) -> Iterable[HttpRoute]:
        from gateway.plugins.dashboard.api_views import list_routes  # noqa: PLC0415 - most gateways are never asked
        from gateway.plugins.dashboard.live_events import build_events_route  # noqa: PLC0415 - as above

        events = self.open()
        return [*list_routes(events.api), build_events_route(events)]

    def open(self) -> "EventBroadcaster":
        """Return the live events, with what the API reads; they are built at the first call."""
        from gateway.plugins.dashboard.api_views import Api  # noqa: PLC0415 - as above
        from gateway.plugins.dashboard.live_events import EventBroadcaster  # noqa: PLC0415 - as above

        if self._events is None:
            assert self._services is not None
            gateway = self.context.gateway
            self._events = EventBroadcaster(Api(gateway, self._services))
            gateway.live.reload_listeners.append(self._events.on_reloaded)
            gateway.stats.listeners.append(self._events.wake)
        return self._events

    async def run(self) -> None:
        """Serve until cancelled: to the end of the gateway's stop."""
        try:
            await asyncio.Event().wait()
        finally:
            if self._events is not None:
                await self._events.close()
