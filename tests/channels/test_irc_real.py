"""Against real servers: what a second, raw client sees and says."""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gateway.events import Address, Post, PostKey, RoomId
from tests.channels.irc_kit import NAME, part, running, story
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
