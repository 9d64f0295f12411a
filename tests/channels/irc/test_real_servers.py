"""Against real servers and services: what a second, raw client sees and says, SASL, and limits
against floods."""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from channels.base import Denied, Unreachable
from channels.irc.check import probe_irc
from channels.irc.config import IrcConfig, IrcRateLimit
from channels.irc.render import BLANK_LINE
from gateway.core.events import Address, Post, PostKey, Receipt, RoomId
from reverie.testing.servers.ports import free_port
from reverie.testing.waiting import until
from tests.channels.irc.channel_kit import NAME, part, running, sent_together
from tests.servers.real_ircd import inspircd, link, ngircd, services

Server = Callable[[Path], AbstractContextManager[int]]
CYRILLIC = " ".join(f"слово{number:03d}" for number in range(100))[:900]


class Raw:
    """A client that is nothing but a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.lines: list[str] = []

    @classmethod
    async def joined(cls, port: int) -> "Raw":
        raw = cls(*await asyncio.open_connection("127.0.0.1", port))
        raw.say("NICK alice", "USER alice 0 * :alice")
        await raw.until(r":\S+ (376|422) ")
        raw.say("JOIN #room")
        await raw.until(r":\S+ 366 ")
        return raw

    def say(self, *lines: str) -> None:
        self._writer.write("".join(line + "\r\n" for line in lines).encode())

    async def until(self, pattern: str) -> str:
        """Read up to the first line that matches."""
        while True:
            line = (await self._reader.readuntil(b"\r\n")).decode().rstrip("\r\n")
            self.lines.append(line)
            if line.startswith("PING"):
                self.say("PONG" + line[4:])
            if re.match(pattern, line):
                return line

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@contextlib.contextmanager
def served(server: Server, directory: Path) -> Iterator[int]:
    try:
        with server(directory) as port:
            yield port
    except FileNotFoundError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.mark.parametrize("server", [inspircd, ngircd])
async def test_a_mention_comes_in_and_the_reply_is_seen_once_and_whole(
    server: Server, tmp_path: Path
) -> None:
    with served(server, tmp_path) as port:
        async with running(port) as run:
            await run.up()
            alice = await Raw.joined(port)
            alice.say("PRIVMSG #room :reverie: как дела?")
            heard = await run.message()
            assert (heard.kind, heard.text, heard.at.room) == (
                "mention",
                "reverie: как дела?",
                "#room",
            )

            post = Post(
                key=PostKey("p"), to=Address(channel=NAME, room=RoomId("#room")), text=CYRILLIC
            )
            bodies = run.channel.split(post)
            assert len(bodies) > 1
            await asyncio.gather(*(run.channel.send(part(body)) for body in bodies))
            alice.say("PING :end")
            await alice.until(r":\S+ PONG ")
            seen = [
                match[1]
                for line in alice.lines
                if (match := re.match(r":reverie\S+ PRIVMSG #room :(.*)", line))
            ]
            assert seen == list(bodies)
            assert " ".join(seen) == CYRILLIC

            alice.say("PRIVMSG reverie :psst")
            direct = await run.message(2)
            assert (direct.kind, direct.text) == ("direct", "psst")
            assert direct.at.room.startswith("alice!")
            await run.channel.send(part("psst yourself", room=direct.at.room))
            assert (await alice.until(r":reverie\S+ PRIVMSG alice ")).endswith(":psst yourself")
            assert len(run.messages) == 2, "our own messages must not come back"

            run.task.cancel()
            await alice.until(r":reverie\S+ QUIT ")
            await alice.close()


async def test_after_excess_flood_it_is_known_what_was_relayed_also_where_a_write_fails_first(
    tmp_path: Path,
) -> None:
    """On one machine the server has mostly closed the connection before what it said is read."""
    strict = (
        'recvq="64k" softsendq="100k" hardsendq="1M" threshold="10" commandrate="1000" '
        'fakelag="no" maxchans="20"'
    )
    with served(lambda where: inspircd(where, limits=strict), tmp_path) as port:
        async with running(port) as run:
            await run.up()
            alice = await Raw.joined(port)
            parts = [part(f"line {number} {'x' * 300}", key=f"k{number}") for number in range(60)]
            results = await sent_together(run, parts)
            alice.say("PING :end")
            await alice.until(r":\S+ PONG ")
            seen = [line for line in alice.lines if " PRIVMSG #room :line " in line]
            await alice.close()
    assert all("Excess Flood" in str(one) for one in results if not isinstance(one, Receipt))
    assert [type(one) for one in results] == [
        *[Receipt] * len(seen),
        *[Unreachable] * (len(parts) - len(seen)),
    ]
    assert [line.partition(" :")[2] for line in seen] == [one.body for one in parts[: len(seen)]]


@pytest.mark.parametrize(("server", "bans"), [(inspircd, "bad"), (ngircd, "ok")])
async def test_rooms_where_the_bot_could_not_write_are_found_without_entering(
    server: Server, bans: str, tmp_path: Path
) -> None:
    """ngIRCd shows bans only to those inside."""
    rooms = {"#free": "+t", "#voices": "+m", "#ours": "+i", "#locked": "+k x", "#not": "+b *!*@*"}
    with served(server, tmp_path) as port:
        alice = await Raw.joined(port)
        for room, modes in rooms.items():
            alice.say(f"JOIN {room}")
            await alice.until(r":\S+ 366 ")
            alice.say(f"MODE {room} {modes}")
        base = {"platform": "irc", "host": "127.0.0.1", "tls": False, "nick": "reverie"}
        config = IrcConfig.model_validate(base | {"port": port, "rooms": [*rooms]})
        found = [one for one in await probe_irc(config) if one.code == "irc.rooms"]
        levels = {one.what.split()[0]: one.level for one in found}
        closed = dict.fromkeys(("#voices", "#ours", "#locked"), "warning")
        assert levels == {"#free": "ok", **closed, "#not": bans}, found
        await alice.close()


@pytest.mark.parametrize("server", [inspircd, ngircd])
async def test_a_room_is_open_or_closed_as_its_modes_say(server: Server, tmp_path: Path) -> None:
    at = Address(channel=NAME, room=RoomId("#room"))
    with served(server, tmp_path) as port:
        alice = await Raw.joined(port)
        async with running(port) as run:

            async def told(audience: str) -> None:
                await until(lambda: run.channel.audience(at) == audience)

            await run.up()
            await told("everybody")
            for mode in ("s", "i", "k"):
                alice.say(f"MODE #room +{mode}{' word' if mode == 'k' else ''}")
                await told("room")
                alice.say(f"MODE #room -{mode}{' word' if mode == 'k' else ''}")
                await told("everybody")
        await alice.close()


async def test_a_room_without_formatting_and_notices_reads_answers_all_the_same(
    tmp_path: Path,
) -> None:
    """InspIRCd refuses what such a room does not want."""
    modules = '<module name="blockcolor"><module name="nonotice">'
    post = Post(
        key=PostKey("p"),
        to=Address(channel=NAME, room=RoomId("#room")),
        text="**bold** and *italic*\n```\na = 1\n\nb = 2\n```",
    )
    with served(lambda where: inspircd(where, more=modules), tmp_path) as port:
        alice = await Raw.joined(port)
        async with running(port) as run:
            await run.up()
            for number, mode in enumerate(("-c+nt", "+cT", "-cT")):
                alice.say(f"MODE #room {mode}", "PRIVMSG #room :and now?")
                await run.message(number + 1)
                for body in run.channel.split(post):
                    await run.channel.send(part(body))
                await run.channel.send(part("done", style="notice"))
                await alice.until(r":reverie\S+ (PRIVMSG|NOTICE) #room :done")
        await alice.close()
    said = [re.sub(r":reverie\S+ (PRIVMSG|NOTICE) \S+ :", r"\1 ", line) for line in alice.lines]
    said = [line for line in said if line.startswith(("PRIVMSG", "NOTICE"))]
    marked = ["\x02bold\x02 and \x1ditalic\x1d", "a = 1", BLANK_LINE, "b = 2"]
    plain = ["bold and italic", "a = 1", "b = 2"]
    assert said == [
        *(f"PRIVMSG {line}" for line in marked),
        "NOTICE done",
        *(f"PRIVMSG {line}" for line in [*plain, "done"]),
        *(f"PRIVMSG {line}" for line in marked),
        "NOTICE done",
    ]


SASL = {"mechanism": "plain", "account": "reverie", "password": "correct horse"}


@contextlib.contextmanager
def network(directory: Path) -> Iterator[int]:
    linked = free_port()
    with inspircd(directory, more=link(linked)) as port, services(linked):
        yield port


async def _register(port: int) -> None:
    owner = await Raw.joined(port)
    owner.say("NICK reverie")
    await owner.until(r":alice\S* NICK ")
    owner.say("PRIVMSG NickServ :REGISTER correcthorse bot@example.org")
    await owner.until(r":NickServ\S* NOTICE reverie :.*(registered|REGISTERED)")
    owner.say("QUIT")
    await owner.close()


async def test_the_right_password_logs_in_and_a_wrong_one_stops_the_channel(tmp_path: Path) -> None:
    with served(network, tmp_path) as port:
        await _register(port)
        right = SASL | {"password": "correcthorse"}
        async with running(port, sasl=right) as run:
            await run.up()
            session = run.channel._session
            assert session is not None
            assert session.state.account.lower() == "reverie"
            alice = await Raw.joined(port)
            await run.channel.send(part("logged in"))
            await alice.until(r":reverie\S* PRIVMSG #room :logged in")
            await alice.close()
        async with running(port, sasl=SASL | {"password": "wrong"}) as refused:
            with pytest.raises(Denied, match="904"):
                await refused.task
            assert refused.links == [False]


async def test_lines_of_the_operator_log_in_and_take_the_nick_back_from_a_connection_that_was_left(
    tmp_path: Path,
) -> None:
    lines = [f"PRIVMSG NickServ :{what} reverie correcthorse" for what in ("REGAIN", "IDENTIFY")]
    with served(network, tmp_path) as port:
        await _register(port)
        left = await Raw.joined(port)
        left.say("NICK reverie")
        await left.until(r":alice\S* NICK ")
        async with running(port, on_connect=lines) as run:
            await run.up()
            session = run.channel._session
            assert session is not None
            await until(
                lambda: (session.state.nick, session.state.account) == ("reverie", "reverie")
            )
        await left.close()


FLOOD = IrcRateLimit()
SLACK_S = 0.25
"""The reader shares a busy machine with the server and with us."""
CODE = """def __init__(self, *args, **kwargs):
    self.a_b_c = a*b*c  # `не` **жирно**

\tif x ** 2 > 3 or y[0](1):
        return "##  двa  пробела"
> не цитата
- не пункт"""
LONG = " ".join(f"слово{number:03d}" for number in range(100))
LINES = [
    f"Строка номер {number}: съешь ещё этих мягких французских булок" for number in range(1, 19)
]
STRESS = "\n".join([*LINES[:9], "```py", CODE, "```", LONG, *LINES[9:]])
MORE = re.compile(r"\(page \d+ of \d+; write \"(?:\w+: )?more\"\)")


@contextmanager
def long_inspircd(directory: Path, *, limits: bool = False) -> Iterator[int]:
    with inspircd(directory, limits=limits, more='<limits maxnick="60">') as port:
        yield port


@contextmanager
def long_ngircd(directory: Path, *, limits: bool = False) -> Iterator[int]:
    with ngircd(
        directory, limits=limits, more="CloakHost = a.long.cloak.hides.our.users.example.org"
    ) as port:
        yield port


LimitedServer = Callable[..., AbstractContextManager[int]]


@pytest.mark.system
@pytest.mark.parametrize(
    ("server", "nick", "page_lines"),
    [
        (long_inspircd, "reverie_under_a_name_as_long_as_a_name_can_be_here", 12),
        (long_ngircd, "reverie_with_20_char", 0),
    ],
)
def test_a_long_answer_arrives_whole_within_the_limits(
    server: LimitedServer, nick: str, page_lines: int, tmp_path: Path
) -> None:
    asyncio.run(asyncio.wait_for(_stress(server, nick, tmp_path, STRESS, page_lines), 120))


async def _stress(
    server: LimitedServer, nick: str, directory: Path, text: str, page_lines: int
) -> None:
    with served(lambda where: server(where, limits=True), directory) as port:
        async with running(port, nick=nick, page_lines=page_lines, flood=FLOOD) as run:
            await run.up()
            alice = await Raw.joined(port)
            post = Post(key=PostKey("p"), to=Address(channel=NAME, room=RoomId("#room")), text=text)
            pages = run.channel.page_count(post)
            assert (pages > 1) == (page_lines > 0)
            bodies = [
                body
                for page in range(1, pages + 1)
                for body in run.channel.split(Post(key=post.key, to=post.to, text=text, page=page))
            ]
            sending = asyncio.gather(
                *(run.channel.send(part(body, key=str(at))) for at, body in enumerate(bodies))
            )
            heard = [await _hear(alice, nick) for _ in bodies]
            await sending
            alice.say("PING :end")
            await alice.until(r":\S+ PONG ")
            assert not [
                line
                for line in alice.lines
                if re.match(rf":{re.escape(nick)}!\S+ (QUIT|PART) ", line)
            ]
            assert run.links == [True]
            await alice.close()
    assert all(len(prefix) >= 67 for _, prefix, _ in heard)
    _judge([said for _, _, said in heard], text, is_paged=page_lines > 0)
    times = [at for at, _, _ in heard]
    peak = _peak(times)
    size = sum(len(said.encode()) for _, _, said in heard)
    print(
        f"{server.__name__}: {len(heard)} lines, {size} bytes, {pages} pages, prefix "
        f"{len(heard[0][1])} bytes, "
        f"{times[-1] - times[0]:.1f} s, at most {peak:.2f} lines above {FLOOD.per_s:g}/s (burst "
        f"{FLOOD.burst})"
    )
    assert peak <= FLOOD.burst + FLOOD.per_s * SLACK_S


async def _hear(alice: Raw, nick: str) -> tuple[float, str, str]:
    """When, with which prefix and what the bot said next."""
    line = await alice.until(rf":{re.escape(nick)}!\S+ PRIVMSG #room :")
    prefix, _, rest = line.partition("PRIVMSG #room :")
    return time.monotonic(), prefix, rest


def _judge(heard: Sequence[str], text: str, *, is_paged: bool) -> None:
    """Every line of `text` in order, code byte for byte; only a line too long for IRC comes in
    pieces.

    Where a page ends, a blank line may be missing.
    """
    said = [line for line in heard if not MORE.fullmatch(line)]
    for expected in (line or BLANK_LINE for line in text.split("\n") if not line.startswith("```")):
        if expected == BLANK_LINE != said[0] and is_paged:
            continue
        joined = said.pop(0)
        while len(joined) < len(expected):
            joined += " " + said.pop(0)
        assert joined == expected
    assert not said


def _peak(times: Sequence[float]) -> float:
    """The most lines that came in any stretch of time beyond those that the rate allows in it."""
    return max(
        end - start + 1 - FLOOD.per_s * (times[end] - times[start])
        for start in range(len(times))
        for end in range(start, len(times))
    )
