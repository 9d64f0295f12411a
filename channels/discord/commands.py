"""The command table as Discord is told of it. Pure.

https://discord.com/developers/docs/interactions/application-commands
"""

from collections.abc import Sequence

from channels.base import CommandSpec
from channels.payload import Json, flag, objs, string, whole

_CHAT_INPUT, _STRING = 1, 3
_IN_GUILDS_AND_WITH_US = [0, 1]
"""Interaction contexts: not in chats between other people, where we are not."""
_SUMMARY_CHARACTERS = 100


def table(specs: Sequence[CommandSpec]) -> list[dict[str, object]]:
    """What to overwrite the global commands with."""
    return [_row(spec) for spec in specs]


def _row(spec: CommandSpec) -> dict[str, object]:
    options = []
    if spec.argument is not None:
        described = spec.argument[:_SUMMARY_CHARACTERS] or "what to do"
        required = not spec.argument.startswith("[")
        options = [{"type": _STRING, "name": "text", "description": described, "required": required}]
    return {
        "name": spec.name,
        "type": _CHAT_INPUT,
        "description": spec.summary[:_SUMMARY_CHARACTERS] or spec.name,
        "options": options,
        "contexts": list(_IN_GUILDS_AND_WITH_US),
    }


def same(known: object, wanted: Sequence[Json]) -> bool:
    """Whether Discord has that table already."""
    return isinstance(known, list) and _shape(known) == _shape(wanted)


def _shape(rows: Sequence[object]) -> list[tuple[object, ...]]:
    return sorted(
        (
            string(row, "name"),
            whole(row, "type") or _CHAT_INPUT,
            string(row, "description"),
            _contexts(row),
            tuple(
                (whole(o, "type"), string(o, "name"), string(o, "description"), flag(o, "required"))
                for o in objs(row, "options")
            ),
        )
        for row in rows
    )


def _contexts(row: object) -> tuple[int, ...]:
    value = row.get("contexts") if isinstance(row, dict) else None
    return tuple(sorted(n for n in value if isinstance(n, int))) if isinstance(value, list) else ()
