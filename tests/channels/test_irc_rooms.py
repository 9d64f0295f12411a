"""In which rooms we are: those that the operator wants, and no others, whatever the server does with us."""

import pytest

from channels.base import Rejected, Unreachable
from gateway.clock import ManualClock
from gateway.events import Address, RoomId
from tests.channels.irc_kit import NAME, running, settled, story
from tests.servers.ircd import Client, Ircd, Options


def _asked(bot: Client, command: str) -> list[str]:
    return [line for line in bot.lines if line.startswith(command)]


@story
async def test_a_room_that_we_are_put_into_is_left() -> None:
    async with Ircd() as ircd, running(ircd, rooms=["#Room"]) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(f":{bot.mask} JOIN #elsewhere")
        await ircd.received("PART #elsewhere")
        bot.send(f":{bot.mask} PART #elsewhere")
        bot.send(f":{bot.mask} JOIN #ROOM")
        await settled(bot, "told")
        assert _asked(bot, "PART") == ["PART #elsewhere"]


@story
async def test_a_forward_to_another_room_is_not_followed() -> None:
    clock = ManualClock()
    async with Ircd(Options(refused={"#room": "470"})) as ircd, running(ircd, clock) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(f":{bot.mask} JOIN ##room")
        await ircd.received("PART ##room")
        ircd.options.refused = {}
        for second in range(8):
            clock.advance(10)
            await settled(bot, f"t{second}")
        await ircd.joined("reverie", "#room")


@story
async def test_a_server_that_puts_us_into_rooms_without_end_does_not_keep_us_busy() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        for number in range(1_000):
            bot.send(f":{bot.mask} JOIN #x{number % 500}")
        await settled(bot, "all")
        await ircd.received("PART #x99")
        await settled(bot, "done")
        assert len(_asked(bot, "PART")) == 100


@story
async def test_a_room_that_an_administrator_asked_us_into_is_not_left() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        await run.channel.join(Address(channel=NAME, room=RoomId("#new")))
        await settled(ircd.clients[0], "in")
        assert not _asked(ircd.clients[0], "PART")


@pytest.mark.parametrize("rejoin", [False, True])
@story
async def test_made_to_part_we_come_back_only_if_allowed(rejoin: bool) -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, rejoin_after_kick=rejoin) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(f":{bot.mask} PART #room :out with you")  # SAPART, REMOVE
        ircd.rooms["#room"].clear()
        await settled(bot, "out")
        for second in range(6):
            clock.advance(10)
            await settled(bot, f"t{second}")
        assert _asked(bot, "JOIN") == ["JOIN #room"] * (1 + rejoin)
        bot.drop()
        await run.until_advancing(clock, lambda: run.links.count(True) == 2)
        assert _asked(ircd.clients[1], "JOIN") == ["JOIN #room"] * rejoin


@story
async def test_a_join_that_is_not_answered_is_tried_again() -> None:
    clock, options = ManualClock(), Options(deaf=frozenset({"#room"}))
    async with Ircd(options) as ircd, running(ircd, clock, ping_interval="10h") as run:
        await run.until_advancing(clock, lambda: run.links == [True])
        bot = ircd.clients[0]
        for second in range(35):
            clock.advance(10)
            await settled(bot, f"t{second}")
        assert _asked(bot, "JOIN") == ["JOIN #room"] * 2
        options.deaf = frozenset()
        for second in range(35):
            clock.advance(10)
            await settled(bot, f"u{second}")
        await ircd.joined("reverie", "#room")
        for second in range(70):
            clock.advance(10)
            await settled(bot, f"v{second}")
        assert _asked(bot, "JOIN") == ["JOIN #room"] * 3, "once in, no more"


@story
async def test_a_room_that_a_bouncer_keeps_us_in_is_not_asked_for() -> None:
    clock = ManualClock()
    async with Ircd(Options(motd=False)) as ircd, running(ircd, clock) as run:
        await ircd.until(lambda: bool(ircd.clients) and ircd.clients[0].registered)
        bot = ircd.clients[0]
        bot.send(f":{bot.mask} JOIN #room")
        bot.send(":irc.test 422 reverie :no MOTD")
        await run.up()
        for second in range(70):
            clock.advance(10)
            await settled(bot, f"t{second}")
        assert not _asked(bot, "JOIN")


@story
async def test_many_long_names_are_asked_for_in_lines_that_no_server_cuts() -> None:
    rooms = [f"#{number:02}{'é' * 25}" for number in range(25)]
    async with Ircd() as ircd, running(ircd, rooms=rooms) as run:
        await run.up()
        joins = _asked(ircd.clients[0], "JOIN")
        assert all(len(join.encode()) + 2 <= 512 for join in joins)
        assert [room for join in joins for room in join.split()[1].split(",")] == rooms
        assert len(joins) == 4


@story
async def test_a_room_that_we_were_told_to_leave_is_entered_again_only_when_we_are_told_to() -> None:
    clock, at = ManualClock(), Address(channel=NAME, room=RoomId("#ROOM"))
    async with Ircd() as ircd, running(ircd, clock, rejoin_after_kick=True) as run:
        with pytest.raises(Unreachable):
            await run.channel.leave(at)
        assert run.channel.inside(at.room) is None
        await run.up()
        assert run.channel.inside(at.room) is True
        for _ in range(2):
            await run.channel.leave(at)
            assert run.channel.inside(at.room) is False
        for room in ("nobody", "#a,#b", "#a b"):
            with pytest.raises(Rejected):
                await run.channel.leave(Address(channel=NAME, room=RoomId(room)))
        for second in range(6):
            clock.advance(10)
            await settled(ircd.clients[0], f"t{second}")
        ircd.clients[0].drop()
        await run.until_advancing(clock, lambda: run.links.count(True) == 2)
        for second in range(6):
            clock.advance(10)
            await settled(ircd.clients[1], f"u{second}")
        assert not _asked(ircd.clients[1], "JOIN")
        await run.channel.join(at)
        assert run.channel.inside(RoomId("#room")) is True
        ircd.clients[1].drop()
        await run.until_advancing(clock, lambda: run.links.count(True) == 3)
        assert _asked(ircd.clients[2], "JOIN") == ["JOIN #room"]


@story
async def test_a_room_that_keeps_us_out_is_given_up_when_we_are_told_to_leave() -> None:
    clock = ManualClock()
    async with Ircd(Options(refused={"#room": "473"})) as ircd, running(ircd, clock, ping_interval="10h") as run:
        await run.up()
        await run.channel.leave(Address(channel=NAME, room=RoomId("#room")))
        for second in range(120):
            clock.advance(10)
            await settled(ircd.clients[0], f"t{second}")
        assert _asked(ircd.clients[0], "JOIN") == ["JOIN #room"]


@story
async def test_whoever_throws_us_out_after_we_came_back_is_told_from_leaving() -> None:
    clock, at = ManualClock(), Address(channel=NAME, room=RoomId("#room"))
    async with Ircd() as ircd, running(ircd, clock, rejoin_after_kick=True) as run:
        await run.up()
        await run.channel.leave(at)
        await run.channel.join(at)
        bot = ircd.clients[0]
        bot.send(":op!o@h KICK #room reverie :out")
        ircd.rooms["#room"].clear()
        for second in range(6):
            clock.advance(10)
            await settled(bot, f"t{second}")
        assert _asked(bot, "JOIN") == ["JOIN #room"] * 3
