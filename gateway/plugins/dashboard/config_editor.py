"""The configuration over the API: its files with secrets masked, checked, and written.

A literal secret never leaves the gateway: `MASK` stands in its place. Where the mask still stands
at the same key, saving keeps the secret. References (`${NAME}`, `${file:...}`) are shown.
"""

import asyncio
import difflib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import yaml

from gateway.config.loader import ConfigError, ConfigFiles
from gateway.config.reload import LiveSettings, find_restart_keys
from gateway.config.source import ConfigProblem, Keys, format_key, read_text_file
from gateway.core import api_models as models
from gateway.core.private_files import replace_private
from gateway.core.redaction import Redactor
from gateway.core.route import RouteRefused
from gateway.plugins.setup.schema import read_schema

MASK: Final = "********"
_SECRET_KEY: Final = re.compile(r"(token|password|passphrase|secret|api_?key)s?$", re.IGNORECASE)
_REFERENCE: Final = re.compile(r"\$\{[^}]*\}")
_PROPERTIES: Final = re.compile(r"(?:[&!]\S*\s+)*")
"""Anchor and tag in front of a value."""


def _find_scalars(
    node: yaml.Node | None, keys: Keys = ()
) -> Iterator[tuple[Keys, yaml.ScalarNode]]:
    """Yield each value with its key; the values of an alias stand where its anchor does."""
    if isinstance(node, yaml.ScalarNode):
        yield keys, node
    elif isinstance(node, yaml.SequenceNode):
        for index, one in enumerate(node.value):
            yield from _find_scalars(one, (*keys, index))
    elif isinstance(node, yaml.MappingNode):
        for key, one in node.value:
            yield from _find_scalars(one, (*keys, str(key.value)))


def _replace_scalars(text: str, change: Callable[[Keys, yaml.ScalarNode, str], str | None]) -> str:
    """Return the text with other values. `change` gets the key, the value, and how it is written,
    and returns how the new one is written, or None for no change. Raises yaml.YAMLError.
    """
    found = {id(node): (keys, node) for keys, node in _find_scalars(yaml.compose(text))}
    for keys, node in sorted(found.values(), key=lambda one: -one[1].start_mark.index):
        start, end = node.start_mark.index, node.end_mark.index
        properties = _PROPERTIES.match(text, start, end)
        start = properties.end() if properties is not None else start
        written = change(keys, node, text[start:end])
        if written is not None:
            line_end = "\n" if text[start:end].endswith("\n") else ""
            text = f"{text[:start]}{written}{line_end}{text[end:]}"
    return text


def mask_secrets(text: str, redactor: Redactor) -> str:
    """Return the text of a file with `MASK` in place of literal secrets. Raises RouteRefused for
    one in which secrets could not be found.
    """

    def change(keys: Keys, node: yaml.ScalarNode, _written: str) -> str | None:
        value = _REFERENCE.sub("", node.value).strip()
        is_named = bool(keys) and _SECRET_KEY.search(str(keys[-1])) is not None
        is_secret = is_named and value.lower() not in {"", "none", "null", "~"}
        return json.dumps(MASK) if is_secret or redactor(node.value) != node.value else None

    try:
        masked = _replace_scalars(text, change)
    except (yaml.YAMLError, RecursionError):
        raise RouteRefused("the file is not YAML, so its secrets could not be masked") from None
    if redactor(masked) != masked:
        raise RouteRefused("a secret stands in a comment or a key of the file: take it out there")
    return masked


def restore_secrets(text: str, before: str) -> str:
    """Return a text that was sent, with the secrets of the file where their masks stand. Raises
    yaml.YAMLError, and RouteRefused for a mask at a key that had none.
    """
    written = dict[Keys, str]()

    def keep(keys: Keys, node: yaml.ScalarNode, raw: str) -> None:
        written[keys] = raw if node.style not in {"|", ">"} else json.dumps(node.value)

    _replace_scalars(before, keep)

    def change(keys: Keys, node: yaml.ScalarNode, _written: str) -> str | None:
        if node.value != MASK:
            return None
        if keys not in written:
            raise RouteRefused(
                f"line {node.start_mark.line + 1}: there was no secret at {format_key(keys)}: "
                "write one in place of the mask"
            )
        return written[keys]

    return _replace_scalars(text, change)


class ConfigEditor:
    """Reads, checks and writes the files of a running gateway's configuration."""

    def __init__(self, live: LiveSettings, redactor: Redactor) -> None:
        self._live, self._redactor = live, redactor
        self._lock = asyncio.Lock()

    async def read(self) -> models.ConfigReport:
        """Return all files. Raises RouteRefused, OSError."""
        files = tuple(await asyncio.to_thread(self._read))
        return models.ConfigReport(files=files, structure=await asyncio.to_thread(read_schema))

    def _read(self) -> list[models.ConfigFile]:
        return [
            models.ConfigFile(
                name=path.name,
                text=mask_secrets(text := read_text_file(path), self._redactor),
                sha256=_digest(text),
                writable=os.access(path.resolve().parent, os.W_OK),
            )
            for path in self._files().paths()
        ]

    async def check(self, draft: models.ConfigDraft) -> models.ConfigChange:
        """Return what is wrong with a new text, and what it changes. Raises RouteRefused,
        OSError.
        """
        return (await asyncio.to_thread(self._check, draft))[0]

    async def save(self, draft: models.ConfigDraft) -> models.ConfigChange:
        """Write a new text if nothing is wrong with it, and have the gateway read it. Raises
        RouteRefused where the file has changed since it was read, and OSError.
        """
        async with self._lock:
            change, path, text = await asyncio.to_thread(self._check, draft)
            if _digest(await asyncio.to_thread(read_text_file, path)) != draft.sha256:
                raise RouteRefused("the file has changed meanwhile: read it again")
            if change.problems:
                return change
            mode = path.stat().st_mode & 0o777
            await asyncio.to_thread(replace_private, path.resolve(), text.encode())
            path.resolve().chmod(mode)
            self._live.request_reload()
            return change.model_copy(update={"saved": True})

    def _check(self, draft: models.ConfigDraft) -> tuple[models.ConfigChange, Path, str]:
        files = self._files()
        path = next((one for one in files.paths() if one.name == draft.name), None)
        if path is None:
            raise RouteRefused("there is no configuration file of that name")
        before, text = read_text_file(path), draft.text
        problems, restart = tuple[ConfigProblem, ...](), tuple[str, ...]()
        try:
            text = restore_secrets(draft.text, before)
            settings = files.check(path.name, text)
            restart = find_restart_keys(self._live.settings, settings)
        except ConfigError as error:
            problems = error.problems
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark is not None else 0
            problems = (ConfigProblem(path.name, line, "", "not YAML"),)
        old, new = mask_secrets(before, self._redactor).splitlines(), draft.text.splitlines()
        diff = difflib.unified_diff(old, new, path.name, path.name, lineterm="")
        change = models.ConfigChange(
            problems=tuple(
                models.ConfigMistake(line=one.line, key=one.key, message=one.message)
                for one in problems
            ),
            diff="\n".join(diff),
            needs_restart=restart,
        )
        return change, path, text

    def _files(self) -> ConfigFiles:
        if self._live.files is None:
            raise RouteRefused("the configuration does not come from files")
        return self._live.files


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
