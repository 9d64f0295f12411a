"""Openings: everything that the configuration lets in, out or spend beyond the defaults, with its key and remedy. Pure.

An opening is a warning: it works as it is written, and may be meant. Commands without a sandbox are reported with the
sandbox.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

from agent.models.config import may_leak_calls
from gateway.cli.doctor.base import DoctorContext, Finding, ok, warning
from gateway.config.models import AccessConfig, Settings
from gateway.config.tools import McpServerConfig, ToolsConfig
from gateway.core.addresses import is_loopback_host
from gateway.core.identity import ADMIN_ROLES, ANY_ROOM, ROLE_ORDER
from gateway.core.permissions import ApprovalMode, ToolPermit, apply_rules

_APPROVAL_ORDER: Final[tuple[ApprovalMode, ...]] = ("never", "untrusted", "always")
_MAX_NAMED: Final = 6
"""Tools that one finding names."""
_LEAVE_OUT: Final = "remove it to get the default"


def find_openings(settings: Settings, permits: dict[str, ToolPermit]) -> Iterator[Finding]:
    """Find the openings of a configuration. `permits`: requirements of the built-in tools without rules."""
    yield from _find_open_places(settings)
    yield from _find_missing_limits(settings.access)
    yield from _find_open_tools(settings.tools, permits)
    yield from _find_open_networks(settings.tools)
    for name, server in settings.tools.mcp.items():
        yield from _find_open_server(f"tools.mcp.{name}", server)
    yield from _find_open_ports(settings)
    for name, model in settings.llm.models.items():
        usual = may_leak_calls(model.model_copy(update={"leaks": None}), settings.llm.providers[model.provider])
        if model.leaks and not usual:
            what = "tool calls in the text of its answers are executed"
            fix = "remove it unless this model writes its calls there"
            yield warning("open.leaks", what, fix, f"llm.models.{name}.leaks")


def _find_open_places(settings: Settings) -> Iterator[Finding]:
    if settings.access.dm == "open":
        what = "anybody may talk to the agent in private, without approval"
        yield warning("open.dm", what, "set it to pairing or allowlist", "access.dm")
    for name, channel in settings.channels.items():
        if ANY_ROOM in channel.rooms:
            what = "whoever adds the bot to a room there approves that room"
            yield warning("open.rooms", what, "list the rooms instead of `*`", f"channels.{name}.rooms")
    for index, agent in enumerate(settings.agents):
        for number, binding in enumerate(agent.bindings):
            if binding.private is False:
                match = binding.match
                what = f"text of {match.channel}/{match.room} may be repeated everywhere, even if the room is closed"
                fix = "remove it: then the platform decides who can read there"
                yield warning("open.private", what, fix, f"agents[{index}].bindings[{number}].private")
            if binding.group:
                what = f"text of its closed rooms may be repeated in all closed rooms of the group {binding.group}"
                where = f"agents[{index}].bindings[{number}].group"
                yield warning("open.group", what, "remove it: then text stays in its room", where)


def _find_missing_limits(access: AccessConfig) -> Iterator[Finding]:
    for name, usd in access.budgets.model_dump().items():
        if usd is None:
            whose, _, window = name.removesuffix("_usd").partition("_")
            period = "hour" if window else "day"
            what = f"no limit for the cost of one {whose} in a {period}, caused by people without the role admin"
            yield warning("open.budget", what, _LEAVE_OUT, f"access.budgets.{name}")
    for name, rate in access.rates:
        if not (rate.burst or rate.per_minute):
            whose, _, turns = name.partition("_")
            what = f"no limit for the number of {'turns for' if turns else 'answered messages of'} one {whose}"
            yield warning("open.rate", what, _LEAVE_OUT, f"access.rates.{name}")


def _find_open_tools(tools: ToolsConfig, permits: dict[str, ToolPermit]) -> Iterator[Finding]:
    """Find rules by which a tool needs a lower role, or fewer approvals, than without them."""
    if tools.unasked_role in ADMIN_ROLES:
        what = f"on its own, the agent may use tools of the role {tools.unasked_role}"
        yield warning("open.unasked", what, "set it to member or guest", "tools.unasked_role")
    known = permits | {
        f"mcp_{name}_*": ToolPermit(role=one.role, approval=one.approval) for name, one in tools.mcp.items()
    }
    for index, rule in enumerate(tools.rules):
        decided = {
            name: permit
            for name, permit in known.items()
            if next((one for one in tools.rules if fnmatchcase(name, one.tool)), None) is rule
            and not any(fnmatchcase(name, off) for off in tools.all_off)
        }
        now = {name: apply_rules(name, permit, [rule]) for name, permit in decided.items()}
        lower = [name for name, permit in decided.items() if _rank(now[name]) < _rank(permit)]
        if lower:
            what = f"people with the role {rule.role} may let the agent use {_format_names(lower)}"
            yield warning("open.tool", what, "remove the rule, or name a higher role", f"tools.rules[{index}].role")
        unasked = [
            name
            for name, permit in decided.items()
            if _APPROVAL_ORDER.index(now[name].approval) < _APPROVAL_ORDER.index(permit.approval)
        ]
        if unasked:
            what = f"text from outside can trigger calls of {_format_names(unasked)} without an approval"
            fix = "set it to untrusted or always"
            yield warning("open.approval", what, fix, f"tools.rules[{index}].approval")


def _rank(permit: ToolPermit) -> int:
    return ROLE_ORDER.index(permit.role)


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(sorted(names)[:_MAX_NAMED]) + more


def _find_open_networks(tools: ToolsConfig) -> Iterator[Finding]:
    if tools.bash.network:
        what = "commands have network access: they reach services of this machine and can send data out"
        yield warning("open.network", what, "set it to false", "tools.bash.network")
    if tools.web.allow_private:
        what = f"the agent may fetch pages inside this network: {_format_names(tools.web.allow_private)}"
        yield warning("open.web", what, "remove what nobody needs", "tools.web.allow_private")


def _find_open_server(where: str, server: McpServerConfig) -> Iterator[Finding]:
    if server.role not in ADMIN_ROLES:
        what = f"people with the role {server.role} may let the agent use its tools"
        yield warning("open.mcp", what, "set it to admin", f"{where}.role")
    if server.approval == "never":
        what = "text from outside can trigger calls of its tools without an approval"
        yield warning("open.mcp", what, "set it to untrusted or always", f"{where}.approval")
    url = urlsplit(server.url)
    if url.scheme == "http" and not is_loopback_host(url.hostname or ""):
        what = "the connection is not encrypted: anybody on the way can read and answer all calls"
        yield warning("open.mcp", what, "use https", f"{where}.url")


def _find_open_ports(settings: Settings) -> Iterator[Finding]:
    fix = "set it to 127.0.0.1, and put a proxy with TLS in front"
    if not is_loopback_host(settings.ops.host):
        what = f"the operator's server can be reached from other machines ({settings.ops.host})"
        yield warning("open.ops", what, fix, "ops.host")
    for name, channel in settings.channels.items():
        hook = channel.webhook if channel.platform == "telegram" else None
        if hook is not None and not is_loopback_host(hook.listen):
            what = f"the webhook can be reached from other machines ({hook.listen})"
            yield warning("open.webhook", what, fix, f"channels.{name}.webhook.listen")


def check_openings(context: DoctorContext) -> Iterator[Finding]:
    """Name everything that the configuration opens."""
    from gateway.tools.registry import built_in_permits  # noqa: PLC0415 - heavy: all tools, and only here

    found = list(find_openings(context.settings, built_in_permits()))
    yield from found
    if not found:
        yield ok("open.nothing", "nothing goes beyond the defaults")
