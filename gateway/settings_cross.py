"""What one section says about another: names that must exist, people with two roles.

Works on values as they were written, so that these mistakes are told together with all others.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from agent.models.config import ModelConfig, ProviderConfig, check_models
from agent.tools.names import TOOL_NAMES
from gateway.events import Address
from gateway.records import OPERATOR_CHANNEL
from gateway.settings import AgentConfig
from gateway.settings_access import check_access
from gateway.settings_source import Keys, Tree, value_at

T = TypeVar("T")
_MODEL_ADAPTER: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)
_PROVIDER_ADAPTER: TypeAdapter[ProviderConfig] = TypeAdapter(ProviderConfig)


def cross_check(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    """Keys and message for each mistake. Says nothing about a section that is not there."""
    names = value_at(data, "llm", "models")
    if isinstance(names, dict):
        for keys in _model_references(data):
            name = value_at(data, *keys)
            if name is None and keys[0] == "agents":
                name = AgentConfig.model_fields["model"].default
            if isinstance(name, str) and name and name not in names:
                yield keys, f"no such model; in llm.models: {', '.join(names) or 'none'}"
    agents = value_at(data, "agents")
    if isinstance(agents, list):
        yield from _check_agents(agents)
    yield from _check_models(data)
    yield from _check_operator_channel(data)
    yield from check_access(data)
    yield from _check_approvals(data)
    yield from _check_tool_names(data)


def _check_tool_names(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    """A lock on a tool that there is not keeps nothing shut. Tools of servers are known only when these run."""
    off, rules = value_at(data, "tools", "off"), value_at(data, "tools", "rules")
    named: list[tuple[Keys, Tree]] = []
    for index, glob in enumerate(off if isinstance(off, list) else ()):
        named.append((("tools", "off", index), glob))
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        named.append((("tools", "rules", index, "tool"), rule.get("tool") if isinstance(rule, dict) else None))
    for keys, glob in named:
        if (
            isinstance(glob, str)
            and not glob.startswith("mcp_")
            and not any(fnmatchcase(one, glob) for one in TOOL_NAMES)
        ):
            near = get_close_matches(glob, TOOL_NAMES, n=1)
            yield keys, f"no tool is named like that{f'; is it {near[0]}?' if near else ''}"


def _check_operator_channel(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    """With a token there is a channel of the operator's own."""
    channels = value_at(data, "channels")
    if value_at(data, "ops", "token") is not None and isinstance(channels, dict) and OPERATOR_CHANNEL in channels:
        yield (
            ("channels", OPERATOR_CHANNEL),
            (
                "with ops.token the operator's own channel has that name; write another one, e.g. "
                f"{OPERATOR_CHANNEL}.local"
            ),
        )


def _check_approvals(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    keys = ("tools", "approvals", "room")
    room, channels = value_at(data, *keys), value_at(data, "channels")
    if not isinstance(room, str) or not room:
        return
    try:
        channel = Address.parse(room).channel
    except ValueError:
        yield keys, "no address; write a channel, a slash and a room, e.g. telegram.main/-1001"
        return
    if not isinstance(channels, dict) or channel not in channels:
        there = ", ".join(channels) if isinstance(channels, dict) else ""
        yield keys, f"no such channel; in channels: {there or 'none'}"


def _check_agents(agents: list[Tree]) -> Iterator[tuple[Keys, str]]:
    if not agents:
        yield ("agents",), "a gateway needs an agent: add one with an id"
    ids = [agent.get("id") if isinstance(agent, dict) else None for agent in agents]
    for place, name in enumerate(ids):
        if isinstance(name, str) and name in ids[:place]:
            yield ("agents", place, "id"), f"there are two agents with the id {name!r}; choose another"
    for place, agent in enumerate(agents[:-1]):
        if isinstance(agent, dict) and "bindings" not in agent:
            message = "takes every conversation, so that the agents below get none; give it bindings, or put it last"
            yield ("agents", place), message


def _check_models(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    models, broken_models = _parse_valid(_MODEL_ADAPTER, value_at(data, "llm", "models"))
    providers, broken_providers = _parse_valid(_PROVIDER_ADAPTER, value_at(data, "llm", "providers"))
    broken = broken_models | broken_providers
    for path, message in check_models(models, providers):
        keys = ("llm", *path)
        written = value_at(data, *keys)
        names = written if isinstance(written, list) else [written]
        if not any(name in broken for name in names if isinstance(name, str)):
            yield keys, message


def _parse_valid(form: TypeAdapter[T], written: Tree) -> tuple[dict[str, T], set[str]]:
    """What can be read, and the names of what cannot (which is told by whoever validates everything)."""
    good: dict[str, T] = {}
    broken: set[str] = set()
    for name, value in written.items() if isinstance(written, dict) else ():
        try:
            good[name] = form.validate_python(value)
        except ValidationError:
            broken.add(name)
    return good, broken


def _model_references(data: dict[str, Tree]) -> Iterator[Keys]:
    agents = value_at(data, "agents")
    for index in range(len(agents) if isinstance(agents, list) else 0):
        yield "agents", index, "model"
    yield "llm", "context_optimization", "compaction", "summarizer_model"
