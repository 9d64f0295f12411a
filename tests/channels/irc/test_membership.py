"""In which rooms we are: those that the operator wants, and no others, whatever the server does with us."""

import pytest

from channels.base import Rejected, Unreachable
from gateway.core.clock import ManualClock
from gateway.core.events import Address, RoomId
from tests.channels.irc.channel_kit import NAME, config, running, settled
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_client import Client
from tests.servers.ircd_options import Options


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
        assert run.channel.is_joined(at.room) is None
        await run.up()
        assert run.channel.is_joined(at.room) is True
        for _ in range(2):
            await run.channel.leave(at)
            assert run.channel.is_joined(at.room) is False
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
        assert run.channel.is_joined(RoomId("#room")) is True
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


@story
async def test_rooms_that_are_configured_anew_are_entered_and_left_and_the_others_hear_all_of_it() -> None:
    async with Ircd() as ircd, running(ircd, rooms=["#Room", "#old"]) as run:
        await run.up()
        await ircd.joined("reverie", "#old")
        assert run.channel.apply_config(config(ircd.port, rooms=["#room", "#new"]))
        await ircd.joined("reverie", "#new")
        await ircd.say("#room", "still here?", by="alice!a@host")
        await ircd.say("#new", "and here?", by="alice!a@host")
        await run.message(2)
        assert [one.text for one in run.messages] == ["still here?", "and here?"]
        bot = ircd.clients[0]
        assert _asked(bot, "PART") == ["PART #old"]
        assert "reverie" not in {client.nick for client in ircd.rooms.get("#old", [])}
        assert len(ircd.clients) == 1
        bot.drop()
        await run.up(2)
        assert _asked(ircd.clients[-1], "JOIN") == ["JOIN #room,#new"]


@story
async def test_a_room_that_is_taken_out_and_put_back_at_once_is_entered_again() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        bot = ircd.clients[0]
        for rooms in ([], ["#room"], [], ["#room"]):
            assert run.channel.apply_config(config(ircd.port, rooms=rooms))
        await ircd.received("JOIN #room", 2)
        await settled(bot, "done")
        assert [line for line in bot.lines if line.startswith(("JOIN", "PART"))] == [
            "JOIN #room",
            "PART #room",
            "JOIN #room",
        ]
        assert run.channel.is_joined(RoomId("#room"))
        for rooms in ([], ["#room"], []):
            assert run.channel.apply_config(config(ircd.port, rooms=rooms))
        await ircd.received("PART #room", 2)
        await settled(bot, "out")
        assert bot not in ircd.rooms["#room"]
        assert run.channel.apply_config(config(ircd.port))
        await ircd.received("JOIN #room", 4)
        await settled(bot, "in again")
        bot.send(":op!o@host KICK #room reverie :out")
        ircd.rooms["#room"].clear()
        await settled(bot, "out")
        assert not run.channel.is_joined(RoomId("#room"))
        assert run.channel.apply_config(config(ircd.port, rooms=[]))
        assert run.channel.apply_config(config(ircd.port, rooms=["#room"]))  # the operator names it anew
        await ircd.joined("reverie", "#room")
        assert run.channel.is_joined(RoomId("#room"))


@story
async def test_a_room_whose_answer_is_still_awaited_is_left_all_the_same() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        assert run.channel.apply_config(config(ircd.port, rooms=["#room", "#new"]))
        assert run.channel.apply_config(config(ircd.port, rooms=["#room"]))
        await ircd.received("PART #new")
        await settled(bot, "done")
        said = [line for line in bot.lines if "#new" in line and not line.startswith("MODE")]
        assert said == ["JOIN #new", "PART #new"]
        assert not run.channel.is_joined(RoomId("#new"))
        assert run.channel.is_joined(RoomId("#room"))


@story
async def test_what_is_not_about_rooms_needs_another_connection() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        assert not run.channel.apply_config(config(ircd.port, rooms=["#new"]))  # it is not up yet
        await run.up()
        assert not run.channel.apply_config(config(ircd.port, rooms=["#new"], nick="other"))
        assert run.channel.nick == "reverie"


OPEN_ROOM = Address(channel=NAME, room=RoomId("#room"))


@pytest.mark.parametrize(
    ("modes", "audience"),
    [
        *(("+nt", "everybody"), ("+", "everybody"), ("+ntl 5", "everybody"), ("+nts", "room"), ("+i", "room")),
        *(("+ntk secret", "room"), ("+p", "room"), ("+O", "room")),
    ],
)
def test_who_can_read_a_room_follows_from_its_modes(modes: str, audience: str) -> None:
    @story
    async def run() -> None:
        async with Ircd(Options(modes={"#room": modes})) as ircd, running(ircd) as it:
            await it.up()
            await ircd.received("MODE #room")
            await settled(ircd.clients[0], "told")
            assert it.channel.audience(OPEN_ROOM) == audience
            assert it.channel.audience(Address(channel=NAME, room=RoomId("#ROOM"))) == audience
            assert it.channel.audience(Address(channel=NAME, room=RoomId("nick!alice"))) is None
            assert it.channel.audience(Address(channel=NAME, room=RoomId("#other"))) is None

    run()


@story
async def test_a_room_closes_at_once_and_opens_when_the_server_has_said_how_it_stands() -> None:
    modes = {"#room": "+nt"}
    async with Ircd(Options(modes=modes)) as ircd, running(ircd) as it:
        await it.up()
        bot = ircd.clients[0]
        await ircd.received("MODE #room")
        await settled(bot, "one")
        assert it.channel.audience(OPEN_ROOM) == "everybody"
        modes["#room"] = "+ntk"
        bot.send(":op!o@host MODE #room +o-v+k alice bob secret")
        await settled(bot, "two")
        assert it.channel.audience(OPEN_ROOM) == "room"
        modes["#room"] = "+nt"
        bot.send(":op!o@host MODE #room -k secret")
        bot.send(":op!o@host MODE #room +b *!*@host")
        await ircd.received("MODE #room", 3)
        await settled(bot, "three")
        assert it.channel.audience(OPEN_ROOM) == "everybody"


@pytest.mark.parametrize("refusal", ["473", "475"])
def test_a_room_that_lets_nobody_in_is_closed(refusal: str) -> None:
    @story
    async def run() -> None:
        async with Ircd(Options(modes={}, refused={"#room": refusal})) as ircd, running(ircd) as it:
            await it.up()
            await settled(ircd.clients[0], "told")
            assert it.channel.audience(OPEN_ROOM) == "room"

    run()


@story
async def test_who_can_read_is_not_known_where_the_server_does_not_tell() -> None:
    async with Ircd() as ircd, running(ircd) as it:
        await it.up()
        await ircd.received("MODE #room")
        await settled(ircd.clients[0], "told")
        assert it.channel.audience(OPEN_ROOM) is None
