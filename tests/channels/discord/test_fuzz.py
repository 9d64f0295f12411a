"""A million gateway payloads that nobody should send: nothing ends, nothing is lost after them.

A part goes over the WebSocket, compressed, as Discord sends; the rest is handed to the socket's
reader as text, so that the million fits into the time that a test may take.
"""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime

import pytest

from channels.discord import session
from channels.discord.ids import snowflake_at
from channels.discord.inflow import DiscordProgress
from channels.discord.session import GatewaySocket, open_socket
from reverie.testing.servers.discord_api import DiscordApi, Mutants
from reverie.testing.servers.discord_api_rest import Options
from tests.channels.discord.channel_kit import Running
from tests.channels.discord.faults_kit import Hurried, hello, running

LIMIT_S = 240
"""On a machine that does nothing else it takes about half of that."""


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no line through: pytest would keep each of tens of thousands."""
    monkeypatch.setattr(logging.getLogger("reverie.discord"), "disabled", True)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[GatewaySocket]:
    opened: list[GatewaySocket] = []
    connect = open_socket

    async def noted(*args: object, **more: object) -> GatewaySocket:
        opened.append(await connect(*args, **more))  # type: ignore[arg-type] # whatever it takes
        return opened[-1]

    monkeypatch.setattr(session, "open_socket", noted)
    return opened


def test_malformed_payloads_end_nothing(sockets: list[GatewaySocket]) -> None:
    asyncio.run(asyncio.wait_for(_story(sockets, wire=3_000, direct=3_000, seed=1), 60))


def test_an_id_from_the_future_does_not_hide_what_comes_after_it() -> None:
    now, progress = datetime.now(UTC), DiscordProgress(None, 3600)
    progress.begin_session(["1"], now)
    progress.record_message(str(2**63), now)
    again = DiscordProgress(progress.to_cursor(), 3600)
    again.begin_session(["1"], now)
    assert again.has_gap("1")
    assert again.history_after(now) <= snowflake_at(now)


@pytest.mark.soak
def test_a_million_malformed_payloads_end_nothing(sockets: list[GatewaySocket]) -> None:
    asyncio.run(
        asyncio.wait_for(_story(sockets, wire=200_000, direct=800_000, seed=2), 4 * LIMIT_S)
    )


async def _story(sockets: list[GatewaySocket], *, wire: int, direct: int, seed: int) -> None:
    async with DiscordApi(Options(heartbeat_s=30)) as api, running(api, clock=Hurried(1)) as it:
        await it.up()
        mutants = Mutants(api, seed)
        for number in range(0, wire, 1000):
            for _ in range(1000):
                api.raw(mutants.text())
            await _heard(api, it, f"over the wire {number}")
        for number in range(0, direct, 500):
            for _ in range(500):
                with contextlib.suppress(Exception):  # whatever the library cannot read
                    await sockets[-1].received_message(mutants.text())
            await _heard(api, it, f"handed over {number}")
        assert len(api.connections) == len(sockets) == 1
        assert [call.line for call in api.calls if call.status == 401] == []
        assert it.links == []
        # What they left behind must not cost what comes after: neither a session that is taken up
        # again nor a new one.
        api.cut()
        await _heard(api, it, "into the cut")
        api.forget()
        api.cut()
        await _heard(api, it, "into the gap")
    cursor = it.cursor
    hello(api, "before the restart")
    await api.start()
    async with running(api, cursor) as it:
        await _heard(api, it, "after the restart")
        assert "before the restart" in it.said
    await api.stop()


async def _heard(api: DiscordApi, it: Running, text: str) -> None:
    """Say it, wait until it arrives; forget what arrived before."""
    hello(api, text)
    await it.until(lambda: text in it.said)
    assert it.said.count(text) == 1
    if not text.endswith("restart"):
        it.seen.clear()
