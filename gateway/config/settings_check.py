"""Checks of the configuration, beyond what is needed to read it."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Final

from gateway.config.check_registry import CheckContext, check
from gateway.config.models import Settings
from gateway.config.secrets import PriceTableError, load_price_table
from gateway.config.source import ConfigProblem, format_key
from gateway.config.validation import find_unrunnable
from gateway.core.findings import Finding, bad, ok, run_in_thread, warning

_EXAMPLES: Final = ("who runs this bot, reachable", "-1001234567890", "123456789012345678")
_EXAMPLE_PEOPLE: Final = ("telegram.main:1001", "irc.libera:account:someone")
"""Values of reverie.example.yaml that cannot be the operator's own."""
_REMEDIES: Final = {
    "access.masks": "set access.masks: false, and let people log in to the network's services"
}
"""Remedies of warnings that state only a reason."""
_OPEN_FIX: Final = "make it readable for the user that runs this command: chown, chmod 600"
_CONFIG_SUFFIXES: Final = (".yaml", ".yml", ".json", ".toml", ".ini", ".conf")
_IGNORED_SUFFIXES: Final = frozenset(
    {".pem", ".crt", ".key", ".md", ".txt", ".db", ".sql", ".sh", ".service"}
)
"""Suffixes of files that people keep beside a configuration without mistaking them for one."""


def judge_problems(problems: Iterable[ConfigProblem]) -> list[Finding]:
    """Return findings for the problems that prevent the configuration from being used.

    Most messages have their remedy behind a semicolon.
    """
    found = []
    for one in problems:
        what, _, fix = one.message.partition("; ")
        closed = what.startswith("cannot be read")
        fix = fix or (
            _OPEN_FIX
            if closed
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
        elif one.key.startswith(("tools.mcp.", "channels.")) and one.key.endswith(
            (".command", ".tls")
        ):
            continue  # the check of that server has more to say
        elif one.key.startswith("agents[") and one.key.endswith(".files"):
            code, fix = "files.given_away", fix or "name a directory of its own"
        else:
            code = "open.identity" if one.key.startswith("access.") else "config.unwise"
            fix = _REMEDIES.get(one.key) or fix or "give the role to an account instead"
        yield warning(code, what, fix, _format_location(one))


def _find_unread_files(names: Iterable[str], read: Collection[str]) -> Iterator[Finding]:
    """Find files that look like configuration but are not read. `read`: files that are read, or
    referred to.
    """
    for name in sorted(names):
        path = PurePath(name)
        is_known = name in read or path.suffix.lower() in _IGNORED_SUFFIXES
        if is_known or name.startswith(".") or path.stem.endswith(".example"):
            continue
        if any(word in name.lower() for word in _CONFIG_SUFFIXES):
            fix = (
                "rename it to NAME.yaml if it should be read, else move it elsewhere: it may "
                "hold secrets"
            )
            yield warning(
                "config.unread", "this file is not read: only *.yaml and *.yml files are", fix, name
            )


def _find_example_values(settings: Settings) -> Iterator[Finding]:
    for role, people_of in settings.access.roles:
        copied = [one for one in people_of if one in _EXAMPLE_PEOPLE]
        if copied:
            what = f"{', '.join(copied)} comes from the example: whoever has that id is {role} here"
            fix = "write your own ids instead: the bot shows yours when you write !whoami to it"
            yield warning("config.example", what, fix, f"access.roles.{role}")
    for name, channel in settings.channels.items():
        rooms = channel.rooms
        values = [
            *rooms,
            *([channel.contact] if channel.platform == "irc" and channel.contact else []),
        ]
        copied = [value for value in values if value in _EXAMPLES]
        if copied:
            what = f"{', '.join(copied)} comes from the example and must be replaced"
            yield warning(
                "config.example",
                what,
                "write your own value instead, or remove the line",
                f"channels.{name}",
            )


def _judge_channels(settings: Settings) -> Iterator[Finding]:
    for keys, why in find_unrunnable(settings):
        what, _, fix = why.partition("; ")
        yield bad("config.channel", what, fix, format_key(keys))


def _find_unbound_channels(settings: Settings) -> Iterator[Finding]:
    globs = [
        one.match.channel
        for agent in settings.agents
        for one in agent.bindings
        if one.listen != "off"
    ]
    for name in settings.channels:
        if not any(fnmatchcase(name, glob) for glob in globs):
            fix = (
                "add a binding that matches it to an agent (agents[].bindings), or remove the "
                "channel"
            )
            what = "no agent reads this channel: no binding matches it"
            yield warning("config.unheard", what, fix, f"channels.{name}")


def _format_location(problem: ConfigProblem) -> str:
    file = PurePath(problem.file).name if problem.file else ""
    at = f"{file}:{problem.line}" if problem.line else file
    return " ".join(part for part in (at, problem.key) if part)


@check("configuration")
async def check_configuration(context: CheckContext) -> Sequence[Finding]:
    """Check for settings that are unwise, files that are not read, and values from the example."""
    settings, directory = context.settings, context.environment.directory
    found = [
        *_judge_warnings(context.config.warnings),
        *_judge_channels(settings),
        *_find_unbound_channels(settings),
        *_find_example_values(settings),
    ]
    names = await run_in_thread(
        lambda: [path.name for path in directory.iterdir() if path.is_file()]
    )
    referred = {
        path.name
        for path in context.config.referenced_files
        if path.parent.resolve() == directory.resolve()
    }
    read = {name for name in names if name.endswith((".yaml", ".yml"))}
    found += _find_unread_files(names, read | referred)
    agents, channels = len(settings.agents), len(settings.channels)
    summary = (
        f"{channels} channel{'s' * (channels != 1)} and {agents} agent{'s' * (agents != 1)} "
        "are configured"
    )
    return [ok("config.read", summary, str(directory)), *found]


@check("price table")
def check_prices(context: CheckContext) -> Iterator[Finding]:
    """Check whether the price table can be read."""
    try:
        load_price_table(context.environment.directory)
    except PriceTableError as error:
        fix = "correct it, or remove it to use the table that comes with the program"
        yield bad("config.prices", str(error).partition("; correct it")[0], fix, "prices.yaml")
