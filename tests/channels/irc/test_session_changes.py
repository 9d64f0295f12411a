"""Capabilities that come and go, TLS that is asked for, rooms, invitations, nicks and splits."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from channels.base import Denied, Rejected, Unreachable
from channels.irc.channel import IrcChannel
from channels.irc.tls import StsPolicy, sts_port
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import Address, ConnectionChanged, MembershipChanged, RoomId
from tests.channels.irc.channel_kit import NAME, Running, config, part, running, settled
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import CAPS, MODERN, Options
from tests.servers.ircd_tls import LOCALHOST, server_context

SASL = {"mechanism": "plain", "account": "rev", "password": "hush"}


def _options(**changes: Any) -> Options:
    return Options(**({"caps": CAPS + " sasl=PLAIN", "sasl": {"rev": "hush"}} | changes))


def _memberships(run: Running) -> list[tuple[str, str, str, str | None]]:
    return [(e.change, e.at.room, e.sender.name, e.text) for e in run.seen if isinstance(e, MembershipChanged)]


@story
async def test_all_that_is_handled_is_requested_and_sts_never() -> None:
    async with Ircd(Options(caps=MODERN + " sts=duration=1")) as ircd, running(ircd) as run:
        await run.up()
        assert ircd.clients[0].caps == {name.partition("=")[0] for name in MODERN.split()}


@story
async def test_what_is_newly_offered_is_requested_and_what_is_gone_is_not_relied_on() -> None:
    options = Options(caps=CAPS.replace("account-tag ", ""), isupport=("WHOX",), accounts={"al": "al"})
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
        bot.raw(b"@account=fake :al!a@h PRIVMSG #room :three\r\n:al!a@h ACCOUNT *\r\n:al!a@h PRIVMSG #room :four\r\n")
        await run.message(4)
        assert [m.sender.account for m in run.messages] == ["al", None, "al", None]


@story
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


@story
async def test_a_password_that_was_changed_is_not_guessed_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    clock, options = ManualClock(), _options()
    async with Ircd(options) as ircd, running(ircd, clock, sasl=SASL) as run:
        await run.up()
        options.sasl_fails = "904"
        ircd.clients[0].drop()
        await run.until_advancing(clock, run.task.done)
        with pytest.raises(Denied, match="3 times in a row"):
            await run.task
        assert len(ircd.clients) == 4
        waits = [float(found) for found in re.findall(r"next attempt in ([0-9.]+) s", caplog.text)]
        assert waits == [1.0, 60.0, 60.0]


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
    assert (port(189), port(190)) == (6697, None), "from the end of the connection the time runs anew"
    policy.record_policy("a", 6697, "duration=0", start)
    assert (policy.tls_port("a", start), policy.serialized) == (None, "")
    policy.record_policy("a", 6697, "duration=9999999999", start)
    assert port(1e8) == 6697
    assert [sts_port(value) for value in ("port=99999,duration=x", "", "port=x", "duration=1,port=6697")] == [
        0,
        0,
        0,
        6697,
    ]
    for odd in ("a,b,c,d", "a,6697,60", "a,6697,60,2026-01-01", "a,99999,60,2026-01-01T00:00:00+00:00", ",,,"):
        assert StsPolicy(odd).tls_port("a", start - timedelta(days=1)) is None


@story
async def test_a_policy_outlives_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(LOCALHOST))
    async with Ircd(Options(caps=f"{CAPS} sts=duration=600"), tls=server_context()) as secure:
        plain = Options(caps=f"{CAPS} sts=port={secure.port},duration=9")
        async with Ircd(plain) as ircd:
            secure.faults.drop_on = "NICK"  # never welcomed: what the list of capabilities says is enough
            async with running(ircd) as run:
                await run.until(lambda: bool(run.cursors))
            assert len(ircd.clients) == 1
            for cursor, clear in ((run.cursor, 1), (None, 2)):
                again = Running(IrcChannel(NAME, config(ircd.port), SystemClock(), cursor=cursor))
                await again.up()
                await again.end()
                assert len(ircd.clients) == clear, "the first connection is over TLS, too"


@story
async def test_after_error_we_hang_up_and_do_not_wait_for_the_server() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        ircd.faults.silent = True
        ircd.clients[0].send("ERROR :Closing link (be gone)")
        await run.until(lambda: run.links == [True, False])
        assert "be gone" in next(
            event.reason for event in run.seen if isinstance(event, ConnectionChanged) and not event.up
        )


@story
async def test_a_server_that_wants_tls_gets_it_and_nothing_more_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
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


@story
async def test_tls_that_fails_is_not_given_up_for_the_clear() -> None:
    clock = ManualClock()
    async with (
        Ircd(tls=server_context()) as secure,
        Ircd(Options(caps=f"{CAPS} sts=port={secure.port}")) as ircd,
        running(ircd, clock) as run,
    ):
        await run.until(lambda: run.links == [False])
        for _ in range(100):
            clock.advance(10)
            await _steps()
        assert len(ircd.clients) == 1
        assert not any("JOIN" in line for line in ircd.lines)


async def _steps() -> None:
    for _ in range(5):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("rejoin", [False, True])
@story
async def test_thrown_out_we_come_back_only_if_allowed(rejoin: bool) -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, rejoin_after_kick=rejoin, rooms=["#Room"]) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(":op!o@h KICK #room reverie :out")
        await settled(bot, "out")
        ircd.rooms["#room"].clear()
        for number in range(6):
            clock.advance(10)
            await settled(bot, f"t{number}")
        assert [line for line in ircd.lines if line.startswith("JOIN")] == ["JOIN #Room"] * (1 + rejoin)
        bot.drop()
        await run.until_advancing(clock, lambda: run.links.count(True) == 2)
        joins = [line for line in ircd.clients[1].lines if line.startswith("JOIN")]
        assert joins == (["JOIN #Room"] if rejoin else [])
        await run.channel.join(Address(channel=NAME, room=RoomId("#Room")))
        assert "JOIN #Room" in ircd.clients[1].lines


@story
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
        assert (invite.change, invite.at.room, invite.sender.account, invite.sender.verified, invite.subject) == (
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
        for room, says in (("#no", "473"), ("nobody", "not a room"), ("#a,#b", "not a room"), ("#a b", "not a room")):
            with pytest.raises(Rejected, match=says):
                await run.channel.join(Address(channel=NAME, room=RoomId(room)))


@pytest.mark.parametrize(("code", "after_s"), [("477", 60), ("489", 60), ("473", 900), ("475", 900), ("471", 900)])
@story
async def test_rooms_that_keep_us_out_are_tried_again(code: str, after_s: int) -> None:
    clock, options = ManualClock(), Options(refused={"#room": code})
    async with Ircd(options) as ircd, running(ircd, clock, ping_interval="10h") as run:
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


@story
async def test_the_server_watches_for_our_nick() -> None:
    options = Options(taken={"reverie"}, isupport=("MONITOR=100",))
    clock = ManualClock()
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        bot = await ircd.joined("reverie_", "#room")
        await run.up()
        await ircd.received(r"MONITOR \+ reverie")
        clock.advance(130)
        await settled(bot, "t")
        assert "NICK reverie" not in bot.lines[4:]
        options.taken.clear()
        bot.send(":irc.test 731 reverie_ :reverie")
        await ircd.until(lambda: bot.nick == "reverie")
        await ircd.received("MONITOR - reverie")


@story
async def test_splits_are_quiet_and_people_stay_right() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        for nick in ("al", "bo", "cy", "di"):
            bot.send(f":{nick}!x@h JOIN #room {nick} :real")
        for line in (
            ":irc.test BATCH +s netsplit a.test b.test",
            "@batch=s :al!x@h QUIT :a.test b.test",
            ":irc.test BATCH -s",
            ":bo!x@h QUIT :*.net *.split",
            ":cy!x@h QUIT :Quit: a.b c.d",
            ":di!x@h QUIT :bye now",
            ":bo!x@h JOIN #room bo :real",
            ":irc.test BATCH +j netjoin a.test b.test",
            "@batch=j :al!x@h JOIN #room al :real",
            ":irc.test BATCH -j",
            ":bo!x@h PART #room :really",
            ":bo!x@h JOIN #room bo :real",
        ):
            bot.send(line)
        await settled(bot, "told")
        assert _memberships(run)[4:] == [
            ("part", "#room", "cy", "Quit: a.b c.d"),
            ("part", "#room", "di", "bye now"),
            ("part", "#room", "bo", "really"),
            ("join", "#room", "bo", None),
        ]
        session = run.channel._session
        assert session is not None
        here = {nick for nick in ("al", "bo", "cy", "di") if session.users.shared_rooms(nick)}
        assert here == {"al", "bo"}


@story
async def test_ctcp_says_what_we_are_and_nothing_else() -> None:
    async with Ircd() as ircd, running(ircd, source="https://example.org/reverie") as run:
        await run.up()
        bot = ircd.clients[0]
        for request in ("SOURCE", "CLIENTINFO", "USERINFO", "DCC SEND x"):
            bot.send(f":al!a@h PRIVMSG reverie :\x01{request}\x01")
        await ircd.received("NOTICE", times=2)
        await settled(bot, "t")
        assert [line for line in ircd.lines if line.startswith("NOTICE")] == [
            "NOTICE al :\x01SOURCE https://example.org/reverie\x01",
            "NOTICE al :\x01CLIENTINFO ACTION CLIENTINFO PING SOURCE VERSION\x01",
        ]
