"""HTTP server of the operator: a port for what other plugins answer there.

Starlette and uvicorn cost 4 MB, so they are imported at the first connection, with
`gateway.plugins.http.site`.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from gateway.config.models import OpsConfig
from gateway.core.clock import Clock
from gateway.core.route import ClientRole
from gateway.plugin import Plugin, PluginContext

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from gateway.plugins.http.site import HttpServer

logger = logging.getLogger("reverie.ops")

ALL_ADDRESSES: Final = ("0.0.0.0", "::", "")  # noqa: S104 - nothing is bound
"""Hosts of `ops.host` for all addresses of the machine."""
Need = Literal["anybody", "page"] | ClientRole
"""What a request needs. anybody: nothing, and it may use any host name; page: a host name that is
known here; a role: also a token with this role or more."""


class Client(NamedTuple):
    """Whoever sends a request with a token. It is `request.state.client`."""

    name: str
    """`ops.tokens[].name`; of `ops.token` the operator's."""
    role: ClientRole


class HttpRoute(NamedTuple):
    """A path of the server."""

    path: str
    answer: Callable[..., Awaitable[Any]]
    """Takes a `starlette.requests.Request`, and returns a `Response`."""
    needs: Need
    method: str = "GET"


Site = Callable[[], Iterable[HttpRoute]]
"""Returns the paths of a plugin. It is called at the first connection, and may import what it needs
then."""


class OpsServer:
    """HTTP server of the operator on one port."""

    def __init__(self, config: OpsConfig, clock: Clock, sites: Sequence[Site]) -> None:
        self._config, self._clock, self._sites = config, clock, sites
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
            from gateway.plugins.http.site import HttpServer, OpsSite  # noqa: PLC0415 - most gateways are never asked

            routes = [route for site in self._sites for route in site()]
            self.http = HttpServer(OpsSite(self._config, self._clock, routes))
        return self.http.connect()


class Http(Plugin):
    """The server of a running gateway. It listens if there is something to answer."""

    name = "http"
    summary = "HTTP server of the operator (ops), for health, metrics and dashboard"
    checks = "gateway.plugins.http.check"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._sites = list[Site]()
        gateway = context.gateway
        self._server = OpsServer(gateway.live.settings.ops, gateway.clock, self._sites)

    def add(self, site: Site) -> None:
        """Answer these paths, too. Called by plugins when they are built."""
        self._sites.append(site)

    async def run(self) -> None:
        """Answer until cancelled: to the end of the gateway's stop. A port in use is logged as a
        warning only.
        """
        try:
            if self._sites:
                await self._server.start()
                self.context.gateway.channels.cluster.ops = self._server.address
            await asyncio.Event().wait()
        finally:
            await self._server.close()
