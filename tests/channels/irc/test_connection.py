"""The connection, with TLS and without: lost, silent, hostile, made again, and ended by us."""

import asyncio
import contextlib
import hashlib
import random
import re
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.base import CanType, Denied, RateLimited, Uncertain
from channels.irc.channel import IrcChannel
from channels.irc.compose import HostmaskTracker
from channels.irc.config import IrcRateLimit
from channels.irc.outgoing import FloodPace, SendWindow
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import Address, ConnectionChanged, Receipt, RoomId
from gateway.core.ratelimit import Rate
from tests.channels.irc.channel_kit import NAME, Running, config, features, never_answered, part, running, settled
from tests.kits.stopwatch import Stopwatch
from tests.servers.ircd import CAPS, LOCALHOST, MODERN, WRONG, Ircd, Options, server_context


async def test_silence_is_noticed(ircd: Ircd, run: Running, clock: ManualClock) -> None:
    ircd.faults.silent = True
    clock.advance(61)
    await ircd.received("PING")
    clock.advance(31)
    await run.until(lambda: run.links == [True, False])
    assert [event.reason for event in run.seen if isinstance(event, ConnectionChanged)][1] == "nothing heard for 90 s"


async def test_cancel_says_goodbye_and_leaves_nothing(ircd: Ircd, run: Running) -> None:
    ircd.faults.hold_pongs = True
    sending = asyncio.create_task(run.channel.send(part("x")))
    await ircd.received("PRIVMSG")
    others = asyncio.all_tasks() - {run.task}
    run.task.cancel()
    await asyncio.wait({run.task})
    await ircd.received("QUIT :goodbye")
    with pytest.raises(Uncertain):
        await sending
    assert asyncio.all_tasks() <= others


async def test_a_hostile_stream_does_not_end_or_use_the_connection(ircd: Ircd, run: Running) -> None:
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


async def test_a_connection_that_is_cut_at_once_has_not_worked(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, chance=lambda: 1.0) as run:
        for number in range(1, 5):
            await run.until_advancing(clock, lambda n=number: run.links.count(True) == n)  # type: ignore[misc]
            ircd.clients[-1].drop()
            await run.until(lambda n=number: run.links.count(False) == n)  # type: ignore[misc]
        await run.until(lambda: len(_waits(caplog.text)) == 4)
        assert _waits(caplog.text) == [1, 2, 4, 8]


async def test_a_room_with_a_key_is_joined_with_it() -> None:
    rooms = ["#room", {"name": "#Staff", "key": "hush"}, "#two"]
    async with Ircd() as ircd, running(ircd, rooms=rooms) as run:
        await run.up()
        assert [line for line in ircd.lines if line.startswith("JOIN")] == ["JOIN #Staff,#room,#two hush"]
        assert "hush" not in repr(config(1, rooms=rooms))


async def test_a_new_key_is_tried_at_once() -> None:
    async with Ircd(Options(refused={"#room": "475"})) as ircd, running(ircd, rooms=["#room", "#two"]) as run:
        await run.up()
        assert run.channel.apply_config(config(ircd.port, rooms=["#room", "#two"], keys={"#ROOM": "hush"}))
        await ircd.received("JOIN #room hush")
        assert ircd.lines[-1] == "JOIN #room hush"


@pytest.mark.parametrize(("given", "kept"), [(None, {"#b"}), ({"#c": "d"}, {"#b", "#c"}), (["x"], None)])
def test_keys_of_rooms_stand_beside_those_under_keys(given: object, kept: set[str] | None) -> None:
    rooms = ["#a", {"name": "#b", "key": "hush"}]
    if kept is None:
        with pytest.raises(ValueError, match="valid dict"):
            config(1, rooms=rooms, keys=given)
    else:
        assert config(1, rooms=rooms, keys=given).keys.keys() == kept


@pytest.mark.parametrize("room", [{"name": "#a"}, {"name": "a", "key": "b"}, {"name": "#a", "key": "b c"}])
def test_a_key_that_cannot_be_sent_is_refused(room: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"a room with a key|is not an IRC channel|cannot be sent"):
        config(1, rooms=[room])


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
async def test_a_ban_and_a_wrong_password_end_the_channel(options: Options, says: str) -> None:
    async with Ircd(options) as ircd, running(ircd) as run:
        with pytest.raises(Denied, match=says):
            await run.task
        assert (run.links, len(ircd.clients)) == ([False], 1)


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
    with pytest.raises(Uncertain, match="does not answer PING"):
        await sending
    await run.until(lambda: run.links == [True, False])


@pytest.mark.parametrize(("token", "sent"), [("BOT=B", ["MODE reverie +B"]), ("BOT=", []), ("BOTS=B", [])])
async def test_we_say_that_we_are_a_bot_where_there_is_a_mode_for_it(token: str, sent: list[str]) -> None:
    clock = ManualClock()
    async with Ircd(Options(isupport=("CHANTYPES=#", token))) as ircd, running(ircd, clock) as run:
        for number in (1, 2):
            await run.until_advancing(clock, lambda n=number: run.links.count(True) == n)  # type: ignore[misc]
            lines = ircd.clients[-1].lines
            assert [line for line in lines if line.startswith("MODE reverie")] == sent
            assert not sent or lines.index(sent[0]) < lines.index("JOIN #room")
            ircd.clients[-1].drop()


async def test_we_are_marked_as_a_bot_under_the_nick_we_got() -> None:
    options = Options(isupport=("BOT=b",), taken={"reverie"}, caps=CAPS)
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        assert "MODE reverie_ +b" in ircd.lines


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


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("silent", [False, True])
async def test_ends_within_a_second_with_no_task_left(tls: bool, silent: bool) -> None:
    async with _served(tls) as (ircd, changes), running(ircd, **changes) as run:
        before = asyncio.all_tasks() - {run.task}
        await run.up()
        others = {task for task in asyncio.all_tasks() if "serve" in repr(task) or "_accept" in repr(task)}
        ircd.faults.silent = silent
        assert await _cancel(run) < 1
        assert asyncio.all_tasks() <= before | others
        await ircd.received("QUIT :goodbye")


async def test_ends_also_when_emit_is_blocked_and_the_server_silent(ircd: Ircd, run: Running) -> None:
    run.open.clear()
    await ircd.say("#room", "never told")
    ircd.faults.silent = True
    assert await _cancel(run) < 2
    assert not run.messages


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


async def test_what_was_heard_before_is_still_told_when_there_is_nobody_to_say_goodbye_to() -> None:
    async with Ircd() as ircd, running(ircd, ManualClock()) as run:
        await run.up()
        run.open.clear()
        await ircd.say("#room", "the last thing")
        await settled(ircd.clients[0], "read")
        ircd.clients[0].drop()
        while run.channel._inbox.connection is not None:
            await asyncio.sleep(0)
        run.task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        run.open.set()
        await asyncio.wait({run.task}, timeout=30)
        assert [message.text for message in run.messages] == ["the last thing"]
        assert run.links == [True, False]


async def test_what_is_heard_during_the_goodbye_is_told_too(ircd: Ircd, run: Running) -> None:
    bot = ircd.clients[0]
    ircd.faults.silent = True
    run.task.cancel()
    await ircd.received("QUIT")
    bot.send(":al!a@h PRIVMSG #room :one last thing")
    bot.drop_after_flush()
    await asyncio.wait({run.task}, timeout=30)
    assert [message.text for message in run.messages] == ["one last thing"]


@pytest.mark.parametrize("tls", [False, True])
async def test_cancelled_at_any_step_of_connecting_leaves_no_socket(tls: bool) -> None:
    async with _served(tls) as (ircd, changes):
        # The names are looked up and the library imported once before: their sockets and threads are not ours.
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


async def test_an_impatient_second_cancel_leaves_no_socket(ircd: Ircd, run: Running) -> None:
    ircd.faults.silent = True
    run.task.cancel()
    await ircd.received("QUIT")
    assert await _cancel(run) < 0.5
    await ircd.until(lambda: ircd.clients[0].closed)


NO_ECHO = CAPS.replace("echo-message ", "")
ROOM = Address(channel=NAME, room=RoomId("#room"))


def _reasons(run: Running) -> list[str]:
    return [event.reason or "" for event in run.seen if isinstance(event, ConnectionChanged) and not event.up]


async def test_a_server_that_forgets_labels_is_asked_by_ping_from_then_on() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd, clock) as run:
        await run.up()
        await never_answered(ircd, run, clock)
        await run.channel.send(part("b"))
        assert ircd.lines[-2:] == ["PRIVMSG #room :b", "PING reverie-2"]


@pytest.mark.parametrize("answer", ["421 reverie TAGMSG :Unknown command", "FAIL TAGMSG UNKNOWN_COMMAND :no"])
async def test_typing_is_not_shown_again_to_a_server_that_does_not_know_it(
    answer: str, ircd: Ircd, run: Running, clock: ManualClock
) -> None:
    assert isinstance(run.channel, CanType)
    await run.channel.typing(ROOM, active=True)
    await ircd.received("@.typing=active TAGMSG #room")
    ircd.clients[0].send(f":irc.test {answer}" if answer[0] == "4" else answer)
    await settled(ircd.clients[0], "told")
    clock.advance(30)
    await run.channel.typing(ROOM, active=True)
    await run.channel.send(part("hi"))
    assert sum("TAGMSG" in line for line in ircd.lines) == 1


@pytest.mark.parametrize("stray", ["411 reverie :No recipient given", "417 reverie :Input line was too long"])
async def test_a_refusal_that_comes_while_nothing_waits_is_about_nothing_of_ours(stray: str) -> None:
    async with Ircd(Options(caps=NO_ECHO)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].send(f":irc.test {stray}")
        await settled(ircd.clients[0], "told")
        await run.channel.send(part("hi"))


@pytest.mark.parametrize("caps", [NO_ECHO, MODERN])
@pytest.mark.parametrize(
    ("said", "wait_s"),
    [("Target change too fast. Please wait 104 seconds.", 104), ("Message target change too fast", 120)],
)
async def test_too_many_targets_in_too_short_a_time_is_a_matter_of_waiting(caps: str, said: str, wait_s: int) -> None:
    options = Options(caps=caps, muted={"#room": "439"}, muted_reason=said)
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        with pytest.raises(RateLimited, match="too fast") as raised:
            await run.channel.send(part("hi"))
        assert raised.value.retry_after_s == wait_s
        options.muted = {}
        await run.channel.send(part("hi"))


def test_a_window_without_lines_has_nothing_to_refuse() -> None:
    window: SendWindow = SendWindow()
    window.record_refusal(set(), "too long (417)", anybody=True)
    window.add_line("a", "#r", "one")
    assert [type(outcome) for outcome in window.outcomes().values()] == [Receipt]


@pytest.mark.usefixtures("clock")
async def test_the_last_words_of_the_server_are_told(ircd: Ircd, run: Running) -> None:
    ircd.clients[0].send("ERROR :Closing link: \x02Excess\x02 Flood")
    ircd.clients[0].drop_after_flush()
    await run.until(lambda: run.links == [True, False])
    assert _reasons(run) == ["the server closed the connection: Closing link: Excess Flood"]


@pytest.mark.parametrize(("token", "host_bytes"), [("HOSTLEN=100", 100), ("HOSTLEN=20", 63), ("HOSTLEN=x", 63)])
def test_an_unknown_host_counts_as_long_as_the_server_allows(token: str, host_bytes: int) -> None:
    isupport = features(token)
    frame = len(":reverie!~") + 10 + len("@") + host_bytes + len(" PRIVMSG #room :\r\n")
    assert HostmaskTracker().max_body_bytes("#room", len("reverie"), isupport) == 512 - frame
    isupport.load(["", "-HOSTLEN", ""])
    assert isupport.host_bytes == 63


async def _asks_and_does_not_read(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        for _number in range(40_000):
            writer.write(b"PING :" + b"x" * 480 + b"\r\n")
            await writer.drain()
    writer.transport.abort()


async def test_a_server_that_asks_and_does_not_read_is_left() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # A reader with a small limit stops reading at once, and nobody reads from it.
    server = await asyncio.start_server(_asks_and_does_not_read, sock=listener, limit=1024)
    async with server, running(listener.getsockname()[1], ManualClock()) as run:
        await run.until(lambda: run.links == [False])
        assert _reasons(run) == ["the server does not read what we send"]


async def test_a_server_that_hangs_up_instead_of_talking_tls_is_not_called_slow() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, running(port, ManualClock(), tls=True) as run:
        await run.until(lambda: run.links == [False])
        assert _reasons(run) == [f"cannot connect to 127.0.0.1:{port}: the server hung up"]


_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE.*?END CERTIFICATE-----\n", re.DOTALL)


def _told(run: Running) -> str:
    return " ".join(event.reason or "" for event in run.seen if isinstance(event, ConnectionChanged))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_certificate_of_a_known_root_is_accepted(host: str) -> None:
    async with Ircd(tls=server_context()) as ircd, running(ircd, host=host, tls={"ca_file": str(LOCALHOST)}) as run:
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
    async with Ircd(tls=server_context(pem)) as ircd, running(ircd, clock, tls=tls, password="hush") as run:
        await run.until(lambda: run.links == [False])
        assert "certificate verify failed" in _told(run)
        assert not ircd.lines
        assert not run.task.done()


def _fingerprint(pem: Path) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(_CERTIFICATE.findall(pem.read_text())[0])).hexdigest()


async def test_a_certificate_with_a_listed_fingerprint_is_accepted_and_no_other() -> None:
    listed = ":".join(re.findall("..", _fingerprint(WRONG).upper()))
    clock = ManualClock()
    async with Ircd(tls=server_context(WRONG)) as ircd, running(ircd, tls={"fingerprints": [listed]}) as run:
        await run.up()
    async with (
        Ircd(tls=server_context(LOCALHOST)) as ircd,
        running(ircd, clock, tls={"fingerprints": [listed]}, password="hush") as run,
    ):
        await run.until(lambda: run.links == [False])
        assert f"{_fingerprint(LOCALHOST)}, which is not in tls.fingerprints" in _told(run)
        assert not ircd.lines


@pytest.mark.parametrize("pem", [LOCALHOST, WRONG])
async def test_verification_can_be_switched_off(pem: Path) -> None:
    async with Ircd(tls=server_context(pem)) as ircd, running(ircd, tls={"verify": False}) as run:
        await run.up()


async def test_a_port_without_tls_fails_at_once_and_is_tried_again() -> None:
    clock = ManualClock()
    options = Options(greeting=b":irc.test NOTICE * :*** Looking up your hostname\r\n")
    async with Ircd(options) as ircd, running(ircd, clock, tls={"verify": False}) as run:
        await run.until(lambda: run.links == [False])
        assert "cannot connect" in _told(run)
        assert not any("NICK" in line for line in ircd.lines)
        clock.advance(1.1)
        await ircd.until(lambda: len(ircd.clients) == 2)


async def test_a_silent_port_without_tls_is_given_up_after_the_connect_timeout() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, tls={"verify": False}) as run:
        ircd.faults.silent = True
        await ircd.until(lambda: len(ircd.clients) == 1)
        clock.advance(61)
        await run.until(lambda: run.links == [False])
        assert "timeout" in _told(run)


async def test_tls_on_a_port_that_we_use_without_fails_and_is_tried_again() -> None:
    clock = ManualClock()
    async with Ircd(tls=server_context()) as ircd, running(ircd, clock, tls=False) as run:
        await run.until(lambda: run.links == [False])
        assert not run.task.done()


async def test_a_cut_over_tls_is_told_and_made_again() -> None:
    clock = ManualClock()
    tls = {"ca_file": str(LOCALHOST)}
    async with Ircd(tls=server_context()) as ircd, running(ircd, clock, tls=tls) as run:
        await run.up()
        ircd.clients[0].drop()
        await run.until(lambda: run.links == [True, False])
        clock.advance(1.1)
        await run.up(2)


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


async def test_a_kill_counts_also_where_the_server_says_no_more(ircd: Ircd, run: Running) -> None:
    ircd.clients[0].send(":oper!o@host KILL reverie :host!oper (spam)")
    ircd.clients[0].drop_after_flush()
    with pytest.raises(Denied, match=r"killed by oper: host!oper \(spam\)"):
        await run.task


@pytest.mark.parametrize("goodbye", ["Closing Link: (Server shutting down)", "Killed (irc.test (Nick collision))"])
async def test_a_server_that_restarts_throws_nobody_off(goodbye: str) -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        ircd.clients[0].send(f"ERROR :{goodbye}")
        ircd.clients[0].drop_after_flush()
        await run.until_advancing(clock, lambda: run.links == [True, False, True])


async def test_a_third_excess_flood_in_an_hour_is_the_last_of_that_hour() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        for number in range(1, 3):
            await run.until_advancing(clock, lambda: run.links.count(True) == number)  # noqa: B023 - run at once
            ircd.clients[-1].send("ERROR :Closing Link: 127.0.0.1 (Excess Flood)")
        await run.until_advancing(clock, lambda: run.links.count(True) == 3)
        ircd.clients[-1].send("ERROR :Closing Link: 127.0.0.1 (Excess Flood)")
        with pytest.raises(Denied, match="too fast: lower `flood`") as denied:
            await run.task
        assert 3000 < denied.value.retry_after_s <= 3600


def test_the_pace_halves_with_each_flood_and_recovers_by_a_tenth_an_hour() -> None:
    pace, flood = FloodPace(), IrcRateLimit(burst=4, per_s=1.0)
    assert pace.rate(flood, 0) == Rate(4, 60)
    assert pace.record_kill(0) == 0
    assert pace.rate(flood, 0) == Rate(2, 30)
    assert pace.record_kill(600) == 0
    assert pace.rate(flood, 600).per_minute == pytest.approx(30.5 / 2, abs=0.5)
    assert pace.record_kill(900) == 2700
    assert pace.rate(flood, 900).burst == 1
    assert pace.rate(flood, 900 + 3600).per_minute == pytest.approx(pace.rate(flood, 900).per_minute + 6)
    assert pace.rate(flood, 10**6) == Rate(4, 60)
    for _ in range(50):
        pace.record_kill(10**6)
    assert pace.rate(flood, 10**6).per_minute == 60 / 16
