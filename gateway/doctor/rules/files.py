"""Who else may read or write what is the operator's. Pure."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from gateway.probes.base import Finding

_OTHERS_WRITE: Final = 0o022
_OTHERS_READ: Final = 0o044
_STICKY: Final = 0o1000

FileKind = Literal["configuration", "target", "store", "backup", "media", "workspace", "memory", "home"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMode:
    """A file or a directory as it was found."""

    path: str
    kind: FileKind
    """home: the directory of the store."""
    mode: int
    """Permission bits, with the sticky one."""
    uid: int
    is_sheltered: bool = False
    """A directory above keeps everybody else out."""

    @property
    def octal(self) -> str:
        return f"{self.mode & 0o777:03o}"


_READ_RISKS: Final[dict[FileKind, tuple[str, str, str]]] = {
    "store": ("files.store_readable", "the log has everything that was said", "chmod 600"),
    "backup": ("files.backup_readable", "a backup has everything that was said", "chmod 600"),
    "media": ("files.media_readable", "it has images that people sent", "chmod 700"),
    "memory": ("files.memory_readable", "it has what the agent knows of its owner", "chmod 600"),
}
_WRITE_RISKS: Final[dict[FileKind, str]] = {
    "configuration": "whoever writes there commands the gateway",
    "target": "whoever writes there chooses the secret",
    "workspace": "whoever writes there tells the agent who it is",
    "memory": "whoever writes there tells the agent what to believe",
    "store": "whoever writes there can change what was said",
    "home": "whoever writes there can put another store in its place",
    "backup": "whoever writes there can change what is restored",
    "media": "whoever writes there chooses what the agent sees",
}


def judge_modes(modes: Iterable[FileMode], *, uid: int) -> Iterator[Finding]:
    """What others may do with each. `uid`: ours."""
    seen = list(modes)
    found = [finding for one in seen for finding in _judge_mode(one, uid)]
    yield from found
    if seen and not found:
        yield Finding(code="files.modes", level="ok", what=f"{len(seen)} files and directories are closed to others")


def _judge_mode(one: FileMode, uid: int) -> Iterator[Finding]:
    if one.mode & _OTHERS_WRITE and not one.mode & _STICKY and not one.is_sheltered:
        yield Finding(
            code="files.writable",
            level="bad",
            what=f"others can write it (mode {one.octal}): {_WRITE_RISKS[one.kind]}",
            fix=f"chmod go-w {shlex.quote(one.path)}",
            where=one.path,
        )
    if one.kind in _READ_RISKS and one.mode & _OTHERS_READ and not one.is_sheltered:
        code, why, fix = _READ_RISKS[one.kind]
        yield Finding(
            code=code,
            level="warning",
            what=f"others can read it (mode {one.octal}): {why}",
            fix=f"{fix} {shlex.quote(one.path)}",
            where=one.path,
        )
    if one.kind in ("store", "home", "backup") and uid and one.uid != uid:
        yield Finding(
            code="files.owner",
            level="warning",
            what=f"it belongs to another user ({one.uid}, not {uid})",
            fix=f"run the gateway as that user, or: chown -R {uid} {shlex.quote(one.path)}",
            where=one.path,
        )


def judge_workspace(
    agent: str, path: str, *, there: bool, notes: Iterable[str] = (), closed: str = ""
) -> Iterator[Finding]:
    """What an agent is told of itself. `notes`: what whoever read it had to say; `closed`: why nobody could."""
    if closed:
        yield Finding(
            code="files.workspace",
            level="bad",
            what=f"its persona cannot be read: {closed}",
            fix="make the directory and what is in it readable for the user that runs the gateway (chown, chmod)",
            where=f"agents.{agent}.workspace ({path})",
        )
        return
    if not there:
        yield Finding(
            code="files.workspace",
            level="bad",
            what="there is no such directory: the agent has no persona",
            fix="make it with an IDENTITY.md in it, or leave `workspace` out for the one that comes with it",
            where=f"agents.{agent}.workspace ({path})",
        )
        return
    told = list(notes)
    for note in told:
        yield Finding(
            code="files.persona",
            level="warning",
            what=note,
            fix="mend that file; IDENTITY.md says who the agent is",
            where=f"agents.{agent}.workspace",
        )
    if not told:
        yield Finding(code="files.workspace", level="ok", what="its persona can be read", where=f"agents.{agent}")


def judge_reference(name: str, why: str) -> Finding:
    """A file that the configuration names and that cannot be read."""
    return Finding(
        code="files.missing",
        level="bad",
        what=f"the file that it names cannot be read: {why}",
        fix="correct the path (it starts at the configuration directory), or put the file there",
        where=name,
    )
