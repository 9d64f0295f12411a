"""Control of a running gateway from outside, and its state: a Unix socket beside its store, for its
own user alone.

A client sends one JSON object on one line and gets one back (`gateway.core.control_messages`), and
the connection is closed. The empty object asks for the gateway's state: what answers is alive.
Everything is bounded in size, time and number, and nothing that a client does stops the gateway.

A gateway with its store in SQLite is one process, whose socket stands beside the store:
`reverie.db.sock`. The processes that share a store in PostgreSQL may share its directory as well,
so their names are in those of their sockets and locks: `reverie.db@edge-1.sock`. The lock keeps two
processes of the same name apart.

ControlError
├── GatewayNotRunning     no gateway listens there: the store can be worked on instead
└── GatewayNotAnswering   tell: it got the request, and whether it did something is not known
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.events import ChannelName
from gateway.core.metrics import (
    ChannelStats,
    GatewaySnapshot,
    GatewayState,
    HealthProblem,
    snapshot_adapter,
)

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


_MARK: Final = "@"
"""Stands between the names of the store and of the process."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,62}")


class ProcessNameInUse(Exception):
    """Another process of this name runs with the same store."""


def default_process_name() -> str:
    """Return the name of this process if the operator gives none: host and process id."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).strip(".-")[:40]
    return f"{host or 'host'}:{os.getpid()}"


def check_process_name(name: str) -> str:
    """Return the name. Raises ValueError if files cannot have it."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} is no name of a process: write 1 to 63 letters, digits and . _ : -"
        )
    return name


def process_path(store: Path, name: str) -> Path:
    """Return the path that the files of a process stand beside. `name` empty: of a gateway of one
    process.
    """
    return store.with_name(f"{store.name}{_MARK}{name}") if name else store


def process_name(path: Path, store: Path) -> str:
    """Return the name of the process whose `process_path` this is."""
    return path.name.removeprefix(store.name).removeprefix(_MARK)


def list_process_paths(store: Path) -> list[Path]:
    """Return the `process_path` of all that have files beside the store, running or not, and the
    store's own.
    """
    head = f"{store.name}{_MARK}"
    try:
        names = [one.name for one in store.parent.iterdir()]
    except OSError:
        names = []
    named = [
        store.with_name(one[:-5]) for one in names if one.startswith(head) and one.endswith(".lock")
    ]
    return [store, *sorted(named)]


@contextlib.contextmanager
def hold_process_files(store: Path, name: str, now: datetime) -> Iterator[Path]:
    """Yield the `process_path` of this process, whose name nobody else can take meanwhile.

    Blocks for a few system calls. Removes what killed processes of this host have left. `name`
    empty: it is the only one, and the store has a lock. Raises ProcessNameInUse, and OSError.
    """
    path = process_path(store, name)
    if not name:
        yield path
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = _try_lock(path)
    if lock is None:
        raise ProcessNameInUse(
            f"a process named {name} runs with the store {store}: stop it, or set another --name"
        )
    try:
        os.ftruncate(lock, 0)
        own = {"host": socket.gethostname(), "pid": os.getpid(), "started": now.isoformat()}
        os.pwrite(lock, json.dumps(own).encode(), 0)
        for other in list_process_paths(store):
            if other not in (path, store):
                _remove_left_over(other)
        yield path
    finally:
        _remove_files(path)
        os.close(lock)


def lock_file(process: Path) -> Path:
    """Return the path of the lock, which is there as long as the process lives."""
    return process.with_name(f"{process.name}.lock")


def _try_lock(process: Path) -> int | None:
    """Return the locked file. None: another process holds it."""
    file = lock_file(process)
    while True:
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(opened)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(opened), file.stat()):
                return opened
        os.close(opened)  # its process ended just then, and removed it


def _remove_left_over(process: Path) -> None:
    with contextlib.suppress(
        OSError, ValueError, LookupError
    ):  # it ended or began just then, or is another user's
        if json.loads(lock_file(process).read_bytes())["host"] != socket.gethostname():
            return  # some file systems do not show its lock here
        if (lock := _try_lock(process)) is not None:
            _remove_files(process)
            os.close(lock)


def _remove_files(process: Path) -> None:
    for file in (socket_path(process), lock_file(process)):
        with contextlib.suppress(OSError):
            file.unlink()


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


STATE_S: Final = 5.0
"""Seconds in which a gateway answers on its control socket, longer than any pause of a healthy
process."""
HUNG_REMEDY: Final = "if it hangs, stop it (kill PID, after a minute kill -9) and start it again"


async def find_gateway_state(store: Path, name: str = "") -> GatewayState:
    """Ask the processes on this host that use the store for their state. `name`: one of them.

    Of several it is what those that answer say together.
    """
    paths = list_process_paths(process_path(store, name))
    states = dict(
        zip(
            (process_name(one, store) for one in paths),
            await asyncio.gather(*map(_ask, paths)),
            strict=True,
        )
    )
    alive = {name: one for name, one in states.items() if one.is_alive}
    if len(alive) <= 1:
        return next(iter(alive.values()), max(states.values(), key=lambda one: one.kind == "died"))
    running = {name: one.snapshot for name, one in alive.items() if one.snapshot is not None}
    if not running:
        return next(iter(alive.values()))
    hung = {name: one.reason for name, one in alive.items() if one.snapshot is None}
    return GatewayState(kind="running", snapshot=_merge_snapshots(running, hung))


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


def _merge_snapshots(
    alive: Mapping[str, GatewaySnapshot], hung: Mapping[str, str]
) -> GatewaySnapshot:
    """Return what several processes say together. `hung`: what was seen of those that do not
    answer.

    What keeps some from their work, and not all, is a problem in part.
    """
    channels = dict[ChannelName, ChannelStats]()
    for name, snapshot in alive.items():
        for channel in snapshot.channels:
            if channel.holder is None:
                channels[channel.channel] = replace(channel, holder=name)
            else:
                channels.setdefault(channel.channel, channel)
    # As the gateway as a whole sees them: what nobody holds is a channel of its own that is down.
    channels = {
        name: one if one.holder else replace(one, holder=None) for name, one in channels.items()
    }
    is_working = any(
        all(problem.partial for problem in snapshot.problems) for snapshot in alive.values()
    )
    problems = [
        replace(
            problem,
            what=f"{name}:{problem.what}",
            reason=f"{name}: {problem.reason}",
            partial=problem.partial or is_working,
        )
        for name, snapshot in alive.items()
        for problem in snapshot.problems
    ]
    since = min(one.started for one in alive.values())
    problems += [
        HealthProblem(
            what=f"{name}:process", since=since, reason=f"{reason}: {HUNG_REMEDY}", partial=True
        )
        for name, reason in hung.items()
    ]
    return GatewaySnapshot(
        started=since,
        channels=tuple(channels.values()),
        read=min((one.read for one in alive.values() if one.read is not None), default=None),
        later=tuple(sorted({key for one in alive.values() for key in one.later})),
        broken=any(one.broken for one in alive.values()),
        problems=tuple(sorted(problems, key=lambda one: one.since)),
        is_shared=True,
    )
