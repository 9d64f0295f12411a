"""Child processes: their environment and input, their output, and that none outlives its use."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.core.process import (
    ProgramNotStarted,
    ProgramResult,
    run_program,
    select_environment,
    start_process,
)
from reverie.testing.waiting import until

MAX_BYTES = 100_000


async def ran(
    script: str, *, time_s: float = 30, said: bytes | None = None, cwd: Path | None = None
) -> ProgramResult:
    argv = ["/bin/bash", "-c", script]
    return await run_program(
        argv, env=select_environment("PATH"), time_s=time_s, max_bytes=MAX_BYTES, said=said, cwd=cwd
    )


def alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pids: Sequence[int]) -> None:
    await until(lambda: not any(map(alive, pids)))


def written(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def at_work(folder: Path) -> list[Path]:
    return [one for one in Path("/proc").iterdir() if one.name.isdigit() and _in(one, folder)]


@pytest.mark.parametrize(
    ("script", "end", "status", "output"),
    [
        ("echo a; echo b >&2; exit 3", "exit", 3, b"a\n"),
        ("true", "exit", 0, b""),
        ("kill -9 $$", "exit", -9, b""),
        ("cat", "exit", 0, b""),
        ("head -c 100000 /dev/zero | tr '\\0' x", "exit", 0, b"x" * MAX_BYTES),
        ("head -c 100001 /dev/zero | tr '\\0' x", "full", 0, b"x" * MAX_BYTES),
        ("yes | tr -d '\\n'", "full", 0, b"y" * MAX_BYTES),
        ("exec >&-; sleep 0.3; exit 5", "exit", 5, b""),
    ],
)
async def test_what_it_writes_and_how_it_ends(
    script: str, end: str, status: int, output: bytes
) -> None:
    told = await ran(script)
    assert (told.end_reason, told.status, told.output) == (end, status, output)


async def test_it_starts_where_it_is_told_with_nothing_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REVERIE_TOKEN", "secret")
    told = (await ran("pwd; env", cwd=tmp_path)).output.decode()
    assert told.startswith(f"{tmp_path}\n")
    assert "secret" not in told
    assert select_environment("REVERIE_TOKEN", "REVERIE_NOT_SET") == {"REVERIE_TOKEN": "secret"}


@pytest.mark.parametrize(
    "argv", [["/nowhere/at/all"], ["/tmp"], ["a\0b"], [""], ["/bin/echo", "x" * 200_000]]
)
async def test_what_cannot_be_started_says_so_without_its_arguments(argv: list[str]) -> None:
    with pytest.raises(ProgramNotStarted, match="cannot be started: ") as told:
        await run_program(argv, env={}, time_s=5, max_bytes=10)
    assert len(str(told.value)) < 200


async def test_its_group_ends_with_it(tmp_path: Path) -> None:
    assert (await ran("sleep 600 & echo $! > pid; echo a", cwd=tmp_path)).output == b"a\n"
    await gone(written(tmp_path / "pid"))


async def test_whoever_got_away_with_its_output_is_not_waited_for(tmp_path: Path) -> None:
    away = (
        "setsid bash -c 'echo $$ > pid; exec sleep 600' & until [ -s pid ]; do sleep 0.01; "
        "done; echo a"
    )
    assert await ran(away, cwd=tmp_path) == ProgramResult("exit", 0, b"a\n")
    (pid,) = written(tmp_path / "pid")
    assert alive(pid), "else this shows nothing"
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("delay_s", [0, 0.001, 0.01, 0.2])
async def test_cancelled_at_any_time_it_leaves_nobody(tmp_path: Path, delay_s: float) -> None:
    for _ in range(5):
        task = asyncio.create_task(ran("sleep 600 & sleep 600", cwd=tmp_path))
        await asyncio.sleep(delay_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: not at_work(tmp_path))


def _in(process: Path, folder: Path) -> bool:
    try:
        return (process / "cwd").readlink() == folder and alive(int(process.name))
    except OSError:
        return False


async def test_one_may_talk_with_it() -> None:
    async with start_process(["/bin/cat"], env={}, listens=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is None
        for line in (b"a\n", b"b\n"):
            child.stdin.write(line)
            assert await child.stdout.readline() == line
        assert child.status is None
        child.stdin.close()
        assert await child.wait() == 0
        assert child.status == 0


async def test_it_can_be_killed_and_its_output_ends() -> None:
    async with start_process(
        ["/bin/sh", "-c", "echo a; sleep 600 & setsid sleep 0.9 & sleep 600"], env={}
    ) as child:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"a\n"
        child.kill()
        child.kill()
        assert await child.wait() == -signal.SIGKILL
        async with asyncio.timeout(120):
            assert await child.stdout.read() == b""


async def test_it_inherits_nothing_open() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    assert (await ran("ls /proc/self/fd | wc -l")).output == b"4\n", (
        "three, and the directory itself"
    )
    os.close(read)
    os.close(write)


async def test_many_leave_no_descriptor_open() -> None:
    await ran("true")
    before = descriptors()
    for _ in range(10):
        await ran("setsid sleep 0.6 & echo x; yes", time_s=5)
    assert descriptors() <= before
