"""One request to Discord's HTTP API, with an end that says what to do.

discord.py for one account: its endpoints, its pace, and nothing of its caches.

The library keeps the addresses of Discord in class attributes (`Route.BASE`, `DiscordWebSocket.DEFAULT_GATEWAY`).
Here each request gets its address as it is made, and each socket is opened at one that is handed over; so
accounts at different servers live in one process, and nothing global is changed.

Fetching attachments: only from Discord's own hosts, and never more than was asked for.
"""

import asyncio
import io
import json as json_
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final

import aiohttp
import discord
import yarl
from discord.http import HTTPClient, Ratelimit, Route

from channels.base import BeforeSend, Denied, OutgoingFile, RateLimited, Rejected, SendError, Uncertain, Unreachable
from channels.discord.config import DiscordConfig
from channels.discord.errors import DiscordRefused
from channels.discord.ids import get_snowflake
from channels.text import Json, get_number, get_object, get_objects, get_str, safe_content_type, safe_file_name

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


UNAUTHORIZED: Final = 401
TOO_MANY_REQUESTS: Final = 429
SERVER_ERROR: Final = 500
_TOKEN_PATHS = "/webhooks/", "/interactions/"
"""Here a token in the address lets us in, one that runs out: https://discord.com/developers/docs/interactions/
receiving-and-responding#interaction-response. Our own is not looked at."""
_RETRY_DEFAULT_S, _RETRY_MIN_S, _RETRY_MAX_S = 60.0, 1.0, 3600.0


class _ResendForbidden(Exception):
    """discord.py wants to send a second time what must not be sent twice."""


class _SendGuard:
    """Called by aiohttp each time that one request goes out: discord.py sends it up to five times."""

    def __init__(self, going: BeforeSend | None, *, again: bool) -> None:
        self._before_send, self._may_repeat = going, again
        self.is_sent = False
        """Something has gone out."""
        self.is_maybe_done = False
        """Discord may have done what was asked for, and did not say so."""
        self.is_hook_error = False
        """What came out is of `going`."""
        self.status = 0
        """Of the last answer."""
        self.wait_s: float | None = None
        """How long the last answer told us to wait; None: it was no 429."""

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        # aiohttp may take a connection that has just died, and reads on another one: no harm in that.
        if self.is_sent and not self._may_repeat and (self.status or request.method != "GET"):
            raise _ResendForbidden
        if not self.is_sent and self._before_send is not None:
            try:
                await self._before_send()
            except Exception:
                self.is_hook_error = True
                raise
        self.is_sent = True
        try:
            response = await handler(request)
        except aiohttp.ClientConnectorError:
            raise
        except BaseException:
            self.is_maybe_done = True
            raise
        self.status, self.is_maybe_done = response.status, self.is_maybe_done or response.status >= SERVER_ERROR
        # discord.py reads the body of some 429 only, and of those without `Via` nothing.
        self.wait_s = (
            _parse_retry_after_s(response, await response.read()) if response.status == TOO_MANY_REQUESTS else None
        )
        return response


class DiscordRestClient:
    """Requests of one account. Waits for the pace of their bucket; buckets do not wait for each other."""

    def __init__(self) -> None:
        self.client: discord.Client | None = None
        """None: not logged in."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        file: OutgoingFile | None = None,
        params: Mapping[str, str | int] | None = None,
        going: BeforeSend | None = None,
        again: bool = True,
        **ids: str,
    ) -> object:
        """Return what Discord answers (parsed JSON), else raise a `SendError`.

        `ids` stand in `path` in braces. `file` goes with `json`. `going` is awaited once, right before the first
        byte; what it raises comes out. `again`: sending it twice does no harm, so that discord.py may after a 5xx.
        """
        if self.client is None:
            raise Unreachable("not logged in to Discord")
        hand_over = _SendGuard(going, again=again)
        more: dict[str, Any] = {"middlewares": (hand_over,)}
        sent = discord.File(io.BytesIO(file.data), safe_file_name(file.name)) if file is not None else None
        if file is not None and sent is not None:
            more |= {"files": [sent], "form": _build_form(json, sent, file)}
        elif json is not None:
            more["json"] = json
        if params is not None:
            more["params"] = params
        try:
            return _parse_answer(await self.client.http.request(Route(method, path, **ids), **more))
        except _FAILURES as error:
            if hand_over.is_hook_error:
                raise
            meaning = _to_send_error(error, hand_over)
            if isinstance(meaning, Denied) and path.startswith(_TOKEN_PATHS):
                meaning = DiscordRefused(
                    f"Discord: the command's token is not taken ({UNAUTHORIZED})", status=UNAUTHORIZED
                )
            if hand_over.is_maybe_done and not isinstance(meaning, Denied):
                # An earlier try may have been taken: what is said of the last one does not undo it.
                meaning = Uncertain(meaning.reason)
            raise meaning from error
        finally:
            if sent is not None:
                sent.close()


def _build_form(json: object, sent: discord.File, file: OutgoingFile) -> list[dict[str, Any]]:
    """https://discord.com/developers/docs/reference#uploading-files; the name is quoted by nobody, and harmless."""
    told = {"name": "payload_json", "value": json_.dumps(json)}
    kind = safe_content_type(file.content_type)
    return [told, {"name": "files[0]", "value": sent.fp, "filename": sent.filename, "content_type": kind}]


_FAILURES = (
    discord.DiscordException,
    _ResendForbidden,
    aiohttp.ClientError,
    OSError,
    RuntimeError,
    *(LookupError, ValueError, TypeError, AttributeError),  # an answer that is not what the library expects
)


def _to_send_error(error: Exception, hand_over: _SendGuard) -> SendError:
    """What is known after a request that ended so."""
    if isinstance(error, discord.RateLimited):
        return RateLimited(f"Discord: wait {error.retry_after:.1f} s", retry_after_s=error.retry_after)
    if (wait_s := hand_over.wait_s) is not None:
        return RateLimited(f"Discord: too many requests, wait {wait_s:.1f} s", retry_after_s=wait_s)
    if isinstance(error, _ResendForbidden):
        return Uncertain(f"Discord: no reason ({hand_over.status})")
    if isinstance(error, discord.HTTPException):
        return _to_status_error(error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return Unreachable(f"cannot reach Discord: {type(error).__name__}")
    if hand_over.is_sent:
        return Uncertain(f"no answer from Discord that can be read: {type(error).__name__}")
    return Unreachable(f"the request could not be made: {type(error).__name__}")


def _to_status_error(error: discord.HTTPException) -> Denied | DiscordRefused | Uncertain:
    """What an error status means."""
    said = f"Discord: {error.text or 'no reason'} ({error.status}, code {error.code})"
    if error.status == UNAUTHORIZED:
        return Denied("Discord refuses the token")
    return (
        Uncertain(said) if error.status >= SERVER_ERROR else DiscordRefused(said, status=error.status, code=error.code)
    )


def _parse_retry_after_s(response: aiohttp.ClientResponse, body: bytes) -> float:
    """Of a 429: Discord's own has it in the body, what stands before it only in a header."""
    try:
        told = get_number(json_.loads(body), "retry_after")
    except (ValueError, RecursionError):
        told = None
    if told is None:
        try:
            told = get_number({"s": float(response.headers.get("Retry-After", ""))}, "s")
        except ValueError:  # a date, or nothing
            told = None
    return min(max(_RETRY_DEFAULT_S if told is None else told, _RETRY_MIN_S), _RETRY_MAX_S)


def _parse_answer(answer: object) -> object:
    """The answer's JSON: discord.py leaves it as text unless its type is told without a `charset`."""
    try:
        return json_.loads(answer) if isinstance(answer, str) and answer else answer
    except (ValueError, RecursionError):
        return answer


async def fetch_channel(api: DiscordRestClient, channel: str) -> Json:
    """What Discord says of a channel; asked once, because others wait meanwhile. Raises a `SendError`."""
    told = await api.call("GET", "/channels/{channel_id}", again=False, channel_id=channel)
    return get_object({"d": told}, "d")


def parse_messages(answer: object) -> Sequence[Mapping[str, Any]]:
    """The message objects in an answer, oldest first."""
    found = [item for item in answer if isinstance(item, Mapping)] if isinstance(answer, list) else []
    return sorted(found, key=lambda item: int(get_snowflake(item, "id") or 0))


CDN_HOSTS: Final = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
"""https://discord.com/developers/docs/reference#cdn-formatting"""
_OK, _BROKEN = 200, 500
_CHUNK_BYTES = 65536


async def download_attachment(
    api: DiscordRestClient, api_url: str, attachment: str, limit_bytes: int, timeout_s: float
) -> bytes:
    """The bytes of `channel/message/attachment`, at most `limit_bytes`. Raises a `SendError`.

    The message is asked for again, because the addresses of files are signed and expire after a day.
    """
    channel, message, number = [*attachment.split("/"), "", "", ""][:3]
    if not all(part.isascii() and part.isdigit() for part in (channel, message, number)):
        raise Rejected("this is not an attachment of Discord")
    path = "/channels/{channel_id}/messages/{message_id}"
    told = await api.call("GET", path, channel_id=channel, message_id=message)
    found = [file for file in get_objects(told, "attachments") if get_snowflake(file, "id") == number]
    if not found:
        raise Rejected("the attachment is gone")
    url = check_url(get_str(found[0], "url"), api_url)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(
                timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as session,
            session.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as response,
        ):
            return await _read_limited(response, limit_bytes)
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(f"the attachment cannot be fetched: {type(error).__name__}") from error


def check_url(url: str, api_url: str) -> yarl.URL:
    """The address, if it is one of Discord's or the configured server's. Raises `Rejected`: payloads are no orders."""
    try:
        found, ours = yarl.URL(url), yarl.URL(api_url)
        same = found.origin() == ours.origin()
    except ValueError:
        raise Rejected("the attachment has no address") from None
    theirs = found.scheme == "https" and found.host in CDN_HOSTS and found.explicit_port in {None, 443}
    if found.user or not (theirs or same):
        raise Rejected("the attachment is not on Discord's own hosts")
    return found


async def _read_limited(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    if response.status == TOO_MANY_REQUESTS:
        raise RateLimited("too many files at once", retry_after_s=5.0)
    if response.status >= _BROKEN:
        raise Unreachable(f"the file server answers {response.status}")
    if response.status != _OK:
        raise Rejected(f"the attachment cannot be had ({response.status})")
    data = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        data += chunk
        if len(data) > limit_bytes:
            raise Rejected(f"the attachment is larger than {limit_bytes} bytes")
    return bytes(data)
