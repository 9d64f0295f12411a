"""Behind a bouncer: it is nobody to talk to, and while it has no network the link is down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from channels.base import Rejected, Unreachable
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged
from reverie.testing.servers.ircd import CAPS, Client, Ircd, Options
from reverie.testing.servers.ports import free_port
from tests.channels.irc.channel_kit import Running, config, part, running, settled
from tests.channels.irc.test_real_servers import Raw, served
from tests.servers.real_ircd import ZNC_LOGIN, inspircd, znc

ZNC = f"{CAPS} znc.in/batch znc.in/self-message znc.in/server-time-iso"
SOJU = f"{CAPS} soju.im/bouncer-networks soju.im/bouncer-networks-notify"
STATUS = ":*status!znc@znc.in PRIVMSG reverie :"
SERVICE = ":BouncerServ!BouncerServ@BouncerServ NOTICE reverie :"


@contextlib.asynccontextmanager
async def behind(
    caps: str, clock: ManualClock | None = None
) -> AsyncIterator[tuple[Running, Client]]:
    isupport = ("NETWORK=Fakenet", "MONITOR=100", "BOUNCER_NETID=42")
    async with Ircd(Options(caps=caps, isupport=isupport)) as ircd, running(ircd, clock) as run:
        await run.up()
        yield run, ircd.clients[0]


@pytest.mark.parametrize(
    "line",
    [
        f"{STATUS}Hello, what can I do?",
        f"{STATUS}\x01VERSION\x01",
        ":*controlpanel!znc@znc.in PRIVMSG reverie :reverie: hi",
        ":&status!znc@znc.in PRIVMSG reverie :another prefix",
        ":*buffextras!znc@znc.in PRIVMSG #room :reverie: somebody joined",
        f"{SERVICE}connected to Fakenet",
        ":BouncerServ!BouncerServ@BouncerServ PRIVMSG reverie :hi",
        ":-bip!bip@b.i.p PRIVMSG #room :20:02 -!- reverie!rev@test.host has joined #room",
    ],
)
async def test_a_bouncer_is_nobody(line: str) -> None:
    async with behind(ZNC) as (run, bot):
        before = len(bot.lines)
        bot.send(line)
        await settled(bot, "read")
        assert (run.messages, run.links) == ([], [True])
        assert bot.lines[before:] == ["PONG :read"]


async def test_what_bip_plays_back_is_context_and_says_nothing_of_who_is_there_now() -> None:
    """Lines of bip 0.9.3."""
    async with Ircd(Options(caps=None)) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        for line in (
            ":reverie!bip@bip.bip.bip JOIN #room",
            ":b.i.p 353 reverie = #room :reverie @kai",
            ":b.i.p 366 reverie #room :End of /NAMES list.",
            ":-bip!bip@b.i.p PRIVMSG #room :20:02:12 -!- reverie!rev@test.host has joined #room",
            ":kai!bip@b.i.p PRIVMSG #room :20:02:12> reverie: old",
            ":kai!kai@home PRIVMSG #room :reverie: new",
        ):
            bot.send(line)
        await run.message(2)
        old, new = run.messages
        assert (old.text, old.kind, old.history) == ("20:02:12> reverie: old", "room", True)
        assert (new.kind, new.sender.id, new.history) == ("mention", "mask:kai!kai@home", False)
        ircd.people["kai"] = "kai!kai@home", ""
        sending = asyncio.create_task(run.channel.send(part("psst", room="kai!kai@home")))
        await ircd.received("PRIVMSG kai :psst")
        await sending
        assert not any(line.startswith("PART") for line in ircd.lines)


async def test_a_stranger_with_the_host_of_bip_does_not_make_a_bouncer_of_the_connection() -> None:
    """Else their BouncerServ could have us leave the network, again and again."""
    async with Ircd(Options(caps=None)) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(":eve!bip@b.i.p PRIVMSG reverie :hi")
        bot.send(f"{SERVICE}disconnected from Fakenet")
        await settled(bot, "read")
        assert run.links == [True]


@pytest.mark.parametrize(
    "room", ["*status", "*status!znc@znc.in", "BouncerServ", "*x!account:owner"]
)
async def test_what_is_meant_for_a_bouncer_is_refused(room: str) -> None:
    async with behind(ZNC) as (run, bot):
        with pytest.raises(Rejected, match="the bouncer itself"):
            await run.channel.send(part("Jump", room=room))
        await settled(bot, "read")
        assert not [
            one for one in bot.lines if "Jump" in one or one.startswith(("WHOIS", "MONITOR"))
        ]


@pytest.mark.parametrize(
    ("caps", "line"),
    [
        (ZNC, f"{STATUS}Disconnected from IRC. Reconnecting..."),
        (ZNC, f"{STATUS}Disconnected from IRC (Ping timeout). Reconnecting..."),
        (ZNC, f"{STATUS}Your message to #room got lost, you are not connected to IRC!"),
        (ZNC, ":irc.real.test 001 reverie :Welcome to the network"),
        (SOJU, f"{SERVICE}disconnected from Fakenet: EOF"),
        (SOJU, ":soju BOUNCER NETWORK 42 state=disconnected"),
        (SOJU, ":soju BOUNCER NETWORK 42 name=Fakenet;state=connecting"),
    ],
)
async def test_while_the_network_is_away_the_link_is_down_and_posts_wait(
    caps: str, line: str
) -> None:
    clock = ManualClock()
    async with behind(caps, clock) as (run, bot):
        bot.send(line)
        await run.until(lambda: run.links == [True, False])
        with pytest.raises(Unreachable):
            await run.channel.send(part("hello"))
        await run.until_advancing(clock, lambda: run.links == [True, False, True])


@pytest.mark.parametrize(
    ("caps", "line"),
    [
        (CAPS, ":*status!u@h PRIVMSG reverie :Disconnected from IRC. Reconnecting..."),
        (CAPS, ":irc.real.test 001 reverie :Welcome to the network"),
        (ZNC, ":mallory!znc@znc.in PRIVMSG reverie :Disconnected from IRC. Reconnecting..."),
        (ZNC, ":mallory!m@h PRIVMSG #room :Disconnected from IRC. Reconnecting..."),
        (SOJU, ":soju BOUNCER NETWORK 43 state=disconnected"),
        (SOJU, ":soju BOUNCER NETWORK 42 state=connected"),
        (SOJU, ":soju BOUNCER NETWORK 42 error=x"),
    ],
)
async def test_nobody_else_takes_the_link_down(caps: str, line: str) -> None:
    async with behind(caps) as (run, bot):
        bot.send(line)
        await settled(bot, "read")
        assert run.links == [True]


async def test_a_bouncer_without_a_network_does_not_bring_the_link_up() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=ZNC, motd=False)) as ircd:
        ircd.faults.silent = True
        async with running(ircd, clock) as run:
            await ircd.received("USER ")
            bot = ircd.clients[0]
            bot.send(":irc.znc.in CAP reverie LS :znc.in/batch")
            bot.send(":irc.znc.in 001 reverie :Welcome to ZNC")
            await run.until_advancing(clock, lambda: run.links == [False])
            (link,) = [event for event in run.seen if isinstance(event, ConnectionChanged)]
            assert link.reason == "the bouncer has no connection to the network"


async def test_a_room_that_a_bouncer_is_in_for_others_is_not_left_and_not_heard() -> None:
    async with behind(ZNC) as (run, bot):
        for line in (":reverie!r@h JOIN #b", ":al!a@h JOIN #b", ":al!a@h PRIVMSG #b :reverie: hi"):
            bot.send(line)
        await settled(bot, "read")
        assert not [event for event in run.seen if not isinstance(event, ConnectionChanged)]
        assert not [line for line in bot.lines if line.startswith("PART")]
        assert run.channel.apply_config(config(bot.ircd.port, rooms=["#room", "#b"]))
        bot.send(":al!a@h PRIVMSG #b :reverie: hi again")
        assert (await run.message()).text == "reverie: hi again"


@pytest.mark.system
async def test_znc_that_loses_its_network_takes_the_link_down_and_up_again(tmp_path: Path) -> None:
    """What it says of itself is never answered, and the room that it is in for others is not
    left."""
    (server := tmp_path / "server").mkdir()
    upstream = free_port()
    with contextlib.ExitStack() as first:
        first.enter_context(served(partial(inspircd, port=upstream), server))
        with served(lambda directory: znc(directory, upstream, "#b"), tmp_path) as port:
            async with running(port, password=ZNC_LOGIN) as run:
                await run.up()
                alice = await Raw.joined(upstream)
                alice.say("PRIVMSG #room :reverie: one")
                assert (await run.message()).text == "reverie: one"
                await run.channel.send(part("answered"))
                assert (await alice.until(r":reverie\S* PRIVMSG #room :")).endswith(":answered")
                await alice.close()
                first.close()
                await run.until(lambda: run.links[-1] is False)
                with pytest.raises(Unreachable):
                    await run.channel.send(part("into nothing"))
                with served(partial(inspircd, port=upstream), server):
                    await run.until(lambda: run.links[-1] is True, 120)
                    alice = await Raw.joined(upstream)
                    alice.say("NAMES #b", "PRIVMSG #room :reverie: two")
                    assert "reverie" in await alice.until(r":\S+ 353 \S+ \S #b ")
                    await run.until(
                        lambda: any(message.text == "reverie: two" for message in run.messages)
                    )
                    assert {message.sender.name for message in run.messages} == {"alice"}
                    await run.channel.send(part("answered again"))
                    assert (await alice.until(r":reverie\S* PRIVMSG #room :")).endswith(
                        ":answered again"
                    )
                    await alice.close()
