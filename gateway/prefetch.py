"""The operator's command that is asked before a turn what else the agent should know."""

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Sequence
from typing import Final

from agent.journal import flat

logger = logging.getLogger("reverie.prefetch")

MAX_OUTPUT_BYTES: Final = 64 * 1024
"""More is not waited for: the command is ended, and nothing of it is used."""
MAX_PIECES: Final = 20
MAX_PIECE_CHARS: Final = 4_000
_PASSED_ON: Final = ("PATH", "LANG", "HOME")
"""Of the environment: none of our secrets."""


class _Useless(Exception):
    """It said nothing that can be used. The text says why, without what it was told."""


class Prefetch:
    """Runs it. Without a shell, without secrets in its environment, and never longer than it may take.

    It reads one line of JSON, `{"conversation": ..., "scope": ..., "lines": [...]}`, and writes JSON: a text, a list of
    texts, `{"text": ...}` or `{"results": [{"text": ...}, ...]}`. Of anything else that it writes each line is a text.
    """

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        """`command`: the program and its arguments. Empty: nothing is run."""
        self._command = tuple(command)
        self._timeout_s = timeout_s

    async def __call__(self, *, conversation: str, scope: str, lines: Sequence[str]) -> list[str]:
        """What it says, piece by piece, each on one line and untrusted. Nothing if it fails.

        Raises cancellation only. However this ends, the command and all that it started in its group have ended.
        """
        if not self._command:
            return []
        asked = json.dumps({"conversation": conversation, "scope": scope, "lines": list(lines)})
        try:
            return pieces(await self._run(f"{asked}\n".encode()))
        except _Useless as reason:
            logger.debug("nothing is prefetched: %s", reason)
            return []

    async def _run(self, asked: bytes) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                start_new_session=True,  # a group of its own, so that it can be ended with its children
            )
        except (OSError, ValueError) as error:  # not there; a NUL in its name
            raise _Useless(f"{self._command[0]} cannot be started: {error}") from None
        try:
            async with asyncio.timeout(self._timeout_s):
                said, status = await _talk(process, asked)
        except TimeoutError:
            raise _Useless(f"{self._command[0]} took longer than {self._timeout_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            # `wait` waits for the pipes, too: one that somebody who got away still holds never ends.
            process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way
            await asyncio.shield(process.wait())
        if status:
            raise _Useless(f"{self._command[0]} ended with status {status}")
        return said.decode("utf-8", "replace")


async def _talk(process: asyncio.subprocess.Process, asked: bytes) -> tuple[bytes, int]:
    """What it says, and its status."""
    assert process.stdin is not None
    assert process.stdout is not None
    said = b""
    telling = asyncio.create_task(_tell(process.stdin, asked))  # it may answer before it has read all
    try:
        while piece := await process.stdout.read(MAX_OUTPUT_BYTES):
            said += piece
            if len(said) > MAX_OUTPUT_BYTES:
                raise _Useless(f"it said more than {MAX_OUTPUT_BYTES} bytes")
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    return said, await process.wait()


async def _tell(stdin: asyncio.StreamWriter, asked: bytes) -> None:
    with contextlib.suppress(OSError):  # it does not want to know
        stdin.write(asked)
        await stdin.drain()
        stdin.close()


def pieces(said: str) -> list[str]:
    """What such a command said, as texts on one line each. Takes any text."""
    try:
        told = json.loads(said)
    except (ValueError, RecursionError):
        told = said.splitlines()
    return [text for one in _texts(told)[:MAX_PIECES] if (text := flat(one[:MAX_PIECE_CHARS], MAX_PIECE_CHARS))]


def _texts(told: object) -> list[str]:
    if isinstance(told, dict):
        told = told["results"] if "results" in told else told.get("text")
    if isinstance(told, str):
        return [told]
    if not isinstance(told, list):
        return []
    found = [one.get("text") if isinstance(one, dict) else one for one in told]
    return [one for one in found if isinstance(one, str)]
