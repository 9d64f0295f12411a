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
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from tests.servers.ports import stop_listening


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


class WebServer:
    """See the top of the file."""

    def __init__(self, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        """`context`: speak TLS."""
        self.pages: dict[str, Page] = {}
        self.seen: list[Heard] = []
        self.connections = 0
        """Accepted so far."""
        self.names: list[str | None] = []
        """That TLS clients asked for."""
        self.gone = asyncio.Event()
        """A client has closed a connection before the end."""
        self.asked = asyncio.Event()
        self.sent = 0
        """Bytes of bodies handed to the system."""
        self.host, self.port = host, 0
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        if context is not None:
            context.sni_callback = self._named

    def url(self, path: str, host: str = "") -> str:
        """Where `path` is, by this or another name of the host."""
        return f"http{'s' if self._context else ''}://{host or self.host}:{self.port}{path}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, self.host, 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_listening(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _named(self, _: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> None:
        self.names.append(name)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.gone.set()
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if self.gone.is_set() else writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def find_page(self, heard: Heard) -> Page:
        return self.pages.get(heard.path, Page(b"Not here.", {"content-type": "text/plain"}, 404))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = await reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
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
