"""Checks of the configuration, beyond what is needed to read it."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Final

from gateway.config.check_registry import CheckContext, check
from gateway.config.models import Settings
from gateway.config.secrets import PriceTableError, load_price_table
from gateway.config.source import ConfigProblem, format_key
from gateway.config.validation import find_unrunnable
from gateway.core.findings import Finding, bad, ok, warning

_EXAMPLE_PEOPLE: Final = ("telegram.main:1001", "irc.libera:account:someone")
_IDENTITY_KEYS: Final = ("access.masks", "access.roles", "access.grants", "access.platform_roles")
_OPEN_FIX: Final = "make it readable for the user that runs this command: chown, chmod 600"


def judge_problems(problems: Iterable[ConfigProblem]) -> list[Finding]:
    """Return findings for the problems that prevent the configuration from being used.

    Most messages have their remedy behind a semicolon.
    """
    found = []
    for one in problems:
        what, _, fix = one.message.partition("; ")
        fix = fix or (
            _OPEN_FIX
            if what.startswith("cannot be read")
            else "correct it there; `reverie check-config` checks only the configuration"
        )
        found.append(bad("config.invalid", what, fix, _format_location(one)))
    return found


def _judge_warnings(warnings: Iterable[ConfigProblem]) -> Iterator[Finding]:
    """Return findings for settings that work but permit more than is meant.

    Each message has its remedy behind a semicolon.
    """
    for one in warnings:
        what, _, fix = one.message.partition("; ")
        if not one.key:
            code = "files.secret_readable"
            fix = f"chmod 600 {shlex.quote(one.file)}" + (
                ", or write ${NAME} instead of the secret" if one.line else ""
            )
        elif one.key.startswith("tools.mcp.") and one.key.endswith(".command"):
            continue  # the check of that server has more to say
        elif one.key.startswith("agents[") and one.key.endswith(".files"):
            code, fix = "files.given_away", fix or "name a directory of its own"
        else:
            lets_in = one.key.startswith(_IDENTITY_KEYS) and not what.startswith("nobody")
            code = "open.identity" if lets_in else "config.unwise"
            fix = fix or "give the role to an account instead"
        yield warning(code, what, fix, _format_location(one))


def _find_example_values(settings: Settings) -> Iterator[Finding]:
    for role, people_of in settings.access.roles:
        if copied := [one for one in people_of if one in _EXAMPLE_PEOPLE]:
            what = f"{', '.join(copied)} comes from the example: whoever has that id is {role} here"
            fix = "write your own ids instead: the bot shows yours when you write !whoami to it"
            yield warning("config.example", what, fix, f"access.roles.{role}")


def _judge_channels(settings: Settings) -> Iterator[Finding]:
    for keys, why in find_unrunnable(settings):
        what, _, fix = why.partition("; ")
        yield bad("config.channel", what, fix, format_key(keys))


def _format_location(problem: ConfigProblem) -> str:
    file = PurePath(problem.file).name if problem.file else ""
    at = f"{file}:{problem.line}" if problem.line else file
    return " ".join(part for part in (at, problem.key) if part)


@check("configuration")
def check_configuration(context: CheckContext) -> Iterator[Finding]:
    """Check for settings that are unwise, and values from the example."""
    settings, directory = context.settings, context.environment.directory
    agents, channels = len(settings.agents), len(settings.channels)
    summary = (
        f"{channels} channel{'s' * (channels != 1)} and {agents} agent{'s' * (agents != 1)} "
        "are configured"
    )
    yield ok("config.read", summary, str(directory))
    yield from _judge_warnings(context.config.warnings)
    yield from _judge_channels(settings)
    yield from _find_example_values(settings)


@check("price table")
def check_prices(context: CheckContext) -> Iterator[Finding]:
    """Check whether the price table can be read."""
    try:
        load_price_table(context.environment.directory)
    except PriceTableError as error:
        fix = "correct it, or remove it to use the table that comes with the program"
        yield bad("config.prices", str(error).partition("; correct it")[0], fix, "prices.yaml")
