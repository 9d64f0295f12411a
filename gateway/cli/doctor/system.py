"""Checks of the system: clock, file modes, memory and containers, sandbox of the shell, installed versions."""

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
"""Seconds beyond which signatures, certificates and reminders go wrong."""
KernelClock = Literal["synchronized", "unsynchronized", "unknown"]


def judge_clock(ahead_s: Mapping[str, float], kernel: KernelClock, *, keeps: bool) -> list[Finding]:
    """Judge the clock. It is right if any server agrees.

    `ahead_s`: by server, seconds that our clock is ahead of the server's. `keeps`: this system sets its own clock, as
    containers and many virtual machines do not.
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
    summary = (
        "the system keeps its clock by a time server"
        if kernel == "synchronized"
        else "the clock was not compared with any"
    )
    return [Finding(code="clock.skew", level="ok", what=summary)]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMode:
    """A file or directory as found."""

    path: str
    kind: FileKind
    """home: the directory of the store."""
    mode: int
    """Permission bits including the sticky bit."""
    uid: int
    is_sheltered: bool = False
    """True if a directory above keeps other users out."""

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
    """Judge what other users may do with each file. `uid`: our user id."""
    judged = list(modes)
    found = [finding for one in judged for finding in _judge_mode(one, uid)]
    yield from found
    if judged and not found:
        yield Finding(code="files.modes", level="ok", what=f"{len(judged)} files and directories are closed to others")


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
    agent: str, path: str, *, exists: bool, notes: Iterable[str] = (), closed: str = ""
) -> Iterator[Finding]:
    """Judge an agent's workspace. `notes`: problems found while reading it; `closed`: why it cannot be read."""
    if closed:
        yield Finding(
            code="files.workspace",
            level="bad",
            what=f"its persona cannot be read: {closed}",
            fix="make the directory and what is in it readable for the user that runs the gateway (chown, chmod)",
            where=f"agents.{agent}.workspace ({path})",
        )
        return
    if not exists:
        yield Finding(
            code="files.workspace",
            level="bad",
            what="there is no such directory: the agent has no persona",
            fix="make it with an IDENTITY.md in it, or leave `workspace` out for the one that comes with it",
            where=f"agents.{agent}.workspace ({path})",
        )
        return
    listed = list(notes)
    for note in listed:
        yield Finding(
            code="files.persona",
            level="warning",
            what=note,
            fix="mend that file; IDENTITY.md says who the agent is",
            where=f"agents.{agent}.workspace",
        )
    if not listed:
        yield Finding(code="files.workspace", level="ok", what="its persona can be read", where=f"agents.{agent}")


def judge_reference(name: str, why: str) -> Finding:
    """Build the finding for a file that the configuration names but that cannot be read."""
    return Finding(
        code="files.missing",
        level="bad",
        what=f"the file that it names cannot be read: {why}",
        fix="correct the path (it starts at the configuration directory), or put the file there",
        where=name,
    )


MAX_FILES: int = 500
"""Most files of one directory that are checked."""
_SECRET_DIRECTORY = 0o011
"""Execute bits for others: without them nothing inside the directory can be reached."""


async def check_modes(context: DoctorContext) -> Sequence[Finding]:
    """Check modes and owners of all files of the operator."""
    return await run_in_thread(lambda: list(judge_modes(_read_all_modes(context), uid=os.geteuid())))


async def check_directory(environment: DoctorEnvironment) -> Sequence[Finding]:
    """Check modes and owners of a configuration that cannot be loaded."""
    return await run_in_thread(
        lambda: list(judge_modes(_read_configuration_modes(environment.directory), uid=os.geteuid()))
    )


async def check_workspaces(context: DoctorContext) -> Sequence[Finding]:
    """Check whether each agent's persona can be read."""
    return await run_in_thread(lambda: list(_check_workspaces(context.settings)))


async def check_references(context: DoctorContext) -> Sequence[Finding]:
    """Check whether the files that the configuration names can be read: certificates of IRC."""
    return await run_in_thread(lambda: list(_check_named_files(context.settings)))


def _read_all_modes(context: DoctorContext) -> Iterator[FileMode]:
    settings = context.settings
    yield from _read_configuration_modes(context.environment.directory)
    for target in sorted(context.config.referenced_files):
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
    except OSError:  # missing or closed to us: other checks report it
        return []


def _read_mode(path: Path, what: FileKind) -> Iterator[FileMode]:
    try:
        status = path.stat()
        above = path.resolve().parent.stat()
    except OSError:
        return
    sheltered = not stat.S_IMODE(above.st_mode) & _SECRET_DIRECTORY
    yield FileMode(
        path=str(path), kind=what, mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, is_sheltered=sheltered
    )


def _check_workspaces(settings: Settings) -> Iterator[Finding]:
    for agent in settings.agents:
        root = agent.workspace or default_workspace()
        provider = settings.llm.providers[settings.llm.models[agent.model].provider]
        try:
            reading = read_workspace(root, "public", provider.kind)
        except OSError as error:
            yield from judge_workspace(agent.id, str(root), exists=True, closed=error.strerror or "it cannot be read")
        else:
            yield from judge_workspace(agent.id, str(root), exists=not reading.is_missing, notes=reading.notes)


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
"""Memory of a gateway with three platforms, with a margin (README, figures)."""
EMBEDDED_BYTES: Final = 300_000_000
"""Additional memory of the embedded model (facts, section 10)."""
MIN_OPEN_FILES: Final = 256
"""Open files of a gateway: sockets of channels, models and readers, files of the store and of tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineObservation:
    """Resources of the machine as found."""

    limit_bytes: int | None
    """Memory limit of the process' control group. None: no limit."""
    available_bytes: int | None
    """Free memory. None: not known."""
    open_files: int
    container: str
    """Kind of container; empty: none."""
    layered: str
    """Path of the store if it is in the container's own layer; empty: it is not."""
    units: Mapping[str, int | None]
    """Our systemd units with their memory limits."""


def judge_machine(machine: MachineObservation, *, embedded: bool) -> Iterator[Finding]:
    """Judge whether the resources suffice. `embedded`: the model runs on this machine, too."""
    need = BASE_BYTES + (EMBEDDED_BYTES if embedded else 0)
    limits = {"this container or service": machine.limit_bytes, **machine.units}
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
    if machine.available_bytes is not None and machine.available_bytes < need:
        yield Finding(
            code="machine.memory",
            level="warning",
            what=(
                f"{_format_mb(machine.available_bytes)} of memory are free, and a gateway like this needs "
                f"about {_format_mb(need)}"
            ),
            fix="end other programs, or add memory",
        )
    elif not tight and machine.available_bytes is not None:
        yield Finding(
            code="machine.memory", level="ok", what=f"{_format_mb(machine.available_bytes)} of memory are free"
        )
    if machine.open_files < MIN_OPEN_FILES:
        yield Finding(
            code="machine.files",
            level="warning",
            what=f"a process may have {machine.open_files} files open, and a gateway may need {MIN_OPEN_FILES}",
            fix="raise it (ulimit -n 1024; systemd: LimitNOFILE=1024)",
        )
    if machine.layered:
        yield Finding(
            code="machine.volume",
            level="warning",
            what=f"the store is in the {machine.container} container's own layer, and goes with the container",
            fix="mount a volume there (docker run -v reverie-data:/DIRECTORY ..., or volumes: in compose)",
            where=machine.layered,
        )
    elif machine.container:
        yield Finding(code="machine.container", level="ok", what=f"this is a {machine.container} container")
    for name in machine.units:
        if name not in tight:
            yield Finding(code="machine.service", level="ok", what=f"systemd has the unit {name}")


def _format_mb(count: int) -> str:
    return f"{count / 1_000_000:.0f} MB"


_UNIT_DIRECTORIES: Final = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_SIZE_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LAYERED_FILESYSTEMS: Final = frozenset({"overlay", "aufs", "overlayfs"})


async def check_machine(context: DoctorContext) -> Sequence[Finding]:
    """Check whether the resources suffice."""
    return await run_in_thread(lambda: list(_check_machine(context)))


def _check_machine(context: DoctorContext) -> Sequence[Finding]:
    root, store = context.environment.root, context.settings.store.path
    kind = find_container(root, context.environment.env)
    machine = MachineObservation(
        limit_bytes=_read_memory_limit(root),
        available_bytes=_read_available_memory(root),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        container=kind,
        layered=str(store) if kind and _find_filesystem_type(root, store) in _LAYERED_FILESYSTEMS else "",
        units=_find_systemd_units(root),
    )
    return list(judge_machine(machine, embedded=_uses_embedded_model(context.settings)))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxObservation:
    """Conditions of the sandbox as found."""

    is_wanted: bool
    """True if the shell is not listed in `tools.off`."""
    is_sandboxed: bool
    """True if `tools.bash.sandbox` is bubblewrap."""
    program: str | None
    """Path of bwrap. None: not installed."""
    trouble: str = ""
    """Reason why it cannot create a sandbox; empty: it can, or it was not tried."""
    clone: str = ""
    namespaces: str = ""
    apparmor: str = ""
    """Kernel settings: unprivileged_userns_clone, max_user_namespaces, apparmor_restrict_unprivileged_userns."""
    container: bool = False


def judge_sandbox(sandbox: SandboxObservation) -> list[Finding]:
    """Judge whether the agents' shell can run. Returns one finding."""
    where = "tools.bash.sandbox"
    if not sandbox.is_wanted:
        return [Finding(code="sandbox.off", level="ok", what="no agent has a shell (tools.off)")]
    if not sandbox.is_sandboxed:
        return [
            Finding(
                code="sandbox.off",
                level="warning",
                what="commands run as the gateway's own user, who can read the configuration and all its secrets",
                fix="install bubblewrap and set tools.bash.sandbox: bubblewrap, or add bash* to tools.off",
                where=where,
            )
        ]
    if sandbox.program is None:
        return [
            Finding(
                code="sandbox.missing",
                level="warning",
                what="bubblewrap is not installed: no command of an agent's can run",
                fix="apt-get install bubblewrap (or dnf, apk add), or add bash* to tools.off",
                where=where,
            )
        ]
    if sandbox.trouble:
        return [
            Finding(
                code="sandbox.namespaces",
                level="warning",
                what=f"bubblewrap cannot make a sandbox here: {sandbox.trouble}",
                fix=_find_sandbox_fix(sandbox),
                where=where,
            )
        ]
    return [Finding(code="sandbox.works", level="ok", what=f"bubblewrap works ({sandbox.program})")]


def _find_sandbox_fix(sandbox: SandboxObservation) -> str:
    if sandbox.clone == "0" or sandbox.namespaces == "0":
        return f"{_NAMESPACES_FIX} (as root, and in /etc/sysctl.d to keep it)"
    if sandbox.apparmor == "1":
        return _APPARMOR_FIX
    if sandbox.container:
        return f"start the container with {_CONTAINER_OPTIONS}, or add bash* to tools.off"
    return "allow unprivileged user namespaces (see bwrap(1)), or add bash* to tools.off"


TRIAL_TIMEOUT_S: Final = 5.0
_TRIAL_ARGUMENTS: Final = ("--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "--die-with-parent", "true")
_KERNEL_SETTINGS: Final = {
    "clone": "proc/sys/kernel/unprivileged_userns_clone",
    "namespaces": "proc/sys/user/max_user_namespaces",
    "apparmor": "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
}


async def check_sandbox(context: DoctorContext) -> Sequence[Finding]:
    """Check whether bubblewrap is installed and the kernel lets it work, by starting an empty sandbox."""
    tools, env, root = context.settings.tools, context.environment.env, context.environment.root
    search = env.get("PATH", os.defpath)
    sandbox = SandboxObservation(
        is_wanted=not is_off("bash", tools.off),
        is_sandboxed=tools.bash.sandbox == "bubblewrap",
        program=shutil.which("bwrap", path=search),
        container=bool(find_container(root, env)),
        **{name: _read_kernel_setting(root / path) for name, path in _KERNEL_SETTINGS.items()},
    )
    if sandbox.is_wanted and sandbox.is_sandboxed and sandbox.program is not None:
        sandbox = replace(sandbox, trouble=await _find_sandbox_trouble(sandbox.program))
    return judge_sandbox(sandbox)


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
"""STRICT tables need it: https://www.sqlite.org/stricttables.html."""
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*([^;]*)(?:;(.*))?")
_BOUND: Final = re.compile(r"\s*(>=|<=|==|!=|~=|<|>)\s*([0-9][0-9A-Za-z.]*)\s*")
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of our package."""

    name: str
    bounds: tuple[tuple[str, str], ...]
    is_optional: bool
    """True if it applies only to an extra, or to another system."""


def parse_requirement(text: str) -> Requirement | None:
    """Parse a requirement (PEP 508) as far as our own go. None: it cannot be parsed."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        return None
    name, bounds, marker = match.groups()
    found = tuple((one[1], one[2]) for part in bounds.strip("() ").split(",") if (one := _BOUND.fullmatch(part)))
    return Requirement(name, found, bool(marker and marker.strip()))


def is_allowed_version(bounds: Iterable[tuple[str, str]], version: str) -> bool:
    """Return whether a version is within the bounds. Only numbers are compared: installed versions are releases."""
    have = _parse_version(version)
    for operator, bound in bounds:
        want = _parse_version(bound)
        width = max(len(have), len(want))
        a, b = (*have, *[0] * (width - len(have))), (*want, *[0] * (width - len(want)))
        held = {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b, "~=": a >= b}
        if not held[operator]:
            return False
    return True


def judge_libraries(needs: Iterable[str], installed: Callable[[str], str | None]) -> Iterator[Finding]:
    """Judge the requirements of our package. `installed`: returns a version by name, None: not installed."""
    count = 0
    found = []
    for one in map(parse_requirement, needs):
        version = None if one is None else installed(one.name)
        if one is None or (one.is_optional and version is None):
            continue
        count += 1
        wanted = ",".join(f"{operator}{bound}" for operator, bound in one.bounds)
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
    """Judge whether Python and its SQLite have what the program needs."""
    number = ".".join(map(str, version))
    if version < MIN_PYTHON:
        fix = f"install Python {'.'.join(map(str, MIN_PYTHON))} or newer"
        yield Finding(code="versions.python", level="bad", what=f"this is Python {number}", fix=fix)
    else:
        yield Finding(code="versions.python", level="ok", what=f"Python {number}")
    lacks = [name for name, available in (("STRICT tables", strict), ("FTS5", fts5)) if not available]
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


async def check_versions(environment: DoctorEnvironment) -> Sequence[Finding]:
    """Check Python, SQLite and the installed libraries."""
    del environment
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
