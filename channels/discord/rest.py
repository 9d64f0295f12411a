"""One request to Discord's HTTP API, with an end that says what to do."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import discord
from discord.http import Route

from channels.base import Denied, Going, RateLimited, Rejected, SendError, Uncertain, Unreachable

UNAUTHORIZED: Final = 401
TOO_MANY: Final = 429
BROKEN: Final = 500


class _OnlyOnce(Exception):
    """discord.py wants to send a second time what must not be sent twice."""


class _HandOver:
    """Called by aiohttp each time that one request goes out: discord.py sends it up to five times."""

    def __init__(self, going: Going | None, *, again: bool) -> None:
        self._going, self._again = going, again
        self.handed = False
        """Something has gone out."""
        self.perhaps = False
        """Discord may have done what was asked for, and did not say so."""
        self.failed = False
        """What came out is of `going`."""

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if self.handed and not self._again:
            raise _OnlyOnce
        if not self.handed and self._going is not None:
            try:
                await self._going()
            except Exception:
                self.failed = True
                raise
        self.handed = True
        try:
            response = await handler(request)
        except aiohttp.ClientConnectorError:
            raise
        except BaseException:
            self.perhaps = True
            raise
        self.perhaps = self.perhaps or response.status >= BROKEN
        return response


class Api:
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
        params: Mapping[str, str | int] | None = None,
        going: Going | None = None,
        again: bool = True,
        **ids: str,
    ) -> object:
        """Return what Discord answers (parsed JSON), else raise a `SendError`.

        `ids` stand in `path` in braces. `going` is awaited once, right before the first byte; what it raises comes
        out. `again`: sending it twice does no harm, so that discord.py may do so after a 5xx.
        """
        if self.client is None:
            raise Unreachable("not logged in to Discord")
        hand_over = _HandOver(going, again=again)
        more: dict[str, Any] = {"middlewares": (hand_over,)}
        if json is not None:
            more["json"] = json
        if params is not None:
            more["params"] = params
        try:
            return await self.client.http.request(Route(method, path, **ids), **more)
        except _FAILURES as error:
            if hand_over.failed:
                raise
            meaning = _meaning(error, handed=hand_over.handed)
            if hand_over.perhaps and not isinstance(meaning, Denied):
                # An earlier try may have been taken: what is said of the last one does not undo it.
                meaning = Uncertain(meaning.reason)
            raise meaning from error


_FAILURES = (
    discord.DiscordException,
    _OnlyOnce,
    aiohttp.ClientError,
    OSError,
    RuntimeError,
    *(LookupError, ValueError, TypeError, AttributeError),  # an answer that is not what the library expects
)


def _meaning(error: Exception, *, handed: bool) -> SendError:
    """What is known after a request that ended so. `handed`: something went out."""
    if isinstance(error, discord.RateLimited):
        return RateLimited(f"Discord: wait {error.retry_after:.1f} s", retry_after_s=error.retry_after)
    if isinstance(error, discord.HTTPException):
        return _told(error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return Unreachable(f"cannot reach Discord: {type(error).__name__}")
    if handed:
        return Uncertain(f"no answer from Discord that can be read: {type(error).__name__}")
    return Unreachable(f"the request could not be made: {type(error).__name__}")


def _told(error: discord.HTTPException) -> Denied | RateLimited | Rejected | Uncertain:
    """What an error status means."""
    said = f"Discord: {error.text or 'no reason'} ({error.status}, code {error.code})"
    if error.status == UNAUTHORIZED:
        return Denied("Discord refuses the token")
    if error.status == TOO_MANY:
        return RateLimited(said, retry_after_s=_retry_after_s(error))
    return Uncertain(said) if error.status >= BROKEN else Rejected(said)


def _retry_after_s(error: discord.HTTPException) -> float:
    """Of a 429 that does not come from Discord itself but from what stands before it."""
    try:
        return min(max(float(error.response.headers.get("Retry-After", "")), 1.0), 3600.0)
    except ValueError:
        return 60.0


def messages(answer: object) -> Sequence[Mapping[str, Any]]:
    """The message objects in an answer, oldest first."""
    found = [item for item in answer if isinstance(item, Mapping)] if isinstance(answer, list) else []
    return sorted(found, key=lambda item: int(item["id"]) if str(item.get("id", "")).isdecimal() else 0)
