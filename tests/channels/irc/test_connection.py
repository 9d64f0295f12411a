"""The connection, with TLS and without: lost, silent, hostile, made again, and ended by us."""

import asyncio
import contextlib
import hashlib
import re
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.base import Denied
from channels.irc.channel import IrcChannel
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import ConnectionChanged
from reverie.testing.servers.ircd import LOCALHOST, WRONG, Ircd, Options, server_context
from reverie.testing.stopwatch import Stopwatch
from tests.channels.irc.channel_kit import (
    NAME,
    Running,
    config,
    part,
    running,
    sent_together,
    settled,
)


async def test_silence_is_noticed(ircd: Ircd, run: Running, clock: ManualClock) -> None:
    ircd.faults.silent = True
    clock.advance(61)
    await ircd.received("PING")
    clock.advance(31)
    await run.until(lambda: run.links == [True, False])
    assert [event.reason for event in run.seen if isinstance(event, ConnectionChanged)][
        1
    ] == "nothing heard for 90 s"


def _waits(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"next attempt in ([0-9.]+) s", text)]


async def test_the_channel_backs_off_and_begins_anew_after_a_connection_that_worked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, chance=lambda: 1.0) as run:
        await run.up()
        await ircd.stop()
        for number in range(1, 9):
            await run.until_advancing(clock, lambda n=number: len(_waits(caplog.text)) >= n)  # type: ignore[misc]
        assert _waits(caplog.text)[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
        assert run.links == [True, False]
        await ircd.start()
        await run.until_advancing(clock, lambda: run.links[-1])
        caplog.clear()
        for number in range(1, 8):  # an hour of bad network
            clock.advance(8)
            await settled(ircd.clients[-1], f"t{number}")
            ircd.clients[-1].drop()
            await run.until(lambda n=number: len(_waits(caplog.text)) == n)  # type: ignore[misc]
            await run.until_advancing(clock, lambda: run.links[-1])
        assert _waits(caplog.text) == [5.0] * 7


async def test_a_dead_address_of_the_host_keeps_nobody_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Ircd() as ircd:
        with socket.socket() as dead, socket.socket() as first:
            dead.bind(("127.0.0.2", ircd.port))
            dead.listen(0)
            first.connect(dead.getsockname())  # who comes next gets no answer
            addresses = [
                (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)
                for address in (dead.getsockname(), ("127.0.0.1", ircd.port))
            ]
            found = asyncio.get_running_loop().create_future()
            found.set_result(addresses)
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lambda *_, **__: found)
            async with running(ircd, host="localhost") as run:
                await run.up()


async def test_a_room_with_a_key_is_joined_with_it() -> None:
    rooms = ["#room", {"name": "#Staff", "key": "hush"}, "#two"]
    async with Ircd() as ircd, running(ircd, rooms=rooms) as run:
        await run.up()
        assert [line for line in ircd.lines if line.startswith("JOIN")] == [
            "JOIN #Staff,#room,#two hush"
        ]
        assert "hush" not in repr(config(1, rooms=rooms))


@pytest.mark.parametrize(
    ("given", "kept"), [(None, {"#b"}), ({"#c": "d"}, {"#b", "#c"}), (["x"], None)]
)
def test_keys_of_rooms_stand_beside_those_under_keys(given: object, kept: set[str] | None) -> None:
    rooms = ["#a", {"name": "#b", "key": "hush"}]
    if kept is None:
        with pytest.raises(ValueError, match="valid dict"):
            config(1, rooms=rooms, keys=given)
    else:
        assert config(1, rooms=rooms, keys=given).keys.keys() == kept


@pytest.mark.parametrize(
    "room", [{"name": "#a"}, {"name": "a", "key": "b"}, {"name": "#a", "key": "b c"}]
)
def test_a_key_that_cannot_be_sent_is_refused(room: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"a room with a key|is not an IRC channel|cannot be sent"):
        config(1, rooms=[room])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(banned=True), "banned"),
        (Options(password="x"), "password"),
        (Options(nick_length=3), "does not allow the nick"),
    ],
)
async def test_a_ban_and_a_wrong_password_end_the_channel(options: Options, says: str) -> None:
    async with Ircd(options) as ircd, running(ircd) as run:
        with pytest.raises(Denied, match=says):
            await run.task
        assert (run.links, len(ircd.clients)) == ([False], 1)


async def test_a_room_that_does_not_answer_does_not_keep_us_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    async with (
        Ircd(Options(deaf=frozenset({"#two"}))) as ircd,
        running(ircd, clock, rooms=["#room", "#two"]) as run,
    ):
        await ircd.joined("reverie", "#room")
        await settled(ircd.clients[0], "joined")
        clock.advance(9.9)
        await settled(ircd.clients[0], "soon")
        assert not run.links
        clock.advance(0.2)
        await run.up()
        assert "did not answer our JOIN" in caplog.text


async def test_a_server_that_does_not_welcome_us_is_left() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        ircd.faults.silent = True
        await ircd.received("USER")
        await run.until_advancing(clock, lambda: run.links == [False])
        assert [event.reason for event in run.seen if isinstance(event, ConnectionChanged)] == [
            "the server did not welcome us in time"
        ]


async def test_unanswered_pings_end_the_connection_though_others_talk(
    ircd: Ircd, run: Running, clock: ManualClock
) -> None:
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
    assert (await sending).ids, "it was echoed, so it was said"
    await run.until(lambda: run.links == [True, False])


@pytest.mark.parametrize(
    ("token", "sent"), [("BOT=B", ["MODE reverie +B"]), ("BOT=", []), ("BOTS=B", [])]
)
async def test_we_say_that_we_are_a_bot_where_there_is_a_mode_for_it(
    token: str, sent: list[str]
) -> None:
    clock = ManualClock()
    async with Ircd(Options(isupport=("CHANTYPES=#", token))) as ircd, running(ircd, clock) as run:
        for number in (1, 2):
            await run.until_advancing(clock, lambda n=number: run.links.count(True) == n)  # type: ignore[misc]
            lines = ircd.clients[-1].lines
            assert [line for line in lines if line.startswith("MODE reverie")] == sent
            assert not sent or lines.index(sent[0]) < lines.index("JOIN #room")
            ircd.clients[-1].drop()


TLS = {"ca_file": str(LOCALHOST)}


async def _cancel(run: Running) -> float:
    """Seconds that it took."""
    with Stopwatch() as watch:
        run.task.cancel()
        done, _ = await asyncio.wait({run.task}, timeout=30)
    assert done
    assert run.task.cancelled()
    return watch.seconds


def _sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("socket:")}


@contextlib.asynccontextmanager
async def _served(tls: bool) -> AsyncIterator[tuple[Ircd, dict[str, Any]]]:
    async with Ircd(tls=server_context() if tls else None) as ircd:
        yield ircd, {"tls": TLS if tls else False}


@pytest.mark.parametrize("silent", [False, True])
async def test_what_was_heard_before_is_still_told(silent: bool, ircd: Ircd, run: Running) -> None:
    run.open.clear()
    bot = ircd.clients[0]
    for number in range(600):
        bot.send(f":al!a@h PRIVMSG #room :{number}")
    bot.send("PING :read")
    await ircd.received("PONG :read")
    ircd.faults.silent = silent
    run.task.cancel()
    await asyncio.sleep(0)
    run.open.set()
    await asyncio.wait({run.task}, timeout=30)
    assert [message.text for message in run.messages] == [str(number) for number in range(600)]


@pytest.mark.parametrize("tls", [False, True])
async def test_cancelled_at_any_step_of_connecting_leaves_no_socket(tls: bool) -> None:
    async with _served(tls) as (ircd, changes):
        # The names are looked up and the library imported once before: their sockets and threads
        # are not ours.
        async with running(ircd, **changes) as run:
            await run.up()
        await ircd.until(lambda: all(client.closed for client in ircd.clients))
        before, tasks = _sockets(), asyncio.all_tasks()
        for steps in range(40):
            channel = IrcChannel(NAME, config(ircd.port, **changes), SystemClock())
            run = Running(channel)
            for _ in range(steps):
                await asyncio.sleep(0)
            assert await _cancel(run) < 1
            assert channel._inbox.connection is None
        await ircd.until(lambda: all(client.closed for client in ircd.clients))
        for _ in range(200):
            if _sockets() <= before and asyncio.all_tasks() <= tasks:
                break
            await asyncio.sleep(0.01)
        assert _sockets() <= before
        assert asyncio.all_tasks() <= tasks


_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE.*?END CERTIFICATE-----\n", re.DOTALL)


def _told(run: Running) -> str:
    return " ".join(
        event.reason or "" for event in run.seen if isinstance(event, ConnectionChanged)
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_certificate_of_a_known_root_is_accepted(host: str) -> None:
    async with (
        Ircd(tls=server_context()) as ircd,
        running(ircd, host=host, tls={"ca_file": str(LOCALHOST)}) as run,
    ):
        await run.up()
        await run.channel.send(part("hello"))
        await ircd.say("#room", "reverie: hi")
        assert (await run.message()).kind == "mention"


@pytest.mark.parametrize(
    ("pem", "tls"),
    [
        (LOCALHOST, True),
        (LOCALHOST, {"verify": True}),
        (LOCALHOST, {"ca_file": str(WRONG)}),
        (WRONG, {"ca_file": str(WRONG)}),  # the root is known, the name is another's
    ],
)
async def test_any_other_certificate_is_refused_before_a_word_is_said(pem: Path, tls: Any) -> None:
    clock = ManualClock()
    async with (
        Ircd(tls=server_context(pem)) as ircd,
        running(ircd, clock, tls=tls, password="hush") as run,
    ):
        await run.until(lambda: run.links == [False])
        assert "certificate verify failed" in _told(run)
        assert not ircd.lines
        assert not run.task.done()


def _fingerprint(pem: Path) -> str:
    return hashlib.sha256(
        ssl.PEM_cert_to_DER_cert(_CERTIFICATE.findall(pem.read_text())[0])
    ).hexdigest()


async def test_a_certificate_with_a_listed_fingerprint_is_accepted_and_no_other() -> None:
    listed = ":".join(re.findall("..", _fingerprint(WRONG).upper()))
    clock = ManualClock()
    async with (
        Ircd(tls=server_context(WRONG)) as ircd,
        running(ircd, tls={"fingerprints": [listed]}) as run,
    ):
        await run.up()
    async with (
        Ircd(tls=server_context(LOCALHOST)) as ircd,
        running(ircd, clock, tls={"fingerprints": [listed]}, password="hush") as run,
    ):
        await run.until(lambda: run.links == [False])
        assert _told(run).endswith(f"{_fingerprint(LOCALHOST)}, which is not in tls.fingerprints")
        assert not ircd.lines


@pytest.mark.parametrize("pem", [LOCALHOST, WRONG])
async def test_verification_can_be_switched_off(pem: Path) -> None:
    async with Ircd(tls=server_context(pem)) as ircd, running(ircd, tls={"verify": False}) as run:
        await run.up()


@pytest.mark.parametrize("tls", [{"ca_file": "/nowhere.pem"}, {"cert_file": "/nowhere.pem"}])
async def test_a_missing_file_is_the_operators_to_mend(tls: dict[str, str]) -> None:
    async with Ircd(tls=server_context()) as ircd, running(ircd, tls=tls) as run:
        with pytest.raises(Denied, match="TLS files"):
            await run.task
        await asyncio.sleep(0)
        assert not ircd.clients


GOODBYES = {
    "killed on Solanum": "Closing Link: 127.0.0.1 (Killed (oper (spam)))",
    "killed on InspIRCd": "Closing link: (bot@127.0.0.1) [Killed (oper (spam))]",
    "killed on ngIRCd": "KILLed by oper: spam",
    "banned": "Closing Link: 127.0.0.1 (K-Lined)",
    "banned on InspIRCd": "Closing link: (bot@127.0.0.1) [G-lined: spam]",
    "banned on UnrealIRCd": "Closing Link: [127.0.0.1] (User has been banned from Net (spam))",
}


@pytest.mark.parametrize("goodbye", GOODBYES.values(), ids=GOODBYES)
async def test_who_is_thrown_off_by_the_network_does_not_come_back_at_once(
    goodbye: str, ircd: Ircd, run: Running
) -> None:
    ircd.clients[0].send(f"ERROR :{goodbye}")
    with pytest.raises(Denied, match="thrown off the network"):
        await run.task
    assert run.links == [True, False]


@pytest.mark.parametrize(
    "goodbye", ["Closing Link: (Server shutting down)", "Killed (irc.test (Nick collision))"]
)
async def test_a_server_that_restarts_throws_nobody_off(goodbye: str) -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        ircd.clients[0].send(f"ERROR :{goodbye}")
        ircd.clients[0].drop_after_flush()
        await run.until_advancing(clock, lambda: run.links == [True, False, True])


async def test_each_excess_flood_halves_the_pace() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 4, "per_s": 1}) as run:
        for number, at_once in enumerate((4, 2, 1), 1):
            await run.until_advancing(clock, lambda: run.links.count(True) == number)  # noqa: B023 - run at once
            bot = ircd.clients[-1]
            # After ten seconds the modes of the room are asked for, and that is paced, too.
            for second in range(19):
                clock.advance(1)
                await settled(bot, f"{number}.{second}")
            sending = asyncio.create_task(sent_together(run, [part(str(one)) for one in range(6)]))
            await ircd.until(lambda: sum("PRIVMSG" in one for one in bot.lines) >= at_once)  # noqa: B023 - run at once
            await settled(bot, f"{number}.said")
            assert sum("PRIVMSG" in line for line in bot.lines) == at_once
            bot.send("ERROR :Closing Link: 127.0.0.1 (Excess Flood)")
            await sending
