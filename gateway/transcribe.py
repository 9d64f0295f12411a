"""What is said in a sound file, by a command of the operator's."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from gateway.describe import MAX_WORDS_CHARS

FILE = "{file}"
"""In an argument: the path of the sound file."""
MAX_OUTPUT_BYTES = 16 * MAX_WORDS_CHARS
"""More is not waited for: the command is ended."""
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV")
"""Of the environment: a program that reads a stranger's file gets none of our secrets."""


class NotTranscribed(Exception):
    """The command gave no words. The text says why."""


async def transcribe(command: Sequence[str], file: Path, *, timeout_s: float) -> str:
    """What the command writes to its standard output for this file.

    No shell is asked, and only `{file}` is replaced. Raises `NotTranscribed`. However this ends, also
    cancelled, the command and all that it started have ended.
    """
    argv = [argument.replace(FILE, str(file)) for argument in command]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            cwd=file.parent,
            start_new_session=True,  # a group of its own, so that it can be ended with its children
        )
    except OSError as error:
        raise NotTranscribed(f"{argv[0]} cannot be started: {error.strerror}") from None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            said = await _read(process.stdout)
            status = 0 if len(said) >= MAX_OUTPUT_BYTES else await process.wait()
    except TimeoutError:
        raise NotTranscribed(f"{argv[0]} took longer than {timeout_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        # `wait` waits for the pipe, too: one that is full, or that somebody who got away still holds, never ends.
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way
        await asyncio.shield(process.wait())
    if status:
        raise NotTranscribed(f"{argv[0]} ended with status {status}")
    return said.decode("utf-8", "replace").strip()


async def _read(output: asyncio.StreamReader) -> bytes:
    said = b""
    while len(said) < MAX_OUTPUT_BYTES and (piece := await output.read(MAX_OUTPUT_BYTES - len(said))):
        said += piece
    return said
