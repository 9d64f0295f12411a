"""Files of a configuration: read, written new, and edited with their comments and their order.

An existing file is edited by ruamel.yaml, and only lines that the change touches are taken from
what it writes. The result is read again: if it does not say exactly what was meant, `CannotEdit` is
raised.
"""

import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from gateway.config.loader import ConfigError, read_config
from gateway.config.source import Keys, Tree, format_key, is_config_file, parse_scalar, value_at
from gateway.core.private_files import replace_private
from gateway.plugins.setup.dialog import replace_texts

MAIN_FILE: Final = "reverie.yaml"
SECRETS: Final = "secrets/"
"""Directory of the files that are readable by their owner only, and whose text is never shown."""
SCHEMA_FILE: Final = "reverie.schema.json"
_HEAD: Final = f"""\
# yaml-language-server: $schema={SCHEMA_FILE}
# Written by `reverie setup` on {{today}}. You may edit it: setup, run again, keeps what you write.
# `reverie schema` describes every key. ${{{{NAME}}}} is an environment variable,
# ${{{{file:PATH}}}} the content of a file. `reverie check-config` finds mistakes.
"""
_COMMENTS: Final[Mapping[Keys, str]] = {
    ("channels",): "accounts on platforms",
    ("agents",): "who answers",
    ("agents", 0, "workspace"): "IDENTITY.md, SOUL.md, AGENTS.md: read again when they change",
    ("llm",): "with which model",
    ("store",): "the log, and beside it what the agents know",
    ("access",): "who may do what",
    ("access", "roles", "owner"): "<channel>:<id>, as /whoami shows it",
    ("ops",): "dashboard and console of the operator",
    ("ops", "token"): "the password of the dashboard at 127.0.0.1:9090",
}
_CHANNEL_COMMENTS: Final[Mapping[tuple[str, str], str]] = {
    ("telegram", "token"): "from @BotFather",
    ("telegram", "rooms"): 'groups where it may act: ids in quotes, or "*"',
    ("discord", "token"): "from the developer portal",
    ("discord", "rooms"): 'guilds or channels where it may act: ids in quotes, or "*"',
    ("irc", "password"): "of the server",
    ("irc", "contact"): "shown to anybody who asks who runs the bot",
}
_IMPLICIT: Final[Mapping[str | int, Tree]] = {"port": 6697, "tls": True}
"""Values that need not be added where the key is missing."""
_MAX_WIDTH: Final = 1_000_000
"""Columns: lines are never folded."""
_KEY_LINE: Final = r"^( *)[^\s#-][^\n]*:[ \t]*(?:#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*"
_NESTED: Final = re.compile(_KEY_LINE + r"(\1 +)[^\s#-]", re.MULTILINE)
_LISTED: Final = re.compile(_KEY_LINE + r"(\1 *)- ", re.MULTILINE)
_PLAIN_SCALAR: Final = re.compile(r"(?:\./)?[A-Za-z][A-Za-z0-9_./-]*\Z")
_YAML_1_1_BOOLEANS: Final = {"y", "n", "yes", "no", "on", "off"}
"""Booleans of YAML 1.1, in case another program reads the file."""


class CannotEdit(Exception):
    """The file is written in a way that cannot be edited."""


def is_writable(directory: Path) -> bool:
    """Return whether a configuration can probably be written there."""
    if directory.exists() and not directory.is_dir():
        return False
    there = next(one for one in (directory, *directory.absolute().parents) if one.exists())
    return os.access(there, os.W_OK | os.X_OK)


def read_config_files(directory: Path) -> dict[str, str]:
    """Read the files of a configuration by name, in the order of loading. Raises OSError,
    UnicodeError.
    """
    files = sorted(directory.iterdir()) if directory.is_dir() else []
    return {one.name: one.read_text(encoding="utf-8") for one in files if is_config_file(one)}


def parse_yaml(text: str) -> Tree:
    """Parse a file with its texts as written. Raises YAMLError of ruamel.yaml."""
    tree = YAML(typ="safe", pure=True).load(text)
    return {} if tree is None else replace_texts(tree, str)  # which copies what has an alias


def merge_tree(whole: Any, part: Tree) -> Any:  # noqa: ANN401 - a tree
    """Return a configuration with what another file of it has."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return whole | {key: merge_tree(whole.get(key), below) for key, below in part.items()}
    return part


def find_changes(old: Tree, new: Tree, above: Keys = ()) -> Iterator[tuple[Keys, Tree]]:
    """Yield keys and values of what has changed. None: the key is to be removed."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from find_changes(old.get(key), new.get(key), (*above, key))
    elif isinstance(old, list) and isinstance(new, list) and any(isinstance(x, dict) for x in old):
        for index, below in enumerate(new):
            yield from find_changes(old[index], below, (*above, index))
    elif old != new and not (old is None and new in (None, [], "", _IMPLICIT.get(above[-1]))):
        yield above, new


def edit_files(
    texts: Mapping[str, str], trees: Mapping[str, Tree], changes: Iterable[tuple[Keys, Tree]]
) -> dict[str, str]:
    """Return the texts of the files with the changes, each in the file that has the most of its
    keys. Raises CannotEdit.
    """
    edited = dict(texts)
    for keys, value in changes:
        depths = {
            name: sum(value_at(tree, *keys[:end]) is not None for end in range(1, len(keys) + 1))
            for name, tree in trees.items()
        }
        name = max(depths, key=lambda one: (depths[one], one == MAIN_FILE))
        edited[name] = change_value(edited[name], keys, value)
    return edited


def change_value(text: str, keys: Keys, value: Tree) -> str:
    """Return the text of a file with one value changed, None: removed. Raises CannotEdit."""
    text += "\n" * (not text.endswith("\n") and bool(text))
    try:
        expected, tree = parse_yaml(text), _yaml_like(text).load(text)
        before = text if tree is None else _dump(tree, text)
        tree = CommentedMap() if tree is None else tree
        for one in (tree, expected):
            _put(one, keys, value)
        edited = _replace_lines(text, before, _dump(tree, text))
        if parse_yaml(edited) == expected:
            return edited
    except (YAMLError, TypeError, ValueError, KeyError, IndexError, AttributeError):
        pass
    raise CannotEdit(f"{format_key(keys)} cannot be changed in the way the file is written")


def _yaml_like(text: str) -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes, yaml.width = True, _MAX_WIDTH
    nested, listed = _NESTED.search(text), _LISTED.search(text)
    offset = len(listed[2]) - len(listed[1]) if listed else 2
    mapping = len(nested[2]) - len(nested[1]) if nested else 2
    yaml.indent(mapping=mapping, sequence=offset + 2, offset=offset)
    return yaml


def _dump(tree: CommentedMap, like: str = "") -> str:
    out = io.StringIO()
    _yaml_like(like).dump(tree, out)
    return out.getvalue()


def _replace_lines(text: str, before: str, after: str) -> str:
    """Make in a text the changes that lead from `before`, which is the text written anew, to
    `after`.

    Blank lines and comments above a line belong to it, not to what stands above them.
    """
    lines, old, new = (one.splitlines(keepends=True) for one in (text, before, after))
    sources: list[list[str]] = []
    first: list[str] = []
    text_words, old_words = (["".join(line.split()) for line in one] for one in (lines, old))
    for _, i, j, k, m in SequenceMatcher(None, text_words, old_words, autojunk=False).get_opcodes():
        if j - i == m - k:
            sources += [[line] for line in lines[i:j]]
        elif k == m:
            (sources[-1] if sources else first).extend(lines[i:j])
        else:
            sources += [lines[i:j], *([] for _ in range(m - k - 1))]
    result = first
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        held = [line for source in sources[i:j] for line in source]
        if tag == "equal":
            result += held
            continue
        kept = held if tag != "insert" else result
        start = len(kept)
        while start and (not kept[start - 1].strip() or kept[start - 1].lstrip().startswith("#")):
            start -= 1
        remarks = kept[start:]
        del kept[start:]
        result += [*new[k:m], *remarks]
    return "".join(result)


def _put(tree: Any, keys: Keys, value: Tree) -> None:  # noqa: ANN401 - plain, or of ruamel.yaml
    *above, last = keys
    node = value_at(tree, *above)
    held = value_at(node, last)
    if value is None:
        del node[last]  # type: ignore[union-attr,arg-type] # it was found there
        return
    if isinstance(held, list) and isinstance(value, list):  # what stays is as it was written
        for one in [one for one in held if one not in value]:
            held.remove(one)
        held += [_to_node(one, quoted=True) for one in value if one not in held]
        if held == value and held:
            return
    node[last] = _to_node(value)  # type: ignore[index] # as above


def _to_node(value: Tree, *, quoted: bool = False) -> Any:  # noqa: ANN401 - ruamel.yaml has no types
    """Return the value as it is to be written: texts in quotes if they might be read as anything
    else, lists of them on one line.
    """
    if isinstance(value, dict):
        held = {key: _to_node(below) for key, below in value.items() if below is not None}
        return CommentedMap(held)
    if isinstance(value, list):
        node = CommentedSeq([_to_node(one, quoted=True) for one in value])
        if not any(isinstance(one, dict) for one in value):
            node.fa.set_flow_style()
        return node
    if not isinstance(value, str):
        return value
    plain = _PLAIN_SCALAR.match(value) and value.lower() not in _YAML_1_1_BOOLEANS
    is_plain = plain and not quoted and parse_scalar(value) == value
    return value if is_plain else DoubleQuotedScalarString(value)


def render_config(tree: dict[str, Tree], today: str) -> str:
    """Render a new file. `today`: the date for its first line."""
    parts, comments = [_HEAD.format(today=today)], dict(_COMMENTS)
    channels = tree.get("channels")
    for name, channel in channels.items() if isinstance(channels, dict) else ():
        for (platform, key), comment in _CHANNEL_COMMENTS.items():
            if value_at(channel, "platform") == platform:
                comments["channels", name, key] = comment
    for section in dict.fromkeys(str(keys[0]) for keys in _COMMENTS if keys[0] in tree):
        node = _to_node({section: tree[section]})
        for keys, comment in comments.items():
            if value_at(node, *keys) is not None:
                above = value_at(node, *keys[:-1])
                above.yaml_add_eol_comment(comment, keys[-1], column=46)  # type: ignore[union-attr] # a node
        parts.append(_dump(node))
    return "\n".join(parts)


def check_files(directory: Path, texts: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """Return the errors of the configuration with these files in place. Raises OSError."""
    with tempfile.TemporaryDirectory() as stage:
        for one in directory.iterdir() if directory.is_dir() else ():
            if one.name not in texts:
                Path(stage, one.name).symlink_to(one.absolute())
        for name, text in texts.items():
            Path(stage, name).write_text(text, encoding="utf-8")
        try:
            read_config(Path(stage), env, needs=())
        except ConfigError as error:
            return [str(one).replace(f"{stage}/", "") for one in error.problems]
    return []


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Write files by their paths, secrets first and the configuration last. Raises OSError; each
    file is whole then, the old or the new one.
    """
    for name in sorted(files, key=lambda one: (not one.startswith(SECRETS), "/" not in one)):
        path = (directory / name).resolve()
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        if name.startswith(SECRETS):
            directory.mkdir(parents=True, exist_ok=True)
            mode = 0o600
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_private(path, files[name].encode())
        path.chmod(mode)
