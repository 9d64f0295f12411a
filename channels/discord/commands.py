"""The command table as Discord is told of it. Pure.

https://discord.com/developers/docs/interactions/application-commands
"""

from collections.abc import Sequence

from channels.base import CommandArg, CommandSpec
from channels.payload import Json, flag, objs, string, whole

_CHAT_INPUT, _SUB, _STRING = 1, 1, 3
_WITH_US = 1
_IN_GUILDS_AND_WITH_US = [0, _WITH_US]
"""Interaction contexts: not in chats between other people, where we are not."""
_SUMMARY_CHARACTERS = 100


def table(specs: Sequence[CommandSpec]) -> list[dict[str, object]]:
    """What to overwrite the global commands with."""
    return [_row(spec) for spec in specs]


def _row(spec: CommandSpec) -> dict[str, object]:
    subs = [_named(_SUB, sub.name, sub.summary) | {"options": _options(sub.args)} for sub in spec.subs]
    return _named(_CHAT_INPUT, spec.name, spec.summary) | {
        "options": subs or _options(spec.args),
        "contexts": [_WITH_US] if spec.direct_only else list(_IN_GUILDS_AND_WITH_US),
    }


def _options(args: Sequence[CommandArg]) -> list[dict[str, object]]:
    return [_option(arg) for arg in args]


def _option(arg: CommandArg) -> dict[str, object]:
    made = _named(_STRING, arg.name, arg.summary) | {"required": arg.required}
    if arg.choices:
        return made | {"choices": [{"name": choice, "value": choice} for choice in arg.choices]}
    return made | {"autocomplete": True} if arg.suggests else made


def _named(kind: int, name: str, summary: str) -> dict[str, object]:
    return {"type": kind, "name": name, "description": summary[:_SUMMARY_CHARACTERS] or name}


def same(known: object, wanted: Sequence[Json]) -> bool:
    """Whether Discord has that table already."""
    return isinstance(known, list) and _shapes(known) == _shapes(wanted)


def _shapes(rows: Sequence[object]) -> list[tuple[object, ...]]:
    return sorted((string(row, "name"), whole(row, "type") or _CHAT_INPUT, _contexts(row), _shape(row)) for row in rows)


def _shape(row: object) -> tuple[object, ...]:
    """Of a command or an option, with all that is in it; what Discord leaves out is what it takes for granted."""
    return (
        whole(row, "type") or _CHAT_INPUT,
        string(row, "name"),
        string(row, "description"),
        flag(row, "required"),
        flag(row, "autocomplete"),
        tuple((string(choice, "name"), string(choice, "value")) for choice in objs(row, "choices")),
        tuple(_shape(option) for option in objs(row, "options")),
    )


def _contexts(row: object) -> tuple[int, ...]:
    value = row.get("contexts") if isinstance(row, dict) else None
    return tuple(sorted(n for n in value if isinstance(n, int))) if isinstance(value, list) else ()
