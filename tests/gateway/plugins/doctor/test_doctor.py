"""The doctor beside a running gateway, on a full disk, before any text, and on the command line."""

import asyncio
import contextlib
import gc
import inspect
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from channels.discord.check import probe_discord
from channels.discord.config import DiscordConfig
from gateway import app
from gateway.cli.main import main
from gateway.cli.openings import find_openings
from gateway.config.check_registry import CheckEnvironment
from gateway.config.loader import ConfigFiles, parse_config, read_config
from gateway.config.reload import LiveSettings
from gateway.core.clock import SystemClock
from gateway.core.control_socket import find_gateway_state
from gateway.core.events import Address, ChannelName, DeliveryReport, EventId, PostKey, RoomId
from gateway.core.findings import Finding, Severity, run_in_daemon_thread
from gateway.core.metrics import ChannelStats, GatewaySnapshot
from gateway.core.redaction import Redactor
from gateway.core.tool import permits_of
from gateway.plugins import find_plugins
from gateway.plugins.doctor.examine import (
    DoctorReport,
    ReportStyle,
    examine,
    run_checks,
    sort_findings,
)
from gateway.plugins.mcp import check as mcp
from tests.gateway.plugins.doctor.doctor_kit import (
    FAULTS,
    KEY,
    OPS_TOKEN,
    PASSWORD,
    SERVERS,
    Fault,
    World,
    changed,
    codes,
    only,
    trouble,
    world,
)
from tests.kits.examples import examples


@contextlib.asynccontextmanager
async def gateway(here: World) -> AsyncIterator[None]:
    """Runs with that configuration, all its channels up."""
    here.write()
    read = read_config(here.directory, here.env).settings
    stop = asyncio.Event()
    running = asyncio.create_task(
        app.run(read, stop, live=LiveSettings(read, ConfigFiles(here.directory, dict(here.env))))
    )
    try:
        async with asyncio.timeout(120):
            while not await are_up(here):
                assert not running.done(), running
                await asyncio.sleep(0.05)
        yield
    finally:
        stop.set()
        await running


async def running_channels(here: World) -> Sequence[ChannelStats]:
    snapshot = (await find_gateway_state(here.store)).snapshot
    return snapshot.channels if snapshot is not None else ()


async def are_up(here: World) -> bool:
    return {one.state for one in await running_channels(here)} == {"up"}


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        yield made


async def test_beside_a_running_gateway_nothing_is_wrong_and_nothing_is_disturbed(
    here: World,
) -> None:
    async with gateway(here):
        sessions, polls = len(here.discord.identifies), len(here.telegram.asked("getUpdates"))
        report = await here.examine(offline=False)
        assert trouble(report) == []
        findings = {one.code: one.what for one in report.findings}
        assert "the gateway runs" in findings["gateway.running"]
        assert "in use while the gateway runs" in findings["ops.port"]
        assert len(here.discord.identifies) == sessions
        assert (
            len(here.telegram.asked("getUpdates")) <= polls + 2
        )  # its own first polls may have come
        assert not any(
            call.answer and call.answer.get("error_code") == 409 for call in here.telegram.calls
        )
        nicks = [line for line in here.ircd.lines if line.startswith("NICK ")]
        assert nicks == ["NICK reverie", "NICK reveri-dr"]
        assert all(one.state == "up" and not one.reconnects for one in await running_channels(here))


async def test_a_channel_that_is_down_is_told_with_its_reason(here: World) -> None:
    async with gateway(here):
        await here.ircd.stop()
        while await are_up(here):
            await asyncio.sleep(0.05)
        found = trouble(await here.examine(offline=False))
        assert codes(found) == [("gateway.channel", "bad"), ("net.refused", "bad")]
        assert {one.where for one in found} == {"irc.test"}
        await here.ircd.start()


async def test_what_waits_for_a_restart_or_could_not_be_taken_is_told(here: World) -> None:
    async with gateway(here):
        here.config["agents"][0]["files"] = "files"
        here.write()
        assert codes(trouble(await examine_when(here, lambda said: bool(said.later)))) == [
            ("gateway.restart", "warning")
        ]
        here.config["channels"]["telegram.main"]["token"] = "${ONLY_HERE}"
        here.write()
        here.env["ONLY_HERE"] = here.telegram.token  # the gateway began without it
        report = await examine_when(here, lambda said: said.broken)
        assert codes(trouble(report)) == [("gateway.config_newer", "warning")]
        assert "variable" in trouble(report)[0].fix


async def examine_when(here: World, true: Callable[[GatewaySnapshot], bool]) -> DoctorReport:
    """Examine once the state of the gateway fulfils the condition."""
    async with asyncio.timeout(120):
        while (found := (await find_gateway_state(here.store)).snapshot) is None or not true(found):
            await asyncio.sleep(0.05)
    return await here.examine(offline=True, written=False)


async def test_a_delivery_that_nobody_is_sure_of_is_told(here: World) -> None:
    at = Address(channel=ChannelName("irc.test"), room=RoomId("#lounge"))
    now = SystemClock().now()
    await here.remember(
        DeliveryReport(
            id=EventId("d1"),
            at=at,
            post=PostKey("k1"),
            state="uncertain",
            reason="cut in the middle",
            sent=now,
        )
    )
    found = trouble(await here.examine(offline=True))
    assert codes(found) == [("store.uncertain", "warning")]
    assert "log show" in found[0].fix


async def test_a_room_that_hides_is_not_missed_by_who_was_in_it(here: World) -> None:
    here.ircd.options.modes = {}
    assert codes(trouble(await here.examine(offline=False))) == [("irc.rooms", "warning")]
    at, now = Address(channel=ChannelName("irc.test"), room=RoomId("#lounge")), SystemClock().now()
    await here.remember(
        DeliveryReport(id=EventId("d"), at=at, post=PostKey("k"), state="sent", reason="", sent=now)
    )
    assert trouble(await here.examine(offline=False)) == []


@pytest.mark.boxed
@pytest.mark.parametrize(
    ("boxes", "code"),
    [
        (("--size", "20000000", "--tmpfs", "{data}"), "store.disk"),
        pytest.param(
            ("--ro-bind", "{data}", "{data}"), "store.directory", marks=pytest.mark.system
        ),
        (("--ro-bind", "{data}/reverie.db", "{data}/reverie.db"), "store.readonly"),
        (("--ro-bind", "{empty}", "{data}"), "store.directory"),
    ],
)
async def test_a_disk_that_is_full_or_cannot_be_written(
    boxes: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    """In a mount of its own: root, who runs tests here and there, may write anywhere else."""
    async with world(tmp_path) as here:
        here.config["tools"] = {"off": ["bash*"]}  # no sandbox in a sandbox
        here.write()
        (tmp_path / "empty").mkdir()
        said = [word.format(data=here.store.parent, empty=tmp_path / "empty") for word in boxes]
    program = [
        sys.executable,
        "-m",
        "gateway.cli.main",
        "doctor",
        "--offline",
        "--json",
        "--config",
        str(here.directory),
    ]
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", *said, *program],
        capture_output=True,
        env=here.env,
        check=False,
        timeout=60,
    )
    printed = json.loads(done.stdout)
    found = [one["code"] for one in printed["findings"] if one["level"] == "bad"]
    assert found == [code], (done.stderr, printed)
    assert done.returncode == 1


BOUND = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Makes root obey the modes of files, as everybody else does."""


@pytest.mark.parametrize(
    ("path", "mode", "code", "fix"),
    [
        pytest.param("data/reverie.db", 0o400, "store.readonly", "chown", marks=pytest.mark.system),
        ("data/reverie.db", 0o000, "store.readonly", "chown"),
        pytest.param("data", 0o500, "store.directory", "writable", marks=pytest.mark.system),
        ("data", 0o000, "store.directory", "writable"),
        ("reverie.yaml", 0o000, "config.invalid", "chmod 600"),
        (".", 0o000, "config.none", "--config"),
        ("workspace", 0o000, "files.workspace", "chmod"),
        ("workspace/IDENTITY.md", 0o000, "files.workspace", "chmod"),
    ],
)
async def test_what_is_closed_to_us_is_told_as_that(
    path: str, mode: int, code: str, fix: str, tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        (here.directory / "workspace").mkdir(mode=0o700)
        (here.directory / "workspace" / "IDENTITY.md").write_text("I am Reverie.\n")
        here.config["agents"][0]["workspace"] = "workspace"
        here.write()
    program = [
        sys.executable,
        "-m",
        "gateway.cli.main",
        "doctor",
        "--offline",
        "--json",
        "--config",
        str(here.directory),
    ]
    bound = BOUND if os.geteuid() == 0 else ()
    before = (here.directory / path).stat().st_mode
    (here.directory / path).chmod(mode)
    try:
        done = subprocess.run(
            [*bound, *program], capture_output=True, env=here.env, check=False, timeout=60
        )
    finally:
        (here.directory / path).chmod(before)
    told = json.loads(done.stdout)["findings"]
    found = [one for one in told if one["level"] in ("warning", "bad")]
    assert [one["code"] for one in found] == [code], (done.stderr, found)
    assert fix in found[0]["fix"]


async def test_looking_changes_nothing(here: World) -> None:
    before = tree(here.directory)
    await here.examine(offline=False, written=False)
    assert tree(here.directory) == before


def tree(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(directory.rglob("*"))
    }


@pytest.mark.system
async def test_it_ends_in_time_though_nobody_answers(here: World) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(mock.patch.object(mcp, "MCP_START_TIMEOUT_S", 8.0))

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

        server = await stack.enter_async_context(await asyncio.start_server(silent, "127.0.0.1", 0))
        port = server.sockets[0].getsockname()[1]
        channels, url = here.config["channels"], f"127.0.0.1:{port}"
        channels["irc.test"]["port"] = here.config["ops"]["port"] = port
        channels["telegram.main"]["base_url"] = channels["discord.main"]["api_url"] = (
            f"http://{url}"
        )
        channels["discord.main"]["gateway_url"] = f"ws://{url}"
        here.config["llm"]["providers"]["claude"]["base_url"] = f"http://{url}"
        here.config["tools"] = {"mcp": {"x": {"url": f"http://{url}/mcp"}}}
        report = await here.examine(offline=False)
        said = {one.where for one in trouble(report)}
        assert {
            "irc.test",
            "telegram.main",
            "discord.main",
            "llm.models.main",
            "tools.mcp.x",
            "ops.port",
        } == said
        assert report.took_s < 8.0 * len(said), "they are waited for side by side"


async def test_which_checks_break_or_hang_does_not_matter_to_the_others() -> None:
    async def good() -> list[Finding]:
        return [Finding(code="net.ok", level="ok", what="good")]

    async def broken() -> list[Finding]:
        raise OSError(5, "Input/output error")

    async def hanging() -> list[Finding]:
        await asyncio.Event().wait()
        raise AssertionError

    async def slow() -> list[Finding]:
        for _ in range(100):
            await asyncio.sleep(0)
        return await good()

    checks = [
        ("a", broken, True),
        ("b", hanging, True),
        ("a", good, True),
        ("c", slow, False),
    ]  # two of one name
    found = await run_checks(checks, check_s=0.0)
    seen = [
        ("net.ok", "", "ok"),
        ("doctor.broke", "a", "unknown"),
        ("doctor.late", "b", "unknown"),
        ("net.ok", "", "ok"),
    ]
    assert [(one.code, one.where, one.level) for one in found] == seen


@pytest.mark.parametrize(
    ("levels", "code", "said"),
    [
        (["ok", "warning"], 0, "0 bad, 1 warning, 1 good"),
        (["ok", "unknown"], 3, "0 bad, 1 unknown, 0 warnings, 1 good"),
        (["bad", "unknown"], 1, "1 bad, 1 unknown, 0 warnings, 0 good"),
    ],
)
def test_what_could_not_be_looked_at_is_not_good(
    levels: list[Severity], code: int, said: str
) -> None:
    report = DoctorReport(
        findings=tuple(Finding(code="store.x", level=one, what="it") for one in levels)
    )
    assert report.exit_code == code
    assert json.loads(report.to_json())["ok"] is (code == 0)
    assert report.render_lines(ReportStyle())[-1].startswith(said)


async def test_a_probe_that_is_cut_off_leaves_no_open_session(here: World) -> None:
    left: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: left.append(context["message"])
    )
    config = DiscordConfig.model_validate(
        here.config["channels"]["discord.main"] | {"token": here.discord.token}
    )
    for turns in range(40):  # each cut somewhere else
        probe = asyncio.create_task(probe_discord(config))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(2):
            probe.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(probe, return_exceptions=True)
        for _ in range(100):
            await asyncio.sleep(0)
        del probe
        gc.collect()
    assert left == []


async def test_a_file_system_that_hangs_does_not_hang_the_doctor(tmp_path: Path) -> None:
    os.mkfifo(hangs := tmp_path / "hangs")
    look = partial(
        run_in_daemon_thread, lambda: [Finding(code="x", level="ok", what=hangs.read_text())]
    )
    found = await run_checks([("disk", look, True)], check_s=0.0)
    assert codes(found) == [("doctor.late", "unknown")]
    with hangs.open("w"):  # the thread that waits is let go
        pass


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, str]]:
    async def made() -> World:
        async with world(tmp_path_factory.mktemp("valid")) as here:
            return here

    here = asyncio.run(made())
    return here.directory, here.config, here.env


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["*", "${X}"])
)
VALUES = st.recursive(
    SCALARS,
    lambda some: (
        st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=8), some, max_size=3)
    ),
    max_leaves=6,
)


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(text=st.text(max_size=300) | VALUES.map(lambda value: json.dumps(value, default=str)))
def test_no_text_makes_the_doctor_raise(text: str, tmp_path: Path) -> None:
    (tmp_path / "reverie.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    sound(asyncio.run(examine(CheckEnvironment(directory=tmp_path, env={}, offline=True))).findings)


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_change_of_a_good_configuration_makes_the_doctor_raise(
    data: st.DataObject, valid: Any
) -> None:
    directory, config, env = valid
    changed = json.loads(json.dumps(config))
    at = changed
    while True:
        key = (
            data.draw(st.sampled_from(sorted(at)))
            if isinstance(at, dict)
            else data.draw(st.integers(0, len(at) - 1))
        )
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(VALUES | st.text(alphabet="0123456789abc./:-*#", max_size=12))
    (directory / "reverie.yaml").write_text(json.dumps(changed, default=str), encoding="utf-8")
    report = asyncio.run(examine(CheckEnvironment(directory=directory, env=env, offline=True)))
    sound(report.findings)
    assert "doctor.broke" not in {one.code for one in report.findings}, report.findings


def sound(findings: tuple[Finding, ...]) -> None:
    for one in findings:
        assert re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", one.code)
        assert bool(one.fix) == (one.level != "ok") or one.level == "ok", one
        assert (one.what + one.fix + one.where).isprintable()


async def test_no_secret_is_ever_shown(here: World) -> None:
    secrets = [KEY, PASSWORD, OPS_TOKEN, here.telegram.token, here.discord.token]
    shown = [await here.examine(offline=False)]
    here.ircd.options.sasl_fails = "904"
    here.model.key = "sk-another"
    for name, url in (("t", "telegram"), ("d", "discord")):
        here.config["channels"][f"{url}.{name}"] = dict(here.config["channels"][f"{url}.main"])
    here.config["channels"]["telegram.t"]["base_url"] += f"/{PASSWORD}"
    here.config["llm"]["providers"]["claude"] |= {"api_key": KEY, "base_url": here.model.url}
    here.config["tools"] = {"mcp": {"x": {"command": ["false", KEY], "env": {"SECRET": PASSWORD}}}}
    here.readable = True
    shown.append(await here.examine(offline=False))
    for key in ("channels", "agents", "ops", "llm"):
        kept, here.config[key] = here.config[key], {"oops": [here.telegram.token, KEY, PASSWORD]}
        shown.append(await here.examine(offline=True))
        here.config[key] = kept
    here.file.write_text(f"channels: [\n  {here.telegram.token}: {KEY}: {PASSWORD}\n")
    shown.append(await here.examine(offline=True, written=False))
    assert [one.ok for one in shown] == [True] + [False] * 6
    for report in shown:
        out = report.to_json() + "\n".join(report.render_lines(ReportStyle(colour=True)))
        assert not [secret for secret in secrets if secret in out]


def test_the_command_line_says_it_by_its_exit_code(
    valid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, config, env = valid
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    (directory / "reverie.yaml").write_text(json.dumps(config))
    (directory / "reverie.yaml").chmod(0o600)
    doctor = ["doctor", "--offline", "--config"]
    assert main([*doctor, str(directory)]) == 0
    out = capsys.readouterr().out
    assert "Configuration\n  ✓ " in out
    assert "\x1b" not in out
    assert re.search(r"0 bad, \d+ warnings?, \d+ good; it took \d+\.\d s\n$", out)
    (directory / "reverie.yaml").write_text("channels: 3\n")
    assert main([*doctor, str(directory), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is False
    assert {"code", "level", "what", "fix", "where"} == set(printed["findings"][0])
    for empty in (tmp_path, tmp_path / "gone"):
        assert main([*doctor, str(empty), "--json"]) == 2
        printed = json.loads(capsys.readouterr().out)
        assert (printed["ok"], [one["code"] for one in printed["findings"]]) == (
            False,
            ["config.none"],
        )
    with pytest.raises(SystemExit) as usage:
        main(["doctor"])
    assert usage.value.code == 2


@pytest.mark.parametrize(
    ("more", "colour", "sign"),
    [({}, True, "✓"), ({"NO_COLOR": "1"}, False, "✓"), ({"PYTHONIOENCODING": "ascii"}, True, "+")],
)
def test_on_a_terminal_it_has_colours_and_signs(
    more: dict[str, str], colour: bool, sign: str, tmp_path: Path
) -> None:
    (tmp_path / "reverie.yaml").write_text("channels: 3\n")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 30))
    program = [
        sys.executable,
        "-m",
        "gateway.cli.main",
        "doctor",
        "--offline",
        "--config",
        str(tmp_path),
    ]
    env = {"PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8", **more}
    with subprocess.Popen(program, stdout=theirs, stderr=theirs, env=env) as running:
        os.close(theirs)
        out = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
            while piece := os.read(ours, 65_536):
                out += piece
        assert running.wait(30) == 1
    os.close(ours)
    text = out.decode()
    assert "checking ..." in text
    assert ("\x1b[31m" in text) == colour
    assert sign in text


def test_findings_are_told_once_in_the_order_of_their_areas() -> None:
    some = [
        Finding(code="net.ok", level="ok", what="b"),
        Finding(code="config.read", level="ok", what="a\x1b[2J\nb"),
        Finding(code="net.ok", level="ok", what="b"),
    ]
    sorted_findings = sort_findings(some, Redactor())
    assert [one.code for one in sorted_findings] == ["config.read", "net.ok"]
    assert sorted_findings[0].what == "a\\x1b[2J\\nb"


# The doctor finds exactly what was broken, and nothing where nothing is


def matches(one: Finding, fault: Fault) -> bool:
    return fault.where in (one.where or one.what) and fault.fix in one.fix


async def diagnosed(fault: Fault, here: World, *, offline: bool) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if fault.only:
            only(here, fault.only)
        here.config = changed(here.config, fault.config)
        here.ircd.options = replace(here.ircd.options, **fault.ircd)
        for path, data in fault.files.items():
            (here.directory / path).parent.mkdir(parents=True, exist_ok=True)
            (here.directory / path).write_bytes(data)
        for path, mode in fault.modes.items():
            (here.directory / path).chmod(mode)
        planted = fault.plant(here, stack) if fault.plant is not None else None
        if inspect.isawaitable(planted):
            await planted
        report = await here.examine(offline=offline)
    found = trouble(report)
    assert codes(found) == sorted([(fault.code, fault.level), *fault.also]), found
    assert all(matches(one, fault) for one in found if one.code == fault.code), found
    assert report.exit_code == {"bad": 1, "unknown": 3}.get(fault.level, 0)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_a_fault_of_this_machine_is_found_and_nothing_else(fault: Fault, here: World) -> None:
    await diagnosed(fault, here, offline=True)


@pytest.mark.parametrize("fault", SERVERS, ids=lambda fault: fault.name)
async def test_a_fault_of_a_server_is_found_and_nothing_else(fault: Fault, here: World) -> None:
    await diagnosed(fault, here, offline=False)


@pytest.mark.parametrize("offline", [True, False])
async def test_nothing_is_wrong_with_what_is_right(offline: bool, here: World) -> None:
    report = await here.examine(offline=offline)
    assert trouble(report) == []
    assert report.exit_code == 0


# What the configuration opens: each opening is named with its key, and nothing else is.

CLOSED: dict[str, Any] = {
    "channels": {
        "telegram.main": {"platform": "telegram", "token": "1:x", "rooms": ["-1"]},
        "irc.libera": {
            "platform": "irc",
            "host": "127.0.0.1",
            "tls": False,
            "nick": "bot",
            "rooms": ["#a"],
        },
    },
    "agents": [{"id": "reverie"}],
    "llm": {"providers": {"p": {"kind": "scripted"}}, "models": {"main": {"provider": "p"}}},
    "tools": {"mcp": {"files": {"command": ["files-server"]}}},
}
HOOK = {
    "listen": "0.0.0.0",
    "port": 8443,
    "url": "https://bot.example.org/hook",
    "secret": "s" * 24,
}

OPENINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("open.dm", "access.dm", {"access": {"dm": "open"}}),
    (
        "open.rooms",
        "channels.telegram.main.rooms",
        {"channels": {"telegram.main": {"rooms": ["*"]}}},
    ),
    (
        "open.private",
        "agents[0].bindings[1].private",
        {
            "agents": [
                {
                    "id": "reverie",
                    "bindings": [{"private": True}, {"private": False}, {"private": None}],
                }
            ]
        },
    ),
    (
        "open.group",
        "agents[0].bindings[0].group",
        {"agents": [{"id": "reverie", "bindings": [{"group": "staff"}]}]},
    ),
    *(
        ("open.budget", f"access.budgets.{name}", {"access": {"budgets": {name: None}}})
        for name in ("sender_usd", "room_usd", "agent_usd")
    ),
    (
        "open.rate",
        "access.rates.room",
        {"access": {"rates": {"room": {"burst": 0, "per_minute": 0}}}},
    ),
    ("open.unasked", "tools.unasked_role", {"tools": {"unasked_role": "owner"}}),
    (
        "open.tool",
        "tools.rules[0].role",
        {"tools": {"rules": [{"tool": "web_*", "role": "guest"}]}},
    ),
    (
        "open.tool",
        "tools.rules[1].role",
        {"tools": {"rules": [{"tool": "who"}, {"tool": "bash", "role": "member"}]}},
    ),
    (
        "open.tool",
        "tools.rules[0].role",
        {"tools": {"rules": [{"tool": "mcp_files_*", "role": "member"}]}},
    ),
    (
        "open.approval",
        "tools.rules[0].approval",
        {"tools": {"rules": [{"tool": "bash", "approval": "never"}]}},
    ),
    ("open.network", "tools.bash.network", {"tools": {"bash": {"network": True}}}),
    ("open.web", "tools.web.allow_private", {"tools": {"web": {"allow_private": ["10.0.0.0/8"]}}}),
    ("open.mcp", "tools.mcp.files.role", {"tools": {"mcp": {"files": {"role": "guest"}}}}),
    ("open.mcp", "tools.mcp.files.approval", {"tools": {"mcp": {"files": {"approval": "never"}}}}),
    (
        "open.mcp",
        "tools.mcp.far.url",
        {"tools": {"mcp": {"far": {"url": "http://mcp.example.org/"}}}},
    ),
    ("open.ops", "ops.host", {"ops": {"host": "::", "token": "t" * 24}}),
    (
        "open.webhook",
        "channels.telegram.main.webhook.listen",
        {"channels": {"telegram.main": {"webhook": HOOK}}},
    ),
    ("open.leaks", "llm.models.main.leaks", {"llm": {"models": {"main": {"leaks": True}}}}),
]
CLOSED_TOO: list[dict[str, Any]] = [
    {},
    {"access": {"dm": "disabled"}},
    {
        "tools": {
            "rules": [{"tool": "*", "role": "owner", "approval": "always", "scope": "private"}]
        }
    },
    {"tools": {"rules": [{"tool": "bash", "role": "admin"}, {"tool": "bash", "role": "guest"}]}},
    {"tools": {"off": ["web_*"], "rules": [{"tool": "web_*", "role": "guest"}]}},
    {"tools": {"mcp": {"near": {"url": "http://127.0.0.1:1/"}}}},
    {"ops": {"host": "localhost"}},
    {
        "llm": {
            "providers": {"near": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
            "models": {"more": {"provider": "near", "name": "qwen", "leaks": True}},
        }
    },
    {"agents": [{"id": "reverie", "bindings": [{"private": True}]}]},
]


def merge(base: Any, more: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    return base | {key: merge(base.get(key), value) for key, value in more.items()}


def openings(more: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    found = list(
        find_openings(
            parse_config(merge(CLOSED, more), folder), permits_of(*find_plugins().classes)
        )
    )
    assert all(one.level == "warning" and one.what and one.fix for one in found)
    return [(one.code, one.where) for one in found]


@pytest.mark.parametrize(
    ("code", "where", "more"), OPENINGS, ids=lambda one: one if isinstance(one, str) else ""
)
def test_an_opening_is_named_with_its_key_and_nothing_else_is(
    code: str, where: str, more: dict[str, Any], tmp_path: Path
) -> None:
    assert openings(more, tmp_path) == [(code, where)]


@pytest.mark.parametrize("more", CLOSED_TOO, ids=str)
def test_nothing_is_named_where_nothing_is_open(more: dict[str, Any], tmp_path: Path) -> None:
    assert openings(more, tmp_path) == []


def test_what_publishes_the_ports_of_a_container_opens_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REVERIE_IMAGE", "yes")
    assert openings({"ops": {"host": "0.0.0.0", "token": "t" * 24}}, tmp_path) == []


def is_mergeable(more: dict[str, Any]) -> bool:
    """Whether it holds no list, which would take the place of another's."""
    return "rules" not in more.get("tools", {}) and "agents" not in more


def test_openings_are_named_one_by_one(tmp_path: Path) -> None:
    more: dict[str, Any] = {}
    for _, _, one in OPENINGS:
        more = merge(more, one) if is_mergeable(one) else more
    expected = [(code, where) for code, where, one in OPENINGS if is_mergeable(one)]
    assert sorted(openings(more, tmp_path)) == sorted(expected)
