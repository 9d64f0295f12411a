"""Which gateway a console is for: one that runs, or one that it runs itself. Looks, and starts nothing.

The gateway that this console runs, as a process: started, watched, and ended as by SIGTERM.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from gateway.cli.console.client import ApiUnauthorized, ApiUnavailable, ConsoleApiError, GatewayApiClient
from gateway.config.models import Settings
from gateway.ops.health import STALE_HEARTBEAT_S, read_heartbeat

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
                "gateway.cli.console.serve",
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


TOKEN_VARIABLE: Final = "REVERIE_TOKEN"  # noqa: S105 - the name of a variable
OPS_DISABLED_FIX: Final = (
    'add `ops: {{token: "${{REVERIE_TOKEN}}"}}` to {place}, set that variable, and start the gateway again'
)


class ConsoleUnavailable(Exception):
    """No console can be opened. The message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleTarget:
    """The gateway that is meant."""

    url: str
    token: str = field(repr=False)
    is_own: bool
    """The console runs it."""
    port: int = 0
    """Of one's own."""


async def find_target(
    settings: Settings | None, directory: Path | None, env: Mapping[str, str], now: datetime, *, url: str, run: bool
) -> ConsoleTarget:
    """`url`: the one that is meant. Empty: the one with the store of `settings`, if one runs. Raises Unfit."""
    said = settings.ops.token.get_secret_value() if settings is not None and settings.ops.token is not None else ""
    if url:
        return await _check_target(
            ConsoleTarget(url=url, token=env.get(TOKEN_VARIABLE) or said, is_own=False), settings, directory
        )
    if settings is None or directory is None:
        raise ConsoleUnavailable("name a configuration with --config, or a gateway with --url")
    sign = read_heartbeat(settings.store.path, now)
    running = sign is not None and sign.age_s < STALE_HEARTBEAT_S
    if running and run:
        raise ConsoleUnavailable(
            f"a gateway runs with the store {settings.store.path}: leave out --run to attach to it"
        )
    if running and not settings.ops.port:
        raise ConsoleUnavailable(
            "a gateway runs, but ops.port is 0 (any free one): set a port, or name its address with --url"
        )
    if running:
        host = "127.0.0.1" if settings.ops.host in ("0.0.0.0", "::") else settings.ops.host  # noqa: S104 - it is compared
        there = f"[{host}]" if ":" in host else host
        with contextlib.suppress(_GatewayNotAnswering):
            target = ConsoleTarget(
                url=f"http://{there}:{settings.ops.port}", token=said or env.get(TOKEN_VARIABLE, ""), is_own=False
            )
            return await _check_target(target, settings, directory)
    port = _find_free_port(settings.ops.port)
    return ConsoleTarget(
        url=f"http://127.0.0.1:{port}", token=said or secrets.token_urlsafe(24), is_own=True, port=port
    )


class _GatewayNotAnswering(ConsoleUnavailable):
    """Nobody answers there."""


async def _check_target(target: ConsoleTarget, settings: Settings | None, directory: Path | None) -> ConsoleTarget:
    """The same, if it answers. Raises Unfit."""
    place = str(directory) if directory is not None else "its configuration"
    if not target.token:
        has = "has no ops.token" if settings is not None else f"is not known to us: there is no {TOKEN_VARIABLE}"
        why = f"the gateway at {target.url} {has}, and without one its API answers nobody"
        raise ConsoleUnavailable(f"{why}: {OPS_DISABLED_FIX.format(place=place)}")
    try:
        api = GatewayApiClient(target.url, target.token)
    except ValueError as error:
        raise ConsoleUnavailable(str(error)) from error
    try:
        await api.get_status()
    except ApiUnauthorized as error:
        fix = OPS_DISABLED_FIX.format(place=place)
        raise ConsoleUnavailable(f"the gateway at {target.url} does not take this token: {error}; {fix}") from error
    except ApiUnavailable as error:
        raise _GatewayNotAnswering(
            f"no gateway answers at {target.url}: {error}; start it, or leave out --url to run one"
        ) from error
    except ConsoleApiError as error:
        raise ConsoleUnavailable(f"what answers at {target.url} is no gateway of this version: {error}") from error
    finally:
        await api.close()
    return target


def _find_free_port(port: int) -> int:
    """This one if nobody has it, else any."""
    for wanted in (port, 0):
        with contextlib.suppress(OSError), socket.socket() as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            made.bind(("127.0.0.1", wanted))
            return int(made.getsockname()[1])
    raise ConsoleUnavailable("no port on 127.0.0.1 is free")
