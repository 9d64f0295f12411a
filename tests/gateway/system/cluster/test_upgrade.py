"""Processes of another version come and go, as docs/cluster.md says, while people ask."""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from tests.gateway.system.cluster.cluster_kit import calm, cluster_storm
from tests.kits.gateway_process import CHECKOUT
from tests.servers.real_postgresql import PostgresServer

pytestmark = pytest.mark.system

NEXT = "99.0"
"""Version of the program that comes after ours."""
NEW_KIND_LEFT_OUT = "only a newer version knows: weather"
NEW_FACT = '''
@dataclass(frozen=True, slots=True, kw_only=True)
class WeatherNoted:
    """A kind of entry that the version before does not know."""

    weather: str = "fair"
    kind: Literal["weather"] = "weather"


Fact = (
    WeatherNoted
    |'''
NEW_APPEND = '''

import itertools

from gateway.core.facts import WeatherNoted

_places, _append = itertools.count(), Store.append


async def _append_weather(self, entries, *, lazily=False):
    """Append one more entry each time: in front, behind the first one, which is its cause, or at the end."""
    if not entries:
        return await _append(self, entries, lazily=lazily)
    place = (0, 1, len(entries))[next(_places) % 3]
    weather = NewEntry(
        fact=WeatherNoted(),
        at=entries[0].at,
        conversation=entries[0].conversation,
        cause=entries[0] if place == 1 else None,
    )
    results = await _append(self, [*entries[:place], weather, *entries[place:]], lazily=lazily)
    return (*results[:place], *results[place + 1 :])


Store.append = _append_weather
'''
"""Behind gateway/store/store.py."""
NEW_CALL = '''

_init, _run, _describe_turn = Delegation.__init__, Delegation.run, Delegation._describe_turn


def _init_weather(self, agents, cluster):
    async def serve(caller, given):
        return "fair"

    _init(self, agents, cluster)
    cluster.serve("weather", serve)


async def _run_weather(self, agent, start, handle):
    """Ask each worker something before a turn is delegated."""
    for one in self.cluster.members:
        if one.takes_turns:
            try:
                logger.info("weather: %s", await self.cluster.call(one.number, "weather", {}, timeout_s=ASK_TIMEOUT_S))
            except CallFailed as error:
                logger.info("weather: %s %s", error, error.is_refused)
    return await _run(self, agent, start, handle)


Delegation.__init__, Delegation.run = _init_weather, _run_weather
Delegation._describe_turn = lambda *given: {**_describe_turn(*given), "weather": "fair"}
'''
"""Behind gateway/runtime/delegation.py."""


@pytest.fixture
def server(postgresql: PostgresServer) -> PostgresServer:
    return postgresql


def copy_version(tree: Path, version: str) -> Path:
    """Copy the program as another version. It runs where that is the working directory."""
    for package in ("agent", "channels", "config", "gateway"):
        shutil.copytree(CHECKOUT / package, tree / package)
    metadata = tree / f"reverie_gateway-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: reverie-gateway\nVersion: {version}\n")
    return tree


def make_next_version(tree: Path) -> Path:
    """Make a version that appends entries of a new kind, and calls other processes in a new way."""
    copy_version(tree, NEXT)
    facts = tree / "gateway" / "core" / "facts.py"
    text = facts.read_text()
    assert text.count("\nFact = (\n") == 1
    facts.write_text(text.replace("\nFact = (\n", f"{NEW_FACT}\n"))
    for name, more in (("gateway/store/store.py", NEW_APPEND), ("gateway/runtime/delegation.py", NEW_CALL)):
        with (tree / name).open("a") as source:
            source.write(more)
    return tree


def test_each_process_is_replaced_by_one_of_the_next_version(tmp_path: Path, server: PostgresServer) -> None:
    async def story() -> None:
        tree = make_next_version(tmp_path / "next")
        async with cluster_storm(tmp_path, server, 1, {"worker": 2, "edge": 1}) as it:
            for old in it.running:
                new = await it.add(old.role, tree)
                await it.launch_process(new)
                told = (await it.status())[1]["data"]["processes"]
                versions = {one["name"]: one["version"] for one in told}
                assert versions[new.name] == NEXT != versions[old.name]
                await it.lasts()
                assert await it.end_process(old, signal.SIGTERM) == 0, old.log_now[-3000:]
                await it.lasts()
            await calm(it)
            assert {one.tree for one in it.processes if NEW_KIND_LEFT_OUT in one.log} == {CHECKOUT}
            assert any("carries out no weather" in one.log for one in it.processes)

    asyncio.run(story())
