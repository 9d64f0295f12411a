"""The configuration over the API: its files with secrets masked, checked, and written.

A literal secret never leaves the gateway: `MASK` stands in its place. Where the mask still stands
at the same key, saving keeps the secret. References (`${NAME}`, `${file:...}`) are shown.
"""

import asyncio
import contextlib
import difflib
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from pydantic import SecretStr

from gateway.config.loader import ConfigError, ConfigFiles
from gateway.config.reload import LiveSettings, find_restart_keys
from gateway.config.secrets import walk_values
from gateway.config.source import ConfigProblem, Keys, format_key, read_text_file
from gateway.core import api_models as models
from gateway.core.private_files import replace_private
from gateway.core.redaction import Redactor
from gateway.core.route import RouteRefused
from gateway.plugins.setup.schema import read_schema

MASK: Final = "********"
_SECRET_KEY: Final = re.compile(
    r"(token|password|passphrase|secret|api_?key|credential)s?$", re.IGNORECASE
)
_SECRET_SECTION: Final = re.compile(r"env|headers|keys|on_connect")
"""Each value in one of these is a secret."""
_REFERENCE: Final = re.compile(
    r"(?:(?:Bearer|Basic|Bot|Token)\s+)?\$\{(?:file:[^}]*|[A-Za-z_]\w*)\}", re.IGNORECASE
)
_PROPERTIES: Final = re.compile(r"(?:[&!]\S*\s+)*")
"""Anchor and tag in front of a value."""


class _Value(NamedTuple):
    keys: Keys
    """Of an alias: where its anchor stands."""
    place: Keys
    """As `keys`, with the name or id of a list's member in place of its number, which changes where
    another one is taken out."""
    node: yaml.ScalarNode


def _find_values(
    node: yaml.Node | None, keys: Keys, place: Keys, seen: set[int]
) -> Iterator[_Value]:
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield _Value(keys, place, node)
    elif isinstance(node, yaml.SequenceNode):
        names = [_name_of(one) for one in node.value]
        for index, (name, one) in enumerate(zip(names, node.value, strict=True)):
            is_clear = name and names.count(name) == 1
            member = name if is_clear else f"{index + 1} of {len(names)}"
            yield from _find_values(one, (*keys, index), (*place, member), seen)
    elif isinstance(node, yaml.MappingNode):
        for key, one in node.value:
            name = str(key.value)
            yield from _find_values(one, (*keys, name), (*place, name), seen)


def _name_of(member: yaml.Node) -> str:
    """Return how a member of a list is called. Empty: it has no name."""
    pairs = member.value if isinstance(member, yaml.MappingNode) else ()
    return next((str(one.value) for key, one in pairs if key.value in ("name", "id")), "")


def _list_values(text: str) -> list[_Value]:
    return list(_find_values(yaml.compose(text), (), (), set()))


def _replace_values(text: str, change: Callable[[_Value, str], str | None]) -> str:
    """Return the text with other values. `change` gets the value and how it is written, and returns
    how the new one is written, or None for no change. Raises yaml.YAMLError, RecursionError.
    """
    for value in sorted(_list_values(text), key=lambda one: -one.node.start_mark.index):
        start, end = value.node.start_mark.index, value.node.end_mark.index
        properties = _PROPERTIES.match(text, start, end)
        start = properties.end() if properties is not None else start
        written = change(value, text[start:end])
        if written is not None:
            line_end = "\n" if text[start:end].endswith("\n") else ""
            text = f"{text[:start]}{written}{line_end}{text[end:]}"
    return text


def mask_secrets(text: str, redactor: Redactor, secrets: Collection[Keys] = ()) -> str:
    """Return the text of a file with `MASK` in place of literal secrets: the values at `secrets`,
    at keys that are called so, and what the redactor finds. Raises RouteRefused for a file in which
    secrets could not be found.
    """

    def change(one: _Value, _written: str) -> str | None:
        names = [key for key in one.keys if isinstance(key, str)]
        is_named = one.keys in secrets or (
            _SECRET_KEY.search("".join(names[-1:])) is not None
            or any(_SECRET_SECTION.fullmatch(name) for name in names[-2:])
        )
        rest = _REFERENCE.sub("", one.node.value).strip()
        is_secret = is_named and rest.lower() not in {"", "none", "null", "~"}
        return json.dumps(MASK) if is_secret or redactor(one.node.value) != one.node.value else None

    try:
        masked = _replace_values(text, change)
    except (yaml.YAMLError, RecursionError):
        raise RouteRefused("the file is not YAML, so its secrets could not be masked") from None
    if redactor(masked) != masked:
        raise RouteRefused("a secret stands in a comment or a key of the file: take it out there")
    return masked


def restore_secrets(text: str, before: str) -> str:
    """Return a text that was sent, with the secrets of the file where their masks stand. Raises
    yaml.YAMLError, RecursionError, and RouteRefused for a mask at a key that had none.
    """
    written = dict[Keys, str]()

    def keep(one: _Value, raw: str) -> None:
        is_block = one.node.style in {"|", ">"}
        written[one.place] = json.dumps(one.node.value) if is_block else raw

    _replace_values(before, keep)

    def change(one: _Value, _written: str) -> str | None:
        if one.node.value != MASK:
            return None
        if one.place not in written:
            raise RouteRefused(
                f"line {one.node.start_mark.line + 1}: there was no secret at "
                f"{format_key(one.keys)}: write one in place of the mask"
            )
        return written[one.place]

    return _replace_values(text, change)


class ConfigEditor:
    """Reads, checks and writes the files of a running gateway's configuration."""

    def __init__(self, live: LiveSettings, redactor: Redactor) -> None:
        self._live, self._redactor = live, redactor
        self._lock = asyncio.Lock()

    async def read(self) -> models.ConfigReport:
        """Return all files. Raises RouteRefused."""
        with _disk_errors_refused():
            files = tuple(await asyncio.to_thread(self._read))
        return models.ConfigReport(files=files, structure=await asyncio.to_thread(read_schema))

    def _read(self) -> list[models.ConfigFile]:
        return [
            models.ConfigFile(
                name=path.name,
                text=self._mask(text := read_text_file(path)),
                sha256=_digest(text),
                writable=os.access(path.resolve().parent, os.W_OK),
            )
            for path in self._files().paths()
        ]

    async def check(self, name: str, text: str) -> models.ConfigChange:
        """Return what is wrong with a new text of a file, and what it changes. Raises
        RouteRefused.
        """
        with _disk_errors_refused():
            return (await asyncio.to_thread(self._check, name, text))[0]

    async def save(self, name: str, text: str, sha256: str) -> models.ConfigChange:
        """Write a new text if nothing is wrong with it, and have the gateway read it. Masks that
        still stand keep their secrets. Raises RouteRefused, also where the file is not the one that
        was read, which `sha256` tells.
        """
        with _disk_errors_refused():
            async with self._lock:
                change, path, restored = await asyncio.to_thread(self._check, name, text)
                if _digest(await asyncio.to_thread(read_text_file, path)) != sha256:
                    raise RouteRefused("the file has changed meanwhile: read it again")
                if change.problems:
                    return change
                mode = path.stat().st_mode & 0o777
                await asyncio.to_thread(replace_private, path.resolve(), restored.encode())
                path.resolve().chmod(mode)
                self._live.request_reload()
                return change.model_copy(update={"saved": True})

    def _check(self, name: str, text: str) -> tuple[models.ConfigChange, Path, str]:
        """Return also the path of the file, and the text with its secrets."""
        files = self._files()
        path = next((one for one in files.paths() if one.name == name), None)
        if path is None:
            raise RouteRefused("there is no configuration file of that name")
        before, restored = read_text_file(path), text
        problems, restart = tuple[ConfigProblem, ...](), tuple[str, ...]()
        try:
            restored = restore_secrets(text, before)
            restart = find_restart_keys(self._live.settings, files.check(name, restored))
        except ConfigError as error:
            problems = error.problems
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark is not None else 0
            problems = (ConfigProblem(path.name, line, "", "not YAML"),)
        old, new = self._mask(before).splitlines(), text.splitlines()
        diff = difflib.unified_diff(old, new, path.name, path.name, lineterm="")
        change = models.ConfigChange(
            problems=tuple(
                models.ConfigMistake(line=one.line, key=one.key, message=one.message)
                if Path(one.file).name in (path.name, "")
                else models.ConfigMistake(
                    line=0, key=one.key, message=f"in {Path(one.file).name}: {one.message}"
                )
                for one in problems
            ),
            diff="\n".join(diff),
            needs_restart=restart,
        )
        return change, path, restored

    def _mask(self, text: str) -> str:
        values = walk_values(self._live.settings)
        secrets = {keys for keys, one in values if isinstance(one, SecretStr)}
        return mask_secrets(text, self._redactor, secrets)

    def _files(self) -> ConfigFiles:
        if self._live.files is None:
            raise RouteRefused("the configuration does not come from files")
        return self._live.files


@contextlib.contextmanager
def _disk_errors_refused() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RouteRefused(f"a file cannot be read or written: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RouteRefused("a file is not UTF-8 text") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
