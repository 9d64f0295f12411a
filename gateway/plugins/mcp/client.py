"""Client of an MCP server: a supervised connection, and the server's tools as ours."""

import asyncio
import contextlib
import importlib
import json
import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, Literal

from channels.aio import (
    Backoff,
    cancel_and_wait,
    run_to_completion,
    wait_first,
    with_timeout,
)
from gateway.config.tools import McpServerConfig
from gateway.core.clock import Clock
from gateway.core.i18n import _
from gateway.core.installing import install_command
from gateway.core.labels import OUTSIDE_LABEL
from gateway.core.media_types import identify_image
from gateway.core.permissions import OUT, OWN, Effect, ToolPermit
from gateway.core.scopes import EVERYBODY
from gateway.core.tool import Tool, ToolContext, ToolOutput
from gateway.core.tool_spec import ToolCallRefused, ToolSpec
from gateway.plugins.mcp.convert import (
    MAX_RESULT_IMAGES,
    McpBinary,
    McpToolMap,
    convert_block,
    render_result,
    select_tools,
)
from gateway.stream.media import MediaStore, prepare_image

if TYPE_CHECKING:
    import mcp_types as types

    from gateway.plugins.mcp.connection import HandshakeMode, McpConnection


logger = logging.getLogger("reverie.mcp")

START_TIMEOUT_S: Final = 60.0
"""Seconds for a server to come up: it may have to be downloaded first (`npx`, `uvx`)."""
DOWN_WAIT_S: Final = 5.0
"""Seconds that a call waits for a server that is down. For one that starts it waits as long as that
may take."""


class McpServerClient:
    """Supervised client of one server."""

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        servers: Collection[str],
        clock: Clock,
        *,
        chance: Callable[[], float],
        media: MediaStore | None = None,
        admit: Callable[[str, McpToolMap], McpToolMap] = lambda _, tools: tools,
        report: Callable[["McpServerClient"], None] = lambda _: None,
    ) -> None:
        """`servers`: the names of all. `media` None: images are only described in words.

        `admit`: returns those of a server's tools that may be used. `report`: called when it is up,
        and after each connection and each try.
        """
        self.name = name
        self.config = config
        self.tools: dict[str, Tool] = {}
        """Its tools as ours, by name, as last listed: they stay while the server is down."""
        self._own_names = set[str]()
        self.settled = asyncio.Event()
        """Set once it was up or has failed."""
        self._servers = servers
        self.clock = clock
        self._random = chance
        self._media = media
        self._admit, self._report = admit, report
        self.down_since_s = clock.monotonic()
        """When it went down, or was started, on the clock's `monotonic`."""
        self._offered_tools: McpToolMap = {}
        """All tools that it offers, approved or not."""
        self.state: Literal["starting", "up", "down", "off"] = "starting"
        """off: it is not started."""
        self.reason = ""
        """Reason why it is not up, for people. Empty: it is up, or nothing is known yet. Without
        secrets and without the server's texts."""
        self._omitted: list[str] = []
        self._mode: HandshakeMode = "auto"
        self._connection: McpConnection | None = None
        self._up = asyncio.Event()

    def describe(self) -> str:
        """Describe its state in a line, for people."""
        text = _("MCP server {server}: {state}, {count} tools").format(
            server=self.name, state=self.state, count=len(self.tools)
        )
        return f"{text}: {self.reason}" if self.reason else text

    async def run(self) -> None:
        """Keep the server running until cancelled. Never raises."""
        try:
            module = await asyncio.to_thread(  # half a second of imports
                importlib.import_module, "gateway.plugins.mcp.connection"
            )
        except ImportError:
            self.state = "off"
            self.reason = f"the package mcp is not installed: {install_command('mcp')}"
            logger.error("MCP server %s: %s", self.name, self.reason)  # noqa: TRY400 - the trace says no more
            self.settled.set()
            return
        backoff = Backoff(60.0)
        while True:
            up_s = await self._run_connection(module.McpConnection)
            self.settled.set()
            await self.clock.sleep(backoff.next_delay_s(up_s, self._random()))

    async def call(self, tool: str, arguments: dict[str, object]) -> "types.CallToolResult":
        """Call a tool by the server's own name for it. Raises ToolCallRefused."""
        connection = await self._get_connection()
        if tool not in self._own_names:  # since the call was looked up, or waits for an approval
            raise ToolCallRefused(
                f"The MCP server {self.name} does not offer this tool any more: it is gone."
            )
        return await connection.call(tool, arguments)

    async def _get_connection(self) -> "McpConnection":
        if self._connection is None and self.state != "off":
            wait_s = START_TIMEOUT_S if self.state == "starting" else DOWN_WAIT_S
            with contextlib.suppress(TimeoutError):
                await with_timeout(self.clock, wait_s, self._up.wait())
        if self._connection is not None:
            return self._connection
        why = f" ({self.reason})" if self.reason else ""
        raise ToolCallRefused(
            f"The MCP server {self.name} does not run{why}. Nothing was done; it may run again "
            "later."
        )

    async def _run_connection(self, connection_type: "type[McpConnection]") -> float:
        """Run one connection to its end. Return how long it was up, in seconds; 0: never."""
        connection = connection_type(self, self._mode)
        running = asyncio.create_task(connection.run())
        why, since = f"it did not come up within {START_TIMEOUT_S:g} s", None
        try:
            is_up = connection.up.wait()
            await wait_first(running, with_timeout(self.clock, START_TIMEOUT_S, is_up))
            if connection.up.is_set():
                since = self.clock.monotonic()
                self._connection, self.state, self.reason = connection, "up", ""
                self._up.set()
                self.settled.set()
                self._report(self)
                logger.info("MCP server %s is up, with %d tools", self.name, len(self.tools))
                await asyncio.wait([running])
            if running.done():
                why = connection.failure_reason(running.exception())
        finally:
            self.drop_connection(connection)
            await run_to_completion(cancel_and_wait(running))
        if since is None:
            self._mode = "legacy" if self._mode == "auto" else "auto"
        # Once, however long it stays down.
        level = logging.DEBUG if self.state == "down" else logging.WARNING
        logger.log(level, "MCP server %s is down: %s", self.name, why)
        now_s, self.state, self.reason = self.clock.monotonic(), "down", why
        self.down_since_s = self.down_since_s if since is None else now_s
        self._report(self)
        return 0.0 if since is None else now_s - since

    def drop_connection(self, connection: "McpConnection") -> None:
        """Make no further calls by this connection, which is over."""
        if self._connection is connection:
            self._connection = None
            self._up.clear()

    async def update_offered(self, offered: "Sequence[types.Tool]") -> None:
        """Take up a list of tools that the server has sent. A hostile one takes many seconds, on a
        thread.
        """
        self._offered_tools, omitted = await asyncio.to_thread(
            select_tools, self.name, offered, self.config.tools, self._servers
        )
        if omitted and omitted != self._omitted:
            logger.warning(
                "MCP server %s: %d tools are left out: %s",
                self.name,
                len(omitted),
                "; ".join(omitted[:10]),
            )
        self._omitted = omitted
        self.update_admitted()

    def update_admitted(self) -> None:
        """Update the tools to those that may be used now."""
        tools = self._admit(self.name, self._offered_tools)
        self._own_names = {own_name for own_name, _ in tools.values()}
        self.tools = {
            name: build_mcp_tool(self, own_name, spec, self._media)
            for name, (own_name, spec) in tools.items()
        }


CALL_GRACE_S: Final = START_TIMEOUT_S + DOWN_WAIT_S
"""Seconds beside the time of the call itself: for waiting for a server, and for telling it of a
cancellation."""


def build_mcp_tool(
    server: McpServerClient, tool: str, spec: ToolSpec, media: MediaStore | None
) -> Tool:
    """Build our tool for a tool of a server. `tool` is the server's own name for it."""

    async def handler(_: ToolContext, *, arguments: str) -> ToolOutput:
        result = await server.call(tool, _parse_arguments(arguments))
        parts = [convert_block(one) for one in result.content]
        origin = f"mcp {server.name} {tool}"
        shown, kept = list[McpBinary](), []
        for one in parts:
            if media is None or not isinstance(one, McpBinary) or len(shown) == MAX_RESULT_IMAGES:
                continue
            if identify_image(one.data) is None:  # whatever its declared type
                continue
            with contextlib.suppress(ToolCallRefused):  # then it is described in words
                kept.append(await prepare_image(media, one.data, f"{one.kind} from {origin}"))
                shown.append(one)
        text = render_result(
            parts, shown, structured=result.structured_content, is_error=result.is_error
        )
        return ToolOutput(
            text=text,
            kind="mcp",
            origin=origin,
            is_untrusted=True,
            label=OUTSIDE_LABEL,
            images=tuple(kept),
        )

    async def effect(context: ToolContext, *, arguments: str) -> Effect:
        is_sent = bool(_parse_arguments(arguments)) and not EVERYBODY.can_read(
            context.request.label.readers
        )
        if spec.is_read_only and not is_sent:
            return OWN
        return OUT._replace(what=f"a call of the server {server.name}")

    permit = ToolPermit(role=server.config.role, approval=server.config.approval)
    return Tool(spec, None, handler, permit, lambda: server.config.timeout + CALL_GRACE_S, effect)


def _parse_arguments(written: str) -> dict[str, object]:
    try:
        arguments = json.loads(written.strip() or "{}", parse_constant=_reject_constant)
        json.dumps(arguments, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ToolCallRefused(
            "The arguments are no JSON that can be sent: write one JSON object."
        ) from None
    if not isinstance(arguments, dict):
        raise ToolCallRefused("The arguments have to be one JSON object.")
    return arguments


def _reject_constant(name: str) -> None:
    raise ValueError(name)
