"""Looks at the machine: memory, containers, services, limits."""

import resource
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

from gateway.doctor.base import Subject, aside
from gateway.doctor.checks.models import used
from gateway.doctor.rules.machine import MachineSeen, of_machine
from gateway.probes.base import Finding
from gateway.settings import Settings

_UNITS: Final = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_SIZES: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LAYERED: Final = frozenset({"overlay", "aufs", "overlayfs"})


async def check_machine(subject: Subject) -> Sequence[Finding]:
    """Whether there is room to run."""
    return await aside(lambda: list(_looked(subject)))


def _looked(subject: Subject) -> Sequence[Finding]:
    root, store = subject.environment.root, subject.settings.store.path
    kind = container(root, subject.environment.env)
    seen = MachineSeen(
        limit_bytes=_limit(root),
        available_bytes=_available(root),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        container=kind,
        layered=str(store) if kind and _type(root, store) in _LAYERED else "",
        units=_units(root),
    )
    return list(of_machine(seen, embedded=_embedded(subject.settings)))


def container(root: Path, env: Mapping[str, str]) -> str:
    """Which kind of container this is; empty: none."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if env.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return ""


def _limit(root: Path) -> int | None:
    """The smallest limit of our group and those above it (kernel.org, cgroup-v2, memory.max)."""
    own = _read(root / "proc/self/cgroup").strip().rpartition("::")[2].strip("/").splitlines()
    group = PurePath(own[0] if own else "")
    found = []
    for folder in (group, *group.parents):
        words = _read(root / "sys/fs/cgroup" / folder / "memory.max").strip()
        if words.isdigit():
            found.append(int(words))
    return min(found, default=None)


def _available(root: Path) -> int | None:
    for row in _read(root / "proc/meminfo").splitlines():
        name, _, rest = row.partition(":")
        words = rest.split()
        if name == "MemAvailable" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None


def _type(root: Path, path: Path) -> str:
    """Of the file system that a path is on, by the longest mount point (proc(5), mountinfo)."""
    best, kind = -1, ""
    for row in _read(root / "proc/self/mountinfo").splitlines():
        words, _, rest = row.partition(" - ")
        fields = words.split()
        if len(fields) > 4 and rest and path.is_relative_to(fields[4]) and len(fields[4]) > best:  # noqa: PLR2004 - proc(5)
            best, kind = len(fields[4]), rest.split()[0]
    return kind


def _units(root: Path) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for folder in _UNITS:
        try:
            paths = sorted((root / folder).glob("reverie*.service"))
        except OSError:
            continue
        for path in paths:
            limits = [row.partition("=")[2].strip() for row in _read(path).splitlines() if row.startswith("MemoryMax=")]
            found.setdefault(path.name, _size(limits[-1]) if limits else None)
    return found


def _size(text: str) -> int | None:
    """As systemd writes it; None: no limit, or another form."""
    unit = _SIZES.get(text[-1:].upper(), 1)
    number = text if unit == 1 else text[:-1]
    return int(number) * unit if number.isdigit() else None


def _embedded(settings: Settings) -> bool:
    llm = settings.llm
    return any(llm.providers[llm.models[key].provider].kind == "local" for key in used(settings))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
