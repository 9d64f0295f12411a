"""The loopback Discord, and a channel on it that is up."""

from collections.abc import AsyncIterator

import pytest

from gateway.core.clock import ManualClock
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from tests.channels.discord.channel_kit import Running, running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def options() -> Options:
    return Options()


@pytest.fixture
async def api(options: Options) -> AsyncIterator[DiscordApi]:
    async with DiscordApi(options) as server:
        yield server


@pytest.fixture
async def run(api: DiscordApi, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    """Its time is the test's `clock`, where the test asks for one, and its settings are those of
    the mark `channel`."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    mark = request.node.get_closest_marker("channel")
    async with running(api, clock, **(mark.kwargs if mark else {})) as it:
        await it.up()
        yield it
