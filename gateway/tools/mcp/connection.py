"""One connection to a server, by the protocol's own library.

Only loaded where servers are configured: the library includes a web server (about 36 MB and half a second).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Literal

import mcp_types as types
from mcp.client import Client, IncomingMessage, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from agent.journal import to_single_line
from agent.models.http import is_loopback
from channels.aio import Backoff, cancel_and_wait, with_timeout
from gateway.config.tools import McpServerConfig
from gateway.core.clock import Clock
from gateway.core.process import ProgramNotStarted
from gateway.tools.mcp.client import McpConnectionLost, McpNotSent, McpTimeout
from gateway.tools.mcp.convert import McpSecretFilter
from gateway.tools.mcp.transports import (
    MAX_MESSAGE_BYTES,
    REQUEST_STATE,
    McpHttpClient,
    McpRequestState,
    stdio_transport,
)

logger = logging.getLogger("reverie.mcp")

INPUT_REQUIRED: Final = "(It wants to know more before it goes on, and nobody here can tell it.)"


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


HandshakeMode = Literal["auto", "legacy"]
"""First message: a request for the version (2026-07-28), or the handshake used before. Some servers end at the request.
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

    It begins with `run`, serves calls once `up` is set, and is over when `lost` is done or `run` returns.
    """

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        clock: Clock,
        *,
        secret_filter: McpSecretFilter,
        mode: HandshakeMode,
        on_tools: Callable[[Sequence[types.Tool]], None],
    ) -> None:
        """`on_tools` is called with every list of tools that is fetched."""
        self._name = name
        self._config = config
        self._secret_filter = secret_filter
        self._clock = clock
        self._mode = mode
        self._on_tools = on_tools
        self._client: Client | None = None
        self._relist_wanted = asyncio.Event()
        self._recheck_wanted = asyncio.Event()
        self._reason = ""
        self.up = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Run to the end of the connection. Raises its error; `failure_reason` describes it."""
        client = Client(
            self._stdio_transport() if self._config.command else self._http_transport(),
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
                        self._on_tools(await self._list_tools(client))
                    self._reason, limit_s = "", self._config.timeout
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
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        state = McpRequestState(sent=bool(self._config.command))  # a message in a pipe may have been read
        token = REQUEST_STATE.set(state)
        try:
            async with asyncio.timeout(self._config.timeout + SEND_GRACE_S):
                # Not `call_tool`: it validates results by a schema of the server, whose patterns may never end.
                result = await self._client.session.send_request(request, _RESULT, self._config.timeout)
                return _failed(INPUT_REQUIRED) if isinstance(result, types.InputRequiredResult) else result
        except MCPError as error:
            if not state.sent or (state.is_session_unknown and not await self._is_session_known()):
                self._mark_lost(self._reason)
                raise McpNotSent from None
            if error.code == types.REQUEST_TIMEOUT:
                self._suspect("it does not answer")
                raise McpTimeout from None
            if error.code == types.CONNECTION_CLOSED:
                self._suspect("its connection broke")
                raise McpConnectionLost from None
            return _failed(error.message)
        except TimeoutError:
            self._suspect("it does not listen")
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
            return self._secret_filter.redact(str(error))
        if self.lost.done():
            return self.lost.result()
        if isinstance(error, TimeoutError):
            return f"it did not answer within {self._config.timeout:g} s"
        if self._reason:
            return self._reason
        return f"it answered with error {error.code}" if isinstance(error, MCPError) else type(error).__name__

    def _stdio_transport(self) -> Transport:
        env = {name: value.get_secret_value() for name, value in self._config.env.items()}
        return stdio_transport(self._config.command, env, on_lost=self._mark_lost, on_stderr=self._log_line)

    @contextlib.asynccontextmanager
    async def _http_transport(self) -> AsyncIterator[Any]:  # the library's type of streams has no public name
        config = self._config
        http_client = McpHttpClient(
            {name: value.get_secret_value() for name, value in config.headers.items()},
            timeout_s=config.timeout + 2 * SEND_GRACE_S,
            trust_env=not is_loopback(config.url),
            on_suspect=self._suspect,
            on_lost=self._mark_lost,
        )
        async with (
            http_client,
            streamable_http_client(
                config.url, http_client=http_client, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    async def _list_tools(self, client: Client) -> list[types.Tool]:
        found: list[types.Tool] = []
        cursor: str | None = None
        if client.server_capabilities.tools is None:
            return found
        for _ in range(MAX_PAGES):
            page = await client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) >= MAX_LISTED_TOOLS:
                break
        return found[:MAX_LISTED_TOOLS]

    async def _listen_for_changes(self, client: Client) -> None:
        """Subscribe to changed lists, if the protocol needs that; before 2026-07-28 changes are notifications."""
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
            self._suspect("it tells of no changes any more")
            await self._clock.sleep(backoff.next_delay_s(self._clock.monotonic() - since, 1.0))

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._relist_wanted.set()

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            self._log_line(params.data if isinstance(params.data, str) else repr(params.data))

    def _log_line(self, line: str) -> None:
        text = to_single_line(self._secret_filter.redact(line[: 4 * MAX_LOG_CHARS]), MAX_LOG_CHARS)
        if text:
            logger.debug("%s says: %s", self._name, text)

    def _suspect(self, why: str) -> None:
        """Check soon whether the server still answers."""
        self._reason = why
        self._recheck_wanted.set()
        self._relist_wanted.set()

    def _mark_lost(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)

    async def _is_session_known(self) -> bool:
        """Return True if the server still answers other requests. If not, the connection is over."""
        assert self._client is not None
        try:
            async with asyncio.timeout(self._config.timeout):
                await self._list_tools(self._client)
        except (MCPError, TimeoutError):
            self._reason = "it has forgotten us"
            return False
        return True
