"""What one section says about another: names that must exist, people with two roles.

Works on values as they were written, so that these mistakes are told together with all others.
"""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from agent.models.config import ModelConfig, ProviderConfig, check_models
from gateway.settings import AgentConfig
from gateway.settings_source import Keys, Tree, at, dotted

T = TypeVar("T")
_MODEL: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)
_PROVIDER: TypeAdapter[ProviderConfig] = TypeAdapter(ProviderConfig)


def cross_check(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    """Keys and message for each mistake. Says nothing about a section that is not there."""
    names = at(data, "llm", "models")
    if isinstance(names, dict):
        for keys in _model_references(data):
            name = at(data, *keys)
            if name is None and keys[0] == "agents":
                name = AgentConfig.model_fields["model"].default
            if isinstance(name, str) and name and name not in names:
                yield keys, f"no such model; in llm.models: {', '.join(names) or 'none'}"
    agents = at(data, "agents")
    if isinstance(agents, list):
        yield from _agents(agents)
    yield from _models(data)
    yield from _roles(at(data, "access", "roles"))


def _agents(agents: list[Tree]) -> Iterator[tuple[Keys, str]]:
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


def _models(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    models, broken_models = _valid(_MODEL, at(data, "llm", "models"))
    providers, broken_providers = _valid(_PROVIDER, at(data, "llm", "providers"))
    broken = broken_models | broken_providers
    for path, message in check_models(models, providers):
        keys = ("llm", *path)
        written = at(data, *keys)
        names = written if isinstance(written, list) else [written]
        if not any(name in broken for name in names if isinstance(name, str)):
            yield keys, message


def _valid(form: TypeAdapter[T], written: Tree) -> tuple[dict[str, T], set[str]]:
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
    agents = at(data, "agents")
    for index in range(len(agents) if isinstance(agents, list) else 0):
        yield "agents", index, "model"
    yield "llm", "context_optimization", "compaction", "summarizer_model"


def _roles(roles: Tree) -> Iterator[tuple[Keys, str]]:
    first: dict[str, Keys] = {}
    for role, people in roles.items() if isinstance(roles, dict) else ():
        for index, person in enumerate(people if isinstance(people, list) else ()):
            keys: Keys = ("access", "roles", role, index)
            if isinstance(person, str) and first.setdefault(person, keys)[2] != role:
                yield keys, f"has another role already ({dotted(first[person])}); keep one"
