"""Help texts, built from rows of the command table. The list has a line for each subject: it fits a page of IRC."""

from collections.abc import Iterator, Sequence

from gateway.commands.definition import COMMAND_GROUPS, CommandDefinition, SubcommandDefinition, format_arg
from gateway.commands.parser import InvalidArguments, quote_code


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
