"""What a backup says of itself. Pure.

A backup is a tar file (POSIX.1-2001 pax) of plain files alone. The last of them is the manifest: a file that was cut
off has none. The same files, copied at the same time, are the same bytes.
"""

from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

MANIFEST_NAME: Final = "manifest.json"
STORE_NAME: Final = "store/reverie.db"
OUTFILES_NAME: Final = "outfiles"
"""What goes with posts that wait."""
ROOT_KINDS: Final = ("mind", "workspace", "files")
"""Of an agent: what belongs to it and to the store, its persona with what it writes there, what its tools work in."""


class InvalidBackup(Exception):
    """This is no backup that can be used. The message says why, and what to do."""


class BackupMember(BaseModel):
    """One file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size_bytes: int
    sha256: str
    """In lower-case hex."""


class BackupManifest(BaseModel):
    """All of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    made: datetime
    """When the store was copied, UTC."""
    version: str
    """Of the reverie that made it."""
    schema_version: int
    """Of the store."""
    entries: int
    """In the log."""
    last: int
    """The log's last position. 0: it is empty."""
    replayed: bool
    """Whether every table was compared with the log."""
    roots: tuple[str, ...]
    """Directories that are in it, empty ones too."""
    left_out: tuple[str, ...]
    """What is no plain file, or has a name that is no text: not in it."""
    members: tuple[BackupMember, ...]
    """Every other file, in its order."""


def dump_manifest(manifest: BackupManifest) -> bytes:
    """As it is written."""
    return manifest.model_dump_json(indent=1).encode() + b"\n"


def parse_manifest(text: bytes) -> BackupManifest:
    """Reverse `dump_manifest`. Raises BadBackup."""
    try:
        found = BackupManifest.model_validate_json(text)
    except ValidationError:
        raise InvalidBackup(
            "its manifest cannot be read: a newer reverie made it, which can restore it, or it is damaged"
        ) from None
    for name in (*found.roots, *(member.name for member in found.members)):
        if not is_safe_name(name):
            raise InvalidBackup(f"its manifest names {name!r}, which is no name of a backup: do not use it")
    return found


def is_safe_name(name: str) -> bool:
    """Whether it names a place inside, and nothing but one that a backup has."""
    parts = name.split("/")
    if "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return False
    return (
        name in (STORE_NAME, OUTFILES_NAME) or parts[0] == OUTFILES_NAME or (parts[0] in ROOT_KINDS and len(parts) > 1)
    )


def root_name(name: str) -> str:
    """The directory, as `BackupManifest.roots` has it, in which a member of that name is; itself for the store."""
    parts = name.split("/")
    return name if name == STORE_NAME else OUTFILES_NAME if parts[0] == OUTFILES_NAME else "/".join(parts[:2])
