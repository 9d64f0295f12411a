"""A server that is an address: an HTTP client for the library's transport, with limits and with an eye on what fails.

The library gives up listening to a server after two failures, and says neither that nor what HTTP said
(mcp 2.3, client/streamable_http.py). So all of its requests pass here.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from mcp.shared.inbound import MCP_METHOD_HEADER

from gateway.tools.mcp.pipes import MAX_MESSAGE_BYTES

CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_SESSION_S: Final = 2.0
"""For a server to take that a session has ended."""
MAX_STREAM_BREAKS: Final = 2
"""Of what is listened to: after so many the library listens no more."""
_METHOD_NOT_ALLOWED: Final = 405
"""To listen, as the specification has it (2025-11-25, basic/transports, listening for messages)."""


@dataclass(slots=True)
class McpRequestState:
    """What became of the HTTP request that carried a call."""

    sent: bool = False
    """Somebody may have taken it."""
    is_session_unknown: bool = False
    """It was refused, perhaps because the session that it belongs to is none any more."""


REQUEST_STATE: Final[ContextVar[McpRequestState | None]] = ContextVar("fate", default=None)
"""Of the call that is made in this context; the library carries it along."""


class McpHttpClient(httpx2.AsyncClient):
    """One server's."""

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        env: bool,
        doubt: Callable[[str], None],
        lost: Callable[[str], None],
    ) -> None:
        """`env`: proxies of the environment are used. `doubt` and `lost` are told why."""
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=4)
        super().__init__(
            headers={**headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=limits,
            trust_env=env,
        )
        self._on_suspect = doubt
        self._on_lost = lost
        self._stream_breaks = 0

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:  # noqa: ANN401 - as it is declared
        fate = REQUEST_STATE.get() or McpRequestState()
        fate.sent = True
        listens = request.method == "GET" or request.headers.get(MCP_METHOD_HEADER) == "subscriptions/listen"
        if listens:
            request.extensions["timeout"]["read"] = None
        elif request.method == "DELETE":
            request.extensions["timeout"]["read"] = CLOSE_SESSION_S
        try:
            response = await super().send(request, **how)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            fate.sent = False
            self._on_suspect("it cannot be reached")
            raise
        except httpx2.TransportError:
            self._on_suspect("its connection broke")
            raise
        if response.headers.get("content-encoding", "identity") != "identity":  # nobody knows how much it unpacks to
            await response.aclose()
            raise httpx2.RemoteProtocolError("it answers in a form that was not asked for")
        self._check_status(request, response, fate)
        streams = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        most = None if streams else MAX_MESSAGE_BYTES
        response.stream = _LimitedStream(response.stream, most, self._on_stream_broken if listens and streams else None)
        return response

    def _check_status(self, request: httpx2.Request, response: httpx2.Response, fate: McpRequestState) -> None:
        status = response.status_code
        if (
            not response.is_error
            or request.method == "DELETE"
            or (request.method == "GET" and status == _METHOD_NOT_ALLOWED)
        ):
            return
        # 404 as the specification has it (session management); 400 as many servers do.
        fate.is_session_unknown = status in (400, 404) and "mcp-session-id" in request.headers
        self._on_suspect(f"HTTP {status}")

    def _on_stream_broken(self) -> None:
        self._stream_breaks += 1
        if self._stream_breaks >= MAX_STREAM_BREAKS:
            self._on_lost("its connection broke")
        else:
            self._on_suspect("its connection broke")


class _LimitedStream(httpx2.AsyncByteStream):
    """A body with a limit, or with somebody who is told when it breaks."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int | None, broke: Callable[[], None] | None) -> None:
        self._inner = inner
        self._max_bytes = most
        self._on_broken = broke

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        try:
            async for piece in self._inner:
                read += len(piece)
                if self._max_bytes is not None and read > self._max_bytes:
                    # As a StreamError, so that the library answers that one request with it.
                    raise httpx2.StreamError(f"more than {self._max_bytes:,} bytes at once")
                yield piece
        except httpx2.TransportError:
            if self._on_broken is not None:
                self._on_broken()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()
