"""What runs in the background: whose it is, how it is told of, and that it never outlives its shell."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.kits.channels import story
from tests.kits.shell import MODES, OTHER, OWNER, ROOM, Desk, desk, inside

both = pytest.mark.parametrize("mode", MODES)


async def reported(it: Desk, count: int) -> None:
    async with asyncio.timeout(120):
        while len(it.reports) < count:
            await asyncio.sleep(0.01)


@both
def test_a_job_is_named_at_once_read_meanwhile_and_reported_at_its_end(tmp_path: Path, mode: str) -> None:
    @story
    async def run() -> None:
        async with desk(tmp_path, mode) as it:
            began = time.monotonic()
            told = await it.bash("echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 3", background=True)
            assert told == "Job j1 runs, for 600 s at most. You are told when it has ended; job_output reads it."
            assert time.monotonic() - began < 5
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
    async with desk(tmp_path, "off", jobs=2) as it:
        await it.bash("sleep 600", background=True)
        await it.bash("sleep 600", background=True)
        told = await it.refuses("bash", command="sleep 600", background=True)
        assert told == "There are 2 jobs already, and no more may be: wait for one, or job_kill it."
        await it.says("job_kill", job="j1")
        assert (await it.bash("sleep 600", background=True)).startswith("Job j3 runs")


@story
async def test_without_any_nothing_runs_in_the_background(tmp_path: Path) -> None:
    async with desk(tmp_path, "off", jobs=0) as it:
        assert "without `background`" in await it.refuses("bash", command="touch x", background=True)
        assert await it.says("jobs") == "No jobs."
        assert not (it.root / "x").exists()


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
