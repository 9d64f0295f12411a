"""Requests to the homeserver over matrix-nio, with the errors of the gateway.

The library repeats requests and waits by itself; here it does neither, because the gateway records
each attempt and decides about the next one.
"""

import asyncio
import json
import logging
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from nio import AsyncClient, AsyncClientConfig, ErrorResponse, LocalProtocolError

from reverie.platforms import (
    Denied,
    Json,
    MayNotPost,
    RateLimited,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    get_number,
    get_str,
    single_line,
)
from reverie_matrix.config import MatrixConfig

_DEFAULT_WAIT_S, _MAX_WAIT_S = 5.0, 3600.0
"""Seconds to wait where the homeserver names none, and the longest wait that is honoured."""
_NO_LOGIN: Final = ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED")
"""https://spec.matrix.org/latest/client-server-api/#standard-error-response"""
_REASON_CHARS: Final = 300
_TRANSFER_TIMEOUT_S: Final = 300.0
_CHUNK_BYTES: Final = 65_536
_V3: Final = ("_matrix", "client", "v3")
_JSON: Final = "application/json"

# The library logs each answer at level DEBUG, tokens included, and as a warning what people wrote
# in events that it cannot read.
logging.getLogger("nio").setLevel(logging.ERROR)


class MatrixClient:
    """Connection of one account. Call `close` at the end."""

    def __init__(self, config: MatrixConfig) -> None:
        self._config, self._closed = config, False
        self.nio = AsyncClient(
            config.homeserver,
            config.user,
            config=AsyncClientConfig(
                max_limit_exceeded=0,
                max_timeouts=0,
                request_timeout=config.request_timeout,
                encryption_enabled=False,
            ),
        )

    async def log_in(self) -> None:
        """Return once the homeserver has accepted the account. Raises SendError."""
        if self._config.password is not None:
            self.nio.device_id = self._config.device
            password = self._config.password.get_secret_value()
            try:
                await self.call(self.nio.login(password, device_name="Reverie"))
            except Rejected as error:
                raise Denied(f"the login is refused: {error.reason}") from None
        elif self._config.access_token is not None:
            self.nio.access_token = self._config.access_token.get_secret_value()
            await self.call(self.nio.whoami())

    async def close(self) -> None:
        """Close all connections. Later requests are `Unreachable`."""
        self._closed = True
        await self.nio.close()

    async def call(self, work: Coroutine[Any, Any, Any], *, limit_s: float | None = None) -> Any:  # noqa: ANN401 - the library has no types
        """Return the library's answer to a request. Raises SendError.

        `limit_s`: seconds that it may take. None: as configured.
        """
        if self._closed:
            work.close()
            raise Unreachable("the connection is closed")
        try:
            async with asyncio.timeout(limit_s or self._config.request_timeout):
                answer = await work
        except Exception as error:  # noqa: BLE001 - also the library's, at an answer that is odd
            raise _to_send_error(error) from None
        if isinstance(answer, ErrorResponse):
            response: Any = answer.transport_response
            body = {
                "errcode": answer.status_code,
                "error": answer.message,
                "retry_after_ms": answer.retry_after_ms,
            }
            raise _read_refusal(response.status, response.headers, body)
        return answer

    async def act(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - as above
        """Like `call`, but never raises Denied: whoever receives finds out about that."""
        try:
            return await self.call(work)
        except Denied as error:
            raise Unreachable(error.reason) from None

    async def get(self, *path: str) -> Json:
        """Return what is at this path of version 1 of the API. Raises SendError."""
        answer: object = json.loads(await self._request("GET", ("_matrix", "client", "v1", *path)))
        return answer if isinstance(answer, dict) else {}

    async def put(self, *path: str, body: Json) -> None:
        """Put `body` where the library has no method for it. Raises SendError."""
        await self._request("PUT", (*_V3, *path), json.dumps(body).encode(), _JSON)

    async def post(self, *path: str, body: Json) -> None:
        """Like `put`."""
        await self._request("POST", (*_V3, *path), json.dumps(body).encode(), _JSON)

    async def upload(self, data: bytes, content_type: str) -> str:
        """Return the address of new content. Raises SendError."""
        path = ("_matrix", "media", "v3", "upload")
        answer = await self._request("POST", path, data, content_type)
        return get_str(json.loads(answer), "content_uri")

    async def download(self, uri: str, limit_bytes: int) -> bytes:
        """Return content, at most `limit_bytes`; more raises `Rejected`. Raises SendError."""
        server, _, media = uri.removeprefix("mxc://").partition("/")
        path = ("_matrix", "client", "v1", "media", "download", server, media)
        return await self._request("GET", path, limit_bytes=limit_bytes)

    async def _request(
        self,
        method: str,
        path: tuple[str, ...],
        data: bytes | None = None,
        content_type: str = "",
        *,
        limit_bytes: int = 1_000_000,
    ) -> bytes:
        headers = {"Authorization": f"Bearer {self.nio.access_token}"}
        headers |= {"Content-Type": content_type} if content_type else {}
        url = "".join(f"/{quote(part, safe='')}" for part in path)
        found = bytearray()
        if self._closed:
            raise Unreachable("the connection is closed")
        try:
            async with asyncio.timeout(_TRANSFER_TIMEOUT_S):
                answer = await self.nio.send(
                    method, url, data, headers, timeout=_TRANSFER_TIMEOUT_S
                )
                async with answer:
                    async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                        found += chunk
                        if len(found) > limit_bytes:
                            break
        except Exception as error:  # noqa: BLE001 - of the network, or an answer that is odd
            raise _to_send_error(error) from None
        if len(found) > limit_bytes:
            raise Rejected(f"it has more than {limit_bytes} bytes")
        if answer.status != HTTPStatus.OK:
            try:
                body = json.loads(found)
            except ValueError:
                body = {}
            raise _read_refusal(answer.status, answer.headers, body)
        return bytes(found)


def _to_send_error(error: Exception) -> SendError:
    """Return what an error means for the request; one that proves nothing gives `Uncertain`."""
    match error:
        case SendError():
            return error
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return Unreachable(f"cannot reach the homeserver: {type(error).__name__}")
        case LocalProtocolError():  # the library's check before a request
            return Unreachable("the homeserver has ended the login")
        case aiohttp.ClientError() | TimeoutError() | OSError():
            return Uncertain(f"no answer from the homeserver: {type(error).__name__}")
        case _:
            return Uncertain(f"the answer of the homeserver cannot be read: {type(error).__name__}")


def _read_refusal(status: int, headers: Any, body: object) -> SendError:  # noqa: ANN401 - of aiohttp
    """Return what an answer that is no success means for the request."""
    code = get_str(body, "errcode")
    reason = f"HTTP {status}"
    if code:
        reason = single_line(f"{code} {get_str(body, 'error')}", _REASON_CHARS)
    if code in _NO_LOGIN:
        return Denied(f"the homeserver refuses the login: {reason}")
    if status == HTTPStatus.TOO_MANY_REQUESTS or code == "M_LIMIT_EXCEEDED":
        return RateLimited(reason, retry_after_s=_wait_s(headers, body))
    if status < HTTPStatus.BAD_REQUEST or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Uncertain(reason)
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return Rejected(f"too large for the homeserver: {reason}")
    if not code:
        return Unreachable(f"HTTP {status}, and not from a homeserver")
    return MayNotPost(reason) if code == "M_FORBIDDEN" else Rejected(reason)


def _wait_s(headers: Any, body: object) -> float:  # noqa: ANN401 - as above
    """https://spec.matrix.org/latest/client-server-api/#rate-limiting: the header is newer."""
    header = str(headers.get("Retry-After", ""))
    milliseconds = get_number(body, "retry_after_ms")
    if milliseconds is not None:
        return min(milliseconds / 1000, _MAX_WAIT_S)
    return min(float(header), _MAX_WAIT_S) if header.isdecimal() else _DEFAULT_WAIT_S


def refusal_code(error: SendError) -> str:
    """Return the `errcode` of a refusal; empty: it has none."""
    word = error.reason.partition(" ")[0]
    return word if word.startswith("M_") else ""
