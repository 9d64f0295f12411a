"""Rooms, nicks, capabilities and TLS while a session lasts: as the operator wants them, whatever
the server does."""

import asyncio
import re

import pytest

from channels.base import MayNotPost, Rejected, Unreachable
from gateway.core.clock import ManualClock
from gateway.core.events import Address, MembershipChanged, RoomId, SenderId, ThreadId
from reverie.testing.servers.ircd import CAPS, MODERN, Client, Ircd, Options
from tests.channels.irc.channel_kit import NAME, config, part, running, settled


def _asked(bot: Client, command: str) -> list[str]:
    return [line for line in bot.lines if line.startswith(command)]


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


@pytest.mark.parametrize("refusal", ["470", "473", "477", ""])
async def test_a_room_that_does_not_let_us_in_is_tried_again_every_five_minutes(
    refusal: str,
) -> None:
    clock, options = ManualClock(), Options()
    options.refused = {"#room": refusal} if refusal else {}
    options.deaf = frozenset() if refusal else frozenset({"#room"})
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.until_advancing(clock, lambda: run.links == [True])
        bot = ircd.clients[0]
        bot.send(f":{bot.mask} JOIN ##room")  # where a 470 forwards to
        await ircd.received("PART ##room")
        for second in range(27):
            clock.advance(10)
            await settled(bot, f"t{second}")
        assert _asked(bot, "JOIN") == ["JOIN #room"]
        for second in range(6):
            clock.advance(10)
            await settled(bot, f"u{second}")
        assert _asked(bot, "JOIN") == ["JOIN #room"] * 2
        options.refused, options.deaf = {}, frozenset()
        for second in range(70):
            clock.advance(10)
            await settled(bot, f"v{second}")
        await ircd.joined("reverie", "#room")
        assert _asked(bot, "JOIN") == ["JOIN #room"] * 3, "once in, no more"


async def test_an_invitation_into_a_configured_room_that_refused_us_is_used_at_once() -> None:
    options = Options(refused={"#room": "473"})
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        for _ in range(3):
            ircd.clients[0].send(":eve!e@h INVITE reverie #eve")
        await settled(ircd.clients[0], "no")
        assert _asked(ircd.clients[0], "JOIN") == ["JOIN #room"], "it is not configured"
        options.refused = {}
        ircd.clients[0].send(":op!o@h INVITE reverie #Room")
        await ircd.joined("reverie", "#room")
        ircd.clients[0].send(":op!o@h INVITE reverie #room")
        ircd.clients[0].send(":op!o@h INVITE reverie #other")
        await settled(ircd.clients[0], "told")
        assert _asked(ircd.clients[0], "JOIN") == ["JOIN #room"] * 2


async def test_services_that_were_away_are_told_the_login_once_they_are_back() -> None:
    clock, login = ManualClock(), "PRIVMSG NickServ :IDENTIFY reverie hush"
    lines = ["WALLOPS ", login, "PRIVMSG #room :here I am"]
    async with Ircd() as ircd, running(ircd, clock, on_connect=lines) as run:
        await run.until_advancing(clock, lambda: run.links == [True])
        await run.until_advancing(clock, lambda: ircd.lines.count(login) > 2)
        ircd.people["NickServ"] = ("NickServ!s@services", "")
        told = ircd.lines.count(login)
        await run.until_advancing(clock, lambda: ircd.lines.count(login) > told)
        for second in range(6):
            clock.advance(10)
            await settled(ircd.clients[0], f"t{second}")
        assert [*map(ircd.lines.count, lines)] == [1, told + 1, 1]


async def test_a_room_that_we_were_told_to_leave_is_entered_again_only_when_we_are_told_to() -> (
    None
):
    clock, at = ManualClock(), Address(channel=NAME, room=RoomId("#ROOM"))
    async with Ircd() as ircd, running(ircd, clock) as run:
        with pytest.raises(Unreachable):
            await run.channel.leave(at)
        assert run.channel.is_joined(at.room) is None
        await run.up()
        assert run.channel.is_joined(at.room) is True
        for _ in range(2):
            await run.channel.leave(at)
            assert run.channel.is_joined(at.room) is False
        assert not run.channel.join_refusal(at.room), "nothing is wrong"
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
        ircd.clients[2].send(":op!o@h KICK #room reverie :shh")
        await settled(ircd.clients[2], "out")
        why = run.channel.join_refusal(at.room)
        assert why
        with pytest.raises(MayNotPost, match=why):
            await run.channel.send(part("and another thing"))


async def test_rooms_that_are_configured_anew_are_entered_and_left_and_the_others_hear_all_of_it() -> (
    None
):
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


async def test_what_is_not_about_rooms_needs_another_connection(ircd: Ircd) -> None:
    async with running(ircd) as run:
        assert not run.channel.apply_config(config(ircd.port, rooms=["#new"]))  # it is not up yet
        await run.up()
        assert not run.channel.apply_config(config(ircd.port, rooms=["#new"], nick="other"))
        assert run.channel.nicks(part("").to) == ("reverie",)


OPEN_ROOM = Address(channel=NAME, room=RoomId("#room"))


@pytest.mark.parametrize(
    ("modes", "refusal", "audience"),
    [
        ("+nt", "", "everybody"),
        ("+", "", "everybody"),
        ("+ntl 5", "", "everybody"),
        ("+nts", "", "room"),
        ("+i", "", "room"),
        ("+ntk secret", "", "room"),
        ("+p", "", "room"),
        ("+O", "", "room"),
        (None, "473", "room"),
        (None, "475", "room"),
        (None, "", None),  # the server does not tell
    ],
)
async def test_who_can_read_a_room_follows_from_its_modes(
    modes: str | None, refusal: str, audience: str | None
) -> None:
    options = Options(
        modes={"#room": modes} if modes else {}, refused={"#room": refusal} if refusal else {}
    )
    async with Ircd(options) as ircd, running(ircd) as it:
        await it.up()
        await ircd.received("JOIN #room" if refusal else "MODE #room")
        await settled(ircd.clients[0], "told")
        rooms = ("#room", "#ROOM", "nick!alice", "#other")
        told = [it.channel.audience(Address(channel=NAME, room=RoomId(one))) for one in rooms]
        assert told == [audience, audience, None, None]


async def test_a_room_is_closed_as_long_as_any_of_its_modes_closes_it() -> None:
    async with Ircd(Options(modes={"#room": "+nt"})) as ircd, running(ircd) as it:
        await it.up()
        bot, told = ircd.clients[0], list[str | None]()
        await ircd.received("MODE #room")
        for modes in ("", "+o-v+ki alice bob secret", "-k secret", "+b-i *!*@host"):
            if modes:
                bot.send(f":op!o@host MODE #room {modes}")
            await settled(bot, f"t{len(told)}")
            told.append(it.channel.audience(OPEN_ROOM))
        assert told == ["everybody", "room", "room", "everybody"]


SASL = {"mechanism": "plain", "account": "rev", "password": "hush"}


async def test_all_that_is_used_is_requested_and_nothing_else() -> None:
    unused = "setname away-notify invite-notify account-extban sts=duration=1"
    async with Ircd(Options(caps=f"{MODERN} {unused}")) as ircd, running(ircd) as run:
        await run.up()
        assert ircd.clients[0].caps == {name.partition("=")[0] for name in MODERN.split()}


async def test_what_is_newly_offered_is_requested_and_what_is_gone_is_not_relied_on() -> None:
    options = Options(caps=CAPS.replace("account-tag ", ""))
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        bot, options.caps = ircd.clients[0], CAPS
        bot.send(":irc.test CAP reverie NEW :account-tag")
        await ircd.until(lambda: "account-tag" in bot.caps)
        await settled(bot, "on")
        bot.raw(b"@account=al :al!a@h PRIVMSG #room :one\r\n")
        bot.send(":irc.test CAP reverie DEL :account-tag")
        bot.raw(b"@account=fake :al!a@h PRIVMSG #room :two\r\n")
        await run.message(2)
        assert [m.sender.account for m in run.messages] == ["al", None]


async def test_services_that_end_our_login_are_asked_again() -> None:
    clock, options = ManualClock(), Options(caps=f"{CAPS} sasl=PLAIN", sasl={"rev": "hush"})
    async with Ircd(options) as ircd, running(ircd, clock, sasl=SASL) as run:
        await run.up()
        ircd.clients[0].send(":irc.test 901 reverie reverie!r@h :You are now logged out")
        await run.until_advancing(clock, lambda: run.links == [True, False, True])
        assert ircd.clients[1].account == "rev"


async def test_thrown_out_we_come_back_only_when_we_are_told_to() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, rooms=["#Room"]) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(":op!o@h KICK #room reverie :out")
        await settled(bot, "out")
        ircd.rooms["#room"].clear()
        for number in range(40):
            clock.advance(10)
            await settled(bot, f"t{number}")
        bot.drop()
        await run.until_advancing(clock, lambda: run.links.count(True) == 2)
        assert _asked(ircd.clients[1], "JOIN") == []
        await run.channel.join(Address(channel=NAME, room=RoomId("#Room")))
        assert "JOIN #Room" in ircd.clients[1].lines


async def test_an_invitation_is_told_and_only_followed_when_we_are_told_to() -> None:
    options = Options(caps=MODERN, refused={"#no": "473"}, deaf=frozenset({"#deaf"}))
    clock = ManualClock()
    async with Ircd(options) as ircd, running(ircd, clock, rooms=[]) as run:
        with pytest.raises(Unreachable):
            await run.channel.join(Address(channel=NAME, room=RoomId("#new")))
        await run.up()
        ircd.clients[0].send("@account=boss :al!a@h INVITE reverie #new")
        await run.until(lambda: any(isinstance(event, MembershipChanged) for event in run.seen))
        (invite,) = [event for event in run.seen if isinstance(event, MembershipChanged)]
        assert (
            invite.change,
            invite.at.room,
            invite.sender.account,
            invite.sender.verified,
            invite.subject,
        ) == (
            "invite",
            "#new",
            "boss",
            True,
            None,
        )
        await settled(ircd.clients[0], "told")
        assert not any(line.startswith("JOIN") for line in ircd.lines)
        await run.channel.join(invite.at)
        await run.channel.join(invite.at)
        await run.channel.send(part("hello", room="#new"))
        assert sum(line.startswith("JOIN") for line in ircd.lines) == 1
        for room, says in (
            ("#no", "473"),
            ("nobody", "not a room"),
            ("#a,#b", "not one room"),
            ("#a b", "not one room"),
        ):
            with pytest.raises(Rejected, match=says):
                await run.channel.join(
                    Address(channel=NAME, room=RoomId(room))
                )  # and nothing waits for it
        waiting = asyncio.create_task(run.channel.join(Address(channel=NAME, room=RoomId("#deaf"))))
        await ircd.received("JOIN #deaf")
        ircd.clients[0].drop()
        with pytest.raises(Unreachable, match="lost"):
            await waiting


@pytest.mark.parametrize(
    ("code", "keys", "remedy"),
    [
        ("475", {}, r'it needs a key: rooms: \[{name: "#Room", key: "..."}\]$'),
        (
            "475",
            {"#room": "old-key"},
            r'another key is needed: rooms: \[{name: "#Room", key: "..."}\]$',
        ),
        ("473", {}, "invite the bot"),
        ("474", {}, "lift the ban$"),
        ("471", {}, "higher limit"),
        ("477", {}, r"\(477\)$"),
    ],
)
async def test_a_refusal_is_told_with_what_to_do_about_it(
    code: str, keys: dict[str, str], remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = Options(refused={"#Room": code})
    async with Ircd(options) as ircd, running(ircd, rooms=["#Room"], keys=keys) as run:
        await run.up()
        why = run.channel.join_refusal(RoomId("#Room"))
        assert re.search(remedy, why)
        assert why in caplog.text
        assert "old-key" not in caplog.text


async def test_a_nick_that_is_forced_on_us_is_taken_back_later_each_time() -> None:
    """An operator's SANICK, or services that enforce the owner of a nick."""
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        bot = ircd.clients[0]
        for times, kept_s in enumerate((60, 120, 240), start=1):
            bot.send(f":reverie!reverie@test.host NICK :Guest{times}")
            bot.nick = f"Guest{times}"
            bot.send(":reverie!x@y QUIT :bye")  # it is free, as we know
            await settled(bot, f"forced{times}")
            assert f"Guest{times}" in run.channel.account_problem()
            for second in range(kept_s // 10 - 1):
                clock.advance(10)
                await settled(bot, f"t{times}-{second}")
            assert ircd.lines.count("NICK reverie") == times
            clock.advance(20)
            await ircd.until(lambda: bot.nick == "reverie")
            await settled(bot, f"back{times}")
            assert run.channel.account_problem() == ""
            assert run.channel.nicks(part("").to) == ("reverie",)


async def test_ctcp_says_what_we_are_and_nothing_else() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        for request in ("SOURCE", "CLIENTINFO", "USERINFO", "DCC SEND x"):
            bot.send(f":al!a@h PRIVMSG reverie :\x01{request}\x01")
        await ircd.received("NOTICE", times=2)
        await settled(bot, "t")
        assert [line for line in ircd.lines if line.startswith("NOTICE")] == [
            "NOTICE al :\x01SOURCE Reverie\x01",
            "NOTICE al :\x01CLIENTINFO ACTION CLIENTINFO PING SOURCE VERSION\x01",
        ]


async def test_somebody_is_where_the_server_reports_their_account_now() -> None:
    alice = SenderId("account:alice")
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd) as it:

        async def reads(
            room: str = "#room", thread: str | None = None, person: SenderId = alice
        ) -> str | None:
            at = Address(
                channel=it.channel.name,
                room=RoomId(room),
                thread=ThreadId(thread) if thread else None,
            )
            return await it.channel.membership(at, person)

        async def reads_after(line: str) -> str | None:
            bot.send(line)
            await settled(bot, f"after{len(ircd.lines)}")
            return await reads()

        assert await reads() is None, "the link is down"
        await it.up()
        bot = ircd.clients[0]
        assert await reads_after(":mallory!u@host JOIN #room * :alice") is None, (
            "a nick and a name claim it"
        )
        assert await reads_after(":alice!u@host JOIN #room * :Alice") is None, "not logged in"
        assert await reads_after(":alice!u@host ACCOUNT alice") == "reads_all"
        assert await reads("#ROOM") == "reads_all"
        assert await reads("#rooms") is None, "another room"
        assert await reads(thread="7") is None
        assert await reads(person=SenderId("account:mallory")) is None
        assert await reads(person=SenderId("mask:alice!u@host")) is None, (
            "anybody may come from there"
        )
        assert await reads_after(":alice!u@host NICK ally") == "reads_all"
        assert await reads_after(":op!o@host KICK #room ally :out") is None
        assert await reads_after(":ally!u@host JOIN #ROOM alice :Alice") == "reads_all"
        assert await reads_after(":ally!u@host ACCOUNT *") is None, "logged out"
        assert await reads_after(":ally!u@host ACCOUNT alice") == "reads_all"
        assert await reads_after(":ally!u@host PART #room") is None
