"""One connection to a server, by the protocol's own library and its transports.

Only loaded where servers are configured: the library includes a web server (about 36 MB and half a
second).

The library does not say when a server has ended, or has forgotten the session. So the tools are
listed again after a call that failed, and every minute: a connection whose server does not answer
that is over. Nothing that a server writes beside the protocol is read.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from typing import Any, Final, Literal

import anyio
import httpx2
import mcp_types as types
from mcp.client import Client, IncomingMessage
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter, ValidationError

from channels.aio import with_timeout
from gateway.core.proxy import find_proxy, through
from gateway.core.text_safety import replace_half_escapes
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugins.mcp.client import McpServerClient
from gateway.plugins.mcp.convert import MAX_RESULT_BLOCKS

MAX_MESSAGE_BYTES: Final = 16_777_216
"""Bytes of one message: a picture of a whole screen is a few MB as base64."""
CONNECT_TIMEOUT_S: Final = 10.0
STREAM_TIMEOUT_S: Final = 300.0
"""Seconds without a byte after which a stream is given up, as the library has it: calls have their
own limit, and a server may have no change to tell for long."""
INPUT_REQUIRED: Final = "(It wants to know more before it goes on, and nobody here can tell it.)"
HandshakeMode = Literal["auto", "legacy"]
"""First message: a request for the version (2026-07-28), or the handshake used before. Some servers
end at the request.
"""
MAX_LISTED_TOOLS: Final = 5_000
"""Tools of one server that are listed."""
MAX_PAGES: Final = 100
LIST_INTERVAL_S: Final = 60.0
"""Seconds after which the tools are listed again, if the server announces no change before."""
LIST_PAUSE_S: Final = 1.0
"""Shortest time between two lists, for a server that announces changes all the time."""
SEND_GRACE_S: Final = 2.0
"""Seconds beyond its timeout after which a request that cannot even be sent is given up."""

_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)

for _name in ("mcp", "client", "httpx2", "httpcore2"):
    # They log whole messages with the texts of servers. We log what an operator must know.
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


@contextlib.asynccontextmanager
async def _mend_messages(
    transport: contextlib.AbstractAsyncContextManager[Any],
) -> AsyncIterator[Any]:
    """Read each message that the library cannot parse again, without its halves of characters, and
    leave out parts of results that nobody reads: to validate 200,000 of them takes seconds.
    """
    async with transport as (messages, outgoing), anyio.create_task_group() as tasks:
        sender, receiver = anyio.create_memory_object_stream[Any]()

        async def pass_on() -> None:
            async with sender:
                with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    async for one in messages:
                        read = _read_again(one) if isinstance(one, ValidationError) else one
                        _cut_parts(read)
                        await sender.send(read)

        tasks.start_soon(pass_on)
        yield receiver, outgoing
        tasks.cancel_scope.cancel()


def _read_again(error: ValidationError) -> SessionMessage | ValidationError:
    line = error.errors()[0]["input"]
    if not isinstance(line, str) or (mended := replace_half_escapes(line)) == line:
        return error
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(mended, by_name=False))
    except ValidationError as again:
        return again


def _cut_parts(read: object) -> None:
    answer = read.message if isinstance(read, SessionMessage) else None
    parts = answer.result.get("content") if isinstance(answer, types.JSONRPCResponse) else None
    if isinstance(parts, list):
        del parts[MAX_RESULT_BLOCKS + 1 :]


class _BoundedBody(httpx2.AsyncByteStream):
    """A body of at most `MAX_MESSAGE_BYTES`. Raises StreamError beyond."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._body:
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"more than {MAX_MESSAGE_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


class McpConnection:
    """One connection. It begins with `run`, serves calls once `up` is set, and is over when `run`
    returns.
    """

    def __init__(self, server: McpServerClient, mode: HandshakeMode) -> None:
        """`server` gets every list of tools that is fetched."""
        self._config = server.config
        self._server = server
        self._mode = mode
        self._client: Client | None = None
        self._relist_wanted = asyncio.Event()
        self._http_error = ""
        self.up = asyncio.Event()

    async def run(self) -> None:
        """Run to the end of the connection. Raises its error; `failure_reason` describes it."""
        transport = self._stdio_transport() if self._config.command else self._http_transport()
        client = Client(
            _mend_messages(transport),
            mode=self._mode,
            cache=None,
            message_handler=self._on_message,
            client_info=types.Implementation(name="reverie", version="1"),
        )
        async with client, asyncio.TaskGroup() as tasks:
            self._client = client
            tasks.create_task(self._listen(client))
            while True:
                self._relist_wanted.clear()
                async with asyncio.timeout(self._config.timeout):
                    await self._server.update_offered(await self._list_tools(client))
                self.up.set()
                with contextlib.suppress(TimeoutError):
                    await with_timeout(
                        self._server.clock, LIST_INTERVAL_S, self._relist_wanted.wait()
                    )
                await self._server.clock.sleep(LIST_PAUSE_S)

    async def _listen(self, client: Client) -> None:
        """Fetch a new list after each change: servers of 2026-07-28 tell only who listens."""
        while client.server_capabilities.tools and client.server_capabilities.tools.list_changed:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._relist_wanted.set()
            except ListenNotSupportedError:  # of an older version: `_on_message` is told
                return
            except (MCPError, SubscriptionLost):
                pass
            await self._server.clock.sleep(LIST_INTERVAL_S)

    async def call(self, tool: str, arguments: dict[str, object]) -> types.CallToolResult:
        """Call a tool. An error that the server reports is a result, too.

        Raises ToolCallRefused if there is no answer. When cancelled, notifies the server.
        """
        assert self._client is not None
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=tool, arguments=arguments)
        )
        try:
            async with asyncio.timeout(self._config.timeout + SEND_GRACE_S):
                # Not `call_tool`: it validates results by a schema of the server, whose patterns
                # may never end.
                result = await self._client.session.send_request(
                    request, _RESULT, self._config.timeout
                )
        except ValidationError:
            return _failed("(something that the protocol does not allow)")
        except (MCPError, TimeoutError) as error:
            self._relist_wanted.set()
            code = error.code if isinstance(error, MCPError) else types.REQUEST_TIMEOUT
            if code == types.CONNECTION_CLOSED:
                self._server.drop_connection(self)
                raise ToolCallRefused(
                    f"The MCP server {self._server.name} ended while it worked on this. It may "
                    "have had an effect all the same: look before you try again. The server is "
                    "started again."
                ) from None
            if code == types.REQUEST_TIMEOUT:
                raise ToolCallRefused(
                    f"The MCP server {self._server.name} did not answer within "
                    f"{self._config.timeout:g} s, and was told that nobody waits any more. It may "
                    "have had an effect all the same."
                ) from None
            return _failed(str(error))
        return _failed(INPUT_REQUIRED) if isinstance(result, types.InputRequiredResult) else result

    def failure_reason(self, error: BaseException | None) -> str:
        """Return the reason of its end, without texts of the server and without secrets."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if self._http_error:
            return self._http_error
        match error:
            case TimeoutError():
                return f"it did not answer within {self._config.timeout:g} s"
            case OSError() | ValueError() if self._config.command:
                why = error.strerror if isinstance(error, OSError) else error
                return f"{self._config.command[0]} cannot be started: {why}"
            case httpx2.TransportError():
                return f"it cannot be reached{through(find_proxy(None, self._config.url))}"
            case MCPError() if error.code != types.CONNECTION_CLOSED:
                return f"it answered with error {error.code}"
            case MCPError() | None:
                return "it ended"
        return type(error).__name__

    @contextlib.asynccontextmanager
    async def _stdio_transport(
        self,
    ) -> AsyncIterator[Any]:  # the library's type of streams has no public name
        program, *arguments = self._config.command
        env = {name: value.get_secret_value() for name, value in self._config.env.items()}
        server = StdioServerParameters(
            command=program, args=arguments, env=env, encoding_error_handler="replace"
        )
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: ASYNC230, PTH123 - it has no disk to wait for
            async with stdio_client(server, errlog=nowhere) as streams:
                yield streams

    @contextlib.asynccontextmanager
    async def _http_transport(self) -> AsyncIterator[Any]:
        headers = {name: value.get_secret_value() for name, value in self._config.headers.items()}
        client = httpx2.AsyncClient(
            headers={"accept-encoding": "identity"} | headers,
            timeout=httpx2.Timeout(
                self._config.timeout + SEND_GRACE_S,
                connect=CONNECT_TIMEOUT_S,
                read=max(self._config.timeout + SEND_GRACE_S, STREAM_TIMEOUT_S),
            ),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=4),
            proxy=find_proxy(None, self._config.url) or None,
            trust_env=False,
            event_hooks={"response": [self._on_response]},
        )
        async with (
            client,
            streamable_http_client(
                self._config.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    async def _on_response(self, response: httpx2.Response) -> None:
        is_bad = response.is_error and response.request.method == "POST"
        self._http_error = f"HTTP {response.status_code}" if is_bad else ""
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedBody(response.stream)
            response.headers.pop("content-encoding", None)  # none was asked for; it could grow

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

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._relist_wanted.set()
