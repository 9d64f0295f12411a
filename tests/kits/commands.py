"""A context for command handlers, of the parts that a test has."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gateway.access.approval_texts import Approver
from gateway.access.texts import BEING_DECIDED_TEXT
from gateway.commands.context import CommandCall, CommandContext
from gateway.commands.table import COMMANDS_BY_NAME, OPERATOR_COMMANDS
from gateway.config.models import CommandsConfig
from gateway.core.events import ConversationId
from gateway.core.i18n import _
from gateway.core.identity import AccessPolicy
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.store import Store
from gateway.store.effects import CommandEffect, refuse
from tests.kits.places import PlayedChannels


def command_context(store: Store, clock: Any, **parts: Any) -> CommandContext:
    """Return a context with these parts; what a handler asks beyond them is an AttributeError."""
    titles = SimpleNamespace(add_titles=str, label=str, load=_nothing)
    known: dict[str, Any] = {
        "live": parts_of(settings=parts_of(commands=CommandsConfig())),
        "channels": PlayedChannels(),
        "stats": GatewayStats({}, clock.now()),
        "redactor": Redactor(),
        "access_policy": AccessPolicy(dm_policy="open", roles={}, open_rooms={}),
        "roster": None,
        "account_linker": None,
        "limits": None,
        "attention": None,
        "places": parts_of(titles=titles),
        "journal": None,
        "memory": None,
        "forgetter": None,
        "reminders": None,
        "agents": agents_of(),
        "rewinder": None,
        "model_selector": None,
        "approvals": NoApprovals(),
        "files": None,
        "membership": None,
        "supervisor": None,
        "tasks": None,
    }
    return CommandContext(store=store, clock=clock, **{**known, **parts})


class NoApprovals:
    """Approvals where no tool waits for any."""

    definitions: Any = SimpleNamespace(list_pending=list)

    async def list_waiting(self, _approver: Approver) -> Sequence[Any]:
        return ()

    async def decide(self, *_: object, **_more: object) -> CommandEffect:
        return CommandEffect(answer="Nothing waits for approval here.")


async def _nothing(*_: object) -> None:
    pass


def parts_of(**parts: Any) -> Any:
    """Return an object with these parts."""
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
    row = (COMMANDS_BY_NAME if not call.is_operator else OPERATOR_COMMANDS)[call.command.name]
    handler = (row.find_sub(call.sub) or row).handler
    assert handler is not None
    answer = await handler(call, context)
    settle = context.roster.reserve_request(answer.request) if answer.request else answer.settle
    return refuse(_(BEING_DECIDED_TEXT)) if settle is None else replace(answer, settle=settle)
