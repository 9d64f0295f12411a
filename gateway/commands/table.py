"""The command table: all commands of a gateway, as the modules of this package and the plugins in
use declare them.

It is the one source for rooms, help, native slash commands and menus, for `reverie ctl`, the API
and the dashboard.

The arguments of a command of a plugin are the parameters of its method after `call`: `str`, `int`
(a whole number) or a `Literal` of texts (choices). One with a default, or that may be None, can be
left out. A parameter that is keyword-only takes the rest of the line. `Annotated` adds a text (the
summary), pydantic's `Field(le=N)` (the largest number, from 1 on) or `Field(repr=False)` (a
secret), and a method
`async (self, typed: CommandCompletion) -> Sequence[str]` that suggests values.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from inspect import Parameter, signature
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from channels.base import CommandArg, CommandCompletion, CommandSpec, SubcommandSpec
from gateway.commands import agent, info, model, notifications, people, rooms
from gateway.commands.context import CommandCall, CommandContext
from gateway.commands.definition import (
    COMMAND_GROUPS,
    CommandDefinition,
    SuggestionSource,
    declared_commands,
    make_arg,
)
from gateway.core.frozen import frozen
from gateway.plugin import Plugin
from gateway.store.effects import CommandEffect, done

_MODULES: Final = agent, model, info, notifications, people, rooms
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
MAX_SUMMARY_CHARS: Final = 100
MAX_ARGS: Final = 25
"""https://discord.com/developers/docs/interactions/application-commands"""


class UnusableCommand(Exception):
    """A declared command does not fit its rules, or the other commands. The text says why."""


@frozen
class CommandTable:
    """All commands of a gateway. See `build_table`."""

    people: Mapping[str, CommandDefinition]
    """What people can be allowed to use in a chat, by every name and alias."""
    operator: Mapping[str, CommandDefinition]
    """What the operator can use from the shell and through the API: the same, and what only the
    operator may do."""

    @property
    def rows(self) -> tuple[CommandDefinition, ...]:
        """The commands of people by subject, without aliases."""
        return tuple(dict.fromkeys(self.people.values()))

    def specs(self) -> tuple[CommandSpec, ...]:
        """Return the specifications for the channels, in English: these translate the summaries
        (`gateway.core.i18n`). Names of commands, arguments and choices are the same everywhere.
        """
        return tuple(
            CommandSpec(
                name=row.name,
                summary=row.summary,
                args=row.args,
                subs=tuple(
                    SubcommandSpec(
                        name=sub.name, summary=sub.summary, args=sub.args, private=sub.private
                    )
                    for sub in row.subs
                ),
                private=row.private,
                role=row.role,
                direct_only=row.direct_only,
                own=row.allowed_in_own_chat,
                aliases=row.aliases,
            )
            for row in self.rows
        )


@cache
def build_table(plugins: tuple[type[Plugin], ...]) -> CommandTable:
    """Return all commands: the built-in ones, and those of these plugins, in their order. Raises
    UnusableCommand.
    """
    declared = [one for module in _MODULES for one in declared_commands(module)]
    declared += [
        _bind_command(one, plugin) for plugin in plugins for one in declared_commands(plugin)
    ]
    widened = {one.name for one in declared if one.operator}
    return CommandTable(
        people=_arrange(one for one in declared if not one.operator),
        operator=_arrange(one for one in declared if one.operator or one.name not in widened),
    )


def _arrange(declared: Iterable[CommandDefinition]) -> dict[str, CommandDefinition]:
    """Return commands with their subcommands, by every name and alias, in the order of help."""
    rows = dict[str, CommandDefinition]()
    for one in sorted(declared, key=lambda one: " " in one.name):
        name, __, sub = one.name.partition(" ")
        row = rows.get(name)
        if not sub:
            if row is not None:
                raise UnusableCommand(f"there is a command {name} already")
            rows[name] = one
        elif row is None or row.plugin not in ("", one.plugin) or row.find_sub(sub) is not None:
            why = "its command is of another plugin, or is not there, or has it already"
            raise UnusableCommand(f"the subcommand {one.name} cannot be added: {why}")
        else:
            kept = {
                "name": sub,
                "subs": (),
                "needs_gateway": row.needs_gateway or one.needs_gateway,
                "needs_global_role": row.needs_global_role or one.needs_global_role,
                **{
                    key: getattr(one, key)
                    for key in ("summary", "args", "example", "handler", "private")
                },
                "plugin": one.plugin,
            }
            rows[name] = replace(row, subs=(*row.subs, replace(row, **kept)))
    found = dict[str, CommandDefinition]()
    for row in sorted(rows.values(), key=lambda row: COMMAND_GROUPS.index(row.group)):
        for name in (row.name, *row.aliases):
            if found.setdefault(name, row) is not row:
                raise UnusableCommand(f"{name} is the name of two commands")
    return found


def _bind_command(one: CommandDefinition, plugin: type[Plugin]) -> CommandDefinition:
    """Return a command of a plugin with the arguments of its method, called on the plugin of the
    gateway. Raises UnusableCommand.
    """
    if not all(map(_NAME.fullmatch, (*one.name.split(" ", 1), *one.aliases))):
        raise UnusableCommand(f"{one.name!r} is no name of a command")
    method: Any = one.handler
    args = _read_arguments(method, plugin) if method is not None else ()
    for text in (one.summary, *(arg.summary for arg in args)):
        if not (0 < len(text) <= MAX_SUMMARY_CHARS and text.isprintable()):
            raise UnusableCommand(f"{one.name}: {text!r} is not one line of 1 to 100 characters")
    if sorted(args, key=lambda arg: not arg.required) != list(args) or len(args) > MAX_ARGS:
        raise UnusableCommand(f"{one.name}: arguments that must be given come first, 25 in all")
    if method is None:
        return replace(one, plugin=plugin.name)

    async def handle(call: CommandCall, context: CommandContext) -> CommandEffect:
        given = {arg.name: call.arguments.get(arg.name) for arg in args}
        answer = await method(
            _find_plugin(plugin, context),
            call,
            **{
                arg.name: int(value) if value and arg.number else value
                for arg in args
                if (value := given[arg.name]) is not None or arg.name not in defaults
            },
        )
        if not isinstance(answer, str | CommandEffect):
            raise TypeError(
                f"it returns {type(answer).__name__}, neither a text nor a CommandEffect"
            )
        return done(answer) if isinstance(answer, str) else answer

    defaults = {
        one.name for one in signature(method).parameters.values() if one.default is not one.empty
    }
    return replace(one, plugin=plugin.name, args=args, handler=handle)


def _find_plugin(plugin: type[Plugin], context: CommandContext) -> Plugin:
    found = context.plugins.get(plugin)
    if found is None:
        raise LookupError(f"the plugin {plugin.name} could not be built")
    return found


def _read_arguments(method: Callable[..., object], plugin: type[Plugin]) -> tuple[CommandArg, ...]:
    parameters = list(signature(method).parameters.values())[2:]
    annotated = SimpleNamespace(__annotations__={one.name: one.annotation for one in parameters})
    hints = get_type_hints(
        annotated, getattr(method, "__globals__", {}), dict(vars(plugin)), include_extras=True
    )
    if any(one.kind is one.KEYWORD_ONLY for one in parameters[:-1]):
        raise UnusableCommand("only the last argument of a command may be keyword-only")
    return tuple(_read_argument(one, hints[one.name], plugin) for one in parameters)


def _read_argument(parameter: Parameter, hint: object, plugin: type[Plugin]) -> CommandArg:
    summary, most, secret = parameter.name, 0, False
    suggests: SuggestionSource | None = None
    kind, is_optional = _strip_none(hint)
    if get_origin(kind) is Annotated:
        kind, *extras = get_args(kind)
        kind, is_optional = _strip_none(kind) if not is_optional else (kind, True)
        for extra in extras:
            if isinstance(extra, str):
                summary = extra
            elif isinstance(extra, FieldInfo):
                most = next((one.le for one in extra.metadata if hasattr(one, "le")), most)
                secret = secret or not extra.repr
            elif callable(extra):
                suggests = _bind_suggestions(extra, plugin)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if kind not in (str, int) and not (choices and all(isinstance(one, str) for one in choices)):
        raise UnusableCommand(f"the argument {parameter.name} is no str, int or Literal of texts")
    return make_arg(
        parameter.name,
        summary,
        *choices,
        number=kind is int,
        most=most,
        needed=parameter.default is parameter.empty and not is_optional,
        rest=parameter.kind is parameter.KEYWORD_ONLY,
        suggests=suggests,
        secret=secret,
    )


def _strip_none(hint: object) -> tuple[object, bool]:
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    others = [one for one in members if one is not NoneType]
    return (others[0], True) if len(others) == 1 else (hint, False)


def _bind_suggestions(method: Any, plugin: type[Plugin]) -> SuggestionSource:  # noqa: ANN401 - a method of the plugin
    async def suggest(typed: CommandCompletion, context: CommandContext) -> Sequence[str]:
        found: Sequence[str] = await method(_find_plugin(plugin, context), typed)
        return found

    return suggest
