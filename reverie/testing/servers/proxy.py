"""A proxy on loopback, for tests: SOCKS5 (RFC 1928, RFC 1929) and HTTP (RFC 9110, 9.3.6 and 7.1) on
one port.

    async with Proxy(user="ann", password="pw") as proxy:      # without a user: no login
        proxy.url           # socks5://ann:pw@127.0.0.1:PORT
        proxy.http_url      # http://ann:pw@127.0.0.1:PORT
        proxy.asked         # host and port of each connection that was asked for, in order

Every name leads to this machine, so that a server of a test can be reached under any name.
"""

import asyncio
import base64
import contextlib
from urllib.parse import urlsplit

from reverie.testing.servers.ports import LoopbackServer

_NO_LOGIN, _LOGIN = 0, 2
_NAME = 3


class Proxy(LoopbackServer):
    """The proxy. See the top of the file."""

    def __init__(self, user: str = "", password: str = "") -> None:
        super().__init__()
        self._user, self._password = user, password
        self.asked: list[tuple[str, int]] = []

    @property
    def http_url(self) -> str:
        login = f"{self._user}:{self._password}@" if self._user else ""
        return f"http://{login}127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.http_url.replace("http:", "socks5:")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(1)
        if first != b"\x05":
            await self._serve_http(first, reader, writer)
        elif await self._log_in(reader, writer):
            host, port = await self._read_request(reader)
            writer.write(b"\x05\x00\x00\x01" + bytes(6))
            await self._tunnel(host, port, reader, writer)

    async def _serve_http(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, rest = head.split(" ", 2)
        login = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        if self._user and f"Basic {login}" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = url.hostname or "", url.port or 80
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await self._tunnel(host, port, reader, writer)
        else:
            origin = url._replace(scheme="", netloc="").geturl() or "/"
            await self._tunnel(
                host, port, reader, writer, request=f"{method} {origin} {rest}".encode()
            )

    async def _tunnel(
        self,
        host: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        request: bytes = b"",
    ) -> None:
        self.asked.append((host, port))
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(server_writer):
            server_writer.write(request)
            await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        (count,) = await reader.readexactly(1)
        method = _LOGIN if self._user else _NO_LOGIN
        is_offered = method in await reader.readexactly(count)
        writer.write(bytes([5, method if is_offered else 0xFF]))
        if not is_offered or method == _NO_LOGIN:
            return is_offered
        await reader.readexactly(1)
        user, password = [
            await reader.readexactly((await reader.readexactly(1))[0]) for _ in range(2)
        ]
        is_right = (user.decode(), password.decode()) == (self._user, self._password)
        writer.write(bytes([1, not is_right]))
        return is_right

    @staticmethod
    async def _read_request(reader: asyncio.StreamReader) -> tuple[str, int]:
        kind = (await reader.readexactly(4))[3]
        size = (await reader.readexactly(1))[0] if kind == _NAME else {1: 4, 4: 16}[kind]
        address = await reader.readexactly(size)
        port = int.from_bytes(await reader.readexactly(2), "big")
        return (address.decode() if kind == _NAME else address.hex()), port


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
