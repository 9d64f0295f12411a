"""Review of MCP tool definitions: models get those of a server's first list, and those that an
admin approved.

A tool's description stands in every request, like the operator's text. So a tool with another
description than the approved one, or a new tool of a known server, stays off until an admin has
seen exactly this description and approved it.
"""

import difflib
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gateway.core.events import Address, PostButton
from gateway.core.facts import McpToolApproved
from gateway.core.i18n import _
from gateway.core.identity import ADMIN_ROLES, Role
from gateway.core.text_safety import PLACE_CHARS, escape_invisible, inline_code
from gateway.core.tool_spec import ToolSpec
from gateway.store import LogEntry, NewEntry
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.handle import GatewayHandle

logger = logging.getLogger("reverie.mcp")

DEFINITION_CODE_CHARS: Final = 8
McpToolMap = dict[str, tuple[str, ToolSpec]]
"""By our name: the server's own name, and the spec for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDefinition:
    """Definition that waits for review."""

    server: str
    tool: str
    """Our name for it."""
    definition: str
    approved_definition: str
    """Definition that was approved before. Empty: the tool is new."""

    @property
    def code(self) -> str:
        """Code of exactly this definition of this tool."""
        return definition_code(self.server, self.tool, self.definition)

    def describe(self) -> str:
        """Render the whole difference as Markdown, for the admin."""
        before, now = (
            (self.approved_definition.split("\n") if self.approved_definition else []),
            self.definition.split("\n"),
        )
        lines = list(difflib.unified_diff(before, now, lineterm="", n=len(now) + len(before)))[3:]
        changed = (
            _(
                "The MCP server `{server}` has changed the description of its tool `{tool}`. The "
                "tool is off until an admin approves the change."
            )
            if before
            else _(
                "The MCP server `{server}` has a new tool `{tool}`. It is off until an admin "
                "approves it."
            )
        )
        return "\n".join(
            [
                changed.format(server=self.server, tool=self.tool),
                "",
                "```",
                *(escape_invisible(line) for line in lines),
                "```",
            ]
        )


class ToolDefinitionReview:
    """Review for all servers. Call `load` before the first server starts."""

    def __init__(self, gateway: GatewayHandle) -> None:
        self.store, self._clock = gateway.store, gateway.clock
        self._tasks, self._notices = gateway.tasks, gateway.notices
        self._approved_definitions: dict[str, dict[str, str]] = {}
        """Approved definitions by server and tool."""
        self._pending: dict[tuple[str, str], PendingDefinition] = {}
        self.store.subscribe(self._on_approved, McpToolApproved)

    async def load(self) -> None:
        """Read the approved definitions from the log."""
        for one in await self.store.current_facts("mcp_tool_approved"):
            if isinstance(one.fact, McpToolApproved):
                self._approved_definitions.setdefault(one.fact.server, {})[one.fact.tool] = (
                    one.fact.definition
                )

    def admit(self, server: str, tools: McpToolMap) -> McpToolMap:
        """Return the tools of a server that may be used. All tools of its very first list may."""
        approved = self._approved_definitions.setdefault(server, {})
        first = not approved
        for key in [key for key in self._pending if key[0] == server]:
            del self._pending[key]
        admitted, new = {}, list[McpToolApproved]()
        for name, (own_name, spec) in tools.items():
            definition = render_definition(spec)
            if first:
                approved[name] = definition
                new.append(McpToolApproved(server=server, tool=name, definition=definition, by=""))
            if approved.get(name) == definition:
                admitted[name] = own_name, spec
            else:
                self._hold_for_review(
                    PendingDefinition(
                        server=server,
                        tool=name,
                        definition=definition,
                        approved_definition=approved.get(name, ""),
                    )
                )
        if new:
            self._tasks.create_task(self._record(new))
        return admitted

    def list_pending(self) -> list[PendingDefinition]:
        """Return the definitions that wait for review, by server and tool."""
        return [one for _, one in sorted(self._pending.items())]

    def approve(self, code: str, *, by: str, global_role: Role) -> CommandEffect | None:
        """Approve the definition with this code. Models get it once the fact is written. `by`: the
        person who approves it, for the log; `global_role`: their role in all places.

        None: no waiting definition has this code.
        """
        found = next((one for one in self._pending.values() if one.code == code), None)
        if found is None:
            return None
        if global_role not in ADMIN_ROLES:
            return CommandEffect(
                answer=_(
                    "Only an admin of all places can approve a tool of an MCP server, because it "
                    "works everywhere."
                )
            )
        fact = McpToolApproved(
            server=found.server, tool=found.tool, definition=found.definition, by=by
        )
        return CommandEffect(
            answer=_("Approved: I may use `{tool}` with its present description.").format(
                tool=found.tool
            ),
            facts=(EffectFact(fact),),
        )

    def _on_approved(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(fact := entry.fact, McpToolApproved):
                self._approved_definitions.setdefault(fact.server, {})[fact.tool] = fact.definition
                if fact.by:
                    code = definition_code(fact.server, fact.tool, fact.definition)
                    self._notices.tell(f"mcp:{code}", partial(_render_approved, fact.by), "decided")

    def _hold_for_review(self, pending: PendingDefinition) -> None:
        self._pending[pending.server, pending.tool] = pending
        logger.warning(
            "MCP server %s: %s is off, its definition is not approved (%s)",
            pending.server,
            pending.tool,
            pending.code,
        )
        self._notices.tell(
            f"mcp:{pending.code}",
            lambda _to: (
                f"{pending.describe()}\n\n"
                + _("To turn it on, write `{command}`.").format(command=f"approve {pending.code}")
            ),
            buttons=lambda: (PostButton(label=_("Turn it on"), command=f"approve {pending.code}"),),
        )

    async def _record(self, facts: list[McpToolApproved]) -> None:
        now = self._clock.now()
        await self.store.append([NewEntry(fact=fact, at=now) for fact in facts])


def definition_code(server: str, tool: str, definition: str) -> str:
    """Return what an admin types to approve exactly this definition of a tool of an MCP server."""
    return hashlib.sha256(f"{server}\n{tool}\n{definition}".encode()).hexdigest()[
        :DEFINITION_CODE_CHARS
    ]


def _render_approved(by: str, _to: Address | None) -> str:
    return _("**Approved** by {person}.").format(person=inline_code(by, PLACE_CHARS))


def render_definition(spec: ToolSpec) -> str:
    """Render the definition of a tool as models get it, a line for each value."""
    reads = "It says that it only reads.\n" if spec.is_read_only else ""
    schema = json.dumps(json.loads(spec.schema), indent=1, sort_keys=True, ensure_ascii=False)
    return f"{spec.description}\n{reads}{schema}"
