"""Connections for httpcore straight on asyncio: its own, by way of anyio, take twice the time.

Imported at the first use, as httpcore is.
"""

import asyncio
import os
import ssl
from collections.abc import Iterable
from typing import Final, cast

import certifi
from httpcore import (
    SOCKET_OPTION,
    AsyncNetworkBackend,
    AsyncNetworkStream,
    ConnectError,
    ConnectTimeout,
    ReadError,
    ReadTimeout,
    WriteError,
    WriteTimeout,
)

_MAX_UNREAD_BYTES: Final = 256 * 1024
"""The system keeps what is more, until it is read."""
_NEXT_ADDRESS_S: Final = 0.25
"""Seconds until the next address of a host is tried beside the one before (RFC 8305)."""


class AsyncioBackend(AsyncNetworkBackend):
    """Opens connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own name
        local_address: str | None = None,  # noqa: ARG002 - nobody gives one
        socket_options: Iterable[SOCKET_OPTION] | None = None,  # noqa: ARG002 - the same
    ) -> AsyncNetworkStream:
        """Return a connection. Raises ConnectError or ConnectTimeout."""
        try:
            async with asyncio.timeout(timeout):
                _, stream = await asyncio.get_running_loop().create_connection(
                    _Stream, host, port, happy_eyeballs_delay=_NEXT_ADDRESS_S
                )
        except TimeoutError as error:
            raise ConnectTimeout(str(error)) from error
        except OSError as error:
            raise ConnectError(str(error)) from error
        return stream


class _Stream(asyncio.Protocol, AsyncNetworkStream):
    """A connection. Its user reads or writes, one at a time."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._unread = bytearray()
        self._has_ended = self._is_full = False
        self._error: Exception | None = None
        """Why the connection was lost."""
        self._changed: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) > _MAX_UNREAD_BYTES:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._has_ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended, self._error = True, exc
        self._wake()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _wait(self, timeout_s: float | None) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(timeout_s):
            await self._changed

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's own name
        """Return what has arrived, also where an error followed. Empty: the end."""
        try:
            while not self._unread and not self._has_ended:
                await self._wait(timeout)
        except TimeoutError as error:
            raise ReadTimeout(str(error)) from error
        if self._error is not None and not self._unread:
            raise ReadError(str(self._error)) from self._error
        found = bytes(self._unread[:max_bytes])
        del self._unread[:max_bytes]
        self._transport.resume_reading()
        return found

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the same
        """Return once more may be written."""
        self._transport.write(buffer)
        try:
            while self._is_full and not self._has_ended:
                await self._wait(timeout)
        except TimeoutError as error:
            raise WriteTimeout(str(error)) from error
        if self._has_ended:
            raise WriteError(str(self._error))

    async def aclose(self) -> None:
        """Close it at once."""
        self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the same
    ) -> AsyncNetworkStream:
        """Begin TLS. Raises as `AsyncioBackend.connect_tcp`."""
        try:
            async with asyncio.timeout(timeout):
                secured = await asyncio.get_running_loop().start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as error:
            raise ConnectTimeout(str(error)) from error
        except OSError as error:
            raise ConnectError(str(error)) from error
        assert secured is not None
        self._transport = secured
        return self

    def get_extra_info(self, info: str) -> object:
        if info == "is_readable":  # httpcore asks this of one that is idle: it is of no use then
            return self._has_ended or bool(self._unread)
        return self._transport.get_extra_info(info)


def create_tls_context() -> ssl.SSLContext:
    """Return a context that trusts certifi's certificates, or those that SSL_CERT_FILE or
    SSL_CERT_DIR names (docs.openssl.org, SSL_CTX_set_default_verify_paths).
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    file = file or (None if folder else certifi.where())
    return ssl.create_default_context(cafile=file, capath=None if file else folder)
