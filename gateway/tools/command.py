"""One command of an agent's: started, watched and ended."""

import asyncio
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from gateway.process import GOODBYE_S, PIECE_BYTES, Child, started
from gateway.tools import warden
from gateway.tools.limits import Limits
from gateway.tools.output import Ended, Kept
from gateway.tools.sandbox import MARKER
from gateway.tools.watch import kill_marked, watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    directory: Path
    """Where it starts, and where it writes."""
    helper_processes: int = 0
    """How many processes stand between ours and the command's, because a sandbox needs them."""


async def carry_out(command: Command, limits: Limits, kept: Kept) -> Ended:
    """Run it to its end, or to that of its limits. What it prints is put into `kept` as it comes.

    However this ends, also cancelled, all that the command started has ended. Raises NotStarted.
    """
    mark = f"{MARKER}={secrets.token_hex(16)}"
    watched = False
    try:
        async with _started(command, mark) as child:
            watched = True
            return await _watched(child, command, limits, kept, mark)
    finally:
        if not watched:  # cut off before we knew of it: only the warden was killed, and it may have been ahead
            kill_marked(mark)


def _started(command: Command, mark: str) -> AbstractAsyncContextManager[Child]:
    name, _, value = mark.partition("=")
    return started(
        (sys.executable, "-I", "-S", warden.__file__, *command.argv),
        env={**command.env, name: value},
        cwd=command.directory,
        listens=True,
        stderr="join",
    )


async def _watched(child: Child, command: Command, limits: Limits, kept: Kept, mark: str) -> Ended:
    began = time.monotonic()
    reading = asyncio.ensure_future(_read(child, limits, kept))
    watching = asyncio.ensure_future(watch(child.pid, limits, command.directory, keepers=command.helper_processes))
    exiting = asyncio.ensure_future(child.wait())
    try:
        tasks = (exiting, reading, watching)
        await asyncio.wait(tasks, timeout=limits.time_s, return_when=asyncio.FIRST_COMPLETED)
        why = _why(exiting, reading, watching, limits)
        await _end(child, mark)
        await reading  # what it printed last
        status = child.status or 0
        return Ended(
            status=status,
            end_reason=why or ("it killed what watches over it" if status < 0 else ""),
            duration_s=time.monotonic() - began,
        )
    finally:
        await _end(child, mark)
        for task in (exiting, reading, watching):
            task.cancel()
        await asyncio.gather(exiting, reading, watching, return_exceptions=True)


def _why(
    exiting: asyncio.Future[int], reading: asyncio.Future[str], watching: asyncio.Future[str], limits: Limits
) -> str:
    if exiting.done():
        return ""
    for task in (watching, reading):
        if task.done():
            return task.result()
    return f"its {limits.time_s:g} s were over"


async def _read(child: Child, limits: Limits, kept: Kept) -> str:
    """Return why it has to end, if that is for what it printed; else when it has ended."""
    assert child.stdout is not None
    while piece := await child.stdout.read(PIECE_BYTES):
        kept.append(piece)
        if flood := limits.check_output(kept.total_bytes):
            return flood
    await child.wait()
    return ""


async def _end(child: Child, mark: str) -> None:
    """End it, if it has not ended, with all that it started."""
    try:
        if child.status is None and child.stdin is not None:
            child.stdin.close()  # the warden knows all of them
            await asyncio.wait((asyncio.ensure_future(child.wait()),), timeout=GOODBYE_S)
    finally:
        if child.status is None or child.status < 0:  # the warden hangs, or was killed
            child.kill()
            kill_marked(mark)
    await child.wait()
