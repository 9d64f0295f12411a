"""One request to Discord's HTTP API, with an end that says what to do."""

import io
import json as json_
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import discord
from discord.http import Route

from channels.base import BeforeSend, Denied, OutgoingFile, RateLimited, SendError, Uncertain, Unreachable
from channels.discord.errors import DiscordRefused
from channels.discord.ids import get_snowflake
from channels.payload import Json, get_number, get_object
from channels.text import safe_content_type, safe_file_name

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
