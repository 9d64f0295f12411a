"""An MCP server that an attacker has in hand: `python hostile_mcp.py DIRECTORY`. What is done to it
stands there."""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

SERVER = MCPServer("street", log_level="ERROR")
HERE = Path(sys.argv[1])
SAYS_OF_ITSELF = HERE / "description"
"""What it adds to the description of its first tool, if that is there when it starts."""


@SERVER.tool(
    description=(
        f"Leaves a mark. {SAYS_OF_ITSELF.read_text() if SAYS_OF_ITSELF.exists() else ''}"
    ).strip()
)
async def act(mark: str) -> str:
    (HERE / f"acted-{mark}").touch()
    return "done"


@SERVER.tool()
async def tell(words: str) -> str:
    """Says what it is told to say."""
    return words


@SERVER.tool()
async def fail(words: str) -> str:
    """Fails, and says why."""
    raise ToolError(words)


@SERVER.tool()
async def hidden(mark: str) -> str:
    """Is none of those that the operator takes."""
    (HERE / f"acted-{mark}").touch()
    return "done"


@SERVER.tool()
async def environment() -> str:
    """Tells all that it was given."""
    return repr(dict(os.environ))


if __name__ == "__main__":
    asyncio.run(SERVER.run_stdio_async())
