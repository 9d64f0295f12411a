"""Connection of the `irc` library (jaraco) to a server: its transport, login lines and commands.

https://python-irc.readthedocs.io/en/latest/irc.html#module-irc.client_aio. What is ours here, and
why, is in docs/decisions/0054-use-the-irc-library-where-it-is-right.md: lines go to its owner
unparsed, no line closes the connection, and nothing is logged (a line may hold a password).
"""

import asyncio
import contextlib
import logging
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

from aiohappyeyeballs import start_connection
from irc.client_aio import AioConnection, AioReactor, IrcProtocol
from jaraco.stream.buffer import LenientDecodingLineBuffer

from channels.irc.config import IrcConfig, check_fingerprint
from gateway.core.proxy import ProxyFailed, find_proxy, through

logger = logging.getLogger("reverie.irc")
MAX_LINE_BYTES = 32_768
"""Tags may have 8191 bytes and a server may raise LINELEN; a longer line is dropped."""
_MAX_UNSENT_BYTES = 1_000_000
"""Our messages are paced, so only answers to PING can pile up: from a server that sends many and
reads nothing."""
_QUIT_TIMEOUT_S = 0.6
"""Real seconds that the server has to close after QUIT. The channel promises to end within one."""
_LINE_ENDS = re.compile(r"[\r\n]+")


class _BoundedLineBuffer(LenientDecodingLineBuffer):  # type: ignore[misc]  # jaraco.stream ships no types
    """The library's buffer (UTF-8, else latin-1, which cannot fail) without lines of any length."""

    buffer: bytes
    is_skipping = False

    def lines(self) -> Iterator[str]:
        for line in super().lines():
            if self.is_skipping or len(line) > MAX_LINE_BYTES:
                logger.warning("threw away a line of more than %d bytes", MAX_LINE_BYTES)
            else:
                yield line
            self.is_skipping = False
        if len(self.buffer) > MAX_LINE_BYTES:
            self.buffer, self.is_skipping = b"", True


class _ConnectionProtocol(IrcProtocol):  # type: ignore[misc]  # irc ships no types
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The library sets it only after data may have arrived.
        self.connection.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.connection.read_rest()
        self.connection.disconnect(str(exc) if exc else "the server closed the connection")


async def _connect(host: str, port: int) -> socket.socket:
    """Return a connection to this server. An address that is dead (IPv6 that leads nowhere) does
    not keep the others waiting. Raises OSError.
    """
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await start_connection(addresses, happy_eyeballs_delay=0.25)  # RFC 8305, section 5


async def _connect_through(proxy: str, host: str, port: int) -> socket.socket:
    """Return a connection to this server through a proxy, which resolves its name. Raises
    ProxyFailed.
    """
    from python_socks import ProxyError  # noqa: PLC0415 - only where a proxy is used
    from python_socks.async_.asyncio import Proxy  # noqa: PLC0415 - the same

    try:
        return await Proxy.from_url(proxy.replace("socks5h:", "socks5:"), rdns=True).connect(
            host, port
        )
    except (ProxyError, OSError) as error:
        raise ProxyFailed(f"cannot connect{through(proxy)}: {error}") from None


class IrcConnection(AioConnection):  # type: ignore[misc]  # irc ships no types
    """One connection. `open` it; then use the library's commands (`nick`, `cap`, `send_items`,
    ...).
    """

    protocol_class = _ConnectionProtocol
    buffer_class = _BoundedLineBuffer
    transport: asyncio.Transport | None = None

    def __init__(self, on_line: Callable[[str], None], on_lost: Callable[[str], None]) -> None:
        """Hand each line to `on_line`, which may raise: that is logged; and the reason to
        `on_lost`, once, when the connection is lost.
        """
        # Capabilities are asked for first: without them a server may welcome us at once.
        super().__init__(
            AioReactor(on_connect=lambda *_: self.cap("LS", "302"), loop=asyncio.get_running_loop())
        )
        self._on_line, self._on_lost = on_line, on_lost
        self._closed = asyncio.Event()

    async def open(self, config: IrcConfig, port: int, tls: ssl.SSLContext | None) -> None:
        """Connect and begin the login: CAP LS, PASS, NICK, USER. Raises OSError (ssl.SSLError is
        one).

        A certificate without a configured fingerprint is refused before anything is sent.
        """
        username = "".join(c for c in config.nick if c.isascii() and c.isalnum()) or "reverie"
        # Without a limit, closing TLS waits 30 s for a server that does not answer.
        options: dict[str, Any] = (
            {"ssl_shutdown_timeout": _QUIT_TIMEOUT_S, "ssl": tls} if tls else {}
        )

        async def connect(
            protocol: asyncio.Protocol, address: tuple[str, int]
        ) -> tuple[asyncio.Transport, asyncio.Protocol]:
            try:
                proxy = find_proxy(config.proxy, f"irc://{config.host}")
            except ValueError as error:
                raise ProxyFailed(str(error)) from None
            connected = await (_connect_through(proxy, *address) if proxy else _connect(*address))
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: protocol,
                sock=connected,
                server_hostname=config.host if tls else None,
                **options,
            )
            try:
                if tls is not None:
                    check_fingerprint(
                        config.tls,
                        transport.get_extra_info("ssl_object").getpeercert(binary_form=True),
                    )
            except ssl.SSLError:
                transport.abort()
                raise
            return transport, protocol

        await self.connect(
            config.host,
            port,
            config.nick,
            password=f":{config.password.get_secret_value()}"
            if config.password
            else None,  # it may have spaces
            username=username,
            ircname=config.contact or config.nick,
            connect_factory=connect,
        )

    def process_data(self, new_data: bytes) -> None:
        self.buffer.feed(new_data)
        for line in self.buffer:
            try:
                self._on_line(line)
            except Exception:
                # No line of a server, and no bug that it triggers, closes the connection.
                logger.exception("could not handle a line from %s; it is ignored", self.server)

    def read_rest(self) -> None:
        """Read what the server had said before a write failed: echoes, answers, and why it closed
        the connection.

        asyncio reads no more after a failed write. What has arrived under TLS cannot be read this
        way.
        """
        if self.transport is None or self.transport.get_extra_info("sslcontext") is not None:
            return
        with contextlib.suppress(OSError), self.transport.get_extra_info("socket").dup() as rest:
            while data := rest.recv(_MAX_UNSENT_BYTES):
                self.process_data(data)

    def send_raw(self, string: str) -> None:
        """Write one line of the library's commands. Nothing happens on a dead connection."""
        self.write(string)

    def write(self, raw: str) -> bool:
        """Write one line, whatever is in it. False: the connection is dead, and the line surely was
        not sent.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self._closed.is_set():
            return False
        line = _LINE_ENDS.sub(" ", raw).replace("\0", "")
        transport.write(line.encode("utf-8", "replace") + b"\r\n")
        if transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            # Later, not here: a caller of `write` does not expect the connection to be lost inside
            # the call.
            asyncio.get_running_loop().call_soon(
                self.disconnect, "the server does not read what we send"
            )
        return True

    def disconnect(self, message: str = "we hung up") -> None:
        """Close now, without QUIT, and tell the owner, once."""
        if self.transport is not None:
            self.transport.abort()
        if not self._closed.is_set():
            self._closed.set()
            self.connected = False
            self._on_lost(message)

    async def close_gracefully(self, message: str) -> None:
        """Send QUIT, let the server close, close after 0.6 s if it does not.

        In real seconds: a program must end also while a simulated clock stands still. Waiting
        matters: closing with unread input resets the connection, and the server may never read the
        QUIT.
        """
        try:
            if self.transport is not None and not self._closed.is_set():
                self.transport.resume_reading()
                self.quit(message)
                await asyncio.wait_for(self._closed.wait(), _QUIT_TIMEOUT_S)
        except TimeoutError:
            logger.debug("%s did not answer QUIT", self.server)
        finally:
            self.disconnect()
