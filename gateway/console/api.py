"""A running gateway's API, asked: plain HTTP to this machine, or HTTPS.

ApiError
├── Away     wait: nobody answers there, or the answer broke off
├── Denied   tell: it answers, and wants another token
└── Refused  tell: it was asked, and said no
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from agent.models.sse import SseEventTooLarge, SseParser
from gateway.console.events import (
    ConsoleApiModel,
    ConsoleConversationList,
    ConsoleHistory,
    ConsoleOrderResult,
    ConsoleStatus,
    parse_event,
)
from gateway.ops.guard import is_loopback

if TYPE_CHECKING:
    import httpx


ApiModelT = TypeVar("ApiModelT", bound=ConsoleApiModel)
REQUEST_TIMEOUT_S = 10.0
STREAM_TIMEOUT_S = 40.0
"""A stream says something each 15 s (a comment, if nothing else)."""
_NO, _UNAUTHORIZED, _FORBIDDEN, _BROKEN = 400, 401, 403, 500


class ConsoleApiError(Exception):
    """It was not answered. The message is one sentence for a person."""


class ApiUnavailable(ConsoleApiError):
    """Nobody answers there just now."""


class ApiUnauthorized(ConsoleApiError):
    """Whoever answers there does not take the token."""


class ApiRejected(ConsoleApiError):
    """It was not done."""


class ApiEventStream:
    """Events as they come, from one connection."""

    def __init__(self, response: "httpx.Response") -> None:
        self._response = response

    async def batches(self) -> AsyncGenerator[tuple[str, list[ConsoleApiModel]]]:
        """What came at once: the last position of the log in it (empty: none), and events. Raises Away at its end."""
        import httpx  # noqa: PLC0415 - as below

        parser = SseParser()
        try:
            async for data in self._response.aiter_bytes():
                found = parser.feed(data)
                seen = [event for one in found if (event := parse_event(one.name, one.data)) is not None]
                yield next((one.id for one in reversed(found) if one.id), ""), seen
        except (httpx.HTTPError, SseEventTooLarge) as error:
            raise ApiUnavailable(f"the connection broke: {_describe_http_error(error)}") from error
        raise ApiUnavailable("the gateway closed the connection")


class GatewayApiClient:
    """One gateway."""

    def __init__(self, url: str, token: str) -> None:
        """Raises ValueError for an address or a token that cannot be used."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is no address: write http://127.0.0.1:9090")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError(f"http://{parts.hostname} is not this machine, and all on the way would read the token")
        if not (token.isascii() and token.isprintable() and token.strip()):
            raise ValueError("the token is empty, or holds what no header can")
        self.address = parts.netloc.rpartition("@")[2]
        """For people: host and port."""
        self._url = f"{parts.scheme}://{self.address}"
        self._headers = {"authorization": f"Bearer {token}"}
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Let go of all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def get_status(self) -> ConsoleStatus:
        """Where everything stands."""
        return await self._get("/api/status", ConsoleStatus)

    async def get_history(self, conversation: str, limit: int = 100) -> ConsoleHistory:
        """The newest messages of a conversation, the oldest first."""
        return await self._get("/api/conversation", ConsoleHistory, {"id": conversation, "limit": str(limit)})

    async def list_conversations(self, limit: int = 50) -> ConsoleConversationList:
        """Conversations, those with the newest words first."""
        return await self._get("/api/conversations", ConsoleConversationList, {"limit": str(limit)})

    async def say(self, said: str) -> None:
        """Said by the operator; returns when it is durable."""
        await self._request("POST", "/api/say", body={"text": said})

    async def send_order(self, kind: str, conversation: str, by: str) -> ConsoleOrderResult:
        """`stop` or `kill` what runs in a conversation."""
        body = {"kind": kind, "conversation": conversation, "by": by}
        return _parse_answer(ConsoleOrderResult, await self._request("POST", "/api/orders", body=body))

    @asynccontextmanager
    async def open_stream(self, last: str) -> AsyncGenerator[ApiEventStream]:
        """All events from now on; `last`: from behind that position of the log on."""
        import httpx  # noqa: PLC0415 - as below

        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        limits = httpx.Timeout(REQUEST_TIMEOUT_S, read=STREAM_TIMEOUT_S)
        try:
            async with self._http_client().stream("GET", "/api/events", headers=headers, timeout=limits) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    _raise_for_status(response)
                yield ApiEventStream(response)
        except httpx.HTTPError as error:
            raise ApiUnavailable(_describe_http_error(error)) from error

    def _http_client(self) -> "httpx.AsyncClient":
        if self._client is None:
            import httpx  # noqa: PLC0415 - it takes 200 ms, which `reverie --help` need not

            self._client = httpx.AsyncClient(
                base_url=self._url,
                headers=self._headers,
                timeout=REQUEST_TIMEOUT_S,
                trust_env=False,
                follow_redirects=False,
            )
        return self._client

    async def _get(self, path: str, shape: type[ApiModelT], query: Mapping[str, str] | None = None) -> ApiModelT:
        return _parse_answer(shape, await self._request("GET", path, query=query))

    async def _request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, str] | None = None
    ) -> bytes:
        import httpx  # noqa: PLC0415 - as above

        try:
            response = await self._http_client().request(method, path, params=query, json=body)
        except httpx.HTTPError as error:
            raise ApiUnavailable(_describe_http_error(error)) from error
        _raise_for_status(response)
        return response.content


def _raise_for_status(response: "httpx.Response") -> None:
    """Raise what the status says, with the sentence that came with it."""
    status = response.status_code
    if status < _NO:
        return
    try:
        said = json.loads(response.content)
    except ValueError:
        said = response.text
    if isinstance(said, dict):
        said = said.get("detail") or ""
    sentence = f"{str(said).strip()[:500] or response.reason_phrase} ({status})"
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        raise ApiUnauthorized(sentence)
    raise (ApiUnavailable if status >= _BROKEN else ApiRejected)(sentence)


def _parse_answer(shape: type[ApiModelT], data: bytes) -> ApiModelT:
    try:
        return shape.model_validate_json(data)
    except ValidationError as error:
        raise ApiRejected("the gateway's answer is not one: it is of another version, or no gateway") from error


def _describe_http_error(error: Exception) -> str:
    name = type(error).__name__
    words = {"ConnectError": "nobody answers there", "ReadTimeout": "nothing came for too long"}
    return words.get(name) or str(error) or name
