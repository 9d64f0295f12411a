"""Entries as a new configuration file, for people to read on. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gateway.settings_source import Keys, Tree
from gateway.settings_yaml import scalar
from gateway.setup.entries import Entry, Reference, Value, about

MARK: Final = "# Written by `reverie setup`"
"""How a file begins that is setup's own."""
_PLAIN = re.compile(r"(?:\./)?[A-Za-z][A-Za-z0-9_./-]*\Z")
_WORDS_1_1 = {"y", "n", "yes", "no", "on", "off"}
"""Truths of YAML 1.1, in case another program reads the file."""
_COMMENT_AT = 44
_WIDTH = 100

Node = Mapping[str, "Node | Leaf"] | list["Node | Leaf"]
Leaf = Entry


def render(entries: Iterable[Entry], today: str) -> str:
    """A file whose every line was asked for. `today`: as it is to be shown."""
    wanted = [entry for entry in entries if entry.value is not None]
    lines = [
        f"{MARK} on {today}. It is yours to edit; setup run again changes only what is answered anew.",
        "# Every key with its default stands in reverie.example.yaml. ${NAME} is an environment variable, and",
        "# ${file:PATH} what stands in a file. `reverie check-config` says what is wrong with it.",
    ]
    for section in dict.fromkeys(str(entry.keys[0]) for entry in wanted):
        below = [entry for entry in wanted if entry.keys[0] == section]
        lines += ["", _with(f"{section}:", about(section)), *_block(below, 1, 1)]
    return "\n".join(lines) + "\n"


def _block(entries: list[Entry], depth: int, indent: int) -> Iterator[str]:
    """The lines of what stands below one key; `depth` is how many keys are above."""
    pad, dashed = "  " * indent, False
    for key in dict.fromkeys(entry.keys[depth] for entry in entries):
        below = [entry for entry in entries if entry.keys[depth] == key]
        if isinstance(key, int):
            first, *rest = _block(below, depth + 1, indent + 1)
            yield f"{pad}- {first.lstrip()}"
            yield from rest
            dashed = True
        elif len(below) == 1 and len(below[0].keys) == depth + 1:
            yield _with(f"{pad}{key}: {written(below[0].value)}", below[0].comment)
        else:
            yield f"{pad}{key}:"
            yield from _block(below, depth + 1, indent + 1)
    assert not dashed or entries


def _with(line: str, comment: str) -> str:
    """The line with a comment, if it stays readable."""
    if not comment:
        return line
    full = f"{line.ljust(_COMMENT_AT)}  # {comment}" if len(line) <= _COMMENT_AT else f"{line}  # {comment}"
    return full if len(full) <= _WIDTH else line


def written(value: Value | Reference) -> str:
    """A value as YAML on one line."""
    match value:
        case Reference():
            return json.dumps(value.text, ensure_ascii=False)
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            plain = _PLAIN.match(value) and value.lower() not in _WORDS_1_1 and isinstance(scalar(value), str)
            return value if plain else json.dumps(value, ensure_ascii=False)
        case tuple():
            return f"[{', '.join(json.dumps(one, ensure_ascii=False) for one in value)}]"
        case None:
            return "null"


def tree_of(value: Value | Reference) -> Tree:
    """A value as it is read, references as they are written."""
    match value:
        case Reference():
            return value.text
        case tuple():
            return list(value)
        case _:
            return value


def flow(tree: Tree) -> str:
    """Anything as YAML on one line."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {flow(below)}" for key, below in tree.items()) + "}"
    if isinstance(tree, list):
        quoted = [json.dumps(one, ensure_ascii=False) if isinstance(one, str) else flow(one) for one in tree]
        return f"[{', '.join(quoted)}]"
    return written(tree) if isinstance(tree, str) else json.dumps(tree)


def nested(keys: Keys, value: Tree) -> Tree:
    """`value` below `keys`."""
    for key in reversed(keys):
        value = {key: value} if isinstance(key, str) else [value]
    return value
