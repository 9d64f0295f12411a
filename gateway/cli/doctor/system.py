"""Who else may read or write what is the operator's. Pure.

Looks at who may read and write what is the operator's. Blocks on the disk: in a thread.

Whether what is installed is what the program was made for. Pure.

Looks at the machine: memory, containers, services, limits.

What is so about the machine, the container and the service. Pure.

Looks at this machine's clock, by those of the servers that are asked anyway, and by what the kernel says of it.

Whether the agents' shell can run. Pure.

Tries whether the agents' shell could run: an empty sandbox, in which nothing happens.

Whether this machine's clock is right. Pure.

Looks at what is installed.
"""

import asyncio
import ctypes
import os
import re
import resource
import shlex
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import islice
from pathlib import Path, PurePath
from typing import Final, Literal
from urllib.parse import urlsplit

from agent.models.config import LocalConfig, ScriptedConfig
from agent.tools.specs import BASH
from agent.workspace import default_workspace
from agent.workspace.persona import read_workspace
from gateway.cli.doctor.base import DoctorContext, DoctorEnvironment, run_in_thread
from gateway.cli.doctor.models import list_used_models
from gateway.cli.probes.base import Finding
from gateway.config.models import Settings
from gateway.core.private_files import JOURNAL_FILE, agent_directory
from gateway.core.process import ProgramNotStarted, run_program
from gateway.tools.dispatch import is_off
from gateway.tools.sandbox import PATH

MAX_SKEW_S: Final = 60.0
"""Beyond that, signatures, certificates and reminders are off."""
KernelClock = Literal["synchronized", "unsynchronized", "unknown"]


def judge_clock(ahead_s: Mapping[str, float], kernel: KernelClock, *, keeps: bool) -> list[Finding]:
    """`ahead_s`: by server, how far our clock is ahead of its. Where any server agrees, the clock is right.

    `keeps`: this system sets its clock by itself, as containers and many virtual machines do not.
    """
    fix = "let the machine keep time: timedatectl set-ntp true, or install chrony (a container has its host's clock)"
    if ahead_s:
        host, off_s = min(ahead_s.items(), key=lambda one: abs(one[1]))
        if abs(off_s) <= MAX_SKEW_S:
            return [Finding(code="clock.skew", level="ok", what=f"the clock agrees with that of {host}")]
        way = "ahead of" if off_s > 0 else "behind"
        what = f"the clock is {abs(off_s):.0f} s {way} that of {host}"
        return [Finding(code="clock.skew", level="bad", what=what, fix=fix)]
    if kernel == "unsynchronized" and keeps:
        what = "no server told the time, and the system does not keep its clock by any"
        return [Finding(code="clock.unsynchronized", level="warning", what=what, fix=fix)]
    told = (
        "the system keeps its clock by a time server"
        if kernel == "synchronized"
        else "the clock was not compared with any"
    )
    return [Finding(code="clock.skew", level="ok", what=told)]


ANSWER_TIMEOUT_S: Final = 5.0
MAX_CLOCK_SERVERS: Final = 6
"""Servers that are asked."""
_TIMEX_BYTES: Final = 256
"""`struct timex` has 208 on 64 bits (adjtimex(2))."""
_SYSTEMD: Final = "run/systemd/system"
"""There where systemd runs the machine (sd_booted(3))."""
_TIME_ERROR: Final = 5
"""TIME_ERROR: the clock is not synchronized."""


async def check_clock(subject: DoctorContext) -> Sequence[Finding]:
    """How far it is off."""
    ahead: dict[str, float] = {}
    if not subject.offline:
        asked = [_measure_skew(origin) for origin in list_origins(subject.settings)[:MAX_CLOCK_SERVERS]]
        ahead = dict(filter(None, await asyncio.gather(*asked)))
    return judge_clock(ahead, _read_kernel_clock(), keeps=(subject.environment.root / _SYSTEMD).is_dir())


def list_origins(settings: Settings) -> list[str]:
    """Scheme, host and port of every HTTP server that the configuration names, each once."""
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
    """Its host, and how far our clock is ahead of its. None: it does not say."""
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
    """What the system believes of its clock (adjtimex(2) with no modes only reads)."""
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
        own = agent_directory(agent.workspace, store, agent.id)
        for name in ("MEMORY.md", "USER.md", JOURNAL_FILE):
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


BASE_BYTES: Final = 160_000_000
"""What a gateway with three platforms takes, with room to spare (README, figures)."""
EMBEDDED_BYTES: Final = 300_000_000
"""And the embedded model beside it (facts, section 10)."""
MIN_OPEN_FILES: Final = 256
"""Open at once: sockets of channels, models and readers, files of the store and of tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineObservation:
    """As it was found."""

    limit_bytes: int | None
    """What this process' group may have of memory. None: no limit."""
    available_bytes: int | None
    """Free now. None: not known."""
    open_files: int
    container: str
    """Which kind; empty: none."""
    layered: str
    """The path of the store, where it is in the container's own layer; empty: it is not."""
    units: Mapping[str, int | None]
    """systemd's units of ours, and what memory each may have."""


def judge_machine(seen: MachineObservation, *, embedded: bool) -> Iterator[Finding]:
    """Whether there is room to run. `embedded`: the model runs here, too."""
    need = BASE_BYTES + (EMBEDDED_BYTES if embedded else 0)
    limits = {"this container or service": seen.limit_bytes, **seen.units}
    tight = {name: limit for name, limit in limits.items() if limit is not None and limit < need}
    for name, limit in tight.items():
        yield Finding(
            code="machine.memory_limit",
            level="warning",
            what=(
                f"{name} may have {_format_mb(limit)} of memory, and a gateway like this needs about {_format_mb(need)}"
            ),
            fix=f"raise the limit to {_format_mb(2 * need)} (compose: mem_limit; systemd: MemoryMax)",
        )
    if seen.available_bytes is not None and seen.available_bytes < need:
        yield Finding(
            code="machine.memory",
            level="warning",
            what=(
                f"{_format_mb(seen.available_bytes)} of memory are free, and a gateway like this needs "
                f"about {_format_mb(need)}"
            ),
            fix="end other programs, or add memory",
        )
    elif not tight and seen.available_bytes is not None:
        yield Finding(code="machine.memory", level="ok", what=f"{_format_mb(seen.available_bytes)} of memory are free")
    if seen.open_files < MIN_OPEN_FILES:
        yield Finding(
            code="machine.files",
            level="warning",
            what=f"a process may have {seen.open_files} files open, and a gateway may need {MIN_OPEN_FILES}",
            fix="raise it (ulimit -n 1024; systemd: LimitNOFILE=1024)",
        )
    if seen.layered:
        yield Finding(
            code="machine.volume",
            level="warning",
            what=f"the store is in the {seen.container} container's own layer, and goes with the container",
            fix="mount a volume there (docker run -v reverie-data:/DIRECTORY ..., or volumes: in compose)",
            where=seen.layered,
        )
    elif seen.container:
        yield Finding(code="machine.container", level="ok", what=f"this is a {seen.container} container")
    for name in seen.units:
        if name not in tight:
            yield Finding(code="machine.service", level="ok", what=f"systemd has the unit {name}")


def _format_mb(count: int) -> str:
    return f"{count / 1_000_000:.0f} MB"


_UNIT_DIRECTORIES: Final = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_SIZE_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LAYERED_FILESYSTEMS: Final = frozenset({"overlay", "aufs", "overlayfs"})


async def check_machine(subject: DoctorContext) -> Sequence[Finding]:
    """Whether there is room to run."""
    return await run_in_thread(lambda: list(_check_machine(subject)))


def _check_machine(subject: DoctorContext) -> Sequence[Finding]:
    root, store = subject.environment.root, subject.settings.store.path
    kind = find_container(root, subject.environment.env)
    seen = MachineObservation(
        limit_bytes=_read_memory_limit(root),
        available_bytes=_read_available_memory(root),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        container=kind,
        layered=str(store) if kind and _find_filesystem_type(root, store) in _LAYERED_FILESYSTEMS else "",
        units=_find_systemd_units(root),
    )
    return list(judge_machine(seen, embedded=_uses_embedded_model(subject.settings)))


def find_container(root: Path, env: Mapping[str, str]) -> str:
    """Which kind of container this is; empty: none."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if env.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return ""


def _read_memory_limit(root: Path) -> int | None:
    """The smallest limit of our group and those above it (kernel.org, cgroup-v2, memory.max)."""
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
    """Of the file system that a path is on, by the longest mount point (proc(5), mountinfo)."""
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
    """As systemd writes it; None: no limit, or another form."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxObservation:
    """As it was found."""

    is_wanted: bool
    """The shell is not among `tools.off`."""
    is_sandboxed: bool
    """`tools.bash.sandbox` is bubblewrap."""
    program: str | None
    """Where bwrap is. None: it is not installed."""
    trouble: str = ""
    """Why it cannot make a sandbox; empty: it can, or was not tried."""
    clone: str = ""
    namespaces: str = ""
    apparmor: str = ""
    """What the kernel says: unprivileged_userns_clone, max_user_namespaces, apparmor_restrict_unprivileged_userns."""
    container: bool = False


def judge_sandbox(seen: SandboxObservation) -> list[Finding]:
    """One finding."""
    where = "tools.bash.sandbox"
    if not seen.is_wanted:
        return [Finding(code="sandbox.off", level="ok", what="no agent has a shell (tools.off)")]
    if not seen.is_sandboxed:
        return [
            Finding(
                code="sandbox.off",
                level="warning",
                what="commands run as the gateway's own user, who can read the configuration and all its secrets",
                fix="install bubblewrap and set tools.bash.sandbox: bubblewrap, or add bash* to tools.off",
                where=where,
            )
        ]
    if seen.program is None:
        return [
            Finding(
                code="sandbox.missing",
                level="warning",
                what="bubblewrap is not installed: no command of an agent's can run",
                fix="apt-get install bubblewrap (or dnf, apk add), or add bash* to tools.off",
                where=where,
            )
        ]
    if seen.trouble:
        return [
            Finding(
                code="sandbox.namespaces",
                level="warning",
                what=f"bubblewrap cannot make a sandbox here: {seen.trouble}",
                fix=_find_sandbox_fix(seen),
                where=where,
            )
        ]
    return [Finding(code="sandbox.works", level="ok", what=f"bubblewrap works ({seen.program})")]


def _find_sandbox_fix(seen: SandboxObservation) -> str:
    if seen.clone == "0" or seen.namespaces == "0":
        return f"{_NAMESPACES_FIX} (as root, and in /etc/sysctl.d to keep it)"
    if seen.apparmor == "1":
        return _APPARMOR_FIX
    if seen.container:
        return f"start the container with {_CONTAINER_OPTIONS}, or add bash* to tools.off"
    return "allow unprivileged user namespaces (see bwrap(1)), or add bash* to tools.off"


TRIAL_TIMEOUT_S: Final = 5.0
_TRIAL_ARGUMENTS: Final = ("--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "--die-with-parent", "true")
_KERNEL_SETTINGS: Final = {
    "clone": "proc/sys/kernel/unprivileged_userns_clone",
    "namespaces": "proc/sys/user/max_user_namespaces",
    "apparmor": "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
}


async def check_sandbox(subject: DoctorContext) -> Sequence[Finding]:
    """Whether bubblewrap is there, and the kernel lets it work."""
    said, env, root = subject.settings.tools, subject.environment.env, subject.environment.root
    search = env.get("PATH", os.defpath)
    seen = SandboxObservation(
        is_wanted=not is_off(BASH.name, said.off),
        is_sandboxed=said.bash.sandbox == "bubblewrap",
        program=shutil.which("bwrap", path=search),
        container=bool(find_container(root, env)),
        **{name: _read_kernel_setting(root / path) for name, path in _KERNEL_SETTINGS.items()},
    )
    if seen.is_wanted and seen.is_sandboxed and seen.program is not None:
        seen = replace(seen, trouble=await _find_sandbox_trouble(seen.program))
    return judge_sandbox(seen)


async def _find_sandbox_trouble(program: str) -> str:
    """Why no sandbox can be made; empty: one could."""
    script = f'"$0" {" ".join(_TRIAL_ARGUMENTS)} 2>&1'  # what it complains of is on its standard error
    try:
        ran = await run_program(
            ("/bin/sh", "-c", script, program), env={"PATH": PATH}, time_s=TRIAL_TIMEOUT_S, max_bytes=2_000
        )
    except ProgramNotStarted as error:
        return str(error)
    if ran.end_reason == "late":
        return "it does not come to an end"
    words = " ".join(ran.output.decode(errors="replace").split())[:200]
    return (words or f"it ended with {ran.status}") if ran.status else ""


def _read_kernel_setting(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


MIN_PYTHON: Final = (3, 11)
MIN_SQLITE: Final = (3, 37)
"""STRICT tables: https://www.sqlite.org/stricttables.html."""
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*([^;]*)(?:;(.*))?")
_BOUND: Final = re.compile(r"\s*(>=|<=|==|!=|~=|<|>)\s*([0-9][0-9A-Za-z.]*)\s*")
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of the package."""

    name: str
    bounds: tuple[tuple[str, str], ...]
    is_optional: bool
    """It is only for who asks for it, or for another system."""


def parse_requirement(text: str) -> Requirement | None:
    """Read a requirement (PEP 508) as far as ours go. None: it is none."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        return None
    name, bounds, marker = match.groups()
    found = tuple((one[1], one[2]) for part in bounds.strip("() ").split(",") if (one := _BOUND.fullmatch(part)))
    return Requirement(name, found, bool(marker and marker.strip()))


def is_allowed_version(bounds: Iterable[tuple[str, str]], version: str) -> bool:
    """Whether a version is within the bounds. Compares numbers only: releases are what people have installed."""
    have = _parse_version(version)
    for sign, bound in bounds:
        want = _parse_version(bound)
        width = max(len(have), len(want))
        a, b = (*have, *[0] * (width - len(have))), (*want, *[0] * (width - len(want)))
        held = {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b, "~=": a >= b}
        if not held[sign]:
            return False
    return True


def judge_libraries(needs: Iterable[str], installed: Callable[[str], str | None]) -> Iterator[Finding]:
    """Of the package's requirements, which are not met. `installed`: a version by name, None: it is not there."""
    count = 0
    found = []
    for one in map(parse_requirement, needs):
        version = None if one is None else installed(one.name)
        if one is None or (one.is_optional and version is None):
            continue
        count += 1
        wanted = ",".join(f"{sign}{bound}" for sign, bound in one.bounds)
        if version is None:
            what = f"{one.name} is not installed ({wanted or 'any version'} is needed)"
        elif not is_allowed_version(one.bounds, version):
            what = f"{one.name} {version} is installed, and {wanted} is needed"
        else:
            continue
        found.append(
            Finding(
                code="versions.library",
                level="bad",
                what=what,
                fix=f"pip install '{one.name}{wanted}', or install reverie-gateway anew in an environment of its own",
                where=one.name,
            )
        )
    yield from found
    if not found:
        yield Finding(code="versions.library", level="ok", what=f"{count} libraries are as they are needed")


def judge_python(version: tuple[int, ...], sqlite: tuple[int, ...], *, strict: bool, fts5: bool) -> Iterator[Finding]:
    """Whether Python and the SQLite in it can do what is needed."""
    told = ".".join(map(str, version))
    if version < MIN_PYTHON:
        fix = f"install Python {'.'.join(map(str, MIN_PYTHON))} or newer"
        yield Finding(code="versions.python", level="bad", what=f"this is Python {told}", fix=fix)
    else:
        yield Finding(code="versions.python", level="ok", what=f"Python {told}")
    lacks = [name for name, there in (("STRICT tables", strict), ("FTS5", fts5)) if not there]
    engine = ".".join(map(str, sqlite))
    if lacks:
        what = f"SQLite {engine} here has no {' and no '.join(lacks)}"
        fix = (
            f"use a Python with SQLite {'.'.join(map(str, MIN_SQLITE))} or newer, with FTS5 (python.org's "
            "and Debian's are)"
        )
        yield Finding(code="versions.sqlite", level="bad", what=what, fix=fix)
    else:
        yield Finding(code="versions.sqlite", level="ok", what=f"SQLite {engine} with STRICT tables and FTS5")


def _parse_version(version: str) -> tuple[int, ...]:
    release = re.split(r"[A-Za-z+-]", version, maxsplit=1)[0]
    return tuple(int(number) for number in _NUMBERS.findall(release))


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
