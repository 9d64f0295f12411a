"""One suite over every adapter. A kit says what its platform lacks; all else must hold."""

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable

import pytest

from channels import base
from tests.channels.conformance import actions, lifecycle, private_messages, receive, send
from tests.channels.conformance.platforms.base import Bench, Kit, bench
from tests.channels.conformance.platforms.console import ConsoleKit
from tests.channels.conformance.platforms.discord import DiscordKit
from tests.channels.conformance.platforms.irc import (
    InspircdKit,
    NgircdKit,
    PlainIrcKit,
    ScriptedIrcKit,
)
from tests.channels.conformance.platforms.telegram import TelegramKit

Check = Callable[[Bench], Awaitable[None]]
KITS: tuple[type[Kit], ...] = (
    ConsoleKit,
    ScriptedIrcKit,
    PlainIrcKit,
    InspircdKit,
    NgircdKit,
    TelegramKit,
    DiscordKit,
)
GROUPS: dict[str, tuple[Check, ...]] = {
    "receive": receive.CHECKS,
    "send": send.SEND,
    "fail": send.FAIL,
    "live": lifecycle.LIVE,
    "honest": lifecycle.HONEST,
    "acts": actions.CHECKS,
    "asides": private_messages.CHECKS,
}
CHECKS = {check.__name__: check for checks in GROUPS.values() for check in checks}
_ABILITY_OF = {f"it_{name}s": ability for name, ability in lifecycle.ABILITIES.items()}


def run(kit: Kit, check: Check) -> None:
    """One check on one platform, within its time."""

    async def told() -> None:
        async with bench(kit) as ready:
            ability = _ABILITY_OF.get(check.__name__)
            if ability is not None and not isinstance(ready.channel, ability):
                raise AssertionError(
                    f"{kit.label} must say why it lacks {check.__name__}, or be able to"
                )
            await check(ready)

    asyncio.run(asyncio.wait_for(told(), 60))


def _cases() -> list[object]:
    return [
        pytest.param(kit, check, id=f"{kit.label}-{group}-{check.__name__}")
        for kit in KITS
        for group, checks in GROUPS.items()
        for check in checks
        if check.__name__ not in kit.lacks
    ]


@pytest.mark.parametrize(("kit", "check"), _cases())
def test_conforms(kit: type[Kit], check: Check) -> None:
    try:
        run(kit(), check)
    except FileNotFoundError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.mark.parametrize("kit", KITS)
def test_what_a_kit_lacks_is_a_check_and_has_a_reason(kit: type[Kit]) -> None:
    assert set(kit.lacks) <= set(CHECKS)
    assert all(reason.strip() for reason in kit.lacks.values())


def test_every_ability_of_the_contract_has_a_check() -> None:
    declared = {
        name
        for name, value in vars(base).items()
        if name.startswith("Can") and inspect.isclass(value)
    }
    assert declared == {ability.__name__ for ability in lifecycle.ABILITIES.values()}
    assert set(_ABILITY_OF) <= set(CHECKS)


@pytest.mark.parametrize("kit", KITS)
def test_no_adapter_can_do_what_its_kit_says_is_lacking(kit: type[Kit]) -> None:
    channel = kit().make()
    for name, ability in _ABILITY_OF.items():
        if name in kit.lacks:
            assert not isinstance(channel, ability), name
    assert bool(channel.capabilities.max_file_bytes) is ("it_sends_files" not in kit.lacks)
