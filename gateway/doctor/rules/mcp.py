"""Whether servers of tools can be used. Pure."""

from gateway.probes.base import Finding


def judge_slow_mcp_server(name: str, waited_s: float, most_s: float) -> Finding:
    """It had not come up when it was no longer waited for."""
    return Finding(
        code="mcp.slow",
        level="warning",
        what=f"it had not come up after {waited_s:.0f} s; the gateway waits for {most_s:.0f} s, and tries again",
        fix="run its command by hand and see how long it takes: it may be fetched first (npx, uvx), so install it",
        where=f"tools.mcp.{name}",
    )


def judge_mcp_server(
    name: str, *, why: str, tools: int, missing_library: bool = False, program: str = "", untried: str = ""
) -> Finding:
    """One finding of one server. `program`: the one that is not there. `why`: it did not come up; empty: it did.

    `untried`: why it was not started. Empty: it was.
    """
    where = f"tools.mcp.{name}"
    if missing_library:
        return Finding(
            code="mcp.library",
            level="bad",
            what="the package mcp is not installed, so none of its tools are there",
            fix="pip install 'reverie-gateway[mcp]'",
            where=where,
        )
    if program:
        return Finding(
            code="mcp.program",
            level="bad",
            what=f"there is no program {program}",
            fix="install it, or write its whole path (the gateway's PATH may be shorter than yours)",
            where=where,
        )
    if untried:
        return Finding(code="mcp.server", level="ok", what=f"it was not tried: {untried}", where=where)
    if why:
        return Finding(
            code="mcp.server",
            level="bad",
            what=f"it does not come up: {why}",
            fix="run its command by hand and see what it says, and look at its env, url and headers",
            where=where,
        )
    if not tools:
        return Finding(
            code="mcp.tools",
            level="warning",
            what="it comes up, and offers no tool that is taken",
            fix=f"look at {where}.tools, which names those that are",
            where=where,
        )
    return Finding(code="mcp.server", level="ok", what=f"it comes up, with {tools} tools", where=where)
