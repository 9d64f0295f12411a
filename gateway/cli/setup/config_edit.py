"""Setup answers as configuration: as entries, as a new file, and as changes of existing files.

An existing file is edited in its own text, so that everything else stays as it is: positions are read with PyYAML, each
change is made in the text, and the result is parsed again. If it does not say exactly what was meant, `CannotEdit` is
raised and nothing is changed.

Files are checked as a whole in a directory beside the configuration and then put in place together. Everything up to
`ConfigDraft` is pure except for that.
"""

import contextlib
import copy
import difflib
import errno
import json
import os
import re
import secrets
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from gateway.cli.setup.dialog import (
    DiscordAnswers,
    IrcAnswers,
    ModelAnswers,
    ProviderKind,
    SecretReference,
    SetupAnswers,
    TelegramAnswers,
)
from gateway.config.loader import ConfigError, check_config, is_config_file
from gateway.config.source import Keys, Tree, format_key, parse_scalar, value_at
from gateway.core.redaction import Redactor

ConfigValue = str | int | bool | tuple[str, ...] | None
"""None: the key is left out."""


@dataclass(frozen=True, slots=True)
class ConfigReference:
    """A text with a `${...}` reference that must stay a reference."""

    text: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One value and its keys."""

    keys: Keys
    value: ConfigValue | ConfigReference
    comment: str = ""
    """Comment in a new file."""


_SECTIONS: Final[Mapping[str, str]] = {
    "channels": "accounts on platforms",
    "agents": "who answers",
    "llm": "with which model",
    "access": "who may do what",
    "ops": "the page and the console of the operator",
}
"""Top-level keys in the order of a new file, with their comments."""


def section_comment(section: str) -> str:
    """Return the comment of a top-level key."""
    return _SECTIONS.get(section, "")


def build_entries(answers: SetupAnswers) -> tuple[ConfigEntry, ...]:
    """Return all entries for the answers."""
    return tuple(_iter_entries(answers))


def _iter_entries(answers: SetupAnswers) -> Iterator[ConfigEntry]:
    if answers.telegram:
        yield from _telegram_entries(answers.telegram)
    if answers.discord:
        yield from _discord_entries(answers.discord)
    if answers.irc:
        yield from _irc_entries(answers.irc)
    yield ConfigEntry(("agents", 0, "id"), answers.agent_id)
    if answers.workspace:
        comment = "IDENTITY.md, SOUL.md, AGENTS.md: read anew when they change"
        yield ConfigEntry(("agents", 0, "workspace"), answers.workspace, comment)
    if answers.model:
        yield from _model_entries(answers.model)
    if answers.owners:
        comment = "<channel>:<id>, as /whoami shows it"
        yield ConfigEntry(("access", "roles", "owner"), answers.owners, comment)
    if answers.ops_token:
        comment = "what the page at 127.0.0.1:9090 asks for"
        yield ConfigEntry(("ops", "token"), ConfigReference(answers.ops_token.reference), comment)


def _telegram_entries(answers: TelegramAnswers) -> Iterator[ConfigEntry]:
    at_: Keys = ("channels", answers.channel)
    yield ConfigEntry((*at_, "platform"), "telegram")
    yield ConfigEntry((*at_, "token"), ConfigReference(answers.token.reference), "from @BotFather")
    yield ConfigEntry((*at_, "base_url"), answers.base_url)
    yield ConfigEntry((*at_, "rooms"), answers.rooms, 'groups where it may act: ids in quotes, or "*"')


def _discord_entries(answers: DiscordAnswers) -> Iterator[ConfigEntry]:
    at_: Keys = ("channels", answers.channel)
    yield ConfigEntry((*at_, "platform"), "discord")
    yield ConfigEntry((*at_, "token"), ConfigReference(answers.token.reference), "from the developer portal")
    yield ConfigEntry((*at_, "api_url"), answers.api_url)
    yield ConfigEntry((*at_, "gateway_url"), answers.gateway_url)
    yield ConfigEntry((*at_, "rooms"), answers.rooms, 'guilds or channels where it may act: ids in quotes, or "*"')


def _irc_entries(answers: IrcAnswers) -> Iterator[ConfigEntry]:
    at_: Keys = ("channels", answers.channel)
    yield ConfigEntry((*at_, "platform"), "irc")
    yield ConfigEntry((*at_, "host"), answers.host)
    yield ConfigEntry((*at_, "port"), answers.port)
    yield ConfigEntry((*at_, "tls", "ca_file") if answers.ca_file else (*at_, "tls"), answers.ca_file or answers.tls)
    yield ConfigEntry((*at_, "nick"), answers.nick)
    password = answers.server_password
    yield ConfigEntry((*at_, "password"), ConfigReference(password.reference) if password else None, "of the server")
    if answers.mechanism == "external":
        pass  # nothing was asked
    elif answers.account and answers.account_password:
        yield ConfigEntry((*at_, "sasl", "mechanism"), answers.mechanism)
        yield ConfigEntry((*at_, "sasl", "account"), answers.account)
        yield ConfigEntry((*at_, "sasl", "password"), ConfigReference(answers.account_password.reference))
    else:
        yield ConfigEntry((*at_, "sasl"), None)
    yield ConfigEntry((*at_, "contact"), answers.contact, "shown to whoever asks who runs it")
    yield ConfigEntry((*at_, "rooms"), answers.rooms)


def _model_entries(answers: ModelAnswers) -> Iterator[ConfigEntry]:
    at_: Keys = ("llm", "providers", answers.provider)
    yield ConfigEntry((*at_, "kind"), answers.kind)
    yield ConfigEntry((*at_, "base_url"), answers.base_url)
    yield ConfigEntry((*at_, "api_key"), ConfigReference(answers.api_key.reference) if answers.api_key else None)
    main: Keys = ("llm", "models", answers.model_key)
    yield ConfigEntry((*main, "provider"), answers.provider)
    yield ConfigEntry((*main, "name"), answers.name)
    yield ConfigEntry((*main, "context_tokens"), answers.context_tokens)


def read_answers(data: Mapping[str, Tree], values: Mapping[str, str]) -> SetupAnswers:
    """Read the answers back from a configuration. Texts are as written, so references stay references.

    `values`: values of references as far as known. What setup would not write like that is left out.
    """
    tree: Tree = dict(data)
    channels = value_at(tree, "channels")
    named: Mapping[str, Tree] = channels if isinstance(channels, dict) else {}

    def first(platform: str) -> str | None:
        return next((name for name, channel in named.items() if value_at(channel, "platform") == platform), None)

    def secret(*keys: str | int) -> SecretReference | None:
        text = _as_text(value_at(tree, *keys))
        return SecretReference(reference=text, value=values.get(text) if "${" in text else text) if text else None

    telegram, discord, irc = first("telegram"), first("discord"), first("irc")
    agent = _as_text(value_at(tree, "agents", 0, "id"))
    return SetupAnswers(
        telegram=_read_telegram(tree, telegram, secret("channels", telegram, "token")) if telegram else None,
        discord=_read_discord(tree, discord, secret("channels", discord, "token")) if discord else None,
        irc=_read_irc(tree, irc, secret("channels", irc, "sasl", "password"), secret("channels", irc, "password"))
        if irc
        else None,
        model=_read_model(tree, secret),
        owners=_as_texts(value_at(tree, "access", "roles", "owner")),
        agent_id=agent or "reverie",
        workspace=_as_text(value_at(tree, "agents", 0, "workspace")),
        ops_token=secret("ops", "token"),
    )


def _read_telegram(tree: Tree, name: str, token: SecretReference | None) -> TelegramAnswers | None:
    if token is None:
        return None
    base: Keys = ("channels", name)
    url = _as_text(value_at(tree, *base, "base_url"))
    return TelegramAnswers(channel=name, token=token, rooms=_as_texts(value_at(tree, *base, "rooms")), base_url=url)


def _read_discord(tree: Tree, name: str, token: SecretReference | None) -> DiscordAnswers | None:
    if token is None:
        return None
    base: Keys = ("channels", name)
    urls = [_as_text(value_at(tree, *base, key)) for key in ("api_url", "gateway_url")]
    rooms = _as_texts(value_at(tree, *base, "rooms"))
    return DiscordAnswers(channel=name, token=token, rooms=rooms, api_url=urls[0], gateway_url=urls[1])


def _read_irc(
    tree: Tree, name: str, password: SecretReference | None, server: SecretReference | None
) -> IrcAnswers | None:
    base: Keys = ("channels", name)
    host, nick = _as_text(value_at(tree, *base, "host")), _as_text(value_at(tree, *base, "nick"))
    port = value_at(tree, *base, "port")
    if not host or not nick:
        return None
    return IrcAnswers(
        channel=name,
        host=host,
        port=port if isinstance(port, int) else 6697,
        tls=value_at(tree, *base, "tls") is not False,
        ca_file=_as_text(value_at(tree, *base, "tls", "ca_file")),
        nick=nick,
        account=_as_text(value_at(tree, *base, "sasl", "account")) if password else None,
        mechanism=_as_text(value_at(tree, *base, "sasl", "mechanism")) or "plain",
        account_password=password,
        server_password=server,
        contact=_as_text(value_at(tree, *base, "contact")),
        rooms=_as_texts(value_at(tree, *base, "rooms")),
    )


def _read_model(tree: Tree, secret: Callable[..., SecretReference | None]) -> ModelAnswers | None:
    entry = _as_text(value_at(tree, "agents", 0, "model")) or "main"
    provider = _as_text(value_at(tree, "llm", "models", entry, "provider"))
    kinds: dict[str, ProviderKind] = {
        "anthropic": "anthropic",
        "openai": "openai",
        "llamacpp": "llamacpp",
        "local": "local",
    }
    kind = kinds.get(_as_text(value_at(tree, "llm", "providers", provider or "", "kind")) or "")
    if provider is None or kind is None:
        return None
    window = value_at(tree, "llm", "models", entry, "context_tokens")
    return ModelAnswers(
        model_key=entry,
        provider=provider,
        kind=kind,
        base_url=_as_text(value_at(tree, "llm", "providers", provider, "base_url")),
        api_key=secret("llm", "providers", provider, "api_key"),
        name=_as_text(value_at(tree, "llm", "models", entry, "name")),
        context_tokens=window if isinstance(window, int) else None,
    )


def _as_text(value: Tree) -> str | None:
    return value if isinstance(value, str) and value else None


def _as_texts(value: Tree) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


WRITTEN_BY: Final = "# Written by `reverie setup`"
"""First line of a file that setup wrote."""
_PLAIN_SCALAR = re.compile(r"(?:\./)?[A-Za-z][A-Za-z0-9_./-]*\Z")
_YAML_1_1_BOOLEANS = {"y", "n", "yes", "no", "on", "off"}
"""Booleans of YAML 1.1, in case another program reads the file."""
_COMMENT_COLUMN = 44
_MAX_LINE_CHARS = 100

RenderNode = Mapping[str, "RenderNode | RenderLeaf"] | list["RenderNode | RenderLeaf"]
RenderLeaf = ConfigEntry


def render_config(entries: Iterable[ConfigEntry], today: str) -> str:
    """Render a new file. `today`: the date for its first line."""
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
    """Yield the lines below one key; `depth` is the number of keys above."""
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
    """Return the line with the comment, if it does not become too long."""
    if not comment:
        return line
    full = f"{line.ljust(_COMMENT_COLUMN)}  # {comment}" if len(line) <= _COMMENT_COLUMN else f"{line}  # {comment}"
    return full if len(full) <= _MAX_LINE_CHARS else line


def format_value(value: ConfigValue | ConfigReference) -> str:
    """Render a value as YAML on one line."""
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
    """Return the value as parsing would return it, with references unresolved."""
    match value:
        case ConfigReference():
            return value.text
        case tuple():
            return list(value)
        case _:
            return value


def format_flow(tree: Tree) -> str:
    """Render any tree as YAML on one line."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {format_flow(below)}" for key, below in tree.items()) + "}"
    if isinstance(tree, list):
        quoted = [json.dumps(one, ensure_ascii=False) if isinstance(one, str) else format_flow(one) for one in tree]
        return f"[{', '.join(quoted)}]"
    return format_value(tree) if isinstance(tree, str) else json.dumps(tree)


def nest(keys: Keys, value: Tree) -> Tree:
    """Return `value` nested below `keys`."""
    for key in reversed(keys):
        value = {key: value} if isinstance(key, str) else [value]
    return value


_IMPLICIT_VALUES: Final = {"port": 6697, "tls": True}
"""Values that need not be written where the key is missing."""


class CannotEdit(Exception):
    """The file is written in a way that cannot be edited. The message says where."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of one value."""

    keys: Keys
    value: Tree
    """New value. None: the key is removed."""


def parse_yaml(text: str) -> Tree:
    """Parse a file with its texts as written. Raises yaml.YAMLError."""
    node = _compose_yaml(text)
    return _node_value(node) if node is not None else {}


def find_changes(tree: Tree, entries: Iterable[ConfigEntry]) -> tuple[ConfigChange, ...]:
    """Return the entries that differ from the tree, as changes."""
    found = []
    for entry in entries:
        now, wanted = value_at(tree, *entry.keys), to_tree(entry.value)
        if wanted == now and type(wanted) is type(now):
            continue
        missing = now is None
        if missing and (wanted in (None, [], "") or _IMPLICIT_VALUES.get(str(entry.keys[-1])) == wanted):
            continue
        if wanted is True and isinstance(now, dict):
            continue  # a mapping under `tls` means that TLS is on
        found.append(ConfigChange(entry.keys, wanted))
    return tuple(found)


def apply_changes(text: str, wanted: Iterable[ConfigChange]) -> str:
    """Return the text with the changes made. Raises CannotEdit."""
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
    """Return the tree as it should be after the change."""
    *above, last = change.keys
    expected: Tree = copy.deepcopy(tree) or {}
    node = expected
    for depth, key in enumerate(above):
        below = value_at(node, key)
        if not isinstance(below, dict | list):
            if change.value is None:
                return expected
            below = [] if isinstance(change.keys[depth + 1], int) else {}
            _set_item(node, key, below)
        node = below
    if change.value is None:
        if isinstance(node, dict):
            node.pop(str(last), None)
    else:
        _set_item(node, last, change.value)
    return expected


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
    # Scalar or empty node where a mapping or list is needed.
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
        raise CannotEdit(f"{key} cannot be taken out here")  # it follows a dash
    return text[:start] + text[len(text) if end < 0 else end + 1 :]


def _format_lines(keys: Keys, value: Tree, column: int) -> str:
    """Return new lines for a value below `keys`, indented by `column`."""
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
    """Return where the node's text ends. The end mark of a block stands behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _end_index(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _end_index(node.value[-1])
    end: int = node.end_mark.index
    return end


def _compose_yaml(text: str) -> yaml.Node | None:
    # Not the C loader: its marks count bytes. Anchors and merges are resolved, and the comparison after the edit
    # decides.
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


_PRIVATE_DIRECTORY, _PRIVATE, _DIRECTORY, _OPEN = 0o700, 0o600, 0o755, 0o644
_STAGE_PREFIX = ".reverie-setup-"
_STALE_STAGE_S = 3_600.0
"""Age in seconds beyond which a staging directory is a remnant: a check takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFile:
    """A file to be written."""

    path: str
    """Path below the configuration directory."""
    text: str
    secret: bool = False
    """True: readable by the owner only, and its text is never shown."""


def read_config_files(directory: Path) -> dict[str, str]:
    """Read the files of a configuration by name, in the order of loading. Raises OSError, UnicodeError."""
    if not directory.is_dir():
        return {}
    return {one.name: one.read_text(encoding="utf-8") for one in sorted(directory.iterdir()) if is_config_file(one)}


def is_writable(directory: Path) -> bool:
    """Return whether a configuration can probably be written there."""
    if directory.exists():
        return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)
    parent = _nearest_existing_parent(directory)
    return os.access(parent, os.W_OK | os.X_OK)


def check_files(directory: Path, files: tuple[SetupFile, ...], env: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the errors and the warnings of the configuration with the files in place. Raises OSError."""
    with _staging_directory(directory) as stage:
        for one in directory.iterdir() if directory.is_dir() else ():
            if one != stage and one.name not in {Path(file.path).parts[0] for file in files}:
                (stage / one.name).symlink_to(one.absolute())
        for name in {Path(file.path).parts[0] for file in files if len(Path(file.path).parts) > 1}:
            if (directory / name).is_dir():
                shutil.copytree(directory / name, stage / name, symlinks=True)
        for file in files:
            _write_file(stage / file.path, file)
        try:
            _, warnings = check_config(stage, env)
        except ConfigError as error:
            return [_with_real_path(str(one), stage, directory) for one in error.problems], []
        return [], [_with_real_path(str(one), stage, directory) for one in warnings]


def _with_real_path(message: str, stage: Path, directory: Path) -> str:
    return message.replace(str(stage), str(directory))


@contextlib.contextmanager
def _staging_directory(directory: Path) -> Iterator[Path]:
    """Create a temporary directory, in which relative paths mean the same if possible."""
    parent = _nearest_existing_parent(directory)
    around = parent if os.access(parent, os.W_OK) else directory
    _remove_stale_stages(around)
    stage = around / f"{_STAGE_PREFIX}{secrets.token_hex(4)}"
    stage.mkdir(mode=_PRIVATE_DIRECTORY)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _remove_stale_stages(around: Path) -> None:
    """Remove what a killed setup left behind: it may contain typed secrets."""
    for left in around.glob(f"{_STAGE_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or just being removed
            if time.time() - left.stat().st_mtime > _STALE_STAGE_S:
                shutil.rmtree(left, ignore_errors=True)


def _nearest_existing_parent(directory: Path) -> Path:
    """Return the nearest existing directory above."""
    parent = directory.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


def write_files(directory: Path, files: tuple[SetupFile, ...]) -> None:
    """Write all files, secrets first and the configuration last.

    Raises OSError; then nothing has changed, unless the disk fails between two renames (each file is still whole).
    SIGINT and SIGTERM are blocked for the milliseconds that this takes.
    """
    created: list[Path] = []
    waiting: list[tuple[Path, Path]] = []
    private = {(directory / file.path).parent for file in files if file.secret}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        for folder in _missing_folders(directory, files):
            folder.mkdir(mode=_PRIVATE_DIRECTORY if folder in private else _DIRECTORY)
            created.append(folder)
        for file in sorted(files, key=lambda one: (not one.secret, Path(one.path).suffix in {".yaml", ".yml"})):
            target = directory / file.path
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
            draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            waiting.append((draft, target))
            _write_file(draft, file, like=target)
        for draft, target in waiting:
            draft.replace(target)
    except OSError:
        for draft, _ in waiting:
            draft.unlink(missing_ok=True)
        for folder in reversed(created):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _missing_folders(directory: Path, files: tuple[SetupFile, ...]) -> list[Path]:
    """Return the missing directories, outermost first."""
    wanted = {directory / file.path for file in files}
    missing = {folder for path in wanted for folder in path.parents if not folder.exists()}
    return sorted(missing, key=lambda folder: len(folder.parts))


def _write_file(path: Path, file: SetupFile, like: Path | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_DIRECTORY)
    mode = _PRIVATE if file.secret else _OPEN
    if like is not None and like.exists() and not file.secret:
        mode = stat.S_IMODE(like.stat().st_mode)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        os.fchmod(opened.fileno(), mode)
        opened.write(file.text)
        opened.flush()
        os.fsync(opened.fileno())


MAIN_FILE = "reverie.yaml"
ASIDE_FILE = "reverie.setup.example.yaml"
"""File for the answers if a file cannot be edited; under this name it is not read as configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDraft:
    """Files to be put in place."""

    files: tuple[SetupFile, ...]
    """New and changed files."""
    notices: tuple[str, ...] = ()
    """Remarks for the person."""
    diff: tuple[str, ...] = field(default=(), repr=False)
    """Unified diff of the files that exist already."""


def draft_config(
    answers: SetupAnswers, now: Mapping[str, str], persona: Mapping[str, str], current: Mapping[str, str], today: str
) -> ConfigDraft:
    """Draft the files for the answers.

    `now`: texts of the configuration's files by name. `persona`: the files of the default persona. `here`: current
    texts of other files that may be written, by path.
    """
    wanted = build_entries(answers)
    secrets = [SetupFile(path=one.path, text=f"{one.value}\n", secret=True) for one in answers.secrets if one.is_new]
    files = _persona_files(answers, persona, current)
    notices: tuple[str, ...] = ()
    if answers.identity is not None and not files:
        notices = (f"Its persona is not here but in {answers.workspace}: edit it there.",)
    if not now:
        return ConfigDraft(files=(*secrets, *files, SetupFile(path=MAIN_FILE, text=render_config(wanted, today))))
    trees = {name: parse_yaml(text) for name, text in now.items()}
    whole: Tree = {}
    for tree in trees.values():
        whole = _merge_trees(whole, tree)
    changes = find_changes(whole, wanted)
    texts = dict(now)
    try:
        for change in changes:
            name = _choose_file(change, trees)
            texts[name] = apply_changes(texts.get(name, ""), [change])
    except CannotEdit as error:
        aside = SetupFile(path=ASIDE_FILE, text=render_config(wanted, today))
        notices = (
            f"The file that is there is written in a way that setup does not change ({error}).",
            f"The answers are in {ASIDE_FILE} beside it: take over from there what you want.",
        )
        return ConfigDraft(files=(*secrets, aside), notices=notices)
    files = [*files, *(SetupFile(path=name, text=text) for name, text in texts.items() if text != now.get(name))]
    found = [line for file in files for line in _unified_diff(file, {**current, **now}.get(file.path, ""))]
    return ConfigDraft(files=(*secrets, *files), notices=notices, diff=tuple(found))


def redact_diff(draft: ConfigDraft, secrets: list[str]) -> list[str]:
    """Return the diff for people. Secrets in files that contain some are redacted."""
    redactor = Redactor(secrets)
    return [redactor(line) for line in draft.diff]


def _unified_diff(file: SetupFile, before: str) -> list[str]:
    old, new = before.splitlines(), file.text.splitlines()
    return list(difflib.unified_diff(old, new, file.path, f"{file.path} (new)", lineterm=""))


def _persona_files(answers: SetupAnswers, persona: Mapping[str, str], current: Mapping[str, str]) -> list[SetupFile]:
    if answers.identity is None or answers.workspace is None or answers.workspace.startswith(("/", "~", "..")):
        return []
    folder = answers.workspace.removeprefix("./").rstrip("/")
    texts = {**persona, "IDENTITY.md": answers.identity}
    files = [SetupFile(path=f"{folder}/{name}", text=text) for name, text in texts.items()]
    # Existing persona files belong to the operator; only IDENTITY.md was asked for.
    return [one for one in files if one.path not in current or one.path == f"{folder}/IDENTITY.md"]


def _choose_file(change: ConfigChange, trees: Mapping[str, Tree]) -> str:
    """Return the file that already has most of the keys above the change."""
    best = max(trees, key=lambda name: (_matched_depth(trees[name], change.keys), name == MAIN_FILE))
    return best if _matched_depth(trees[best], change.keys) or MAIN_FILE not in trees else MAIN_FILE


def _matched_depth(tree: Tree, keys: Keys) -> int:
    for depth, key in enumerate(keys):
        below = value_at(tree, key)
        if below is None:
            return depth
        tree = below
    return len(keys)


def _merge_trees(whole: Tree, part: Tree) -> Tree:
    if isinstance(whole, dict) and isinstance(part, dict):
        return whole | {key: _merge_trees(whole.get(key), below) for key, below in part.items()}
    return part
