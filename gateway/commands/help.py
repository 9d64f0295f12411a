"""Help texts, built from rows of the command table.

The list has a line for each command. Where long answers have pages (IRC), it is one line with all
names.
"""

from collections.abc import Sequence

from gateway.commands.definition import COMMAND_GROUPS, CommandDefinition, format_arg
from gateway.commands.parser import InvalidArguments, join_or
from gateway.core.i18n import _


def render_command_list(
    rows: Sequence[CommandDefinition], prefix: str, *, brief: bool = False
) -> str:
    """Return the list of these commands. `brief`: their names alone, in one line."""
    names = " ".join(f"{prefix}{row.name}" for row in rows)
    lines = [_("Commands: {names}").format(names=names)] if brief else []
    for group in () if brief else COMMAND_GROUPS:
        shown = [f"- `{prefix}{row.name}`: {_(row.summary)}" for row in rows if row.group == group]
        title = _(group)
        lines += [f"**{title[0].upper()}{title[1:]}**", *shown] if shown else []
    word = _("command")
    return "\n".join(
        [*lines, _("`{help}` shows how to use one command.").format(help=f"{prefix}help <{word}>")]
    )


def render_command(
    row: CommandDefinition, prefix: str, sub: CommandDefinition | None = None
) -> str:
    """Return the full help of a command, or of one subcommand."""
    one = sub or row
    if not one.subs:
        lines = [f"{format_usage(row, prefix, sub)}: {_(one.summary)}{_format_required_role(row)}"]
        lines += [f"- `{arg.name}`: {_(arg.summary)}" for arg in one.args]
        if one.example:
            example = f"{prefix}{one.example.removeprefix('!')}"
            lines.append(_("Example: `{example}`").format(example=example))
        return "\n".join(lines)
    lines = [f"`{prefix}{row.name}`: {_(row.summary)}{_format_required_role(row)}"]
    return "\n".join(
        [*lines, *(f"- {format_usage(row, prefix, each)}: {_(each.summary)}" for each in row.subs)]
    )


def format_usage(row: CommandDefinition, prefix: str, sub: CommandDefinition | None = None) -> str:
    """Return how the command is written, as code."""
    words = [
        f"{prefix}{row.name}",
        *([sub.name] if sub is not None else []),
        *map(format_arg, (sub or row).args),
    ]
    return f"`{' '.join(words)}`"


def explain_invalid_arguments(row: CommandDefinition, wrong: InvalidArguments, prefix: str) -> str:
    """Return what is wrong with the arguments, and what would be right."""
    if wrong.sub is not None or not row.subs:
        summary = _((wrong.sub or row).summary)
        write = _("Write {usage}: {summary}").format(
            usage=format_usage(row, prefix, wrong.sub), summary=summary
        )
    elif wrong.suggestions:
        meant = join_or([f"`{prefix}{row.name} {name}`" for name in wrong.suggestions])
        write = _("Did you mean {names}? `{help}` shows all subcommands.").format(
            names=meant, help=f"{prefix}help {row.name}"
        )
    else:
        names = join_or([f"`{sub.name}`" for sub in row.subs])
        write = _("Write `{command}` and one of {names}.").format(
            command=f"{prefix}{row.name}", names=names
        )
    return f"{wrong.reason} {write}"


def explain_unknown_command(near: Sequence[str], prefix: str) -> str:
    """Return the answer to an unknown command, with the nearest names."""
    sentences = [_("I do not know that command.")]
    if near:
        sentences.append(
            _("Did you mean {names}?").format(names=join_or([f"`{prefix}{one}`" for one in near]))
        )
    return " ".join([*sentences, _("`{help}` lists all commands.").format(help=f"{prefix}help")])


def _format_required_role(row: CommandDefinition) -> str:
    sentences = []
    if row.role != "guest":
        if row.needs_global_role:
            text = _("For {role} and above in all places.")
        elif row.allowed_in_own_chat:
            text = _("For {role} and above, and for anybody in their own direct chat.")
        else:
            text = _("For {role} and above.")
        sentences.append(text.format(role=row.role))
    if row.direct_only:
        sentences.append(_("Only in a direct chat."))
    return "".join(f" {sentence}" for sentence in sentences)
