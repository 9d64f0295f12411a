"""The operator's command that is asked before a turn what else the agent should know."""

import json
import logging
from collections.abc import Sequence
from typing import Final

from agent.journal import to_single_line
from gateway.process import ProgramNotStarted, run_program, select_environment

logger = logging.getLogger("reverie.prefetch")

MAX_OUTPUT_BYTES: Final = 64 * 1024
"""More is not waited for: the command is ended, and nothing of it is used."""
MAX_PREFETCH_PIECES: Final = 20
MAX_PIECE_CHARS: Final = 4_000
_PASSED_VARIABLES: Final = ("PATH", "LANG", "HOME")
"""Of the environment: none of our secrets."""


class _PrefetchError(Exception):
    """It said nothing that can be used. The text says why, without what it was told."""


class PrefetchCommand:
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
            return parse_prefetch_output(await self._run(f"{asked}\n".encode()))
        except _PrefetchError as reason:
            logger.debug("nothing is prefetched: %s", reason)
            return []

    async def _run(self, asked: bytes) -> str:
        program = self._command[0]
        try:
            ran = await run_program(
                self._command,
                env=select_environment(*_PASSED_VARIABLES),
                time_s=self._timeout_s,
                max_bytes=MAX_OUTPUT_BYTES,
                said=asked,
            )
        except ProgramNotStarted as reason:
            raise _PrefetchError(str(reason)) from None
        if ran.end_reason == "late":
            raise _PrefetchError(f"{program} took longer than {self._timeout_s:g} s")
        if ran.end_reason == "full":
            raise _PrefetchError(f"{program} said more than {MAX_OUTPUT_BYTES} bytes")
        if ran.status:
            raise _PrefetchError(f"{program} ended with status {ran.status}")
        return ran.output.decode("utf-8", "replace")


def parse_prefetch_output(said: str) -> list[str]:
    """What such a command said, as texts on one line each. Takes any text."""
    try:
        told = json.loads(said)
    except (ValueError, RecursionError):
        told = said.splitlines()
    return [
        text
        for one in _extract_texts(told)[:MAX_PREFETCH_PIECES]
        if (text := to_single_line(one[:MAX_PIECE_CHARS], MAX_PIECE_CHARS))
    ]


def _extract_texts(told: object) -> list[str]:
    if isinstance(told, dict):
        told = told["results"] if "results" in told else told.get("text")
    if isinstance(told, str):
        return [told]
    if not isinstance(told, list):
        return []
    found = [one.get("text") if isinstance(one, dict) else one for one in told]
    return [one for one in found if isinstance(one, str)]
