"""Looks at the configuration beyond what it takes to read it."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from agent.models.build import chain
from gateway.doctor.base import Subject, aside
from gateway.doctor.checks.store import reading
from gateway.doctor.rules import configuration as rules
from gateway.doctor.rules.models import bad_prices
from gateway.price_table import BadPrices, price_table
from gateway.probes.base import Finding
from gateway.records import RoleGiven
from gateway.store import StoreError


async def check_configuration(subject: Subject) -> Sequence[Finding]:
    """What is unwise, unread, or left as it was in the example."""
    settings, directory = subject.settings, subject.environment.directory
    found = [*rules.unwise(subject.config.warnings), *rules.consoles(settings), *rules.unheard(settings)]
    found += rules.left_as_example(settings)
    names = await aside(lambda: _names(directory))
    referred = {path.name for path in subject.config.referenced_files if path.parent.resolve() == directory.resolve()}
    read = {name for name in names if name.endswith((".yaml", ".yml"))}
    found += rules.strays(names, read | referred)
    owners = await _owners(settings.store.path, alive=subject.gateway_state.is_alive)
    found += rules.people(settings, paired_owners=owners, costs=_costs(subject))
    agents, channels = len(settings.agents), len(settings.channels)
    told = f"{channels} channel{'s' * (channels != 1)} and {agents} agent{'s' * (agents != 1)} are configured"
    return [Finding(code="config.read", level="ok", what=told, where=str(directory)), *found]


async def check_prices(subject: Subject) -> Sequence[Finding]:
    """Whether the price table can be read."""
    try:
        await aside(lambda: price_table(subject.environment.directory))
    except BadPrices as error:
        return [bad_prices(str(error))]
    return []


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.is_file()]


async def _owners(store: Path, *, alive: bool) -> int:
    """How many were made owners while the gateway ran."""
    try:
        async with await reading(store, alive=alive) as reader:
            held = await reader.current_facts("role_given")
    except (StoreError, sqlite3.Error, OSError):  # the store's own check says why
        return 0
    return sum(1 for one in held if isinstance(one.fact, RoleGiven) and one.fact.role == "owner")


def _costs(subject: Subject) -> bool:
    """Whether answers cost something, or may."""
    llm = subject.settings.llm
    try:
        prices = price_table(subject.environment.directory)
    except BadPrices:
        return True
    for agent in subject.settings.agents:
        for key in chain(agent.model, llm.models):
            model, provider = llm.models[key], llm.providers[llm.models[key].provider]
            if provider.kind == "scripted":
                continue
            price = prices.find(model.name or provider.kind, provider=provider.kind)
            if not price.is_priced or price.input_usd or price.output_usd:
                return True
    return False
