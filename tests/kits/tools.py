"""What tools are called with where a gateway would be too much: a gate without admins, settings,
calls under way."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gateway.config.loader import parse_config
from gateway.config.reload import LiveSettings
from gateway.config.tools import ToolsConfig
from gateway.context.observer import TurnTracker
from gateway.core.labels import join, label_of_role
from gateway.core.permissions import PermissionRequest, decide_permission
from gateway.core.redaction import Redactor
from gateway.core.tool import Tool, ToolContext, tools_of
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.tools.dispatch import PermissionGate, RunningCalls, ToolDispatcher
from gateway.tools.metrics import ToolStats


class NoApprovals(PermissionGate):
    """A gate without anybody to ask: calls that need an approval are refused."""

    def __init__(self) -> None:
        """Takes nothing."""

    async def authorize(self, tool: Tool, call: ToolCall, context: ToolContext) -> str:
        roles = [asker.role for asker in context.requesters]
        now = PermissionRequest(
            roles=roles,
            unasked_role="guest",
            here=context.visibility,
            label=join([context.request.label, *map(label_of_role, roles)]),
            effect=await tool.find_effect(call, context),
        )
        verdict = decide_permission(tool.spec.name, tool.permit, now)
        return "" if verdict.outcome == "allowed" else f"Refused: {verdict.rule}. Nothing was done."


def running_calls() -> RunningCalls:
    return RunningCalls(TurnTracker(), ToolStats())


def dispatcher(
    tools: Sequence[Tool],
    gate: PermissionGate | None = None,
    *,
    running: RunningCalls | None = None,
    dynamic: Callable[[], Sequence[Tool]] | None = None,
    max_dynamic_tokens: int = 10_000,
    off: Sequence[str] = (),
    secrets: Iterable[str] = (),
) -> ToolDispatcher:
    """A dispatcher of these tools, with nobody to ask unless there is a gate."""
    return ToolDispatcher(
        tools,
        gate or NoApprovals(),
        running or running_calls(),
        Redactor(secrets),
        dynamic=dynamic,
        max_dynamic_tokens=max_dynamic_tokens,
        off=off,
    )


def live_tools(tools: ToolsConfig | None = None, **agent: object) -> LiveSettings:
    """Settings with this section `tools`; `agent`: keys of their one agent, `reverie`."""
    settings = parse_config(
        {
            "channels": {"console": {"platform": "console"}},
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"s": {"kind": "scripted"}},
                "models": {"main": {"provider": "s"}},
            },
        },
        Path("/"),
    )
    update = {
        "tools": tools or ToolsConfig(),
        "agents": (settings.agents[0].model_copy(update=agent),),
    }
    return LiveSettings(settings.model_copy(update=update))


def set_tools(live: LiveSettings, **update: object) -> None:
    """Change keys of the section `tools`, as a reload does."""
    live.put_in_force(
        live.settings.model_copy(update={"tools": live.settings.tools.model_copy(update=update)})
    )


def specs_of(*owners: type) -> list[ToolSpec]:
    """Return the specifications of the tools declared by these classes."""
    return [one.spec for one in tools_of(*map(object.__new__, owners))]
