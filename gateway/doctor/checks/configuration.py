"""Looks at the configuration beyond what it takes to read it."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from agent.models.build import fallback_chain
from gateway.doctor.base import DoctorContext, run_in_thread
from gateway.doctor.checks.store import open_reader
from gateway.doctor.rules import configuration
from gateway.doctor.rules.models import price_table_finding
from gateway.price_table import PriceTableError, load_price_table
from gateway.probes.base import Finding
from gateway.records import RoleAssigned
from gateway.store import StoreError


async def check_configuration(subject: DoctorContext) -> Sequence[Finding]:
    """What is unwise, unread, or left as it was in the example."""
    settings, directory = subject.settings, subject.environment.directory
    found = [
        *configuration.judge_warnings(subject.config.warnings),
        *configuration.judge_channels(settings),
        *configuration.find_unbound_channels(settings),
    ]
    found += configuration.find_example_values(settings)
    names = await run_in_thread(lambda: _list_files(directory))
    referred = {path.name for path in subject.config.referenced_files if path.parent.resolve() == directory.resolve()}
    read = {name for name in names if name.endswith((".yaml", ".yml"))}
    found += configuration.find_unread_files(names, read | referred)
    owners = await _count_paired_owners(settings.store.path, alive=subject.gateway_state.is_alive)
    found += configuration.judge_owners(settings, paired_owners=owners, costs=_costs_money(subject))
    agents, channels = len(settings.agents), len(settings.channels)
    told = f"{channels} channel{'s' * (channels != 1)} and {agents} agent{'s' * (agents != 1)} are configured"
    return [Finding(code="config.read", level="ok", what=told, where=str(directory)), *found]


async def check_prices(subject: DoctorContext) -> Sequence[Finding]:
    """Whether the price table can be read."""
    try:
        await run_in_thread(lambda: load_price_table(subject.environment.directory))
    except PriceTableError as error:
        return [price_table_finding(str(error))]
    return []


def _list_files(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.is_file()]


async def _count_paired_owners(store: Path, *, alive: bool) -> int:
    """How many were made owners while the gateway ran."""
    try:
        async with await open_reader(store, alive=alive) as reader:
            held = await reader.current_facts("role_given")
    except (StoreError, sqlite3.Error, OSError):  # the store's own check says why
        return 0
    return sum(1 for one in held if isinstance(one.fact, RoleAssigned) and one.fact.role == "owner")


def _costs_money(subject: DoctorContext) -> bool:
    """Whether answers cost something, or may."""
    llm = subject.settings.llm
    try:
        prices = load_price_table(subject.environment.directory)
    except PriceTableError:
        return True
    for agent in subject.settings.agents:
        for key in fallback_chain(agent.model, llm.models):
            model, provider = llm.models[key], llm.providers[llm.models[key].provider]
            if provider.kind == "scripted":
                continue
            price = prices.find(model.name or provider.kind, provider=provider.kind)
            if not price.is_priced or price.input_usd or price.output_usd:
                return True
    return False
