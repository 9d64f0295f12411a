"""Looks at what is installed."""

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, requires, version

from gateway.doctor.base import Machine, aside
from gateway.doctor.rules.versions import of_libraries, of_python
from gateway.probes.base import Finding


async def check_versions(machine: Machine) -> Sequence[Finding]:
    """Python, SQLite, and the libraries against what the package needs."""
    del machine
    return await aside(_looked)


def _looked() -> list[Finding]:
    strict, fts5 = (_can(sql) for sql in ("CREATE TABLE a (b INTEGER) STRICT", "CREATE VIRTUAL TABLE c USING fts5(d)"))
    found = list(of_python(sys.version_info[:3], sqlite3.sqlite_version_info, strict=strict, fts5=fts5))
    return [*found, *of_libraries(requires("reverie-gateway") or (), _installed)]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _can(sql: str) -> bool:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute(sql)
        except sqlite3.OperationalError:
            return False
    return True
