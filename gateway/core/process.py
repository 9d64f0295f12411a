"""Child processes: the only place that starts programs, each in a process group that is ended
completely.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from gateway.core.frozen import frozen

GRACE_S: Final = 0.5
"""How long output is read after a program's end, if other processes hold its pipes open."""
KILL_WAIT_S: Final = 5.0
"""How long a killed program is waited for. It may hang in the kernel, and nothing can end that."""
READ_BYTES: Final = 64 * 1024
"""Size of one read; twice as much is buffered before the program has to wait with writing."""


_Started = tuple[asyncio.SubprocessTransport, "ChildProcess"]


class ProgramNotStarted(Exception):
    """A program that does not exist, or may not be started. The message gives the reason, without
    its arguments.
    """


@frozen(kw_only=False)
class ProgramResult:
    """Exit of a program and its output."""

    end_reason: Literal["exit", "late", "full"]
    """exit: by itself; late: ended at the time limit; full: ended at the output limit."""
    status: int
    """Exit status, or minus the number of the signal that ended it. 0 unless `end_reason` is
    `exit`."""
    output: bytes
    """Start of its standard output, up to the limit."""


SYSTEM_VARIABLES: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "SYSTEMROOT",
    "VIRTUAL_ENV",
)
"""What programs of ours and of the operator's need of the environment. None of it is a secret."""


def select_environment(*names: str) -> dict[str, str]:
    """Return these variables as far as they are set, and no others: programs get no secrets."""
    return {name: os.environ[name] for name in names if name in os.environ}


class ChildProcess(SubprocessStreamProtocol):
    """A running program, made by `start_process`, with its streams `stdin`, `stdout` and `stderr`.

    Once it has ended its group is killed, and pipes that others hold are closed: `stdout` ends half
    a second after the program at the latest.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        super().__init__(limit=READ_BYTES, loop=self.loop)
        self.transport: asyncio.SubprocessTransport | None = None
        self.exited, self.closed = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.transport = transport
        super().connection_made(transport)

    def process_exited(self) -> None:
        self.kill()
        self.exited.set()
        self.loop.call_later(GRACE_S, self.close)
        super().process_exited()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        super().connection_lost(exc)

    @property
    def pid(self) -> int:
        """Its id, also that of its group and its session."""
        assert self.transport is not None
        return self.transport.get_pid()

    @property
    def status(self) -> int | None:
        """Like `ProgramResult.status`; None: it is running."""
        assert self.transport is not None
        return self.transport.get_returncode()

    async def wait(self) -> int:
        """Return the status of the program itself once it has ended. Does not wait for other
        holders of its pipes.
        """
        await self.exited.wait()
        return self.status or 0

    def kill(self) -> None:
        """End it and its group. Returns at once; `wait` returns when that has happened."""
        # Once it has ended its id may be reused.
        if self.transport is not None and not self.exited.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.transport.get_pid(), signal.SIGKILL)

    def close(self) -> None:
        """Close its pipes."""
        if self.transport is not None:
            self.transport.close()


@asynccontextmanager
async def start_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    listens: bool = False,
    stderr: Literal["drop", "pipe", "join"] = "drop",
) -> AsyncIterator[ChildProcess]:
    """Start a program, without a shell, and end it with its whole group when the block is left,
    also when cancelled.

    `env`: its complete environment. `listens`: it has `stdin`; otherwise its standard input is
    empty. `stderr`: `join` puts it into `stdout`, in order. It inherits nothing else. Raises
    ProgramNotStarted.

    A process that leaves the group (`setsid`) is out of reach: untrusted programs need more than
    this.
    """
    errors = {"drop": subprocess.DEVNULL, "pipe": subprocess.PIPE, "join": subprocess.STDOUT}
    child = ChildProcess()
    starting = asyncio.ensure_future(
        child.loop.subprocess_exec(
            lambda: child,
            *argv,
            stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors[stderr],
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    )
    try:
        await asyncio.shield(starting)  # an interrupted start could not be ended with its group
        yield child
    except (OSError, ValueError) as error:  # missing program; a NUL in its name
        if not starting.done() or starting.exception() is not error:
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise ProgramNotStarted(f"{argv[0]} cannot be started: {reason}") from None
    finally:
        await _end_process(starting, child)


async def _end_process(starting: asyncio.Future[_Started], child: ChildProcess) -> None:
    """End the program, also when cancelled once more: then it ends all the same, and only the
    waiting stops.
    """
    if starting.done():
        child.kill()
    else:
        starting.add_done_callback(lambda done: None if done.exception() else child.kill())
    if child.transport is None and starting.done():
        return
    try:
        await _wait_event(
            child.exited, KILL_WAIT_S
        )  # before `close`, which would discard its status
    finally:
        child.close()
    await _wait_event(child.closed, KILL_WAIT_S)


async def _wait_event(event: asyncio.Event, time_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(time_s):
            await event.wait()


async def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    time_s: float,
    max_bytes: int,
    said: bytes | None = None,
    cwd: Path | None = None,
) -> ProgramResult:
    """Run a program to its end and return its standard output.

    `said`: its standard input, which it need not read. On return, also when cancelled, the program
    and its whole group have ended. Raises ProgramNotStarted.
    """
    output = bytearray()
    async with start_process(argv, env=env, cwd=cwd, listens=said is not None) as child:
        writing = asyncio.ensure_future(
            _write_input(child.stdin, said or b"")
        )  # it may answer before it has read all
        try:
            async with asyncio.timeout(time_s):
                full = await _read_output(child.stdout, output, max_bytes)
                return (
                    ProgramResult("full", 0, bytes(output))
                    if full
                    else ProgramResult("exit", await child.wait(), bytes(output))
                )
        except TimeoutError:
            return ProgramResult("late", 0, bytes(output))
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def _read_output(
    stdout: asyncio.StreamReader | None, output: bytearray, max_bytes: int
) -> bool:
    while stdout is not None and (piece := await stdout.read(READ_BYTES)):
        output += piece
        if len(output) > max_bytes:
            del output[max_bytes:]
            return True
    return False


async def _write_input(stdin: asyncio.StreamWriter | None, data: bytes) -> None:
    if stdin is not None:
        with contextlib.suppress(OSError):  # the program closed its input
            stdin.write(data)
            await stdin.drain()
            stdin.close()
