"""Prompt texts, byte for byte: every agent pays for a change, so it must be deliberate."""

import hashlib

import pytest

from agent.prompts import load_prompt
from agent.signals import DmnMode

GOLDEN = {
    "inner": "7c7b078c452b5274",
    "own": "f3ffe72f70519d82",
    "quiet": "e95487e519faee02",
    "engaged": "b3e5c664970b7ddb",
    "working": "ae54964003b2ba8e",
    "foraging": "55a30771c459fbc2",
    "resting": "0cf4acde9f88cfcf",
    "stored": "e331ee7d1be37f8a",
    "dreaming": "c1c786d12d921b16",
    "write_down": "6d9640a095cfcf05",
    "paused": "6060a3ae68889029",
    "off": "840982ab8ba5349f",
    "summarise": "06444066919f702c",
}
MOST_CHARS = 320
"""Some 80 tokens: what a state says is paid for in every turn that nobody asked for."""
LONG = {"inner", "dreaming", "summarise"}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_text_is_what_it_was(name: str) -> None:
    assert hashlib.sha256(load_prompt(name).encode()).hexdigest()[:16] == GOLDEN[name]


@pytest.mark.parametrize("name", sorted(set(GOLDEN) - LONG))
def test_the_text_is_short(name: str) -> None:
    assert 0 < len(load_prompt(name)) <= MOST_CHARS


def test_every_state_has_its_own_text() -> None:
    assert len({load_prompt(mode.value) for mode in DmnMode}) == len(DmnMode)


def test_a_name_without_a_text_is_refused() -> None:
    with pytest.raises(FileNotFoundError):
        load_prompt("elated")
