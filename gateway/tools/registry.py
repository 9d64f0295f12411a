"""Registry of the tools of all agents: each agent's tools, and their state for turns and for
people.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from agent.models.base import Model
from gateway.config.reload import LiveSettings
from gateway.core.i18n import _
from gateway.core.permissions import ToolPermit
from gateway.core.redaction import Redactor
from gateway.core.tool import permits_of, tools_of
from gateway.tools.agent import RestTools, SkillTools
from gateway.tools.dispatch import (
    MAX_WINDOW_SHARE,
    PermissionGate,
    RunningCalls,
    ToolDispatcher,
    fit_families,
    render_tool_list,
)
from gateway.tools.files import FileTools
from gateway.tools.mcp.client import McpServerClient, McpServers
from gateway.tools.memory import MemoryTools, ReminderTools
from gateway.tools.platform import MessagingTools, PlatformTools
from gateway.tools.read_room import RoomReader
from gateway.tools.shell import ShellTools
from gateway.tools.telling import OwnerTelling
from gateway.tools.web import WebTools

logger = logging.getLogger("reverie.tooling")

SERVER_SETTLE_S = 5.0
"""Longest wait of an agent's first turn for MCP servers that are starting."""


class ToolRegistry:
    """Tools of all agents."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        gate: PermissionGate,
        running: RunningCalls,
        redactor: Redactor,
        mcp: McpServers,
        shell: ShellTools,
        families: Mapping[str, Sequence[object]],
    ) -> None:
        """`families`: all objects with tools that each agent has, by family, in the order of their
        importance.
        """
        self._live = live
        self._gate = gate
        self.running = running
        self._redactor = redactor
        self._mcp = mcp
        self._shell = shell
        self._families = {family: tools_of(*owners) for family, owners in families.items()}
        self._family_by_tool: dict[str, str] = {}
        """Family of each tool, by name. Tools of MCP servers have none."""

    @property
    def has_dynamic_tools(self) -> bool:
        """True if tools may come and go."""
        return bool(self._live.settings.tools.mcp)

    def build_dispatcher(self, agent: str, model: Model, rest: RestTools) -> ToolDispatcher:
        """Build the dispatcher of an agent, with its own tools for rest.

        `model`: the agent's model; a small window has no room for all tools.
        """
        config = self._live.settings.tools
        families = dict(self._families)
        families["itself"] = [*tools_of(rest), *families["itself"]]
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
            dynamic=self._mcp if self.has_dynamic_tools else None,
            max_dynamic_tokens=int(model.context_tokens * MAX_WINDOW_SHARE),
            off=config.all_off,
            notes={"bash": self._shell.describe, "remind": self._describe_timezone},
        )

    async def prepare_turn(self, dispatcher: ToolDispatcher, now_s: float, lasts_s: float) -> None:
        """Prepare a turn: renew the pinned specs once nothing of the prompt can be cached any more.

        `lasts_s`: seconds for which it can be. `now_s`: on the clock's `monotonic`.
        """
        before_s, dispatcher.last_turn_s = dispatcher.last_turn_s, now_s
        if self.has_dynamic_tools and before_s is None:
            await self._mcp.wait_settled(SERVER_SETTLE_S)
        if before_s is None or now_s - before_s > lasts_s:
            dispatcher.pin_specs()

    def render_tools(self, dispatcher: ToolDispatcher, states: Sequence[str] = ()) -> str:
        """Render the tools of an agent, for people. `states`: as of `describe_states`."""
        config, families = self._live.settings.tools, dict[str, dict[str, ToolPermit]]()
        for name, permit in dispatcher.permits().items():
            families.setdefault(self._family_by_tool.get(name, "MCP"), {})[name] = permit
        return render_tool_list(families, config.rules, config.all_off, states)

    def _describe_timezone(self) -> str:
        return f"Times are in {self._live.settings.dmn.timezone}, unless `timezone` is given."

    def describe_states(self) -> list[str]:
        """Describe the state of what tools depend on in this process, in a line each, for
        people.
        """
        return [
            f"bash: {self._shell.describe()}",
            *(_describe_server(one) for one in self._mcp.servers),
        ]


_BUILT_IN: Final = (
    *(RestTools, MessagingTools, OwnerTelling, SkillTools, MemoryTools, ReminderTools),
    *(PlatformTools, RoomReader, FileTools, ShellTools, WebTools),
)


def built_in_permits() -> dict[str, ToolPermit]:
    """Return the requirements of these tools, without the operator's rules, by name."""
    return permits_of(*_BUILT_IN)


def _describe_server(server: McpServerClient) -> str:
    text = _("MCP server {server}: {state}, {count} tools").format(
        server=server.name, state=server.state, count=len(server.tools)
    )
    return f"{text}: {server.reason}" if server.reason else text
