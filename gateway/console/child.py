"""The gateway that this console runs, as a process: started, watched, and ended as by SIGTERM."""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Final

CHILD_STOP_S: Final = 15.0
"""A gateway that is told to stop ends within 10 s."""
_TAIL_BYTES: Final = 4_096


def child_log_path(store: Path) -> Path:
    """Where its log goes, beside the store."""
    return store.with_name(f"{store.name}.log")


class GatewayProcess:
    """A gateway that runs for as long as we do, at most."""

    def __init__(self, directory: Path, store: Path, port: int, token: str) -> None:
        """`directory`: of its configuration."""
        self.log_path = child_log_path(store)
        self._directory, self._port, self._token = directory, port, token
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    async def start(self) -> None:
        """Begin; it takes a second or two until it answers. Raises OSError."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab", opener=_open_private) as log:  # noqa: ASYNC230 - a moment; a Path takes no opener
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway.console.serve",
                "--config",
                str(self._directory),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # what the terminal sends to its programs is not for it
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"port": self._port, "token": self._token}).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # it ended at once: `wait` tells
            await self._process.stdin.drain()

    @property
    def has_exited(self) -> bool:
        """It runs no more."""
        return self._process is None or self._process.returncode is not None

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        return await self._process.wait()

    def read_log_tail(self) -> str:
        """The end of what it logged this time."""
        try:
            with self.log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _TAIL_BYTES))
                return log.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    async def stop(self) -> int:
        """End it, and return its exit code.

        It finishes or parks what is in flight; after `CHILD_STOP_S` it is killed.
        """
        process = self._process
        assert process is not None
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(CHILD_STOP_S):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        assert process.stdin is not None
        process.stdin.close()
        return process.returncode or 0


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
