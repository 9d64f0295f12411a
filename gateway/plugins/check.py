"""Checks of the plugins: what cannot be used, and what has failed in the gateway that runs."""

from collections.abc import Iterator, Sequence

from gateway.config.check_registry import CheckContext, check
from gateway.core.findings import Finding, bad, ok, warning
from gateway.hooks import PROBLEM_PREFIX
from gateway.plugins import find_plugins
from gateway.stream.supervisor import import_adapter


@check("libraries of", each=lambda settings: settings.channels, timed=False, online=True)
def check_libraries(context: CheckContext, name: str) -> Sequence[Finding]:
    """Import the adapter of a channel: that takes up to a second, which does not count for the
    check of the channel.
    """
    import_adapter(context.settings.channels[name])
    return []


@check("plugins", timed=False)
def check_plugins(context: CheckContext) -> Iterator[Finding]:
    """Yield the plugins that are not loaded, and those that have failed."""
    settings = context.settings.plugins
    found = find_plugins(settings.off)
    for problem in (one for one in found.problems if one.plugin not in settings.off):
        fix = f"update it ({problem.origin}), or write plugins: {{off: [{problem.plugin}]}}"
        yield bad("plugin.unusable", problem.text, fix, problem.plugin)
    snapshot = context.gateway_state.snapshot
    for one in snapshot.problems if snapshot is not None else ():
        if one.what.startswith(PROBLEM_PREFIX):
            name = one.what.removeprefix(PROBLEM_PREFIX)
            fix = f"look into the log of the gateway, or write plugins: {{off: [{name}]}}"
            yield warning("plugin.failed", one.reason, fix, name)
    if context.settings.tools.mcp and "mcp" not in {one.name for one in found.used}:
        what = "these servers are not started: the plugin mcp is off"
        yield warning("plugin.off", what, "remove them, or mcp from plugins.off", "tools.mcp")
    others = [f"{name} ({origin})" for name, origin in found.origins.items()]
    names = ", ".join(others) or "none of other distributions"
    yield ok("plugin.list", f"{len(found.used)} of {len(found.classes)} plugins are used; {names}")
