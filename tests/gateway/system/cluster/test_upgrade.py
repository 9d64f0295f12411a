"""Processes of another version come and go, as docs/cluster.md says, while people ask."""

import asyncio
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.gateway.system.cluster.cluster_kit import ClusterStorm, Process, calm, cluster_storm
from tests.gateway.system.crash.storm_kit import PATIENCE_S
from tests.kits.gateway_process import CHECKOUT, so
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
    """Make a version that appends entries of a new kind."""
    copy_version(tree, NEXT)
    facts = tree / "gateway" / "core" / "facts.py"
    text = facts.read_text()
    assert text.count("\nFact = (\n") == 1
    facts.write_text(text.replace("\nFact = (\n", f"{NEW_FACT}\n"))
    with (tree / "gateway/store/store.py").open("a") as source:
        source.write(NEW_APPEND)
    return tree


async def everybody_is_answered(it: ClusterStorm) -> None:
    """Return once everybody was answered who asks from now on."""
    since_s = time.monotonic()

    def are_answered() -> bool:
        answered = [one.seat for one in it.questions if one.said_s > since_s and one.ended_s < float("inf")]
        return all(seat in answered for seat in it.seats)

    assert await so(are_answered, PATIENCE_S), it.log[-3000:]


async def ends_with_an_error(it: ClusterStorm, one: Process) -> None:
    """Start a process that is to be refused."""
    program = await it.spawn_process(one)
    async with asyncio.timeout(PATIENCE_S):
        assert await program.wait() == 1


def test_each_process_is_replaced_by_one_of_the_next_version(tmp_path: Path, server: PostgresServer) -> None:
    async def story() -> None:
        tree = make_next_version(tmp_path / "next")
        async with cluster_storm(tmp_path, server, 1) as it:
            for old in it.running:
                new = await it.add(tree)
                await it.launch_process(new)
                told = (await it.status())[1]["data"]["processes"]
                versions = {one["name"]: one["version"] for one in told}
                assert versions[new.name] == NEXT != versions[old.name]
                await everybody_is_answered(it)
                assert await it.end_process(old, signal.SIGTERM) == 0, old.log_now[-3000:]
                await everybody_is_answered(it)
            await calm(it)
            assert {one.tree for one in it.processes if NEW_KIND_LEFT_OUT in one.log} == {CHECKOUT}

    asyncio.run(story())


def test_a_version_with_a_new_schema_waits_until_all_others_are_stopped(tmp_path: Path, server: PostgresServer) -> None:
    async def story() -> None:
        tree = copy_version(tmp_path / "next", NEXT)
        migrations = tree / "gateway" / "store" / "migrations" / "postgresql"
        schema = int(max(one.name for one in migrations.glob("*.sql")).partition("_")[0])
        (migrations / f"{schema + 1:04}_weather.sql").write_text("-- Weather, which must not be missed.\n")
        async with cluster_storm(tmp_path, server, 1, 2) as it:
            first, second = it.running
            early = await it.add(tree)
            await ends_with_an_error(it, early)
            told = f"the tables have to be migrated (schema {schema} to {schema + 1}), and other processes use it: stop"
            assert told in early.log_now
            await everybody_is_answered(it)
            for one in (first, second):
                assert '"level": "error"' not in one.log
                assert await it.end_process(one, signal.SIGTERM) == 0
            for one in (early, await it.add(tree)):
                await it.launch_process(one)
            await everybody_is_answered(it)
            await ends_with_an_error(it, first)
            assert (
                f"has schema {schema + 1} and this reverie knows up to {schema}: run a newer reverie" in first.log_now
            )
            await calm(it)

    asyncio.run(story())
