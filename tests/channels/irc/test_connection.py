"""The connection: lost, silent, hostile, and ended by us."""

import asyncio
import random

import pytest

from channels.base import Uncertain
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged
from tests.channels.irc.channel_kit import part, running
from tests.kits.channels import story
from tests.servers.ircd import Ircd


@story
async def test_a_lost_connection_is_told_and_made_again() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        ircd.clients[0].drop()
        await run.until(lambda: run.links == [True, False])
        assert len(ircd.clients) == 1, "reconnects only after the back-off"
        clock.advance(1.1)
        await run.up(2)
        await ircd.say("#room", "back")
        assert (await run.message()).text == "back"


@story
async def test_silence_is_noticed() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        ircd.faults.silent = True
        clock.advance(61)
        await ircd.received("PING")
        clock.advance(31)
        await run.until(lambda: run.links == [True, False])
        assert [event.reason for event in run.seen if isinstance(event, ConnectionChanged)][
            1
        ] == "nothing heard for 90 s"


@story
async def test_cancel_says_goodbye_and_leaves_nothing() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        ircd.faults.hold_pongs = True
        sending = asyncio.create_task(run.channel.send(part("x")))
        await ircd.received("PRIVMSG")
        others = asyncio.all_tasks() - {run.task}
        run.task.cancel()
        done, _ = await asyncio.wait({run.task}, timeout=1)
        assert done
        await ircd.received("QUIT :goodbye")
        with pytest.raises(Uncertain):
            await sending
        assert asyncio.all_tasks() <= others


@story
async def test_a_hostile_stream_does_not_end_or_use_the_connection() -> None:
    chance = random.Random(1)
    nasty = [
        b":a!b@c PRIVMSG #room :caf\xe9",
        b":a!b@c PRIVMSG #room :x\rQUIT :pwned",
        b":a!b@c PRIVMSG #room :x\x00QUIT",
        b":a!b@c PRIVMSG",
        b":a!b@c PRIVMSG #room",
        b":a!b@c QUIT",
        b" ",
        b"",
        b":",
        b"@",
        b":irc 005 reverie PREFIX= CASEMAPPING=x LINELEN=-1 :x",
        b"@" + b"k=v;" * 2047 + b" :a!b@c PRIVMSG #room :tags",
        b":a!b@c PRIVMSG reverie :\x01VERSION\x01",
        b":a!b@c PRIVMSG reverie :\x01PING x\rQUIT :pwned\x01",
        b":a\rQUIT!b@c PRIVMSG reverie :\x01PING\x01",
        b"CAP",
        b"CAP * ACK",
        b"AUTHENTICATE +",
        b"BATCH",
        b"NICK",
        b":reverie NICK",
        b"KICK #room",
        b"396",
        b"353",
        b"PONG",
        b"433",
        b":a!b@c MODE",
        b":a!b@c NICK :",
    ]
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        for _ in range(10_000):
            junk = chance.randbytes(chance.randrange(80)).replace(b"\n", b"")
            # Random bytes must not be one of the few real orders by accident.
            bot.raw((chance.choice(nasty) if chance.random() < 0.8 else b":x " + junk) + b"\r\n")
        bot.raw(b"x" * 100_000 + b"\r\n")
        await ircd.say("#room", "reverie: still there?")
        await run.until(lambda: any(message.text == "reverie: still there?" for message in run.messages))
        assert run.links == [True]
        assert len(ircd.clients) == 1
        assert not any(line.startswith("QUIT") for line in ircd.lines)
        assert {line.split(" ")[0] for line in bot.lines} <= {"CAP", "NICK", "USER", "JOIN", "MODE", "PONG", "NOTICE"}
        await run.channel.send(part("yes"))
