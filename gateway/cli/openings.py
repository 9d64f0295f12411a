"""Openings: everything that the configuration lets in, out or spend beyond the defaults, with its
key and remedy.

An opening is a warning: it works as it is written, and may be meant. Commands without a sandbox are
reported with the sandbox.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

from gateway.config.check_registry import CheckContext, check
from gateway.config.models import AccessConfig, Settings
from gateway.config.tools import McpServerConfig, ToolsConfig
from gateway.core.addresses import is_loopback_host
from gateway.core.findings import Finding, ok, warning
from gateway.core.identity import ADMIN_ROLES, ANY_ROOM, ROLE_ORDER
from gateway.core.installing import in_image
from gateway.core.permissions import ApprovalMode, ToolPermit, apply_rules
from gateway.core.tool import permits_of
from gateway.plugins import find_plugins

_APPROVAL_ORDER: Final[tuple[ApprovalMode, ...]] = ("never", "untrusted", "always")
_MAX_NAMED: Final = 6
_FIX: Final = "remove it unless it is meant: the default is closed"

Opening = tuple[str, str, str]
"""Code, what is open, and its key."""


@check("openings", timed=False)
def check_openings(context: CheckContext) -> Iterator[Finding]:
    """Name everything that the configuration opens."""
    found = list(
        find_openings(
            context.settings, permits_of(*find_plugins(context.settings.plugins.off).used)
        )
    )
    yield from found
    if not found:
        yield ok("open.nothing", "nothing goes beyond the defaults")


def find_openings(settings: Settings, permits: dict[str, ToolPermit]) -> Iterator[Finding]:
    """Find the openings of a configuration. Pure. `permits`: requirements of the tools without
    rules.
    """
    for code, what, key in (
        *_find_open_access(settings),
        *_find_missing_limits(settings.access),
        *_find_open_tools(settings.tools, permits),
        # What can be reached of a container is decided where its ports are published.
        *(() if in_image() else _find_open_ports(settings)),
        *_find_open_models(settings),
    ):
        yield warning(code, what, _FIX, key)


def _find_open_access(settings: Settings) -> Iterator[Opening]:
    access = settings.access
    if access.dm == "open":
        yield "open.dm", "anybody may talk to the agent in private, without approval", "access.dm"
    for name, channel in settings.channels.items():
        if ANY_ROOM in channel.rooms:
            yield (
                "open.rooms",
                "whoever adds the bot to a room approves that room",
                f"channels.{name}.rooms",
            )
    for index, agent in enumerate(settings.agents):
        for number, one in enumerate(agent.bindings):
            key = f"agents[{index}].bindings[{number}]"
            if one.private is False:
                place = f"{one.match.channel}/{one.match.room}"
                yield (
                    "open.private",
                    f"text of {place} may be repeated everywhere, even if it is closed",
                    f"{key}.private",
                )
            if one.group:
                what = (
                    "text of its closed rooms may be repeated in all closed rooms of the group "
                    f"{one.group}"
                )
                yield "open.group", what, f"{key}.group"


def _find_missing_limits(access: AccessConfig) -> Iterator[Opening]:
    what = "no limit for what people without the role admin may cost"
    for name, usd in access.budgets:
        if usd is None:
            yield "open.budget", what, f"access.budgets.{name}"
    for name, rate in access.rates:
        if not (rate.burst or rate.per_minute):
            yield "open.rate", "no limit for how many messages are answered", f"access.rates.{name}"


def _find_open_tools(tools: ToolsConfig, permits: dict[str, ToolPermit]) -> Iterator[Opening]:
    known = permits | {
        f"mcp_{name}_*": ToolPermit(role=one.role, approval=one.approval)
        for name, one in tools.mcp.items()
    }
    for index, rule in enumerate(tools.rules):
        decided = {
            name: (permit, apply_rules(name, permit, [rule]))
            for name, permit in known.items()
            if next((one for one in tools.rules if fnmatchcase(name, one.tool)), None) is rule
            and not any(fnmatchcase(name, off) for off in tools.all_off)
        }
        lower = [
            one
            for one, (was, now) in decided.items()
            if ROLE_ORDER.index(now.role) < ROLE_ORDER.index(was.role)
        ]
        if lower:
            what = f"people with the role {rule.role} may let the agent use {_format_names(lower)}"
            yield "open.tool", what, f"tools.rules[{index}].role"
        order = _APPROVAL_ORDER.index
        unasked = [
            one for one, (was, now) in decided.items() if order(now.approval) < order(was.approval)
        ]
        if unasked:
            what = (
                f"text from outside can trigger calls of {_format_names(unasked)} without an "
                "approval"
            )
            yield "open.approval", what, f"tools.rules[{index}].approval"
    inside = _format_names(tools.web.allow_private)
    found = (
        (
            tools.unasked_role in ADMIN_ROLES,
            "open.unasked",
            f"on its own, the agent may use tools of the role {tools.unasked_role}",
            "tools.unasked_role",
        ),
        (
            tools.bash.network,
            "open.network",
            (
                "commands have network access: they reach services of this machine and can send "
                "data out"
            ),
            "tools.bash.network",
        ),
        (
            tools.web.allow_private,
            "open.web",
            f"the agent may fetch pages inside this network: {inside}",
            "tools.web.allow_private",
        ),
    )
    yield from ((code, what, key) for is_open, code, what, key in found if is_open)
    for name, server in tools.mcp.items():
        yield from _find_open_server(f"tools.mcp.{name}", server)


def _format_names(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(sorted(names)[:_MAX_NAMED]) + more


def _find_open_server(where: str, server: McpServerConfig) -> Iterator[Opening]:
    url = urlsplit(server.url)
    found = (
        (
            server.role not in ADMIN_ROLES,
            f"people with the role {server.role} may let the agent use its tools",
            "role",
        ),
        (
            server.approval == "never",
            "text from outside can trigger calls of its tools without an approval",
            "approval",
        ),
        (
            url.scheme == "http" and not is_loopback_host(url.hostname or ""),
            "the connection is not encrypted (use https)",
            "url",
        ),
    )
    yield from (("open.mcp", what, f"{where}.{key}") for is_open, what, key in found if is_open)


def _find_open_ports(settings: Settings) -> Iterator[Opening]:
    if not is_loopback_host(settings.ops.host):
        what = (
            f"the operator's server can be reached from other machines ({settings.ops.host}), and "
            "its token is sent there unencrypted: use 127.0.0.1, and a proxy with https"
        )
        yield "open.ops", what, "ops.host"
    for name, channel in settings.channels.items():
        for key, host in channel.listens():
            if not is_loopback_host(host):
                what = (
                    f"the webhook can be reached from other machines ({host}), unencrypted: use "
                    "127.0.0.1, and a proxy with https"
                )
                yield "open.webhook", what, f"channels.{name}.{key}"


def _find_open_models(settings: Settings) -> Iterator[Opening]:
    for name, model in settings.llm.models.items():
        known = settings.llm.providers[model.provider].traits(model.name or "")
        if model.leaks and not known.may_leak_calls:
            yield (
                "open.leaks",
                "tool calls in the text of its answers are executed",
                f"llm.models.{name}.leaks",
            )
