"""Files of a gateway process beside its store, and what a client does with the socket among them.

A gateway with its store in SQLite is one process, whose socket stands beside the store:
`reverie.db.sock`. The processes that share a store in PostgreSQL may share its directory as well,
so their names are in those of their sockets and locks: `reverie.db@edge-1.sock`. The lock keeps two
processes of the same name apart.

Only the standard library is imported, and no asyncio: a command for a running gateway needs no more
(`gateway.cli.client`).

ControlError
├── GatewayNotRunning     no gateway listens there: the store can be worked on instead
└── GatewayNotAnswering   tell: it got the request, and whether it did something is not known
"""

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

MAX_PATH_BYTES: Final = 103
"""Length that every system accepts: `sun_path` holds 104 bytes on BSD and macOS, 108 on Linux, the
last of them 0 (https://man7.org/linux/man-pages/man7/unix.7.html)."""
MAX_RESPONSE_BYTES: Final = 4_194_304
READ_S = 5.0
"""Time for the client to send its request: programs do at once, people do not type here."""
ANSWER_S = 10.0


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
def socket_address(path: Path) -> Iterator[str]:
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


def exchange(path: Path, line: bytes, within_s: float) -> bytes:
    """Send a line to the gateway that listens there, and return its answer. Blocks for `within_s`
    at most. Raises GatewayNotRunning, where nothing was sent, or GatewayNotAnswering.
    """
    until_s, is_connected = time.monotonic() + within_s, False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            link.settimeout(within_s)
            with socket_address(path) as address:
                link.connect(address)
            is_connected = True
            link.sendall(line + b"\n")
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < MAX_RESPONSE_BYTES:
                link.settimeout(max(until_s - time.monotonic(), 0.001))
                if not (read := link.recv(MAX_RESPONSE_BYTES)):
                    break
                answer += read
        except TimeoutError as error:
            raise GatewayNotAnswering(
                f"the gateway on {path} did not answer in {within_s:g} s"
            ) from error
        except (OSError, ValueError) as error:
            if not is_connected and isinstance(
                error, FileNotFoundError | NotADirectoryError | ConnectionRefusedError
            ):
                raise GatewayNotRunning(f"no gateway listens on {path}") from error
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            what = "did not answer" if is_connected else "cannot be asked"
            raise GatewayNotAnswering(f"the gateway on {path} {what}: {reason}") from error
    if not answer:
        raise GatewayNotAnswering(
            f"the gateway on {path} is busy or ending: it closed the connection without an answer"
        )
    return answer
