"""Control of a running gateway from outside: a Unix socket beside its store, for its own user alone.

A client sends one JSON object on one line and gets one back (`gateway.core.control_messages`), and the connection is
closed. Everything is bounded in size, time and number, and nothing that a client does stops the gateway.

ControlError
├── GatewayNotRunning     no gateway listens there: the store can be worked on instead
├── GatewayNotAnswering   tell: it got the request, and whether it did something is not known
└── SocketPathTooLong     tell: no socket can be made there, so no gateway listens
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.core.control_messages import CommandRequest, ControlResponse

logger = logging.getLogger("reverie.control")

MAX_PATH_BYTES: Final = 103
"""Length that every system accepts: `sun_path` holds 104 bytes on BSD and macOS, 108 on Linux, the last of them 0
(https://man7.org/linux/man-pages/man7/unix.7.html)."""
MAX_REQUEST_BYTES: Final = 65_536
MAX_RESPONSE_BYTES: Final = 4_194_304
READ_S = 5.0
"""Time for the client to send its request: programs do at once, people do not type here."""
ANSWER_S = 10.0
"""Time for the gateway to carry it out."""
MAX_CONNECTIONS = 16


class ControlError(Exception):
    """The running gateway was not reached, or did not answer. The message is one sentence for a person."""


class GatewayNotRunning(ControlError):
    """No gateway listens there."""


class GatewayNotAnswering(ControlError):
    """Something listens there and did not answer properly."""


class SocketPathTooLong(ControlError):
    """No socket can be made at the store's path."""


def socket_path(process: Path) -> Path:
    """Return the path of the socket of a process: `<process>.sock`, or a short name beside it if that is too long.

    `process`: see `process_path`. Raises SocketPathTooLong if not even that fits.
    """
    plain = Path(os.path.abspath(process))  # noqa: PTH100 - `absolute` leaves `..` in, which counts
    beside = plain.with_name(f"{plain.name}.sock")
    short = plain.with_name(f"{hashlib.sha256(plain.name.encode()).hexdigest()[:8]}.sock")
    for path in (beside, short):
        if len(os.fsencode(path)) <= MAX_PATH_BYTES:
            return path
    raise SocketPathTooLong(
        f"the path {short} is longer than the {MAX_PATH_BYTES} bytes that a Unix socket's may have: "
        "set store.path to a shorter one, or `reverie ctl` cannot control the running gateway"
    )


class ControlServer:
    """Server that passes every request to `handler`."""

    def __init__(self, path: Path, handler: Callable[[CommandRequest], Awaitable[ControlResponse]]) -> None:
        """`path`: as `socket_path` gives it. Exceptions of `handler` are logged and answered with a refusal.

        The caller holds the lock of the store or of the process: an existing socket is the remains of a dead process.
        """
        self._path = path
        self._handler = handler
        self._connections: set[asyncio.Task[None]] = set()
        self._over = False

    async def run(self) -> None:
        """Listen until cancelled; then the socket is removed. If it cannot be made: log a warning and return."""
        try:
            listening = _bind(self._path)
        except OSError as error:
            reason = error.strerror or str(error)
            logger.warning("cannot listen on %s (%s): `reverie ctl` cannot steer this gateway", self._path, reason)
            return
        inode = self._path.lstat().st_ino
        try:
            server = await asyncio.start_unix_server(self._accept, sock=listening, limit=MAX_REQUEST_BYTES)
            try:
                await asyncio.get_running_loop().create_future()  # until cancelled
            finally:
                self._over = True
                server.close()
                for task in self._connections:
                    task.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)
                await server.wait_closed()
        finally:
            listening.close()
            with contextlib.suppress(OSError):
                if self._path.lstat().st_ino == inode:
                    self._path.unlink()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if self._over or len(self._connections) > MAX_CONNECTIONS:  # its task may begin after the others have ended
                return
            answer = await self._answer(reader)
            async with asyncio.timeout(READ_S):
                writer.write(answer.model_dump_json().encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()  # the client has gone, or gets no answer
        except Exception:
            logger.exception("a connection broke")
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> ControlResponse:
        try:
            async with asyncio.timeout(READ_S):
                line = await reader.readline()
        except ValueError:  # `readline` raises it at its limit
            return _refusal(f"an order has at most {MAX_REQUEST_BYTES} bytes")
        try:
            request = CommandRequest.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))
            return _refusal(f"not an order: {field or 'the line'}: {first['msg']}")
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._handler(request)
        except TimeoutError:
            return _refusal(f"the gateway did not get to it within {ANSWER_S:.0f} s")
        except Exception:  # a bug, or a store that cannot be written, which other code reports
            logger.exception("an order broke")
            return _refusal("that failed because of an error in the program; the gateway's log says more")


async def serve_control(process: Path, handler: Callable[[CommandRequest], Awaitable[ControlResponse]]) -> None:
    """Run the control server of a process until cancelled. If no socket can be made: log a warning and return."""
    try:
        path = socket_path(process)
    except SocketPathTooLong as error:
        logger.warning("%s", error)
        return
    await ControlServer(path, handler).run()


async def send_control_request(path: Path, request: CommandRequest) -> ControlResponse:
    """Send a request to the gateway that listens there. Raises GatewayNotRunning or GatewayNotAnswering."""
    try:
        async with asyncio.timeout(READ_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_RESPONSE_BYTES)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise GatewayNotRunning(f"no gateway listens on {path}") from error
    except (OSError, TimeoutError) as error:
        raise GatewayNotAnswering(f"cannot ask the gateway on {path}: {_reason(error)}") from error
    try:
        async with asyncio.timeout(READ_S + ANSWER_S):
            writer.write(request.model_dump_json().encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
        if not line:
            raise GatewayNotAnswering(
                f"the gateway on {path} is busy or ending: it closed the connection without an answer"
            )
        return ControlResponse.model_validate_json(line)
    except ValidationError as error:
        raise GatewayNotAnswering(f"another program, or a gateway of another version, listens on {path}") from error
    except (OSError, TimeoutError, ValueError) as error:
        raise GatewayNotAnswering(f"the gateway on {path} did not answer: {_reason(error)}") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _bind(path: Path) -> socket.socket:
    """Return a socket that only our user can connect to, in place of a dead one. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(17, "something else has that name")
        path.unlink()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(os.fspath(path))
        path.chmod(0o600)  # before it listens: no client can have connected
    except BaseException:
        server.close()
        raise
    return server


def _refusal(why: str) -> ControlResponse:
    return ControlResponse(ok=False, lines=(why,))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
