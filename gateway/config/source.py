"""One configuration file: YAML with the line of each value and `${...}` resolved. No message quotes
a value.

Only YAML 1.2's core types: `off` and `yes` are words, `true` and `false` are booleans. Problems are
collected, not raised.
"""

import errno
import os
import re
import stat
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from gateway.core.yaml_text import LOADER, MAX_DEPTH, compose_yaml

Keys = tuple[str | int, ...]
"""Path of a value: mapping keys and list positions from the top."""
DEFAULT_STORE: Final = "data/reverie.db"
"""The default of `store.path`."""
Tree = str | int | float | bool | None | list["Tree"] | dict[str, "Tree"]

_MIN_HIDDEN_CHARS = 4
"""Length of the shortest value that is hidden in messages: shorter ones reveal nothing, and would
hide ordinary words."""
_MAX_NODES = 100_000
"""Aliases can make a short text grow without bound."""
_MAX_CHARS = 1_000_000
"""Length of one file. A running gateway is slowed down while it reads the files."""
# The last alternative is how a shell writes a variable. A keyword such as `$BTC` is none.
_REFERENCE_PATTERN = re.compile(
    r"\$\$\{|\$\{(?:file:([^}]*)|([A-Za-z_][A-Za-z0-9_]*))\}|\$\{|\A\$[A-Z]+(?:_[A-Z0-9_]+\Z|/)"
)
STAND_IN = re.compile(r"unresolved[a-p]{8}")
"""What stands for a reference that could not be resolved."""
_YAML_HELP = "texts with #, {, [, * or : need quotes, and lines are indented by spaces"
_TAG_PREFIX = "tag:yaml.org,2002:"
_RESOLVERS = {
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "null": re.compile(r"(?:|~|null|Null|NULL)\Z"),
    "int": re.compile(r"[-+]?[0-9]{1,400}\Z"),
    "float": re.compile(
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?\Z"
    ),
}
_SCALARS: Mapping[str, Callable[[str], "Tree"]] = {
    "bool": lambda text: text.lower() == "true",
    "null": lambda _: None,
    "int": int,
    "float": float,
    "str": str,
}


@dataclass(frozen=True, slots=True, order=True)
class ConfigProblem:
    """One thing to fix in the configuration. Never holds a secret."""

    file: str
    """File name for people; empty if the configuration came from no file."""
    line: int
    """From 1; 0 if there is none."""
    key: str
    """E.g. `agents[0].model`; empty: the whole file."""
    message: str
    """The problem and the right notation."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.key, self.message) if part)


@dataclass(slots=True)
class ConfigSource:
    """Values and problems read so far."""

    data: dict[str, Tree] = field(default_factory=dict)
    positions: dict[Keys, tuple[Path, int]] = field(default_factory=dict)
    """File and line of every key and list item."""
    reference_keys: dict[Keys, bool] = field(default_factory=dict)
    """Values that contain a `${...}`; True: exactly one, so that their text may stand for a
    number."""
    unresolved: dict[Keys, str] = field(default_factory=dict)
    """Values with a `${...}` that could not be resolved, and why. A word of its own stands for each
    such reference."""
    referenced_files: set[Path] = field(default_factory=set)
    """Files named by `${file:...}`."""
    problems: list[ConfigProblem] = field(default_factory=list)
    resolved_values: set[str] = field(default_factory=set)
    """Values of references: never shown."""
    damaged_keys: set[Keys] = field(default_factory=set)
    """Values with a problem already: their replacement has no meaning."""

    def find_position(self, keys: Keys) -> tuple[Path | None, int]:
        """Return the nearest known position at or above `keys`."""
        while keys and keys not in self.positions:
            keys = keys[:-1]
        return self.positions.get(keys, (None, 0))

    def add_problem(self, keys: Keys, message: str) -> None:
        """Add a problem at `keys`. Values of references are hidden in the message."""
        file, line = self.find_position(keys)
        for value in sorted(self.resolved_values, key=len, reverse=True):
            message = message.replace(value, "***") if len(value) >= _MIN_HIDDEN_CHARS else message
        self.problems.append(ConfigProblem(str(file or ""), line, format_key(keys), message))
        self.damaged_keys.add(keys)


def format_key(keys: Keys) -> str:
    """Format a key for people: `agents[0].model`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(
        "."
    )


def value_at(node: Tree, *keys: str | int) -> Tree:
    """Return the value at a path, or None."""
    for key in keys:
        if isinstance(node, dict) and isinstance(key, str):
            node = node.get(key)
        elif isinstance(node, list) and isinstance(key, int) and key < len(node):
            node = node[key]
        else:
            return None
    return node


def merge_sources(whole: ConfigSource, part: ConfigSource) -> None:
    """Add the values of one file to those before it. A value in both is a problem, reported at the
    later one.
    """
    _merge_into(whole, part, whole.data, part.data, ())
    whole.problems += part.problems
    whole.damaged_keys |= part.damaged_keys
    whole.referenced_files |= part.referenced_files
    whole.resolved_values |= part.resolved_values
    whole.unresolved = part.unresolved | whole.unresolved
    whole.positions = part.positions | whole.positions
    whole.reference_keys = part.reference_keys | whole.reference_keys


def _merge_into(
    whole: ConfigSource,
    part: ConfigSource,
    into: dict[str, Tree],
    data: dict[str, Tree],
    above: Keys,
) -> None:
    for key, value in data.items():
        keys = (*above, key)
        if key not in into:
            into[key] = value
            continue
        held = into[key]
        if isinstance(held, dict) and isinstance(value, dict):
            _merge_into(whole, part, held, value, keys)
            continue
        (first, first_line), (second, line) = whole.positions[keys], part.positions[keys]
        message = f"also in {first}:{first_line}; keep one of the two"
        whole.problems.append(ConfigProblem(str(second), line, format_key(keys), message))
        whole.damaged_keys.add(keys)


def is_config_file(path: Path) -> bool:
    """Return whether a file of the directory belongs to the configuration. Raises OSError."""
    skipped = (
        path.name.startswith((".", "compose."))
        or path.stem == "prices"
        or path.stem.endswith(".example")
    )
    return path.suffix in {".yaml", ".yml"} and not skipped and path.is_file()


class _CoreSchemaLoader(LOADER):  # type: ignore[misc]  # the C loader where it is available
    """YAML 1.2's core schema, without hexadecimals and infinities."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own name and shape
        None: [(_TAG_PREFIX + name, regexp) for name, regexp in _RESOLVERS.items()]
    }


def read_yaml_file(file: Path, env: Mapping[str, str], text: str | None = None) -> ConfigSource:
    """Read one file. Raises nothing for its content, nor if it cannot be read. `text`: in place of
    what it holds.
    """
    return _YamlFileReader(file, env).read(text)


def read_text_file(path: Path) -> str:
    """Read a whole regular file. Raises OSError, also for other kinds or if it is too large, and
    UnicodeDecodeError.

    A pipe or a device could block the reader for ever, and a larger file is no configuration.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISDIR(mode := os.fstat(opened).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with open(opened, encoding="utf-8", closefd=False) as file:
            text = file.read(_MAX_CHARS + 1)
    finally:
        os.close(opened)
    if len(text) > _MAX_CHARS:
        raise OSError(errno.EFBIG, "larger than a million characters")
    return text


def clean_reference(text: str) -> str:
    """Return the value of a reference without white space and a byte order mark around it.

    Raises ValueError if it is in quotes: those of an env file that its reader took for a part of
    the value.
    """
    value = text.strip().removeprefix("\ufeff").strip()
    if re.fullmatch(r"""(["'])[^"'\n]*\1""", value):
        raise ValueError("has quotes around its value, which count as a part of it; take them out")
    return value


def parse_scalar(text: str) -> Tree:
    """Parse a text as an unquoted YAML scalar."""
    kind = next((name for name, regexp in _RESOLVERS.items() if regexp.match(text)), "str")
    return _SCALARS[kind](text)


class _YamlFileReader:
    """Reader of one file."""

    def __init__(self, file: Path, env: Mapping[str, str]) -> None:
        self._file, self._env = file, env
        self._source = ConfigSource(positions={(): (file, 1)})
        self._nodes = 0

    def read(self, given: str | None) -> ConfigSource:
        source = self._source
        text = given or ""
        try:
            if given is None:
                text = read_text_file(self._file)
            node = compose_yaml(text, _CoreSchemaLoader)
        except OSError as error:
            source.add_problem((), f"cannot be read: {error.strerror}")
        except UnicodeDecodeError as error:
            source.positions[()] = (self._file, error.object.count(b"\n", 0, error.start) + 1)
            source.add_problem((), "is not UTF-8 text; save it as UTF-8")
        except yaml.YAMLError as error:
            line, why = _explain_yaml_error(error, text)
            source.positions[()] = (self._file, line)
            source.add_problem((), f"not YAML: {why}")
        else:
            if isinstance(node, yaml.MappingNode):
                source.data = self._read_mapping(node, ())
            elif node is not None and getattr(node, "tag", "") != "tag:yaml.org,2002:null":
                source.add_problem((), "must be a mapping of sections, e.g. `channels:`")
        return source

    def _read_value(self, node: yaml.Node, keys: Keys) -> Tree:
        self._nodes += 1
        if self._nodes > _MAX_NODES or len(keys) > MAX_DEPTH:
            if self._nodes <= _MAX_NODES + 1:
                self._source.add_problem(keys[:3], "too large or nested too deep")
            return None
        if isinstance(node, yaml.MappingNode):
            return dict(self._read_mapping(node, keys))
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._source.positions[*keys, index] = (self._file, item.start_mark.line + 1)
            return [self._read_value(item, (*keys, index)) for index, item in enumerate(node.value)]
        kind = node.tag.removeprefix(_TAG_PREFIX)
        if kind == "str":
            return self._resolve_text(node.value, keys)
        if kind not in _RESOLVERS or not _RESOLVERS[kind].match(node.value):
            self._source.add_problem(
                keys, "tags (`!name`) are not supported; a value that starts with `!` needs quotes"
            )
            return None
        return _SCALARS[kind](node.value)

    def _read_mapping(self, node: yaml.MappingNode, above: Keys) -> dict[str, Tree]:
        result: dict[str, Tree] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._source.add_problem(above, f"line {line}: a key must be plain text")
                continue
            keys = (*above, key_node.value)
            if key_node.value in result:
                first = self._source.positions[keys][1]
                message = f"appears twice, first on line {first}; keep one"
                self._source.problems.append(
                    ConfigProblem(str(self._file), line, format_key(keys), message)
                )
                continue
            self._source.positions[keys] = (self._file, line)
            result[key_node.value] = self._read_value(value_node, keys)
        return result

    def _resolve_text(self, text: str, keys: Keys) -> str:
        pieces: list[str] = []
        end = 0
        for match in _REFERENCE_PATTERN.finditer(text):
            pieces += [text[end : match.start()], self._resolve_reference(match, keys)]
            end = match.end()
            if match[0] != "$${":
                self._source.reference_keys[keys] = match.span() == (0, len(text))
        return "".join(pieces) + text[end:]

    def _resolve_reference(self, match: re.Match[str], keys: Keys) -> str:
        if match[0] == "$${":
            return "${"
        path, name = match.groups()
        problem, value, text = "", "", ""
        if name is not None:
            text, what = self._env.get(name, ""), f"the environment variable {name}"
            missing = f"{what} is not set; set it, or write ${{file:...}}"
        elif path is not None:
            what = f"the file {path}"
            missing = f"{what} is empty"
            try:
                target = self._file.parent / Path(path.strip()).expanduser()
                self._source.referenced_files.add(target)
                text = read_text_file(target)
            except (OSError, ValueError, RuntimeError) as error:
                reason = (
                    error.strerror if isinstance(error, OSError) else "not a readable text file"
                )
                missing = f"cannot read {what} ({reason}); paths start at {self._file.parent}"
        else:
            message = "unfinished reference: write ${NAME} or ${file:PATH}, or $${ for a plain ${"
            self._source.add_problem(keys, message)
            return ""
        try:
            value = clean_reference(text)
            problem = "" if value else missing
        except ValueError as error:
            problem = f"{what} {error}"
        if problem:
            self._source.unresolved[keys] = problem
            return "unresolved" + f"{zlib.crc32(match[0].encode()):08x}".translate(
                str.maketrans("0123456789", "ghijklmnop")
            )
        self._source.resolved_values.add(value)
        return value


def _explain_yaml_error(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    """Return the line and the parser's own words, without what they quote of the file; and what
    mostly helps.
    """
    if isinstance(error, yaml.reader.ReaderError):
        return text.count("\n", 0, error.position) + 1, "contains control characters"
    mark: yaml.Mark | None = getattr(error, "problem_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return 1, str(error)
    why, begun = re.sub(r"'\w[^']*'", "it", str(error.problem)), error.context_mark
    if begun is not None:
        why += f" {error.context} that begins in line {begun.line + 1}, column {begun.column + 1}"
    return mark.line + 1, f"{why} (column {mark.column + 1}); {_YAML_HELP}"
