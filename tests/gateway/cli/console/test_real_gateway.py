"""The console on gateways that run: one in this process, one that it runs itself, and the command in a terminal."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.models.scripted import Script, ScriptRule
from channels import aio
from gateway.cli.console.client import ApiRejected, ApiUnauthorized, ApiUnavailable, GatewayApiClient
from gateway.cli.console.launch import ConsoleUnavailable, GatewayProcess, find_target
from gateway.cli.main import main
from gateway.config.loader import read_config
from gateway.config.models import Settings
from gateway.core.process_files import heartbeat_file
from tests.kits.console import OWN, StubGateway, opened
from tests.kits.console import TOKEN as STUB_TOKEN
from tests.kits.ops import TOKEN, operated
from tests.servers.ircd import Ircd
from tests.servers.ports import free_port

CONFIG = """
channels:
  irc.test: {{platform: irc, host: 127.0.0.1, port: {port}, tls: false, nick: reverie, rooms: ["#lobby"]}}
agents: [{{id: reverie}}]
llm: {{providers: {{s: {{kind: scripted}}}}, models: {{main: {{provider: s}}}}}}
attention: {{coalesce: 0}}
access: {{dm: open}}
store: {{path: reverie.db}}
ops: {ops}
"""


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def test_a_person_talks_to_a_real_gateway(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway, opened(url(gateway.port), TOKEN) as eyes:
        await eyes.sees("attached")
        await eyes.types("hello there")
        await eyes.pilot.press("enter")
        await eyes.sees("operator  hello there", "talk")
        await eyes.sees("reverie  You said:", "talk")
        await eyes.types("/version")
        await eyes.pilot.press("enter")
        await eyes.sees("operator  /version", "talk")
        await eyes.sees("Reverie 0.", "talk")
        await eyes.types("/dmn pause")
        await eyes.pilot.press("enter")
        await eyes.sees("reverie paused")
        await eyes.sees("is paused", "alone")
        await gateway.console.receive_message("reverie: and me?", sender="ann", room="lobby")
        await eyes.types("/follow demo/lobby")
        await eyes.pilot.press("enter")
        await eyes.sees("ann  reverie: and me?", "talk")
        await eyes.until(lambda: not eyes.app.model.turns)
        assert "is writing" not in eyes.screen()


async def test_a_turn_is_stopped_from_the_console(tmp_path: Path) -> None:
    slow = Script(rules=(ScriptRule(match=".", reply="word " * 200),), pace_s=0.2)
    async with operated(tmp_path, slow) as gateway, opened(url(gateway.port), TOKEN) as eyes:
        await eyes.sees("attached")
        await eyes.types("go on")
        await eyes.pilot.press("enter")
        await eyes.sees("is writing", "talk")
        await eyes.sees("thinks")
        await eyes.pilot.press("escape")
        await eyes.sees("stopping the turn in the operator's console", "talk")
        await eyes.until(lambda: not eyes.app.model.turns)
        assert "is writing" not in " ".join(eyes.rows("talk"))


async def test_a_restarted_gateway_tells_what_was_said_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "FIRST_DELAY_S", 0.05)
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        async with operated(tmp_path, ops={"port": port}):
            eyes = await stack.enter_async_context(opened(url(port), TOKEN))
            await eyes.sees("attached")
            await eyes.types("before")
            await eyes.pilot.press("enter")
            await eyes.sees("You said:", "talk")
        await eyes.sees("the connection to the gateway is gone", "alone")
        async with operated(tmp_path, ops={"port": port}) as again:
            await eyes.sees("attached again", "alone")
            await again.post("/api/say", {"text": "from elsewhere"})
            await eyes.sees("operator  from elsewhere", "talk")
            assert " ".join(eyes.rows("talk")).count("operator  before") == 1


def configured(folder: Path, port: int, ops: str = "{port: 0}") -> Settings:
    (folder / "reverie.yaml").write_text(CONFIG.format(port=port, ops=ops))
    return read_config(folder, os.environ).settings


async def test_a_gateway_of_ones_own_runs_and_ends_with_the_console(tmp_path: Path) -> None:
    async with Ircd() as ircd:
        settings = configured(tmp_path, ircd.port)
        target = await find_target(settings, tmp_path, {}, datetime.now(UTC), url="", run=False)
        assert target.is_own
        child = GatewayProcess(tmp_path, settings.store.path, target.port, target.token)
        await child.start()
        try:
            async with opened(target.url, target.token, child=child) as eyes:
                await ircd.joined("reverie", "#lobby")
                await eyes.sees("runs here 127.0.0.1:")
                await eyes.types("hello")
                await eyes.pilot.press("enter")
                await eyes.sees("You said:", "talk")
                await eyes.types("/reload")
                await eyes.pilot.press("enter")
                await eyes.sees("configuration read again; nothing changed", "alone")
                with pytest.raises(ConsoleUnavailable, match="leave out --run"):
                    await find_target(settings, tmp_path, {}, datetime.now(UTC), url="", run=True)
        finally:
            assert await child.stop() == 0
        assert stat.S_IMODE(child.log_path.stat().st_mode) == 0o600
        assert "stopping" in child.read_log_tail()
        assert target.token not in child.log_path.read_text()
        assert not heartbeat_file(settings.store.path).exists()


async def test_a_gateway_of_ones_own_ends_when_nobody_holds_it(tmp_path: Path) -> None:
    async with Ircd() as ircd:
        settings = configured(tmp_path, ircd.port)
        child = GatewayProcess(tmp_path, settings.store.path, free_port(), "a-token-of-the-consoles")
        await child.start()
        await ircd.joined("reverie", "#lobby")
        assert child._process is not None
        assert child._process.stdin is not None
        child._process.stdin.close()  # as when this process is killed
        async with asyncio.timeout(120):
            assert await child.wait() == 0
        assert await child.stop() == 0


async def test_a_gateway_that_cannot_start_says_why(tmp_path: Path) -> None:
    settings = configured(tmp_path, 1)
    settings.store.path.write_bytes(b"this is no database" * 100)
    port = free_port()
    child = GatewayProcess(tmp_path, settings.store.path, port, "a-token-of-the-consoles")
    await child.start()
    async with opened(url(port), "a-token-of-the-consoles", child=child) as eyes:
        await eyes.sees("the gateway ended with code 1", "alone")
        await eyes.until(
            lambda: any("[error" in said for one in eyes.app.model.autonomous_pane.lines for _, said in one.spans)
        )
        await eyes.sees("✗ the gateway ended with code 1")
    await child.stop()


def beat(settings: Settings) -> None:
    """As if one ran."""
    body = {"started": "2026-11-22T10:00:00Z", "channels": []}
    heartbeat_file(settings.store.path).write_text(json.dumps(body))


async def unavailable_reason(
    settings: Settings | None, folder: Path | None, env: dict[str, str], *, url: str = "", run: bool = False
) -> str:
    """Return why no console can be opened."""
    with pytest.raises(ConsoleUnavailable) as caught:
        await find_target(settings, folder, env, datetime.now(UTC), url=url, run=run)
    return str(caught.value)


async def test_what_is_missing_is_told_with_its_fix(tmp_path: Path) -> None:
    port = free_port()
    settings = configured(tmp_path, 1, f"{{port: {port}}}")
    beat(settings)
    said = await unavailable_reason(settings, tmp_path, {})
    assert "has no ops.token" in said
    assert f'add `ops: {{token: "${{REVERIE_TOKEN}}"}}` to {tmp_path}' in said
    assert "--config" in await unavailable_reason(None, None, {})
    assert "leave out --run" in await unavailable_reason(settings, tmp_path, {}, run=True)
    assert "no gateway answers" in await unavailable_reason(
        settings, tmp_path, {"REVERIE_TOKEN": "x" * 20}, url=url(port)
    )
    assert "is not this machine" in await unavailable_reason(
        None, None, {"REVERIE_TOKEN": "x" * 20}, url="http://example.org:9090"
    )
    assert "is no address" in await unavailable_reason(None, None, {"REVERIE_TOKEN": "x" * 20}, url="ftp://127.0.0.1")
    assert "there is no REVERIE_TOKEN" in await unavailable_reason(None, None, {}, url=url(port))
    unsaid = configured(tmp_path, 1, "{port: 0}")
    assert "ops.port is 0" in await unavailable_reason(unsaid, tmp_path, {})


async def test_a_wrong_token_and_something_else_are_told(tmp_path: Path) -> None:
    stub = StubGateway()
    await stub.start()
    try:
        now = datetime.now(UTC)
        with pytest.raises(ConsoleUnavailable, match="refuses this token"):
            await find_target(None, None, {"REVERIE_TOKEN": "wrong"}, now, url=stub.url, run=False)
        stub.status = []  # type: ignore[assignment] # nor is this what a gateway says
        with pytest.raises(ConsoleUnavailable, match="a gateway of another version"):
            await find_target(None, None, {"REVERIE_TOKEN": STUB_TOKEN}, now, url=stub.url, run=False)
        stub.status = {}
        settings = configured(tmp_path, 1, f"{{port: {stub.port}, token: {STUB_TOKEN}}}")
        beat(settings)
        target = await find_target(settings, tmp_path, {}, now, url="", run=False)
        assert (target.url, target.is_own) == (stub.url, False)
        assert STUB_TOKEN not in repr(target)
    finally:
        await stub.stop()


async def test_a_sign_of_life_that_outlived_its_gateway_keeps_nobody_out(tmp_path: Path) -> None:
    settings = configured(tmp_path, 1, f"{{port: {free_port()}, token: {STUB_TOKEN}}}")
    beat(settings)
    target = await find_target(settings, tmp_path, {}, datetime.now(UTC), url="", run=False)
    assert target.is_own


async def test_each_refusal_of_the_api_has_its_name() -> None:
    stub = StubGateway()
    await stub.start()
    api, other = GatewayApiClient(stub.url, STUB_TOKEN), GatewayApiClient(stub.url, "wrong")
    with pytest.raises(ApiUnauthorized):
        await other.get_status()
    stub.refuses = "no"
    with pytest.raises(ApiRejected, match="no"):
        await api.say("x")
    assert not (await api.send_order("kill", OWN, "me")).ok
    await stub.stop()
    with pytest.raises(ApiUnavailable):
        await api.get_status()
    for one in (api, other):
        await one.close()
    for token in ("", " ", "a\nb", "ü"):
        with pytest.raises(ValueError, match="token"):
            GatewayApiClient(stub.url, token)


class Terminal:
    """The command in a pseudo-terminal."""

    def __init__(self, *args: str, folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        command = [sys.executable, "-m", "gateway.cli.main", "console", *args]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True, cwd=Path.cwd()
        )
        os.close(theirs)
        self.folder = folder
        self.drawn = b""

    def until(self, found: Callable[[bytes], bool]) -> None:
        while not found(self.drawn):
            try:
                data = os.read(self._ours, 65_536)
            except OSError:  # the other side is closed
                data = b""
            assert data, self.drawn[-3_000:].decode("utf-8", "replace")
            self.drawn += data

    def keys(self, data: bytes) -> None:
        os.write(self._ours, data)

    def end(self) -> int:
        """Read to the end; the exit code."""
        with contextlib.suppress(OSError):
            while data := os.read(self._ours, 65_536):
                self.drawn += data
        os.close(self._ours)
        return self.process.wait(30)


@pytest.mark.parametrize(
    "way", ["ctrl+q", *(pytest.param(way, marks=pytest.mark.system) for way in ("SIGTERM", "SIGHUP"))]
)
async def test_the_command_runs_a_gateway_and_leaves_nothing_behind(tmp_path: Path, way: str) -> None:
    async with Ircd() as ircd:
        settings = configured(tmp_path, ircd.port)
        terminal = Terminal("--config", str(tmp_path), folder=tmp_path)

        def play() -> int:
            terminal.until(lambda drawn: b"runs here" in drawn)
            if way == "ctrl+q":
                terminal.keys(b"\x11")
            else:
                terminal.process.send_signal(getattr(signal, way))
            return terminal.end()

        assert await asyncio.to_thread(play) == 0
        assert b"serving irc.test" not in terminal.drawn  # the log is in its file
        assert "serving irc.test" in settings.store.path.with_name("reverie.db.log").read_text()
        assert not heartbeat_file(settings.store.path).exists()
        with contextlib.closing(sqlite3.connect(settings.store.path)) as database:
            database.execute("BEGIN IMMEDIATE")  # nobody holds it any more


@pytest.mark.system
def test_the_command_tells_that_its_gateway_ended(tmp_path: Path) -> None:
    settings = configured(tmp_path, 1)
    settings.store.path.write_bytes(b"this is no database" * 100)
    terminal = Terminal("--config", str(tmp_path), folder=tmp_path)
    terminal.until(lambda drawn: b"ended with code 1" in drawn)
    terminal.keys(b"\x03")
    terminal.until(lambda drawn: b"again quits" in drawn)
    terminal.keys(b"\x03")
    assert terminal.end() == 1


def test_without_a_terminal_there_is_no_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--config", str(tmp_path)]) == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_without_its_library_the_console_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    assert main(["console", "--config", str(tmp_path)]) == 2
    assert "pip install 'reverie-gateway[console]'" in capsys.readouterr().err


def test_nothing_but_the_console_imports_textual() -> None:
    modules = "gateway.cli.main, gateway.app, gateway.cli.operate"
    code = f"import sys, {modules}; print(sorted({{'textual', 'rich'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
