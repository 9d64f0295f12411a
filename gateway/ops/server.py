"""The operator's HTTP server: `/health`, `/ready` and `/metrics`, for whoever reaches its port.

Small and suspicious: one request per connection, GET and HEAD only, bounded in size, time and number.
h11 reads what comes in, so nothing here parses HTTP.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import h11

logger = logging.getLogger("reverie.ops")

MAX_HEAD_BYTES = 16_384
REQUEST_S = 5.0
"""From the connection to the end of the answer: a scrape takes milliseconds."""
MAX_CONNECTIONS = 32
_CHUNK = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer."""

    body: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Page]]
"""By path. Each is made anew for every request, on the event loop."""


class OpsServer:
    """Serves `pages` on one port."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        """`port` 0: any free one; `port` then tells which."""
        self._host = host
        self.port = port
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> bool:
        """Begin to serve; False after a warning that says what to change, for the gateway can do without."""
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self.port, limit=_CHUNK)
        except (OSError, UnicodeError) as error:
            logger.warning(
                "no /health, /ready and /metrics: cannot listen on %s port %d (%s); "
                "set ops.port to another port, or to 0 for any free one",
                self._host,
                self.port,
                error.strerror if isinstance(error, OSError) else "not a host",
            )
            return False
        self.port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        logger.info("health and metrics on http://%s:%d/metrics", host, self.port)
        return True

    async def close(self) -> None:
        """End every connection and let go of the port. More than once is as good as once."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async with asyncio.timeout(REQUEST_S):
                if len(self._connections) <= MAX_CONNECTIONS:
                    await self._exchange(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()  # nobody waits for an answer, or nobody will get one
        except Exception:
            logger.exception("a request broke")
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        try:
            while (event := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await reader.read(_CHUNK))
        except h11.RemoteProtocolError as error:
            page, head_only = Page(body="bad request\n", status=HTTPStatus(error.error_status_hint)), False
        else:
            if not isinstance(event, h11.Request):
                return  # closed without a request
            page, head_only = self._page(event), event.method == b"HEAD"
        body = page.body.encode()
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
        ]
        if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        answer = h11.Response(status_code=page.status, headers=headers, reason=page.status.phrase)
        writer.write(http.send(answer) or b"")
        if not head_only:
            writer.write(body)
        await writer.drain()

    def _page(self, request: h11.Request) -> Page:
        if request.method not in (b"GET", b"HEAD"):
            return Page(body="only GET and HEAD\n", status=HTTPStatus.METHOD_NOT_ALLOWED)
        path = request.target.decode("ascii", "replace").partition("?")[0]
        make = self._pages.get(path)
        if make is None:
            return Page(body=f"there is {', '.join(self._pages)}\n", status=HTTPStatus.NOT_FOUND)
        return make()
