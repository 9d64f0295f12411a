"""The command table as Discord is told of it. Pure.

https://discord.com/developers/docs/interactions/application-commands
"""

from collections.abc import Sequence

from channels.base import CommandArg, CommandSpec
from channels.payload import Json, get_bool, get_int, get_objects, get_str

_CHAT_INPUT, _SUB, _STRING = 1, 1, 3
_WITH_US = 1
_IN_GUILDS_AND_WITH_US = [0, _WITH_US]
"""Interaction contexts: not in chats between other people, where we are not."""
_MAX_SUMMARY_CHARS = 100


def build_command_table(specs: Sequence[CommandSpec]) -> list[dict[str, object]]:
    """What to overwrite the global commands with."""
    return [_command_row(spec) for spec in specs]


def _command_row(spec: CommandSpec) -> dict[str, object]:
    subs = [_base_row(_SUB, sub.name, sub.summary) | {"options": _option_rows(sub.args)} for sub in spec.subs]
    return _base_row(_CHAT_INPUT, spec.name, spec.summary) | {
        "options": subs or _option_rows(spec.args),
        "contexts": [_WITH_US] if spec.direct_only else list(_IN_GUILDS_AND_WITH_US),
    }


def _option_rows(args: Sequence[CommandArg]) -> list[dict[str, object]]:
    return [_option_row(arg) for arg in args]


def _option_row(arg: CommandArg) -> dict[str, object]:
    made = _base_row(_STRING, arg.name, arg.summary) | {"required": arg.required}
    if arg.choices:
        return made | {"choices": [{"name": choice, "value": choice} for choice in arg.choices]}
    return made | {"autocomplete": True} if arg.suggests else made


def _base_row(kind: int, name: str, summary: str) -> dict[str, object]:
    return {"type": kind, "name": name, "description": summary[:_MAX_SUMMARY_CHARS] or name}


def is_same_table(known: object, wanted: Sequence[Json]) -> bool:
    """Whether Discord has that table already."""
    return isinstance(known, list) and _normalized_rows(known) == _normalized_rows(wanted)


def _normalized_rows(rows: Sequence[object]) -> list[tuple[object, ...]]:
    return sorted(
        (get_str(row, "name"), get_int(row, "type") or _CHAT_INPUT, _contexts(row), _normalized_row(row))
        for row in rows
    )


def _normalized_row(row: object) -> tuple[object, ...]:
    """Of a command or an option, with all that is in it; what Discord leaves out is what it takes for granted."""
    return (
        get_int(row, "type") or _CHAT_INPUT,
        get_str(row, "name"),
        get_str(row, "description"),
        get_bool(row, "required"),
        get_bool(row, "autocomplete"),
        tuple((get_str(choice, "name"), get_str(choice, "value")) for choice in get_objects(row, "choices")),
        tuple(_normalized_row(option) for option in get_objects(row, "options")),
    )


def _contexts(row: object) -> tuple[int, ...]:
    value = row.get("contexts") if isinstance(row, dict) else None
    return tuple(sorted(n for n in value if isinstance(n, int))) if isinstance(value, list) else ()
