"""The Bot API, and a channel on it that is up."""

from collections.abc import AsyncIterator

import pytest

from gateway.core.clock import ManualClock
from reverie.testing.servers.bot_api import BotApi
from tests.channels.telegram.channel_kit import Running, running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    async with BotApi() as server:
        yield server


@pytest.fixture
async def run(api: BotApi, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    """Its time is the test's `clock`, where the test asks for one, and its settings are those of
    the mark `channel`."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    mark = request.node.get_closest_marker("channel")
    async with running(api, clock, **(mark.kwargs if mark else {})) as it:
        await it.up()
        yield it
