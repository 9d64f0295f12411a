"""Selection of the gateway for a console: one that runs, or a child process (`GatewayProcess`)."""

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
"""Seconds: a gateway that is asked to stop ends within 10 s."""
_TAIL_BYTES: Final = 4_096


def child_log_path(store: Path) -> Path:
    """Return the path of the child's log, beside the store."""
    return store.with_name(f"{store.name}.log")


class GatewayProcess:
    """A gateway as a child process. It ends at the latest when we end."""

    def __init__(self, directory: Path, store: Path, port: int, token: str) -> None:
        """`directory`: configuration directory."""
        self.log_path = child_log_path(store)
        self._directory, self._port, self._token = directory, port, token
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    async def start(self) -> None:
        """Start the process; it takes a second or two until it answers. Raises OSError."""
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
                start_new_session=True,  # signals of the terminal do not reach it
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"port": self._port, "token": self._token}).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # it ended at once: `wait` reports it
            await self._process.stdin.drain()

    @property
    def has_exited(self) -> bool:
        """True if the process is not running."""
        return self._process is None or self._process.returncode is not None

    async def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    def read_log_tail(self) -> str:
        """Return the end of the log of this run."""
        try:
            with self.log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _TAIL_BYTES))
                return log.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    async def stop(self) -> int:
        """Stop the process and return its exit code.

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
    """The console cannot be opened. The message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleTarget:
    """The gateway of a console."""

    url: str
    token: str = field(repr=False)
    is_own: bool
    """True if the console runs it."""
    port: int = 0
    """Port of an own gateway; 0: another's."""


async def find_target(
    settings: Settings | None, directory: Path | None, env: Mapping[str, str], now: datetime, *, url: str, run: bool
) -> ConsoleTarget:
    """Select the gateway. Raises ConsoleUnavailable.

    `url`: address of the gateway. Empty: the one that runs with the store of `settings`, else an own one. `run`: an own
    one is required.
    """
    configured_token = (
        settings.ops.token.get_secret_value() if settings is not None and settings.ops.token is not None else ""
    )
    if url:
        return await _check_target(
            ConsoleTarget(url=url, token=env.get(TOKEN_VARIABLE) or configured_token, is_own=False), settings, directory
        )
    if settings is None or directory is None:
        raise ConsoleUnavailable("name a configuration with --config, or a gateway with --url")
    heartbeat = read_heartbeat(settings.store.path, now)
    running = heartbeat is not None and heartbeat.age_s < STALE_HEARTBEAT_S
    if running and run:
        raise ConsoleUnavailable(
            f"a gateway runs with the store {settings.store.path}: leave out --run to connect to it"
        )
    if running and not settings.ops.port:
        raise ConsoleUnavailable(
            "a gateway runs, but ops.port is 0 (any free one): set a port, or name its address with --url"
        )
    if running:
        host = "127.0.0.1" if settings.ops.host in ("0.0.0.0", "::") else settings.ops.host  # noqa: S104 - it is compared
        authority = f"[{host}]" if ":" in host else host
        with contextlib.suppress(_GatewayNotAnswering):
            target = ConsoleTarget(
                url=f"http://{authority}:{settings.ops.port}",
                token=configured_token or env.get(TOKEN_VARIABLE, ""),
                is_own=False,
            )
            return await _check_target(target, settings, directory)
    port = _find_free_port(settings.ops.port)
    return ConsoleTarget(
        url=f"http://127.0.0.1:{port}", token=configured_token or secrets.token_urlsafe(24), is_own=True, port=port
    )


class _GatewayNotAnswering(ConsoleUnavailable):
    """No gateway answers at the address."""


async def _check_target(target: ConsoleTarget, settings: Settings | None, directory: Path | None) -> ConsoleTarget:
    """Return the target if it answers and accepts the token. Raises ConsoleUnavailable."""
    place = str(directory) if directory is not None else "its configuration"
    if not target.token:
        has = "has no ops.token" if settings is not None else f"is not known to us: there is no {TOKEN_VARIABLE}"
        why = f"the gateway at {target.url} {has}, and its API needs one"
        raise ConsoleUnavailable(f"{why}: {OPS_DISABLED_FIX.format(place=place)}")
    try:
        api = GatewayApiClient(target.url, target.token)
    except ValueError as error:
        raise ConsoleUnavailable(str(error)) from error
    try:
        await api.get_status()
    except ApiUnauthorized as error:
        fix = OPS_DISABLED_FIX.format(place=place)
        raise ConsoleUnavailable(f"the gateway at {target.url} refuses this token: {error}; {fix}") from error
    except ApiUnavailable as error:
        raise _GatewayNotAnswering(
            f"no gateway answers at {target.url}: {error}; start it, or leave out --url to run one"
        ) from error
    except ConsoleApiError as error:
        raise ConsoleUnavailable(
            f"another program, or a gateway of another version, answers at {target.url}: {error}"
        ) from error
    finally:
        await api.close()
    return target


def _find_free_port(port: int) -> int:
    """Return this port if it is free, else any free one."""
    for wanted in (port, 0):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            probe.bind(("127.0.0.1", wanted))
            return int(probe.getsockname()[1])
    raise ConsoleUnavailable("no port on 127.0.0.1 is free")
