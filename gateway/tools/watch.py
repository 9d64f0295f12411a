"""What a command's processes take, as the kernel tells it: proc(5), statvfs(3)."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gateway.tools.limits import CommandLimits, DiskSpace, ProcessUsage

SAMPLE_INTERVAL_S: Final = 0.05
"""Between two looks. In that time a program may take some 100 MB beyond its limit."""
REST_FACTOR: Final = 20
"""Looking takes a twentieth of the time at most, however many processes there are."""
_KIB: Final = 1024
_STAT_BLOCK_BYTES: Final = 512
_PROC: Final = Path("/proc")
_TELLS_CHILDREN: Final = Path("/proc/thread-self/children").exists()
"""Kernels without CONFIG_PROC_CHILDREN do not: then all processes are looked through, which takes longer."""


async def watch_limits(pid: int, limits: CommandLimits, folder: Path, *, keepers: int) -> str:
    """Return why what this process started has to end, once it has to.

    `folder`: where it writes. `keepers`: as in `list_descendants`.
    """
    before = measure_disk(folder)
    while True:
        began = time.thread_time()  # not on the wall's clock: what keeps all processors busy must not be looked at less
        why = _check_limits(pid, limits, keepers=keepers) or limits.check_disk(before, measure_disk(folder))
        if why:
            return why
        await asyncio.sleep(max(SAMPLE_INTERVAL_S, REST_FACTOR * (time.thread_time() - began)))


def _check_limits(pid: int, limits: CommandLimits, *, keepers: int) -> str:
    found = list_descendants(pid, limits.processes + 1, keepers=keepers)
    if crowded := limits.check_processes(len(found)):
        return crowded
    why = limits.check_usage(measure_usage(found))
    return why and limits.check_usage(measure_usage(found, exact=True))


def list_descendants(pid: int, most: int, *, keepers: int = 0) -> list[int]:
    """Processes that come from one, itself not among them; no more than are asked for, nearest first.

    `keepers`: so many generations are left out, too.
    """
    found = list(_child_pids(pid))
    for _ in range(keepers):
        found = [child for one in found for child in _child_pids(one)]
    for one in found:  # it grows meanwhile
        if len(found) > most:
            break
        found += _child_pids(one)
    return found[:most]


def measure_usage(pids: Iterable[int], *, exact: bool = False) -> ProcessUsage:
    """What these take. `exact`: what several share is counted once, which takes long for what is large."""
    processes = threads = kib = 0
    files: dict[int, int] = {}
    for pid in pids:
        processes += 1
        told = _read_table(_PROC / str(pid) / "status")
        threads += told.get("Threads", 0)
        own = told.get("RssAnon", 0) + told.get("RssShmem", 0) + told.get("VmSwap", 0)
        if exact and (rollup := _read_table(_PROC / str(pid) / "smaps_rollup")):
            own = min(own, rollup.get("Pss_Anon", own) + rollup.get("Pss_Shmem", 0) + rollup.get("SwapPss", 0))
        kib += own
        files.update(_memory_files(pid))
    return ProcessUsage(processes=processes, threads=threads, memory_bytes=kib * _KIB + sum(files.values()))


def _memory_files(pid: int) -> Iterator[tuple[int, int]]:
    """Of the files without a name that it holds open in memory (memfd_create(2)): which, and how many bytes."""
    folder = _PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):  # it has ended
        for name in os.listdir(folder):  # noqa: PTH208 - only names, and quickly
            file = f"{folder}/{name}"
            with contextlib.suppress(OSError):  # it is closed by now
                if os.readlink(file).startswith("/memfd:"):  # noqa: PTH115 - the same
                    told = os.stat(file)  # noqa: PTH116 - the same
                    yield told.st_ino, told.st_blocks * _STAT_BLOCK_BYTES


def measure_disk(folder: Path) -> DiskSpace:
    """What is free there; nothing if it cannot be told."""
    try:
        told = os.statvfs(folder)
    except OSError:
        return DiskSpace(free_bytes=0, free_files=0)
    return DiskSpace(free_bytes=told.f_bavail * told.f_frsize, free_files=told.f_favail)


def kill_marked(mark: str) -> None:
    """End every process that was started with this in its environment, `NAME=value`, as far as it may be seen."""
    before = True
    for _ in range(10):  # whoever forks meanwhile is found the next time, and who just becomes another program
        found = [pid for pid in _all_pids() if mark.encode() in _read_bytes(_PROC / str(pid) / "environ").split(b"\0")]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found and not before:
            return
        before = bool(found)


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 - only names, and quickly


def _child_pids(pid: int) -> Iterator[int]:
    if not _TELLS_CHILDREN:
        yield from (one for one in _all_pids() if _parent_pid(one) == pid)
        return
    try:
        threads = os.listdir(_PROC / str(pid) / "task")  # noqa: PTH208 - the same
    except OSError:
        return
    for thread in threads:
        yield from map(int, _read_bytes(_PROC / str(pid) / "task" / thread / "children").split())


def _parent_pid(pid: int) -> int:
    """0 if it has ended."""
    told = _read_bytes(_PROC / str(pid) / "stat").rpartition(b")")[2].split()
    return int(told[1]) if told else 0


def _read_table(path: Path) -> dict[str, int]:
    """Of lines `Name:  123 kB` those with a number."""
    found = {}
    for line in _read_bytes(path).splitlines():
        name, _, value = line.partition(b":")
        number = value.split()[:1]
        if number and number[0].isdigit():
            found[name.decode("ascii", "replace")] = int(number[0])
    return found


def _read_bytes(path: Path) -> bytes:
    """Nothing if it has ended meanwhile, or is somebody else's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
