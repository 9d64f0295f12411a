"""A real PostgreSQL server on a free loopback port, with its data in a temporary directory.

with PostgresServer() as server: ...

Started by `initdb` and `pg_ctl` of the newest version that is installed; as root by the user
`postgres`, for PostgreSQL refuses to run as root. Raises FileNotFoundError if it is not installed.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from reverie.testing.servers.ports import free_port

_VERSIONS = Path("/usr/lib/postgresql")


def missing_part() -> str:
    """Return what is not installed. Empty: all is there."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: make install"
    return (
        ""
        if find_programs() is not None
        else "PostgreSQL is not installed: apt-get install postgresql"
    )


def find_programs() -> Path | None:
    """Return the directory of PostgreSQL's programs. None: it is not installed."""
    found = (
        sorted(_VERSIONS.glob("*/bin/initdb"), key=lambda one: int(one.parts[-3]))
        if _VERSIONS.is_dir()
        else []
    )
    return found[-1].parent if found else None


class PostgresServer:
    """A server with one database, `reverie`, whose owner has that name too."""

    def __init__(self, *, is_durable: bool = False, is_archived: bool = False) -> None:
        """`is_durable`: commits wait for the disk. Tests need not. `is_archived`: `restore` needs
        it."""
        programs = find_programs()
        if programs is None:
            raise FileNotFoundError("PostgreSQL is not installed: apt-get install postgresql")
        self.port = free_port()
        self._programs, self._directory = (
            programs,
            Path(tempfile.mkdtemp(prefix="reverie-postgresql-")),
        )
        self._fsync = "on" if is_durable else "off"
        self._archive = self._directory / "archive" if is_archived else None
        self._user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        if self._archive is not None:
            self._archive.mkdir()
        self._give_away(self._directory)
        self._run(
            "initdb",
            "--username=reverie",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        )
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._directory)

    def start(self, *, if_stopped: bool = False) -> None:
        """Start it, and return when it takes connections."""
        if if_stopped and (self._directory / "data/postmaster.pid").exists():
            return
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": self._fsync,
        }
        if self._archive is not None:  # as docs/cluster.md says
            copied = f"{self._archive}/%f"
            settings |= {
                "archive_mode": "on",
                "archive_command": f"test ! -f {copied} && cp %p {copied}",
            }
        options = " ".join(f"-c {name}={value!r}" for name, value in settings.items())
        self._run(
            "pg_ctl",
            "--wait",
            "--silent",
            f"--log={self._directory}/log",
            f"--options={options}",
            "start",
        )

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: `immediate` as a crash does, `fast` in order."""
        self._run("pg_ctl", "--wait", "--silent", f"--mode={mode}", "stop")

    def make_base_backup(self) -> None:
        """Copy all of it, while it runs."""
        where = f"--host=127.0.0.1 --port={self.port} --username=reverie --checkpoint=fast".split()
        self._run("pg_basebackup", *where, target="base")

    def restore(self, until: str) -> None:
        """Put the base backup in its place, and all that came after that until a moment."""
        assert self._archive is not None
        self._execute("SELECT pg_switch_wal()")
        self.stop("fast")  # which waits until all is archived
        data = self._directory / "data"
        shutil.rmtree(data)
        shutil.copytree(self._directory / "base", data)
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"restore_command = 'cp {self._archive}/%f %p'\n")
            file.write(f"recovery_target_time = '{until}'\nrecovery_target_action = promote\n")
        (data / "recovery.signal").touch()
        self._give_away(data)
        data.chmod(0o700)
        self.start()
        while self.execute("SELECT pg_is_in_recovery()") == [(True,)]:
            time.sleep(0.05)

    def url(self, schema: str = "reverie") -> str:
        options = quote(f"-c search_path={schema}")
        return f"postgresql://reverie@127.0.0.1:{self.port}/postgres?options={options}"

    def drop(self, schema: str) -> None:
        self._execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")

    def end_connections(self) -> None:
        self._execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE "
            "'reverie%'"
        )

    def execute(self, statement: str) -> list[Any]:
        import psycopg  # noqa: PLC0415 - an extra, which may be missing

        with psycopg.connect(self.url(), autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def _execute(self, statement: str) -> None:
        import psycopg  # noqa: PLC0415 - an extra, which may be missing

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)

    def _give_away(self, path: Path) -> None:
        if self._user is not None:
            for one in (path, *path.rglob("*")):
                os.chown(one, self._user.pw_uid, self._user.pw_gid)

    def _run(self, program: str, *arguments: str, target: str = "data") -> None:
        user = self._user
        subprocess.run(
            [self._programs / program, f"--pgdata={self._directory}/{target}", *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._directory,
            user=user.pw_uid if user is not None else None,
            group=user.pw_gid if user is not None else None,
            extra_groups=[] if user is not None else None,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        )
