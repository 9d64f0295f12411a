"""TLS, against a real TLS server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from channels.base import Denied
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged
from tests.channels.irc.channel_kit import Running, part, running
from tests.kits.channels import story
from tests.servers.ircd import LOCALHOST, WRONG, Ircd, Options, server_context


def _reasons(run: Running) -> str:
    return " ".join(event.reason or "" for event in run.seen if isinstance(event, ConnectionChanged))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@story
async def test_a_certificate_of_a_known_root_is_accepted(host: str) -> None:
    async with Ircd(tls=server_context()) as ircd, running(ircd, host=host, tls={"ca_file": str(LOCALHOST)}) as run:
        await run.up()
        await run.channel.send(part("hello"))
        await ircd.say("#room", "reverie: hi")
        assert (await run.message()).kind == "mention"


@pytest.mark.parametrize(
    ("pem", "tls"),
    [
        (LOCALHOST, True),
        (LOCALHOST, {"verify": True}),
        (LOCALHOST, {"ca_file": str(WRONG)}),
        (WRONG, {"ca_file": str(WRONG)}),  # the root is known, the name is another's
    ],
)
@story
async def test_any_other_certificate_is_refused_before_a_word_is_said(pem: Path, tls: Any) -> None:
    clock = ManualClock()
    async with Ircd(tls=server_context(pem)) as ircd, running(ircd, clock, tls=tls, password="hush") as run:
        await run.until(lambda: run.links == [False])
        assert "certificate verify failed" in _reasons(run)
        assert not ircd.lines
        assert not run.task.done()


@pytest.mark.parametrize("pem", [LOCALHOST, WRONG])
@story
async def test_verification_can_be_switched_off(pem: Path) -> None:
    async with Ircd(tls=server_context(pem)) as ircd, running(ircd, tls={"verify": False}) as run:
        await run.up()


@story
async def test_a_port_without_tls_fails_at_once_and_is_tried_again() -> None:
    clock = ManualClock()
    options = Options(greeting=b":irc.test NOTICE * :*** Looking up your hostname\r\n")
    async with Ircd(options) as ircd, running(ircd, clock, tls={"verify": False}) as run:
        await run.until(lambda: run.links == [False])
        assert "cannot connect" in _reasons(run)
        assert not any("NICK" in line for line in ircd.lines)
        clock.advance(1.1)
        await ircd.until(lambda: len(ircd.clients) == 2)


@story
async def test_a_silent_port_without_tls_is_given_up_after_the_connect_timeout() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, tls={"verify": False}) as run:
        ircd.faults.silent = True
        await ircd.until(lambda: len(ircd.clients) == 1)
        clock.advance(61)
        await run.until(lambda: run.links == [False])
        assert "timeout" in _reasons(run)


@story
async def test_tls_on_a_port_that_we_use_without_fails_and_is_tried_again() -> None:
    clock = ManualClock()
    async with Ircd(tls=server_context()) as ircd, running(ircd, clock, tls=False) as run:
        await run.until(lambda: run.links == [False])
        assert not run.task.done()


@story
async def test_a_cut_over_tls_is_told_and_made_again() -> None:
    clock = ManualClock()
    tls = {"ca_file": str(LOCALHOST)}
    async with Ircd(tls=server_context()) as ircd, running(ircd, clock, tls=tls) as run:
        await run.up()
        ircd.clients[0].drop()
        await run.until(lambda: run.links == [True, False])
        clock.advance(1.1)
        await run.up(2)


@pytest.mark.parametrize("tls", [{"ca_file": "/nowhere.pem"}, {"cert_file": "/nowhere.pem"}])
@story
async def test_a_missing_file_is_the_operators_to_mend(tls: dict[str, str]) -> None:
    async with Ircd(tls=server_context()) as ircd, running(ircd, tls=tls) as run:
        with pytest.raises(Denied, match="TLS files"):
            await run.task
        await asyncio.sleep(0)
        assert not ircd.clients
