"""Servers that do not keep to what they agreed to, and what they say before they hang up."""

import asyncio
import contextlib
import socket

import pytest

from channels.base import CanType, RateLimited
from channels.irc.compose import HostmaskTracker
from channels.irc.outgoing import SendWindow
from gateway.core.clock import ManualClock
from gateway.core.events import Address, ConnectionChanged, RoomId
from tests.channels.irc.channel_kit import NAME, Running, features, never_answered, part, running, settled
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import CAPS, MODERN, Options

NO_ECHO = CAPS.replace("echo-message ", "")
ROOM = Address(channel=NAME, room=RoomId("#room"))


def _reasons(run: Running) -> list[str]:
    return [event.reason or "" for event in run.seen if isinstance(event, ConnectionChanged) and not event.up]


@story
async def test_a_server_that_forgets_labels_is_asked_by_ping_from_then_on() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd, clock) as run:
        await run.up()
        await never_answered(ircd, run, clock)
        await run.channel.send(part("b"))
        assert ircd.lines[-2:] == ["PRIVMSG #room :b", "PING reverie-1"]


@pytest.mark.parametrize("answer", ["421 reverie TAGMSG :Unknown command", "FAIL TAGMSG UNKNOWN_COMMAND :no"])
@story
async def test_typing_is_not_shown_again_to_a_server_that_does_not_know_it(answer: str) -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        assert isinstance(run.channel, CanType)
        await run.channel.typing(ROOM, active=True)
        await ircd.received("@.typing=active TAGMSG #room")
        ircd.clients[0].send(f":irc.test {answer}" if answer[0] == "4" else answer)
        await settled(ircd.clients[0], "told")
        clock.advance(30)
        await run.channel.typing(ROOM, active=True)
        await run.channel.send(part("hi"))
        assert sum("TAGMSG" in line for line in ircd.lines) == 1


@pytest.mark.parametrize("stray", ["411 reverie :No recipient given", "417 reverie :Input line was too long"])
@story
async def test_a_refusal_that_comes_while_nothing_waits_is_about_nothing_of_ours(stray: str) -> None:
    async with Ircd(Options(caps=NO_ECHO)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].send(f":irc.test {stray}")
        await settled(ircd.clients[0], "told")
        await run.channel.send(part("hi"))


@pytest.mark.parametrize("caps", [NO_ECHO, MODERN])
@pytest.mark.parametrize(
    ("said", "wait_s"),
    [("Target change too fast. Please wait 104 seconds.", 104), ("Message target change too fast", 120)],
)
@story
async def test_too_many_targets_in_too_short_a_time_is_a_matter_of_waiting(caps: str, said: str, wait_s: int) -> None:
    options = Options(caps=caps, muted={"#room": "439"}, muted_reason=said)
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        with pytest.raises(RateLimited, match="too fast") as raised:
            await run.channel.send(part("hi"))
        assert raised.value.retry_after_s == wait_s
        options.muted = {}
        await run.channel.send(part("hi"))


def test_a_window_without_lines_has_nothing_to_refuse() -> None:
    window: SendWindow = SendWindow()
    window.record_refusal(set(), "too long (417)", anybody=True)
    window.add_line("a", "#r", "one")
    assert [verdict.fate for verdict in window.verdicts().values()] == ["taken"]


@story
async def test_the_last_words_of_the_server_are_told() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        ircd.clients[0].send("ERROR :Closing link: \x02Excess\x02 Flood")
        ircd.clients[0].drop_after_flush()
        await run.until(lambda: run.links == [True, False])
        assert _reasons(run) == ["the server closed the connection: Closing link: Excess Flood"]


@pytest.mark.parametrize(("token", "host_bytes"), [("HOSTLEN=100", 100), ("HOSTLEN=20", 63), ("HOSTLEN=x", 63)])
def test_an_unknown_host_counts_as_long_as_the_server_allows(token: str, host_bytes: int) -> None:
    isupport = features(token)
    frame = len(":reverie!~") + 10 + len("@") + host_bytes + len(" PRIVMSG #room :\r\n")
    assert HostmaskTracker().max_body_bytes("#room", len("reverie"), isupport) == 512 - frame
    isupport.load(["", "-HOSTLEN", ""])
    assert isupport.host_bytes == 63


async def _asks_and_does_not_read(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        for _number in range(40_000):
            writer.write(b"PING :" + b"x" * 480 + b"\r\n")
            await writer.drain()
    writer.transport.abort()


@story
async def test_a_server_that_asks_and_does_not_read_is_left() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # A reader with a small limit stops reading at once, and nobody reads from it.
    server = await asyncio.start_server(_asks_and_does_not_read, sock=listener, limit=1024)
    async with server, running(listener.getsockname()[1], ManualClock()) as run:
        await run.until(lambda: run.links == [False])
        assert _reasons(run) == ["the server does not read what we send"]


@story
async def test_a_server_that_hangs_up_instead_of_talking_tls_is_not_called_slow() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, running(port, ManualClock(), tls=True) as run:
        await run.until(lambda: run.links == [False])
        assert _reasons(run) == [f"cannot connect to 127.0.0.1:{port}: the server hung up"]
