"""Gateway connections of one account: shards, sockets, heartbeats, and the budget of new sessions.

Each shard is a task with its own back-off. discord.py's `AutoShardedClient` reconnects shards one after the other from
one queue, and at once after an invalid session or a close: repeated ones would become a loop. Its socket lets any
malformed payload end the connection, and its heartbeat thread accepts any payload as a sign of life;
https://discord.com/developers/docs/events/gateway#sending-heartbeats requires an acknowledgement between two beats.
"""

import asyncio
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import aiohttp
import yarl
from discord.errors import ConnectionClosed
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.utils import _ActiveDecompressionContext

from channels.aio import Backoff, cancel_and_wait, with_timeout
from channels.base import Denied, RateLimited, Rejected, SendError
from channels.discord.config import DiscordConfig
from channels.discord.rest import EVENTS, DiscordClient
from channels.text import get_int, get_number, get_object, get_str
from gateway.core.clock import Clock

if TYPE_CHECKING:
    from channels.discord.session import DiscordSession

logger = logging.getLogger("reverie.discord")
IDENTIFY_INTERVAL_S = 5.0
"""https://discord.com/developers/docs/events/gateway#rate-limiting: seconds between two IDENTIFY of one bucket."""
MARGIN_S = 0.25
"""Discord counts at arrival, and the later request may be the faster one."""
DAY_S = 86400.0
MAX_PER_DAY = 1000
"""Limit of IDENTIFY a day, from that page: after more of them, Discord resets the token."""
RESERVE = 10
"""Sessions left to the operator, who may restart the gateway."""


class IdentifyLimiter:
    """Budget and rate limit of new sessions (IDENTIFY). Pure: time is passed in."""

    def __init__(self) -> None:
        self._buckets = 1
        self._remaining = MAX_PER_DAY
        self._resets_s: float | None = None
        self._identified_s: dict[int, float] = {}

    def set_budget(self, now_s: float, *, remaining: int, reset_after_s: float, max_concurrency: int) -> None:
        """Set the budget that Discord reports."""
        self._remaining, self._resets_s = max(0, remaining), now_s + max(0.0, reset_after_s)
        self._buckets = max(1, max_concurrency)

    def wait_s(self, shard: int, now_s: float) -> float:
        """Return the seconds until this shard may identify; 0: now."""
        if self._resets_s is not None and now_s >= self._resets_s:
            self._remaining, self._resets_s = MAX_PER_DAY, None
        if self._remaining <= RESERVE:
            return max(1.0, (self._resets_s or now_s + DAY_S) - now_s)
        last_s = self._identified_s.get(shard % self._buckets)
        return 0.0 if last_s is None else max(0.0, last_s + IDENTIFY_INTERVAL_S + MARGIN_S - now_s)

    def take(self, shard: int, now_s: float) -> None:
        """Reserve an IDENTIFY for now."""
        self._identified_s[shard % self._buckets] = now_s
        self._remaining -= 1
        if self._resets_s is None:
            self._resets_s = now_s + DAY_S

    def mark_sent(self, shard: int, now_s: float) -> None:
        """Correct the time of a reserved IDENTIFY to now: connecting took time."""
        self._identified_s[shard % self._buckets] = now_s


_API_VERSION = 10
_DEFAULT_HEARTBEAT_MS = 41250.0
_MIN_HEARTBEAT_MS = 10.0
_NEVER_S = 1e7
"""discord.py measures silence in real seconds; `GatewayHeartbeat` does that here."""
_KNOWN_EVENTS = frozenset(EVENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumableSession:
    """Session that a new connection can resume."""

    id: str
    seq: int
    gateway: str
    refused_count: int = 0
    """Consecutive attempts that were not granted."""


class GatewayHeartbeat:
    """Heartbeat task; closes the connection if a beat was not acknowledged before the next one."""

    def __init__(self, socket: "GatewaySocket", interval_s: float, chance: float) -> None:
        self._socket, self._interval_s = socket, interval_s
        self._is_acknowledged = True
        self._task = asyncio.create_task(self._beat(interval_s * chance))

    def ack(self) -> None:
        self._is_acknowledged = True

    def stop(self) -> None:
        """Cancel the task. discord.py calls it by this name when it closes."""
        if asyncio.current_task() is not self._task:
            self._task.cancel()

    async def _beat(self, first_s: float) -> None:
        socket = self._socket
        await socket.clock.sleep(first_s)
        while True:
            # While reading is paused, acknowledgements stay unread as well.
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
    """One gateway connection; `poll_event` reads one frame."""

    clock: Clock
    jitter: float
    """From 0 to 1: time of the first heartbeat within the first interval."""
    is_paused: bool = False
    """Reading is paused."""
    client: DiscordClient
    heart: GatewayHeartbeat | None = None
    is_ready: bool = False
    """READY or RESUMED has arrived."""

    def resumable_session(self) -> ResumableSession | None:
        """Return the session to resume after this connection."""
        if not self.session_id or self.sequence is None:
            return None
        return ResumableSession(id=self.session_id, seq=self.sequence, gateway=str(self.gateway))

    @property
    def close_code(self) -> int | None:
        """Close code; None: closed without a code, or still open."""
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
        elif op == self.RECONNECT:  # the caller closes, without waiting for an answer
            raise ReconnectWebSocket(self.shard_id)
        elif op == self.INVALIDATE_SESSION:
            if data is not True:
                self.session_id = self.sequence = None
            raise ReconnectWebSocket(self.shard_id, resume=data is True)

    def _read(self, msg: object) -> Mapping[str, Any] | None:
        """Return one complete payload; None if there is none (yet)."""
        try:
            raw = self._decompressor.decompress(msg) if isinstance(msg, bytes) else str(msg)
        except zlib.error:  # the rest of the stream is unreadable
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


def _safe_resume_url(resume_url: str, ours: yarl.URL) -> yarl.URL:
    """Return the address to resume at: Discord's, if it is a WebSocket address no less protected than ours."""
    try:
        url = yarl.URL(resume_url)
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
    """Open a connection, and identify or resume. READY or RESUMED arrives by `poll_event`.

    `shard`: its number and the count. Raises errors of discord.py and aiohttp; then, and when cancelled, nothing stays
    open.
    """
    url = yarl.URL(session.gateway if session else gateway)
    query = {"v": str(_API_VERSION), "encoding": "json", "compress": _ActiveDecompressionContext.COMPRESSION_TYPE}
    raw = await client.http.ws_connect(str(url.with_query(query)))
    # Set up as by `DiscordWebSocket.from_client`, which leaves the socket open if HELLO does not arrive.
    socket = GatewaySocket(raw, loop=asyncio.get_running_loop())
    socket.client, socket.clock, socket.jitter = client, clock, chance
    socket.token, socket.gateway = client.http.token, url
    state = client._connection  # noqa: SLF001 - IDENTIFY reads the intents from it
    socket._connection, socket.call_hooks = state, state.call_hooks  # noqa: SLF001 - as from_client
    socket.shard_id, socket.shard_count = shard or (None, None)
    socket._initial_identify = True  # noqa: SLF001 - `IdentifyLimiter` limits IDENTIFY
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


_PORTAL = "https://discord.com/developers/applications"
_FATAL_CLOSE_CODES = {
    4004: f"Discord refuses the token: copy it again from {_PORTAL} (your application, Bot, Reset Token)",
    4010: "Discord refuses this shard: look at `shards`",
    4011: "the bot is in too many guilds for one connection: set `shards: auto`",
    4012: "Discord no longer speaks this version of the gateway: a newer version of this program is needed",
    4013: "Discord does not know the intents that we ask for",
    4014: f"Discord does not let this bot read messages: at {_PORTAL}, open your application, then Bot, "
    "and switch on MESSAGE CONTENT INTENT",
}
"""https://discord.com/developers/docs/topics/opcodes-and-status-codes#gateway-gateway-close-event-codes."""
_NOT_RESUMABLE = frozenset({4007, 4009})
"""From that page: close codes after which resuming must not be tried again."""
_MAX_RESUMES = 3
"""Consecutive connections that failed to resume a session before it is abandoned."""


class DiscordShards:
    """All gateway connections of one account."""

    def __init__(
        self,
        client: DiscordClient,
        config: DiscordConfig,
        clock: Clock,
        session: "DiscordSession",
    ) -> None:
        """Connect with `client`, and report to `session`."""
        self._client, self._config, self._clock, self._session = client, config, clock, session
        self._identifying = asyncio.Lock()
        self._count: int | None = config.shards if isinstance(config.shards, int) else None
        self._sockets: dict[int, GatewaySocket] = {}
        self._up_s: dict[int, float] = {}
        """Shard -> time when it came up, while it is up."""

    async def run(self) -> None:
        """Connect and stay connected. Ends only by cancellation or `Denied`."""
        if self._config.shards == "auto":
            self._count = await self._recommended_shards()
        tasks = [asyncio.create_task(self._keep_connected(shard)) for shard in range(self._count or 1)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(*tasks)

    def mark_up(self, shard: int) -> None:
        """Record READY or RESUMED; call it before the following events are processed."""
        self._up_s[shard] = self._clock.monotonic()
        if len(self._up_s) == (self._count or 1):
            self._session.report_link(True, "connected to Discord")

    async def _recommended_shards(self) -> int:
        """Return Discord's recommended number of shards; repeated until it answers.

        Too few shards are rejected for good (4011).
        """
        backoff = Backoff()
        while True:
            try:
                return await self._fetch_budget() or 1
            except Denied:
                raise
            except Rejected:
                return 1
            except SendError as error:
                retry_after_s = error.retry_after_s if isinstance(error, RateLimited) else 0.0
                delay_s = max(retry_after_s, backoff.next_delay_s(0.0, self._session.random()))
                logger.warning("the number of shards is not known: %s; asked again in %.1f s", error.reason, delay_s)
                self._session.report_link(
                    False, f"Discord does not tell how many shards there are to be: {error.reason}"
                )
                await self._clock.sleep(delay_s)

    async def _fetch_budget(self) -> int | None:
        """Read the budget of new sessions; return the recommended number of shards, None if missing.

        Raises a `SendError`.
        """
        answer = await self._session.api.call("GET", "/gateway/bot", again=False)
        limit = get_object(answer, "session_start_limit")
        remaining, reset_ms = get_int(limit, "remaining"), get_number(limit, "reset_after")
        if remaining is not None and reset_ms is not None:
            self._session.state.identify_limiter.set_budget(
                self._clock.monotonic(),
                remaining=remaining,
                reset_after_s=reset_ms / 1000,
                max_concurrency=get_int(limit, "max_concurrency") or 1,
            )
        shards = get_int(answer, "shards")
        return min(shards, 1024) if shards and shards > 0 else None

    async def _wait_to_identify(self, shard: int, *, ask: bool) -> None:
        async with self._identifying:
            if ask:
                try:
                    await self._fetch_budget()
                except Denied:
                    raise
                except SendError as error:  # the limiter keeps its own count
                    logger.warning("Discord does not tell the session budget: %s", error.reason)
            while (wait_s := self._session.state.identify_limiter.wait_s(shard, self._clock.monotonic())) > 0:
                if wait_s > 2 * 60:
                    logger.warning("the budget of new sessions is used up; the next one in %.0f s", wait_s)
                await self._clock.sleep(wait_s)
            self._session.state.identify_limiter.take(shard, self._clock.monotonic())

    async def _keep_connected(self, shard: int) -> None:
        session: ResumableSession | None = None
        backoff, attempts = Backoff(), 0
        while True:
            if session is None:
                await self._wait_to_identify(shard, ask=attempts > 0 or self._config.shards != "auto")
            session, reason = await self._connect_once(shard, session)
            attempts += 1
            up_s = self._clock.monotonic() - self._up_s.pop(shard) if shard in self._up_s else 0.0
            self._session.report_link(False, reason)
            delay_s = backoff.next_delay_s(up_s, self._session.random())
            logger.warning("shard %d: %s; next attempt in %.1f s", shard, reason, delay_s)
            await self._clock.sleep(delay_s)

    async def _connect_once(self, shard: int, session: ResumableSession | None) -> tuple[ResumableSession | None, str]:
        """Run one connection; return the session to resume, and why it ended."""
        socket: GatewaySocket | None = None
        opened: list[GatewaySocket] = []
        code = 1000  # cancelled: end the session
        try:
            socket = await with_timeout(
                self._clock, self._config.connect_timeout, self._open_session(shard, session, opened)
            )
            while True:
                await self._wait_for_room(socket)
                await socket.poll_event()
        except ReconnectWebSocket as reconnect:
            code = 4000
            resumable = self._resumable_session(socket, session, opened) if reconnect.resume else None
            return resumable, _end_reason(socket or next(iter(opened), None), resume=reconnect.resume)
        except ConnectionClosed as closed:
            code = 4000
            if closed.code in _FATAL_CLOSE_CODES:
                raise Denied(_FATAL_CLOSE_CODES[closed.code]) from None
            return self._resumable_session(
                socket, session, opened
            ), f"Discord has closed the connection ({closed.code})"
        except (OSError, aiohttp.ClientError) as error:
            code = 4000
            if socket is not None:
                return socket.resumable_session(), f"the connection is lost: {type(error).__name__}"
            session = self._resumable_session(None, session, opened)
            if session is not None:  # the address for resuming may be dead
                session = replace(session, gateway=self._config.gateway_url)
            return session, f"cannot connect to Discord: {type(error).__name__}"
        finally:
            for opened_socket in opened:  # not `socket`: a cancellation may come before it is assigned
                await close_socket(opened_socket, code)

    async def _open_session(
        self, shard: int, session: ResumableSession | None, opened: list[GatewaySocket]
    ) -> GatewaySocket:
        """Return a connection with READY or RESUMED received; in any case the caller closes the sockets in `opened`."""
        sharded = self._config.shards is not None
        socket = await open_socket(
            self._client,
            self._config.gateway_url,
            shard=(shard, self._count or 1) if sharded else None,
            session=session,
            clock=self._clock,
            chance=self._session.random(),
        )
        opened.append(socket)
        if session is None:
            self._session.state.identify_limiter.mark_sent(shard, self._clock.monotonic())
        while not socket.is_ready:
            await socket.poll_event()
        return socket

    async def _wait_for_room(self, socket: GatewaySocket) -> None:
        """Pause reading while the inbox is full."""
        if self._session.inbox.is_full:
            socket.is_paused = True
            await self._session.inbox.wait_for_room()
            socket.is_paused = False

    def _resumable_session(
        self, socket: GatewaySocket | None, session: ResumableSession | None, opened: Sequence[GatewaySocket]
    ) -> ResumableSession | None:
        """Return the session to resume after a connection, or None for a new one.

        That is the session of `socket` if it became ready, else `session` if Discord may still resume it.
        """
        if socket is not None:
            return socket.resumable_session()
        if session is None:
            return None
        if not opened:  # no connection: the address for resuming may be dead
            return replace(session, gateway=self._config.gateway_url)
        if any(opened_socket.close_code in _NOT_RESUMABLE for opened_socket in opened):
            return None
        seq = max(opened_socket.sequence or 0 for opened_socket in opened)
        if seq > session.seq:  # interrupted during the replay
            return replace(session, seq=seq, refused_count=0)
        return (
            replace(session, refused_count=session.refused_count + 1)
            if session.refused_count + 1 < _MAX_RESUMES
            else None
        )


def _end_reason(socket: GatewaySocket | None, *, resume: bool) -> str:
    code = socket.close_code if socket else None
    if not resume:
        return "Discord has ended the session"
    return f"the connection has ended ({code})" if code else "the connection has ended"
