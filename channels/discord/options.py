"""The options of a native command, as the same text that people write behind its name elsewhere. Pure.

https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-application-command-data-structure
"""

import re
from collections.abc import Sequence
from typing import Final

from channels.base import CommandArg, CommandSpec, SubcommandSpec
from channels.payload import Json, get_bool, get_int, get_objects, get_str
from channels.text import clean_text

_SUBCOMMAND: Final = 1
_UNQUOTED: Final = re.compile(r'[^\s"“„”`]\S*')
_EMPTY_ARG: Final = '""'
"""Stands where an argument is left out and a later one is given."""


def format_options(asked: Json, specs: Sequence[CommandSpec]) -> str:
    """What would be written: a sub, and the arguments in the order of the table, quoted where they must be.

    People give options in any order and leave some out. What the table does not have (a menu that is too old) comes
    last, so that it is told to be too much.
    """
    spec = next((one for one in specs if one.name == get_str(asked, "name").lower()), None)
    options, words = get_objects(asked, "options"), list[str]()
    of: CommandSpec | SubcommandSpec | None = spec
    if options and get_int(options[0], "type") == _SUBCOMMAND:
        name = get_str(options[0], "name").lower()
        of = next((sub for sub in spec.subs if sub.name == name), None) if spec else None
        words, options = [quote_word(name)], get_objects(options[0], "options")
    values = {get_str(option, "name"): _option_value(option) for option in options}
    words += _ordered_words(of.args if of is not None else (), values)
    return " ".join([*words, *(quote_word(value) for value in values.values())])


def find_focused(asked: Json) -> tuple[str, str, str] | None:
    """Sub, option, and what stands there until now, of the one that is being written. None: none is."""
    options, sub = get_objects(asked, "options"), ""
    if options and get_int(options[0], "type") == _SUBCOMMAND:
        sub, options = get_str(options[0], "name"), get_objects(options[0], "options")
    found = next((option for option in options if get_bool(option, "focused")), None)
    return (sub, get_str(found, "name"), _option_value(found)) if found is not None else None


def quote_word(word: str) -> str:
    """One word, whatever it has in it."""
    word = " ".join(clean_text(word).split())
    if _UNQUOTED.fullmatch(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _ordered_words(args: Sequence[CommandArg], values: dict[str, str]) -> list[str]:
    """Takes the values that the table has out of `values`."""
    words, missing = list[str](), 0
    for arg in args:
        value = values.pop(arg.name, "")
        if not value:
            missing += 1
            continue
        words += [_EMPTY_ARG] * missing + [value if arg.rest else quote_word(value)]
        missing = 0
    return words


def _option_value(option: Json) -> str:
    value = option.get("value")
    return clean_text(str(value)).strip() if isinstance(value, str | int | float) else ""
