"""Bytes that are known to break IRC clients, in both directions; and a million malformed or random
lines.

ERROR is left out of the million: it rightly ends a connection (test_connection.py). A tenth goes
over the socket, the rest straight into the connection that the socket feeds: the same framing,
decoding, parsing and handling.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest

from channels.irc.channel import IrcChannel
from gateway.core.clock import SystemClock
from gateway.core.events import ConnectionChanged, Message, Notification
from reverie.testing.servers.ircd import MODERN, Ircd, Options
from tests.channels.irc.channel_kit import NAME, Running, config, running

KNOWN_TO_BREAK = {
    "latin-1 byte": b":a!b@c PRIVMSG #room :caf\xe9\r\n",
    "cut utf-8": b":a!b@c PRIVMSG #room :\xf0\x9f\x98\r\n",
    "PRIVMSG without text": b":a!b@c PRIVMSG #room\r\n",
    "PRIVMSG without anything": b":a!b@c PRIVMSG\r\n",
    "QUIT without reason": b":a!b@c QUIT\r\n",
    "a line of one space": b" \r\n",
    "an empty line": b"\r\n",
    "ISUPPORT PREFIX=": b":irc.test 005 reverie PREFIX= :are supported by this server\r\n",
    "ISUPPORT without values": (
        b":irc.test 005 reverie CHANTYPES CASEMAPPING STATUSMSG :are supported\r\n"
    ),
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
async def test_the_connection_lives_and_the_next_mention_arrives(
    data: bytes, ircd: Ircd, run: Running
) -> None:
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
async def test_odd_bytes_are_read_as_what_they_mean(
    data: bytes, text: str, ircd: Ircd, run: Running
) -> None:
    ircd.clients[0].raw(data)
    assert (await run.message()).text == text


async def test_a_mistake_of_ours_in_handling_a_line_costs_only_that_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
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


LINES, SOCKET_LINES, CHUNK = 1_000_000, 100_000, 500
WORDS = (
    b"PRIVMSG NOTICE TAGMSG JOIN PART QUIT NICK KICK TOPIC INVITE MODE BATCH CHGHOST ACCOUNT AWAY "
    b"SETNAME PONG PING "
    b"FAIL WARN NOTE ACK CAP AUTHENTICATE WHO CHATHISTORY 001 005 301 353 354 366 376 396 401 404 "
    b"417 421 433 "
    b"437 471 473 730 731 734 900 901 903 904 908 #room #other reverie al!a@h bo irc.test +x -x +y "
    b"-y x y * : :: @ ! "
    b"netsplit netjoin chathistory draft/multiline draft/chathistory-targets labeled-response "
    b"vendor/x "
    b"LS NEW DEL ACK NAK LIST :server-time :batch :account-tag :-batch =x 152 0 -1 "
    b"99999999999999999999 "
    b"CASEMAPPING=ascii CASEMAPPING= CHANTYPES= CHANTYPES=# LINELEN=0 LINELEN=9999999 MONITOR=x "
    b"CHATHISTORY=-3 PREFIX= "
    b"BOT=B USERLEN=0 CLIENTTAGDENY=* history-1 reverie-1 :\x01VERSION\x01 :\x01PING :\x01ACTION "
    b":a.b\x20c.d"
).split(b" ")
TAGS = (
    b"msgid=1 msgid= "
    b"time=2026-01-01T00:00:00Z time=9999-99-99 time=0001-01-01T00:00:00+23:59 account=al account= "
    b"batch=x "
    b"batch=y "
    b"label=r1 label= +reply=1 +draft/reply= +draft/react=x +typing=active draft/multiline-concat "
    b"bot = ; ;; \\ "
    b"k=\\:\\s\\r\\n\\ "
).split(b" ")
SOURCES = (
    b":al!a@h ",
    b":reverie!r@h ",
    b":irc.test ",
    b":",
    b": ",
    b":!@ ",
    b":@! ",
    b"",
    b":bo ",
    b":al!a@h!b@c ",
)


FORMS = (
    b"PRIVMSG #room :%s",
    b"PRIVMSG reverie :%s",
    b"JOIN #room %s",
    b"PART #room :%s",
    b"QUIT :%s",
    b"TOPIC #room :%s",
    b"NICK %s",
    b"INVITE reverie #%s",
    b"354 reverie 152 #room u h %s H acc :real",
    b"BATCH +%s draft/multiline #room",
    b"BATCH -%s",
    b"CHATHISTORY TARGETS %s 2026-01-01T00:00:00Z",
)


def lines(count: int, chance: random.Random) -> Iterator[bytes]:
    """Random walks through the grammar, half of them damaged, and plain noise."""
    for _ in range(count):
        kind = chance.random()
        if kind < 0.1:
            yield chance.randbytes(chance.randrange(60)).replace(b"\n", b"")
            continue
        tags = (
            b"@" + b";".join(chance.choices(TAGS, k=chance.randrange(4))) + b" "
            if kind < 0.5
            else b""
        )
        words = b" ".join(chance.choices(WORDS, k=chance.randrange(1, 7)))
        said = chance.choice(FORMS) % words if kind > 0.6 else words
        line = tags + chance.choice(SOURCES) + said
        if kind > 0.75 and line:
            at = chance.randrange(len(line))
            line = (
                line[:at]
                + chance.randbytes(2).replace(b"\n", b"")
                + line[at + chance.randrange(3) :]
            )
        yield line


def chunks(count: int, chance: random.Random) -> Iterator[bytes]:
    made = lines(count, chance)
    for _ in range(count // CHUNK):
        yield b"\r\n".join(next(made) for _ in range(CHUNK)) + b"\r\n"


class Sink:
    """Takes everything and keeps only what the test asks for."""

    def __init__(self) -> None:
        self.taken = 0
        self.links: list[bool] = []
        self.last = ""
        self.changed = asyncio.Event()

    async def __call__(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        del cursor
        self.taken += len(batch)
        for event in batch:
            if isinstance(event, ConnectionChanged):
                self.links.append(event.up)
            elif isinstance(event, Message) and event.text.startswith("after "):
                self.last = event.text
        self.changed.set()

    async def until_last(self, text: str) -> None:
        async with asyncio.timeout(60):
            while self.last != text:
                self.changed.clear()
                await self.changed.wait()

    async def until_up(self) -> None:
        async with asyncio.timeout(120):
            while not self.links:
                self.changed.clear()
                await self.changed.wait()


async def _survive(seed: int) -> str:
    chance, sink = random.Random(seed), Sink()
    async with Ircd(
        Options(caps=MODERN, isupport=("WHOX", "MONITOR=10", "CHATHISTORY=50"))
    ) as ircd:
        channel = IrcChannel(NAME, config(ircd.port), SystemClock())
        run = asyncio.create_task(channel.run(sink))
        await sink.until_up()
        bot, began_s = ircd.clients[0], time.perf_counter()
        for number, chunk in enumerate(chunks(SOCKET_LINES, chance)):
            bot.raw(chunk)
            if number % 20 == 19:
                bot.send(f":zz!z@z PRIVMSG #room :after {number}")
                await sink.until_last(f"after {number}")
        connection = channel._inbox.connection
        assert connection is not None
        for chunk in chunks(LINES - SOCKET_LINES, chance):
            while channel._inbox.is_full:
                await asyncio.sleep(0)
            connection.process_data(chunk)
            await asyncio.sleep(0)
        bot.send(":zz!z@z PRIVMSG #room :after all")
        await sink.until_last("after all")
        spent_s = time.perf_counter() - began_s
        assert (run.done(), sink.links, len(ircd.clients)) == (False, [True], 1)
        session = channel._session
        assert session is not None
        assert len(session.outgoing._waiting) < 1000
        assert len(session.state._batches) <= 32
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        return (
            f"{LINES} lines in {spent_s:.0f} s, {LINES / spent_s:.0f} lines/s, {sink.taken} "
            "notifications"
        )


@pytest.mark.soak
def test_a_million_malformed_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")
    print(asyncio.run(asyncio.wait_for(_survive(seed=6), 400)))
    assert not [record for record in caplog.records if record.exc_info], (
        "every line was understood or ignored"
    )
