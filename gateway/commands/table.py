"""The command table: all commands, as their modules declare them.

It is the one source for rooms, help, native slash commands and menus, for `reverie ctl`, the API
and the dashboard.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from channels.base import CommandArg, CommandSpec, SubcommandSpec
from gateway.commands import agent, files, info, journal, notifications, people, records, rooms  # noqa: F401 - they declare commands
from gateway.commands.definition import CommandDefinition, declared_commands
from gateway.core.i18n import _, use_language

COMMANDS_BY_NAME: Final[dict[str, CommandDefinition]] = declared_commands(operator=False)
"""What people can be allowed to use in a chat, by every name and alias."""

COMMANDS: Final[tuple[CommandDefinition, ...]] = tuple(dict.fromkeys(COMMANDS_BY_NAME.values()))
"""The same, without aliases."""

OPERATOR_COMMANDS: Final[dict[str, CommandDefinition]] = declared_commands(operator=True)
"""What the operator can use from the shell and through the API: the same, and what only the
operator may do."""


def localize_specs(language: str) -> tuple[CommandSpec, ...]:
    """Return the specifications for the channels in this language (a tag; without a catalog:
    English).

    Names of commands, arguments and choices are the same in all languages.
    `gateway.core.i18n.languages` lists the catalogs.
    """
    with use_language(language):
        return tuple(
            CommandSpec(
                name=row.name,
                summary=_(row.summary),
                args=_localize_args(row.args),
                subs=tuple(
                    SubcommandSpec(
                        name=sub.name, summary=_(sub.summary), args=_localize_args(sub.args)
                    )
                    for sub in row.subs
                ),
                private=row.private,
                role=row.role,
                direct_only=row.direct_only,
                own=row.allowed_in_own_chat,
            )
            for row in COMMANDS
        )


def _localize_args(args: Sequence[CommandArg]) -> tuple[CommandArg, ...]:
    return tuple(replace(arg, summary=_(arg.summary)) for arg in args)


COMMAND_SPECS: Final = localize_specs("en")
"""Specifications for the channels."""
