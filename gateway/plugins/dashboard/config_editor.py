"""The configuration over the API: its files with secrets masked, checked, and written.

A literal secret never leaves the gateway: a mask stands in its place, which is another one for each
secret, and is written back as that secret below the same names alone. So a secret follows neither
its place in a list nor a mask that is moved. References (`${NAME}`, `${file:...}`) are shown.
"""

import asyncio
import contextlib
import difflib
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

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

MASK: Final = re.compile(r"<secret [0-9a-f]{8}>")
_MASKING_KEY: Final = secrets.token_bytes(32)
"""Of this process: a mask tells nothing of its secret."""
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


def _find_values(
    node: yaml.Node | None, keys: Keys, seen: set[int]
) -> Iterator[tuple[Keys, yaml.ScalarNode]]:
    """Yield each value once: of an anchor and its aliases, the anchor's."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield keys, node
    elif isinstance(node, yaml.SequenceNode):
        for index, one in enumerate(node.value):
            yield from _find_values(one, (*keys, index), seen)
    elif isinstance(node, yaml.MappingNode):
        for key, one in node.value:
            yield from _find_values(one, (*keys, str(key.value)), seen)


def _list_values(text: str) -> list[tuple[Keys, yaml.ScalarNode, int, int]]:
    """Return each value with its keys, and the indexes between which it is written, without its
    anchor and tag; the last first. Raises yaml.YAMLError, RecursionError.
    """
    found = list[tuple[Keys, yaml.ScalarNode, int, int]]()
    for keys, node in _find_values(yaml.compose(text), (), set()):
        start, end = node.start_mark.index, node.end_mark.index
        properties = _PROPERTIES.match(text, start, end)
        start = properties.end() if properties is not None else start
        found.append((keys, node, start, end - text.endswith("\n", start, end)))
    return sorted(found, key=lambda one: -one[2])


def _names_in(keys: Keys) -> tuple[str, ...]:
    return tuple(key for key in keys if isinstance(key, str))


def _build_mask(secret: str) -> str:
    data = secret.encode("utf-8", "surrogatepass")
    return f"<secret {hmac.digest(_MASKING_KEY, data, 'sha256').hex()[:8]}>"


def mask_secrets(text: str, redactor: Redactor, secret_keys: Collection[Keys] = ()) -> str:
    """Return the text of a file with masks in place of literal secrets: the values at
    `secret_keys`, at keys that are called so, and what the redactor finds. Raises RouteRefused for
    a file in which secrets could not be found.
    """

    def is_secret(keys: Keys, value: str) -> bool:
        names = _names_in(keys)
        is_named = keys in secret_keys or (
            _SECRET_KEY.search("".join(names[-1:])) is not None
            or any(_SECRET_SECTION.fullmatch(name) for name in names[-2:])
        )
        rest = _REFERENCE.sub("", value).strip()
        return (is_named and rest.lower() not in {"", "none", "null", "~"}) or (
            redactor(value) != value
        )

    try:
        values = _list_values(text)
    except (yaml.YAMLError, RecursionError):
        raise RouteRefused("the file is not YAML, so its secrets could not be masked") from None
    for keys, node, start, end in values:
        if is_secret(keys, node.value):
            text = f'{text[:start]}"{_build_mask(node.value)}"{text[end:]}'
    if redactor(text) != text:
        raise RouteRefused("a secret stands in a comment or a key of the file: take it out there")
    return text


def restore_secrets(text: str, before: str) -> str:
    """Return a text that was sent, with the secrets of the file where their masks stand below the
    same names. Raises RouteRefused for another mask, and yaml.YAMLError, RecursionError.
    """
    written = {
        (_names_in(keys), _build_mask(node.value)): json.dumps(node.value, ensure_ascii=False)
        if node.style in {"|", ">"}
        else before[start:end]
        for keys, node, start, end in _list_values(before)
    }
    for keys, node, start, end in _list_values(text):
        if MASK.search(node.value):
            secret = written.get((_names_in(keys), node.value))
            if secret is None:
                raise RouteRefused(
                    f"line {node.start_mark.line + 1}: the file has no secret with this mask at "
                    f"{format_key(keys)}: write ${{NAME}}, ${{file:PATH}} or the secret there"
                )
            text = f"{text[:start]}{secret}{text[end:]}"
    return text


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
        """Write a new text if nothing is wrong with it, and have the gateway read it. Raises
        RouteRefused, also where the file is not the one that was read, which `sha256` tells.
        """
        with _disk_errors_refused():
            async with self._lock:
                change, path, whole = await asyncio.to_thread(self._check, name, text)
                if _digest(await asyncio.to_thread(read_text_file, path)) != sha256:
                    raise RouteRefused("the file has changed meanwhile: read it again")
                if change.problems:
                    return change
                mode = path.stat().st_mode & 0o777
                await asyncio.to_thread(replace_private, path.resolve(), whole.encode())
                path.resolve().chmod(mode)
                self._live.request_reload()
                return change.model_copy(update={"saved": True})

    def _check(self, name: str, text: str) -> tuple[models.ConfigChange, Path, str]:
        """Return also the path of the file, and the text with its secrets."""
        files = self._files()
        path = next((one for one in files.paths() if one.name == name), None)
        if path is None:
            raise RouteRefused("there is no configuration file of that name")
        before, whole = read_text_file(path), text
        problems, restart = tuple[ConfigProblem, ...](), tuple[str, ...]()
        try:
            whole = restore_secrets(text, before)
            restart = find_restart_keys(self._live.settings, files.check(name, whole))
        except ConfigError as error:
            problems = error.problems
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark is not None else 0
            problems = (ConfigProblem(path.name, line, "", "not YAML"),)
        lines = self._mask(before).splitlines(), text.splitlines()
        diff = difflib.unified_diff(*lines, path.name, path.name, lineterm="")
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
        return change, path, whole

    def _mask(self, text: str) -> str:
        values = walk_values(self._live.settings)
        secret_keys = {keys for keys, one in values if isinstance(one, SecretStr)}
        return mask_secrets(text, self._redactor, secret_keys)

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
