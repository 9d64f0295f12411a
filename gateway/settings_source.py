"""What was written in configuration files, and where. Nothing here ever quotes a value."""

from dataclasses import dataclass, field
from pathlib import Path

Keys = tuple[str | int, ...]
"""Where a value is: mapping keys and list positions from the top."""
Tree = str | int | float | bool | None | list["Tree"] | dict[str, "Tree"]

_MIN_HIDDEN_CHARS = 4
"""Shorter values than this give nothing away, and would blot out ordinary words."""


@dataclass(frozen=True, slots=True, order=True)
class ConfigProblem:
    """One thing to mend in the configuration. Never holds a secret."""

    file: str
    """As it should be shown; empty if the configuration came from no file."""
    line: int
    """From 1; 0 if there is none."""
    key: str
    """E.g. `agents[0].model`; empty: the file as a whole."""
    message: str
    """What is wrong, and what to write instead."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.key, self.message) if part)


@dataclass(slots=True)
class ConfigSource:
    """What was read so far."""

    data: dict[str, Tree] = field(default_factory=dict)
    positions: dict[Keys, tuple[Path, int]] = field(default_factory=dict)
    """File and line of every key and list item."""
    reference_keys: dict[Keys, bool] = field(default_factory=dict)
    """Values that hold a `${...}`; True: they are nothing else, so their text may stand for a number."""
    referenced_files: set[Path] = field(default_factory=set)
    """Files that `${file:...}` names."""
    problems: list[ConfigProblem] = field(default_factory=list)
    resolved_values: set[str] = field(default_factory=set)
    """What references stood for: never shown."""
    damaged_keys: set[Keys] = field(default_factory=set)
    """Values already complained about: what they hold instead means nothing."""

    def find_position(self, keys: Keys) -> tuple[Path | None, int]:
        """The nearest known place at or above `keys`."""
        while keys and keys not in self.positions:
            keys = keys[:-1]
        return self.positions.get(keys, (None, 0))

    def add_problem(self, keys: Keys, message: str) -> None:
        """Add a problem at `keys`."""
        file, line = self.find_position(keys)
        for value in sorted(self.resolved_values, key=len, reverse=True):
            message = message.replace(value, "***") if len(value) >= _MIN_HIDDEN_CHARS else message
        self.problems.append(ConfigProblem(str(file or ""), line, format_key(keys), message))
        self.damaged_keys.add(keys)


def check_path(path: Path) -> Path:
    """The path, if the system can take it. Raises ValueError."""
    if "\0" in str(path):
        raise ValueError("a path cannot hold the character NUL")
    return path


def format_key(keys: Keys) -> str:
    """For people: `agents[0].model`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def value_at(node: Tree, *keys: str | int) -> Tree:
    """The value there, or None."""
    for key in keys:
        if isinstance(node, dict) and isinstance(key, str):
            node = node.get(key)
        elif isinstance(node, list) and isinstance(key, int) and key < len(node):
            node = node[key]
        else:
            return None
    return node


def merge_sources(whole: ConfigSource, part: ConfigSource) -> None:
    """Add one file's values to those before it. A value in both is a problem, told at the later one."""
    _merge_into(whole, part, whole.data, part.data, ())
    whole.problems += part.problems
    whole.damaged_keys |= part.damaged_keys
    whole.referenced_files |= part.referenced_files
    whole.resolved_values |= part.resolved_values
    whole.positions = part.positions | whole.positions
    whole.reference_keys = part.reference_keys | whole.reference_keys


def _merge_into(
    whole: ConfigSource, part: ConfigSource, into: dict[str, Tree], data: dict[str, Tree], above: Keys
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
