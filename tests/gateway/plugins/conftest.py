"""Fixtures for the tests of the plugins."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kits.journal import Papers, papers


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Papers]:
    """The plugins of memory and recall of one agent, on an empty store."""
    async with papers(tmp_path) as made:
        yield made
