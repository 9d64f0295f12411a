"""The store's tests run on both engines; those marked with one of them are about that one."""

from collections.abc import Iterator

import pytest

from tests.kits.store import ENGINE

ENGINES = ("sqlite", "postgresql")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = [name for name in ENGINES if metafunc.definition.get_closest_marker(name) is not None]
    metafunc.parametrize("engine", only or ENGINES, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The engine of all stores of a test."""
    name = str(request.param)
    if name == "postgresql":
        ENGINE.server = request.getfixturevalue("postgresql")
    yield name
    ENGINE.server = None
