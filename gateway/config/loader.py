"""Configuration files: from a directory of YAML files to `Settings`, or to all problems in them at
once.

Files are `*.yaml` and `*.yml` of the directory itself (not `prices.yaml`, `compose.yaml`,
`compose.*.yaml`, `*.example.yaml`, hidden files), merged by key. `${NAME}` is an environment
variable, `${file:PATH}` the text of a file (PATH starts at the configuration file), both without
surrounding white space, `$${` a plain `${`. A value that is exactly one reference may stand for a
number or a boolean: `port: ${PORT}`. Reading files blocks: for a thread.
"""

import contextlib
import copy
import difflib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.models import Settings
from gateway.config.secrets import walk_values
from gateway.config.source import (
    STAND_IN,
    ConfigProblem,
    ConfigSource,
    Keys,
    Tree,
    format_key,
    is_config_file,
    merge_sources,
    parse_scalar,
    read_yaml_file,
    value_at,
)
from gateway.config.validation import cross_check, find_warnings
from gateway.core.frozen import frozen
from gateway.core.private_files import agent_state_directory

_TAGGED_UNIONS = (("channels",), ("llm", "providers"))
"""Paths of tagged unions: pydantic puts the tag into the location, after the key below these."""
REQUIRED_MESSAGE = "is required"
_MESSAGES = {
    "missing": REQUIRED_MESSAGE,
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list, e.g. [a, b]",
    "list_type": "must be a list, e.g. [a, b]",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "path_type": "must be a path in quotes",
}
_CONTEXT_MESSAGES = {
    "literal_error": "must be {expected}",
    "union_tag_invalid": (
        "must be one of {expected_tags}; others come with plugins (`reverie plugins`)"
    ),
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_pattern_mismatch": "must look like {pattern}",
    "too_short": "must have at least {min_length}",
    "string_too_short": "must have at least {min_length} characters",
}
_REMOVED_KEYS: Mapping[str, str] = {
    "channels.*.realname": "it is the contact now; take this line out",
    "channels.*.source": "the answer to CTCP SOURCE is fixed now; take this line out",
    "channels.*.username": "it is made of the nick now; take this line out",
    "channels.*.nickserv": (
        "use `sasl`, or write `PRIVMSG NickServ :IDENTIFY ACCOUNT PASSWORD` under `on_connect`"
    ),
    "channels.*.rejoin_after_kick": (
        "thrown out of a room, it stays out until an admin has it join; take this line out"
    ),
    "channels.*.history_age": "it is always 1 h now; take this line out",
    "channels.*.connect_timeout": "it is always 60 s now; take this line out",
    "channels.*.ping_interval": "it is always 60 s now; take this line out",
    "channels.*.ping_timeout": "it is always 30 s now; take this line out",
    "channels.*.uncertain": (
        "a message without an answer is always looked for and sent again if it is not there; take "
        "this line out"
    ),
    "channels.*.shards": (
        "each connection is a channel now: give each one a channel with `shard: [NUMBER, COUNT]`"
    ),
    "agents*.surface": (
        "the tools that most turns need are described, all others are named; take this line out"
    ),
    "store.keep_kinds": (
        "all kinds of entries leave together, after `store.keep`; take this line out"
    ),
    "tools.web.max_redirects": "it is always 5 now; take this line out",
    "tools.bash.jobs": "it is always 4 now; take this line out",
    "tools.bash.output_bytes": "it is always 200000 now; take this line out",
    "tools.web.timeout": "it is always 20 s now; take this line out",
    "tools.web.max_bytes": "it is always 5000000 now; take this line out",
    "media.max_images": "it is always 4 now; take this line out",
    "media.timeout": "it is always 20 s now; take this line out",
    "recall.prefetch.timeout": "it is always 2 s now; take this line out",
    "dmn.max_reminders": "it is always 20 now; take this line out",
    "access.budgets.*_hour_usd": "budgets count for a day; take this line out",
    "dmn.memory_chars": "it is always 8000 now; take this line out",
    "attention.rules*.regex": "write a rule with `keyword` for each word",
    "attention.salience": (
        "for questions write `speaks_up: when_useful` in the binding of a room; for words and "
        "people put rules under `attention.rules`, with `type: '*.room.*'`, `urgency: normal`, and "
        "`keyword` or `role` (a rule names no single person)"
    ),
    "llm.context_optimization.folds.keep_recent_tool_results": (
        "it is always 2 now; take this line out"
    ),
    "llm.context_optimization.folds.active_evidence_tokens": (
        "it is always 18000 now; take this line out"
    ),
    "llm.context_optimization.folds.completed_evidence_tokens": (
        "it is always 2000 now; take this line out"
    ),
    "llm.context_optimization.folds.nudge_at_pct": "it is always 0.8 now; take this line out",
    "llm.context_optimization.folds.fold_at_pct": "it is always 0.9 now; take this line out",
    "llm.context_optimization.folds.provider_side": (
        "Reverie shortens and summarises itself; take this line out"
    ),
    "access.reminders": (
        "a guest has 2 reminders, 10 min apart, a member 10, 5 min apart; take it out"
    ),
    "tools.clean_view": (
        "a turn sees its whole view, and what a call does decides now; take this line out"
    ),
}
"""Keys of earlier versions, `*` for any name, and what to do."""
_OPEN_TO_OTHERS = 0o044
ConfigStamp = frozenset[tuple[str, int, int, int]]
"""Path, inode, size and change time (ns; also of permissions) of each file: equal while no file
changes."""


def explain_errors(error: ValidationError, data: dict[str, Tree]) -> list[tuple[Keys, str]]:
    """Return keys and message for each validation error of `data`. No message contains a value."""
    problems: dict[Keys, list[str]] = {}
    for detail in error.errors(include_url=False, include_input=False):
        keys = _error_keys(detail, data)
        if detail["type"] == "extra_forbidden":
            keys, message = _unknown_key(keys, data)
        else:
            message = _error_message(detail)
        messages = problems.setdefault(keys, [])
        if message not in messages:
            messages.append(message)
    # A union reports an error for each of its forms: if one got further into the value, the others
    # do not matter.
    return [
        (
            keys,
            ", or ".join(
                [messages[0], *(message.removeprefix("must be ") for message in messages[1:])]
            ),
        )
        for keys, messages in problems.items()
        if messages == [REQUIRED_MESSAGE]
        or not any(len(other) > len(keys) and other[: len(keys)] == keys for other in problems)
    ]


def _error_keys(detail: ErrorDetails, data: dict[str, Tree]) -> Keys:
    loc = detail["loc"]
    for above in _TAGGED_UNIONS:
        if loc[: len(above)] == above:
            loc = (*loc[: len(above) + 1], *loc[len(above) + 2 :])
    keys: Keys = ()
    node: Tree = data
    for key in loc:
        if key in (
            node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        ):
            keys, node = (*keys, key), value_at(node, key)
    if detail["type"] == "missing":
        return (*keys, loc[-1])
    if detail["type"].startswith("union_tag"):
        return (*keys, detail["ctx"]["discriminator"].strip("'"))
    return keys


def _error_message(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "union_tag_not_found":
        return REQUIRED_MESSAGE
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind in _CONTEXT_MESSAGES:
        return _CONTEXT_MESSAGES[kind].format(**detail["ctx"])
    return _MESSAGES.get(kind, detail["msg"])


def _unknown_key(keys: Keys, data: dict[str, Tree]) -> tuple[Keys, str]:
    *above, key = keys
    name, colon, _ = str(key).partition(":")
    if colon:  # `{password:secret}`: the rest may be a secret
        return (*above, name), "unknown key; write a space after the colon"
    for pattern, remedy in _REMOVED_KEYS.items():
        if fnmatchcase(format_key(keys), pattern):
            return keys, f"is no setting any more; {remedy}"
    known = sorted(_known_keys(tuple(above), data))
    close = difflib.get_close_matches(name.replace("-", "_").lower(), known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(known)}"
    if not above and not close:
        hint += "; others come with plugins (`reverie plugins`)"
    return keys, f"unknown key; {hint}"


def _known_keys(keys: Keys, data: dict[str, Tree]) -> set[str]:
    forms: list[Any] = [_model(data)]
    node: Any = data
    for key in keys:
        forms = [below for form in forms for below in _forms_below(form, key)]
        node = node[key]
    return {name for form in forms if _fits_form(form, node) for name in form.model_fields}


def _forms_below(form: Any, key: str | int) -> list[Any]:  # noqa: ANN401  # type annotations are objects of any kind
    if isinstance(form, type) and issubclass(form, BaseModel):
        field = form.model_fields.get(str(key))
        return _forms(field.annotation) if field else []
    arguments = get_args(form)
    origin = get_origin(form)
    return (
        _forms(arguments[1] if origin is dict else arguments[0])
        if origin in {dict, tuple, list}
        else []
    )


def _forms(annotation: Any) -> list[Any]:  # noqa: ANN401  # the same
    origin = get_origin(annotation)
    if origin is Annotated:
        return _forms(get_args(annotation)[0])
    if origin in {Union, UnionType}:
        return [form for part in get_args(annotation) for form in _forms(part)]
    return [annotation]


def _fits_form(form: Any, node: Any) -> bool:  # noqa: ANN401  # the same
    if not (isinstance(form, type) and issubclass(form, BaseModel) and isinstance(node, dict)):
        return False
    return all(
        node[tag] in get_args(form.model_fields[tag].annotation)
        for tag in ("platform", "kind")
        if tag in node and tag in form.model_fields
    )


class ConfigError(Exception):
    """The configuration cannot be used. `problems` holds everything to fix, in the order of the
    files.
    """

    def __init__(
        self, problems: tuple[ConfigProblem, ...], targets: frozenset[Path] = frozenset()
    ) -> None:
        """`targets`: like `LoadedConfig.referenced_files`."""
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.referenced_files = targets


@frozen
class LoadedConfig:
    """A valid configuration and its sources."""

    settings: Settings
    warnings: tuple[ConfigProblem, ...]
    """Settings that work but are unwise."""
    resolved_values: frozenset[str]
    """Values of `${NAME}` and `${file:...}`: never shown."""
    referenced_files: frozenset[Path]
    """Files named by `${file:...}`, readable or not."""
    positions: Mapping[str, tuple[str, int]]
    """File and line of every written key, by key, e.g. `agents[0].model`."""


def read_config(
    directory: Path,
    env: Mapping[str, str],
    *,
    needs: Collection[str] | None = None,
    texts: Mapping[str, str] = MappingProxyType({}),
) -> LoadedConfig:
    """Read a configuration. Raises `ConfigError`, and nothing else for any content.

    `needs`: the sections in which every `${...}` must have a value; elsewhere a word of its own
    stands for one that has none, and there are no warnings. None: all. `texts`: by the names of
    files, what they are to hold.
    """
    source = _read_directory(directory, env, texts)
    settings = _validate(source, directory, needs)
    warnings = () if needs is not None else tuple(_find_warnings(settings, source, directory, env))
    return LoadedConfig(
        settings=settings,
        warnings=warnings,
        resolved_values=frozenset(source.resolved_values),
        referenced_files=frozenset(source.referenced_files),
        positions={
            format_key(keys): (str(file), line) for keys, (file, line) in source.positions.items()
        },
    )


def _find_warnings(
    settings: Settings, source: ConfigSource, directory: Path, env: Mapping[str, str]
) -> Iterator[ConfigProblem]:
    yield from _readable_secrets(settings, source)
    yield from _exposed_paths(settings, source, directory)
    for keys, message in (*find_warnings(settings), *_find_missing_parts(settings, source, env)):
        yield _problem_at(source, keys, message)


def _find_missing_parts(
    settings: Settings, source: ConfigSource, env: Mapping[str, str]
) -> Iterator[tuple[Keys, str]]:
    """Yield programs and TLS files that are not on this machine: the gateway runs, and what needs
    them does not.
    """
    fix = "install it, or write its full path (the gateway's PATH may be shorter than yours)"
    for keys in (
        ("media", "transcribe"),
        ("recall", "prefetch", "command"),
        *(("tools", "mcp", name, "command") for name in settings.tools.mcp),
    ):
        program = value_at(source.data, *keys, 0)
        if program and shutil.which(str(program), path=env.get("PATH")) is None:
            yield keys, f"there is no program {program}; {fix}"
    for name, channel in settings.channels.items():
        if why := channel.explain_unconnectable():
            yield ("channels", name, "tls"), f"{why}; correct the names of the files"


def parse_config(data: Mapping[str, object], base: Path) -> Settings:
    """Validate values that come from no file. Paths start at `base`. Raises `ConfigError`."""
    tree: dict[str, Tree] = copy.deepcopy(dict(data))  # type: ignore[arg-type]  # validation finds what is no tree
    return _validate(ConfigSource(data=tree), base)


def _read_directory(
    directory: Path, env: Mapping[str, str], texts: Mapping[str, str] = MappingProxyType({})
) -> ConfigSource:
    merged = ConfigSource()
    try:
        files = sorted(path for path in directory.iterdir() if is_config_file(path))
    except OSError as error:
        message = (
            f"cannot read the configuration directory ({error.strerror}); name another with "
            "--config"
        )
        raise ConfigError((ConfigProblem(str(directory), 0, "", message),)) from None
    if not files:
        message = "has no configuration (*.yaml); `reverie setup` writes one"
        raise ConfigError((ConfigProblem(str(directory), 0, "", message),))
    for file in files:
        merge_sources(merged, read_yaml_file(file, env, texts.get(file.name)))
    return merged


def _validate(source: ConfigSource, base: Path, needs: Collection[str] | None = None) -> Settings:
    for keys, message in source.unresolved.items():
        if needs is None or keys[0] in needs:
            source.add_problem(keys, message)
    settings, errors = _try_validate(source.data, base)
    if settings is None and (
        _reread_numbers(source, errors)
        | (needs is not None and _leave_out_unresolved(source, errors))
    ):
        settings, errors = _try_validate(source.data, base)
    is_incomplete = (
        () in source.damaged_keys
    )  # a missing value may be in the file that could not be read
    for keys, message in errors:
        damaged = any(keys[:length] in source.damaged_keys for length in range(1, len(keys) + 1))
        is_told = damaged or STAND_IN.search(message) is not None
        if not is_told and not (is_incomplete and message == REQUIRED_MESSAGE):
            above = (keys[:length] for length in range(1, len(keys) + 1))
            source.add_problem(
                keys,
                next(
                    (source.unresolved[one] for one in above if one in source.unresolved), message
                ),
            )
    if settings is not None and not source.problems:
        for keys, message in (*cross_check(settings), *_check_plugins(settings)):
            if needs is None or not any(_touches(one, keys) for one in source.unresolved):
                source.add_problem(keys, message)
    if settings is None or source.problems:
        raise ConfigError(
            tuple(sorted(set(source.problems))), frozenset(source.referenced_files)
        ) from None
    # The default path is relative to `base`, too.
    store = settings.store.model_copy(update={"path": base.absolute() / settings.store.path})
    return settings.model_copy(update={"store": store})


def _check_plugins(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """Yield what the section `plugins` names and this environment does not have."""
    found = import_module("gateway.plugins").find_plugins(settings.plugins.off)
    names = {one.name for one in found.classes}
    for key in ("need", "off"):
        for name in getattr(settings.plugins, key):
            told = next((str(one) for one in found.problems if one.plugin == name), "")
            if (told and key == "need") or not (told or name in names):
                message = told or f"there is no plugin {name}; `reverie plugins` lists all"
                yield ("plugins", key), message
    used = {name for one in found.used for name in (*one.platforms, *one.providers)}
    chosen: list[tuple[Keys, str]] = [
        (("channels", name, "platform"), one.platform) for name, one in settings.channels.items()
    ]
    chosen += [
        (("llm", "providers", name, "kind"), one.kind)
        for name, one in settings.llm.providers.items()
    ]
    for keys, kind in chosen:
        if kind not in used:
            why = "is off (plugins.off), or cannot be used (`reverie plugins` says why)"
            yield keys, f"the plugin that brings {kind} {why}"


def _model(data: dict[str, Tree]) -> type[Settings]:
    """Return the model of this configuration with the sections of the plugins, which stand above
    it.
    """
    plugins = data.get("plugins")
    names = plugins.get("off") if isinstance(plugins, dict) else None
    off = tuple(one for one in names if isinstance(one, str)) if isinstance(names, list) else ()
    model: type[Settings] = import_module("gateway.plugins").settings_model(off)
    return model


def _try_validate(
    data: dict[str, Tree], base: Path
) -> tuple[Settings | None, list[tuple[Keys, str]]]:
    try:
        return _model(data).model_validate(data, context=base.absolute()), []
    except ValidationError as error:
        return None, explain_errors(error, data)


def _reread_numbers(source: ConfigSource, errors: list[tuple[Keys, str]]) -> bool:
    changed = False
    for keys, _ in errors:
        if not source.reference_keys.get(keys):
            continue
        parent, key = value_at(source.data, *keys[:-1]), keys[-1]
        text = value_at(parent, key)
        value = parse_scalar(text) if isinstance(text, str) else text
        if isinstance(value, str):
            continue
        changed = True
        parent[key] = value  # type: ignore[index]  # `key` was found in it
    return changed


def _leave_out_unresolved(source: ConfigSource, errors: list[tuple[Keys, str]]) -> bool:
    """Remove the values without which a command can do, and whose stand-ins do not fit: their
    defaults hold. Return whether there was one. The last item of a list goes first.
    """
    wrong = [
        keys
        for keys in sorted(source.unresolved, reverse=True)
        if any(_touches(keys, at) for at, _ in errors)
    ]
    for *above, key in wrong:
        del value_at(source.data, *above)[key]  # type: ignore[arg-type,union-attr]  # `key` was read there
    return bool(wrong)


def _touches(one: Keys, other: Keys) -> bool:
    """Return whether one of two values is the other, or a part of it."""
    return all(a == b for a, b in zip(one, other, strict=False))


def _readable_secrets(settings: Settings, source: ConfigSource) -> Iterator[ConfigProblem]:
    positions = {
        source.find_position(keys)
        for keys, value in walk_values(settings)
        if isinstance(value, SecretStr)
        and value.get_secret_value() not in {"", "none"}
        and keys not in source.reference_keys
    }
    for file, line in sorted((file, line) for file, line in positions if file is not None):
        if file.stat().st_mode & _OPEN_TO_OTHERS:
            yield ConfigProblem(
                str(file),
                line,
                "",
                "contains a secret that other users can read; chmod 600, or use ${NAME}",
            )
    for file in sorted(source.referenced_files):
        if file.stat().st_mode & _OPEN_TO_OTHERS:
            yield ConfigProblem(
                str(file), 0, "", "is a secret that other users can read; chmod 600"
            )


def _exposed_paths(
    settings: Settings, source: ConfigSource, directory: Path
) -> Iterator[ConfigProblem]:
    """Yield warnings about private directories inside the directory that an agent's tools can
    access.
    """
    private = {"the configuration": directory, "the store": settings.store.path}
    private |= {
        f"the workspace of {one.id}": one.workspace
        for one in settings.agents
        if one.workspace is not None
    }
    state = {
        f"the notes of {one.id}": agent_state_directory(settings.store.path, one.id)
        for one in settings.agents
    }
    for number, agent in enumerate(settings.agents):
        keys: Keys = ("agents", number, "files")
        store = agent.files is not None and settings.store.path.resolve().is_relative_to(
            agent.files.resolve()
        )
        for what, path in (private if store else private | state).items():
            if agent.files is not None and path.resolve().is_relative_to(agent.files.resolve()):
                message = (
                    f"contains {what}, which everybody who may ask for files could read "
                    "then; use a separate directory"
                )
                yield _problem_at(source, keys, message)


def _problem_at(source: ConfigSource, keys: Keys, message: str) -> ConfigProblem:
    file, line = source.find_position(keys)
    return ConfigProblem(str(file), line, format_key(keys), message)


def locate_problem(problem: ConfigProblem, lines: Mapping[str, tuple[str, int]]) -> ConfigProblem:
    """Add the file and line of the problem's key, or of the nearest written key above it."""
    key = problem.key
    while key and key not in lines:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    file, line = lines.get(key, ("", 0))
    return problem if problem.file else replace(problem, file=file, line=line)


class ConfigFiles:
    """The configuration files of one directory and the files they refer to. One read at a time."""

    def __init__(
        self,
        directory: Path,
        env: Mapping[str, str],
        referenced_files: frozenset[Path] = frozenset(),
        ops: Mapping[str, object] | None = None,
    ) -> None:
        """`referenced_files`: those of the configuration that was read last. `ops`: values in place
        of those of the section `ops`, for this process.
        """
        self.directory = directory
        self._env = env
        self._ops = ops or {}
        self._targets = referenced_files
        self._stamp = self._take_stamp(referenced_files)

    def paths(self) -> list[Path]:
        """Return the configuration files, in their order. Raises OSError."""
        return sorted(path for path in self.directory.iterdir() if is_config_file(path))

    def check(self, name: str, text: str) -> Settings:
        """Return the settings as they would be if this file held this text. Raises ConfigError,
        OSError.
        """
        return self.with_ops(read_config(self.directory, self._env, texts={name: text}).settings)

    def is_stale(self) -> bool:
        """Return whether any file changed since the last read; since it was made, at first."""
        return self._take_stamp(self._targets) != self._stamp

    def read(self) -> LoadedConfig:
        """Read the configuration; later changes make it stale. Raises ConfigError, OSError."""
        stamp, targets = self._take_stamp(self._targets), self._targets
        try:
            loaded = read_config(self.directory, self._env)
            targets = loaded.referenced_files
        except ConfigError as error:
            targets |= error.referenced_files
            raise
        finally:
            gone = {str(one) for one in self._targets - targets}
            stamp |= self._take_stamp(targets - self._targets)
            self._stamp = frozenset(one for one in stamp if one[0] not in gone)
            self._targets = targets
        return replace(loaded, settings=self.with_ops(loaded.settings))

    def with_ops(self, settings: Settings) -> Settings:
        """Return the settings with the values of the section `ops` for this process."""
        return (
            settings.model_copy(update={"ops": settings.ops.model_copy(update=self._ops)})
            if self._ops
            else settings
        )

    def _take_stamp(self, targets: Iterable[Path]) -> ConfigStamp:
        try:
            files = [path for path in self.directory.iterdir() if path.suffix in {".yaml", ".yml"}]
        except OSError:  # being replaced just now: the next check finds it
            files = []
        stamp = set()
        for path in (*files, *targets):
            with contextlib.suppress(OSError, ValueError):
                stat = path.stat()
                stamp.add((str(path), stat.st_ino, stat.st_size, stat.st_ctime_ns))
        return frozenset(stamp)
