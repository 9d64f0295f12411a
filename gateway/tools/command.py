"""One command of an agent's: started, watched and ended."""

import asyncio
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from gateway.process import KILL_WAIT_S, READ_BYTES, ChildProcess, start_process
from gateway.tools import warden
from gateway.tools.limits import CommandLimits
from gateway.tools.output import OutputBuffer, ShellResult
from gateway.tools.sandbox import MARKER_VARIABLE
from gateway.tools.watch import kill_marked, watch_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """What is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    directory: Path
    """Where it starts, and where it writes."""
    helper_processes: int = 0
    """How many processes stand between ours and the command's, because a sandbox needs them."""


async def run_command(command: ShellCommand, limits: CommandLimits, kept: OutputBuffer) -> ShellResult:
    """Run it to its end, or to that of its limits. What it prints is put into `kept` as it comes.

    However this ends, also cancelled, all that the command started has ended. Raises NotStarted.
    """
    mark = f"{MARKER_VARIABLE}={secrets.token_hex(16)}"
    watched = False
    try:
        async with _start_warden(command, mark) as child:
            watched = True
            return await _supervise(child, command, limits, kept, mark)
    finally:
        if not watched:  # cut off before we knew of it: only the warden was killed, and it may have been ahead
            kill_marked(mark)


def _start_warden(command: ShellCommand, mark: str) -> AbstractAsyncContextManager[ChildProcess]:
    name, _, value = mark.partition("=")
    return start_process(
        (sys.executable, "-I", "-S", warden.__file__, *command.argv),
        env={**command.env, name: value},
        cwd=command.directory,
        listens=True,
        stderr="join",
    )


async def _supervise(
    child: ChildProcess, command: ShellCommand, limits: CommandLimits, kept: OutputBuffer, mark: str
) -> ShellResult:
    began = time.monotonic()
    reading = asyncio.ensure_future(_read_output(child, limits, kept))
    watching = asyncio.ensure_future(
        watch_limits(child.pid, limits, command.directory, keepers=command.helper_processes)
    )
    exiting = asyncio.ensure_future(child.wait())
    try:
        tasks = (exiting, reading, watching)
        await asyncio.wait(tasks, timeout=limits.time_s, return_when=asyncio.FIRST_COMPLETED)
        why = _end_reason(exiting, reading, watching, limits)
        await _kill_all(child, mark)
        await reading  # what it printed last
        status = child.status or 0
        return ShellResult(
            status=status,
            end_reason=why or ("it killed what watches over it" if status < 0 else ""),
            duration_s=time.monotonic() - began,
        )
    finally:
        await _kill_all(child, mark)
        for task in (exiting, reading, watching):
            task.cancel()
        await asyncio.gather(exiting, reading, watching, return_exceptions=True)


def _end_reason(
    exiting: asyncio.Future[int], reading: asyncio.Future[str], watching: asyncio.Future[str], limits: CommandLimits
) -> str:
    if exiting.done():
        return ""
    for task in (watching, reading):
        if task.done():
            return task.result()
    return f"its {limits.time_s:g} s were over"


async def _read_output(child: ChildProcess, limits: CommandLimits, kept: OutputBuffer) -> str:
    """Return why it has to end, if that is for what it printed; else when it has ended."""
    assert child.stdout is not None
    while piece := await child.stdout.read(READ_BYTES):
        kept.append(piece)
        if flood := limits.check_output(kept.total_bytes):
            return flood
    await child.wait()
    return ""


async def _kill_all(child: ChildProcess, mark: str) -> None:
    """End it, if it has not ended, with all that it started."""
    try:
        if child.status is None and child.stdin is not None:
            child.stdin.close()  # the warden knows all of them
            await asyncio.wait((asyncio.ensure_future(child.wait()),), timeout=KILL_WAIT_S)
    finally:
        if child.status is None or child.status < 0:  # the warden hangs, or was killed
            child.kill()
            kill_marked(mark)
    await child.wait()
