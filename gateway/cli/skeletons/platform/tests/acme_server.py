"""A server of Acme on loopback, with one bot, two rooms and the people alice and bob."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from reverie.testing.servers.ports import LoopbackServer

BOT = "acme-bot"


class AcmeServer(LoopbackServer):
    """Keeps all that is said, and plays the faults that a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.token = "a-token"
        self.events: list[dict[str, Any]] = []
        self.refused_rooms: set[str] = set()
        self.limited_s: float | None = None
        """The next post is refused: it is too early by so many seconds."""
        self.cuts_post = False
        """The next post gets no answer."""
        self.listeners: set[asyncio.StreamWriter] = set()

    async def add(self, sender: str, room: str, text: str, **more: object) -> int:
        """Keep a message, and pass it on. Return its id."""
        number = max((one.get("id", 0) for one in self.events), default=0) + 1
        author = {"id": sender, "name": sender.removeprefix("user-")}
        said = {"id": number, "room": room, "from": author, "text": text}
        now = datetime.now(UTC).isoformat()
        await self.pass_on({**said, "sent": now, "direct": room.startswith("dm-"), **more})
        return number

    async def pass_on(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        await self.changed()

    def said(self, room: str) -> list[str]:
        """What the bot said in a room."""
        return [
            one["text"]
            for one in self.events
            if one.get("room") == room and one["from"]["id"] == BOT
        ]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        if asked["token"] != self.token:
            await _write(writer, {"error": "denied", "reason": "the token is not valid"})
        elif asked["do"] == "post":
            if (answer := await self._post(asked)) is not None:
                await _write(writer, answer)
        else:
            newest = max((one.get("id", 0) for one in self.events), default=0)
            await _write(writer, {"me": BOT, "newest": newest})
            since = newest if asked["since"] is None else int(asked["since"])
            later = (at for at, one in enumerate(self.events) if one.get("id", 0) > since)
            sending = asyncio.create_task(self._send(writer, next(later, len(self.events))))
            self.listeners.add(writer)
            await self.changed()
            try:
                await reader.read()  # until the client hangs up
            finally:
                sending.cancel()
                self.listeners.discard(writer)
                await self.changed()

    async def _post(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        limited_s, self.limited_s = self.limited_s, None
        cuts, self.cuts_post = self.cuts_post, False
        if limited_s is not None:
            return {"error": "limited", "reason": "too early", "seconds": limited_s}
        if asked["room"] in self.refused_rooms:
            return {"error": "refused", "reason": "the bot may not write there"}
        return None if cuts else {"id": await self.add(BOT, asked["room"], asked["text"])}

    async def _send(self, writer: asyncio.StreamWriter, position: int) -> None:
        """Send the events from this position on, and all later ones."""
        while True:
            later = self.events[position:]
            for event in later:
                await _write(writer, event)
            position += len(later)
            await self.until(lambda at=position: len(self.events) > at, limit_s=3600.0)  # type: ignore[misc] # bound now


async def _write(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
    writer.write(json.dumps(value).encode() + b"\n")
    await writer.drain()
