"""What a command prints and how it ended, and that whatever it does it is ended with all that it started."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kits.channels import story
from tests.kits.shell import MODES, ROOM, desk, inside

REPOSITORY = Path(__file__).parents[3]
both = pytest.mark.parametrize("mode", MODES)


@both
def test_a_command_runs_in_the_files_and_tells_its_end(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            script = "echo a; echo b >&2; echo c; exit 3"
            assert await it.bash(script) == "[exit status 3]\na\nb\nc\n", "in the order in which they came"
            assert await it.bash("true") == "[exit status 0, no output]"
            assert await it.bash("kill -9 $$") == "[exit status 137 (SIGKILL), no output]"
            assert await it.bash("nowhere; nice; ulimit -c") == (
                "[exit status 0]\n/bin/bash: line 1: nowhere: command not found\n10\n0\n"
            )
            await it.bash("mkdir -p a && cd a && echo words > b; x=1")
            assert (it.root / "a" / "b").read_text() == "words\n"
            assert await it.bash("echo $x; cat a/b") == "[exit status 0]\n\nwords\n", "each begins anew"
            assert (it.root.stat().st_mode & 0o777) == 0o700, "nobody else reads it, nor runs what is made there"

    run()


@both
def test_it_is_told_as_somebody_elses_words(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            result = await it.call("bash", command="echo '[exit status 0]'\nexit 1")
            assert (result.is_untrusted, result.kind) == (True, "command")
            assert result.origin == "echo '[exit status 0]' exit 1"
            assert result.text.startswith("[exit status 1]\n"), "our line comes first, so it cannot be forged"

    run()


@both
def test_nothing_is_there_to_be_read(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            assert await it.bash("cat; read x; echo $?") == "[exit status 0]\n1\n"
            assert "[exit status 1]" in await it.bash("(: </dev/tty)"), "nor a terminal"

    run()


@both
def test_what_a_terminal_would_obey_is_not_passed_on(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            script = r"printf '\e[31mred\e[0m \e]0;title\a\0\x07\n10%%\r50%%\rdone\r\n\xff\xc3\n\u009b2J'"
            assert await it.bash(script) == "[exit status 0]\nred \ndone\n\ufffd\ufffd\n2J"

    run()


@both
def test_of_much_the_beginning_and_the_end_are_kept(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode, output_bytes=1_000) as it:
            told = await it.bash("seq 10000")
            assert told.startswith("[exit status 0]\n1\n2\n")
            assert told.endswith("\n9999\n10000\n")
            assert "\n[... 47894 bytes are not kept ...]\n" in told

    run()


@both
def test_a_flood_is_ended(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode, output_bytes=10_000) as it:
            told = await it.bash("yes & yes")
            assert told.startswith("[ended: it printed more than 1 MB; put such output into a file]\ny\ny\n")
            await it.empty()

    run()


@both
def test_the_time_ends_all_of_it(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode, timeout=0.5, max_timeout=1) as it:
            stubborn = "trap '' TERM HUP INT; (setsid sleep 600 &); sleep 600"
            assert await it.bash(f"echo x; {stubborn}") == "[ended: its 0.5 s were over]\nx\n"
            await it.empty()
            assert await it.bash(stubborn, timeout=0.1) == "[ended: its 0.1 s were over, no output]"
            assert "its 1 s were over" in await it.bash("sleep 600", timeout=600), "no more than the operator allows"

    run()


SURVIVORS = {
    "background": "sleep 600 &",
    "nohup": "nohup sleep 600 >/dev/null 2>&1 & disown",
    "session": "setsid nohup sleep 600 & disown",
    "double fork": "(setsid bash -c 'setsid sleep 600 & disown; exit' &)",
    "no trace": "env -i setsid -f bash -c 'exec >&- 2>&- <&-; trap \"\" HUP TERM; while :; do sleep 1; done'",
    "stopped": "setsid sleep 600 & kill -STOP $!",
    "many": "for i in $(seq 20); do setsid -f sleep 600; done",
}


@both
@pytest.mark.parametrize("left", SURVIVORS)
def test_what_a_command_leaves_running_ends_with_it(tmp_path: Path, mode: str, left: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            began = time.monotonic()
            assert (await it.bash(f"{SURVIVORS[left]}\nsleep 0.2; echo done")).endswith("done\n")
            assert time.monotonic() - began < 20, "nobody waits for them"
            await it.empty()

    run()


@both
def test_a_closed_output_is_not_the_end(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            assert await it.bash("exec >&- 2>&-; sleep 0.5; exit 4") == "[exit status 4, no output]"

    run()


BOMBS = {
    "waiting": ":(){ :|:; };:",
    "behind": ":(){ :|:& };:; sleep 600",
    "sessions": "while :; do setsid -f sleep 600; done",
}


@both
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_fork_bomb_is_ended(tmp_path: Path, mode: str, bomb: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode, processes=32) as it:
            assert "it had more than 32 processes at once" in await it.bash(BOMBS[bomb], timeout=30)
            await it.empty()

    run()


@both
def test_a_kernel_that_tells_nobodys_children_is_looked_through(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.tools.sandbox._TELLS_CHILDREN", False)

    @story
    async def run() -> None:
        async with desk(tmp_path, mode, processes=8) as it:
            told = await it.bash("for i in $(seq 20); do setsid -f sleep 600; done; sleep 600")
            assert "it had more than 8 processes at once" in told

    run()


@both
def test_a_crowd_of_threads_is_ended(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode, processes=4) as it:
            (it.root).mkdir(parents=True)
            (it.root / "x.py").write_text(
                "import threading, time\nfor _ in range(100):\n threading.Thread(target=time.sleep, args=(60,)).start()"
            )
            assert "it had more than 64 threads at once" in await it.bash(f"{python(mode)} x.py")

    run()


def python(mode: str) -> str:
    """The machine's own may be anywhere; a sandbox has the system's."""
    return "/usr/bin/python3" if mode == "bubblewrap" or os.geteuid() == 0 else sys.executable


MEMORY = {
    "one": "x = bytearray(10**9)",
    "several": "import os\nfor _ in range(4): os.fork()\nx = bytearray(2 * 10**7)\nimport time; time.sleep(600)",
    "files": "import os, time\nfor n in range(9): os.write(os.memfd_create('x'), bytes(5 * 10**7))\ntime.sleep(600)",
    "shared": "import mmap, time\nx = mmap.mmap(-1, 10**9)\nfor _ in range(999): x.write(bytes(10**6))\ntime.sleep(99)",
}


@both
@pytest.mark.parametrize("kind", MEMORY)
def test_all_memory_together_has_a_limit(tmp_path: Path, mode: str, kind: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode, memory_bytes=200_000_000) as it:
            it.root.mkdir(parents=True)
            (it.root / "x.py").write_text(MEMORY[kind])
            told = await it.bash(f"{python(mode)} x.py")
            assert "its processes took more than 200 MB of memory together" in told
            await it.empty()

    run()


@both
def test_memory_that_is_shared_counts_once(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode, memory_bytes=200_000_000) as it:
            it.root.mkdir(parents=True)
            (it.root / "x.py").write_text(
                "import os, time\nx = bytearray(10**8)\nfor _ in range(3): os.fork()\ntime.sleep(1)"
            )
            assert (await it.bash(f"{python(mode)} x.py; echo fine")).endswith("fine\n")

    run()


@both
def test_a_file_has_a_limit_that_cannot_be_lifted(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        # Ten times as much that others write to the same disk meanwhile would end it, too.
        async with desk(tmp_path, mode, disk_bytes=20_000_000) as it:
            told = await it.bash("ulimit -f unlimited; head -c 25000000 /dev/zero > big; exit $?")
            assert told.startswith("[exit status 153 (SIGXFSZ: a file became larger than it may be)]\n")
            assert (it.root / "big").stat().st_size <= 20_000_000

    run()


@both
def test_filling_the_disk_with_many_files_is_ended(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode, disk_bytes=2_000_000) as it:
            told = await it.bash("for i in $(seq 1000); do head -c 1000000 /dev/zero > $i; done; sleep 5")
            assert told.startswith("[ended")
            assert "the disk lost" in told

    run()


@both
def test_a_command_whose_turn_is_cut_off_ends(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            turn = asyncio.create_task(it.bash("setsid sleep 600 & sleep 600"))
            while len(inside(it.root)) < 3:
                await asyncio.sleep(0.01)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            await it.empty()

    run()


@both
def test_a_command_whose_turn_is_cut_off_while_it_starts_ends(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            await it.bash("true")
            for steps in range(1, 16):
                turn = asyncio.create_task(it.bash("setsid sleep 600 & sleep 600"))
                for _ in range(steps):
                    await asyncio.sleep(0)
                time.sleep(0.1)  # noqa: ASYNC251 - the command is ahead of what we know of it
                turn.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await turn
                await it.empty()

    run()


@story
async def test_without_a_sandbox_who_kills_its_warden_is_found_all_the_same(tmp_path: Path) -> None:
    async with desk(tmp_path, "off") as it:
        parent = it.root / "parent"
        command = "setsid sleep 600 & (setsid bash -c 'sleep 600; sleep 600' &); echo $PPID >p; mv p parent; sleep 600"
        running = asyncio.create_task(it.bash(command))
        while not parent.exists():
            await asyncio.sleep(0.01)
        os.kill(int(parent.read_text()), signal.SIGKILL)  # by us: a command of root's gateway may not
        assert await running == "[ended: it killed what watches over it, no output]"
        await it.empty()


GATEWAY = """
import asyncio, sys
from pathlib import Path
from tests.kits.shell import desk
async def main():
    async with desk(Path(sys.argv[1]), sys.argv[2]) as it:
        await it.bash("setsid -f sleep 600; sleep 600 & sleep 600", background=True)
        await it.bash("env -i setsid -f sleep 600; sleep 600 & sleep 600")
asyncio.run(main())
"""


@both
def test_nothing_outlives_a_gateway_that_is_killed(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, tmp_path, mode], cwd=REPOSITORY)  # noqa: ASYNC220 - at once
        root = tmp_path / "files"
        async with asyncio.timeout(120):
            while not root.exists() or sum("sleep 600" in line for line in inside(root)) < 6:
                await asyncio.sleep(0.02)
            os.kill(gateway.pid, signal.SIGKILL)
            gateway.wait()
            while inside(root):
                await asyncio.sleep(0.01)

    run()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@both
def test_many_commands_leave_no_descriptor_open(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            await it.bash("true")
            before = descriptors()
            for _ in range(5):
                await it.bash("sleep 600 & echo x")
            assert descriptors() <= before

    run()


@both
def test_what_cannot_be_run_is_refused_with_the_reason(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            assert "too long" in await it.refuses("bash", command="\u20ac" * 50_000)
            assert "NUL" in await it.refuses("bash", command="a\0b")
            assert "command" in await it.refuses("bash", command="")
            assert "Invalid JSON" in await it.refuses("bash", command="\ud800")
            it.root.write_text("")
            assert "directory" in await it.refuses("bash", command="true")
            assert "role admin" in await it.refuses("bash", replace(ROOM, requesters=()), command="true")

    run()
