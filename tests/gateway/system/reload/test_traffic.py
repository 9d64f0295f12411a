"""The configuration is read again and again while people talk on three platforms."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway.system.reload.reload_kit import play

OF_A_TURN = 16
"""Objects of one that a conversation has in view: it grows by what is said, with and without reloads."""


def test_thirty_reloads_lose_nothing_double_nothing_and_mix_nothing(tmp_path: Path) -> None:
    told = asyncio.run(asyncio.wait_for(play(tmp_path, 30, seed=1), 300))
    assert told.lines >= 30
    print(told)


@pytest.mark.soak
def test_a_thousand_reloads_do_so_neither_and_leave_nothing_behind(tmp_path: Path) -> None:
    told = asyncio.run(asyncio.wait_for(play(tmp_path, 1_000, seed=1), 1_800))
    print(told)
    before, after = told.before, told.after
    assert after["tasks"] == before["tasks"]
    assert after["threads"] <= before["threads"] + 2  # of a pool that grows when it is needed
    assert after["files"] <= before["files"] + 4  # connections that are kept for the next request
    bare = [figures["objects"] - OF_A_TURN * figures["turns"] for figures in (before, after)]
    assert bare[1] - bare[0] < 1_500  # two that each reload leaves behind are found
    assert after["rss_kb"] - before["rss_kb"] < 20 * told.lines  # without any reload a line that is said costs 11
