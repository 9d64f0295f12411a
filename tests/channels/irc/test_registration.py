"""Logging in: with and without CAP, SASL, passwords and nicks that are taken."""

import asyncio
import threading
from typing import Any

import pytest
from irc.server import IRCClient, IRCServer

from channels.base import Denied
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged
from tests.channels.irc.channel_kit import part, running
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import CAPS, Options

SASL = {"mechanism": "plain", "account": "reverie", "password": "hush"}


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(cap_lines=4),
        Options(caps=None),
        Options(caps=""),
        Options(caps="multi-prefix"),
        Options(caps=CAPS + " sts=duration=300 unknown/thing=1"),
        Options(nak=frozenset({"batch", "setname"})),
        Options(isupport=()),
        Options(password="letmein"),
        Options(pong_token=False),
    ],
)
@story
async def test_comes_up_joins_and_talks(options: Options) -> None:
    changes: dict[str, Any] = {"password": "letmein"} if options.password else {}
    async with Ircd(options) as ircd, running(ircd, **changes) as run:
        bot = await ircd.joined("reverie", "#room")
        await run.up()
        await run.channel.send(part("hello"))
        assert "PRIVMSG #room :hello" in bot.lines
        assert not any("sts" in line for line in bot.lines)
        assert bot.caps == (set() if options.caps is None else set(CAPS.split()) & _offered(options))


def _offered(options: Options) -> set[str]:
    return {name.partition("=")[0] for name in (options.caps or "").split()} - options.nak


@story
async def test_works_on_the_server_inside_jaraco_irc() -> None:
    server = IRCServer(("127.0.0.1", 0), IRCClient)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    async with running(server.server_address[1]) as run:
        await run.up()
        await run.channel.send(part("hello"))
    await asyncio.to_thread(server.shutdown)
    server.server_close()


@story
async def test_logs_in_with_sasl() -> None:
    options = Options(caps=CAPS + " sasl=PLAIN,EXTERNAL", sasl={"reverie": "hush"})
    async with Ircd(options) as ircd, running(ircd, sasl=SASL) as run:
        await run.up()
        assert ircd.clients[0].account == "reverie"


@pytest.mark.parametrize(
    ("options", "changes", "says"),
    [
        (Options(caps=CAPS + " sasl", sasl={"reverie": "other"}), {"sasl": SASL}, "SASL"),
        (Options(caps=CAPS + " sasl=EXTERNAL"), {"sasl": SASL}, "does not offer SASL PLAIN"),
        (Options(caps=CAPS + " sasl", nak=frozenset({"sasl"})), {"sasl": SASL}, "refused the sasl"),
        (Options(), {"sasl": SASL}, "does not offer"),
        (Options(caps=None), {"sasl": SASL}, "without the SASL login"),
        (Options(password="x"), {}, "password"),
        (Options(), {"tls": {"ca_file": "/nowhere.pem"}}, "TLS files"),
    ],
)
@story
async def test_refused_credentials_end_the_channel(
    options: Options, changes: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with Ircd(options) as ircd, running(ircd, **changes) as run:
        with pytest.raises(Denied, match=says):
            await run.task
        assert True not in run.links
        assert not any(line.startswith("JOIN") for line in ircd.lines)
        assert "hush" not in caplog.text
        assert "AHJldmVya" not in caplog.text


@story
async def test_a_refused_room_is_logged_and_does_not_keep_us_down(caplog: pytest.LogCaptureFixture) -> None:
    options = Options(refused={"#secret": "473"})
    async with Ircd(options) as ircd, running(ircd, rooms=["#secret", "#room"]) as run:
        await run.up()
        await ircd.joined("reverie", "#room")
        assert "cannot join #secret" in caplog.text


@story
async def test_a_taken_nick_is_replaced_and_regained() -> None:
    clock = ManualClock()
    options = Options(caps="multi-prefix", taken={"reverie", "reverie_"})  # its clock stands still while ours goes on
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        bot = await ircd.joined("reverie_2", "#room")
        await run.up()
        await ircd.say("#room", "reverie_2: hi")
        assert (await run.message()).kind == "mention"
        ircd.options.taken.clear()
        clock.advance(61)
        await ircd.until(lambda: bot.nick == "reverie")
        await ircd.say("#room", "reverie: hi")
        assert (await run.message(2)).kind == "mention"


@pytest.mark.parametrize("freed", [":reverie!x@y QUIT :bye", ":reverie!x@y NICK other", ":reverie!x@y QUIT"])
@story
async def test_the_nick_is_regained_as_soon_as_its_holder_leaves(freed: str) -> None:
    async with Ircd(Options(taken={"reverie"})) as ircd, running(ircd, ManualClock()) as run:
        bot = await ircd.joined("reverie_", "#room")
        await run.up()
        ircd.options.taken.clear()
        bot.send(freed)
        await ircd.until(lambda: bot.nick == "reverie")


@story
async def test_capabilities_may_come_and_go() -> None:
    async with Ircd(Options(caps="multi-prefix")) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        ircd.options.caps = CAPS
        bot.send(":irc.test CAP reverie NEW :server-time account-tag=x unknown")
        await ircd.received(r"CAP REQ :account-tag server-time$")
        bot.send(":irc.test CAP reverie DEL :multi-prefix")
        await ircd.say("#room", "hi", account="alice")
        assert (await run.message()).sender.verified
        assert [event.up for event in run.seen if isinstance(event, ConnectionChanged)] == [True]
