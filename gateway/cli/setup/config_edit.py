"""Setup answers as configuration: as entries, as a new file, and as changes of existing files.

An existing file is edited by ruamel.yaml, and only lines that the change touches are taken from
what it writes, so that everything else stays as it is to the byte. The result is read again: if it
does not say exactly what was meant, `CannotEdit` is raised and nothing is changed.

Files are checked as a whole in a directory beside the configuration and then put in place together.
Everything up to `ConfigDraft` is pure except for that.
"""

import contextlib
import copy
import difflib
import errno
import functools
import io
import os
import re
import secrets
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from gateway.cli.setup.dialog import (
    DiscordAnswers,
    IrcAnswers,
    ModelAnswers,
    ProviderKind,
    SecretReference,
    SetupAnswers,
    TelegramAnswers,
)
from gateway.config.loader import ConfigError, is_config_file, read_config
from gateway.config.source import Keys, Tree, format_key, parse_scalar, value_at
from gateway.core.redaction import Redactor


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One value and its keys."""

    keys: Keys
    value: Tree
    """None: the key is left out."""
    comment: str = ""
    """Comment in a new file."""


_SECTIONS: Final[Mapping[str, str]] = {
    "channels": "accounts on platforms",
    "agents": "who answers",
    "llm": "with which model",
    "access": "who may do what",
    "ops": "dashboard and console of the operator",
}
"""Top-level keys in the order of a new file, with their comments."""


def build_entries(answers: SetupAnswers) -> Iterator[ConfigEntry]:
    """Yield all entries for the answers."""
    at: Keys
    if answers.telegram:
        bot, at = answers.telegram, ("channels", answers.telegram.channel)
        yield ConfigEntry((*at, "platform"), "telegram")
        yield ConfigEntry((*at, "token"), bot.token.reference, "from @BotFather")
        yield ConfigEntry((*at, "base_url"), bot.base_url)
        yield ConfigEntry(
            (*at, "rooms"), [*bot.rooms], 'groups where it may act: ids in quotes, or "*"'
        )
    if answers.discord:
        app, at = answers.discord, ("channels", answers.discord.channel)
        yield ConfigEntry((*at, "platform"), "discord")
        yield ConfigEntry((*at, "token"), app.token.reference, "from the developer portal")
        yield ConfigEntry((*at, "api_url"), app.api_url)
        yield ConfigEntry((*at, "gateway_url"), app.gateway_url)
        yield ConfigEntry(
            (*at, "rooms"),
            [*app.rooms],
            'guilds or channels where it may act: ids in quotes, or "*"',
        )
    if answers.irc:
        yield from _irc_entries(answers.irc)
    yield ConfigEntry(("agents", 0, "id"), answers.agent_id)
    if answers.workspace:
        comment = "IDENTITY.md, SOUL.md, AGENTS.md: read again when they change"
        yield ConfigEntry(("agents", 0, "workspace"), answers.workspace, comment)
    if answers.model:
        chosen, at = answers.model, ("llm", "providers", answers.model.provider)
        yield ConfigEntry((*at, "kind"), chosen.kind)
        yield ConfigEntry((*at, "base_url"), chosen.base_url)
        yield ConfigEntry((*at, "api_key"), chosen.api_key.reference if chosen.api_key else None)
        at = ("llm", "models", chosen.model_key)
        yield ConfigEntry((*at, "provider"), chosen.provider)
        yield ConfigEntry((*at, "name"), chosen.name)
        yield ConfigEntry((*at, "context_tokens"), chosen.context_tokens)
    if answers.owners:
        yield ConfigEntry(
            ("access", "roles", "owner"), [*answers.owners], "<channel>:<id>, as /whoami shows it"
        )
    if answers.ops_token:
        comment = "the password of the dashboard at 127.0.0.1:9090"
        yield ConfigEntry(("ops", "token"), answers.ops_token.reference, comment)


def _irc_entries(answers: IrcAnswers) -> Iterator[ConfigEntry]:
    at: Keys = ("channels", answers.channel)
    yield ConfigEntry((*at, "platform"), "irc")
    yield ConfigEntry((*at, "host"), answers.host)
    yield ConfigEntry((*at, "port"), answers.port)
    yield ConfigEntry(
        (*at, "tls", "ca_file") if answers.ca_file else (*at, "tls"), answers.ca_file or answers.tls
    )
    yield ConfigEntry((*at, "nick"), answers.nick)
    password = answers.server_password
    yield ConfigEntry((*at, "password"), password.reference if password else None, "of the server")
    if answers.account and answers.account_password and answers.mechanism != "external":
        yield ConfigEntry((*at, "sasl", "mechanism"), answers.mechanism)
        yield ConfigEntry((*at, "sasl", "account"), answers.account)
        yield ConfigEntry((*at, "sasl", "password"), answers.account_password.reference)
    elif answers.mechanism != "external":  # then nothing was asked
        yield ConfigEntry((*at, "sasl"), None)
    yield ConfigEntry(
        (*at, "contact"), answers.contact, "shown to anybody who asks who runs the bot"
    )
    yield ConfigEntry((*at, "rooms"), [*answers.rooms])


def read_answers(data: Mapping[str, Tree], value_of: Callable[[str], str | None]) -> SetupAnswers:
    """Read the answers back from a configuration. Texts are as written, so references stay
    references.

    `value_of`: returns the value of a reference, None: not known. What setup would not write like
    that is left out.
    """
    tree: Tree = dict(data)
    channels = value_at(tree, "channels")
    named: Mapping[str, Tree] = channels if isinstance(channels, dict) else {}

    def first(platform: str) -> str | None:
        return next(
            (name for name, channel in named.items() if value_at(channel, "platform") == platform),
            None,
        )

    def secret(*keys: str | int) -> SecretReference | None:
        text = _as_text(value_at(tree, *keys))
        return (
            SecretReference(reference=text, value=value_of(text) if "${" in text else text)
            if text
            else None
        )

    def text(*keys: str | int) -> str | None:
        return _as_text(value_at(tree, *keys))

    def rooms(name: str) -> tuple[str, ...]:
        return _as_texts(value_at(tree, "channels", name, "rooms"))

    telegram = discord = None
    if (name := first("telegram")) and (token := secret("channels", name, "token")):
        url = text("channels", name, "base_url")
        telegram = TelegramAnswers(channel=name, token=token, rooms=rooms(name), base_url=url)
    if (name := first("discord")) and (token := secret("channels", name, "token")):
        api_url, gateway_url = (text("channels", name, key) for key in ("api_url", "gateway_url"))
        discord = DiscordAnswers(
            channel=name, token=token, rooms=rooms(name), api_url=api_url, gateway_url=gateway_url
        )
    irc = first("irc")
    return SetupAnswers(
        telegram=telegram,
        discord=discord,
        irc=_read_irc(
            tree,
            irc,
            secret("channels", irc, "sasl", "password"),
            secret("channels", irc, "password"),
        )
        if irc
        else None,
        model=_read_model(tree, secret),
        owners=_as_texts(value_at(tree, "access", "roles", "owner")),
        agent_id=text("agents", 0, "id") or "reverie",
        workspace=text("agents", 0, "workspace"),
        ops_token=secret("ops", "token"),
    )


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
_COMMENT_COLUMN = 46
_MAX_LINE_CHARS = 100


def render_config(entries: Iterable[ConfigEntry], today: str) -> str:
    """Render a new file. `today`: the date for its first line."""
    wanted = [entry for entry in entries if entry.value is not None]
    head = (
        (
            f"{WRITTEN_BY} on {today}. You may edit it: setup, run again, changes only what you "
            "answer differently."
        ),
        (
            "# reverie.example.yaml lists every key with its default. ${NAME} is an environment "
            "variable,"
        ),
        "# ${file:PATH} the content of a file. `reverie check-config` finds mistakes.",
    )
    parts = ["".join(f"{line}\n" for line in head)]
    for section in dict.fromkeys(str(entry.keys[0]) for entry in wanted):
        tree = CommentedMap()
        for entry in (one for one in wanted if one.keys[0] == section):
            parent = _put(tree, entry.keys, entry.value)
            if (
                entry.comment
                and len(entry.comment) + max(len(str(entry.value)), 24) < _MAX_LINE_CHARS - 22
            ):
                parent.yaml_add_eol_comment(entry.comment, entry.keys[-1], column=_COMMENT_COLUMN)
        tree.yaml_add_eol_comment(_SECTIONS.get(section, ""), section, column=_COMMENT_COLUMN)
        parts.append(_dump(tree, ""))
    return "\n".join(parts)


def _put(tree: Any, keys: Keys, value: Tree) -> Any:  # noqa: ANN401 - both kinds of trees
    """Set a value in a plain tree or in one of ruamel.yaml's, None: take its key out, and return
    what holds it.

    Raises CannotEdit.
    """
    node = tree
    for key, following in pairwise(keys):
        below = value_at(node, key)
        if not isinstance(below, dict | list):
            if value is None:
                return node
            below = CommentedSeq() if isinstance(following, int) else CommentedMap()
            _set_item(node, key, below)
        node = below
    held = value_at(node, keys[-1])
    if isinstance(held, list) and isinstance(value, list) and _change_list(held, value):
        return node
    if value is not None:
        _set_item(node, keys[-1], _to_node(value))
    elif isinstance(node, dict):
        node.pop(keys[-1], None)
    return node


def _change_list(held: list[Tree], value: list[Tree]) -> bool:
    """Take items out and append others, so that the rest stays as it is written. Return whether
    that does.
    """
    new = [one for one in value if one not in held]
    if [*(one for one in held if one in value), *new] != value:
        return False
    for one in [one for one in held if one not in value]:
        held.remove(one)
    held += [_to_node(one, quoted=True) for one in new]  # type: ignore[misc] # a text of its own kind
    return bool(held)


def _set_item(node: Any, key: str | int, value: object) -> None:  # noqa: ANN401 - as above
    if isinstance(node, list) and key == len(node):
        node.append(value)
    elif isinstance(node, dict) == isinstance(key, str) and (
        isinstance(node, dict) or int(key) < len(node)
    ):
        node[key] = value
    else:
        raise CannotEdit(f"{key} cannot be added there")


def _to_node(value: Tree, *, quoted: bool = False) -> object:
    """Return the value as it is to be written: on one line, and in quotes if it might be read as
    anything else.
    """
    if isinstance(value, list):
        node = CommentedSeq([_to_node(one, quoted=True) for one in value])
        node.fa.set_flow_style()
        return node
    if not isinstance(value, str):
        return value
    plain = _PLAIN_SCALAR.match(value) and value.lower() not in _YAML_1_1_BOOLEANS
    return (
        value
        if plain and not quoted and parse_scalar(value) == value
        else DoubleQuotedScalarString(value)
    )


def _yaml_like(text: str) -> YAML:
    """Return a reader and writer that indents as a text does."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes, yaml.width = True, _MAX_WIDTH
    nested, listed = _NESTED.search(text), _LISTED.search(text)
    offset = len(listed[2]) - len(listed[1]) if listed else 2
    yaml.indent(
        mapping=len(nested[2]) - len(nested[1]) if nested else 2, sequence=offset + 2, offset=offset
    )
    return yaml


def _dump(tree: CommentedMap, like: str) -> str:
    out = io.StringIO()
    _yaml_like(like).dump(tree, out)
    return out.getvalue()


_MAX_WIDTH: Final = 1_000_000
"""Columns: lines are never folded."""
_KEY_LINE: Final = r"^( *)[^\s#-][^\n]*:[ \t]*(?:#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*"
_NESTED: Final = re.compile(_KEY_LINE + r"(\1 +)[^\s#-]", re.MULTILINE)
_LISTED: Final = re.compile(_KEY_LINE + r"(\1 *)- ", re.MULTILINE)
_IMPLICIT_VALUES: Final = {"port": 6697, "tls": True}
"""Values that need not be written where the key is missing."""


class CannotEdit(Exception):
    """The file is written in a way that cannot be edited. The message says where."""


def parse_yaml(text: str) -> Tree:
    """Parse a file with its texts as written. Raises yaml.YAMLError."""
    # Not the C loader, which ends the process on deep nesting.
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    return _node_value(node) if node is not None else {}


def _node_value(node: yaml.Node) -> Tree:
    if isinstance(node, yaml.MappingNode):
        return {str(name.value): _node_value(below) for name, below in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_node_value(below) for below in node.value]
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return parse_scalar(str(node.value)) if plain else str(node.value)


def find_changes(tree: Tree, entries: Iterable[ConfigEntry]) -> list[tuple[Keys, Tree]]:
    """Return keys and values of the entries that differ from the tree. None: the key is to be
    removed.
    """
    found = []
    for entry in entries:
        now, wanted = value_at(tree, *entry.keys), entry.value
        if wanted == now and type(wanted) is type(now):
            continue
        if now is None and (
            wanted in (None, [], "") or _IMPLICIT_VALUES.get(str(entry.keys[-1])) == wanted
        ):
            continue
        if wanted is True and isinstance(now, dict):
            continue  # a mapping under `tls` means that TLS is on
        found.append((entry.keys, wanted))
    return found


def change_value(text: str, keys: Keys, value: Tree) -> str:
    """Return the text of a file with one value changed, None: removed. Raises CannotEdit."""
    text += "\n" * (not text.endswith("\n") and bool(text))
    expected = copy.deepcopy(parse_yaml(text))
    try:
        tree = _yaml_like(text).load(text)
        if not isinstance(tree, CommentedMap):
            tree, before = CommentedMap(), text
        else:
            before = _dump(tree, text)
        _put(tree, keys, value)
        _put(expected, keys, value)
        edited = _replace_lines(text, before, _dump(tree, text))
        if parse_yaml(edited) == expected:
            return edited
    except (YAMLError, yaml.YAMLError, TypeError, ValueError):
        pass
    raise CannotEdit(f"{format_key(keys)} cannot be changed here")


def _replace_lines(text: str, before: str, after: str) -> str:
    """Make in a text the changes that lead from `before`, which is the text written anew, to
    `after`.

    Blank lines and comments above a line belong to it, not to what stands above them.
    """
    lines, old, new = (one.splitlines(keepends=True) for one in (text, before, after))
    sources: list[list[str]] = []
    first: list[str] = []
    text_words, old_words = (["".join(line.split()) for line in one] for one in (lines, old))
    for _, i, j, k, m in difflib.SequenceMatcher(
        None, text_words, old_words, autojunk=False
    ).get_opcodes():
        if j - i == m - k:
            sources += [[line] for line in lines[i:j]]
        elif k == m:
            (sources[-1] if sources else first).extend(lines[i:j])
        else:
            sources += [lines[i:j], *([] for _ in range(m - k - 1))]
    result = first
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
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
    """Read the files of a configuration by name, in the order of loading. Raises OSError,
    UnicodeError.
    """
    if not directory.is_dir():
        return {}
    return {
        one.name: one.read_text(encoding="utf-8")
        for one in sorted(directory.iterdir())
        if is_config_file(one)
    }


def is_writable(directory: Path) -> bool:
    """Return whether a configuration can probably be written there."""
    if directory.exists():
        return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)
    parent = _nearest_existing_parent(directory)
    return os.access(parent, os.W_OK | os.X_OK)


def check_files(
    directory: Path, files: tuple[SetupFile, ...], env: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the errors and the warnings of the configuration with the files in place. Raises
    OSError.
    """
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
            warnings = read_config(stage, env).warnings
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
    parent = directory.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


def write_files(directory: Path, files: tuple[SetupFile, ...]) -> None:
    """Write all files, secrets first and the configuration last.

    Raises OSError; then nothing has changed, unless the disk fails between two renames (each file
    is still whole). SIGINT and SIGTERM are blocked for the milliseconds that this takes.
    """
    created: list[Path] = []
    waiting: list[tuple[Path, Path]] = []
    private = {(directory / file.path).parent for file in files if file.secret}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        for folder in _missing_folders(directory, files):
            folder.mkdir(mode=_PRIVATE_DIRECTORY if folder in private else _DIRECTORY)
            created.append(folder)
        for file in sorted(
            files, key=lambda one: (not one.secret, Path(one.path).suffix in {".yaml", ".yml"})
        ):
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
"""File for the answers if a file cannot be edited; under this name it is not read as
configuration."""


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
    answers: SetupAnswers,
    now: Mapping[str, str],
    persona: Mapping[str, str],
    current: Mapping[str, str],
    today: str,
) -> ConfigDraft:
    """Draft the files for the answers.

    `now`: texts of the configuration's files by name. `persona`: the files of the default persona.
    `here`: current texts of other files that may be written, by path.
    """
    wanted = tuple(build_entries(answers))
    secrets = [
        SetupFile(path=one.path, text=f"{one.value}\n", secret=True)
        for one in answers.secrets
        if one.is_new
    ]
    files = _persona_files(answers, persona, current)
    notices: tuple[str, ...] = ()
    if answers.identity is not None and not files:
        notices = (f"Its persona is in {answers.workspace}: edit it there.",)
    if not now:
        return ConfigDraft(
            files=(*secrets, *files, SetupFile(path=MAIN_FILE, text=render_config(wanted, today)))
        )
    trees = {name: parse_yaml(text) for name, text in now.items()}
    whole, texts = merge_trees(trees.values()), dict(now)
    try:
        for keys, value in find_changes(whole, wanted):
            name = _choose_file(keys, trees)
            texts[name] = change_value(texts.get(name, ""), keys, value)
    except CannotEdit as error:
        aside = SetupFile(path=ASIDE_FILE, text=render_config(wanted, today))
        notices = (
            f"Setup cannot change the present file, because of the way it is written ({error}).",
            f"Your answers are in {ASIDE_FILE} beside it: copy from there what you want.",
        )
        return ConfigDraft(files=(*secrets, aside), notices=notices)
    files = [
        *files,
        *(SetupFile(path=name, text=text) for name, text in texts.items() if text != now.get(name)),
    ]
    diff: list[str] = []
    for file in files:
        old, new = {**current, **now}.get(file.path, "").splitlines(), file.text.splitlines()
        diff += difflib.unified_diff(old, new, file.path, f"{file.path} (new)", lineterm="")
    return ConfigDraft(files=(*secrets, *files), notices=notices, diff=tuple(diff))


def redact_diff(draft: ConfigDraft, secrets: list[str]) -> list[str]:
    """Return the diff for people. Secrets in files that contain some are redacted."""
    redactor = Redactor(secrets)
    return [redactor(line) for line in draft.diff]


def _persona_files(
    answers: SetupAnswers, persona: Mapping[str, str], current: Mapping[str, str]
) -> list[SetupFile]:
    if (
        answers.identity is None
        or answers.workspace is None
        or answers.workspace.startswith(("/", "~", ".."))
    ):
        return []
    folder = answers.workspace.removeprefix("./").rstrip("/")
    texts = {**persona, "IDENTITY.md": answers.identity}
    files = [SetupFile(path=f"{folder}/{name}", text=text) for name, text in texts.items()]
    # Existing persona files belong to the operator; only IDENTITY.md was asked for.
    return [one for one in files if one.path not in current or one.path == f"{folder}/IDENTITY.md"]


def _choose_file(keys: Keys, trees: Mapping[str, Tree]) -> str:
    best = max(trees, key=lambda name: (_matched_depth(trees[name], keys), name == MAIN_FILE))
    return best if _matched_depth(trees[best], keys) or MAIN_FILE not in trees else MAIN_FILE


def _matched_depth(tree: Tree, keys: Keys) -> int:
    return next(
        (depth for depth in range(len(keys)) if value_at(tree, *keys[: depth + 1]) is None),
        len(keys),
    )


def merge_trees(trees: Iterable[Tree]) -> Tree:
    """Return the files of a configuration as one."""
    empty: Tree = {}
    return functools.reduce(_merge, trees, empty)


def _merge(whole: Tree, part: Tree) -> Tree:
    if isinstance(whole, dict) and isinstance(part, dict):
        return whole | {key: _merge(whole.get(key), below) for key, below in part.items()}
    return part
