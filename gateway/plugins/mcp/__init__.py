"""Tools of Model Context Protocol servers: local programs or HTTP addresses, each supervised, none
trusted; and the review of what they say of their tools.

- `client.py`: one server: started, restarted, called, closed, and its tools as ours.
- `connection.py`: one connection by the library `mcp`, over stdio or HTTP with limits. Only loaded
  where servers are configured.
- `convert.py`: names, schemas, descriptions and results, from the server's form to ours. Pure.

Rules: nothing waits for a server except a call to it. Texts of a server are untrusted: descriptions
are cut and cleaned, results are marked as foreign, log lines quote nothing but at the level debug.
Secrets of the configuration are removed from its results as from those of all tools.

A tool's description stands in every request, like the operator's text. So models get the
definitions of a server's first list, and those that an admin approved: a tool with another
description than the approved one, or a new tool of a known server, stays off until an admin has
seen exactly this description and approved it.
"""

import asyncio
import contextlib
import difflib
import hashlib
import json
import logging
import math
import random
from collections.abc import Callable, Sequence
from typing import Final, Literal

from channels.aio import with_timeout
from gateway.commands.context import CommandCall
from gateway.core.events import PostButton
from gateway.core.facts import PluginFact
from gateway.core.frozen import frozen
from gateway.core.i18n import _
from gateway.core.identity import ADMIN_ROLES
from gateway.core.text_safety import PLACE_CHARS, escape_invisible, inline_code
from gateway.core.tool import Tool
from gateway.core.tool_spec import ToolSpec
from gateway.plugin import Plugin, PluginContext, hook
from gateway.plugins.mcp.client import McpServerClient
from gateway.plugins.mcp.convert import McpToolMap
from gateway.store import LogEntry
from gateway.store.effects import CommandEffect, EffectFact, done

logger = logging.getLogger("reverie.mcp")

SETTLE_S: Final = 5.0
"""Longest wait of turns for servers that are starting, from the first turn on."""
AWAY_S: Final = 600.0
"""Seconds after which owners are told of a server that is down."""
CODE_CHARS: Final = 8


@frozen
class McpToolApproved(PluginFact):
    """Approval of an MCP tool exactly as described here; models are shown no other description of
    it.
    """

    is_kept = True
    server: str
    tool: str
    """Tool name that models are shown."""
    definition: str
    """Description and argument schema: untrusted."""
    by: str
    """The person who approved it. Empty: it was in the first list of a server that the operator
    configured."""
    kind: Literal["mcp_tool_approved"] = "mcp_tool_approved"

    def current_key(self) -> tuple[str, bool]:
        return f"{self.server}\n{self.tool}", True

    def describe(self) -> str:
        by = self.by or "configuration"
        return f"{self.tool} of the MCP server {self.server} may be used as described, by {by}"


@frozen
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
        """What an admin types to approve exactly this definition of this tool."""
        named = f"{self.server}\n{self.tool}\n{self.definition}"
        return hashlib.sha256(named.encode()).hexdigest()[:CODE_CHARS]

    @property
    def notice_key(self) -> str:
        """Key of the notice that tells owners of it."""
        return f"mcp:{self.code}"

    def describe(self) -> str:
        """Render the whole difference as Markdown, for the admin."""
        before, now = (
            one.split("\n") if one else [] for one in (self.approved_definition, self.definition)
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


class Mcp(Plugin):
    """All configured servers, and the review of their tools."""

    name = "mcp"
    summary = "tools of MCP servers"
    family = "MCP"
    facts = (McpToolApproved,)
    watches = (McpToolApproved,)
    checks = "gateway.plugins.mcp.check"
    chance: Callable[[], float] = staticmethod(random.random)
    """Spreads the attempts to start servers, 0 to 1."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        config, self._clock = context.gateway.live.settings.tools.mcp, context.gateway.clock
        self.servers: Final = [
            McpServerClient(
                name,
                one,
                config.keys(),
                self._clock,
                chance=self.chance,
                media=context.media,
                admit=self.admit,
                report=self._tell_outage,
            )
            for name, one in sorted(config.items())
        ]
        self._approved = dict[str, dict[str, str]]()
        """Approved definitions by server and tool."""
        self._pending = dict[tuple[str, str], PendingDefinition]()
        """Definitions that wait for review, by server and tool."""
        self._waits_until_s = math.inf
        """End of the wait of turns for servers that are starting (monotonic)."""

    async def start(self) -> None:
        self._learn(await self.context.gateway.store.current_facts("mcp_tool_approved"))

    async def run(self) -> None:
        """Keep the servers running. Nothing of theirs is left behind."""
        async with asyncio.TaskGroup() as servers:
            for one in self.servers:
                servers.create_task(one.run())

    def dynamic_tools(self) -> Sequence[Tool] | None:
        """Those of a server that is down stay: it may be back soon."""
        if not self.servers:
            return None
        return [tool for server in self.servers for tool in server.tools.values()]

    async def wait_for_tools(self) -> None:
        """Return once each server was up or has failed, `SETTLE_S` after the first call at the
        latest.
        """
        if all(one.settled.is_set() for one in self.servers):
            return
        now_s = self._clock.monotonic()
        self._waits_until_s = min(self._waits_until_s, now_s + SETTLE_S)
        left_s = max(0.0, self._waits_until_s - now_s)
        with contextlib.suppress(TimeoutError):
            await with_timeout(
                self._clock, left_s, asyncio.gather(*(one.settled.wait() for one in self.servers))
            )

    def _tell_outage(self, server: McpServerClient) -> None:
        """Tell owners of a server that stays down, and that it is back."""
        tell, name = self.context.gateway.notices.tell, server.name
        reason = inline_code(server.reason, PLACE_CHARS)
        if server.state == "up":
            tell(
                f"mcp:{name}:",
                lambda _to: _("The MCP server `{server}` works again.").format(server=name),
                "ends",
            )
        elif self._clock.monotonic() - server.down_since_s >= AWAY_S:
            tell(
                f"mcp:{name}:down",
                lambda _to: _(
                    "The MCP server `{server}` does not run: {reason}. Its tools fail until it is "
                    "back. I keep trying, and tell you then."
                ).format(server=name, reason=reason),
                "begins",
            )

    def states(self) -> Sequence[str]:
        return [one.describe() for one in self.servers]

    @hook
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        """Take up what an admin approved. The tools of a server's first list are taken up
        already.
        """
        changed = self._learn(entries)
        for server in self.servers:
            if server.name in changed:
                server.update_admitted()

    def _learn(self, entries: Sequence[LogEntry]) -> set[str]:
        """Take approved definitions. Return the servers of those that a person approved."""
        facts = [one.fact for one in entries if isinstance(one.fact, McpToolApproved)]
        for fact in facts:
            self._approved.setdefault(fact.server, {})[fact.tool] = fact.definition
        return {fact.server for fact in facts if fact.by}

    def admit(self, server: str, tools: McpToolMap) -> McpToolMap:
        """Return the tools of a server that may be used. All tools of its very first list may."""
        approved = self._approved.setdefault(server, {})
        first = not approved
        for key in [key for key in self._pending if key[0] == server]:
            del self._pending[key]
        admitted, new = {}, list[EffectFact]()
        for name, (own_name, spec) in tools.items():
            definition = render_definition(spec)
            if first:
                approved[name] = definition
                fact = McpToolApproved(server=server, tool=name, definition=definition, by="")
                new.append(EffectFact(fact))
            before = approved.get(name, "")
            if before == definition:
                admitted[name] = own_name, spec
            else:
                self._hold_for_review(
                    PendingDefinition(
                        server=server, tool=name, definition=definition, approved_definition=before
                    )
                )
        if new:
            self.context.gateway.tasks.create_task(self.context.append(*new))
        return admitted

    def list_pending(self) -> list[PendingDefinition]:
        """Return the definitions that wait for review, by server and tool."""
        return [one for _, one in sorted(self._pending.items())]

    def approve(self, code: str, call: CommandCall) -> CommandEffect | None:
        """Approve the definition with this code. Models get it once the fact is written.

        None: no waiting definition has this code.
        """
        found = next((one for one in self._pending.values() if one.code == code), None)
        if found is None:
            return None
        if call.global_role not in ADMIN_ROLES:
            return CommandEffect(
                answer=_(
                    "Only an admin of all places can approve a tool of an MCP server, because it "
                    "works everywhere."
                )
            )
        tell = self.context.gateway.notices.tell
        person = inline_code(call.command.sender.name or call.person, PLACE_CHARS)
        return done(
            _("Approved: I may use `{tool}` with its present description.").format(tool=found.tool),
            McpToolApproved(
                server=found.server, tool=found.tool, definition=found.definition, by=call.person
            ),
            then=lambda _seq: tell(
                found.notice_key,
                lambda _to: _("**Approved** by {person}.").format(person=person),
                "decided",
            ),
        )

    def _hold_for_review(self, pending: PendingDefinition) -> None:
        self._pending[pending.server, pending.tool] = pending
        logger.warning(
            "MCP server %s: %s is off, its definition is not approved (%s)",
            pending.server,
            pending.tool,
            pending.code,
        )
        self.context.gateway.notices.tell(
            pending.notice_key,
            lambda _to: (
                f"{pending.describe()}\n\n"
                + _("To turn it on, write `{command}`.").format(command=f"approve {pending.code}")
            ),
            buttons=lambda: (PostButton(label=_("Turn it on"), command=f"approve {pending.code}"),),
        )


def render_definition(spec: ToolSpec) -> str:
    """Render the definition of a tool as models get it, a line for each value."""
    reads, words = "It says that it only reads.", spec.description
    words = f"{words}\n{reads}" if spec.is_read_only else words.replace(reads, "…")
    schema = json.dumps(json.loads(spec.schema), indent=1, sort_keys=True, ensure_ascii=False)
    return f"{words}\n{schema}"
