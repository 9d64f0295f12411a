"""What a client of the loopback Discord can resume: a numbered past, kept while it is away."""

import json
from collections import deque
from typing import TYPE_CHECKING

from tests.servers.discord_api_world import Json

if TYPE_CHECKING:
    from tests.servers.discord_api_gateway import Connection


CONTENT, ALL_INTENTS = 1 << 15, (1 << 26) - 1
GOES_WITH = {
    "MESSAGE_CREATE": (9, 12),
    "MESSAGE_UPDATE": (9, 12),
    "MESSAGE_DELETE": (9, 12),
    "MESSAGE_DELETE_BULK": (9, 12),
    "MESSAGE_REACTION_ADD": (10, 13),
    "MESSAGE_REACTION_REMOVE": (10, 13),
    "TYPING_START": (11, 14),
}
"""Event -> bits of the intents it takes in guilds and in direct chats."""


class Session:
    """What a client can resume."""

    def __init__(self, number: str, intents: int, shard: tuple[int, int]) -> None:
        self.id, self.intents, self.shard = number, intents, shard
        self.seq = 0
        self.past: deque[tuple[int, str]] = deque(maxlen=5000)
        self.connection: Connection | None = None
        self.valid = True

    def dispatch(self, event: str, data: Json) -> None:
        """Number it, remember it, send it if somebody is there."""
        self.seq += 1
        self.raw(json.dumps({"op": 0, "t": event, "s": self.seq, "d": data}))

    def raw(self, text: str) -> None:
        """The same with any text, which takes no number."""
        self.past.append((self.seq, text))
        if self.connection is not None:
            self.connection.queue.put_nowait(text)

    def serves(self, guild: str | None) -> bool:
        """Whether events of that guild (None: of direct chats) are this shard's."""
        number, count = self.shard
        return (int(guild or 0) >> 22) % count == number

    def wants(self, event: str, *, private: bool) -> bool:
        if event not in GOES_WITH:
            return True
        return bool(self.intents >> GOES_WITH[event][private] & 1)
