"""The operator's view: metrics as scraped, the HTTP server under bad guests, `reverie channels`."""

import asyncio
import contextlib
import json
import re
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric, ProcessCollector
from prometheus_client.registry import Collector
from pydantic import SecretStr

from agent.models.scripted import Script
from channels.aio import cancel_and_wait
from channels.base import Denied, Emit, PostPart
from gateway.config.models import OpsConfig
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.control_socket import (
    HUNG_REMEDY,
    ControlServer,
    find_gateway_state,
)
from gateway.core.events import (
    ChannelName,
    ConnectionChanged,
    EventId,
)
from gateway.core.format import format_duration
from gateway.core.metrics import GatewayStats
from gateway.core.process_files import (
    hold_process_files,
    process_path,
    socket_path,
)
from gateway.core.redaction import Redactor
from gateway.plugins.dashboard.api_views import ASSET_CSP, load_assets
from gateway.plugins.health import list_routes as list_health_routes
from gateway.plugins.health.program import judge_gateway
from gateway.plugins.http import Client, OpsServer, site
from gateway.plugins.http.site import MAX_CONNECTIONS
from gateway.plugins.metrics import ChannelMetrics, RedactedMetrics
from gateway.plugins.metrics import list_routes as list_metrics_routes
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, Screen, running
from reverie.testing.servers.ircd import Ircd
from reverie.testing.waiting import until
from tests.gateway.test_app import CONFIG, command
from tests.kits.ops import TOKEN, operated, rendered_metrics

IRC, TELEGRAM = ChannelName("irc.x"), ChannelName("telegram.x")
START = datetime(2026, 3, 1, tzinfo=UTC)


def link(up: bool, reason: str = "") -> ConnectionChanged:
    return ConnectionChanged(id=EventId("l"), channel=IRC, up=up, reason=reason, sent=START)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def sample_stats() -> GatewayStats:
    """A minute of two channels: one comes, breaks and comes again; the other is refused."""
    stats = GatewayStats({IRC: "IRC", TELEGRAM: "Telegram"}, START)
    stats.events.update({(IRC, "room", "context"): 1, (IRC, "room", "due"): 1})
    stats.events.update({(IRC, "link", "noted"): 5, (IRC, "alarm", "due"): 1})
    stats.last_events[IRC] = after(2)
    stats.record_link(link(True), after(1))
    stats.record_link(link(False, 'lost "it"\n'), after(3))
    stats.record_link(link(False, "still away"), after(4))
    stats.record_link(link(True), after(5))
    stats.record_link(link(True), after(6))
    stats.mark_refused(TELEGRAM, "the token is wrong", after(7))
    return stats


def test_states_follow_what_happens() -> None:
    stats = GatewayStats({IRC: "IRC"}, START)
    changes: list[str] = []
    stats.listeners.append(lambda: changes.append(stats.snapshot().channels[0].state))
    first = stats.snapshot()
    assert (first.channels[0].state, first.is_ready) == ("connecting", False)
    stats.record_link(link(True), after(1))
    assert stats.snapshot().is_ready
    stats.record_link(link(False, "cut"), after(2))
    assert not stats.snapshot().is_ready
    stats.record_link(link(False, "refused again"), after(3))
    one = stats.snapshot().channels[0]
    assert (one.state, one.since, one.reason, one.reconnects) == (
        "down",
        after(2),
        "refused again",
        0,
    )
    assert changes == ["up", "down", "down"]
    assert first.channels[0].state == "connecting"  # a snapshot stays as it was
    irc, telegram = sample_stats().snapshot().channels
    assert (irc.state, irc.since, irc.reconnects, irc.last_event) == ("up", after(5), 1, after(2))
    assert (telegram.state, telegram.reason) == ("refused", "the token is wrong")
    assert sample_stats().snapshot().is_ready  # the refused one needs the operator, not time


def test_metrics_as_they_are_scraped() -> None:
    text = rendered_metrics(ChannelMetrics(sample_stats(), ManualClock(after(62)), '1.0"\n\\'))
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert samples == {
        'reverie_build_info{version="1.0\\"\\n\\\\"}': "1.0",
        'reverie_channel_up{channel="irc.x"}': "1.0",
        'reverie_channel_up{channel="telegram.x"}': "0.0",
        'reverie_channel_refused{channel="irc.x"}': "0.0",
        'reverie_channel_refused{channel="telegram.x"}': "1.0",
        'reverie_channel_last_event_age_seconds{channel="irc.x"}': "60.0",
        'reverie_channel_reconnects_total{channel="irc.x"}': "1.0",
        'reverie_channel_reconnects_total{channel="telegram.x"}': "0.0",
        'reverie_channel_events_total{channel="irc.x",kind="link"}': "5.0",
        'reverie_channel_events_total{channel="irc.x",kind="room"}': "2.0",
        'reverie_notifications_total{channel="irc.x",fate="context",kind="room"}': "1.0",
        'reverie_notifications_total{channel="irc.x",fate="due",kind="room"}': "1.0",
        'reverie_notifications_total{channel="irc.x",fate="noted",kind="link"}': "5.0",
        'reverie_notifications_total{channel="irc.x",fate="due",kind="alarm"}': "1.0",
    }
    assert text.endswith("\n")
    for name in {re.split(r"[{ ]", line)[0] for line in samples}:
        assert f"# TYPE {name} " in text
        assert f"# HELP {name} " in text
    early = rendered_metrics(
        ChannelMetrics(sample_stats(), ManualClock(START - timedelta(hours=1)), "1")
    )
    assert 'age_seconds{channel="irc.x"} 0.0\n' in early  # the clock went back


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (61, "1 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_spans(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


async def opened(stats: GatewayStats | None = None, sources: Sequence[Collector] = ()) -> OpsServer:
    return await serve(OpsConfig(port=0), stats or sample_stats(), sources)


async def serve(
    config: OpsConfig, stats: GatewayStats, sources: Sequence[Collector] = ()
) -> OpsServer:
    clock = ManualClock(after(62))
    own = ProcessCollector(registry=None), ChannelMetrics(stats, clock, "1")
    metrics = RedactedMetrics((*own, *sources), Redactor())
    sites = (
        partial(list_health_routes, stats, Redactor()),
        partial(list_metrics_routes, metrics, config),
    )
    made = OpsServer(config, clock, sites)
    assert await made.start()
    return made


@pytest.fixture
async def serving() -> AsyncIterator[OpsServer]:
    made = await opened()
    yield made
    await made.close()


async def test_the_server_shows_health_readiness_and_metrics(serving: OpsServer) -> None:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{serving.port}", trust_env=False
    ) as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        ready = await client.get("/ready?verbose=1")
        assert ready.json() == {
            "ready": True,
            "channels": {"irc.x": "up", "telegram.x": "refused"},
            "reasons": ["telegram.x is refused: the token is wrong"],
        }
        scraped = await client.get("/metrics")
        assert scraped.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'reverie_channel_reconnects_total{channel="irc.x"} 1.0\n' in scraped.text
        assert "process_resident_memory_bytes " in scraped.text
        head = await client.head("/health")
        assert (head.status_code, head.text) == (200, "")
        assert head.headers["content-length"] == str(len(health.content))
        assert (await client.get("/secrets")).status_code == 404
        posted = await client.post("/metrics", content=b"x" * 100_000)
        assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
    await serving.close()


async def test_a_gateway_that_is_not_connected_is_not_ready() -> None:
    serving = await opened(GatewayStats({IRC: "IRC"}, START))
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{serving.port}", trust_env=False
    ) as client:
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
    await serving.close()


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def raw(port: int, *pieces: bytes, every_s: float = 0.0) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(every_s)
        async with asyncio.timeout(120):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ((HEALTH,), b"200"),
        ((b"GET /hea", b"lth HTTP/1.1\r\nHo", b"st: x\r\n\r\n"), b"200"),
        ((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",), b"400"),
        ((b"GET /health HTTP/1.1\r\n\r\n",), b"400"),
        ((b"GET /\xff\xfe\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",), b"400"),
        ((b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",), b"404"),
        ((b"GET " + b"/" * 100_000,), b"400"),
        ((b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 100_000,), b"400"),
        ((b"TRACE /health HTTP/1.1\r\nHost: localhost\r\n\r\n",), b"405"),
        (
            (
                (
                    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: "
                    b"2\r\n\r\n"
                ),
            ),
            b"400",
        ),
    ],
)
async def test_odd_requests_get_an_answer_and_harm_nobody(
    pieces: tuple[bytes, ...], status: bytes, serving: OpsServer
) -> None:
    answer = await raw(serving.port, *pieces)
    assert answer.split(b" ")[1:2] in (
        [status],
        [],
    )  # a reset may overtake the answer to what was too much
    assert answer or len(b"".join(pieces)) > 16_384
    assert b" 200 " in await raw(serving.port, HEALTH)


async def test_a_crowd_that_says_nothing_silences_nobody(serving: OpsServer) -> None:
    idle = [
        await asyncio.open_connection("127.0.0.1", serving.port) for _ in range(3 * MAX_CONNECTIONS)
    ]
    assert b" 200 " in await raw(serving.port, HEALTH)
    assert await idle[0][0].read() == b"", "the oldest had to go"
    assert serving.http
    assert serving.http.connection_count <= MAX_CONNECTIONS
    for _, writer in idle:
        writer.close()
    await until(lambda: serving.http and not serving.http.connection_count)


async def test_closing_ends_open_connections(serving: OpsServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    await until(lambda: serving.http and serving.http.connection_count)
    await serving.close()
    async with asyncio.timeout(120):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_a_page_that_breaks_ends_that_request_only(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Collector):
        def collect(self) -> Iterable[Metric]:
            raise KeyError("a bug")

    serving = await opened(sources=[Broken()])
    assert b" 500 " in await raw(serving.port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 " in await raw(serving.port, HEALTH)
    await serving.close()
    assert "a request broke" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid", "x" * 300])
async def test_a_port_that_cannot_be_had_is_a_warning_that_says_what_to_change(
    tmp_path: Path, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = await opened()
    async with running(tmp_path, Script(), ops={"host": host, "port": other.port}) as gateway:
        await gateway.ask("hello", sender="ann")
        await until(lambda: "set ops.port to another port" in caplog.text)
    await other.close()


class Refused(ConsoleChannel):
    async def run(self, emit: Emit) -> None:
        raise Denied(f"the token is wrong ({bool(emit)})")


def nothing(part: PostPart) -> None:
    raise AssertionError(part)


async def test_a_running_gateway_is_scraped_and_seen_and_a_stopped_one_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store, bad = tmp_path / "reverie.db", ChannelName("bad")
    names = [CONSOLE, bad]
    assert "no store at" in (await judge_gateway(store, names, datetime.now(UTC)))[1][0]
    screen = Screen()
    console = ConsoleChannel(CONSOLE, screen.show)
    refused = Refused(bad, nothing)
    async with running(tmp_path, Script(), channels={CONSOLE: console, bad: refused}):
        await console.receive_message("hello", sender="ann")
        await screen.until(1)
        async with asyncio.timeout(120):  # each change of a state is told at once
            while True:
                found = (await find_gateway_state(store)).snapshot
                if found and {one.state for one in found.channels} == {"up", "refused"}:
                    break
                await asyncio.sleep(0.01)
        is_well, findings = await judge_gateway(store, names, datetime.now(UTC))
        assert (is_well, findings[0]) == (False, "bad is refused: the token is wrong (True)")
        assert findings[1].startswith("the store has ")
        port = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", caplog.text)
        assert port
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"http://127.0.0.1:{port[1]}/metrics")).text
        assert 'reverie_channel_up{channel="console"} 1.0\n' in text
        assert 'reverie_channel_up{channel="bad"} 0.0\n' in text
        assert 'reverie_channel_events_total{channel="console",kind="direct"} 1.0\n' in text
    gone = await judge_gateway(store, names, datetime.now(UTC))
    assert gone == (False, [f"no gateway is running with the store {store}"])


async def test_of_processes_that_share_a_store_the_best_is_asked_or_each_by_its_name(
    tmp_path: Path,
) -> None:
    async def nobody(_: CommandRequest) -> ControlResponse:
        raise AssertionError

    store, now, other = tmp_path / "reverie.db", datetime.now(UTC), ChannelName("irc.other")
    held_by = {"edge-1": {IRC: "irc"}, "edge-2": {other: "irc"}}
    stats = {name: GatewayStats(platforms, START) for name, platforms in held_by.items()}
    stats["edge-1"].record_link(link(True), START)
    stats["edge-2"].report_problem("store", "the log cannot be written", START)
    async with contextlib.AsyncExitStack() as held:
        for name in (*stats, "edge-3", "edge-5"):
            held.enter_context(hold_process_files(store, name, now))
            path = socket_path(process_path(store, name))
            if name in stats:
                server = ControlServer(path, nobody, stats[name].snapshot)
                held.push_async_callback(cancel_and_wait, asyncio.create_task(server.run()))
                await until(path.is_socket)
                continue
            silent = held.enter_context(socket.socket(socket.AF_UNIX))
            silent.bind(str(path))
            if name == "edge-3":
                silent.listen()
        assert (await find_gateway_state(store)).snapshot == stats["edge-1"].snapshot()
        hung = (
            f"the gateway on {socket_path(process_path(store, 'edge-3'))} did not answer in 5 "
            f"s: {HUNG_REMEDY}"
        )
        assert (await judge_gateway(store, [], now, "edge-3"))[1][0].startswith(hung)
        assert (await find_gateway_state(store, "edge-2")).snapshot == stats["edge-2"].snapshot()
        missing = await judge_gateway(store, [], now, "edge-4")
        assert missing[1][0].startswith(
            f"no process named edge-4 is running with the store {store} ("
        )
        killed = await judge_gateway(store, [], now, "edge-5")
        assert f"{store}: the last one was killed or crashed" in killed[1][0]


async def test_the_command_shows_the_channels(tmp_path: Path) -> None:
    async with Ircd() as ircd:
        (tmp_path / "reverie.yaml").write_text(CONFIG.format(port=ircd.port))
        stopped = await asyncio.to_thread(command, "channels", "--config", tmp_path, cwd=tmp_path)
        assert (stopped.returncode, "no gateway is running" in stopped.stderr) == (2, True)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway.cli.main",
            "run",
            "--config",
            str(tmp_path),
            stderr=asyncio.subprocess.PIPE,
        )
        await ircd.joined("reverie", "#lobby")
        shown = await asyncio.to_thread(
            command, "channels", "--config", tmp_path, "--json", cwd=tmp_path
        )
        (one,) = json.loads(shown.stdout)["data"]
        assert (one["channel"], one["platform"], one["reconnects"]) == ("irc.test", "IRC", 0)
        process.terminate()
        await process.communicate()


# The operator's server under bad guests: other host names, who dawdles, who guesses, and what pages
# may do


@pytest.mark.parametrize(
    ("said", "host", "known"),
    [
        ("127.0.0.1:9090", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost:9090", "127.0.0.1", True),
        ("LOCALHOST.", "127.0.0.1", True),
        ("[::1]:9090", "127.0.0.1", True),
        ("127.0.0.2:9090", "127.0.0.1", True),
        ("panel.example.org", "127.0.0.1", True),
        ("Panel.Example.Org:443", "127.0.0.1", True),
        ("evil.example", "127.0.0.1", False),
        ("localhost.evil.example", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("10.0.0.5:9090", "127.0.0.1", False),
        ("0.0.0.0:9090", "127.0.0.1", False),
        ("evil@127.0.0.1", "127.0.0.1", False),
        ("127.0.0.1:9090:1", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("10.0.0.5:9090", "0.0.0.0", True),
        ("[2001:db8::1]:9090", "::", True),
        ("evil.example", "0.0.0.0", False),
        ("gateway.lan", "gateway.lan", True),
    ],
)
def test_names_that_are_ours(said: str, host: str, known: bool) -> None:
    assert site.is_known_host(said, host, {"panel.example.org"}) is known


@pytest.mark.parametrize(
    ("said", "bears"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer   {TOKEN} ", True),
        (f"Bearer {TOKEN[:-1]}", False),
        (f"Bearer {TOKEN} x", False),
        (f"Basic {TOKEN}", False),
        (TOKEN, False),
        ("Bearer", False),
        ("Bearer \u00fc\udcff", False),
        ("", False),
    ],
)
def test_who_bears_the_token(said: str, bears: bool) -> None:
    client, other = Client("operator", "own"), Client("ann", "read")
    tokens = [(other, f"another-{TOKEN}"), (client, TOKEN)]
    assert site.find_client(said, tokens) == (client if bears else None)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
    ],
)
async def test_an_act_is_refused_that_comes_from_a_page_of_another_site(
    headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    async with operated(tmp_path) as gateway:
        headers |= {"Host": "localhost"}
        order = {"words": ["status"]}
        answer = await gateway.client.post("/api/orders", json=order, headers=headers)
        assert answer.status_code == status
        assert (await gateway.client.get("/api/me", headers=headers)).status_code == 200


async def test_a_page_elsewhere_that_has_made_its_name_mean_this_machine_gets_nothing(
    tmp_path: Path,
) -> None:
    async with operated(tmp_path, ops={"hosts": ["panel.example.org"]}) as gateway:
        for path in ("/", "/metrics", "/api/status", "/api/events", "/nowhere"):
            answer = await gateway.client.get(
                path, headers={"Host": f"evil.example:{gateway.port}"}
            )
            assert (answer.status_code, "ops.hosts" in answer.json()["detail"]) == (403, True)
            assert "access-control-allow-origin" not in answer.headers
        for host in ("localhost", f"[::1]:{gateway.port}", "panel.example.org"):
            assert (
                await gateway.client.get("/api/status", headers={"Host": host})
            ).status_code == 200
        assert (await gateway.client.get("/health", headers={"Host": "pod-17"})).status_code == 200
        asked = await gateway.client.options(
            "/api/status", headers={"Origin": "http://evil.example"}
        )
        assert asked.status_code == 405
        assert not [name for name in asked.headers if name.startswith("access-control")]


async def test_whoever_guesses_is_slowed_and_counted_and_what_they_guess_is_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(site, "MAX_DENIALS", 3)
    monkeypatch.setattr(site, "DENIAL_DELAY_S", 77.0)
    delays, ends = list[float](), asyncio.Event()

    async def sleep(_: SystemClock, delay_s: float) -> None:
        if delay_s == site.DENIAL_DELAY_S:
            delays.append(delay_s)
            await ends.wait()
        else:
            await asyncio.sleep(delay_s)

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    async with operated(tmp_path) as gateway:
        guess = f"{TOKEN[:-1]}Z"
        async with httpx.AsyncClient(
            base_url=gateway.client.base_url, trust_env=False, timeout=None
        ) as bare:
            wrong = {"Authorization": f"Bearer {guess}"}
            tries = [asyncio.create_task(bare.get("/api/status", headers=wrong)) for _ in range(2)]
            await until(lambda: len(delays) == 2)
            await gateway.get("/api/dmn")  # the others are not slowed
            tries.append(asyncio.create_task(bare.get("/api/status", headers=wrong)))
            await until(lambda: len(delays) == 3)
            refused = await gateway.client.get("/api/status")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1"), (
                "no token is looked at now"
            )
            assert (await gateway.client.get("/health")).status_code == 200
            assert not any(one.done() for one in tries)
            ends.set()
            assert [one.status_code for one in await asyncio.gather(*tries)] == [401] * 3
        assert guess not in caplog.text
        assert "wrong token (3 so far)" in caplog.text


async def test_what_the_page_may_do_is_said_with_it(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway:
        page = await gateway.client.get("/", headers={"Authorization": ""})
        assert page.status_code == 200
        policy = dict(
            part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
        )
        assert policy["default-src"] == "'none'"
        assert (policy["script-src"], policy["connect-src"], policy["style-src"]) == ("'self'",) * 3
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in page.headers["content-security-policy"]
        for path in re.findall(r'(?:src|href)="(/page/[^"]+)"', page.text):
            answer = await gateway.client.get(path)
            assert (answer.status_code, answer.headers["x-content-type-options"]) == (
                200,
                "nosniff",
            )
            assert answer.headers["content-encoding"] == "gzip"
            plain = await gateway.client.get(path, headers={"Accept-Encoding": "identity"})
            assert (plain.content, "content-encoding" in plain.headers) == (answer.content, False)
        for path in (
            "/page/",
            "/page/../server.py",
            "/page/%2e%2e/server.py",
            "/page/..%2fserver.py",
            "/page/x.js",
        ):
            assert (await gateway.client.get(path)).status_code == 404
        api = await gateway.client.get("/api/status")
        assert (
            api.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        )
        assert (api.headers["cache-control"], api.headers["x-content-type-options"]) == (
            "no-store",
            "nosniff",
        )
        assert (api.headers["referrer-policy"], api.headers["x-frame-options"]) == (
            "no-referrer",
            "DENY",
        )


async def test_whoever_sends_a_body_letter_by_letter_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "REQUEST_TIMEOUT_S", 0.3)
    async with operated(tmp_path) as gateway:
        head = (
            f"POST /api/say HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        ).encode()
        body = head + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        answer = await raw(gateway.port, body, *[b" "] * 20, every_s=0.05)
        assert not answer or b" 408 " in answer, "a reset may overtake the answer"
        assert (await gateway.client.get("/api/status")).status_code == 200


async def test_a_body_that_says_that_it_is_huge_is_answered_without_being_read(
    tmp_path: Path,
) -> None:
    async with operated(tmp_path) as gateway:
        for length in ("99999999999", "70000"):
            head = (
                f"POST /api/say HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            )
            assert b" 413 " in await raw(gateway.port, head.encode())


async def open_server() -> OpsServer:
    """Start a server that is not sure that nobody else can reach it: only a resolver knows what
    `127.1` is."""
    config = OpsConfig(host="127.1", port=0, token=SecretStr(TOKEN))
    return await serve(config, GatewayStats({}, START))


async def test_metrics_need_the_token_where_others_reach_them() -> None:
    serving = await open_server()
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{serving.port}", trust_env=False
    ) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/metrics")).status_code == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/metrics", headers=bearer)).status_code == 200
    await serving.close()


# What the page is made of: only its own files, no markup out of text, nothing from elsewhere, and
# all of it packed

PAGE = Path(__file__).parents[4] / "gateway" / "plugins" / "dashboard" / "page"
FILES = sorted(PAGE.iterdir())
PARSES = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new "
    r"Function|DOMParser|srcdoc|"
    r"createContextualFragment|setHTML|javascript:"
)
SPOKEN = {
    "http://www.w3.org/2000/svg",
    "https://html.spec.whatwg.org/multipage/server-sent-events.html",
}
"""A name of a language, and where a rule stands."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_a_file_of_the_page(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not PARSES.search(text), "text must stay text"
    addresses = {
        one.rstrip("),.;") for one in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s'\"]*", text)
    }
    assert {one for one in addresses if one.startswith("http")} <= SPOKEN
    assert not re.search(r"@import|url\((?!data:)", text), "nothing is loaded from elsewhere"
    if file.suffix == ".html":
        assert not re.search(r"\son\w+=|\sstyle=|<style|<script>", text), (
            "its own policy forbids it"
        )


def test_every_file_is_served_with_the_policy_and_nothing_else_is() -> None:
    served = load_assets()
    assert set(served) == {"/", *(f"/page/{one.name}" for one in FILES if one.name != "index.html")}
    for page in (one for pair in served.values() for one in pair):
        assert page.headers["Content-Security-Policy"] == ASSET_CSP
    assert "unsafe" not in ASSET_CSP


def test_the_source_of_the_page_is_small() -> None:
    """It is served as it is written, without a build step."""
    assert sum(one.stat().st_size for one in FILES) < 120_000


def test_every_id_that_the_page_looks_for_is_in_its_markup() -> None:
    markup = (PAGE / "index.html").read_text(encoding="utf-8")
    ids = set(re.findall(r'\bid="([\w-]+)"', markup))
    scripts = "".join(one.read_text(encoding="utf-8") for one in FILES if one.suffix == ".js")
    asked = set(re.findall(r'(?:\$|getElementById)\("([\w-]+)"\)', scripts))
    assert asked <= ids, asked - ids
    named = re.findall(r'(?:aria-labelledby|for)="([\w-]+)"', markup)
    assert set(named) <= ids, set(named) - ids


@pytest.mark.parametrize(
    ("off", "gone", "there"),
    [
        (
            ["dashboard"],
            ["/", "/page/main.js", "/api/status", "/api/events"],
            ["/health", "/metrics"],
        ),
        (["health", "metrics"], ["/health", "/ready", "/metrics"], ["/", "/api/status"]),
    ],
)
async def test_what_is_off_is_not_served(
    off: list[str], gone: list[str], there: list[str], tmp_path: Path
) -> None:
    async with operated(tmp_path, plugins={"off": off}) as gateway:
        for path in gone:
            assert (await gateway.client.get(path)).status_code == 404
        for path in there:
            assert (await gateway.client.get(path)).is_success
