"""One connection to the gateway: discord.py's, with a door that nothing unreadable comes through.

The library lets whatever a payload breaks end the connection, and beats its heart in a thread that takes any
payload for a sign of life. https://discord.com/developers/docs/events/gateway#sending-heartbeats wants an
acknowledgement between two beats.
"""

import asyncio
import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import yarl
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.utils import _ActiveDecompressionContext

from channels.discord.client import EVENTS, DiscordClient
from channels.payload import get_int, get_number, get_str
from gateway.clock import Clock

logger = logging.getLogger("reverie.discord")
_API_VERSION = 10
_DEFAULT_HEARTBEAT_MS = 41250.0
_MIN_HEARTBEAT_MS = 10.0
_NEVER_S = 1e7
"""discord.py counts silence in real seconds; ours is the heart's business."""
_KNOWN_EVENTS = frozenset(EVENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumableSession:
    """What can be resumed."""

    id: str
    seq: int
    gateway: str
    refused_count: int = 0
    """How many attempts in a row were not granted."""


class GatewayHeartbeat:
    """Beats, and ends the connection when a beat was not acknowledged before the next."""

    def __init__(self, socket: "GatewaySocket", interval_s: float, chance: float) -> None:
        self._socket, self._interval_s = socket, interval_s
        self._is_acknowledged = True
        self._task = asyncio.create_task(self._beat(interval_s * chance))

    def ack(self) -> None:
        self._is_acknowledged = True

    def stop(self) -> None:
        """The name that discord.py calls when it closes."""
        if asyncio.current_task() is not self._task:
            self._task.cancel()

    async def _beat(self, first_s: float) -> None:
        socket = self._socket
        await socket.clock.sleep(first_s)
        while True:
            # While we do not read, for want of room, acknowledgements lie unread as well.
            if not self._is_acknowledged and not socket.is_paused:
                logger.warning("shard %s: a heartbeat was not acknowledged", socket.shard_id)
                await socket.close(4000)
                return
            self._is_acknowledged = False
            try:
                await socket.socket.send_str(json.dumps({"op": socket.HEARTBEAT, "d": socket.sequence}))
            except (OSError, RuntimeError, aiohttp.ClientError):
                await socket.close(4000)
                return
            await socket.clock.sleep(self._interval_s)


class GatewaySocket(DiscordWebSocket):
    """One connection; `poll_event` reads one frame."""

    clock: Clock
    jitter: float
    """From 0 to 1: when in the first interval the first heartbeat goes out."""
    is_paused: bool = False
    """We do not read for now."""
    client: DiscordClient
    heart: GatewayHeartbeat | None = None
    is_ready: bool = False
    """READY or RESUMED has come."""

    def resumable_session(self) -> ResumableSession | None:
        """What to resume from where this connection ended."""
        if not self.session_id or self.sequence is None:
            return None
        return ResumableSession(id=self.session_id, seq=self.sequence, gateway=str(self.gateway))

    @property
    def close_code(self) -> int | None:
        """How it ended; None: without a code, or not yet."""
        return self._close_code or self.socket.close_code

    async def close(self, code: int = 4000) -> None:
        if self.heart is not None:
            self.heart.stop()
        await super().close(code)

    async def received_message(self, msg: object, /) -> None:
        payload = self._read(msg)
        if payload is None:
            return
        seq = get_int(payload, "s")
        if seq is not None and seq > 0:
            self.sequence = seq
        op, data = get_int(payload, "op"), payload.get("d")
        if op == self.DISPATCH:
            self._dispatched(get_str(payload, "t"), data)
        elif op == self.HEARTBEAT_ACK and self.heart is not None:
            self.heart.ack()
        elif op == self.HEARTBEAT:
            await self.send_heartbeat({"op": self.HEARTBEAT, "d": self.sequence})
        elif op == self.HELLO and self.heart is None:
            interval_ms = max(get_number(data, "heartbeat_interval") or _DEFAULT_HEARTBEAT_MS, _MIN_HEARTBEAT_MS)
            self.heart = GatewayHeartbeat(self, interval_ms / 1000, self.jitter)
        elif op == self.RECONNECT:  # whoever catches this closes, and waits for no answer to that
            raise ReconnectWebSocket(self.shard_id)
        elif op == self.INVALIDATE_SESSION:
            if data is not True:
                self.session_id = self.sequence = None
            raise ReconnectWebSocket(self.shard_id, resume=data is True)

    def _read(self, msg: object) -> Mapping[str, Any] | None:
        """One whole payload; None if there is none (yet)."""
        try:
            raw = self._decompressor.decompress(msg) if isinstance(msg, bytes) else str(msg)
        except zlib.error:  # the stream cannot be read on from here
            logger.warning("shard %s: the compressed stream is broken", self.shard_id)
            raise ReconnectWebSocket(self.shard_id) from None
        try:
            payload = None if raw is None else json.loads(raw)
        except (ValueError, RecursionError):
            payload = ()
        if payload is None or isinstance(payload, Mapping):
            return payload
        logger.warning("shard %s: a payload that cannot be read is dropped", self.shard_id)
        return None

    def _dispatched(self, event: str, data: object) -> None:
        if event == "READY":
            self.session_id = get_str(data, "session_id") or None
            self.gateway = _safe_resume_url(get_str(data, "resume_gateway_url"), self.gateway)
        if event in {"READY", "RESUMED"}:
            self.is_ready = True
        if event in _KNOWN_EVENTS:
            self.client.handle_raw_event(self.shard_id or 0, event, data)


def _safe_resume_url(told: str, ours: yarl.URL) -> yarl.URL:
    """Where to resume: as told, if it is a WebSocket address that is no less protected than ours."""
    try:
        url = yarl.URL(told)
    except ValueError:
        return ours
    if not url.host or url.user or url.scheme not in {"ws", "wss"} or (ours.scheme == "wss" and url.scheme == "ws"):
        return ours
    return url


async def open_socket(
    client: DiscordClient,
    gateway: str,
    *,
    shard: tuple[int, int] | None,
    session: ResumableSession | None,
    clock: Clock,
    chance: float,
) -> GatewaySocket:
    """Open a connection, and identify or resume. READY or RESUMED comes by `poll_event`.

    `shard`: which of how many. Raises what discord.py and aiohttp raise; then, and when cancelled, nothing stays open.
    """
    url = yarl.URL(session.gateway if session else gateway)
    query = {"v": str(_API_VERSION), "encoding": "json", "compress": _ActiveDecompressionContext.COMPRESSION_TYPE}
    raw = await client.http.ws_connect(str(url.with_query(query)))
    # What `DiscordWebSocket.from_client` sets; that one leaves the socket open if HELLO does not come.
    socket = GatewaySocket(raw, loop=asyncio.get_running_loop())
    socket.client, socket.clock, socket.jitter = client, clock, chance
    socket.token, socket.gateway = client.http.token, url
    state = client._connection  # noqa: SLF001 - IDENTIFY takes the intents from there
    socket._connection, socket.call_hooks = state, state.call_hooks  # noqa: SLF001 - as from_client
    socket.shard_id, socket.shard_count = shard or (None, None)
    socket._initial_identify = True  # noqa: SLF001 - the pace of IDENTIFY is kept elsewhere
    socket._max_heartbeat_timeout = _NEVER_S  # noqa: SLF001 - the same
    try:
        if session is not None:
            socket.session_id, socket.sequence = session.id, session.seq
        while socket.heart is None:
            await socket.poll_event()
        await (socket.identify() if session is None else socket.resume())
    except BaseException:
        await close_socket(socket, 4000)
        raise
    return socket


async def close_socket(socket: GatewaySocket, code: int) -> None:
    """Close without waiting long for the other side. 1000 ends the session, 4000 leaves it resumable."""
    closing = asyncio.create_task(socket.close(code))
    await asyncio.wait({closing}, timeout=0.3)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
