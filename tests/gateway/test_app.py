"""Starting, stopping, and what goes wrong beside the way of a message."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.models.base import ModelRequest, ModelUnusable, TextPart
from agent.models.scripted import Script, ScriptedModel
from channels.base import Denied, Emit, PostPart
from gateway import app
from gateway.app import ChannelUnavailable
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.control_socket import HUNG_REMEDY
from gateway.core.events import ChannelName
from gateway.core.facts import DmnStateSaved
from gateway.core.process_files import socket_path
from gateway.plugins.health.program import judge_gateway
from gateway.store import NewEntry, Store, StoreInUse
from reverie.testing.channels import story
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, Screen, running, settings
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.ircd import Ircd, Options

CONFIG = """
channels:
  irc.test: {{platform: irc, host: 127.0.0.1, port: {port}, tls: false, nick: reverie, rooms: ["#lobby"]}}
agents: [{{id: reverie}}]
llm:
  providers: {{dry: {{kind: scripted}}}}
  models: {{main: {{provider: dry}}}}
attention: {{coalesce: 0}}
access: {{dm: open}}
store: {{path: data/reverie.db}}
ops: {{port: 0}}
"""


class Refused(ConsoleChannel):
    async def run(self, emit: Emit) -> None:
        raise Denied(f"the password is wrong ({bool(emit)})")


def nothing(part: PostPart) -> None:
    raise AssertionError(part)


async def test_a_refused_channel_stays_off_and_the_others_go_on(tmp_path: Path) -> None:
    screen = Screen()
    good, bad = ConsoleChannel(CONSOLE, screen.show), Refused(ChannelName("bad"), nothing)
    async with running(tmp_path, channels={CONSOLE: good, bad.name: bad}):
        await good.receive_message("hello", sender="ann")
        await screen.until(1)


@story
async def test_refused_by_every_platform_the_command_goes_on_and_tries_again(
    tmp_path: Path,
) -> None:
    """Telegram is asked again over minutes before its refusal counts: not here."""
    async with DiscordApi() as discord, Ircd(Options(password="another")) as ircd:
        irc = {
            "platform": "irc",
            "host": "127.0.0.1",
            "port": ircd.port,
            "tls": False,
            "nick": "reverie",
        }
        irc["password"] = "not this one"
        urls = {"api_url": discord.api_url, "gateway_url": discord.gateway_url}
        channels = {
            "irc.test": irc,
            "discord.test": {"platform": "discord", "token": f"{discord.token}x", **urls},
        }
        one = {
            "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}}
        }
        config = {"channels": channels, "agents": [{"id": "reverie"}], **one, "ops": {"port": 0}}
        (tmp_path / "reverie.yaml").write_text(
            json.dumps(config | {"store": {"path": "reverie.db"}})
        )  # JSON is YAML
        arguments = "-m", "gateway.cli.main", "run", "--config", str(tmp_path)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        told = ""
        while any(f"{name} is refused: " not in told for name in channels):
            told += (line := await process.stderr.readline()).decode()
            assert line, told
        assert told.count('next attempt in 60 s"') == len(channels)
        found = await asyncio.to_thread(command, "health", "--config", tmp_path, cwd=tmp_path)
        assert found.returncode == 1
        process.terminate()
        _, rest = await process.communicate()
        assert process.returncode == 0
        assert not [
            word for word in ("not this one", discord.token) if word in told + rest.decode()
        ]


@story
async def test_services_that_are_away_at_the_start_are_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = Options(caps="sasl", sasl={"reverie": "hush"}, sasl_fails="904")
    clock, stop = ManualClock(datetime.now(UTC)), asyncio.Event()
    async with Ircd(options) as ircd:
        sasl = {"mechanism": "plain", "account": "reverie", "password": "hush"}
        irc = {
            "platform": "irc",
            "host": "127.0.0.1",
            "port": ircd.port,
            "tls": False,
            "nick": "reverie",
            "sasl": sasl,
        }
        made = settings(tmp_path, channels={"irc.test": {**irc, "rooms": ["#lobby"]}})
        task = asyncio.create_task(app.run(made, stop, clock=clock))

        async def until(true: Callable[[], bool], step_s: float) -> None:
            while not true():
                assert not task.done(), caplog.text
                clock.advance(step_s)
                await asyncio.sleep(0.001)

        await until(lambda: "irc.test is refused: " in caplog.text, 0)
        is_well, findings = await judge_gateway(
            made.store.path, [ChannelName("irc.test")], clock.now()
        )
        assert not is_well
        assert "correct sasl.account or sasl.password" in "\n".join(findings)
        await until(lambda: caplog.text.count("irc.test is refused: ") == 2, 1)
        options.sasl_fails = ""
        await until(lambda: bool(ircd.rooms.get("#lobby")), 1)
        told = [line for line in caplog.messages if "irc.test is refused: " in line]
        assert [re.findall("next attempt in [0-9]+ s", line) for line in told] == [
            ["next attempt in 60 s"],
            ["next attempt in 120 s"],
        ]
        assert all("correct sasl.account or sasl.password" in line for line in told)
        assert len(ircd.clients) == 3
        stop.set()
        await task


def test_a_platform_without_an_adapter_is_named_before_anything_starts(tmp_path: Path) -> None:
    channels = {
        "keys": {"platform": "console"},
        "irc.x": {"platform": "irc", "host": "127.0.0.1", "nick": "r"},
    }

    async def story() -> None:
        with pytest.raises(ChannelUnavailable, match=r"channels\.keys: .*console"):
            await app.run(settings(tmp_path, channels=channels), asyncio.Event())

    asyncio.run(story())
    assert not (tmp_path / "reverie.db").exists()


def test_a_model_that_cannot_start_is_said_and_people_still_come_online(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        tried = asyncio.Event()

        class Absent(ScriptedModel):
            async def start(self) -> None:
                tried.set()
                raise ModelUnusable("not installed")

        async with running(tmp_path, Absent(clock=SystemClock())) as gateway:
            await gateway.ask("hello", sender="ann")
            await tried.wait()  # it is started a moment after the channels

    asyncio.run(story())
    assert "not installed" in caplog.text


async def test_a_bug_in_a_turn_ends_that_turn_only(tmp_path: Path) -> None:
    class Broken(ScriptedModel):
        async def stream(self, request: ModelRequest):  # type: ignore[no-untyped-def]  # noqa: ANN202 - breaks before it yields
            if not self.requests:
                self.requests.append(request)
                raise KeyError("a bug")
            async for chunk in super().stream(request):
                yield chunk

    async with running(tmp_path, Broken(clock=SystemClock())) as gateway:
        await gateway.ask("hello", sender="ann")
        await gateway.ask("again", sender="ann")
    failed, replied = await gateway.turns()
    assert (failed.outcome, failed.reason, replied.outcome) == (
        "failed",
        "internal error: KeyError",
        "replied",
    )
    assert failed.heard == "(1 earlier lines are not shown)"
    (read,) = gateway.scripted.requests[1].conversation  # what we said of the bug is not in it
    assert read.role == "user"
    assert [failed.heard, replied.heard] == [
        part.text for part in read.parts if isinstance(part, TextPart)
    ]


async def test_a_model_that_breaks_at_the_end_does_not_hold_the_store(tmp_path: Path) -> None:
    class Clinging(ScriptedModel):
        async def aclose(self) -> None:
            raise OSError("still here")

    stop = asyncio.Event()
    stop.set()
    console = ConsoleChannel(CONSOLE, nothing)
    with pytest.raises(OSError, match="still here"):
        await app.run(
            settings(tmp_path),
            stop,
            channels={CONSOLE: console},
            model=Clinging(clock=SystemClock()),
        )
    async with await Store.open(tmp_path / "reverie.db", SystemClock()):
        pass


def test_a_model_is_let_go_when_the_store_cannot_be_opened(tmp_path: Path) -> None:
    closed = []

    class Noted(ScriptedModel):
        async def aclose(self) -> None:
            closed.append(self)

    async def story() -> None:
        async with await Store.open(tmp_path / "reverie.db", SystemClock()):
            console = ConsoleChannel(CONSOLE, nothing)
            with pytest.raises(StoreInUse):
                await app.run(
                    settings(tmp_path),
                    asyncio.Event(),
                    channels={CONSOLE: console},
                    model=Noted(clock=SystemClock()),
                )

    asyncio.run(story())
    assert len(closed) == 1


async def test_a_state_of_another_version_does_not_stop_the_start(tmp_path: Path) -> None:
    async with await Store.open(tmp_path / "reverie.db", SystemClock()) as store:
        await store.append(
            [
                NewEntry(
                    fact=DmnStateSaved(state='{"mode":"levitating"}', agent="reverie"),
                    at=datetime.now(UTC),
                )
            ]
        )
    async with running(tmp_path) as gateway:
        await gateway.ask("hello", sender="ann")


async def test_health_of_a_running_a_stopped_a_killed_and_a_hung_gateway(tmp_path: Path) -> None:
    store = tmp_path / "reverie.db"

    async def judge(*channels: str) -> tuple[bool, list[str]]:
        names = [ChannelName(name) for name in channels]
        return await judge_gateway(store, names, datetime.now(UTC))

    assert not (await judge(CONSOLE))[0]
    async with running(tmp_path) as gateway:
        await gateway.say("hello", sender="ann")
        is_well, (first, second) = await judge(CONSOLE)
        assert (is_well, first, second[:9]) == (True, "console is up", "the store")
        is_well, (first, *_) = await judge(CONSOLE, "irc.x")
        assert (is_well, first) == (False, "irc.x has not connected yet")
    assert await judge(CONSOLE) == (False, [f"no gateway is running with the store {store}"])
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(socket_path(store)))
        killed = f"no gateway is running with the store {store}: the last one was killed or crashed"
        assert await judge(CONSOLE) == (False, [killed])
        left.listen()
        hung = f"the gateway on {socket_path(store)} did not answer in 5 s: {HUNG_REMEDY}"
        assert await judge(CONSOLE) == (False, [hung])


def command(*args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli.main", *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


async def test_the_command_serves_irc_and_ends_on_sigterm(tmp_path: Path) -> None:
    async with Ircd() as ircd:
        (tmp_path / "reverie.yaml").write_text(CONFIG.format(port=ircd.port))
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
        await ircd.say("#lobby", "reverie: hi there", by="alice!a@host")
        reply = await ircd.received(r"(?:@\S+ )?PRIVMSG #lobby :(.*)")
        assert "hi there" in reply[1]
        health_now = await asyncio.to_thread(command, "health", "--config", tmp_path, cwd=tmp_path)
        assert (health_now.returncode, health_now.stdout.splitlines()[0]) == (
            0,
            "irc.test is up",
        )
        second = await asyncio.to_thread(command, "run", "--config", tmp_path, cwd=tmp_path)
        assert second.returncode == 1
        assert f"in use by process {process.pid}" in second.stderr
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(120):
            _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        assert any(line.startswith("QUIT") for line in ircd.lines)


def test_the_command_tells_what_is_wrong_with_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG.format(port="many").replace("nick", "nik"))
    for name in ("run", "check-config"):
        done = command(name, "--config", tmp_path, cwd=tmp_path)
        assert done.returncode == 2
        assert "channels.irc.test.port" in done.stderr
        assert "channels.irc.test.nik" in done.stderr
        assert "a.yaml:3" in done.stderr


def test_good_configuration_and_version(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG.format(port=6667))
    told = command("check-config", "--config", tmp_path, cwd=tmp_path)
    assert told.returncode == 0
    assert "one person: $1 a day" in told.stdout
    assert command("--version", cwd=tmp_path).stdout.startswith("reverie ")
    assert command("dance", cwd=tmp_path).returncode == 2


def test_a_bad_price_table_is_explained_before_the_start_and_at_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG.format(port=6667))
    (tmp_path / "prices.yaml").write_text("models: 3\n")
    for name in ("check-config", "run"):
        done = command(name, "--config", tmp_path, cwd=tmp_path)
        assert done.returncode == 2
        assert (
            f"{tmp_path / 'prices.yaml'}: models: Input should be a valid tuple; default: Field "
            "required"
        ) in done.stderr


async def test_the_store_in_use_is_named(tmp_path: Path) -> None:
    async with running(tmp_path, Script()) as gateway:
        await gateway.say("hello", sender="ann")
        with pytest.raises(StoreInUse, match=f"in use by process {os.getpid()}"):
            await app.run(settings(tmp_path), asyncio.Event(), channels={CONSOLE: gateway.console})
