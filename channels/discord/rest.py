"""One request to Discord's HTTP API, with an end that says what to do."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import discord
from discord.http import HTTPClient, Route

from channels.base import Denied, Going, RateLimited, Rejected, Uncertain, Unreachable

UNAUTHORIZED: Final = 401
TOO_MANY: Final = 429
BROKEN: Final = 500


class _OnlyOnce(Exception):
    """discord.py wants to send a second time what must not be sent twice."""


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
    ) -> Any:
        """Return what Discord answers (parsed JSON), else raise a `SendError`.

        `ids` stand in `path` in braces. `going` is awaited once, right before the first byte; what it raises comes
        out. `again`: sending it twice does no harm, so that discord.py may do so after a 5xx.
        """
        handed = 0

        async def hand_over(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            nonlocal handed
            if handed and not again:
                raise _OnlyOnce
            if not handed and going is not None:
                await going()
            handed += 1
            return await handler(request)

        more: dict[str, Any] = {"middlewares": (hand_over,)}
        if json is not None:
            more["json"] = json
        if params is not None:
            more["params"] = params
        if self.client is None:
            raise Unreachable("not logged in to Discord")
        http: HTTPClient = self.client.http
        try:
            return await http.request(Route(method, path, **ids), **more)
        except discord.RateLimited as error:
            raise RateLimited(f"Discord: wait {error.retry_after:.1f} s", retry_after_s=error.retry_after) from error
        except discord.HTTPException as error:
            raise _told(error) from error
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"cannot reach Discord: {type(error).__name__}") from error
        except (_OnlyOnce, aiohttp.ClientError, OSError) as error:
            raise Uncertain(f"no answer from Discord: {type(error).__name__}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if not handed:  # `going` has failed, or a mistake of ours: not Discord's answer
                raise
            raise Uncertain(f"an answer that cannot be read: {type(error).__name__}") from error


def _told(error: discord.HTTPException) -> Denied | RateLimited | Rejected | Uncertain:
    """What an error status means."""
    said = f"Discord: {error.text or error.status} ({error.status})"
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
