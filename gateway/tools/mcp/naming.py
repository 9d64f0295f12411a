"""What a server's tool is called here. Pure.

A name depends on the operator's configuration and on the tool's own name only, never on what else a server offers: so
it stays the same whatever comes and goes, and no server can take the name of another's tool.
"""

import hashlib
import re
from collections.abc import Collection
from typing import Final

MAX_TOOL_NAME_CHARS: Final = 64
"""Of a tool's name, with Anthropic and OpenAI alike (`^[a-zA-Z0-9_-]{1,64}$`)."""
_DIGEST_CHARS: Final = 8
_INVALID_CHARS: Final = re.compile(r"[^a-zA-Z0-9_-]")


def build_tool_name(server: str, tool: str, servers: Collection[str]) -> str:
    """`mcp_<server>_<tool>`, with a digest of the tool's own name where that cannot stand there as it is.

    `server` is one of `servers`, whose names are as the settings have them.
    """
    told = _INVALID_CHARS.sub("_", tool)
    others = [other[len(server) + 1 :] + "_" for other in servers if other.startswith(f"{server}_")]
    while any(f"{told}_".startswith(other) for other in others):  # `a` with `b_c` is not `a_b` with `c`
        told = f"-{told}"
    name = f"mcp_{server}_{told}"
    if tool and told == tool and len(name) <= MAX_TOOL_NAME_CHARS:
        return name
    digest = hashlib.sha256(tool.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_TOOL_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"
