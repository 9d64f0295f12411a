"""What shows the outside that the gateway lives: signs of life beside the store, and the HTTP server."""

import asyncio

from gateway.clock import Clock
from gateway.ops.health import beat
from gateway.ops.llm_stats import LlmStats
from gateway.ops.mind_stats import MindStats
from gateway.ops.pages import pages
from gateway.ops.server import OpsServer
from gateway.ops.stats import Stats
from gateway.store import Store


class Watch:
    """Both, for as long as the gateway runs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        stats: Stats,
        *,
        host: str,
        port: int,
        version: str,
        llm: LlmStats | None = None,
        minds: MindStats | None = None,
    ) -> None:
        """`llm`, `minds`: None: there are no metrics of models, or of agents. `minds` is told what the store writes."""
        self._store = store
        self._clock = clock
        self._stats = stats
        self._server = OpsServer(host, port, pages(stats, clock, version, llm, minds))
        self._news = asyncio.Event()
        stats.changed = self._news.set
        if minds is not None:
            store.appended = minds.wrote

    async def run(self) -> None:
        """Until cancelled. A port that is taken is only a warning."""
        try:
            await self._server.start()
            await beat(self._store.path, self._clock, self._stats, self._news)
        finally:
            await self._server.close()
