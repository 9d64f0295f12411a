"""What Discord takes for a table of commands.

https://discord.com/developers/docs/interactions/application-commands, sections `Application Command Object`,
`Application Command Option Structure`, `Application Command Naming` and `Registering a Command`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

NAME = re.compile(r"[-_'\w]{1,32}")
SUB, GROUP, STRING = 1, 2, 3
TYPES = range(1, 12)
MOST_COMMANDS, MOST_OPTIONS, MOST_CHOICES, CHARACTERS = 100, 25, 25, 8000


def wrong(table: Sequence[dict[str, Any]]) -> list[str]:
    """Everything that it would refuse."""
    found = [f"{len(table)} commands"] if len(table) > MOST_COMMANDS else []
    names = [command["name"] for command in table]
    found += [f"two commands {name}" for name in sorted(set(names)) if names.count(name) > 1]
    for command in table:
        found += [f"/{command['name']}: {trouble}" for trouble in _command(command)]
    return found


def _command(command: dict[str, Any]) -> Iterator[str]:
    yield from _named(command)
    yield from _options(command.get("options", []), top=True)
    if not set(command.get("contexts", [])) <= {0, 1, 2}:
        yield "contexts"
    if (length := _length(command)) > CHARACTERS:
        yield f"{length} characters"


def _named(thing: dict[str, Any]) -> Iterator[str]:
    name, told = thing.get("name", ""), thing.get("description", "")
    if not NAME.fullmatch(name) or name != name.lower():
        yield f"name {name!r}"
    if not 1 <= len(told) <= 100:
        yield f"description of {name!r}"


def _options(options: Sequence[dict[str, Any]], *, top: bool) -> Iterator[str]:
    names = [option.get("name") for option in options]
    if len(options) > MOST_OPTIONS or len(set(names)) != len(names):
        yield f"options {names}"
    nested = [option.get("type") in {SUB, GROUP} for option in options]
    if any(nested) and (not top or not all(nested)):
        yield "subs beside options, or too deep"
    required = [bool(option.get("required")) for option in options]
    if required != sorted(required, reverse=True):
        yield "an optional option in front of a required one"
    for option in options:
        yield from _named(option)
        yield from _option(option)


def _option(option: dict[str, Any]) -> Iterator[str]:
    name, choices = option.get("name"), option.get("choices") or []
    if option.get("type") not in TYPES:
        yield f"type of {name!r}"
    if len(choices) > MOST_CHOICES or (choices and option.get("autocomplete")):
        yield f"choices of {name!r}"
    for choice in choices:
        if not 1 <= len(choice["name"]) <= 100 or not 1 <= len(str(choice["value"])) <= 100:
            yield f"choice {choice!r}"
    if option.get("type") == SUB:
        if "required" in option or "autocomplete" in option or choices:
            yield f"{name!r} is a sub, and has what options have"
        yield from _options(option.get("options", []), top=False)


def _length(thing: dict[str, Any]) -> int:
    """`name`, `description` and `value` of a command, its options and their choices together."""
    own = len(thing.get("name", "")) + len(thing.get("description", "")) + len(str(thing.get("value", "")))
    return own + sum(map(_length, [*thing.get("options", []), *thing.get("choices", [])]))
