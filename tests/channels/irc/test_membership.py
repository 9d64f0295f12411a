"""Rooms, nicks, capabilities and TLS while a session lasts: as the operator wants them, whatever
the server does."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from channels.base import Rejected, Unreachable
from channels.irc.channel import IrcChannel
from channels.irc.tls import StsPolicy, sts_port
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import Address, MembershipChanged, RoomId, SenderId, ThreadId
from tests.channels.irc.channel_kit import NAME, Running, config, part, running, settled
from tests.servers.ircd import CAPS, LOCALHOST, MODERN, Client, Ircd, Options, server_context


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


async def test_a_join_that_is_not_answered_is_tried_again() -> None:
    clock, options = ManualClock(), Options(deaf=frozenset({"#room"}))
    async with Ircd(options) as ircd, running(ircd, clock) as run:
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


async def test_a_room_that_we_were_told_to_leave_is_entered_again_only_when_we_are_told_to() -> (
    None
):
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
        assert run.channel.nick == "reverie"


OPEN_ROOM = Address(channel=NAME, room=RoomId("#room"))


@pytest.mark.parametrize(
    ("modes", "audience"),
    [
        *(
            ("+nt", "everybody"),
            ("+", "everybody"),
            ("+ntl 5", "everybody"),
            ("+nts", "room"),
            ("+i", "room"),
        ),
        *(("+ntk secret", "room"), ("+p", "room"), ("+O", "room")),
    ],
)
async def test_who_can_read_a_room_follows_from_its_modes(modes: str, audience: str) -> None:
    async with Ircd(Options(modes={"#room": modes})) as ircd, running(ircd) as it:
        await it.up()
        await ircd.received("MODE #room")
        await settled(ircd.clients[0], "told")
        assert it.channel.audience(OPEN_ROOM) == audience
        assert it.channel.audience(Address(channel=NAME, room=RoomId("#ROOM"))) == audience
        assert it.channel.audience(Address(channel=NAME, room=RoomId("nick!alice"))) is None
        assert it.channel.audience(Address(channel=NAME, room=RoomId("#other"))) is None


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
async def test_a_room_that_lets_nobody_in_is_closed(refusal: str) -> None:
    async with Ircd(Options(modes={}, refused={"#room": refusal})) as ircd, running(ircd) as it:
        await it.up()
        await settled(ircd.clients[0], "told")
        assert it.channel.audience(OPEN_ROOM) == "room"


async def test_who_can_read_is_not_known_where_the_server_does_not_tell(
    ircd: Ircd, run: Running
) -> None:
    await ircd.received("MODE #room")
    await settled(ircd.clients[0], "told")
    assert run.channel.audience(OPEN_ROOM) is None


SASL = {"mechanism": "plain", "account": "rev", "password": "hush"}


def _options(**changes: Any) -> Options:
    return Options(**({"caps": CAPS + " sasl=PLAIN", "sasl": {"rev": "hush"}} | changes))


async def test_all_that_is_used_is_requested_and_nothing_else() -> None:
    unused = "setname away-notify invite-notify account-extban sts=duration=1"
    async with Ircd(Options(caps=f"{MODERN} {unused}")) as ircd, running(ircd) as run:
        await run.up()
        assert ircd.clients[0].caps == {name.partition("=")[0] for name in MODERN.split()}


async def test_what_is_newly_offered_is_requested_and_what_is_gone_is_not_relied_on() -> None:
    options = Options(
        caps=CAPS.replace("account-tag ", ""), isupport=("WHOX",), accounts={"al": "al"}
    )
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(":al!a@h JOIN #room * :real")
        options.caps = CAPS
        bot.send(":irc.test CAP reverie NEW :account-tag")
        await ircd.until(lambda: "account-tag" in bot.caps)
        await settled(bot, "on")
        bot.raw(b"@account=al :al!a@h PRIVMSG #room :one\r\n")
        bot.send(":irc.test CAP reverie DEL :account-tag")
        bot.raw(b"@account=fake :ev!e@h PRIVMSG #room :two\r\n")
        await ircd.received("WHO #room %tcuhnfar,152", times=2)
        await settled(bot, "asked")
        bot.raw(
            b"@account=fake :al!a@h PRIVMSG #room :three\r\n:al!a@h ACCOUNT *\r\n:al!a@h PRIVMSG "
            b"#room :four\r\n"
        )
        await run.message(4)
        assert [m.sender.account for m in run.messages] == ["al", None, "al", None]


async def test_services_that_let_go_of_us_are_asked_again_or_left() -> None:
    clock, options = ManualClock(), _options()
    async with Ircd(options) as ircd, running(ircd, clock, sasl=SASL) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(":irc.test 901 reverie reverie!r@h :You are now logged out")
        await ircd.received("AUTHENTICATE PLAIN", times=2)
        await settled(bot, "again")
        assert run.links == [True]
        bot.send(":irc.test CAP reverie DEL :sasl")
        bot.send(":irc.test CAP reverie NEW :sasl=PLAIN")
        await ircd.until(lambda: sum(line == "CAP REQ sasl" for line in bot.lines) == 1)
        bot.send(":irc.test CAP reverie DEL :sasl")
        bot.send(":irc.test 901 reverie reverie!r@h :You are now logged out")
        await run.until(lambda: run.links == [True, False])
        await run.until_advancing(clock, lambda: run.links == [True, False, True])


def test_a_policy_lasts_as_long_as_it_says() -> None:
    policy, start = StsPolicy(), datetime(2026, 1, 1, tzinfo=UTC)

    def port(after_s: float, host: str = "a") -> int | None:
        return (
            StsPolicy(policy.serialized).tls_port(host, start + timedelta(seconds=after_s))
            if policy.serialized
            else None
        )

    assert policy.tls_port("a", start) is None
    policy.record_upgrade("a", 6697)
    assert policy.tls_port("a", start + timedelta(days=9999)) == 6697, (
        "until the secure port has answered, never in the clear"
    )
    assert policy.serialized == "", "but what was told in the clear is not kept"
    policy.record_policy("a", 6697, "duration=60,preload", start + timedelta(seconds=100))
    assert (port(159), port(160), port(161), port(159, "b")) == (6697, None, None, None)
    policy.record_policy("a", 6697, None, start + timedelta(seconds=130))
    assert (port(189), port(190)) == (6697, None), (
        "from the end of the connection the time runs anew"
    )
    policy.record_policy("a", 6697, "duration=0", start)
    assert (policy.tls_port("a", start), policy.serialized) == (None, "")
    policy.record_policy("a", 6697, "duration=9999999999", start)
    assert port(1e8) == 6697
    assert [
        sts_port(value) for value in ("port=99999,duration=x", "", "port=x", "duration=1,port=6697")
    ] == [
        0,
        0,
        0,
        6697,
    ]
    for odd in (
        "a,b,c,d",
        "a,6697,60",
        "a,6697,60,2026-01-01",
        "a,99999,60,2026-01-01T00:00:00+00:00",
        ",,,",
    ):
        assert StsPolicy(odd).tls_port("a", start - timedelta(days=1)) is None


async def test_a_policy_outlives_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(LOCALHOST))
    async with Ircd(Options(caps=f"{CAPS} sts=duration=600"), tls=server_context()) as secure:
        plain = Options(caps=f"{CAPS} sts=port={secure.port},duration=9")
        async with Ircd(plain) as ircd:
            secure.faults.drop_on = (
                "NICK"  # never welcomed: what the list of capabilities says is enough
            )
            async with running(ircd) as run:
                await run.until(lambda: bool(run.cursors))
            assert len(ircd.clients) == 1
            for cursor, clear in ((run.cursor, 1), (None, 2)):
                again = Running(IrcChannel(NAME, config(ircd.port), SystemClock(), cursor=cursor))
                await again.up()
                await again.end()
                assert len(ircd.clients) == clear, "the first connection is over TLS, too"


async def test_a_server_that_wants_tls_gets_it_and_nothing_more_in_the_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(LOCALHOST))
    clock = ManualClock()
    async with Ircd(_options(caps=f"{CAPS} sasl sts=duration=600"), tls=server_context()) as secure:
        plain = _options(caps=f"{CAPS} sasl sts=port={secure.port},duration=9")
        async with Ircd(plain) as ircd, running(ircd, clock, sasl=SASL) as run:
            await run.up()
            assert [line.split()[0] for line in ircd.lines] == ["CAP", "NICK", "USER", "QUIT"]
            secure.clients[0].drop()
            await run.until_advancing(clock, lambda: len(secure.clients) == 2)
            assert len(ircd.clients) == 1, "remembered"


async def test_tls_that_fails_is_not_given_up_for_the_clear() -> None:
    clock = ManualClock()
    async with (
        Ircd(tls=server_context()) as secure,
        Ircd(Options(caps=f"{CAPS} sts=port={secure.port}")) as ircd,
        running(ircd, clock) as run,
    ):
        await run.until(lambda: run.links == [False])
        for _ in range(20):
            clock.advance(10)
            await _steps()
        assert len(ircd.clients) == 1
        assert not any("JOIN" in line for line in ircd.lines)


async def _steps() -> None:
    for _ in range(5):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("rejoin", [False, True])
async def test_thrown_out_we_come_back_only_if_allowed(rejoin: bool) -> None:
    clock = ManualClock()
    async with (
        Ircd() as ircd,
        running(ircd, clock, rejoin_after_kick=rejoin, rooms=["#Room"]) as run,
    ):
        await run.up()
        bot = ircd.clients[0]
        bot.send(":op!o@h KICK #room reverie :out")
        await settled(bot, "out")
        ircd.rooms["#room"].clear()
        for number in range(6):
            clock.advance(10)
            await settled(bot, f"t{number}")
        assert [line for line in ircd.lines if line.startswith("JOIN")] == ["JOIN #Room"] * (
            1 + rejoin
        )
        bot.drop()
        await run.until_advancing(clock, lambda: run.links.count(True) == 2)
        joins = [line for line in ircd.clients[1].lines if line.startswith("JOIN")]
        assert joins == (["JOIN #Room"] if rejoin else [])
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
            ("#a,#b", "not a room"),
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
    ("code", "after_s"), [("477", 60), ("489", 60), ("473", 900), ("475", 900), ("471", 900)]
)
async def test_rooms_that_keep_us_out_are_tried_again(code: str, after_s: int) -> None:
    clock, options = ManualClock(), Options(refused={"#room": code})
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.up()
        tried: list[int] = []
        for second in range(0, 2 * after_s + 40, 10):
            clock.advance(10)
            await settled(ircd.clients[0], f"t{second}")
            tried.append(sum(line.startswith("JOIN") for line in ircd.lines))
        assert tried[after_s // 10 - 2] == 1
        assert tried[after_s // 10 + 2] == 2
        assert tried[-1] == 2, "the wait doubles"
        options.refused = {}
        for second in range(0, 2 * after_s, 10):
            clock.advance(10)
            await settled(ircd.clients[0], f"u{second}")
        assert (await ircd.joined("reverie", "#room")).nick == "reverie"


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
        why = run.channel.join_refusal(RoomId("#Room")).partition("; next attempt")[0]
        assert re.search(remedy, why)
        assert why in caplog.text
        assert "old-key" not in caplog.text


@pytest.mark.parametrize("isupport", [(), ("MONITOR=100",)])
async def test_a_nick_that_is_forced_on_us_is_taken_back_later_each_time(
    isupport: tuple[str, ...],
) -> None:
    """An operator's SANICK, or services that enforce the owner of a nick."""
    clock = ManualClock()
    async with Ircd(Options(isupport=isupport)) as ircd, running(ircd, clock) as run:
        await run.up()
        bot = ircd.clients[0]
        asked = ircd.lines.count("NICK reverie")
        for wait_s in (60, 120, 240):
            forced = f"Guest{wait_s}"
            bot.send(f":reverie!reverie@test.host NICK :{forced}")
            bot.nick = forced
            bot.send(f":irc.test 731 {forced} :reverie")  # it is free, as we know
            await settled(bot, f"forced {wait_s}")
            assert forced in run.channel.account_problem()
            for _ in range(wait_s // 10 - 1):
                clock.advance(10)
                await settled(bot, f"{clock.monotonic()}")
            assert ircd.lines.count("NICK reverie") == asked
            clock.advance(20)
            await ircd.until(lambda: bot.nick == "reverie")
            await settled(bot, f"back {wait_s}")
            asked += 1
            assert ircd.lines.count("NICK reverie") == asked
            assert run.channel.account_problem() == ""
            assert run.channel.nick == "reverie"


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
