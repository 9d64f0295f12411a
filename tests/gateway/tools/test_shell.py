"""The shell: output, ends, background jobs, and that nothing that a command started outlives it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.tools import BashConfig
from gateway.core.labels import RequestLabel
from gateway.core.tool_spec import ToolCall
from gateway.tools.sandbox import DISK_USE_FACTOR, MAX_NEW_FILES, NICE, CommandLimits, DiskSpace, ProcessUsage
from gateway.tools.shell import OutputBuffer, ShellResult, strip_terminal_codes
from tests.kits.channels import story
from tests.kits.shell import ALONE, MODES, OTHER, OWNER, ROOM, Desk, desk, inside
from tests.kits.waiting import until

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
            nice = min(os.nice(0) + NICE, 19)
            assert await it.bash("nowhere; nice; ulimit -c") == (
                f"[exit status 0]\n/bin/bash: line 1: nowhere: command not found\n{nice}\n0\n"
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
            assert (await it.bash(f"{SURVIVORS[left]}\nsleep 0.2; echo done")).endswith("done\n")
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
            assert "it had more than 32 processes at once" in await it.bash(BOMBS[bomb], timeout=600)
            await it.empty()
            assert await it.bash("echo x | cat") == "[exit status 0]\nx\n", "the shell works as before"

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
                time.sleep(0.1)
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
        gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, tmp_path, mode], cwd=REPOSITORY)
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


async def reported(it: Desk, count: int) -> None:
    async with asyncio.timeout(120):
        while len(it.reports) < count:
            await asyncio.sleep(0.01)


@both
def test_a_job_is_named_at_once_read_meanwhile_and_reported_at_its_end(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            told = await it.bash("echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 3", background=True)
            assert told == "Job j1 runs, for 600 s at most. You are told when it has ended; job_output reads it."
            async with asyncio.timeout(120):
                while "one" not in (text := await it.says("job_output", job="j1")):
                    await asyncio.sleep(0.01)
            assert text == "[running]\none\n"
            assert (await it.says("jobs")).startswith("j1: running: echo one; until [ -e go ]")
            (it.root / "go").touch()
            await reported(it, 1)
            agent, at, line, ok = it.reports[0]
            assert (agent, at, ok) == ("reverie", ROOM.at, False)
            assert line.startswith("Background job j1: exit status 3")
            result = await it.call("job_output", job="j1")
            assert (result.is_untrusted, result.kind) == (True, "command")
            assert result.text.endswith("]\none\ntwo\n")
            assert (await it.says("job_output", job=" j1 ", tail=1)).endswith("]\ntwo")
            assert "had ended already: exit status 3" in await it.says("job_kill", job="j1")

    run()


@both
def test_a_job_that_goes_well_says_so(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            await it.bash("true\n# \x1b[2J", background=True)
            await reported(it, 1)
            assert it.reports[0][2:] == ("Background job j1: exit status 0: true # [2J", True)

    run()


@both
def test_a_job_ends_when_it_is_killed_and_nobody_is_told(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            await it.bash("setsid sleep 600 & sleep 600", background=True)
            while len(inside(it.root)) < 3:
                await asyncio.sleep(0.01)
            assert await it.says("job_kill", job="j1") == "j1 is ended."
            await it.empty()
            assert (await it.says("jobs")).startswith("j1: killed: ")
            assert await it.says("job_output", job="j1") == "[killed, no output]"
            assert not it.reports

    run()


@both
def test_a_job_lives_no_longer_than_the_operator_allows(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode, max_timeout=0.5) as it:
            await it.bash("(setsid sleep 600 &); sleep 600", background=True, timeout=600)
            await reported(it, 1)
            assert it.reports[0][2].startswith("Background job j1: ended: its 0.5 s were over: ")
            await it.empty()

    run()


@both
def test_jobs_end_with_the_shell_and_no_more_begin(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            for _ in range(3):
                await it.bash("setsid sleep 600 & sleep 600", background=True)
            while len(inside(it.root)) < 9:
                await asyncio.sleep(0.01)
            await it.shell.aclose()
            await it.empty()
            assert not it.reports
            assert "Nothing can run in the background" in await it.refuses("bash", command="true", background=True)
            assert await it.bash("echo x") == "[exit status 0]\nx\n"

    run()


@story
async def test_there_are_so_many_at_once_and_no_more(tmp_path: Path) -> None:
    async with desk(tmp_path, "off") as it:
        for _ in range(4):
            await it.bash("sleep 600", background=True)
        told = await it.refuses("bash", command="sleep 600", background=True)
        assert told == "There are 4 jobs already, which is the limit: wait for one, or job_kill it."
        await it.says("job_kill", job="j1")
        assert (await it.bash("sleep 600", background=True)).startswith("Job j5 runs")


@story
async def test_a_job_is_of_its_conversation_and_seen_by_the_owner_alone_besides(tmp_path: Path) -> None:
    async with desk(tmp_path, "off") as it:
        await it.says("bash", command="echo secret; sleep 600", background=True)
        assert await it.says("jobs", OTHER) == "No jobs."
        for tool in ("job_output", "job_kill"):
            assert await it.refuses(tool, OTHER, job="j1") == "There is no such job here; `jobs` names them."
            assert await it.refuses(tool, OTHER, job="j9") == await it.refuses(tool, OTHER, job="j1")
        assert (await it.says("jobs", OWNER)).startswith("j1: running: echo secret")
        assert await it.says("job_kill", OWNER, job="j1") == "j1 is ended."


def put_apart(path: Path, text: str) -> None:
    """Put a file there as the operator does, after the end of a command."""
    ended = time.time_ns()
    while not path.exists() or path.stat().st_ctime_ns <= ended:
        path.write_text(text)


def put_with(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    put_apart(path, text)


@pytest.mark.boxed
@story
async def test_what_was_made_in_private_cannot_be_read_by_a_command_in_a_room(tmp_path: Path) -> None:
    async with desk(tmp_path, "bubblewrap") as it:
        await it.says("bash", ALONE, command="echo sesame > made.txt; touch -d 1990-01-01 made.txt; ln made.txt twin")
        await it.says("bash", ALONE, command="mkdir -p own/deep .git/x; echo sesame | tee own/a own/deep/b > .git/x/c")
        await it.says("bash", ALONE, command="echo sesame > job.txt", background=True)
        await reported(it, 1)
        for path in ("open.txt", "mixed/open.txt"):
            put_with(it.root / path, "milk")
        await it.says("bash", ALONE, command="echo sesame > mixed/closed.txt")
        every = "find . -type f -exec cat {} +; cat * .git/x/c mixed/closed.txt; cp made.txt got; grep -r same; ls own"
        told = await it.bash(f"{every}; exit 0")
        assert "sesame" not in told
        assert told.count("milk") == 3
        assert "Permission denied" in told
        changes = "echo x > made.txt; rm made.txt; mv made.txt twin; rm -rf own; echo new > mixed/new.txt"
        assert (await it.bash(f"{changes}; cat mixed/new.txt")).endswith("new\n")
        private = await it.says("bash", ALONE, command="cat made.txt own/a own/deep/b .git/x/c mixed/*; ls")
        assert private.count("sesame") == 5, "and nothing of it is lost"
        assert await it.says("jobs", OTHER) == "No jobs.", "it is no place for what the job's request held"
        assert "no such job" in await it.refuses("job_output", OTHER, job="j1")
        assert "j1: exit status 0" in await it.says("jobs", ALONE)


@story
async def test_without_a_sandbox_what_a_command_opened_of_other_conversations_is_not_shown(tmp_path: Path) -> None:
    async with desk(tmp_path, "off") as it:
        await it.says("bash", ALONE, command="echo sesame > made.txt")
        assert "not shown here" in await it.refuses("bash", command="cat m*")
        assert "not shown here" in await it.refuses("bash", command="cp made.txt copy.txt")
        assert "not shown here" in await it.refuses("bash", command="cat copy.txt"), "it has the label of what was read"
        assert "sesame" in await it.says("bash", ALONE, command="cat copy.txt")
        put_apart(it.root / "open.txt", "milk")
        assert "milk" in await it.says("bash", command="cat open.txt"), "the operator's, after the commands"


@both
def test_what_is_made_in_private_while_a_job_runs_in_a_room_is_not_shown_there(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            waits = "touch begun; until [ -e secret.txt ]; do sleep 0.01; done; cat secret.txt; sleep 600"
            await it.says("bash", command=waits, background=True)
            await until((it.root / "begun").exists)
            assert "j1" in await it.says("jobs")
            await it.says("bash", ALONE, command="echo sesame > new; mv new secret.txt")
            async with asyncio.timeout(120):
                while "sesame" not in await it.says("job_output", ALONE, job="j1"):
                    await asyncio.sleep(0.01)
            assert await it.says("jobs") == "No jobs."
            assert "no such job" in await it.refuses("job_output", job="j1")
            await it.says("job_kill", ALONE, job="j1")
            assert await it.says("jobs") == "No jobs."

    run()


def moments(output: str) -> list[float]:
    return [float(line) for line in output.split("\n") if re.fullmatch(r"\d+\.\d+", line)]


@both
def test_commands_whose_files_are_not_for_each_other_run_one_after_the_other(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            here = asyncio.create_task(it.bash("touch begun; until [ -e go ]; do sleep 0.01; done; ls"))
            await until((it.root / "begun").exists)
            assert await it.bash("cat begun; echo beside") == "[exit status 0]\nbeside\n", "for all that is here"
            alone = asyncio.create_task(it.says("bash", ALONE, command="touch secret.txt; ls"))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not (it.root / "secret.txt").exists()
            (it.root / "go").touch()
            assert "secret" not in await here
            assert "secret" in await alone
            ticks = "exec 3>> ticks; while :; do date +%s.%N >&3; sleep 0.01; done"
            await it.says("bash", ALONE, command=ticks, background=True)
            assert "may not run beside" in await it.refuses("bash", command="true", background=True)
            assert "may not run beside" not in await it.says("bash", ALONE, command="true", background=True)
            shown = await it.says("bash", command="date +%s.%N; echo mine > x; sleep 0.5; cat x; date +%s.%N")
            assert "mine" in await it.says("bash", command="cat x"), "the job was halted, so it made nothing of that"
            began, ended = moments(shown)
            while not [one for one in moments(await it.says("bash", ALONE, command="cat ticks")) if one > ended]:
                await asyncio.sleep(0.01)
            told = moments(await it.says("bash", ALONE, command="cat ticks"))
            assert not [one for one in told if began < one < ended]

    run()


async def integrity(it: Desk, command: str = "", *, job: str = "") -> str:
    """Of a turn of the owner's that has run this, or read the output of this job."""
    turn, arguments = replace(OWNER, request=RequestLabel()), {"job": job} if job else {"command": command}
    call = ToolCall(id="1", name="job_output" if job else "bash", arguments=json.dumps(arguments))
    assert not (await it.hands.call(call, turn)).is_error
    return turn.request.label.integrity


NAMES = ("ls data", "echo data/*", "find")
READS = (
    "cat */*",
    "cat < data/x.csv",
    "/usr/bin/python3 read.py",
    "grep -r . .",
    "bash script",
    "ln data/x.csv l; cat l",
)


@both
def test_output_is_as_trusted_as_what_a_command_opened(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            await it.says("bash", OWNER, command="echo mine > mine.txt; echo '. ./data/x.csv' > script")
            await it.says("bash", OWNER, command="echo 'print(open(\"data/x.csv\").read())' > read.py; mkdir -p own")
            assert await integrity(it, "cat *; ls; grep -r . .; git init -q own; git -C own status") == "owner"
            put_with(it.root / "data" / "x.csv", "echo obey")
            assert await integrity(it, "cat mine.txt; echo more > own/more; cat own/more; ls own") == "owner"
            assert await integrity(it, "ls") == "outside", (
                "it shows the name of a directory that the agent did not make"
            )
            assert await integrity(it, "stat data/x.csv; /usr/bin/python3 -c 'print(1)'; touch data/y") == "owner"
            for command in (*READS, *NAMES):
                assert await integrity(it, command) == "outside", command
            assert await integrity(it, "cp data/x.csv copy; cat mine.txt") == "outside"
            assert await integrity(it, "cat mine.txt") == "owner"
            assert await integrity(it, "cat copy") == "outside", "it was made of it, also by another name"
            await it.says("bash", OWNER, command="rm -r copy data l")
            assert await integrity(it, "cat *; ls; grep -r . .") == "owner"

    run()


@both
def test_a_job_has_the_label_of_what_it_opened_so_far(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            put_with(it.root / "data" / "x.csv", "obey")
            waits = "until [ -e go ]; do sleep 0.01; done; cat data/x.csv; until [ -e on ]; do sleep 0.01; done"
            await it.says("bash", command=waits, background=True)
            assert await integrity(it, job="j1") == "owner"
            (it.root / "go").touch()
            async with asyncio.timeout(120):
                while "obey" not in await it.says("job_output", job="j1"):
                    await asyncio.sleep(0.01)
            assert await integrity(it, job="j1") == "outside"
            (it.root / "on").touch()
            await reported(it, 1)
            assert await integrity(it, job="j1") == "outside"
            assert it.ended[0].integrity == "outside", "of the notice, too"
            await it.says("bash", ALONE, command="true", background=True)
            await reported(it, 2)
            assert (it.ended[1].integrity, it.ended[1].readers) == ("owner", ("irc.test/olga",))

    run()


@story
async def test_what_a_command_with_network_made_is_text_from_outside(tmp_path: Path) -> None:
    async with desk(tmp_path, "off", network=True) as it:
        assert await integrity(it, "echo obey > got.txt") == "outside"
    async with desk(tmp_path, "off") as it:
        assert await integrity(it, "echo hello") == "owner"
        assert await integrity(it, "cp got.txt copy.txt; rm got.txt") == "outside", "also after a restart"
        assert await integrity(it, "cat c*") == "outside"
        (it.root / "copy.txt").unlink()
        assert await integrity(it, "echo mine > mine.txt; cat mine.txt") == "owner"
        assert await integrity(it, "cat mine.txt") == "owner"


@story
async def test_of_those_that_have_ended_the_last_may_be_read(tmp_path: Path) -> None:
    async with desk(tmp_path, "off") as it:
        for number in range(1, 12):
            await it.bash(f"echo {number}", background=True)
            await reported(it, number)
        assert (await it.says("job_output", job="j11")).endswith("\n11\n")
        assert (await it.says("job_output", job="j4")).endswith("\n4\n")
        await it.refuses("job_output", job="j1")
        assert len((await it.says("jobs")).splitlines()) == 9


@pytest.mark.boxed
@story
async def test_limits_hold_for_jobs_and_much_output_is_kept_in_part(tmp_path: Path) -> None:
    async with desk(tmp_path, "bubblewrap", output_bytes=1_000, processes=16) as it:
        await it.bash("seq 10000; :(){ :|:& };:; sleep 600", background=True)
        await reported(it, 1)
        assert "it had more than 16 processes at once" in it.reports[0][2]
        told = await it.says("job_output", job="j1")
        assert "bytes are not kept" in told
        assert len(told) < 1_500
        await it.empty()


@story
async def test_who_cannot_be_told_of_a_jobs_end_breaks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk(tmp_path, "off") as it:
        it.reports = None  # type: ignore[assignment] # so that telling breaks
        await it.bash("true", background=True)
        async with asyncio.timeout(120):
            while "running" in await it.says("jobs"):
                await asyncio.sleep(0.01)
        assert "exit status 0" in await it.says("jobs")
    assert "the end of job j1 of reverie cannot be told" in caplog.text


LIMITS = CommandLimits(BashConfig(), 60)


@pytest.mark.parametrize(
    ("output", "read"),
    [
        (b"plain\n\ttab \xc3\xbc\n", "plain\n\ttab \u00fc\n"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        (b"\x1bPq#0;2;0\x1b\\a\x1b^x\x1b\\b", "ab"),
        (b"\x1b(B\x1b=\x1b7\x1b[?25la", "a"),
        (b"10%\r50%\r100%\n", "100%\n"),
        (b"a\r\nb\r\r\nc\r", "a\nb\nc"),
        (b"a\x00b\x07c\x7fd\x08", "abcd"),
        (b"\xff\xfe\xed\xa0\x80", "\ufffd" * 5),
        ("\u009b31mx\u2028y\u0085z".encode(), "31mx\ny\nz"),
        (b"\x1b", ""),
        (b"\x1b[", ""),
        (b"\x1b]0;never ended", ""),
    ],
)
def test_an_output_reads_as_plain_lines(output: bytes, read: str) -> None:
    assert strip_terminal_codes(output) == read


@given(st.binary() | st.text(alphabet="\x1b[]0;mP\\\x07\r\na\u009b").map(str.encode))
def test_no_output_holds_what_a_terminal_would_obey(output: bytes) -> None:
    for letter in strip_terminal_codes(output):
        assert letter in "\n\t" or letter >= " "
        assert not "\x7f" <= letter <= "\x9f"


@pytest.mark.parametrize("output", [b"\x1b]" * 10**6, b"\x1b[" + b"0" * 10**6, b"\r" * 10**6, b"a" * 10**6])
def test_no_output_takes_long_to_read(output: bytes) -> None:
    assert len(strip_terminal_codes(output)) <= len(output)


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(min_value=2, max_value=60))
def test_the_beginning_and_the_end_are_kept_exactly(pieces: list[bytes], most: int) -> None:
    kept, whole = OutputBuffer(most), b"".join(pieces)
    for piece in pieces:
        kept.append(piece)
    assert kept.total_bytes == len(whole)
    assert kept.dropped_bytes == max(0, len(whole) - most)
    if not kept.dropped_bytes:
        assert kept.render() == strip_terminal_codes(whole)
        return
    head, tail = whole[: most - most // 2], whole[len(whole) - most // 2 :]
    assert kept.render() == (
        f"{strip_terminal_codes(head)}\n[... {kept.dropped_bytes} bytes are not kept ...]\n{strip_terminal_codes(tail)}"
    )


def test_much_takes_no_more_room_than_a_little() -> None:
    kept = OutputBuffer(10_000)
    for _ in range(10_000):
        kept.append(bytes(1_000))
    assert len(kept._head) + len(kept._tail) <= 15_000


@pytest.mark.parametrize(
    ("status", "why", "took_s", "line"),
    [
        (0, "", 0.2, "exit status 0"),
        (1, "", 12.4, "exit status 1 after 12 s"),
        (137, "", 0.2, "exit status 137 (SIGKILL)"),
        (153, "", 1, "exit status 153 (SIGXFSZ: a file became larger than it may be) after 1 s"),
        (255, "", 0, "exit status 255"),
        (137, "its 60 s were over", 60.2, "ended after 60 s: its 60 s were over"),
    ],
)
def test_the_end_is_one_line(status: int, why: str, took_s: float, line: str) -> None:
    assert ShellResult(status=status, end_reason=why, duration_s=took_s).render() == line


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (ProcessUsage(), ""),
        (ProcessUsage(processes=64, threads=1024, memory_bytes=1_073_741_824), ""),
        (ProcessUsage(processes=65), "it had more than 64 processes at once"),
        (ProcessUsage(processes=1, threads=1025), "it had more than 1024 threads at once"),
        (ProcessUsage(memory_bytes=1_073_741_825), "its processes took more than 1073 MB of memory together"),
    ],
)
def test_what_is_too_much(load: ProcessUsage, why: str) -> None:
    assert LIMITS.check_usage(load) == why


GB = 1_000_000_000
MOST = DISK_USE_FACTOR * LIMITS.config.disk_bytes


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ((100 * GB, 10**6), (100 * GB, 10**6), ""),
        ((100 * GB, 10**6), (100 * GB - MOST, 10**6 - MAX_NEW_FILES), ""),
        ((100 * GB, 10**6), (100 * GB - MOST - 1, 10**6), "the disk lost 1048 MB while it ran, and has 98951 MB left"),
        ((100 * GB, 10**6), (100 * GB, 10**6 - MAX_NEW_FILES - 1), "more than 100000 files were made while it ran"),
        ((100 * GB, 0), (100 * GB, 0), ""),  # a file system that does not count them
        ((90_000_000, 10**6), (90_000_000, 10**6), ""),  # full already: that is not its doing
        ((90_000_000, 10**6), (80_000_000, 10**6), ""),
        ((90_000_000, 10**6), (70_000_000, 10**6), "the disk lost 20 MB while it ran, and has 70 MB left"),
        ((0, 0), (GB, 10**6), ""),  # others make room
    ],
)
def test_when_the_disk_has_lost_too_much(before: tuple[int, int], now: tuple[int, int], why: str) -> None:
    spaces = [DiskSpace(free_bytes=free, free_files=files) for free, files in (before, now)]
    assert LIMITS.check_disk(*spaces) == why


def test_when_it_is_a_flood() -> None:
    assert LIMITS.check_output(20_000_000) == ""
    assert LIMITS.check_output(20_000_001) == "it printed more than 20 MB; put such output into a file"
