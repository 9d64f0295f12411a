"""Registry of the tools of all agents: each agent's tools, and their state for turns and for
people.
"""

import logging
from collections.abc import Sequence

from agent.models.base import Model
from gateway.core.i18n import _
from gateway.core.permissions import ToolPermit
from gateway.core.tool import Tool
from gateway.hooks import Plugins
from gateway.stream.handle import GatewayHandle
from gateway.tools.dispatch import (
    MAX_WINDOW_SHARE,
    PermissionGate,
    RunningCalls,
    ToolDispatcher,
    fit_families,
    render_tool_list,
)
from gateway.tools.mcp.client import McpServerClient, McpServers

logger = logging.getLogger("reverie.tooling")

SERVER_SETTLE_S = 5.0
"""Longest wait of turns for MCP servers that are starting, from the first turn on."""


class ToolRegistry:
    """Tools of all agents."""

    def __init__(
        self,
        gateway: GatewayHandle,
        gate: PermissionGate,
        running: RunningCalls,
        *,
        mcp: McpServers,
        plugins: Plugins,
    ) -> None:
        self._live, self._redactor = gateway.live, gateway.redactor
        self._gate = gate
        self.running = running
        self._mcp, self._plugins = mcp, plugins
        self._families = dict[str, list[Tool]]()
        """All tools by family, in the order of their importance."""
        for one in plugins.all:
            if tools := plugins.tools(one):
                self._families.setdefault(one.family or one.name, []).extend(tools)
        self._family_by_tool: dict[str, str] = {}
        """Family of each tool, by name. Tools of MCP servers have none."""

    def build_dispatcher(self, agent: str, model: Model) -> ToolDispatcher:
        """Build the dispatcher of an agent. `model`: its own; a small window has no room for all
        tools.
        """
        config, families = self._live.settings.tools, self._families
        if model.takes_tools:
            families = fit_families(agent, families, model.context_tokens, config.all_off)
        self._family_by_tool |= {
            tool.spec.name: family for family, some in families.items() for tool in some
        }
        return ToolDispatcher(
            [tool for some in families.values() for tool in some],
            self._gate,
            self.running,
            self._redactor,
            agent=agent,
            dynamic=(lambda: self._mcp.tools) if config.mcp else None,
            max_dynamic_tokens=int(model.context_tokens * MAX_WINDOW_SHARE),
            off=config.all_off,
        )

    async def wait_settled(self) -> None:
        """Wait for the servers of tools that are starting, for a short while."""
        await self._mcp.wait_settled(SERVER_SETTLE_S)

    def render_tools(self, dispatcher: ToolDispatcher, states: Sequence[str] = ()) -> str:
        """Render the tools of an agent, for people. `states`: as of `describe_states`."""
        config, families = self._live.settings.tools, dict[str, dict[str, ToolPermit]]()
        for name, permit in dispatcher.permits().items():
            families.setdefault(self._family_by_tool.get(name, "MCP"), {})[name] = permit
        return render_tool_list(families, config.rules, config.all_off, states)

    def describe_states(self) -> list[str]:
        """Describe the state of what tools depend on in this process, in a line each, for
        people.
        """
        return [
            *self._plugins.states(),
            *(_describe_server(one) for one in self._mcp.servers),
        ]


def _describe_server(server: McpServerClient) -> str:
    text = _("MCP server {server}: {state}, {count} tools").format(
        server=server.name, state=server.state, count=len(server.tools)
    )
    return f"{text}: {server.reason}" if server.reason else text
