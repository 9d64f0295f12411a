"""What shows the outside that the gateway lives: signs of life beside the store, and the HTTP server."""

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from gateway.clock import Clock
from gateway.ops.health import run_heartbeat
from gateway.ops.limit_stats import LimitStats
from gateway.ops.llm_stats import LlmStats
from gateway.ops.mind_stats import AgentStats
from gateway.ops.onlookers import TurnTracker
from gateway.ops.pages import build_pages
from gateway.ops.server import OpsServer
from gateway.ops.site import OpsSite
from gateway.ops.stats import GatewayStats
from gateway.ops.stream import EventBroadcaster
from gateway.ops.tool_stats import ToolStats
from gateway.redaction import Redact
from gateway.store import Store

if TYPE_CHECKING:
    from gateway.ops.api.door import ApiRouter
    from gateway.ops.api.house import ApiServices


class OpsService:
    """Both, for as long as the gateway runs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        stats: GatewayStats,
        *,
        host: str,
        port: int,
        version: str,
        llm: LlmStats | None = None,
        minds: AgentStats | None = None,
        tools: ToolStats | None = None,
        limits: LimitStats | None = None,
        redact: Redact | None = None,
        names: Collection[str] = (),
        token: str | None = None,
        house: "Callable[[], ApiServices] | None" = None,
        onlookers: TurnTracker | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """`llm`, `minds`, `tools`, `limits`: None: there are no metrics of models, agents, tools or limits.

        `minds` and `tools` are told what the store writes. `redact` is given what metrics are labelled with. `names`,
        `token`: as `OpsSite` has them. `house`: what the API shows, asked for when somebody first asks it.
        `look`: called every few seconds.
        """
        self._store = store
        self._clock = clock
        self._stats = stats
        self._create_services = house
        self._check_outages = look
        self.stream = EventBroadcaster(
            clock, onlookers or TurnTracker(clock), lambda: self._site.open_router().create_encoder()
        )
        self._site = OpsSite(
            build_pages(stats, clock, version, llm, minds, tools=tools, limits=limits, redact=redact),
            host=host,
            names=names,
            token=token,
            door=self._create_router if house is not None else None,
            stream=self.stream,
            clock=clock,
        )
        self._server = OpsServer(host, port, self._site)
        self._status_changed = asyncio.Event()
        stats.on_change = self._on_status_changed
        for hear in (self.stream.on_appended, *(source.on_appended for source in (minds, tools) if source is not None)):
            store.add_listener(hear)

    async def run(self) -> None:
        """Until cancelled. A port that is taken is only a warning."""
        try:
            await self._server.start()
            await run_heartbeat(self._store.path, self._clock, self._stats, self._status_changed, self._check_outages)
        finally:
            await self._server.close()
            await self.stream.close()
            await self._site.close()

    def _create_router(self) -> "ApiRouter":
        from gateway.ops.api.door import ApiRouter  # noqa: PLC0415 - loaded when somebody first asks

        assert self._create_services is not None
        return ApiRouter(self._create_services())

    def _on_status_changed(self) -> None:
        self._status_changed.set()
        self.stream.on_status_changed()
