"""The scripted server, and a channel on it that is up."""

from collections.abc import AsyncIterator

import pytest

from gateway.core.clock import ManualClock
from reverie.testing.servers.ircd import Ircd, Options
from tests.channels.irc.channel_kit import Running, running


@pytest.fixture
def options() -> Options:
    return Options()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def ircd(options: Options) -> AsyncIterator[Ircd]:
    async with Ircd(options) as server:
        yield server


@pytest.fixture
async def run(ircd: Ircd, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    """Its time is the test's `clock`, where the test asks for one."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    async with running(ircd, clock) as it:
        await it.up()
        yield it
