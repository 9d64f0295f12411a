"""Listener of the operator's HTTP server, and the service that runs it with the control socket and
outage checks.

Starlette and uvicorn cost 4 MB, so they are imported at the first connection, with
`gateway.ops.http`.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client.registry import Collector

from gateway.cluster.cluster import Cluster
from gateway.config.models import OpsConfig
from gateway.core.clock import Clock
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.control_socket import ControlServer, socket_path
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.ops.health import CHECK_INTERVAL_S, OutageMonitor

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from gateway.ops.http import HttpServer
    from gateway.ops.live_events import EventBroadcaster

logger = logging.getLogger("reverie.ops")


ALL_ADDRESSES: Final = ("0.0.0.0", "::", "")  # noqa: S104 - nothing is bound
"""Hosts of `ops.host` for all addresses of the machine."""


class OpsServer:
    """HTTP server of the operator on one port."""

    def __init__(
        self,
        config: OpsConfig,
        clock: Clock,
        stats: GatewayStats,
        redactor: Redactor,
        *,
        sources: Iterable[Collector] = (),
        stream: "EventBroadcaster | None" = None,
    ) -> None:
        """`sources`: of metrics besides those of the channels. `stream` is there if the
        configuration has a token.
        """
        self._config, self._clock, self._stats, self._redactor = config, clock, stats, redactor
        self._sources, self._stream = sources, stream
        self.port = config.port
        """After `start` the number of the port, also if `ops.port` is 0."""
        self.http: HttpServer | None = None
        """None: nobody came yet."""
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """URL of the server, with the name of this machine if it listens at all addresses. Empty:
        it does not.
        """
        if self._server is None:
            return ""
        host = socket.gethostname() if self._config.host in ALL_ADDRESSES else self._config.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self) -> bool:
        """Start to listen. False after a logged warning that says what to change: the gateway can
        run without it.
        """
        host = self._config.host
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connect, host, self.port
            )
        except (OSError, UnicodeError) as error:
            logger.warning(
                "no /health, /ready and /metrics: cannot listen on %s port %d (%s); "
                "set ops.port to another port, or to 0 for any free one",
                host,
                self.port,
                error.strerror if isinstance(error, OSError) else "not a host",
            )
            return False
        self.port = self._server.sockets[0].getsockname()[1]
        logger.info(
            "health and metrics on http://%s:%d/metrics",
            f"[{host}]" if ":" in host else host,
            self.port,
        )
        return True

    async def close(self) -> None:
        """End every connection and close the port. May be called more than once."""
        if self._server is None:
            return
        self._server.close()
        if self.http is not None:
            await self.http.close()
        await self._server.wait_closed()

    def _connect(self) -> "H11Protocol":
        if self.http is None:
            from gateway.ops.http import HttpServer, OpsSite  # noqa: PLC0415 - most gateways are never asked

            site = OpsSite(
                self._config,
                self._clock,
                self._stats,
                self._redactor,
                sources=self._sources,
                stream=self._stream,
            )
            self.http = HttpServer(site)
        return self.http.connect()


async def _refuse_starting(_: CommandRequest) -> ControlResponse:
    return ControlResponse(ok=False, lines=("the gateway starts, and waits for its store",))


class OpsService:
    """Control socket, outage checks and HTTP server of a running gateway."""

    def __init__(
        self,
        config: OpsConfig,
        process: Path,
        clock: Clock,
        stats: GatewayStats,
        redactor: Redactor,
        *,
        sources: Iterable[Collector] = (),
        outages: OutageMonitor | None = None,
        stream: "EventBroadcaster | None" = None,
        handler: Callable[[CommandRequest], Awaitable[ControlResponse]] = _refuse_starting,
        cluster: Cluster | None = None,
    ) -> None:
        """`sources` and `stream`: see `OpsServer`. `outages`: looked for every few seconds.

        `process`: see `process_path`; the socket stands beside it. `handler`: carries out what
        comes there. `cluster`: is told the address.
        """
        self._clock = clock
        self._control = ControlServer(socket_path(process), handler, stats.snapshot)
        self._outages, self._stream, self._cluster = outages, stream, cluster or Cluster()
        self._server = OpsServer(config, clock, stats, redactor, sources=sources, stream=stream)
        self._status_changed = asyncio.Event()
        stats.on_change = self._on_status_changed

    async def run(self) -> None:
        """Run until cancelled. A port in use is logged as a warning only."""
        try:
            await self._server.start()
            self._cluster.ops = self._server.address
            async with asyncio.TaskGroup() as running:
                running.create_task(self._control.run())
                await self._look_for_outages()
        finally:
            await self._server.close()
            if self._stream is not None:
                await self._stream.close()

    async def _look_for_outages(self) -> None:
        while True:
            if self._outages is not None:
                await self._outages.look()
            self._status_changed.clear()
            waits = [
                asyncio.ensure_future(self._clock.sleep(CHECK_INTERVAL_S)),
                asyncio.ensure_future(self._status_changed.wait()),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    def _on_status_changed(self) -> None:
        self._status_changed.set()
        if self._stream is not None:
            self._stream.on_status_changed()
