"""The conformance suite bites: every broken twin of every adapter is found out by the check that is
meant for it."""

import asyncio

import pytest

from tests.channels.conformance.broken_channels import ACTS, ASIDES, BEYOND, TWINS, Twin
from tests.channels.conformance.platforms.base import Kit, bench
from tests.channels.conformance.test_conformance import CHECKS, KITS

ALL = {**TWINS, **ACTS, **ASIDES}

FOUND_OUT = (AssertionError, pytest.fail.Exception, TimeoutError)
"""How a check fails; anything else would be a fault of the twin."""


def _cases() -> list[object]:
    return [
        pytest.param(kit, twin, id=f"{kit.label}-{twin.__name__}")
        for kit in KITS
        for twin, check in ALL.items()
        if check not in kit.lacks
        and (kit.label, twin) not in BEYOND
        and not kit.label.startswith("irc-")  # real servers: the same adapter again
    ]


@pytest.mark.parametrize(("kit", "twin"), _cases())
async def test_a_broken_twin_is_found_out(kit: type[Kit], twin: type[Twin]) -> None:
    check = CHECKS[ALL[twin]]
    platform = kit()
    async with bench(platform, twin) as ready:
        platform.patience_s = ready.ear.patience_s = 1.0
        with pytest.raises(FOUND_OUT):
            await asyncio.wait_for(check(ready), 30)


def test_every_check_that_a_wrapper_can_break_has_a_twin() -> None:
    unbroken = {
        "unknown_events_are_dropped_quietly",  # what is dropped does not reach a wrapper
        "no_text_becomes_a_command",  # a wrapper stands before the sanitising
        "no_text_becomes_a_mass_mention",  # the same
        "a_notice_arrives",  # SendsTwice would do
        "order_holds_in_each_room",  # the same
        "what_was_said_meanwhile_arrives",  # ForgetsTheCursor is the restart's half of it
        "a_broken_emit_comes_out",  # a wrapper that swallows it has no other way to end
    }
    checks = {name for name in CHECKS if not name.startswith("it_")} | {"it_is_what_it_says"}
    assert checks - set(ALL.values()) == unbroken
