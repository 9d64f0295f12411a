"""Looks at the machine: memory, containers, services, limits."""

import resource
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

from gateway.doctor.base import DoctorContext, run_in_thread
from gateway.doctor.checks.models import list_used_models
from gateway.doctor.rules.machine import MachineObservation, judge_machine
from gateway.probes.base import Finding
from gateway.settings import Settings

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
