"""All servers of the operator's, and what they can do now."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final

from channels.tasks import cancel_and_wait, with_timeout
from gateway.clock import Clock
from gateway.hands import Tool
from gateway.settings_tools import McpServerConfig
from gateway.tools.mcp.hands import KeepImage, build_mcp_tool
from gateway.tools.mcp.review import ToolDefinitionReview
from gateway.tools.mcp.server import McpServerClient, McpServerState, ToolsChangedListener

MAX_GONE_TOOLS: Final = 256
"""Tools that are remembered although they are gone, of each server."""


class McpServers:
    """Wired once. Nothing runs before `start`, and nothing waits for a server but a call to it."""

    def __init__(
        self,
        config: Mapping[str, McpServerConfig],
        clock: Clock,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        changed: ToolsChangedListener,
        *,
        keep: KeepImage | None = None,
        definitions: ToolDefinitionReview | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`changed`: told whenever `hands` is another. `keep`: None, where images are told of in words only.

        `definitions`: which tools may be used. None: all of them.
        """
        self._clock = clock
        self._spawn = spawn
        self._notify_changed = changed
        self._keep_image = keep
        self._servers = {
            name: McpServerClient(
                name, one, config.keys(), clock, chance=chance, told=self._on_tools_changed, definitions=definitions
            )
            for name, one in sorted(config.items())
        }
        if definitions is not None:
            definitions.on_approved = self._on_approved
        self._known_tools: dict[str, dict[str, Tool]] = {name: {} for name in self._servers}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to start them, and return at once."""
        self._tasks = [self._spawn(server.run()) for server in self._servers.values()]

    async def wait_settled(self, most_s: float) -> None:
        """Return once each has been up or has failed, but after so long at the latest."""
        try:
            await with_timeout(self._clock, most_s, self._wait_all_settled())
        except TimeoutError:
            return

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What can be done now, by name. What a server that is down could do is among it: it may be back soon."""
        found = [self._known_tools[server.name][name] for server in self._servers.values() for name in server.tools]
        return tuple(sorted(found, key=lambda one: one.spec.name))

    def all_tools(self) -> Mapping[str, Tool]:
        """By name, with those that are gone: called, they say so."""
        return {name: one for known in self._known_tools.values() for name, one in known.items()}

    def describe(self) -> Sequence[McpServerState]:
        """How each of them is, by name."""
        return [server.describe() for server in self._servers.values()]

    async def aclose(self) -> None:
        """End all of them. Nothing of theirs is left behind."""
        await cancel_and_wait(*self._tasks)

    def _on_approved(self, name: str) -> None:
        if name in self._servers:
            self._servers[name].update_admitted()

    def _on_tools_changed(self, name: str, came: Sequence[str], went: Sequence[str]) -> None:
        server, known = self._servers[name], self._known_tools[name]
        for told in came:
            tool, spec = server.tools[told]
            known.pop(told, None)
            known[told] = build_mcp_tool(server, tool, spec, self._keep_image)
        gone = [told for told in known if told not in server.tools]
        for told in gone[: max(0, len(gone) - MAX_GONE_TOOLS)]:
            del known[told]
        self._notify_changed(name, came, went)

    async def _wait_all_settled(self) -> None:
        for server in self._servers.values():
            await server.settled.wait()
