"""Control of a running gateway from outside: a Unix socket beside its store, for its own user
alone.

A client sends one JSON object on one line and gets one back (`gateway.core.control_messages`), and
the connection is closed. The empty object asks for the gateway's state: what answers is alive.
Everything is bounded in size, time and number, and nothing that a client does stops the gateway.

ControlError
├── GatewayNotRunning     no gateway listens there: the store can be worked on instead
└── GatewayNotAnswering   tell: it got the request, and whether it did something is not known
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.metrics import GatewaySnapshot, snapshot_adapter

logger = logging.getLogger("reverie.control")

MAX_PATH_BYTES: Final = 103
"""Length that every system accepts: `sun_path` holds 104 bytes on BSD and macOS, 108 on Linux, the
last of them 0 (https://man7.org/linux/man-pages/man7/unix.7.html)."""
STATE_REQUEST: Final = b"{}"
MAX_REQUEST_BYTES: Final = 65_536
MAX_RESPONSE_BYTES: Final = 4_194_304
READ_S = 5.0
"""Time for the client to send its request: programs do at once, people do not type here."""
ANSWER_S = 10.0
"""Time for the gateway to carry it out."""
MAX_CONNECTIONS = 16


class ControlError(Exception):
    """The running gateway was not reached, or did not answer. The message is one sentence for a
    person.
    """


class GatewayNotRunning(ControlError):
    """No gateway listens there."""


class GatewayNotAnswering(ControlError):
    """Something listens there and did not answer properly."""


def socket_path(process: Path) -> Path:
    """Return the path of the socket of a process: `<process>.sock`. `process`: see
    `process_path`.
    """
    plain = Path(os.path.abspath(process))  # noqa: PTH100 - `absolute` leaves `..` in
    return plain.with_name(f"{plain.name}.sock")


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield the address of a socket, which a long path has by way of its open directory
    (proc(5)).
    """
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield os.fspath(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


class ControlServer:
    """Server that passes every request to `handler`."""

    def __init__(
        self,
        path: Path,
        handler: Callable[[CommandRequest], Awaitable[ControlResponse]],
        snapshot: Callable[[], GatewaySnapshot],
    ) -> None:
        """`path`: as `socket_path` gives it. Exceptions of `handler` are logged and answered with a
        refusal.

        The caller holds the lock of the store or of the process: an existing socket is the remains
        of a dead process.
        """
        self._path = path
        self._handler = handler
        self._snapshot = snapshot
        self._connections: set[asyncio.Task[None]] = set()
        self._over = False

    async def run(self) -> None:
        """Listen until cancelled; then the socket is removed. If it cannot be made: log a warning
        and return.
        """
        try:
            listening = _bind(self._path)
        except OSError as error:
            logger.warning(
                "cannot listen on %s (%s): `reverie ctl` cannot steer this gateway",
                self._path,
                error.strerror or str(error),
            )
            return
        inode = self._path.lstat().st_ino
        try:
            server = await asyncio.start_unix_server(
                self._accept, sock=listening, limit=MAX_REQUEST_BYTES
            )
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
            if (
                self._over or len(self._connections) > MAX_CONNECTIONS
            ):  # its task may begin after the others have ended
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
        if line.strip() == STATE_REQUEST:
            state = self._snapshot()
            return ControlResponse(
                ok=state.is_ready, lines=(), data=snapshot_adapter().dump_python(state, mode="json")
            )
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
            return _refusal(
                "that failed because of an error in the program; the gateway's log says more"
            )


async def send_control_request(path: Path, request: CommandRequest) -> ControlResponse:
    """Send a request to the gateway that listens there. Raises GatewayNotRunning or
    GatewayNotAnswering.
    """
    return await _exchange(path, request.model_dump_json().encode(), READ_S + ANSWER_S)


async def ask_state(path: Path, within_s: float) -> GatewaySnapshot:
    """Ask the gateway that listens there for its state. Raises GatewayNotRunning or
    GatewayNotAnswering.
    """
    answer = await _exchange(path, STATE_REQUEST, within_s)
    try:
        return snapshot_adapter().validate_python(answer.data)
    except ValidationError as error:
        raise GatewayNotAnswering(f"a gateway of another version listens on {path}") from error


async def _exchange(path: Path, line: bytes, within_s: float) -> ControlResponse:
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(within_s):
            with _address(path) as address:
                reader, writer = await asyncio.open_unix_connection(
                    address, limit=MAX_RESPONSE_BYTES
                )
            writer.write(line + b"\n")
            await writer.drain()
            answer = await reader.readline()
        if not answer:
            raise GatewayNotAnswering(
                f"the gateway on {path} is busy or ending: it closed the connection without an "
                "answer"
            )
        return ControlResponse.model_validate_json(answer)
    except ValidationError as error:
        raise GatewayNotAnswering(
            f"another program, or a gateway of another version, listens on {path}"
        ) from error
    except TimeoutError as error:
        raise GatewayNotAnswering(
            f"the gateway on {path} did not answer in {within_s:g} s"
        ) from error
    except (OSError, ValueError) as error:
        if writer is None and isinstance(
            error, FileNotFoundError | NotADirectoryError | ConnectionRefusedError
        ):
            raise GatewayNotRunning(f"no gateway listens on {path}") from error
        reason = (
            (error.strerror if isinstance(error, OSError) else None)
            or str(error)
            or type(error).__name__
        )
        what = "cannot be asked" if writer is None else "did not answer"
        raise GatewayNotAnswering(f"the gateway on {path} {what}: {reason}") from error
    finally:
        if writer is not None:
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
        with _address(path) as address:
            server.bind(address)
        path.chmod(0o600)  # before it listens: no client can have connected
    except BaseException:
        server.close()
        raise
    return server


def _refusal(why: str) -> ControlResponse:
    return ControlResponse(ok=False, lines=(why,))
