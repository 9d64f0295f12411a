"""A TCP proxy on loopback that can be cut, silent or slow: the way of one process to a server."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class TcpProxy:
    """Use as `async with TcpProxy(port) as proxy`; clients connect to `proxy.port`."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.delay_s = 0.0
        """Before each piece that is passed on, in both directions."""
        self.is_refusing = False
        """True: new connections are closed at once."""
        self._target_port = target_port
        self._passes = asyncio.Event()
        self._passes.set()
        self._tasks = set[asyncio.Task[None]]()
        self._writers = set[asyncio.StreamWriter]()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fall_silent(self) -> None:
        """Pass nothing on any more, not even the end of a connection: neither side is told."""
        self._passes.clear()

    def speak(self) -> None:
        """Pass everything on again, also what was held back."""
        self._passes.set()

    def reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        server: asyncio.StreamWriter | None = None
        try:
            await self._passes.wait()
            answers, server = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._writers.add(server)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, server))
                group.create_task(self._pass_on(answers, writer))
        except OSError:
            pass  # nobody listens there
        finally:
            for one in filter(None, (writer, server)):
                self._writers.discard(one)
                one.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(2**16):
                await self._passes.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                target.write(data)
                await target.drain()
        await self._passes.wait()
        with contextlib.suppress(OSError):
            target.close()
