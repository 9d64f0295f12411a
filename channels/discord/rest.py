"""Discord's HTTP API over discord.py: requests that end in a `SendError`, rate limits, and
downloads.

The library keeps Discord's addresses in class attributes (`Route.BASE`,
`DiscordWebSocket.DEFAULT_GATEWAY`). Here each request gets its address when it is made, and each
socket is opened at a given one; so accounts at different servers live in one process, and no global
is changed. Attachments are fetched only from Discord's own hosts, up to a limit.
"""

import asyncio
import io
import json as json_
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import discord
import yarl
from discord.http import Route

from channels.aio import cancel_and_wait
from channels.base import (
    BeforeSend,
    Denied,
    OutgoingFile,
    RateLimited,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
)
from channels.discord.config import DiscordConfig
from channels.discord.directory import message_files
from channels.discord.ids import get_snowflake
from channels.discord.wire import DiscordRefused
from channels.text import (
    get_int,
    get_number,
    get_str,
    safe_content_type,
    safe_file_name,
)
from gateway.core.proxy import find_proxy, through
from gateway.core.ratelimit import LruDict

# Otherwise the library warns at every start that voice is not available.
discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False

MAX_BUCKET_WAIT_S: Final = 30.0
"""Longest wait of a request for its rate limit; a longer one is raised as `RateLimited`. The
library's own `max_ratelimit_timeout` also refuses requests that the limit would still allow."""
HEARTBEAT_TIMEOUT_S = 60.0
"""Silence after which a connection counts as lost; Discord asks for a heartbeat each 41 s, and
acknowledges it."""


def make_connector(config: DiscordConfig) -> aiohttp.BaseConnector | None:
    """Return what connects through the proxy for this account. None: there is none. Needs a running
    loop.

    Raises ValueError if the environment names a proxy that is no URL.
    """
    proxy = find_proxy(
        config.proxy, config.api_url.replace("http", "ws", 1)
    )  # the library takes no https:// proxies
    if not proxy:
        return None
    from aiohttp_socks import ProxyConnectionError, ProxyConnector, ProxyError, ProxyTimeoutError  # noqa: PLC0415 - only where a proxy is used

    class Connector(ProxyConnector):
        async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ANN401, ASYNC109 - as the library declares it
            try:
                return await super().connect(req, traces, timeout)
            except (ProxyConnectionError, ProxyError, ProxyTimeoutError, OSError) as error:
                if isinstance(error, aiohttp.ClientError):
                    raise
                reason = OSError(0, f"cannot connect{through(proxy)}: {error}")
                raise aiohttp.ClientProxyConnectionError(req.connection_key, reason) from None

    return Connector.from_url(proxy.replace("socks5h:", "socks5:"), rdns=True, limit=0)


def describe_failure(error: Exception) -> str:
    """Return what failed, for reasons: the kind of error, and the proxy if there is one."""
    proxy = (
        f" ({error.os_error.strerror})"
        if isinstance(error, aiohttp.ClientProxyConnectionError)
        else ""
    )
    return f"{type(error).__name__}{proxy}"


class DiscordClient(discord.Client):
    """Client of one account at its own server.

    The library keeps the server's address in a class attribute, so each request gets it here. A
    request returns as soon as Discord has answered; the library lets the one that used up its
    bucket wait for the next window.
    """

    def __init__(
        self,
        config: DiscordConfig,
        on_event: Callable[[str, object, int], None] = lambda *_: None,
    ) -> None:
        """`on_event` takes each event of the gateway, its data, and its number in the session (0:
        unknown).
        """
        shard, shards = config.shard or (None, None)
        super().__init__(
            # No members, no presences.
            intents=discord.Intents(
                guilds=True,
                guild_messages=True,
                dm_messages=True,
                message_content=True,
                guild_reactions=True,
                dm_reactions=True,
            ),
            max_messages=None,
            chunk_guilds_at_startup=False,
            member_cache_flags=discord.MemberCacheFlags.none(),
            allowed_mentions=discord.AllowedMentions.none(),
            heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
            guild_ready_timeout=0.0,  # nobody waits for `on_ready`, and its task would outlive us
            shard_id=shard,
            shard_count=shards,
            connector=make_connector(config),
        )
        self.on_event = on_event
        self.greeted_event = asyncio.Event()
        """Set by READY and RESUMED."""
        self._base = config.api_url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=config.request_timeout)
        self._upload_timeout = aiohttp.ClientTimeout(total=config.request_timeout + 120.0)
        self._requests: set[asyncio.Task[Any]] = set()
        self._exhausted_until_s = LruDict[str, float](256)
        """Request -> end of its rate limit, where it may not be made again before."""
        self._request_of_library = self.http.request
        self.http.request = self.request  # type: ignore[method-assign] # the one door of all its requests

    async def log_in(self, token: str) -> str:
        await self.login(token)
        return str(self.user.id) if self.user else ""

    async def close(self) -> None:
        try:
            await cancel_and_wait(*self._requests)
        finally:  # to its end also if this is cancelled: an open session would report itself later
            await asyncio.shield(super().close())

    async def request(
        self,
        route: Route,
        *,
        guard: "_SendGuard | None" = None,
        **options: Any,  # noqa: ANN401 - the library's signature
    ) -> Any:  # noqa: ANN401 - the library's signature
        if route.url.startswith(Route.BASE):
            route.url = self._base + route.url.removeprefix(Route.BASE)
        limit, now_s = f"{route.method} {route.url}", self.loop.time()
        if (wait_s := (self._exhausted_until_s.get(limit) or now_s) - now_s) > MAX_BUCKET_WAIT_S:
            raise discord.RateLimited(wait_s)
        guard = guard or _SendGuard(None, may_repeat=True)
        timeout = self._upload_timeout if "form" in options else self._timeout
        request = self._request_of_library(route, middlewares=(guard,), timeout=timeout, **options)
        task = asyncio.create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._forget_request)
        try:
            await asyncio.wait({task, guard.answer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            guard.is_abandoned = True
            if guard.is_in_flight:
                # Only then: after a cancellation in a global wait, the library would block all
                # requests for ever.
                task.cancel()
        if not guard.answer.done():
            if task.cancelled():  # by `close`, not with us
                raise aiohttp.ClientError("the connection has ended meanwhile")
            return task.result()
        if guard.exhausted_s:
            self._exhausted_until_s.put(limit, self.loop.time() + guard.exhausted_s)
        return guard.answer.result()

    def _forget_request(self, task: asyncio.Task[Any]) -> None:
        self._requests.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it

    async def on_connect(self) -> None:
        self.greeted_event.set()

    on_resumed = on_connect


_WEBHOOK_TOKEN = re.compile(r"(/(?:webhooks|interactions)/\d+/)[^/\s?]+")


def _hide_tokens(record: logging.LogRecord) -> bool:
    """Take interaction tokens out of the addresses that the library logs."""
    record.msg, record.args = _WEBHOOK_TOKEN.sub(r"\1...", record.getMessage()), ()
    return True


logging.getLogger("discord.http").addFilter(_hide_tokens)
_TOKEN_PATHS = "/webhooks/", "/interactions/"
"""Paths with a temporary token in the address, where our own token is not checked:
https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-response."""
_RETRY_DEFAULT_S, _RETRY_MIN_S, _RETRY_MAX_S = 60.0, 1.0, 3600.0


class _ResendForbidden(Exception):
    """discord.py wants to repeat a request that must not be repeated."""


class _SendGuard:
    """Middleware around each HTTP request of one call: discord.py repeats a request up to five
    times.
    """

    def __init__(self, before_send: BeforeSend | None, *, may_repeat: bool) -> None:
        self._before_send, self._may_repeat = before_send, may_repeat
        self.answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        """Content of the successful answer, parsed if it is JSON, whatever type it is said to
        have."""
        self.is_abandoned = False
        """Nobody waits any more: no request may begin."""
        self.is_in_flight = False
        self.is_sent = False
        self.is_maybe_done = False
        """Discord may have done the request without an answer."""
        self.is_hook_error = False
        self.status = 0
        self.wait_s: float | None = None
        """Seconds to wait according to the last answer; None: it was no 429."""
        self.exhausted_s = 0.0
        """Seconds for which the rate limit allows no further request, according to the last
        answer."""

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        # aiohttp may pick a dead connection and repeat a GET on another one, which is harmless.
        if self.is_abandoned or (
            self.is_sent and not self._may_repeat and (self.status or request.method != "GET")
        ):
            raise _ResendForbidden
        self.is_in_flight = True
        try:
            return await self._send(request, handler)
        finally:
            self.is_in_flight = False

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if not self.is_sent and self._before_send is not None:
            try:
                await self._before_send()
            except Exception:
                self.is_hook_error = True
                raise
        self.is_sent = True
        try:
            response = await handler(request)
            body = await response.read()
        except aiohttp.ClientConnectorError:
            raise
        except BaseException:
            self.is_maybe_done = True
            raise
        self.status, self.is_maybe_done = (
            response.status,
            self.is_maybe_done or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR,
        )
        # discord.py reads the body of some 429 answers only, and of those without `Via` nothing.
        self.wait_s = (
            _parse_retry_after_s(response, body)
            if response.status == HTTPStatus.TOO_MANY_REQUESTS
            else None
        )
        if self.wait_s is not None and self.wait_s > MAX_BUCKET_WAIT_S:
            raise discord.RateLimited(self.wait_s)
        if response.headers.get("X-RateLimit-Remaining") == "0":
            self.exhausted_s = (
                _parse_seconds(response.headers.get("X-RateLimit-Reset-After", "")) or 0.0
            )
        if response.ok and not self.answer.done():
            self.answer.set_result(_parse_answer(body))
        return response


class DiscordRestClient:
    """Requests of one account. Each waits for its rate-limit bucket; buckets do not wait for each
    other.
    """

    def __init__(self) -> None:
        self.client: DiscordClient | None = None
        """None: not logged in."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        file: OutgoingFile | None = None,
        params: Mapping[str, str | int] | None = None,
        before_send: BeforeSend | None = None,
        again: bool = True,
        **ids: str,
    ) -> object:
        """Return Discord's answer (parsed JSON), else raise a `SendError`.

        `ids` fill the braces in `path`. `file` goes with `json`. `before_send` is awaited once,
        immediately before the first byte; its errors come out. `again`: sending twice is harmless,
        so discord.py may repeat it after a 5xx.
        """
        if self.client is None:
            raise Unreachable("not logged in to Discord")
        guard = _SendGuard(before_send, may_repeat=again)
        more: dict[str, Any] = {"guard": guard}
        upload = (
            discord.File(io.BytesIO(file.data), safe_file_name(file.name))
            if file is not None
            else None
        )
        if file is not None and upload is not None:
            more |= {"files": [upload], "form": _build_form(json, upload, file)}
        elif json is not None:
            more["json"] = json
        if params is not None:
            more["params"] = params
        try:
            return await self.client.request(Route(method, path, **ids), **more)
        except FAILURES as error:
            if guard.is_hook_error:
                raise
            verdict = _to_send_error(error, guard)
            if isinstance(verdict, Denied) and path.startswith(_TOKEN_PATHS):
                verdict = DiscordRefused(
                    "Discord: the command's token is not taken (401)",
                    status=HTTPStatus.UNAUTHORIZED,
                )
            if guard.is_maybe_done and not isinstance(verdict, Denied):
                # An earlier attempt may have succeeded: the last answer does not disprove that.
                verdict = Uncertain(verdict.reason)
            raise verdict from error
        finally:
            if upload is not None:
                upload.close()


def _build_form(json: object, upload: discord.File, file: OutgoingFile) -> list[dict[str, Any]]:
    """Return the parts of a multipart form; the file's name is already harmless and must not be
    quoted.

    https://discord.com/developers/docs/reference#uploading-files
    """
    payload = {"name": "payload_json", "value": json_.dumps(json)}
    content_type = safe_content_type(file.content_type)
    return [
        payload,
        {
            "name": "files[0]",
            "value": upload.fp,
            "filename": upload.filename,
            "content_type": content_type,
        },
    ]


FAILURES = (
    discord.DiscordException,
    _ResendForbidden,
    aiohttp.ClientError,
    OSError,
    RuntimeError,
    *(
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
    ),  # an answer that is not what the library expects
)


def _to_send_error(error: Exception, guard: _SendGuard) -> SendError:
    if isinstance(error, discord.RateLimited):
        return RateLimited(
            f"Discord: wait {error.retry_after:.1f} s", retry_after_s=error.retry_after
        )
    if (wait_s := guard.wait_s) is not None:
        return RateLimited(f"Discord: too many requests, wait {wait_s:.1f} s", retry_after_s=wait_s)
    if isinstance(error, _ResendForbidden):
        return Uncertain(f"Discord: no reason ({guard.status})")
    if isinstance(error, discord.HTTPException):
        if error.status == HTTPStatus.UNAUTHORIZED:
            return Denied("Discord refuses the token")
        reason = f"Discord: {error.text or 'no reason'} ({error.status}, code {error.code})"
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Uncertain(reason)
        return DiscordRefused(reason, status=error.status, code=error.code)
    if isinstance(error, aiohttp.ClientConnectorError):
        return Unreachable(f"cannot reach Discord: {describe_failure(error)}")
    if guard.is_sent:
        return Uncertain(f"no answer from Discord that can be read: {type(error).__name__}")
    return Unreachable(f"the request could not be made: {type(error).__name__}")


def _parse_retry_after_s(response: aiohttp.ClientResponse, body: bytes) -> float:
    """Return the wait of a 429: Discord has it in the body, proxies before it only in a header."""
    try:
        wait_s = get_number(json_.loads(body), "retry_after")
    except (ValueError, RecursionError):
        wait_s = None
    if wait_s is None:
        wait_s = _parse_seconds(response.headers.get("Retry-After", ""))
    return min(max(_RETRY_DEFAULT_S if wait_s is None else wait_s, _RETRY_MIN_S), _RETRY_MAX_S)


def _parse_seconds(text: str) -> float | None:
    try:
        return get_number({"s": float(text)}, "s")
    except ValueError:  # a date, or nothing
        return None


def _parse_answer(body: bytes) -> object:
    """Return the answer's JSON: discord.py leaves it as text unless its type comes without a
    `charset`.
    """
    try:
        return json_.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")


def parse_messages(answer: object) -> Sequence[Mapping[str, Any]]:
    """Return the message objects in an answer, oldest first."""
    found = (
        [item for item in answer if isinstance(item, Mapping)] if isinstance(answer, list) else []
    )
    return sorted(found, key=lambda item: int(get_snowflake(item, "id") or 0))


CDN_HOSTS: Final = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
"""https://discord.com/developers/docs/reference#cdn-formatting."""


async def download_attachment(
    api: DiscordRestClient, config: DiscordConfig, attachment: str, limit_bytes: int
) -> bytes:
    """Return the content of `channel/message/attachment`, at most `limit_bytes`. Raises a
    `SendError`.

    The message is requested again, because addresses of files are signed and expire after a day.
    """
    channel, message, number = [*attachment.split("/"), "", "", ""][:3]
    if not all(part.isascii() and part.isdigit() for part in (channel, message, number)):
        raise Rejected("this is not an attachment of Discord")
    path = "/channels/{channel_id}/messages/{message_id}"
    answer = await api.call("GET", path, channel_id=channel, message_id=message)
    files = [
        file
        for file in message_files(answer if isinstance(answer, Mapping) else {})
        if get_snowflake(file, "id") == number
    ]
    if not files:
        raise Rejected("the attachment is gone")
    url = check_url(get_str(files[0], "url"), config.api_url)
    too_large = Rejected(f"the attachment is larger than {limit_bytes} bytes")
    if (get_int(files[0], "size") or 0) > limit_bytes:
        raise too_large
    if api.client is None:
        raise Unreachable("not logged in to Discord")
    try:
        async with asyncio.timeout(config.request_timeout):
            data = await api.client.http.get_from_cdn(str(url))
    except (discord.Forbidden, discord.NotFound) as error:
        raise Rejected(f"the attachment cannot be had ({error.status})") from error
    except (discord.HTTPException, aiohttp.ClientError, OSError) as error:
        raise Unreachable(f"the attachment cannot be fetched: {describe_failure(error)}") from error
    if len(data) > limit_bytes:
        raise too_large
    return data


def check_url(url: str, api_url: str) -> yarl.URL:
    """Return the address, if it is one of Discord's or of the configured server.

    Raises `Rejected`: payloads are untrusted.
    """
    try:
        address, api = yarl.URL(url), yarl.URL(api_url)
        is_api_host = address.origin() == api.origin()
    except ValueError:
        raise Rejected("the attachment has no address") from None
    is_cdn_host = (
        address.scheme == "https"
        and address.host in CDN_HOSTS
        and address.explicit_port in {None, 443}
    )
    if address.user or not (is_cdn_host or is_api_host):
        raise Rejected("the attachment is not on Discord's own hosts")
    return address
