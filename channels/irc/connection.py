"""Asyncio connection of the `irc` library (jaraco), hardened.

The library's own line reader closes the connection on bytes that are not UTF-8, on a line without the parameters it
expects and on any exception in a handler; it writes secrets to its debug log. Here it keeps the transport, the protocol
object and the connection state; lines are cut, decoded and parsed by our code, and go to a `LineReceiver`.

Importing this file costs about 200 ms and 7 MB (`irc.client` pulls in dateutil and pytz), so the channel imports it
when it connects for the first time.
"""

import asyncio
import logging
import ssl
from collections.abc import Iterator
from typing import Protocol

from irc.client_aio import AioConnection, AioReactor, IrcProtocol
from irc.connection import AioFactory

logger = logging.getLogger("reverie.irc")
MAX_LINE_BYTES = 32_768
"""Tags may have 8191 bytes and a server may raise LINELEN; a longer line is dropped."""
_MAX_UNSENT_BYTES = 1_000_000
"""Our messages are paced, so only answers to PING can pile up: from a server that sends many and reads nothing."""
_QUIT_TIMEOUT_S = 0.6
"""Real seconds that the server has to close after QUIT. The channel promises to end within one."""


class LineBuffer:
    """Bytes in, lines out (the interface of `jaraco.stream.buffer.LineBuffer`), bounded and never failing."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._pending += data

    def __iter__(self) -> Iterator[str]:
        """Remove and yield the complete lines, without CR LF. Decoded as UTF-8, or else latin-1 (which cannot fail)."""
        *lines, rest = bytes(self._pending).split(b"\n")
        self._pending = bytearray(rest)
        for raw in lines:
            skip, self._skipping = self._skipping or len(raw) > MAX_LINE_BYTES, False
            if skip:
                logger.warning("threw away a line of more than %d bytes", MAX_LINE_BYTES)
                continue
            try:
                yield raw.rstrip(b"\r").decode()
            except UnicodeDecodeError:
                yield raw.rstrip(b"\r").decode("latin-1")
        if len(self._pending) > MAX_LINE_BYTES:
            self._pending.clear()
            self._skipping = True


class LineReceiver(Protocol):
    """What a connection is for: a session, or a probe."""

    def on_line(self, raw: str) -> None:
        """Handle one line. May raise: that is logged."""
        ...

    def mark_lost(self, reason: str) -> None:
        """Record that the connection is lost. Called once."""
        ...


class _ConnectionProtocol(IrcProtocol):  # type: ignore[misc]  # irc ships no types
    """Protocol that reports the reason of a lost connection, which the library drops."""

    connection: "IrcConnection"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.connection.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.handle_lost(str(exc) if exc else "the server closed the connection")


class IrcConnection(AioConnection):  # type: ignore[misc]  # irc ships no types
    """One connection. `open` it."""

    protocol_class = _ConnectionProtocol
    buffer_class = LineBuffer
    transport: asyncio.Transport | None = None
    server = ""

    def __init__(self, receiver: LineReceiver) -> None:
        """Hand each line, and the loss of the connection, to `receiver`."""
        super().__init__(AioReactor(loop=asyncio.get_running_loop()))
        self._receiver = receiver
        self._closed = asyncio.Event()

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Connect without sending anything: the login is ours. Raises OSError (ssl.SSLError is one)."""
        self.buffer = self.buffer_class()
        self.server, self.port, self.server_address = host, port, (host, port)
        self.real_server_name = ""
        # Without a limit, closing TLS waits 30 s for a server that does not answer.
        limits = {"ssl_shutdown_timeout": _QUIT_TIMEOUT_S} if tls else {}
        factory = AioFactory(ssl=tls, **limits)
        await factory(self.protocol_class(self, self.reactor.loop), self.server_address)
        self.connected = True

    def process_data(self, new_data: bytes) -> None:
        self.buffer.feed(new_data)
        for line in self.buffer:
            self._process_line(line)

    def _process_line(self, line: str) -> None:
        try:
            self._receiver.on_line(line)
        except Exception:
            # No line of a server, and no bug that it triggers, closes the connection.
            logger.exception("could not handle a line from %s; it is ignored", self.server)

    @property
    def is_alive(self) -> bool:
        """True if a line written now has a chance to arrive."""
        return self.transport is not None and not self.transport.is_closing() and not self._closed.is_set()

    def send_raw(self, string: str) -> None:
        """Write one line, unlogged (it may hold a password). Nothing happens on a dead connection."""
        if self.transport is None or not self.is_alive:
            return
        self.transport.write(string.encode() + b"\r\n")
        if self.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            # Later, not here: a caller of `send_raw` does not expect the connection to be lost inside the call.
            asyncio.get_running_loop().call_soon(self.disconnect, "the server does not read what we send")

    def handle_lost(self, reason: str) -> None:
        """Tell the receiver, once."""
        if not self._closed.is_set():
            self._closed.set()
            self.connected = False
            self._receiver.mark_lost(reason)

    def disconnect(self, message: str = "") -> None:
        """Close now, without QUIT."""
        if self.transport is not None:
            self.transport.abort()
        self.handle_lost(message or "we hung up")

    async def close_gracefully(self, quit_line: str) -> None:
        """Send `quit_line`, let the server close, close after 0.6 s if it does not.

        In real seconds: a program must end also while a simulated clock stands still. Waiting matters: closing with
        unread input resets the connection, and the server may never read the QUIT.
        """
        try:
            if self.transport is not None and self.is_alive:
                self.transport.resume_reading()
                self.send_raw(quit_line)
                await asyncio.wait_for(self._closed.wait(), _QUIT_TIMEOUT_S)
        except TimeoutError:
            logger.debug("%s did not answer QUIT", self.server)
        finally:
            self.disconnect()
