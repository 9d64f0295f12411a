"""One homeserver for all tests."""

from collections.abc import Iterator

import pytest
from homeserver import Homeserver
from kit import MatrixKit


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def homeserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    server = Homeserver(tmp_path_factory.mktemp("homeserver"))
    try:
        server.start()
        MatrixKit.homeserver = server
        yield server
    finally:
        server.stop()
