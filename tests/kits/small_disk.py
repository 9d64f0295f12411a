"""A real disk of a few megabytes that can be filled, as root and not: a tmpfs in a mount namespace
of its own.

Where namespaces are not permitted (a container), the size of files is limited in its place: what is
written fails as well, with another error.
"""

import asyncio
import contextlib
import resource
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

HOLD = 'mount -t tmpfs -o size="$1",mode=700 tmpfs "$0" && echo mounted && exec cat'


@dataclass
class SmallDisk:
    """A directory on a small disk, for programs that are started with `prefix`."""

    directory: Path
    prefix: tuple[str, ...] = ()
    """Words in front of a command that shall see the disk. Empty: there are no namespaces here."""

    async def fill(self, pid: int) -> None:
        """Leave no byte. `pid`: the program that uses it."""
        if self.prefix:
            full = await self._run("dd", "if=/dev/zero", f"of={self.directory}/filling", "bs=4k")
            assert b"No space left on device" in full, full
            return
        sizes = (path.stat().st_size for path in self.directory.rglob("*") if path.is_file())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (max(sizes), resource.RLIM_INFINITY))

    async def free(self, pid: int) -> None:
        if self.prefix:
            await self._run("rm", f"{self.directory}/filling")
        else:
            resource.prlimit(
                pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )

    async def save(self, target: Path) -> None:
        """Copy its files to where everybody sees them."""
        if self.prefix:
            await self._run("cp", "-r", str(self.directory), str(target))
        else:
            shutil.copytree(self.directory, target)

    async def _run(self, *command: str) -> bytes:
        made = await asyncio.create_subprocess_exec(
            *self.prefix, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        out, _ = await made.communicate()
        return out


@contextlib.asynccontextmanager
async def small_disk(directory: Path, size: str = "16m") -> AsyncIterator[SmallDisk]:
    """The disk, mounted at the new `directory` for whoever is started with its prefix."""
    directory.mkdir()
    holder = await asyncio.create_subprocess_exec(
        *(
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            HOLD,
            str(directory),
            size,
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        mounted = await holder.stdout.readline() == b"mounted\n"
        enter = (
            "nsenter",
            "--target",
            str(holder.pid),
            "--user",
            "--mount",
            "--preserve-credentials",
        )
        yield SmallDisk(directory, enter if mounted else ())
    finally:
        holder.stdin.close()
        await holder.wait()
