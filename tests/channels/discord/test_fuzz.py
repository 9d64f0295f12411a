"""A million gateway payloads that nobody should send: nothing ends, nothing is lost after them.

A part goes over the WebSocket, compressed, as Discord sends; the rest is handed to the socket's
reader as text, so that the million fits into the time that a test may take. Run it alone with `-s`
to see the figures.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from channels.discord import gateway
from channels.discord.gateway import GatewaySocket, open_socket
from channels.discord.ids import snowflake_at
from channels.discord.inflow import DiscordProgress
from tests.channels.discord.faults_kit import Hurried, Running, hello, running
from tests.servers.discord_api import DiscordApi, Mutants
from tests.servers.discord_api_rest import Options

LIMIT_S = 240
"""On a machine that does nothing else it takes about half of that."""


class Counted(logging.Filter):
    """How often which line would have been logged, by its template."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        self.lines[str(record.msg)] += 1
        if record.exc_info and record.exc_info[1]:
            self.errors[repr(record.exc_info[1])[:80]] += 1
        return False


@pytest.fixture
def log() -> Iterator[Counted]:
    """Lets no line through: pytest would keep each of tens of thousands."""
    logger, counted = logging.getLogger("reverie.discord"), Counted()
    logger.addFilter(counted)
    yield counted
    logger.removeFilter(counted)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[GatewaySocket]:
    """Those that the adapter opens."""
    opened: list[GatewaySocket] = []
    connect = open_socket

    async def noted(*args: object, **more: object) -> GatewaySocket:
        opened.append(await connect(*args, **more))  # type: ignore[arg-type] # whatever it takes
        return opened[-1]

    monkeypatch.setattr(gateway, "open_socket", noted)
    return opened


def test_malformed_payloads_end_nothing(log: Counted, sockets: list[GatewaySocket]) -> None:
    asyncio.run(asyncio.wait_for(_story(log, sockets, wire=3_000, direct=3_000, seed=1), 60))


def test_an_id_from_the_future_does_not_hide_what_comes_after_it() -> None:
    now, progress = datetime.now(UTC), DiscordProgress(None, 3600)
    progress.begin_session(["1"], now)
    progress.record_message(str(2**63), now)
    again = DiscordProgress(progress.to_cursor(), 3600)
    again.begin_session(["1"], now)
    assert again.has_gap("1")
    assert again.history_after(now) <= snowflake_at(now)


@pytest.mark.soak
def test_a_million_malformed_payloads_end_nothing(
    log: Counted, sockets: list[GatewaySocket]
) -> None:
    asyncio.run(
        asyncio.wait_for(_story(log, sockets, wire=200_000, direct=800_000, seed=2), 4 * LIMIT_S)
    )


async def _story(
    log: Counted, sockets: list[GatewaySocket], *, wire: int, direct: int, seed: int
) -> None:
    async with DiscordApi(Options(heartbeat_s=30)) as api, running(api, clock=Hurried(1)) as it:
        await it.up()
        mutants, events = Mutants(api, seed), 0
        begun_s = time.monotonic()
        for number in range(0, wire, 1000):
            for _ in range(1000):
                api.raw(mutants.text())
            events += await _heard(api, it, f"over the wire {number}")
        wired_s = time.monotonic() - begun_s
        begun_s = time.monotonic()
        for number in range(0, direct, 500):
            for _ in range(500):
                with contextlib.suppress(Exception):  # whatever the library cannot read
                    await sockets[-1].received_message(mutants.text())
            events += await _heard(api, it, f"handed over {number}")
        handed_s = time.monotonic() - begun_s
        assert len(api.connections) == len(sockets) == 1
        assert [call.line for call in api.calls if call.status == 401] == []
        print(f"\n{wire} over the socket in {wired_s:.1f} s, {wire / wired_s:.0f}/s")
        print(
            f"{direct} to its reader in {handed_s:.1f} s, {direct / handed_s:.0f}/s; {events} "
            "events came of them"
        )
        print(
            f"log lines: {dict(log.lines.most_common(8))}; errors: "
            f"{dict(log.errors.most_common(8))}"
        )
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
        assert "before the restart" in it.texts
    await api.stop()


async def _heard(api: DiscordApi, it: Running, text: str) -> int:
    """Say it, wait until it arrives; how many other events arrived before it, which are
    forgotten."""
    hello(api, text)
    await it.until(lambda: text in it.texts)
    assert it.texts.count(text) == 1
    count = len(it.seen)
    if not text.endswith("restart"):
        it.seen.clear()
    return count
