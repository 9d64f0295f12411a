"""A running gateway, steered from outside, and what its operator then sees."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from agent.models.scripted import Script
from gateway.core.control_messages import CommandRequest
from gateway.core.control_socket import send_control_request, socket_path
from gateway.core.facts import DmnDirective
from gateway.store import Store
from gateway.stream.trace import EventOutcome
from tests.kits.gateway import Running, running
from tests.kits.outcomes import compute_outcomes


async def told(gateway: Running, what: str, agent: str = "") -> Sequence[str]:
    order = CommandRequest(words=("dmn", what), by="a test", agent=agent)
    return [
        line
        for line in (await send_control_request(socket_path(gateway.path), order)).lines
        if line != "```"
    ]


def test_orders_are_carried_out_recorded_and_hold_over_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, Script()) as gateway:
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.screen.until(1)
            assert (await told(gateway, "status"))[0].startswith("reverie is ")
            assert await told(gateway, "off", "eve") == [
                "there is no agent eve; the agents are reverie"
            ]
            assert await told(gateway, "off") == ["reverie is off."]
            await gateway.console.receive_message(
                "still there?", sender="ann"
            )  # a person is answered all the same
            await gateway.screen.until(2)
            assert (await told(gateway, "status"))[0].startswith(
                "reverie is off; it checks again in "
            )
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
