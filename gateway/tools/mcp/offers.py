"""What a server offers, and what of it the agent is told. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from agent.models.base import ToolSpec
from gateway.tools.mcp.naming import build_tool_name
from gateway.tools.mcp.schemas import simplify_schema
from gateway.tools.mcp.veil import sanitize_text

MAX_TOOLS: Final = 64
"""Of one server: each costs tokens in every prompt."""
MAX_DESCRIPTION_CHARS: Final = 1_000
MAX_OWN_NAME_CHARS: Final = 128
"""Of a tool, as its server calls it: what the specification allows (2025-11-25, server/tools, tool names)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolOffer:
    """A tool as its server describes it: untrusted."""

    name: str
    title: str
    description: str
    schema: Mapping[str, object]
    """Of its arguments."""


class SelectedTools(NamedTuple):
    """What of that is used."""

    tools: dict[str, tuple[str, ToolSpec]]
    """By the name that the model is told, in its order: the server's own name, and what is told."""
    omitted: int
    """How many tools that the operator wants were left, because they are too many or their names cannot be."""


def select_tools(
    server: str, offered: Iterable[McpToolOffer], globs: Sequence[str], servers: Collection[str]
) -> SelectedTools:
    """The tools that match one of `globs`. Of two with the same name the first counts."""
    wanted = [one for one in offered if any(fnmatchcase(one.name, glob) for glob in globs)]
    tools: dict[str, tuple[str, ToolSpec]] = {}
    for one in sorted(wanted, key=lambda one: one.name):  # so that the same ones are left each time
        name = build_tool_name(server, one.name, servers)
        if len(tools) < MAX_TOOLS and name not in tools and 0 < len(one.name) <= MAX_OWN_NAME_CHARS:
            tools[name] = one.name, _build_spec(name, server, one)
    return SelectedTools(dict(sorted(tools.items())), len(wanted) - len(tools))


def _build_spec(name: str, server: str, offered: McpToolOffer) -> ToolSpec:
    schema, note = simplify_schema(offered.schema)
    told = sanitize_text(offered.description or offered.title, MAX_DESCRIPTION_CHARS - len(note) - 1)
    told = told or f"A tool of the MCP server {server}."
    # It may bring something else each time, and whether it changes anything only the server knows.
    return ToolSpec(name=name, description=f"{told} {note}".strip(), schema=schema, is_task=True, is_polling=True)
