"""Brings a store of an older version forward, and keeps it as it was beside. Blocks.

Each migration is one transaction, so a kill leaves the old or the new. But the version before cannot read the new one:
who wants to go back needs the old file. It costs the disk as much as the store has, once, until somebody removes it.
"""

import contextlib
import logging
import shutil
import sqlite3
from pathlib import Path
from typing import Final

from gateway.store.backup import copy_store, newest_schema
from gateway.store.errors import StoreError
from gateway.store.schema import migrate_schema, sqlite_uri

logger = logging.getLogger("reverie.store")

_FREE_SPACE_FACTOR: Final = 2.0
"""So many times its size must be free: a migration may write most of it anew."""


def upgrade_store(path: Path) -> None:
    """Migrate it. The caller holds the lock. Raises TooNew or Unreadable."""
    version = _schema_version(path)
    if 0 < version < newest_schema():
        _keep_old_schema(path, version)
    migrate_schema(path)


def old_schema_path(path: Path, version: int) -> Path:
    """Where a store of that schema is kept."""
    return path.with_name(f"{path.name}.schema-{version}")


def _schema_version(path: Path) -> int:
    """0: it is new, or none; then `migrate_schema` says so."""
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(sqlite_uri(path, "ro"), uri=True)) as looking,
    ):
        (version,) = looking.execute("PRAGMA user_version").fetchone()
        return int(version)
    return 0


def _keep_old_schema(path: Path, version: int) -> None:
    """What cannot be kept is told, and no reason to stop: a backup may well be there."""
    target, size = old_schema_path(path, version), path.stat().st_size
    told = f"the store becomes schema {newest_schema()}, which an older reverie does not read"
    if shutil.disk_usage(path.parent).free < size * _FREE_SPACE_FACTOR:
        logger.warning("%s; there is no room to keep it as it was, with schema %d", told, version)
        return
    half = target.with_name(f"{target.name}.new")
    half.unlink(missing_ok=True)  # of a kill
    try:
        copy_store(path, half)
        half.replace(target)
    except (OSError, StoreError) as error:
        half.unlink(missing_ok=True)
        logger.warning("%s; it cannot be kept as it was: %s", told, error)
        return
    logger.info("%s; as it was it is kept as %s (%.1f MB): remove that when all is well", told, target, size / 1e6)
