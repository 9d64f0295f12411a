"""People who sit on three platforms: one person in one place each.

They give commands as people do there: natively on Telegram and Discord, as text on IRC. What a seat
has been shown is read from the wire, as that person sees it.
"""

import asyncio
import base64
import contextlib
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Chat, Person
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import LOADING
from reverie.testing.servers.discord_api_world import EPHEMERAL
from reverie.testing.servers.model_api import Json
from reverie.testing.waiting import until
from tests.kits.commands import TABLE

TELEGRAM, DISCORD, IRC = "telegram.main", "discord.main", "irc.main"
PLATFORMS: Final = (TELEGRAM, DISCORD, IRC)
NICK = "reverie"
ACCOUNTS: Final = {"olga": "correcthorse", "gus": "correcthorse", "nora": "correcthorse"}
"""On IRC: account, password."""
SAID = re.compile(rf":{NICK}_*!\S+ (?:PRIVMSG|NOTICE) (\S+) :(.*)")
"""What the bot says, also while a connection that it has lost still has its nick."""
WAIT_S = 20.0


async def so(true: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
    """Return once it is so. Raises TimeoutError that says what was waited for."""
    try:
        await until(true, limit_s=limit_s)
    except TimeoutError:
        raise TimeoutError(what) from None


class IrcClient:
    """Somebody with an IRC client, logged in to the services if they have an account."""

    def __init__(self, nick: str, port: int, account: str = "") -> None:
        self.nick, self._port, self._account = nick, port, account
        self.said: list[tuple[str, str]] = []
        """(where, text) of what the bot said, in order."""
        self.lines: list[str] = []
        """All that the server said, without tags."""
        self._tokens = itertools.count(1)

    async def begin(self) -> None:
        """Return once the server has let us in."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._reading = asyncio.create_task(self._read())
        if self._account:
            self.send("CAP LS 302", "CAP REQ :sasl")
            await self.until(r"\S+ CAP \S+ ACK ")
            self.send("AUTHENTICATE PLAIN")
            await self.until(r"AUTHENTICATE :?\+")
            secret = f"\0{self._account}\0{ACCOUNTS[self._account]}".encode()
            self.send(f"AUTHENTICATE {base64.b64encode(secret).decode()}")
            await self.until(r"\S+ 903 ")
        self.send(
            f"NICK {self.nick}",
            f"USER {self.nick} 0 * :{self.nick}",
            *(["CAP END"] if self._account else []),
        )
        await self.until(r"\S+ (376|422) ")

    async def end(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def send(self, *lines: str) -> None:
        self._writer.write("".join(f"{line}\r\n" for line in lines).encode())

    async def join(self, room: str) -> None:
        self.send(f"JOIN {room}")
        await self.until(rf"\S+ 366 \S+ {room} ")

    async def until(self, pattern: str, times: int = 1, limit_s: float = WAIT_S) -> list[str]:
        """Return the lines that match, from their start, once they are so many."""
        await so(lambda: self.saw(pattern) >= times, f"{self.nick} waits for {pattern}", limit_s)
        return [line for line in self.lines if re.match(pattern, line)]

    async def settled(self) -> None:
        """Return once all that the server had for us is here."""
        token = f"{self.nick}{next(self._tokens)}"
        self.send(f"PING :{token}")
        await self.until(rf".*PONG .*{token}$")

    def saw(self, pattern: str) -> int:
        return sum(re.match(pattern, line) is not None for line in self.lines)

    def told(self, where: str) -> list[str]:
        return [text for to, text in self.said if to.casefold() == where.casefold()]

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                line = (
                    (await self._reader.readuntil(b"\r\n"))
                    .decode("utf-8", "replace")
                    .rstrip("\r\n")
                )
                line = line.partition(" ")[2] if line.startswith("@") else line
                self.lines.append(line)
                if line.startswith("PING"):
                    self.send("PONG" + line[4:])
                if said := SAID.match(line):
                    self.said.append((said[1], said[2]))


class Seat(ABC):
    platform: str
    direct: bool
    name: str

    @abstractmethod
    def give(self, name: str, sub: str, given: Mapping[str, str]) -> str:
        """Give a command; how it looks as text."""

    @abstractmethod
    def say(self, text: str, *, to_bot: bool = False) -> str:
        """Say something, in a room to the bot or to everybody; the message's id, empty where it has
        none."""

    def type(self, text: str) -> None:
        """Write what begins with a command's name, right or wrong."""
        self.say(text)

    @abstractmethod
    def asks_in(self) -> None:
        """Try to have the bot in this room."""

    @abstractmethod
    def shown(self) -> list[str]:
        """All that this person was shown of the bot here, in order."""

    async def settled(self) -> None:  # noqa: B027 - most platforms hold nothing back
        """Return once what the platform has was shown."""


def text_of(prefix: str, name: str, sub: str, given: Mapping[str, str]) -> str:
    """As somebody writes it: the arguments in the order of the table."""
    row = TABLE.people[name]
    found = row.find_sub(sub) if sub else None
    args = found.args if found is not None else row.args
    words = [given[arg.name] for arg in args if arg.name in given]
    return " ".join(word for word in (f"{prefix}{name}", sub, *words) if word)


@dataclass
class OnTelegram(Seat):
    api: BotApi
    person: Person
    chat: Chat | None = None
    """None: the private chat."""
    platform: str = TELEGRAM

    def __post_init__(self) -> None:
        self.direct, self.name = self.chat is None, self.person.name

    def give(self, name: str, sub: str, given: Mapping[str, str]) -> str:
        text = text_of("/", name, sub, given)
        self.type(text)
        return text

    def type(self, text: str) -> None:
        self.api.commands(self.chat or self.person, self.person, text)

    def say(self, text: str, *, to_bot: bool = False) -> str:
        if self.chat is None:
            return str(self.api.private_says(self.person, text))
        return str(
            (self.api.mentions if to_bot else self.api.group_says)(self.chat, self.person, text)
        )

    def asks_in(self) -> None:
        assert self.chat is not None
        self.api.adds(self.chat, self.person)

    def shown(self) -> list[str]:
        return self.api.said(self.chat or self.person)


@dataclass
class OnDiscord(Seat):
    api: DiscordApi
    user: str
    channel: str
    platform: str = DISCORD

    def __post_init__(self) -> None:
        self.direct = "guild_id" not in self.api.world.channels[self.channel]
        self.name = str(self.api.world.users[self.user]["username"])

    def give(self, name: str, sub: str, given: Mapping[str, str]) -> str:
        self.api.slash(self.channel, self.user, f"{name} {sub}".strip(), **given)
        return text_of("/", name, sub, given)

    def say(self, text: str, *, to_bot: bool = False) -> str:
        head = f"<@{self.api.bot}> " if to_bot and not self.direct else ""
        return self.api.says(self.channel, self.user, head + text)

    def asks_in(self) -> None:
        self.say("come in", to_bot=True)  # it is in the guild, and is spoken to

    def shown(self) -> list[str]:
        messages = self.api.world.messages[self.channel].values()
        return [
            one["content"]
            for one in messages
            if one["author"]["id"] == self.api.bot and self._sees(one)
        ]

    def _sees(self, message: Json) -> bool:
        if message["flags"] & LOADING:
            return False
        return not message["flags"] & EPHEMERAL or bool(
            message["interaction_metadata"]["user"]["id"] == self.user
        )


@dataclass
class OnIrc(Seat):
    client: IrcClient
    room: str = ""
    """Empty: alone with the bot."""
    platform: str = IRC
    called: bool = False
    """Commands are given by saying our name, and not with the prefix."""
    aside: bool = False
    """They also look at what is said to them alone."""

    def __post_init__(self) -> None:
        self.direct, self.name = not self.room, self.client.nick

    def give(self, name: str, sub: str, given: Mapping[str, str]) -> str:
        text = text_of(f"{NICK}: " if self.called else "!", name, sub, given)
        self.client.send(f"PRIVMSG {self.room or NICK} :{text}")
        return text

    def say(self, text: str, *, to_bot: bool = False) -> str:
        head = f"{NICK}: " if to_bot and self.room else ""
        self.client.send(f"PRIVMSG {self.room or NICK} :{head}{text}")
        return ""

    def asks_in(self) -> None:
        self.client.send(f"INVITE {NICK} {self.room}")

    def shown(self) -> list[str]:
        places = {self.room or self.client.nick, self.client.nick if self.aside else ""}
        return [text for to, text in self.client.said if to in places]

    async def settled(self) -> None:
        await self.client.settled()
