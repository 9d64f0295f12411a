"""A context for command handlers, of the parts that a test has."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from gateway.access.limits import UsageLimiter
from gateway.commands.context import (
    CommandCall,
    CommandContext,
)
from gateway.commands.definition import CommandDefinition
from gateway.commands.dispatcher import CommandDispatcher
from gateway.commands.table import build_table
from gateway.core.events import ConversationId
from gateway.core.identity import AccessPolicy
from gateway.hooks import Plugins
from gateway.plugins import find_plugins
from gateway.store import Store
from gateway.store.effects import CommandEffect
from tests.kits.handle import handle_of
from tests.kits.policies import NOBODY

_FOUND = find_plugins()
TABLE = build_table(tuple(one for one in _FOUND.classes if one.name not in _FOUND.origins))
"""The commands of Reverie, without those of other distributions."""


def command_context(
    store: Store,
    clock: Any,
    *,
    people: AccessPolicy = NOBODY,
    attention: Any = None,
    agents: Any = None,
    plugins: Plugins | None = None,
    membership: Any = None,
    **parts: Any,
) -> CommandContext:
    """Return a context with these parts; what a handler asks beyond them is an AttributeError.
    `parts`: of the handle."""
    return CommandContext(
        gateway=handle_of(store, clock, people=people, **parts),
        attention=attention,
        agents=agents or agents_of(),
        models=cast("Any", None),
        membership=membership,
        supervisor=cast("Any", None),
        plugins=plugins or Plugins(),
        commands=TABLE,
    )


def dispatcher_of(
    context: CommandContext, commands: Mapping[str, CommandDefinition] = TABLE.people
) -> CommandDispatcher:
    """Return the dispatcher of these commands, with the limits of the settings."""
    gateway = context.gateway
    limits = UsageLimiter(gateway.live, gateway.clock, gateway.people)
    table = replace(context.commands, people=commands)
    return CommandDispatcher(replace(context, commands=table), limits)


def parts_of(**parts: Any) -> Any:
    return SimpleNamespace(**parts)


def agents_of(agent: Any = lambda _: "reverie", **parts: Any) -> Any:
    """Return agents, of which `agent` names that of a conversation."""

    def agent_for(conversation: ConversationId) -> Any:
        return SimpleNamespace(id=agent(conversation))

    registry = SimpleNamespace(running=SimpleNamespace(describe=lambda _: [], kill=lambda _: []))
    known = {"agent_for": agent_for, "model_labels": "", "mode_label": "", "registry": registry}
    return SimpleNamespace(**{**known, **parts})


async def answer_of(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Return the answer of the handler of the table."""
    row = (TABLE.people if not call.is_operator else TABLE.operator)[call.command.name]
    handler = (row.find_sub(call.sub) or row).handler
    assert handler is not None
    call = replace(call, agent=call.agent or context.agent_at(call.command.at))
    return await handler(call, context)
