"""Processes that share a PostgreSQL database: objects in this process, and programs that are killed
or stopped."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from gateway.cluster.cluster import LeaseName
from gateway.cluster.database import DatabaseCluster
from gateway.store import ServerStore
from gateway.store.postgres_log import LOG_LOCK, shared_name
from gateway.store.schema import connect_server, migrate_server
from reverie.testing.waiting import until
from tests.kits.gateway_process import CHECKOUT
from tests.servers.real_postgresql import PostgresServer

pytestmark = pytest.mark.integration
SCHEMAS = itertools.count(1)


class Services:
    """What works under leases."""

    def __init__(self) -> None:
        self.told = list[str]()
        """What was called: `+lease` and `-lease`."""
        self.failing = set[LeaseName]()
        """Leases whose work cannot begin."""
        self.may_begin, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_begin.set()
        self.may_end.set()

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        self.told.append(f"+{lease}")
        await self.may_begin.wait()
        if lease in self.failing:
            raise OSError(f"{lease} does not work here")

    async def on_lease_ending(self, lease: LeaseName) -> None:
        self.told.append(f"-{lease}")
        await self.may_end.wait()


class Group:
    def __init__(self, server: PostgresServer, schema: str) -> None:
        self.server, self.schema, self.url = server, schema, server.url(schema)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        store = ServerStore(self.url, Path("unused"))

        def make_tables() -> None:
            with contextlib.closing(connect_server(store, "writer")) as connection:
                migrate_server(connection, store)

        await asyncio.to_thread(make_tables)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        await asyncio.to_thread(self.server.start, if_stopped=True)
        await asyncio.to_thread(self.server.drop, self.schema)

    async def join(self, name: str) -> DatabaseCluster:
        made = await DatabaseCluster.join(self.url, name=name)
        self._stack.push_async_callback(made.leave)
        return made

    async def started(
        self, name: str, *leases: LeaseName, services: Services | None = None
    ) -> DatabaseCluster:
        """A member that is ready, as all see it."""
        made = await self.join(name)
        await made.start(services or Services(), leases)
        await until(
            lambda: any(
                one.number == made.number and one.state == "running"
                for one in made.describe().processes
            )
        )
        return made

    async def program(self, name: str, *leases: LeaseName) -> asyncio.subprocess.Process:
        """A member that is another process, and holds all these leases."""
        made = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, self.url, name, *leases),
            stdout=asyncio.subprocess.PIPE,
            cwd=CHECKOUT,
        )

        async def end() -> None:
            if made.returncode is None:
                made.kill()
            await made.wait()

        self._stack.push_async_callback(end)
        assert made.stdout is not None
        lines = {
            (await made.stdout.readline()).decode().strip() for _ in range(max(1, len(leases)))
        }
        assert lines == {*leases} if leases else {"ready"}
        return made

    async def steady(self) -> None:
        """Return when all members have given signs of life for long enough to judge the others."""
        ((start,),) = await self.execute("SELECT clock_timestamp()::text")
        after = (
            f"SELECT 1 FROM heartbeat HAVING min(seen) > '{start}'::timestamptz + interval '7 s'"
        )
        await until(lambda: self.execute(after), every_s=0.2)

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement as another program would."""

        def run() -> list[tuple[Any, ...]]:
            with contextlib.closing(
                connect_server(ServerStore(self.url, Path("unused")), "other")
            ) as connection:
                return connection.fetch(statement)

        return await asyncio.to_thread(run)


PROGRAM = """
import asyncio, sys
from gateway.cluster.database import DatabaseCluster

class Services:
    async def on_lease_acquired(self, lease):
        print(lease, flush=True)
    async def on_lease_ending(self, lease):
        pass

async def main(url, name, *leases):
    cluster = await DatabaseCluster.join(url, name=name)
    await cluster.start(Services(), leases)
    if not leases:
        print("ready", flush=True)
    await cluster.fenced.wait()
    await cluster.leave()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def group(postgresql: PostgresServer) -> AsyncIterator[Group]:
    async with Group(postgresql, f"cluster{os.getpid()}_{next(SCHEMAS)}") as made:
        yield made


def holder(cluster: DatabaseCluster, lease: LeaseName) -> str:
    """The name of the holder. Empty: nobody is."""
    return {one.name: one.holder for one in cluster.describe().leases}.get(lease, "")


def members(cluster: DatabaseCluster) -> list[str]:
    """The names of all processes, as last read."""
    return [one.name for one in cluster.describe().processes]


# Members and leases


async def test_members_see_each_other_and_share_the_leases(group: Group) -> None:
    services = Services()
    first = await group.join("first")
    assert [(one.name, one.state) for one in first.describe().processes] == [("first", "starting")]
    leases = ["agent:x", "channel:a", "channel:b", "upkeep"]
    await first.start(services, leases)
    await until(lambda: services.told == [f"+{lease}" for lease in leases])
    assert all(map(first.holds, leases))
    second = await group.started("second", *leases, "channel:c", "agent:y")
    assert second.number > first.number
    leases += ["channel:c", "agent:y"]
    first.want(leases)
    await until(lambda: holder(first, "channel:c") == holder(first, "agent:y") == "second")
    assert holder(second, "channel:b") == "first"
    await until(lambda: len(members(first)) == 2)
    report = first.describe()
    assert [(one.name, one.pid, one.state) for one in report.processes] == [
        ("first", os.getpid(), "running"),
        ("second", os.getpid(), "running"),
    ]
    assert all(0 <= one.age_s < 60 for one in report.processes)
    assert [(one.name, one.free_s) for one in report.leases] == [
        (name, None) for name in sorted(leases)
    ]


async def test_draining_gives_everything_to_the_others(group: Group) -> None:
    leases = ["channel:a", "agent:x"]
    services, others = Services(), Services()
    first = await group.started("first", *leases, services=services)
    await until(lambda: len(services.told) == 2)
    second = await group.started("second", *leases, services=others)
    services.may_end.clear()
    draining = asyncio.create_task(first.drain())
    await until(lambda: {"-channel:a", "-agent:x"} <= {*services.told})
    await until(
        lambda: (
            ("first", "stopping") in [(one.name, one.state) for one in second.describe().processes]
        )
    )
    assert first.holds("channel:a"), "until its work has ended"
    assert others.told == []
    services.may_end.set()
    await draining
    assert not first.holds("channel:a")
    await until(lambda: {*others.told} == {"+channel:a", "+agent:x"})
    await first.leave()
    await until(lambda: members(second) == ["second"])


async def test_a_process_stops_while_the_database_is_away(group: Group) -> None:
    services = Services()
    one = await group.started("one", "agent:a", services=services)
    await until(lambda: one.holds("agent:a"))
    await asyncio.to_thread(group.server.stop)
    async with asyncio.timeout(60):
        await one.drain()
        await one.leave()
    assert services.told == ["+agent:a", "-agent:a"]


async def test_who_leaves_without_a_word_to_its_services_releases_at_once(group: Group) -> None:
    first = await group.started("first", "upkeep")
    await until(lambda: first.holds("upkeep"))
    second = await group.started("second", "upkeep")
    await first.leave()
    await first.leave()
    await until(lambda: second.holds("upkeep"))
    assert not first.holds("upkeep")
    assert members(second) == ["second"]


# Death


async def test_a_killed_process_is_replaced(group: Group) -> None:
    killed = await group.program("killed", "channel:a", "agent:x", "upkeep")
    services = Services()
    other = await group.started("other", "channel:a", "agent:x", "upkeep", services=services)
    await until(lambda: holder(other, "upkeep") == "killed")
    await group.steady()
    killed.kill()
    await until(lambda: len(services.told) == 3)
    assert members(other) == ["other"]


async def test_a_hanging_process_is_removed_and_knows_it_when_it_goes_on(group: Group) -> None:
    hung = await group.program("hung", "channel:a")
    other = await group.started("other", "channel:a")
    await until(lambda: holder(other, "channel:a") == "hung")
    number = min(one.number for one in other.describe().processes)
    hung.send_signal(signal.SIGSTOP)
    await until(lambda: other.holds("channel:a"))
    name = shared_name(group.schema, number)
    assert (
        await group.execute(f"SELECT 1 FROM pg_stat_activity WHERE application_name = '{name}'")
        == []
    )
    hung.send_signal(signal.SIGCONT)
    assert await hung.wait() == 0, "it learns that it was removed"


async def test_who_gave_no_sign_for_long_does_nothing_until_it_is_known_to_be_there(
    group: Group,
) -> None:
    one = await group.started("one")
    assert await one.confirm()
    blocking, reading = [
        await psycopg.AsyncConnection.connect(group.url, options=f"-c search_path={group.schema}")
        for _ in range(2)
    ]
    try:
        await blocking.execute("SELECT FROM heartbeat FOR UPDATE")
        silent = "SELECT 1 FROM heartbeat WHERE seen < clock_timestamp() - interval '2 s'"
        await until(lambda: group.execute(silent), every_s=0.1)
        confirming = asyncio.create_task(one.confirm())
        await asyncio.sleep(0)
        assert not confirming.done()
        await reading.execute("LOCK TABLE lease")  # it does not learn who holds what, and needs not
        await blocking.rollback()
        assert await confirming
        await reading.rollback()
        await blocking.execute("SELECT FROM heartbeat FOR UPDATE")
        await until(lambda: group.execute(silent), every_s=0.1)
        confirming = asyncio.create_task(one.confirm())
        await blocking.execute("DELETE FROM process")
        await blocking.commit()
        assert not await confirming
        assert one.fenced.is_set()
    finally:
        await blocking.close()
        await reading.close()


async def test_a_hanging_process_that_holds_the_lock_of_the_log_is_removed(group: Group) -> None:
    """Its transaction is ended first, so that nothing of it can come later."""
    hung = await group.program("hung", "channel:a")
    other = await group.started("other", "channel:a")
    await until(lambda: holder(other, "channel:a") == "hung")
    number = min(one.number for one in other.describe().processes)
    writer = await psycopg.AsyncConnection.connect(
        group.url, application_name=shared_name(group.schema, number), autocommit=True
    )
    try:
        await writer.execute("BEGIN")
        await writer.execute(
            f"SELECT pg_advisory_xact_lock({LOG_LOCK}, hashtext('{group.schema}'))"
        )
        hung.send_signal(signal.SIGSTOP)
        await until(lambda: other.holds("channel:a"))
        with pytest.raises(psycopg.OperationalError):
            await writer.execute("COMMIT")
    finally:
        await writer.close()


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_a_database_that_is_restarted_moves_nothing(
    group: Group, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    services, others = Services(), Services()
    first = await group.started("first", "channel:a", services=services)
    await until(lambda: first.holds("channel:a"))
    second = await group.started("second", "channel:a", services=others)
    await asyncio.to_thread(group.server.stop, mode)
    await asyncio.sleep(9 if mode == "immediate" else 0)  # longer than anybody may be silent
    await asyncio.to_thread(group.server.start)
    await group.steady()
    assert members(first) == members(second) == ["first", "second"]
    assert (services.told, others.told) == (["+channel:a"], [])
    assert not first.fenced.is_set()
    assert "was removed" not in caplog.text


async def test_nobody_is_judged_by_who_was_silent_itself(group: Group) -> None:
    """The server hangs, and goes on for one process before it does for the other."""
    services, others = Services(), Services()
    first = await group.started("first", "channel:a", services=services)
    await until(lambda: first.holds("channel:a"))
    second = await group.started("second", "channel:a", services=others)
    await group.steady()

    async def backends(cluster: DatabaseCluster) -> list[int]:
        name = shared_name(group.schema, cluster.number)
        found = await group.execute(
            f"SELECT pid FROM pg_stat_activity WHERE application_name = '{name}'"
        )
        return [pid for (pid,) in found]

    of_first, of_second = await backends(first), await backends(second)
    for pid in of_first + of_second:
        os.kill(pid, signal.SIGSTOP)
    try:
        silent = "SELECT 1 FROM heartbeat HAVING max(seen) < clock_timestamp() - interval '6 s'"
        await until(lambda: group.execute(silent), every_s=0.2)
        for pid in of_second:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: second.describe().processes[1].age_s < 2)
    finally:
        for pid in of_first + of_second:
            os.kill(pid, signal.SIGCONT)
    await group.steady()
    assert len(members(first)) == len(members(second)) == 2
    assert first.holds("channel:a")
    assert others.told == []


@pytest.mark.parametrize("seed", range(2))
async def test_a_lease_has_one_holder_whatever_happens(group: Group, seed: int) -> None:
    """Members come, drain and leave, connections are cut, leases come and go: nobody works beside
    another."""
    chance = random.Random(seed)
    working = dict[LeaseName, str]()

    class Judge(Services):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        async def on_lease_acquired(self, lease: LeaseName) -> None:
            assert working.setdefault(lease, self.name) == self.name, f"{lease} has two holders"
            self.told.append(f"+{lease}")

        async def on_lease_ending(self, lease: LeaseName) -> None:
            await asyncio.sleep(chance.random() / 50)
            assert working.pop(lease) == self.name

    names = [f"{kind}:{n}" for kind in ("channel", "agent") for n in range(6)] + ["upkeep"]
    numbers, there = itertools.count(), list[DatabaseCluster]()

    async def join() -> None:
        name = f"m{next(numbers)}"
        there.append(await group.started(name, *names, services=Judge(name)))

    for _ in range(40):
        act = chance.choice(["join", "leave", "cut", "wait"])
        if act == "join" or len(there) < 2:
            if len(there) < 5:
                await join()
        elif act == "leave":
            leaving = there.pop(chance.randrange(len(there)))
            await leaving.drain()
            await leaving.leave()
        elif act == "cut":
            await asyncio.to_thread(group.server.end_connections)
        else:
            await until(lambda: all(holder(there[0], lease) for lease in names))
    await until(lambda: len(working) == len(names))
    assert [sum(one.holds(lease) for one in there) for lease in names] == [1] * len(names)
