"""The options of a native command, as the same text that people write behind its name elsewhere. Pure.

https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-application-command-data-structure
"""

import re
from collections.abc import Sequence
from typing import Final

from channels.base import CommandArg, CommandSpec, CommandSub
from channels.payload import Json, flag, objs, string, whole
from channels.text import clean

_SUB: Final = 1
_BARE: Final = re.compile(r'[^\s"“„”`]\S*')
_ABSENT: Final = '""'
"""Stands where an argument is left out and a later one is given."""


def written(asked: Json, specs: Sequence[CommandSpec]) -> str:
    """What would be written: a sub, and the arguments in the order of the table, quoted where they must be.

    People give options in any order and leave some out. What the table does not have (a menu that is too old) comes
    last, so that it is told to be too much.
    """
    spec = next((one for one in specs if one.name == string(asked, "name").lower()), None)
    options, words = objs(asked, "options"), list[str]()
    of: CommandSpec | CommandSub | None = spec
    if options and whole(options[0], "type") == _SUB:
        name = string(options[0], "name").lower()
        of = next((sub for sub in spec.subs if sub.name == name), None) if spec else None
        words, options = [quoted(name)], objs(options[0], "options")
    values = {string(option, "name"): _value(option) for option in options}
    words += _ordered(of.args if of is not None else (), values)
    return " ".join([*words, *(quoted(value) for value in values.values())])


def focused(asked: Json) -> tuple[str, str, str] | None:
    """Sub, option, and what stands there until now, of the one that is being written. None: none is."""
    options, sub = objs(asked, "options"), ""
    if options and whole(options[0], "type") == _SUB:
        sub, options = string(options[0], "name"), objs(options[0], "options")
    found = next((option for option in options if flag(option, "focused")), None)
    return (sub, string(found, "name"), _value(found)) if found is not None else None


def quoted(word: str) -> str:
    """One word, whatever it has in it."""
    word = " ".join(clean(word).split())
    if _BARE.fullmatch(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _ordered(args: Sequence[CommandArg], values: dict[str, str]) -> list[str]:
    """Takes the values that the table has out of `values`."""
    words, missing = list[str](), 0
    for arg in args:
        value = values.pop(arg.name, "")
        if not value:
            missing += 1
            continue
        words += [_ABSENT] * missing + [value if arg.rest else quoted(value)]
        missing = 0
    return words


def _value(option: Json) -> str:
    value = option.get("value")
    return clean(str(value)).strip() if isinstance(value, str | int | float) else ""
