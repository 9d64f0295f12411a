"""Inputs and types of doctor checks."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from gateway.cli.probes.base import Finding
from gateway.config.loader import LoadedConfig
from gateway.config.models import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """State of the gateway that uses the store."""

    kind: Literal["running", "starting", "hangs", "died", "stopped"]
    """hangs: it holds the store without a heartbeat; died: it left files behind that a clean exit removes."""
    pid: int | None = None
    """Process id. None: not known."""
    silent_s: float = 0.0
    """Seconds since the last heartbeat; 0: there is none."""
    started: str = ""
    """Start time of the process as it recorded it; empty: not recorded."""

    @property
    def is_alive(self) -> bool:
        """True if a process may be using the store."""
        return self.kind in ("running", "starting", "hangs")


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorEnvironment:
    """Places that doctor examines, independent of the configuration."""

    directory: Path
    """Configuration directory."""
    env: Mapping[str, str]
    offline: bool = False
    """True: no other machine is contacted."""
    root: Path = Path("/")
    """Directory that contains `proc`, `sys`, `etc` and `run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorContext:
    """Input of the checks, once the configuration could be read."""

    environment: DoctorEnvironment
    config: LoadedConfig
    gateway_state: GatewayState
    """State of the gateway that uses the store of this configuration."""

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def offline(self) -> bool:
        return self.environment.offline


DoctorCheck = Callable[[DoctorContext], Awaitable[Sequence[Finding]]]
"""A check. It may raise any exception; that becomes a finding."""
BlockingCheck = Callable[[DoctorContext], Iterable[Finding]]
"""The same, to be run in a thread."""


async def run_in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in a daemon thread: neither the caller nor the end of the process has to wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(end: Callable[[], None]) -> None:
        if not done.done():
            end()

    def work() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - passed to the caller
            _notify_loop(loop, tell, partial(done.set_exception, error))
        else:
            _notify_loop(loop, tell, partial(done.set_result, result))

    threading.Thread(target=work, name="doctor", daemon=True).start()
    return await done


def _notify_loop(
    loop: asyncio.AbstractEventLoop, tell: Callable[[Callable[[], None]], None], end: Callable[[], None]
) -> None:
    try:
        loop.call_soon_threadsafe(tell, end)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
