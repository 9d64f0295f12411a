"""Help texts, built from the command table, and suggestions for native commands that somebody is typing.

The list groups commands by subject, a line each, so that it fits a page of IRC. Suggestions are shown to people who may
use the command, never to guests; they come from sources by argument, which the gateway passes in.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from channels.base import CommandCompletion
from gateway.access.policy import AccessDecision, decide
from gateway.commands.parser import InvalidArguments, quote_code
from gateway.commands.table import (
    COMMAND_GROUPS,
    COMMANDS,
    COMMANDS_BY_NAME,
    CommandDefinition,
    SubcommandDefinition,
    format_arg,
)
from gateway.core.events import Command, EventId
from gateway.core.identity import AccessPolicy

MAX_CHOICES: Final = 25
MAX_CHOICE_CHARS: Final = 100
"""https://discord.com/developers/docs/interactions/application-commands#application-command-object-application-command-option-choice-structure"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Any time: access does not depend on it."""

SuggestionSource = Callable[[CommandCompletion], Awaitable[Sequence[str]]]
"""Returns suggestions for an argument, the likeliest first; may be called at every key press."""


class CommandSuggester:
    """A `channels.base.CommandCompleter`."""

    def __init__(self, policy: AccessPolicy, sources: Mapping[str, SuggestionSource]) -> None:
        """`sources`: by `command sub argument`, else `command argument`, else `argument`.

        Choices of the table, and command names, need no source.
        """
        self._policy, self._sources = policy, sources

    async def __call__(self, typed: CommandCompletion) -> Sequence[str]:
        """Return at most 25 suggestions of at most 100 characters. Raises what a source raises."""
        decision, row = self._decide(typed), COMMANDS_BY_NAME.get(typed.name)
        if row is None or not decision.allowed or decision.role == "guest" or not _is_allowed(row, typed, decision):
            return ()
        sub = row.find_sub(typed.sub)
        arg = next((one for one in (sub.args if sub else row.args) if one.name == typed.arg), None)
        if arg is None:
            return ()
        if arg.choices:
            return rank_suggestions(arg.choices, typed.prefix)
        if row.name == "help":
            return rank_suggestions([one.name for one in COMMANDS if _is_allowed(one, typed, decision)], typed.prefix)
        keys = (" ".join(filter(None, (row.name, typed.sub, arg.name))), f"{row.name} {arg.name}", arg.name)
        source = next((self._sources[key] for key in keys if key in self._sources), None)
        return rank_suggestions(await source(typed), typed.prefix) if arg.suggests and source is not None else ()

    def _decide(self, typed: CommandCompletion) -> AccessDecision:
        """Return the access decision, as if the command had been given."""
        command = Command(
            id=EventId("typed"),
            at=typed.at,
            sender=typed.sender,
            name=typed.name,
            args="",
            sent=_EPOCH,
            origin="native",
            direct=typed.direct,
        )
        return decide(self._policy, command)


def rank_suggestions(suggestions: Iterable[str], prefix: str) -> list[str]:
    """Return the suggestions that begin with the given text, then those that contain it."""
    wanted = prefix.casefold().strip()
    usable = [one for one in dict.fromkeys(suggestions) if 0 < len(one) <= MAX_CHOICE_CHARS and one.isprintable()]
    first = [one for one in usable if one.casefold().startswith(wanted)]
    others = [one for one in usable if wanted in one.casefold() and one not in first]
    return [*first, *others][:MAX_CHOICES]


def _is_allowed(row: CommandDefinition, typed: CommandCompletion, decision: AccessDecision) -> bool:
    able = row.is_allowed_for(
        decision.role,
        direct=typed.direct,
        everywhere=decision.global_role,
        sub=row.find_sub(typed.sub) if row.name == typed.name else None,
    )
    return able and not typed.sender.is_bot and (typed.direct or not row.direct_only)


def render_command_list(rows: Sequence[CommandDefinition], prefix: str) -> str:
    """Return the list of these commands."""
    lines = []
    for group in COMMAND_GROUPS:
        names = [f"`{prefix}{row.name}`" for row in rows if row.group == group]
        if names:
            lines.append(f"- {group[0].upper()}{group[1:]}: {', '.join(names)}")
    return "\n".join([*lines, f"`{prefix}help` and one of these tells more of it."])


def render_command(row: CommandDefinition, prefix: str, sub: SubcommandDefinition | None = None) -> str:
    """Return the full help of a command, or of one subcommand."""
    if sub is not None:
        return "\n".join(
            [f"{format_usage(row, prefix, sub)}: {sub.summary}{_format_required_role(row, sub)}", *_format_args(sub)]
        )
    if not row.subs:
        return "\n".join(
            [f"{format_usage(row, prefix)}: {row.summary}{_format_required_role(row)}", *_format_args(row)]
        )
    lines = [f"`{prefix}{row.name}`: {row.summary}{_format_required_role(row)}"]
    for each in row.subs:
        own = _format_required_role(row, each) if each.role not in (None, row.role) else ""
        lines.append(f"- {format_usage(row, prefix, each)}: {each.summary}{own}")
    return "\n".join(lines)


def format_usage(row: CommandDefinition, prefix: str, sub: SubcommandDefinition | None = None) -> str:
    """Return how the command is written, as code."""
    args = row.args if sub is None else sub.args
    words = [f"{prefix}{row.name}", *([sub.name] if sub is not None else []), *map(format_arg, args)]
    return f"`{' '.join(words)}`"


def explain_invalid_arguments(row: CommandDefinition, wrong: InvalidArguments, prefix: str) -> str:
    """Return what is wrong with the arguments, and what would be right."""
    if wrong.sub is not None or not row.subs:
        summary = wrong.sub.summary if wrong.sub is not None else row.summary
        return f"{wrong.reason} Write {format_usage(row, prefix, wrong.sub)}: {summary}"
    if wrong.suggestions:
        meant = " or ".join(f"`{prefix}{row.name} {name}`" for name in wrong.suggestions)
        return f"{wrong.reason} Did you mean {meant}? `{prefix}help {row.name}` tells all it can do."
    return f"{wrong.reason} Write `{prefix}{row.name}` and one of {', '.join(f'`{sub.name}`' for sub in row.subs)}."


def explain_unknown_command(near: Sequence[str], prefix: str) -> str:
    """Return the answer to an unknown command, with the nearest names."""
    meant = " or ".join(f"`{prefix}{one}`" for one in near)
    return f"I do not know that command. {f'Did you mean {meant}? ' if meant else ''}`{prefix}help` lists what I know."


def explain_unknown_sub(row: CommandDefinition, name: str, prefix: str) -> str:
    """Return the answer to an unknown subcommand."""
    return explain_invalid_arguments(
        row, InvalidArguments(reason=f"There is no `{row.name} {quote_code(name)}`."), prefix
    )


def _format_required_role(row: CommandDefinition, sub: SubcommandDefinition | None = None) -> str:
    """Return the required role, as a sentence. Empty: anybody, anywhere."""
    needs = (sub.role if sub is not None else None) or row.role
    sentences = []
    if needs != "guest":
        sentences.append(f"For {needs} and above{' in all places' if row.needs_global_role else ''}")
        if row.allowed_in_own_chat:
            sentences[-1] += ", and for anybody in their own direct chat"
    if row.direct_only:
        sentences.append("Only in a direct chat")
    return "".join(f" {sentence}." for sentence in sentences)


def _format_args(definition: CommandDefinition | SubcommandDefinition) -> Iterator[str]:
    return (f"- `{arg.name}`: {arg.summary}" for arg in definition.args)
