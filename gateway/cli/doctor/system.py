"""Checks of the system: clock, file modes, memory and containers, sandbox of the shell, installed versions."""

import asyncio
import ctypes
import os
import resource
import shlex
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import islice
from pathlib import Path, PurePath
from typing import Final, Literal
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from agent.models.config import LocalConfig, ScriptedConfig
from agent.workspace import default_workspace
from agent.workspace.persona import read_workspace
from gateway.cli.doctor.base import DoctorContext, DoctorEnvironment, Finding, bad, ok, warning
from gateway.cli.doctor.model import list_used_models
from gateway.config.models import Settings
from gateway.core.private_files import JOURNAL_FILE, agent_directory
from gateway.core.process import ProgramNotStarted, run_program
from gateway.tools.dispatch import is_off
from gateway.tools.sandbox import PATH

MAX_SKEW_S: Final = 60.0
"""Seconds beyond which signatures, certificates and reminders go wrong."""
KernelClock = Literal["synchronized", "unsynchronized", "unknown"]


def judge_clock(ahead_s: Mapping[str, float], kernel: KernelClock, *, keeps: bool) -> list[Finding]:
    """Judge the clock. It is right if any server agrees.

    `ahead_s`: by server, seconds that our clock is ahead of the server's. `keeps`: this system sets its own clock, as
    containers and many virtual machines do not.
    """
    fix = "synchronise the clock: timedatectl set-ntp true, or install chrony (a container has its host's clock)"
    if ahead_s:
        host, off_s = min(ahead_s.items(), key=lambda one: abs(one[1]))
        if abs(off_s) <= MAX_SKEW_S:
            return [ok("clock.skew", f"the clock agrees with that of {host}")]
        way = "ahead of" if off_s > 0 else "behind"
        what = f"the clock is {abs(off_s):.0f} s {way} that of {host}"
        return [bad("clock.skew", what, fix)]
    if kernel == "unsynchronized" and keeps:
        what = "no time server answered, and the system does not synchronise its clock"
        return [warning("clock.unsynchronized", what, fix)]
    summary = (
        "the system synchronises its clock with a time server"
        if kernel == "synchronized"
        else "the clock was not compared with a server"
    )
    return [ok("clock.skew", summary)]


ANSWER_TIMEOUT_S: Final = 5.0
MAX_CLOCK_SERVERS: Final = 6
"""Most servers that are asked."""
_TIMEX_BYTES: Final = 256
"""Size of the buffer: `struct timex` has 208 bytes on 64-bit systems (adjtimex(2))."""
_SYSTEMD: Final = "run/systemd/system"
"""Exists where systemd runs the machine (sd_booted(3))."""
_TIME_ERROR: Final = 5
"""TIME_ERROR: the clock is not synchronized."""


async def check_clock(context: DoctorContext) -> Sequence[Finding]:
    """Check how far the clock is off."""
    ahead: dict[str, float] = {}
    if not context.offline:
        measurements = [_measure_skew(origin) for origin in list_origins(context.settings)[:MAX_CLOCK_SERVERS]]
        ahead = dict(filter(None, await asyncio.gather(*measurements)))
    return judge_clock(ahead, _read_kernel_clock(), keeps=(context.environment.root / _SYSTEMD).is_dir())


def list_origins(settings: Settings) -> list[str]:
    """Return scheme, host and port of every HTTP server in the configuration, without duplicates."""
    urls = [
        one.base_url for one in settings.llm.providers.values() if not isinstance(one, LocalConfig | ScriptedConfig)
    ]
    for channel in settings.channels.values():
        if channel.platform == "telegram":
            urls.append(channel.base_url)
        elif channel.platform == "discord":
            urls.append(channel.api_url)
    found = dict[str, None]()
    for url in urls:
        parts = urlsplit(url)
        if parts.hostname:
            found[f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"] = None
    return list(found)


async def _measure_skew(origin: str) -> tuple[str, float] | None:
    """Return the server's host, and seconds that our clock is ahead of it. None: the server does not tell the time."""
    import httpx  # noqa: PLC0415 - only here

    try:
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as client:
            before = time.time()
            answer = await client.head(origin)
            ours = (before + time.time()) / 2
        theirs = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, KeyError, ValueError, TypeError, OverflowError, RuntimeError):
        return None
    return urlsplit(origin).hostname or "", ours - theirs


def _read_kernel_clock() -> KernelClock:
    """Return the kernel's view of its clock (adjtimex(2) without modes only reads)."""
    if sys.platform != "linux":
        return "unknown"
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return "unknown"
    return "unknown" if state < 0 else "unsynchronized" if state == _TIME_ERROR else "synchronized"


_OTHERS_WRITE: Final = 0o022
_OTHERS_READ: Final = 0o044
_STICKY: Final = 0o1000

FileKind = Literal["configuration", "target", "store", "backup", "media", "workspace", "memory", "home"]


FilesFound = Iterator[tuple[Path, FileKind]]
"""home: the directory of the store."""
_READ_RISKS: Final[dict[FileKind, tuple[str, str, str]]] = {
    "store": ("files.store_readable", "the log contains all messages", "chmod 600"),
    "backup": ("files.backup_readable", "a backup contains all messages", "chmod 600"),
    "media": ("files.media_readable", "it contains images that people sent", "chmod 700"),
    "memory": ("files.memory_readable", "it contains what the agent knows about its owner", "chmod 600"),
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


MAX_FILES: int = 500
"""Most files of one directory that are checked."""
_SECRET_DIRECTORY = 0o011
"""Execute bits for others: without them nothing inside the directory can be reached."""


def check_modes(context: DoctorContext) -> Iterator[Finding]:
    """Check modes and owners of all files of the operator."""
    yield from _judge_files([*_list_configuration(context.environment.directory), *_list_all_files(context)])


def check_directory(environment: DoctorEnvironment) -> Iterator[Finding]:
    """Check modes and owners of a configuration that cannot be loaded."""
    yield from _judge_files(list(_list_configuration(environment.directory)))


def _judge_files(files: Sequence[tuple[Path, FileKind]]) -> Iterator[Finding]:
    present = [one for one in files if os.access(one[0], os.F_OK)]
    found = [finding for path, kind in present for finding in _judge_file(path, kind)]
    yield from found
    if present and not found:
        yield ok("files.modes", f"{len(present)} files and directories are not accessible to others")


def _judge_file(path: Path, kind: FileKind) -> Iterator[Finding]:
    try:
        status, above = path.stat(), path.resolve().parent.stat()
    except OSError:
        return
    mode, uid, where, quoted = stat.S_IMODE(status.st_mode), os.geteuid(), str(path), shlex.quote(str(path))
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
        yield warning("files.owner", what, f"run the gateway as that user, or: chown -R {uid} {quoted}", where)


def _list_all_files(context: DoctorContext) -> FilesFound:
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
        return sorted(islice((path for path in directory.iterdir() if path.is_file()), MAX_FILES))
    except OSError:  # missing or closed to us: other checks report it
        return []


def check_workspaces(context: DoctorContext) -> Iterator[Finding]:
    """Check whether each agent's persona can be read."""
    settings = context.settings
    for agent in settings.agents:
        root = agent.workspace or default_workspace()
        where = f"agents.{agent.id}.workspace ({root})"
        provider = settings.llm.providers[settings.llm.models[agent.model].provider]
        try:
            reading = read_workspace(root, "public", provider.kind)
        except OSError as error:
            what = f"its persona cannot be read: {error.strerror or 'it cannot be read'}"
            fix = "make the directory and its files readable for the user that runs the gateway (chown, chmod)"
            yield bad("files.workspace", what, fix, where)
            continue
        if reading.is_missing:
            what = "there is no such directory: the agent has no persona"
            fix = "create it with an IDENTITY.md in it, or remove `workspace` to use the default persona"
            yield bad("files.workspace", what, fix, where)
            continue
        for note in reading.notes:
            fix = "correct that file; IDENTITY.md describes who the agent is"
            yield warning("files.persona", note, fix, f"agents.{agent.id}.workspace")
        if not reading.notes:
            yield ok("files.workspace", "its persona can be read", f"agents.{agent.id}")


def check_references(context: DoctorContext) -> Iterator[Finding]:
    """Check whether the files that the configuration names can be read: certificates of IRC."""
    for name, channel in context.settings.channels.items():
        if channel.platform != "irc" or isinstance(channel.tls, bool):
            continue
        for key in ("ca_file", "cert_file"):
            path = getattr(channel.tls, key)
            if path is None:
                continue
            try:
                Path(path).read_bytes()
            except OSError as error:
                what = f"the file that it names cannot be read: {error.strerror or 'it cannot be read'}"
                fix = "correct the path (relative to the configuration directory), or put the file there"
                yield bad("files.missing", what, fix, f"channels.{name}.tls.{key}")


BASE_BYTES: Final = 160_000_000
"""Memory of a gateway with three platforms, with a margin (README, figures)."""
EMBEDDED_BYTES: Final = 300_000_000
"""Additional memory of the embedded model (facts, section 10)."""
MIN_OPEN_FILES: Final = 256
"""Open files of a gateway: sockets of channels, models and readers, files of the store and of tools."""


def _format_mb(count: int) -> str:
    return f"{count / 1_000_000:.0f} MB"


_UNIT_DIRECTORIES: Final = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_SIZE_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LAYERED_FILESYSTEMS: Final = frozenset({"overlay", "aufs", "overlayfs"})


def check_machine(context: DoctorContext) -> Iterator[Finding]:
    """Check whether the resources suffice."""
    root, store = context.environment.root, context.settings.store.path
    need = BASE_BYTES + (EMBEDDED_BYTES if _uses_embedded_model(context.settings) else 0)
    units = _find_systemd_units(root)
    limits = {"this container or service": _read_memory_limit(root), **units}
    tight = {name: limit for name, limit in limits.items() if limit is not None and limit < need}
    for name, limit in tight.items():
        yield warning(
            "machine.memory_limit",
            f"{name} may have {_format_mb(limit)} of memory, but a gateway like this needs about {_format_mb(need)}",
            f"raise the limit to {_format_mb(2 * need)} (compose: mem_limit; systemd: MemoryMax)",
        )
    available = _read_available_memory(root)
    if available is not None and available < need:
        what = f"{_format_mb(available)} of memory are free, but a gateway like this needs about {_format_mb(need)}"
        yield warning("machine.memory", what, "end other programs, or add memory")
    elif not tight and available is not None:
        yield ok("machine.memory", f"{_format_mb(available)} of memory are free")
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if open_files < MIN_OPEN_FILES:
        what = f"a process may have {open_files} files open, and a gateway may need {MIN_OPEN_FILES}"
        yield warning("machine.files", what, "raise it (ulimit -n 1024; systemd: LimitNOFILE=1024)")
    container = find_container(root, context.environment.env)
    if container and _find_filesystem_type(root, store) in _LAYERED_FILESYSTEMS:
        yield warning(
            "machine.volume",
            f"the store is in the {container} container's own layer, and is deleted with the container",
            "mount a volume there (docker run -v reverie-data:/DIRECTORY ..., or volumes: in compose)",
            str(store),
        )
    elif container:
        yield ok("machine.container", f"this is a {container} container")
    for name in units:
        if name not in tight:
            yield ok("machine.service", f"systemd has the unit {name}")


def find_container(root: Path, env: Mapping[str, str]) -> str:
    """Return the kind of container; empty: none."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if env.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return ""


def _read_memory_limit(root: Path) -> int | None:
    """Return the smallest limit of our control group and its parents (kernel.org, cgroup-v2, memory.max)."""
    own = _read_text(root / "proc/self/cgroup").strip().rpartition("::")[2].strip("/").splitlines()
    group = PurePath(own[0] if own else "")
    found = []
    for folder in (group, *group.parents):
        words = _read_text(root / "sys/fs/cgroup" / folder / "memory.max").strip()
        if words.isdigit():
            found.append(int(words))
    return min(found, default=None)


def _read_available_memory(root: Path) -> int | None:
    for row in _read_text(root / "proc/meminfo").splitlines():
        name, _, rest = row.partition(":")
        words = rest.split()
        if name == "MemAvailable" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None


def _find_filesystem_type(root: Path, path: Path) -> str:
    """Return the type of the file system of a path, by the longest mount point (proc(5), mountinfo)."""
    best, kind = -1, ""
    for row in _read_text(root / "proc/self/mountinfo").splitlines():
        words, _, rest = row.partition(" - ")
        fields = words.split()
        if len(fields) > 4 and rest and path.is_relative_to(fields[4]) and len(fields[4]) > best:  # noqa: PLR2004 - proc(5)
            best, kind = len(fields[4]), rest.split()[0]
    return kind


def _find_systemd_units(root: Path) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for folder in _UNIT_DIRECTORIES:
        try:
            paths = sorted((root / folder).glob("reverie*.service"))
        except OSError:
            continue
        for path in paths:
            limits = [
                row.partition("=")[2].strip() for row in _read_text(path).splitlines() if row.startswith("MemoryMax=")
            ]
            found.setdefault(path.name, _parse_size(limits[-1]) if limits else None)
    return found


def _parse_size(text: str) -> int | None:
    """Parse a size as systemd writes it; None: no limit, or another form."""
    unit = _SIZE_UNITS.get(text[-1:].upper(), 1)
    number = text if unit == 1 else text[:-1]
    return int(number) * unit if number.isdigit() else None


def _uses_embedded_model(settings: Settings) -> bool:
    llm = settings.llm
    return any(llm.providers[llm.models[key].provider].kind == "local" for key in list_used_models(settings))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_NAMESPACES_FIX = "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
_CONTAINER_OPTIONS = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
_APPARMOR_FIX = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap an AppArmor profile of its own"


TRIAL_TIMEOUT_S: Final = 5.0
_TRIAL_ARGUMENTS: Final = ("--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "--die-with-parent", "true")
_SANDBOX_KEY: Final = "tools.bash.sandbox"


async def check_sandbox(context: DoctorContext) -> Sequence[Finding]:
    """Check whether bubblewrap is installed and the kernel lets it work, by starting an empty sandbox."""
    tools, env, root, where = context.settings.tools, context.environment.env, context.environment.root, _SANDBOX_KEY
    if is_off("bash", tools.off):
        return [ok("sandbox.off", "no agent has a shell (tools.off)")]
    if tools.bash.sandbox != "bubblewrap":
        what = "commands run as the gateway's own user, who can read the configuration and all its secrets"
        fix = "install bubblewrap and set tools.bash.sandbox: bubblewrap, or add bash* to tools.off"
        return [warning("sandbox.off", what, fix, where)]
    program = shutil.which("bwrap", path=env.get("PATH", os.defpath))
    if program is None:
        what = "bubblewrap is not installed: agents cannot run commands"
        fix = "apt-get install bubblewrap (or dnf, apk add), or add bash* to tools.off"
        return [warning("sandbox.missing", what, fix, where)]
    if trouble := await _find_sandbox_trouble(program):
        fix = _find_sandbox_fix(root, in_container=bool(find_container(root, env)))
        return [warning("sandbox.namespaces", f"bubblewrap cannot create a sandbox here: {trouble}", fix, where)]
    return [ok("sandbox.works", f"bubblewrap works ({program})")]


def _find_sandbox_fix(root: Path, *, in_container: bool) -> str:
    kernel = root / "proc/sys/kernel"
    namespaces = (kernel / "unprivileged_userns_clone", root / "proc/sys/user/max_user_namespaces")
    if any(_read_text(one).strip() == "0" for one in namespaces):
        return f"{_NAMESPACES_FIX} (as root, and in /etc/sysctl.d to keep it)"
    if _read_text(kernel / "apparmor_restrict_unprivileged_userns").strip() == "1":
        return _APPARMOR_FIX
    if in_container:
        return f"start the container with {_CONTAINER_OPTIONS}, or add bash* to tools.off"
    return "allow unprivileged user namespaces (see bwrap(1)), or add bash* to tools.off"


async def _find_sandbox_trouble(program: str) -> str:
    """Return why no sandbox can be created; empty: one was created."""
    script = f'"$0" {" ".join(_TRIAL_ARGUMENTS)} 2>&1'  # its complaints are on standard error
    try:
        ran = await run_program(
            ("/bin/sh", "-c", script, program), env={"PATH": PATH}, time_s=TRIAL_TIMEOUT_S, max_bytes=2_000
        )
    except ProgramNotStarted as error:
        return str(error)
    if ran.end_reason == "late":
        return "it does not end"
    words = " ".join(ran.output.decode(errors="replace").split())[:200]
    return (words or f"it ended with {ran.status}") if ran.status else ""


MIN_PYTHON: Final = (3, 11)
MIN_SQLITE: Final = (3, 37)
"""STRICT tables need it: https://www.sqlite.org/stricttables.html."""


def check_versions() -> Iterator[Finding]:
    """Check Python, SQLite and the installed libraries."""
    yield from _check_python()
    yield from check_libraries(requires("reverie-gateway") or ())


def _check_python() -> Iterator[Finding]:
    number = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:3] < MIN_PYTHON:
        fix = f"install Python {'.'.join(map(str, MIN_PYTHON))} or newer"
        yield bad("versions.python", f"this is Python {number}", fix)
    else:
        yield ok("versions.python", f"Python {number}")
    needs = {
        "STRICT tables": "CREATE TABLE a (b INTEGER) STRICT",
        "FTS5": "CREATE VIRTUAL TABLE c USING fts5(d)",
    }
    lacks = [name for name, sql in needs.items() if not _can_execute(sql)]
    if lacks:
        what = f"SQLite {sqlite3.sqlite_version} here has no {' and no '.join(lacks)}"
        wanted = ".".join(map(str, MIN_SQLITE))
        fix = f"use a Python with SQLite {wanted} or newer, with FTS5 (python.org's and Debian's are)"
        yield bad("versions.sqlite", what, fix)
    else:
        yield ok("versions.sqlite", f"SQLite {sqlite3.sqlite_version} with STRICT tables and FTS5")


def check_libraries(needs: Iterable[str]) -> Iterator[Finding]:
    """Check whether installed libraries are within the bounds of our requirements (PEP 508)."""
    right, found = 0, []
    for need in map(Requirement, needs):
        try:
            have = version(need.name)
        except PackageNotFoundError:
            have = ""
        is_needed = need.marker is None or need.marker.evaluate({"extra": ""})
        if have and need.specifier.contains(have, prereleases=True):
            right += 1
        elif have or is_needed:
            wanted = str(need.specifier)
            what = f"{need.name} {have} is installed, but {wanted} is needed"
            if not have:
                what = f"{need.name} is not installed ({wanted or 'any version'} is needed)"
            fix = f"pip install '{need.name}{wanted}', or install reverie-gateway again in its own environment"
            found.append(bad("versions.library", what, fix, need.name))
    yield from found or [ok("versions.library", f"{right} libraries have the right versions")]


def _can_execute(sql: str) -> bool:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute(sql)
        except sqlite3.OperationalError:
            return False
    return True
