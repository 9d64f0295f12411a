"""HTTP/1.1 to a server: h11 on the streams of asyncio, through a proxy where there is one.

h11 (https://h11.readthedocs.io) is the protocol, RFC 9112, without a socket. A client such as httpx
takes three times the processor time for each request, and 200 ms for its import.
"""

import asyncio
import os
import ssl
import zlib
from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import SplitResult, urlsplit

import certifi
import h11

from gateway.core.proxy import ProxyFailed

KEEP_S: Final = 5.0
"""Seconds for which a connection may be used again, as in httpx: many servers close it a little
later."""
_HEAD_BYTES: Final = 100 * 1024
_MOST_AHEAD_BYTES: Final = 256 * 1024
"""Bytes that come before they are wanted: then nothing more is read."""
_MOST_UNPACKED_BYTES: Final = 16 * 1024 * 1024
"""Bytes that a piece of a packed body can become; the rest of it is lost."""
_PORTS: Final = {"http": 80, "https": 443}
_HAPPY_EYEBALLS_S: Final = 0.25
"""Delay before the next address is tried beside the one before (RFC 8305, section 5)."""


class HttpConnection(asyncio.Protocol):
    """One connection, for one request at a time: `ask`, `read_body`, `release`."""

    def __init__(self, silence_s: float) -> None:
        """`silence_s`: seconds in which no byte has to come or go before it is closed."""
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._loop, self._silence_s = asyncio.get_running_loop(), silence_s
        self._transport: asyncio.Transport
        self._waiting: asyncio.Future[None] | None = None
        self._moved_s, self._unsent_bytes = 0.0, 0
        """Time when the last byte came or went, and bytes to be sent then."""
        self._ahead_bytes = 0
        """Bytes that came since the last wait for them."""
        self._timer: asyncio.TimerHandle | None = None
        self.is_packed = False
        """The body of the response is packed by gzip."""
        self.was_silent = False
        """It was closed because of that."""
        self.under: object = None
        """What it stands on, and would be closed without it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._moved_s = self._loop.time()
        self._ahead_bytes += len(data)
        if self._ahead_bytes > _MOST_AHEAD_BYTES:
            self._transport.pause_reading()
        self._take(data)

    def eof_received(self) -> None:
        self._take(b"")

    def connection_lost(self, _: Exception | None) -> None:
        self._take(b"")

    def _take(self, data: bytes) -> None:
        self._http.receive_data(data)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def ask(self, request: h11.Request, content: bytes | None) -> h11.Response:
        """Send a request, and return the response without its body.

        Raises h11.RemoteProtocolError, and h11.LocalProtocolError if it cannot be sent.
        """
        data = self._http.send(request) or b""
        if content:
            data += self._http.send(h11.Data(data=content)) or b""
        self._http.send(h11.EndOfMessage())
        self._transport.write(data)
        self._moved_s = self._loop.time()
        self._timer = self._loop.call_later(self._silence_s, self._check_silence)
        while not isinstance(event := await self._read_event(), h11.Response):
            pass  # 1xx
        return event

    async def read_body(self) -> AsyncGenerator[bytes]:
        """Yield the body of the response as it comes. Raises h11.RemoteProtocolError and
        zlib.error.
        """
        packed = zlib.decompressobj(16 + zlib.MAX_WBITS) if self.is_packed else None
        while isinstance(event := await self._read_event(), h11.Data):
            data = bytes(event.data)
            yield data if packed is None else packed.decompress(data, _MOST_UNPACKED_BYTES)

    async def _read_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._ahead_bytes = 0
            self._transport.resume_reading()
            self._waiting = self._loop.create_future()
            await self._waiting
        return event

    def _check_silence(self) -> None:
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:
            self._moved_s, self._unsent_bytes = self._loop.time(), unsent_bytes
        left_s = self._moved_s + self._silence_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_silence)
        else:
            self.was_silent = True
            self.close()

    def release(self) -> bool:
        """End the request. Return whether the connection can be used for another one; else it is
        closed.
        """
        if self._timer is not None:
            self._timer.cancel()
        is_whole = self._http.our_state is self._http.their_state is h11.DONE
        if not is_whole or self._http.trailing_data != (b"", False):
            self.close()
            return False
        self._http.start_next_cycle()
        self._ahead_bytes, self._moved_s = 0, self._loop.time()
        return True

    def is_fresh(self) -> bool:
        """Return whether a kept connection is open still, as far as is known, and empty."""
        is_quiet = not self._ahead_bytes and not self._transport.is_closing()
        return is_quiet and self._loop.time() < self._moved_s + KEEP_S

    def close(self) -> None:
        """Close it at once: a request under way ends with an error. Idempotent."""
        self._transport.abort()


def forwards(server: SplitResult, proxy: str) -> bool:
    """Return whether the proxy gets the requests themselves, with the whole URL (RFC 9112, section
    3.2.2).
    """
    return server.scheme == "http" and proxy.startswith("http")


async def connect(
    server: SplitResult, proxy: str, silence_s: float, tls: ssl.SSLContext | None
) -> HttpConnection:
    """Connect to a server, or through a proxy if that is not empty. `tls`: what checks both.

    Raises OSError.
    """
    end = urlsplit(proxy) if proxy and forwards(server, proxy) else server
    host, port = end.hostname or "", end.port or _PORTS[end.scheme]
    end_tls = tls if end.scheme == "https" else None
    if not proxy or end is not server:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: HttpConnection(silence_s),
            host,
            port,
            ssl=end_tls,
            happy_eyeballs_delay=_HAPPY_EYEBALLS_S,
        )
        return connection
    from python_socks import ProxyError  # noqa: PLC0415 - only where a proxy is used
    from python_socks.async_.asyncio.v2 import Proxy  # noqa: PLC0415 - the same

    way = Proxy.from_url(
        proxy.replace("socks5h:", "socks5:").replace("https:", "http:"),
        rdns=True,
        proxy_ssl=tls if proxy.startswith("https:") else None,
    )
    try:
        stream = await way.connect(host, port, end_tls)
    except ProxyError as error:
        raise ProxyFailed(str(error)) from None
    connection, transport = HttpConnection(silence_s), stream.writer.transport
    connection.under = stream
    connection.connection_made(transport)
    transport.set_protocol(connection)
    return connection


def create_tls_context() -> ssl.SSLContext:
    """Return what checks servers by the certificates of certifi, or those that the variable
    SSL_CERT_FILE or SSL_CERT_DIR names (OpenSSL's own, as in httpx). Raises OSError.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or not folder:
        context = ssl.create_default_context(cafile=file or certifi.where())
    else:
        context = ssl.create_default_context(capath=folder)
    context.set_alpn_protocols(["http/1.1"])
    return context
