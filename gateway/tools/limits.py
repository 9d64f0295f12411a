"""What a command may take, and when it has taken too much. Pure."""

from dataclasses import dataclass
from typing import Final, Self

from gateway.settings_tools import BashConfig

THREADS_PER_PROCESS: Final = 16
"""How many threads there may be for each process that there may be."""
OUTPUT_FLOOD_FACTOR: Final = 100
"""A command may write so many times what is kept of its output."""
DISK_USE_FACTOR: Final = 10
"""Of the size that one file may have, a command may make the disk fuller by so many."""
MAX_NEW_FILES: Final = 100_000
MB: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """What all processes of a command take together."""

    processes: int = 0
    threads: int = 0
    memory_bytes: int = 0
    """Their own memory: anonymous, shared, swapped out, and in files without a name; not the files that they read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """What is free where a command writes."""

    free_bytes: int
    free_files: int
    """0 where the file system does not count them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """Of one command."""

    time_s: float
    output_bytes: int
    memory_bytes: int
    processes: int
    disk_bytes: int

    @classmethod
    def from_config(cls, config: BashConfig, time_s: float) -> Self:
        """Those that the operator set."""
        return cls(
            time_s=time_s,
            output_bytes=config.output_bytes,
            memory_bytes=config.memory_bytes,
            processes=config.processes,
            disk_bytes=config.disk_bytes,
        )

    def check_processes(self, processes: int) -> str:
        """Why it has to end for want of processes. Empty: it has not."""
        return f"it had more than {self.processes} processes at once" if processes > self.processes else ""

    def check_usage(self, load: ProcessUsage) -> str:
        """Why it has to end for what its processes take. Empty: it has not."""
        if load.threads > self.processes * THREADS_PER_PROCESS:
            return f"it had more than {self.processes * THREADS_PER_PROCESS} threads at once"
        if load.memory_bytes > self.memory_bytes:
            return f"its processes took more than {self.memory_bytes // MB} MB of memory together"
        return self.check_processes(load.processes)

    def check_disk(self, before: DiskSpace, now: DiskSpace) -> str:
        """Why it has to end for what it wrote to the disk. Empty: it has not.

        Others write there, too: so only much counts, or what is taken of the very last.
        """
        taken = before.free_bytes - now.free_bytes
        if taken > DISK_USE_FACTOR * self.disk_bytes or (now.free_bytes < self.disk_bytes < DISK_USE_FACTOR * taken):
            return f"the disk lost {taken // MB} MB while it ran, and has {now.free_bytes // MB} MB left"
        if before.free_files - now.free_files > MAX_NEW_FILES:
            return f"more than {MAX_NEW_FILES} files were made while it ran"
        return ""

    def check_output(self, written: int) -> str:
        """Why it has to end for what it printed. Empty: it has not."""
        most = OUTPUT_FLOOD_FACTOR * self.output_bytes
        return f"it printed more than {most // MB} MB; put such output into a file" if written > most else ""
