"""Who may do what: every way in, on every platform, by everybody, under every policy, against an
oracle in words."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.gateway.system.permission_matrix.matrix_kit import Report, cells, play, some_cells
from tests.gateway.system.permission_matrix.oracle import DMS, ROOMS, Cell
from tests.gateway.system.permission_matrix.people import PEOPLE, PLACES, PLATFORMS
from tests.gateway.system.permission_matrix.platform_payloads import ABSENT, WAYS, ways


def played(folder: Path, chosen: Sequence[Cell]) -> Report:
    began = time.monotonic()
    report = asyncio.run(play(folder, chosen))
    took = time.monotonic() - began
    print(
        f"\n{report.cells} cells, {len(report.decisions)} outcomes by {len(report.rules)} rules, "
        f"{took:.1f} s"
    )
    print(f"{len(report.wrong)} wrong", *report.wrong, sep="\n")
    return report


def test_some_of_everything_is_decided_as_the_readme_says(tmp_path: Path) -> None:
    report = played(tmp_path, some_cells())
    assert report.cells > 3_000
    assert report.wrong == []


@pytest.mark.soak
def test_everything_is_decided_as_the_readme_says(tmp_path: Path) -> None:
    report = played(tmp_path, list(cells()))
    assert report.cells > 50_000
    assert report.wrong == []


def test_nothing_is_skipped_in_silence() -> None:
    """Each way to come in is tried on each platform, or stands among what it does not have; so does
    each policy."""
    chosen = some_cells()
    tried = {(cell.platform, cell.way) for cell in chosen}
    for platform in PLATFORMS:
        for way in WAYS:
            absent = (platform, way) in ABSENT or (platform, way.partition(" ")[0]) in ABSENT
            assert ((platform, way) in tried) != absent, (platform, way)
        places = {cell.place for cell in chosen if cell.platform == platform}
        assert places == set(PLACES[platform])
    assert {cell.person.name for cell in chosen} == {person.name for person in PEOPLE}
    for dm in DMS:
        assert {cell.rooms for cell in chosen if cell.dm == dm} == set(ROOMS)
    everyone = [
        (platform, person) for platform in PLATFORMS for person in PEOPLE if platform in person.only
    ]
    assert all(
        any(ways(platform, person, place))
        for platform, person in everyone
        for place in ("listed", "closed")
    )
