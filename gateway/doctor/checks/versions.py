"""Looks at what is installed."""

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, requires, version

from gateway.doctor.base import DoctorEnvironment, run_in_thread
from gateway.doctor.rules.versions import judge_libraries, judge_python
from gateway.probes.base import Finding


async def check_versions(machine: DoctorEnvironment) -> Sequence[Finding]:
    """Python, SQLite, and the libraries against what the package needs."""
    del machine
    return await run_in_thread(_check_versions)


def _check_versions() -> list[Finding]:
    strict, fts5 = (
        _can_execute(sql) for sql in ("CREATE TABLE a (b INTEGER) STRICT", "CREATE VIRTUAL TABLE c USING fts5(d)")
    )
    found = list(judge_python(sys.version_info[:3], sqlite3.sqlite_version_info, strict=strict, fts5=fts5))
    return [*found, *judge_libraries(requires("reverie-gateway") or (), _find_installed_version)]


def _find_installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _can_execute(sql: str) -> bool:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute(sql)
        except sqlite3.OperationalError:
            return False
    return True
