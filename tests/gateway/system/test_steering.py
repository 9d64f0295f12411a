"""A running gateway, steered from outside, and what its operator then sees."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from agent.models.scripted import Script
from gateway.core.control_messages import CommandRequest
from gateway.core.control_socket import send_control_request, socket_path
from gateway.core.facts import DmnDirective
from gateway.store import Store
from gateway.stream.trace import EventOutcome
from tests.gateway.test_app import CONFIG, command
from tests.kits.gateway import Running, running
from tests.kits.outcomes import compute_outcomes
from tests.servers.ircd import Ircd


async def told(gateway: Running, what: str, agent: str = "") -> Sequence[str]:
    order = CommandRequest(words=("dmn", what), by="a test", agent=agent)
    return [line for line in (await send_control_request(socket_path(gateway.path), order)).lines if line != "```"]


def test_orders_are_carried_out_recorded_and_hold_over_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, Script()) as gateway:
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.screen.until(1)
            assert (await told(gateway, "status"))[0].startswith("reverie is ")
            assert await told(gateway, "off", "eve") == ["there is no agent eve; the agents are reverie"]
            assert await told(gateway, "off") == ["reverie is off."]
            assert (await told(gateway, "debug"))[0] == "reverie is off"
            await gateway.console.receive_message("still there?", sender="ann")  # a person is answered all the same
            await gateway.screen.until(2)
            assert (await told(gateway, "status"))[0].startswith("reverie is off; it checks again in ")
        assert not socket_path(gateway.path).exists()
        (directed,) = await gateway.log("directed")
        assert directed == DmnDirective(agent="reverie", what="off", by="a test")
        async with running(tmp_path, Script()) as again:
            await again.console.receive_message("and now?", sender="ann")
            await again.screen.until(1)
            assert (await told(again, "status"))[0].startswith("reverie is off")
            assert await told(again, "wake") == ["reverie is foraging."]
        async with await Store.open_readonly(gateway.path) as reader:
            found = compute_outcomes(await reader.entries(limit=10_000))
            messages = [one.seq for one in await reader.entries(kinds=["direct"])]
        assert [found[seq] for seq in messages] == [EventOutcome.ANSWERED] * 3

    asyncio.run(story())


def test_what_happens_is_scraped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def story() -> str:
        async with running(tmp_path, Script()) as gateway:
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.screen.until(1)
            await told(gateway, "quiet")
            port = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", caplog.text)
            assert port
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(f"http://127.0.0.1:{port[1]}/metrics")).text

    text = asyncio.run(story())
    assert 'reverie_turns_total{agent="reverie",cause="addressed",outcome="replied"} 1.0\n' in text
    assert 'reverie_notifications_total{channel="console",fate="due",kind="direct"} 1.0\n' in text
    assert 'reverie_dmn_quiet{agent="reverie"} 1.0\n' in text
    assert 'reverie_dmn_autonomous_turns_today{agent="reverie"} 0.0\n' in text


def test_nothing_that_a_client_says_stops_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, Script()) as gateway:
            while not (await asyncio.to_thread(socket_path(gateway.path).exists)):
                await asyncio.sleep(0.01)
            for line in (
                b"{",
                b"\xff" * 70_000,
                json.dumps({"words": ["dmn", "off"], "by": "x", "agent": 7}).encode(),
                b"",
            ):
                _, writer = await asyncio.open_unix_connection(socket_path(gateway.path))
                writer.write(line + b"\n")
                writer.close()
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.screen.until(1)
            assert (await told(gateway, "status"))[0].startswith("reverie is ")

    asyncio.run(story())


@pytest.mark.system
def test_the_command_steers_the_process_and_its_successor_after_a_kill(tmp_path: Path) -> None:
    socket = tmp_path / "data" / "reverie.db.sock"

    async def dmn(*words: str) -> list[str]:
        done = await asyncio.to_thread(command, "dmn", *words, "--config", tmp_path, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    async def story() -> None:
        async with Ircd() as ircd:
            (tmp_path / "reverie.yaml").write_text(CONFIG.format(port=ircd.port))
            line = [sys.executable, "-m", "gateway.cli.main", "run", "--config", str(tmp_path)]
            for mode in ("off", "paused"):
                process = await asyncio.create_subprocess_exec(*line, stderr=asyncio.subprocess.PIPE)
                await ircd.joined("reverie", "#lobby")
                expected = "off; it checks again in" if mode == "paused" else "resting; it checks again in"
                assert expected in (await dmn("status"))[0]
                assert await dmn("off" if mode == "off" else "pause") == [f"reverie is {mode}."]
                process.send_signal(signal.SIGKILL if mode == "off" else signal.SIGTERM)
                await process.communicate()
                assert socket.exists() is (mode == "off")
                assert f"reverie is {mode}" in (await dmn("status"))[0]

    asyncio.run(story())
