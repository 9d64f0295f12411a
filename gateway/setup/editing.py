"""Changes of a configuration that somebody wrote: in the words of the file, so that all else stays as it is. Pure.

A file is read for where things stand, each change is made in its text, and the result is read again: if it does not
say exactly what was meant, `CannotEdit` is raised and nothing is changed.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import yaml

from gateway.settings_source import Keys, Tree, format_key, value_at
from gateway.settings_yaml import parse_scalar
from gateway.setup.entries import ConfigEntry
from gateway.setup.rendering import format_flow, nest, to_tree

_IMPLICIT_VALUES: Final = {"port": 6697, "tls": True}
"""What need not be written where it is not."""


class CannotEdit(Exception):
    """The file is written in a way that this does not know. The text says where."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One value that is to be another."""

    keys: Keys
    value: Tree
    """None: the key is to go."""


def parse_yaml(text: str) -> Tree:
    """What a file says, its texts as written. Raises yaml.YAMLError."""
    node = _compose_yaml(text)
    return _node_value(node) if node is not None else {}


def find_changes(tree: Tree, entries: Iterable[ConfigEntry]) -> tuple[ConfigChange, ...]:
    """What of the entries is not so yet."""
    found = []
    for entry in entries:
        now, wanted = value_at(tree, *entry.keys), to_tree(entry.value)
        if wanted == now and type(wanted) is type(now):
            continue
        missing = now is None
        if missing and (wanted in (None, [], "") or _IMPLICIT_VALUES.get(str(entry.keys[-1])) == wanted):
            continue
        if wanted is True and isinstance(now, dict):
            continue  # `tls` in detail says that there is TLS
        found.append(ConfigChange(entry.keys, wanted))
    return tuple(found)


def apply_changes(text: str, wanted: Iterable[ConfigChange]) -> str:
    """The file with the changes made. Raises CannotEdit."""
    for change in wanted:
        before = parse_yaml(text)
        text = _apply_change(text, change)
        try:
            after = parse_yaml(text)
        except yaml.YAMLError:
            raise CannotEdit(f"{format_key(change.keys)} cannot be changed here") from None
        if after != _expected_tree(before, change):
            raise CannotEdit(f"{format_key(change.keys)} cannot be changed here")
    return text


def _expected_tree(tree: Tree, change: ConfigChange) -> Tree:
    """The tree as it is meant to be."""
    *above, last = change.keys
    made: Tree = copy.deepcopy(tree) or {}
    node = made
    for depth, key in enumerate(above):
        below = value_at(node, key)
        if not isinstance(below, dict | list):
            if change.value is None:
                return made
            below = [] if isinstance(change.keys[depth + 1], int) else {}
            _set_item(node, key, below)
        node = below
    if change.value is None:
        if isinstance(node, dict):
            node.pop(str(last), None)
    else:
        _set_item(node, last, change.value)
    return made


def _set_item(node: Tree, key: str | int, value: Tree) -> None:
    if isinstance(node, dict):
        node[str(key)] = value
    elif isinstance(node, list) and isinstance(key, int):
        if key == len(node):
            node.append(value)
        elif key < len(node):
            node[key] = value


def _apply_change(text: str, change: ConfigChange) -> str:
    root = _compose_yaml(text)
    if root is None:
        return text.rstrip("\n") + "\n" * bool(text.strip()) + _format_lines(change.keys, change.value, 0)
    node, depth = root, 0
    parent: yaml.Node | None = None
    while depth < len(change.keys):
        below = _child_node(node, change.keys[depth])
        if below is None:
            break
        parent, node, depth = node, below, depth + 1
    if depth == len(change.keys):
        return (
            _remove_key(text, parent, change.keys[-1])
            if change.value is None
            else _replace_node(text, node, change.value)
        )
    if change.value is None:
        return text
    rest = change.keys[depth:]
    if isinstance(node, yaml.MappingNode) and isinstance(rest[0], str):
        return _insert_key(text, node, rest, change.value)
    # A scalar or nothing, where something is to be below it.
    return _replace_node(text, node, nest(rest, change.value))


def _replace_node(text: str, node: yaml.Node, value: Tree) -> str:
    start, end = node.start_mark.index, _end_index(node)
    space = "" if start == 0 or text[start - 1] in " \n[{," else " "
    return text[:start] + space + format_flow(value) + text[end:]


def _insert_key(text: str, node: yaml.MappingNode, rest: Keys, value: Tree) -> str:
    if node.flow_style:
        end = node.end_mark.index - 1
        comma = ", " if node.value else ""
        inside = text[:end].rstrip() if node.value else text[:end]
        return f"{inside}{comma}{rest[0]}: {format_flow(nest(rest[1:], value))}{text[end:]}"
    end = text.find("\n", _end_index(node))
    end = len(text) if end < 0 else end + 1
    column = node.value[0][0].start_mark.column
    head = text[:end] if text[:end].endswith("\n") else text[:end] + "\n"
    return head + _format_lines(rest, value, column) + text[end:]


def _remove_key(text: str, parent: yaml.Node | None, key: str | int) -> str:
    if not isinstance(parent, yaml.MappingNode):
        raise CannotEdit(f"{key} cannot be taken out here")
    pairs = parent.value
    index = next(place for place, (name, _) in enumerate(pairs) if name.value == key)
    name, value = pairs[index]
    if parent.flow_style:
        start, end = name.start_mark.index, _end_index(value)
        if index + 1 < len(pairs):
            end = pairs[index + 1][0].start_mark.index
        elif index > 0:
            start = _end_index(pairs[index - 1][1])
        return text[:start] + text[end:]
    start = text.rfind("\n", 0, name.start_mark.index) + 1
    end = text.find("\n", _end_index(value))
    if text[start : name.start_mark.index].strip():
        raise CannotEdit(f"{key} cannot be taken out here")  # it stands behind a dash
    return text[:start] + text[len(text) if end < 0 else end + 1 :]


def _format_lines(keys: Keys, value: Tree, column: int) -> str:
    """New lines for a value below `keys`, from `column` on."""
    pad, (key, *rest) = " " * column, keys
    name = f"{key}:" if isinstance(key, str) else "-"
    if rest:
        below = _format_lines(tuple(rest), value, column + 2)
        return f"{pad}{name}\n{below}" if isinstance(key, str) else f"{pad}- {below.lstrip()}"
    return f"{pad}{name} {format_flow(value)}\n"


def _child_node(node: yaml.Node, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key]  # type: ignore[no-any-return] # PyYAML's own
    return None


def _end_index(node: yaml.Node) -> int:
    """Where its text ends: the end mark of a block stands behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _end_index(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _end_index(node.value[-1])
    end: int = node.end_mark.index
    return end


def _compose_yaml(text: str) -> yaml.Node | None:
    # Not the C loader: its marks count bytes. Anchors and merges are composed, and then found to be unchanged or not.
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    return node


def _node_value(node: yaml.Node) -> Tree:
    if isinstance(node, yaml.MappingNode):
        return {str(name.value): _node_value(below) for name, below in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_node_value(below) for below in node.value]
    text = str(node.value)
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return parse_scalar(text) if plain else text
