"""What is wrong and what is unwise in the configuration. Pure.

Looks at the configuration beyond what it takes to read it.
"""

import shlex
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Final

from agent.models.config import fallback_chain
from gateway.cli.doctor.base import DoctorContext, run_in_thread
from gateway.cli.doctor.models import price_table_finding
from gateway.cli.doctor.store import open_reader
from gateway.cli.probes.base import Finding
from gateway.config.models import Settings
from gateway.config.secrets import PriceTableError, load_price_table
from gateway.config.source import ConfigProblem
from gateway.core.facts import RoleAssigned
from gateway.store import StoreError

_EXAMPLES: Final = ("who runs this bot, reachable", "-1001234567890", "123456789012345678")
_EXAMPLE_PEOPLE: Final = ("telegram.main:1001", "irc.libera:account:someone")
"""Values of reverie.example.yaml. Whoever the people are, they are not the operator."""
_REMEDIES: Final = {"access.masks": "set access.masks: false, and have people log in to the network's services"}
"""Where a warning says why, and not what to do."""
_OPEN_FIX: Final = "make it readable for the user that runs this: chown, chmod 600"
_CONFIG_SUFFIXES: Final = (".yaml", ".yml", ".json", ".toml", ".ini", ".conf")
_IGNORED_SUFFIXES: Final = frozenset({".pem", ".crt", ".key", ".md", ".txt", ".db", ".sql", ".sh", ".service"})
"""Files that people keep beside a configuration and that nobody takes for one."""


def missing_config(problem: ConfigProblem) -> Finding:
    """There is nothing to examine."""
    return Finding(
        code="config.none",
        level="bad",
        what=problem.message,
        fix="run `reverie setup`, or name the right directory with --config",
        where=problem.file,
    )


def judge_problems(problems: Iterable[ConfigProblem]) -> list[Finding]:
    """What keeps the configuration from being used. The remedy stands behind the semicolon of most."""
    found = []
    for one in problems:
        what, _, fix = one.message.partition("; ")
        closed = what.startswith("cannot be read")
        fix = fix or (_OPEN_FIX if closed else "mend it there; `reverie check-config` looks at the configuration alone")
        found.append(Finding(code="config.invalid", level="bad", what=what, fix=fix, where=_format_location(one)))
    return found


def judge_warnings(warnings: Iterable[ConfigProblem]) -> Iterator[Finding]:
    """What works and lets more happen than is meant. The remedy stands behind the semicolon of each warning."""
    for one in warnings:
        what, _, fix = one.message.partition("; ")
        if not one.key:
            code = "files.secret_readable"
            fix = f"chmod 600 {shlex.quote(one.file)}" + (
                ", or write ${NAME} in place of the secret" if one.line else ""
            )
        elif one.key.startswith("agents[") and one.key.endswith(".files"):
            code, fix = "files.given_away", fix or "name a directory of its own"
        else:
            code, fix = "config.unwise", _REMEDIES.get(one.key) or fix or "see the README about access"
        yield Finding(code=code, level="warning", what=what, fix=fix, where=_format_location(one))


def find_unread_files(names: Iterable[str], read: Collection[str]) -> Iterator[Finding]:
    """Files of the directory that look as if they counted, and do not. `read`: those that do, or are referred to."""
    for name in sorted(names):
        path = PurePath(name)
        if (
            name in read
            or name.startswith(".")
            or path.stem.endswith(".example")
            or path.suffix.lower() in _IGNORED_SUFFIXES
        ):
            continue
        if not any(word in name.lower() for word in _CONFIG_SUFFIXES):
            continue
        yield Finding(
            code="config.unread",
            level="warning",
            what="this file is not read: only *.yaml and *.yml are",
            fix="rename it to NAME.yaml if it should count, else move it elsewhere: it may hold secrets",
            where=name,
        )


def find_example_values(settings: Settings) -> Iterator[Finding]:
    """Values of the example that nobody replaced."""
    for role, people_of in settings.access.roles:
        copied = [one for one in people_of if one in _EXAMPLE_PEOPLE]
        if copied:
            yield Finding(
                code="config.example",
                level="warning",
                what=f"{', '.join(copied)} is from the example: whoever has that id is {role} here",
                fix="write your own ids in its place: the bot tells yours when you say !whoami to it",
                where=f"access.roles.{role}",
            )
    for name, channel in settings.channels.items():
        rooms = channel.rooms
        said = [*rooms, *([channel.contact] if channel.platform == "irc" and channel.contact else [])]
        copied = [value for value in said if value in _EXAMPLES]
        if copied:
            yield Finding(
                code="config.example",
                level="warning",
                what=f"{', '.join(copied)} is from the example, and stands for something of yours",
                fix="write your own in its place, or take the line out",
                where=f"channels.{name}",
            )


def judge_owners(settings: Settings, *, paired_owners: int, costs: bool) -> Iterator[Finding]:
    """Who may do what. `paired_owners`: how many were made owners while the gateway ran. `costs`: answers do."""
    access = settings.access
    if not access.roles.owner and not paired_owners and not any(one.role == "owner" for one in access.grants):
        yield Finding(
            code="config.owner",
            level="warning",
            what="nobody is an owner: nobody can approve, administer, or be told of trouble",
            fix="write yourself under access.roles.owner, or `reverie pair seed CHANNEL:ID --role owner --config DIR`",
            where="access.roles.owner",
        )
    if access.dm == "open" and access.budgets.sender_usd is None and costs:
        yield Finding(
            code="config.open_dm",
            level="warning",
            what="anybody may write to the agent, and nothing bounds what that costs",
            fix="leave access.budgets.sender_usd at its default, or set access.dm: pairing",
            where="access.dm",
        )


def judge_channels(settings: Settings) -> Iterator[Finding]:
    """Channels that this version cannot run, and none at all."""
    for name, channel in settings.channels.items():
        if channel.platform == "console":
            yield Finding(
                code="config.channel",
                level="bad",
                what="a console is no channel that can be configured",
                fix="take it out; `reverie console` is there without it",
                where=f"channels.{name}",
            )
    if not settings.channels:
        yield Finding(
            code="config.channel",
            level="bad",
            what="no channels are configured: there is nowhere to talk",
            fix="add one under channels, or run `reverie setup`",
            where="channels",
        )


def find_unbound_channels(settings: Settings) -> Iterator[Finding]:
    """Channels that no binding of any agent listens to."""
    globs = [one.match.channel for agent in settings.agents for one in agent.bindings if one.listen != "off"]
    for name in settings.channels:
        if not any(fnmatchcase(name, glob) for glob in globs):
            yield Finding(
                code="config.unheard",
                level="warning",
                what="no agent listens here: no binding matches this channel",
                fix="add a binding that matches it to an agent (agents[].bindings), or remove the channel",
                where=f"channels.{name}",
            )


def _format_location(problem: ConfigProblem) -> str:
    file = PurePath(problem.file).name if problem.file else ""
    at = f"{file}:{problem.line}" if problem.line else file
    return " ".join(part for part in (at, problem.key) if part)


async def check_configuration(subject: DoctorContext) -> Sequence[Finding]:
    """What is unwise, unread, or left as it was in the example."""
    settings, directory = subject.settings, subject.environment.directory
    found = [
        *judge_warnings(subject.config.warnings),
        *judge_channels(settings),
        *find_unbound_channels(settings),
    ]
    found += find_example_values(settings)
    names = await run_in_thread(lambda: _list_files(directory))
    referred = {path.name for path in subject.config.referenced_files if path.parent.resolve() == directory.resolve()}
    read = {name for name in names if name.endswith((".yaml", ".yml"))}
    found += find_unread_files(names, read | referred)
    owners = await _count_paired_owners(settings.store.path, alive=subject.gateway_state.is_alive)
    found += judge_owners(settings, paired_owners=owners, costs=_costs_money(subject))
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
