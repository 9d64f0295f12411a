"""Checks of the system: modes and owners of files, and whether they can be read."""

import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from agent.workspace.persona import DEFAULT_WORKSPACE, read_workspace
from gateway.config.check_registry import CheckContext, CheckEnvironment, check
from gateway.core.findings import Finding, bad, ok, warning
from gateway.core.private_files import JOURNAL_FILE, agent_directory

_OTHERS_WRITE: Final = 0o022
_OTHERS_READ: Final = 0o044
_STICKY: Final = 0o1000

FileKind = Literal[
    "configuration", "target", "store", "backup", "media", "workspace", "memory", "home"
]


FilesFound = Iterator[tuple[Path, FileKind]]
"""home: the directory of the store."""
_READ_RISKS: Final[dict[FileKind, tuple[str, str, str]]] = {
    "store": ("files.store_readable", "the log contains all messages", "chmod 600"),
    "backup": ("files.backup_readable", "a backup contains all messages", "chmod 600"),
    "media": ("files.media_readable", "it contains images that people sent", "chmod 700"),
    "memory": (
        "files.memory_readable",
        "it contains what the agent knows about its owner",
        "chmod 600",
    ),
}
_WRITE_RISKS: Final[dict[FileKind, str]] = {
    "configuration": "whoever can write it controls the gateway",
    "target": "whoever can write it chooses the secret",
    "workspace": "whoever can write it decides who the agent is",
    "memory": "whoever can write it decides what the agent believes",
    "store": "whoever can write it can change the messages",
    "home": "whoever can write it can replace the store",
    "backup": "whoever can write it can change what is restored",
    "media": "whoever can write it chooses what the agent sees",
}


_SECRET_DIRECTORY = 0o011
"""Execute bits for others: without them nothing inside the directory can be reached."""


@check("modes of files")
def check_modes(context: CheckContext) -> Iterator[Finding]:
    """Check modes and owners of all files of the operator."""
    yield from _judge_files(
        [*_list_configuration(context.environment.directory), *_list_all_files(context)]
    )


def check_directory(environment: CheckEnvironment) -> Iterator[Finding]:
    """Check modes and owners of a configuration that cannot be loaded."""
    yield from _judge_files(list(_list_configuration(environment.directory)))


def _judge_files(files: Sequence[tuple[Path, FileKind]]) -> Iterator[Finding]:
    present = [one for one in files if os.access(one[0], os.F_OK)]
    found = [finding for path, kind in present for finding in _judge_file(path, kind)]
    yield from found
    if present and not found:
        yield ok(
            "files.modes", f"{len(present)} files and directories are not accessible to others"
        )


def _judge_file(path: Path, kind: FileKind) -> Iterator[Finding]:
    try:
        status, above = path.stat(), path.resolve().parent.stat()
    except OSError:
        return
    mode, uid, where, quoted = (
        stat.S_IMODE(status.st_mode),
        os.geteuid(),
        str(path),
        shlex.quote(str(path)),
    )
    octal = f"{mode & 0o777:03o}"
    is_sheltered = not stat.S_IMODE(above.st_mode) & _SECRET_DIRECTORY
    if mode & _OTHERS_WRITE and not mode & _STICKY and not is_sheltered:
        what = f"others can write it (mode {octal}): {_WRITE_RISKS[kind]}"
        yield bad("files.writable", what, f"chmod go-w {quoted}", where)
    if kind in _READ_RISKS and mode & _OTHERS_READ and not is_sheltered:
        code, why, fix = _READ_RISKS[kind]
        yield warning(code, f"others can read it (mode {octal}): {why}", f"{fix} {quoted}", where)
    if kind in ("store", "home", "backup") and uid and status.st_uid != uid:
        what = f"it belongs to another user ({status.st_uid}, not {uid})"
        yield warning(
            "files.owner", what, f"run the gateway as that user, or: chown -R {uid} {quoted}", where
        )


def _list_all_files(context: CheckContext) -> FilesFound:
    """List the operator's files outside the configuration directory."""
    for target in sorted(context.config.referenced_files):
        yield target, "target"
    store = context.settings.store.path
    yield store.parent, "home"
    for path in _list_files(store.parent):
        if path.name.startswith(store.name):
            yield path, "store"
        elif "backup" in path.name.lower() or path.suffix in (".bak", ".gz", ".tar", ".zst"):
            yield path, "backup"
    yield store.parent / "media", "media"
    for agent in context.settings.agents:
        if agent.workspace is not None:
            yield agent.workspace, "workspace"
            for path in _list_files(agent.workspace):
                yield path, "workspace"
        own = agent_directory(agent.workspace, store, agent.id)
        for name in ("MEMORY.md", "USER.md", JOURNAL_FILE):
            yield own / name, "memory"


def _list_configuration(directory: Path) -> FilesFound:
    yield directory, "configuration"
    for path in _list_files(directory):
        if path.suffix in (".yaml", ".yml"):
            yield path, "configuration"


def _list_files(directory: Path) -> list[Path]:
    try:
        return sorted(islice((path for path in directory.iterdir() if path.is_file()), 500))
    except OSError:  # missing or closed to us: other checks report it
        return []


@check("workspaces")
def check_workspaces(context: CheckContext) -> Iterator[Finding]:
    """Check whether each agent's persona can be read."""
    settings = context.settings
    for agent in settings.agents:
        root = agent.workspace or DEFAULT_WORKSPACE
        where = f"agents.{agent.id}.workspace ({root})"
        provider = settings.llm.providers[settings.llm.models[agent.model].provider]
        try:
            reading = read_workspace(root, "public", provider.family)
        except OSError as error:
            what = f"its persona cannot be read: {error.strerror or 'it cannot be read'}"
            fix = (
                "make the directory and its files readable for the user that runs the gateway "
                "(chown, chmod)"
            )
            yield bad("files.workspace", what, fix, where)
            continue
        if reading.is_missing:
            what = "there is no such directory: the agent has no persona"
            fix = (
                "create it with an IDENTITY.md in it, or remove `workspace` to use the default "
                "persona"
            )
            yield bad("files.workspace", what, fix, where)
            continue
        for note in reading.notes:
            fix = "correct that file; IDENTITY.md describes who the agent is"
            yield warning("files.persona", note, fix, f"agents.{agent.id}.workspace")
        if not reading.notes:
            yield ok("files.workspace", "its persona can be read", f"agents.{agent.id}")
