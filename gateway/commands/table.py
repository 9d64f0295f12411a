"""The command table: all commands, each with its handler.

It is the one source for rooms, help, native slash commands and menus, for `reverie ctl`, the API and the dashboard.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from channels.base import CommandArg, CommandSpec, SubcommandSpec
from gateway.commands import agent, files, info, journal, notifications, people, rooms
from gateway.commands.definition import CommandDefinition
from gateway.core.i18n import _, use_language

COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    *info.COMMANDS,
    *people.COMMANDS,
    *agent.COMMANDS,
    *journal.COMMANDS,
    *files.COMMANDS,
    *rooms.COMMANDS,
    *notifications.COMMANDS,
)
"""What people can be allowed to use in a chat."""

COMMANDS_BY_NAME: Final[dict[str, CommandDefinition]] = {
    name: row for row in COMMANDS for name in (row.name, *row.aliases)
}
"""Commands by every name and alias."""

OPERATOR_COMMANDS: Final[dict[str, CommandDefinition]] = COMMANDS_BY_NAME | {
    name: row
    for row in (
        *people.OPERATOR_COMMANDS,
        *agent.OPERATOR_COMMANDS,
        *journal.OPERATOR_COMMANDS,
        *notifications.OPERATOR_COMMANDS,
    )
    for name in (row.name, *row.aliases)
}
"""What the operator can use from the shell and through the API: the same, and what only the operator may do."""


def localize_specs(language: str) -> tuple[CommandSpec, ...]:
    """Return the specifications for the channels in this language (a tag; without a catalog: English).

    Names of commands, arguments and choices are the same in all languages. `gateway.core.i18n.languages` lists the
    catalogs.
    """
    with use_language(language):
        return tuple(
            CommandSpec(
                name=row.name,
                summary=_(row.summary),
                args=_localize_args(row.args),
                subs=tuple(
                    SubcommandSpec(name=sub.name, summary=_(sub.summary), args=_localize_args(sub.args))
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
