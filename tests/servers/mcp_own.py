"""A server of the protocol by its own library: `python mcp_own.py stdio|PORT DIRECTORY`.

What is done to it is written down in DIRECTORY, in a file named after what happened.
"""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer

SERVER = MCPServer("own", log_level="ERROR")
HERE = Path(sys.argv[2])


@SERVER.tool()
async def slow(seconds: float) -> str:
    """Takes its time."""
    (HERE / "began").touch()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        (HERE / "cancelled").touch()
        raise
    return "at last"


@SERVER.tool()
async def grow(ctx: Context) -> str:
    """Offers one tool more."""
    SERVER.add_tool(lambda: "I am new", name="extra", description="Was not there before.")
    await ctx.notify_tools_changed()
    return "grown"


@SERVER.tool()
async def shrink(ctx: Context) -> str:
    """Offers one tool less."""
    SERVER.remove_tool("extra")
    await ctx.notify_tools_changed()
    return "shrunk"


@SERVER.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(3)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        asyncio.run(SERVER.run_stdio_async())
    else:
        asyncio.run(SERVER.run_streamable_http_async(port=int(sys.argv[1])))
