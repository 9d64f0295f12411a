"""The one place where programs are started: each in a group of its own, of which nothing stays behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

GRACE_S: Final = 0.5
"""How long what a program wrote is still read after its end, where somebody else holds its pipes."""
KILL_WAIT_S: Final = 5.0
"""How long a killed program is waited for. The kernel may keep one that hangs in it; nobody can end that."""
READ_BYTES: Final = 64 * 1024
"""Of one read; twice as much is held before a program has to wait with writing."""


_StartedTransport = tuple[asyncio.SubprocessTransport, "_ProcessProtocol"]


class ProgramNotStarted(Exception):
    """The program is not there, or may not be started. The text says which and why, without its arguments."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What came of a program."""

    end_reason: Literal["exit", "late", "full"]
    """By itself; or it was ended, because its time was over, or because it wrote more than it may."""
    status: int
    """As it exited, or minus the number of the signal that ended it. 0 unless `end` is `exit`."""
    output: bytes
    """The beginning of its standard output, as much as it may be."""


def select_environment(*names: str) -> dict[str, str]:
    """These variables of ours, as far as they are set, and nothing else: programs get none of our secrets."""
    return {name: os.environ[name] for name in names if name in os.environ}


class _ProcessProtocol(SubprocessStreamProtocol):
    """Once the program has ended, its group does, and what others hold open is not waited for."""

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

    def kill(self) -> None:
        if self.transport is not None and not self.exited.is_set():  # then its number may be somebody else's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.transport.get_pid(), signal.SIGKILL)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class ChildProcess:
    """A program that runs."""

    def __init__(self, link: _ProcessProtocol) -> None:
        """For `start_process`."""
        assert link.transport is not None
        self._link = link
        self.pid = link.transport.get_pid()
        """Also the id of its group and its session."""
        self.stdin: asyncio.StreamWriter | None = link.stdin
        self.stdout: asyncio.StreamReader | None = link.stdout
        """Ends half a second after the program at the latest, whoever else holds it."""
        self.stderr: asyncio.StreamReader | None = link.stderr

    @property
    def status(self) -> int | None:
        """As in `ProgramResult`; None: it runs."""
        assert self._link.transport is not None
        return self._link.transport.get_returncode()

    async def wait(self) -> int:
        """The status of the program itself, once it has ended. Whoever holds its pipes is not waited for."""
        await self._link.exited.wait()
        status = self.status
        return 0 if status is None else status

    def kill(self) -> None:
        """End it and its group. Returns at once; `wait` tells when it has happened."""
        self._link.kill()


@asynccontextmanager
async def start_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    listens: bool = False,
    stderr: Literal["drop", "pipe", "join"] = "drop",
) -> AsyncIterator[ChildProcess]:
    """Start a program, without a shell, and end it with its whole group when the block is left, also cancelled.

    `env`: all of its environment. `listens`: it has `stdin`, else it reads nothing there. `stderr`: `join` puts it
    into `stdout`, in order. It inherits nothing else. Raises NotStarted.

    Who leaves the group (`setsid`) is out of reach: what is not trusted needs more than this.
    """
    errors = {"drop": subprocess.DEVNULL, "pipe": subprocess.PIPE, "join": subprocess.STDOUT}
    link = _ProcessProtocol()
    starting = asyncio.ensure_future(
        link.loop.subprocess_exec(
            lambda: link,
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
        await asyncio.shield(starting)  # half a start could not be ended with its group
        yield ChildProcess(link)
    except (OSError, ValueError) as error:  # not there; a NUL in its name
        if not starting.done() or starting.exception() is not error:
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise ProgramNotStarted(f"{argv[0]} cannot be started: {reason}") from None
    finally:
        await _end_process(starting, link)


async def _end_process(starting: asyncio.Future[_StartedTransport], link: _ProcessProtocol) -> None:
    """Also if cancelled once more: then it ends all the same, and is only not waited for."""
    if starting.done():
        link.kill()
    else:
        starting.add_done_callback(lambda done: None if done.exception() else link.kill())
    if link.transport is None and starting.done():
        return
    try:
        await _wait_event(link.exited, KILL_WAIT_S)  # before `close`, which would take its status away
    finally:
        link.close()
    await _wait_event(link.closed, KILL_WAIT_S)


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
    """Run a program to its end, and take what it writes to its standard output.

    `said`: what it is told on its standard input; it need not read it. However this ends, also cancelled, the program
    and all in its group have ended. Raises NotStarted.
    """
    output = bytearray()
    async with start_process(argv, env=env, cwd=cwd, listens=said is not None) as child:
        telling = asyncio.ensure_future(_write_input(child.stdin, said or b""))  # it may answer before it has read all
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
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)


async def _read_output(stdout: asyncio.StreamReader | None, output: bytearray, max_bytes: int) -> bool:
    """Whether it wrote more than it may."""
    while stdout is not None and (piece := await stdout.read(READ_BYTES)):
        output += piece
        if len(output) > max_bytes:
            del output[max_bytes:]
            return True
    return False


async def _write_input(stdin: asyncio.StreamWriter | None, said: bytes) -> None:
    if stdin is not None:
        with contextlib.suppress(OSError):  # it does not want to know
            stdin.write(said)
            await stdin.drain()
            stdin.close()
