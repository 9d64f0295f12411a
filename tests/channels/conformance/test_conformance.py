"""Every adapter is a channel: the checks of `reverie.testing.platforms` hold for it, and find each of
its broken twins."""

import inspect

from channels import base
from reverie.testing.platforms import PlatformConformance
from reverie.testing.platforms.broken_channels import TWINS
from reverie.testing.platforms.conformance import ABILITY_BY_CHECK, CHECKS
from tests.channels.conformance.platforms.console import ConsoleKit
from tests.channels.conformance.platforms.discord import DiscordKit
from tests.channels.conformance.platforms.irc import (
    InspircdKit,
    NgircdKit,
    PlainIrcKit,
    ScriptedIrcKit,
)
from tests.channels.conformance.platforms.telegram import TelegramKit


class TestConsole(PlatformConformance):
    kit = ConsoleKit


class TestIrc(PlatformConformance):
    kit = ScriptedIrcKit


class _SameAdapter(PlatformConformance):
    test_a_broken_twin_is_found_out = None  # type: ignore[assignment] # TestIrc has them


class TestPlainIrc(_SameAdapter):
    kit = PlainIrcKit


class TestInspircd(_SameAdapter):
    kit = InspircdKit


class TestNgircd(_SameAdapter):
    kit = NgircdKit


class TestTelegram(PlatformConformance):
    kit = TelegramKit


class TestDiscord(PlatformConformance):
    kit = DiscordKit


def test_every_ability_of_the_contract_has_a_check() -> None:
    declared = {
        name
        for name, value in vars(base).items()
        if name.startswith("Can") and inspect.isclass(value)
    }
    assert declared == {ability.__name__ for ability in ABILITY_BY_CHECK.values()}
    assert set(ABILITY_BY_CHECK) <= set(CHECKS)


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
    assert checks - set(TWINS.values()) == unbroken
