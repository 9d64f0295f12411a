"""The configuration over the API: its files, checked, and written.

No secret leaves the gateway: a file that holds one as it is can be neither read nor written here.
References (`${NAME}`, `${file:...}`), as `reverie setup` writes them, are shown.
"""

import asyncio
import contextlib
import difflib
import hashlib
import os
import re
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

_SECRET_KEY: Final = re.compile(
    r"(token|password|passphrase|secret|api_?key|credential)s?$", re.IGNORECASE
)
_COUNT: Final = re.compile(r"(?:\w+_tokens|first_token): [\d._]+(?:ms|[smhd])?")
"""A count of tokens, or the time to the first: no secret."""
_SECRET_SECTION: Final = re.compile(r"env|headers|keys|on_connect")
"""Each value in one of these is a secret."""
_REFERENCE: Final = re.compile(
    r"(?:(?:Bearer|Basic|Bot|Token)\s+)?\$\{(?:file:[^}]*|[A-Za-z_]\w*)\}", re.IGNORECASE
)


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


def find_secret(text: str, redactor: Redactor, secret_keys: Collection[Keys] = ()) -> str:
    """Return where the text of a file holds a secret as it is: at `secret_keys`, at keys that are
    called so, or as the redactor finds it. Empty: nowhere. Raises yaml.YAMLError, RecursionError.
    """
    for keys, node in _find_values(yaml.compose(text), (), set()):
        names = [key for key in keys if isinstance(key, str)]
        is_named = keys in secret_keys or (
            _SECRET_KEY.search("".join(names[-1:])) is not None
            or any(_SECRET_SECTION.fullmatch(name) for name in names[-2:])
        )
        rest = _REFERENCE.sub("", node.value).strip().lower()
        is_count = _COUNT.fullmatch(f"{''.join(names[-1:])}: {rest}")
        if (is_named and not is_count and rest not in {"", "none", "null", "~"}) or (
            redactor(node.value) != node.value
        ):
            return (
                f"line {node.start_mark.line + 1}: {format_key(keys)} is a secret as it is; write "
                "${file:PATH} or ${NAME} there"
            )
    return "a secret stands in a comment or a key" if redactor(text) != text else ""


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
        found = list[models.ConfigFile]()
        for path in self._files().paths():
            text, why = read_text_file(path), "it is not YAML"
            with contextlib.suppress(yaml.YAMLError, RecursionError):
                why = self._find_secret(text)
            found.append(
                models.ConfigFile(
                    name=path.name,
                    text=f"# This file is not shown: {why}.\n" if why else text,
                    sha256=_digest(text),
                    writable=not why and os.access(path.resolve().parent, os.W_OK),
                )
            )
        return found

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
                change, path = await asyncio.to_thread(self._check, name, text)
                if _digest(await asyncio.to_thread(read_text_file, path)) != sha256:
                    raise RouteRefused("the file has changed meanwhile: read it again")
                if change.problems:
                    return change
                mode = path.stat().st_mode & 0o777
                await asyncio.to_thread(replace_private, path.resolve(), text.encode())
                path.resolve().chmod(mode)
                self._live.request_reload()
                return change.model_copy(update={"saved": True})

    def _check(self, name: str, text: str) -> tuple[models.ConfigChange, Path]:
        """Return also the path of the file."""
        files = self._files()
        path = next((one for one in files.paths() if one.name == name), None)
        if path is None:
            raise RouteRefused("there is no configuration file of that name")
        before = read_text_file(path)
        problems, restart = tuple[ConfigProblem, ...](), tuple[str, ...]()
        try:
            if why := self._find_secret(before) or self._find_secret(text):
                raise RouteRefused(why)
            restart = find_restart_keys(self._live.settings, files.check(name, text))
        except ConfigError as error:
            problems = error.problems
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark is not None else 0
            problems = (ConfigProblem(path.name, line, "", "not YAML"),)
        lines = before.splitlines(), text.splitlines()
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
        return change, path

    def _find_secret(self, text: str) -> str:
        values = walk_values(self._live.settings)
        secret_keys = {keys for keys, one in values if isinstance(one, SecretStr)}
        return find_secret(text, self._redactor, secret_keys)

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
