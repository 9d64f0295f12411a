"""`PlatformConformance`: all checks on one adapter, as a class of tests."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Final

import pytest

from reverie.testing.platforms import actions, lifecycle, private_messages, receive, send
from reverie.testing.platforms.base import Bench, Kit, bench
from reverie.testing.platforms.broken_channels import TWINS, Twin

Check = Callable[[Bench], Awaitable[None]]
GROUPS: Final[Mapping[str, tuple[Check, ...]]] = {
    "receive": receive.CHECKS,
    "send": send.SEND,
    "fail": send.FAIL,
    "live": lifecycle.LIVE,
    "honest": lifecycle.HONEST,
    "acts": actions.CHECKS,
    "asides": private_messages.CHECKS,
}
"""The checks by group. Each takes a bench with a channel that is up, and asserts."""
CHECKS: Final = {check.__name__: check for checks in GROUPS.values() for check in checks}
"""The checks by name, for `Kit.lacks`."""
ABILITY_BY_CHECK: Final = {f"it_{name}s": ability for name, ability in lifecycle.ABILITIES.items()}
"""The protocol of `reverie.platforms` that a check is about."""
FOUND_OUT: Final = (AssertionError, pytest.fail.Exception, TimeoutError)
"""How a check fails; anything else would be a fault of the twin."""
CHECK_S: Final = 60.0
"""Longest time of one check, in seconds."""
TWIN_S: Final = 30.0
TWIN_PATIENCE_S: Final = 1.0
"""How long a check waits for what a broken twin does not do."""


class PlatformConformance:
    """Tests of an adapter. A subclass names its kit, and pytest collects it:

        class TestMatrix(PlatformConformance):
            kit = MatrixKit

    Each check runs on a fresh platform (`Kit.connection`), unless `Kit.lacks` names it. Then each
    broken twin stands before the adapter, and its check must fail: so a kit that sees nothing does
    not pass. A test whose platform raises FileNotFoundError, since a program is missing, is skipped
    unless the environment has `CI`.
    """

    kit: ClassVar[type[Kit]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of each check, and of each broken twin."""
        if metafunc.cls is None or not hasattr(metafunc.cls, "kit"):
            return
        kit: type[Kit] = metafunc.cls.kit
        if "check" in metafunc.fixturenames:
            cases = [
                pytest.param(check, id=f"{group}-{check.__name__}")
                for group, checks in GROUPS.items()
                for check in checks
                if check.__name__ not in kit.lacks
            ]
            metafunc.parametrize("check", cases)
        if "twin" in metafunc.fixturenames:
            twins = [
                twin
                for twin, check in TWINS.items()
                if check not in kit.lacks and twin not in kit.harmless
            ]
            metafunc.parametrize("twin", twins, ids=lambda twin: twin.__name__)

    def test_conforms(self, check: Check) -> None:
        async def told() -> None:
            async with bench(self.kit()) as ready:
                ability = ABILITY_BY_CHECK.get(check.__name__)
                if ability is not None and not isinstance(ready.channel, ability):
                    raise AssertionError(
                        f"the kit must say why it lacks {check.__name__}, or be able to"
                    )
                await check(ready)

        try:
            asyncio.run(asyncio.wait_for(told(), CHECK_S))
        except FileNotFoundError as missing:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(missing))

    def test_a_broken_twin_is_found_out(self, twin: type[Twin]) -> None:
        async def told() -> None:
            platform = self.kit()
            async with bench(platform, twin) as ready:
                platform.patience_s = ready.ear.patience_s = TWIN_PATIENCE_S
                with pytest.raises(FOUND_OUT):
                    await asyncio.wait_for(CHECKS[TWINS[twin]](ready), TWIN_S)

        asyncio.run(told())

    def test_what_the_kit_lacks_is_a_check_and_has_a_reason(self) -> None:
        assert set(self.kit.lacks) <= set(CHECKS)
        assert all(reason.strip() for reason in self.kit.lacks.values())

    def test_the_adapter_cannot_do_what_its_kit_says_is_lacking(self) -> None:
        channel = self.kit().make()
        for name, ability in ABILITY_BY_CHECK.items():
            if name in self.kit.lacks:
                assert not isinstance(channel, ability), name
        sends_files = "it_sends_files" not in self.kit.lacks
        assert bool(channel.capabilities.max_file_bytes) is sends_files
