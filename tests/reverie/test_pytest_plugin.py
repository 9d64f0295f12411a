"""The plugin of pytest, in projects of others, which pytest finds by its entry point."""

import subprocess
import sys
from pathlib import Path

OUTSIDE = """
import sys

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_nothing_is_imported_that_no_test_asks_for():
    ours = {"reverie", "reverie.testing", "reverie.testing.pytest_plugin"}
    tops = {"reverie", "gateway", "channels", "agent"}
    assert {name for name in sys.modules if name.partition(".")[0] in tops} == ours
    assert not {"pydantic", "aiohttp", "httpx"} & sys.modules.keys()


@pytest.mark.anyio
async def test_a_gateway_answers(make_gateway, manual_clock):
    from reverie import TRUSTED_LABEL, ConfigSection, Part, Plugin, hook

    class DiceSettings(ConfigSection):
        sides: int = 6

    class Dice(Plugin):
        name = "dice"
        Settings = DiceSettings

        @hook
        async def parts(self):
            text = f"A die has {self.settings.sides} sides."
            return [Part(block="now", text=text, label=TRUSTED_LABEL)]

    made = make_gateway(clock=manual_clock, plugins=[Dice], dice={"sides": 20})
    async with made as gateway:
        assert await gateway.ask("hello")
        assert "A die has 20 sides." in str(gateway.scripted.requests[-1])


@pytest.mark.anyio
async def test_fakes_are_up(ircd, bot_api, discord_api, model_api):
    assert len({ircd.port, bot_api.url, discord_api.api_url, model_api.url}) == 4


def test_failures_of_the_kits_are_explained():
    from reverie.testing.platforms import lifecycle
    assert type(lifecycle.__loader__).__name__ == "AssertionRewritingHook"
"""


def test_a_project_of_others_has_the_fixtures_and_pays_for_none_that_it_does_not_use(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_outside.py").write_text(OUTSIDE)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
