"""What checks are handed, and what they are."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from gateway.cli.probes.base import Finding
from gateway.config.loader import LoadedConfig
from gateway.config.models import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """Whether a gateway uses the store just now."""

    kind: Literal["running", "starting", "hangs", "died", "stopped"]
    """hangs: it holds its store and gives no sign of life; died: it left things behind that it takes along else."""
    pid: int | None = None
    """None: not known."""
    silent_s: float = 0.0
    """Since the last sign of life; 0 if there is none."""
    started: str = ""
    """When that process began, as it says; empty if it does not."""

    @property
    def is_alive(self) -> bool:
        """Some process may be at work with this store."""
        return self.kind in ("running", "starting", "hangs")


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorEnvironment:
    """Where doctor looks, whatever the configuration says."""

    directory: Path
    """Of the configuration."""
    env: Mapping[str, str]
    offline: bool = False
    """Nothing beyond this machine is asked."""
    root: Path = Path("/")
    """Where `proc`, `sys`, `etc` and `run` are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorContext:
    """What is examined, once its configuration could be read."""

    environment: DoctorEnvironment
    config: LoadedConfig
    gateway_state: GatewayState
    """Of its gateway."""

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def offline(self) -> bool:
        return self.environment.offline


ConfiglessCheck = Callable[[DoctorEnvironment], Awaitable[Sequence[Finding]]]
"""Looks at something that needs no configuration."""
DoctorCheck = Callable[[DoctorContext], Awaitable[Sequence[Finding]]]
"""Looks at one thing. May raise whatever goes wrong: that is told as a finding of its own."""


async def run_in_thread(function: Callable[[], T]) -> T:
    """Run what blocks in a thread that nobody has to wait for: also not the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(end: Callable[[], None]) -> None:
        if not done.done():
            end()

    def work() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
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
    except RuntimeError:  # nobody waits any more: the loop is closed
        return
