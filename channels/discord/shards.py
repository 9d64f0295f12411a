"""Keeps the shards of one account connected.

Each shard is a task of its own with its own back-off. discord.py's `AutoShardedClient` reconnects them one after
the other from one queue, and at once after an invalid session or a close: a storm of them would be a loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import aiohttp
from discord.errors import ConnectionClosed
from discord.gateway import ReconnectWebSocket

from channels.backoff import Backoff
from channels.base import Denied, RateLimited, Rejected, SendError
from channels.discord.client import DiscordClient
from channels.discord.config import DiscordConfig
from channels.discord.inbox import DiscordInbox
from channels.discord.pace import IdentifyLimiter
from channels.discord.rest import DiscordRestClient
from channels.discord.socket import GatewaySocket, ResumableSession, close_socket, open_socket
from channels.payload import get_int, get_number, get_object
from channels.tasks import cancel_and_wait, with_timeout
from gateway.clock import Clock

logger = logging.getLogger("reverie.discord")
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
"""https://discord.com/developers/docs/topics/opcodes-and-status-codes#gateway-gateway-close-event-codes"""
_NOT_RESUMABLE = frozenset({4007, 4009})
"""The same page: so closed, an attempt to resume is not to be repeated."""
_MAX_RESUMES = 3
"""A session that so many connections in a row could not resume is given up."""
DiscordLinkListener = Callable[[bool, str], None]


class DiscordShards:
    """All connections of one account."""

    def __init__(
        self,
        client: DiscordClient,
        config: DiscordConfig,
        clock: Clock,
        *,
        random: Callable[[], float],
        inbox: DiscordInbox,
        api: DiscordRestClient,
        link: DiscordLinkListener,
        identifies: IdentifyLimiter,
    ) -> None:
        """`identifies` outlives it: Discord counts what earlier ones did."""
        self._client, self._config, self._clock, self._random = client, config, clock, random
        self._inbox, self._report_link, self._api = inbox, link, api
        self._identifies = identifies
        self._identifying = asyncio.Lock()
        self._count: int | None = config.shards if isinstance(config.shards, int) else None
        self._sockets: dict[int, GatewaySocket] = {}
        self._up_s: dict[int, float] = {}
        """When each shard that is up came up."""

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
        """READY or RESUMED: to be called before what follows it is taken in."""
        self._up_s[shard] = self._clock.monotonic()
        if len(self._up_s) == (self._count or 1):
            self._report_link(True, "connected to Discord")

    async def _recommended_shards(self) -> int:
        """How many shards Discord recommends; asked for until it says, because too few are refused for good (4011)."""
        backoff = Backoff()
        while True:
            try:
                return await self._fetch_budget() or 1
            except Denied:
                raise
            except Rejected:
                return 1
            except SendError as error:
                told_s = error.retry_after_s if isinstance(error, RateLimited) else 0.0
                delay_s = max(told_s, backoff.next_delay_s(0.0, self._random()))
                logger.warning("the number of shards is not known: %s; asked again in %.1f s", error.reason, delay_s)
                self._report_link(False, f"Discord does not tell how many shards there are to be: {error.reason}")
                await self._clock.sleep(delay_s)

    async def _fetch_budget(self) -> int | None:
        """Take in how many sessions may be begun; how many shards Discord recommends, None if it does not tell.

        Raises a `SendError`.
        """
        told = await self._api.call("GET", "/gateway/bot", again=False)
        limit = get_object(told, "session_start_limit")
        remaining, reset_ms = get_int(limit, "remaining"), get_number(limit, "reset_after")
        if remaining is not None and reset_ms is not None:
            self._identifies.set_budget(
                self._clock.monotonic(),
                remaining=remaining,
                reset_after_s=reset_ms / 1000,
                max_concurrency=get_int(limit, "max_concurrency") or 1,
            )
        shards = get_int(told, "shards")
        return min(shards, 1024) if shards and shards > 0 else None

    async def _wait_to_identify(self, shard: int, *, ask: bool) -> None:
        async with self._identifying:
            if ask:
                try:
                    await self._fetch_budget()
                except Denied:
                    raise
                except SendError as error:  # we keep count ourselves
                    logger.warning("Discord does not tell the session budget: %s", error.reason)
            while (wait_s := self._identifies.wait_s(shard, self._clock.monotonic())) > 0:
                if wait_s > 2 * 60:
                    logger.warning("the budget of new sessions is used up; the next one in %.0f s", wait_s)
                await self._clock.sleep(wait_s)
            self._identifies.take(shard, self._clock.monotonic())

    async def _keep_connected(self, shard: int) -> None:
        session: ResumableSession | None = None
        backoff, attempts = Backoff(), 0
        while True:
            if session is None:
                await self._wait_to_identify(shard, ask=attempts > 0 or self._config.shards != "auto")
            session, reason = await self._connect_once(shard, session)
            attempts += 1
            up_s = self._clock.monotonic() - self._up_s.pop(shard) if shard in self._up_s else 0.0
            self._report_link(False, reason)
            delay_s = backoff.next_delay_s(up_s, self._random())
            logger.warning("shard %d: %s; next attempt in %.1f s", shard, reason, delay_s)
            await self._clock.sleep(delay_s)

    async def _connect_once(self, shard: int, session: ResumableSession | None) -> tuple[ResumableSession | None, str]:
        """One connection from its first packet to its last: what can be resumed, and why it ended."""
        socket: GatewaySocket | None = None
        opened: list[GatewaySocket] = []
        code = 1000  # cancelled: goodbye for good
        try:
            socket = await with_timeout(
                self._clock, self._config.connect_timeout, self._open_session(shard, session, opened)
            )
            while True:
                await self._wait_for_room(socket)
                await socket.poll_event()
        except ReconnectWebSocket as again:
            code = 4000
            kept = self._resumable_session(socket, session, opened) if again.resume else None
            return kept, _end_reason(socket or next(iter(opened), None), resume=again.resume)
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
            if session is not None:  # the same: perhaps it only pretends to be alive
                session = replace(session, gateway=self._config.gateway_url)
            return session, f"cannot connect to Discord: {type(error).__name__}"
        finally:
            for left in opened:  # not `socket`: cancelled in the wrong moment, we never learn of it
                await close_socket(left, code)

    async def _open_session(
        self, shard: int, session: ResumableSession | None, opened: list[GatewaySocket]
    ) -> GatewaySocket:
        """A connection on which READY or RESUMED has come; whatever happens, the caller closes what is in `opened`."""
        sharded = self._config.shards is not None
        socket = await open_socket(
            self._client,
            self._config.gateway_url,
            shard=(shard, self._count or 1) if sharded else None,
            session=session,
            clock=self._clock,
            chance=self._random(),
        )
        opened.append(socket)
        if session is None:
            self._identifies.mark_sent(shard, self._clock.monotonic())
        while not socket.is_ready:
            await socket.poll_event()
        return socket

    async def _wait_for_room(self, socket: GatewaySocket) -> None:
        """Read no further while nobody takes what was read."""
        if self._inbox.is_full:
            socket.is_paused = True
            await self._inbox.wait_for_room()
            socket.is_paused = False

    def _resumable_session(
        self, socket: GatewaySocket | None, session: ResumableSession | None, opened: Sequence[GatewaySocket]
    ) -> ResumableSession | None:
        """What to resume after a connection: that of `socket` if it was greeted, else `session`, if Discord may yet."""
        if socket is not None:
            return socket.resumable_session()
        if session is None:
            return None
        if not opened:  # it was not even asked: perhaps the address told for resuming is dead
            return replace(session, gateway=self._config.gateway_url)
        if any(left.close_code in _NOT_RESUMABLE for left in opened):
            return None
        if (seq := max(left.sequence or 0 for left in opened)) > session.seq:  # cut in the middle of what was missed
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
