"""What people are called now who had another nick when they spoke to us. Pure.

A direct chat is named after who spoke (`nick!user@host`, or `nick!account:name`), and an answer may take minutes.
"""

from collections.abc import Iterable
from typing import Final

from channels.irc.isupport import Isupport
from channels.irc.people import People
from channels.irc.senders import target_of
from channels.irc.wire import Line

_MOST: Final = 1_000


class Moves:
    """Fed with every line, as long as one connection lasts."""

    def __init__(self) -> None:
        self._now: dict[str, str] = {}
        """Direct chat -> nick, the latest change last."""

    def feed(self, said: Line, people: People, isupport: Isupport) -> None:
        """Take in a line; `people` as they were before it."""
        nick, account = isupport.fold(said.source.nick), said.tags.get("account")
        account = account or people.account(said.source.nick, isupport)
        chats = [said.source.mask, *([f"{said.source.nick}!account:{account}"] if account else [])]
        match said.command:
            case "QUIT":
                self._now = {chat: now for chat, now in self._now.items() if isupport.fold(now) != nick}
            case "PRIVMSG":  # whoever speaks under that name is who is meant by it
                for chat in chats:
                    self._now.pop(chat, None)
            case "NICK" if said.param(0) and said.source.user:
                self._moved(nick, said.param(0), chats, isupport)

    def _moved(self, nick: str, new: str, chats: Iterable[str], isupport: Isupport) -> None:
        self._now = {chat: new if isupport.fold(now) == nick else now for chat, now in self._now.items()}
        for chat in chats:
            self._now.pop(chat, None)
            self._now[chat] = new
        while len(self._now) > _MOST:
            del self._now[next(iter(self._now))]

    def nick(self, chat: str) -> str:
        """Whom to write to; a room's name is itself."""
        return self._now.get(chat) or target_of(chat)
