"""Bytes that are known to break IRC clients, each alone, in both directions."""

import asyncio
import re
from datetime import UTC, datetime

import pytest

from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import Address, Post, PostKey, RoomId
from tests.channels.irc.channel_kit import NAME, part, running, settled
from tests.kits.channels import story
from tests.servers.ircd import Ircd, Options

KNOWN_TO_BREAK = {
    "latin-1 byte": b":a!b@c PRIVMSG #room :caf\xe9\r\n",
    "cut utf-8": b":a!b@c PRIVMSG #room :\xf0\x9f\x98\r\n",
    "PRIVMSG without text": b":a!b@c PRIVMSG #room\r\n",
    "PRIVMSG without anything": b":a!b@c PRIVMSG\r\n",
    "QUIT without reason": b":a!b@c QUIT\r\n",
    "a line of one space": b" \r\n",
    "an empty line": b"\r\n",
    "ISUPPORT PREFIX=": b":irc.test 005 reverie PREFIX= :are supported by this server\r\n",
    "ISUPPORT without values": b":irc.test 005 reverie CHANTYPES CASEMAPPING STATUSMSG :are supported\r\n",
    "433 after registration": b":irc.test 433 reverie other :Nickname is already in use\r\n",
    "8 KB of tags": b"@" + b"k=v;" * 2047 + b"z :a!b@c PRIVMSG #room :tags\r\n",
    "tags only": b"@" + b"k" * 8190 + b"\r\n",
    "TAGMSG": b"@+typing=active :a!b@c TAGMSG #room\r\n",
    "CTCP VERSION": b":a!b@c PRIVMSG reverie :\x01VERSION\x01\r\n",
    "CTCP without end": b":a!b@c PRIVMSG reverie :\x01VERSION\r\n",
    "CTCP of nothing": b":a!b@c PRIVMSG reverie :\x01\x01\r\n",
    "NUL": b":a!b@c PRIVMSG #room :a\x00b\r\n",
    "a line without end before the end": b"x" * 40_000 + b"\r\n",
    "LF only": b":a!b@c PRIVMSG #room :lf\n",
}


@pytest.mark.parametrize("data", KNOWN_TO_BREAK.values(), ids=KNOWN_TO_BREAK)
@story
async def test_the_connection_lives_and_the_next_mention_arrives(data: bytes) -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].raw(data)
        await ircd.say("#room", "reverie: still there?", msgid="next")
        await run.until(lambda: any(m.id == "next" and m.kind == "mention" for m in run.messages))
        assert (run.links, len(ircd.clients)) == ([True], 1)
        assert not any(line.startswith("QUIT") for line in ircd.lines)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b":a!b@c PRIVMSG #room :caf\xe9\r\n", "café"),
        (b":a!b@c PRIVMSG #room :caf\xc3\xa9\r\n", "café"),
        (b"@k=" + b"v" * 8180 + b" :a!b@c PRIVMSG #room :tags\r\n", "tags"),
        (b":a!b@c PRIVMSG #room :a\x00b\r\n", "ab"),
        (b":a!b@c PRIVMSG #room word\r\n", "word"),
        (b":a!b@c PRIVMSG #room :lf\n", "lf"),
    ],
)
@story
async def test_odd_bytes_are_read_as_what_they_mean(data: bytes, text: str) -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].raw(data)
        assert (await run.message()).text == text


@story
async def test_a_line_in_any_number_of_packets_is_one_line() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        for byte in ":a!b@c PRIVMSG #room :größer\r\n".encode():
            ircd.clients[0].raw(bytes([byte]))
            await asyncio.sleep(0)
        assert (await run.message()).text == "größer"


@story
async def test_a_mistake_of_ours_in_handling_a_line_costs_only_that_line(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(SystemClock):
        broken = False

        def now(self) -> datetime:
            if self.broken:
                self.broken = False
                raise RuntimeError("a mistake")
            return datetime.now(UTC)

    clock = Faulty()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        clock.broken = True
        await ircd.say("#room", "this one is lost")
        await ircd.say("#room", "reverie: still there?")
        assert (await run.message()).text == "reverie: still there?"
        assert run.links == [True]
        assert "a mistake" in caplog.text


@story
async def test_a_taken_nick_during_registration_is_replaced() -> None:
    async with Ircd(Options(taken={"reverie"})) as ircd, running(ircd) as run:
        await run.up()
        await ircd.say("#room", "reverie_: hi")
        assert (await run.message()).kind == "mention"


@pytest.mark.parametrize(
    ("said", "wire"),
    [
        ("hi\rQUIT :x", b"hi QUIT :x"),
        ("hi\nQUIT :x", b"hi QUIT :x"),
        ("hi\r\nQUIT :x\r\n", b"hi QUIT :x"),
        ("hi\x00QUIT :x", b"hiQUIT :x"),
        ("hi\x00\r\x00\nQUIT :x", b"hi QUIT :x"),
        ("\ud800 hi", b"? hi"),
    ],
)
@story
async def test_no_text_becomes_a_command(said: str, wire: bytes) -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        await run.channel.send(part(said))
        lines = re.split(rb"[\r\n\0]+", bytes(ircd.clients[0].wire))
        assert [line for line in lines if b"PRIVMSG" in line or b"QUIT" in line] == [b"PRIVMSG #room :" + wire]


@story
async def test_no_room_becomes_a_command() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        for room in ("#room\r\nQUIT :x", "al\rQUIT", "\nQUIT"):
            await asyncio.gather(run.channel.send(part("x", room=room)), return_exceptions=True)
        lines = re.split(rb"[\r\n\0]+", bytes(ircd.clients[0].wire))
        assert not any(line.startswith(b"QUIT") for line in lines)


async def _reader(ircd: Ircd) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", ircd.port)
    writer.write(b"NICK alice\r\nUSER alice 0 * :alice\r\nJOIN #room\r\n")
    while not (await reader.readline()).startswith(b":irc.test 366"):
        pass
    return reader, writer


@pytest.mark.parametrize("word", ["x", "xyz ", "слово ", "😀", "é"])
@pytest.mark.parametrize("size", [380, 497, 2000])
@story
async def test_what_others_get_is_whole_and_at_most_512_bytes_a_line(word: str, size: int) -> None:
    text = (word * size)[: size // len(word[0].encode())].strip()
    # The server cuts what it relays to 512 bytes, as real ones do: what is too long would be missing.
    async with Ircd(Options(host="h" * 63)) as ircd, running(ircd, username="u" * 10) as run:
        reader, writer = await _reader(ircd)
        await run.up()
        post = Post(key=PostKey("k"), to=Address(channel=NAME, room=RoomId("#room")), text=text)
        bodies = run.channel.split(post)
        for body in bodies:
            await run.channel.send(part(body))
        got: list[str] = []
        while len(got) < len(bodies):
            line = await reader.readuntil(b"\r\n")
            if b" PRIVMSG " in line:
                assert len(line) <= 512
                got.append(line.decode().rstrip("\r\n").partition(" :")[2])
        assert "".join("".join(got).split()) == "".join(text.split())
        writer.close()
        await writer.wait_closed()


@story
async def test_pacing_lets_everything_else_go_on() -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.005)

    async with Ircd() as ircd, running(ircd, flood={"burst": 1, "per_s": 10}) as run:
        await run.up()
        heart = asyncio.create_task(beat())
        await run.channel.send(part("one"))
        before = beats
        # Three lines and their barriers take 0.4 s at this pace; a blocked loop would not beat at all.
        await asyncio.gather(*(run.channel.send(part(str(number))) for number in range(3)))
        assert beats - before > 15
        heart.cancel()
        await asyncio.gather(heart, return_exceptions=True)


@story
async def test_pings_keep_a_quiet_connection_up() -> None:

    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        for number in range(1, 6):
            clock.advance(61)
            await ircd.received("PING", times=number)
            await settled(ircd.clients[0], f"t{number}")
            clock.advance(31)
            await settled(ircd.clients[0], f"u{number}")
        assert (run.links, len(ircd.clients)) == ([True], 1)
