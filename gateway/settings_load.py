"""From a directory of YAML files to a `Settings`, or to everything that is wrong with them at once.

Files are `*.yaml` and `*.yml` of the directory itself (not `prices.yaml`, `compose.yaml`, `*.example.yaml`, hidden
files), merged by key. `${NAME}` is an environment variable, `${file:PATH}` a file's text without the
white space around it (PATH starts at the configuration file), `$${` a plain `${`. A value that is
nothing but one reference may stand for a number or a truth: `port: ${PORT}`.
"""

import copy
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr, ValidationError

from gateway import own_files
from gateway.fields import Section
from gateway.settings import Settings
from gateway.settings_access import unwise
from gateway.settings_cross import cross_check
from gateway.settings_errors import REQUIRED, explain
from gateway.settings_source import Keys, Problem, Source, Tree, at, dotted, merge
from gateway.settings_yaml import read_file, scalar

__all__ = ["BadConfig", "Problem", "Read", "check", "is_config", "load", "named", "parse", "read"]

_log = logging.getLogger(__name__)

_PATHS: tuple[Keys, ...] = (
    ("store", "path"),
    ("agents", "*", "files"),
    ("agents", "*", "workspace"),
    ("channels", "*", "tls", "ca_file"),
    ("channels", "*", "tls", "cert_file"),
)
"""Values that name files. `*` stands for any key or position."""
_OPEN_TO_OTHERS = 0o044


class BadConfig(Exception):
    """The configuration cannot be used. `problems` holds everything to mend, in the order of the files."""

    def __init__(self, problems: tuple[Problem, ...], targets: frozenset[Path] = frozenset()) -> None:
        """`targets`: as `Read.targets`."""
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.referenced_files = targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A configuration that is valid, and what it was read from."""

    settings: Settings
    warnings: tuple[Problem, ...]
    """What is unwise about it though it works."""
    resolved_values: frozenset[str]
    """What `${NAME}` and `${file:...}` stood for: never shown."""
    referenced_files: frozenset[Path]
    """Files that `${file:...}` names, whether they could be read or not."""
    positions: Mapping[str, tuple[str, int]]
    """By key, e.g. `agents[0].model`: file and line of everything that is written."""


def load(directory: Path, env: Mapping[str, str]) -> Settings:
    """Read a configuration; warnings go to the log. Raises `BadConfig`, and nothing else for any content."""
    settings, warnings = check(directory, env)
    for warning in warnings:
        _log.warning("%s", warning)
    return settings


def check(directory: Path, env: Mapping[str, str]) -> tuple[Settings, tuple[Problem, ...]]:
    """Read a configuration and what is unwise about it though it works. Raises `BadConfig`."""
    found = read(directory, env)
    return found.settings, found.warnings


def read(directory: Path, env: Mapping[str, str]) -> Read:
    """Read a configuration, with all that there is to say of it. Raises `BadConfig`."""
    source = _read(directory, env)
    settings = _validate(source, directory)
    lax = [_problem(source, keys, message) for keys, message in unwise(settings)]
    return Read(
        settings=settings,
        warnings=(*_readable_secrets(settings, source), *_given_away(settings, source, directory), *lax),
        resolved_values=frozenset(source.resolved_values),
        referenced_files=frozenset(source.referenced_files),
        positions={dotted(keys): (str(file), line) for keys, (file, line) in source.positions.items()},
    )


def referenced(directory: Path, env: Mapping[str, str]) -> frozenset[str]:
    """What the references of a configuration stand for. Raises `BadConfig` if it cannot be read at all."""
    return frozenset(_read(directory, env).resolved_values)


def named(directory: Path, env: Mapping[str, str]) -> frozenset[Path]:
    """Files that `${file:...}` names in a configuration. Raises `BadConfig` if it cannot be read at all."""
    return frozenset(_read(directory, env).referenced_files)


def parse(data: Mapping[str, object], base: Path) -> Settings:
    """Validate values that come from no file. Paths start at `base`. Raises `BadConfig`."""
    tree: dict[str, Tree] = copy.deepcopy(dict(data))  # type: ignore[arg-type]  # validation finds what is no tree
    return _validate(Source(data=tree), base)


def _read(directory: Path, env: Mapping[str, str]) -> Source:
    whole = Source()
    try:
        files = sorted(path for path in directory.iterdir() if is_config(path))
    except OSError as error:
        message = f"cannot read the configuration directory ({error.strerror}); name another with --config"
        raise BadConfig((Problem(str(directory), 0, "", message),)) from None
    if not files:
        message = "holds no configuration (*.yaml); `reverie setup` writes one"
        raise BadConfig((Problem(str(directory), 0, "", message),))
    for file in files:
        merge(whole, read_file(file, env))
    return whole


def is_config(path: Path) -> bool:
    """Whether a file of the directory is one of those that are read. Raises OSError."""
    skipped = path.name.startswith(".") or path.stem in {"prices", "compose"} or path.stem.endswith(".example")
    return path.suffix in {".yaml", ".yml"} and not skipped and path.is_file()


def _validate(source: Source, base: Path) -> Settings:
    for keys in _PATHS:
        _make_absolute(source.data, keys, base.absolute())
    settings, errors = _attempt(source.data)
    if settings is None and _reread_numbers(source, errors):
        settings, errors = _attempt(source.data)
    unread = () in source.damaged_keys  # what is missing may stand in the file that could not be read
    for keys, message in errors:
        damaged = any(keys[:length] in source.damaged_keys for length in range(1, len(keys) + 1))
        if not damaged and not (unread and message == REQUIRED):
            source.add_problem(keys, message)
    for keys, message in () if unread else tuple(cross_check(source.data)):
        if keys not in source.damaged_keys:
            source.add_problem(keys, message)
    if settings is None or source.problems:
        raise BadConfig(tuple(sorted(set(source.problems))), frozenset(source.referenced_files)) from None
    store = settings.store.model_copy(update={"path": base.absolute() / settings.store.path})  # where left out
    return settings.model_copy(update={"store": store})


def _attempt(data: dict[str, Tree]) -> tuple[Settings | None, list[tuple[Keys, str]]]:
    try:
        return Settings.model_validate(data), []
    except ValidationError as error:
        return None, explain(error, data)


def _make_absolute(node: Tree, keys: Keys, base: Path) -> None:
    key, *rest = keys
    if key == "*":
        children = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
        for child in children:
            _make_absolute(child, tuple(rest), base)
    elif isinstance(node, dict) and isinstance(key, str):
        value = node.get(key)
        if rest:
            _make_absolute(value, tuple(rest), base)
        elif isinstance(value, str) and value:
            node[key] = str(base / _expanded(value))


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # `~somebody` who has no home here: the name as it is
        return Path(path)


def _reread_numbers(source: Source, errors: list[tuple[Keys, str]]) -> bool:
    changed = False
    for keys, _ in errors:
        if not source.reference_keys.get(keys):
            continue
        parent, key = at(source.data, *keys[:-1]), keys[-1]
        text = at(parent, key)
        value = scalar(text) if isinstance(text, str) else text
        if isinstance(value, str):
            continue
        changed = True
        parent[key] = value  # type: ignore[index]  # `key` was found in it
    return changed


def _readable_secrets(settings: Settings, source: Source) -> Iterator[Problem]:
    written = {source.find_position(keys) for keys in _secrets(settings, ()) if keys not in source.reference_keys}
    for file, line in sorted((file, line) for file, line in written if file is not None):
        if file.stat().st_mode & _OPEN_TO_OTHERS:
            yield Problem(str(file), line, "", "holds a secret that other users can read; chmod 600, or use ${NAME}")
    for file in sorted(source.referenced_files):
        if file.stat().st_mode & _OPEN_TO_OTHERS:
            yield Problem(str(file), 0, "", "is used as a secret and other users can read it; chmod 600")


def _given_away(settings: Settings, source: Source, directory: Path) -> Iterator[Problem]:
    """What an agent's tools could read, or change, in its files, and never should."""
    kept = {"the configuration": directory, "the store": settings.store.path}
    kept |= {f"the workspace of {one.id}": one.workspace for one in settings.agents if one.workspace is not None}
    minds = {f"what {one.id} remembers": own_files.mind(settings.store.path, one.id) for one in settings.agents}
    for number, agent in enumerate(settings.agents):
        keys: Keys = ("agents", number, "files")
        store = agent.files is not None and settings.store.path.resolve().is_relative_to(agent.files.resolve())
        for what, path in (kept if store else kept | minds).items():
            if agent.files is not None and path.resolve().is_relative_to(agent.files.resolve()):
                told = f"holds {what}, which whoever may have files read can read then; name a directory of its own"
                yield _problem(source, keys, told)


def _problem(source: Source, keys: Keys, message: str) -> Problem:
    file, line = source.find_position(keys)
    return Problem(str(file), line, dotted(keys), message)


def _secrets(value: object, keys: Keys) -> Iterator[Keys]:
    if isinstance(value, SecretStr):
        if value.get_secret_value() not in {"", "none"}:
            yield keys
    elif isinstance(value, Section):
        for name, below in value:
            yield from _secrets(below, (*keys, name))
    elif isinstance(value, dict):
        for name, below in value.items():
            yield from _secrets(below, (*keys, name))
    elif isinstance(value, tuple):
        for index, below in enumerate(value):
            yield from _secrets(below, (*keys, index))
