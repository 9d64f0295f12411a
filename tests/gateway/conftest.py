"""Fixtures for the tests of the gateway."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.core.clock import ManualClock
from gateway.store import Store
from reverie.testing.servers.model_api import ModelApi
from tests.kits.store import opened
from tests.servers.real_postgresql import PostgresServer, missing_part


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store in `s.db`, with a clock that stands still."""
    async with await opened(tmp_path / "s.db") as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def api() -> AsyncIterator[ModelApi]:
    """The API of a model provider, on a port of its own."""
    async with ModelApi() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresServer]:
    """A server for all tests of this process."""
    if missing := missing_part():
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with PostgresServer() as server:
        yield server


@pytest.fixture
def server(postgresql: PostgresServer) -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    yield postgresql
    postgresql.start(if_stopped=True)
