"""Registers checks of a configuration and of what it names: `@check` beside the code that is
checked.

Checks are in modules of their own, because a gateway that runs needs none of them.
`gateway.plugins.doctor.examine` lists these modules and runs the checks. What they report:
`gateway.core.findings`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway.config.loader import LoadedConfig
from gateway.config.models import Settings
from gateway.core.findings import Finding, run_in_daemon_thread
from gateway.core.frozen import frozen
from gateway.core.metrics import GatewayState


@frozen
class CheckEnvironment:
    """Places that doctor examines, independent of the configuration."""

    directory: Path
    env: Mapping[str, str]
    offline: bool = False
    """True: no other machine is contacted."""
    root: Path = Path("/")
    """Directory that contains `proc`, `sys`, `etc` and `run`."""


@frozen
class CheckContext:
    """Input of the checks, once the configuration could be read."""

    environment: CheckEnvironment
    config: LoadedConfig
    gateway_state: GatewayState

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def offline(self) -> bool:
        return self.environment.offline


@frozen
class Check:
    """One check."""

    name: str
    """Name for people."""
    function: Callable[..., Any]
    """Returns findings. It may raise any exception. One that blocks, a generator as a rule, runs in
    a thread."""
    each: Callable[[Settings], Iterable[str]] | None
    """Returns the names of what is checked one by one. None: there is only one."""
    timed: bool
    """False: it only computes, so a busy machine makes it slow; it runs before the others, without
    a time bound."""
    online: bool
    """True: it contacts other machines, and is left out offline."""

    async def run(self, context: CheckContext, name: str) -> Sequence[Finding]:
        """Run it. `name`: one of `each`."""
        arguments = (context, name) if self.each else (context,)
        if inspect.iscoroutinefunction(self.function):
            found: Sequence[Finding] = await self.function(*arguments)
            return found
        return await run_in_daemon_thread(lambda: list(self.function(*arguments)))


def channels_of(platform: str) -> Callable[[Settings], Iterable[str]]:
    """Return `each` for the checks of a platform: the names of its channels."""
    return lambda settings: [
        name for name, one in settings.channels.items() if one.platform == platform
    ]


CHECKS: Final[list[Check]] = []
Function = TypeVar("Function", bound=Callable[..., Any])


def check(
    name: str,
    *,
    each: Callable[[Settings], Iterable[str]] | None = None,
    timed: bool = True,
    online: bool = False,
) -> Callable[[Function], Function]:
    """Register a function that takes the context and, with `each`, the name of what it checks, and
    returns findings. One that is no coroutine runs in a thread.

    `name`: heading of the findings. `each`: returns the names of what is checked one by one.
    `timed`: False if it only computes, so it has no time limit. `online`: True if it contacts
    other machines, so it is left out offline.
    """

    def register(function: Function) -> Function:
        CHECKS.append(Check(name=name, function=function, each=each, timed=timed, online=online))
        return function

    return register
