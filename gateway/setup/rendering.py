"""Entries as a new configuration file, for people to read on. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gateway.settings_source import Keys, Tree
from gateway.settings_yaml import parse_scalar
from gateway.setup.entries import ConfigEntry, ConfigReference, ConfigValue, section_comment

WRITTEN_BY: Final = "# Written by `reverie setup`"
"""How a file begins that is setup's own."""
_PLAIN_SCALAR = re.compile(r"(?:\./)?[A-Za-z][A-Za-z0-9_./-]*\Z")
_YAML_1_1_BOOLEANS = {"y", "n", "yes", "no", "on", "off"}
"""Truths of YAML 1.1, in case another program reads the file."""
_COMMENT_COLUMN = 44
_MAX_LINE_CHARS = 100

RenderNode = Mapping[str, "RenderNode | RenderLeaf"] | list["RenderNode | RenderLeaf"]
RenderLeaf = ConfigEntry


def render_config(entries: Iterable[ConfigEntry], today: str) -> str:
    """A file whose every line was asked for. `today`: as it is to be shown."""
    wanted = [entry for entry in entries if entry.value is not None]
    lines = [
        f"{WRITTEN_BY} on {today}. It is yours to edit; setup run again changes only what is answered anew.",
        "# Every key with its default stands in reverie.example.yaml. ${NAME} is an environment variable, and",
        "# ${file:PATH} what stands in a file. `reverie check-config` says what is wrong with it.",
    ]
    for section in dict.fromkeys(str(entry.keys[0]) for entry in wanted):
        below = [entry for entry in wanted if entry.keys[0] == section]
        lines += ["", _with_comment(f"{section}:", section_comment(section)), *_render_block(below, 1, 1)]
    return "\n".join(lines) + "\n"


def _render_block(entries: list[ConfigEntry], depth: int, indent: int) -> Iterator[str]:
    """The lines of what stands below one key; `depth` is how many keys are above."""
    pad, dashed = "  " * indent, False
    for key in dict.fromkeys(entry.keys[depth] for entry in entries):
        below = [entry for entry in entries if entry.keys[depth] == key]
        if isinstance(key, int):
            first, *rest = _render_block(below, depth + 1, indent + 1)
            yield f"{pad}- {first.lstrip()}"
            yield from rest
            dashed = True
        elif len(below) == 1 and len(below[0].keys) == depth + 1:
            yield _with_comment(f"{pad}{key}: {format_value(below[0].value)}", below[0].comment)
        else:
            yield f"{pad}{key}:"
            yield from _render_block(below, depth + 1, indent + 1)
    assert not dashed or entries


def _with_comment(line: str, comment: str) -> str:
    """The line with a comment, if it stays readable."""
    if not comment:
        return line
    full = f"{line.ljust(_COMMENT_COLUMN)}  # {comment}" if len(line) <= _COMMENT_COLUMN else f"{line}  # {comment}"
    return full if len(full) <= _MAX_LINE_CHARS else line


def format_value(value: ConfigValue | ConfigReference) -> str:
    """A value as YAML on one line."""
    match value:
        case ConfigReference():
            return json.dumps(value.text, ensure_ascii=False)
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            plain = (
                _PLAIN_SCALAR.match(value)
                and value.lower() not in _YAML_1_1_BOOLEANS
                and isinstance(parse_scalar(value), str)
            )
            return value if plain else json.dumps(value, ensure_ascii=False)
        case tuple():
            return f"[{', '.join(json.dumps(one, ensure_ascii=False) for one in value)}]"
        case None:
            return "null"


def to_tree(value: ConfigValue | ConfigReference) -> Tree:
    """A value as it is read, references as they are written."""
    match value:
        case ConfigReference():
            return value.text
        case tuple():
            return list(value)
        case _:
            return value


def format_flow(tree: Tree) -> str:
    """Anything as YAML on one line."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {format_flow(below)}" for key, below in tree.items()) + "}"
    if isinstance(tree, list):
        quoted = [json.dumps(one, ensure_ascii=False) if isinstance(one, str) else format_flow(one) for one in tree]
        return f"[{', '.join(quoted)}]"
    return format_value(tree) if isinstance(tree, str) else json.dumps(tree)


def nest(keys: Keys, value: Tree) -> Tree:
    """`value` below `keys`."""
    for key in reversed(keys):
        value = {key: value} if isinstance(key, str) else [value]
    return value
