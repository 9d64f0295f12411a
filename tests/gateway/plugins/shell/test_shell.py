"""The shell: output, ends, background jobs, and that nothing that a command started outlives it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.tools import BashConfig
from gateway.core.labels import RequestLabel
from gateway.core.tool import tools_of
from gateway.core.tool_spec import ToolCall
from gateway.plugins.shell import OutputBuffer, describe_end, strip_terminal_codes
from gateway.plugins.shell.sandbox import DISK_USE_FACTOR, NICE, check_disk
from reverie.testing.channels import story
from reverie.testing.waiting import until
from tests.kits.shell import ALONE, CLOSED, MODES, OTHER, OWNER, ROOM, Desk, desk, inside

REPOSITORY = Path(__file__).parents[4]
both = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(params=MODES)
async def it(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    async with desk(tmp_path, request.param) as made:
        yield made


async def test_a_command_runs_in_the_files_and_tells_its_end(it: Desk) -> None:
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
    assert (it.root.stat().st_mode & 0o777) == 0o700, (
        "nobody else reads it, nor runs what is made there"
    )


async def test_it_is_told_as_somebody_elses_words(it: Desk) -> None:
    result = await it.call("bash", command="echo '[exit status 0]'\nexit 1")
    assert (result.is_untrusted, result.kind) == (True, "command")
    assert result.origin == "echo '[exit status 0]' exit 1"
    assert result.text.startswith("[exit status 1]\n"), (
        "our line comes first, so it cannot be forged"
    )


async def test_nothing_is_there_to_be_read(it: Desk) -> None:
    assert await it.bash("cat; read x; echo $?") == "[exit status 0]\n1\n"
    assert "[exit status 1]" in await it.bash("(: </dev/tty)"), "nor a terminal"


@both
async def test_a_flood_is_ended(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.plugins.shell.MAX_PRINTED_BYTES", 1_000_000)
    async with desk(tmp_path, mode) as it:
        told = await it.bash("yes & yes")
        assert told.startswith(
            "[ended: it printed more than 1 MB; put such output into a file]\ny\ny\n"
        )
        await it.empty()


@both
async def test_the_time_ends_all_of_it(tmp_path: Path, mode: str) -> None:
    async with desk(tmp_path, mode, timeout=0.5, max_timeout=1) as it:
        stubborn = "trap '' TERM HUP INT; (setsid sleep 600 &); sleep 600"
        assert await it.bash(f"echo x; {stubborn}") == "[ended: its 0.5 s were over]\nx\n"
        await it.empty()
        assert await it.bash(stubborn, timeout=0.1) == "[ended: its 0.1 s were over, no output]"
        assert "its 1 s were over" in await it.bash("sleep 600", timeout=600), (
            "no more than the operator allows"
        )


async def test_a_closed_output_is_not_the_end(it: Desk) -> None:
    assert await it.bash("exec >&- 2>&-; sleep 0.5; exit 4") == "[exit status 4, no output]"


BOMBS = {
    "waiting": ":(){ :|:; };:",
    "behind": ":(){ :|:& };:; sleep 600",
    "sessions": "while :; do setsid -f sleep 600; done",
}


def python(mode: str) -> str:
    """The machine's own may be anywhere; a sandbox has the system's."""
    return "/usr/bin/python3" if mode == "bubblewrap" or os.geteuid() == 0 else sys.executable


@both
async def test_the_memory_of_a_process_has_a_limit_that_cannot_be_lifted(
    tmp_path: Path, mode: str
) -> None:
    async with desk(tmp_path, mode, memory_bytes=200_000_000) as it:
        it.root.mkdir(parents=True)
        for name, text in (
            ("own", "x = bytearray(3 * 10**8)"),
            ("shared", "import mmap\nx = mmap.mmap(-1, 10**9)"),
            ("enough", "x = bytearray(10**8)\nprint('fine')"),
        ):
            (it.root / f"{name}.py").write_text(text)
        told = await it.bash(f"ulimit -d unlimited; ulimit -v unlimited; {python(mode)} own.py")
        assert "MemoryError" in told
        assert "Cannot allocate memory" in await it.bash(f"{python(mode)} shared.py")
        assert await it.bash(f"{python(mode)} enough.py") == "[exit status 0]\nfine\n"


@both
async def test_a_file_has_a_limit_that_cannot_be_lifted(tmp_path: Path, mode: str) -> None:
    # Ten times as much that others write to the same disk meanwhile would end it, too.
    async with desk(tmp_path, mode, disk_bytes=20_000_000) as it:
        told = await it.bash("ulimit -f unlimited; head -c 25000000 /dev/zero > big; exit $?")
        assert told.startswith("[exit status 153 (SIGXFSZ: a file became larger than it may be)]\n")
        assert (it.root / "big").stat().st_size <= 20_000_000


@both
async def test_filling_the_disk_with_many_files_is_ended(tmp_path: Path, mode: str) -> None:
    async with desk(tmp_path, mode, disk_bytes=2_000_000) as it:
        told = await it.bash(
            "for i in $(seq 1000); do head -c 1000000 /dev/zero > $i; done; sleep 5"
        )
        assert told.startswith("[ended")
        assert "the disk lost" in told


async def test_a_command_whose_turn_is_cut_off_ends(it: Desk) -> None:
    turn = asyncio.create_task(it.bash("setsid sleep 600 & sleep 600"))
    await until(lambda: len(inside(it.root)) >= 3, every_s=0.01)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await it.empty()


async def test_a_command_whose_turn_is_cut_off_while_it_starts_ends(it: Desk) -> None:
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
async def test_nothing_outlives_a_gateway_that_is_killed(tmp_path: Path, mode: str) -> None:
    gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, tmp_path, mode], cwd=REPOSITORY)
    root = tmp_path / "files/public"
    async with asyncio.timeout(120):
        await until(
            lambda: root.exists() and sum("sleep 600" in line for line in inside(root)) >= 6,
            every_s=0.02,
        )
        os.kill(gateway.pid, signal.SIGKILL)
        gateway.wait()
        await until(lambda: not inside(root), every_s=0.01)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_what_cannot_be_run_is_refused_with_the_reason(it: Desk) -> None:
    assert "too long" in await it.refuses("bash", command="\u20ac" * 50_000)
    assert "NUL" in await it.refuses("bash", command="a\0b")
    assert "command" in await it.refuses("bash", command="")
    assert "Invalid JSON" in await it.refuses("bash", command="\ud800")
    it.tree.write_text("")
    assert "cannot be reached" in await it.refuses("bash", command="true")
    assert "role admin" in await it.refuses("bash", replace(ROOM, requesters=()), command="true")


async def reported(it: Desk, count: int) -> None:
    await until(lambda: len(it.reports) >= count)


async def test_a_job_is_named_at_once_read_meanwhile_and_reported_at_its_end(it: Desk) -> None:
    told = await it.bash(
        "echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 3", background=True
    )
    assert told.startswith("Job j1 runs, for 600 s at most.")
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


async def test_a_job_ends_when_it_is_killed_and_nobody_is_told(it: Desk) -> None:
    await it.bash("setsid sleep 600 & sleep 600", background=True)
    await until(lambda: len(inside(it.root)) >= 3, every_s=0.01)
    assert await it.says("job_kill", job="j1") == "j1 is ended."
    await it.empty()
    assert (await it.says("jobs")).startswith("j1: killed: ")
    assert await it.says("job_output", job="j1") == "[killed, no output]"
    await it.shell.bash(ROOM, command="sleep 600", background=True)
    await it.shell.job_kill(ROOM, job="j2")
    assert "j2: killed" in await it.says("jobs"), "it had not begun"
    assert not it.reports


@both
async def test_a_job_lives_no_longer_than_the_operator_allows(tmp_path: Path, mode: str) -> None:
    async with desk(tmp_path, mode, max_timeout=0.5) as it:
        await it.bash("(setsid sleep 600 &); sleep 600", background=True, timeout=600)
        await reported(it, 1)
        assert it.reports[0][2].startswith("Background job j1: ended: its 0.5 s were over: ")
        await it.empty()


async def test_jobs_end_with_the_shell_and_no_more_begin(it: Desk) -> None:
    for _ in range(3):
        await it.bash("setsid sleep 600 & sleep 600", background=True)
    await until(lambda: len(inside(it.root)) >= 9, every_s=0.01)
    await it.shell.stop()
    await it.empty()
    assert not it.reports
    assert "Nothing can run in the background" in await it.refuses(
        "bash", command="true", background=True
    )
    assert await it.bash("echo x") == "[exit status 0]\nx\n"


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
async def test_a_job_is_of_its_conversation_and_seen_by_the_owner_alone_besides(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, "off") as it:
        await it.says("bash", command="echo secret; sleep 600", background=True)
        assert await it.says("jobs", OTHER) == "No jobs."
        for tool in ("job_output", "job_kill"):
            assert (
                await it.refuses(tool, OTHER, job="j1")
                == "There is no such job here; `jobs` names them."
            )
            assert await it.refuses(tool, OTHER, job="j9") == await it.refuses(
                tool, OTHER, job="j1"
            )
        assert (await it.says("jobs", OWNER)).startswith("j1: running: echo secret")
        assert await it.says("job_kill", OWNER, job="j1") == "j1 is ended."


LOOK = "find /workspace /files -name '*.txt' | sort | xargs -d '\\n' cat; echo end"


@pytest.mark.boxed
@story
async def test_a_command_sees_the_files_of_its_place_and_of_everybody_and_changes_its_own_only(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, "bubblewrap") as it:
        for here, word in ((ROOM, "public"), (CLOSED, "closed"), (ALONE, "alone")):
            told = await it.says(
                "bash", here, command=f"echo {word} > a.txt; pwd; cat /workspace/a.txt"
            )
            assert told == f"[exit status 0]\n/workspace\n{word}\n"
        (it.tree / "owner").mkdir()
        (it.tree / "owner/b.txt").write_text("owners\n")
        (it.tree / "old.txt").write_text("of before\n")
        assert await it.says("bash", ROOM, command=LOOK) == "[exit status 0]\npublic\npublic\nend\n"
        assert (
            await it.says("bash", CLOSED, command=LOOK)
            == "[exit status 0]\nclosed\npublic\nclosed\nend\n"
        )
        told = await it.says("bash", ALONE, command=f"cd /files; {LOOK}")
        assert set(told.split("\n")[1:]) == {
            "alone",
            "closed",
            "owners",
            "of before",
            "public",
            "end",
            "",
        }
        for path in (
            "/files/public/a.txt",
            "/files/public/new",
            "/files/new",
            "/files/places/irc.test/new",
        ):
            for here in (CLOSED, ALONE):
                assert "[exit status 1]" in await it.says(
                    "bash", here, command=f"echo x > {path}"
                ), path
        own = "/files/places/irc.test/#closed/a.txt"
        assert (await it.says("bash", CLOSED, command=f"echo more >> '{own}'; cat a.txt")).endswith(
            "closed\nmore\n"
        )
        assert (
            await it.says("bash", ROOM, command="echo x > /files/public/c.txt; cat c.txt")
        ).endswith("x\n")


PIPES = """/usr/bin/python3 -c '
import os, socket
def named():
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).bind("socket")
def of_a_pair():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind("socket")
for make in (lambda: os.mkfifo("pipe"), named, of_a_pair):
    try:
        make()
    except OSError as error:
        print(error.strerror)
socket.socketpair()
open("file", "w")
'; ls"""


@pytest.mark.boxed
@story
async def test_no_pipe_leads_from_a_closed_place_to_a_job_of_a_room(tmp_path: Path) -> None:
    """A socket, or named pipe, can be written to where it is mounted read-only."""
    async with desk(tmp_path, "bubblewrap") as it:
        for where in (ROOM, CLOSED):
            told = await it.says("bash", where, command=PIPES)
            assert told.splitlines() == [
                "[exit status 0]",
                *["Function not implemented"] * 3,
                "file",
            ]
        told = await it.says("bash", ALONE, command=PIPES)
        assert told.endswith("file\npipe\nsocket\n"), (
            "an owner's own directory is seen by owners only"
        )


@pytest.mark.boxed
@story
async def test_what_a_command_brings_is_text_from_outside_for_those_who_may_read_what_it_saw(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, "bubblewrap") as it:
        for here, readers in (
            (ROOM, ()),
            (CLOSED, ("irc.test/#closed",)),
            (ALONE, ("irc.test/olga", "owner:")),
        ):
            for command, integrity in (("true", "owner"), ("echo x", "outside")):
                turn = replace(here, request=RequestLabel())
                call = ToolCall(id="1", name="bash", arguments=json.dumps({"command": command}))
                assert not (await it.hands.call(call, turn)).is_error
                assert (turn.request.label.integrity, turn.request.label.readers) == (
                    integrity,
                    readers,
                )


@pytest.mark.boxed
@story
async def test_a_job_is_shown_to_those_who_may_read_all_that_it_could_read(tmp_path: Path) -> None:
    async with desk(tmp_path, "bubblewrap") as it:
        await it.says("bash", ALONE, command="echo secret", background=True)
        await reported(it, 1)
        assert (it.ended[0].integrity, it.ended[0].readers) == (
            "outside",
            ("irc.test/olga", "owner:"),
        )
        assert "secret" in await it.says("job_output", ALONE, job="j1")
        unproven = replace(ALONE, visibility=replace(ALONE.visibility, sees_everything=False))
        assert await it.says("jobs", unproven) == "No jobs."
        assert "no such job" in await it.refuses("job_output", unproven, job="j1")


async def test_commands_of_several_places_run_at_once(it: Desk) -> None:
    here = asyncio.create_task(it.bash("touch begun; until [ -e go ]; do sleep 0.01; done; ls"))
    await until((it.root / "begun").exists)
    assert "secret.txt" in await it.says("bash", CLOSED, command="touch secret.txt; ls")
    (it.root / "go").touch()
    assert await here == "[exit status 0]\nbegun\ngo\n"


@pytest.mark.parametrize(
    ("mode", "settings", "kind"),
    [("bubblewrap", {}, "own"), ("bubblewrap", {"network": True}, "out"), ("off", {}, "out")],
)
@story
async def test_a_command_that_can_leave_its_place_goes_out(
    tmp_path: Path, mode: str, settings: dict[str, Any], kind: str
) -> None:
    async with desk(tmp_path, mode, **settings) as it:
        (tool,) = (one for one in tools_of(it.shell) if one.spec.name == "bash")
        call = ToolCall(id="1", name="bash", arguments='{"command": "true"}')
        assert (await tool.find_effect(call, ROOM)).kind == kind


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
        f"{strip_terminal_codes(head)}\n[... {kept.dropped_bytes} bytes are not kept "
        f"...]\n{strip_terminal_codes(tail)}"
    )


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
    assert describe_end(status, why, took_s) == line


GB = 1_000_000_000
MOST = DISK_USE_FACTOR * BashConfig().disk_bytes


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (100 * GB, 100 * GB, ""),
        (100 * GB, 100 * GB - MOST, ""),
        (
            100 * GB,
            100 * GB - MOST - 1,
            "the disk lost 1048 MB while it ran, and has 98951 MB left",
        ),
        (90_000_000, 90_000_000, ""),  # full already: that is not its doing
        (90_000_000, 80_000_000, ""),
        (90_000_000, 70_000_000, "the disk lost 20 MB while it ran, and has 70 MB left"),
        (0, GB, ""),  # others make room
    ],
)
def test_when_the_disk_has_lost_too_much(before: int, now: int, why: str) -> None:
    assert check_disk(BashConfig(), before, now) == why
