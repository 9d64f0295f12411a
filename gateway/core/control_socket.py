"""Control of a running gateway from outside, and its state: a Unix socket beside its store, for its
own user alone.

A client sends one JSON object on one line and gets one back (`gateway.core.control_messages`), and
the connection is closed. The empty object asks for the gateway's state: what answers is alive.
Everything is bounded in size, time and number, and nothing that a client does stops the gateway.

Where the sockets are, and what a client does with one: `gateway.core.process_files`.
"""

import asyncio
import contextlib
import logging
import socket
import stat
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.findings import run_in_daemon_thread
from gateway.core.metrics import GatewaySnapshot, GatewayState, snapshot_adapter
from gateway.core.process_files import (
    ANSWER_S,
    READ_S,
    GatewayNotAnswering,
    GatewayNotRunning,
    exchange,
    list_process_paths,
    process_path,
    socket_address,
    socket_path,
)

logger = logging.getLogger("reverie.control")

STATE_REQUEST: Final = b"{}"
MAX_REQUEST_BYTES: Final = 65_536
MAX_CONNECTIONS = 16


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
    answer = await run_in_daemon_thread(partial(exchange, path, line, within_s))
    try:
        return ControlResponse.model_validate_json(answer)
    except ValidationError as error:
        raise GatewayNotAnswering(
            f"another program, or a gateway of another version, listens on {path}"
        ) from error


def _bind(path: Path) -> socket.socket:
    """Return a socket that only our user can connect to, in place of a dead one. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(17, "something else has that name")
        path.unlink()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            server.bind(address)
        path.chmod(0o600)  # before it listens: no client can have connected
    except BaseException:
        server.close()
        raise
    return server


def _refusal(why: str) -> ControlResponse:
    return ControlResponse(ok=False, lines=(why,))


STATE_S: Final = 5.0
"""Seconds in which a gateway answers on its control socket, longer than any pause of a healthy
process."""
HUNG_REMEDY: Final = "if it hangs, stop it (kill PID, after a minute kill -9) and start it again"


async def find_gateway_state(store: Path, name: str = "") -> GatewayState:
    """Ask the processes on this host that use the store for their state. `name`: one of them.

    Of several it is that of the one which works best: it tells the channels of the others, too.
    """
    states = await asyncio.gather(*map(_ask, list_process_paths(process_path(store, name))))
    kinds = "stopped", "died", "hangs", "running"
    return max(
        states,
        key=lambda one: (
            kinds.index(one.kind),
            one.snapshot is not None and one.snapshot.is_ready,
        ),
    )


async def _ask(process: Path) -> GatewayState:
    path = socket_path(process)
    try:
        if not path.is_socket():
            return GatewayState(kind="stopped")
        return GatewayState(kind="running", snapshot=await ask_state(path, STATE_S))
    except GatewayNotRunning:
        return GatewayState(kind="died")
    except OSError:  # the store's own check reports closed directories
        return GatewayState(kind="stopped")
    except GatewayNotAnswering as error:
        return GatewayState(kind="hangs", reason=str(error))
