"""What can be told of IRC rooms without going into them: a server says the modes of most to whoever asks. Pure.

Numerics: https://modern.ircdocs.horse/#rplchannelmodeis-324, https://modern.ircdocs.horse/#errnosuchchannel-403
"""

from collections.abc import Iterable
from typing import Final

from channels.irc.wire import IrcLine, format_line
from gateway.probes.found import FindingCollector

MAX_ROOMS: Final = 10
"""Rooms that are asked about."""
_END_OF_REPLIES: Final = "rooms-are-asked"


class IrcRoomProbe:
    """Asks about each, and follows what the server says."""

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = list(rooms)[:MAX_ROOMS]
        self._modes: dict[str, str] = {}
        self._missing: set[str] = set()

    def build_queries(self) -> list[str]:
        """The lines that ask; none, where there is nothing to ask about."""
        if not self._rooms:
            return []
        return [*(format_line("MODE", room) for room in self._rooms), format_line("PING", _END_OF_REPLIES)]

    def feed(self, said: IrcLine) -> bool:
        """Take in a line of the server's; whether it was the last one that answers."""
        if said.command == "324":
            self._modes[said.param(1).lower()] = said.param(2)
        elif said.command in ("401", "403"):  # ngIRCd says that there is no such nick or channel
            self._missing.add(said.param(1).lower())
        return said.command == "PONG" and said.param(-1) == _END_OF_REPLIES

    def report(self, found: FindingCollector) -> None:
        """Of rooms that the server says nothing of nothing is told: it may keep them to itself."""
        for room in self._rooms:
            modes = self._modes.get(room.lower())
            if room.lower() in self._missing:
                what = f"there is no room {room}, or it hides: whoever joins makes it, and is alone there"
                found.warn("irc.rooms", what, "look at its name, or make the room before the bot joins")
            elif modes is not None and "i" in modes.partition("-")[0]:
                fix = "have an operator there invite the bot, or put it on the list of who may come (+I)"
                found.warn("irc.rooms", f"{room} lets in only who is invited (+i)", fix)
            elif modes is not None and "k" in modes.partition("-")[0]:
                what = f"{room} asks for a key (+k), which the bot does not have"
                found.warn("irc.rooms", what, "have an operator there take the key away, or invite the bot")
            elif modes is not None:
                found.ok("irc.rooms", f"{room} is there")
