"""The gateway of the loopback Discord: sessions, heartbeats, resuming, close codes.

https://discord.com/developers/docs/events/gateway
"""

import asyncio
import contextlib
import json
import time
import zlib
from collections import deque
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from reverie.testing.servers.discord_api_world import Json

if TYPE_CHECKING:
    from reverie.testing.servers.discord_api import DiscordApi


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


DISPATCH, HEARTBEAT, IDENTIFY, PRESENCE, VOICE, RESUME, RECONNECT, MEMBERS, INVALID, HELLO, ACK = (
    0,
    1,
    2,
    3,
    4,
    *range(6, 12),
)
UNKNOWN_OP, DECODE, NOT_AUTHENTICATED, DENIED, TWICE, BAD_SEQ, TOO_FAST, TIMED_OUT = (
    4001,
    4002,
    4003,
    4004,
    4005,
    4007,
    4008,
    4009,
)
BAD_INTENTS, FORBIDDEN_INTENTS = 4013, 4014
ABNORMAL = 1006
_ENDS = (
    aiohttp.WSMsgType.CLOSE,
    aiohttp.WSMsgType.CLOSING,
    aiohttp.WSMsgType.CLOSED,
    aiohttp.WSMsgType.ERROR,
)
EVENTS_PER_MINUTE = 120


class Connection:
    """One socket."""

    def __init__(
        self,
        api: "DiscordApi",
        socket: web.WebSocketResponse,
        transport: asyncio.Transport,
        *,
        compress: bool,
    ) -> None:
        self.api, self._socket, self._transport = api, socket, transport
        self.queue: asyncio.Queue[str | int] = asyncio.Queue()
        """Texts to send; an int closes with that code, 0 cuts."""
        self.session: Session | None = None
        self.received: list[Json] = []
        self.close_code: int | None = None
        """How the client ended it; 1006 if it did not say goodbye; None: not yet."""
        self.beats = 0
        self._beaten_s = time.monotonic()
        self._moments: deque[float] = deque()
        self._zlib = zlib.compressobj() if compress else None

    def send(self, op: int, data: object = None) -> None:
        self.queue.put_nowait(json.dumps({"op": op, "d": data, "s": None, "t": None}))

    def close(self, code: int) -> None:
        """Close with that code once all is sent; 0 cuts without one."""
        self.queue.put_nowait(code)

    def cut(self) -> None:
        """Cut now, without a word."""
        self._transport.abort()

    async def _write(self) -> None:
        while True:
            item = await self.queue.get()
            if item == 0:
                self.cut()
            elif isinstance(item, int):
                await self._socket.close(code=item)
            elif self._zlib is not None:
                data = self._zlib.compress(item.encode()) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
                with contextlib.suppress(ConnectionError):
                    await self._socket.send_bytes(data)
            else:
                with contextlib.suppress(ConnectionError):
                    await self._socket.send_str(item)

    async def _watch(self) -> None:
        interval = self.api.options.heartbeat_s
        grace = self.api.options.heartbeat_grace_s or interval * 3
        while time.monotonic() - self._beaten_s < grace:  # noqa: ASYNC110 - silence is no event
            await asyncio.sleep(interval / 4)
        self.close(TIMED_OUT)

    async def serve(self) -> None:
        tasks = [asyncio.create_task(self._write())]
        try:
            if not self.api.faults.silent:
                self.send(
                    HELLO,
                    {
                        "heartbeat_interval": int(self.api.options.heartbeat_s * 1000),
                        "_trace": ["[]"],
                    },
                )
                tasks.append(asyncio.create_task(self._watch()))
            # Not `async for`: that hides the client's close code, and takes a lost connection for a
            # good end.
            while (message := await self._socket.receive()).type not in _ENDS:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    self.close(DECODE)
                    continue
                if not self.api.faults.silent:
                    self._take(message.data)
                self.api.changed()
            self.close_code = message.data if message.type is aiohttp.WSMsgType.CLOSE else ABNORMAL
        finally:
            self.close_code = self.close_code or ABNORMAL
            if self.session is not None and self.session.connection in {self, None}:
                self.session.connection = None
                self.session.valid = self.session.valid and self.close_code not in {1000, 1001}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.api.changed()

    def _take(self, text: str) -> None:
        try:
            payload = json.loads(text)
            op, data = payload["op"], payload.get("d")
        except (ValueError, KeyError, TypeError):
            return self.close(DECODE)
        self.received.append(payload)
        now_s = time.monotonic()
        self._moments.append(now_s)
        while self._moments[0] < now_s - 60:
            self._moments.popleft()
        if len(self._moments) > EVENTS_PER_MINUTE:
            return self.close(TOO_FAST)
        match op:
            case 1:
                self.beats += 1
                self._beaten_s = now_s
                if not self.api.faults.hold_acks:
                    self.send(ACK)
            case 2:
                self._identify(data)
            case 6:
                self._resume(data)
            case 3 | 4 | 8:
                if self.session is None:
                    self.close(NOT_AUTHENTICATED)
            case _:
                self.close(UNKNOWN_OP)
        return None

    def _refused(self, data: Json) -> bool:
        faults = self.api.faults
        if data.get("token") != self.api.options.token:
            self.close(DENIED)
        elif faults.invalid_sessions > 0:
            faults.invalid_sessions -= 1
            self.send(INVALID, faults.resumable)
        else:
            return False
        return True

    def _identify(self, data: Json) -> None:
        api, intents = self.api, data.get("intents")
        api.identifies.append((time.monotonic(), data))
        if self.session is not None:
            return self.close(TWICE)
        if self._refused(data):
            return None
        if not isinstance(intents, int) or intents & ~ALL_INTENTS:
            return self.close(BAD_INTENTS)
        if intents & CONTENT and not api.options.message_content:
            return self.close(FORBIDDEN_INTENTS)
        if len(api.identifies) > api.options.identifies_per_day:
            return self.close(DENIED)
        number, count = data.get("shard", [0, 1])
        self.session = Session(f"s{api.world.ids.new()}", intents, (number, count))
        self.session.connection = self
        api.sessions.append(self.session)
        world = api.world
        guilds = [guild for guild in world.guilds if self.session.serves(guild)]
        ready = {
            "v": 10,
            "user": world.users[world.bot],
            "guilds": [{"id": guild, "unavailable": True} for guild in guilds],
            "session_id": self.session.id,
            "resume_gateway_url": api.options.resume_url or api.gateway_url,
            "shard": [number, count],
            "application": {"id": world.bot, "flags": 1 << 19},
            "private_channels": [],
        }
        self.session.dispatch("READY", ready)
        for guild in [] if api.faults.late_guilds else guilds:
            self.session.dispatch("GUILD_CREATE", world.guild_create(guild))
        return self._greeted()

    def _resume(self, data: Json) -> None:
        api = self.api
        api.resumes.append((time.monotonic(), data))
        if self._refused(data):
            return None
        if api.faults.refused_resumes > 0:
            api.faults.refused_resumes -= 1
            return self.close(api.faults.refusal)
        found = [s for s in api.sessions if s.id == data.get("session_id") and s.valid]
        if not found:
            return self.send(INVALID, False)
        session, seq = found[0], data.get("seq")
        if not isinstance(seq, int) or seq > session.seq:
            return self.close(BAD_SEQ)
        if session.connection is not None:
            session.connection.close(4000)
        self.session, session.connection = session, self
        missed = [text for number, text in session.past if number > seq]
        if api.faults.cut_replays > 0:
            api.faults.cut_replays -= 1
            for text in missed[: len(missed) // 2]:
                self.queue.put_nowait(text)
            return self.close(4000)
        for text in missed:
            self.queue.put_nowait(text)
        session.dispatch("RESUMED", {"_trace": []})
        return self._greeted()

    def _greeted(self) -> None:
        if self.api.faults.close_after_ready is not None:
            self.close(self.api.faults.close_after_ready)
