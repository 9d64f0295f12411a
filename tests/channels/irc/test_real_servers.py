"""Against real servers: what a second, raw client sees and says."""

import asyncio
import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from channels.base import Rejected
from gateway.core.events import Address, ConnectionChanged, Post, PostKey, RoomId
from tests.channels.irc.channel_kit import NAME, part, running
from tests.kits.channels import story
from tests.servers.real_ircd import inspircd, ngircd

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
@story
async def test_a_mention_comes_in_and_the_reply_is_seen_once_and_whole(server: Server, tmp_path: Path) -> None:
    with served(server, tmp_path) as port:
        async with running(port) as run:
            await run.up()
            alice = await Raw.joined(port)
            alice.say("PRIVMSG #room :reverie: как дела?")
            heard = await run.message()
            assert (heard.kind, heard.text, heard.at.room) == ("mention", "reverie: как дела?", "#room")

            post = Post(key=PostKey("p"), to=Address(channel=NAME, room=RoomId("#room")), text=CYRILLIC)
            bodies = run.channel.split(post)
            assert len(bodies) > 1
            await asyncio.gather(*(run.channel.send(part(body)) for body in bodies))
            alice.say("PING :end")
            await alice.until(r":\S+ PONG ")
            seen = [match[1] for line in alice.lines if (match := re.match(r":reverie\S+ PRIVMSG #room :(.*)", line))]
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


@pytest.mark.parametrize("server", [inspircd, ngircd])
@story
async def test_a_room_is_open_or_closed_as_its_modes_say(server: Server, tmp_path: Path) -> None:
    at = Address(channel=NAME, room=RoomId("#room"))
    with served(server, tmp_path) as port:
        alice = await Raw.joined(port)
        async with running(port) as run:

            async def until(audience: str) -> None:
                async with asyncio.timeout(120):
                    while run.channel.audience(at) != audience:
                        await asyncio.sleep(0.02)

            await run.up()
            await until("everybody")
            for mode in ("s", "i", "k"):
                alice.say(f"MODE #room +{mode}{' word' if mode == 'k' else ''}")
                await until("room")
                alice.say(f"MODE #room -{mode}{' word' if mode == 'k' else ''}")
                await until("everybody")
        await alice.close()


@pytest.mark.parametrize(("server", "longest"), [(inspircd, 30), (ngircd, 20)])
@story
async def test_a_taken_nick_of_the_longest_kind_has_a_shorter_substitute(
    server: Server, longest: int, tmp_path: Path
) -> None:
    nick = "a" * longest
    with served(server, tmp_path) as port:
        async with running(port, nick=nick) as first:
            await first.up()
            async with running(port, nick=nick) as second:
                await second.up()
                (link,) = second.seen
                assert isinstance(link, ConnectionChanged)
                assert link.reason == "connected to 127.0.0.1 as aaaaaa_6"


@pytest.mark.parametrize("server", [inspircd, ngircd])
@story
async def test_an_answer_follows_whoever_asked_to_another_nick(server: Server, tmp_path: Path) -> None:
    with served(server, tmp_path) as port:
        async with running(port) as run:
            await run.up()
            alice = await Raw.joined(port)
            alice.say("PRIVMSG reverie :psst", "NICK alice_away", "PRIVMSG #room :moved")
            asked, _ = await run.message(), await run.message(2)
            await run.channel.send(part("psst yourself", room=asked.at.room))
            assert (await alice.until(r":reverie\S+ PRIVMSG ")).endswith(" alice_away :psst yourself")
            await alice.close()


_OPER = """
<module name="sajoin"><module name="sapart">
<class name="all" commands="*" privs="*" usermodes="*" chanmodes="*">
<type name="all" classes="all"><oper name="root" password="hush" host="*@*" type="all">
"""


@story
async def test_an_operator_of_the_server_can_take_us_out_of_our_room_but_not_into_another(tmp_path: Path) -> None:
    with served(functools.partial(inspircd, more=_OPER), tmp_path) as port:
        async with running(port) as run:
            await run.up()
            alice = await Raw.joined(port)
            alice.say("OPER root hush", "JOIN #elsewhere", "SAJOIN reverie #elsewhere")
            await alice.until(r":reverie\S+ JOIN .*#elsewhere")
            await alice.until(r":reverie\S+ PART .*#elsewhere")
            alice.say("SAPART reverie #room :out")
            await alice.until(r":reverie\S+ PART .*#room")
            with pytest.raises(Rejected):
                await run.channel.send(part("still here?"))
            await run.channel.join(Address(channel=NAME, room=RoomId("#room")))
            await run.channel.send(part("back"))
            await alice.until(r":reverie\S+ PRIVMSG #room :back")
            await alice.close()
