"""Free ports for servers that must be told theirs before they start, and what all servers written by
hand share: connections as tasks, closing without losing a socket, the head of an HTTP request.
"""

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

_PORTS = range(15_000, 32_000)


def free_port() -> int:
    """A loopback port that nobody listens on, and that no outgoing connection is given before the
    server has it.

    Those come from above (https://www.kernel.org/doc/html/latest/networking/ip-sysctl.html,
    ip_local_port_range).
    """
    for port in random.SystemRandom().sample(_PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("a hundred ports were taken")


async def stop_listening(server: asyncio.Server) -> None:
    """Accept nothing more, and return when whatever was accepted has reached its handler; then
    close the port.

    Python 3.11 leaks a connection whose acceptance is under way when `Server.close` is called:
    `_attach` fails, and nobody closes the socket.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(
        5
    ):  # rounds that asyncio takes from an accepted socket to the handler's first step
        await asyncio.sleep(0)
    server.close()


class LoopbackServer:
    """A server on this machine. Each connection is a task, which is cancelled when it stops."""

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.host, self.port, self._tls = host, port, tls
        self.connections = 0
        """Accepted so far."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._condition = asyncio.Condition()

    async def changed(self) -> None:
        """Whoever waits looks again."""
        async with self._condition:
            self._condition.notify_all()

    async def until(self, true: Callable[[], bool], limit_s: float = 120.0) -> None:
        """Wait for something to be so; looked at after every `changed`. Raises TimeoutError."""
        try:
            async with asyncio.timeout(limit_s), self._condition:
                await self._condition.wait_for(true)
        except TimeoutError:
            raise TimeoutError("so far:\n" + "\n".join(map(str, self.story()[-40:]))) from None

    def story(self) -> Sequence[object]:
        """What has happened, for whoever waited in vain."""
        return ()

    async def start(self) -> None:
        """Listen; the first time on any free port, then on the same again."""
        self._server = await asyncio.start_server(
            self._accept, self.host, self.port, ssl=self._tls, limit=2**20
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close every connection and stop listening."""
        assert self._server is not None
        await stop_listening(self._server)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which is closed at the end."""
        raise NotImplementedError

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client or the test is done
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()


async def read_head(
    reader: asyncio.StreamReader, begun: bytes = b""
) -> tuple[str, str, dict[str, str], bytes]:
    """Method, target and headers of the next HTTP request, and its head as it came; `begun`: its
    first bytes. Names of headers are in lower case.
    """
    raw = begun + await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines if line)
    return method, target, {name.strip().lower(): value.strip() for name, _, value in pairs}, raw
