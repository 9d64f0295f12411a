"""Getting back: how often, how soon, and what is done again."""

import asyncio
import re

import pytest

from channels.base import Denied, Uncertain
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged
from tests.channels.irc.channel_kit import part, running, settled
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import CAPS, Options


def _waits(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"next attempt in ([0-9.]+) s", text)]


@story
async def test_the_channel_backs_off_and_begins_anew_after_a_stable_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, chance=lambda: 1.0) as run:
        await run.up()
        await ircd.stop()
        for number in range(1, 12):
            await run.until_advancing(clock, lambda n=number: len(_waits(caplog.text)) >= n)  # type: ignore[misc]
        assert _waits(caplog.text)[:11] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
        assert run.links == [True, False]
        await ircd.start()
        await run.until_advancing(clock, lambda: run.links[-1])
        for number in (1, 2):
            clock.advance(30)
            await settled(ircd.clients[-1], f"t{number}")
        caplog.clear()
        ircd.clients[-1].drop()
        await run.until(lambda: not run.links[-1])
        await run.until(lambda: bool(_waits(caplog.text)))
        assert _waits(caplog.text) == [1.0]


@story
async def test_a_connection_that_is_cut_soon_does_not_count_as_stable(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, chance=lambda: 1.0) as run:
        for number in range(1, 5):
            await run.until_advancing(clock, lambda n=number: run.links.count(True) == n)  # type: ignore[misc]
            ircd.clients[-1].drop()
            await run.until(lambda n=number: run.links.count(False) == n)  # type: ignore[misc]
        await run.until(lambda: len(_waits(caplog.text)) == 4)
        assert _waits(caplog.text) == [1, 2, 4, 8]


@story
async def test_rooms_are_joined_again() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, rooms=["#room", "#two"]) as run:
        for number in range(1, 4):
            await run.until_advancing(clock, lambda n=number: run.links.count(True) == n)  # type: ignore[misc]
            assert [line for line in ircd.clients[-1].lines if line.startswith("JOIN")] == ["JOIN #room,#two"]
            await ircd.say("#two", f"reverie: {number}")
            assert (await run.message(number)).text == f"reverie: {number}"
            ircd.clients[-1].drop()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(banned=True), "banned"),
        (Options(password="x"), "password"),
        (Options(nick_length=3), "does not allow the nick"),
    ],
)
@story
async def test_a_ban_and_a_wrong_password_end_the_channel(options: Options, says: str) -> None:
    async with Ircd(options) as ircd, running(ircd) as run:
        with pytest.raises(Denied, match=says):
            await run.task
        assert (run.links, len(ircd.clients)) == ([False], 1)


@story
async def test_a_ban_that_comes_while_we_are_away_ends_the_channel() -> None:
    clock, options = ManualClock(), Options()
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.up()
        options.banned = True
        ircd.clients[0].drop()
        await run.until(lambda: run.links == [True, False])
        clock.advance(1.1)
        with pytest.raises(Denied, match="banned"):
            await run.task


@story
async def test_a_room_that_does_not_answer_does_not_keep_us_down(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with Ircd(Options(deaf=frozenset({"#two"}))) as ircd, running(ircd, clock, rooms=["#room", "#two"]) as run:
        await ircd.joined("reverie", "#room")
        await settled(ircd.clients[0], "joined")
        clock.advance(9.9)
        await settled(ircd.clients[0], "soon")
        assert not run.links
        clock.advance(0.2)
        await run.up()
        assert "did not answer our JOIN" in caplog.text


@story
async def test_a_server_that_does_not_welcome_us_is_left() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        ircd.faults.silent = True
        await ircd.received("USER")
        await run.until_advancing(clock, lambda: run.links == [False])
        assert [event.reason for event in run.seen if isinstance(event, ConnectionChanged)] == [
            "the server did not welcome us in time"
        ]


@story
async def test_unanswered_pings_end_the_connection_though_others_talk() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        ircd.faults.hold_pongs = True
        sending = asyncio.create_task(run.channel.send(part("hello")))
        await ircd.received("PING")
        seconds = 0
        while not sending.done() and seconds < 200:
            await ircd.say("#room", "chatter")
            await settled(ircd.clients[0], f"t{seconds}")
            clock.advance(10)
            seconds += 10
            for _ in range(20):  # whoever was woken does what it has to do
                await asyncio.sleep(0)
        assert sending.done()
        assert 90 <= seconds <= 150
        with pytest.raises(Uncertain, match="does not answer PING"):
            await sending
        await run.until(lambda: run.links == [True, False])


@pytest.mark.parametrize(("token", "sent"), [("BOT=B", ["MODE reverie +B"]), ("BOT=", []), ("BOTS=B", [])])
@story
async def test_we_say_that_we_are_a_bot_where_there_is_a_mode_for_it(token: str, sent: list[str]) -> None:
    clock = ManualClock()
    async with Ircd(Options(isupport=("CHANTYPES=#", token))) as ircd, running(ircd, clock) as run:
        for number in (1, 2):
            await run.until_advancing(clock, lambda n=number: run.links.count(True) == n)  # type: ignore[misc]
            lines = ircd.clients[-1].lines
            assert [line for line in lines if line.startswith("MODE reverie")] == sent
            assert not sent or lines.index(sent[0]) < lines.index("JOIN #room")
            ircd.clients[-1].drop()


@story
async def test_we_are_marked_as_a_bot_under_the_nick_we_got() -> None:
    options = Options(isupport=("BOT=b",), taken={"reverie"}, caps=CAPS)
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        assert "MODE reverie_ +b" in ircd.lines
