"""The store's tests run on both engines, on PostgreSQL as integration tests. A mark names one
alone."""

from collections.abc import Iterator

import pytest

from tests.kits.store import ENGINE

ENGINES = {"sqlite": (), "postgresql": (pytest.mark.integration,)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = [name for name in ENGINES if metafunc.definition.get_closest_marker(name) is not None]
    engines = [pytest.param(name, marks=ENGINES[name]) for name in only or ENGINES]
    metafunc.parametrize("engine", engines, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The engine of all stores of a test."""
    name = str(request.param)
    if name == "postgresql":
        ENGINE.server = request.getfixturevalue("postgresql")
    yield name
    ENGINE.server = None
