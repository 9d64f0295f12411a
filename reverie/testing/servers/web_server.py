"""A hostile web site on loopback: lies about lengths, drips, never ends, moves in circles.

    async with WebServer() as site:
        site.pages["/a"] = Page(b"<p>Hello", {"content-type": "text/html"})
        site.url("/a")          # http://127.0.0.1:PORT/a
        ...
        site.seen, site.connections

What a path does not name is 404. Each connection is for one request.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from reverie.testing.servers.ports import LoopbackServer, read_head


@dataclass(frozen=True, slots=True)
class Page:
    """What is sent for a path."""

    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    length: int | None = None
    """Instead of the true Content-Length. Negative: none is said, and the end of the connection is
    the body's."""
    endless: bytes = b""
    """Sent after the body, again and again, until the client has gone. Then no length is said."""
    every_s: float = 0.0
    """Between two of these."""
    hangs: bool = False
    """After all that it stays silent, until the client has gone."""
    raw: bytes | None = None
    """All that is sent, instead of a response."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    raw: bytes


class WebServer(LoopbackServer):
    """See the top of the file."""

    def __init__(self, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        """`context`: speak TLS."""
        super().__init__(host=host, tls=context)
        self.pages: dict[str, Page] = {}
        self.seen: list[Heard] = []
        self.names: list[str | None] = []
        """That TLS clients asked for."""
        self.gone = asyncio.Event()
        """A client has closed a connection before the end."""
        self.asked = asyncio.Event()
        self.sent = 0
        """Bytes of bodies handed to the system."""
        if context is not None:
            context.sni_callback = self._named

    def url(self, path: str, host: str = "") -> str:
        """Where `path` is, by this or another name of the host."""
        return f"http{'s' if self._tls else ''}://{host or self.host}:{self.port}{path}"

    def _named(self, _: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> None:
        self.names.append(name)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.gone.set()
        if self.gone.is_set():
            writer.transport.abort()

    def find_page(self, heard: Heard) -> Page:
        return self.pages.get(heard.path, Page(b"Not here.", {"content-type": "text/plain"}, 404))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, headers, raw = await read_head(reader)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        heard = Heard(method, path, headers, body, raw)
        self.seen.append(heard)
        self.asked.set()
        page = self.find_page(heard)
        await self._send(writer, _head(page) + page.body if page.raw is None else page.raw)
        while page.endless:
            await self._send(writer, page.endless)
            await asyncio.sleep(page.every_s)
        if page.hangs and not await reader.read(1):
            self.gone.set()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if writer.is_closing():
            raise ConnectionResetError
        writer.write(data)
        await writer.drain()
        self.sent += len(data)


def _head(page: Page) -> bytes:
    length = (
        []
        if page.endless or (page.length or 0) < 0
        else [f"content-length: {page.length or len(page.body)}"]
    )
    lines = [
        f"HTTP/1.1 {page.status} Whatever",
        *(f"{name}: {value}" for name, value in page.headers.items()),
        *length,
    ]
    return ("\r\n".join([*lines, "connection: close"]) + "\r\n\r\n").encode("latin-1")
