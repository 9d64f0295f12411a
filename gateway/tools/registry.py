"""Registry of the tools of all agents: each agent's tools, and their state for turns and for
people.
"""

import logging

from agent.models.base import Model
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

logger = logging.getLogger("reverie.tooling")


class ToolRegistry:
    """Tools of all agents."""

    def __init__(
        self,
        gateway: GatewayHandle,
        gate: PermissionGate,
        running: RunningCalls,
        plugins: Plugins,
    ) -> None:
        self._live, self._redactor = gateway.live, gateway.redactor
        self._gate = gate
        self.running = running
        self._plugins = plugins
        self._families = dict[str, list[Tool]]()
        """All tools by family, in the order of their importance."""
        for one in plugins.all:
            if tools := plugins.tools(one):
                self._families.setdefault(one.family or one.name, []).extend(tools)

    def build_dispatcher(self, agent: str, model: Model) -> ToolDispatcher:
        """Build the dispatcher of an agent. `model`: its own; a small window has no room for all
        tools.
        """
        config, families = self._live.settings.tools, self._families
        if model.takes_tools:
            families = fit_families(agent, families, model.context_tokens, config.all_off)
        return ToolDispatcher(
            [tool for some in families.values() for tool in some],
            self._gate,
            self.running,
            self._redactor,
            agent=agent,
            dynamic=self._dynamic_tools if self._plugins.dynamic_tools() is not None else None,
            max_dynamic_tokens=int(model.context_tokens * MAX_WINDOW_SHARE),
            off=config.all_off,
        )

    def _dynamic_tools(self) -> list[Tool]:
        return [tool for some in (self._plugins.dynamic_tools() or {}).values() for tool in some]

    def render_tools(self, dispatcher: ToolDispatcher, *, brief: bool = False) -> str:
        """Render the tools of an agent, and the state of what they depend on in this process, for
        people. `brief`: as `render_tool_list`.
        """
        config, tools = self._live.settings.tools, dispatcher.current_tools()
        return render_tool_list(
            tools, config.rules, config.all_off, self._plugins.states(), brief=brief
        )
