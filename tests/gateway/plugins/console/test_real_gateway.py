"""The console on gateways that run: in this process, and the command in a terminal."""

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from channels import aio
from gateway.cli.main import main
from gateway.core.installing import install_command
from reverie.testing.servers.ports import free_port
from tests.kits.console import StubGateway, opened
from tests.kits.ops import TOKEN, operated


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def test_a_person_talks_to_a_real_gateway(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway, opened(url(gateway.port), TOKEN) as eyes:
        await eyes.sees("attached")
        await eyes.types("hello there")
        await eyes.pilot.press("enter")
        await eyes.sees("operator  hello there", "conversation")
        await eyes.sees("reverie  You said:", "conversation")
        await eyes.types("/version")
        await eyes.pilot.press("enter")
        await eyes.sees("operator  /version", "conversation")
        await eyes.sees("Reverie 0.", "conversation")
        await eyes.types("/dmn pause")
        await eyes.pilot.press("enter")
        await eyes.sees("reverie paused")
        await eyes.sees("is paused", "autonomous")
        await gateway.console.receive_message("reverie: and me?", sender="ann", room="lobby")
        await eyes.types("/follow demo/lobby")
        await eyes.pilot.press("enter")
        await eyes.sees("ann  reverie: and me?", "conversation")
        await eyes.until(lambda: not eyes.app.model.turns)
        assert "is writing" not in eyes.screen()


async def test_commands_of_plugins_that_are_off_are_not_offered(tmp_path: Path) -> None:
    off = {"off": ["approvals"]}
    async with operated(tmp_path, plugins=off) as gateway, opened(url(gateway.port), TOKEN) as eyes:
        await eyes.sees("attached")
        names = eyes.app.model.find_completions("/")
    assert {"status", "recap"} <= set(names)
    assert not {"approve", "deny"}.intersection(names)


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
            await eyes.sees("You said:", "conversation")
        await eyes.sees("the connection to the gateway is gone", "autonomous")
        async with operated(tmp_path, ops={"port": port}) as again:
            await eyes.sees("attached again", "autonomous")
            await again.post("/api/say", {"text": "from elsewhere"})
            await eyes.sees("operator  from elsewhere", "conversation")
            assert " ".join(eyes.rows("conversation")).count("operator  before") == 1


class Terminal:
    def __init__(self, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        command = [sys.executable, "-m", "gateway.cli.main", "console", *args]
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
            cwd=Path.cwd(),
        )
        os.close(theirs)
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


CONFIG = """
channels:
  irc.test: {{platform: irc, host: 127.0.0.1, port: 1, tls: false, nick: reverie, rooms: ["#lobby"]}}
agents: [{{id: reverie}}]
llm: {{providers: {{s: {{kind: scripted}}}}, models: {{main: {{provider: s}}}}}}
store: {{path: reverie.db}}
ops: {ops}
"""


@pytest.mark.parametrize(
    "way",
    ["ctrl+q", *(pytest.param(way, marks=pytest.mark.system) for way in ("SIGTERM", "SIGHUP"))],
)
async def test_the_command_attaches_and_leaves(tmp_path: Path, way: str) -> None:
    async with operated(tmp_path / "gateway") as gateway:
        (tmp_path / "reverie.yaml").write_text(
            CONFIG.format(ops=f"{{port: {gateway.port}, token: {TOKEN}}}")
        )
        terminal = Terminal("--config", str(tmp_path))

        def play() -> int:
            terminal.until(lambda drawn: b"attached" in drawn)
            if way == "ctrl+q":
                terminal.keys(b"\x11")
            else:
                terminal.process.send_signal(getattr(signal, way))
            return terminal.end()

        assert await asyncio.to_thread(play) == 0


def test_what_is_missing_is_told_with_its_fix(tmp_path: Path) -> None:
    def run(ops: str, *more: str) -> tuple[int, str]:
        (tmp_path / "reverie.yaml").write_text(CONFIG.format(ops=ops))
        terminal = Terminal(*more)
        return terminal.end(), terminal.drawn.decode()

    port, here = free_port(), ("--config", str(tmp_path))
    code, said = run(f"{{port: {port}, token: {TOKEN}}}", *here)
    assert (code, f"start `reverie run --config {tmp_path}`" in said) == (3, True)
    for ops, more, reason in (
        (f"{{port: {port}}}", here, "need a token: set ops.token"),
        (f"{{port: 0, token: {TOKEN}}}", here, "ops.port is 0"),
        ("{port: 0}", (), "--config"),
        ("{port: 0}", ("--url", "http://example.org:9090"), "is not this machine"),
        ("{port: 0}", ("--url", "ftp://127.0.0.1"), "is no address"),
        ("{port: 0}", ("--url", url(port)), "the token is empty"),
    ):
        code, said = run(ops, *more)
        assert (code, reason in said) == (2, True), said


async def test_a_wrong_token_and_something_else_are_told(tmp_path: Path) -> None:
    stub = StubGateway()
    await stub.start()
    (tmp_path / "reverie.yaml").write_text(
        CONFIG.format(ops=f"{{port: {stub.port}, token: {TOKEN}}}")
    )
    terminal = Terminal("--config", str(tmp_path))
    assert (await asyncio.to_thread(terminal.end), b"send the token (401)" in terminal.drawn) == (
        2,
        True,
    )
    stub.token, stub.status = TOKEN, []  # type: ignore[assignment] # nor is this what a gateway says
    terminal = Terminal("--config", str(tmp_path))
    assert (await asyncio.to_thread(terminal.end), b"of another version" in terminal.drawn) == (
        2,
        True,
    )
    await stub.stop()


def test_without_a_terminal_there_is_no_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["console", "--config", str(tmp_path)]) == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_without_its_extra_it_tells_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    assert main(["console", "--config", str(tmp_path)]) == 2
    assert install_command("console") in capsys.readouterr().err
