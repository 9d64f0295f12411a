"""What was said early is found after three compactions: in the summary, beside it, in the journal or by a handle."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway.system.long_run.planted_facts import COMPACTIONS, FACTS, Kept, keep


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return asyncio.run(keep(tmp_path_factory.mktemp("facts")))


def test_every_fact_is_found(kept: Kept) -> None:
    assert kept.compactions >= COMPACTIONS
    assert all(kept.ways[fact.value] for fact in FACTS), kept.table()


def test_handles_bring_all_of_them(kept: Kept) -> None:
    assert all("handle" in kept.ways[fact.value] for fact in FACTS), kept.table()


def test_what_was_written_into_the_journal_is_found_there(kept: Kept) -> None:
    assert all("journal" in kept.ways[fact.value] for fact in FACTS if fact.by == "journal"), kept.table()


def test_what_a_summary_keeps_is_carried_from_one_to_the_next(kept: Kept) -> None:
    assert any("summary" in ways for ways in kept.ways.values()), kept.table()


def test_a_summariser_that_keeps_nothing_loses_nothing(tmp_path: Path) -> None:
    lost = asyncio.run(keep(tmp_path, lambda _: "They spoke of boats, and of nothing that matters to anybody."))
    assert all(lost.ways[fact.value] - {"summary"} for fact in FACTS), lost.table()
