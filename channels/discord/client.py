"""discord.py for one account: its endpoints, its pace, and nothing of its caches.

The library keeps the addresses of Discord in class attributes (`Route.BASE`, `DiscordWebSocket.DEFAULT_GATEWAY`).
Here each request gets its address as it is made, and each socket is opened at one that is handed over; so
accounts at different servers live in one process, and nothing global is changed.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final

import aiohttp
import discord
from discord.http import HTTPClient, Ratelimit, Route

from channels.discord.config import DiscordConfig

# Else the library warns at every start that it cannot do voice, which nobody asked for.
discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False

MAX_BUCKET_WAIT_S: Final = 30.0
"""discord.py waits so long for a bucket by itself (its least); what takes longer is said as `RateLimited`."""
_UPLOAD_EXTRA_S: Final = 120.0
"""What a request with a file may take beside."""
EVENTS: Final = (
    "READY",
    "RESUMED",
    "GUILD_CREATE",
    "GUILD_DELETE",
    "GUILD_ROLE_CREATE",
    "GUILD_ROLE_UPDATE",
    "CHANNEL_CREATE",
    "CHANNEL_UPDATE",
    "CHANNEL_DELETE",
    "THREAD_CREATE",
    "THREAD_UPDATE",
    "THREAD_DELETE",
    "THREAD_LIST_SYNC",
    "MESSAGE_CREATE",
    "MESSAGE_UPDATE",
    "MESSAGE_DELETE",
    "MESSAGE_DELETE_BULK",
    "MESSAGE_REACTION_ADD",
    "MESSAGE_REACTION_REMOVE",
    "INTERACTION_CREATE",
)
"""What is taken in; all else is dropped unread."""
RawEventHandler = Callable[[int, str, object], None]
"""Shard, event, its data as it came. Never waits, never raises."""


def build_intents() -> discord.Intents:
    """What we ask to be told: no members, no presences."""
    return discord.Intents(
        guilds=True,
        guild_messages=True,
        dm_messages=True,
        message_content=True,
        guild_reactions=True,
        dm_reactions=True,
    )


class DiscordClient(discord.Client):
    """Holds the account's HTTP side and hands raw events to `take`."""

    def __init__(self, config: DiscordConfig, take: RawEventHandler) -> None:
        super().__init__(
            intents=build_intents(),
            max_messages=None,
            chunk_guilds_at_startup=False,
            member_cache_flags=discord.MemberCacheFlags.none(),
            allowed_mentions=discord.AllowedMentions.none(),
        )
        self.handle_raw_event = take
        self.http = self._connection.http = DiscordHttpClient(config)
        # Payloads go to `take` as they are: a cache of objects would cost memory, and break on what it does not know.
        self._connection.parsers = {event: partial(take, 0, event) for event in EVENTS}

    async def log_in(self, token: str) -> str:
        """Log in; our user id, or an empty text if Discord does not tell it."""
        await self._async_setup_hook()
        data: Any = await self.http.static_login(token)
        return str(data.get("id", "")) if isinstance(data, dict) else ""


class DiscordHttpClient(HTTPClient):
    """The library's HTTP client at another address, with buckets that answer as soon as Discord has."""

    def __init__(self, config: DiscordConfig) -> None:
        super().__init__(asyncio.get_running_loop(), max_ratelimit_timeout=MAX_BUCKET_WAIT_S)
        self._base = config.api_url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=config.request_timeout)
        self._upload = aiohttp.ClientTimeout(total=config.request_timeout + _UPLOAD_EXTRA_S)
        _install_token_filter()

    async def request(self, route: Route, **kwargs: Any) -> Any:  # noqa: ANN401 - the library's signature
        if route.url.startswith(Route.BASE):
            route.url = self._base + route.url.removeprefix(Route.BASE)
        try:
            timeout = self._upload if "form" in kwargs else self._timeout
            return await super().request(route, timeout=timeout, **kwargs)
        except asyncio.CancelledError:
            # Cancelled in a global wait, the library leaves its gate closed for ever.
            self._global_over.set()
            raise

    def get_ratelimit(self, key: str) -> Ratelimit:
        if key not in self._buckets:
            self._buckets[key] = FairRatelimit(self.max_ratelimit_timeout)
            self._try_clear_expired_ratelimits()
        return self._buckets[key]


class FairRatelimit(Ratelimit):
    """A rate limit in which those wait who come next.

    The library's own lets the request that used up the bucket wait for the next window before it returns: the
    message is visible, and its receipt comes seconds later, or never if we are stopped meanwhile.
    """

    __slots__ = ("_returned", "_turn")

    def __init__(self, patience_s: float | None) -> None:
        super().__init__(patience_s)
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    async def acquire(self) -> None:
        self._last_request = self._loop.time()
        async with self._turn:  # asyncio locks are fair: who came first goes first
            while True:
                now_s = self._loop.time()
                if self.expires is not None and now_s >= self.expires:
                    self.reset()  # type: ignore[no-untyped-call] # the library says no types there
                if self.remaining > 0:
                    break
                if self.expires is None and self.outgoing:  # the limit is not known before the first answer
                    self._returned.clear()
                    await self._returned.wait()
                elif self.expires is None:
                    self.remaining = 1
                elif self._max_ratelimit_timeout and self.expires - now_s > self._max_ratelimit_timeout:
                    raise discord.RateLimited(self.expires - now_s)
                else:
                    await asyncio.sleep(self.expires - now_s)
        self.remaining -= 1
        self.outgoing += 1

    async def __aexit__(
        self,
        type: type[BaseException] | None,  # noqa: A002 - the library's name
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.outgoing -= 1
        self._returned.set()

    def is_inactive(self) -> bool:
        return not self._turn.locked() and super().is_inactive()


class _WebhookTokenFilter(logging.Filter):
    """Takes the tokens of interactions out of the addresses that the library logs."""

    _SECRET = re.compile(r"(/(?:webhooks|interactions)/\d+/)[^/\s?]+")

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._SECRET.sub(r"\1...", record.getMessage()), ()
        return True


def _install_token_filter() -> None:
    library = logging.getLogger("discord.http")
    if not any(isinstance(found, _WebhookTokenFilter) for found in library.filters):
        library.addFilter(_WebhookTokenFilter())
