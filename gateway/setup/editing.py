"""Changes of a configuration that somebody wrote: in the words of the file, so that all else stays as it is. Pure.

A file is read for where things stand, each change is made in its text, and the result is read again: if it does not
say exactly what was meant, `CannotEdit` is raised and nothing is changed.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import yaml

from gateway.settings_source import Keys, Tree, at, dotted
from gateway.settings_yaml import scalar
from gateway.setup.entries import Entry
from gateway.setup.rendering import flow, nested, tree_of

_DEFAULTS: Final = {"port": 6697, "tls": True}
"""What need not be written where it is not."""


class CannotEdit(Exception):
    """The file is written in a way that this does not know. The text says where."""


@dataclass(frozen=True, slots=True)
class Change:
    """One value that is to be another."""

    keys: Keys
    value: Tree
    """None: the key is to go."""


def read(text: str) -> Tree:
    """What a file says, its texts as written. Raises yaml.YAMLError."""
    node = _compose(text)
    return _value(node) if node is not None else {}


def changes(tree: Tree, entries: Iterable[Entry]) -> tuple[Change, ...]:
    """What of the entries is not so yet."""
    found = []
    for entry in entries:
        now, wanted = at(tree, *entry.keys), tree_of(entry.value)
        if wanted == now and type(wanted) is type(now):
            continue
        missing = now is None
        if missing and (wanted in (None, [], "") or _DEFAULTS.get(str(entry.keys[-1])) == wanted):
            continue
        if wanted is True and isinstance(now, dict):
            continue  # `tls` in detail says that there is TLS
        found.append(Change(entry.keys, wanted))
    return tuple(found)


def edit(text: str, wanted: Iterable[Change]) -> str:
    """The file with the changes made. Raises CannotEdit."""
    for change in wanted:
        before = read(text)
        text = _edited(text, change)
        try:
            after = read(text)
        except yaml.YAMLError:
            raise CannotEdit(f"{dotted(change.keys)} cannot be changed here") from None
        if after != _changed(before, change):
            raise CannotEdit(f"{dotted(change.keys)} cannot be changed here")
    return text


def _changed(tree: Tree, change: Change) -> Tree:
    """The tree as it is meant to be."""
    *above, last = change.keys
    made: Tree = copy.deepcopy(tree) or {}
    node = made
    for depth, key in enumerate(above):
        below = at(node, key)
        if not isinstance(below, dict | list):
            if change.value is None:
                return made
            below = [] if isinstance(change.keys[depth + 1], int) else {}
            _put(node, key, below)
        node = below
    if change.value is None:
        if isinstance(node, dict):
            node.pop(str(last), None)
    else:
        _put(node, last, change.value)
    return made


def _put(node: Tree, key: str | int, value: Tree) -> None:
    if isinstance(node, dict):
        node[str(key)] = value
    elif isinstance(node, list) and isinstance(key, int):
        if key == len(node):
            node.append(value)
        elif key < len(node):
            node[key] = value


def _edited(text: str, change: Change) -> str:
    root = _compose(text)
    if root is None:
        return text.rstrip("\n") + "\n" * bool(text.strip()) + _lines(change.keys, change.value, 0)
    node, depth = root, 0
    parent: yaml.Node | None = None
    while depth < len(change.keys):
        below = _child(node, change.keys[depth])
        if below is None:
            break
        parent, node, depth = node, below, depth + 1
    if depth == len(change.keys):
        return _removed(text, parent, change.keys[-1]) if change.value is None else _replaced(text, node, change.value)
    if change.value is None:
        return text
    rest = change.keys[depth:]
    if isinstance(node, yaml.MappingNode) and isinstance(rest[0], str):
        return _added(text, node, rest, change.value)
    # A scalar or nothing, where something is to be below it.
    return _replaced(text, node, nested(rest, change.value))


def _replaced(text: str, node: yaml.Node, value: Tree) -> str:
    start, end = node.start_mark.index, _end(node)
    space = "" if start == 0 or text[start - 1] in " \n[{," else " "
    return text[:start] + space + flow(value) + text[end:]


def _added(text: str, node: yaml.MappingNode, rest: Keys, value: Tree) -> str:
    if node.flow_style:
        end = node.end_mark.index - 1
        comma = ", " if node.value else ""
        inside = text[:end].rstrip() if node.value else text[:end]
        return f"{inside}{comma}{rest[0]}: {flow(nested(rest[1:], value))}{text[end:]}"
    end = text.find("\n", _end(node))
    end = len(text) if end < 0 else end + 1
    column = node.value[0][0].start_mark.column
    head = text[:end] if text[:end].endswith("\n") else text[:end] + "\n"
    return head + _lines(rest, value, column) + text[end:]


def _removed(text: str, parent: yaml.Node | None, key: str | int) -> str:
    if not isinstance(parent, yaml.MappingNode):
        raise CannotEdit(f"{key} cannot be taken out here")
    pairs = parent.value
    index = next(place for place, (name, _) in enumerate(pairs) if name.value == key)
    name, value = pairs[index]
    if parent.flow_style:
        start, end = name.start_mark.index, _end(value)
        if index + 1 < len(pairs):
            end = pairs[index + 1][0].start_mark.index
        elif index > 0:
            start = _end(pairs[index - 1][1])
        return text[:start] + text[end:]
    start = text.rfind("\n", 0, name.start_mark.index) + 1
    end = text.find("\n", _end(value))
    if text[start : name.start_mark.index].strip():
        raise CannotEdit(f"{key} cannot be taken out here")  # it stands behind a dash
    return text[:start] + text[len(text) if end < 0 else end + 1 :]


def _lines(keys: Keys, value: Tree, column: int) -> str:
    """New lines for a value below `keys`, from `column` on."""
    pad, (key, *rest) = " " * column, keys
    name = f"{key}:" if isinstance(key, str) else "-"
    if rest:
        below = _lines(tuple(rest), value, column + 2)
        return f"{pad}{name}\n{below}" if isinstance(key, str) else f"{pad}- {below.lstrip()}"
    return f"{pad}{name} {flow(value)}\n"


def _child(node: yaml.Node, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key]  # type: ignore[no-any-return] # PyYAML's own
    return None


def _end(node: yaml.Node) -> int:
    """Where its text ends: the end mark of a block stands behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _end(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _end(node.value[-1])
    end: int = node.end_mark.index
    return end


def _compose(text: str) -> yaml.Node | None:
    # Not the C loader: its marks count bytes. Anchors and merges are composed, and then found to be unchanged or not.
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    return node


def _value(node: yaml.Node) -> Tree:
    if isinstance(node, yaml.MappingNode):
        return {str(name.value): _value(below) for name, below in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_value(below) for below in node.value]
    text = str(node.value)
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return scalar(text) if plain else text
