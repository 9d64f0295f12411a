"""People on three platforms who say one line after another, each once the one before is answered."""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from datetime import UTC, datetime

from tests.kits.platform_users import NICK, IrcClient
from tests.servers.bot_api import BotApi
from tests.servers.bot_api_world import Chat, Person
from tests.servers.discord_api import DiscordApi
from tests.servers.ircd import Ircd

PATIENCE_S = 60.0


class Seat(ABC):
    """Somebody in one place."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.said: list[str] = []
        """Lines that wait for an answer, or have it."""
        self.slowest_s = 0.0
        self.news = asyncio.Event()

    @abstractmethod
    def say(self, text: str) -> None:
        """Say it, so that it is meant for the bot."""

    @abstractmethod
    def shown(self) -> list[str]:
        """All that the bot has said there."""

    def aside(self, number: int) -> None:  # noqa: B027 - only some have something to say besides
        """Say something that is not answered by the model."""

    async def talk(self, until: asyncio.Event) -> None:
        """Until then, say one line after another. Raises AssertionError if one is not answered in time."""
        loop = asyncio.get_running_loop()
        while not until.is_set():
            number = len(self.said) + 1
            line, began_s, seen = f"{self.name}-{number}.", loop.time(), len(self.shown())
            self.said.append(line)
            self.say(f"line {line}")
            while not any(line in one for one in self.shown()[seen:]):
                assert loop.time() - began_s < PATIENCE_S, f"{line} is not answered"
                await asyncio.sleep(0.01)
            self.slowest_s = max(self.slowest_s, loop.time() - began_s)
            self.news.set()
            self.aside(number)

    def answers(self) -> Counter[str]:
        """How often each line was answered."""
        shown = "\n".join(self.shown())
        return Counter({line: shown.count(f"re {line}") for line in self.said})


class OnTelegram(Seat):
    """Of Telegram."""

    def __init__(self, api: BotApi, person: Person, chat: Chat | None = None) -> None:
        super().__init__("tg-room" if chat else "tg-alone")
        self.api, self.person, self.chat = api, person, chat

    def say(self, text: str) -> None:
        if self.chat is None:
            self.api.private_says(self.person, text)
        else:
            self.api.mentions(self.chat, self.person, text)

    def shown(self) -> list[str]:
        return self.api.said(self.chat or self.person)


class OnDiscord(Seat):
    """Of Discord."""

    def __init__(self, api: DiscordApi, user: str, channel: str) -> None:
        self.direct = "guild_id" not in api.world.channels[channel]
        super().__init__("dc-alone" if self.direct else "dc-room")
        self.api, self.user, self.channel = api, user, channel

    def say(self, text: str) -> None:
        self.api.says(self.channel, self.user, text if self.direct else f"<@{self.api.bot}> {text}")

    def shown(self) -> list[str]:
        messages = self.api.world.messages[self.channel].values()
        return [one["content"] for one in messages if one["author"]["id"] == self.api.bot]


class OnIrc(Seat):
    """Of IRC, on a server that keeps history."""

    _ids = itertools.count(1)

    def __init__(self, ircd: Ircd, client: IrcClient, room: str = "") -> None:
        super().__init__("irc-room" if room else "irc-alone")
        self.ircd, self.client, self.who, self.room = ircd, client, client.nick, room

    def say(self, text: str) -> None:
        self._relay(f"{NICK}: {text}" if self.room else text)

    def _relay(self, text: str) -> None:
        target = self.room or NICK
        line = f":{self.who}!{self.who}@test.host PRIVMSG {target} :{text}"
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        tags = {"msgid": f"said{next(self._ids)}", "time": now, "account": self.who}
        self.ircd.options.history.append((self.room or self.who, tags, line))
        self.ircd.relay(target, line, tags)

    def shown(self) -> list[str]:
        return self.client.told(self.room or self.who)

    def aside(self, number: int) -> None:
        self._relay(("!whoami", ".status")[number % 2])
