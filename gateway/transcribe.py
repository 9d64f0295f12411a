"""What is said in a sound file, by a command of the operator's."""

from collections.abc import Sequence
from pathlib import Path

from gateway.describe import MAX_TRANSCRIPT_CHARS
from gateway.process import ProgramNotStarted, run_program, select_environment

FILE_PLACEHOLDER = "{file}"
"""In an argument: the path of the sound file."""
MAX_OUTPUT_BYTES = 16 * MAX_TRANSCRIPT_CHARS
"""More is not waited for: the command is ended."""
_PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV")
"""Of the environment: a program that reads a stranger's file gets none of our secrets."""


class TranscriptionError(Exception):
    """The command gave no words. The text says why."""


async def transcribe(command: Sequence[str], file: Path, *, timeout_s: float) -> str:
    """What the command writes to its standard output for this file.

    No shell is asked, and only `{file}` is replaced. Raises `TranscriptionError`. However this ends, also
    cancelled, the command and all that it started have ended.
    """
    argv = [argument.replace(FILE_PLACEHOLDER, str(file)) for argument in command]
    try:
        ran = await run_program(
            argv,
            env=select_environment(*_PASSED_VARIABLES),
            time_s=timeout_s,
            max_bytes=MAX_OUTPUT_BYTES,
            cwd=file.parent,
        )
    except ProgramNotStarted as reason:
        raise TranscriptionError(str(reason)) from None
    if ran.end_reason == "late":
        raise TranscriptionError(f"{argv[0]} took longer than {timeout_s:g} s")
    if ran.status:
        raise TranscriptionError(f"{argv[0]} ended with status {ran.status}")
    return ran.output.decode("utf-8", "replace").strip()
