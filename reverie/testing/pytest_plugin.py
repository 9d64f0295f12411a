"""Plugin of pytest: fixtures for tests of plugins. pytest finds it where `reverie` is installed.

Fixtures that wait are coroutines of anyio's plugin, which is always there: a test is marked with
`pytest.mark.anyio`, or the project sets `anyio_mode = "auto"`. What a fixture needs is imported
where it is first used, so that other projects pay nothing for it.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from agent.models.base import Model
    from agent.models.scripted import Script
    from gateway.core.clock import ManualClock
    from gateway.plugin import Plugin
    from reverie.testing.gateway import Gateway
    from reverie.testing.servers.bot_api import BotApi
    from reverie.testing.servers.discord_api import DiscordApi
    from reverie.testing.servers.ircd import Ircd
    from reverie.testing.servers.model_api import ModelApi

pytest.register_assert_rewrite(
    "reverie.testing.platforms", "reverie.testing.plugins", "reverie.testing.providers"
)


class MakeGateway(Protocol):
    """Makes a gateway of a test."""

    def __call__(
        self,
        model: "Model | Script | None" = None,
        *,
        plugins: "Sequence[type[Plugin]]" = (),
        **more: Any,
    ) -> "Gateway":
        """Return a gateway for `async with`, with its files in the test's directory.

        `model` None: one that echoes. `plugins`: found besides those that are installed, until the
        end of the test. `more`: as in `reverie.testing.gateway.running`, e.g. `clock`
        and `channels`; all else are sections of the configuration.
        """


@pytest.fixture
def manual_clock() -> "ManualClock":
    """A clock that stands still until the test moves it."""
    from gateway.core.clock import ManualClock  # noqa: PLC0415 - only where it is used

    return ManualClock()


@pytest.fixture
def make_gateway(tmp_path: Path) -> Iterator[MakeGateway]:
    """A function that makes a gateway, with consoles in place of platforms."""
    from gateway.plugins import use_plugins  # noqa: PLC0415 - only where it is used
    from reverie.testing.gateway import running  # noqa: PLC0415 - only where it is used

    def make(
        model: "Model | Script | None" = None,
        *,
        plugins: "Sequence[type[Plugin]]" = (),
        **more: Any,
    ) -> "Gateway":
        used.enter_context(use_plugins(*plugins))
        return running(tmp_path, model, **more)

    with ExitStack() as used:
        yield make


@pytest.fixture
async def ircd() -> "AsyncIterator[Ircd]":
    """A scripted IRC server."""
    from reverie.testing.servers.ircd import Ircd  # noqa: PLC0415 - only where it is used

    async with Ircd() as server:
        yield server


@pytest.fixture
async def bot_api() -> "AsyncIterator[BotApi]":
    """A strict Bot API of Telegram."""
    from reverie.testing.servers.bot_api import BotApi  # noqa: PLC0415 - only where it is used

    async with BotApi() as server:
        yield server


@pytest.fixture
async def discord_api() -> "AsyncIterator[DiscordApi]":
    """A strict Discord."""
    from reverie.testing.servers.discord_api import DiscordApi  # noqa: PLC0415 - only where it is used

    async with DiscordApi() as server:
        yield server


@pytest.fixture
async def model_api() -> "AsyncIterator[ModelApi]":
    """A strict model API: chat completions and Messages, with scripted answers."""
    from reverie.testing.servers.model_api import ModelApi  # noqa: PLC0415 - only where it is used

    async with ModelApi() as server:
        yield server
