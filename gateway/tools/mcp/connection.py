"""One connection to a server, by the protocol's own library, and its transports: a child process's
stdio, and HTTP.

Only loaded where servers are configured: the library includes a web server (about 36 MB and half a
second).

stdio obeys the specification (2025-11-25, basic/transports, stdio; basic/lifecycle, shutdown): one
JSON-RPC message is a line; to stop the server, close its input, wait, then SIGTERM, then SIGKILL.
The library's own transport passes on more of the environment, holds lines of any length, leaves
children behind and logs lines that it cannot read.

The library stops listening to an HTTP server after two failures, and reports neither that nor the
HTTP status (mcp 2.3, client/streamable_http.py). So all of its requests pass through
`McpHttpClient`, which has limits and reports failures.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client import Client, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_METHOD_HEADER
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import TypeAdapter, ValidationError

from agent.journal import to_single_line
from channels.aio import Backoff, cancel_and_wait, with_timeout
from gateway.core.process import (
    READ_BYTES,
    ChildProcess,
    ProgramNotStarted,
    select_environment,
    start_process,
)
from gateway.core.proxy import find_proxy, through
from gateway.core.text_safety import replace_half_escapes
from gateway.tools.mcp.client import McpConnectionLost, McpNotSent, McpServerClient, McpTimeout

logger = logging.getLogger("reverie.mcp")

MAX_MESSAGE_BYTES: Final = 16_777_216
"""Bytes of one message: a picture of a whole screen is a few MB as base64."""
MAX_UNSENT_BYTES: Final = 16_777_216
"""Bytes waiting for a server that does not read."""
PASSED_ENVIRONMENT: Final = ("PATH", "HOME", "LANG")
"""Environment variables that a server gets: none of our secrets but its own."""
CLOSE_WAIT_S: Final = 2.0
"""Seconds after closing its input, as in the library."""
TERMINATE_WAIT_S: Final = 1.0
"""Seconds after SIGTERM."""

_IncomingMessage = SessionMessage | Exception
StdioStreams = tuple[
    MemoryObjectReceiveStream[_IncomingMessage], MemoryObjectSendStream[SessionMessage]
]


@contextlib.asynccontextmanager
async def stdio_transport(connection: "McpConnection") -> AsyncIterator[StdioStreams]:
    """Start the server, and exchange messages with it. Tells the connection when the server can
    send nothing more.

    However this ends, the server and its process group have ended. Raises ProgramNotStarted.
    """
    env = {name: value.get_secret_value() for name, value in connection.config.env.items()}
    async with start_process(
        connection.config.command,
        env=select_environment(*PASSED_ENVIRONMENT) | env,
        listens=True,
        stderr="pipe",
    ) as child:
        incoming_send, incoming_receive = anyio.create_memory_object_stream[_IncomingMessage](0)
        outgoing_send, outgoing_receive = anyio.create_memory_object_stream[SessionMessage](0)
        working = [
            asyncio.create_task(_read_messages(child, incoming_send, connection)),
            asyncio.create_task(_write_messages(child, outgoing_receive, connection)),
            asyncio.create_task(_read_stderr(child, connection)),
        ]
        try:
            yield incoming_receive, outgoing_send
        finally:
            try:
                await _stop_process(child)
            finally:
                for stream in (incoming_send, incoming_receive, outgoing_send, outgoing_receive):
                    stream.close()
                await cancel_and_wait(*working)


async def _read_messages(
    child: ChildProcess,
    incoming: MemoryObjectSendStream[_IncomingMessage],
    connection: "McpConnection",
) -> None:
    assert child.stdout is not None
    try:
        async for line in _read_lines(child.stdout):
            try:
                text = replace_half_escapes(line.decode("utf-8", "replace"))
                message = jsonrpc_message_adapter.validate_json(text, by_name=False)
            except ValueError:
                logger.debug(
                    "a server said %d bytes that are no message", len(line)
                )  # some servers print other things
                continue
            await incoming.send(SessionMessage(message))
    except OverflowError:
        connection.mark_lost(f"it said more than {MAX_MESSAGE_BYTES:,} bytes at once")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # nobody listens any more
    else:
        connection.mark_lost("it ended")
    incoming.close()


async def _read_lines(output: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines. Raises OverflowError for one that is too long."""
    buffer, searched = bytearray(), 0
    while piece := await output.read(READ_BYTES):
        buffer += piece
        while (at := buffer.find(b"\n", searched)) >= 0:
            yield bytes(buffer[:at])
            del buffer[: at + 1]
            searched = 0
        searched = len(buffer)
        if searched > MAX_MESSAGE_BYTES:
            raise OverflowError


async def _write_messages(
    child: ChildProcess,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    connection: "McpConnection",
) -> None:
    """Write messages. Never waits for a server that does not read, so no caller does."""
    assert child.stdin is not None
    async for one in outgoing:
        line = one.message.model_dump_json(by_alias=True, exclude_unset=True)
        child.stdin.write(line.encode() + b"\n")
        if child.stdin.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            connection.mark_lost("it does not listen")


async def _read_stderr(child: ChildProcess, connection: "McpConnection") -> None:
    """Read its standard error, so that it never blocks on it."""
    assert child.stderr is not None
    while piece := await child.stderr.read(READ_BYTES):
        for line in piece.splitlines():
            connection.log_line(line.decode("utf-8", "replace"))


async def _stop_process(child: ChildProcess) -> None:
    """Stop the server as the specification says, up to SIGTERM.

    `start_process` does the last step, at once if this is cancelled.
    """
    assert child.stdin is not None
    child.stdin.close()
    for wait_s, then in ((CLOSE_WAIT_S, signal.SIGTERM), (TERMINATE_WAIT_S, None)):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await child.wait()
        if child.status is not None or then is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, then)


CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_SESSION_S: Final = 2.0
"""Seconds for a server to accept the end of a session."""
MAX_STREAM_BREAKS: Final = 2
"""Broken event streams: after so many the library does not listen any more."""
_METHOD_NOT_ALLOWED: Final = 405
"""Answer to a GET without listening (2025-11-25, basic/transports, listening for messages)."""


@dataclass(slots=True)
class McpRequestState:
    """State of the HTTP request that carried a call."""

    sent: bool = False
    """True: a server may have received it."""
    is_session_unknown: bool = False
    """True: it was refused, perhaps because its session does not exist any more."""


REQUEST_STATE: Final[ContextVar[McpRequestState | None]] = ContextVar("fate", default=None)
"""State of the call that is made in this context; the library keeps the context."""


class McpHttpClient(httpx2.AsyncClient):
    """HTTP client of one connection, which it tells of failures."""

    def __init__(self, connection: "McpConnection") -> None:
        config = connection.config
        proxy = find_proxy(None, config.url)
        headers = {name: value.get_secret_value() for name, value in config.headers.items()}
        super().__init__(
            headers={**headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(config.timeout + 2 * SEND_GRACE_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=4),
            proxy=proxy or None,
            verify=httpx2.create_ssl_context(),
            trust_env=False,
        )
        self._connection, self._through = connection, through(proxy)
        self._stream_breaks = 0

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # noqa: ANN401 - as the library declares it
        state = REQUEST_STATE.get() or McpRequestState()
        state.sent = True
        listens = (
            request.method == "GET"
            or request.headers.get(MCP_METHOD_HEADER) == "subscriptions/listen"
        )
        if listens:
            request.extensions["timeout"]["read"] = None
        elif request.method == "DELETE":
            request.extensions["timeout"]["read"] = CLOSE_SESSION_S
        try:
            response = await super().send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            state.sent = False
            self._connection.suspect(f"it cannot be reached{self._through}")
            raise
        except httpx2.TransportError:
            self._connection.suspect("its connection broke")
            raise
        if (
            response.headers.get("content-encoding", "identity") != "identity"
        ):  # its unpacked size is unknown
            await response.aclose()
            raise httpx2.RemoteProtocolError("it answers in a form that was not asked for")
        self._check_status(request, response, state)
        streams = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        max_bytes = None if streams else MAX_MESSAGE_BYTES
        response.stream = _LimitedStream(
            response.stream, max_bytes, self if listens and streams else None
        )
        return response

    def _check_status(
        self, request: httpx2.Request, response: httpx2.Response, state: McpRequestState
    ) -> None:
        status = response.status_code
        if (
            not response.is_error
            or request.method == "DELETE"
            or (request.method == "GET" and status == _METHOD_NOT_ALLOWED)
        ):
            return
        # 404 is the specification's (session management); many servers answer 400.
        state.is_session_unknown = status in (400, 404) and "mcp-session-id" in request.headers
        self._connection.suspect(f"HTTP {status}")

    def count_stream_break(self) -> None:
        """Count a broken event stream: after some the library does not listen any more."""
        self._stream_breaks += 1
        if self._stream_breaks >= MAX_STREAM_BREAKS:
            self._connection.mark_lost("its connection broke")
        else:
            self._connection.suspect("its connection broke")


class _LimitedStream(httpx2.AsyncByteStream):
    """Body with a limit, or an event stream whose break `client` counts."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, max_bytes: int | None, client: McpHttpClient | None
    ) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._client = client

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
            if self._client is not None:
                self._client.count_stream_break()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


INPUT_REQUIRED: Final = "(It wants to know more before it goes on, and nobody here can tell it.)"


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


HandshakeMode = Literal["auto", "legacy"]
"""First message: a request for the version (2026-07-28), or the handshake used before. Some servers
end at the request.
"""

MAX_LISTED_TOOLS: Final = 5_000
"""Tools of one server that are listed."""
MAX_PAGES: Final = 100
MAX_LOG_CHARS: Final = 300
"""Characters of one line of a server in our log."""
MAX_RELIST_PAUSE_S: Final = 60.0
"""Longest wait before a new list, for a server that announces changes all the time."""
SEND_GRACE_S: Final = 2.0
"""Seconds beyond its timeout after which a request that cannot even be sent is given up."""

_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)

for _name in ("mcp", "client", "httpx2", "httpcore2"):
    # They log whole messages with the texts of servers. We log what an operator must know.
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class McpConnection:
    """One connection.

    It begins with `run`, serves calls once `up` is set, and is over when `lost` is done or `run`
    returns.
    """

    def __init__(self, server: McpServerClient, mode: HandshakeMode) -> None:
        """`server` gets every list of tools that is fetched."""
        self.config = server.config
        self._server = server
        self._clock = server.clock
        self._mode = mode
        self._client: Client | None = None
        self._relist_wanted = asyncio.Event()
        self._recheck_wanted = asyncio.Event()
        self._reason = ""
        self.up = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Run to the end of the connection. Raises its error; `failure_reason` describes it."""
        client = Client(
            stdio_transport(self) if self.config.command else self._http_transport(),
            mode=self._mode,
            cache=None,
            message_handler=self._on_message,
            logging_callback=self._on_log,
            client_info=types.Implementation(name="reverie", version="1"),
        )
        backoff = Backoff(MAX_RELIST_PAUSE_S)
        limit_s = None  # `McpServerClient` limits the time until it is up
        async with client:
            self._client = client
            listening = asyncio.create_task(self._listen_for_changes(client))
            try:
                while True:
                    self._relist_wanted.clear()
                    self._recheck_wanted.clear()
                    async with asyncio.timeout(limit_s):
                        self._server.update_offered(await self._list_tools(client))
                    self._reason, limit_s = "", self.config.timeout
                    self.up.set()
                    since = self._clock.monotonic()
                    await self._relist_wanted.wait()
                    with contextlib.suppress(TimeoutError):
                        pause_s = backoff.next_delay_s(self._clock.monotonic() - since, 1.0)
                        await with_timeout(self._clock, pause_s, self._recheck_wanted.wait())
            finally:
                await cancel_and_wait(listening)

    async def call(self, tool: str, arguments: dict[str, object]) -> types.CallToolResult:
        """Call a tool. An error that the server reports is a result, too.

        Raises McpConnectionLost, McpNotSent and McpTimeout. When cancelled, notifies the server.
        """
        if self._client is None or self.lost.done():
            raise McpNotSent
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=tool, arguments=arguments)
        )
        state = McpRequestState(
            sent=bool(self.config.command)
        )  # a message in a pipe may have been read
        token = REQUEST_STATE.set(state)
        try:
            async with asyncio.timeout(self.config.timeout + SEND_GRACE_S):
                # Not `call_tool`: it validates results by a schema of the server, whose patterns
                # may never end.
                result = await self._client.session.send_request(
                    request, _RESULT, self.config.timeout
                )
                return (
                    _failed(INPUT_REQUIRED)
                    if isinstance(result, types.InputRequiredResult)
                    else result
                )
        except MCPError as error:
            if not state.sent or (state.is_session_unknown and not await self._is_session_known()):
                self.mark_lost(self._reason)
                raise McpNotSent from None
            if error.code == types.REQUEST_TIMEOUT:
                self.suspect("it does not answer")
                raise McpTimeout from None
            if error.code == types.CONNECTION_CLOSED:
                self.suspect("its connection broke")
                raise McpConnectionLost from None
            return _failed(error.message)
        except TimeoutError:
            self.suspect("it does not listen")
            raise McpTimeout from None
        except ValidationError:
            return _failed("(something that the protocol does not allow)")
        finally:
            REQUEST_STATE.reset(token)

    def failure_reason(self, error: BaseException | None) -> str:
        """Return the reason of its end, without texts of the server and without secrets."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, ProgramNotStarted):
            return self._server.secret_filter.redact(str(error))
        if self.lost.done():
            return self.lost.result()
        if isinstance(error, TimeoutError):
            return f"it did not answer within {self.config.timeout:g} s"
        if self._reason:
            return self._reason
        return (
            f"it answered with error {error.code}"
            if isinstance(error, MCPError)
            else type(error).__name__
        )

    @contextlib.asynccontextmanager
    async def _http_transport(
        self,
    ) -> AsyncIterator[Any]:  # the library's type of streams has no public name
        async with (
            McpHttpClient(self) as http_client,
            streamable_http_client(
                self.config.url, http_client=http_client, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    async def _list_tools(self, client: Client) -> list[types.Tool]:
        found: list[types.Tool] = []
        cursor: str | None = None
        if client.server_capabilities.tools is None:
            return found
        for _ in range(MAX_PAGES):
            page = await client.session.list_tools(
                params=types.PaginatedRequestParams(cursor=cursor)
            )
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) >= MAX_LISTED_TOOLS:
                break
        return found[:MAX_LISTED_TOOLS]

    async def _listen_for_changes(self, client: Client) -> None:
        """Subscribe to changed lists, if the protocol needs that; before 2026-07-28 changes are
        notifications.
        """
        backoff = Backoff(MAX_RELIST_PAUSE_S)
        while True:
            since = self._clock.monotonic()
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._relist_wanted.set()
            except SubscriptionLost:
                pass
            except (ListenNotSupportedError, MCPError, TimeoutError):
                return
            self.suspect("it tells of no changes any more")
            await self._clock.sleep(backoff.next_delay_s(self._clock.monotonic() - since, 1.0))

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._relist_wanted.set()

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            self.log_line(params.data if isinstance(params.data, str) else repr(params.data))

    def log_line(self, line: str) -> None:
        """Log a line of the server's own, without secrets."""
        text = to_single_line(
            self._server.secret_filter.redact(line[: 4 * MAX_LOG_CHARS]), MAX_LOG_CHARS
        )
        if text:
            logger.debug("%s says: %s", self._server.name, text)

    def suspect(self, why: str) -> None:
        """Check soon whether the server still answers."""
        self._reason = why
        self._recheck_wanted.set()
        self._relist_wanted.set()

    def mark_lost(self, why: str) -> None:
        """End the connection: the server can send nothing more."""
        if not self.lost.done():
            self.lost.set_result(why)

    async def _is_session_known(self) -> bool:
        """Return True if the server still answers other requests. If not, the connection is
        over.
        """
        assert self._client is not None
        try:
            async with asyncio.timeout(self.config.timeout):
                await self._list_tools(self._client)
        except (MCPError, TimeoutError):
            self._reason = "it has forgotten us"
            return False
        return True
