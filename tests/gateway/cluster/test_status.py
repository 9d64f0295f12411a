"""What operators are told of processes that share a store, from inside and from outside."""

import asyncio
import contextlib
import socket
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from channels.aio import cancel_and_wait
from gateway.cluster.cluster import LeaseName, channel_lease
from gateway.cluster.database import DatabaseCluster, read_processes
from gateway.cluster.monitor import ProcessMonitor, render_process_report
from gateway.config.models import OpsConfig
from gateway.core.api_models import LeaseRecord, ProcessRecord, ProcessReport
from gateway.core.clock import SystemClock
from gateway.core.events import ChannelName, ConnectionChanged, EventId
from gateway.core.metrics import GatewayStats
from gateway.core.process_files import hold_process_files
from gateway.core.redaction import Redactor
from gateway.plugins.health import list_routes as list_health_routes
from gateway.plugins.http import OpsServer
from gateway.plugins.metrics import RedactedMetrics
from gateway.plugins.metrics import list_routes as list_metrics_routes
from gateway.store import NewEntry, ServerStore, Store
from reverie.testing.waiting import until
from tests.kits.store import NOW, open_shared
from tests.servers.real_postgresql import PostgresServer

IRC, OTHER = ChannelName("irc.main"), ChannelName("irc.other")
FIRST = ProcessRecord(
    number=3,
    name="process-1",
    started=NOW,
    leases=("channel:irc.main",),
    host="a",
    pid=7,
    version="1.0",
    age_s=0.44,
    state="running",
    answers=True,
    ops="http://a:9090",
)


def test_a_report_shows_who_holds_what_and_the_last_take_over() -> None:
    held = LeaseRecord(name="channel:irc.main", holder=FIRST.name, since=NOW, free_s=None)
    free = LeaseRecord(name="agent:reverie", holder="", since=None, free_s=12.4)
    report = ProcessReport(processes=(FIRST,), leases=(held, free))
    shown = [line.split("  ") for line in render_process_report(report, NOW + timedelta(minutes=3))]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in shown]
    assert rows[1] == [
        "process-1",
        "running",
        "0 s ago",
        "3 min",
        "channel:irc.main",
        "a",
        "http://a:9090",
        "1.0",
    ]
    assert rows[3] == ["channel:irc.main", "process-1", "3 min ago"]
    assert rows[4] == ["agent:reverie", "nobody for 12 s", "-"]


class Services:
    async def on_lease_acquired(self, lease: LeaseName) -> None:
        pass

    async def on_lease_ending(self, lease: LeaseName) -> None:
        pass


class Broken(Services):
    async def on_lease_acquired(self, lease: LeaseName) -> None:
        raise RuntimeError(f"this process cannot hold {lease}")


class Process:
    """What a process of the gateway has, as far as operators are told of it."""

    def __init__(self, store: Store, cluster: DatabaseCluster) -> None:
        self.store, self.cluster = store, cluster
        self.monitor = ProcessMonitor(
            cluster, store, SystemClock(), lambda: {IRC: "irc", OTHER: "irc"}
        )
        store.subscribe(self.monitor.on_appended, ConnectionChanged)
        self.stats = GatewayStats({}, NOW)
        self.stats.look_elsewhere = self.monitor.look

    @property
    def problems(self) -> list[str]:
        return [one.reason for one in self.stats.snapshot().problems if not one.partial]

    @property
    def metrics(self) -> str:
        registry = CollectorRegistry()
        registry.register(self.monitor)
        return generate_latest(registry).decode()


async def opened(stack: contextlib.AsyncExitStack, url: str, path: Path, name: str) -> Process:
    store = await stack.enter_async_context(
        await open_shared(ServerStore(url, path / "reverie.db"))
    )
    cluster = await DatabaseCluster.join(url, name=name)
    stack.push_async_callback(cluster.leave)
    await store.join(cluster.number)
    await store.follow()
    return Process(store, cluster)


@pytest.mark.integration
async def test_each_process_tells_of_itself_and_of_the_others(
    tmp_path: Path, postgresql: PostgresServer
) -> None:
    url, lease = postgresql.url("told"), channel_lease(IRC)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, postgresql.drop, "told")
        first = await opened(stack, url, tmp_path, "process-1")
        second = await opened(stack, url, tmp_path, "process-2")
        assert first.problems == ["this process is starting"]
        await first.cluster.start(Services(), [lease])
        await until(lambda: first.cluster.holds(lease))
        await second.cluster.start(Broken(), [lease])
        await until(lambda: any(one.holder for one in second.cluster.describe().leases))
        first.stats.add_channel(IRC, "irc", NOW)
        assert second.stats.snapshot().channels[0].state == "connecting"
        up = ConnectionChanged(id=EventId("l"), channel=IRC, up=True, reason="", sent=NOW)
        await first.store.append([NewEntry(fact=up, at=NOW)])
        first.stats.record_link(up, NOW)
        await until(lambda: second.stats.snapshot().channels[0].state == "up")
        (seen,) = second.stats.snapshot().channels
        assert (seen.channel, seen.holder) == (IRC, "process-1")
        (own,) = first.stats.snapshot().channels
        assert (own.channel, own.holder, own.state) == (IRC, None, "up")
        for one in (first, second):
            assert one.problems == []
            assert one.stats.snapshot().is_ready, "also one that holds no channel"
        assert "reverie_processes 2.0\n" in second.metrics
        assert "reverie_leases_held 1.0\n" in first.metrics
        assert "reverie_leases_taken_total 1.0\n" in first.metrics
        report = await read_processes(url)
        assert [(one.name, one.state) for one in report.processes] == [
            ("process-1", "running"),
            ("process-2", "running"),
        ]
        assert [(one.name, one.holder) for one in report.leases] == [(lease, "process-1")]

        await first.cluster.drain()
        await until(lambda: first.problems == ["this process stops, and takes nothing new"])
        assert not first.stats.snapshot().is_ready
        unheld = ["no process holds this connection"]
        await until(lambda: [one.reason for one in second.stats.snapshot().channels] == unheld)
        assert second.stats.snapshot().is_ready, "it cannot hold it"


@pytest.mark.integration
async def test_each_process_tells_the_others_where_its_metrics_are(
    tmp_path: Path, postgresql: PostgresServer
) -> None:
    url = postgresql.url("addresses")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, postgresql.drop, "addresses")
        one = await opened(stack, url, tmp_path, "process-1")
        other = await opened(stack, url, tmp_path, "process-2")
        assert [status.ops for status in other.cluster.describe().processes] == ["", ""]
        for process, host in ((one, "127.0.0.1"), (other, "0.0.0.0")):
            config, metrics = (
                OpsConfig(host=host, port=0),
                RedactedMetrics((process.monitor,), Redactor()),
            )
            sites = (
                partial(list_health_routes, process.stats, Redactor()),
                partial(list_metrics_routes, metrics, config),
            )
            server = OpsServer(config, SystemClock(), sites)
            assert await server.start()
            stack.push_async_callback(server.close)
            process.cluster.ops = server.address
        for process in (one, other):
            await process.cluster.start(Services(), [])
        await until(
            lambda: (
                [bool(status.ops) for status in one.cluster.describe().processes] == [True, True]
            )
        )
        await until(
            lambda: (
                [bool(status.ops) for status in other.cluster.describe().processes] == [True, True]
            )
        )
        first, second = [status.ops for status in other.cluster.describe().processes]
        assert second.startswith(f"http://{socket.gethostname()}:"), "it listens everywhere"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert "reverie_processes 2.0" in (await client.get(f"{first}/metrics")).text
            assert (
                await client.get(f"http://127.0.0.1:{second.rpartition(':')[2]}/health")
            ).is_success
        assert [status.ops for status in (await read_processes(url)).processes] == [first, second]


@pytest.mark.integration
async def test_a_process_tells_of_another_one_that_does_not_use_its_directory(
    tmp_path: Path, postgresql: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgresql.url("directories")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, postgresql.drop, "directories")
        processes = [("process-2", tmp_path), ("process-3", tmp_path / "elsewhere")]
        for name, directory in processes:
            stack.enter_context(
                hold_process_files(directory / "reverie.db", name, SystemClock().now())
            )
        one, other = [await opened(stack, url, directory, name) for name, directory in processes]
        for process in (one, other):
            await process.cluster.start(Services(), [])
        database = await psycopg.AsyncConnection.connect(url, autocommit=True)
        stack.push_async_callback(database.close)
        await database.execute("UPDATE process SET started = started - interval '1 hour'")
        hour = timedelta(hours=1)
        await until(
            lambda: all(
                SystemClock().now() - m.started > hour for m in one.cluster.describe().processes
            )
        )
        stack.push_async_callback(cancel_and_wait, asyncio.create_task(one.monitor.run()))
        await until(lambda: bool(one.stats.snapshot().problems))
        (problem,) = one.stats.snapshot().problems
        assert problem.partial
        assert problem.reason.startswith(
            f"{tmp_path} has no lock of process-3 on {socket.gethostname()}: "
        )
        assert problem.reason in caplog.messages
