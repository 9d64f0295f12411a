"""Looks at who may read and write what is the operator's. Blocks on the disk: in a thread."""

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from agent.workspace import default_workspace
from agent.workspace.files import read_workspace
from gateway import own_files
from gateway.doctor.base import DoctorContext, DoctorEnvironment, run_in_thread
from gateway.doctor.rules.files import FileKind, FileMode, judge_modes, judge_reference, judge_workspace
from gateway.probes.base import Finding
from gateway.settings import Settings

MAX_FILES: int = 500
"""Files of one directory that are looked at."""
_SECRET_DIRECTORY = 0o011
"""Whoever may not enter the directory cannot reach what is in it."""


async def check_modes(subject: DoctorContext) -> Sequence[Finding]:
    """Modes and owners of everything that is the operator's."""
    return await run_in_thread(lambda: list(judge_modes(_read_all_modes(subject), uid=os.geteuid())))


async def check_directory(machine: DoctorEnvironment) -> Sequence[Finding]:
    """The same of the configuration alone, for one that cannot be read."""
    return await run_in_thread(
        lambda: list(judge_modes(_read_configuration_modes(machine.directory), uid=os.geteuid()))
    )


async def check_workspaces(subject: DoctorContext) -> Sequence[Finding]:
    """Whether each agent's persona can be read."""
    return await run_in_thread(lambda: list(_check_workspaces(subject.settings)))


async def check_references(subject: DoctorContext) -> Sequence[Finding]:
    """Whether files that the configuration names are there: certificates of IRC."""
    return await run_in_thread(lambda: list(_check_named_files(subject.settings)))


def _read_all_modes(subject: DoctorContext) -> Iterator[FileMode]:
    settings = subject.settings
    yield from _read_configuration_modes(subject.environment.directory)
    for target in sorted(subject.config.referenced_files):
        yield from _read_mode(target, "target")
    store = settings.store.path
    yield from _read_mode(store.parent, "home")
    for path in _list_files(store.parent):
        if path.name.startswith(store.name):
            yield from _read_mode(path, "store")
        elif "backup" in path.name.lower() or path.suffix in (".bak", ".gz", ".tar", ".zst"):
            yield from _read_mode(path, "backup")
    yield from _read_mode(store.parent / "media", "media")
    for agent in settings.agents:
        if agent.workspace is not None:
            yield from _read_mode(agent.workspace, "workspace")
            for path in _list_files(agent.workspace):
                yield from _read_mode(path, "workspace")
        own = own_files.agent_directory(agent.workspace, store, agent.id)
        for name in ("MEMORY.md", "USER.md", own_files.JOURNAL_FILE):
            yield from _read_mode(own / name, "memory")


def _read_configuration_modes(directory: Path) -> Iterator[FileMode]:
    yield from _read_mode(directory, "configuration")
    for path in _list_files(directory):
        if path.suffix in (".yaml", ".yml"):
            yield from _read_mode(path, "configuration")


def _list_files(directory: Path) -> list[Path]:
    try:
        return sorted(islice((path for path in directory.iterdir() if path.is_file()), MAX_FILES))
    except OSError:  # it is not there, or closed to us: other checks say so
        return []


def _read_mode(path: Path, what: FileKind) -> Iterator[FileMode]:
    try:
        seen = path.stat()
        above = path.resolve().parent.stat()
    except OSError:
        return
    sheltered = not stat.S_IMODE(above.st_mode) & _SECRET_DIRECTORY
    yield FileMode(path=str(path), kind=what, mode=stat.S_IMODE(seen.st_mode), uid=seen.st_uid, is_sheltered=sheltered)


def _check_workspaces(settings: Settings) -> Iterator[Finding]:
    for agent in settings.agents:
        root = agent.workspace or default_workspace()
        provider = settings.llm.providers[settings.llm.models[agent.model].provider]
        try:
            reading = read_workspace(root, "public", provider.kind)
        except OSError as error:
            yield from judge_workspace(agent.id, str(root), there=True, closed=error.strerror or "it cannot be read")
        else:
            yield from judge_workspace(agent.id, str(root), there=not reading.is_missing, notes=reading.notes)


def _check_named_files(settings: Settings) -> Iterator[Finding]:
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
                yield judge_reference(f"channels.{name}.tls.{key}", error.strerror or "it cannot be read")
