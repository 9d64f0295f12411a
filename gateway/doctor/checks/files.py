"""Looks at who may read and write what is the operator's. Blocks on the disk: in a thread."""

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from agent.workspace import default_workspace
from agent.workspace.files import read
from gateway import own_files
from gateway.doctor.base import Machine, Subject, aside
from gateway.doctor.rules.files import Mode, What, of_modes, of_references, of_workspace
from gateway.probes.base import Finding
from gateway.settings import Settings

MOST: int = 500
"""Files of one directory that are looked at."""
_SECRET_DIRECTORY = 0o011
"""Whoever may not enter the directory cannot reach what is in it."""


async def check_modes(subject: Subject) -> Sequence[Finding]:
    """Modes and owners of everything that is the operator's."""
    return await aside(lambda: list(of_modes(_all(subject), uid=os.geteuid())))


async def check_directory(machine: Machine) -> Sequence[Finding]:
    """The same of the configuration alone, for one that cannot be read."""
    return await aside(lambda: list(of_modes(_configuration(machine.directory), uid=os.geteuid())))


async def check_workspaces(subject: Subject) -> Sequence[Finding]:
    """Whether each agent's persona can be read."""
    return await aside(lambda: list(_workspaces(subject.settings)))


async def check_references(subject: Subject) -> Sequence[Finding]:
    """Whether files that the configuration names are there: certificates of IRC."""
    return await aside(lambda: list(_named(subject.settings)))


def _all(subject: Subject) -> Iterator[Mode]:
    settings = subject.settings
    yield from _configuration(subject.environment.directory)
    for target in sorted(subject.config.referenced_files):
        yield from _mode(target, "target")
    store = settings.store.path
    yield from _mode(store.parent, "home")
    for path in _below(store.parent):
        if path.name.startswith(store.name):
            yield from _mode(path, "store")
        elif "backup" in path.name.lower() or path.suffix in (".bak", ".gz", ".tar", ".zst"):
            yield from _mode(path, "backup")
    yield from _mode(store.parent / "media", "media")
    for agent in settings.agents:
        if agent.workspace is not None:
            yield from _mode(agent.workspace, "workspace")
            for path in _below(agent.workspace):
                yield from _mode(path, "workspace")
        own = own_files.own(agent.workspace, store, agent.id)
        for name in ("MEMORY.md", "USER.md", own_files.JOURNAL):
            yield from _mode(own / name, "memory")


def _configuration(directory: Path) -> Iterator[Mode]:
    yield from _mode(directory, "configuration")
    for path in _below(directory):
        if path.suffix in (".yaml", ".yml"):
            yield from _mode(path, "configuration")


def _below(directory: Path) -> list[Path]:
    try:
        return sorted(islice((path for path in directory.iterdir() if path.is_file()), MOST))
    except OSError:  # it is not there, or closed to us: other checks say so
        return []


def _mode(path: Path, what: What) -> Iterator[Mode]:
    try:
        seen = path.stat()
        above = path.resolve().parent.stat()
    except OSError:
        return
    sheltered = not stat.S_IMODE(above.st_mode) & _SECRET_DIRECTORY
    yield Mode(path=str(path), kind=what, mode=stat.S_IMODE(seen.st_mode), uid=seen.st_uid, is_sheltered=sheltered)


def _workspaces(settings: Settings) -> Iterator[Finding]:
    for agent in settings.agents:
        root = agent.workspace or default_workspace()
        provider = settings.llm.providers[settings.llm.models[agent.model].provider]
        try:
            reading = read(root, "public", provider.kind)
        except OSError as error:
            yield from of_workspace(agent.id, str(root), there=True, closed=error.strerror or "it cannot be read")
        else:
            yield from of_workspace(agent.id, str(root), there=not reading.is_missing, notes=reading.notes)


def _named(settings: Settings) -> Iterator[Finding]:
    for name, channel in settings.channels.items():
        if channel.platform != "irc" or isinstance(channel.tls, bool):
            continue
        for key in ("ca_file", "cert_file"):
            path = getattr(channel.tls, key)
            if path is None:
                continue
            try:
                Path(path).read_bytes()
            except OSError as error:
                yield of_references(f"channels.{name}.tls.{key}", error.strerror or "it cannot be read")
