"""Parts out: pace, receipts, refusals and cuts."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.base import BeforeSend, RecipientAway, Rejected, Uncertain, Unreachable
from channels.irc.channel import IrcChannel
from channels.text import clean_outgoing
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import Address, Post, PostKey, RoomId
from tests.channels.irc.channel_kit import NAME, Running, config, part, running, settled
from tests.kits.channels import story
from tests.kits.examples import examples
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import Options


@given(
    text=st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="*_`#[]<>\\~|&"), min_size=1
    )
)
@settings(max_examples=examples(60))
def test_every_relayed_line_fits_and_nothing_is_lost(text: str) -> None:
    # A word in front: marks alone (`---`) would be Markdown.
    text = clean_outgoing("w" + (text * 40).strip())
    channel = IrcChannel(NAME, config(6667, page_lines=0), SystemClock())
    bodies = channel.split(Post(key=PostKey("k"), to=Address(channel=NAME, room=RoomId("#room")), text=text))
    mask = "reverie!~" + "u" * 10 + "@" + "h" * 63
    assert all(len(f":{mask} PRIVMSG #room :{body}\r\n".encode()) <= 512 for body in bodies)
    assert "".join("".join(bodies).split()) == "".join(text.split())


@story
async def test_a_message_is_said_once_with_the_servers_id() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        receipt = await run.channel.send(part("hi\r\nQUIT :x"))
        assert len(receipt.ids) == 1
        await run.channel.send(part("note", style="notice"))
        said = [line for line in ircd.lines if line.startswith(("PRIVMSG", "NOTICE", "QUIT"))]
        assert said == ["PRIVMSG #room :hi QUIT :x", "NOTICE #room :note"]
        with pytest.raises(ValueError, match="text"):
            await run.channel.send(part(" "))


@story
async def test_pace_is_burst_then_rate() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 4, "per_s": 1}) as run:
        await run.up()
        clock.advance(5)
        sends = [asyncio.create_task(run.channel.send(part(str(number)))) for number in range(6)]
        paced = ("PRIVMSG", "PING")
        count = 4
        await ircd.received("PRIVMSG", times=4)
        for _ in range(5):
            ircd.clients[0].send(f"PING :{count}")
            await ircd.received(f"PONG :{count}")
            assert sum(line.startswith(paced) for line in ircd.lines) == count
            clock.advance(1.0)
            count += 1
            if count <= 8:
                await ircd.until(lambda n=count: sum(line.startswith(paced) for line in ircd.lines) == n)  # type: ignore[misc]
        await asyncio.gather(*sends)
        said = [line for line in ircd.lines if line.startswith("PRIVMSG")]
        assert said == [f"PRIVMSG #room :{number}" for number in range(6)]


@pytest.mark.parametrize(
    "options", [Options(muted={"#room": "404"}), Options(muted={"#room": "404"}, pong_token=False)]
)
@story
async def test_a_refusal_names_its_reason(options: Options) -> None:
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        with pytest.raises(Rejected, match="Cannot send"):
            await run.channel.send(part("x"))
        with pytest.raises(Rejected, match="No such nick"):
            await run.channel.send(part("x", room="nobody"))
        with pytest.raises(RecipientAway, match="nobody is not there as a@h; it waits"):
            await run.channel.send(part("x", room="nobody!a@h"))
        for room in ("a b", "#a,#b", ":x"):
            with pytest.raises(Rejected):
                await run.channel.send(part("x", room=room))


async def _sending(run: Running, ircd: Ircd, body: str = "x") -> "asyncio.Task[Any]":
    task = asyncio.create_task(run.channel.send(part(body)))
    await ircd.received(f"PRIVMSG #room :{body}")
    return task


@story
async def test_a_receipt_waits_for_the_servers_pong() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        ircd.faults.hold_pongs = True
        sending = await _sending(run, ircd)
        await ircd.received("PING")
        assert not sending.done()
        ircd.release_pongs()
        await sending


@story
async def test_a_pong_confirms_what_was_written_before_its_ping_and_nothing_after() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        ircd.faults.hold_pongs = True
        sends = []
        for number, body in enumerate("abc", start=1):
            sends.append(await _sending(run, ircd, body))
            await ircd.received("PING", times=number)
        bot = ircd.clients[0]
        first, *others = bot.held
        bot.send(first)
        await sends[0]
        await settled(bot, "first")
        assert [sending.done() for sending in sends] == [True, False, False]
        bot.send(others[-1])  # in order: what answers the third has dealt with the second
        await asyncio.gather(*sends)


@story
async def test_a_cut_mid_send_is_uncertain_and_what_waited_was_surely_not_sent() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 2, "per_s": 1}) as run:
        with pytest.raises(Unreachable):
            await run.channel.send(part("too early"))
        await run.up()
        clock.advance(5)
        ircd.faults.drop_on = "PRIVMSG #room :b"
        sends = [asyncio.create_task(run.channel.send(part(body))) for body in "abc"]
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(result) for result in results] == [Uncertain, Uncertain, Unreachable]


@story
async def test_a_cancelled_send_that_waits_is_never_sent() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 1, "per_s": 1}) as run:
        await run.up()
        clock.advance(5)
        first = await _sending(run, ircd, "a")
        waiting = asyncio.create_task(run.channel.send(part("b")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        while not first.done():
            clock.advance(1)
            await asyncio.sleep(0)
        assert "PRIVMSG #room :b" not in ircd.lines


async def _steps() -> None:
    """Let everything run that can while the clock stands still."""
    for _ in range(20):
        await asyncio.sleep(0)


@story
async def test_a_part_goes_only_when_its_turn_has_come() -> None:
    clock, gone = ManualClock(), list[str]()

    def going(name: str) -> BeforeSend:
        async def write_down() -> None:
            gone.append(name)
            assert not [line for line in ircd.lines if line.endswith(f":{name}")], "before it is on the wire"

        return write_down

    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 3, "per_s": 1.0}) as run:
        await run.up()
        clock.advance(10.0)  # the bucket is full again
        sends = [asyncio.create_task(run.channel.send(part(name, key=name), going(name))) for name in "abcde"]
        await ircd.received(r"PRIVMSG #room :c")
        await _steps()
        assert gone == ["a", "b", "c"]
        clock.advance(1.0)
        await ircd.received(r"PRIVMSG #room :d")
        await _steps()
        assert gone == ["a", "b", "c", "d"]
        sends[-1].cancel()
        while not all(send.done() for send in sends):
            clock.advance(1.0)
            await asyncio.sleep(0)
        assert gone == ["a", "b", "c", "d"]


@story
async def test_what_cannot_be_written_down_does_not_go() -> None:
    async def full() -> None:
        raise OSError("the disk is full")

    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        with pytest.raises(OSError, match="disk is full"):
            await run.channel.send(part("never"), full)
        await run.channel.send(part("after"))
        assert [line for line in ircd.lines if line.startswith("PRIVMSG")] == ["PRIVMSG #room :after"]
